# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Why a driver does not come up: kernel log, modules, DKMS, initramfs, services. For diagnose alone.

``read`` returns the fields of provision.facts.diagnostics.BootTrouble. Files are read. Programs are started only on the running
host and only where no file says it: dmesg (journalctl where it is refused) for the log of this boot, systemctl for
failed units; each is given up after seconds. Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import re
import stat
import time

from ansible_collections.gpu.provision.plugins.module_utils.lib import fabric_log, kernel_errors, kmod
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import integer

TIMEOUT = 5.0
# of the end of a log file
_LOG_BYTES = 4 * 1024 * 1024
_LOG_LINES = 300
# What is kept of the kernel's log: what NVIDIA's modules, their rivals and the checks of signatures say.
_INTERESTING = re.compile(
    r"NVRM|nvidia|nouveau|\bnova(?:_core)?\b|Xid|vfio-pci|module verification|signature|unsigned module|Lockdown|"
    r"unavailable key|Key was rejected|Required key not available|"
    r"version magic|Unknown symbol|BAR ?[0-9].*(?:can't assign|no space|failed to assign)|"
    r"VFS: Unable to mount root|Initramfs unpacking failed",
    re.I,
)
# What the kernel says of the machine around the cards. Source: format strings of nvme/host/pci.c, block/blk-core.c, md/raid*.c,
# x86/kernel/cpu/mce, edac_mc.c, cper.c, hung_task.c, watchdog.c, oom_kill.c, and of a program that ends in NCCL.
_OF_MACHINE = re.compile(
    r"nvme.*(?:timeout|controller is down|Device not ready|after reset failure|probe failure)|"
    r"(?:I/O|medium|target|transport|protection|nexus|timeout|resource) error, dev |Disk failure on |EXT4-fs error|"
    r"XFS \(.*(?:[Ss]hutting down|Corruption)|"
    r"Machine Check|Machine check|EDAC .*(?:\bUE\b|\bCE\b)|event severity: |"
    r"blocked for more than [0-9]+ seconds|soft lockup|hard LOCKUP|"
    r"Out of memory: |out of memory: Killed|segfault at .* in libnccl"
)
_MACHINE_LINES = 100
# A date of syslog (Nov 27 10:00:01 host kernel:), an ISO date, and the seconds since boot: taken off.
_STAMP = re.compile(
    r"^(?:[A-Z][a-z]{2}\s+[0-9]+ [0-9:]{8}(?:\.[0-9]+)?|[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.+Zz-]+) \S+ [^:\s]+: ?"
)
_SECONDS = re.compile(r"^\s*(?:<[0-9]+>)?\[\s*[0-9]+\.[0-9]+\](?:\[[^]]*\])?\s?")
_UNITS = (
    "nvidia-persistenced",
    "nvidia-fabricmanager",
    "nvidia-powerd",
    "nvidia-mig-manager",
    "nvidia-suspend",
    "nvidia-resume",
    "nvidia-hibernate",
    "nvidia-cdi-refresh",
    "nvidia-imex",
    "nvidia-gridd",
    "nvidia-dcgm",
    "dcgm",
    "dkms",
)
_MODULES = re.compile(r"^(?:nvidia\w*|nouveau|nova\w*|gdrdrv|vfio_pci)$")
_OPTION = re.compile(r"^\s*(blacklist|options|install|remove|alias|softdep)\s+(\S+)(.*)$")
# Lines of modprobe.d that concern the GPU: about these modules, or an alias that leads to them.
_CONCERNED = re.compile(r"\b(?:nvidia[\w-]*|nouveau|nova[\w-]*|vfio[_-]pci)\b")


