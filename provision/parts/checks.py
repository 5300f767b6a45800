# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The checks of ``verify``: pure functions from facts to verdicts, each with its evidence and a hint.

Runs on the controller (``provision verify``) and, standard library only, on hosts (module ``gpu_verify``).
Facts are the probe's dictionary; ``expect`` says what the inventory asks for:

    version (exact upstream or None), branch (or None), flavour (or None), manage, hold, persistence (bool),
    fabric_manager (bool), gpus (number or 0), cuda (see checkcuda.WISH; empty: no toolkit is asked for),
    containers (see checkcontainers.WISH)

A verdict is {"id", "status": pass | warn | fail | skip, "message", "evidence": [..], "hint": str or None}.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.parts import verdicts
from provision.parts.conda import checks as conda_checks
from provision.parts.containers import checks as containers_checks
from provision.parts.cuda import checks as cuda_checks
from provision.parts.cuda import library_checks

# Kernel drivers that take a GPU away from the nvidia module.
RIVALS = ("nouveau", "nova_core", "nova")

# Kernel drivers that hold a card for a virtual machine: somebody set that up, it never happens by itself.
# vfio-pci, nvgrace-gpu-vfio-pci, xen-pciback, …
_SET_ASIDE = ("vfio", "pci-stub", "pciback")

DEFAULT_EXPECT = {
    "version": None,
    "branch": None,
    "flavour": None,
    "manage": True,
    "hold": True,
    "persistence": True,
    "fabric_manager": False,
    "gpus": 0,
    "none": False,
    "cuda": {},
    "conda": {},
    "containers": {},
}
_verdict = verdicts.verdict


def is_set_aside(driver):
    """True for a card that is handed to a virtual machine: no driver of this host is to have it."""
    return any(word in (driver or "") for word in _SET_ASIDE)


def own_gpus(facts):
    """The GPUs that this host's driver is to drive."""
    return [gpu for gpu in facts["gpus"] if not is_set_aside(gpu["driver"])]


def run(facts, expect=None):
    """Return the verdicts of every check, in the order in which a person would look."""
    want = dict(DEFAULT_EXPECT, **(expect or {}))
    return [check(facts, want) for check in CHECKS]


def worst(verdicts):
    """Return the gravest status among verdicts: fail, warn, pass, or skip when nothing was judged."""
    seen = {verdict["status"] for verdict in verdicts}
    return next((status for status in ("fail", "warn", "pass") if status in seen), "skip")


def installed_driver(facts):
    """Return {package name: version} of every installed driver package; companions alone are no driver."""
    found = {
        name: package["version"]
        for name, package in facts.get("packages", {}).items()
        if package["status"][1] not in "nc" and driver_names.is_driver_package(name)
    }
    return found if any(driver_names.is_version_locked(name) for name in found) else {}


def unheld(facts):
    """Return the installed driver packages that are not held, sorted."""
    return sorted(name for name in installed_driver(facts) if facts["packages"][name]["status"][0] != "h")


def stale_holds(facts):
    """Return driver packages that are on hold and not installed: they make the next install fail, sorted."""
    return sorted(
        name
        for name, package in facts.get("packages", {}).items()
        if package["status"][0] == "h" and package["status"][1] in "nc" and driver_names.is_driver_package(name)
    )


def modules_of(facts, kernel):
    """Return the nvidia modules on disk for one kernel, the one that depmod prefers first (updates/ beats kernel/)."""
    found = [module for module in facts["module"]["on_disk"] if module["kernel"] == kernel]
    return sorted(found, key=lambda module: ("/updates/" not in module["path"], module["path"]))


def next_boot_problems(facts, version=None):
    """Return what would go wrong if the host booted now, as sentences; empty when the next boot is safe.

    version: upstream version that the module must have, None for that of the installed libraries.
    Source of the rules: design section 5; scenarios A4, B1, B2, C1.
    """
    kernel = facts["kernels"].get("next")
    if kernel is None or not facts["kernels"]["installed"]:
        return []
    candidates = modules_of(facts, kernel)
    if not candidates:
        have = sorted({module["kernel"] for module in facts["module"]["on_disk"]})
        return [
            "kernel %s boots next and has no nvidia module%s"
            % (kernel, " (there is one for %s)" % ", ".join(have) if have else "")
        ]
    module, problems = candidates[0], []
    version = version or library_version(facts)
    if version and module["version"] and module["version"] != version:
        problems.append(
            "kernel %s boots next and its module is %s, the libraries are %s" % (kernel, module["version"], version)
        )
    if facts["secure_boot"].get("enabled"):
        if not module["signed"]:
            problems.append("Secure Boot is on and the module of kernel %s is not signed" % kernel)
        elif module["origin"] == "dkms" and facts["secure_boot"].get("mok_enrolled") is False:
            problems.append(
                "Secure Boot is on and the key that signed the module of kernel %s (%s) is not enrolled"
                % (kernel, module["signer"] or "DKMS's own")
            )
    return problems


