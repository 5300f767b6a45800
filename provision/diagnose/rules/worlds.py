"""What a host is where its kernel, driver or card is somebody else's; what is wrong with it as that."""

from __future__ import annotations

from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule

_TOLD = {
    "wsl": "this is WSL2: the driver is the one of Windows, updated there, and no Linux driver belongs here",
    "jetson": "this is a Jetson: GPU, kernel and driver come with JetPack (L4T), and no driver of a server belongs here",
    "off": "the NVIDIA card of this machine is switched off: it runs on its other graphics",
    "operator": "the driver is in a container of NVIDIA's GPU operator, which loads and updates it",
    "container": "this is a container: kernel, module and cards belong to its machine: diagnose that machine",
    "vgpu": "this is the guest of a vGPU: its driver is of the vGPU software and goes with the host's, and it needs a licence",
}


def _evidence(case: Case, world: str) -> list[str]:
    facts, diagnostics = case.facts, queries.boot(case)
    rows = {
        "wsl": [f"kernel {facts.kernels.running}", *queries.library_text(case)],
        "jetson": [f"kernel {facts.kernels.running}", *queries.package_text(case, ["nvidia-l4t-core"])],
        "off": diagnostics.card_off,
        "operator": ["/run/nvidia/driver: a whole driver", queries.loaded_text(case)],
        "container": [f"container: {facts.host.container}", queries.loaded_text(case), *queries.library_text(case)],
        "vgpu": ["/usr/bin/nvidia-gridd: the licence daemon of the guest's driver"] * (facts.host.world == "vgpu"),
    }[world]
    if facts.smi.gpus:
        rows = [*rows, "nvidia-smi: " + ", ".join(gpu.name for gpu in facts.smi.gpus[:4])]
    return rows


@rule("host.other_world")
def _world(case: Case) -> Iterator[Found]:
    world = queries.world(case)
    if world is None:
        return
    told, evidence, repairs = _TOLD[world], _evidence(case, world), list[Repair]()
    packages = queries.locked_packages(case)
    misplaced = world in ("wsl", "jetson") and bool(packages)
    if misplaced:
        told += f"; {queries.counted(list(packages), 'package')} of one is installed, and hides what belongs here"
        evidence += queries.package_text(case, packages)
        repairs = [queries.manual(f"apt-get purge {' '.join(sorted(packages))}, then ldconfig")]
        repairs += [queries.manual("in Windows: wsl --shutdown, which puts its libraries back")] * (world == "wsl")
    yield Found(told, evidence, *repairs, level="error" if misplaced else None)


@rule("host.vgpu_unlicensed")
def _unlicensed(case: Case) -> Iterator[Found]:
    gpus = [gpu for gpu in case.facts.smi.gpus if (gpu.license or "").startswith("Unlicensed")]
    if gpus:
        yield Found(
            f"{queries.counted(gpus, 'vGPU')} of this guest {'has' if len(gpus) == 1 else 'have'} no licence: it works slower "
            "and slower, or not at all",
            [f"nvidia-smi: {gpu.name}: {gpu.license}" for gpu in gpus],
            queries.manual(
                "journalctl -u nvidia-gridd says why: the token in /etc/nvidia/ClientConfigToken, the way to the licence "
                "server, or the clock; then systemctl restart nvidia-gridd"
            ),
        )
