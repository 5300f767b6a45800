# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Regular expressions that are compiled when they are first used.

The probe is loaded anew on every host at every look; half of its time went into compiling patterns, most of them for
files that a host does not have. Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import re


class Lazy(object):
    """Stands for ``re.compile(pattern, flags)``: every method of a compiled pattern can be called."""

    def __init__(self, pattern, flags):
        self._made_of = (pattern, flags)

    def __getattr__(self, name):
        # Asked once a name: what is found is kept in the object, where it is found first.
        compiled = self.__dict__.get("_compiled")
        if compiled is None:
            compiled = self.__dict__["_compiled"] = re.compile(*self._made_of)
        value = self.__dict__[name] = getattr(compiled, name)
        return value


def compile(pattern, flags=0):  # noqa: A001 - the name that readers know from re
    """Return a stand-in for the compiled pattern; an invalid pattern raises re.error at its first use."""
    return Lazy(pattern, flags)