def read(tree, facts, run=None):
    """Return provision.facts.diagnostics.BootTrouble as a dict.

    tree: HostTree; facts: what the probe said of the same host; run: callable(list, timeout) -> (rc, stdout, stderr)
    in place of programs, None for the real ones (on a recorded host: none).
    """
    ask = _asker(tree, run)
    lines, log_from = read_log(tree, ask)
    failed = read_failed_units(tree, facts, ask)
    return {
        "log": interesting(this_boot(lines)),
        "machine_log": interesting(this_boot(lines), _OF_MACHINE, _MACHINE_LINES),
        "log_from": log_from,
        "clock_synchronised": clock_synchronised() if tree.live else None,
        "errors": read_errors(tree, ask, lines),
        "modules": read_modules(tree),
        "module_before_boot": read_module_before_boot(tree, facts),
        "parameters": read_parameters(tree),
        "dkms": read_dkms(tree),
        "dkms_others": [row for row in read_dkms(tree, ours=False) if row["make_error"] and row["make_kernel"]],
        "crashes": [
            "/var/crash/" + name
            for name in tree.names("/var/crash")
            if re.match(r"^(?:nvidia|linux-(?:image|headers|modules))", name)
        ],
        "default_target": read_default_target(tree),
        "display_manager": _base(tree.link("/etc/systemd/system/display-manager.service")),
        "cmdline": (tree.word("/proc/cmdline") or ""),
        "modprobe": read_modprobe(tree),
        "modules_load": _lines(
            tree, ["/etc/modules"] + _confs(tree, "/etc/modules-load.d", ".conf"), r"^\s*(?:nvidia|nouveau|vfio)"
        ),
        "xorg": read_xorg(tree),
        "xorg_errors": read_xorg_errors(tree),
        "cron": read_cron(tree),
        "firmware": read_firmware(tree),
        "initrds": read_initrd_sizes(tree),
        "boot_leftovers": [
            "/boot/" + name
            for name in tree.names("/boot")
            if re.match(r"^(?:initrd\.img|vmlinuz)-.+\.(?:new|dpkg-(?:new|tmp|bak)|tmp)$", name)
        ],
        "mig_instances": read_mig(tree),
        "mig_layout": [
            path
            for path in (
                "/etc/nvidia-mig-manager/config.yaml",
                "/etc/systemd/system/nvidia-mig-manager.service",
                "/lib/systemd/system/nvidia-mig-manager.service",
            )
            if tree.exists(path)
        ],
        "driver_gpus": tree.names("/proc/driver/nvidia/gpus"),
        "closed_nodes": read_closed_nodes(tree, facts.get("devices") or ()),
        "failed_units": failed,
        "unit_log": read_unit_log(tree, failed, ask),
        "persistenced_options": read_unit_options(tree, "nvidia-persistenced"),
        "masked_units": [unit for unit in _UNITS if tree.link("/etc/systemd/system/%s.service" % unit) == "/dev/null"],
        "network_cards": [
            slot
            for slot in tree.names("/sys/bus/pci/devices")
            if tree.word("/sys/bus/pci/devices/%s/vendor" % slot) == "0x15b3"
        ][:64],
        "infiniband": tree.names("/sys/class/infiniband")[:64],
        "infiniband_on_disk": read_infiniband_on_disk(tree, (facts.get("kernels") or {}).get("running") or "-"),
        "compiler": read_compiler(tree),
        "card_off": read_card_off(tree),
        # NVIDIA's GPU operator keeps a whole driver there and loads its module.
        "driver_container": tree.is_dir("/run/nvidia/driver/usr"),
        "default_route": read_default_route(tree),
        "nameservers": read_nameservers(tree),
        "lockdown": _chosen(tree.word("/sys/kernel/security/lockdown")),
        "sig_enforce": tree.word("/sys/module/module/parameters/sig_enforce") in ("Y", "1"),
    }


# --- cards that are off --------------------------------------------------------------------------------------


