"""Reads what people collect of a host (nvidia-bug-report.log, a sosreport, a case) as that host: facts in the probe's own schema.

The sections or files of a bundle are laid out as a folder of ours, and the probe reads that folder. Everything in a bundle
comes from strangers: what it unpacks to, its entries and their paths have limits, nothing is written outside the folder, and a
link is made only at the end and only where its folder is a real one (the probe follows links inside the folder alone).
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO
from xml.sax.saxutils import escape

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, kmod
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from provision.bundles import case
from provision.bundles.case import MOST_ENTRIES
from provision.bundles.folder import HostFolder, refused
from provision.facts import Facts
from provision.facts.diagnostics import Diagnosed
from provision.lib import scratch

MOST_UNPACKED = 2 << 30
_MOST_REPORT = 64 << 20
_PACKED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_ZSTD = b"\x28\xb5\x2f\xfd"
_DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error, tarfile.TarError, ValueError, RecursionError)
# What the probe could read of a sosreport; the rest of its gigabytes stays where it is.
_WANTED = re.compile(
    r"(?:etc|run|proc/(?:driver|modules|cmdline|version|cpuinfo|sys/kernel|device-tree)|sys/(?:module|class/dmi|firmware)|boot"
    r"|(?:usr/)?lib/(?:modprobe\.d|systemd|udev)|usr/lib/os-release|var/log|var/lib/(?:dkms|dpkg)|var/crash)(?:/|\Z)"
)
_COMMANDS = re.compile(
    r"sos_commands/(?:dpkg/dpkg_-l\b|kernel/(?:dmesg|uname_-a)\Z|pci/lspci_-nn|nvidia/nvidia-smi_-q\Z"
    r"|systemd/systemctl_list-units_--failed|(?:hardware|devices)/ls_\S*dev\Z)"
)
_REPORT = "Start of NVIDIA bug report log file"
_RULE = re.compile(r"^_{40,}$", re.M)
# Fact -> path of the folder that says it; what is in neither table, no bundle says completely.
_SAID_BY = {
    "packages": "/var/lib/dpkg/status",
    "package_problems": "/var/lib/dpkg/status",
    "gpus": "/sys/bus/pci/devices",
    "nvswitches": "/sys/bus/pci/devices",
    "smi": "/usr/bin/nvidia-smi",
    "modprobe": "/etc/modprobe.d",
    "trouble.boot.modprobe": "/etc/modprobe.d",
    "devices": "/dev",
    "apt": "/etc/apt",
}
_SAID = frozenset({"host", "module.loaded", "kernels.running", "unreadable", "trouble.boot.log"}) | {
    f"trouble.boot.{name}"
    for name in ("log_from", "errors", "cmdline", "modules", "driver_gpus", "card_off", "driver_container")
}


@dataclass(frozen=True)
class Bundle:
    """A host as its bundle shows it. unsaid: dotted fields of facts that it cannot tell; quotes: lines and files it has."""

    kind: str
    facts: Facts
    unsaid: frozenset[str] = frozenset()
    quotes: frozenset[str] = frozenset()
    # role variables of an exported case
    values: Mapping[str, Any] = field(default_factory=dict)


class _Limited(io.RawIOBase):
    """A stream that ends with an error behind a limit, whatever a few bytes unpack to."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self._stream, self._left, self._most = stream, most, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise refused(f"it unpacks to more than {self._most >> 20} MiB")
        buffer[: len(data)] = data
        return len(data)


def read(path: Path) -> Bundle:
    """Return the host of a bundle. Raises UsageError for a file that is none, is damaged, or has more than it may."""
    try:
        with host_tree.open_file(str(path)) as packed:
            if packed.read(4) == _ZSTD:
                # an archive of more than 512 MiB is unpacked by hand
                packed = io.BytesIO(kmod.unpack(str(path), "zst"))
            return _read(packed)
    except kmod.KmodError as error:
        raise refused(f"{str(error).removeprefix(str(path)).strip()}: zstd -d FILE first") from error
    except host_tree.OddFileError as error:
        raise refused(error.strerror or "not a regular file") from error
    except _DAMAGED as error:
        raise refused(str(error) or type(error).__name__) from error


