# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What lies at the place of a conda or of an environment, by its files alone: the one reader of both.

The read of a host and the modules that change something ask here, so that a plan and what carries it out mean the same
by whole, partial and foreign. No program is started. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import os
import re
import stat

from ansible_collections.gpu.provision.plugins.module_utils.lib import digests, lazy_re, own_state
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree, json_object

# Lies in a prefix while an installer of ours works on it. Its flock is held by the installer's processes.
MARKER = ".gpu-provision-in-progress"
_RECORD = {
    "spec": (None, {}),
    "version": (None, str),
    "sha256": (None, str),
    "digest": (None, str),
    "accept_tos": (None, [str]),
}
_NOTE = {
    "fresh": (None, bool),
    "moved": (None, bool),
    "aside": (None, str),
    "condarc": (None, str),
    "sha256": (None, str),
}
# + NAME, beside an environment while it is made: conda wants no foreign folder in its place.
BESIDE = ".gpu-provision-"
# What we made and from what. Without .json: conda takes every *.json in conda-meta for the record of a package
# (conda, core/prefix_data.py: _load_single_record), as with its own file conda-meta/state.
RECORD = "conda-meta/gpu-provision"
# What an installer that did not finish leaves behind (constructor, header.sh). ``_conda`` is none of it:
# newer installers keep it as their uninstaller.
LEFTOVERS = ("conda.exe", "preconda.tar.bz2", "postconda.tar.bz2", "install_tmp", ".messages.txt")
# conda's terms plugin keeps what was accepted for a whole prefix here (conda-anaconda-tos, path.py).
TERMS = "conda-meta/tos"
TERMS_CHANNELS = ("https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r")

# One of these at the top of a folder: an installation of conda, or what is left of one.
_MARKS = frozenset(["condabin", "_conda", MARKER]).union(LEFTOVERS)
_MOST_TERMS, _MOST_BLOCK = 50, 4096
_CONDARC_KEY = lazy_re.compile(r"""(?P<quote>["']?)(?P<key>[A-Za-z_][\w.-]*)(?P=quote)\s*:(?:\s+(?P<value>.*))?$""")
_INIT_PREFIX = lazy_re.compile(r"""['"]?(/[^'"\n]*?)/bin/conda\b['"]?""")


def prefix_state(prefix, tree=None):
    """Say what lies at the prefix of a conda installation.

    prefix: absolute path; tree: HostTree (None: this host). Returns a dict: state is ``absent``, ``empty`` (a folder
    with nothing in it), ``whole``, ``partial`` (an installer or an update that did not finish) or ``foreign``
    (something else); marked, fresh: a marker of ours is there, and says that nothing was there before; missing and
    leftovers (names of what makes it partial); packages as environment_state has them; version (of conda), python, record
    (what we wrote when we made it, or None).
    """
    tree = tree or HostTree()
    names = tree.names(prefix)
    marked, record = MARKER in names, read_record(prefix, tree)
    packages = package_names(prefix, tree)
    missing = []
    if not tree.exists(prefix + "/conda-meta/history"):
        missing.append("conda-meta/history")
    for name in ("conda", "python"):
        if name not in packages:
            missing.append("the record of %s in conda-meta" % name)
        if not _executable(tree, "%s/bin/%s" % (prefix, name)):
            missing.append("bin/" + name)
    leftovers = [name for name in LEFTOVERS if name in names]
    state = _nothing_of_conda(prefix, names, tree)
    if state is None:
        state = "partial" if missing or leftovers or marked else "whole"
    return {
        "state": state,
        "marked": marked,
        "fresh": bool(read_note(prefix + "/" + MARKER, tree).get("fresh")) if marked else False,
        "missing": missing if state == "partial" else [],
        "leftovers": leftovers,
        "packages": packages,
        "version": packages.get("conda", {}).get("version"),
        "python": packages.get("python", {}).get("version"),
        "record": record,
    }


def is_installation(path, tree):
    """True for an installation of conda, whole or not; an environment that lies alone has no conda of its own."""
    return bool(_MARKS.intersection(tree.names(path))) or tree.exists(path + "/bin/conda")


