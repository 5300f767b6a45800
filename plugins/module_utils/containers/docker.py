# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Register NVIDIA's runtime with docker: read, compare, merge, let dockerd judge, write, have it taken up, ask dockerd.

dockerd takes up most keys when it is told to read its file again (SIGHUP), and touches no container then (source:
dockerd's reference, "Configuration reload behavior"; moby's reload_unix.go for default-shm-size). What it takes up at
its start only waits for a restart, and a restart for consent where containers would end.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import os
import re
import signal
import stat

from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from ansible_collections.gpu.provision.plugins.module_utils.containers import (
    daemon_flags,
    daemon_json,
    docker_api,
    docker_host,
    docker_proxy,
)
from ansible_collections.gpu.provision.plugins.module_utils.containers import host as containers_host
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree

NOBODY = 65534
GPUS = "--gpus"
# What dockerd takes up only when it starts. GPUS: it looks for NVIDIA's hook then (moby's daemon/nvidia_linux.go; tried
# with 20.10: "could not select device driver" until it is restarted).
AT_START = ("exec-opts", "features.cdi", GPUS, docker_proxy.KEY)
RELOAD_WAIT, START_WAIT = 10.0, 60.0


class Docker(object):
    """The system's daemon. policy: when_idle, always or never, for restarts. api(socket): docker_api.Client."""

    name = "docker"

    def __init__(self, host, policy, api=docker_api.Client, kill=os.kill):
        self.host, self.tree, self.policy, self.kill = host, host.tree, policy, kill
        self.flags = self._read_flags()
        self.config = self.flags.config
        self.api = api(self._socket())
        self.file, self.gpus = None, False
        # (uid, gid) of who starts it, where that is not root
        self.owner = None
        self.by_systemd = host.systemd

    def ensure(self, desired):
        """Bring daemon.json and the daemon to the desired state (see daemon_json.wanted); everything is reported to the host."""
        self.file = self._read()
        self.gpus = bool(desired.get("runtime"))
        try:
            document = daemon_json.parse(self.file.data or b"")
            desired = self._by_flags(desired, document)
            merged, keys = daemon_json.merge(document, desired, self._is_program)
        except daemon_json.DaemonJsonError as error:
            self.host.fail(
                "containers.daemon_json",
                "%s, %s" % (self.config, error),
                error.hint,
                ["it is kept: its content would be lost", "dockerd would not start with it, or not with all of it"],
            )
        for message in merged.warnings:
            self.host.warn("%s: %s" % (self.config, message))
        self._no_conflict(merged.value)
        data = merged.data
        if self.file.data is not None and not data.strip():
            # an empty file stops dockerd up to 20.10 at least
            data = b"{}\n"
        if data != (self.file.data or b""):
            self._judge(data)
            self._may_start(merged.value)
            self.host.mark(self.name, self.flags.started, keys)
            self._write(data)
        if desired.get("proxy") is not None:
            keys = keys + self._set_proxy(desired, document)
        self._take_up(desired, keys)

    # ---- the file

    def _read(self):
        return self.host.read(self.config)

    def _write(self, data):
        self.host.replace(self.config, self.file, data)

    def _is_program(self, path):
        return not path.startswith("/") or self.tree.exists(path)

    # ---- flags beside the file

    def _by_flags(self, desired, document):
        left = daemon_flags.ungranted(desired, self.flags.flags, document.value)
        if desired.get("runtime") and not left["runtime"]:
            self.host.warn("the runtime is registered by a flag (%s)" % self.flags.of("runtimes")[0].place)
        return left

    def _no_conflict(self, value):
        found = daemon_flags.conflicts(self.flags, value)
        if not found:
            return
        key, flag = found[0]
        self.host.fail(
            "containers.flag_conflict",
            "%s is given by a flag of dockerd and in %s: it would not start" % (key, self.config),
            daemon_flags.way_out(flag, self.config),
            ["%s: %s" % (one.place, one.text) for _, one in found] + ["%s was not changed" % self.config],
        )

    # ---- dockerd's own judgement, before the file reaches its path

    def _judge(self, data):
        program = self.flags.program or docker_host.inspect(self.tree)["engine"]
        if not program or not self.tree.live:
            return
        said = judge(self.host.run, program, self.flags.arguments, data, self.owner)
        if said is None:
            self.host.warn("%s could not check %s" % (program, self.config))
        if said:
            self._dockerd_refuses("refuse %s: %s" % (self.config, said), "correct what it names in %s")

    def _may_start(self, value):
        """What dockerd from 24.0 on says only when it starts, and not when it is asked (seen with 26.1)."""
        runtimes = value.get("runtimes") or {}
        default = value.get("default-runtime") or ""
        known = set(runtimes) | set(daemon_flags.runtimes_of(self.flags.flags)) | {"", "runc"}
        wrong = ""
        if "runc" in runtimes:
            wrong = "the name runc in runtimes is dockerd's own"
        elif default not in known and "/" not in default and not default.startswith("io.containerd."):
            wrong = "default-runtime is %s, and no runtime of that name is registered" % default
        if wrong:
            self._dockerd_refuses("not start with %s: %s" % (self.config, wrong), "correct it in %s")

    def _dockerd_refuses(self, would, hint):
        self.host.fail(
            "containers.dockerd_refuses",
            "dockerd would " + would,
            hint % self.config + ", then run again",
            ["%s was not changed" % self.config],
        )

    # ---- the proxy, in a drop-in of the unit

    def _set_proxy(self, desired, document):
        """Write or remove our drop-in; returns [its key] where docker has to take that up."""
        text = docker_proxy.render(desired["proxy"])
        place = docker_proxy.elsewhere(self.tree, self.flags, document.value) if text else ""
        if place:
            self.host.warn("docker has a proxy from %s, which overrides the inventory's: it is not changed" % place)
            desired["proxy"] = None
            return []
        if text and not self.host.systemd:
            self.host.warn("docker gets no proxy: it is not started by systemd here")
            desired["proxy"] = None
            return []
        there = self.tree.read(docker_proxy.PATH)
        if (there or "") == text:
            return []
        self.host.mark(self.name, self.flags.started, [docker_proxy.KEY])
        if text:
            self.host.write_own(docker_proxy.PATH, text)
        else:
            self.host.remove_own(docker_proxy.PATH)
        if self.flags.pid is None:
            self._read_units()
        return [docker_proxy.KEY]

    def _read_units(self):
        """Have systemd see the drop-in. Links in /dev/char are made before, so containers keep their GPUs."""
        self.host.command(
            ["systemctl", "daemon-reload"],
            "reloaded systemd's units",
            "containers.docker_down",
            "systemctl daemon-reload, by hand, says why",
        )

    # ---- the daemon

    def _take_up(self, desired, keys):
        if self.flags.pid is None:
            self._not_running()
            return
        mark = self.host.pending().get(self.name) or {}
        if mark.get("started") != self.flags.started:
            # it was started since, and reads its file at the start
            mark = {}
        info = self._info()
        todo = set(keys) | set(mark.get("keys") or ()) | set(differs(desired, info))
        if self.gpus and daemon_flags.hook_is_newer(self.tree, self.flags.started):
            todo.add(GPUS)
        late = sorted(key for key in todo if key.startswith(AT_START))
        if late and self._restart(late, info, desired):
            return
        left = self._reload(desired) if todo - set(late) else []
        if left and not late and self._restart(left, info, desired):
            return
        self.host.unmark(self.name)
        if late or left:
            self.host.mark(self.name, self.flags.started, late + left)

    def _info(self):
        hint = "journalctl -b -u docker says why; systemctl restart docker"
        return self._asked(self.api.info, "runs and does not answer", hint)

    def _asked(self, question, silent, hint):
        try:
            return question()
        except docker_api.DockerError as error:
            self.host.fail("containers.docker_silent", "%s %s" % (self.name, silent), hint, [str(error)])

    def _reload(self, desired):
        """Have the daemon read its file again; returns the keys that it then still has otherwise."""
        self.host.done.append("had %s read %s again" % (self.name, self.config))
        if self.host.check:
            return []
        self.kill(self.flags.pid, signal.SIGHUP)
        end = self.host.clock.time() + RELOAD_WAIT
        while True:
            self.host.clock.sleep(0.2)
            left = [key for key in differs(desired, self._info()) if not key.startswith(AT_START)]
            if not left or self.host.clock.time() > end:
                return left

    def _restart(self, keys, info, desired):
        """Restart the daemon where nobody's containers end by that, or it is agreed to; False where it has to wait."""
        rows = [] if info["live_restore"] else self._running()
        if self.policy == "never" or (rows and self.policy != "always"):
            self.host.restart_because.append("%s applies %s only when it starts" % (self.name, ", ".join(keys)))
            self.host.in_the_way += rows
            return False
        if docker_proxy.KEY in keys:
            self._read_units()
        self.host.done.append("restarted " + self.name)
        if self.host.check:
            return True
        rc, out, err = self.host.run(self._restart_command(), 120.0)
        answer = self._wait() if rc == 0 else None
        if answer is None:
            self._put_back((err or out).strip().splitlines())
        other = differs(desired, answer)
        if other:
            self.host.fail(
                "containers.not_registered",
                "%s was restarted and has other %s than it was given" % (self.name, ", ".join(other)),
                "docker info shows what it has; it may read another file than %s" % self.config,
                ["it lists %s; default %s" % (", ".join(sorted(answer["runtimes"])), answer["default_runtime"])],
            )
        self.host.unmark(self.name)
        return True

    def _restart_command(self):
        return ["systemctl", "restart", "docker"] if self.host.systemd else ["service", "docker", "restart"]

    def _wait(self):
        end = self.host.clock.time() + START_WAIT
        while self.host.clock.time() < end:
            try:
                return self.api.info()
            except docker_api.DockerError:
                self.host.clock.sleep(0.3)
        return None

    def _put_back(self, said):
        """The daemon did not come up: the old file and a start with it, so that the host works as before."""
        because = ((self.host.journal("docker") if self.by_systemd else []) or said)[-8:]
        back = "the earlier file is still there"
        if self.config in self.host.backups:
            new = self.host.read(self.config)
            self.host.backups["refused"] = self.host.keep(self.config + ".refused", new)
            self._write(self.file.data)
            self.host.run(self._restart_command(), 120.0)
            works = self._wait() is not None
            back = "the earlier file is restored, and docker %s" % (
                "runs" if works else "does not start with it either"
            )
        self.host.unmark(self.name)
        self.host.fail(
            "containers.docker_down",
            "%s did not start again" % self.name,
            "journalctl -b -u docker says why",
            [back] + because,
        )

    def _running(self):
        def question():
            return self.api.running(gpu_containers(self.tree))

        rows = self._asked(question, "does not say which containers run", "docker ps should answer")
        return [dict(row, runtime=self.name) for row in rows]

    def _not_running(self):
        if self.by_systemd and self.host.unit_state("docker.service") == "failed":
            self.host.run(["systemctl", "reset-failed", "docker.service"], 20.0)
            self.host.command(
                ["systemctl", "start", "docker.service"],
                "started docker, which had failed",
                "containers.docker_down",
                "journalctl -b -u docker says why",
            )
        elif self.host.done:
            self.host.warn("%s does not run: it reads %s when it starts" % (self.name, self.config))
        self.host.unmark(self.name)

    def _read_flags(self):
        return daemon_flags.read(self.tree)

    def _socket(self):
        return self.flags.socket


