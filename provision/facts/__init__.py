"""Facts of one host, as the probe reports them: typed, tolerant of fields it does not know.

The probe (plugins/module_utils/probe/facts.py) writes this; resolve, plan, checks and reports read it. Absent knowledge
is ``None`` ("could not be read"), never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from provision.lib.text import (
    Answer,
    AnyPath,
    Arch,
    Data,
    DataOfLines,
    DebianVersion,
    DpkgStatus,
    Hash,
    KernelRelease,
    Line,
    Name,
    Number,
    PackageName,
    Path,
    PciClass,
    PciDevice,
    PciSlot,
    PciSubsystem,
    Program,
    Release,
    UnitName,
    Uri,
    UserName,
    Version,
    bad_answer,
)

if TYPE_CHECKING:
    from provision.facts.diagnostics import Diagnostics

Flavour = Literal["open", "proprietary"]


class ConfLine(Answer):
    """A line of somebody's configuration."""

    file: Path
    line: Number
    text: Line

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line}: {self.text}"


class Os(Answer):
    id: Name = "ubuntu"
    version_id: Release = "24.04"
    codename: Release = "noble"
    pretty: Line = ""


class HostInfo(Answer):
    hostname: Name = ""
    os: Os = Os()
    # dpkg's name: amd64, arm64
    arch: Arch = "amd64"
    boot_id: Hash | None = None
    machine_id: Hash | None = None
    uptime_s: float | None = None
    # MiB that the kernel has, MemTotal of /proc/meminfo
    memory: Number | None = None
    python: Version | None = None
    # of the Python that read the host
    python_path: Program | None = None
    is_root: bool = True
    container: Name | None = None
    systemd: bool = True
    virtual: Name | None = None
    # wsl, jetson, vgpu (the guest of a split card); None: none of them
    world: Name | None = None


class PcieLink(Answer):
    """Lanes and GT/s of a card's link: now, and the most that the card can do. An idle card may lower its speed."""

    width: Number | None = None
    max_width: Number | None = None
    speed: float | None = None
    max_speed: float | None = None


class Gpu(Answer):
    # 0000:1b:00.0
    slot: PciSlot
    # PCI device id, 4 lower-case hex digits
    device: PciDevice
    # "10de:16c1"
    subsystem: PciSubsystem | None = None
    pci_class: PciClass = "0302"
    # kernel driver bound to it: nvidia, nouveau, nova_core, vfio-pci, None
    driver: Name | None = None
    numa_node: Number | None = None
    pcie: PcieLink | None = None


class LoadedModule(Answer):
    version: Version
    flavour: Flavour | None = None
    refcount: Number | None = None
    holders: list[Name] = Field(default_factory=list)


class DiskModule(Answer):
    kernel: KernelRelease
    path: Path
    version: Version | None = None
    flavour: Flavour | None = None
    signed: bool = False
    signer: Line | None = None
    # by its place and by dkms' tree
    origin: Literal["prebuilt", "dkms", "other"] = "other"
    # dpkg package that owns the file; None for DKMS builds and foreign files
    package: PackageName | None = None


class Module(Answer):
    loaded: LoadedModule | None = None
    nouveau_loaded: bool = False
    nova_loaded: bool = False
    on_disk: list[DiskModule] = Field(default_factory=list)


class Kernel(Answer):
    release: KernelRelease
    image: bool = True
    # /usr/src/linux-headers-RELEASE or modules/RELEASE/build is there
    headers: bool = False
    initrd: bool = True
    package: PackageName | None = None


class Kernels(Answer):
    running: KernelRelease = ""
    # what the boot loader will start; None: not known
    next: KernelRelease | None = None
    next_because: Line = ""
    installed: list[Kernel] = Field(default_factory=list)
    # installed: linux-image-generic-hwe-24.04, …
    metapackages: list[PackageName] = Field(default_factory=list)


class Package(Answer):
    version: DebianVersion
    # dpkg's two letters: ii, iU, iF, iHR… ; first letter 'h' is a hold
    status: DpkgStatus = "ii"
    arch: Arch = "amd64"
    source: Line | None = None
    depends: Line | None = None

    @property
    def installed(self) -> bool:
        return self.status[1] == "i" and bool(self.version)

    @property
    def there(self) -> bool:
        """Files of it are on the disk, whole or not."""
        return self.status[1] not in "nc"

    @property
    def held(self) -> bool:
        return self.status[0] == "h"

    @property
    def broken(self) -> bool:
        """Half-installed, unpacked, half-configured or waiting for triggers: dpkg was cut off."""
        return self.status[1] in "UFHWt"


