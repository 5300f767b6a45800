# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Where an index has the wheels that are installed on a host: the exact files, with their checksums.

Source of the format: the simple repository API, https://packaging.python.org/en/latest/specifications/simple-repository-api/.
Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import html.parser
import itertools
import re
import urllib.error
import urllib.parse
import urllib.request

from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.lib import proxies

_TIMEOUT = 60
# bytes of an index page: the largest projects have some MB
_LIMIT = 64 << 20


def main(args):
    """Return {"files": [{"name", "version", "file", "url", "sha256"}], "problems": [texts]}.

    args: wheels: [{"name" (normalised), "version", "tags"}]; indexes: addresses of simple indexes, the first that has a file wins;
    environment: the proxy.
    """
    found, problems, pages = [], [], {}
    with apt_query.proxy(args.get("environment")):
        for wheel in args["wheels"]:
            row, tried = None, []
            for index in args["indexes"]:
                page = "%s/%s/" % (index.rstrip("/"), wheel["name"])
                if page not in pages:
                    pages[page] = _links(page, tried)
                row = next(
                    (
                        dict(one, name=wheel["name"], version=wheel["version"])
                        for one in pages[page]
                        if fits(one["file"], wheel)
                    ),
                    None,
                )
                if row:
                    break
            if row is None:
                said = "; ".join(tried) or "none of %d indexes has it" % len(args["indexes"])
                problems.append("%s %s: %s" % (wheel["name"], wheel["version"], said))
            elif not row["sha256"]:
                problems.append("%s: the index tells no sha256 of it" % row["file"])
            else:
                found.append(row)
    return {"files": found, "problems": problems}


def fits(file, wheel):
    """True when a file is the wheel that was installed: same project, version and one of its tags."""
    if not file.endswith(".whl"):
        return False
    parts = file[: -len(".whl")].split("-")
    if len(parts) not in (5, 6) or re.sub(r"[-_.]+", "-", parts[0]).lower() != wheel["name"]:
        return False
    if _version(parts[1]) != _version(wheel["version"]):
        return False
    tags = {"-".join(tag) for tag in itertools.product(*(part.split(".") for part in parts[-3:]))}
    return not wheel["tags"] or bool(tags & set(wheel["tags"]))


def _version(text):
    """Comparable: the local part of a version may be written with dots, dashes or underlines (PEP 440)."""
    public, _, local = text.lower().partition("+")
    return public, re.sub(r"[-_.]+", ".", local)


class _Anchors(html.parser.HTMLParser):
    def __init__(self):
        html.parser.HTMLParser.__init__(self)
        self.hrefs = []

    def handle_starttag(self, tag, attrs):
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href" and value]


def links(page, text):
    """Files that an index page names: [{"file", "url", "sha256" or None}]."""
    anchors = _Anchors()
    anchors.feed(text)
    found = []
    for href in anchors.hrefs:
        url, _, fragment = urllib.parse.urljoin(page, href).partition("#")
        digest = re.search(r"sha256=([0-9a-f]{64})", fragment)
        name = urllib.parse.unquote(url.split("?")[0].rpartition("/")[2])
        found.append({"file": name, "url": url, "sha256": digest.group(1) if digest else None})
    return found


def _links(page, tried):
    try:
        address = page + "index.html" if page.startswith("file:") else page
        # Not urlopen: it keeps the proxies of its first call.
        with urllib.request.build_opener().open(address, timeout=_TIMEOUT) as answer:
            return links(answer.geturl(), answer.read(_LIMIT).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        if error.code not in (403, 404):
            tried.append("%s: %d %s" % (page, error.code, error.reason))
        return []
    except (urllib.error.URLError, OSError, ValueError) as error:
        if isinstance(getattr(error, "reason", error), FileNotFoundError):
            return []
        tried.append("%s cannot be read: %s (%s)" % (page, proxies.why(error), proxies.way(page)))
        return []
