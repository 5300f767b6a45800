# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Conda on a host, by its files alone: installations, environments, and what of CUDA is in them.

``read`` returns a dict in the shape of provision.facts.Conda. No program is started and no package record is
opened where its name says enough, so hundreds of environments cost milliseconds. Where conda can be is known
by four things: what is asked for, folders of /opt and /usr/local, the usual names in homes, and each user's
~/.conda/environments.txt, where conda notes every environment that it makes.
"""

from __future__ import annotations

import pwd
import re

from ansible_collections.gpu.provision.plugins.module_utils.conda import environment as conda_environment
from ansible_collections.gpu.provision.plugins.module_utils.conda import read as conda_read
from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import integer

# Beside what ends in conda3.
_HOME_NAMES = ("miniconda", "anaconda", "conda", "miniforge", "miniforge3", ".miniforge3", "mambaforge")
_PARENTS = ("/opt", "/usr/local")
# A home that does not answer would hold up the read of the whole host; asked for by name, it is looked at.
_NETWORK = lazy_re.compile(
    r"^(nfs|cifs|smb|afs|autofs|lustre|beegfs|ceph|gluster|gpfs|orangefs|pvfs|9p|fuse\.(sshfs|gluster|ceph|s3))"
)
_MOST_HOMES, _MOST_FOLDERS, _MOST_PREFIXES, _MOST_ENVIRONMENTS = 200, 400, 64, 500


def read(tree, wanted=()):
    """Return facts.Conda as a dict.

    wanted: prefixes that are asked for, absolute or as ``~USER/…``: reported also when they are no whole conda. ``~USER``
    alone only asks whether there is such a user.
    """
    users = people(tree)
    homes = {name: home for name, _, home, _ in users}
    looked = [expand(tree, path, homes) for path in wanted]
    local = local_homes(tree, users)
    noted = _noted(tree, local)
    asked = [path for path, as_asked in zip(looked, wanted) if not re.match(r"^~[^/]*$", as_asked)]  # noqa: B905
    found = asked + _around(tree) + _in_homes(tree, local) + [_prefix_of(path) for path in noted]
    prefixes, environments, loose, seen = [], [], list(noted), set()
    owners = {uid: name for name, uid, _, _ in reversed(users)}
    for path in found:
        path = path.rstrip("/")
        if not path or path in seen or len(prefixes) >= _MOST_PREFIXES:
            continue
        seen.add(path)
        if path not in asked and not conda_read.is_installation(path, tree):
            loose.append(path)
            continue
        prefix = read_prefix(tree, path, owners, homes)
        if prefix is not None:
            prefixes.append(prefix)
            environments += conda_environment.environments_of(tree, path, owners)
    known = {prefix["path"] for prefix in prefixes} | {env["path"] for env in environments}
    for path in loose:
        if path not in known and tree.is_dir(path + "/conda-meta"):
            known.add(path)
            environments.append(conda_environment.read_environment(tree, path, None, owners))
    return {
        "prefixes": prefixes,
        "environments": environments[:_MOST_ENVIRONMENTS],
        "homes": homes,
        "looked": looked,
        "shell_init": _shell_init(tree, local, users),
    }


def expand(tree, path, homes):
    """Write out ``~USER/…`` as the host knows the user; a user that it does not know stays as written."""
    match = re.match(r"^~([^/]+)(/.*)?$", path)
    if not match:
        return path
    home = homes.get(match.group(1))
    if home is None and tree.live:
        try:
            # of a directory service
            home = pwd.getpwnam(match.group(1)).pw_dir
        except KeyError:
            home = None
    return path if home is None else home.rstrip("/") + (match.group(2) or "")


# --- where to look -----------------------------------------------------------------------------------------


def people(tree):
    """[(name, uid, home, shell)] of root and of those who log in, by /etc/passwd."""
    found = []
    for line in (tree.read("/etc/passwd", 1 << 20) or "").splitlines():
        parts = line.split(":")
        uid = integer(parts[2]) if len(parts) == 7 else None
        if uid is not None:
            shell = parts[6].rsplit("/", 1)[-1]
            if uid == 0 or (1000 <= uid < 65000 and shell not in ("nologin", "false")):
                found.append((parts[0], uid, parts[5], parts[6]))
    return found[:_MOST_HOMES]


def local_homes(tree, users):
    """[(user, home)] without homes on network file systems and those that are not there."""
    mounts = []
    for line in (tree.read("/proc/mounts") or "").splitlines():
        parts = line.split(" ")
        if len(parts) > 2:
            mounts.append((parts[1].replace("\\040", " ").rstrip("/"), parts[2]))
    found = []
    for name, _, home, _ in users:
        over = [m for m in mounts if (home + "/").startswith(m[0] + "/")]
        kind = max(over, key=lambda mount: len(mount[0]))[1] if over else ""
        if not _NETWORK.match(kind) and home not in ("", "/") and tree.is_dir(home):
            found.append((name, home))
    return found


def _around(tree):
    """Folders of /opt and /usr/local that hold something of conda."""
    found = []
    for parent in _PARENTS:
        for name in tree.names(parent)[:_MOST_FOLDERS]:
            path = "%s/%s" % (parent, name)
            if tree.exists(path + "/conda-meta") or tree.exists(path + "/" + conda_read.MARKER):
                found.append(path)
    return found


def _in_homes(tree, homes):
    return [
        "%s/%s" % (home, name)
        for _, home in homes
        for name in tree.names(home)
        if name in _HOME_NAMES or (name.endswith("conda3") and len(name) < 20)
    ]


def _noted(tree, homes):
    """Paths of the users' environments.txt: environments, and bases of installations."""
    found = []
    for _, home in homes:
        for line in (tree.read(home + "/.conda/environments.txt", 1 << 18) or "").splitlines():
            path = line.strip().rstrip("/")
            if path.startswith("/") and path not in found:
                found.append(path)
    return found[:_MOST_ENVIRONMENTS]