def read_card_off(tree):
    """Lines that say that the NVIDIA card of a machine with other graphics beside it is switched off on purpose.

    Sources: prime-select of nvidia-prime (/etc/prime-discrete: off), rules of udev that remove NVIDIA's devices (written by
    prime-select, envycontrol and others), dgpu_disable of the kernel's asus-wmi (sysfs-platform-asus-wmi).
    """
    base = "/sys/bus/pci/devices"
    others = [
        slot
        for slot in tree.names(base)
        if (tree.word("%s/%s/class" % (base, slot)) or "").startswith(("0x0300", "0x0380"))
        and tree.word("%s/%s/vendor" % (base, slot)) in ("0x8086", "0x1002")
    ]
    if not others:
        return []
    rows = ["/etc/prime-discrete: off"] if tree.word("/etc/prime-discrete") == "off" else []
    for path in (
        "/sys/devices/platform/asus-nb-wmi/dgpu_disable",
        "/sys/class/firmware-attributes/asus-armoury/attributes/dgpu_disable/current_value",
    ):
        if tree.word(path) == "1":
            rows.append(path + ": 1")
    for folder in ("/etc/udev/rules.d", "/run/udev/rules.d", "/lib/udev/rules.d"):
        for name in tree.names(folder):
            # Hundreds of rules are there; those that switch a card off are named after it.
            if "nvidia" in name and name.endswith(".rules"):
                for line in (tree.read("%s/%s" % (folder, name), 65536) or "").splitlines():
                    if "0x10de" in line and "ATTR{remove}" in line and not line.lstrip().startswith("#"):
                        rows.append("%s/%s: %s" % (folder, name, line.strip()))
                        break
    return rows[:8]


# --- programs ------------------------------------------------------------------------------------------------


def _asker(tree, run):
    """Return ask(command) -> (rc, stdout) or None where it was not run, not there, or did not end."""

    def ask(command):
        if run is not None:
            rc, out, _ = run(command, TIMEOUT)
            return rc, out
        if not tree.live:
            return None
        from ansible_collections.gpu.provision.plugins.module_utils.lib import outputs

        answer = outputs.ask(command, TIMEOUT, _LOG_BYTES)
        return answer and (answer[0], answer[1].decode("utf-8", "replace"))

    return ask


# --- kernel log ----------------------------------------------------------------------------------------------


def read_log(tree, ask):
    """Return (the kernel's log, where it is from). dmesg has this boot alone; where it is not readable: the journal, files."""
    for command in (["dmesg"], ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-iso"]):
        answer = ask(command)
        if answer is not None and answer[0] == 0 and answer[1].strip():
            return answer[1].splitlines(), [" ".join(command[:3])]
    for path in ("/var/log/kern.log", "/var/log/dmesg", "/var/log/syslog", "/var/log/messages"):
        text = _tail(tree, path)
        if text:
            return text.splitlines(), [path]
    if tree.live:
        tree.note("the kernel's log (dmesg)")
    return [], []


def read_errors(tree, ask, lines):
    """provision.facts.diagnostics.KernelErrors: errors of the GPUs in these lines and in the journal of two weeks, and of the
    fabric."""
    now = time.time() if tree.live else None
    started = read_start(tree)
    answer = ask(kernel_errors.JOURNAL)
    text = answer[1] if answer is not None and answer[0] == 0 else ""
    earlier, journal, fabric = kernel_errors.of_journal(text, tree.word("/proc/sys/kernel/random/boot_id") or "")
    found = earlier + kernel_errors.fuller(kernel_errors.of_log(lines, started), journal)
    fabric += fabric_log.of_file(tree, started)
    return {
        "now": now,
        "lines": [{"boot": boot, "when": when, "text": _plain(text)} for boot, when, text in found],
        "fabric": [{"boot": boot, "when": when, "text": text} for boot, when, text in fabric],
    }


def read_start(tree):
    """When the kernel started, in seconds since 1970; None on a recorded host."""
    try:
        return time.time() - float((tree.word("/proc/uptime") or "").split()[0]) if tree.live else None
    except (ValueError, IndexError):
        return None


def read_module_before_boot(tree, facts):
    """True where the running kernel's nvidia.ko has not changed since before this boot: what was loaded is another file then."""
    running = facts["kernels"]["running"]
    paths = [row["path"] for row in facts["module"]["on_disk"] if row["kernel"] == running]
    found, started = tree.stat(paths[0]) if paths else None, read_start(tree)
    return None if found is None or started is None else found.st_ctime < started


def this_boot(lines):
    """Lines from the last start of a kernel on, since an error of an earlier boot is none of now; all where none is in sight."""
    starts = [number for number, line in enumerate(lines) if "Linux version " in line]
    return lines[starts[-1] :] if starts else lines


def interesting(lines, pattern=_INTERESTING, most=_LOG_LINES):
    """Lines that concern the GPU driver, or match another pattern, without dates, each once; where there are many the last."""
    kept = {}
    for line in lines:
        plain = _plain(line)
        if pattern.search(plain):
            kept.setdefault(plain[:500], None)
    return list(kept)[-most:]


def clock_synchronised():
    """False where the kernel knows of nobody who keeps its clock right, None where it does not say.

    Source: man adjtimex: modes 0 reads; TIME_ERROR (5) is the state of a clock that is not synchronised.
    """
    try:
        import ctypes

        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(256))
    except (ImportError, OSError, AttributeError):
        return None
    return None if state < 0 else state != 5


