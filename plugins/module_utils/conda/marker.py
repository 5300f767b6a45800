# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What was asked for against what is there, by the names of conda's records and pip's metadata: pure functions.

A solver may give something else than what was meant and end well: without a driver it takes a build for the processor.
Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import fnmatch
import re

from ansible_collections.gpu.provision.plugins.module_utils.conda.read import normalised
from ansible_collections.gpu.provision.plugins.module_utils.lib import redact

# Packages that come with and without CUDA under one name.
FRAMEWORKS = ("pytorch", "libtorch", "torch", "tensorflow", "tensorflow-base", "jaxlib", "torchvision", "torchaudio")
# Asking for one of these is asking for CUDA.
_CUDA = ("pytorch-cuda", "pytorch-gpu", "tensorflow-gpu", "cudatoolkit", "cuda-version", "cuda", "cuda-toolkit")


def mismatches(params, packages, pip):
    """Say where an environment differs from the request, a line each; empty when it is.

    params: packages (conda specs), pip (steps), override_cuda, file_kind; packages: {name: {"version", "build"}} of conda;
    pip: {normalised name: version}. Of an environment from a file only builds without CUDA are looked for.
    """
    wrong = []
    for spec in params.get("packages") or ():
        wrong += _conda_mismatch(spec, packages)
    for step in params.get("pip") or ():
        for requirement in step["packages"]:
            wrong += _pip_mismatch(requirement, pip)
    if wants_cuda(params):
        wrong += cpu_builds(packages, pip)
    return wrong


def wants_cuda(params):
    """True when the environment was asked for with CUDA: by a package, a build, a wheel's tag, or CONDA_OVERRIDE_CUDA."""
    if params.get("override_cuda"):
        return True
    for spec in params.get("packages") or ():
        name, _, build = split(spec)
        if name in _CUDA or re.search(r"cuda|cu\d", build):
            return True
    wheels = [text for step in params.get("pip") or () for text in [step.get("index_url") or "", *step["packages"]]]
    return any(re.search(r"\+cu\d|/cu\d+/?$", text) for text in wheels)


def cpu_builds(packages, pip):
    """Name frameworks that were built without CUDA, a line each."""
    found = [
        "%s %s is a build without CUDA (%s)" % (name, packages[name]["version"], packages[name]["build"])
        for name in FRAMEWORKS
        if name in packages and re.search(r"(^|_)cpu", packages[name]["build"])
    ]
    return found + [
        "%s %s is a wheel without CUDA" % (name, pip[name])
        for name in FRAMEWORKS
        if name in pip and name not in packages and pip[name].endswith("+cpu")
    ]


def split(spec):
    """(name, version, build) of a conda spec: ``channel::name=1.2=build``, ``name 1.2.* build``; empty where not given."""
    bare = spec.split("::")[-1].strip()
    match = re.match(r"([A-Za-z0-9_.-]+)\s*(.*)$", bare)
    if not match:
        return bare, "", ""
    name, rest = match.group(1).lower(), match.group(2).strip()
    if re.match(r"=[^=]", rest):
        version, _, build = rest[1:].partition("=")
        return name, version, build
    version, _, build = rest.partition(" ")
    return name, version, build.strip()


def _conda_mismatch(spec, packages):
    name, version, build = split(spec)
    there = packages.get(name)
    if there is None:
        return ["%s is not there (requested: %s)" % (name, redact.text(spec))]
    exact = version.lstrip("=")
    fits = not re.match(r"[\d]", exact) or "," in exact or "|" in exact or _is(exact, there["version"])
    if fits and (not build or fnmatch.fnmatchcase(there["build"], build)):
        return []
    return ["%s is %s %s (requested: %s)" % (name, there["version"], there["build"], redact.text(spec))]


def _is(wanted, version):
    wanted = re.sub(r"\.?\*$", "", wanted)
    return version == wanted or version.startswith(wanted + ".") or re.sub(r"(\.0)+$", "", wanted) == version


def _pip_mismatch(requirement, pip):
    match = re.match(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*(?:===?\s*([^\s;,*]+))?\s*(?:;.*)?$", requirement)
    if not match:
        # a range, a URL or a file: pip itself has seen to it
        return []
    name, version = normalised(match.group(1)), match.group(2)
    if name not in pip:
        return ["%s is not there (requested: %s)" % (name, redact.text(requirement))]
    # Without a local part in the request any of them fits: 2.6.0 is fulfilled by 2.6.0+cu124 (PEP 440).
    there = pip[name] if version is None or "+" in version else pip[name].split("+")[0]
    return (
        [] if version in (None, there) else ["%s is %s (requested: %s)" % (name, pip[name], redact.text(requirement))]
    )


def hint(wrong):
    """A hint for what mismatches has found."""
    if any("without CUDA" in line for line in wrong):
        return (
            "name the build (pytorch=2.5.1=*cuda*), or take wheels of a CUDA tag; conda takes a build without CUDA where no "
            "driver is seen"
        )
    return "the channel or index may not have the requested version: see conda search, or pip index versions"


def describe(packages, pip):
    """What is in an environment, as lines for a diff."""
    lines = ["%s=%s=%s" % (name, found["version"], found["build"]) for name, found in sorted(packages.items())]
    lines += ["pip: %s==%s" % item for item in sorted(pip.items()) if item[0] not in packages]
    return "".join(line + "\n" for line in lines)


def asked(params):
    """What an environment is asked to have, as lines for a diff."""
    if params.get("file_kind"):
        return redact.text(params["file_content"])
    lines = [redact.text(spec) for spec in params.get("packages") or ()]
    lines += ["pip: " + redact.text(item) for step in params.get("pip") or () for item in step["packages"]]
    return "".join(line + "\n" for line in lines)


def library_path_scripts(env):
    """(path, content) of the scripts that put an environment's lib in front of LD_LIBRARY_PATH while it is active.

    No empty element is left in it: that would be the current folder (ld.so(8)).
    """
    head = "# written by gpu-provision; changes here are overwritten\n"
    activate = (
        'export GPU_PROVISION_OLD_LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}"\n'
        'export LD_LIBRARY_PATH="$CONDA_PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\n'
    )
    deactivate = (
        'if [ -n "${GPU_PROVISION_OLD_LD_LIBRARY_PATH:-}" ]; then\n'
        '    export LD_LIBRARY_PATH="$GPU_PROVISION_OLD_LD_LIBRARY_PATH"\nelse\n    unset LD_LIBRARY_PATH\nfi\n'
        "unset GPU_PROVISION_OLD_LD_LIBRARY_PATH\n"
    )
    return [
        (env + "/etc/conda/activate.d/gpu-provision.sh", head + activate),
        (env + "/etc/conda/deactivate.d/gpu-provision.sh", head + deactivate),
    ]
