"""MIG: instances that a reboot takes away, modes that wait for a reset."""

from __future__ import annotations

from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.rule import Case, Found, Rule


def _lost(case: Case) -> Iterator[Found]:
    trouble = queries.boot(case)
    on = [gpu for gpu in case.facts.smi.gpus if gpu.mig == "Enabled"]
    if not on or trouble.mig_instances is None or queries.in_container(case):
        return
    empty = [gpu for gpu in on if not trouble.mig_instances.get(str(gpu.index), 0)]
    if not empty:
        return
    evidence = [
        f"GPU {gpu.index} {gpu.name}: MIG is enabled, /proc/driver/nvidia/capabilities shows no GPU instance"
        for gpu in empty
    ]
    evidence += [f"{path}: a layout is wanted" for path in trouble.mig_layout] or [
        "no file of nvidia-mig-manager: no layout is kept here"
    ]
    manager = "nvidia-mig-manager.service" in (trouble.failed_units or ())
    if manager:
        evidence += ["nvidia-mig-manager.service: failed", *trouble.unit_log.get("nvidia-mig-manager", [])[-3:]]
    words = (
        "systemctl restart nvidia-mig-manager (it makes the instances of its configuration again)"
        if trouble.mig_layout
        else "make the instances again (nvidia-smi mig -cgi PROFILES -C; nvidia-mig-manager does it at boot), or switch MIG off"
    )
    yield Found(
        f"MIG is enabled on {queries.counted(empty, 'GPU')} and there are no instances: CUDA has nothing to run on there",
        queries.clip(evidence),
        (queries.manual(words),),
        level="error" if trouble.mig_layout else None,
    )


def _pending(case: Case) -> Iterator[Found]:
    waiting = [gpu for gpu in case.facts.smi.gpus if gpu.mig_pending and gpu.mig and gpu.mig_pending != gpu.mig]
    if not waiting:
        return
    held = [
        f"/proc/modules: {row.name} is used {row.uses} times"
        + (f", by {', '.join(row.holders)}" if row.holders else "")
        for row in queries.boot(case).modules
        if row.name in ("nvidia_drm", "nvidia_modeset") and row.uses
    ]
    users = [f"pid {user.pid}: {user.comm} ({user.user or 'unknown user'})" for user in case.facts.gpu_users]
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
        queries.clip(evidence),
        (
            queries.reboot(
                "reboot; or stop the display manager, unload nvidia_drm and nvidia_modeset, then nvidia-smi --gpu-reset"
            ),
        ),
    )


RULES = (
    Rule(
        code="mig.instances_lost",
        level="warning",
        title="MIG is enabled and there are no instances",
        explain=(
            "The MIG mode is kept in the card; its GPU and compute instances are not. A reboot, or a reload "
            "of the driver, takes them away. "
            "Where nvidia-mig-manager has a layout, it makes them again at boot; where nothing does, a card "
            "with MIG enabled shows CUDA no device."
        ),
        breaks="CUDA, containers and Kubernetes' device plugin on those cards",
        repair="make the layout again; let nvidia-mig-manager do it at boot",
        prevent=("nvidia-mig-manager (mig-parted) with the wanted layout; note the layout before a reload or reboot"),
        find=_lost,
        texts=(r"No MIG devices? found", r"no MIG devices", r"MIG mode is enabled, but no (?:MIG|GPU) instances"),
        sources=("NVIDIA MIG user guide",),
    ),
    Rule(
        code="mig.reset_pending",
        level="warning",
        title="a change of the MIG mode waits for a reset",
        explain=(
            "MIG mode changes when the card is reset, and a card is reset only when nobody has it open. "
            "nvidia_drm counts as somebody, "
            "though nvidia-smi lists no process: 'In use by another client'. Trying again does not help."
        ),
        breaks="nothing: the old mode stays until the reset",
        repair="unload nvidia_drm and nvidia_modeset (stop the display manager) and reset, or reboot",
        prevent="multi-user.target and no nvidia_drm on servers",
        find=_pending,
        reboot=True,
        texts=(r"MIG mode is in pending enable state|is currently being used by one or more other processes",),
        sources=("NVIDIA MIG user guide",),
    ),
    Rule(
        code="mig.one_instance_visible",
        level="note",
        title="a program sees one MIG instance, or none",
        explain=(
            "CUDA shows a process one MIG instance at most, whatever CUDA_VISIBLE_DEVICES lists. torch before"
            " 2.0 counted devices through NVML "
            "and could not read MIG's UUIDs: `torch.cuda.device_count()` was 0 with a working instance. "
            "Instances are counted with "
            "`nvidia-smi -L`, cards with `lspci`."
        ),
        breaks="nothing by itself: one visible instance a process is right",
        repair="one process an instance; torch 2.0 or newer",
        prevent="expected numbers from lspci and the MIG layout, not from torch",
        find=lambda case: (),
        texts=(r"torch\.cuda\.device_count\(\) == 0", r"CUDA_VISIBLE_DEVICES=MIG-", r"Invalid device id.*MIG"),
        sources=("NVIDIA MIG user guide; torch 1.13",),
    ),
)
