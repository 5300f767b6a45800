"""The repository of NVIDIA's container toolkit as the lab has it: real names, versions and relations, stand-ins inside.

Relations: from 1.18.0 on the four packages depend on each other exactly, before that by at least (source: NVIDIA's
nvidia-container-toolkit, packaging/debian; container_toolkit in ../shared's facts). nvidia-docker2 and
nvidia-container-runtime are what came before: the first brings /etc/docker/daemon.json as a conffile.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from ..debfile import File, Package

# What the repository holds on its first day, and what is published later.
VERSIONS = ("1.13.5", "1.17.7", "1.17.8", "1.18.0", "1.18.1", "1.18.2", "1.19.0", "1.19.1")
LATER = ("1.20.0",)
PATH = "libnvidia-container/stable/deb/amd64"
OLD_PATH = "libnvidia-container/stable/ubuntu18.04/amd64"
STANDIN = Path(__file__).parent / "standin" / "nvidia_ctk.py"

_RUNTIME = """\
#!/bin/sh
# SIMULATION of nvidia-container-runtime: hands everything on to runc.
exec runc "$@"
"""
_HOOK = """\
#!/bin/sh
# SIMULATION of nvidia-container-runtime-hook: says that it was called, gives the container nothing.
cat > /dev/null
echo "$1" >> /run/sim/nvidia-container-runtime-hook.log
"""
_CLI = """\
#!/bin/sh
# SIMULATION of nvidia-container-cli: info tells the driver's version.
version=$(sed -n 's/.*Kernel Module[^0-9]*\\([0-9.]*\\).*/\\1/p' /proc/driver/nvidia/version 2> /dev/null)
case "$1" in
--version | -V) echo "cli-version: @version@" ;;
info)
    [ -n "$version" ] || { echo "nvidia-container-cli: initialization error: nvml error: driver not loaded" >&2; exit 1; }
    echo "NVRM version:   $version" ;;
*) exit 0 ;;
esac
"""
_SERVICE = """\
[Unit]
Description=Refresh NVIDIA CDI specification file
ConditionPathExists=|/usr/bin/nvidia-smi
ConditionPathExists=|/usr/sbin/nvidia-smi
ConditionPathExists=/usr/bin/nvidia-ctk
After=multi-user.target

[Service]
Type=oneshot
Environment=NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml
EnvironmentFile=-/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env
ExecStart=/usr/bin/nvidia-ctk cdi generate

[Install]
WantedBy=multi-user.target
"""
_PATH_UNIT = """\
[Unit]
Description=Trigger CDI refresh on NVIDIA driver install / uninstall events

[Path]
PathChanged=/lib/modules/%v/modules.dep
PathChanged=/lib/modules/%v/modules.dep.bin

[Install]
WantedBy=multi-user.target
"""
# As the real one: it reloads systemd, which is why running containers may lose their GPUs.
_POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    /usr/bin/nvidia-ctk --quiet config --config-file=/etc/nvidia-container-runtime/config.toml --in-place
    @units@
fi
"""
# As the real postinst does: what fails here is no reason to fail the installation; is-system-running says "offline" in a
# container with an exit code of its own, and is asked for its word only.
_UNITS = """\
case "$(systemctl is-system-running 2>/dev/null || true)" in
    running|degraded)
        systemctl daemon-reload || echo "Warning: Failed to reload systemd daemon" >&2
        systemctl enable --now nvidia-cdi-refresh.path || echo "Warning: Failed to enable nvidia-cdi-refresh.path" >&2
        systemctl enable --now nvidia-cdi-refresh.service || echo "Warning: Failed to enable nvidia-cdi-refresh.service" >&2
        systemctl start nvidia-cdi-refresh.service || echo "Warning: Failed to trigger CDI refresh" >&2
        ;;
esac"""
# nvidia-docker2's daemon.json.
DOCKER2_JSON = """\
{
    "runtimes": {
        "nvidia": {
            "path": "nvidia-container-runtime",
            "runtimeArgs": []
        }
    }
}
"""


