"""torch.cuda of the stand-in: from nvidia-smi and the build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from ._build import BUILD


class _Properties(object):
    def __init__(self, name, capability, memory):
        self.name, self.total_memory = name, memory
        self.major, self.minor = capability
        self.multi_processor_count = 100


def _smi(*args):
    program = shutil.which("nvidia-smi") or "/usr/bin/nvidia-smi"
    if not os.path.exists(program):
        return None
    done = subprocess.run([program, *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _driver_cuda():
    match = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", _smi() or "")
    return (int(match.group(1)), int(match.group(2))) if match else None


def _cards():
    text = _smi("--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits") or ""
    cards = []
    for line in text.splitlines():
        name, capability, memory = [part.strip() for part in line.split(",")]
        cards.append(_Properties(name, tuple(int(part) for part in capability.split(".")), int(memory) << 20))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        cards = [cards[int(part)] for part in visible.split(",") if part.isdigit() and int(part) < len(cards)]
    return cards


def is_available():
    if not BUILD["cuda"]:
        return False
    there = _driver_cuda()
    # Minor-version compatibility: a driver runs every CUDA of its major.
    return there is not None and there[0] >= int(BUILD["cuda"].split(".")[0]) and bool(_cards())


def device_count():
    return len(_cards()) if is_available() else 0


def get_device_properties(index=0):
    return _cards()[getattr(index, "index", index) or 0]


def get_device_name(index=0):
    return get_device_properties(index).name


def get_device_capability(index=0):
    found = get_device_properties(index)
    return found.major, found.minor


def get_arch_list():
    return ["sm_" + item.replace(".", "") for item in BUILD["arch"]] if is_available() else []


def current_device():
    return 0


def synchronize(*_):
    return None


def set_device(_):
    return None


def empty_cache():
    return None


def _use(index):
    if not BUILD["cuda"]:
        raise AssertionError("Torch not compiled with CUDA enabled")
    if not is_available():
        raise RuntimeError(
            "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"
        )
    if index >= device_count():
        raise RuntimeError("CUDA error: invalid device ordinal")
    capability = get_device_capability(index)
    # A cubin runs on the same major and an equal or higher minor.
    if not any(int(arch[:-2]) == capability[0] and int(arch[-1]) <= capability[1] for arch in BUILD["arch"]):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")


class nccl(object):
    @staticmethod
    def version():
        from . import _loader

        # Builds of conda hold theirs themselves.
        found = (_loader.LOADED.get("nccl") or (None, None))[1] or BUILD["nccl"]
        return tuple(int(part) for part in found.split(".")[:3]) if found else None
