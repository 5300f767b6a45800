# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What diagnose reads of a host beyond the probe: provision.facts.diagnostics.UserTrouble. Standard library only, Python 3.8.

Proxies of each layer, CUDA libraries inside Python environments, copies of daemon.json, what makes cards silent to each
other. Files alone, found by name and never by a walk.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.conda import probe as conda_probe
from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_flags, daemon_json
from ansible_collections.gpu.provision.plugins.module_utils.cuda import shell as cuda_shell
from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re, proxies
from ansible_collections.gpu.provision.plugins.module_utils.prove import topology as prove_topology

# Bundled libraries that decide whether a framework starts; the same as those that the probe looks for on the host.
_LIBRARY = lazy_re.compile(
    r"^lib(cudart|cublas|cublasLt|cusparse|cusolver|cufft|nvJitLink|nvrtc|cudnn|nccl)\.so\.[0-9][0-9.]*$"
)
_PROXY_LINE = lazy_re.compile(
    r"^\s*(?:export\s+|setenv\s+|set\s+-\S+\s+)?(?P<name>https?_proxy|HTTPS?_PROXY|all_proxy|ALL_PROXY)[=\s]\s*[\"']?"
    r"(?P<value>[^\s\"';]+)"
)
_DROPIN_PROXY = lazy_re.compile(r"\b(HTTPS?_PROXY|https?_proxy)=([^\s\"']+)")
_USER_FILES = (".profile", ".bash_profile", ".bashrc", ".zshrc", ".zprofile", ".zshenv")
# Wheels that are called otherwise than their library. CUDA 13's wheels share one folder, nvidia/cu13 (seen: torch 2.11).
_WHEELS = {"cudart": "cuda_runtime", "cublasLt": "cublas", "nvrtc": "cuda_nvrtc"}
_ROOTS = frozenset(("data", "docker", "home", "local", "mnt", "nvme", "raid", "scratch", "srv", "ssd"))
_VENVS = ("venv", ".venv", "env", ".env")
_MOST_ENVIRONMENTS, _MOST_LIBRARIES = 64, 400
_GUARD = lazy_re.compile(r"^\s*(?:case \$- in|\[\[? (?:-z \"?\$PS1\"?|\$- != \*i\*)|\[ -z \"\$PS1\" \])")


def read(tree, facts):
    """Return the fields of the model as a dict. tree: HostTree; facts: what the probe said of the same host."""
    homes = _homes(tree)
    return {
        "proxies": _proxies(tree, homes),
        "sudo_keeps_proxy": _sudo_keeps_proxy(tree),
        "bundled": _bundled(tree, facts, homes),
        "daemon_copies": _daemon_copies(tree, facts["containers"]["docker"]["file"]["path"]),
        "data_roots": _data_roots(tree),
        "hidden_cards": _hidden_cards(tree),
        "topology": prove_topology.host_hints(tree.root) if len(facts["gpus"]) > 1 else [],
        "cmdline": tree.word("/proc/cmdline") or "",
        "conda_guarded": _conda_guarded(tree, homes),
        "conda_profile": [
            path for path in ("/etc/profile.d/conda.sh", "/etc/profile.d/gpu-provision-conda.sh") if tree.exists(path)
        ],
    }


def _homes(tree):
    """[(user, home)] of people and root, without homes on other machines: their server may not answer."""
    users = conda_probe.people(tree)
    return conda_probe.local_homes(tree, users)


# --- proxies ------------------------------------------------------------------------------------------------


