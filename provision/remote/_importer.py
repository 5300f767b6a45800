# mypy: ignore-errors
# ruff: noqa: UP004, UP031
# Runs on the host, before _server.py or the rescue at its console: imports module_utils from sources in memory.
# Standard library only, Python 3.8 and later.

import importlib.machinery

PACKAGE = "ansible_collections.gpu.provision.plugins.module_utils"
# One of both has a module: its text, or its code where the host's Python takes the controller's bytecode.
SOURCES = {}
CODE = {}


class Finder:
    """Imports module_utils from what was sent."""

    def find_spec(self, name, path=None, target=None):
        short = name[len(PACKAGE) + 1 :] if name.startswith(PACKAGE + ".") else ""
        if short in SOURCES or short in CODE:
            return importlib.machinery.ModuleSpec(name, self, origin=name)
        sent = list(SOURCES) + list(CODE)
        if (PACKAGE + ".").startswith(name + ".") or (short and any(s.startswith(short + ".") for s in sent)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        short = module.__name__[len(PACKAGE) + 1 :]
        if short not in SOURCES and short not in CODE:
            module.__path__ = []
            return
        code = CODE.get(short) or compile(SOURCES[short], "<%s.py>" % short, "exec")
        exec(code, module.__dict__)  # noqa: S102

    def get_source(self, name):
        """Text of a module, as importlib's loaders give it: what runs checks in processes of their own sends it on."""
        return SOURCES[name[len(PACKAGE) + 1 :]]