def _plain(line):
    """A line of a log without what stands before the kernel's words: NVIDIA's module breaks its messages, and indents the rest."""
    return _SECONDS.sub("", _STAMP.sub("", line)).strip()


def _tail(tree, path):
    """Text of the end of a log file; None when it is absent or unreadable."""
    data = tree.tail(path, _LOG_BYTES)
    return None if data is None else data.decode("utf-8", "backslashreplace")


# --- modules -------------------------------------------------------------------------------------------------


def read_modules(tree):
    """[provision.facts.diagnostics.ModuleRow] of the GPU modules in /proc/modules: name, uses, who holds them."""
    rows = []
    for line in (tree.read("/proc/modules") or "").splitlines():
        words = line.split()
        if len(words) >= 4 and _MODULES.match(words[0]):
            rows.append(
                {
                    "name": words[0],
                    "uses": integer(words[2]),
                    "holders": [name for name in words[3].strip("-").split(",") if name],
                }
            )
    return rows


def read_parameters(tree):
    """{"nvidia_uvm.uvm_disable_hmm": "Y", …}: parameters of loaded modules that rules judge."""
    found = {}
    for module, name in (
        ("nvidia_uvm", "uvm_disable_hmm"),
        ("nvidia_drm", "modeset"),
        ("nvidia_drm", "fbdev"),
        ("nouveau", "modeset"),
    ):
        value = tree.word("/sys/module/%s/parameters/%s" % (module, name))
        if value is not None:
            found["%s.%s" % (module, name)] = value
    return found


def read_modprobe(tree):
    """[provision.facts.diagnostics.ConfLine] of modprobe.d about NVIDIA's modules and their rivals."""
    rows = []
    for path in kmod.modprobe_files(tree):
        for number, line in enumerate((tree.read(path) or "").splitlines(), 1):
            match = _OPTION.match(line)
            if match and _CONCERNED.search(match.group(2) + match.group(3)):
                rows.append({"file": path, "line": number, "text": " ".join(line.split())})
    return rows


# --- DKMS ----------------------------------------------------------------------------------------------------


_OUR_DKMS = re.compile(r"^nvidia(?:-current|-open|-srv|-[0-9]+)?(?:-open)?$")


def read_dkms(tree, ours=True):
    """[provision.facts.diagnostics.DkmsTree]: versions in DKMS' tree, what they were built for, and why not.

    ours: those of NVIDIA's driver, else those of all others (nvidia-fs, gdrdrv, OFED, ZFS, ...).
    """
    rows = []
    base = "/var/lib/dkms"
    for name in tree.names(base):
        if bool(_OUR_DKMS.match(name)) is not ours:
            continue
        folder = "%s/%s" % (base, name)
        installed = {}
        for link in tree.names(folder):
            match = re.match(r"^kernel-(.+)-(x86_64|aarch64|ppc64le)$", link)
            target = tree.link("%s/%s" % (folder, link)) if match else None
            if target:
                installed[match.group(1)] = target.split("/")[0]
        for version in tree.names(folder):
            top = "%s/%s" % (folder, version)
            if version.startswith("kernel-") or not tree.is_dir(top):
                continue
            source = tree.link(top + "/source") or "/usr/src/%s-%s" % (name, version)
            builds = [
                {"kernel": kernel, "installed": installed.get(kernel) == version}
                for kernel in tree.names(top)
                if kernel not in ("build", "source")
                and any(tree.is_dir("%s/%s/%s" % (top, kernel, arch)) for arch in ("x86_64", "aarch64", "ppc64le"))
            ]
            log = top + "/build/make.log"
            text = tree.read(log)
            kernel = re.search(r"for kernel (\S+)", (text or "")[:400])
            rows.append(
                {
                    "name": name,
                    "version": version,
                    "source": source,
                    "source_missing": not tree.exists(source + "/dkms.conf"),
                    "builds": builds,
                    "make_log": log if text is not None else None,
                    "make_kernel": kernel.group(1) if kernel else None,
                    "make_error": decisive_error(text or ""),
                }
            )
    return rows


