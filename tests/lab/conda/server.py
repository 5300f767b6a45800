"""A web server on a loopback port that goes on with half a file, and fails when it is told to; and a proxy."""

from __future__ import annotations

import http.server
import os
import re
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

__all__ = ["Proxy", "Server"]


class _Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: Any) -> None:
        return


class _Handler(_Quiet):
    def do_GET(self) -> None:
        owner: Server = self.server.owner
        owner.requests.append((self.path, self.headers.get("Range", "")))
        plan = owner.faults.pop(0) if owner.faults else None
        if isinstance(plan, int) and plan < 0:
            self.send_error(-plan)
            return
        path = Path(owner.folder, urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).lstrip("/"))
        if path.is_dir():
            path = path / "index.html"
        if not path.is_file():
            self.send_error(404)
            return
        content, start = path.read_bytes(), 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        tag = f'"{hash(content) & 0xFFFFFFFF:x}"'
        if asked and owner.ranges and self.headers.get("If-Range", tag) == tag:
            start = int(asked.group(1))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", tag)
        kind = "text/html" if path.suffix == ".html" else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.end_headers()
        rest = content[start:]
        self.wfile.write(rest[:plan] if plan else rest)
        if plan:
            # Cut off in the middle, as a broken line is.
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True


class _Threads(http.server.ThreadingHTTPServer):
    daemon_threads = True
    owner: Any


class Server:
    """Serves a folder. faults: for the next requests in turn, None (answer), N (cut after N bytes), -503 (that error)."""

    handler: type[http.server.BaseHTTPRequestHandler] = _Handler

    def __init__(self, folder: str | os.PathLike[str] = "/", address: str = "127.0.0.1", port: int = 0) -> None:
        self.folder = os.fspath(folder)
        self.requests: list[tuple[str, str]] = []
        self.faults: list[int | None] = []
        self.ranges = True
        self._server = _Threads((address, port), self.handler)
        self._server.owner = self
        self.url = f"http://{address}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()


class _ProxyHandler(_Quiet):
    def do_GET(self) -> None:
        owner: Proxy = self.server.owner
        owner.requests.append((self.path, self.headers.get("Proxy-Authorization", "")))
        if owner.password and not self.headers.get("Proxy-Authorization"):
            self.send_error(407)
            return
        parts = urllib.parse.urlsplit(self.path)
        # Names that only the proxy knows: a host behind it has no name service of its own.
        target = owner.names.get(parts.hostname or "", f"{parts.scheme}://{parts.netloc}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = target + parts.path + (f"?{parts.query}" if parts.query else "")
        try:
            with opener.open(url, timeout=10) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            self.send_error(error.code)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", answer.headers.get("Content-Type", "application/octet-stream"))
        self.end_headers()
        self.wfile.write(content)


class Proxy(Server):
    """A proxy. names: {host: URL of the server behind that name}; password: True asks for a user (407); address: its own."""

    handler = _ProxyHandler

    def __init__(self, names: dict[str, str] | None = None, password: bool = False, address: str = "127.0.0.1") -> None:
        self.names, self.password = names or {}, password
        super().__init__(address=address)
