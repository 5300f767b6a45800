# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What an error code of CUDA means on a host that is being set up, and what helps.

Codes of the driver API (CUresult) and of the runtime (cudaError) agree where both have them, from 100 on and for the
low ones here. Source: cuda.h and driver_types.h; the hints: NVIDIA's CUDA compatibility guide and the catalog's traps.
"""

from __future__ import annotations

# code: (name, what it means, hint)
CODES = {
    2: ("out of memory", "the card has no memory left for this", "see who uses the card: nvidia-smi"),
    3: (
        "not initialized",
        "the driver did not initialise; with open modules on some hosts HMM is the reason",
        "dmesg | grep NVRM says why; 'options nvidia_uvm uvm_disable_hmm=1' in /etc/modprobe.d, then a reboot, "
        "is the known workaround",
    ),
    34: (
        "stub library",
        "a toolkit's stub of libcuda was loaded in place of the driver's",
        "remove .../lib64/stubs from LD_LIBRARY_PATH and from /etc/ld.so.conf.d",
    ),
    35: (
        "insufficient driver",
        "the driver is older than the CUDA runtime in the program",
        "a newer driver branch, or an older toolkit: provision compat --cuda X.Y names the branch",
    ),
    36: (
        "call requires newer driver",
        "the driver is older than a function that the program calls",
        "a newer driver branch, or an older toolkit",
    ),
    46: (
        "device unavailable",
        "the card is in exclusive or prohibited compute mode, or another process uses it exclusively",
        "nvidia-smi -q -d COMPUTE; nvidia-smi -c 0 lets several programs in",
    ),
    100: (
        "no device",
        "the driver sees no card that a program may use",
        "see driver.smi and driver.devices; CUDA_VISIBLE_DEVICES may hide the cards",
    ),
    101: (
        "invalid device",
        "no card of that number, or MIG mode is on and there is no instance",
        "nvidia-smi -L; with MIG on: nvidia-smi mig -cgi ... -C makes instances",
    ),
    200: ("invalid image", "the program's code for the GPU is damaged", "compile or install it again"),
    209: (
        "no kernel image",
        "the program holds no code that this card can run, and no PTX to make some from",
        "compile for the card's compute capability, or install a build that has it",
    ),
    214: (
        "uncorrectable ECC",
        "the card's memory returned a wrong value that could not be corrected",
        "see gpu.health; a reset or reboot remaps the row, a card that does it again needs replacing",
    ),
    217: (
        "peer access unsupported",
        "these cards cannot read each other's memory",
        "normal for GeForce cards and across some bridges; data goes through the host",
    ),
    218: ("invalid PTX", "the driver's compiler does not understand the program's PTX", "a newer driver branch"),
    220: ("uncorrectable NVLink error", "data was damaged on an NVLink", "nvidia-smi nvlink -e; see gpu.health"),
    221: (
        "no JIT compiler",
        "the driver's PTX compiler, libnvidia-ptxjitcompiler.so.1, was not found",
        "the driver's libraries are incomplete: provision plan shows the missing package",
    ),
    222: (
        "unsupported PTX version",
        "the PTX comes from a toolkit that is newer than the driver",
        "a newer driver branch, or compile for the card itself: minor-version compatibility does not cover PTX",
    ),
    223: ("JIT compilation disabled", "CUDA_DISABLE_PTX_JIT forbids to compile PTX", "unset CUDA_DISABLE_PTX_JIT"),
    300: ("invalid source", "the driver's compiler refused the program", None),
    304: (
        "operating system error",
        "the driver could not open or map what it needs",
        "permissions of /dev/nvidia*, limits of the container, dmesg | grep NVRM",
    ),
    700: (
        "illegal address",
        "a kernel touched memory that is not its own",
        "correct programs do not: in the checks' own kernels it points at the card or the driver",
    ),
    702: ("launch timeout", "a kernel ran longer than the display's watchdog allows", "the card also drives a display"),
    715: ("illegal instruction", "the card was given an instruction that it does not know", None),
    719: ("launch failed", "a kernel failed while it ran", "dmesg | grep Xid names the reason"),
    800: ("not permitted", "the card is in a compute mode that forbids this", "nvidia-smi -c 0"),
    802: (
        "system not ready",
        "the NVSwitch fabric is not set up: fabric manager does not run or has another version",
        "see service.fabric_manager; nvidia-smi -q -d FABRIC",
    ),
    803: (
        "driver mismatch",
        "libcuda and the loaded kernel module are of two versions",
        "reboot when everything on disk is of one version: see driver.versions",
    ),
    804: (
        "forward compatibility refused",
        "libcuda comes from a cuda-compat package and this card is not one it supports",
        "remove /usr/local/cuda*/compat from the library path: it is for data-center cards only",
    ),
    999: (
        "unknown error",
        "the driver failed without saying why",
        "after a suspend: reload nvidia_uvm; else dmesg | grep -e NVRM -e Xid",
    ),
}

_NAMES = {
    "CUDA_ERROR_NO_BINARY_FOR_GPU": 209,
    "cudaErrorNoKernelImageForDevice": 209,
    "cudaErrorInsufficientDriver": 35,
    "cudaErrorUnsupportedPtxVersion": 222,
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": 222,
    "cudaErrorSystemNotReady": 802,
    "CUDA_ERROR_SYSTEM_NOT_READY": 802,
    "cudaErrorStubLibrary": 34,
    "no kernel image is available for execution": 209,
    "driver version is insufficient": 35,
    "unsupported toolchain": 222,
    "system not yet initialized": 802,
    "forward compatibility was attempted on non supported HW": 804,
    "unsupported display driver / cuda driver combination": 803,
    "no CUDA-capable device": 100,
}


def explain(code):
    """Return (sentence, hint or None) for an error code; unknown codes are named as such."""
    if code in CODES:
        name, meaning, hint = CODES[code]
        return "error %d (%s): %s" % (code, name, meaning), hint
    return "unknown error %s" % code, None


def code_in(text):
    """Return the CUDA error code that a message names by number or words, or None."""
    import re

    for words, code in _NAMES.items():
        if words in text:
            return code
    match = re.search(
        r"\b(?:CUDA|cuda runtime) error[ :(]+([0-9]{1,3})\b|^error ([0-9]{1,3})\b|\bError ([0-9]{3}):", text, re.M
    )
    return int(next(group for group in match.groups() if group)) if match else None


def ending(outcome, what):
    """Return (sentence, hint) for a proverun.Outcome that is not ok; what: "the card's test", for the sentence."""
    at = " (%s)" % outcome.at if outcome.at else ""
    if outcome.status == "timeout":
        return "%s did not end: %s%s" % (what, outcome.message, at), (
            "a card or driver hangs: dmesg | grep -e NVRM -e Xid; often only a reboot or a power cycle helps"
        )
    if outcome.status == "memory":
        return "%s %s%s" % (what, outcome.message, at), "the host may be short of memory: free -h"
    if outcome.status == "killed":
        hint = "dmesg | grep -e Xid -e segfault -e 'Out of memory' names the reason"
        return "%s was %s%s" % (what, outcome.message, at), hint
    if outcome.status == "error" and isinstance(outcome.code, int):
        sentence, hint = explain(outcome.code)
        return "%s: %s%s" % (what, sentence, at), hint
    return "%s: %s%s" % (what, outcome.message, at), None