def _proxies(tree, homes):
    """[{layer, file, kind, value}] of every proxy that a layer is set to use. layer: everybody, user, docker, conda, pip.

    kind: http, https, all. value: host:port, never a user or a password. apt's own are among its settings.
    """
    found = []

    def add(layer, file, name, value):
        kind = name.lower().split("_")[0].split("-")[0]
        found.append({"layer": layer, "file": file, "kind": kind, "value": proxies.place(value)})

    everybody = ["/etc/environment", "/etc/profile", "/etc/bash.bashrc"]
    everybody += ["/etc/profile.d/" + name for name in tree.names("/etc/profile.d")]
    users = ["%s/%s" % (home, name) for _, home in homes for name in _USER_FILES]
    for layer, files in (("everybody", everybody), ("user", users)):
        for file in files:
            for line in (tree.read(file, 65536) or "").splitlines():
                match = _PROXY_LINE.match(line)
                if match and "$" not in match.group("value"):
                    add(layer, file, match.group("name"), match.group("value"))
    folder = "/etc/systemd/system/docker.service.d"
    for name in tree.names(folder):
        for variable, value in _DROPIN_PROXY.findall(tree.read("%s/%s" % (folder, name), 65536) or ""):
            add("docker", "%s/%s" % (folder, name), variable, value)
    for name, place in daemon_flags.environment_files(tree):
        if name.lower() in ("http_proxy", "https_proxy"):
            found.append({"layer": "docker", "file": place, "kind": name.lower().split("_")[0], "value": ""})
    for file in ["/etc/conda/.condarc", "/root/.condarc"] + ["%s/.condarc" % home for _, home in homes]:
        text = tree.read(file, 65536) or ""
        block = re.search(r"^proxy_servers:\s*\n((?:[ \t]+.*\n?)+)", text, re.M)
        for kind, value in re.findall(r"^[ \t]+(https?)\s*:\s*(\S+)", block.group(1) if block else "", re.M):
            add("conda", file, kind, value.strip("\"'"))
    pips = ["/etc/pip.conf"] + [
        "%s/%s" % (home, name) for _, home in homes for name in (".config/pip/pip.conf", ".pip/pip.conf")
    ]
    for file in pips:
        match = re.search(r"^[ \t]*proxy\s*=\s*(\S+)", tree.read(file, 65536) or "", re.M)
        if match:
            add("pip", file, "all", match.group(1))
    return found[:64]


_VISIBLE = lazy_re.compile(
    r"^\s*(?:export\s+|setenv\s+|Environment=|DefaultEnvironment=)?[\"']?CUDA_VISIBLE_DEVICES[=\s][\"']?([\w,./:-]*)[\"']?\s*;?\s*$"
)


def _hidden_cards(tree):
    """[{file, line, text}] of assignments of CUDA_VISIBLE_DEVICES in files that every login or every service reads."""
    files = ["/etc/environment", "/etc/profile", "/etc/bash.bashrc", "/etc/zsh/zshenv", "/etc/systemd/system.conf"]
    for folder in ("/etc/profile.d", "/etc/environment.d", "/etc/systemd/system.conf.d"):
        files += ["%s/%s" % (folder, name) for name in tree.names(folder)]
    found = []
    for file in files:
        for number, line in enumerate((tree.read(file, 65536) or "").splitlines(), 1):
            match = _VISIBLE.match(line)
            if match:
                found.append({"file": file, "line": number, "text": "CUDA_VISIBLE_DEVICES=" + match.group(1)[:200]})
    return found[:20]


def _sudo_keeps_proxy(tree):
    """True where sudo hands the proxy's variables on; None where its files is not readable."""
    texts = [tree.read("/etc/sudoers", 65536)]
    texts += [tree.read("/etc/sudoers.d/" + name, 65536) for name in tree.names("/etc/sudoers.d")]
    if texts[0] is None:
        return None
    return any(re.search(r"^[ \t]*Defaults.*env_keep.*https?_proxy", text or "", re.M | re.I) for text in texts)


# --- libraries that Python environments bring ---------------------------------------------------------------


def _bundled(tree, facts, homes):
    """[{environment, soname, path, version}] of CUDA libraries inside Python environments (wheels of pip's nvidia-*)."""
    places, found = [], []
    for env in facts["conda"]["environments"] + facts["conda"]["prefixes"]:
        if env.get("python"):
            short = ".".join(env["python"].split(".")[:2])
            places.append((env["path"], "%s/lib/python%s/site-packages" % (env["path"], short)))
            found += _of_conda(tree, env["path"])
    for base in _environments(tree, homes):
        for name in tree.names(base + "/lib"):
            if name.startswith("python3"):
                places += [(base, "%s/lib/%s/%s" % (base, name, kind)) for kind in ("site-packages", "dist-packages")]
    for environment, site in list(dict.fromkeys(places))[: 2 * _MOST_ENVIRONMENTS]:
        parts = tree.names(site + "/nvidia")
        versions = _wheels(tree, site) if parts else {}
        for part in parts:
            for name in tree.names("%s/nvidia/%s/lib" % (site, part)):
                match = _LIBRARY.match(name)
                if match:
                    family = match.group(1)
                    wheel = _WHEELS.get(family, family.lower())
                    found.append(
                        {
                            "environment": environment,
                            "soname": name,
                            "path": "%s/nvidia/%s/lib/%s" % (site, part, name),
                            "version": versions.get(wheel) or versions.get(part),
                        }
                    )
    return found[:_MOST_LIBRARIES]


