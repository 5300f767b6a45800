# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Lines about CUDA that people wrote into the start files of shells, and the PATH that a login gets from the system's.

Files are read, never evaluated: assignments are taken as they stand, whatever condition is around them. Of a file only
lines that concern CUDA are reported, of a line only the assignment. Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import os
import re

from ansible_collections.gpu.provision.plugins.module_utils.cuda import files as cuda_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re

# Files of a login for everybody, in the order of sh and bash; then those of other shells; then what new users get.
_LOGIN = ("/etc/environment", "/etc/profile", "/etc/profile.d/*.sh", "/etc/bash.bashrc")
_OTHERS = (
    "/etc/environment.d/*.conf",
    "/etc/profile.d/*.csh",
    "/etc/csh.cshrc",
    "/etc/csh.login",
    "/etc/csh/cshrc.d/*.csh",
    "/etc/csh/login.d/*.csh",
    "/etc/zsh/zshenv",
    "/etc/zsh/zprofile",
    "/etc/zsh/zshrc",
    "/etc/zsh/zlogin",
    "/etc/fish/config.fish",
    "/etc/fish/conf.d/*.fish",
    "/etc/skel/.bashrc",
    "/etc/skel/.profile",
)
_USER = (
    ".profile",
    ".bash_profile",
    ".bash_login",
    ".bashrc",
    ".bash_aliases",
    ".zshenv",
    ".zprofile",
    ".zshrc",
    ".pam_environment",
    ".cshrc",
    ".tcshrc",
    ".login",
    ".config/environment.d/*.conf",
    ".config/fish/config.fish",
    ".config/fish/conf.d/*.fish",
)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Bounds: a host with thousands of homes, or a start file that somebody piped a log into.
_MOST_HOMES, _MOST_BYTES, _MOST_LINES, _MOST_LINE, _MOST_TEXT = 256, 65536, 200, 4096, 300

LISTS = frozenset(
    [
        "PATH",
        "LD_LIBRARY_PATH",
        "LIBRARY_PATH",
        "LD_RUN_PATH",
        "CPATH",
        "C_INCLUDE_PATH",
        "CPLUS_INCLUDE_PATH",
        "LD_PRELOAD",
    ]
)
# These make programs find other libraries.
LOADER = frozenset(["LD_LIBRARY_PATH", "LD_PRELOAD"])
_SINGLE = frozenset(
    [
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_ROOT",
        "CUDA_DIR",
        "CUDADIR",
        "CUDA_BIN_PATH",
        "CUDA_LIB_PATH",
        "CUDA_INC_PATH",
        "CUDA_TOOLKIT_ROOT_DIR",
        "CUDA_INSTALL_PATH",
        "CUDACXX",
        "CUDAHOSTCXX",
        "NVCC",
        "NVCC_CCBIN",
        "NVCC_PREPEND_FLAGS",
        "NVCC_APPEND_FLAGS",
        "CUDNN_HOME",
        "CUDNN_PATH",
        "CUDNN_ROOT",
        "CUDNN_ROOT_DIR",
        "NCCL_HOME",
        "NCCL_ROOT",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
    ]
)
# NCCL reads any number of these, and one can make it ten times slower.
_KNOWN = "|".join([*sorted(LISTS | _SINGLE, key=len, reverse=True), "NCCL_[A-Z0-9_]+"])
_VALUE = r"(?P<value>(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\$\([^)]*\)|`[^`]*`|[^\s;&|\"'])*)"
_SH = lazy_re.compile(r"(?:^|[\s;&|{(])(?P<text>(?:export\s+)?(?P<name>" + _KNOWN + r")(?P<more>\+?)=" + _VALUE + ")")
_ZSH = lazy_re.compile(r"(?:^|[\s;&|{])(?P<text>(?P<name>path)(?P<more>\+?)=\((?P<value>[^)]*)\))")
_CSH = lazy_re.compile(r"(?:^|[\s;])(?P<text>setenv\s+(?P<name>" + _KNOWN + r")\s+" + _VALUE + ")")
_CSH_PATH = lazy_re.compile(r"(?:^|[\s;])(?P<text>set\s+(?P<name>path)\s*=\s*\((?P<value>[^)]*)\))")
_FISH = lazy_re.compile(r"(?:^|[\s;])(?P<text>set\s+(?:-\S+\s+)*(?P<name>" + _KNOWN + r")(?P<value>(?:\s+[^\s;#]+)+))")
_FISH_ADD = lazy_re.compile(
    r"(?:^|[\s;])(?P<text>fish_add_path(?P<flags>(?:\s+-\S+)*)(?P<value>(?:\s+[^\s;#-][^\s;#]*)+))"
)
# A line that writes or prints such a line is none.
_PRINTS = lazy_re.compile(r"^\s*(?:echo|printf|alias|cat|sed|grep)\b")
_TESTED = lazy_re.compile(r"(?:^|\s)-[defrsx]\s+[\"']?([~/$][^\s\"'\];]*)")
_ASSIGNS = lazy_re.compile(r"=|\bset|fish_add_path")
_PLAIN = lazy_re.compile(
    r"(?:^|[\s;&|{(])(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=([\"']?)([~/$][^\s;&|\"'()`]*)\2(?=[\s;&|]|$)"
)
_CUDA_FOLDER = lazy_re.compile(
    r"(?:^|/)(?:cuda(?:[-_]?v?[0-9][0-9.]*)?|cudnn[^/]*|nccl[^/]*|nvidia-cuda-toolkit|hpc_sdk)(?:/|$)", re.I
)
_CUDA_FILE = lazy_re.compile(r"^lib(?:cudart|cublas|cudnn|nccl|nvJitLink|cusparse)[A-Za-z_]*\.so")
# What may not answer: a dead server there would hold up the whole read.
_REMOTE = lazy_re.compile(
    r"^(?:nfs4?|cifs|smb3|smbfs|lustre|beegfs|beegfs_nodev|gpfs|ceph|glusterfs|afs|9p|autofs|fuse\..*|pvfs2|panfs)$"
)
# A file without these says nothing of CUDA; most files end here.
_HINTS = ("cuda", "cudnn", "nccl", "nvcc", "hpc_sdk", "ld_library_path", "ld_preload")
_SELF = "\0"


