"""Role variables: which exist, of which type, and their values for a host.

The roles' own files are the only source: ``meta/argument_specs.yml`` (names, types, choices) and
``defaults/main.yml``. Ansible lets a mistyped variable through and does not convert ``-e x=true``; here the first is
an error that names the nearest known variable, the second becomes a boolean.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ansible_collections.gpu.provision.plugins.module_utils.lib import redact
from provision.collection import ROOT
from provision.errors import Issue, UsageError
from provision.inventory import PREFIXES, Host, cards, site_checks
from provision.lib import yaml_reader

_TRUE = frozenset({"y", "yes", "on", "1", "true", "t"})
_FALSE = frozenset({"n", "no", "off", "0", "false", "f"})
# A variable without one of our prefixes that reads like one of ours is a slip of the pen, not another's variable.
_SLIP = 0.92
_ARTICLE = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "list": "a list",
    "dict": "a mapping",
    "str": "a text",
    "path": "a path",
}
# What a type does not say of a value: functions that raise ValueError.
_CHECKS: Mapping[str, Callable[[Any], None]] = {"gpu_verify_expect": cards.check, "gpu_verify_site": site_checks.check}
# 12.10 to 12.30 without quotes lose the zero; versions such as 12.40 do not exist.
_LOST_ZERO = re.compile(r"\d+\.[123]")
# Where a login belongs instead: (beginning of a variable's name, hint). The proxy's own words are those of proxy.py.
_LOGINS = (
    (
        "miniconda_",
        "a .netrc of the owner on the host is read by conda and pip (machine HOST login NAME password WORD); git goes "
        "over ssh with a deploy key: git+ssh://git@HOST/…",
    ),
    ("gpu_pull_source", "git over ssh with gpu_pull_ssh_key: ssh://git@HOST/…"),
    ("gpu_pull_", "a .netrc of root on the host is read by pip: machine HOST login NAME password WORD"),
    (
        "gpu_rollout_",
        "let the command be a program that reads it from a file of its own; a command is shown and logged",
    ),
    ("", "put them into a file in /etc/apt/auth.conf.d on the host (apt_auth.conf(5))"),
)


@dataclass(frozen=True)
class Variable:
    """One role variable, as its role's argument_specs.yml describes it."""

    name: str
    role: str
    type: str = "str"
    elements: str | None = None
    choices: tuple[Any, ...] = ()
    default: Any = None
    # of a dict, or of a list's dicts
    options: Mapping[str, Variable] = field(default_factory=dict)
    required: bool = False


class VariablesError(UsageError):
    """All that is wrong with the variables of a fleet; ``issues`` has every one, the message is the first's."""

    def __init__(self, issues: Sequence[Issue]) -> None:
        first = issues[0]
        super().__init__(first.code, first.message, host=first.host, because=first.because, hint=first.hint)
        self.issues = list(issues)

    def __reduce__(self) -> tuple[Any, ...]:
        return (VariablesError, (self.issues,))


@cache
def known(roles: Path = ROOT / "roles") -> Mapping[str, Variable]:
    """Return every variable of every role under a folder, by name."""
    found: dict[str, Variable] = {}
    for file in sorted(roles.glob("*/meta/argument_specs.yml")):
        role = file.parts[-3]
        options = yaml_reader.load(file.read_bytes())["argument_specs"]["main"].get("options") or {}
        defaults_file = file.parent.parent / "defaults/main.yml"
        defaults = (yaml_reader.load(defaults_file.read_bytes()) or {}) if defaults_file.is_file() else {}
        for name, spec in options.items():
            found[name] = _variable(name, role, {**spec, "default": defaults.get(name, spec.get("default"))})
    return found


def effective(host: Host, roles: Path = ROOT / "roles") -> dict[str, Any]:
    """Return all role variables of a host: the inventory's values, converted to their types, and the defaults.

    Raises VariablesError (exit 64) for a variable that no role knows, and for a wrong type or choice.
    """
    return effective_all([host], roles)[host.name]


def effective_all(hosts: Iterable[Host], roles: Path = ROOT / "roles") -> dict[str, dict[str, Any]]:
    """Return {host name: its role variables}; VariablesError carries what is wrong with any of them."""
    variables = known(roles)
    found: dict[str, dict[str, Any]] = {}
    problems: dict[tuple[str, str, str], tuple[Issue, list[str]]] = {}

    # A name is the same variable on every host, and to look for one like it takes a millisecond.
    @cache
    def foreign(name: str) -> bool:
        return unknown(name, "", variables) is None

    for host in hosts:
        values, issues = _of_host(host, variables, foreign)
        found[host.name] = values
        for origin, issue in issues:
            # A group's variable is wrong once, however many hosts have it.
            key = (origin, issue.code, issue.message)
            problems.setdefault(key, (issue, []))[1].append(host.name)
    if problems:
        raise VariablesError([_located(issue, names) for issue, names in problems.values()])
    return found


def _located(issue: Issue, hosts: list[str]) -> Issue:
    if len(hosts) == 1:
        return issue.model_copy(update={"host": hosts[0]})
    shown = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    return issue.model_copy(update={"because": [*issue.because, f"hosts: {shown}"]})


