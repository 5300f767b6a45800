"""Dispatch: the name that a program was called by says what it stands in for."""

from __future__ import annotations

import os
import sys


def main(name=None):
    name, argv = name or os.path.basename(sys.argv[0]), sys.argv[1:]
    if name in ("modprobe", "rmmod", "lsmod", "dmesg"):
        from . import kmod

        return getattr(kmod, name)(argv)
    if name == "nvidia-smi":
        from . import smi

        return smi.main(argv)
    if name == "dkms":
        from . import dkms

        return dkms.main(argv)
    if name == "update-initramfs":
        from . import initramfs

        return initramfs.main(argv)
    if name.startswith(("grub-", "update-grub")):
        from . import grub

        return grub.main(name, argv)
    from . import boot, daemons

    programs = {
        "sim-boot": boot.main,
        "sim-late": boot.late,
        "sim-describe": boot.describe,
        "nvidia-persistenced": lambda: daemons.persistenced(argv),
        "mokutil": lambda: daemons.mokutil(argv),
        "sim-job": lambda: daemons.job(argv),
    }
    return programs[name]()


def program(name):
    """Text of a program file that answers to a name."""
    return (
        "#!/usr/bin/python3 -SE\n# Stand-in on a simulated host; see /usr/local/lib/sim.\nimport sys\n\n"
        'sys.path.insert(0, "/usr/local/lib")\nfrom sim.standin import main\n\nsys.exit(main("%s"))\n' % name
    )