def _read(packed: BinaryIO) -> Bundle:
    packed.seek(0)
    head = packed.read(6)
    packed.seek(0)
    opener = next((opener for magic, opener in _PACKED.items() if head.startswith(magic)), None)
    stream = io.BufferedReader(_Limited(opener(packed) if opener else packed, MOST_UNPACKED), 1 << 16)
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
        host = HostFolder(Path(folder))
        start = stream.peek(512)[:512]
        if start[257:262] == b"ustar" and start.startswith(case.NAME.encode() + b"\0"):
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                facts, values = case.replay(archive, host)
            return Bundle("exported case", facts, values=values)
        if start[257:262] == b"ustar":
            kind = "sosreport"
            _lay_out_sos(stream, host)
        else:
            kind = "nvidia-bug-report"
            text = _all(stream)
            if _REPORT not in text[:1_000_000]:
                raise refused("it is neither the log of nvidia-bug-report.sh nor a sosreport")
            _lay_out_report(text, host)
        return _bundle(host, kind)


def _all(stream: IO[bytes]) -> str:
    parts, left = [], _MOST_REPORT
    while left > 0 and (part := stream.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts).decode("utf-8", "backslashreplace").replace("\r\n", "\n")


def _bundle(host: HostFolder, kind: str) -> Bundle:
    if "nvidia-smi" in host.answers:
        host.text("/usr/bin/nvidia-smi", "")
        host.runnable("/usr/bin/nvidia-smi")
    facts = Diagnosed.of_host(host.collect())
    said = set(_SAID) | {fact for fact, path in _SAID_BY.items() if (host.folder / path[1:]).exists()}
    if "systemctl" in host.answers:
        said.add("trouble.boot.failed_units")
    quotes = set(facts.trouble.boot.log) if facts.trouble else set()
    quotes |= {row.said for row in facts.trouble.boot.dkms if row.make_error} if facts.trouble else set()
    # A file of the owner's or a log is a witness; that a folder of modules is there is none.
    for top in ("etc", "var"):
        quotes |= {
            "/" + str(path.relative_to(host.folder)) for path in (host.folder / top).rglob("*") if path.is_file()
        }
    return Bundle(kind, facts, frozenset(_unsaid(facts, said)), frozenset(quotes))


def _unsaid(model: Any, said: set[str], base: str = "") -> Iterable[str]:
    for name in type(model).model_fields:
        path = base + name
        if path in said:
            continue
        if any(one.startswith(path + ".") for one in said) and getattr(model, name) is not None:
            yield from _unsaid(getattr(model, name), said, path + ".")
        elif not any(one.startswith(path + ".") for one in said):
            yield path


# --- sosreport -----------------------------------------------------------------------------------------------


def _lay_out_sos(stream: IO[bytes], host: HostFolder) -> None:
    """Files as they lie in the host (sos: add_copy_spec) and outputs below sos_commands/PLUGIN (add_cmd_output)."""
    links, commands = list[tuple[str, str]](), dict[str, str]()
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for count, entry in enumerate(archive):
            if count > MOST_ENTRIES:
                raise refused(f"it has more than {MOST_ENTRIES} entries")
            # sosreport-HOST-…/etc/os-release
            path = "/".join(PurePosixPath(entry.name.removeprefix("./")).parts[1:])
            if path.startswith("/") or ".." in path.split("/"):
                continue
            command = _COMMANDS.match(path)
            if not command and not _WANTED.match(path):
                continue
            if entry.isdir():
                host.write(path + "/.folder", b"")
            elif entry.issym():
                links.append((path, entry.linkname))
            elif entry.isfile() and not entry.issparse() and entry.size <= host_tree.MOST_BYTES:
                content = archive.extractfile(entry)
                data = content.read() if content else b""
                if command:
                    commands[path] = data.decode("utf-8", "backslashreplace")
                else:
                    host.write(path, data)
    for path, target in links[:MOST_ENTRIES]:
        host.link(path, target)
    for path, text in sorted(commands.items()):
        name = path.rsplit("/", 1)[-1]
        if name.startswith("dpkg_-l"):
            host.text("/var/lib/dpkg/status", _dpkg_status(text))
        elif name == "dmesg":
            host.answers["dmesg"] = (0, text)
        elif name == "uname_-a":
            _kernel(text, host)
        elif name.startswith("lspci"):
            _lspci(text, host)
        elif name == "nvidia-smi_-q":
            host.answers["nvidia-smi"] = smi_answer(text)
        elif name.startswith("systemctl"):
            rows = [line.lstrip("●* ") for line in text.splitlines() if " loaded " in line]
            host.answers["systemctl"] = (0, "\n".join(rows))
        else:
            _device_nodes(text, host)


