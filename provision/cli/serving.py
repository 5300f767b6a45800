"""The page of report while it is looked at: a server on this machine, and what keeps the page current."""

from __future__ import annotations

import contextlib
import http.server
import ipaddress
import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from provision.cli.base import again
from provision.commands import report as command
from provision.errors import ProvisionError
from provision.mirror.serve import address, listen
from provision.render.report import html

if TYPE_CHECKING:
    from provision.cli.base import Settings
    from provision.commands.report import ReportDocument
    from provision.render import Renderer
    from provision.runs.fleet import Fleet

# How often the runs of this machine are looked at; and how often hosts are read, while a run goes on and otherwise.
_LOOK_SECONDS, _AT_WORK_SECONDS, _IDLE_SECONDS = 2.0, 30.0, 300.0


class Page(http.server.BaseHTTPRequestHandler):
    """Answers ``GET /`` with the page, unless the browser has it. server.page: (tag, page)."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "gpu-provision", ""
    timeout = 60

    def handle(self) -> None:
        # a browser that goes away in the middle of a page is none of our errors
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle()

    def do_GET(self) -> None:
        tag, body = self.server.page  # type: ignore[attr-defined]
        if not is_address(self.headers.get("Host", "")):
            # The name of another site leads here: its scripts must not read the page (DNS rebinding).
            self.send_error(403, "ask by address, or by this machine's own name")
        elif self.path != "/":
            self.send_error(404)
        elif self.headers.get("If-None-Match") == tag:
            self.send_response(304)
            self.end_headers()
        else:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


def is_address(host: str) -> bool:
    """True for a Host that no other site can have: an address, localhost, or this machine's name."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() in ("localhost", socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Live:
    """The page of a fleet, kept current: ``look`` takes up what has changed and puts it onto the server."""

    def __init__(
        self, fleet: Fleet, settings: Settings, server: http.server.HTTPServer, document: ReportDocument
    ) -> None:
        self.fleet, self.settings, self.server, self.document = fleet, settings, server, document
        self._number, self._read_at = 0, time.monotonic()
        # an end of a run that falls into a read needs another one
        self._due, self._reading = False, threading.Thread()
        # what the thread has read
        self._fresh: ReportDocument | None = None
        self._put()

    def look(self) -> None:
        """Look at the runs of this machine; have the fleet read again when it is time to, or a run has ended."""
        fresh, self._fresh = self._fresh, None
        before = (self.document.runs, self.document.at_work)
        self.document = fresh or self.document
        command.add_runs(self.document, self.settings.run_dir)
        at_work = self.document.at_work
        if fresh or (self.document.runs, at_work) != before:
            self._put()
        wait = _AT_WORK_SECONDS if at_work else _IDLE_SECONDS
        self._due |= time.monotonic() - self._read_at > wait or bool(before[1] and not at_work)
        if self._due and not self._reading.is_alive():
            self._due, self._read_at = False, time.monotonic()
            self._reading = threading.Thread(target=self._read, daemon=True)
            self._reading.start()

    def _read(self) -> None:
        try:
            self._fresh = read(self.fleet, self.settings)
        except ProvisionError as error:
            # Such as a lock of versions that somebody edits at this moment: what was read before stays.
            errors = [issue for issue in self.document.errors if issue.host]
            self._fresh = self.document.model_copy(update={"errors": [*errors, error.issue]})

    def _put(self) -> None:
        self._number += 1
        self.server.page = (str(self._number), html(self.document, str(self._number)).encode())  # type: ignore[attr-defined]


def serve_page(fleet: Fleet, settings: Settings, renderer: Renderer, where: str) -> None:
    """Serve the page until Ctrl-C. Raises UsageError for an address that cannot be had."""
    host, port = address(where if ":" in where else f"127.0.0.1:{where}")
    with listen((host or "127.0.0.1", port), Page) as server:
        live = Live(fleet, settings, server, read(fleet, settings, renderer))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        name, port = server.server_address[:2]
        renderer.say(f"serving the page on http://{name!s}:{port}/ until Ctrl-C")
        while True:
            time.sleep(_LOOK_SECONDS)
            live.look()


def read(fleet: Fleet, settings: Settings, renderer: Renderer | None = None) -> ReportDocument:
    """Read the fleet; with a renderer, show how far that is."""
    # A page is passed on: what was typed after -e stays out of it.
    words = again(replace(settings, extra_vars=[]), limit=False)
    return command.run(fleet, settings.run_dir, renderer.progress() if renderer else None, words)
