"""The folder of a mirror, here or on a host: the programs that work on it, called with their errors as ours."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from provision.errors import HostFailedError

# One file may take long; a call comes back after the file that is being fetched.
_SECONDS = 7200.0
# seconds after which a call says what it has
_BUDGET = 20
# files of one call
_MANY = 500

Call = Callable[..., Any]
Said = Callable[[str], None]


def here(program: str, args: dict[str, Any], *, timeout: float = 60) -> Any:
    """Run a host program in this process: for a mirror on the controller itself, as whoever runs the command."""
    module = importlib.import_module(f"ansible_collections.gpu.provision.plugins.module_utils.{program}")
    try:
        return module.main(args)
    except AptError as error:
        raise HostFailedError(error.code, error.message, because=error.because, hint=error.hint) from error


@dataclass
class Store:
    """root: absolute path of the folder there. call: ``here``, or that of a session. environment: the proxy there."""

    root: str
    call: Call
    environment: Mapping[str, str]

    def ask(self, op: str, **args: Any) -> Any:
        """One operation of module_utils/mirror on the folder."""
        return self.call("mirror.store", {"op": op, "root": self.root, **args}, timeout=_SECONDS)

    def resolve(self, args: dict[str, Any]) -> Any:
        """What packages need, by apt there."""
        return self.call(
            "mirror.store", {"op": "resolve", "environment": dict(self.environment), **args}, timeout=_SECONDS
        )

    def wheels(self, wheels: Sequence[Any], indexes: Sequence[str]) -> Any:
        """Which files of indexes wheels are."""
        args = {"wheels": wheels, "indexes": indexes, "environment": dict(self.environment)}
        return self.call("mirror.wheels", args, timeout=_SECONDS)

    def fetch(self, files: Iterable[Mapping[str, Any]], said: Said = lambda text: None) -> list[dict[str, Any]]:
        """Have files there; returns their rows. Of files with the same ``any`` one is enough. Raises HostFailedError."""
        todo = [{name: row.get(name) for name in ("path", "url", "sha256", "size", "any")} for row in files]
        total, rows = sum(row["size"] or 0 for row in todo), []
        groups = {row["any"]: "" for row in todo if row["any"]}
        while todo:
            part, rest = todo[:_MANY], todo[_MANY:]
            answer = self.ask("fetch", files=part, budget=_BUDGET, environment=dict(self.environment))
            rows += answer["done"]
            left = set(answer["left"])
            todo = [row for row in part if row["path"] in left] + rest
            for one in answer["refused"]:
                groups[one["any"]] = one["message"]
            said(f"{_size(sum(row['size'] for row in rows))} of {_size(total)}")
        have = {row["path"] for row in rows}
        for name, message in groups.items():
            if message and not have & {row["path"] for row in files if row.get("any") == name}:
                raise HostFailedError(
                    "mirror.no_index",
                    f"no form of the index {name} can be fetched",
                    because=[message],
                    hint="run it again: a repository that is being updated is consistent again later",
                )
        return rows


def _size(number: float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"
