"""NVSwitch: fabric manager, at exactly the driver's version, and only where there is a switch."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.diagnose import queries
from provision.diagnose.rule import Case, Found, rule
from provision.parts.driver import fabric

_SWITCHES = frozenset({"nvidia-fabricmanager"})


def _has_switch(case: Case) -> bool:
    return bool(case.facts.nvswitches or case.facts.nvlink5_switch)


def _packages(case: Case) -> dict[str, str]:
    """{package: upstream version} of fabric manager."""
    return {
        name: driver_names.upstream(version)
        for name, version in queries.installed(case).packages.items()
        if driver_names.parse(name).base in _SWITCHES
    }


def _driver_version(case: Case) -> str | None:
    """What the driver will be when all is loaded: the libraries', else the loaded module's."""
    libraries = queries.library_version(case)
    loaded = case.facts.module.loaded
    return libraries or (loaded.version if loaded else None)


def _said(case: Case) -> list[str]:
    return queries.boot(case).unit_log.get("nvidia-fabricmanager", [])[-4:]


def _running(case: Case) -> bool:
    service = case.facts.services.get("nvidia-fabricmanager")
    return bool(service and service.running)


def _switch_text(case: Case) -> str:
    count = len(case.facts.nvswitches)
    return (
        f"{queries.counted(case.facts.nvswitches, 'NVSwitch')[:-1] + 'es' if count > 1 else '1 NVSwitch'} on the bus"
        if count
        else "an NVLink 5 switch"
    )


@rule("fabric.version")
def _version(case: Case) -> Iterator[Found]:
    if not _has_switch(case) or queries.in_container(case):
        return
    driver = _driver_version(case)
    wrong = {name: version for name, version in _packages(case).items() if driver and version != driver}
    if not wrong:
        return
    name, version = next(iter(wrong.items()))
    own = [f"{other} {queries.installed(case).packages[other]}" for other in wrong]
    evidence = own + [*queries.library_text(case)[:1], queries.loaded_text(case), _switch_text(case)]
    evidence += [line for line in _said(case) if "don't match" in line or "version" in line]
    held = case.facts.packages[name].held
    evidence.append(
        f"{name} is {'held' if held else 'not held'}; the driver's packages: "
        f"{', '.join(queries.installed(case).versions) or 'none'}"
    )
    if queries.driver_packages(case):
        repair = queries.realign(
            f"bring fabric manager and driver to one version ({driver} where the repository has it), from one origin, and hold both"
        )
    else:
        repair = queries.manual(f"install fabric manager {driver}: the driver itself is not from apt")
    yield Found(
        f"fabric manager is {version}, the driver is {driver}: the versions must be identical", evidence, repair
    )


def _always_has_switches(case: Case) -> list[str]:
    """Titles of cards that are only built on boards with NVLink 5 switches, by PCI id. Source: catalog gpus, fabric."""
    return [
        queries.title(case, gpu)
        for gpu in queries.own_gpus(case)
        if queries.catalog_gpu(case, gpu).fabric == "nvswitch+nvlsm"
    ]


@rule("fabric.switch_unseen")
def _unseen(case: Case) -> Iterator[Found]:
    """The board has switches, and what they are reached through is not there.

    Without such a function on the bus only a failed fabric manager says so: a virtual machine may have got cards alone.
    """
    diagnostics, cards = queries.boot(case), _always_has_switches(case)
    if not cards or queries.in_container(case) or not queries.has_driver(case) or not case.facts.module.loaded:
        return
    failed = "nvidia-fabricmanager.service" in (diagnostics.failed_units or ())
    if not diagnostics.network_cards and (not failed or case.facts.host.virtual):
        return
    missing = [name for name in ("mlx5_ib", "ib_umad") if name not in case.facts.infiniband_modules]
    if not missing and diagnostics.infiniband:
        return
    running = case.facts.kernels.running
    evidence = [
        *cards[:2],
        f"/sys/class/infiniband: {', '.join(diagnostics.infiniband[:4]) or 'empty'}",
        f"/proc/modules: no {' and no '.join(missing)}" if missing else "mlx5_ib and ib_umad are loaded",
        f"on the bus: {queries.counted(diagnostics.network_cards, 'function')} of NVIDIA's network cards (15b3)",
        *_said(case),
    ]
    steps = []
    if "mlx5_ib" in missing and diagnostics.infiniband_on_disk is False:
        evidence.append(f"/lib/modules/{running}: no mlx5_ib")
        steps.append(f"apt-get install linux-modules-extra-{running}")
    if missing:
        steps.append(f"modprobe -a {' '.join(missing)}, with {' and '.join(missing)} in a file of /etc/modules-load.d")
    steps.append("nvlsm beside fabric manager of the driver's version, then systemctl restart nvidia-fabricmanager")
    what = (
        f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not loaded"
        if missing
        else "no InfiniBand device"
    )
    yield Found(
        f"this board has NVLink 5 switches that nobody can see: {what}", evidence, queries.manual("; then ".join(steps))
    )


@rule("fabric.missing")
def _missing(case: Case) -> Iterator[Found]:
    if not _has_switch(case) or _packages(case) or _running(case) or queries.in_container(case):
        return
    if not queries.has_driver(case) or str(case.values.get("nvidia_driver_fabric_manager", "auto")) == "never":
        return
    yield Found(
        "this machine has NVSwitch and fabric manager is not installed",
        [_switch_text(case), queries.loaded_text(case), "packages: no nvidia-fabricmanager"],
        queries.apply(f"install fabric manager {_driver_version(case) or ''}".rstrip() + ", start it, hold it"),
    )


@rule("fabric.not_running")
def _not_running(case: Case) -> Iterator[Found]:
    if (
        not _has_switch(case)
        or not _packages(case)
        or _running(case)
        or not case.facts.host.systemd
        or queries.in_container(case)
    ):
        return
    if case.facts.module.loaded is None:
        # it follows from the module
        return
    service = case.facts.services.get("nvidia-fabricmanager")
    masked = "nvidia-fabricmanager" in queries.boot(case).masked_units
    evidence = [
        _switch_text(case),
        *(f"{name} {version}" for name, version in _packages(case).items()),
        queries.loaded_text(case),
    ]
    evidence.append(
        "nvidia-fabricmanager.service: "
        + (
            "masked"
            if masked
            else "enabled, not running"
            if service and service.enabled
            else "not enabled, not running"
        )
    )
    yield Found(
        "fabric manager is installed and does not run",
        evidence + _said(case),
        queries.apply("enable and start nvidia-fabricmanager"),
    )


@rule("fabric.needless")
def _needless(case: Case) -> Iterator[Found]:
    packages = _packages(case)
    if not packages or _has_switch(case) or not case.facts.gpus or queries.in_container(case):
        return
    if _always_has_switches(case):
        # Not seen is not absent.
        return
    failed = "nvidia-fabricmanager.service" in (queries.boot(case).failed_units or ())
    evidence = [f"{name} {version}" for name, version in packages.items()]
    evidence += ["on the bus: no NVSwitch (10de:1af1, 10de:22a3, class 0680), and no NVLink 5 switch"]
    evidence.append(
        "nvidia-fabricmanager.service: " + ("failed, which says nothing about the GPUs" if failed else "not failed")
    )
    yield Found(
        "fabric manager is installed and there is no NVSwitch that it could manage",
        evidence + _said(case),
        queries.manual(f"remove or disable it: apt-get remove {' '.join(packages)}"),
    )


@rule("fabric.unheld")
def _unheld(case: Case) -> Iterator[Found]:
    """Fabric manager from apt beside a driver from elsewhere, not held: the archive moves it alone."""
    if not _has_switch(case) or queries.in_container(case):
        return
    loose = [name for name in _packages(case) if not case.facts.packages[name].held]
    others = [
        name for name in queries.locked_packages(case) if driver_names.parse(name).base not in driver_names.FABRIC
    ]
    if not loose or others:
        return
    auto = {True: "on", False: "off", None: "not known"}[case.facts.apt.unattended]
    evidence = [f"{name} {queries.installed(case).packages[name]}: not held" for name in loose]
    evidence += [
        f"the driver is from outside apt: {queries.loaded_text(case)}",
        *case.facts.runfile.traces[:2],
        f"unattended-upgrades: {auto}",
    ]
    yield Found(
        "fabric manager is from apt and not held, the driver is from outside: an update moves it away from the driver",
        evidence,
        queries.manual(f"apt-mark hold {' '.join(loose)}, and name it in unattended-upgrades' blacklist")
        if not case.driver_managed
        else queries.apply("hold it, and keep unattended-upgrades from it"),
    )


def _log(case: Case) -> tuple[list[fabric.Unit], float]:
    errors = queries.boot(case).errors
    events = [(line.boot, line.when, line.text) for line in errors.fabric]
    return fabric.read(events, case.catalog.xids, errors.now)


@rule("fabric.errors")
def _errors(case: Case) -> Iterator[Found]:
    """Errors that fabric manager has logged since the last start that stayed; the same repair once."""
    rows = fabric.standing(_log(case)[0])
    for repair in dict.fromkeys(row.repair for row in rows):
        same = [row for row in rows if row.repair == repair]
        yield Found(
            same[0].told + (f" and {len(same) - 1} more" if len(same) > 1 else ""),
            [row.line for row in same],
            # in a virtual machine nobody can
            queries.hardware(case, repair) if "switch the machine off" in repair else queries.manual(repair),
            level="warning" if same[0].status == "warn" else None,
        )


@rule("fabric.flapping")
def _flapping(case: Case) -> Iterator[Found]:
    units, now = _log(case)
    for unit in units:
        if unit.flaps(now):
            yield Found(unit.told(now), unit.lines(now), queries.manual(f"journalctl -u {unit.name} says what ends it"))
