# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The folder of a mirror, where the internet is: fetch into it, write its indexes, check it, take old files out.

``main`` is called on the controller, or on a host over ssh; keys for signing never come here. Standard library only, any
Python from 3.8.
"""

from __future__ import annotations

import base64
import concurrent.futures
import email.utils
import hashlib
import io
import json
import os
import shutil
import stat
import time

from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from ansible_collections.gpu.provision.plugins.module_utils.conda import fetch as conda_fetch
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files, own_state
from ansible_collections.gpu.provision.plugins.module_utils.mirror import apt as mirror_apt
from ansible_collections.gpu.provision.plugins.module_utils.mirror import index as mirror_index

MANIFEST = "manifest.json"
PARTIAL = ".partial"
SCHEMA = "provision/mirror-manifest/1"
_SHAPE = {"schema": SCHEMA, "files": {str: {"sha256": str, "size": int}}}
_MOST_BYTES = 256 << 20
# downloads at a time: more is unfriendly to the servers, and no faster
_JOBS = 4


def main(args):
    """Entry of the fast read: args["op"] is one of those below. Raises AptError."""
    args = dict(args)
    operations = {
        "open": opened,
        "resolve": mirror_apt.resolve,
        "fetch": fetch,
        "kept": kept,
        "written": written,
        "put": put,
        "link": link,
        "finish": finish,
        "verify": verify,
        "get": get,
    }
    operation = args.pop("op", None)
    if operation not in operations:
        raise AptError("apt.usage", "unknown operation %r" % operation)
    call = operations[operation]
    return call(args) if call is mirror_apt.resolve else call(**args)


def opened(root, create=True):
    """Return the manifest of a mirror ({} for a new one) and whether apt is here. Makes the folder, if create."""
    if not os.path.isabs(root):
        raise AptError("mirror.usage", "the folder of a mirror is an absolute path there: %s" % root)
    path = os.path.join(root, MANIFEST)
    if not os.path.lexists(path):
        if os.path.isdir(root) and [name for name in os.listdir(root) if name != PARTIAL] and create:
            raise AptError(
                "mirror.not_ours",
                "%s holds something else than a mirror" % root,
                because=["it is not empty, and there is no %s in it" % MANIFEST],
                hint="name an empty or a new folder",
            )
        if not create:
            raise AptError("mirror.none", "there is no mirror in %s" % root, hint="provision mirror DIR makes one")
        _make(root)
    warnings = []
    manifest = _manifest(root, warnings if create else None)
    if create and not manifest:
        # From here on the folder is known as ours: a first run that is cut off goes on.
        _write_manifest(root, {})
    return {
        "manifest": manifest,
        "warnings": warnings,
        "apt": shutil.which("apt-get") is not None,
        "free": conda_common.free_bytes(root),
    }


def _manifest(root, warnings=None):
    """The manifest; {} where it is damaged: it is put aside, with a line in warnings. AptError where warnings is None."""
    path = os.path.join(root, MANIFEST)
    try:
        found = own_state.read(path, _SHAPE, _MOST_BYTES)
        if found is None and warnings is None:
            raise own_state.Damaged(path, "it is not there")
        return found or {}
    except own_state.Damaged as damage:
        if warnings is None:
            raise AptError(
                "mirror.manifest",
                "the manifest of the mirror cannot be read: %s" % damage,
                hint="provision mirror renames it and makes a new one: files with the right checksums are not fetched again",
            ) from None
        warnings.append("%s; files with the right checksums are not fetched again" % own_state.put_aside(damage))
        return {}


def _write_manifest(root, content):
    data = dict({"schema": SCHEMA, "files": {}}, **content)
    _replace(os.path.join(root, MANIFEST), (json.dumps(data, indent=1, sort_keys=True) + "\n").encode("utf-8"))


# --- files


def fetch(root, files, budget=60, environment=None, jobs=_JOBS):
    """Have files in the mirror, each verified before it gets its name; stop after ``budget`` seconds.

    files: [{"path", "url", "sha256", "size", "any": name or None}]; of files with the same ``any`` one is enough. Returns
    {"done": [{"path", "sha256", "size", "fetched"}], "left": [paths], "refused": [{"path", "message"}]}.
    """
    deadline, done, left, refused = time.monotonic() + budget, [], [], []

    def one(item):
        have = _have(root, item)
        if have:
            return dict(have, fetched=False)
        if time.monotonic() > deadline:
            return None
        return dict(_download(root, item), fetched=True)

    with apt_query.proxy(environment), concurrent.futures.ThreadPoolExecutor(max_workers=jobs) as pool:
        pending = [(item, pool.submit(one, item)) for item in files]
        error = None
        for item, future in pending:
            try:
                result = future.result()
            except AptError as problem:
                if item.get("any"):
                    refused.append({"path": item["path"], "any": item["any"], "message": problem.message})
                    continue
                error = error or problem
                deadline = 0
                continue
            if result is None:
                left.append(item["path"])
            else:
                done.append(result)
    if error:
        raise error
    return {"done": done, "left": left, "refused": refused}


def _have(root, item):
    """What already exists, with the right checksum: read each time, so that what a disk lost comes back by itself."""
    path = _inside(root, item["path"])
    if not os.path.isfile(path) or (item.get("size") is not None and os.path.getsize(path) != item["size"]):
        return None
    if conda_fetch.checksum(path) == item["sha256"]:
        return {"path": item["path"], "sha256": item["sha256"], "size": os.path.getsize(path)}
    return None


def _download(root, item):
    target = _inside(root, item["path"])
    # A folder for each, also where two have the same content: the one that a cut-off run left is gone on with.
    folder = os.path.join(root, PARTIAL, hashlib.sha256(item["path"].encode("utf-8")).hexdigest())
    url = item["url"]
    if not url:
        raise AptError(
            "mirror.lost",
            "%s is no longer in the mirror, and the originals dropped it" % item["path"],
            hint="provision lock --update updates the lock to what there is",
        )
    if url.startswith("file:"):
        url = "file:///" + url[len("file:") :].lstrip("/")
    _make(folder)
    try:
        found = conda_fetch.fetch(url, folder, "file", item["sha256"])
    except conda_common.CondaError as error:
        code = error.code.replace("conda.", "mirror.")
        hint = error.hint
        if "miniconda_" in (hint or ""):
            hint = "run it again: it continues where it stopped; the repository may be in the middle of an update"
        raise AptError(code, str(error), because=error.because, hint=hint) from None
    if item.get("size") is not None and found["size"] != item["size"]:
        raise AptError("mirror.checksum", "%s has another size than listed" % item["url"])
    _make(os.path.dirname(target))
    own_files.rename(os.path.join(folder, "file"), target)
    shutil.rmtree(folder)
    return {"path": item["path"], "sha256": item["sha256"], "size": found["size"]}


def kept(root, release, base, path, suite, components, archs):
    """What to fetch so that a suite keeps its original signature: items for ``fetch``, see mirrorindex.index_files.

    base: URI of the folder of the suite; path: of the repository in the mirror (root, of which nothing is read).
    """
    folder = path if suite.endswith("/") else "%s/dists/%s" % (path, suite)
    items = []
    for row in mirror_index.index_files(release, components, archs):
        for name, digest, size in row:
            where = name
            if mirror_index.by_hash(release):
                where = "%s/by-hash/SHA256/%s" % (os.path.dirname(name), digest)
            url = "%s/%s" % (base, where.lstrip("/"))
            items.append(
                {
                    "path": "%s/%s" % (folder, name),
                    "url": url,
                    "sha256": digest,
                    "size": size,
                    "any": "%s/%s" % (folder, row[0][0]),
                }
            )
    return items


def written(root, path, suite, components, archs, original, rows, prune=False):
    """Write the indexes of a suite that will be signed anew.

    rows: {component: [stanzas]}, "" the component of a flat repository; original: its Release. Stanzas that are there stay,
    unless prune. Returns {"files": [rows of the manifest], "release": what is to be signed, "same": what is signed already says
    the same, "signed": the rows of that, "folder"}.
    """
    folder = path if suite.endswith("/") else "%s/dists/%s" % (path, suite)
    texts = {}
    for component in components or [""]:
        for arch in archs:
            name = "%s/binary-%s/Packages" % (component, arch) if component else "Packages"
            old = os.path.join(root, folder, name)
            have = []
            if not prune and os.path.isfile(old):
                with io.open(old, encoding="utf-8") as handle:
                    have = list(mirror_index.stanzas(handle.read()))
            new = [
                s
                for s in rows.get(component, ())
                if _belongs(mirror_index.fields(s)["Architecture"], arch, archs, component)
            ]
            texts[name] = mirror_index.packages_text(mirror_index.merged(have, new))
    files = mirror_index.list_files(texts)
    found = []
    for name, data in sorted(files.items()):
        digest = hashlib.sha256(data).hexdigest()
        for target in (name, os.path.join(os.path.dirname(name), "by-hash", "SHA256", digest)):
            found.append(_put(root, "%s/%s" % (folder, target), data))
    archs_before = _said(root, folder, "Architectures")
    every = archs + [arch for arch in archs_before if arch not in archs]
    for arch in every[len(archs) :]:
        # Another group's processor: its lists stay listed.
        for component in components:
            for end in ("Packages", "Packages.gz"):
                name = "%s/binary-%s/%s" % (component, arch, end)
                if os.path.isfile(os.path.join(root, folder, name)):
                    with io.open(os.path.join(root, folder, name), "rb") as handle:
                        files[name] = handle.read()
    text = mirror_index.release_text(original, files, components, sorted(every), email.utils.formatdate(usegmt=True))
    signed = [os.path.join(root, folder, name) for name in ("Release", "Release.gpg", "InRelease")]
    same = all(map(os.path.isfile, signed)) and mirror_index.same_content(text, _text(signed[0]))
    rows = []
    for target in signed if same else ():
        rows.append(
            {
                "path": os.path.relpath(target, root),
                "sha256": conda_fetch.checksum(target),
                "size": os.path.getsize(target),
                "fetched": False,
            }
        )
    return {"files": found, "release": text, "same": same, "signed": rows, "folder": folder}


def _belongs(own, arch, archs, component):
    return own in (arch, "all") or not component


def _said(root, folder, field):
    return mirror_index.fields(_text(os.path.join(root, folder, "Release"))).get(field, "").split()


def _text(path):
    if not os.path.isfile(path):
        return ""
    with io.open(path, encoding="utf-8") as handle:
        return handle.read()


def put(root, files):
    """Write small files: {path: text, or {"base64": …}}; returns their rows of the manifest."""
    rows = []
    for path, content in sorted(files.items()):
        data = content.encode("utf-8") if isinstance(content, str) else base64.b64decode(content["base64"])
        rows.append(_put(root, path, data))
    return rows


def link(root, pairs):
    """Give files a second name: [[path, new path], …]; returns the rows of the manifest of the new ones."""
    rows = []
    for path, new in pairs:
        with io.open(_inside(root, path), "rb") as handle:
            rows.append(_put(root, new, handle.read()))
    return rows


def _put(root, path, data):
    target = _inside(root, path)
    changed = True
    if os.path.isfile(target) and os.path.getsize(target) == len(data):
        with io.open(target, "rb") as handle:
            changed = handle.read() != data
    if changed:
        _make(os.path.dirname(target))
        _replace(target, data)
    return {"path": path, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "fetched": changed}


def get(root, paths):
    """Texts of files of the mirror; None for one that is not there."""
    return {path: _text(_inside(root, path)) or None for path in paths}


# --- the whole


def finish(root, manifest, prune=False):
    """Write the manifest, and take out what it does not name, if prune.

    Returns {"changed", "removed": [paths], "bytes": of these, "files", "total": bytes of all that the manifest has}.

    manifest: its content; files of the one before stay in it unless prune.
    """
    before = _manifest(root)
    if not prune:
        files = {path: row for path, row in before["files"].items() if os.path.isfile(_inside(root, path))}
        manifest = dict(manifest, files=dict(files, **manifest["files"]))
    removed, freed = [], 0
    partial = os.path.join(root, PARTIAL)
    if os.path.isdir(partial) and (prune or not os.listdir(partial)):
        shutil.rmtree(partial)
    if prune:
        for path, size in _files(root):
            if path not in manifest["files"] and path != MANIFEST:
                os.unlink(os.path.join(root, path))
                removed.append(path)
                freed += size
        _drop_empty(root)
    content = dict({"schema": SCHEMA}, **manifest)
    changed = content != before
    if changed:
        _write_manifest(root, manifest)
    sizes = [row["size"] for row in manifest["files"].values()]
    return {"changed": changed, "removed": removed, "bytes": freed, "files": len(sizes), "total": sum(sizes)}


def verify(root, start=0, budget=60):
    """Compare files with the manifest for ``budget`` seconds, from number ``start`` on.

    Returns {"bad": [{"path", "problem"}], "extra": [paths], "next": number or None, "files", "bytes"}.
    """
    known = _manifest(root)["files"]
    deadline, bad, at = time.monotonic() + budget, [], start
    paths = sorted(known)
    for at in range(start, len(paths)):
        problem = _problem(root, paths[at], known[paths[at]])
        if problem:
            bad.append({"path": paths[at], "problem": problem})
        if time.monotonic() > deadline and at + 1 < len(paths):
            return {"bad": bad, "extra": [], "next": at + 1, "files": len(paths), "bytes": 0}
    extra = sorted(path for path, _ in _files(root) if path not in known and path != MANIFEST)
    return {
        "bad": bad,
        "extra": extra,
        "next": None,
        "files": len(paths),
        "bytes": sum(row["size"] for row in known.values()),
    }


def _problem(root, path, row):
    target = _inside(root, path)
    if not os.path.isfile(target):
        return "it is not there"
    if os.path.getsize(target) != row["size"]:
        return "it has %d bytes instead of %d" % (os.path.getsize(target), row["size"])
    return "" if conda_fetch.checksum(target) == row["sha256"] else "its content differs"


def _files(root):
    for folder, _, names in os.walk(root):
        below = os.path.relpath(folder, root)
        if below.partition(os.sep)[0] == PARTIAL:
            continue
        for name in names:
            path = os.path.normpath(os.path.join(below, name))
            info = os.lstat(os.path.join(root, path))
            if stat.S_ISREG(info.st_mode) and not name.endswith(".new"):
                yield path, info.st_size


def _drop_empty(root):
    for folder, _, _ in os.walk(root, topdown=False):
        if folder != root and not os.listdir(folder):
            os.rmdir(folder)


def _inside(root, path):
    target = os.path.normpath(os.path.join(root, path))
    if not target.startswith(os.path.normpath(root) + os.sep):
        raise AptError("mirror.odd_index", "%s would be outside the mirror" % path)
    return target


def _make(folder):
    try:
        os.makedirs(folder, 0o755, exist_ok=True)
    except OSError as error:
        raise AptError(
            "mirror.not_writable",
            "cannot write to %s" % folder,
            because=[os.strerror(error.errno or 0)],
            hint="name a folder that you can write to, with room for the packages",
        ) from None


def _replace(path, data):
    try:
        with own_files.replacing(path) as handle:
            handle.write(data)
            os.fchmod(handle.fileno(), 0o644)
    except OSError as error:
        raise AptError(
            "mirror.not_writable", "cannot write %s" % path, because=[os.strerror(error.errno or 0)]
        ) from None
