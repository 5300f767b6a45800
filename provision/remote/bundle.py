"""What is sent to a host: the server and the module_utils that a call needs, read once and kept in memory."""

from __future__ import annotations

import json
import marshal
import re
import zlib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from provision.collection import MODULE_UTILS
from provision.remote.once import once

_PACKAGE = "ansible_collections.gpu.provision.plugins.module_utils"
_SENDS_ON = "prove.job"
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
def server(token: str, takes_code: bool) -> bytes:
    """Return what starts the server on the host: its text, or a line that runs the code which follows (see session.py)."""
    text = f"TOKEN = {token!r}\n{program('_importer')}\n{program('_server')}"
    if not takes_code:
        return _frame(text.encode())
    code = marshal.dumps(compile(text, "<server>", "exec"))
    return _frame(b"import marshal; exec(marshal.loads(zlib.decompress(b.read(int(b.readline())))))") + _frame(code)


def request(module: str, args: dict[str, Any], timeout: float, known: set[tuple[str, str]], takes_code: bool) -> bytes:
    """Return the frame of one call, with what the host needs for it and was not sent before (known is updated).

    takes_code: the host's Python runs our bytecode, which spares it the compiler and a third of the bytes.
    """
    wanted = needed(module)
    # What runs in processes of its own may run in any Python: it is sent on as text.
    texts = () if takes_code and _SENDS_ON not in wanted else wanted
    sent = [*(("text", name) for name in texts), *(("code", name) for name in wanted if takes_code)]
    new = tuple(one for one in sent if one not in known)
    first = not known
    known.update(new)
    # The first is the same for every host of a fleet: compressed once.
    return (_encode if first else _encode.fresh)(module, json.dumps(args, sort_keys=True), int(timeout), new)


@once
def _encode(module: str, args: str, timeout: int, new: tuple[tuple[str, str], ...]) -> bytes:
    texts = {name: source(name) for kind, name in new if kind == "text"}
    codes = {name: _code(name) for kind, name in new if kind == "code"}
    body = {"module": module, "args": json.loads(args), "timeout": timeout, "sources": texts, "code": bool(codes)}
    return _frame(json.dumps(body).encode()) + (_frame(marshal.dumps(codes)) if codes else b"")


@once
def _code(module: str) -> CodeType:
    """Return the code of a module: the file that Python keeps of it, where it does, else compiled."""
    path = str(MODULE_UTILS / f"{module.replace('.', '/')}.py")
    code = SourceFileLoader(module, path).get_code(module)
    if code is None:
        raise ImportError(module)
    return _named(code, f"<{module}.py>")


def _named(code: CodeType, name: str) -> CodeType:
    """Return code with a name of its file that says nothing of this machine."""
    inner = tuple(_named(one, name) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=name, co_consts=inner)


def _frame(data: bytes) -> bytes:
    packed = zlib.compress(data, 6)
    return b"%d\n%b" % (len(packed), packed)
