"""What is sent to a host: the server and the module_utils that a call needs, read once and kept in memory."""

from __future__ import annotations

import importlib.util
import json
import marshal
import re
import zlib
from pathlib import Path
from types import CodeType
from typing import Any

from provision.collection import MODULE_UTILS
from provision.remote.once import once

_PACKAGE = "ansible_collections.gpu.provision.plugins.module_utils"
_IMPORT = re.compile(
    rf"^[ \t]*from {re.escape(_PACKAGE)}(?:\.(?P<base>[\w.]+))? import (?:\((?P<many>[^)]*)\)|(?P<names>[^\n]*))",
    re.MULTILINE,
)


@once
def source(module: str) -> str:
    """Return the text of one module of plugins/module_utils, named with dots: ``apt.query``."""
    return (MODULE_UTILS / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


@once
def needed(module: str) -> tuple[str, ...]:
    """Return module and all module_utils that it imports, directly or not; the server itself needs one, redact."""
    found: dict[str, None] = {}
    todo = [module, "lib.redact"]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found[name] = None
        for match in _IMPORT.finditer(source(name)):
            listed = re.sub(r"#[^\n]*", "", match["many"] or match["names"])
            for part in filter(None, (part.split(" as ")[0].strip() for part in listed.split(","))):
                full = f"{match['base']}.{part}" if match["base"] else part
                todo.append(full if (MODULE_UTILS / f"{full.replace('.', '/')}.py").is_file() else match["base"])
    return tuple(found)


@once
def program(name: str) -> str:
    """Return the text of a program of this folder that hosts run: ``_importer`` comes before ``_server``."""
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")


@once
def server(token: str) -> bytes:
    """Return the frame that starts the server on the host."""
    return _frame(f"TOKEN = {token!r}\n{program('_importer')}\n{program('_server')}".encode())


@once
def _first_request(module: str, args: str, timeout: int) -> bytes:
    return _encode(module, json.loads(args), timeout, needed(module))


def request(module: str, args: dict[str, Any], timeout: float, known: set[str]) -> bytes:
    """Return the frame of one call; sources already known to the host are not sent again (known is updated)."""
    sources = tuple(name for name in needed(module) if name not in known)
    if not known:
        # The same for every host of a fleet: compressed once.
        known.update(sources)
        return _first_request(module, json.dumps(args, sort_keys=True), int(timeout))
    known.update(sources)
    return _encode(module, args, int(timeout), sources)


@once
def _code(module: str) -> CodeType:
    return compile(source(module), f"<{module}.py>", "exec", dont_inherit=True)


def _encode(module: str, args: dict[str, Any], timeout: int, sources: tuple[str, ...]) -> bytes:
    """Return a call: the sources that are new to the host, and the same compiled.

    Bytecode is good for one minor release of Python, named by its magic number; a host with that release is spared
    the compiler, any other one takes the sources. Both are sent, since to ask first would be a round trip.
    """
    body = {
        "module": module,
        "args": args,
        "timeout": timeout,
        "sources": {s: source(s) for s in sources},
        "code": importlib.util.MAGIC_NUMBER.hex() if sources else None,
    }
    frame = _frame(json.dumps(body).encode())
    return frame + _frame(marshal.dumps({s: _code(s) for s in sources})) if sources else frame


def _frame(data: bytes) -> bytes:
    packed = zlib.compress(data, 6)
    return b"%d\n%b" % (len(packed), packed)
