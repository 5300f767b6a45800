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
    modprobe: list[ConfLine] = Field(default_factory=list)
    modules_load: list[ConfLine] = Field(default_factory=list)
    xorg: list[XorgDevice] = Field(default_factory=list)
    xorg_errors: list[str] = Field(default_factory=list)
    cron: list[ConfLine] = Field(default_factory=list)  # lines with nvidia-smi -pm
    firmware: dict[str, list[str]] = Field(default_factory=dict)  # driver version -> GSP firmware files
    initrds: dict[str, int] = Field(default_factory=dict)  # kernel -> size of its initramfs in bytes
    boot_leftovers: list[str] = Field(default_factory=list)  # unfinished images in /boot
    mig_instances: dict[str, int] | None = None  # GPU number -> GPU instances; None: the driver has no MIG
    mig_layout: list[str] = Field(default_factory=list)  # files of nvidia-mig-manager
    driver_gpus: list[str] = Field(default_factory=list)  # slots that the driver lists
    failed_units: list[str] | None = None  # None: not known
    unit_log: dict[str, list[str]] = Field(default_factory=dict)
    persistenced_options: str | None = None
    masked_units: list[str] = Field(default_factory=list)
    compiler: Compiler | None = None
    driver_container: bool = False  # the driver lives in a container of the GPU operator
    default_route: bool | None = None  # a route leads out of the host; None: not known
    nameservers: list[str] | None = None  # None: there is no /etc/resolv.conf
    lockdown: str | None = None  # none, integrity, confidentiality
    sig_enforce: bool = False


class Hold(_Trouble):
    """A package on hold, whatever it is."""

    name: str
    version: str | None = None
    state: str = "installed"  # dpkg's word

    @property
    def present(self) -> bool:
        return self.state not in ("not-installed", "config-files")


class Unfinished(_Trouble):
    """A package that dpkg was cut off at, or failed at."""

    name: str
    version: str | None = None
    state: str  # dpkg's word: unpacked, half-configured, half-installed, triggers-pending, …
    reinstall: bool = False  # dpkg wants it unpacked again
    since: str | None = None  # by dpkg.log
    action: str | None = None  # configure, remove, … that failed, by term.log
    reason: str | None = None  # dpkg's own line
    context: list[str] = Field(default_factory=list)  # telling lines before it


class Unmet(_Trouble):
    """A package on the disk whose dependency nothing on the disk meets."""

    name: str
    version: str | None = None
    needs: str
    found: str | None = None  # version that is there of what it needs first


class Change(_Trouble):
    action: str  # install, upgrade, downgrade, reinstall, remove, purge
    name: str
    old: str | None = None
    new: str | None = None


class Transaction(_Trouble):
    """One run of apt that moved packages which concern GPUs, failed, or was cut off (end None)."""

    start: str
    end: str | None = None
    command: str = ""
    by: str | None = None
    unattended: bool = False
    error: str | None = None
    changes: list[Change] = Field(default_factory=list)

    @property
    def title(self) -> str:
        who = "unattended-upgrades" if self.unattended else self.command or "apt"
        return f"{self.start}: {who}" + (f" ({self.by})" if self.by else "")


class UnattendedRun(_Trouble):
    at: str
    packages: list[str] = Field(default_factory=list)


class Keyring(_Trouble):
    """A file of keys that a source names, or that apt trusts for every source without one."""

    path: str
    # form: armored under the name of a binary one, or the other way round; hidden: apt's own user may not read it
    state: str = "ok"  # ok, absent, unreadable, empty, damaged, form, hidden, keybox
    primaries: list[str] = Field(default_factory=list)
    ids: list[str] = Field(default_factory=list)  # last 16 digits of every key


class SizeDiffers(_Trouble):
    name: str
    expected: int
    found: int


