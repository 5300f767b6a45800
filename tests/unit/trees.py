"""Build the file tree of a host from a small description, for tests of the probe.

Keys of a description, all optional:
    files {path: text} · links {path: target} · dirs [path] · mtimes {path: seconds} · base: name below tests/fixtures
    cache ["soname path"] of /etc/ld.so.cache, in its order
    packages ["name version status [arch]"] with status as dpkg -l has it · depends {package: text} · owns {package: [path]}
    running: release · boot [releases with image and initrd] · headers [releases]
    modules [{path, version, license, signed_by, pack: xz|gz|zst}] · loaded {version, open, refcnt, holders}
    pci ["slot vendor:device class [driver]"] · efi {variable name without GUID: hex or number} · smi {rc, out, err}
"""

import ctypes
import gzip
import lzma
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import provision.collection  # noqa: E402, F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.lib import ld_cache  # noqa: E402
from tests.lab import kofile  # noqa: E402

GLOBAL_GUID = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM_GUID = "605dab50-e046-4300-abb6-3dd810dd8b23"
_WANT = {"i": "install", "h": "hold", "r": "deinstall", "p": "purge", "u": "unknown"}
_STATE = {
    "n": "not-installed",
    "c": "config-files",
    "H": "half-installed",
    "U": "unpacked",
    "F": "half-configured",
    "W": "triggers-awaited",
    "t": "triggers-pending",
    "i": "installed",
}


def build(root, tree):
    """Write the tree below root (a Path that may exist) and return root."""
    if tree.get("base"):
        shutil.copytree(FIXTURES / tree["base"] / "root", root, symlinks=True, dirs_exist_ok=True)
    for path in tree.get("dirs", []):
        at(root, path).mkdir(parents=True, exist_ok=True)
    if tree.get("running"):
        write(root, "/proc/sys/kernel/osrelease", tree["running"] + "\n")
    for release in tree.get("boot", []):
        write(root, f"/boot/vmlinuz-{release}", "")
        write(root, f"/boot/initrd.img-{release}", "")
    for release in tree.get("headers", []):
        write(root, f"/usr/src/linux-headers-{release}/Makefile", "")
        link(root, f"/lib/modules/{release}/build", f"/usr/src/linux-headers-{release}")
    for module in tree.get("modules", []):
        write_module(root, **module)
    for line in tree.get("pci", []):
        _pci(root, *line.split())
    if tree.get("loaded"):
        _loaded(root, **tree["loaded"])
    if tree.get("packages"):
        write(root, "/var/lib/dpkg/status", "".join(stanza(line, tree) for line in tree["packages"]))
    for package, paths in tree.get("owns", {}).items():
        write(root, f"/var/lib/dpkg/info/{package}.list", "/.\n" + "".join(path + "\n" for path in paths))
    for name, value in tree.get("efi", {}).items():
        data = bytes([value]) if isinstance(value, int) else bytes.fromhex(value)
        guid = GLOBAL_GUID if name in ("SecureBoot", "SetupMode") else SHIM_GUID
        write(root, f"/sys/firmware/efi/efivars/{name}-{guid}", b"\x06\x00\x00\x00" + data)
    if "cache" in tree:
        write(root, "/etc/ld.so.cache", ld_cache.build([line.split() for line in tree["cache"]]))
    if tree.get("smi"):
        write(root, "/usr/bin/nvidia-smi", "").chmod(0o755)
    for path, text in tree.get("files", {}).items():
        write(root, path, text)
    for path, target in tree.get("links", {}).items():
        link(root, path, target)
    for path, seconds in tree.get("mtimes", {}).items():
        os.utime(at(root, path), (seconds, seconds))
    return root


def runner(tree):
    """Return the callable that stands for starting nvidia-smi, or None without one in the description."""
    answer = tree.get("smi")
    if not answer:
        return None
    out = answer.get("out", "")
    if answer.get("xml"):
        out = (FIXTURES / answer["xml"] / "nvidia-smi.xml").read_text(encoding="utf-8")
    return lambda command, timeout: (answer.get("rc", 0), out, answer.get("err", ""))


def at(root, path):
    """Path below root."""
    return Path(root) / path.lstrip("/")


def write(root, path, content):
    """Write text or bytes and return the Path."""
    place = at(root, path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


def link(root, path, target):
    """Make a symbolic link whose target is written as the host has it."""
    place = at(root, path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def stanza(line, tree):
    """One paragraph of dpkg's status file."""
    name, version, status, *arch = line.split()
    words = [_WANT[status[0]], "reinstreq" if status.endswith("R") else "ok", _STATE[status[1]]]
    lines = [f"Package: {name}", "Status: " + " ".join(words), f"Architecture: {arch[0] if arch else 'amd64'}"]
    if version != "-":
        lines.append(f"Version: {version}")
    if name in tree.get("depends", {}):
        lines.append("Depends: " + tree["depends"][name])
    return "\n".join(lines) + "\n\n"


def write_module(root, path, version=None, license="Dual MIT/GPL", signed_by=None, pack=None):
    """Write a kernel module file, packed or not."""
    pairs = [("license", license)] + ([("version", version)] if version else [])
    data = kofile.build(pairs, signed_by=signed_by)
    if pack == "xz":
        data = lzma.compress(data, check=lzma.CHECK_CRC32)
    elif pack == "gz":
        data = gzip.compress(data)
    elif pack == "zst":
        data = zstd(data)
    return write(root, path, data)


def zstd(data):
    """Compress by libzstd, which dpkg brings along."""
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compressBound.restype = library.ZSTD_compress.restype = ctypes.c_size_t
    room = ctypes.create_string_buffer(library.ZSTD_compressBound(ctypes.c_size_t(len(data))))
    size = library.ZSTD_compress(room, ctypes.c_size_t(len(room)), data, ctypes.c_size_t(len(data)), 3)
    return room.raw[:size]


def _pci(root, slot, identity, class_, driver=None):
    vendor, device = identity.split(":")
    base = f"/sys/bus/pci/devices/{slot}"
    for name, value in (("vendor", vendor), ("device", device), ("class", class_ + "00")):
        write(root, f"{base}/{name}", f"0x{value}\n")
    if driver:
        link(root, f"{base}/driver", f"../../../../bus/pci/drivers/{driver}")


def _loaded(root, version, open=True, refcnt=0, holders=()):
    kind = "Open Kernel Module for x86_64" if open else "x86_64 Kernel Module"
    write(root, "/proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX {kind}  {version}  Release Build\n")
    write(root, "/sys/module/nvidia/version", version + "\n")
    write(root, "/sys/module/nvidia/refcnt", f"{refcnt}\n")
    for name in holders:
        link(root, f"/sys/module/nvidia/holders/{name}", f"../../{name}")
