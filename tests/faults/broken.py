"""Simulated hosts that are broken by what breaks them in the field: the driver, the kernel, Secure Boot, the wrong branch.

``BROKEN`` has one for each report. Lists of before: ``breaks``; after newer versions were published: ``later``.
"""

from tests.faults.conftest import driver_packages
from tests.faults.kinds import Broken
from tests.lab import repos

QUIET = "DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Dpkg::Use-Pty=0"
NEXT = "6.8.0-45-generic"


def _three_ways(host):
    """A4: a kernel without headers; an update whose postinst is killed; the module of before runs on."""
    host.run(f"apt-get update -qq; {QUIET} --no-install-recommends install linux-image-{NEXT}")


def _three_ways_later(host):
    host.fail_postinst("nvidia-compute-utils-580-server")
    host.run(f"apt-mark unhold $(apt-mark showhold) >/dev/null; apt-get update -qq; {QUIET} dist-upgrade", check=False)
    host.fail_postinst()


def _too_new(host):
    """B4: a kernel on which the driver does not compile, with all its headers.

    The lab's update-initramfs -u takes the newest kernel of /boot; the real one takes those that have an image already, so
    that a kernel whose postinst failed is in nobody's way. Hence an image.
    """
    host.run(
        f"apt-get update -qq; {QUIET} install linux-image-6.17.0-14-generic linux-headers-6.17.0-14-generic",
        check=False,
    )
    host.run("update-initramfs -c -k 6.17.0-14-generic")


def _not_blocked(host):
    """D2: nothing blocks nouveau any more, and it has the cards after the boot."""
    host.run(
        "rm -f $(grep -ls nouveau /etc/modprobe.d/* /usr/lib/modprobe.d/* /lib/modprobe.d/*); update-initramfs -u -k all"
    )
    host.restart()


def _other_fabric_manager(host):
    """K1: the newer fabric manager alone, as it came from another repository and had no dependency."""
    host.run(
        "apt-mark unhold nvidia-fabricmanager-580 >/dev/null; apt-get update -qq; cd /tmp; "
        "apt-get download -q nvidia-fabricmanager-580; dpkg -i --force-depends nvidia-fabricmanager-580_*.deb; "
        "systemctl restart nvidia-fabricmanager",
        check=False,
    )


def _graphical(host):
    """O1: the desktop that came along is what the machine boots into, as Ubuntu's desktop packages have it."""
    system = "/etc/systemd/system"
    host.run(
        f"ln -sf /usr/lib/systemd/system/graphical.target {system}/default.target; "
        f"ln -sf /usr/lib/systemd/system/gdm3.service {system}/display-manager.service"
    )


def _updated(host):
    """O2: an update while a desktop and a job hold the modules."""
    host.run(f"apt-mark unhold $(apt-mark showhold) >/dev/null; apt-get update -qq; {QUIET} dist-upgrade", timeout=300)


def _wrong_key(host):
    """F4: the repository is signed by another key than the one that the host trusts; apt fetched its list and did not take it."""
    host.run(
        "cp $(ls /usr/share/keyrings/*debian*stable.gpg | head -1) "
        "/usr/share/keyrings/cuda-archive-keyring.gpg; apt-get update",
        check=False,
    )


def _two_origins(host):
    """F7: NVIDIA's driver, pinned at 600, and one package of it from the archive, which is newer."""
    host.run(
        "apt-get update -qq; cd /tmp; apt-get download -q nvidia-dkms-580-open="
        "$(apt-cache madison nvidia-dkms-580-open | grep archive | head -1 | cut -d'|' -f2 | tr -d ' ');"
        f"dpkg -i --force-depends nvidia-dkms-580-open_*.deb; {QUIET} install jq",
        check=False,
    )


def _purged(host):
    """G8: a purge by pattern takes the container toolkit along, while the module stays loaded."""
    host.run(
        f"echo 'deb [trusted=yes] {repos.toolkit_url()} /' > /etc/apt/sources.list.d/nvidia-container-toolkit.list; "
        f"apt-get update -qq; {QUIET} install nvidia-container-toolkit"
    )
    host.run(f"{QUIET} --allow-change-held-packages purge '*nvidia*'")
    assert not driver_packages(host)


