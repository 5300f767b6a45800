"""The checks of the driver, by facts alone: cards, module, versions, packages, holds, the next boot, services."""

from __future__ import annotations

import re

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.catalog import load_catalog
from provision.facts import Facts
from provision.inventory import cards as expected_cards
from provision.lib.findings import Check
from provision.parts import addresses
from provision.parts.check import Expect, check, failed, passed, skipped, warned
from provision.parts.driver import verdict
from provision.parts.driver.installed import (
    RIVALS,
    driver_packages,
    is_passthrough,
    modules_of,
    next_boot_problems,
    own_gpus,
    stale_holds,
    stray_libraries,
    strays_text,
    unheld,
    where_to_look,
)


@check("gpu.bus")
def gpus_on_bus(facts: Facts, expect: Expect) -> Check:
    """The PCI bus shows GPUs, as many as were asked for and of those kinds."""
    found, want = facts.gpus, expect.driver
    evidence = [f"{gpu.slot} 10de:{gpu.device}" for gpu in found]
    if not found:
        driven = facts.module.loaded or driver_packages(facts) or facts.smi.path
        if want.none and not want.gpus and not driven:
            return skipped("neither GPU nor driver, and nvidia_driver_manage is false")
        return failed(
            "no NVIDIA GPU on the PCI bus",
            evidence,
            f"{where_to_look(facts)}; a machine that only builds for others says so with nvidia_driver_manage: false",
        )
    if facts.host.container:
        return passed(f"{len(found)} on the PCI bus of the machine; gpu.count counts those of this container", evidence)
    if want.gpus and len(found) != want.gpus:
        return failed(
            f"{len(found)} GPUs on the bus, {want.gpus} expected",
            evidence,
            "a card fell off the bus, or gpu_verify_expect is out of date",
        )
    catalog = load_catalog()
    cards = [(catalog.gpu_by_id(gpu.device).name, gpu.device) for gpu in found]
    other = expected_cards.differs(want.cards, cards) if want.cards else []
    if other:
        return failed(
            f"{'; '.join(other)}: the bus has {', '.join(dict.fromkeys(name for name, _ in cards))}",
            evidence,
            "a card was replaced by one of another kind, or gpu_verify_expect is out of date",
        )
    return passed(f"{len(found)} on the PCI bus", evidence)


@check("driver.bound")
def bound(facts: Facts, expect: Expect) -> Check:
    """Every GPU is bound to the nvidia module."""
    own = own_gpus(facts)
    given_away = [f"{gpu.slot} is passed through ({gpu.driver})" for gpu in facts.gpus if is_passthrough(gpu.driver)]
    if not own:
        return skipped("every GPU is passed through to virtual machines" if given_away else "no GPU", given_away)
    others = [gpu for gpu in own if gpu.driver != "nvidia"]
    evidence = [f"{gpu.slot} is bound to {gpu.driver or 'nothing'}" for gpu in others] + given_away
    if not others:
        message = f"{len(own)} bound to nvidia, {len(given_away)} passed through to virtual machines"
        return passed(message if given_away else "all bound to nvidia", given_away)
    if any(gpu.driver in RIVALS for gpu in others):
        hint = "block nouveau and nova, rebuild every initramfs, reboot: provision apply does it"
    elif facts.module.loaded is None:
        hint = "the nvidia module is not loaded: see boot.next, then modprobe nvidia or reboot"
    else:
        hint = "the loaded module does not drive this card: check 'dmesg | grep NVRM', branch and flavour"
    return failed(f"{len(others)} of {len(own)} GPUs not bound to nvidia", evidence, hint)


@check("driver.versions")
def versions_agree(facts: Facts, expect: Expect) -> Check:
    """Loaded module, module on disk, libraries and packages are of one version."""
    loaded, running = facts.module.loaded, facts.kernels.running
    seen = [("loaded module", loaded.version)] if loaded else []
    on_disk = modules_of(facts, running)
    if on_disk and on_disk[0].version:
        seen.append((f"module on disk for {running}", on_disk[0].version))
    seen += [(f"{library.soname} ({library.path})", library.version) for library in facts.libraries if library.version]
    packages = {
        driver_names.upstream(version)
        for name, version in driver_packages(facts).items()
        if driver_names.is_version_locked(name)
    }
    seen += [("packages", version) for version in sorted(packages)]
    if facts.smi.driver_version:
        seen.append(("nvidia-smi", facts.smi.driver_version))
    evidence = [f"{what}: {version}" for what, version in seen]
    versions = {version for _, version in seen}
    if loaded is None and not own_gpus(facts):
        return skipped("no GPU, and no driver is loaded", evidence)
    if loaded is None:
        return failed(
            "the nvidia module is not loaded",
            evidence,
            "modprobe nvidia shows why; provision plan shows what is missing",
        )
    if strays := stray_libraries(facts):
        return failed(
            strays_text(strays), evidence, "remove the file, or its folder from /etc/ld.so.conf.d, then run ldconfig"
        )
    if len(versions) > 1:
        rest = {version for what, version in seen if what != "loaded module"}
        hint = (
            f"everything on disk is {next(iter(rest))}: reboot"
            if len(rest) == 1
            else "parts of several drivers are mixed: provision plan shows the way to one version"
        )
        return failed(f"versions differ: {', '.join(sorted(versions))}", evidence, hint)
    return passed(f"{loaded.version} everywhere", evidence)


