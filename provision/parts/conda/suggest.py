"""What to change for an environment that cannot work: the smallest change of its keys that does, tried, never guessed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.conda.environment import cuda_of_tag
from provision.catalog import Catalog
from provision.catalog.frameworks import pythons
from provision.catalog.versions import key, minor
from provision.errors import UsageError
from provision.lib.suggest import Change, suggest
from provision.parts.conda.desired import EnvironmentConfig

# Refusals that other values of the environment's own keys can lift.
HAS_WAY_OUT = frozenset(
    {
        "conda.torch_unknown",
        "conda.torch_not_built",
        "conda.no_code_for_gpu",
        "conda.driver_too_old",
        "conda.no_wheel_for_python",
        "conda.tensorflow_unknown",
        "conda.tensorflow_other_cuda",
        "conda.cuda_unknown",
        "conda.cuda_not_packaged",
        "conda.python_invalid",
        "conda.no_build_for_machine",
    }
)
_KEYS = ("torch", "tensorflow", "jax", "cuda", "python")
_MOST_TRIALS = 1500


def nearest(env: EnvironmentConfig, catalog: Catalog, works: Callable[[EnvironmentConfig], bool]) -> list[str]:
    """Return up to two suggestions as text (``cuda: "11.8" and torch: "2.0.0"``), the smallest change first.

    The second one changes another key than the first: torch for this CUDA, or CUDA for this torch.
    """
    plain = _plain(env)

    def shown(change: Change) -> Change:
        trial = replace(plain, **change)
        return {k: getattr(trial, k) for k in _KEYS if getattr(trial, k) != getattr(env, k)}

    def helps(change: Change) -> bool:
        return bool(shown(change)) and works(replace(plain, **change))

    changes = itertools.islice(_changes(plain, catalog), _MOST_TRIALS)
    first = suggest(changes, helps)
    if first is None:
        return []
    second = suggest((change for change in changes if not set(change) & set(shown(first))), helps)
    return [_text(shown(change)) for change in (first, second) if change]


def _plain(env: EnvironmentConfig) -> EnvironmentConfig:
    """The same config with the CUDA of a version like 2.6.0+cu124 in its own key."""
    version, plus, local = env.torch.partition("+")
    if not plus:
        return env
    cuda = "none" if local == "cpu" else cuda_of_tag(local) or ""
    return replace(env, torch=version, cuda=env.cuda or cuda)


def _changes(env: EnvironmentConfig, catalog: Catalog) -> Iterator[Change]:
    """Changes of single keys first, then of two and three, each kind from the nearest value on."""
    cudas = [""] if env.cuda in ("", "none", "cpu") else [*_cudas(env, catalog), ""]
    versions, snakes = _versions(env, catalog), _pythons(env, catalog)
    name = "torch" if env.torch else "tensorflow" if env.tensorflow else ""
    if env.cuda:
        yield from ({"cuda": cuda} for cuda in cudas)
    yield from ({"python": python} for python in snakes)
    yield from ({name: version} for version in versions)
    values = {"cuda": cudas, "python": snakes[:3], name: versions}
    for keys in (("cuda", "python"), (name, "cuda"), (name, "python"), (name, "cuda", "python")):
        for chosen in itertools.product(*(values[key_] for key_ in keys)):
            yield dict(zip(keys, chosen, strict=True))


def _cudas(env: EnvironmentConfig, catalog: Catalog) -> list[str]:
    if env.torch:
        known = [row.cuda for row in catalog.frameworks.torch.tags.values()]
    elif env.tensorflow:
        known = [row.cuda for row in catalog.frameworks.tensorflow.releases.values()]
    elif env.jax:
        known = ["12", "13"]
    else:
        known = [row.version for row in catalog.cuda_minors]
    return _nearest(env.cuda, list(dict.fromkeys(known)))


def _versions(env: EnvironmentConfig, catalog: Catalog) -> list[str]:
    if env.torch:
        return _nearest(env.torch, list(catalog.frameworks.torch.releases))
    if env.tensorflow:
        return _nearest(env.tensorflow, list(catalog.frameworks.tensorflow.releases))
    return []


def _pythons(env: EnvironmentConfig, catalog: Catalog) -> list[str]:
    """Pythons of the framework as it is asked for, else all that any framework has."""
    try:
        if env.torch:
            listed = list(catalog.torch(env.torch).python or ())
        elif env.tensorflow:
            listed = pythons(*catalog.tensorflow(env.tensorflow).python)
        else:
            listed = []
    except UsageError:
        listed = []
    every = {python for row in catalog.frameworks.torch.releases.values() for python in row.python or ()}
    return _nearest(env.python, listed or sorted(every, key=key)) if env.python else []


def _nearest(wanted: str, known: list[str]) -> list[str]:
    """Known versions by their distance in the list, the newer one first of two that are as far away.

    From a word that is no version nothing is near: the newest first then.
    """
    ordered = sorted(known, key=key)
    if not key(wanted):
        return ordered[::-1]
    place = sum(key(version) < key(wanted) for version in ordered)
    return sorted(
        (version for version in ordered if version != wanted),
        key=lambda version: (
            minor(version) != minor(wanted),
            abs(ordered.index(version) - place + (0.5 if ordered.index(version) < place else 0)),
            key(version),
        ),
    )


def _text(change: Change) -> str:
    parts = [f'{name}: "{value}"' if value else f"no {name}" for name, value in change.items()]
    return " and ".join(parts)
