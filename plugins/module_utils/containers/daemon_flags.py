# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Where dockerd's flags come from, and which of them say what daemon.json says too: dockerd does not start then.

Reads files only: the unit and its drop-ins as systemd would, the environment files that they name, and the command
line of a running dockerd. Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import re
import time

from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_json
from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import integer

UNIT = "docker.service"
CONFIG = "/etc/docker/daemon.json"
SOCKET = "/var/run/docker.sock"
HOOK = "/usr/bin/nvidia-container-runtime-hook"
# In the order of systemd.unit(5): the first unit file counts, drop-ins of all folders do, by name.
UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
# Flags whose key in the file is another word (source: dockerd's reference; cmd/dockerd/config.go in moby).
KEYS = {
    "add-runtime": "runtimes",
    "host": "hosts",
    "H": "hosts",
    "exec-opt": "exec-opts",
    "log-opt": "log-opts",
    "label": "labels",
    "insecure-registry": "insecure-registries",
    "registry-mirror": "registry-mirrors",
    "storage-opt": "storage-opts",
    "dns-opt": "dns-opts",
    "default-ulimit": "default-ulimits",
    "feature": "features",
    "authorization-plugin": "authorization-plugins",
    "default-address-pool": "default-address-pools",
    "D": "debug",
    "b": "bridge",
    "G": "group",
    "g": "data-root",
    "graph": "data-root",
    "l": "log-level",
    "p": "pidfile",
    "s": "storage-driver",
    "cdi-spec-dir": "cdi-spec-dirs",
    "node-generic-resource": "node-generic-resources",
}
_SHORT_WITH_VALUE = "HbGglps"
_SWITCH = lazy_re.compile(
    r"(D|debug|experimental|icc|init|ip-forward|ip-masq|iptables|ip6tables|ipv6|live-restore|no-new-privileges|raw-logs"
    r"|rootless|selinux-enabled|tls|tlsverify|userland-proxy|validate|cri-containerd|version|v|help|http-proxy-insecure"
    r"|allow-direct-routing)\Z"
)


class Flag(object):
    """One flag: key (as in daemon.json), text (as written), value, place ("FILE, line N" or "process 12")."""

    def __init__(self, key, text, value, place):
        self.key, self.text, self.value, self.place = key, text, value, place


class Flags(object):
    """All flags that count, the daemon.json that is read, the program, and what of them is a running process' only.

    program: path of dockerd, or None; config: path of daemon.json, of a flag before the one given; flags: [Flag] of the unit
    (of the process where no unit is there); pid: of the running dockerd, or None; started: that process' start, clock ticks
    since boot.
    """

    def __init__(self, program, config, flags, pid=None, started=None):
        self.program, self.flags, self.pid, self.started = program, flags, pid, started
        self.config = next((flag.value for flag in flags if flag.key == "config-file"), config)

    @property
    def arguments(self):
        """What dockerd is started with, without its configuration file."""
        return [word for flag in self.flags if flag.key != "config-file" for word in flag.text.split(" ", 1) if word]

    @property
    def socket(self):
        """The first Unix socket that dockerd listens on by its flags, else the usual one (also behind fd://)."""
        return next((flag.value[7:] for flag in self.of("hosts") if flag.value.startswith("unix://")), SOCKET)

    def of(self, key):
        """Flags that set one key of daemon.json."""
        return [flag for flag in self.flags if flag.key == key]


def read(tree):
    """Read the system's dockerd from files (HostTree)."""
    pid = find_process(tree)
    words = unit_command(tree)
    if not words and pid is not None:
        return of_process(tree, pid)
    program, flags = parse(words)
    return Flags(program, CONFIG, flags, pid, started(tree, pid) if pid is not None else None)


def of_process(tree, pid, config=CONFIG):
    """The Flags of one running dockerd by its command line; config: the daemon.json that it reads without a flag."""
    words = [word for word in (tree.read("/proc/%d/cmdline" % pid) or "").split("\0") if word]
    program, flags = parse([(word, "process %d" % pid) for word in words])
    # What runs may have been started by a bare name; after an upgrade its own file is gone.
    running = tree.link("/proc/%d/exe" % pid)
    program = running if running and not running.endswith(" (deleted)") else program
    return Flags(program, config, flags, pid, started(tree, pid))


