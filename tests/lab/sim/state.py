"""State of a simulated host: what the machine is (/etc/sim, survives) and what this boot did (/run/sim)."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import time

ETC = "/etc/sim"
RUN = "/run/sim"
DEVICES = RUN + "/pci/devices"
LOG = RUN + "/dmesg"


def host():
    """The machine: GPUs with slot and device id, NVSwitches, Secure Boot … (written by tests/lab/spec.py)."""
    with open(ETC + "/host.json") as handle:
        return json.load(handle)


def read(path, default=None):
    """Text of a small file without its last newline; default when it is not there."""
    try:
        with open(path) as handle:
            return handle.read().rstrip("\n")
    except (FileNotFoundError, NotADirectoryError):
        return default


def write(path, text, mode=0o644):
    """Write a small file and the folders above it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as handle:
        handle.write(text)
    os.chmod(path, mode)


def release():
    """Release of the kernel that 'runs'."""
    return read(RUN + "/release") or os.uname().release


def loaded():
    """Loaded modules by name: {"nvidia": {"version", "flavour", "path"}, …} in the order of loading."""
    return json.loads(read(RUN + "/modules.json", "{}"))


def set_loaded(modules):
    write(RUN + "/modules.json", json.dumps(modules))


def devices():
    """What the loaded driver made of each GPU: {slot: {"driver", "works", "index"}}."""
    return json.loads(read(RUN + "/devices.json", "{}"))


def set_devices(found):
    write(RUN + "/devices.json", json.dumps(found))


def log(*lines):
    """Append lines to the kernel log of this boot, which the dmesg stand-in prints."""
    started = float(read(RUN + "/started", "0") or 0)
    os.makedirs(RUN, exist_ok=True)
    with open(LOG, "a") as handle:
        for line in lines:
            handle.write("[%12.6f] %s\n" % (max(time.time() - started, 0.1), line))


def module_file(path):
    """Bytes of a module file, decompressed."""
    if path.endswith(".zst"):
        return subprocess.run(["zstd", "-dcq", path], check=True, stdout=subprocess.PIPE).stdout
    with open(path, "rb") as handle:
        return handle.read()


def modinfo(path):
    """``.modinfo`` of a module file as a dict (first value of each key), with ``signer`` when it carries a signature."""
    data = module_file(path)
    if data[:4] != b"\x7fELF":
        return {}
    info = {}
    (sections,) = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + size * n) for n in range(count)]
    names = headers[names_at]
    for header in headers:
        start = names[4] + header[0]
        if data[start : data.index(b"\0", start)] == b".modinfo":
            for field in data[header[4] : header[4] + header[5]].split(b"\0"):
                key, _, value = field.decode(errors="replace").partition("=")
                if key:
                    info.setdefault(key, value)
    signer = _signer(data)
    if signer:
        info["signer"] = signer
    return info


def _signer(data):
    """Common name in an appended signature (kofile.py writes exactly one)."""
    marker = b"~Module signature appended~\n"
    if not data.endswith(marker):
        return None
    body = data[: -len(marker)]
    (length,) = struct.unpack_from(">I", body, len(body) - 4)
    message = body[-12 - length : -12]
    at = message.rfind(b"\x06\x03\x55\x04\x03\x0c")
    if at < 0:
        at = message.rfind(b"\x06\x03\x55\x04\x03\x13")
    return None if at < 0 else message[at + 7 : at + 7 + message[at + 6]].decode(errors="replace")
