"""What only diagnose reads of a host, beside the facts that every command reads: logs, leftovers, states of repair.

The host program ``probe.diagnostics`` reads the same facts as the probe and adds this. Absent
knowledge is ``None``, never a guess.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from provision.facts import ConfLine, Facts
from provision.lib.text import (
    Answer,
    AnyPath,
    DebianVersion,
    Hash,
    KernelRelease,
    Line,
    Moment,
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
    # modules that need it
    holders: list[Name] = Field(default_factory=list)


class DkmsBuild(Answer):
    kernel: KernelRelease
    # False: built, and not put into the kernel's folder
    installed: bool = False


class DkmsTree(Answer):
    """One version of the driver in DKMS' tree."""

    name: Name = "nvidia"
    version: Version
    source: Line = ""
    source_missing: bool = False
    builds: list[DkmsBuild] = Field(default_factory=list)
    # of a build that did not end well
    make_log: Line | None = None
    # the kernel that it was for
    make_kernel: KernelRelease | None = None
    # its decisive line
    make_error: Line | None = None

    @property
    def said(self) -> str:
        """The decisive line without the folder that the log lies in."""
        return (self.make_error or "").removeprefix((self.make_log or "").removesuffix("make.log") or "\0")


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
    # gcc-11: what /usr/bin/gcc leads to
    used: Line | None = None

    @property
    def other(self) -> str | None:
        """The kernel's compiler as gcc-13, where gcc leads to another one that is named by its number too."""
        own = self.kernel[self.kernel.find("gcc") :]
        used = (self.used or "")[(self.used or "").find("gcc") :]
        return own if "-" in own and "-" in used and own != used else None


class KernelLine(Answer):
    """A line of the kernel's log. boot: 0 this one, -1 the one before; when: seconds since 1970."""

    boot: Number = 0
    when: Moment | None = None
    text: Line


class KernelErrors(Answer):
    """Errors of GPUs that the kernel's log of two weeks has, and what ends them. now: when it was read.

    fabric: of this boot, what fabric manager and nvlsm say, and their starts: ``UNIT: words``.
    """

    now: Moment | None = None
    lines: list[KernelLine] = Field(default_factory=list)
    fabric: list[KernelLine] = Field(default_factory=list)


class BootDiagnostics(Answer):
    """Kernel log, modules, DKMS, initramfs, services: what decides whether the driver comes up."""

    # this boot's kernel log about the driver, dates taken off
    log: list[Line] = Field(default_factory=list)
    # what it says of the machine around the cards: disks, memory, processors, tasks
    machine_log: list[Line] = Field(default_factory=list)
    # None: not known
    clock_synchronised: bool | None = None
    # where it was read; empty: nowhere
    log_from: list[Line] = Field(default_factory=list)
    errors: KernelErrors = Field(default_factory=KernelErrors)
    modules: list[ModuleRow] = Field(default_factory=list)
    # the running kernel's nvidia.ko is as it was before this boot; None: not known
    module_before_boot: bool | None = None
    # nvidia_uvm.uvm_disable_hmm -> Y
    parameters: dict[Name, Line] = Field(default_factory=dict)
    dkms: list[DkmsTree] = Field(default_factory=list)
    # modules of others whose last build failed
    dkms_others: list[DkmsTree] = Field(default_factory=list)
    # /var/crash/nvidia-dkms-580.0.crash
    crashes: list[Path] = Field(default_factory=list)
    default_target: UnitName | None = None
    # gdm3.service
    display_manager: UnitName | None = None
    cmdline: Line = ""
    modprobe: list[ConfLine] = Field(default_factory=list)
    modules_load: list[ConfLine] = Field(default_factory=list)
    xorg: list[XorgDevice] = Field(default_factory=list)
    xorg_errors: list[Line] = Field(default_factory=list)
    # lines with nvidia-smi -pm
    cron: list[ConfLine] = Field(default_factory=list)
    # driver version -> GSP firmware files
    firmware: dict[Version, list[AnyPath]] = Field(default_factory=dict)
    # kernel -> size of its initramfs in bytes
    initrds: dict[KernelRelease, Number] = Field(default_factory=dict)
    # unfinished images in /boot
    boot_leftovers: list[Path] = Field(default_factory=list)
    # GPU number -> GPU instances; None: the driver has no MIG
    mig_instances: dict[Name, Number] | None = None
    # files of nvidia-mig-manager
    mig_layout: list[Path] = Field(default_factory=list)
    # slots that the driver lists
    driver_gpus: list[PciSlot] = Field(default_factory=list)
    # device nodes of the cards that only root can open -> mode: /dev/nvidia0 -> 0600
    closed_nodes: dict[Path, Name] = Field(default_factory=dict)
    # None: not known
    failed_units: list[UnitName] | None = None
    unit_log: dict[UnitName, list[Line]] = Field(default_factory=dict)
    persistenced_options: Line | None = None
    masked_units: list[UnitName] = Field(default_factory=list)
    # PCI functions of NVIDIA's network cards, what of them is an InfiniBand device, and those of its modules that are loaded
    network_cards: list[PciSlot] = Field(default_factory=list)
    infiniband: list[Name] = Field(default_factory=list)
    # modprobe could load it into the running kernel; None: its folder of modules is not there
    infiniband_on_disk: bool | None = None
    compiler: Compiler | None = None
    # what says that a laptop's card is switched off on purpose
    card_off: list[Line] = Field(default_factory=list)
    # the driver lives in a container of the GPU operator
    driver_container: bool = False
    # a route leads out of the host; None: not known
    default_route: bool | None = None
    # None: there is no /etc/resolv.conf
    nameservers: list[Line] | None = None
    # none, integrity, confidentiality
    lockdown: Name | None = None
    sig_enforce: bool = False