def find_process(tree, pid_file="/run/docker.pid", name="dockerd"):
    """Pid of a running daemon, by its pid file where that tells the truth, else by the process table; None."""
    for pid in processes(tree, name, [tree.word(pid_file)]):
        # A container's own daemon, and a rootless one, are not the system's.
        namespace = tree.link("/proc/%d/ns/mnt" % pid)
        if namespace is None or namespace == tree.link("/proc/self/ns/mnt"):
            return pid
    return None


def processes(tree, name="dockerd", first=()):
    """Pids of the processes of a name, as they are asked for; first: words that are tried before the whole table."""
    for pid in map(integer, [*first, *tree.names("/proc")]):
        if pid and tree.word("/proc/%d/comm" % pid) == name:
            yield pid


def started(tree, pid):
    """When a process was started, in clock ticks since boot (proc(5), field 22), or None."""
    text = tree.read("/proc/%d/stat" % pid) or ""
    fields = text.rpartition(")")[2].split()
    return integer(fields[19]) if len(fields) > 19 else None


def since_epoch(tree, ticks):
    """The same in seconds since the epoch, or None. ticks: of started."""
    if ticks is None:
        return None
    boot = re.search(r"^btime ([0-9]{1,18})$", tree.read("/proc/stat") or "", re.M)
    # Ticks are of 10 ms on every Linux that programs see (USER_HZ, proc(5)).
    return None if boot is None else int(boot.group(1)) + ticks / 100.0


def hook_is_newer(tree, started):
    """True when the toolkit was installed after dockerd was started (clock ticks since boot): it does not know --gpus."""
    found = tree.stat(HOOK)
    since = since_epoch(tree, started)
    if found is None or since is None:
        return False
    first = installed_at(tree, "nvidia-container-toolkit")
    return (found.st_ctime if first is None else first) > since


def installed_at(tree, package):
    """When a package came, by dpkg's log, in seconds since the epoch: 0 when it only says upgrades, None when nothing."""
    known = None
    for path in ("/var/log/dpkg.log.1", "/var/log/dpkg.log"):
        pattern = r"(?m)^(\S+ \S+) (install|upgrade) %s(?::\S+)? " % re.escape(package)
        for when, verb in re.findall(pattern, tree.read(path) or ""):
            if verb == "install":
                known = time.mktime(time.strptime(when, "%Y-%m-%d %H:%M:%S"))
            elif known is None:
                known = 0
    return known


def unit_command(tree, unit=UNIT):
    """[(word, place)] of the command that systemd starts: the last ExecStart that counts, its variables filled in."""
    return _expand(tree, _unit_lines(tree, unit))


def environment_files(tree):
    """[(name, place)] of what files of docker's EnvironmentFile= set: they go before its unit's Environment=."""
    paths = [
        text.partition("=")[2].strip().lstrip("-")
        for text, _ in _unit_lines(tree, UNIT)
        if text.startswith("EnvironmentFile=")
    ]
    return [(name, place) for path in paths for name, _, place in _assignments(tree, path)]


def _assignments(tree, path):
    """(name, value, place) of the lines of an EnvironmentFile."""
    for number, line in enumerate((tree.read(path) or "").splitlines(), 1):
        match = re.match(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)$", line)
        if match:
            yield match.group(1), " ".join(_split(match.group(2))), "%s, line %d" % (path, number)


def _unit_lines(tree, unit):
    """[(text, place)] of the unit's [Service] lines in the order in which they count."""
    base = next((path for path in ("%s/%s" % (f, unit) for f in UNIT_FOLDERS) if tree.exists(path)), None)
    if base is None:
        return []
    drop_ins = {}
    for folder in reversed(UNIT_FOLDERS):
        below = "%s/%s.d" % (folder, unit)
        drop_ins.update((name, below) for name in tree.names(below) if name.endswith(".conf"))
    paths = [base] + ["%s/%s" % (drop_ins[name], name) for name in sorted(drop_ins)]
    return [line for path in paths for line in _logical_lines(tree.read(path) or "", path)]


def _logical_lines(text, path):
    """Lines with a backslash at their end continued; comments left out."""
    found, begun, number = [], "", 0
    for at, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not begun:
            number = at
        if stripped.startswith(("#", ";")) or (not stripped and not begun):
            continue
        if stripped.endswith("\\"):
            begun += stripped[:-1] + " "
            continue
        found.append((begun + stripped, "%s, line %d" % (path, number)))
        begun = ""
    return found


