# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Write our files of apt's configuration: repositories with their keys, preferences, the list for unattended-upgrades.

Entries of other files for the same repositories are taken out, and old keys that apt trusts for every repository, with a
backup. Standard library only, any Python from
3.8.
"""

from __future__ import annotations

import os
import re
import shutil

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.apt import trusted_keys
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, own_files, own_state, redact

BACKUP = own_state.FOLDER + "/backup"
# What a repository may say; missing ones take these.
_DEFAULTS = {
    "state": "present",
    "suites": "/",
    "components": "",
    "architectures": None,
    "key": None,
    "key_url": None,
    "fingerprint": None,
    "signed_by": None,
    "migrate": True,
    "legacy_uris": [],
    "legacy_keys": [],
}


def apply(params, check):
    """Bring the files to what params ask for. Raises AptError before any change, or for a file that cannot be written.

    params: repositories ([{name, uris, suites, components, architectures, key, key_url, fingerprint, signed_by (a keyring of
    the host instead of a key), migrate, legacy_uris, legacy_keys (fingerprints that apt is no longer to trust for every
    repository), state}]), preferences (text; empty removes the file, None leaves it), unattended_blacklist (patterns;
    likewise), proxy (text of our apt.conf file for it; likewise). Returns {"changed", "files", "migrated", "backup", "diff"}.
    """
    # path -> bytes, or None for a file that must not be there
    wanted = {}
    fetched, migrated, foreign = True, [], set()
    for given in params.get("repositories") or ():
        repository = dict(_DEFAULTS, **given)
        fetched = _repository(repository, wanted, check) and fetched
    if params.get("preferences") is not None:
        wanted[apt_files.PREFERENCES] = _text(params["preferences"])
    if params.get("unattended_blacklist") is not None:
        patterns = params["unattended_blacklist"]
        odd = [pattern for pattern in patterns if re.search(r'["\\\n]', pattern)]
        if odd:
            raise AptError("apt.usage", "a pattern may not hold quotes, backslashes or line breaks: %r" % odd[0])
        wanted[apt_files.UNATTENDED] = apt_files.render_unattended(patterns).encode("utf-8") if patterns else None
    if params.get("proxy") is not None:
        wanted[apt_files.PROXY] = _text(params["proxy"])
    present = [dict(_DEFAULTS, **given) for given in params.get("repositories") or ()]
    present = [repository for repository in present if repository["state"] == "present" and repository["migrate"]]
    if present:
        migrated = _migrate(present, wanted)
        foreign = {entry["file"] for entry in migrated} | _untrust(present, wanted)
    try:
        return _carry_out(wanted, migrated, foreign, check, fetched)
    except own_files.FileError as error:
        raise AptError("apt.file", error.message, hint=error.hint) from None


def _repository(params, wanted, check):
    """Add the files of the repository itself; returns False when the key is not known yet (check mode)."""
    name = params["name"]
    files = [apt_files.sources_path(name), apt_files.keyring_path(name, True), apt_files.keyring_path(name, False)]
    if params["state"] == "absent":
        wanted.update(dict.fromkeys(files))
        return True
    if not params["uris"]:
        raise AptError("apt.usage", "the repository %s has no uris" % name)
    if params["signed_by"]:
        wanted.update(dict.fromkeys(files[1:]))
        wanted[files[0]] = apt_sources.render(params).encode("utf-8")
        return True
    data = None if check and _must_fetch(params) else apt_sources.key_bytes(params)
    has_key = data is not None or _must_fetch(params)
    wanted[files[0]] = apt_sources.render(params, signed_by=None if has_key else False).encode("utf-8")
    if data is None:
        return not has_key
    wanted[apt_files.keyring_path(name, False)] = data
    wanted[apt_files.keyring_path(name, True)] = None
    return True


def _must_fetch(params):
    if params["key"] or not params["key_url"]:
        return False
    _, data = apt_sources.installed_key(params["name"])
    if data is not None and apt_sources.key_is(data, params["fingerprint"]):
        return False
    return not params["fingerprint"] or apt_sources.key_on_host(params["fingerprint"]) is None


def _migrate(repositories, wanted):
    """Take other entries for these repositories out of the host's files; returns them."""
    own = {apt_files.sources_path(repository["name"]) for repository in repositories}
    arch = apt_common.native_arch(apt_common.read_status())
    ours = {
        place
        for repository in repositories
        for place in apt_sources.repositories(apt_sources.spec_source(repository), arch)
    }
    legacy = [re.compile(pattern) for repository in repositories for pattern in repository["legacy_uris"]]
    sources, _, texts = apt_sources.read_sources()
    per_file = {}
    for source in sources:
        if source["file"] in own or not source["enabled"]:
            continue
        same = ours & set(apt_sources.repositories(source, arch))
        uris = [apt_sources.normalise(uri, arch) for uri in source["uris"]]
        if same or any(pattern.match(uri) for pattern in legacy for uri in uris):
            per_file.setdefault(source["file"], []).append(source)
    for path, entries in per_file.items():
        text = apt_sources.without(texts[path], path, entries)
        empty = path != apt_sources.MAIN and apt_sources.is_empty(text, path)
        wanted[path] = None if empty else text.encode("utf-8")
    return [
        {"file": source["file"], "line": source["line"], "uris": [redact.text(uri) for uri in source["uris"]]}
        for entries in per_file.values()
        for source in entries
    ]


def _untrust(repositories, wanted):
    """Take old keys out of what apt trusts for every repository; returns the files."""
    keys = [key for repository in repositories for key in repository["legacy_keys"]]
    found = trusted_keys.find(host_tree.HostTree("/"), keys) if keys else []
    change = {one.path: one.rest or None for one in found if one.rest is not None}
    wanted.update(change)
    return set(change)


def _carry_out(wanted, migrated, foreign, check, fetched):
    diffs, files, backup = [], [], None
    changes = []
    for path in sorted(wanted, key=lambda item: (item not in foreign, "keyrings" not in item, item)):
        old, new = own_files.read(path), wanted[path]
        mode_wrong = old is not None and new is not None and os.stat(path).st_mode & 0o777 != 0o644
        if old == new and not mode_wrong:
            continue
        changes.append((path, old, new))
        action = "written" if new is not None else ("moved away" if path in foreign else "removed")
        files.append({"path": path, "action": action})
        diffs.append(
            {
                "before_header": path,
                "after_header": path if new is not None else path + " (absent)",
                "before": _show(old),
                "after": _show(new),
            }
        )
    if not fetched:
        files.append({"path": "the key", "action": "would be fetched"})
    if not check:
        if any(path in foreign for path, _, _ in changes):
            backup = own_files.dated(BACKUP + "/")
        for path, _, new in changes:
            if path in foreign:
                _save(path, backup)
            if new is None:
                os.unlink(path)
            else:
                own_files.write(path, new)
    return {"changed": bool(files), "files": files, "migrated": migrated, "backup": backup, "diff": diffs}


def _save(path, backup):
    target = backup + path
    if not os.path.isdir(os.path.dirname(target)):
        os.makedirs(os.path.dirname(target))
    shutil.copy2(path, target)


def _text(text):
    text = text.rstrip("\n")
    return (text + "\n").encode("utf-8") if text else None


def _show(data):
    return redact.text(own_files.show(data))
