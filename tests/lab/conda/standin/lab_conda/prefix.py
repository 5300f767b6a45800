"""A prefix on the disk: the host's Python in it, packages, their records, the history."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import time

from .failure import Failure


def root():
    """Prefix that this conda belongs to."""
    return os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0])))


def host_python():
    """The host's Python, which stands in for every Python of a package."""
    return os.path.realpath(sys.executable)


def site(prefix):
    return os.path.join(prefix, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")


def make_python(prefix, version=None):
    """Make a prefix with the host's Python in it: bin/python and pyvenv.cfg, as a virtual environment has.

    version: what the package says, ``3.13.5``. Its folder in lib is the real one, and the host's name of it leads there.
    """
    here = "python%d.%d" % sys.version_info[:2]
    said = "python" + ".".join(version.split(".")[:2]) if version else here
    for folder in ("bin", "conda-meta", "lib/%s/site-packages" % said):
        os.makedirs(os.path.join(prefix, folder), exist_ok=True)
    if said != here and not os.path.lexists(os.path.join(prefix, "lib", here)):
        os.symlink(said, os.path.join(prefix, "lib", here))
    for name in ("python", "python3", here, said):
        path = os.path.join(prefix, "bin", name)
        if not os.path.lexists(path):
            os.symlink(host_python(), path)
    with open(os.path.join(prefix, "pyvenv.cfg"), "w") as file:
        file.write(
            "home = %s\ninclude-system-site-packages = false\nversion = %d.%d.%d\n"
            % ((os.path.dirname(host_python()),) + sys.version_info[:3])
        )


def link_package(prefix, archive, url):
    """Unpack one .tar.bz2 package into a prefix and write its record."""
    with open(archive, "rb") as file:
        packed = file.read()
    # Read in place, each step back would unpack it from its beginning again.
    with tarfile.open(fileobj=io.BytesIO(bz2.decompress(packed))) as tar:
        index = json.loads(tar.extractfile("info/index.json").read())
        files = []
        if index["name"] == "python":
            make_python(prefix, index["version"])
        for member in tar.getmembers():
            if member.name.startswith("info/") or not (member.isfile() or member.issym()):
                continue
            name = re.sub(
                r"^(lib/python3\.\d+/)?site-packages/", os.path.relpath(site(prefix), prefix) + "/", member.name
            )
            target = os.path.join(prefix, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.lexists(target):
                os.unlink(target)
            if member.issym():
                os.symlink(member.linkname, target)
            else:
                data = tar.extractfile(member).read()
                # In two pieces, or it would be written over here as well.
                data = data.replace(b"/opt/lab_" + b"placeholder", os.fsencode(prefix))
                with open(target, "wb") as file:
                    file.write(data)
                os.chmod(target, (0o777 if member.mode & 0o111 else 0o666) & ~UMASK)
            files.append(name)
    # As the real one notes them from the channel's index.
    sums = {"md5": hashlib.md5(packed, usedforsecurity=False).hexdigest(), "sha256": hashlib.sha256(packed).hexdigest()}
    record = dict(
        index,
        fn=os.path.basename(archive),
        url=url,
        channel=url.rsplit("/", 2)[0],
        files=files,
        size=len(packed),
        **sums,
    )
    path = os.path.join(prefix, "conda-meta", "%s-%s-%s.json" % (index["name"], index["version"], index["build"]))
    with open(path, "w") as file:
        json.dump(record, file, indent=2)


def unlink_package(prefix, record):
    for name in record["files"]:
        path = os.path.join(prefix, name)
        if os.path.lexists(path):
            os.unlink(path)
    os.unlink(
        os.path.join(prefix, "conda-meta", "%s-%s-%s.json" % (record["name"], record["version"], record["build"]))
    )


def records(prefix):
    """Records of what is installed, by name."""
    found = {}
    folder = os.path.join(prefix, "conda-meta")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name.endswith(".json"):
            with open(os.path.join(folder, name)) as file:
                record = json.load(file)
            try:
                found[record["name"]] = dict(record, version=record["version"], build=record["build"])
            except KeyError as error:
                # conda makes a PrefixRecord of every *.json there is.
                raise Failure("CorruptedEnvironmentError: %s: %s" % (os.path.join(folder, name), error)) from None
    return found


def write_history(prefix, command, specs=()):
    with open(os.path.join(prefix, "conda-meta", "history"), "a") as file:
        file.write("==> %s <==\n# cmd: %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), command))
        for record in records(prefix).values():
            file.write("+%s::%s-%s-%s\n" % (record["channel"], record["name"], record["version"], record["build"]))
        if specs:
            file.write("# update specs: %r\n" % [str(spec) for spec in specs])


def umask():
    value = os.umask(0)
    os.umask(value)
    return value


UMASK = umask()