class Library(Answer):
    soname: Name
    path: Path
    version: Version | None = None
    package: PackageName | None = None


class SmiGpu(Answer):
    index: Number
    name: Line
    uuid: Name | None = None
    bus_id: PciSlot | None = None
    driver_version: Version | None = None
    memory_mib: Number | None = None
    persistence: bool | None = None
    mig: Line | None = None
    # the mode after the next reset
    mig_pending: Line | None = None
    ecc: Line | None = None
    # VGPU (the guest of a split card), Pass-Through, Host VGPU
    virtualization: Line | None = None
    # of a vGPU: "Licensed (Expiry: …)", "Unlicensed (Restricted)"
    license: Line | None = None
    # what the driver says that the card needs to recover: None (the word), Reset, Reboot, Drain P2P, Drain and Reset
    recovery: Line | None = None
    # what it says Yes to of parts.driver.verdict.FLAGS
    flags: list[Name] = Field(default_factory=list)


class Smi(Answer):
    path: Path | None = None
    ran: bool = False
    rc: Number | None = None
    timed_out: bool = False
    driver_version: Version | None = None
    cuda_version: Version | None = None
    gpus: list[SmiGpu] = Field(default_factory=list)
    # its own words when it failed
    error: Line | None = None


class Source(Answer):
    file: Path
    line: Number | None = None
    format: Literal["list", "deb822"] = "list"
    types: list[Name] = Field(default_factory=lambda: ["deb"])
    uris: list[Uri] = Field(default_factory=list)
    suites: list[AnyPath] = Field(default_factory=list)
    components: list[Name] = Field(default_factory=list)
    signed_by: Line | None = None
    enabled: bool = True
    trusted: bool = False


class Preference(Answer):
    file: Path
    # where its stanza begins
    line: Number | None = None
    package: Line
    pin: Line
    priority: Number


class Apt(Answer):
    sources: list[Source] = Field(default_factory=list)
    preferences: list[Preference] = Field(default_factory=list)
    # Unattended-Upgrade::Package-Blacklist
    blacklist: list[Line] = Field(default_factory=list)
    # unattended-upgrades switched on
    unattended: bool | None = None
    lists_age_s: float | None = None
    # "pid 123 (unattended-upgr)"
    lock_holder: Line | None = None
    # sources that cannot be parsed, Signed-By conflicts
    errors: list[Line] = Field(default_factory=list)


class SecureBoot(Answer):
    efi: bool = False
    # None: EFI host whose variable could not be read
    enabled: bool | None = False
    # DKMS' own certificate on disk
    mok_key: Path | None = None
    # is it among the enrolled keys
    mok_enrolled: bool | None = None
    # MokNew, MokDel, MokSB: requests of mokutil that the console of the next boot asks about
    waits: list[Name] = Field(default_factory=list)


class GpuUser(Answer):
    pid: Number
    comm: Line
    user: UserName | None = None
    devices: list[Path] = Field(default_factory=list)


class Service(Answer):
    present: bool = False
    enabled: bool = False
    running: bool = False


class Runfile(Answer):
    uninstaller: Path | None = None
    traces: list[Path] = Field(default_factory=list)


class RebootRequired(Answer):
    required: bool = False
    packages: list[Line] = Field(default_factory=list)


class Modprobe(Answer):
    # module names blacklisted anywhere in modprobe.d
    blacklisted: list[Name] = Field(default_factory=list)


class Initrd(Answer):
    kernel: KernelRelease
    # built after the newest nouveau blacklist file was written
    newer_than_blacklist: bool | None = None


class Disk(Answer):
    path: Path
    # bytes
    free: Number
    size: Number