def library_version(facts):
    """Return the version of the user-space driver: by libcuda and NVML as the loader finds them, else by package."""
    for library in facts.get("libraries", []):
        if library.get("version"):
            return library["version"]
    versions = [
        driver_names.upstream(v) for n, v in installed_driver(facts).items() if n.startswith("libnvidia-compute")
    ]
    return versions[0] if versions else None


def gpus_on_bus(facts, want):
    """The PCI bus shows GPUs, as many as were asked for."""
    check, found = "gpu.bus", facts["gpus"]
    evidence = ["%s 10de:%s" % (gpu["slot"], gpu["device"]) for gpu in found]
    if not found:
        driven = facts["module"]["loaded"] or installed_driver(facts) or facts["smi"].get("path")
        if want["none"] and not want["gpus"] and not driven:
            return _verdict(check, "skip", "neither GPU nor driver, and nvidia_driver_manage is false")
        return _verdict(
            check,
            "fail",
            "no NVIDIA GPU on the PCI bus",
            evidence,
            "look at power, seating and the BIOS; lspci -d 10de: shows what the bus sees; a machine that only"
            " builds for others says so with nvidia_driver_manage: false",
        )
    if want["gpus"] and len(found) != want["gpus"]:
        return _verdict(
            check,
            "fail",
            "%d GPUs on the bus, %d expected" % (len(found), want["gpus"]),
            evidence,
            "a card fell off the bus, or gpu_verify_expect is out of date",
        )
    return _verdict(check, "pass", "%d on the PCI bus" % len(found), evidence)


def bound(facts, want):
    """Every GPU is bound to the nvidia module."""
    check = "driver.bound"
    own = own_gpus(facts)
    aside = ["%s is set aside (%s)" % (g["slot"], g["driver"]) for g in facts["gpus"] if is_set_aside(g["driver"])]
    if not own:
        return _verdict(check, "skip", "every GPU is set aside for virtual machines" if aside else "no GPU", aside)
    others = [gpu for gpu in own if gpu["driver"] != "nvidia"]
    evidence = ["%s is bound to %s" % (gpu["slot"], gpu["driver"] or "nothing") for gpu in others] + aside
    if not others:
        message = "%d bound to nvidia, %d set aside for virtual machines" % (len(own), len(aside))
        return _verdict(check, "pass", message if aside else "all bound to nvidia", aside)
    if any(gpu["driver"] in RIVALS for gpu in others):
        hint = "block nouveau and nova, rebuild every initramfs, reboot: provision apply does it"
    elif facts["module"]["loaded"] is None:
        hint = "the nvidia module is not loaded: see boot.next, then modprobe nvidia or reboot"
    else:
        hint = "the loaded module does not drive this card: look at 'dmesg | grep NVRM' and at branch and flavour"
    return _verdict(check, "fail", "%d of %d GPUs not bound to nvidia" % (len(others), len(own)), evidence, hint)


def versions_agree(facts, want):
    """Loaded module, module on disk, libraries and packages are of one version."""
    check = "driver.versions"
    seen = []
    loaded = facts["module"]["loaded"]
    if loaded:
        seen.append(("loaded module", loaded["version"]))
    on_disk = modules_of(facts, facts["kernels"]["running"])
    if on_disk and on_disk[0]["version"]:
        seen.append(("module on disk for %s" % facts["kernels"]["running"], on_disk[0]["version"]))
    seen += [(lib["soname"] + " (" + lib["path"] + ")", lib["version"]) for lib in facts["libraries"] if lib["version"]]
    packages = {
        driver_names.upstream(version)
        for name, version in installed_driver(facts).items()
        if driver_names.is_version_locked(name)
    }
    seen += [("packages", version) for version in sorted(packages)]
    if facts["smi"].get("driver_version"):
        seen.append(("nvidia-smi", facts["smi"]["driver_version"]))
    evidence = ["%s: %s" % pair for pair in seen]
    versions = {version for _, version in seen}
    if loaded is None and not own_gpus(facts):
        return _verdict(check, "skip", "no GPU, and no driver is loaded", evidence)
    if loaded is None:
        return _verdict(
            check,
            "fail",
            "the nvidia module is not loaded",
            evidence,
            "modprobe nvidia shows why; provision plan shows what is missing",
        )
    if len(versions) > 1:
        rest = {version for what, version in seen if what != "loaded module"}
        hint = (
            "everything on disk is %s: reboot" % next(iter(rest))
            if len(rest) == 1
            else "parts of several drivers are mixed: provision plan shows the way to one version"
        )
        return _verdict(check, "fail", "versions differ: %s" % ", ".join(sorted(versions)), evidence, hint)
    return _verdict(check, "pass", "%s everywhere" % loaded["version"], evidence)