class UserDocker(Docker):
    """The rootless daemon of a user. row: {uid, gid, home} of docker_host.users. Files are read and written as the user."""

    def __init__(self, host, policy, user, row, api=docker_api.Client, kill=os.kill):
        self.user, self.row = user, row
        self.name = "docker of " + user
        Docker.__init__(self, host, policy, api, kill)
        self.owner, self.by_systemd = (row["uid"], row["gid"]), False

    def _read(self):
        real, text, mode = self._as_user(_read_file, self.tree.real(self.config))
        data = None if text is None else text.encode("latin-1")
        return containers_host.File(real, data, mode, self.row["uid"], self.row["gid"])

    def _write(self, data):
        def write(path, old, data, failed):
            self._as_user(containers_host.write_as, old.path, old, data, _raise)

        self.host.replace(self.config, self.file, data, write)

    def _as_user(self, function, *args):
        try:
            return conda_common.as_owner(conda_common.Owner(self.user), 0o022, function, *args)
        except OSError as error:
            self.host.fail(
                "containers.file",
                "cannot read or write %s as %s: %s" % (self.config, self.user, error.strerror or error),
                "see with ls -l and df -h whether the user may write there",
                ["the existing file is unchanged"],
            )

    def _restart_command(self):
        folder = "/run/user/%d" % self.row["uid"]
        names = ["XDG_RUNTIME_DIR=" + folder, "DBUS_SESSION_BUS_ADDRESS=unix:path=%s/bus" % folder]
        return ["runuser", "-u", self.user, "--", "env"] + names + ["systemctl", "--user", "restart", "docker"]

    def _socket(self):
        return "/run/user/%d/docker.sock" % self.row["uid"]

    def _read_flags(self):
        own = (pid for pid in daemon_flags.processes(self.tree) if _owner(self.tree, pid) == self.row["uid"])
        pid = next(own, None)
        config = self.row["home"] + "/.config/docker/daemon.json"
        return daemon_flags.Flags(None, config, []) if pid is None else daemon_flags.of_process(self.tree, pid, config)


