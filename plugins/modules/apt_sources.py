#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Ansible module: one repository of ours in apt's configuration, and nobody else's entry for it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: apt_sources
short_description: Configure one apt repository with its key, and take out other entries for it
version_added: "0.1.0"
description:
  - Writes C(/etc/apt/sources.list.d/gpu-provision-NAME.sources) and C(/etc/apt/keyrings/gpu-provision-NAME.gpg).
  - The key's fingerprint is checked before anything is written.
  - Entries for the same repository in other files are taken out, because two entries with different keys break every
    call of apt. The files are saved under C(/var/lib/gpu-provision/backup) first.
  - Writes our preferences and our list for unattended-upgrades as well, so that one task does all configuration.
  - Needs nothing on the host but Python.
attributes:
  check_mode:
    description: Changes nothing; a key that would be fetched is not.
    support: full
  diff_mode:
    description: Shows every file before and after.
    support: full
options:
  name:
    description:
      - Short name of the repository. Without it only O(preferences) and O(unattended_blacklist) are looked after.
    type: str
  state:
    description:
      - V(absent) removes the files of this repository; with O(preferences) or O(unattended_blacklist) given as empty,
        those too.
    type: str
    choices: [present, absent]
    default: present
  uris:
    description: Address of the repository.
    type: str
  suites:
    description: Suites, or C(/) for a flat repository.
    type: str
    default: /
  components:
    description: Components; empty for a flat repository.
    type: str
    default: ""
  architectures:
    description: Architectures, when not all are wanted.
    type: str
  key:
    description: The key, armored or as base64 of the binary form.
    type: str
  key_url:
    description:
      - Where the host fetches the key, through the proxies of the environment. Needs O(fingerprint). Nothing is fetched
        when the installed key has that fingerprint.
    type: str
  fingerprint:
    description: Full fingerprints, one of which every key in the file must have.
    type: list
    elements: str
  migrate:
    description: Take out entries for the same repository in other files.
    type: bool
    default: true
  legacy_uris:
    description:
      - Regular expressions. An entry of another file is taken out too when its normalised URI (no scheme for http and
        https, no slash at the end) matches one from the start.
    type: list
    elements: str
    default: []
  preferences:
    description: Content for C(/etc/apt/preferences.d/gpu-provision.pref); empty removes the file.
    type: str
  unattended_blacklist:
    description:
      - Names or regular expressions of packages that unattended-upgrades must not touch, for
        C(/etc/apt/apt.conf.d/52gpu-provision). An empty list removes the file.
    type: list
    elements: str
author:
  - the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: NVIDIA's repository, by its key
  gpu.provision.apt_sources:
    name: cuda
    uris: https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/
    key_url: https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/3bf863cc.pub
    fingerprint: EB693B3035CD5710E231E123A4B469963BF863CC
    legacy_uris:
      - developer\.download\.nvidia\.com/compute/machine-learning/repos/
    unattended_blacklist: ["nvidia-", "libnvidia-"]

- name: Take the repository out again
  gpu.provision.apt_sources:
    name: cuda
    state: absent
"""

RETURN = r"""
files:
  description: What was done to which file.
  returned: success
  type: list
  elements: dict
  sample:
    - {path: /etc/apt/sources.list.d/gpu-provision-cuda.sources, action: written}
    - {path: /etc/apt/sources.list.d/cuda.list, action: moved away}
migrated:
  description: Entries that were taken out.
  returned: success
  type: list
  elements: dict
  sample: [{file: /etc/apt/sources.list, line: 7, uris: ["http://example.org/ubuntu2404/x86_64"]}]
backup:
  description: Folder with the files as they were, or null.
  returned: success
  type: str
  sample: /var/lib/gpu-provision/backup/20261128T031200Z
code:
  description: Stable name of the failure, C(apt.key) or C(apt.usage).
  returned: failure
  type: str
  sample: apt.key
"""

import io
import os
import re
import shutil
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpu.provision.plugins.module_utils import aptcommon, aptfiles, aptsources
from ansible_collections.gpu.provision.plugins.module_utils.aptcommon import AptError

BACKUP = "/var/lib/gpu-provision/backup"


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "uris": {"type": "str"},
            "suites": {"type": "str", "default": "/"},
            "components": {"type": "str", "default": ""},
            "architectures": {"type": "str"},
            "key": {"type": "str", "no_log": False},
            "key_url": {"type": "str", "no_log": False},
            "fingerprint": {"type": "list", "elements": "str"},
            "migrate": {"type": "bool", "default": True},
            "legacy_uris": {"type": "list", "elements": "str", "default": []},
            "preferences": {"type": "str"},
            "unattended_blacklist": {"type": "list", "elements": "str"},
        },
        mutually_exclusive=[("key", "key_url")],
        required_one_of=[("name", "preferences", "unattended_blacklist")],
        supports_check_mode=True,
    )
    try:
        module.exit_json(**apply(module.params, module.check_mode))
    except AptError as error:
        module.fail_json(msg=error.message, **error.as_dict())


def apply(params, check):
    """Bring the files to what params ask for; returns the module's result. Raises AptError before any change."""
    wanted = {}  # path -> bytes, or None for a file that must not be there
    fetched = True
    if params["name"]:
        fetched = _repository(params, wanted, check)
    if params["preferences"] is not None:
        wanted[aptfiles.PREFERENCES] = _text(params["preferences"])
    if params["unattended_blacklist"] is not None:
        patterns = params["unattended_blacklist"]
        odd = [pattern for pattern in patterns if re.search(r'["\\\n]', pattern)]
        if odd:
            raise AptError(
                "apt.usage", "a pattern may not hold quotes, backslashes or line breaks: %r" % odd[0]
            )
        wanted[aptfiles.UNATTENDED] = (
            aptfiles.render_unattended(patterns).encode("utf-8") if patterns else None
        )
    migrated = []
    if params["name"] and params["state"] == "present" and params["migrate"]:
        migrated = _migrate(params, wanted)
    return _carry_out(wanted, migrated, check, fetched)