def names_cuda(folder):
    """True for a folder that is part of CUDA, cuDNN or NCCL by its name."""
    return bool(_CUDA_FOLDER.search(folder))


def read_lines(tree):
    """Return ([facts.ShellLine], [folders on the PATH of a login], [folders that LD_LIBRARY_PATH names for everybody])."""
    reader = _Reader(tree)
    path = _first_path(tree)
    for pattern in _LOGIN:
        for file in _files(tree, pattern):
            path = reader.system(file, path)
    for pattern in _OTHERS:
        for file in _files(tree, pattern):
            reader.system(file, [])
    for home in reader.homes():
        there = set(tree.names(home))
        for name in _USER:
            if name.split("/", 1)[0] in there:
                for file in _files(tree, "%s/%s" % (home, name)):
                    reader.read(file, home)
    return reader.lines[:_MOST_LINES], list(dict.fromkeys(path)), list(dict.fromkeys(reader.library_path))


def _first_path(tree):
    """PATH before any profile is read: pam_env's (/etc/environment), else login's own (login.defs(5))."""
    match = re.search(r"^[ \t]*ENV_PATH\s+PATH=(\S+)", tree.read("/etc/login.defs", _MOST_BYTES) or "", re.M)
    return (match.group(1) if match else _DEFAULT_PATH).split(":")


def _files(tree, pattern):
    folder, name = os.path.split(pattern)
    if not name.startswith("*"):
        return [pattern]
    return ["%s/%s" % (folder, found) for found in tree.names(folder) if found.endswith(name[1:])]


class Mounts(object):
    """Which folders lie on file systems of other machines, by the kernel's table of mounts."""

    def __init__(self, tree):
        rows = (line.split(" ") for line in (tree.read("/proc/self/mounts") or "").splitlines())
        self._remote = [row[1].rstrip("/") for row in rows if len(row) > 2 and _REMOTE.match(row[2])]

    def remote(self, path):
        """True when path is on such a file system, or is its mount point."""
        return any(path == mount or path.startswith(mount + "/") for mount in self._remote)