@check("driver.wanted")
def wanted_version(facts: Facts, expect: Expect) -> Check:
    """The loaded driver is the branch, version and flavour that the inventory asks for."""
    loaded, want = facts.module.loaded, expect.driver
    if loaded is None:
        return skipped("no driver is loaded")
    evidence = [f"loaded: {loaded.version} {loaded.flavour or ''}"]
    for what, have, wanted in (
        ("version", loaded.version, want.version),
        ("branch", driver_names.branch(loaded.version), want.branch),
        ("flavour", loaded.flavour, want.flavour),
    ):
        if wanted and have and wanted != have:
            return failed(f"{what} is {have}, wanted is {wanted}", evidence, "provision plan shows how to get there")
    return passed(" ".join(filter(None, [loaded.version, loaded.flavour])), evidence)


# Exit codes of nvidia-smi (its manual) that say what is wrong with a card; 6 as NVIDIA's module and a dead card give it.
_SMI_ENDS = {
    6: "the driver is loaded and can initialise none of the cards: provision diagnose names the cause",
    8: "power cables of a card are not attached: switch the machine off and check them",
    10: "the kernel reports problems with a card's interrupts: dmesg; BIOS settings of the slot",
    14: "a card's InfoROM is damaged: power cycle; where it stays so, the card needs replacing",
    15: "a card fell off the bus: power cycle; its seat and power where it comes back",
}


@check("driver.smi")
def smi_answers(facts: Facts, expect: Expect) -> Check:
    """nvidia-smi answers in time, sees every GPU of the bus, and says of none that it needs a repair."""
    smi, own = facts.smi, own_gpus(facts)
    count, seen = len(own), len(smi.gpus)
    if not count:
        return skipped("no GPU")
    if not smi.path:
        return failed("nvidia-smi is not installed", (), "provision plan shows the missing package")
    if smi.timed_out:
        return failed(
            "nvidia-smi did not answer in time",
            (),
            "a GPU hangs: check 'dmesg | grep -e NVRM -e Xid'; a reboot, often a power cycle, is needed",
        )
    if smi.rc != 0 or not smi.gpus:
        said = (smi.error or f"exit code {smi.rc}").splitlines()
        hint = _SMI_ENDS.get(smi.rc or 0, "see driver.versions and driver.bound")
        return failed(f"nvidia-smi fails: {said[0]}", said, hint)
    sick = [
        (status, f"card {gpu.index}: {sentence}", hint)
        for gpu in smi.gpus
        for status, sentence, hint, _ in verdict.judge(gpu.recovery, gpu.flags, gpu.bus_id or "", load_catalog().xids)
    ]
    for status, tell in (("fail", failed), ("warn", warned)):
        if bad := [row for row in sick if row[0] == status]:
            return tell(bad[0][1], [text for _, text, _ in sick], bad[0][2])
    if facts.host.container and seen < count:
        # The bus shows every card of the machine, the runtime hands some of them to the container.
        return passed(f"nvidia-smi sees {seen}; the machine of this container has {count}")
    if seen != count:
        known = {_slot(gpu.bus_id) for gpu in smi.gpus if gpu.bus_id}
        missing = [slot for slot in sorted(_slot(gpu.slot) for gpu in own) if slot not in known]
        return failed(
            f"nvidia-smi sees {seen} GPUs, the bus {count}",
            [f"not seen: {slot}" for slot in missing],
            "check 'dmesg | grep -e NVRM -e Xid': the branch may not drive the card, or the card is faulty",
        )
    return passed(f"nvidia-smi sees all {count}", [f"{gpu.index} {gpu.name}" for gpu in smi.gpus])


def _slot(text: str) -> str:
    """0000:1b:00.0 and 00000000:1B:00.0 are the same function: compare bus, device and function."""
    return ":".join(text.lower().split(":")[-2:])