# What stops a build, by the programs that say it: gcc, cc1, clang, ld, modpost, objtool, sh, make's own rules of the kernel.
_STOPS = re.compile(
    r"\b(?:fatal |internal compiler )?error: \S|\bERROR: \S|(?:^|\s)modpost: \S|unrecognized command.line option"
    r"|: (?:command )?not found$|undefined reference to|No space left on device|Cannot allocate memory|^Killed\b|Killed signal"
    r"|Segmentation fault|Compiler version check failed|Failed CC \w+ check|No rule to make target"
)
_WARNS = re.compile(r"\bwarning: ", re.I)
_MAKE_GAVE_UP = re.compile(r"^make(?:\[[0-9]+\])?: \*\*\* ")


def decisive_error(text):
    """Return the line of a make.log that says why, or None: the first that stops a build, else the first of make's own."""
    gave_up = None
    for line in text.splitlines():
        if _MAKE_GAVE_UP.match(line) and "No rule to make target" not in line:
            gave_up = gave_up or line
        elif _STOPS.search(line) and not _WARNS.search(line):
            return " ".join(line.split())[:300]
    return " ".join(gave_up.split())[:300] if gave_up else None


def read_compiler(tree):
    """{"kernel": compiler that built the running kernel, "missing": it is not on the disk, "used": what gcc leads to}; or None."""
    match = re.search(
        r"\b((?:x86_64-linux-gnu-|aarch64-linux-gnu-)?gcc(?:-[0-9]+)?)\b", tree.read("/proc/version") or ""
    )
    if not match:
        return None
    name = match.group(1)
    missing = not any(tree.exists(f + "/" + name) for f in ("/usr/bin", "/usr/local/bin"))
    used = tree.resolve("/usr/bin/gcc") if tree.exists("/usr/bin/gcc") else None
    return {"kernel": name, "missing": missing, "used": used.rsplit("/", 1)[-1] if used else None}


# --- boot ----------------------------------------------------------------------------------------------------


def read_initrd_sizes(tree):
    """{release: size in bytes} of the initramfs images in /boot."""
    sizes = {}
    for name in tree.names("/boot"):
        if name.startswith("initrd.img-") and not re.search(r"\.(?:new|tmp|bak|old-dkms|dpkg-\w+)$", name):
            found = tree.stat("/boot/" + name)
            if found is not None:
                sizes[name[len("initrd.img-") :]] = found.st_size
    return sizes


def read_default_target(tree):
    """graphical.target, multi-user.target, …: what systemd starts; systemd's own default without a link."""
    for path in (
        "/etc/systemd/system/default.target",
        "/usr/lib/systemd/system/default.target",
        "/lib/systemd/system/default.target",
    ):
        target = tree.link(path)
        if target:
            return _base(target)
    return None


def read_firmware(tree):
    """{driver version: its GSP firmware files} in /lib/firmware/nvidia."""
    found = {}
    for base in ("/lib/firmware/nvidia", "/usr/lib/firmware/nvidia", "/lib/firmware/updates/nvidia"):
        for version in tree.names(base):
            if re.match(r"^[0-9]+\.[0-9.]+$", version):
                files = [name for name in tree.names("%s/%s" % (base, version)) if name.startswith("gsp")]
                found.setdefault(version, sorted(set(files)))
    return found


# --- X and users ---------------------------------------------------------------------------------------------


