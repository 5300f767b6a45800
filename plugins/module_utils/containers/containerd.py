# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Register NVIDIA's runtime with containerd's CRI, in whichever way loses nothing of what is configured.

containerd itself says what a file means (``config dump``): before and after are compared before anything reaches its
path. Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import os
import re
import socket

from ansible_collections.gpu.provision.plugins.module_utils.containers import (
    containerd_config,
    daemon_flags,
    docker_api,
)
from ansible_collections.gpu.provision.plugins.module_utils.containers import docker as containers_docker
from ansible_collections.gpu.provision.plugins.module_utils.lib import scratch

PID_FILE = "/run/containerd/containerd.pid"
# What systemd takes down with containerd.
_BOUND = ("RequiredBy", "BoundBy", "ConsistsOf")


class Containerd(object):
    """The system's containerd. policy: when_idle, always or never, for restarts that take docker down as well."""

    def __init__(self, host, policy, api=docker_api.Client):
        self.host, self.tree, self.policy, self.api = host, host.tree, policy, api
        words = daemon_flags.unit_command(self.tree, "containerd.service")
        self.program = next((p for p in containerd_config.PROGRAMS if self.tree.exists(p)), None)
        self.config = _config_of([word for word, _ in words])
        self.pid = daemon_flags.find_process(self.tree, PID_FILE, "containerd")
        self.started = daemon_flags.started(self.tree, self.pid) if self.pid else None

    def ensure(self, desired):
        """desired: {default_runtime}. Everything is reported to the host."""
        if self.program is None and self.host.check:
            self.host.warn("containerd is not installed: its configuration is checked once it is")
            return
        if self.program is None:
            self.host.fail(
                "containers.no_containerd",
                "containerd is not installed",
                "remove containerd from container_toolkit_runtimes, or install it first (apt install containerd)",
            )
        default = desired.get("default_runtime") or ""
        file = self.host.read(self.config)
        text = self._text(file)
        before, said = self._dump(text or "version = %d\n" % self._newest_version())
        if before is None:
            self.host.fail(
                "containers.containerd_config",
                "containerd cannot read %s" % self.config,
                "correct what it names; containerd --config %s config dump checks it" % self.config,
                said[-4:],
            )
        plugins = containerd_config.PLUGINS.values()
        fresh = not any(containerd_config.is_registered(before, plugin, default) for plugin in plugins)
        if fresh:
            self._register(file, text, before, default)
        self._warn_disabled(before)
        mark = self.host.pending().get("containerd") or {}
        if self.pid and (fresh or mark.get("started") == self.started):
            self._restart()
        else:
            self.host.unmark("containerd")

    def _text(self, file):
        try:
            return (file.data or b"").decode("utf-8")
        except UnicodeDecodeError as error:
            self.host.fail(
                "containers.containerd_config",
                "%s is not UTF-8 (byte %d)" % (self.config, error.start),
                "correct it by hand: containerd does not start with it",
            )

    # ---- which way

    def _register(self, file, text, before, default):
        version = containerd_config.version_of(text) or self._newest_version()
        if version not in containerd_config.PLUGINS:
            self.host.fail(
                "containers.containerd_version",
                "%s is of version %d of containerd's configuration" % (self.config, version),
                "write version = 2 at its top and plugins by their full names (containerd config dump prints it so)",
                ["that version has no place for runtimes that containerd still reads"],
            )
        plugin = containerd_config.PLUGINS[version]
        options = {}
        for name in containerd_config.PLUGINS.values():
            options = options or before.get(("plugins", name, "containerd", "runtimes", "runc", "options"), {})
        loses = []
        for beside in ({}, containerd_config.unsaid(before, text, plugin)):
            own = containerd_config.drop_in(version, plugin, options, default, beside)
            main = containerd_config.with_import(text, version, os.path.dirname(containerd_config.DROP_IN) + "/*.toml")
            if main is not None and not self._loses(before, default, main, own):
                self.host.mark("containerd", self.started, ["runtimes"])
                self.host.write_own(containerd_config.DROP_IN, own)
                if main != text:
                    self.host.replace(self.config, file, main.encode("utf-8"))
                return
            main = containerd_config.with_block(text, version, plugin, options, default, beside)
            loses = self._loses(before, default, main, None)
            if not loses:
                self.host.mark("containerd", self.started, ["runtimes"])
                self.host.replace(self.config, file, main.encode("utf-8"))
                return
        self.host.fail(
            "containers.containerd_config",
            "there is no way to add a runtime to %s that keeps all the rest" % self.config,
            "add it by hand: containerd config dump shows the entry of runc; add nvidia next to it",
            loses[:8],
        )

    def _newest_version(self):
        """Version for a file that is not there yet."""
        out = self.host.run([self.program, "--version"], 20.0)[1]
        match = re.search(r"\bv?([0-9]{1,9})\.[0-9]+\.[0-9]+", out)
        return 3 if match and int(match.group(1)) >= 2 else 2

    def _loses(self, before, default, main, own):
        """What a candidate would lose or break, [] when nothing."""
        after, said = self._dump(main, own)
        if after is None:
            return said[-3:]
        plugins = containerd_config.PLUGINS.values()
        if not any(containerd_config.is_registered(after, plugin, default) for plugin in plugins):
            return ["containerd does not see the runtime in it"]
        return [
            line
            for plugin in plugins
            for line in containerd_config.lost(before, after, plugin, default)
            if any(("plugins", plugin, "containerd") in dump for dump in (before, after))
        ]

    def _dump(self, main, own=None):
        """(sections, []) of what a file means to containerd, (None, its words) where it cannot read it.

        It is tried in a folder of its own; own: text of our file that it imports, with all others of that folder.
        """
        with scratch.Folder("containerd") as folder:
            path, below = os.path.join(folder, "config.toml"), os.path.join(folder, "conf.d")
            imported, name = os.path.split(containerd_config.DROP_IN)
            if own is not None:
                names = [other for other in self.tree.names(imported) if other.endswith(".toml")]
                texts = {other: self.tree.read("%s/%s" % (imported, other)) or "" for other in names}
                texts[name] = own
                os.mkdir(below)
                for other, text in texts.items():
                    _write(os.path.join(below, other), text)
                main = main.replace(imported + "/*.toml", below + "/*.toml")
            _write(path, main)
            rc, out, err = self.host.run([self.program, "--config", path, "config", "dump"], 30.0)
        if rc == 0:
            return containerd_config.sections(out), []
        said = (err or out).strip().splitlines() or ["exit code %d" % rc]
        return None, [line.replace(path, self.config).replace(below, imported) for line in said]

    def _warn_disabled(self, dump):
        if containerd_config.is_cri_disabled(dump):
            self.host.warn(
                "containerd's CRI is switched off (disabled_plugins in %s): only Kubernetes uses the runtime"
                % self.config
            )

    # ---- the daemon

    def _restart(self):
        rows = self._in_the_way()
        if self.policy == "never" or (rows and self.policy != "always"):
            self.host.restart_because.append("containerd reads %s only when it starts" % self.config)
            self.host.in_the_way += rows
            return
        command = ["systemctl", "restart", "containerd"] if self.host.systemd else ["service", "containerd", "restart"]
        self.host.command(
            command,
            "restarted containerd (its containers keep running)",
            "containers.containerd_down",
            "journalctl -b -u containerd says why; the earlier file is in %s" % self.host.backup,
        )
        if not self.host.check and self.host.systemd:
            self._wait()
        self.host.unmark("containerd")

    def _wait(self):
        end = self.host.clock.time() + containers_docker.START_WAIT
        while self.host.clock.time() < end:
            if _answers("/run/containerd/containerd.sock"):
                return
            self.host.clock.sleep(0.3)
        self.host.fail(
            "containers.containerd_down",
            "containerd did not start again",
            "journalctl -b -u containerd says why; the earlier file is in %s" % self.host.backup,
            self.host.journal("containerd"),
        )

    def _in_the_way(self):
        """Containers of docker where systemd takes docker down with containerd; containerd's own survive a restart."""
        if not self.host.systemd:
            return []
        out = self.host.run(["systemctl", "show", "containerd.service", "-p", ",".join(_BOUND)], 20.0)[1]
        if not re.search(r"\bdocker\.service\b", out) or daemon_flags.find_process(self.tree) is None:
            return []
        client = self.api(daemon_flags.SOCKET)
        try:
            if client.info()["live_restore"]:
                return []
            rows = client.running(containers_docker.gpu_containers(self.tree))
        except docker_api.DockerError:
            return []
        return [dict(row, runtime="docker") for row in rows]


def _config_of(words):
    for at, word in enumerate(words):
        if word in ("--config", "-c") and at + 1 < len(words):
            return words[at + 1]
        if word.startswith("--config="):
            return word.partition("=")[2]
    return containerd_config.CONFIG


def _write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _answers(path):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(2.0)
    try:
        client.connect(path)
    except OSError:
        return False
    finally:
        client.close()
    return True