@check("driver.devices")
def device_nodes(facts: Facts, expect: Expect) -> Check:
    """/dev/nvidiactl, /dev/nvidia-uvm and a node for every GPU exist."""
    own = own_gpus(facts)
    if not own or facts.module.loaded is None:
        return skipped("no driver is loaded")
    nodes = set(facts.devices)
    # Numbers need not be without gaps: a container has those of its own cards.
    cards = [node for node in nodes if re.match(r"^/dev/nvidia[0-9]+$", node)]
    wanted = min(len(own), len(facts.smi.gpus) or 1) if facts.host.container else len(own)
    missing = [node for node in ("/dev/nvidiactl",) if node not in nodes]
    if len(cards) < wanted:
        missing.append(f"/dev/nvidia0, …: {len(cards)} of {wanted} ({', '.join(sorted(cards)) or 'none'})")
    if missing:
        return failed(
            "device nodes are missing", missing, "nvidia-modprobe -c 0 -u makes them; nvidia-persistenced keeps them"
        )
    if "/dev/nvidia-uvm" not in nodes:
        return warned("/dev/nvidia-uvm is missing", (), "nvidia-modprobe -u makes it; CUDA needs it")
    return passed(f"{len(nodes)} nodes")


@check("apt.packages")
def packages_whole(facts: Facts, expect: Expect) -> Check:
    """dpkg has set up every package that it has begun with; the driver's packages come from one series."""
    broken, driver, traces = facts.package_problems, driver_packages(facts), facts.runfile.traces[:8]
    if broken:
        return failed(
            f"{len(broken)} package{'s are' if len(broken) > 1 else ' is'} not set up",
            broken[:12],
            "dpkg --configure -a shows why; provision apply tries to finish them",
        )
    if driver:
        return passed(f"{len(driver)} driver packages, all configured")
    if not expect.driver.manage:
        return skipped("the driver is not from apt, and not managed", traces)
    return failed(
        "no driver package is installed",
        traces,
        "the driver came from outside apt: nvidia_driver_manage: false accepts it as it is"
        if facts.module.loaded
        else "provision apply installs it",
    )


@check("apt.hold")
def held(facts: Facts, expect: Expect) -> Check:
    """Every installed driver package is held, by exact name, and nothing else of the family is."""
    driver = driver_packages(facts)
    if not expect.driver.manage or not expect.driver.hold or not driver:
        return skipped("no hold is asked for" if driver else "no driver package is installed")
    loose, stale = unheld(facts), stale_holds(facts)
    if loose:
        return failed(
            f"{len(loose)} of {len(driver)} driver packages are not held",
            loose[:12],
            "an update can move them apart from the rest: provision apply holds them",
        )
    if stale:
        return warned(
            f"{len(stale)} holds on packages that are not installed",
            stale[:12],
            "they make later installs fail with 'held broken packages': provision apply clears them",
        )
    return passed(f"all {len(driver)} held")


@check("apt.sources")
def apt_sources(facts: Facts, expect: Expect) -> Check:
    """apt can read its sources, and none of them is at an address that cannot be."""
    errors = facts.apt.errors
    if errors:
        return failed("apt cannot read its sources", errors, "every apt call fails until this is fixed")
    for source in facts.apt.sources:
        for uri in source.uris if source.enabled else ():
            why, release = addresses.impossible(source, uri, facts.host.arch), addresses.no_release(uri)
            if why or release:
                return failed(
                    f"NVIDIA has no repository {release}" if release else "there is no repository at an address",
                    [f"{addresses.place(source)}: {uri} {' '.join(source.suites)}", *([why] if why else [])],
                    f"apt-get update fails: remove {addresses.place(source)}",
                )
    return passed(f"{len(facts.apt.sources)} entries, no conflict")


@check("boot.next")
def next_boot(facts: Facts, expect: Expect) -> Check:
    """The kernel that boots next has a module of the right version, signed where Secure Boot asks for it."""
    kernels, boots, because = facts.kernels, facts.kernels.next, facts.kernels.next_because
    if not facts.gpus:
        return skipped("no GPU")
    if not kernels.installed:
        outside = "no kernel image is installed here: what boots comes from outside"
        return skipped("what boots next is not known here", [outside, because] if because else [outside])
    if boots is None:
        return skipped("what boots next is not known here", [because or "no boot loader found"])
    evidence = [f"next: {boots} ({because or 'running'})"]
    problems = next_boot_problems(facts)
    if problems:
        return failed(
            problems[0], problems[1:] + evidence, "do not reboot before provision apply has put a module there"
        )
    module = modules_of(facts, boots)[0]
    bare = any(kernel.release == boots and not kernel.headers for kernel in kernels.installed)
    if module.origin == "dkms" and bare:
        return warned(
            f"the headers of {boots} are not installed",
            evidence,
            f"DKMS cannot rebuild the module for it: install linux-headers-{boots}",
        )
    evidence.append(f"{module.path}: {module.version}{', signed' if module.signed else ''}")
    return passed(f"{boots} has module {module.version}", evidence)