def _read_file(path):
    """[real path, content (Latin-1) or None, mode]; plain data, for as_owner."""
    real = os.path.realpath(path)
    if not os.path.exists(real):
        return [real, None, 0o644]
    data, found = host_tree.read_stat(real)
    return [real, data.decode("latin-1"), stat.S_IMODE(found.st_mode)]


def _raise(error):
    raise OSError(0, error.message)


def differs(desired, info):
    """Keys of which a daemon (docker_api's info) says something else than what is desired. The truth is what the daemon says."""
    found = []
    if desired.get("runtime") and daemon_json.RUNTIME not in info["runtimes"]:
        found.append("runtimes")
    if desired.get("default_runtime") and info["default_runtime"] != desired["default_runtime"]:
        found.append("default-runtime")
    if desired.get("cgroup_driver") and info["cgroup_driver"] not in ("", "none", desired["cgroup_driver"]):
        found.append("exec-opts")
    if desired.get("proxy") and docker_proxy.differs(desired["proxy"], info):
        found.append(docker_proxy.KEY)
    return found


def judge(run, program, arguments, data, user=None):
    """What dockerd has against a file's bytes, with the flags that it is started with: "" when nothing, None when it
    cannot be asked.

    From 23.0 on dockerd has --validate. Before, it is started as a user that may not start it: it reads and judges its
    file first, then says that it needs root (tried with 20.10), and nothing was touched. user: (uid, gid) of a rootless one.
    """
    rc, out, _ = run([program, "--version"], 20.0)
    match = re.search(r"version ([0-9]+)\.([0-9]+)", out) if rc == 0 else None
    version = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    if version < (19, 3):
        return None
    validates = version >= (23, 0)
    if not validates and user is None:
        user = (NOBODY, NOBODY)
    said = _ask(run, program, arguments, data, user, validates)
    # What it has against any file is not about this one: docker-proxy that is not on our PATH, for one (seen with 26.1).
    return None if said and said == _ask(run, program, arguments, b"{}", user, validates) else said


