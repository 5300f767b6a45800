"""What visibly does not work. Each is folded under the error that explains it; alone it is told as unknown."""

from __future__ import annotations

from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.rule import Case, Found, Rule

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
        yield Found(f"nvidia-smi fails: {said[0]}", queries.clip([f"{smi.path} ended with {smi.rc}", *said[1:4]]))
    elif not queries.in_container(case) and 0 < len(smi.gpus) < len(queries.own_gpus(case)):
        unseen = [queries.title(case, gpu) for gpu in queries.own_gpus(case) if not queries.smi_sees(case, gpu)]
        yield Found(
            f"nvidia-smi sees {len(smi.gpus)} of {len(queries.own_gpus(case))} GPUs",
            queries.clip(f"not seen: {title}" for title in unseen),
        )


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
            f"on the disk for {facts.kernels.running}: {queries.module_words(found[0])}",
            "/proc/driver/nvidia/version: not there",
        ]
        if not facts.devices:
            evidence.append("/dev/nvidia*: none")
        yield Found(
            f"the nvidia module is not loaded, though there is one for kernel {facts.kernels.running}",
            queries.clip(evidence),
        )


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
            queries.clip(queries.title(case, gpu) for gpu in unbound),
        )
    elif facts.module.loaded and unbound and not queries.in_container(case) and not facts.smi.gpus:
        yield Found(
            "the nvidia module is loaded and drives no GPU", queries.clip(queries.title(case, gpu) for gpu in unbound)
        )


def _persistenced(case: Case) -> Iterator[Found]:
    trouble = queries.boot(case)
    said = trouble.unit_log.get("nvidia-persistenced", [])
    failed = "nvidia-persistenced.service" in (trouble.failed_units or ())
    if failed and queries.own_gpus(case) and not queries.smi_works(case):
        yield Found(
            "nvidia-persistenced does not start", queries.clip(["nvidia-persistenced.service: failed", *said[-4:]])
        )


def _fabric(case: Case) -> Iterator[Found]:
    trouble = queries.boot(case)
    failed = "nvidia-fabricmanager.service" in (trouble.failed_units or ())
    if failed and (case.facts.nvswitches or case.facts.nvlink5_switch):
        yield Found(
            "nvidia-fabricmanager does not start",
            queries.clip(
                ["nvidia-fabricmanager.service: failed", *trouble.unit_log.get("nvidia-fabricmanager", [])[-4:]]
            ),
        )


RULES = (
    Rule(
        code="driver.smi_fails",
        level="error",
        title="nvidia-smi fails",
        explain=(
            "`nvidia-smi` is the messenger: its text is about the layer below it that does not answer. Exit "
            "code 9 means that no "
            "module is loaded, 18 that module and library are of different versions, 6 that the driver drives"
            " no device. diagnose "
            "folds it under the cause; alone it is told as unknown, with everything that was looked at."
        ),
        breaks="nothing by itself: programs fail for the same reason",
        repair="mend the cause that it is folded under",
        prevent="",
        find=_smi_fails,
        texts=(
            r"NVIDIA-SMI has failed because it couldn'?t communicate with the NVIDIA driver",
            r"No devices (?:were )?found",
            r"NVIDIA-SMI couldn'?t find libnvidia-ml",
            r"Unable to determine the device handle for GPU",
        ),
        sources=("exit codes measured on drivers 535 and 580",),
    ),
    Rule(
        code="driver.not_loaded",
        level="error",
        title="the nvidia module is not loaded, though it is on the disk",
        explain=(
            "A module of the running kernel is there and nothing loaded it. Usually the driver was installed "
            "and the host not "
            "rebooted, or the kernel refused the module: then another finding says why, and this one is "
            "folded under it."
        ),
        breaks="every program that uses a GPU; nvidia-smi, nvidia-persistenced",
        repair="mend the cause that it is folded under; without one, `modprobe nvidia` as root prints why",
        prevent="",
        find=_not_loaded,
        texts=(
            r"Failed to query NVIDIA devices\. Please ensure that the NVIDIA device files",
            r"modprobe: ERROR: could not insert 'nvidia[\w-]*'",
            r"nvidia-container-cli: initialization error: (?:nvml|driver)(?: rpc)? error: (?:driver not loaded|failed to process)",
            r"/dev/nvidiactl.*No such file",
        ),
    ),
    Rule(
        code="gpus.unbound",
        level="error",
        title="a GPU has no driver, though the nvidia module is loaded",
        explain=(
            "The loaded module did not take the card: its branch or flavour does not drive it, its firmware "
            "is missing, or the card "
            "did not answer. The kernel's log has the reason, and another finding names it where it is known."
        ),
        breaks="programs see fewer GPUs than the machine has",
        repair="mend the cause that it is folded under; without one, look at `dmesg | grep NVRM`",
        prevent="",
        find=_unbound,
        texts=(r"probe with driver nvidia failed with error", r"nvidia: probe of [0-9a-f:.]+ failed with error"),
    ),
    Rule(
        code="driver.persistenced_fails",
        level="error",
        title="nvidia-persistenced does not start",
        explain=(
            "The daemon opens every GPU when it starts. Where no module is loaded, or no GPU answers, it "
            "fails; so it fails because of "
            "an earlier cause and is not that cause. On a host without a GPU its failure means nothing."
        ),
        breaks="nothing by itself",
        repair=(
            "mend the cause that it is folded under: module on the disk, loadable, loaded, device nodes, "
            "NVML, services, in this order"
        ),
        prevent="",
        find=_persistenced,
        texts=(
            r"Unable to start service nvidia-persistenced",
            r"Job for nvidia-persistenced\.service failed",
            r"nvidia-persistenced.*(?:failed|Failed to query NVIDIA devices)",
        ),
    ),
    Rule(
        code="fabric.fails",
        level="error",
        title="fabric manager does not start",
        explain=(
            "On NVSwitch systems fabric manager sets up the links before CUDA can start. Another finding says"
            " why it does not start, "
            "most often another version than the driver's."
        ),
        breaks="CUDA fails with error 802, while nvidia-smi looks well",
        repair="mend the cause that it is folded under; without one, `journalctl -u nvidia-fabricmanager`",
        prevent="",
        find=_fabric,
        texts=(
            r"nvidia-fabricmanager\.service: (?:Control process exited|Failed with result)",
            r"Job for nvidia-fabricmanager\.service failed",
        ),
    ),
)
