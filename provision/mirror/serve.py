"""Hand a mirror out over http: read-only, files alone. For a lab or an evening; a real web server does it for a fleet."""

from __future__ import annotations

import functools
import http.server
from collections.abc import Callable
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any

from provision.errors import UsageError


class _Files(http.server.SimpleHTTPRequestHandler):
    """Files below a folder; folders only where they have an index.html."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def list_directory(self, path: Any) -> BytesIO | None:
        self.send_error(HTTPStatus.NOT_FOUND, "no listings here")
        return None

    def log_message(self, format: str, *args: Any) -> None:
        return


def address(text: str) -> tuple[str, int]:
    """``[ADDR]:PORT`` or PORT as (address, port); UsageError for anything else. Without ADDR: every address of this machine."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 <= int(port) < 65536:
        raise UsageError(
            "usage.address", f"{text!r} is no address and port", hint="write --serve 10.0.0.1:8080, or --serve :8080"
        )
    return host.strip("[]"), int(port)


def server(folder: Path, place: tuple[str, int]) -> http.server.ThreadingHTTPServer:
    """Return a server for a mirror that listens already. Raises UsageError where it cannot."""
    return listen(place, functools.partial(_Files, directory=str(folder)))


def listen(place: tuple[str, int], handler: Callable[..., Any]) -> http.server.ThreadingHTTPServer:
    """Return a server that listens already. Raises UsageError where it cannot."""
    try:
        return http.server.ThreadingHTTPServer(place, handler)
    except OSError as error:
        raise UsageError(
            "usage.address",
            f"cannot listen on {place[0] or '*'}:{place[1]}",
            because=[str(error)],
            hint="another port: ports below 1024 are root's",
        ) from error