def wanted_version(facts, want):
    """The loaded driver is the branch, version and flavour that the inventory asks for."""
    check, loaded = "driver.wanted", facts["module"]["loaded"]
    if loaded is None:
        return _verdict(check, "skip", "no driver is loaded")
    evidence = ["loaded: %s %s" % (loaded["version"], loaded["flavour"] or "")]
    for what, have in (
        ("version", loaded["version"]),
        ("branch", driver_names.branch(loaded["version"])),
        ("flavour", loaded["flavour"]),
    ):
        if want[what] and have and str(want[what]) != have:
            return _verdict(
                check,
                "fail",
                "%s is %s, wanted is %s" % (what, have, want[what]),
                evidence,
                "provision plan shows how to get there",
            )
    return _verdict(check, "pass", " ".join(filter(None, [loaded["version"], loaded["flavour"]])), evidence)


def smi_answers(facts, want):
    """nvidia-smi answers in time and sees every GPU of the bus."""
    check, smi, count = "driver.smi", facts["smi"], len(own_gpus(facts))
    if not count:
        return _verdict(check, "skip", "no GPU")
    if not smi.get("path"):
        return _verdict(check, "fail", "nvidia-smi is not installed", (), "provision plan shows the missing package")
    if smi["timed_out"]:
        return _verdict(
            check,
            "fail",
            "nvidia-smi did not answer in time",
            (),
            "a GPU hangs: look at 'dmesg | grep -e NVRM -e Xid'; a reboot, often a power cycle, is needed",
        )
    if smi["rc"] != 0 or not smi["gpus"]:
        said = smi.get("error") or "exit code %s" % smi["rc"]
        return _verdict(
            check,
            "fail",
            "nvidia-smi fails: %s" % said.splitlines()[0],
            said.splitlines(),
            "see driver.versions and driver.bound",
        )
    if facts["host"]["container"] and len(smi["gpus"]) < count:
        # The bus shows every card of the machine, the runtime hands some of them to the container.
        return _verdict(
            check, "pass", "nvidia-smi sees %d; the machine of this container has %d" % (len(smi["gpus"]), count)
        )
    if len(smi["gpus"]) != count:
        missing = sorted(_slot(gpu["slot"]) for gpu in own_gpus(facts))
        seen = {_slot(gpu["bus_id"]) for gpu in smi["gpus"] if gpu.get("bus_id")}
        return _verdict(
            check,
            "fail",
            "nvidia-smi sees %d GPUs, the bus %d" % (len(smi["gpus"]), count),
            ["not seen: %s" % slot for slot in missing if slot not in seen],
            "look at 'dmesg | grep -e NVRM -e Xid': the branch may not drive the card, or it is sick",
        )
    evidence = ["%s %s" % (gpu["index"], gpu["name"]) for gpu in smi["gpus"]]
    return _verdict(check, "pass", "nvidia-smi sees all %d" % count, evidence)


def _slot(text):
    """0000:1b:00.0 and 00000000:1B:00.0 are the same function: compare bus, device and function."""
    return ":".join(text.lower().split(":")[-2:])


def packages_whole(facts, want):
    """No package of the host is half-installed; the driver's packages come from one series."""
    check, broken = "apt.packages", facts["package_problems"]
    if broken:
        return _verdict(
            check,
            "fail",
            "%d packages are half-installed" % len(broken),
            broken[:12],
            "dpkg --configure -a shows why; provision apply tries to finish them",
        )
    driver = installed_driver(facts)
    if not driver:
        if want["manage"]:
            return _verdict(
                check,
                "fail",
                "no driver package is installed",
                facts["runfile"]["traces"][:8],
                "the driver came from outside apt: nvidia_driver_manage: false accepts it as it is"
                if facts["module"]["loaded"]
                else "provision apply installs it",
            )
        return _verdict(check, "skip", "the driver is not from apt, and not managed", facts["runfile"]["traces"][:8])
    return _verdict(check, "pass", "%d driver packages, all configured" % len(driver))