def _toolkit_is_back(host):
    there = host.run("dpkg-query -W -f '${db:Status-Status} ${Package}\\n' '*nvidia-container*'").stdout
    for name in ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container1"):
        assert f"installed {name}\n" in there, there


def _library_of_590(host):
    """G6: the library of 590, whose name tells no branch, forced over 580."""
    host.run(
        "apt-get update -qq; cd /tmp; apt-get download -q libnvidia-compute=590.48.01-1ubuntu1; "
        "dpkg -i --force-all libnvidia-compute_590*.deb; ldconfig"
    )
    assert driver_packages(host)["libnvidia-compute"] == "590.48.01-1ubuntu1"


def _half_of_590(host):
    """G6, softer: two packages of 590 in the place of 580's; apt is blocked from then on."""
    host.run(
        "apt-get update -qq; cd /tmp; apt-get download -q libnvidia-compute=590.48.01-1ubuntu1 "
        "libnvidia-cfg1=590.48.01-1ubuntu1; "
        "dpkg -r --force-depends libnvidia-compute-580 libnvidia-cfg1-580; dpkg -i --force-depends libnvidia-*_590*.deb; ldconfig",
        check=False,
    )
    there = driver_packages(host)
    assert there["libnvidia-compute"] == there["libnvidia-cfg1"] == "590.48.01-1ubuntu1", there
    assert "libnvidia-compute-580" not in there, there


def _all_of_580(host):
    versions = {version.split(".")[0] for version in driver_packages(host).values()}
    assert "580" in versions and not versions & {"590", "595", "620"}, versions


def _not_loaded(host):
    """R2: nothing loads the module, and the persistence daemon finds no device."""
    host.run(
        "systemctl stop nvidia-persistenced; rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; rm -rf /dev/nvidia*"
    )
    host.run("systemctl start nvidia-persistenced", check=False)


def _replaced_by_cuda(host):
    """F8: the package called cuda takes the archive's -server driver away for NVIDIA's own.

    The solver of the lab's apt refuses where Ubuntu's removes; so what goes is named.
    """
    gone = " ".join(f"{name}-" for name in driver_packages(host) if "-server" in name)
    host.run(
        f"apt-mark unhold $(apt-mark showhold) >/dev/null; apt-get update -qq; {QUIET} install cuda-12-8 {gone}",
        timeout=400,
    )
    there = driver_packages(host)
    assert there and not [name for name in there if name.endswith("-server")], there


def _newer_candidate(host):
    """S1: the second run of a role that installs and holds, once a newer version is there."""
    host.run("apt-get update -qq")
    said = host.run(f"{QUIET} install $(apt-mark showhold) 2>&1", check=False)
    assert "Held packages were changed and -y was used without --allow-change-held-packages" in said.stdout, said.stdout