class RepositoryList(_Trouble):
    """What apt has of one repository."""

    uri: str
    suite: str
    file: str
    line: int | None = None
    prefix: str = ""  # begin of its lists' names
    there: bool = False
    origin: str | None = None
    label: str | None = None
    date: str | None = None
    release: list[str] = Field(default_factory=list)  # suite and codename
    automatic: bool = True
    upgrades: bool = False  # not automatic, but upgrades are
    signers: list[str] = Field(default_factory=list)  # ids of keys
    fetched_signers: list[str] = Field(default_factory=list)  # of a list that apt fetched and did not take
    failed: list[str] = Field(default_factory=list)  # indexes that apt fetched and found wrong
    differs: list[SizeDiffers] = Field(default_factory=list)

    @property
    def place(self) -> str:
        return self.file if self.line is None else f"{self.file}, line {self.line}"


class Offer(_Trouble):
    """Newest version of a package in one list."""

    name: str
    version: str
    list: str  # RepositoryList.prefix
    phased: int | None = None  # percentage of hosts that get it


class Setting(_Trouble):
    """A setting of apt.conf, where it is set last."""

    name: str  # lower case
    value: str
    file: str


class Lock(_Trouble):
    path: str
    pid: int  # 0: outside this container
    comm: str = "?"
    state: str | None = None  # proc(5): R, S, D, T (stopped), Z
    age_s: float | None = None  # of the process


class FileSystem(_Trouble):
    path: str
    free: int  # bytes
    size: int
    files_free: int | None = None  # inodes
    read_only: bool = False


class AptTrouble(_Trouble):
    """Keys, lists, logs and locks of apt and dpkg, beyond facts.Apt."""

    holds: list[Hold] = Field(default_factory=list)
    unfinished: list[Unfinished] = Field(default_factory=list)
    journal: list[str] = Field(default_factory=list)
    unmet: list[Unmet] = Field(default_factory=list)
    transactions: list[Transaction] = Field(default_factory=list)
    unattended: list[UnattendedRun] = Field(default_factory=list)
    keyrings: list[Keyring] = Field(default_factory=list)
    lists: list[RepositoryList] = Field(default_factory=list)
    offers: list[Offer] = Field(default_factory=list)
    settings: list[Setting] = Field(default_factory=list)
    stanzas: dict[str, list[int]] = Field(
        default_factory=dict
    )  # .sources file that apt cannot read -> their first lines
    aptitude_holds: list[str] = Field(default_factory=list)
    locks: list[Lock] = Field(default_factory=list)
    disks: list[FileSystem] = Field(default_factory=list)
    largest_initrd: int | None = None  # bytes
    verifier: str | None = None  # sqv or gpgv
    clock: float | None = None  # the host's own, seconds since 1970


class Proxy(_Trouble):
    """A proxy that one layer is told of; apt's are among its settings."""

    layer: str  # everybody, user, docker, conda, pip
    file: str
    kind: str  # http, https, all
    value: str = ""  # host:port


class Bundled(_Trouble):
    """A CUDA library inside a Python environment."""

    environment: str
    soname: str
    path: str
    version: str | None = None


class DaemonCopy(_Trouble):
    """A file beside daemon.json. lost: keys that daemon.json lacks."""

    path: str
    keys: list[str] = Field(default_factory=list)
    lost: list[str] = Field(default_factory=list)


class UserTrouble(_Trouble):
    """Userland: shells, containers, conda, proxies, beyond facts.Cuda, Conda and Containers."""

    proxies: list[Proxy] = Field(default_factory=list)
    sudo_keeps_proxy: bool | None = None
    bundled: list[Bundled] = Field(default_factory=list)
    daemon_copies: list[DaemonCopy] = Field(default_factory=list)
    data_roots: list[str] = Field(default_factory=list)
    topology: list[str] = Field(default_factory=list)  # what makes cards slow or silent to each other
    cmdline: str = ""
    conda_guarded: dict[str, str] = Field(default_factory=dict)  # user -> file
    conda_profile: list[str] = Field(default_factory=list)


class Trouble(_Trouble):
    boot: BootTrouble = BootTrouble()
    apt: AptTrouble = AptTrouble()
    user: UserTrouble = UserTrouble()
