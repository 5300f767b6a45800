"""The kinds of runs that are killed: the host at the start, what is asked for, and what the end must say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.lab import Lab, repos
from tests.lab.conda import publish as conda
from tests.lab.containers import debian

# What other people have put on the host before. None of it may change by a byte, a mode or a date.
FOREIGN = {
    "/etc/apt/preferences.d/foreign.pref": "Package: foreign-thing\nPin: version 1.*\nPin-Priority: 900\n",
    "/etc/apt/apt.conf.d/90foreign": '// ours\nAcquire::Queue-Mode "access";\n',
    "/etc/apt/sources.list.d/foreign.sources": (
        "# a mirror that is off\nEnabled: no\nTypes: deb\nURIs: http://127.0.0.9/debian\nSuites: stable\nComponents: main\n"
    ),
    "/etc/modprobe.d/foreign.conf": "options snd_hda_intel power_save=1\nblacklist pcspkr",
    "/etc/profile.d/foreign.sh": "export FOREIGN=1   \n\n",
    "/etc/ld.so.conf.d/foreign.conf": "/opt/foreign/lib\n",
    "/etc/docker/daemon.json": debian.DAEMON_JSON,
}
FOREIGN_HOLD = "sudo"
# A boot costs a third less without these, and a point has three or four boots.
_UNUSED = (
    "user@.service user-runtime-dir@.service modprobe@.service dev-hugepages.mount "
    "sys-kernel-debug.mount sys-kernel-tracing.mount"
)
_BASE = {
    "gpus": ["A100"],
    "extra": FOREIGN,
    "run": [f"apt-mark hold {FOREIGN_HOLD} >/dev/null", f"systemctl mask {_UNUSED} 2>/dev/null"],
}
# Kernels of DGX systems, the container toolkit: what is only called after NVIDIA. Small packages of the real names.
_NAMESAKES = (
    "for n in linux-image-6.8.0-1010-nvidia nvidia-container-toolkit libnvidia-container1; do mkdir -p /tmp/p/DEBIAN; "
    "printf 'Package: %s\\nVersion: 1.18.0-1\\nArchitecture: amd64\\nMaintainer: x <x@example.org>\\nDescription: x\\n' $n "
    ">/tmp/p/DEBIAN/control; dpkg-deb -b /tmp/p /tmp/p.deb >/dev/null; dpkg -i /tmp/p.deb; rm -r /tmp/p /tmp/p.deb; done"
)
# A purge by pattern took the driver, its holds on nothing stay, and nothing blocks nouveau any more.
_BROKEN = (
    "apt-get purge -y -q --allow-change-held-packages '*nvidia*'; "
    "rm -f $(grep -ls nouveau /etc/modprobe.d/* /usr/lib/modprobe.d/* /lib/modprobe.d/*); update-initramfs -u -k all"
)
_DRIVER = {"installed": ["580-server open signed held"], "nouveau": False}


@dataclass(frozen=True)
class Kind:
    """words: the command that is killed and run again. settled: the command that must then find nothing to do.

    ends, rests: status of a host after each of these. edited: foreign files in which keys of ours may stand. left_to_apply:
    files of ours that may be missing: a rescue that was interrupted goes on with what is still broken, and where the packages are
    there by then, it does not come to the roles that write these (docs/rescue.md: the inventory is for apply).
    """

    name: str
    spec: dict[str, Any]
    words: tuple[str, ...]
    ends: frozenset[str]
    settled: tuple[str, ...] = ("apply", "--yes")
    rests: frozenset[str] = frozenset({"unchanged"})
    config: Callable[[], dict[str, Any]] = dict
    publish: Callable[[Lab], None] | None = None
    edited: frozenset[str] = frozenset()
    left_to_apply: frozenset[str] = frozenset()
    private_cgroup: bool = field(default=False)

    def command(self, words: tuple[str, ...], hosts: list[str]) -> list[str]:
        """The words of the command for these hosts: apply has an option for them, rescue takes them as they are."""
        limit = ["-l", ",".join(hosts)] if words[0] == "apply" else hosts
        return [*words, *limit, "--json"]


def _host(**more: Any) -> dict[str, Any]:
    return {**_BASE, **more, "run": [*_BASE["run"], *more.get("run", ())]}


def _layers() -> dict[str, Any]:
    """CUDA, conda and containers. The stand-in of the container toolkit gives containers no GPU, so that check is left out."""
    return {
        **conda.variables(),
        "cuda_toolkit_versions": ["12.8"],
        "cuda_toolkit_profile": "compiler",
        "miniconda_environments": [{"name": "train", "python": "3.11", "torch": "2.6.0", "cuda": "12.4"}],
        "container_toolkit_runtimes": ["docker"],
        "container_toolkit_repo_url": repos.toolkit_url(),
        "container_toolkit_repo_key": "{{ nvidia_driver_repo_key }}",
        "container_toolkit_repo_key_fingerprint": "{{ nvidia_driver_repo_key_fingerprint }}",
        "gpu_verify_skip": ["container.run"],
    }


_BY_ROLES = frozenset(
    {
        "etc/modprobe.d/gpu-provision.conf",
        "etc/apt/apt.conf.d/52gpu-provision",
        "etc/systemd/system/nvidia-persistenced.service.d/gpu-provision.conf",
        "etc/systemd/system/multi-user.target.wants/nvidia-persistenced.service",
    }
)
_APPLIED, _RESCUED = frozenset({"done", "unchanged"}), frozenset({"rescued", "well"})
_RESCUE = ("rescue", "--yes")
KINDS = {
    kind.name: kind
    for kind in (
        Kind("fresh", _host(nouveau=True), ("apply", "--yes"), _APPLIED),
        Kind(
            "upgrade",
            _host(nouveau=False, installed=["550 open signed held"]),
            ("apply", "--yes"),
            _APPLIED,
            config=lambda: {"nvidia_driver_branch": "580-server"},
        ),
        Kind(
            "cuda-conda",
            _host(
                **_DRIVER,
                extra={**FOREIGN, "/etc/pip.conf": conda.PIP_CONF},
                run=["apt-get install -y -q --no-install-recommends docker.io"],
            ),
            ("apply", "--yes"),
            _APPLIED,
            config=_layers,
            publish=lambda lab: lab.publish(packages=debian.packages("noble")),
            edited=frozenset({"/etc/docker/daemon.json"}),
            private_cgroup=True,
        ),
        Kind(
            "rescue",
            _host(installed=_DRIVER["installed"], nouveau=True, run=[_BROKEN]),
            _RESCUE,
            _RESCUED,
            settled=_RESCUE,
            rests=frozenset({"well"}),
            left_to_apply=_BY_ROLES,
        ),
        Kind(
            "purge",
            _host(**_DRIVER, run=[_NAMESAKES, "apt-mark hold nvidia-container-toolkit >/dev/null"]),
            ("rescue", "--purge", "--yes"),
            _RESCUED,
            settled=_RESCUE,
            rests=frozenset({"well"}),
            left_to_apply=_BY_ROLES,
            config=lambda: {"nvidia_driver_branch": "595-server"},
        ),
    )
}
