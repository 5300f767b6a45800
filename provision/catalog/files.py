"""The catalog's files, as they are: each is read when it is first asked for.

Of the program's own catalog, ``data.json`` says the same as the YAML files of ``data``, and is read in a hundredth of the time.
``make docs`` writes it; a test compares both.
"""

from __future__ import annotations

import json
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from provision.catalog.models.base import Data
from provision.catalog.models.cuda import Cuda, Cudnn, Nccl
from provision.catalog.models.drivers import Drivers, KnownBad, KnownBadFile
from provision.catalog.models.frameworks import Conda, ContainerToolkit, Frameworks
from provision.catalog.models.gpus import Architectures, Bandwidth, FirstBranches, Gpus
from provision.catalog.models.ubuntu import Repositories, Trap, Traps, Ubuntu
from provision.catalog.models.xid import Xids
from provision.lib import yaml_reader

_Topic = TypeVar("_Topic", bound=Data)
_MOST_BYTES = 4 << 20
# Where the program's own data lies, and what is generated from it.
OWN = Path(__file__).resolve().parent / "data"
GENERATED = OWN.with_suffix(".json")


def read_yaml(path: Path) -> Any:
    """What a file of a catalog says. ValueError for one that is larger than any catalog's."""
    with path.open("rb") as stream:
        text = stream.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ValueError(f"{path.name} is larger than {_MOST_BYTES >> 20} MiB")
    return yaml_reader.load(text)


@cache
def _generated() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GENERATED.read_bytes())
    return found


def generate() -> str:
    """Return the text of data.json: one file of the catalog a line."""
    lines = [f"{json.dumps(path.stem)}: {json.dumps(read_yaml(path))}" for path in sorted(OWN.glob("*.yml"))]
    return "{\n" + ",\n".join(lines) + "\n}\n"


class Files:
    """The data of a folder, validated. ``folder`` holds ``gpus.yml`` and the other files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _read(self, name: str, model: type[_Topic]) -> _Topic:
        own = self.folder == OWN
        return model.model_validate(_generated()[name] if own else read_yaml(self.folder / f"{name}.yml"))

    @cached_property
    def gpu_data(self) -> Gpus:
        return self._read("gpus", Gpus)

    @cached_property
    def first_branches(self) -> FirstBranches:
        return self._read("first_branch", FirstBranches)

    @cached_property
    def architectures(self) -> Architectures:
        return self._read("architectures", Architectures)

    @cached_property
    def drivers(self) -> Drivers:
        return self._read("drivers", Drivers)

    @cached_property
    def cuda_data(self) -> Cuda:
        return self._read("cuda", Cuda)

    @cached_property
    def cudnn_data(self) -> Cudnn:
        return self._read("cudnn", Cudnn)

    @cached_property
    def nccl_data(self) -> Nccl:
        return self._read("nccl", Nccl)

    @cached_property
    def bandwidth(self) -> Bandwidth:
        """How fast cards should talk to each other and to the host; ``prove`` is sent it as it is."""
        return self._read("bandwidth", Bandwidth)

    @cached_property
    def frameworks(self) -> Frameworks:
        return self._read("frameworks", Frameworks)

    @cached_property
    def ubuntu_data(self) -> Ubuntu:
        return self._read("ubuntu", Ubuntu)

    @cached_property
    def repositories(self) -> Repositories:
        return self._read("repositories", Repositories)

    @cached_property
    def container_toolkit(self) -> ContainerToolkit:
        return self._read("container_toolkit", ContainerToolkit)

    @cached_property
    def conda(self) -> Conda:
        return self._read("conda", Conda)

    @cached_property
    def traps(self) -> tuple[Trap, ...]:
        """Known failures by their text; ids are stable."""
        return self._read("traps", Traps).traps

    @cached_property
    def known_bad_rows(self) -> tuple[KnownBad, ...]:
        return self._read("known_bad", KnownBadFile).known_bad

    @cached_property
    def xids(self) -> Xids:
        """What the driver's own errors mean; they are judged by parts.driver.xid."""
        return self._read("xid", Xids)


# What a catalog consists of: the names above, one for each file.
TOPICS = tuple(name for name, value in vars(Files).items() if isinstance(value, cached_property))
