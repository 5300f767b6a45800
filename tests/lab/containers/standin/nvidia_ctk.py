#!/usr/bin/python3
"""SIMULATION of nvidia-ctk: the commands that provisioning uses, with the real one's files, words and habits.

What the real one does was read in NVIDIA's repository nvidia-container-toolkit (cmd/nvidia-ctk, pkg/config/engine) and
its documentation. It writes daemon.json in one go, not atomically, with sorted keys and four spaces, and always.
"""

import glob
import json
import os
import re
import stat
import sys

VERSION = "@version@"
SPEC = "@cdi_version@"
CONFIG = "/etc/nvidia-container-runtime/config.toml"
DEFAULTS = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"

[nvidia-container-cli]
environment = []
ldconfig = "@/sbin/ldconfig.real"
load-kmods = true
#no-cgroups = false

[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-ctk]
path = "nvidia-ctk"
"""


def fail(text):
    sys.stderr.write('time="2026-11-28T00:00:00Z" level=error msg="%s"\n' % text)
    return 1


def info(text):
    sys.stderr.write('time="2026-11-28T00:00:00Z" level=info msg="%s"\n' % text)


def options(words):
    """({name: value}, the rest): --name=value, --name value where the next is no flag, --name alone."""
    found, rest, at = {}, [], 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-"):
            rest.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and name in ("output", "config", "config-file", "runtime", "set", "mode") and at < len(words):
            value, at = words[at], at + 1
        found.setdefault(name, []).append(value)
    return found, rest


def configure(given):
    runtime = given.get("runtime", ["docker"])[-1]
    default = "nvidia-set-as-default" in given or "set-as-default" in given
    if runtime == "docker":
        return configure_docker(given, default)
    if runtime == "containerd":
        return configure_containerd(given, default)
    return fail("unrecognized runtime '%s'" % runtime)


def configure_docker(given, default):
    path = given.get("config", ["/etc/docker/daemon.json"])[-1]
    try:
        with open(path) as handle:
            text = handle.read()
        value = json.loads(text) if text.strip() else {}
    except FileNotFoundError:
        info("Config file does not exist; using empty config")
        value = {}
    except ValueError as error:
        return fail("unable to load config for runtime docker: unable to read config: %s" % error)
    value.setdefault("runtimes", {})["nvidia"] = {"args": [], "path": "nvidia-container-runtime"}
    if default:
        value["default-runtime"] = "nvidia"
    if any(name in given for name in ("cdi.enabled", "cdi.enable", "enable-cdi")):
        value.setdefault("features", {})["cdi"] = True
    text = json.dumps(value, indent=4, sort_keys=True)
    if "dry-run" in given:
        print(text)
        return 0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as handle:
        handle.write(text)
    info("Wrote updated config to " + path)
    info("It is recommended that docker daemon be restarted.")
    return 0


def configure_containerd(given, default):
    """From 1.18 on: a file of NVIDIA's own in conf.d, and an import in the main one."""
    path = given.get("config", ["/etc/containerd/config.toml"])[-1]
    drop_in = "/etc/containerd/conf.d/99-nvidia.toml"
    plugin = 'plugins."io.containerd.grpc.v1.cri".containerd'
    lines = ["version = 2", "", "[%s]" % plugin]
    lines += ['  default_runtime_name = "nvidia"'] if default else []
    lines += [
        "[%s.runtimes.nvidia]" % plugin,
        '  runtime_type = "io.containerd.runc.v2"',
        "[%s.runtimes.nvidia.options]" % plugin,
        '  BinaryName = "/usr/bin/nvidia-container-runtime"',
    ]
    os.makedirs(os.path.dirname(drop_in), exist_ok=True)
    with open(drop_in, "w") as handle:
        handle.write("\n".join(lines) + "\n")
    text = open(path).read() if os.path.exists(path) else "version = 2\n"
    if "/etc/containerd/conf.d/*.toml" not in text:
        with open(path, "w") as handle:
            handle.write('imports = ["/etc/containerd/conf.d/*.toml"]\n' + text)
    info("Wrote updated config to " + drop_in)
    info("It is recommended that containerd daemon be restarted.")
    return 0


def driver_version():
    try:
        with open("/proc/driver/nvidia/version") as handle:
            return re.search(r"Kernel Module(?: for \S+)?\s+([0-9.]+)", handle.read()).group(1)
    except (FileNotFoundError, AttributeError):
        return None