def packages(*, later: bool = False) -> list[Package]:
    """All packages of the repository; later: with what was published later."""
    built = [package for version in (*VERSIONS, *(LATER if later else ())) for package in toolkit(version)]
    return [*built, *legacy()]


def toolkit(version: str) -> list[Package]:
    """The four packages of one version."""
    full, numbers = f"{version}-1", tuple(int(part) for part in version.split("."))
    new = numbers >= (1, 18)
    relation, ceiling = ("=" if new else ">="), ("" if new else ", libnvidia-container-tools (<< 2.0.0)")
    text = STANDIN.read_text(encoding="utf-8").replace("@version@", version)
    text = text.replace("@cdi_version@", "0.7.0" if numbers >= (1, 19, 1) else "0.5.0")
    files: dict[str, File | str] = {
        "/usr/bin/nvidia-ctk": File(text.encode(), 0o755),
        "/usr/bin/nvidia-container-runtime": File(_RUNTIME.encode(), 0o755),
        "/usr/bin/nvidia-cdi-hook": File(b"#!/bin/sh\n# SIMULATION\nexit 0\n", 0o755),
    }
    if new:
        files["/lib/systemd/system/nvidia-cdi-refresh.service"] = _SERVICE
        files["/lib/systemd/system/nvidia-cdi-refresh.path"] = _PATH_UNIT
    postinst = _POSTINST.replace("@units@", textwrap.indent(_UNITS, "    ").strip() if new else ":")
    return [
        _package(
            "nvidia-container-toolkit",
            full,
            {
                "Depends": f"nvidia-container-toolkit-base (= {full}), libnvidia-container-tools ({relation} {full}){ceiling}",
                "Breaks": "nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook",
                "Replaces": "nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook",
            },
            {"/usr/bin/nvidia-container-runtime-hook": File(_HOOK.encode(), 0o755)},
        ),
        _package(
            "nvidia-container-toolkit-base",
            full,
            {"Breaks": "nvidia-container-runtime (<= 3.5.0-1)", "Replaces": "nvidia-container-runtime (<= 3.5.0-1)"},
            files,
            {"postinst": postinst},
        ),
        _package(
            "libnvidia-container-tools",
            full,
            {"Depends": f"libnvidia-container1 ({relation} {full})"},
            {"/usr/bin/nvidia-container-cli": File(_CLI.replace("@version@", version).encode(), 0o755)},
        ),
        _package(
            "libnvidia-container1",
            full,
            {"Section": "libs"},
            {
                f"/usr/lib/x86_64-linux-gnu/libnvidia-container.so.{version}": File(b"simulated\n"),
                "/usr/lib/x86_64-linux-gnu/libnvidia-container.so.1": File(link=f"libnvidia-container.so.{version}"),
            },
        ),
    ]


def legacy() -> list[Package]:
    """What came before the toolkit; nvidia-docker2 2.13 was the last with files of its own."""
    return [
        _package(
            "nvidia-docker2",
            "2.13.0-1",
            {"Depends": "nvidia-container-toolkit (>= 1.13.0-1)", "Architecture": "all"},
            {
                "/usr/bin/nvidia-docker": File(b'#!/bin/sh\nexec docker "$@"\n', 0o755),
                "/etc/docker/daemon.json": DOCKER2_JSON,
            },
            conffiles=["/etc/docker/daemon.json"],
        ),
        _package("nvidia-container-runtime", "3.13.0-1", {"Depends": "nvidia-container-toolkit (>= 1.13.0-1)"}),
    ]


def _package(
    name: str,
    version: str,
    fields: dict[str, str],
    files: dict[str, File | str] | None = None,
    scripts: dict[str, str] | None = None,
    conffiles: list[str] | None = None,
) -> Package:
    arch = fields.pop("Architecture", "amd64")
    return Package(
        name,
        version,
        arch,
        {"Section": "utils", **fields},
        files or {},
        scripts or {},
        conffiles or [],
        "simulated: NVIDIA's container toolkit",
    )
