"""What comes from a host is data: the types of its texts, and the one place where its answers become models.

Every text has a type with a pattern and a limit. A value that does not match is left out and named, never repeated; see
``Answer.of_host``. The types accept all that is legal on a Linux host; what is written somewhere is quoted by its writer.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.fields import FieldInfo

from provision.errors import HostFailedError

_LINE = 4096
# A text without a type, such as the Depends of a large package.
_LONG = 65536
_MOST_WRONG = 10_000
_MOST_REPORTED = 100
_DEEPEST = 12
# Controls, line separators, halves of a character and what is none: what ends a line or cannot be written.
_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]+")
# The classes Cc, Zl and Zp, spelled so that every engine that reads our JSON schemas knows them.
_BAD = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
# pattern -> what a value is not
_WHY: dict[str, str] = {}
_GONE = object()


def one_line(text: str, limit: int = _LINE) -> str:
    """Return a text as one line: what would break it becomes a space, and what is too long is cut off."""
    if not text.isprintable():
        text = _BREAKS.sub(" ", text).strip()
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _line(value: object) -> object:
    return one_line(value) if isinstance(value, str) else value


def _form(pattern: str, limit: int, why: str, *, may_be_empty: bool = True) -> StringConstraints:
    """The form of a text; the empty text is one too, where it means that nothing is known."""
    whole = f"^(?:{pattern}){'?' if may_be_empty else ''}$"
    _WHY[whole] = why
    return StringConstraints(pattern=whole, max_length=limit)


# Text for people, such as a line of a log or the name of a product. It is folded to one line instead of left out.
Line = Annotated[str, BeforeValidator(_line), Field(max_length=_LINE)]
# A name in a file system has any character but NUL; one with a line break in it is left out.
Path = Annotated[str, _form(rf"/[^{_BAD}]*", 4096, "not an absolute path")]
# A path that may be started: no quotes, braces or other characters that a shell or a template reads.
Program = Annotated[str, _form(r"/[\w./+~@:, -]*", 4096, "not the path of a program")]
# Seconds since 1970 that a host may mean. Beyond, the standard library knows no date and raises what is no ValueError.
LATEST = 1e11
Moment = Annotated[float, Field(gt=0, lt=LATEST)]
# Where a link leads, a file inside a folder: any path.
AnyPath = Annotated[str, _form(rf"[^{_BAD}]+", 4096, "not a path")]
Uri = Annotated[str, _form(rf"[^{_BAD}]+", 2048, "not a URI")]
# dpkg, conda (epoch 1!2.0), PEP 440 (1.0+cu124), kernel modules, docker
Version = Annotated[str, _form(r"[A-Za-z0-9][A-Za-z0-9.+~:!_-]*", 128, "not a version")]
# Debian policy 5.6.12; dpkg has none of a package that is on hold and was never installed.
DebianVersion = Annotated[str, _form(r"(?:[0-9]+:)?[0-9][A-Za-z0-9.+~:-]*", 128, "not a version of dpkg")]
# As dpkg accepts it (pkg_name_is_illegal), with its architecture where it has one.
PackageName = Annotated[
    str, _form(r"[A-Za-z0-9][A-Za-z0-9.+_-]*(?::[a-z0-9-]+)?", 128, "not a package name", may_be_empty=False)
]
# Names of what programs call by one word: modules, drivers, runtimes, sonames, Python and conda packages, keys.
Name = Annotated[str, _form(r"[\w.+@:/~=*-]+", 256, "not a name")]
# What a card is known by is never empty: the catalog is asked for the one, and cards are distinguished by the other.
PciDevice = Annotated[str, _form(r"[0-9a-fA-F]{4}", 4, "not a PCI device id", may_be_empty=False)]
PciSubsystem = Annotated[str, _form(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{4}", 9, "not a PCI subsystem id", may_be_empty=False)]
PciClass = Annotated[str, _form(r"[0-9a-fA-F]{4}(?:[0-9a-fA-F]{2})?", 6, "not a PCI class", may_be_empty=False)]
_SLOT = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
PciSlot = Annotated[str, _form(_SLOT, 16, "not a PCI address", may_be_empty=False)]
KernelRelease = Annotated[str, _form(r"[A-Za-z0-9][A-Za-z0-9.+~:_@-]*", 64, "not a kernel release")]
# useradd's names, and those of directories: DOMAIN\first last, user@example.com
UserName = Annotated[str, _form(r"[\w.@$-](?:[\w.@\\+$' -]*[\w.@$-])?", 256, "not a user name")]
UnitName = Annotated[str, _form(r"[A-Za-z0-9:_.\\@-]+", 256, "not a unit name")]
Arch = Annotated[str, _form(r"[a-z0-9_-]+", 32, "not an architecture")]
Hash = Annotated[str, _form(r"[0-9A-Fa-f-]+", 128, "not a hash")]
Release = Annotated[str, _form(r"[0-9A-Za-z][0-9A-Za-z._-]*", 32, "not a release")]
DpkgStatus = Annotated[str, _form(r"[a-zA-Z]{2}[ a-zA-Z]?", 3, "not a state of dpkg", may_be_empty=False)]
Time = Annotated[str, _form(r"[0-9A-Za-z :.,+-]+", 64, "not a time")]
Number = Annotated[int, Field(ge=-(2**63), lt=2**63)]


def _data(value: object, depth: int = 0, lines: bool = False) -> object:
    """Check JSON that has no schema here: bounded depth, numbers that can be reckoned with, texts of one line.

    lines: texts keep their line breaks, such as the file of an environment that is compared with another one.
    """
    if depth > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} levels deep")
    if isinstance(value, str):
        return "\n".join(map(one_line, value[:_LONG].split("\n"))) if lines else one_line(value, _LONG)
    if isinstance(value, dict):
        return {one_line(str(key)): _data(item, depth + 1, lines) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_data(item, depth + 1, lines) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 2**63:
        return value
    raise ValueError("a number out of range" if isinstance(value, int | float) else "not JSON")


Data = Annotated[object, AfterValidator(_data)]
# The same, for what is compared with a file of several lines.
DataOfLines = Annotated[object, AfterValidator(lambda value: _data(value, lines=True))]


def answered(answer: object, **kinds: type) -> dict[str, Any]:
    """Return an answer that has no model: a mapping with these keys, of these kinds, and all its texts of one line each.

    Raises HostFailedError ``host.bad_answer``.
    """
    if not isinstance(answer, dict):
        raise bad_answer("it is not a mapping")
    for key, kind in kinds.items():
        if not isinstance(answer.get(key), kind):
            raise bad_answer(f"its {key} is not a {kind.__name__}")
    try:
        return {one_line(str(key)): _data(value) for key, value in answer.items()}
    except ValueError as error:
        raise bad_answer(str(error)) from error


class Answer(BaseModel):
    """Base of everything that a host says."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    @classmethod
    def of_host(cls, answer: object) -> Self:
        """Return an answer of a host as this model, without what is not as the model says.

        A field that may be absent becomes None or empty, an item leaves its list or mapping, and an object goes that lacks
        what it must have. ``unreadable``, where the model has it, names each place with the reason and never the value.
        Raises HostFailedError ``host.bad_answer`` where nothing is left.
        """
        try:
            return cls.model_validate(answer)
        except ValidationError as error:
            left, refused = copy.deepcopy(answer), list[str]()
            for _ in range(_DEEPEST):
                _leave_out(cls, left, error, refused)
                try:
                    found = cls.model_validate(left)
                except ValidationError as again:
                    error = again
                else:
                    return found._with(refused)
            raise bad_answer("it is of no known form") from error

    def _with(self, refused: list[str]) -> Self:
        if "unreadable" not in type(self).model_fields:
            return self
        more = (
            [f"{len(refused) - _MOST_REPORTED} more facts are not as they must be"]
            if len(refused) > _MOST_REPORTED
            else []
        )
        known = getattr(self, "unreadable")  # noqa: B009 - not every model has it
        return self.model_copy(update={"unreadable": [*known, *refused[:_MOST_REPORTED], *more]})