def _of_host(
    host: Host, variables: Mapping[str, Variable], foreign: Callable[[str], bool]
) -> tuple[dict[str, Any], list[tuple[str, Issue]]]:
    values = {name: variable.default for name, variable in variables.items()}
    issues: list[tuple[str, Issue]] = []
    for name, value in sorted(host.vars.items()):
        origin = host.origins.get(name, "inventory")
        variable = variables.get(name)
        if variable is None:
            issue = None if foreign(name) else unknown(name, origin, variables)
            if issue is not None:
                issues.append((origin, issue))
            continue
        if value is None:
            # "name:" with nothing behind it in YAML: the default
            continue
        try:
            values[name] = convert(variable, value)
            _CHECKS.get(name, lambda value: None)(values[name])
        except ValueError as error:
            what, *hints = error.args
            hint = next(iter(hints), _allowed(variable))
            issues.append((origin, Issue(code="vars.invalid", message=f"{name}: {what} ({origin})", hint=hint)))
        if any(map(redact.has_secret, _texts(value))) and not name.startswith("gpu_proxy_"):
            issues.append(
                (
                    origin,
                    Issue(
                        code="usage.url_with_password",
                        message=f"{name} holds a password or token ({origin})",
                        because=["plans, logs and command lines would show it"],
                        hint=next(hint for beginning, hint in _LOGINS if name.startswith(beginning)),
                    ),
                )
            )
    return values, issues


def _texts(value: Any) -> Iterable[str]:
    """Every text in a value."""
    if isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def unknown(name: str, origin: str, variables: Mapping[str, Variable]) -> Issue | None:
    """Return the issue of a variable that no role knows; None when it is none of our business."""
    ours = name.startswith(PREFIXES)
    nearest = difflib.get_close_matches(name, variables, n=1, cutoff=_SLIP)
    if ours and not nearest:
        # Without the prefix, which makes everything look alike.
        prefix = next(prefix for prefix in PREFIXES if name.startswith(prefix))
        endings = [known.removeprefix(prefix) for known in variables if known.startswith(prefix)]
        nearest = [prefix + ending for ending in difflib.get_close_matches(name.removeprefix(prefix), endings, n=1)]
    if not ours and not nearest:
        return None
    return Issue(
        code="vars.unknown",
        message=f"unknown variable {name} ({origin})",
        because=[] if ours else ["it looks like a variable of gpu-provision, and would have no effect"],
        hint=f"did you mean {nearest[0]}?" if nearest else "see the README of each role for its variables",
    )


def convert(variable: Variable, value: Any) -> Any:
    """Return a value in the variable's type, as Ansible's modules convert; ValueError says what is wrong."""
    converted = _typed(variable.type, value)
    if variable.type == "list":
        items = [_typed(variable.elements or "raw", item) for item in converted]
        if variable.options:
            items = [_options(variable, item) for item in items]
        _choose(variable, items)
        return items
    if variable.type == "dict" and variable.options:
        return _options(variable, converted)
    _choose(variable, [converted])
    return converted


def _choose(variable: Variable, values: Sequence[Any]) -> None:
    if not variable.choices:
        return
    for value in values:
        if value not in variable.choices:
            listed = ", ".join(str(choice) for choice in variable.choices)
            nearest = difflib.get_close_matches(str(value), [str(choice) for choice in variable.choices], n=1)
            raise ValueError(f"{value!r} is not one of {listed}" + (f"; did you mean {nearest[0]}?" if nearest else ""))


def _options(variable: Variable, value: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        option = variable.options.get(key)
        if option is None:
            nearest = difflib.get_close_matches(str(key), variable.options, n=1, cutoff=0.4)
            raise ValueError(f"unknown key {key}" + (f", did you mean {nearest[0]}?" if nearest else ""))
        if item is None:
            # "key:" with nothing behind it in YAML: the default
            continue
        try:
            found[key] = convert(option, item)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
    missing = [key for key, option in variable.options.items() if option.required and key not in found]
    if missing:
        raise ValueError(f"{', '.join(missing)} is missing")
    for key, option in variable.options.items():
        found.setdefault(key, option.default)
    return found


def _typed(kind: str, value: Any) -> Any:
    if kind in ("raw", "any"):
        return value
    if kind == "bool":
        return _bool(value)
    if kind in ("int", "float"):
        if not isinstance(value, bool):
            try:
                number = float(value)
            except (TypeError, ValueError):
                pass
            else:
                if kind == "float":
                    return number
                if number == int(number):
                    return int(number)
        raise ValueError(f"{value!r} is not {_ARTICLE[kind]}")
    if kind in ("str", "path"):
        if isinstance(value, (list, dict)):
            raise ValueError(f"{_ARTICLE['list' if isinstance(value, list) else 'dict']} where a text belongs")
        if isinstance(value, float) and _LOST_ZERO.fullmatch(str(value)):
            raise ValueError(f'{value}0 without quotes is the number {value} in YAML: write "{value}0" or "{value}"')
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return str(Path(text).expanduser()) if kind == "path" and text else text
    if kind == "list":
        if isinstance(value, list):
            return value
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return [value]
    if kind == "dict" and isinstance(value, dict):
        return value
    raise ValueError(f"{value!r} is not {_ARTICLE[kind]}")


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{value!r} is not true or false")


def _allowed(variable: Variable) -> str:
    """What may be written, as a short text."""
    if variable.choices:
        text = "one of " + ", ".join(str(choice) for choice in variable.choices)
    elif variable.type == "list" and variable.elements:
        text = f"a list, each item {_ARTICLE.get(variable.elements, 'a value')}"
    else:
        text = _ARTICLE.get(variable.type, "a value")
    default = variable.default
    shown = (
        ""
        if default in (None, "", [], {})
        else f" (default {str(default).lower() if isinstance(default, bool) else default})"
    )
    return f"allowed: {text}{shown}"


def _variable(name: str, role: str, spec: Mapping[str, Any]) -> Variable:
    return Variable(
        name=name,
        role=role,
        type=spec.get("type", "str"),
        elements=spec.get("elements"),
        choices=tuple(spec.get("choices") or ()),
        default=spec.get("default"),
        options={key: _variable(key, role, item) for key, item in (spec.get("options") or {}).items()},
        required=bool(spec.get("required")),
    )
