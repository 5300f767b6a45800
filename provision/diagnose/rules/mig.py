"""MIG: instances that a reboot takes away, modes that wait for a reset."""

from __future__ import annotations

from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.rule import Case, Found, rule


@rule("mig.instances_lost")
def _lost(case: Case) -> Iterator[Found]:
    diagnostics = queries.boot(case)
    on = [gpu for gpu in case.facts.smi.gpus if gpu.mig == "Enabled"]
    if not on or diagnostics.mig_instances is None or queries.in_container(case):
        return
    empty = [gpu for gpu in on if not diagnostics.mig_instances.get(str(gpu.index), 0)]
    if not empty:
        return
    evidence = [
        f"GPU {gpu.index} {gpu.name}: MIG is enabled, /proc/driver/nvidia/capabilities shows no GPU instance"
        for gpu in empty
    ]
    evidence += [f"{path}: a layout is configured" for path in diagnostics.mig_layout] or [
        "no file of nvidia-mig-manager: no layout is kept here"
    ]
    manager = "nvidia-mig-manager.service" in (diagnostics.failed_units or ())
    if manager:
        evidence += ["nvidia-mig-manager.service: failed", *diagnostics.unit_log.get("nvidia-mig-manager", [])[-3:]]
    text = (
        "systemctl restart nvidia-mig-manager (it makes the instances of its configuration again)"
        if diagnostics.mig_layout
        else "make the instances again (nvidia-smi mig -cgi PROFILES -C; nvidia-mig-manager does it at boot), or switch MIG off"
    )
    yield Found(
        f"MIG is enabled on {queries.counted(empty, 'GPU')} and there are no instances: CUDA has nothing to run on there",
        evidence,
        queries.manual(text),
        level="error" if diagnostics.mig_layout else None,
    )


@rule("mig.reset_pending")
def _pending(case: Case) -> Iterator[Found]:
    waiting = [gpu for gpu in case.facts.smi.gpus if gpu.mig_pending and gpu.mig and gpu.mig_pending != gpu.mig]
    if not waiting:
        return
    held = [
        f"/proc/modules: {queries.uses_text(row)}"
        for row in queries.boot(case).modules
        if row.name in ("nvidia_drm", "nvidia_modeset") and row.uses
    ]
    users = list(map(queries.user_text, case.facts.gpu_users))
    evidence = [f"GPU {gpu.index}: MIG is {gpu.mig}, {gpu.mig_pending} after a reset" for gpu in waiting] + held + users
    reason = ""
    if held and not users:
        reason = "; nvidia_drm holds the card although no process uses it, so that a reset is refused"
    elif users:
        reason = (
            f"; {queries.counted(users, 'process')[:-2] + 'processes' if len(users) > 1 else '1 process'} still use it"
        )
    yield Found(
        f"the MIG mode of {queries.counted(waiting, 'GPU')} changes at the next reset{reason}",
        evidence,
        queries.reboot(
            "reboot; or stop the display manager, unload nvidia_drm and nvidia_modeset, then nvidia-smi --gpu-reset"
        ),
    )
