# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Bring one file into a folder of ours, checked: it continues where it stopped, or starts over.

Proxies and certificates come from the environment (http_proxy, https_proxy, no_proxy, SSL_CERT_FILE), as urllib reads
it. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import io
import math
import os
import re
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request

from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from ansible_collections.gpu.provision.plugins.module_utils.conda.common import CondaError
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, own_files, own_state, proxies, redact

CHUNK = 1 << 20
# seconds without a byte
_TIMEOUT = 60
_ATTEMPTS = 5
# seconds after the first try, doubled after each
_PAUSE = 1
_NETWORK = (errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH)
# What only a line raises; another OSError may be the disk's.
_LINE = (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, ConnectionError, TimeoutError, socket.timeout)
_LOGIN = (
    "the proxy requires a user and a password: allow this host by its address, or use a local proxy that logs in "
    "(gpu_proxy_https)"
)
_AGAIN = (408, 429, 500, 502, 503, 504)


def fetch(source, folder, name, sha256):
    """Have the file ``name`` in folder with this checksum, and return {"path", "sha256", "size"}.

    source: URL (https, http, file) or a path on this host; sha256: 64 hex digits, or empty for a file whose content
    moves (it is then fetched anew each time). folder must be one that only we write to: what is checked here is run
    later. A wrong checksum leaves nothing behind. Raises CondaError.
    """
    target = os.path.join(folder, name)
    try:
        os.makedirs(folder, 0o755, exist_ok=True)
        # One download at a time: two runs would write into one file.
        with own_state.locked(folder + "/.lock", math.inf, None):
            digest = _fetch(source, target, sha256)
            return {"path": target, "sha256": digest, "size": os.path.getsize(target)}
    except own_files.FileError as error:
        raise CondaError("conda.not_writable", error.message, [], error.hint) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _forget(target + ".part")
            raise conda_common.disk_error(
                folder, "[Errno 122]" if error.errno == errno.EDQUOT else "", "nothing was left there"
            ) from None
        raise CondaError(
            "conda.not_writable",
            "cannot write to %s" % (error.filename or folder),
            [os.strerror(error.errno or 0)],
            "gpu-provision uses that folder: check its file system and permissions",
        ) from None


def _fetch(source, target, sha256):
    """Have the file at target; returns its checksum."""
    if sha256 and os.path.isfile(target):
        if checksum(target) == sha256:
            return sha256
        os.unlink(target)
    path, part = _local(source), target + ".part"
    resumed = _copy(path, part) if path else _download(source, part)
    got = checksum(part)
    if resumed and sha256 not in ("", got):
        # The file may have changed on the server between the two halves.
        _forget(part)
        _download(source, part)
        got = checksum(part)
    if sha256 not in ("", got):
        because = _mismatch(part, sha256, got)
        _forget(part)
        raise CondaError(
            "conda.checksum",
            "%s is not the file that was expected" % (path or source),
            because,
            "check the address and the checksum (miniconda_installer_url, miniconda_installer_sha256); a mirror "
            "that is being filled has the right file later",
        )
    os.chmod(part, 0o644)
    own_files.rename(part, target)
    _forget(part)
    return got


def checksum(path):
    """sha256 of a file, as hex digits."""
    found = hashlib.sha256()
    with host_tree.open_file(path) as file:
        for block in iter(lambda: file.read(CHUNK), b""):
            found.update(block)
    return found.hexdigest()


def _local(source):
    """Path of a source that lies on this host, or None for one that must be fetched."""
    if source.startswith("file://"):
        return urllib.request.url2pathname(urllib.parse.urlsplit(source).path)
    return source if source.startswith("/") else None


def _copy(path, part):
    # Copied, not run in place: another user could change the file between the check and the run.
    try:
        with host_tree.open_file(path) as old, io.open(part, "wb") as new:
            shutil.copyfileobj(old, new, CHUNK)
    except OSError as error:
        if error.filename == path or error.errno == errno.EISDIR:
            raise CondaError(
                "conda.no_installer",
                "cannot read %s" % path,
                [error.strerror],
                "miniconda_installer_file is a path on the host itself",
            ) from None
        raise
    return False