def bad_answer(why: str) -> HostFailedError:
    """The error of a host whose answer is of no use."""
    return HostFailedError(
        "host.bad_answer",
        f"the host's answer cannot be used: {why}",
        hint="check its python3, and whether somebody changed it: the host may be compromised",
    )


def _leave_out(model: type[BaseModel], answer: Any, error: ValidationError, refused: list[str]) -> None:
    """Take out of an answer what pydantic complains of; refused gets the places."""
    if error.error_count() > _MOST_WRONG:
        raise bad_answer(f"more than {_MOST_WRONG} facts are not as they must be")
    out: dict[tuple[int | str, ...], object] = {}
    for problem in error.errors(include_url=False, include_input=False):
        words = f"{'.'.join(_shown(part) for part in problem['loc'])}: {_why(problem)}"
        refused += [words] if words not in refused[-_MOST_REPORTED:] else []
        place, instead = _target(model, answer, tuple(_inside(answer, problem["loc"])))
        if not place:
            raise bad_answer("it is not a mapping of facts")
        out[place] = instead
    # From the end, so that the numbers of a list still hold.
    for place in reversed(out):
        if not any(place[:length] in out for length in range(1, len(place))):
            _replace(answer, place, out[place])


def _inside(answer: Any, place: tuple[int | str, ...]) -> Iterator[int | str]:
    """The part of pydantic's place that is in the answer: it adds words of its own."""
    for part in place:
        known = range(len(answer)) if isinstance(answer, list) else answer if isinstance(answer, dict) else ()
        if part not in known:
            return
        answer = answer[part]
        yield part


