"""The cards: do branch and flavour drive them, do they answer, are they still there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.diagnose import queries
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule
from provision.facts import Gpu
from provision.inventory import cards
from provision.parts.driver import verdict, xid
from provision.parts.driver.installed import is_passthrough, where_to_look

_NOT_OPEN = r"not supported by open"
_LEGACY = r"supported through the NVIDIA [0-9]+\.xx Legacy"
_NO_GSP = (
    r"RmFetchGspRmImages|nvidia/[0-9.]+/gsp_\S+ failed with error|Failed to load GSP firmware|No firmware image found"
)
_FELL_OFF = r"(?:Xid[^:]*: 79\b|GPU has fallen off the bus|GPU is lost)"


def _branch(case: Case, version: str | None) -> int | None:
    found = case.catalog.find_branch(version) if version else None
    return found.number if found else None


def _outside(case: Case, number: int) -> list[tuple[Gpu, str]]:
    """Cards that a branch does not drive, each with the reason."""
    rows = []
    for gpu in queries.own_gpus(case):
        found = queries.catalog_gpu(case, gpu)
        why = found.why_not(number)
        if why:
            rows.append((gpu, f"{found.architecture}: {why}"))
    return rows


def _evidence(case: Case) -> list[str]:
    """What is loaded, packaged, and what nvidia-smi says."""
    rows = [queries.loaded_text(case)]
    driver = queries.installed(case)
    if driver.packages:
        kind = " ".join(filter(None, (driver.series, driver.flavour, driver.build)))
        rows.append(f"packages: {kind} {' and '.join(driver.versions)}")
    if case.facts.smi.error:
        rows.append(f"nvidia-smi: {case.facts.smi.error.splitlines()[0]}")
    return rows


def _fitting(case: Case) -> list[int]:
    """Branches that drive every card of this host."""
    return sorted(case.catalog.branches_for(queries.catalog_gpu(case, gpu) for gpu in queries.own_gpus(case)))


def _sane(case: Case) -> bool:
    """All cards are driven now: what the catalog says against it is wrong for this host."""
    return queries.smi_works(case)


@rule("gpus.no_common_driver")
def _no_common_driver(case: Case) -> Iterator[Found]:
    gpus = queries.own_gpus(case)
    if len(gpus) < 2 or _fitting(case) or _sane(case) or not queries.wants_driver(case):
        return
    rows = []
    for gpu in gpus:
        found = queries.catalog_gpu(case, gpu)
        if found.architecture is None:
            # a card that the catalog does not know decides nothing
            return
        rows.append(f"{queries.title(case, gpu)}: {found.branches}, modules {' or '.join(found.modules)}")
    yield Found(
        "no driver drives all cards of this host: they disagree about branch or kernel modules",
        list(dict.fromkeys(rows)) + _evidence(case),
        queries.manual("remove one kind of card, or hand it to a virtual machine (vfio-pci) with its own driver"),
    )


@rule("gpus.needs_proprietary")
def _needs_proprietary(case: Case) -> Iterator[Found]:
    wrong = _misdriven(case, "open")
    if not wrong:
        return
    others = len(queries.own_gpus(case)) - len(wrong)
    evidence = [f"{queries.title(case, gpu)}: before Turing, no GSP" for gpu in wrong] + _evidence(case)
    yield Found(
        f"the open kernel modules do not drive {queries.counted(wrong, 'card')} of this host"
        + (f"; the other {others} work" if others and case.facts.smi.gpus else ""),
        evidence + queries.log_block(case, _NOT_OPEN, 3),
        _other_modules(case, "proprietary"),
    )


@rule("gpus.needs_open")
def _needs_open(case: Case) -> Iterator[Found]:
    wrong = _misdriven(case, "proprietary")
    if not wrong:
        return
    evidence = [f"{queries.title(case, gpu)}: only the open modules drive it" for gpu in wrong] + _evidence(case)
    yield Found(
        f"the proprietary kernel modules do not drive {queries.counted(wrong, 'card')} of this host",
        evidence + queries.log_lines(case, r"RmInitAdapter failed", r"Xid .*: 169")[:2],
        _other_modules(case, "open"),
    )


def _misdriven(case: Case, flavour: str) -> list[Gpu]:
    """Cards that do not answer because the modules here are of this flavour, which cannot drive them."""
    if queries.driver_now(case)[1] != flavour or _sane(case):
        return []
    return [
        gpu
        for gpu in queries.own_gpus(case)
        if (modules := queries.catalog_gpu(case, gpu).modules)
        and flavour not in modules
        and not queries.smi_sees(case, gpu)
    ]


def _other_modules(case: Case, flavour: str) -> Repair:
    """Modules of this flavour, of a branch that drives every card: of the branch that is here where it does."""
    number = _branch(case, queries.driver_now(case)[0])
    fits = [branch for branch in _fitting(case) if flavour in _flavours(case, branch)]
    if not fits:
        return queries.manual("no branch has modules for all of these cards")
    return queries.realign(
        f"install the {flavour} modules of branch {number if number in fits else fits[-1]} and reboot"
    )


def _flavours(case: Case, branch: int) -> list[str]:
    return list(case.catalog.flavours([queries.catalog_gpu(case, gpu) for gpu in queries.own_gpus(case)], branch))


@rule("gpus.branch_wrong")
def _branch_wrong(case: Case) -> Iterator[Found]:
    version, _ = queries.driver_now(case)
    number = _branch(case, version)
    if number is None or _sane(case):
        return
    wrong = [(gpu, why) for gpu, why in _outside(case, number) if not queries.smi_sees(case, gpu)]
    if not wrong:
        return
    fits = _fitting(case)
    evidence = [f"{queries.title(case, gpu)}: {why}" for gpu, why in wrong] + _evidence(case)
    evidence += queries.log_block(case, _LEGACY, 5)[:5] or queries.log_block(
        case, r"not supported by the$|driver release", 3
    )
    too_new = any(number > (queries.catalog_gpu(case, gpu).last_branch or number) for gpu, _ in wrong)
    limit = f"branch {fits[-1]}" if too_new and fits else f"branch {fits[0]} or newer" if fits else ""
    flavours = _flavours(case, fits[-1] if too_new else fits[0]) if fits else []
    # Said only where the cards leave no choice: one repair for branch and flavour.
    kind = f"the {flavours[0]} modules of " if len(flavours) == 1 else ""
    yield Found(
        f"branch {number} ({version}) is too {'new' if too_new else 'old'} for {queries.counted(wrong, 'card')} of this host",
        evidence,
        queries.realign(f"install {kind}{limit}, and hold it on this host (nvidia_driver_branch in its host_vars)")
        if fits
        else queries.manual("no branch drives all cards of this host"),
    )


def _right(case: Case, cards: Sequence[Gpu], version: str, flavour: str | None) -> bool:
    """Whether the catalog has nothing against this driver on these cards, and its firmware is there."""
    found = [queries.catalog_gpu(case, gpu) for gpu in cards]
    outside = {gpu.slot for gpu, _ in _outside(case, _branch(case, version) or 0)}
    return (
        not outside & {gpu.slot for gpu in cards}
        and not any(flavour and gpu.modules and flavour not in gpu.modules for gpu in found)
        and not queries.log_lines(case, _NO_GSP)
    )


@rule("gpus.gsp_firmware")
def _gsp_firmware(case: Case) -> Iterator[Found]:
    version, flavour = queries.driver_now(case)
    lines = queries.log_lines(case, _NO_GSP)
    firmware = queries.boot(case).firmware
    if not version or _sane(case) or queries.in_container(case) or not queries.own_gpus(case):
        return
    absent = not firmware.get(version)
    no_devices = case.facts.smi.rc == 6 or "No devices" in (case.facts.smi.error or "")
    package = sorted(
        name for name in queries.installed(case).packages if driver_names.parse(name).base == "nvidia-firmware"
    )
    if not lines and not (absent and no_devices and flavour == "open" and case.facts.module.loaded):
        return
    evidence = [*lines[:3]]
    evidence.append(
        f"/lib/firmware/nvidia/{version}: " + ("not there, or empty" if absent else ", ".join(firmware[version]))
    )
    evidence += [
        f"/lib/firmware/nvidia/{other}: {', '.join(files)}" for other, files in firmware.items() if other != version
    ][:2]
    evidence += queries.package_text(case, package) or ["no package nvidia-firmware-* is installed"]
    yield Found(
        f"the GSP firmware of driver {version} is missing"
        + (
            f"; there is that of {', '.join(v for v in firmware if v != version)}"
            if absent and len(firmware) > 0
            else ""
        ),
        evidence + _evidence(case),
        queries.again(case, package, "update-initramfs -u -k all")
        if package
        else queries.apply("install the firmware package of the driver's version, build the initramfs"),
        queries.reboot(),
        reboot=True,
    )


@rule("gpus.fell_off_bus")
def _fell_off(case: Case) -> Iterator[Found]:
    lines = queries.log_lines(case, _FELL_OFF)
    if not lines:
        return
    slots = queries.slots_in(lines)
    gone = [gpu for gpu in queries.own_gpus(case) if queries.bare_slot(gpu.slot) in slots]
    unseen = [gpu for gpu in gone if not queries.smi_sees(case, gpu)]
    present = {queries.bare_slot(gpu.slot) for gpu in case.facts.gpus}
    left = sorted(slots - present)
    if queries.smi_works(case) and not left and not unseen:
        level: str | None = "warning"
        message = (
            f"a card fell off the bus since the boot and answers again: {', '.join(sorted(slots)) or 'unknown slot'}"
        )
    else:
        level = None
        shown = ", ".join(
            [queries.title(case, gpu) for gpu in (unseen or gone)]
            + [f"{slot} (not on the bus any more)" for slot in left]
        )
        message = f"a card fell off the bus: {shown or 'the log does not say which'}"
    yield Found(
        message,
        lines[:4] + _evidence(case) + [f"on the bus: {', '.join(gpu.slot for gpu in case.facts.gpus) or 'no card'}"],
        *_power_cycle(case, "check seating, power and heat; replace a card that does it again"),
        level=level,  # type: ignore[arg-type]
        cards=[*(gpu.slot for gpu in gone), *(f"0000:{slot}" for slot in left)],
    )


@rule("gpus.missing")
def _missing_card(case: Case) -> Iterator[Found]:
    facts = case.facts
    number = cards.count(case.values.get("gpu_verify_expect"))
    driver_sees = [
        slot
        for slot in queries.boot(case).driver_gpus
        if queries.bare_slot(slot) not in {queries.bare_slot(g.slot) for g in facts.gpus}
    ]
    if number and len(facts.gpus) < number:
        yield Found(
            f"{len(facts.gpus)} of {number} GPUs are on the PCI bus",
            [f"on the bus: {queries.title(case, gpu)}" for gpu in facts.gpus]
            or ["the bus shows no device 10de of class 03"],
            queries.hardware(case, "power-cycle; check seating, power and the BIOS (lspci -d 10de:)"),
        )
    elif driver_sees:
        yield Found(
            f"the driver knows a card that is not on the bus any more: {', '.join(driver_sees)}",
            [f"/proc/driver/nvidia/gpus/{slot}" for slot in driver_sees] + _evidence(case),
            queries.hardware(case, "power-cycle; check seating and power"),
            cards=driver_sees,
        )
    elif (
        not facts.gpus
        and not queries.in_container(case)
        and (facts.smi.path or queries.installed(case).packages)
        and case.driver_managed
    ):
        yield Found(
            "a driver is installed and no NVIDIA GPU is on the PCI bus",
            ["the bus shows no device 10de of class 0300 or 0302", *_evidence(case)],
            queries.manual(
                f"if there is to be one: {where_to_look(facts)}; if not: nvidia_driver_manage: false says so"
            ),
            level="warning",
        )


@rule("gpus.init_failed")
def _init_failed(case: Case) -> Iterator[Found]:
    lines = queries.log_lines(case, r"RmInitAdapter failed", r"rm_init_adapter failed")
    if not lines or _sane(case) or not queries.own_gpus(case):
        return
    slots = queries.slots_in(lines)
    ill = [
        gpu
        for gpu in queries.own_gpus(case)
        if queries.bare_slot(gpu.slot) in slots and not queries.smi_sees(case, gpu)
    ]
    if slots and not ill:
        return
    bars = queries.log_lines(
        case, r"BAR ?[0-9].*(?:can't assign|no space|failed to assign|is 0M)", r"BAR[0-9] is 0M", r"Resizable BAR"
    )
    version, flavour = queries.driver_now(case)
    evidence = (
        lines[:3]
        + bars[:3]
        + [f"{queries.title(case, gpu)}: bound to {gpu.driver or 'nothing'}" for gpu in ill]
        + _evidence(case)
    )
    fits = bool(version and _right(case, ill, version, flavour))
    if fits:
        evidence.append(
            f"branch and flavour are right for it ({version} {flavour or ''}): installing again changes nothing".replace(
                " )", ")"
            )
        )
    text = "in the BIOS switch 'Above 4G Decoding' and 'Resizable BAR' on; then power-cycle, reseat, and try the card elsewhere"
    if not bars:
        text = (
            "power-cycle; check power, seating, the BIOS ('Above 4G Decoding', 'Resizable BAR'), and try a newer driver"
        )
    yield Found(
        f"{queries.counted(ill, 'card') if ill else 'a card'} cannot be initialised by the driver",
        evidence,
        queries.hardware(case, text),
        cards=[gpu.slot for gpu in ill] if fits else (),
    )


@rule("gpus.set_aside")
def _passthrough(case: Case) -> Iterator[Found]:
    given_away = [gpu for gpu in case.facts.gpus if is_passthrough(gpu.driver)]
    if not given_away:
        return
    why = [row.place for row in queries.boot(case).modprobe if "vfio" in row.text]
    why += [row.place for row in queries.boot(case).modules_load if "vfio" in row.text]
    match = re.search(r"\S*vfio[-_]pci\.ids=\S+", queries.boot(case).cmdline)
    if match:
        why.append(f"kernel command line: {match.group(0)}")
    everything = not queries.own_gpus(case) and bool(queries.installed(case).packages) and case.driver_managed
    evidence = [f"{queries.title(case, gpu)}: bound to {gpu.driver}" for gpu in given_away]
    evidence += why or [
        "nothing in modprobe.d, modules-load.d or on the command line asks for it: a hypervisor's manager bound it"
    ]
    use = queries.manual("if this host should use them: remove the vfio-pci lines, update-initramfs -u -k all, reboot")
    yield Found(
        f"{queries.counted(given_away, 'GPU')} of {len(case.facts.gpus)} "
        + ("is" if len(given_away) == 1 else "are")
        + " handed to virtual machines"
        + (": the driver that is installed here has no card left" if everything else ""),
        evidence,
        *([use] if everything else []),
        level="error" if everything else None,
    )


@rule("gpus.smi_hangs")
def _hangs(case: Case) -> Iterator[Found]:
    if not case.facts.smi.timed_out or not queries.own_gpus(case):
        return
    lines = queries.log_lines(case, r"Xid", r"NVRM.*(?:timeout|timed out|hung|GSP)", r"blocked for more than")
    off = any(gpu.persistence is False for gpu in case.facts.smi.gpus)
    daemon = case.facts.services.get("nvidia-persistenced")
    evidence = [f"{case.facts.smi.path}: did not end and was stopped", *lines[-5:], *_evidence(case)[:2]]
    if daemon and not daemon.running:
        evidence.append(
            "nvidia-persistenced does not run: with many cards the first start alone takes half a minute and more"
        )
    yield Found(
        "nvidia-smi does not come back: a card or its driver hangs"
        + ("" if lines else ", or the cards are being started"),
        evidence,
        queries.manual(
            "when the log shows Xid errors: end the jobs and power-cycle; without any: start "
            "nvidia-persistenced and try again"
        )
        if not off
        else queries.apply("switch persistence on"),
    )


@rule("gpus.verdict")
def _verdict(case: Case) -> Iterator[Found]:
    for gpu in case.facts.smi.gpus:
        sick = verdict.judge(gpu.recovery, gpu.flags, gpu.bus_id or "", case.catalog.xids)
        if sick:
            yield Found(
                f"card {gpu.index} ({gpu.bus_id}): {sick[0][1]}",
                [sentence for _, sentence, _, _ in sick[1:]] + [f"nvidia-smi -q: recovery action {gpu.recovery}"],
                *_of_card(case, sick[0][3], sick[0][2], [gpu.bus_id or ""]),
                level="warning" if sick[0][0] == "warn" else None,
                cards=[gpu.bus_id] if gpu.bus_id else [],
            )


@rule("gpus.xid")
def _xids(case: Case) -> Iterator[Found]:
    errors = queries.boot(case).errors
    events = [(line.boot, line.when, line.text) for line in errors.lines]
    # Xid 79 is gpus.fell_off_bus
    table = case.catalog.xids
    recovered = verdict.recovered(((gpu.recovery, gpu.bus_id) for gpu in case.facts.smi.gpus), table)
    stand = [row for row in xid.standing(xid.read(events, table, errors.now, recovered)) if row.number != 79]
    for kind in dict.fromkeys((row.action, bool(row.again)) for row in stand):
        rows = [row for row in stand if (row.action, bool(row.again)) == kind]
        yield Found(
            rows[0].told + (f" and {len(rows) - 1} more" if len(rows) > 1 else ""),
            [*(row.told for row in rows[1:]), *(row.line for row in rows)],
            *_recovery(case, rows),
            level="warning" if rows[0].status == "warn" else None,
            cards=[row.bus_id for row in rows],
        )


def _recovery(case: Case, rows: Sequence[xid.Row]) -> list[Repair]:
    """The repairs of errors of one kind."""
    row = rows[0]
    if row.again:
        # the same reset or reboot once more would mend nothing
        return [queries.hardware(case, row.repair)]
    return _of_card(case, row.action, row.repair, list(dict.fromkeys(one.bus_id for one in rows)))


_HARDWARE = "hardware: provision dossier HOST writes the report for the vendor"
_RESETS = ("RESET_GPU", "DRAIN_AND_RESET")
_REBOOTS = ("RESTART_BM", "RESTART_VM")


def _of_card(case: Case, action: str, words: str, bus_ids: list[str]) -> list[Repair]:
    """Repairs of sick cards, the smallest first: in a container, and where a machine has to be opened, on what hands them over."""
    if case.facts.host.container or action == "CHECK_MECHANICALS":
        return [queries.hardware(case, words)]
    whole = [bus_id if "." in bus_id else f"{bus_id}.0" for bus_id in bus_ids]
    if action in _RESETS and case.facts.smi.path and all(whole):
        reset = Repair(action="gpu.reset", words=f"reset the card: {words}", args={"cards": whole})
        return [reset, queries.reboot("reboot, which resets every card"), queries.hardware(case, _HARDWARE)]
    if action in _REBOOTS:
        return [queries.reboot(words), *_power_cycle(case)]
    return [queries.manual(words)]


def _power_cycle(case: Case, then: str = "") -> list[Repair]:
    words = "power-cycle the machine, as a reboot is often not enough" + (f"; then {then}" if then else "")
    if case.facts.host.container or case.facts.host.virtual or case.facts.host.world:
        return [queries.hardware(case, words)]
    return [Repair(action="power.cycle", words=words), queries.manual(_HARDWARE)]


@rule("gpus.no_device_nodes")
def _nodes(case: Case) -> Iterator[Found]:
    facts = case.facts
    if (
        facts.module.loaded is None
        or not any(gpu.driver == "nvidia" for gpu in facts.gpus)
        or queries.in_container(case)
    ):
        return
    own = case.driver_managed
    if "/dev/nvidiactl" in facts.devices and any(re.match(r"^/dev/nvidia[0-9]+$", node) for node in facts.devices):
        helper = queries.present(case, ["nvidia-modprobe"])
        loaded = any(row.name == "nvidia_uvm" for row in queries.boot(case).modules)
        # nvidia-modprobe, which is setuid, makes the node for the first program that asks for it.
        if "/dev/nvidia-uvm" not in facts.devices and not helper and not facts.runfile.uninstaller:
            yield Found(
                "/dev/nvidia-uvm is missing while the other nodes are there: nvidia-smi works and CUDA does not start",
                [
                    f"device nodes: {', '.join(facts.devices)}",
                    f"/proc/modules: {'nvidia_uvm is loaded' if loaded else 'no nvidia_uvm'}",
                    "no package nvidia-modprobe is installed",
                ],
                queries.manual(
                    "nvidia-modprobe -u -c 0 (as root); install nvidia-modprobe, which makes it when it is asked for"
                ),
                level="warning",
            )
        return
    evidence = [f"device nodes: {', '.join(facts.devices) or 'none'}", queries.loaded_text(case)]
    evidence += queries.package_text(case, ["nvidia-modprobe"]) or ["no package nvidia-modprobe is installed"]
    yield Found(
        "the module is loaded and drives the cards, and there are no device nodes",
        evidence,
        queries.apply("install nvidia-modprobe and start nvidia-persistenced, which make and keep them")
        if own
        else queries.manual(
            "nvidia-modprobe -c 0 -u (as root) makes them; nvidia-persistenced at every boot keeps them"
        ),
    )


@rule("gpus.nodes_closed")
def _nodes_closed(case: Case) -> Iterator[Found]:
    """A group of people that has the nodes is somebody's decision; nodes of root's alone are a mode that went wrong.

    The driver's programs give a node the mode of NVreg_DeviceFileMode whenever they run: on an H200 a chmod was gone after the next
    nvidia-smi. So what is closed comes from an option, or from a rule of udev with NVreg_ModifyDeviceFiles=0.
    """
    closed = queries.boot(case).closed_nodes
    if not closed or queries.in_container(case):
        return
    rows = [
        row for row in queries.boot(case).modprobe if re.search(r"NVreg_(?:DeviceFile|ModifyDeviceFiles)", row.text)
    ]
    where = rows[0].place if rows else "the udev rule (grep -r nvidia /etc/udev/rules.d)"
    yield Found(
        f"only root can open the cards: {queries.some(list(closed), 3)}",
        [*(f"{node}: mode {mode}" for node, mode in closed.items()), *(row.place for row in rows)],
        queries.manual(f"remove {where}, or give the nodes to a group (NVreg_DeviceFileGID, mode 0660); then reboot"),
        level="warning",
    )
