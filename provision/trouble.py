"""What only diagnose reads of a host, beside the facts that every command reads: logs, leftovers, states of repair.

The host program ``trouble`` (plugins/module_utils/trouble.py) reads the same facts as the probe and adds this. Absent
knowledge is ``None``, never a guess.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class _Trouble(BaseModel):
    model_config = ConfigDict(extra="ignore")


class ModuleRow(_Trouble):
    """A loaded module, by /proc/modules."""

    name: str
    uses: int | None = None
    holders: list[str] = Field(default_factory=list)  # modules that need it


class ConfLine(_Trouble):
    """A line of somebody's configuration."""

    file: str
    line: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line}: {self.text}"


class DkmsBuild(_Trouble):
    kernel: str
    installed: bool = False  # False: built, and not put into the kernel's folder


class DkmsTree(_Trouble):
    """One version of the driver in DKMS' tree."""

    name: str = "nvidia"
    version: str
    source: str = ""
    source_missing: bool = False
    builds: list[DkmsBuild] = Field(default_factory=list)
    make_log: str | None = None  # of a build that did not end well
    make_kernel: str | None = None  # the kernel that it was for
    make_error: str | None = None  # its decisive line


class XorgDevice(_Trouble):
    """A Device or OutputClass section of X's configuration."""

    file: str
    line: int
    driver: str
    bus: str | None = None


class Compiler(_Trouble):
    """The compiler that built the running kernel, by /proc/version."""

    kernel: str
    missing: bool = False


class BootTrouble(_Trouble):
    """Kernel log, modules, DKMS, initramfs, services: what decides whether the driver comes up."""

    log: list[str] = Field(default_factory=list)  # this boot's kernel log about the driver, dates taken off
    log_from: list[str] = Field(default_factory=list)  # where it was read; empty: nowhere
    modules: list[ModuleRow] = Field(default_factory=list)
    parameters: dict[str, str] = Field(default_factory=dict)  # nvidia_uvm.uvm_disable_hmm -> Y
    dkms: list[DkmsTree] = Field(default_factory=list)
    crashes: list[str] = Field(default_factory=list)  # /var/crash/nvidia-dkms-580.0.crash
    default_target: str | None = None
    display_manager: str | None = None  # gdm3.service
    cmdline: str = ""
    grub_cmdline: list[ConfLine] = Field(default_factory=list)
    modprobe: list[ConfLine] = Field(default_factory=list)
    modules_load: list[ConfLine] = Field(default_factory=list)
    xorg: list[XorgDevice] = Field(default_factory=list)
    xorg_errors: list[str] = Field(default_factory=list)
    cron: list[ConfLine] = Field(default_factory=list)  # lines with nvidia-smi -pm
    firmware: dict[str, list[str]] = Field(default_factory=dict)  # driver version -> GSP firmware files
    initrds: dict[str, int] = Field(default_factory=dict)  # kernel -> size of its initramfs in bytes
    boot_leftovers: list[str] = Field(default_factory=list)  # unfinished images in /boot
    modules_dep_missing: list[str] = Field(default_factory=list)
    mig_instances: dict[str, int] | None = None  # GPU number -> GPU instances; None: the driver has no MIG
    mig_layout: list[str] = Field(default_factory=list)  # files of nvidia-mig-manager
    driver_gpus: list[str] = Field(default_factory=list)  # slots that the driver lists
    failed_units: list[str] | None = None  # None: not known
    unit_log: dict[str, list[str]] = Field(default_factory=dict)
    persistenced_options: str | None = None
    masked_units: list[str] = Field(default_factory=list)
    compiler: Compiler | None = None
    lockdown: str | None = None  # none, integrity, confidentiality
    sig_enforce: bool = False


class AptTrouble(_Trouble):
    """Keys, lists, logs and locks of apt and dpkg, beyond facts.Apt."""


class UserTrouble(_Trouble):
    """Userland: shells, containers, conda, proxies, beyond facts.Cuda, Conda and Containers."""


class Trouble(_Trouble):
    boot: BootTrouble = BootTrouble()
    apt: AptTrouble = AptTrouble()
    user: UserTrouble = UserTrouble()