def partial_because(state):
    """Say what makes a prefix partial, as sentences."""
    lines = ["%s is missing" % name for name in state["missing"]]
    lines += ["%s is left over from an installer" % name for name in state["leftovers"]]
    return lines + (["%s shows that an installation was interrupted" % MARKER] if state["marked"] else [])


def environment_state(env, tree=None):
    """Say what lies at the path of an environment, as prefix_state calls it.

    marked: our marker says that its creation was interrupted; record: what we wrote when it was done; packages: {name: {"version",
    "build"}} of conda; pip: {name: version} of what has metadata in site-packages (names normalised), whoever installed it.
    """
    tree = tree or HostTree()
    marked, record = tree.exists(environment_marker(env)), read_record(env, tree)
    packages = package_names(env, tree)
    python = packages.get("python", {}).get("version")
    history = tree.exists(env + "/conda-meta/history")
    if marked:
        state = "partial"
    elif history and (python is None or _executable(tree, env + "/bin/python")):
        state = "whole"
    elif history or packages or tree.is_dir(env + "/conda-meta"):
        state = "partial"
    else:
        state = _nothing_of_conda(env, tree.names(env), tree) or "foreign"
    return {
        "state": state,
        "marked": marked,
        "record": record,
        "python": python,
        "packages": packages,
        "pip": distributions(env, tree, python),
    }


def _nothing_of_conda(path, names, tree):
    """``absent``, ``empty`` or ``foreign``; None where something of conda lies at the path."""
    if tree.stat(path, follow=False) is None:
        return "absent"
    if not tree.is_dir(path):
        # a file, or a link that leads nowhere
        return "foreign"
    if not names:
        return "empty"
    return None if "conda-meta" in names or is_installation(path, tree) else "foreign"


def environment_marker(env):
    """Path of the file that lies beside an environment while it is made."""
    return os.path.join(os.path.dirname(env), BESIDE + os.path.basename(env))


# --- packages


def package_names(prefix, tree=None):
    """Packages that conda has in a prefix, by the names of their records: {name: {"version", "build"}}."""
    tree, found = tree or HostTree(), {}
    for name in tree.names(prefix + "/conda-meta"):
        parts = name[:-5].rsplit("-", 2) if name.endswith(".json") else ()
        if len(parts) == 3:
            found[parts[0]] = {"version": parts[1], "build": parts[2]}
    return found


def distributions(prefix, tree=None, python=None):
    """Python distributions with metadata in a prefix, whoever installed them: {normalised name: version}."""
    found = {}
    for name in metadata_folders(prefix, tree, python):
        match = re.match(r"(.+)-([^-]+)\.dist-info$", name)
        if match:
            found[normalised(match.group(1))] = match.group(2)
    return found


def metadata_folders(prefix, tree=None, python=None):
    """Names of the folders of metadata in a prefix's site-packages, in order: NAME-VERSION.dist-info, also .egg-info."""
    tree = tree or HostTree()
    return [
        name
        for folder in site_packages(prefix, tree, python)
        for name in tree.names(folder)
        if name.endswith((".dist-info", ".egg-info"))
    ]


def site_packages(prefix, tree=None, python=None):
    """Folders of Python modules in a prefix, as absolute paths.

    python: version whose folder counts; that of another one is left behind by an update and read by nobody.
    """
    tree, found = tree or HostTree(), []
    wanted = "python" + ".".join(python.split(".")[:2]) if python else None
    for name in tree.names(prefix + "/lib"):
        # python3.13t is the one without the global lock.
        if re.match(r"python\d+\.\d+t?$", name) and wanted in (None, name.rstrip("t")):
            path = "%s/lib/%s/site-packages" % (prefix, name)
            found += [path] if tree.is_dir(path) else []
    return found