def _target(model: type[BaseModel], answer: Any, place: tuple[int | str, ...]) -> tuple[tuple[int | str, ...], object]:
    """What has to go for a value, and what comes instead of it; an object goes with a value that it must have."""
    while place:
        field = _field(model, place)
        if field is None:
            break
        if not field.is_required():
            optional = type(None) in get_args(field.annotation)
            instead = None if optional else "" if field.annotation is str else _GONE
            if instead != "" or _at(answer, place) != "":
                return place, instead
        place = place[:-1]
    return place, _GONE


def _field(model: Any, place: tuple[int | str, ...]) -> FieldInfo | None:
    """The model's field at a place; None for an item of a list or mapping."""
    kind: Any = model
    field: FieldInfo | None = None
    for part in place:
        if get_origin(kind) in (Union, UnionType):
            kind = next(one for one in get_args(kind) if one is not type(None))
        field = None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = next((f for name, f in kind.model_fields.items() if part in (name, f.alias)), None)
            kind = field.annotation if field else None
        else:
            kind = get_args(kind)[-1] if get_args(kind) else None
    return field


def _at(answer: Any, place: tuple[int | str, ...]) -> Any:
    for part in place:
        answer = answer[part]
    return answer


def _replace(answer: Any, place: tuple[int | str, ...], instead: object) -> None:
    answer = _at(answer, place[:-1])
    if instead is _GONE:
        del answer[place[-1]]
    else:
        answer[place[-1]] = instead


def _shown(part: int | str) -> str:
    """A part of a place; names that a host gave are shown where they are plain."""
    text = str(part)
    return text if re.fullmatch(r"[A-Za-z0-9_./+:~-]{1,100}", text) else "?"


def _why(problem: Any) -> str:
    kind, context = problem["type"], problem.get("ctx") or {}
    if kind == "string_pattern_mismatch":
        return _WHY.get(context.get("pattern", ""), "not as it must be")
    if kind == "string_too_long":
        return f"longer than {context['max_length']} characters"
    if kind == "value_error":
        return str(context.get("error", "not as it must be"))
    for begin, why in _KINDS.items():
        if kind.startswith(begin):
            return why
    return "not as it must be"


_KINDS = {
    "string_unicode": "not valid Unicode",
    "string": "not a text",
    "int": "not a whole number",
    "float": "not a number",
    "finite": "not a number",
    "less": "out of range",
    "greater": "out of range",
    "bool": "not true or false",
    "list": "not a list",
    "tuple": "not a list",
    "dict": "not a mapping",
    "model": "not a mapping",
    "missing": "missing",
    "literal": "not one of the known words",
}


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sort key of names as people count: gpu2 before gpu10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"([0-9]+)", text) if part]


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: 1 host, 2 hosts."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(count: int) -> str:
    """Return bytes as people say them: 310 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            value = count / factor
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{count} B"