class Nvcc(Answer):
    # as a shell would find it: /usr/bin/nvcc, /usr/local/cuda-12.4/bin/nvcc
    path: Path
    # the file that it leads to
    target: Path | None = None
    # "12.4"
    version: Version | None = None
    # "12.4.131"
    build: Version | None = None
    # dpkg package that owns the target
    package: PackageName | None = None
    # its folder is on the PATH that /etc gives to every login
    on_path: bool = False
    # prefix of the conda environment that it belongs to
    environment: Path | None = None


class Toolkit(Answer):
    """One CUDA toolkit on the disk, whoever put it there."""

    # /usr/local/cuda-12.4; the real folder
    path: Path
    # "12.4"
    version: Version | None = None
    # "12.4.1", of its version.json
    release: Version | None = None
    # a dpkg package that owns files in it; None: runfile or copied by hand
    package: PackageName | None = None
    # bin/nvcc is there
    compiler: bool = False
    # include/cuda_runtime.h is there
    headers: bool = False
    # libcudart is there
    runtime: bool = False
    # bin/cuda-uninstaller of a runfile
    uninstaller: Path | None = None


class Alternative(Answer):
    """One group of update-alternatives."""

    # cuda, cuda-12
    name: Name
    # /usr/local/cuda
    link: Path
    manual: bool = False
    # where /etc/alternatives/NAME leads
    current: AnyPath | None = None
    # path -> priority
    choices: dict[Path, Number] = Field(default_factory=dict)
    # choices that are not there any more
    dangling: list[Path] = Field(default_factory=list)


class CudaLink(Answer):
    """/usr/local/cuda and /usr/local/cuda-NN: what is there."""

    path: Path
    kind: Literal["link", "directory", "file"] = "link"
    # one step: /etc/alternatives/cuda
    target: AnyPath | None = None
    # the folder in the end; None: the link leads nowhere
    resolved: Path | None = None


class CudaLibrary(Answer):
    """One file of a CUDA library (libcudart, libcudnn, libnccl, libcublas, libnvJitLink, …; cuda-compat's libcuda)."""

    # libcudnn.so.9: what a program asks for
    soname: Name
    # as found: /usr/lib/x86_64-linux-gnu/libcudnn.so.9
    path: Path
    # the real file
    target: Path | None = None
    # from the real file's name: 9.14.0
    version: Version | None = None
    # owner of the path; of the target where both lie in one folder
    package: PackageName | None = None
    # found by /etc/ld.so.cache; None: there is no cache to be read
    in_cache: bool | None = None


class Header(Answer):
    """cudnn_version.h, nccl.h: the version that programs are compiled against."""

    # cudnn, nccl
    name: Name
    path: Path
    # 9.14.0, 2.28.3
    version: Version | None = None
    package: PackageName | None = None


class ShellLine(Answer):
    """An assignment about CUDA that somebody wrote into a shell's start file; of the line nothing else is kept."""

    file: Path
    line: Number
    text: Line
    # PATH, LD_LIBRARY_PATH, CUDA_HOME, CUDA_PATH, CUDA_VISIBLE_DEVICES, …
    variable: Name
    # folders of CUDA or cuDNN that it names
    paths: list[AnyPath] = Field(default_factory=list)
    # those of them that are not on the disk
    missing: list[AnyPath] = Field(default_factory=list)
    # those of them that come before the old value
    front: list[AnyPath] = Field(default_factory=list)
    # a list (PATH, …) is set without its old value
    replaces: bool = False


class Compilers(Answer):
    """Host compilers: nvcc hands its code to gcc, and refuses one that is too new."""

    # major of what /usr/bin/gcc leads to: "13"
    gcc: Version | None = None
    # majors with a g++: ["11", "13"]
    available: list[Version] = Field(default_factory=list)


class Shells(Answer):
    """What starts a user's session here, as far as files of ours can reach it."""

    fish: bool = False
    # csh or tcsh
    csh: bool = False
    zsh: bool = False
    # folder for modulefiles: /etc/environment-modules/modules, …
    environment_modules: Path | None = None
    # folder for Lua modulefiles: /etc/lmod/modules, …
    lmod: Path | None = None


