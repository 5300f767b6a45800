"""What only diagnose reads of a host, beside the facts that every command reads: logs, leftovers, states of repair.

The host program ``trouble`` (plugins/module_utils/probe/diagnostics.py) reads the same facts as the probe and adds this. Absent
knowledge is ``None``, never a guess.
"""

from __future__ import annotations

from pydantic import Field

from provision.lib.text import (
    Answer,
    AnyPath,
    Hash,
    KernelRelease,
    Line,
    Name,
    Number,
    PackageName,
    Path,
    PciSlot,
    Time,
    UnitName,
    Uri,
    UserName,
    Version,
)


class ModuleRow(Answer):
    """A loaded module, by /proc/modules."""

    name: Name
    uses: Number | None = None
    holders: list[Name] = Field(default_factory=list)  # modules that need it


class ConfLine(Answer):
    """A line of somebody's configuration."""

    file: Path
    line: Number
    text: Line

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line}: {self.text}"


class DkmsBuild(Answer):
    kernel: KernelRelease
    installed: bool = False  # False: built, and not put into the kernel's folder


class DkmsTree(Answer):
    """One version of the driver in DKMS' tree."""

    name: Name = "nvidia"
    version: Version
    source: Line = ""
    source_missing: bool = False
    builds: list[DkmsBuild] = Field(default_factory=list)
    make_log: Line | None = None  # of a build that did not end well
    make_kernel: KernelRelease | None = None  # the kernel that it was for
    make_error: Line | None = None  # its decisive line


class XorgDevice(Answer):
    """A Device or OutputClass section of X's configuration."""

    file: Path
    line: Number
    driver: Line
    bus: Line | None = None


class Compiler(Answer):
    """The compiler that built the running kernel, by /proc/version."""

    kernel: Line
    missing: bool = False


class BootTrouble(Answer):
    """Kernel log, modules, DKMS, initramfs, services: what decides whether the driver comes up."""

    log: list[Line] = Field(default_factory=list)  # this boot's kernel log about the driver, dates taken off
    log_from: list[Line] = Field(default_factory=list)  # where it was read; empty: nowhere
    modules: list[ModuleRow] = Field(default_factory=list)
    parameters: dict[Name, Line] = Field(default_factory=dict)  # nvidia_uvm.uvm_disable_hmm -> Y
    dkms: list[DkmsTree] = Field(default_factory=list)
    crashes: list[Path] = Field(default_factory=list)  # /var/crash/nvidia-dkms-580.0.crash
    default_target: UnitName | None = None
    display_manager: UnitName | None = None  # gdm3.service
    cmdline: Line = ""
    modprobe: list[ConfLine] = Field(default_factory=list)
    modules_load: list[ConfLine] = Field(default_factory=list)
    xorg: list[XorgDevice] = Field(default_factory=list)
    xorg_errors: list[Line] = Field(default_factory=list)
    cron: list[ConfLine] = Field(default_factory=list)  # lines with nvidia-smi -pm
    # driver version -> GSP firmware files
    firmware: dict[Version, list[AnyPath]] = Field(default_factory=dict)
    # kernel -> size of its initramfs in bytes
    initrds: dict[KernelRelease, Number] = Field(default_factory=dict)
    boot_leftovers: list[Path] = Field(default_factory=list)  # unfinished images in /boot
    # GPU number -> GPU instances; None: the driver has no MIG
    mig_instances: dict[Name, Number] | None = None
    mig_layout: list[Path] = Field(default_factory=list)  # files of nvidia-mig-manager
    driver_gpus: list[PciSlot] = Field(default_factory=list)  # slots that the driver lists
    failed_units: list[UnitName] | None = None  # None: not known
    unit_log: dict[UnitName, list[Line]] = Field(default_factory=dict)
    persistenced_options: Line | None = None
    masked_units: list[UnitName] = Field(default_factory=list)
    compiler: Compiler | None = None
    driver_container: bool = False  # the driver lives in a container of the GPU operator
    default_route: bool | None = None  # a route leads out of the host; None: not known
    nameservers: list[Line] | None = None  # None: there is no /etc/resolv.conf
    lockdown: Name | None = None  # none, integrity, confidentiality
    sig_enforce: bool = False


class Hold(Answer):
    """A package on hold, whatever it is."""

    name: PackageName
    version: Version | None = None
    state: Name = "installed"  # dpkg's word

    @property
    def present(self) -> bool:
        return self.state not in ("not-installed", "config-files")


class Unfinished(Answer):
    """A package that dpkg was cut off at, or failed at."""

    name: PackageName
    version: Version | None = None
    state: Name  # dpkg's word: unpacked, half-configured, half-installed, triggers-pending, …
    reinstall: bool = False  # dpkg wants it unpacked again
    since: Time | None = None  # by dpkg.log
    action: Name | None = None  # configure, remove, … that failed, by term.log
    reason: Line | None = None  # dpkg's own line
    context: list[Line] = Field(default_factory=list)  # telling lines before it


class Unmet(Answer):
    """A package on the disk whose dependency nothing on the disk meets."""

    name: PackageName
    version: Version | None = None
    needs: Line
    found: Version | None = None  # version that is there of what it needs first


class Change(Answer):
    action: Name  # install, upgrade, downgrade, reinstall, remove, purge
    name: PackageName
    old: Version | None = None
    new: Version | None = None