def _dpkg_status(text: str) -> str:
    """dpkg's status file of what ``dpkg -l`` prints: two or three letters, name, version, architecture."""
    want = {letter: word for word, letter in probe_facts.WANT.items()}
    state = {letter: word for word, letter in probe_facts.STATE.items()}
    rows = []
    for line in text.splitlines():
        match = re.match(r"([uihrp])([ncHUFWti])(R?)\s+(\S+)\s+(\S+)\s+(\S+)", line)
        if match:
            letter, now, flag, name, version, arch = match.groups()
            status = f"{want[letter]} {'reinstreq' if flag else 'ok'} {state[now]}"
            rows.append(
                f"Package: {name.split(':')[0]}\nStatus: {status}\nArchitecture: {arch}\nVersion: {version}\n\n"
            )
    return "".join(rows)


# --- nvidia-bug-report.log -----------------------------------------------------------------------------------


def _lay_out_report(text: str, host: HostFolder) -> None:
    """Sections between lines of underscores: ``*** PATH`` with a line ``*** ls:`` and the file, or a command and its output.

    Source: nvidia-bug-report.sh of NVIDIA's driver packages 390 and 520 (append, append_command, echo_metadata).
    """
    journal = ""
    for section in _RULE.split(text)[:20_000]:
        body = section.strip("\n")
        first, _, rest = body.partition("\n")
        _device_nodes(body, host)
        uname = re.search(r"^uname: (.*)$", body, re.M) if _REPORT in body else None
        file = re.match(r"\*\*\* (/\S+)$", first)
        if uname:
            _kernel(uname.group(1), host)
        elif file:
            _, _, content = rest.partition("\n") if rest.startswith("*** ls:") else ("", "", rest)
            host.text(os.path.normpath(file.group(1)), content + "\n")
        elif first.rstrip(":") == "dmesg":
            host.answers["dmesg"] = (0, rest)
        elif "lspci" in first:
            _lspci(body, host)
        elif "nvidia-smi --query" in body and "nvidia-smi" not in host.answers:
            start = body.index("nvidia-smi --query")
            host.answers["nvidia-smi"] = smi_answer(
                re.split(r"^\S*nvidia-smi --query --unit", body[start:], flags=re.M)[0]
            )
        elif first.startswith(("journalctl -b -0", "Scanning kernel log files")):
            journal += _this_boot(body)
    if not host.answers.get("dmesg", (0, ""))[1].strip() and journal:
        host.answers["dmesg"] = (0, journal)


def _this_boot(body: str) -> str:
    """Of a section that goes through the boots: the lines of the last one."""
    return re.split(r"^\s*journalctl -b -[12]\b", body, flags=re.M)[0] + "\n"


# --- outputs of programs -------------------------------------------------------------------------------------


def _kernel(uname: str, host: HostFolder) -> None:
    words = uname.split()
    if len(words) > 2:
        host.text("/proc/sys/kernel/osrelease", words[2] + "\n")
        host.text("/proc/sys/kernel/hostname", words[1] + "\n")
        # The kernel that runs is there; of others no bundle tells.
        if re.fullmatch(r"[\w.+~-]{3,100}", words[2]):
            host.text(f"/lib/modules/{words[2]}/kernel/.folder", "")
            host.text(f"/boot/vmlinuz-{words[2]}", "")