class _Reader(object):
    def __init__(self, tree):
        self.tree, self.mounts = tree, Mounts(tree)
        self.lines, self.library_path = [], []
        self._holds = {}

    def homes(self):
        """Homes of root and of people, without those of other machines: their server may not answer."""
        base = [] if self.mounts.remote("/home") else self.tree.names("/home")[:_MOST_HOMES]
        homes = ["/root"] + ["/home/" + name for name in base]
        return [home for home in homes if not self.mounts.remote(home)]

    def system(self, file, path):
        """Read a file that is there for everybody; return the PATH after it."""
        if file == cuda_files.PROFILE:
            # Ours works by functions; it puts the default toolkit first.
            return ["/usr/local/cuda/bin"] + path if self.tree.exists(file) else path
        for row in self.read(file, None):
            if row["name"] == "PATH":
                before, own, after = row["parts"]
                path = before + (path if own else []) + after
            elif row["name"] == "LD_LIBRARY_PATH":
                self.library_path += row["parts"][0] + row["parts"][2]
        return path

    def read(self, file, home):
        """Note the lines about CUDA of a file and return all its assignments of known variables."""
        # What the roles write is no line of somebody's.
        text = None if "gpu-provision" in file else self.tree.read(file, _MOST_BYTES)
        lower = text.lower() if text else ""
        if not any(hint in lower for hint in _HINTS) and (home or not text or "PATH" not in text):
            return []
        rows = list(assignments(text, os.path.splitext(file)[1], home))
        # A line behind [ -d FOLDER ] does nothing where the folder is not there.
        tested = [_expand(path, {"HOME": home or ""}, home).rstrip("/") for path in _TESTED.findall(text)]
        tested = [path for path in tested if path and not self.tree.exists(path)]
        for row in rows:
            before, _, after = row["parts"]
            folders = [folder for folder in before + after if self._concerns(row["name"], folder)]
            if folders or row["name"] not in LISTS:
                self.lines.append(
                    {
                        "file": file,
                        "line": row["line"],
                        "text": row["text"],
                        "variable": row["name"],
                        "paths": folders,
                        "missing": [folder for folder in folders if self._missing(folder, tested)],
                        "front": [folder for folder in folders if folder in before],
                        "replaces": row["name"] in LISTS and not row["parts"][1],
                    }
                )
        return rows

    def _concerns(self, variable, folder):
        if not folder.startswith("/"):
            return False
        if names_cuda(folder) or variable not in LISTS:
            return True
        return variable in LOADER and self._holds_libraries(folder)

    def _holds_libraries(self, folder):
        if folder not in self._holds:
            names = [] if self.mounts.remote(folder) else self.tree.names(folder)
            self._holds[folder] = any(map(_CUDA_FILE.match, names))
        return self._holds[folder]

    def _missing(self, folder, tested):
        if self.mounts.remote(folder) or any((folder + "/").startswith(path + "/") for path in tested):
            return False
        return not self.tree.exists(folder)


def assignments(text, suffix="", home=None):
    """Yield {"line", "text", "name", "parts"} of each assignment of a known variable.

    suffix: of the file's name, for fish and csh. parts: (elements before the old value, the old value is kept,
    elements after it); variables that the file itself sets to a folder are put in, what stays unknown keeps its ``$``.
    """
    fish, csh = suffix == ".fish", suffix == ".csh" or "\nsetenv " in "\n" + text
    known = {"HOME": home} if home else {}
    for number, line in enumerate(text.splitlines(), 1):
        if "#" in line[:_MOST_LINE]:
            line = re.sub(r"(?:^|\s)#.*$", "", line)
        if not line.strip() or len(line) > _MOST_LINE or _PRINTS.match(line):
            continue
        if not _ASSIGNS.search(line):
            continue
        for name, _, value in _PLAIN.findall(line):
            if name not in LISTS:
                known[name] = _expand(value, known, home)
        patterns = (_FISH, _FISH_ADD) if fish else (_CSH, _CSH_PATH, _SH) if csh else (_SH, _ZSH)
        for pattern in patterns:
            for match in pattern.finditer(line):
                yield _assignment(match, pattern in (_FISH, _FISH_ADD), number, known, home)


def _assignment(match, fish, number, known, home):
    found = match.groupdict()
    value, name = found["value"].strip(), found.get("name") or "PATH"
    words = name == "path" or fish
    name = name.upper() if name == "path" else name
    if name not in LISTS:
        parts = ([_expand(_unquoted(value), known, home)], False, [])
    else:
        if words:
            value = ":".join(_unquoted(word) for word in value.split())
        elements = _elements(_unquoted(value), name, known, home)
        if found.get("more"):
            elements = [_SELF] + elements
        elif not found.get("name"):
            # fish_add_path
            append = bool({"-a", "--append"} & set(found["flags"].split()))
            elements = [_SELF] + elements if append else elements + [_SELF]
        at = elements.index(_SELF) if _SELF in elements else len(elements)
        rest = [element for element in elements[at:] if element != _SELF]
        parts = (elements[:at], at < len(elements), rest)
    # What a command would print is nobody's business.
    text = re.sub(r"\$\([^)]*\)|`[^`]*`", "$(...)", " ".join(found["text"].split()))
    return {"line": number, "text": text[:_MOST_TEXT], "name": name, "parts": parts}


def _unquoted(value):
    return value.replace('"', "").replace("'", "")


def _elements(value, name, known, home):
    """Elements of a list; the variable's own old value becomes one element, whatever form it is written in."""
    own = r"\$\{" + name + r"(?::?[-+=?](?:[^{}]|\{[^{}]*\})*)?\}|\$" + name + r"(?![A-Za-z0-9_])"
    if name == "PATH":
        own += r"|\$path(?![A-Za-z0-9_])"
    value = re.sub(own, ":" + _SELF + ":", value)
    elements = [_expand(element, known, home) for element in value.split(":")]
    return [element.rstrip("/") or element for element in elements if element]


def _expand(value, known, home):
    if home and (value == "~" or value.startswith("~/")):
        value = home + value[1:]
    return re.sub(
        r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)(?::-[^{}]*)?\}|([A-Za-z_][A-Za-z0-9_]*))",
        lambda match: known.get(match.group(1) or match.group(2)) or match.group(0),
        value,
    )
