"""What is there against what is asked for: is an environment as it should be, and if not, what differs."""

from __future__ import annotations

from typing import Any

import yaml

from provision.catalog import Catalog
from provision.catalog.versions import key, minor, same
from provision.errors import UsageError
from provision.facts import CondaEnvironment
from provision.parts.conda.desired import EnvironmentConfig
from provision.parts.conda.file import is_explicit
from provision.parts.conda.view import HostView, Recipe


def made_by_us(found: CondaEnvironment) -> bool:
    """We made it: a record of ours says from what."""
    return isinstance(_spec(found), dict)


def differences(
    env: EnvironmentConfig, recipe: Recipe, found: CondaEnvironment, host: HostView, catalog: Catalog
) -> list[str]:
    """Return what makes an environment other than asked for, as sentences; empty when it is as it should be.

    One of ours is as it should be while its configuration is the one that it was made for, or would be made of the same
    again: how the catalog would choose today is no reason to make it anew. One of somebody else's is, when what
    the configuration names is there. Either must still be able to run: a build for the CPU where CUDA is asked for, or for
    a CUDA that the driver does not run, is not as it should be.
    """
    if found.state == "partial":
        return ["only part of an environment is there"]
    other = _cannot_run(recipe, found, host, catalog)
    spec = _spec(found)
    if spec is None:
        return other + _by_what_is_there(env, recipe, found)
    if spec.get("wish") == env.asked() or _same_recipe(spec, recipe):
        return other
    return other + _by_config(env.asked(), spec.get("wish"))


def _spec(found: CondaEnvironment) -> dict[str, Any] | None:
    spec = (found.record or {}).get("spec")
    return spec if isinstance(spec, dict) else None


def _cannot_run(recipe: Recipe, found: CondaEnvironment, host: HostView, catalog: Catalog) -> list[str]:
    other = []
    if recipe.build == "cuda":
        other += [
            f"its {name} is a build for the CPU"
            for name, kind in sorted(found.builds.items())
            if kind == "cpu" and name in recipe.frameworks
        ]
    if recipe.build != "cpu" and found.cuda and host.driver:
        try:
            least = catalog.min_driver_for_cuda(found.cuda)
        except UsageError:
            # a CUDA that the catalog does not know: nothing can be held against it
            least = None
        if least and key(host.driver) < key(least):
            other.append(f"its CUDA {found.cuda} needs driver {least} or newer; this host has {host.driver}")
    return other


def _same_recipe(spec: dict[str, Any], recipe: Recipe) -> bool:
    """It would be made of the same packages again. Where they come from may have changed."""

    def pip(steps: Any) -> list[str]:
        return [str(item) for step in steps or () for item in step.get("packages") or ()]

    return (
        list(spec.get("packages") or ()) == list(recipe.packages)
        and pip(spec.get("pip")) == pip(recipe.pip)
        and _meaning(spec.get("file_content")) == _meaning(recipe.file_content)
    )


def _meaning(content: object) -> object:
    """What a file asks for: comments, order of keys and the name that it gives itself change nothing."""
    text = str(content or "")
    if is_explicit(text):
        return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if not isinstance(data, dict):
        return data
    return {key_: value for key_, value in data.items() if key_ not in ("name", "prefix")}


def _by_config(asked: dict[str, Any], before: Any) -> list[str]:
    made_for = before if isinstance(before, dict) else {}
    return [
        _describe_change(key_, asked.get(key_), made_for.get(key_))
        for key_ in dict.fromkeys([*asked, *made_for])
        if asked.get(key_) != made_for.get(key_)
    ] or ["it was made for something else"]


def _describe_change(name: str, now: Any, then: Any) -> str:
    if name != "file_sha256":
        return f"{name}: {_shown(now)} is asked for, it was made for {_shown(then)}"
    if now and then:
        return "its file asks for something else than when it was made"
    return "a file is asked for, it was made without one" if now else "no file is asked for, it was made from one"


def _shown(value: Any) -> str:
    if key_text := (", ".join(map(str, value)) if isinstance(value, list) else str(value or "")):
        return key_text
    return "nothing"


def _by_what_is_there(env: EnvironmentConfig, recipe: Recipe, found: CondaEnvironment) -> list[str]:
    """Differences of an environment that somebody made: only what can be read from it counts for it."""
    other = []
    if env.python and not same(env.python, found.python or ""):
        other.append(f"its Python is {found.python or 'none'}, {env.python} is asked for")
    for name, wanted in recipe.frameworks.items():
        asked, there = getattr(env, name, "").split("+")[0] or wanted.split("+")[0], framework(found, name)
        if not there or not same(asked, there.split("+")[0]):
            other.append(f"its {name} is {there or 'not there'}, {asked} is asked for")
    if (
        env.cuda
        and recipe.build != "cpu"
        and recipe.cuda
        and (not found.cuda or minor(found.cuda) != minor(recipe.cuda))
    ):
        other.append(f"its CUDA is {found.cuda or 'none'}, {recipe.cuda} is asked for")
    cudnn = found.packages.get("cudnn")
    if env.cudnn and not same(env.cudnn, cudnn.version if cudnn else ""):
        other.append(f"its cuDNN is {cudnn.version if cudnn else 'not there'}, {env.cudnn} is asked for")
    if env.packages or env.pip or env.file:
        other.append("whether all that is asked for is in it cannot be seen from outside")
    return other


def framework(env: CondaEnvironment, name: str) -> str | None:
    """Version of a framework in an environment, by pip's name or by conda's; None when it is not there."""
    package = env.packages.get({"torch": "pytorch"}.get(name, name))
    return env.pip.get(name) or env.pip.get(f"{name}-cpu") or (package.version if package else None)


def frameworks(env: CondaEnvironment) -> dict[str, str]:
    """Frameworks of an environment and their versions, by pip's name or by conda's."""
    found = {name: framework(env, name) for name in ("torch", "tensorflow", "jax")}
    return {name: version for name, version in found.items() if version}