def normalised(name):
    """Name of a Python distribution as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


# --- records, terms


def read_record(path, tree=None):
    """What we noted in an installation or environment when we made it; None where nothing is, or something else by now."""
    found = read_json(tree or HostTree(), path + "/" + RECORD)
    return found if own_state.fits(found, _RECORD) else None


def read_note(marker, tree=None):
    """What our marker says of an installation that goes on or was cut off; nothing where it says something odd."""
    found = read_json(tree or HostTree(), marker)
    return found if own_state.fits(found, _NOTE) else {}


def accepted_terms(root, tree=None):
    """Channels whose terms are accepted, by the records below a folder of the terms plugin, as URLs.

    root: ``PREFIX/conda-meta/tos`` is everybody's who uses the prefix (``conda tos accept --system``).
    """
    tree, found, count = tree or HostTree(), [], 0
    known = {terms_hash(channel): channel for channel in TERMS_CHANNELS}
    for folder in tree.names(root):
        records = [name for name in tree.names(root + "/" + folder) if name.endswith(".json")]
        count += 1
        if not records or count > _MOST_TERMS:
            continue
        # The newest terms count; the files are named by their time.
        newest = read_json(tree, "%s/%s/%s" % (root, folder, records[-1])) or {}
        url = str(newest.get("base_url") or known.get(folder) or "")
        if newest.get("tos_accepted") is True and url:
            found.append(url)
    return found


def terms_hash(channel):
    """Folder name under which the terms plugin keeps a channel (hash_channel in conda-anaconda-tos, path.py)."""
    location, _, name = re.sub(r"^[a-z]+://", "", channel.rstrip("/")).partition("/")
    return digests.sha256((location + name).encode("utf-8")).hexdigest()


# --- .condarc: YAML, which the standard library cannot read. What is needed are top-level keys, by their lines.


def condarc(text):
    """Return {key: text or list of texts} of a .condarc, without what cannot be understood."""
    lines = text.split("\n")
    found = {key: condarc_value(lines[slice(*span)]) for key, span in condarc_blocks(lines)[0].items()}
    return {key: value for key, value in found.items() if value is not None}


def condarc_blocks(lines):
    """Where each top-level key lies: {key: (first line, line after its last)}; trailing comments are not its own.

    And the first line that cannot be understood, as (number, key that is there twice or None); None where all can.
    """
    found, key, odd = {}, None, None
    for number, line in enumerate(lines):
        bare = _no_comment(line)
        if not bare.strip() or bare in ("---", "..."):
            continue
        inner = line[0] in " \t" or (key and re.match(r"-(\s|$)", line))
        if inner and key:
            found[key] = (found[key][0], number + 1)
            continue
        match = None if inner else _CONDARC_KEY.match(bare)
        key = match.group("key") if match else None
        if odd is None and (key is None or key in found):
            odd = (number, key)
        if key:
            found[key] = (number, number + 1)
    return found, odd


def condarc_value(lines):
    """The value of a block, as a text or a list of texts; None for what is neither (a mapping, a block text)."""
    first = _CONDARC_KEY.match(_no_comment(lines[0])).group("value")
    rest = [_no_comment(line) for line in lines[1:]]
    rest = [line for line in rest if line.strip()]
    if first and not rest:
        if first.startswith("[") and first.endswith("]"):
            return [condarc_scalar(item) for item in first[1:-1].split(",") if item.strip()]
        return None if first[0] in "{|>&*!" else condarc_scalar(first)
    if not first and rest and all(re.match(r"\s*-\s+\S", line) for line in rest):
        return [condarc_scalar(line.strip()[1:]) for line in rest]
    return "" if not first and not rest else None


def _no_comment(line):
    return "" if line.lstrip().startswith("#") else re.split(r"\s#", line)[0].rstrip()


def condarc_scalar(text):
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    lower = text.lower()
    # YAML 1.1, which conda reads: yes and on are true.
    return "true" if lower in ("true", "yes", "on") else "false" if lower in ("false", "no", "off") else text


# --- shells


def init_block(text):
    """Return the prefix whose block ``conda init`` wrote into a shell's file, or None when there is no block."""
    block, end, _ = (
        ("\n" + text + "\n").partition("\n# >>> conda initialize >>>\n")[2].partition("\n# <<< conda initialize <<<\n")
    )
    if not end:
        return None
    found = _INIT_PREFIX.search(block[:_MOST_BLOCK])
    return found.group(1) if found else ""


def init_file(shell):
    """(shell, file in the home) that ``conda init`` writes to for a login shell; bash for all that are not zsh."""
    return ("zsh", ".zshrc") if os.path.basename(shell) == "zsh" else ("bash", ".bashrc")


def read_json(tree, path):
    """A JSON object in a file, or None where there is none (absent, cut off, not an object)."""
    return json_object(tree.read(path, 1 << 20))


def _executable(tree, path):
    found = tree.stat(path)
    return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)