def _download(url, part):
    """Fetch url to part, in as many tries as it takes; returns True when the last one went on where another had stopped."""
    if not re.match("https?://", url):
        raise CondaError(
            "conda.url", "cannot fetch %s" % url, ["it is not https, http or file"], "give a URL of one of these"
        )
    said, refused = [], None
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE * 2 ** (attempt - 1))
        try:
            return _try(url, part)
        except urllib.error.HTTPError as error:
            said.append(proxies.why(error))
            if error.code not in _AGAIN:
                said, refused = said[-1:], error.code
                break
        except (OSError, http.client.HTTPException) as error:
            if not isinstance(error, _LINE) and error.errno not in _NETWORK:
                # the disk's
                raise
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            said.append(_reason(reason))
            if not _passing(reason):
                break
    because = [*_tries(said), "conda installer: " + proxies.way(url)]
    raise CondaError("conda.download", "cannot fetch %s" % url, because, _download_hint(said, refused))


def _try(url, part):
    """One try, which goes on after the bytes that are there: returns True when the server agrees to that."""
    known = _validator(part, url)
    if known is None:
        # of another address, or nobody knows of what
        _forget(part)
    have = os.path.getsize(part) if os.path.isfile(part) else 0
    request = urllib.request.Request(url)  # noqa: S310 - http checked by the caller
    request.add_header("User-Agent", "gpu-provision")
    request.add_header("Accept-Encoding", "identity")
    if have:
        request.add_header("Range", "bytes=%d-" % have)
        if known:
            request.add_header("If-Range", known)
    try:
        # Not urlopen: it keeps the proxies of its first call.
        response = urllib.request.build_opener().open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        if error.headers.get("Content-Range", "").endswith("/%d" % have):
            # all of it is there; the checksum tells
            return True
        _forget(part)
        return _try(url, part)
    with response:
        going_on = bool(have) and response.status == 206
        rest = int(response.headers.get("Content-Length") or 0)
        if rest > conda_common.free_bytes(part):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), part)
        _remember(part, url, response.headers)
        with io.open(part, "r+b" if going_on else "wb") as file:
            start = file.seek(have if going_on else 0)
            shutil.copyfileobj(response, file, CHUNK)
            missing = start + rest - file.tell()
        if rest and missing > 0:
            raise http.client.IncompleteRead(b"", missing)
    return going_on


def _validator(part, url):
    """What identifies the content of an earlier run's part: ETag or date (may be empty); None: not of this address."""
    known = own_state.take(part + ".json", {"url": str, "validator": (None, str)}, []) or {}
    return known.get("validator") or "" if known.get("url") == redact.text(url) else None


def _remember(part, url, headers):
    tag = headers.get("ETag", "")
    # A weak tag may not be used to go on (RFC 9110, 13.1.5).
    validator = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")
    own_state.write(part + ".json", {"url": redact.text(url), "validator": validator})


def _forget(part):
    for path in (part, part + ".json"):
        if os.path.lexists(path):
            os.unlink(path)


def _mismatch(part, wanted, got):
    with host_tree.open_file(part) as file:
        start = file.read(512).lstrip().lower()
    because = ["sha256 wanted: " + wanted, "sha256 of %d bytes: %s" % (os.path.getsize(part), got)]
    if start.startswith((b"<!doctype", b"<html")):
        because.append("it is a web page: a proxy's login or a server's error page")
    return because


def _download_hint(said, refused):
    text = " ".join(said)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "the host does not trust that certificate: install its authority with update-ca-certificates"
    if "407" in text:
        return _LOGIN
    if refused in (401, 403):
        return "the server requires a login or rejects this host: set a mirror with miniconda_installer_url"
    if refused:
        return "check miniconda_installer_url and the version"
    if "Name or service not known" in text or "name resolution" in text:
        return "the host cannot resolve that name: it may need a proxy (gpu_proxy_https), or a mirror (miniconda_installer_url)"
    return (
        "run again: the download resumes; a host without internet needs a proxy (gpu_proxy_https), a mirror or a "
        "local file"
    )


def _reason(reason):
    if isinstance(reason, socket.timeout):
        return "no data for %d seconds" % _TIMEOUT
    if isinstance(reason, http.client.IncompleteRead):
        return "the connection closed %d bytes before the end" % reason.expected
    return proxies.why(reason)


def _passing(reason):
    """True for a failure that may be over at the next try."""
    if isinstance(reason, ssl.SSLError):
        return False
    return not (isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME)


def _tries(said):
    """One line for equal messages of several tries."""
    if len(said) > 1 and len(set(said)) == 1:
        return ["%s (%d times)" % (said[0], len(said))]
    return list(said)