@check("boot.nouveau")
def rivals_blocked(facts: Facts, expect: Expect) -> Check:
    """nouveau and nova can take no GPU at the next boot."""
    blocked, boots = facts.modprobe.blacklisted, facts.kernels.next
    if not expect.driver.manage:
        return skipped("the driver is not managed")
    if "nouveau" not in blocked:
        return warned("nouveau is not blocked", (), "provision apply blocks it in every initramfs")
    old = [initrd.kernel for initrd in facts.initrds if initrd.newer_than_blacklist is False]
    if boots in old:
        return warned(
            f"the initramfs of {boots} is older than the block",
            old,
            "it may still load nouveau: update-initramfs -u -k all",
        )
    return passed("nouveau and nova are blocked", sorted(set(blocked) & set(RIVALS)))


@check("service.persistence")
def persistence(facts: Facts, expect: Expect) -> Check:
    """Persistence is on, by nvidia-persistenced, so that the driver keeps its state between jobs."""
    gpus, daemon = facts.smi.gpus, facts.services.get("nvidia-persistenced")
    if not expect.driver.persistence or not gpus:
        return skipped("not asked for" if gpus else "no driver answers")
    off = [f"GPU {gpu.index}" for gpu in gpus if gpu.persistence is False]
    if off:
        # Ubuntu's unit runs the daemon with --no-persistence-mode: starting it is not enough.
        hint = "provision apply switches it on for good; nvidia-smi -pm 1 does until the next boot"
        return warned("persistence is off", off, hint)
    if expect.driver.manage and facts.host.systemd and daemon and daemon.present and not daemon.running:
        return warned(
            "persistence is on, and nvidia-persistenced does not run",
            (),
            "it will be off after the next boot: provision apply makes it last",
        )
    return passed("on")


@check("service.fabric_manager")
def fabric_manager(facts: Facts, expect: Expect) -> Check:
    """Where NVSwitch is, fabric manager runs at exactly the driver's version."""
    switches, loaded, want = facts.nvswitches, facts.module.loaded, expect.driver
    if not want.fabric_manager:
        return skipped("not asked for" if switches else "no NVSwitch")
    packages = {
        name: driver_names.upstream(version)
        for name, version in driver_packages(facts).items()
        if driver_names.parse(name).base == "nvidia-fabricmanager"
    }
    evidence = [f"{name} {version}" for name, version in sorted(packages.items())] + [f"{len(switches)} NVSwitches"]
    service = facts.services.get("nvidia-fabricmanager")
    running = service is not None and service.running
    if not packages and facts.host.container:
        return skipped("it runs on the machine, not in this container", evidence)
    if not packages and running and not want.manage:
        return passed("running, from outside apt", evidence)
    if not packages:
        return failed(
            "fabric manager is not installed",
            evidence,
            "CUDA fails with error 802 on NVSwitch without it: provision apply installs it",
        )
    if loaded and any(version != loaded.version for version in packages.values()):
        return failed(
            "fabric manager is not of the driver's version",
            [*evidence, f"driver {loaded.version}"],
            "their versions must be identical: provision apply aligns them",
        )
    nvlsm = facts.packages.get("nvlsm")
    if facts.nvlink5_switch and want.manage and not (nvlsm and nvlsm.installed):
        return failed(
            "nvlsm is not installed", evidence, "NVLink 5 switches need it; nvidia_driver_channel: cuda has it"
        )
    if facts.nvlink5_switch and "ib_umad" not in facts.infiniband_modules:
        return failed(
            "ib_umad is not loaded",
            evidence,
            "fabric manager reaches NVLink 5 switches through it: provision apply loads it, now and at every boot",
        )
    if not running and not switches and not facts.nvlink5_switch:
        return passed("installed; there is no NVSwitch that it could manage", evidence)
    if not running:
        return failed("nvidia-fabricmanager does not run", evidence, "journalctl -u nvidia-fabricmanager says why")
    return passed(f"running, {next(iter(packages.values()))}", evidence)


# In the order in which a person would look.
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
)