def _repository(params, wanted, check):
    """Add the files of the repository itself; returns False when the key is not known yet (check mode)."""
    name = params["name"]
    files = [
        aptfiles.sources_path(name),
        aptfiles.keyring_path(name, True),
        aptfiles.keyring_path(name, False),
    ]
    if params["state"] == "absent":
        wanted.update(dict.fromkeys(files))
        return True
    if not params["uris"]:
        raise AptError("apt.usage", "the repository %s has no uris" % name)
    data = None if check and _must_fetch(params) else aptsources.key_bytes(params)
    has_key = data is not None or _must_fetch(params)
    wanted[files[0]] = aptsources.render(params, signed_by=None if has_key else False).encode("utf-8")
    if data is None:
        return not has_key
    wanted[aptfiles.keyring_path(name, False)] = data
    wanted[aptfiles.keyring_path(name, True)] = None
    return True


def _must_fetch(params):
    if params["key"] or not params["key_url"]:
        return False
    _, data = aptsources.installed_key(params["name"])
    return data is None or not aptsources.key_is(data, params["fingerprint"])


def _migrate(params, wanted):
    """Take other entries for the repository out of the host's files; returns them."""
    own = aptfiles.sources_path(params["name"])
    arch = aptcommon.native_arch(aptcommon.read_status())
    ours = set(aptsources.repositories(aptsources.spec_source(params), arch))
    legacy = [re.compile(pattern) for pattern in params["legacy_uris"]]
    sources, _, texts = aptsources.read_sources()
    per_file = {}
    for source in sources:
        if source["file"] == own or not source["enabled"]:
            continue
        same = ours & set(aptsources.repositories(source, arch))
        uris = [aptsources.normalise(uri, arch) for uri in source["uris"]]
        if same or any(pattern.match(uri) for pattern in legacy for uri in uris):
            per_file.setdefault(source["file"], []).append(source)
    for path, entries in per_file.items():
        text = aptsources.without(texts[path], path, entries)
        empty = path != aptsources.MAIN and aptsources.is_empty(text, path)
        wanted[path] = None if empty else text.encode("utf-8")
    return [
        {
            "file": source["file"],
            "line": source["line"],
            "uris": [aptcommon.redact(uri) for uri in source["uris"]],
        }
        for entries in per_file.values()
        for source in entries
    ]


def _carry_out(wanted, migrated, check, fetched):
    foreign = {entry["file"] for entry in migrated}
    diffs, files, backup = [], [], None
    changes = []
    for path in sorted(wanted, key=lambda item: (item not in foreign, "keyrings" not in item, item)):
        old, new = _read(path), wanted[path]
        mode_wrong = old is not None and new is not None and os.stat(path).st_mode & 0o777 != 0o644
        if old == new and not mode_wrong:
            continue
        changes.append((path, old, new))
        action = "written" if new is not None else ("moved away" if path in foreign else "removed")
        files.append({"path": path, "action": action})
        diffs.append({
            "before_header": path, "after_header": path if new is not None else path + " (absent)",
            "before": _show(old), "after": _show(new),
        })  # fmt: skip
    if not fetched:
        files.append({"path": "the key", "action": "would be fetched"})
    if not check:
        if any(path in foreign for path, _, _ in changes):
            backup = os.path.join(BACKUP, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
        for path, _, new in changes:
            if path in foreign:
                _save(path, backup)
            if new is None:
                os.unlink(path)
            else:
                _write(path, new)
    return {
        "changed": bool(files), "files": files, "migrated": migrated, "backup": backup, "diff": diffs,
    }  # fmt: skip


def _save(path, backup):
    target = backup + path
    if not os.path.isdir(os.path.dirname(target)):
        os.makedirs(os.path.dirname(target))
    shutil.copy2(path, target)


def _write(path, data):
    """Write a file in one step: nobody ever sees half a key or an empty one."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        os.makedirs(folder, 0o755)
        os.chmod(folder, 0o755)  # noqa: S103 - apt's _apt user must get in
    # apt reads no names with a tilde, so a file left by a power cut does no harm.
    temporary = path + "~%d" % os.getpid()
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def _read(path):
    try:
        with io.open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _text(text):
    text = text.rstrip("\n")
    return (text + "\n").encode("utf-8") if text else None


def _show(data):
    if data is None:
        return ""
    try:
        return aptcommon.redact(data.decode("utf-8"))
    except UnicodeDecodeError:
        return "(binary, %d bytes)\n" % len(data)


if __name__ == "__main__":
    main()