def _prefix_of(path):
    """The installation that an environment lies in: PREFIX/envs/NAME; else the path itself may be one."""
    match = re.match(r"^(/.+)/envs/[^/]+$", path)
    return match.group(1) if match else path


# --- installations -----------------------------------------------------------------------------------------


def read_prefix(tree, path, owners=None, homes=None):
    """Return facts.CondaPrefix of a folder as a dict; None when there is no such folder."""
    there = conda_read.prefix_state(path, tree)
    state = there["state"]
    if state == "absent":
        return None
    owner = conda_environment.owner(tree, path, owners or {})
    found = {
        "path": path,
        "state": state,
        "missing": conda_read.partial_because(there) if state == "partial" else [],
        "unfinished": there["marked"],
        "owner": owner,
    }
    if state in ("foreign", "empty"):
        return found
    packages = there["packages"]
    condarcs, settings = {}, {}
    home = (homes or {}).get(owner)
    for file in _condarcs(path, home):
        text = tree.read(file, 1 << 16)
        if text is not None:
            values = conda_read.condarc(text)
            if isinstance(values.get("channels"), list):
                condarcs[file] = values["channels"]
            if file == path + "/.condarc":
                settings = {
                    key: ", ".join(value) if isinstance(value, list) else value
                    for key, value in values.items()
                    if key != "channels"
                }
    channels = []
    # A later file comes before an earlier one (source: conda's manual, "searching for .condarc").
    for listed in reversed(list(condarcs.values())):
        channels += [channel for channel in listed if channel not in channels]
    found.update(
        distribution=_distribution(tree, path, packages),
        version=there["version"],
        python=there["python"],
        channels=channels if condarcs else None,
        condarcs=condarcs,
        settings=settings,
        asks_terms="conda-anaconda-tos" in packages,
        tos_accepted=_terms(tree, path, home),
        record=there["record"],
    )
    return found


def _distribution(tree, path, packages):
    """Which one it is: by packages that only one brings, else by the channel that its conda came from."""
    if "anaconda" in packages:
        return "anaconda"
    if "conda-anaconda-tos" in packages or "anaconda-anon-usage" in packages:
        return "miniconda"
    conda = packages.get("conda")
    name = "conda-%s-%s.json" % (conda["version"], conda["build"]) if conda else None
    head = tree.read("%s/conda-meta/%s" % (path, name), 2048, head=True) if name else None
    match = re.search(r'"channel":\s*"([^"]*)"', head or "")
    if match and "conda-forge" in match.group(1):
        return "miniforge"
    return "miniconda" if match and re.search(r"pkgs/|^defaults$", match.group(1)) else "other"


def _condarcs(path, home):
    """Configuration files of conda, lowest priority first."""
    files = ["/etc/conda/.condarc", "/etc/conda/condarc", path + "/.condarc", path + "/condarc"]
    return files + ([home + "/.conda/.condarc", home + "/.condarc"] if home else [])


def _terms(tree, path, home):
    """Channels whose terms of service are accepted for the prefix or its owner (source: conda-anaconda-tos)."""
    roots = [path + "/" + conda_read.TERMS, "/etc/conda/tos"] + ([home + "/.conda/tos"] if home else [])
    found = [url for root in roots for url in conda_read.accepted_terms(root, tree)]
    return list(dict.fromkeys(found))


def _shell_init(tree, local, users):
    """{user: prefix} of the block that ``conda init`` writes into the file of the user's login shell."""
    found, shells = {}, {name: shell for name, _, _, shell in users}
    for user, home in local:
        file = conda_read.init_file(shells[user])[1]
        block = conda_read.init_block(tree.read(home + "/" + file, 1 << 18) or "")
        if block is not None:
            found[user] = block
    return found
