"""Debian packages in pure Python: thousands of small ones in seconds, without a dpkg-deb process each."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass, field


@dataclass(frozen=True)
class File:
    """A file in a package: its bytes and mode, or the target of a symbolic link."""

    data: bytes = b""
    mode: int = 0o644
    link: str | None = None


@dataclass
class Package:
    """A binary package before it is built.

    fields: the control fields beyond name, version and architecture (``{"Depends": "a, b (>= 1)"}``); files: path
    (absolute) to File or text; scripts: ``postinst`` and the like to their text; conffiles: paths of files.
    """

    name: str
    version: str
    arch: str = "amd64"
    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, File | str] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    conffiles: list[str] = field(default_factory=list)
    description: str = "simulated package"
    component: str = "main"
    suites: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """Name of the .deb, without the epoch."""
        return f"{self.name}_{self.version.split(':')[-1]}_{self.arch}.deb"

    def control(self) -> str:
        """The control stanza."""
        size = sum(len(f.data) if isinstance(f, File) else len(f) for f in self.files.values())
        lines = [f"Package: {self.name}", f"Version: {self.version}", f"Architecture: {self.arch}"]
        lines += ["Maintainer: Simulated Lab <lab@example.invalid>", f"Installed-Size: {size // 1024 + 8}"]
        order = ("Source", "Section", "Priority", "Pre-Depends", "Depends", "Recommends", "Suggests")
        known = [name for name in order if name in self.fields]
        for name in known + [name for name in self.fields if name not in order]:
            lines.append(f"{name}: {self.fields[name]}")
        lines.append(f"Description: {self.description}")
        return "\n".join(lines) + "\n"


def build(package: Package) -> bytes:
    """Return the .deb file of a package; the same input gives the same bytes."""
    control = {"./control": File(package.control().encode())}
    for name, text in package.scripts.items():
        control["./" + name] = File(text.encode(), 0o755)
    if package.conffiles:
        control["./conffiles"] = File(("\n".join(package.conffiles) + "\n").encode())
    files = {"." + path: f if isinstance(f, File) else File(f.encode()) for path, f in package.files.items()}
    # dpkg learns from this list what to compare with on purge and what debsums checks.
    sums = [
        f"{hashlib.md5(f.data, usedforsecurity=False).hexdigest()}  {path[2:]}"
        for path, f in sorted(files.items())
        if f.link is None
    ]
    if sums:
        control["./md5sums"] = File(("\n".join(sums) + "\n").encode())
    out = io.BytesIO()
    out.write(b"!<arch>\n")
    for name, data in (("debian-binary", b"2.0\n"), ("control.tar.gz", _tar(control)), ("data.tar.gz", _tar(files))):
        out.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode())
        out.write(data + (b"\n" if len(data) % 2 else b""))
    return out.getvalue()


def stanza(package: Package, path: str, deb: bytes) -> str:
    """The package's paragraph in a Packages file."""
    return (
        package.control()
        + f"Filename: {path}\nSize: {len(deb)}\n"
        + f"MD5sum: {hashlib.md5(deb, usedforsecurity=False).hexdigest()}\n"
        + f"SHA256: {hashlib.sha256(deb).hexdigest()}\n"
    )


def _tar(files: dict[str, File]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        folders: set[str] = set()
        for path in sorted(files):
            parts = path.split("/")
            for depth in range(1, len(parts)):
                folder = "/".join(parts[:depth])
                if folder not in folders:
                    folders.add(folder)
                    entry = tarfile.TarInfo(folder)
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(entry)
            entry, file = tarfile.TarInfo(path), files[path]
            entry.mode = file.mode
            if file.link is not None:
                entry.type, entry.linkname = tarfile.SYMTYPE, file.link
                archive.addfile(entry)
            else:
                entry.size = len(file.data)
                archive.addfile(entry, io.BytesIO(file.data))
    return gzip.compress(raw.getvalue(), compresslevel=1, mtime=0)
