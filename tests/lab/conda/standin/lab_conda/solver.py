"""A simple solver over real repodata: exact versions and builds, dependencies, virtual packages."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request

from .failure import Failure
from .prefix import root

SUBDIRS = ("linux-64", "noarch")


def cuda_of_driver():
    """Version of the virtual package __cuda: the override, or what the host's nvidia-smi says; None: there is none."""
    if "CONDA_OVERRIDE_CUDA" in os.environ:
        return os.environ["CONDA_OVERRIDE_CUDA"] or None
    smi = shutil.which("nvidia-smi")
    if not smi:
        return None
    said = subprocess.run([smi], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    match = re.search(rb"CUDA Version:\s*([\d.]+)", said.stdout) if said.returncode == 0 else None
    return match.group(1).decode() if match else None


def virtual_packages():
    found = [
        ["__linux", os.uname().release.split("-")[0], "0"],
        ["__glibc", os.confstr("CS_GNU_LIBC_VERSION").split()[1], "0"],
        ["__unix", "0", "0"],
    ]
    cuda = cuda_of_driver()
    return ([["__cuda", cuda, "0"]] if cuda else []) + found


def version_key(version):
    return [
        (1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|[a-z]+", version.lower())
    ]


class Spec(object):
    """One match spec: ``name``, ``name=1.2``, ``name=1.2=build*``, ``name>=1,<2``, ``channel::name``."""

    def __init__(self, text):
        self.text = text.strip()
        bare = self.text.split("::")[-1]
        match = re.match(r"([\w.-]+)\s*(.*)$", bare)
        if not match:
            raise Failure("InvalidMatchSpec: Invalid spec '%s'" % text)
        self.name, rest = match.group(1).lower(), match.group(2).strip()
        self.version, self.build = rest, ""
        if " " in rest:
            self.version, self.build = rest.split(None, 1)
        elif rest.startswith("=") and not rest.startswith("=="):
            parts = rest[1:].split("=")
            self.version = ("==" if len(parts) > 1 and parts[1] else "=") + parts[0]
            self.build = parts[1] if len(parts) > 1 else ""
        self.text = self.text if self.text else self.name

    def __str__(self):
        return self.text

    def matches(self, record):
        if record["name"] != self.name or (self.build and not fnmatch.fnmatchcase(record["build"], self.build)):
            return False
        return not self.version or any(
            all(self._one(part, record["version"]) for part in choice.split(",")) for choice in self.version.split("|")
        )

    @staticmethod
    def _one(part, version):
        part = part.strip()
        match = re.match(r"(>=|<=|==|!=|~=|>|<|=)?(.*)$", part)
        sign, wanted = match.group(1), match.group(2)
        if wanted in ("", "*"):
            return True
        if sign == "=" or "*" in wanted or (sign is None and wanted.endswith(".*")):
            head = wanted.rstrip("*").rstrip(".")
            return version == head or version.startswith(head + ".")
        here, there = version_key(version), version_key(wanted)
        return {
            None: here == there,
            "==": here == there,
            "!=": here != there,
            ">=": here >= there,
            "<=": here <= there,
            ">": here > there,
            "<": here < there,
            "~=": here >= there,
        }[sign]


def repodata(channels):
    """Records of all channels, best channel first; a channel that cannot be read is an error, as with conda."""
    found = []
    for rank, channel in enumerate(channels):
        seen = 0
        for subdir in SUBDIRS:
            url = "%s/%s/repodata.json" % (channel, subdir)
            try:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    data = json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    continue
                raise Failure("CondaHTTPError: HTTP %d %s for url <%s>" % (error.code, error.reason, url)) from None
            except (urllib.error.URLError, OSError) as error:
                raise Failure(
                    "CondaHTTPError: HTTP 000 CONNECTION FAILED for url <%s>\nElapsed: -\n\nAn HTTP error occurred when "
                    "trying to retrieve this URL.\n%s" % (url, getattr(error, "reason", error))
                ) from None
            seen += 1
            for name, record in list(data["packages"].items()):
                found.append(
                    dict(record, fn=name, url="%s/%s/%s" % (channel, subdir, name), rank=rank, channel=channel)
                )
        if not seen:
            raise Failure(
                "UnavailableInvalidChannel: HTTP 404 NOT FOUND for channel %s <%s>"
                % (channel.rsplit("/", 1)[-1], channel)
            )
    return found


def preference(record):
    """What a solver prefers; of two builds that are equal otherwise this one takes the build without CUDA (see M2)."""
    return (
        record["rank"],
        bool(record.get("track_features")),
        [(-a, -b, c) for a, b, c in version_key(record["version"])],
        -record.get("build_number", 0),
        "cpu" not in record["build"],
        record["build"],
    )


def solve(specs, available):
    """Choose one record a name so that every spec, dependency and constraint holds; Failure when that cannot be."""
    virtual = {name: {"name": name, "version": version, "build": build} for name, version, build in virtual_packages()}
    by_name = {}
    for record in sorted(available, key=preference):
        by_name.setdefault(record["name"], []).append(record)
    for name, records in by_name.items():
        # Strict channel priority: a name comes from the first channel that has it.
        by_name[name] = [record for record in records if record["rank"] == records[0]["rank"]]
    reasons = []

    def step(wanted, limits, chosen):
        """wanted: specs that must be met; limits: specs that bind a name only if it is chosen."""
        for spec in wanted:
            if spec.name.startswith("__"):
                if spec.name not in virtual or not spec.matches(virtual[spec.name]):
                    reasons.append("nothing provides %s needed, which is missing on the system" % spec)
                    return None
            elif spec.name in chosen and not spec.matches(chosen[spec.name]):
                return None
        for spec in limits:
            there = chosen.get(spec.name) or virtual.get(spec.name)
            if there is not None and not spec.matches(there):
                reasons.append("%s conflicts with %s-%s" % (spec, there["name"], there["version"]))
                return None
        todo = next((spec for spec in wanted if not spec.name.startswith("__") and spec.name not in chosen), None)
        if todo is None:
            return chosen
        candidates = [
            record
            for record in by_name.get(todo.name, ())
            if all(spec.matches(record) for spec in wanted + limits if spec.name == todo.name)
        ]
        if not candidates:
            reasons.append("nothing provides requested %s" % todo)
        known = {spec.text for spec in wanted}
        for record in candidates:
            depends = list(record.get("depends", ()))
            if record["name"] == "python" and "pip" in by_name:
                # conda's add_pip_as_python_dependency
                depends.append("pip")
            found = step(
                wanted + [Spec(text) for text in depends if text not in known],
                limits + [Spec(text) for text in record.get("constrains", ())],
                dict(chosen, **{record["name"]: record}),
            )
            if found is not None:
                return found
        return None

    answer = step(list(specs), [], {})
    if answer is None:
        raise _refusal(list(dict.fromkeys(reasons)))
    return answer


def _refusal(reasons):
    missing = [line.split("requested ")[1] for line in reasons if "requested" in line]
    if missing and len(missing) == len(reasons):
        return Failure(
            "PackagesNotFoundError: The following packages are not available from current channels:\n\n"
            + "\n".join("  - " + line for line in missing)
        )
    return Failure(
        "LibMambaUnsatisfiableError: Encountered problems while solving:\n"
        + "\n".join("  - " + line for line in reasons)
    )


def fetch(record):
    """Archive of a record in the package cache, checked."""
    cache = os.path.join(root(), "pkgs")
    if not os.access(cache, os.W_OK) and os.path.isdir(cache) or not os.access(root(), os.W_OK):
        cache = os.path.expanduser("~/.conda/pkgs")
    os.makedirs(cache, exist_ok=True)
    path = os.path.join(cache, record["fn"])
    if not os.path.isfile(path):
        try:
            with urllib.request.urlopen(record["url"], timeout=30) as answer, open(path + ".part", "wb") as file:
                shutil.copyfileobj(answer, file)
        except urllib.error.URLError as error:
            raise Failure(
                "CondaHTTPError: HTTP 000 CONNECTION FAILED for url <%s>\n%s" % (record["url"], error)
            ) from None
        os.rename(path + ".part", path)
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    if record.get("sha256") and digest != record["sha256"]:
        os.unlink(path)
        raise Failure(
            "ChecksumMismatchError: Conda detected a mismatch between the expected content and downloaded content\nfor url '%s'."
            % record["url"]
        )
    return path