class Cuda(Answer):
    """CUDA in userland: toolkits, compilers, links, libraries, shells."""

    # in the order of a login's PATH, then those not on it
    nvccs: list[Nvcc] = Field(default_factory=list)
    toolkits: list[Toolkit] = Field(default_factory=list)
    alternatives: list[Alternative] = Field(default_factory=list)
    links: list[CudaLink] = Field(default_factory=list)
    # in the loader's order: its cache, then the rest
    libraries: list[CudaLibrary] = Field(default_factory=list)
    headers: list[Header] = Field(default_factory=list)
    # file -> folders, files that name CUDA
    ld_so_conf: dict[Path, list[AnyPath]] = Field(default_factory=dict)
    # CUDA folders of the loader's configuration that are not there
    loader_gone: list[ConfLine] = Field(default_factory=list)
    shell_lines: list[ShellLine] = Field(default_factory=list)
    compilers: Compilers = Compilers()
    shells: Shells = Shells()
    # Modulefiles cuda/X.Y that somebody else wrote, where the role would put its own
    other_modulefiles: list[Path] = Field(default_factory=list)


class CondaPackage(Answer):
    """A package of conda, by the name of its record."""

    version: Version
    # py3.11_cuda12.1_cudnn8.9.2_0
    build: Name | None = None


class CudartLink(Answer):
    """A link libcudart.so… of an environment whose name promises another version than it leads to."""

    path: Path
    # the real file; None: it leads nowhere
    target: Path | None = None
    # by the real file's name
    version: Version | None = None


class CondaEnvironment(Answer):
    """One conda environment, the base of a prefix left out."""

    name: Line
    path: Path
    # the conda it belongs to; None: only named in an environments.txt
    prefix: Path | None = None
    owner: UserName | None = None
    # foreign: no environment, something else
    state: Literal["whole", "partial", "foreign"] = "whole"
    # a mark of ours says that its creation was interrupted
    unfinished: bool = False
    # 3.11.9
    python: Version | None = None
    # those that concern CUDA, see condaprobe
    packages: dict[Name, CondaPackage] = Field(default_factory=dict)
    # the same of pip: torch -> 2.6.0+cu124
    pip: dict[Name, Version] = Field(default_factory=dict)
    # torch -> cuda, as far as known
    builds: dict[Name, Literal["cuda", "cpu"]] = Field(default_factory=dict)
    # CUDA that its framework or its packages bring: "12.4"
    cuda: Version | None = None
    cudart_links: list[CudartLink] = Field(default_factory=list)
    lib64: bool = False
    # what we noted when we made it; None: not made by us
    record: dict[Line, DataOfLines] | None = None
    # over the names of all its packages
    digest: Hash | None = None
    # its packages are others than when we made it; None: not made by us
    changed: bool | None = None


class CondaPrefix(Answer):
    """One installation of conda."""

    path: Path
    state: Literal["whole", "partial", "foreign", "empty"] = "whole"
    # what is not there, or must not be there, when partial
    missing: list[AnyPath] = Field(default_factory=list)
    # a mark of ours says that its installation was interrupted
    unfinished: bool = False
    owner: UserName | None = None
    distribution: Literal["miniconda", "miniforge", "anaconda", "other"] = "other"
    # of conda: 26.5.3
    version: Version | None = None
    python: Version | None = None
    # of all its configuration files together; None: conda's own default
    channels: list[Line] | None = None
    # file -> channels
    condarcs: dict[Path, list[Line]] = Field(default_factory=dict)
    # other keys of PREFIX/.condarc with one value
    settings: dict[Line, Line] = Field(default_factory=dict)
    # it has the plugin that asks for Anaconda's terms of service
    asks_terms: bool = False
    # channels whose terms are accepted, for everybody or by its owner
    tos_accepted: list[Line] = Field(default_factory=list)
    record: dict[Line, DataOfLines] | None = None


class Conda(Answer):
    """Conda on the host: installations and environments, by files alone."""

    prefixes: list[CondaPrefix] = Field(default_factory=list)
    environments: list[CondaEnvironment] = Field(default_factory=list)
    # user -> home, of users that log in
    homes: dict[UserName, Path] = Field(default_factory=dict)
    # paths that were asked for, written out
    looked: list[AnyPath] = Field(default_factory=list)
    # user -> prefix of conda's block in .bashrc
    shell_init: dict[UserName, Path] = Field(default_factory=dict)


class FileError(Answer):
    """Why a daemon.json is not changed. line and column count from 1."""

    line: Number
    column: Number
    message: Line
    hint: Line = ""