def _ask(run, program, arguments, data, user, validates):
    # Both by descriptor: the user may neither reach dockerd's folder nor read what may hold secrets.
    handles = [os.open(program, os.O_RDONLY), os.memfd_create("daemon.json")]
    try:
        os.write(handles[1], data)
        if user and os.geteuid() == 0:
            os.fchown(handles[1], user[0], user[1])
        argv = ["/proc/self/fd/%d" % handles[0], "--config-file", "/proc/self/fd/%d" % handles[1]]
        rc, out, err = run(argv + (["--validate"] if validates else []) + list(arguments), 30.0, user, tuple(handles))
    finally:
        for handle in handles:
            os.close(handle)
    said = (err + out).strip()
    found = re.search(r"unable to configure the Docker daemon with file [^:]*: (.*)", said)
    if found:
        return found.group(1).strip()
    if not validates:
        return "" if "root" in said else None
    if rc in (124, 127):
        return None
    return "" if rc == 0 else (said.splitlines()[-1:] or ["exit code %d" % rc])[0]


def gpu_containers(tree):
    """Ids of containers in which a process has a GPU device open, by the process' cgroup."""
    found = set()
    for entry in tree.names("/proc"):
        if not host_tree.integer(entry):
            continue
        folder = "/proc/%s/fd" % entry
        if any((tree.link("%s/%s" % (folder, name)) or "").startswith("/dev/nvidia") for name in tree.names(folder)):
            found.update(re.findall(r"[0-9a-f]{64}", tree.read("/proc/%s/cgroup" % entry) or ""))
    return found


def _owner(tree, pid):
    found = re.search(r"(?m)^Uid:\s+([0-9]{1,18})\b", tree.read("/proc/%d/status" % pid) or "")
    return int(found.group(1)) if found else None