def read_xorg(tree):
    """[provision.facts.diagnostics.XorgDevice]: Device sections of X's configuration: file, line, driver, bus."""
    files = ["/etc/X11/xorg.conf"] + _confs(tree, "/etc/X11/xorg.conf.d", ".conf")
    files += _confs(tree, "/usr/share/X11/xorg.conf.d", ".conf")
    rows = []
    for path in files:
        section, start, driver, bus = None, 0, None, None
        for number, line in enumerate((tree.read(path) or "").splitlines(), 1):
            words = line.split("#", 1)[0].strip()
            opened = re.match(r'(?i)^section\s+"(\w+)"', words)
            if opened:
                section, start, driver, bus = opened.group(1).lower(), number, None, None
            elif re.match(r"(?i)^endsection", words):
                if section in ("device", "outputclass") and driver:
                    rows.append({"file": path, "line": start, "driver": driver, "bus": bus})
                section = None
            else:
                match = re.match(r'(?i)^(driver|busid)\s+"([^"]*)"', words)
                if match and match.group(1).lower() == "driver":
                    driver = match.group(2)
                elif match:
                    bus = match.group(2)
    return rows


_X_ERROR = re.compile(
    r"\(EE\).*(?:NVIDIA|nvidia|nouveau|GLX|no screens found|No devices detected)|"
    r'extension "GLX" missing|Failed to initialize the GLX module'
)


def read_xorg_errors(tree):
    """Lines of X's last log that say why a desktop does not start: without their time."""
    logs = [("/var/log/Xorg.0.log", False)]
    logs += [(path, True) for path in _confs(tree, "/var/log/lightdm", ".log") + _confs(tree, "/var/log/gdm3", ".log")]
    for user in tree.names("/home"):
        logs.append(("/home/%s/.local/share/xorg/Xorg.0.log" % user, False))
        logs.append(("/home/%s/.xsession-errors" % user, True))
    found = {}
    for path, _ in logs:
        for line in (_tail(tree, path) or "").splitlines() if tree.exists(path) else ():
            if _X_ERROR.search(line):
                found.setdefault("%s: %s" % (path, _SECONDS.sub("", line).strip()[:200]), None)
    return list(found)[:20]


def read_cron(tree):
    """[provision.facts.diagnostics.ConfLine]: lines of crontabs that switch persistence mode on the old way."""
    files = ["/etc/crontab", "/etc/rc.local"]
    files += ["/etc/cron.d/" + name for name in tree.names("/etc/cron.d")]
    files += ["/var/spool/cron/crontabs/" + name for name in tree.names("/var/spool/cron/crontabs")]
    return _lines(tree, files, r"^[^#]*nvidia-smi\s.*(?:-pm|--persistence-mode)\b")


# --- services ------------------------------------------------------------------------------------------------


def read_closed_nodes(tree, devices):
    """{device node of the cards: its mode in octal} where neither everybody nor a group of people may open it."""
    found = {}
    for path in devices:
        node = tree.stat(path) if re.match(r"^/dev/nvidia(?:[0-9]+|ctl|-uvm)$", path) else None
        # On a recorded host they are files of ours.
        if node is None or not stat.S_ISCHR(node.st_mode):
            continue
        if node.st_mode & 0o006 != 0o006 and not (node.st_gid and node.st_mode & 0o060 == 0o060):
            found[path] = "%04o" % stat.S_IMODE(node.st_mode)
    return found


def read_failed_units(tree, facts, ask):
    """Names of systemd units that failed; None where that is not known."""
    if not facts["host"]["systemd"]:
        return None
    answer = ask(["systemctl", "list-units", "--state=failed", "--plain", "--no-legend", "--no-pager"])
    if answer is None or answer[0] != 0:
        return None
    rows = [line.split() for line in answer[1].splitlines()]
    return sorted(row[0].lstrip("*") for row in rows if row and "." in row[0])