class DaemonFile(Answer):
    """A daemon.json: of its values only those that are compared here; others may be secret."""

    path: Path = "/etc/docker/daemon.json"
    present: bool = False
    # it is there and is not readable
    unreadable: bool = False
    error: FileError | None = None
    warnings: list[Line] = Field(default_factory=list)
    # every name at its top
    keys: list[Line] = Field(default_factory=list)
    # runtimes, default-runtime, features, …
    value: dict[Line, Data] = Field(default_factory=dict)
    # key that cannot be written there, and why
    refused: dict[Line, FileError] = Field(default_factory=dict)
    # the program of runtimes.nvidia, where it is an absolute path, is there
    runtime_exists: bool = True


class DaemonFlag(Answer):
    """A flag of dockerd. value and the whole text only of keys that are compared here."""

    # as daemon.json has it: runtimes for --add-runtime
    key: Line
    text: Line
    value: Line = ""
    # "/etc/systemd/system/docker.service.d/override.conf, line 3"
    place: Line


class DockerInfo(Answer):
    """What a running daemon says of itself."""

    version: Version = ""
    # name -> path
    runtimes: dict[Name, AnyPath] = Field(default_factory=dict)
    default_runtime: Name = ""
    cgroup_driver: Name = ""
    live_restore: bool = False
    rootless: bool = False
    data_root: Path = ""
    cdi_spec_dirs: list[Path] = Field(default_factory=list)
    running: Number = 0
    # http, https, no_proxy; without user and password
    proxy: dict[Name, Line] = Field(default_factory=dict)


class RootlessDocker(Answer):
    user: UserName
    uid: Number
    running: bool = False
    file: DaemonFile = DaemonFile()


class Docker(Answer):
    """Which docker a host has. engine None: none for the whole system."""

    # /usr/bin/dockerd
    engine: Path | None = None
    # docker.io, docker-ce, moby-engine; None: of no package
    package: PackageName | None = None
    # 28.2.2
    version: Version | None = None
    snap: bool = False
    # the program docker is podman's
    podman: bool = False
    # users whose docker goes to Docker Desktop
    desktop: list[UserName] = Field(default_factory=list)
    rootless: list[RootlessDocker] = Field(default_factory=list)
    file: DaemonFile = DaemonFile()
    flags: list[DaemonFlag] = Field(default_factory=list)
    # keys that are in the file and a flag: it does not start
    conflicts: list[Line] = Field(default_factory=list)
    # of the running daemon
    pid: Number | None = None
    # written after the daemon started
    file_is_newer: bool | None = None
    # the toolkit came after the daemon started: --gpus waits for a restart
    hook_is_newer: bool = False
    # where a proxy is set that overrides gpu-provision's drop-in
    proxy_elsewhere: Line = ""
    # None: it does not run, or was not asked
    info: DockerInfo | None = None
    # members of the group docker; None: there is no such group
    group: list[UserName] | None = None


class Containerd(Answer):
    path: Path | None = None
    package: PackageName | None = None
    version: Version | None = None
    # None: there is no file
    config_version: Number | None = None
    imports: list[AnyPath] = Field(default_factory=list)
    # nvidia is registered
    runtime: bool = False
    default_runtime: Name = ""
    cri_disabled: bool = False
    pid: Number | None = None


class Podman(Answer):
    path: Path | None = None
    package: PackageName | None = None
    version: Version | None = None


class ToolkitConfig(Answer):
    """nvidia-container-runtime: is its program there, what does its configuration say."""

    config: Path | None = None
    # auto, legacy, cdi, jit-cdi, csv
    mode: Name | None = None
    # folder of the driver that it names, and that is not there
    root_gone: Path | None = None
    no_cgroups: bool = False
    program: bool = False
    ctk: bool = False


class CdiSpec(Answer):
    path: Path
    cdi_version: Version = ""
    # of the driver's libraries that it names
    versions: list[Version] = Field(default_factory=list)
    gpus: list[Number] = Field(default_factory=list)
    caps: list[Number] = Field(default_factory=list)
    # why it does not fit the loaded driver
    stale: Line = ""


