"""What only diagnose reads of a host, beside the facts that every command reads: logs, leftovers, states of repair.

The host program ``trouble`` (plugins/module_utils/trouble.py) reads the same facts as the probe and adds this. Absent
knowledge is ``None``, never a guess.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Trouble(BaseModel):
    model_config = ConfigDict(extra="ignore")


class BootTrouble(_Trouble):
    """Kernel log, modules, DKMS, initramfs, services: what decides whether the driver comes up."""


class AptTrouble(_Trouble):
    """Keys, lists, logs and locks of apt and dpkg, beyond facts.Apt."""


class UserTrouble(_Trouble):
    """Userland: shells, containers, conda, proxies, beyond facts.Cuda, Conda and Containers."""


class Trouble(_Trouble):
    boot: BootTrouble = BootTrouble()
    apt: AptTrouble = AptTrouble()
    user: UserTrouble = UserTrouble()
