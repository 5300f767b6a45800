"""Secure Boot: modules that the kernel will not take."""

from __future__ import annotations

from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule

# Of the kernel (kernel/module/signing.c), and of the program that asked it to load the module.
REFUSED_KEY = (
    r"module with unavailable key is rejected",
    r"Key was rejected by service",
    r"Required key not available",
)
# What mokutil asked for, in mokutil's words.
_WAITS = {
    "MokNew": "a key that mokutil --import registered",
    "MokDel": "the removal of a key (mokutil --delete)",
    "MokSB": "a switch of the validation (mokutil --disable-validation or --enable-validation)",
}
_REJECTED = (
    *REFUSED_KEY,
    r"unsigned module is rejected",
    r"signature not signed with a trusted key",
    r"module verification failed",
)


def _enforced(case: Case) -> list[str]:
    """Why the kernel asks for signatures; empty where it does not."""
    diagnostics, rows = queries.boot(case), []
    if case.facts.secure_boot.enabled:
        rows.append("Secure Boot is on (EFI variable SecureBoot)")
    if diagnostics.sig_enforce or "module.sig_enforce=1" in diagnostics.cmdline:
        rows.append("module.sig_enforce is on")
    if diagnostics.lockdown in ("integrity", "confidentiality") and not rows:
        rows.append(f"/sys/kernel/security/lockdown: {diagnostics.lockdown}")
    return rows


def _bad_signatures(case: Case) -> list[tuple[str, str, bool]]:
    """(kernel, what is wrong, unsigned) of modules that this kernel will not take."""
    rows = []
    running = case.facts.kernels.running
    refusals = [] if case.facts.module.loaded else queries.log_lines(case, *REFUSED_KEY)
    for kernel in queries.kernels_that_matter(case):
        # The log is of this boot, and so of the running kernel.
        refused = bool(refusals) and kernel == running
        modules = queries.modules_of(case, kernel)
        if not modules:
            continue
        module = modules[0]
        if not module.signed:
            rows.append((kernel, f"{module.path}: not signed", True))
            continue
        # The distribution's kernels know the key of its modules: only a refusal shows that this is another kernel.
        unknown = module.origin != "prebuilt" and case.facts.secure_boot.mok_enrolled is False
        if unknown or refused:
            signer = module.signer or "a key of this machine"
            why = "which is not enrolled" if unknown else "which the kernel refused"
            rows.append((kernel, f"{module.path}: signed by {signer}, {why}", False))
    return rows


def _waits(case: Case) -> list[str]:
    """Requests that would let the module in: another key, or no validation; a removal helps nobody."""
    return [name for name in case.facts.secure_boot.waits if name != "MokDel"]


def _find(case: Case, unsigned: bool) -> Iterator[Found]:
    if not queries.own_gpus(case) or queries.in_container(case):
        return
    why, bad = _enforced(case), _bad_signatures(case)
    rejected = queries.log_lines(case, *_REJECTED)
    loaded = case.facts.module.loaded is not None
    if not why and not (bad and not loaded and any("rejected" in line for line in rejected)):
        return
    mine = [row for row in bad if row[2] == unsigned]
    if not mine:
        return
    running = case.facts.kernels.running
    if loaded and all(kernel == running for kernel, _, _ in mine):
        # it is loaded: the kernel took it
        return
    affects = [kernel for kernel, _, _ in mine]
    evidence = [*(why or ["the kernel refused the module"]), *(words for _, words, _ in mine), *rejected[:3]]
    key = case.facts.secure_boot.mok_key
    if key:
        enrolled = {True: "enrolled", False: "not enrolled", None: "not known whether it is enrolled"}[
            case.facts.secure_boot.mok_enrolled
        ]
        evidence.append(f"{key}: the key of this machine's DKMS, {enrolled}")
    evidence.append(queries.loaded_text(case))
    evidence += [f"EFI variable {name}: {_WAITS.get(name, name)} waits for the console" for name in _waits(case)]
    when = "" if running in affects and not loaded else " after the next boot"
    message = (
        f"the module of kernel {', '.join(affects)} is not signed, and the kernel takes only signed ones{when}"
        if unsigned
        else f"the module of kernel {', '.join(affects)} is signed by a key that the firmware does not know{when}"
    )
    yield Found(message, evidence, *(_repairs(case, affects)))


def _repairs(case: Case, kernels: list[str]) -> tuple[Repair, ...]:
    build = str(case.values.get("nvidia_driver_build", "auto"))
    channel = queries.installed(case).channel
    if _waits(case):
        # It was asked for already, and only somebody at the console can say yes.
        asked = " and ".join(_WAITS.get(name, name) for name in _waits(case))
        return (
            queries.manual(
                f"{asked} waits: reboot, and confirm it in the blue screen (MokManager) at the machine's console at "
                "that next boot; no program can do that, and without an answer it asks once only"
            ),
        )
    modules = [queries.modules_of(case, kernel)[0] for kernel in kernels]
    if all(module.origin == "prebuilt" and module.signed for module in modules):
        return (
            queries.manual(
                "boot a kernel of the archive, which knows the key of these modules; or enroll the signer's certificate, "
                "if you have it and trust it, at the console: your decision"
            ),
        )
    enroll = queries.manual(
        f"enroll the key: mokutil --import {case.facts.secure_boot.mok_key or '/var/lib/shim-signed/mok/MOK.der'}, reboot, and "
        "confirm at the machine's console; or switch Secure Boot off in the firmware: your decision"
    )
    if build == "dkms" or channel in ("cuda", "ppa"):
        return (enroll,)
    return (
        queries.apply(
            "install Ubuntu's signed modules (linux-modules-nvidia-…) instead of the module that is built here"
        ),
        enroll,
    )


@rule("secureboot.unsigned_module")
def _unsigned(case: Case) -> Iterator[Found]:
    yield from _find(case, True)


@rule("secureboot.key_not_enrolled")
def _key(case: Case) -> Iterator[Found]:
    yield from _find(case, False)
