"""What visibly does not work. Each is folded under the error that explains it; alone it is reported as unknown."""

from __future__ import annotations

from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.rule import Case, Found, rule

_DRIVER = frozenset({"secureboot", "kernel", "driver", "nouveau", "gpus", "fabric", "mig"})
# While a module is loaded, these are about the next boot and explain nothing that fails now.
OF_NEXT_BOOT = frozenset({"kernel", "secureboot", "boot"})
# What nvidia-smi says -> the codes that it means, the likeliest first.
MEANS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "version mismatch",
        (
            "driver.container_libraries",
            "driver.stale_module",
            "driver.mixed_versions",
            "driver.libraries_differ",
            "kernel.module_version",
            "driver.two_installers",
            "dpkg.unfinished",
        ),
    ),
    ("libnvidia-ml", ("driver.library_missing", "driver.two_installers", "dpkg.unfinished")),
    (
        "No devices",
        (
            "gpus.no_common_driver",
            "gpus.needs_proprietary",
            "gpus.needs_open",
            "gpus.branch_wrong",
            "gpus.gsp_firmware",
            "gpus.init_failed",
            "gpus.fell_off_bus",
        ),
    ),
)
_LATER = frozenset({"boot", "dpkg", "disk"})

# code of a symptom -> areas whose errors explain it, the likeliest set first.
EXPLAINED_BY: dict[str, tuple[frozenset[str], ...]] = {
    "driver.smi_fails": (_DRIVER, _LATER),
    "driver.not_loaded": (_DRIVER, _LATER),
    "gpus.unbound": (_DRIVER, _LATER),
    "driver.persistenced_fails": (_DRIVER, _LATER),
    "fabric.fails": (frozenset({"fabric"}), _DRIVER, _LATER),
}


@rule("driver.smi_fails")
def _smi_fails(case: Case) -> Iterator[Found]:
    smi = case.facts.smi
    if not smi.path or not (smi.ran or smi.error) or not queries.own_gpus(case):
        return
    if queries.in_container(case) and not case.facts.devices:
        # no GPU was given to this container
        return
    if smi.timed_out:
        yield Found("nvidia-smi did not answer in time", (f"{smi.path}: stopped after its time was over",))
    elif smi.rc or smi.error:
        said = (smi.error or f"exit code {smi.rc}").splitlines()
        yield Found(f"nvidia-smi fails: {said[0]}", [f"{smi.path} ended with {smi.rc}", *said[1:4]])
    elif not queries.in_container(case) and 0 < len(smi.gpus) < len(queries.own_gpus(case)):
        unseen = [queries.title(case, gpu) for gpu in queries.own_gpus(case) if not queries.smi_sees(case, gpu)]
        yield Found(
            f"nvidia-smi sees {len(smi.gpus)} of {len(queries.own_gpus(case))} GPUs",
            [f"not seen: {title}" for title in unseen],
        )


@rule("driver.not_loaded")
def _not_loaded(case: Case) -> Iterator[Found]:
    facts = case.facts
    if (
        facts.module.loaded
        or not queries.own_gpus(case)
        or not queries.has_driver(case)
        or queries.in_container(case)
        and not facts.kernels.installed
    ):
        return
    found = queries.modules_of(case, facts.kernels.running)
    if found:
        evidence = [
            f"on the disk for {facts.kernels.running}: {queries.module_text(found[0])}",
            "/proc/driver/nvidia/version: not there",
        ]
        if not facts.devices:
            evidence.append("/dev/nvidia*: none")
        yield Found(
            f"the nvidia module is not loaded, though there is one for kernel {facts.kernels.running}", evidence
        )


@rule("gpus.unbound")
def _unbound(case: Case) -> Iterator[Found]:
    facts = case.facts
    unbound = [gpu for gpu in queries.own_gpus(case) if gpu.driver is None]
    if (
        facts.module.loaded
        and unbound
        and not queries.in_container(case)
        and any(gpu.driver == "nvidia" for gpu in facts.gpus)
    ):
        yield Found(
            f"{len(unbound)} of {len(queries.own_gpus(case))} GPUs have no driver, though the nvidia module is loaded",
            [queries.title(case, gpu) for gpu in unbound],
        )
    elif facts.module.loaded and unbound and not queries.in_container(case) and not facts.smi.gpus:
        yield Found("the nvidia module is loaded and drives no GPU", [queries.title(case, gpu) for gpu in unbound])


@rule("driver.persistenced_fails")
def _persistenced(case: Case) -> Iterator[Found]:
    diagnostics = queries.boot(case)
    said = diagnostics.unit_log.get("nvidia-persistenced", [])
    failed = "nvidia-persistenced.service" in (diagnostics.failed_units or ())
    if failed and queries.own_gpus(case) and not queries.smi_works(case):
        yield Found("nvidia-persistenced does not start", ["nvidia-persistenced.service: failed", *said[-4:]])


@rule("fabric.fails")
def _fabric(case: Case) -> Iterator[Found]:
    diagnostics = queries.boot(case)
    failed = "nvidia-fabricmanager.service" in (diagnostics.failed_units or ())
    if failed and (case.facts.nvswitches or case.facts.nvlink5_switch):
        yield Found(
            "nvidia-fabricmanager does not start",
            ["nvidia-fabricmanager.service: failed", *diagnostics.unit_log.get("nvidia-fabricmanager", [])[-4:]],
        )