def _expand(tree, lines):
    command, environment = None, {}
    for text, place in lines:
        key, equals, value = text.partition("=")
        key, value = key.strip(), value.strip()
        if not equals:
            continue
        if key == "ExecStart":
            # An empty one takes all before it back.
            command = (value, place) if value else None
        elif key == "Environment":
            for word in _split(value):
                name, _, content = word.partition("=")
                environment[name] = (content, place)
        elif key == "EnvironmentFile":
            for name, content, where in _assignments(tree, value.lstrip("-")):
                environment[name] = (content, where)
    if command is None:
        return []
    words = []
    for word in _split(command[0].lstrip("@-:+!")):
        whole = re.match(r"^\$(?:\{(\w+)\}|(\w+))$", word)
        if whole:
            value, place = environment.get(whole.group(1) or whole.group(2), ("", ""))
            # systemd splits $NAME into words, ${NAME} stays one (systemd.service(5), "Command lines").
            words += [(part, place) for part in (_split(value) if whole.group(2) else [value] if value else [])]
            continue
        words.append((re.sub(r"\$\{(\w+)\}", lambda m: environment.get(m.group(1), ("",))[0], word), command[1]))
    return words


def _split(text):
    # slow to load, and few daemons have such a line
    import shlex

    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def parse(words):
    """(program, [Flag]) of a command line as [(word, place)]."""
    if not words:
        return None, []
    flags, at = [], 1
    while at < len(words):
        word, place = words[at]
        at += 1
        if not word.startswith("-") or word == "-":
            continue
        name, equals, value = word.lstrip("-").partition("=")
        text = word
        if not word.startswith("--") and len(name) > 1 and name[0] in _SHORT_WITH_VALUE and not equals:
            name, value = name[0], name[1:]
        elif not equals and not _SWITCH.match(name) and at < len(words):
            value = words[at][0]
            text = "%s %s" % (word, value)
            at += 1
        flags.append(Flag(KEYS.get(name, name), text, value, place))
    return words[0][0], flags


def conflicts(flags, value):
    """[(key, Flag)]: what is both a flag and a key of the file's value; dockerd refuses to start with any of them."""
    found = []
    for flag in flags.flags:
        if flag.key in value and flag.key not in [key for key, _ in found]:
            found.append((flag.key, flag))
    return found


def way_out(flag, config, new=False):
    """What to do about a flag whose key is in the file too; new: it would be, once the desired state is written."""
    name, _, path = flag.value.partition("=")
    if flag.key == "runtimes" and name != daemon_json.RUNTIME:
        entry = '"runtimes": {"%s": {"path": "%s"}}' % (name, path)
        return "move it into %s, %s, and out of %s" % (config, entry, flag.place)
    if new:
        return "move it from %s into %s; or leave container_toolkit's %s unset" % (flag.place, config, flag.key)
    return "remove %s from %s: %s already has it" % (flag.text, flag.place, config)


def runtimes_of(flags):
    """{name: path} of runtimes that flags register."""
    return dict(flag.value.partition("=")[::2] for flag in flags if flag.key == "runtimes")


def ungranted(desired, flags, value):
    """What is desired of a daemon.json (see daemon_json.wanted) without what a flag sets already. value: of the file."""
    desired = dict(desired)
    # the last one counts
    given = {flag.key: flag.value for flag in flags}
    if desired.get("runtime") and runtimes_of(flags).get(daemon_json.RUNTIME) and "runtimes" not in value:
        desired["runtime"] = False
    if desired.get("default_runtime") and given.get("default-runtime") == desired["default_runtime"]:
        desired["default_runtime"] = ""
    size = given.get("default-shm-size")
    if desired.get("shm_size") and size and daemon_json.size_of(size) == daemon_json.size_of(desired["shm_size"]):
        desired["shm_size"] = ""
    option = daemon_json.CGROUP_DRIVER + str(desired.get("cgroup_driver"))
    if desired.get("cgroup_driver") and option in [flag.value for flag in flags if flag.key == "exec-opts"]:
        desired["cgroup_driver"] = ""
    return desired
