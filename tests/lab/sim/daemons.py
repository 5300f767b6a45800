"""nvidia-persistenced, nv-fabricmanager and a job on the GPUs: processes that hold device nodes open, as the real do."""

from __future__ import annotations

import glob
import json
import os
import signal
import sys

from . import nvidia, smi, state


def persistenced(argv):
    """Fork into the background and hold every GPU; fails as the real one does without a driver."""
    loaded, library = state.loaded().get("nvidia"), smi.library_version()
    if loaded is None or loaded["version"] != library or not state.devices():
        print("nvidia-persistenced failed to initialize. Check syslog for more details.", file=sys.stderr)
        return 1
    persistent = "--no-persistence-mode" not in argv
    if os.fork():
        return 0
    os.setsid()
    os.makedirs("/run/nvidia-persistenced", exist_ok=True)
    state.write("/run/nvidia-persistenced/nvidia-persistenced.pid", "%d\n" % os.getpid())
    state.write(smi.PERSISTENCE, "all" if persistent else "")
    _hold(["/dev/nvidiactl"] + (sorted(glob.glob("/dev/nvidia[0-9]*")) if persistent else []))
    if os.path.exists(smi.PERSISTENCE):
        os.unlink(smi.PERSISTENCE)
    return 0


def fabricmanager(argv, package_version):
    """Serve the NVSwitches; refuses a driver of another version and a machine without NVSwitch."""
    loaded = state.loaded().get("nvidia")
    switches = state.host().get("nvswitch", 0) or state.host().get("nvlink5")
    if loaded is None:
        print(
            "request to query NVSwitch device information from NVSwitch driver failed with error:"
            "WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
        )
        return 1
    if loaded["version"] != package_version:
        print(
            "fabric manager NVIDIA GPU driver interface version %s don't match with driver version %s. "
            "Please update with matching NVIDIA driver package." % (package_version, loaded["version"])
        )
        return 1
    if not switches:
        print(
            "request to query NVSwitch device information from NVSwitch driver failed with error:"
            "WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
        )
        return 1
    print(
        "Connected to 1 node.\nSuccessfully configured all the available NVSwitches to route GPU NVLink traffic. "
        "NVLink Peer-to-Peer support will be enabled once the GPUs are successfully registered with the NVLink fabric.",
        flush=True,
    )
    if os.fork():
        return 0
    os.setsid()
    os.makedirs("/run/nvidia-fabricmanager", exist_ok=True)
    state.write("/run/nvidia-fabricmanager/nv-fabricmanager.pid", "%d\n" % os.getpid())
    state.write(state.RUN + "/fabric", "")
    _hold(["/dev/nvidia-nvswitchctl"])
    if os.path.exists(state.RUN + "/fabric"):
        os.unlink(state.RUN + "/fabric")
    return 0


def job(argv):
    """Hold the GPUs as a training job does (a process named python3)."""
    paths = ["/dev/nvidiactl", "/dev/nvidia-uvm", *sorted(glob.glob("/dev/nvidia[0-9]*"))]
    state.write(state.RUN + "/job.json", json.dumps({os.getpid(): paths}))
    _hold(paths)
    os.unlink(state.RUN + "/job.json")
    return 0


def _hold(paths):
    handles = [open(path) for path in paths if os.path.exists(path)]  # noqa: SIM115 - held until the end
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    for handle in handles:
        handle.close()


def mokutil(argv):
    """--sb-state, --list-enrolled, --test-key and --import, from the EFI variables."""
    folder = state.RUN + "/firmware/efi/efivars/"
    if not os.path.isdir(folder):
        print("EFI variables are not supported on this system", file=sys.stderr)
        return 255
    if "--sb-state" in argv:
        print("SecureBoot " + ("enabled" if state.host().get("secure_boot") else "disabled"))
    elif "--list-enrolled" in argv or "-l" in argv:
        name = state.read(state.ETC + "/own-name")
        print("[key 1]\n        Issuer: CN=%s" % name if name and nvidia.trusted(name) else "MokListRT is empty")
    elif "--test-key" in argv or "-t" in argv:
        path = argv[-1]
        name = state.read(state.ETC + "/own-name") or ""
        enrolled = bool(name) and nvidia.trusted(name)
        print("%s is already enrolled" % path if enrolled else "%s is not enrolled" % path)
        return 1 if enrolled else 0
    elif "--import" in argv or "-i" in argv:
        print("input password: ", end="", flush=True)
        sys.stdin.readline()
    else:
        print("Usage:\n  mokutil OPTIONS [ARGS...]")
        return 255
    return 0
