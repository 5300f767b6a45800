# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""How a job ended: what the host sends, and the controller judges."""

from __future__ import annotations


class Outcome(object):
    """How a job ended.

    status: "ok", "error" (it raised), "timeout", "memory", "killed" (by a signal), "garbage" (ended without an answer)
    or "unstartable". result: what the job returned, when ok. message: one line, None when ok. at: what it said last
    about where it is. output: the end of what was printed. seconds: how long it ran. code, name: of a CUDA error.
    """

    def __init__(self, status, seconds=0.0, result=None, message=None, at=None, output="", code=None, name=None):
        self.status, self.seconds, self.result, self.message = status, seconds, result, message
        self.at, self.output, self.code, self.name = at, output, code, name

    @property
    def ok(self):
        return self.status == "ok"

    def plain(self):
        """As data: what the constructor takes. Of the output what is evidence."""
        names = ("status", "seconds", "result", "message", "at", "code", "name")
        return dict({name: getattr(self, name) for name in names}, output="\n".join(self.lines()))

    def lines(self, most=6):
        """The last lines that were printed, for evidence."""
        return [line.rstrip() for line in self.output.splitlines() if line.strip()][-most:]