def read_unit_log(tree, failed, ask):
    """{unit: its last lines} of GPU services that failed: the journal, else syslog."""
    found, syslog = {}, None
    # what starts a service (.path, .timer) can fail alone
    lost = None if failed is None else {name.rpartition(".")[0] for name in failed}
    for unit in _UNITS:
        if lost is not None and unit not in lost:
            continue
        answer = None
        if failed:
            answer = ask(["journalctl", "-u", unit, "-b", "-q", "--no-pager", "-n", "30", "-o", "cat"])
        if answer is not None and answer[0] == 0:
            lines = answer[1].splitlines()
        else:
            name = {"nvidia-fabricmanager": "nv-fabricmanager"}.get(unit, unit)
            if syslog is None:
                syslog = (_tail(tree, "/var/log/syslog") or "").splitlines()
            lines = [_STAMP.sub("", line) for line in syslog if re.search(r"\b%s(?:\[|:)" % re.escape(name), line)]
            text = _tail(tree, "/var/log/fabricmanager.log") if unit == "nvidia-fabricmanager" else None
            lines += (text or "").splitlines()
        kept = [line.strip()[:300] for line in lines if line.strip()][-15:]
        if kept:
            found[unit] = kept
    return found


def read_unit_options(tree, unit):
    """The last ExecStart of a unit and its drop-ins, without the program; None without the unit."""
    files = []
    for base in ("/lib/systemd/system", "/usr/lib/systemd/system", "/etc/systemd/system"):
        if tree.exists("%s/%s.service" % (base, unit)):
            files = ["%s/%s.service" % (base, unit)]
    for base in ("/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system"):
        files += _confs(tree, "%s/%s.service.d" % (base, unit), ".conf")
    found = None
    for path in files:
        for match in re.finditer(r"^ExecStart=(\S.*)$", tree.read(path) or "", re.M):
            found = match.group(1).split(None, 1)[1] if " " in match.group(1) else ""
    return found


def read_mig(tree):
    """{GPU number: GPU instances that exist}, by the driver's capabilities; None without MIG in the driver."""
    base = "/proc/driver/nvidia/capabilities"
    gpus = [name for name in tree.names(base) if re.match(r"^gpu[0-9]+$", name)]
    if not gpus:
        return None
    return {
        name[3:]: len([gi for gi in tree.names("%s/%s/mig" % (base, name)) if re.match(r"^gi[0-9]+$", gi)])
        for name in gpus
    }


# --- network -------------------------------------------------------------------------------------------------


def read_infiniband_on_disk(tree, running):
    """True where the running kernel has mlx5_ib; None where its folder of modules is not there."""
    base = "/lib/modules/%s/kernel" % running
    if not tree.is_dir(base):
        return None
    return any(name.startswith("mlx5_ib.ko") for name in tree.names(base + "/drivers/infiniband/hw/mlx5"))


def read_default_route(tree):
    """True where a route leads out of the host (IPv4 or IPv6); None where the kernel's tables cannot be read."""
    four, six = tree.read("/proc/net/route"), tree.read("/proc/net/ipv6_route")
    if four is None and six is None:
        return None
    for line in (four or "").splitlines()[1:]:
        words = line.split()
        # destination and mask 0.0.0.0
        if len(words) > 7 and words[1] == words[7] == "00000000":
            return True
    # ::/0 over a real device; the kernel lists an unreachable one on lo as well
    rows = (line.split() for line in (six or "").splitlines())
    return any(len(row) > 9 and row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo" for row in rows)


def read_nameservers(tree):
    """Addresses of /etc/resolv.conf; None without the file."""
    text = tree.read("/etc/resolv.conf")
    return None if text is None else re.findall(r"^[ \t]*nameserver\s+(\S+)", text, re.M)


# --- small things --------------------------------------------------------------------------------------------


def _confs(tree, folder, ending):
    return ["%s/%s" % (folder, name) for name in tree.names(folder) if name.endswith(ending)]


def _lines(tree, files, pattern):
    """[provision.facts.diagnostics.ConfLine] of files whose lines match."""
    rows = []
    for path in files:
        for number, line in enumerate((tree.read(path) or "").splitlines(), 1):
            if re.search(pattern, line):
                rows.append({"file": path, "line": number, "text": " ".join(line.split())[:300]})
    return rows


def _base(path):
    return path.rsplit("/", 1)[-1] if path else None


def _chosen(text):
    """``none [integrity] confidentiality`` gives ``integrity``."""
    match = re.search(r"\[(\w+)\]", text or "")
    return match.group(1) if match else None
