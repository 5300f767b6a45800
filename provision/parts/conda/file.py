"""What a file of an environment asks for, as far as it concerns the GPU: environment.yml or an explicit list.

Only names and versions that such files write in fixed ways are read; everything else is conda's to judge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import yaml

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.conda.environment import by_build, cuda_of_tag


@dataclass
class CondaFile:
    """kind: environment (YAML) or explicit (a list of URLs). torch, cuda, python, tensorflow: versions, or empty.

    channels: as the file names them. cpu: it asks for builds without CUDA. error: why it cannot be read.
    """

    kind: str = ""
    channels: tuple[str, ...] = ()
    python: str = ""
    torch: str = ""
    tensorflow: str = ""
    cuda: str = ""
    cpu: bool = False
    error: str = ""

    def add_conda(self, name: str, version: str, build: str) -> None:
        if name == "python":
            self.python = ".".join(version.split(".")[:2])
        elif name == "pytorch":
            self.torch = version
            self.cuda = by_build(build)[1] or self.cuda
            self.cpu = self.cpu or "cpu" in build
        elif name in ("pytorch-cuda", "cudatoolkit", "cuda-version") and version:
            self.cuda = self.cuda or ".".join(version.split(".")[:2])
        elif name in ("cpuonly", "pytorch-cpu"):
            self.cpu = True

    def add_pip(self, line: str) -> None:
        match = re.match(r"^(torch|tensorflow)(?:\[[^\]]*\])?\s*==\s*([0-9][0-9.]*)(?:\+(\w+))?", line)
        if match and match[1] == "tensorflow":
            self.tensorflow = match[2].rstrip(".")
        elif match:
            self.torch = match[2].rstrip(".")
            self.cuda = cuda_of_tag(match[3] or "") or self.cuda
            self.cpu = self.cpu or (match[3] or "").startswith("cpu")


def read_file(content: str) -> CondaFile:
    """Read the text of a file; never raises: what is wrong is in ``error``."""
    if is_explicit(content):
        return _explicit(content)
    try:
        data = yaml.safe_load(content)
    except yaml.YAMLError as error:
        return CondaFile(error=f"no valid YAML: {' '.join(str(error).split())}")
    if not isinstance(data, dict) or not isinstance(data.get("dependencies"), list):
        return CondaFile(error="neither an explicit list (@EXPLICIT) nor a mapping with dependencies")
    for item in data["dependencies"]:
        lines = item.get("pip") if isinstance(item, dict) and len(item) == 1 else None
        if not isinstance(item, str) and not (isinstance(lines, list) and all(isinstance(i, str) for i in lines)):
            return CondaFile(error=f"of its dependencies {item!r} is neither a package nor a list of packages for pip")
    conda = [item for item in data["dependencies"] if isinstance(item, str)]
    pip = [line for item in data["dependencies"] if isinstance(item, dict) for line in item["pip"]]
    channels = tuple(str(channel) for channel in data.get("channels") or ())
    # Without a list conda takes its configured channels, and so does "nodefaults" only say what is left out.
    found = CondaFile("environment", tuple(c for c in channels if c != "nodefaults"))
    for item in conda:
        found.add_conda(*_spec(item))
    for line in pip:
        found.add_pip(line)
    return found


def is_explicit(content: str) -> bool:
    """The text is a list of packages by their URLs, as conda list --explicit writes it."""
    return re.search(r"^@EXPLICIT\s*$", content, re.M) is not None


def _explicit(content: str) -> CondaFile:
    found, channels = CondaFile("explicit"), []
    for line in content.splitlines():
        match = re.match(r"^(\S+)/(?:linux-\S+?|noarch)/([^/#\s]+)\.(?:conda|tar\.bz2)", line.strip())
        if match:
            channels.append(match[1])
            parts = match[2].rsplit("-", 2)
            if len(parts) == 3:
                found.add_conda(*parts)
    if not channels:
        return CondaFile(error="an explicit list without packages for Linux")
    found.channels = tuple(dict.fromkeys(channels))
    return found


def _spec(text: str) -> tuple[str, str, str]:
    """Name, version and build of "channel::pytorch=2.3.1=py3.11_cuda12.1_cudnn8.9.2_0"; empty what is not exact."""
    name, _, rest = text.rpartition("::")[2].strip().replace("==", "=").partition("=")
    version, _, build = rest.partition("=")
    plain = re.match(r"^[A-Za-z0-9_.-]+", name)
    exact = version.strip() if re.fullmatch(r"[0-9][0-9.]*", version.strip().rstrip(".*")) else ""
    return (plain[0].lower() if plain else ""), exact.rstrip(".*"), build.strip()