_DEVICE = re.compile(
    r"^(?:([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) .*?\[([0-9a-f]{4})\]: .*?\[([0-9a-f]{4}):([0-9a-f]{4})\]",
    re.M,
)
_SLOT = re.compile(r"^(?:([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ")
_IN_USE = re.compile(r"^\s+Kernel driver in use: ([\w-]{1,64})\s*$")


def _lspci(text: str, host: HostFolder) -> None:
    """Devices of lspci -nn (class, vendor, device by number), and of -v who drives them."""
    for match in _DEVICE.finditer(text):
        domain, slot, class_, vendor, device = match.groups()
        base = f"/sys/bus/pci/devices/{domain or '0000'}:{slot}"
        for name, value in (("vendor", vendor), ("device", device), ("class", class_ + "00")):
            host.text(f"{base}/{name}", f"0x{value}\n")
    where = ""
    for line in text.splitlines():
        slot, driver = _SLOT.match(line), _IN_USE.match(line)
        if slot:
            where = f"sys/bus/pci/devices/{slot.group(1) or '0000'}:{slot.group(2)}"
        elif driver and where:
            (host.folder / where).mkdir(parents=True, exist_ok=True)
            host.link(where + "/driver", f"../../../../bus/pci/drivers/{driver.group(1)}")


def _device_nodes(text: str, host: HostFolder) -> None:
    """Nodes of a long listing: ``crw-rw-rw- 1 root root 195, 0 … /dev/nvidia0``."""
    for match in re.finditer(
        r"^(?:\*\*\* ls: )?c[rwx-]{9}\S* .*?\s(?:/dev/)?(nvidia(?:[0-9]{1,3}|ctl|-uvm(?:-tools)?))$", text, re.M
    ):
        host.text("/dev/" + match.group(1), "")


_FIELDS = {
    "Product Name": "product_name",
    "Persistence Mode": "persistence_mode",
    "GPU UUID": "uuid",
    "Virtualization Mode": "virtualization_mode",
    "License Status": "license_status",
}
_FAILURES = (("communicate with the NVIDIA driver", 9), ("version mismatch", 18), ("No devices were found", 6))


def smi_answer(text: str) -> tuple[int, str]:
    """(exit code, what nvidia-smi -q -x would print) of what nvidia-smi -q printed; its own words where it failed."""
    parts = re.split(r"^GPU ([0-9A-Fa-f:.]{7,16})\s*$", text, flags=re.M)
    if len(parts) < 3:
        lines = [line for line in text.splitlines() if line.strip() and "nvidia-smi --query" not in line]
        said = "\n".join(lines)
        return next((rc for words, rc in _FAILURES if words.lower() in said.lower()), 1 if said else 0), said
    found = re.findall(r"^(Driver|CUDA) Version\s*: (\S+)", parts[0], re.M)
    rows = [f"<{name.lower()}_version>{escape(value)}</{name.lower()}_version>" for name, value in found]
    for bus, body in zip(parts[1::2], parts[2::2], strict=True):
        rows.append(f'<gpu id="{bus}">')
        for label, tag in _FIELDS.items():
            match = re.search(rf"^\s+{label}\s*: (.*)$", body, re.M)
            rows += [f"<{tag}>{escape(match.group(1).strip())}</{tag}>"] if match else []
        mig = re.search(r"^\s+MIG Mode\s*\n\s+Current\s*: (\S+)\s*\n\s+Pending\s*: (\S+)", body, re.M)
        if mig:
            rows.append(
                f"<current_mig>{escape(mig.group(1))}</current_mig><pending_mig>{escape(mig.group(2))}</pending_mig>"
            )
        memory = re.search(r"^\s+FB Memory Usage\s*\n\s+Total\s*: ([0-9]{1,9}) MiB", body, re.M)
        rows += [f"<fb_memory_usage><total>{memory.group(1)} MiB"] if memory else []
        rows.append("</gpu>")
    return 0, "<nvidia_smi_log>" + "\n".join(rows) + "</nvidia_smi_log>"