BROKEN = {
    "A4": Broken(
        {
            "gpus": ["A100"],
            "nouveau": False,
            "kernels": ["6.8.0-44-generic"],
            "installed": ["580-server open dkms held"],
        },
        "dpkg.unfinished",
        _three_ways,
        _three_ways_later,
    ),
    "B4": Broken(
        {"gpus": ["A100"], "nouveau": False, "installed": ["550 open dkms held"]},
        "kernel.build_failed",
        _too_new,
        folded=("dpkg.unfinished",),
    ),
    "C1": Broken(
        {"gpus": ["A100"], "nouveau": False, "secure_boot": True, "installed": ["580-server open dkms held"]},
        "secureboot.key_not_enrolled",
    ),
    "D2": Broken({"gpus": ["A100"], "installed": ["580-server open signed held"]}, "nouveau.not_blocked", _not_blocked),
    "E1": Broken(
        {"gpus": ["V100"], "nouveau": False, "installed": ["580-server open signed held"]}, "gpus.needs_proprietary"
    ),
    "E2": Broken(
        {"gpus": ["RTX 5090"], "nouveau": False, "installed": ["580 proprietary dkms held"]}, "gpus.needs_open"
    ),
    "E3": Broken(
        {"gpus": ["P100"], "nouveau": False, "installed": ["595-server proprietary signed held"]}, "gpus.branch_wrong"
    ),
    "F4": Broken(
        {
            "gpus": ["A100"],
            "nouveau": False,
            "sources": ["archive", "cuda"],
            "installed": ["580-server open signed held"],
        },
        "apt.key_missing",
        _wrong_key,
        reboots=0,
    ),
    "F7": Broken(
        {"gpus": ["RTX 4090"], "nouveau": False, "sources": ["archive", "cuda"], "installed": ["580 open cuda"]},
        "driver.mixed_versions",
        None,
        _two_origins,
        folded=("dpkg.unmet",),
    ),
    "F8": Broken(
        {
            "gpus": ["A100"],
            "nouveau": False,
            "sources": ["archive", "cuda"],
            "installed": ["580-server open dkms held"],
        },
        "driver.stale_module",
        _replaced_by_cuda,
        folded=("cuda.meta_pulls_driver",),
    ),
    "G6": Broken(
        {"gpus": ["RTX 4090"], "nouveau": False, "sources": ["archive", "cuda"], "installed": ["580 open cuda"]},
        "driver.mixed_versions",
        _library_of_590,
        reboots=0,
        proves=_all_of_580,
    ),
    "G6-HALF": Broken(
        {"gpus": ["RTX 4090"], "nouveau": False, "sources": ["archive", "cuda"], "installed": ["580 open cuda"]},
        "driver.mixed_versions",
        _half_of_590,
        folded=("dpkg.unmet",),
        reboots=0,
        proves=_all_of_580,
    ),
    "G8": Broken(
        {"gpus": ["A100"], "nouveau": False, "installed": ["580-server open signed held"]},
        "driver.missing",
        _purged,
        folded=("dpkg.purged_too_much",),
        reboots=0,
        proves=_toolkit_is_back,
    ),
    "R2": Broken(
        {"gpus": ["A100"], "nouveau": False, "installed": ["580-server open signed held"]},
        "driver.load_pending",
        _not_loaded,
        reboots=0,
    ),
    "S1": Broken(
        {"gpus": ["A100"], "nouveau": False, "installed": ["580-server open signed held"]},
        "holds.block_change",
        None,
        _newer_candidate,
        level="note",
        rescued=False,
        reboots=0,
    ),
    "S3": Broken(
        {"gpus": ["A100"], "nouveau": False, "busy": True, "installed": ["580-server open signed held"]},
        "",
        level="well",
        rescued=False,
        reboots=0,
    ),
    "K1": Broken(
        {"gpus": ["H100 x2"], "nvswitch": 2, "nouveau": False, "installed": ["580-server open signed held fm"]},
        "fabric.version",
        None,
        _other_fabric_manager,
    ),
    # Told as a note, and never counted: nothing is broken.
    "K5": Broken(
        {"gpus": ["RTX 4090 x2"], "nouveau": False, "installed": ["580-server open signed held fm"]},
        "fabric.needless",
        level="note",
        rescued=False,
        reboots=0,
    ),
    "O1": Broken(
        {"gpus": ["A100"], "nouveau": False, "desktop": True, "installed": ["580-server open signed held"]},
        "desktop.on_server",
        _graphical,
        level="note",
        rescued=False,
        reboots=0,
    ),
    "O2": Broken(
        {
            "gpus": ["RTX 4090"],
            "nouveau": False,
            "desktop": True,
            "busy": True,
            "installed": ["580 open signed held desktop"],
        },
        "driver.stale_module",
        None,
        _updated,
        folded=("driver.module_in_use",),
        rescued=False,
        reboots=0,
    ),
}


def name_of(report):
    """``A4`` as a host is called."""
    return report.lower()