def generate(given):
    version = driver_version()
    if version is None:
        return fail(
            "failed to generate CDI spec: failed to create device CDI specs: failed to initialize NVML: "
            "ERROR_LIBRARY_NOT_FOUND"
        )
    gpus = sorted(int(path[11:]) for path in glob.glob("/dev/nvidia[0-9]*"))
    libraries = sorted(glob.glob("/usr/lib/x86_64-linux-gnu/lib*.so.%s" % version))
    libraries = libraries or ["/usr/lib/x86_64-linux-gnu/libcuda.so.%s" % version]
    lines = ["---", "cdiVersion: " + SPEC, "containerEdits:", "  deviceNodes:"]
    lines += ["  - path: " + path for path in ("/dev/nvidia-uvm", "/dev/nvidiactl") if os.path.exists(path)]
    lines += [
        "  env:",
        "  - NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu",
        "  - NVIDIA_VISIBLE_DEVICES=void",
        "  mounts:",
    ]
    for path in libraries + (["/usr/bin/nvidia-smi"] if os.path.exists("/usr/bin/nvidia-smi") else []):
        lines += [
            "  - containerPath: " + path,
            "    hostPath: " + path,
            "    options:",
            "    - ro",
            "    - nosuid",
            "    - nodev",
            "    - rbind",
            "    - rprivate",
        ]
    lines.append("devices:")
    for names, nodes in [([str(gpu)], [gpu]) for gpu in gpus] + [(["all"], gpus)]:
        for name in names:
            lines += ["- containerEdits:", "    deviceNodes:"]
            lines += ["    - path: /dev/nvidia%d" % node for node in nodes]
            lines.append('  name: "%s"' % name)
    lines += ["kind: nvidia.com/gpu", ""]
    output = given.get("output", [os.environ.get("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", "")])[-1]
    if not output:
        sys.stdout.write("\n".join(lines))
        return 0
    os.makedirs(os.path.dirname(output), exist_ok=True)
    with open(output, "w") as handle:
        handle.write("\n".join(lines))
    info("Generated CDI spec with version %s" % SPEC)
    return 0


def list_devices():
    found = []
    for folder in ("/etc/cdi", "/var/run/cdi"):
        for path in sorted(glob.glob(folder + "/*")):
            text = open(path).read()
            kind = re.search(r"kind[\"']?: *[\"']?([\w./-]+)", text)
            if kind:
                found += ["%s=%s" % (kind.group(1), name) for name in re.findall(r"  name: *[\"']?([\w:-]+)", text)]
    info("Found %d CDI devices" % len(set(found)))
    for name in sorted(set(found)):
        print(name)
    return 0


def config(given):
    path = given.get("config-file", [CONFIG])[-1]
    text = open(path).read() if os.path.exists(path) else DEFAULTS
    for item in given.get("set", []):
        key, _, value = item.partition("=")
        section, _, name = key.rpartition(".")
        line = "%s = %s" % (name, value or "true")
        pattern = r"(?m)^#?%s = .*$" % re.escape(name)
        if re.search(pattern, text):
            text = re.sub(pattern, line, text)
        else:
            text = text.replace("[%s]\n" % section, "[%s]\n%s\n" % (section, line))
    if "in-place" not in given:
        sys.stdout.write(text)
        return 0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as handle:
        handle.write(text)
    return 0


def device_links(given):
    if "create-all" not in given and "watch" not in given:
        info("Creating links for existing devices")
    paths = glob.glob("/dev/nvidia*") + glob.glob("/dev/nvidia-caps/*")
    for path in sorted(paths):
        found = os.stat(path)
        if not stat.S_ISCHR(found.st_mode):
            continue
        link = "/dev/char/%d:%d" % (os.major(found.st_rdev), os.minor(found.st_rdev))
        if os.path.lexists(link):
            continue
        info("Creating link %s => %s" % (link, path))
        if "dry-run" not in given:
            os.makedirs("/dev/char", exist_ok=True)
            os.symlink(path, link)
    return 0


def main(argv):
    argv = [word for word in argv if word not in ("--quiet", "-q", "--debug", "-d")]
    if argv[:1] in (["--version"], ["-v"], ["version"]):
        print("NVIDIA Container Toolkit CLI version %s" % VERSION)
        print("commit: simulated")
        return 0
    given, words = options(argv)
    commands = {
        ("runtime", "configure"): configure,
        ("cdi", "generate"): generate,
        ("cdi", "list"): lambda _: list_devices(),
        ("config",): config,
        ("system", "create-dev-char-symlinks"): device_links,
    }
    command = commands.get(tuple(words[:2])) or commands.get(tuple(words[:1]))
    if command is None:
        return fail("No help topic for '%s'" % " ".join(words))
    return command(given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
