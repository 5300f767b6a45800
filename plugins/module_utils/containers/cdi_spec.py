# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""CDI specifications of NVIDIA's GPUs on a host: of which driver they are, which devices they know, whether they are stale.

A specification names the driver's libraries by their full version, so one of another driver mounts files that are gone.
Files only; the text is searched, not parsed: there is no YAML in the standard library.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re

# the later one wins where both know a device (CDI specification)
FOLDERS = ("/etc/cdi", "/var/run/cdi")
OUTPUT = "/var/run/cdi/nvidia.yaml"
KIND = "nvidia.com/gpu"
_VERSION = lazy_re.compile(r"/lib(?:cuda|nvidia-[a-z0-9-]+)\.so\.([0-9]{3,4}\.[0-9]+(?:\.[0-9]+)?)\b")
_GPU = lazy_re.compile(r"/dev/nvidia([0-9]{1,9})\b")
_CAPABILITY = lazy_re.compile(r"/dev/nvidia-caps/nvidia-cap([0-9]{1,9})\b")
_SPEC_VERSION = lazy_re.compile(r"cdiVersion[\"']?\s*:\s*[\"']?([0-9.]+)")


def read(tree):
    """[{path, cdi_version, versions, gpus, caps}] of every specification of NVIDIA's GPUs, in the order of FOLDERS.

    versions: of the driver's libraries in it, sorted; gpus: numbers of /dev/nvidiaN; caps: numbers of MIG's nodes.
    """
    found = []
    for folder in FOLDERS:
        for name in tree.names(folder):
            if name.endswith((".yaml", ".yml", ".json")):
                path = "%s/%s" % (folder, name)
                spec = parse(tree.read(path) or "", path)
                if spec:
                    found.append(spec)
    return found


def parse(text, path):
    """One specification as in read, or None when it is of another kind."""
    if not re.search(r"kind[\"']?\s*:\s*[\"']?%s[\"'\s,]" % re.escape(KIND), text + "\n"):
        return None
    version = _SPEC_VERSION.search(text)
    return {
        "path": path,
        "cdi_version": version.group(1).rstrip(".") if version else "",
        "versions": sorted(set(_VERSION.findall(text))),
        "gpus": sorted({int(number) for number in _GPU.findall(text)}),
        "caps": sorted({int(number) for number in _CAPABILITY.findall(text)}),
    }


def driver(tree):
    """Version of the loaded driver, or ""."""
    match = re.search(r"Kernel Module(?: for \S+)?\s+([0-9.]+)", tree.read("/proc/driver/nvidia/version") or "")
    return match.group(1) if match else ""


def gpu_nodes(tree):
    """Numbers of the GPUs' device nodes."""
    return sorted(int(name[6:]) for name in tree.names("/dev") if re.match(r"^nvidia[0-9]{1,9}$", name))


def mig_nodes(tree):
    """Numbers of the nodes that give access to MIG devices that exist, their GPU and compute instances."""
    found = []
    base = "/proc/driver/nvidia/capabilities"
    for gpu in tree.names(base):
        for instance in tree.names("%s/%s/mig" % (base, gpu)):
            folder = "%s/%s/mig/%s" % (base, gpu, instance)
            paths = [folder + "/access"]
            paths += ["%s/%s/access" % (folder, name) for name in tree.names(folder) if name.startswith("ci")]
            for path in paths:
                match = re.search(r"DeviceFileMinor:\s*([0-9]{1,18})\b", tree.read(path) or "")
                if match and instance.startswith("gi"):
                    found.append(int(match.group(1)))
    return sorted(found)


def stale(spec, version, gpus=None, caps=None):
    """Why a specification does not fit this driver and these devices (words), or "" where it does.

    version: of the loaded driver; "" (none loaded) makes nothing stale. gpus, caps: numbers of the nodes that are there,
    None where that is not asked.
    """
    if not version:
        return ""
    others = [one for one in spec["versions"] if one != version]
    if others:
        return "%s names libraries of driver %s, and %s is loaded" % (spec["path"], ", ".join(others), version)
    if not spec["versions"]:
        return "%s names no library of a driver" % spec["path"]
    if gpus and spec["gpus"] != list(gpus):
        return "%s knows GPU %s, and the host has %s" % (spec["path"], _numbers(spec["gpus"]), _numbers(gpus))
    if caps is not None and set(caps) != set(spec["caps"]):
        return "%s was written for another MIG layout" % spec["path"]
    return ""


def outdated(tree):
    """[(path, why)] of the specifications that have to be made anew: those that do not fit, OUTPUT where there is none."""
    version, specs = driver(tree), read(tree)
    if version and not specs:
        return [(OUTPUT, "there is no CDI specification")]
    gpus, caps = gpu_nodes(tree), mig_nodes(tree)
    found = [(spec["path"], stale(spec, version, gpus, caps)) for spec in specs]
    return [(path, why) for path, why in found if why]


def _numbers(numbers):
    return ", ".join(str(number) for number in numbers) or "none"