def held(facts, want):
    """Every installed driver package is held, by exact name, and nothing else of the family is."""
    check, driver = "apt.hold", installed_driver(facts)
    if not want["manage"] or not want["hold"] or not driver:
        return _verdict(check, "skip", "no hold is asked for" if driver else "no driver package is installed")
    loose, stale = unheld(facts), stale_holds(facts)
    if loose:
        return _verdict(
            check,
            "fail",
            "%d of %d driver packages are not held" % (len(loose), len(driver)),
            loose[:12],
            "an update can move them apart from the rest: provision apply holds them",
        )
    if stale:
        return _verdict(
            check,
            "warn",
            "%d holds on packages that are not installed" % len(stale),
            stale[:12],
            "they make later installs fail with 'held broken packages': provision apply clears them",
        )
    return _verdict(check, "pass", "all %d held" % len(driver))


def next_boot(facts, want):
    """The kernel that boots next has a module of the right version, signed where Secure Boot asks for it."""
    check, kernels = "boot.next", facts["kernels"]
    if not facts["gpus"]:
        return _verdict(check, "skip", "no GPU")
    if not kernels["installed"]:
        because = [
            "no kernel image is installed here: what boots comes from outside",
            kernels.get("next_because") or "",
        ]
        return _verdict(check, "skip", "what boots next is not known here", [line for line in because if line])
    if kernels.get("next") is None:
        return _verdict(
            check, "skip", "what boots next is not known here", [kernels.get("next_because") or "no boot loader found"]
        )
    evidence = ["next: %s (%s)" % (kernels["next"], kernels.get("next_because") or "running")]
    problems = next_boot_problems(facts)
    if problems:
        return _verdict(
            check,
            "fail",
            problems[0],
            problems[1:] + evidence,
            "do not reboot before provision apply has put a module there",
        )
    module = modules_of(facts, kernels["next"])[0]
    if module["origin"] == "dkms":
        without = [k["release"] for k in kernels["installed"] if k["release"] == kernels["next"] and not k["headers"]]
        if without:
            return _verdict(
                check,
                "warn",
                "the headers of %s are not installed" % without[0],
                evidence,
                "DKMS cannot rebuild the module for it: install linux-headers-%s" % without[0],
            )
    evidence.append("%s: %s%s" % (module["path"], module["version"], ", signed" if module["signed"] else ""))
    return _verdict(check, "pass", "%s has module %s" % (kernels["next"], module["version"]), evidence)


def rivals_blocked(facts, want):
    """nouveau and nova can take no GPU at the next boot."""
    check = "boot.nouveau"
    blocked = facts["modprobe"]["blacklisted"]
    if not want["manage"]:
        return _verdict(check, "skip", "the driver is not managed")
    if "nouveau" not in blocked:
        return _verdict(check, "warn", "nouveau is not blocked", (), "provision apply blocks it in every initramfs")
    old = [i["kernel"] for i in facts["initrds"] if i["newer_than_blacklist"] is False]
    if facts["kernels"].get("next") in old:
        return _verdict(
            check,
            "warn",
            "the initramfs of %s is older than the block" % facts["kernels"]["next"],
            old,
            "it may still load nouveau: update-initramfs -u -k all",
        )
    return _verdict(check, "pass", "nouveau and nova are blocked", sorted(set(blocked) & set(RIVALS)))


def device_nodes(facts, want):
    """/dev/nvidiactl, /dev/nvidia-uvm and a node for every GPU exist."""
    check = "driver.devices"
    own = own_gpus(facts)
    if not own or facts["module"]["loaded"] is None:
        return _verdict(check, "skip", "no driver is loaded")
    nodes = set(facts["devices"])
    # Numbers need not be without gaps: a container has those of its own cards.
    cards = [node for node in nodes if re.match(r"^/dev/nvidia[0-9]+$", node)]
    wanted = min(len(own), len(facts["smi"]["gpus"]) or 1) if facts["host"]["container"] else len(own)
    missing = [node for node in ("/dev/nvidiactl",) if node not in nodes]
    if len(cards) < wanted:
        missing.append("/dev/nvidia0, …: %d of %d (%s)" % (len(cards), wanted, ", ".join(sorted(cards)) or "none"))
    if missing:
        return _verdict(
            check,
            "fail",
            "device nodes are missing",
            missing,
            "nvidia-modprobe -c 0 -u makes them; nvidia-persistenced keeps them",
        )
    if "/dev/nvidia-uvm" not in nodes:
        return _verdict(check, "warn", "/dev/nvidia-uvm is missing", (), "nvidia-modprobe -u makes it; CUDA needs it")
    return _verdict(check, "pass", "%d nodes" % len(nodes))