class Hold(Answer):
    """A package on hold, whatever it is."""

    name: PackageName
    version: Version | None = None
    # dpkg's word
    state: Name = "installed"

    @property
    def present(self) -> bool:
        return self.state not in ("not-installed", "config-files")


class Unfinished(Answer):
    """A package that dpkg was cut off at, or failed at."""

    name: PackageName
    version: Version | None = None
    # dpkg's word: unpacked, half-configured, half-installed, triggers-pending, …
    state: Name
    # dpkg wants it unpacked again
    reinstall: bool = False
    # by dpkg.log
    since: Time | None = None
    # configure, remove, … that failed, by term.log
    action: Name | None = None
    # dpkg's own line
    reason: Line | None = None
    # telling lines before it
    context: list[Line] = Field(default_factory=list)


class Unmet(Answer):
    """A package on the disk whose dependency nothing on the disk meets."""

    name: PackageName
    version: Version | None = None
    needs: Line
    # version that is there of what it needs first
    found: Version | None = None


class Change(Answer):
    # install, upgrade, downgrade, reinstall, remove, purge
    action: Name
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
    # ok, absent, unreadable, empty, damaged, form, hidden, keybox
    state: Name = "ok"
    primaries: list[Hash] = Field(default_factory=list)
    # last 16 digits of every key
    ids: list[Hash] = Field(default_factory=list)


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
    # begin of its lists' names
    prefix: Line = ""
    there: bool = False
    origin: Line | None = None
    label: Line | None = None
    date: Line | None = None
    # suite and codename
    release: list[Line] = Field(default_factory=list)
    automatic: bool = True
    # not automatic, but upgrades are
    upgrades: bool = False
    # ids of keys
    signers: list[Hash] = Field(default_factory=list)
    # of a list that apt fetched and did not take
    fetched_signers: list[Hash] = Field(default_factory=list)
    # indexes that apt fetched and found wrong
    failed: list[Line] = Field(default_factory=list)
    differs: list[SizeDiffers] = Field(default_factory=list)

    @property
    def place(self) -> str:
        return self.file if self.line is None else f"{self.file}, line {self.line}"


class ListedPackage(Answer):
    """Newest version of a package in one list."""

    name: PackageName
    version: Version
    # RepositoryList.prefix
    list: Line
    # percentage of hosts that get it
    phased: Number | None = None