class Transaction(Answer):
    """One run of apt that moved packages which concern GPUs, failed, or was cut off (end None)."""

    start: Time
    end: Time | None = None
    command: Line = ""
    by: Line | None = None
    unattended: bool = False
    error: Line | None = None
    changes: list[Change] = Field(default_factory=list)

    @property
    def title(self) -> str:
        who = "unattended-upgrades" if self.unattended else self.command or "apt"
        return f"{self.start}: {who}" + (f" ({self.by})" if self.by else "")


class UnattendedRun(Answer):
    at: Time
    packages: list[PackageName] = Field(default_factory=list)


class Keyring(Answer):
    """A file of keys that a source names, or that apt trusts for every source without one."""

    path: Path
    # form: armored under the name of a binary one, or the other way round; hidden: apt's own user may not read it
    state: Name = "ok"  # ok, absent, unreadable, empty, damaged, form, hidden, keybox
    primaries: list[Hash] = Field(default_factory=list)
    ids: list[Hash] = Field(default_factory=list)  # last 16 digits of every key


class SizeDiffers(Answer):
    name: Line
    expected: Number
    found: Number


class RepositoryList(Answer):
    """What apt has of one repository."""

    uri: Uri
    suite: AnyPath
    file: Path
    line: Number | None = None
    prefix: Line = ""  # begin of its lists' names
    there: bool = False
    origin: Line | None = None
    label: Line | None = None
    date: Line | None = None
    release: list[Line] = Field(default_factory=list)  # suite and codename
    automatic: bool = True
    upgrades: bool = False  # not automatic, but upgrades are
    signers: list[Hash] = Field(default_factory=list)  # ids of keys
    fetched_signers: list[Hash] = Field(default_factory=list)  # of a list that apt fetched and did not take
    failed: list[Line] = Field(default_factory=list)  # indexes that apt fetched and found wrong
    differs: list[SizeDiffers] = Field(default_factory=list)

    @property
    def place(self) -> str:
        return self.file if self.line is None else f"{self.file}, line {self.line}"


class Offer(Answer):
    """Newest version of a package in one list."""

    name: PackageName
    version: Version
    list: Line  # RepositoryList.prefix
    phased: Number | None = None  # percentage of hosts that get it


class Setting(Answer):
    """A setting of apt.conf, where it is set last."""

    name: Line  # lower case
    value: Line
    file: Path


class Lock(Answer):
    path: Path
    pid: Number  # 0: outside this container
    comm: Line = "?"
    state: Name | None = None  # proc(5): R, S, D, T (stopped), Z
    age_s: float | None = None  # of the process


class FileSystem(Answer):
    path: Path
    free: Number  # bytes
    size: Number
    files_free: Number | None = None  # inodes
    read_only: bool = False


class AptTrouble(Answer):
    """Keys, lists, logs and locks of apt and dpkg, beyond facts.Apt."""

    holds: list[Hold] = Field(default_factory=list)
    unfinished: list[Unfinished] = Field(default_factory=list)
    journal: list[Line] = Field(default_factory=list)
    unmet: list[Unmet] = Field(default_factory=list)
    transactions: list[Transaction] = Field(default_factory=list)
    unattended: list[UnattendedRun] = Field(default_factory=list)
    keyrings: list[Keyring] = Field(default_factory=list)
    lists: list[RepositoryList] = Field(default_factory=list)
    offers: list[Offer] = Field(default_factory=list)
    settings: list[Setting] = Field(default_factory=list)
    # .sources file that apt cannot read -> their first lines
    stanzas: dict[Path, list[Number]] = Field(default_factory=dict)
    aptitude_holds: list[PackageName] = Field(default_factory=list)
    locks: list[Lock] = Field(default_factory=list)
    disks: list[FileSystem] = Field(default_factory=list)
    largest_initrd: Number | None = None  # bytes
    verifier: Name | None = None  # sqv or gpgv
    clock: float | None = None  # the host's own, seconds since 1970


class Proxy(Answer):
    """A proxy that one layer is told of; apt's are among its settings."""

    layer: Name  # everybody, user, docker, conda, pip
    file: Path
    kind: Name  # http, https, all
    value: Line = ""  # host:port


class Bundled(Answer):
    """A CUDA library inside a Python environment."""

    environment: Line
    soname: Name
    path: Path
    version: Version | None = None


class DaemonCopy(Answer):
    """A file beside daemon.json. lost: keys that daemon.json lacks."""

    path: Path
    keys: list[Line] = Field(default_factory=list)
    lost: list[Line] = Field(default_factory=list)


class UserTrouble(Answer):
    """Userland: shells, containers, conda, proxies, beyond facts.Cuda, Conda and Containers."""

    proxies: list[Proxy] = Field(default_factory=list)
    sudo_keeps_proxy: bool | None = None
    bundled: list[Bundled] = Field(default_factory=list)
    daemon_copies: list[DaemonCopy] = Field(default_factory=list)
    data_roots: list[Path] = Field(default_factory=list)
    topology: list[Line] = Field(default_factory=list)  # what makes cards slow or silent to each other
    cmdline: Line = ""
    conda_guarded: dict[UserName, Path] = Field(default_factory=dict)  # user -> file
    conda_profile: list[Path] = Field(default_factory=list)


class Trouble(Answer):
    boot: BootTrouble = BootTrouble()
    apt: AptTrouble = AptTrouble()
    user: UserTrouble = UserTrouble()