def persistence(facts, want):
    """Persistence is on, by nvidia-persistenced, so that the driver keeps its state between jobs."""
    check = "service.persistence"
    if not want["persistence"] or not facts["smi"]["gpus"]:
        return _verdict(check, "skip", "not asked for" if facts["smi"]["gpus"] else "no driver answers")
    off = ["GPU %s" % gpu["index"] for gpu in facts["smi"]["gpus"] if gpu.get("persistence") is False]
    daemon = facts["services"].get("nvidia-persistenced", {})
    if off:
        # Ubuntu's unit runs the daemon with --no-persistence-mode: starting it is not enough.
        hint = "provision apply switches it on for good; nvidia-smi -pm 1 does until the next boot"
        return _verdict(check, "warn", "persistence is off", off, hint)
    if want["manage"] and facts["host"]["systemd"] and daemon.get("present") and not daemon.get("running"):
        return _verdict(
            check,
            "warn",
            "persistence is on, and nvidia-persistenced does not run",
            (),
            "it will be off after the next boot: provision apply makes it last",
        )
    return _verdict(check, "pass", "on")


def fabric_manager(facts, want):
    """Where NVSwitch is, fabric manager runs at exactly the driver's version."""
    check = "service.fabric_manager"
    if not want["fabric_manager"]:
        return _verdict(check, "skip", "no NVSwitch" if not facts["nvswitches"] else "not asked for")
    packages = {
        name: driver_names.upstream(version)
        for name, version in installed_driver(facts).items()
        if driver_names.parse(name).base == "nvidia-fabricmanager"
    }
    loaded = facts["module"]["loaded"]
    evidence = ["%s %s" % pair for pair in sorted(packages.items())] + ["%d NVSwitches" % len(facts["nvswitches"])]
    running = facts["services"].get("nvidia-fabricmanager", {}).get("running")
    if not packages and facts["host"]["container"]:
        return _verdict(check, "skip", "it runs on the machine, not in this container", evidence)
    if not packages and running and not want["manage"]:
        return _verdict(check, "pass", "running, from outside apt", evidence)
    if not packages:
        return _verdict(
            check,
            "fail",
            "fabric manager is not installed",
            evidence,
            "CUDA fails with error 802 on NVSwitch without it: provision apply installs it",
        )
    wrong = [name for name, version in packages.items() if loaded and version != loaded["version"]]
    if wrong:
        evidence.append("driver %s" % loaded["version"])
        return _verdict(
            check,
            "fail",
            "fabric manager is not of the driver's version",
            evidence,
            "they must be equal to the last digit: provision apply aligns them",
        )
    if not running and not facts["nvswitches"] and not facts["nvlink5_switch"]:
        return _verdict(check, "pass", "installed; there is no NVSwitch that it could manage", evidence)
    if not running:
        return _verdict(
            check, "fail", "nvidia-fabricmanager does not run", evidence, "journalctl -u nvidia-fabricmanager says why"
        )
    return _verdict(check, "pass", "running, %s" % next(iter(packages.values())), evidence)


def apt_sources(facts, want):
    """apt can read its sources."""
    check, errors = "apt.sources", facts["apt"]["errors"]
    if errors:
        return _verdict(
            check, "fail", "apt cannot read its sources", errors, "every apt call fails until this is mended"
        )
    return _verdict(check, "pass", "%d entries, no conflict" % len(facts["apt"]["sources"]))


CHECKS = (
    gpus_on_bus,
    bound,
    versions_agree,
    wanted_version,
    smi_answers,
    device_nodes,
    packages_whole,
    held,
    apt_sources,
    next_boot,
    rivals_blocked,
    persistence,
    fabric_manager,
    *cuda_checks.CHECKS,
    *library_checks.CHECKS,
    *conda_checks.CHECKS,
    *containers_checks.CHECKS,
)
