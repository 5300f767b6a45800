"""Desktops: on machines that should have none, and on those whose driver has nothing for them."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.diagnose import queries
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule

_SESSIONS = ("gdm3", "lightdm", "sddm", "xdm", "lxdm", "gnome-shell", "plasma-workspace")
_X = ("Xorg", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "X")


def _desktop_packages(case: Case) -> list[str]:
    return [
        f"{name} {package.version}"
        for name, package in case.facts.packages.items()
        if package.installed
        and (name in _SESSIONS or name.endswith(("-desktop", "-desktop-minimal")) and "docker" not in name)
    ]


def _is_server(case: Case) -> bool:
    """By the inventory, else by the cards: every card is made for data centers."""
    variant = str(case.values.get("nvidia_driver_variant", "auto"))
    if variant != "auto":
        return variant == "headless"
    gpus = queries.own_gpus(case)
    return bool(gpus) and all(queries.catalog_gpu(case, gpu).segment == "datacenter" for gpu in gpus)


@rule("desktop.on_server")
def _on_server(case: Case) -> Iterator[Found]:
    if not case.facts.desktop or not _is_server(case) or queries.in_container(case):
        return
    diagnostics = queries.boot(case)
    drawing = [
        f"pid {user.pid}: {user.comm} has {', '.join(user.devices[:3])} open"
        for user in case.facts.gpu_users
        if user.comm in _X
    ]
    if diagnostics.default_target != "graphical.target" and not drawing:
        return
    evidence = [f"/etc/systemd/system/default.target: {diagnostics.default_target or 'not set: graphical.target'}"]
    evidence += [f"display manager: {diagnostics.display_manager}"] if diagnostics.display_manager else []
    evidence += _desktop_packages(case)[:4] + drawing
    yield Found(
        "a graphical desktop starts on a compute server" + (" and holds its GPUs" if drawing else ""),
        evidence,
        queries.manual(
            "if nobody uses it: systemctl set-default multi-user.target, stop the display manager; nothing is removed"
        ),
    )


@rule("desktop.no_gl")
def _no_gl(case: Case) -> Iterator[Found]:
    facts, driver = case.facts, queries.installed(case)
    if not facts.desktop or not driver.packages or queries.in_container(case) or not queries.own_gpus(case):
        return
    gl = {
        n: driver_names.upstream(v)
        for n, v in driver.packages.items()
        if driver_names.parse(n).base == "libnvidia-gl" and ":" not in n
    }
    errors = queries.boot(case).xorg_errors
    if gl and set(gl.values()) == {queries.library_version(case)}:
        return
    if _is_server(case) and not errors and queries.boot(case).default_target != "graphical.target":
        return
    evidence = _desktop_packages(case)[:3]
    evidence.append("libnvidia-gl: " + (", ".join(f"{n} {v}" for n, v in gl.items()) if gl else "not installed"))
    evidence.append(
        f"the driver's packages: {driver.series or ''} {driver.variant or ''} {' and '.join(driver.versions)}".replace(
            "  ", " "
        )
    )
    evidence += errors[:4]
    variant = str(case.values.get("nvidia_driver_variant", "auto"))
    text = "install the desktop's half of the driver (libnvidia-gl and the X driver of the same version)"
    repair = (
        queries.apply(text)
        if variant != "headless"
        else queries.manual(f"nvidia_driver_variant is headless and there is a desktop: say desktop, then {text}")
    )
    yield Found(
        "the desktop has no OpenGL of this driver: a headless or server flavour is installed"
        if not gl
        else "the desktop's OpenGL is of another version than the driver",
        evidence,
        repair,
        level="error" if errors else None,
    )


@rule("desktop.xorg_conf")
def _stale_conf(case: Case) -> Iterator[Found]:
    """xorg.conf asks for a driver that is not there."""
    facts = case.facts
    if not facts.desktop or queries.in_container(case):
        return
    bus = {_bus(gpu.slot) for gpu in facts.gpus}
    rows = []
    for device in queries.boot(case).xorg:
        if not device.file.startswith("/etc/"):
            continue
        if device.driver == "nvidia" and not queries.has_driver(case):
            rows.append((device, "there is no NVIDIA driver"))
        elif (
            device.driver == "nvidia"
            and not any(
                driver_names.parse(n).base == "xserver-xorg-video-nvidia" for n in queries.installed(case).packages
            )
            and not facts.runfile.uninstaller
            and queries.installed(case).packages
        ):
            rows.append((device, "no package xserver-xorg-video-nvidia-* is installed"))
        elif device.driver in ("nouveau", "nv") and facts.module.loaded:
            rows.append((device, "the nvidia module drives the card"))
        elif device.driver == "nvidia" and device.bus and bus and _conf_bus(device.bus) not in bus:
            rows.append((device, f"there is no card at {device.bus}"))
    if not rows:
        return
    errors = queries.boot(case).xorg_errors
    files = sorted({device.file for device, _ in rows})
    yield Found(
        f"X's configuration asks for a driver that is not there: {', '.join(files)}",
        [f'{device.file}, line {device.line}: Driver "{device.driver}": {why}' for device, why in rows] + errors[:3],
        Repair(
            action="file.aside",
            words=f"put {', '.join(files)} aside: X finds the cards automatically",
            args={"paths": files},
        ),
        level="error" if errors else None,
    )


def _bus(slot: str) -> str:
    parts = slot.lower().replace(".", ":").split(":")[-3:]
    try:
        return ":".join(str(int(part, 16)) for part in parts)
    except ValueError:
        return slot


def _conf_bus(text: str) -> str:
    """``PCI:1:0:0`` and ``PCI:1@0:0:0``, decimal as X has it, as bus:device:function."""
    parts = text.lower().removeprefix("pci:").split(":")
    numbers = [part.split("@")[0] for part in parts[-3:]]
    return ":".join(numbers)


@rule("desktop.suspend_masked")
def _suspend_masked(case: Case) -> Iterator[Found]:
    rows = [row for row in queries.boot(case).modprobe if "NVreg_PreserveVideoMemoryAllocations=1" in row.text]
    units = ("nvidia-suspend", "nvidia-resume", "nvidia-hibernate")
    masked = [unit for unit in units if unit in queries.boot(case).masked_units]
    if rows and masked and queries.own_gpus(case) and not queries.in_container(case):
        names = " and ".join(masked)
        yield Found(
            f"video memory is to be kept over a suspend, and {names} is masked",
            [row.place for row in rows] + [f"/etc/systemd/system/{unit}.service leads to /dev/null" for unit in masked],
            queries.manual(f"systemctl unmask {' '.join(masked)}, then systemctl enable {' '.join(masked)}"),
        )