class Setting(Answer):
    """A setting of apt.conf, where it is set last."""

    # lower case
    name: Line
    value: Line
    file: Path


class Lock(Answer):
    path: Path
    # 0: outside this container
    pid: Number
    comm: Line = "?"
    # proc(5): R, S, D, T (stopped), Z
    state: Name | None = None
    # of the process
    age_s: float | None = None


class FileSystem(Answer):
    path: Path
    # bytes
    free: Number
    size: Number
    # inodes
    files_free: Number | None = None
    read_only: bool = False


class UnfinishedChange(Answer):
    """A change of packages by our own transaction that was interrupted or failed, and that no later one has finished."""

    started: Line = ""
    log: Path | None = None
    # name=version
    install: list[Line] = Field(default_factory=list)
    remove: list[PackageName] = Field(default_factory=list)
    # on hold at its end: the driver's packages, and others
    hold: bool = False
    extra_hold: list[PackageName] = Field(default_factory=list)
    # version of those of them that are installed
    there: dict[PackageName, DebianVersion] = Field(default_factory=dict)


class AptDiagnostics(Answer):
    """Keys, lists, logs and locks of apt and dpkg, beyond facts.Apt."""

    holds: list[Hold] = Field(default_factory=list)
    unfinished: list[Unfinished] = Field(default_factory=list)
    change: UnfinishedChange | None = None
    journal: list[Line] = Field(default_factory=list)
    unmet: list[Unmet] = Field(default_factory=list)
    transactions: list[Transaction] = Field(default_factory=list)
    unattended: list[UnattendedRun] = Field(default_factory=list)
    # folders of file: and copy: sources that are not there
    folders_gone: list[Path] = Field(default_factory=list)
    keyrings: list[Keyring] = Field(default_factory=list)
    lists: list[RepositoryList] = Field(default_factory=list)
    offers: list[ListedPackage] = Field(default_factory=list)
    settings: list[Setting] = Field(default_factory=list)
    # .sources file that apt cannot read -> their first lines
    stanzas: dict[Path, list[Number]] = Field(default_factory=dict)
    aptitude_holds: list[PackageName] = Field(default_factory=list)
    locks: list[Lock] = Field(default_factory=list)
    disks: list[FileSystem] = Field(default_factory=list)
    # bytes
    largest_initrd: Number | None = None
    # sqv or gpgv
    verifier: Name | None = None
    # the host's own, seconds since 1970
    clock: Moment | None = None


class Proxy(Answer):
    """A proxy that one layer is set to use; apt's are among its settings."""

    # everybody, user, docker, conda, pip
    layer: Name
    file: Path
    # http, https, all
    kind: Name
    # host:port
    value: Line = ""


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


class UserDiagnostics(Answer):
    """Userland: shells, containers, conda, proxies, beyond facts.Cuda, Conda and Containers."""

    proxies: list[Proxy] = Field(default_factory=list)
    sudo_keeps_proxy: bool | None = None
    bundled: list[Bundled] = Field(default_factory=list)
    daemon_copies: list[DaemonCopy] = Field(default_factory=list)
    data_roots: list[Path] = Field(default_factory=list)
    # CUDA_VISIBLE_DEVICES for everybody; the text is the assignment alone
    hidden_cards: list[ConfLine] = Field(default_factory=list)
    # what makes cards slow or silent to each other
    topology: list[Line] = Field(default_factory=list)
    cmdline: Line = ""
    # user -> file
    conda_guarded: dict[UserName, Path] = Field(default_factory=dict)
    conda_profile: list[Path] = Field(default_factory=list)


class Diagnostics(Answer):
    boot: BootDiagnostics = BootDiagnostics()
    apt: AptDiagnostics = AptDiagnostics()
    user: UserDiagnostics = UserDiagnostics()


class Diagnosed(Facts):
    """The facts of a host with what only diagnose and rescue judge."""

    program: ClassVar[str] = "probe.diagnostics"
    trouble: Diagnostics | None = None