def _environments(tree, homes):
    """Folders that may be virtual environments, or hold packages for everybody: by their usual places, without a walk.

    Nothing on file systems of other machines is looked at: their server may not answer.
    """
    mounts = cuda_shell.Mounts(tree)

    def names(folder):
        return [] if mounts.remote(folder or "/") else tree.names(folder or "/")[:_MOST_ENVIRONMENTS]

    tops = ["/opt/" + name for name in names("/opt")] + ["", "/opt", "/srv", "/data"]
    for _, home in homes:
        tops += [home] + ["%s/%s" % (home, name) for name in names(home) if not name.startswith(".")]
    tops = [top for top in tops if not mounts.remote(top or "/")]
    places = [top for top in tops if top] + ["%s/%s" % (top, name) for top in tops for name in _VENVS]
    found = [place for place in places if tree.exists(place + "/pyvenv.cfg")]
    for top in tops:
        for folder in ("envs", "venvs", ".virtualenvs"):
            below = "%s/%s" % (top, folder)
            found += ["%s/%s" % (below, name) for name in names(below)]
    return found + ["/usr/local"] + [home + "/.local" for _, home in homes]


def _of_conda(tree, path):
    """The same of conda's own packages, which lie in the environment's lib."""
    names = [name for name in tree.names(path + "/lib") if name.startswith("lib") and _LIBRARY.match(name)]
    found = []
    for name in names:
        file = "%s/lib/%s" % (path, name)
        if tree.is_link(file):
            target = tree.resolve(file).rpartition(".so.")[2]
            found.append({"environment": path, "soname": name, "path": file, "version": target or None})
    return found


def _wheels(tree, site):
    """{part: version} by the names of pip's records: nvidia_nvjitlink_cu12-12.4.127.dist-info."""
    found = {}
    for name in tree.names(site):
        match = re.match(r"^nvidia[_-]([a-z0-9_]+?)(?:[_-]cu[0-9]+)?-([0-9][^-]*)\.dist-info$", name)
        if match:
            found[match.group(1)] = match.group(2)
    return found


# --- docker, conda ------------------------------------------------------------------------------------------


def _daemon_copies(tree, path):
    """[{path, keys, lost}] of files beside daemon.json that an installer or a person left; lost: keys the file lacks now."""
    folder, _, own = path.rpartition("/")
    now = _keys(tree.read_bytes(path, daemon_json.MAX_BYTES + 1))
    found = []
    for name in tree.names(folder):
        if name.startswith(own) and name != own:
            keys = _keys(tree.read_bytes("%s/%s" % (folder, name), daemon_json.MAX_BYTES + 1))
            if keys:
                lost = [key for key in keys if now is not None and key not in now]
                found.append({"path": "%s/%s" % (folder, name), "keys": keys, "lost": lost})
    return found[:16]


def _keys(data):
    """Names at the top of a daemon.json; None where there is no file or it cannot be read."""
    if data is None:
        return None
    try:
        return list(daemon_json.parse(data).value)[:64]
    except daemon_json.DaemonJsonError:
        return None


def _data_roots(tree):
    """Folders outside /var/lib/docker that hold a docker's images and containers: a data-root that was in use."""
    tops = ["/" + name for name in tree.names("/") if name in _ROOTS]
    mounts = cuda_shell.Mounts(tree)
    tops = [top for top in tops if not mounts.remote(top)]
    tops += [
        "%s/%s" % (top, name)
        for top in tops
        for name in tree.names(top)[:64]
        if not mounts.remote("%s/%s" % (top, name))
    ]
    return [top for top in tops if tree.is_dir(top + "/overlay2") and tree.is_dir(top + "/containers")][:8]


def _conda_guarded(tree, homes):
    """{user: file} where conda's block follows the line that ends the file for shells that are not interactive."""
    found = {}
    for user, home in homes:
        file = home + "/.bashrc"
        text = tree.read(file, 1 << 18) or ""
        at = text.find(">>> conda initialize >>>")
        if at >= 0 and any(_GUARD.match(line) for line in text[:at].splitlines()):
            found[user] = file
    return found
