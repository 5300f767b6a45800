# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Conda on a host, by its files alone: installations, environments, and what of CUDA is in them.

``read`` returns a dict in the shape of provision.facts.Conda. No program is started and no package record is
opened where its name says enough, so hundreds of environments cost milliseconds. Where conda can be is known
by four things: what is asked for, folders of /opt and /usr/local, the usual names in homes, and each user's
~/.conda/environments.txt, where conda notes every environment that it makes.
"""

from __future__ import annotations

import hashlib
import pwd
import re
import stat

from ansible_collections.gpu.provision.plugins.module_utils import condaenvs

PREFIX_MARK = ".gpu-provision-in-progress"

_HOME_NAMES = frozenset([
    "miniconda3", ".miniconda3", "miniconda", "miniforge3", ".miniforge3", "miniforge", "anaconda3", ".anaconda3",
    "anaconda", "mambaforge", "conda",
])  # fmt: skip
_PARENTS = ("/opt", "/usr/local")
# Of an installer that did not come to its end (constructor, header.sh); ``_conda`` stays, to uninstall with.
_LEFTOVERS = frozenset(["conda.exe", "preconda.tar.bz2", "postconda.tar.bz2", "install_tmp", ".messages.txt"])
_CONDA_MARKS = frozenset(["conda-meta", "condabin", "_conda", PREFIX_MARK]) | _LEFTOVERS
# A home that does not answer would hold up the read of the whole host; asked for by name, it is looked at.
_NETWORK = re.compile(
    r"^(nfs|cifs|smb|afs|autofs|lustre|beegfs|ceph|gluster|gpfs|orangefs|pvfs|9p|fuse\.(sshfs|gluster|ceph|s3))"
)
_MOST_HOMES, _MOST_FOLDERS, _MOST_PREFIXES, _MOST_ENVIRONMENTS, _MOST_TERMS = 200, 400, 64, 500, 50

# The terms plugin names a channel's folder by a checksum of its URL (conda-anaconda-tos, path.py: hash_channel).
_TERMS = {
    hashlib.sha256(("repo.anaconda.com" + name).encode("ascii")).hexdigest(): "https://repo.anaconda.com/"
    + name
    for name in ("pkgs/main", "pkgs/r")
}
_INIT = re.compile(r"# >>> conda initialize >>>(.*?)# <<< conda initialize <<<", re.S)
_INIT_PREFIX = re.compile(r"['\"]?(/[^'\"\n]*?)/bin/conda['\"]? ")


digest = condaenvs.digest


def read(tree, wanted=()):
    """Return facts.Conda as a dict.

    wanted: prefixes that are asked for, absolute or as ``~USER/…``: told of also when they are no whole conda.
    """
    users = _users(tree)
    homes = {name: home for name, _, home in users}
    looked = [expand(tree, path, homes) for path in wanted]
    local = _local_homes(tree, users)
    noted = _noted(tree, local)
    found = list(looked) + _around(tree) + _in_homes(tree, local) + [_prefix_of(path) for path in noted]
    prefixes, environments, loose, seen = [], [], list(noted), set()
    owners = {uid: name for name, uid, _ in reversed(users)}
    for path in found:
        path = path.rstrip("/")
        if not path or path in seen or len(prefixes) >= _MOST_PREFIXES:
            continue
        seen.add(path)
        if path not in looked and not _is_installation(tree, path):
            loose.append(path)
            continue
        prefix = read_prefix(tree, path, owners, homes)
        if prefix is not None:
            prefixes.append(prefix)
            environments += condaenvs.environments_of(tree, path, owners)
    known = {prefix["path"] for prefix in prefixes} | {env["path"] for env in environments}
    for path in loose:
        if path not in known and tree.is_dir(path + "/conda-meta"):
            known.add(path)
            environments.append(condaenvs.read_environment(tree, path, None, owners))
    return {
        "prefixes": prefixes,
        "environments": environments[:_MOST_ENVIRONMENTS],
        "homes": homes,
        "looked": looked,
        "shell_init": _shell_init(tree, local),
    }


def expand(tree, path, homes):
    """Write out ``~USER/…`` as the host knows the user; a user that it does not know stays as written."""
    match = re.match(r"^~([^/]+)(/.*)?$", path)
    if not match:
        return path
    home = homes.get(match.group(1))
    if home is None and tree.live:
        try:
            home = pwd.getpwnam(match.group(1)).pw_dir  # of a directory service
        except KeyError:
            home = None
    return path if home is None else home.rstrip("/") + (match.group(2) or "")


# --- where to look -----------------------------------------------------------------------------------------


def _users(tree):
    """[(name, uid, home)] of root and of those who log in, by /etc/passwd."""
    found = []
    for line in (tree.read("/etc/passwd", 1 << 20) or "").splitlines():
        parts = line.split(":")
        if len(parts) == 7 and parts[2].isdigit():
            uid = int(parts[2])
            shell = parts[6].rsplit("/", 1)[-1]
            if uid == 0 or (1000 <= uid < 65000 and shell not in ("nologin", "false")):
                found.append((parts[0], uid, parts[5]))
    return found[:_MOST_HOMES]


def _local_homes(tree, users):
    """[(user, home)] without homes on network file systems and those that are not there."""
    mounts = []
    for line in (tree.read("/proc/mounts") or "").splitlines():
        parts = line.split(" ")
        if len(parts) > 2:
            mounts.append((parts[1].replace("\\040", " ").rstrip("/"), parts[2]))
    found = []
    for name, _, home in users:
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
            if tree.exists(path + "/conda-meta") or tree.exists(path + "/" + PREFIX_MARK):
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


def prefix_state(tree, path):
    """Return (state, missing) of a folder: whole, partial, foreign, empty or absent.

    missing says in words what is not as it should be. What an installer that was cut off leaves behind, and
    the mark that our module sets while one runs, make it partial.
    """
    if not tree.exists(path):
        return "absent", []
    names = tree.names(path) if tree.is_dir(path) else ["(a file)"]
    if not names:
        return "empty", []
    meta = tree.names(path + "/conda-meta")
    if not _CONDA_MARKS.intersection(names) and not tree.exists(path + "/bin/conda"):
        return "foreign", []
    missing = []
    if "history" not in meta:
        missing.append("conda-meta/history")
    for name in ("conda", "python"):
        if not any(re.match(r"^%s-[0-9].*\.json$" % name, item) for item in meta):
            missing.append("the record of %s in conda-meta" % name)
        if not _runs(tree, "%s/bin/%s" % (path, name)):
            missing.append("bin/" + name)
    missing += ["%s is left over" % name for name in names if name in _LEFTOVERS]
    if PREFIX_MARK in names:
        missing.append("%s says that an installation was cut off" % PREFIX_MARK)
    return ("partial" if missing else "whole"), missing


def _is_installation(tree, path):
    """True for an installation of conda, whole or not; an environment that lies alone has no conda of its own."""
    names = tree.names(path)
    return bool(_CONDA_MARKS.difference(["conda-meta"]).intersection(names)) or tree.exists(
        path + "/bin/conda"
    )


def read_prefix(tree, path, owners=None, homes=None):
    """Return facts.CondaPrefix of a folder as a dict; None when there is no such folder."""
    state, missing = prefix_state(tree, path)
    if state == "absent":
        return None
    owner = condaenvs.owner(tree, path, owners or {})
    found = {
        "path": path, "state": state, "missing": missing, "unfinished": tree.exists(path + "/" + PREFIX_MARK),
        "owner": owner,
    }  # fmt: skip
    if state in ("foreign", "empty"):
        found.update(
            distribution="other", version=None, python=None, channels=None, condarcs={}, settings={}, asks_terms=False,
            tos_accepted=[], record=None,
        )  # fmt: skip
        return found
    meta = tree.names(path + "/conda-meta")
    packages = condaenvs.records(meta)
    condarcs, settings = {}, {}
    home = (homes or {}).get(owner)
    for file in _condarcs(path, home):
        text = tree.read(file, 1 << 16)
        if text is not None:
            values = condarc(text)
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
        distribution=_distribution(tree, path, meta, packages),
        version=packages.get("conda", (None, None))[0],
        python=packages.get("python", (None, None))[0],
        channels=channels if condarcs else None,
        condarcs=condarcs,
        settings=settings,
        asks_terms="conda-anaconda-tos" in packages,
        tos_accepted=_terms(tree, path, home),
        record=condaenvs.record_of(tree, path),
    )
    return found


def _runs(tree, path):
    found = tree.stat(path)
    return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def _distribution(tree, path, meta, packages):
    """Which one it is: by packages that only one brings, else by the channel that its conda came from."""
    if "anaconda" in packages:
        return "anaconda"
    if "conda-anaconda-tos" in packages or "anaconda-anon-usage" in packages:
        return "miniconda"
    name = next((item for item in meta if re.match(r"^conda-[0-9].*\.json$", item)), None)
    head = tree.read("%s/conda-meta/%s" % (path, name), 2048) if name else None
    match = re.search(r'"channel":\s*"([^"]*)"', head or "")
    if match and "conda-forge" in match.group(1):
        return "miniforge"
    return "miniconda" if match and re.search(r"pkgs/|^defaults$", match.group(1)) else "other"


def _condarcs(path, home):
    """Configuration files of conda, lowest priority first."""
    files = ["/etc/conda/.condarc", "/etc/conda/condarc", path + "/.condarc", path + "/condarc"]
    return files + ([home + "/.conda/.condarc", home + "/.condarc"] if home else [])


def condarc(text):
    """Return {key: text or list of texts} of a .condarc: the little of YAML that such files use."""
    found, key = {}, None
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        item = re.match(r"^\s*-\s*(.+)$", line)
        pair = re.match(r"^([A-Za-z_]+)\s*:\s*(.*)$", line)
        if pair:
            key, value = pair.group(1), pair.group(2)
            inline = re.match(r"^\[(.*)\]$", value)
            if inline:
                found[key] = [_bare(part) for part in inline.group(1).split(",") if part.strip()]
            else:
                found[key] = _bare(value) if value else []
        elif item and key is not None and isinstance(found[key], list):
            found[key].append(_bare(item.group(1)))
    return found


def _bare(text):
    return text.strip().strip("\"'")


def _terms(tree, path, home):
    """Channels whose terms of service are accepted for the prefix or its owner (source: conda-anaconda-tos)."""
    accepted, count = [], 0
    roots = [path + "/conda-meta/tos", "/etc/conda/tos"] + ([home + "/.conda/tos"] if home else [])
    for root in roots:
        for channel in tree.names(root):
            for name in tree.names("%s/%s" % (root, channel)):
                count += 1
                if count > _MOST_TERMS:
                    return accepted
                data = condaenvs.json_of(tree.read("%s/%s/%s" % (root, channel, name), 1 << 16))
                url = str(data.get("base_url") or _TERMS.get(channel) or "")
                if data.get("tos_accepted") is True and url and url not in accepted:
                    accepted.append(url)
    return accepted


def _shell_init(tree, homes):
    """{user: prefix} of the block that ``conda init`` writes into .bashrc."""
    found = {}
    for user, home in homes:
        block = _INIT.search(tree.read(home + "/.bashrc", 1 << 18) or "")
        if block:
            match = _INIT_PREFIX.search(block.group(1))
            found[user] = match.group(1) if match else ""
    return found