class RunningContainer(Answer):
    # 12 digits
    id: Name
    # docker, containerd, podman
    runtime: Name
    pid: Number | None = None
    comm: Line | None = None
    gpu: bool = False
    name: Line | None = None
    image: Line | None = None

    @property
    def title(self) -> str:
        """As messages name it."""
        what = [word for word in (self.image, self.comm) if word]
        return f"{self.name or self.id} ({', '.join([self.runtime, *what])})"


class Containers(Answer):
    """Container runtimes and NVIDIA's toolkit for them; the toolkit's packages are under facts.packages."""

    docker: Docker = Docker()
    containerd: Containerd = Containerd()
    podman: Podman = Podman()
    toolkit: ToolkitConfig = ToolkitConfig()
    cdi: list[CdiSpec] = Field(default_factory=list)
    # who keeps the specification current
    cdi_units: Literal["toolkit", "ours", "masked"] | None = None
    cgroups: Literal["v2", "hybrid", "v1"] | None = None
    running: list[RunningContainer] = Field(default_factory=list)
    # devices without a link in /dev/char
    device_links_missing: list[Path] = Field(default_factory=list)
    # Files in which apt trusts NVIDIA's key for every repository -> whether it can be taken out of them for certain.
    old_keys: dict[Path, bool] = Field(default_factory=dict)
    # Daemons that did not take up yet what was written -> its keys; none where they were started since.
    pending: dict[Name, list[Line]] = Field(default_factory=dict)
    # accounts of people
    users: list[UserName] = Field(default_factory=list)


class Facts(Answer):
    """Everything that one read of a host says; with what only diagnose and rescue judge: diagnostics.Diagnosed."""

    # the host program that says it
    program: ClassVar[str] = "probe.facts"
    host: HostInfo = HostInfo()
    gpus: list[Gpu] = Field(default_factory=list)
    # PCI slots
    nvswitches: list[PciSlot] = Field(default_factory=list)
    nvlink5_switch: bool = False
    # of mlx5_ib and ib_umad, through which such switches are reached: those that are loaded
    infiniband_modules: list[Name] = Field(default_factory=list)
    module: Module = Module()
    kernels: Kernels = Kernels()
    # NVIDIA, CUDA, kernel and toolkit names only
    packages: dict[PackageName, Package] = Field(default_factory=dict)
    # any package of the host that dpkg left unfinished
    package_problems: list[Line] = Field(default_factory=list)
    libraries: list[Library] = Field(default_factory=list)
    smi: Smi = Smi()
    apt: Apt = Apt()
    runfile: Runfile = Runfile()
    secure_boot: SecureBoot = SecureBoot()
    reboot_required: RebootRequired = RebootRequired()
    gpu_users: list[GpuUser] = Field(default_factory=list)
    # /dev/nvidia0, /dev/nvidiactl, …
    devices: list[Path] = Field(default_factory=list)
    services: dict[UnitName, Service] = Field(default_factory=dict)
    # sha256 of the files that the roles write, by path
    own_files: dict[Path, Name] = Field(default_factory=dict)
    modprobe: Modprobe = Modprobe()
    initrds: list[Initrd] = Field(default_factory=list)
    disks: list[Disk] = Field(default_factory=list)
    # a display manager or desktop session package is installed
    desktop: bool = False
    cuda: Cuda = Cuda()
    conda: Conda = Conda()
    containers: Containers = Containers()
    # /usr/local/cuda-13.0 -> version
    cuda_dirs: dict[Path, Version | None] = Field(default_factory=dict)
    # text of the lock of runs; see run.lock
    run_lock: Line | None = None
    # What root would have seen; with ": " and a reason, what was there and cannot be used.
    unreadable: list[Line] = Field(default_factory=list)
    # Not asked for. The models of it take half as long to load as all the others, which no other command has to wait for.
    if TYPE_CHECKING:
        trouble: Diagnostics | None = None
    else:
        trouble: None = None

    @property
    def refused(self) -> list[str]:
        """What of unreadable was there and could not be used, each with the reason: a host that says odd things."""
        return [place for place in self.unreadable if ": " in place]

    @classmethod
    def of_host(cls, answer: object) -> Self:
        """As of every answer; without a host in it, it is of no host at all."""
        if not isinstance(answer, Mapping) or not isinstance(answer.get("host"), Mapping):
            raise bad_answer("it is not a mapping of facts")
        return super().of_host(answer)
