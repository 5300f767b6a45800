"""Facts of one host, as the probe reports them: typed, tolerant of fields it does not know.

The probe (plugins/module_utils/probe.py) writes this; resolve, plan, checks and reports read it. Absent knowledge
is ``None`` ("could not be read"), never a guess.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from provision.trouble import Trouble

Flavour = Literal["open", "proprietary"]


class _Facts(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Os(_Facts):
    id: str = "ubuntu"
    version_id: str = "24.04"
    codename: str = "noble"
    pretty: str = ""


class HostInfo(_Facts):
    hostname: str = ""
    os: Os = Os()
    arch: str = "amd64"  # dpkg's name: amd64, arm64
    boot_id: str | None = None
    machine_id: str | None = None
    uptime_s: float | None = None
    python: str | None = None
    python_path: str | None = None  # of the Python that read the host
    is_root: bool = True
    container: str | None = None
    systemd: bool = True
    virtual: str | None = None


class PcieLink(_Facts):
    """Lanes and GT/s of a card's link: now, and the most that the card can do. An idle card may lower its speed."""

    width: int | None = None
    max_width: int | None = None
    speed: float | None = None
    max_speed: float | None = None


class Gpu(_Facts):
    slot: str  # 0000:1b:00.0
    device: str  # PCI device id, 4 lower-case hex digits
    subsystem: str | None = None  # "10de:16c1"
    pci_class: str = "0302"
    driver: str | None = None  # kernel driver bound to it: nvidia, nouveau, nova_core, vfio-pci, None
    numa_node: int | None = None
    pcie: PcieLink | None = None


class LoadedModule(_Facts):
    version: str
    flavour: Flavour | None = None
    refcount: int | None = None
    holders: list[str] = Field(default_factory=list)


class DiskModule(_Facts):
    kernel: str
    path: str
    version: str | None = None
    flavour: Flavour | None = None
    signed: bool = False
    signer: str | None = None
    origin: Literal["prebuilt", "dkms", "other"] = "other"  # by its place and by dkms' tree
    package: str | None = None  # dpkg package that owns the file; None for DKMS builds and foreign files


class Module(_Facts):
    loaded: LoadedModule | None = None
    nouveau_loaded: bool = False
    nova_loaded: bool = False
    on_disk: list[DiskModule] = Field(default_factory=list)


class Kernel(_Facts):
    release: str
    image: bool = True
    headers: bool = False  # /usr/src/linux-headers-RELEASE or modules/RELEASE/build is there
    initrd: bool = True
    package: str | None = None


class Kernels(_Facts):
    running: str = ""
    next: str | None = None  # what the boot loader will start; None: not known
    next_because: str = ""
    installed: list[Kernel] = Field(default_factory=list)
    metapackages: list[str] = Field(default_factory=list)  # installed: linux-image-generic-hwe-24.04, …


class Package(_Facts):
    version: str
    status: str = "ii"  # dpkg's two letters: ii, iU, iF, iHR… ; first letter 'h' is a hold
    arch: str = "amd64"
    source: str | None = None
    depends: str | None = None

    @property
    def installed(self) -> bool:
        return self.status[1] == "i"

    @property
    def held(self) -> bool:
        return self.status[0] == "h"

    @property
    def broken(self) -> bool:
        """Half-installed, unpacked, half-configured or waiting for triggers: dpkg was cut off."""
        return self.status[1] in "UFHWt"


class Library(_Facts):
    soname: str
    path: str
    version: str | None = None
    package: str | None = None


class SmiGpu(_Facts):
    index: int
    name: str
    uuid: str | None = None
    bus_id: str | None = None
    driver_version: str | None = None
    memory_mib: int | None = None
    persistence: bool | None = None
    mig: str | None = None
    mig_pending: str | None = None  # the mode after the next reset
    ecc: str | None = None


class Smi(_Facts):
    path: str | None = None
    ran: bool = False
    rc: int | None = None
    timed_out: bool = False
    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: list[SmiGpu] = Field(default_factory=list)
    error: str | None = None  # its own words when it failed


class Source(_Facts):
    file: str
    line: int | None = None
    format: Literal["list", "deb822"] = "list"
    types: list[str] = Field(default_factory=lambda: ["deb"])
    uris: list[str] = Field(default_factory=list)
    suites: list[str] = Field(default_factory=list)
    components: list[str] = Field(default_factory=list)
    signed_by: str | None = None
    enabled: bool = True
    trusted: bool = False


class Preference(_Facts):
    file: str
    package: str
    pin: str
    priority: int


class Apt(_Facts):
    sources: list[Source] = Field(default_factory=list)
    preferences: list[Preference] = Field(default_factory=list)
    blacklist: list[str] = Field(default_factory=list)  # Unattended-Upgrade::Package-Blacklist
    unattended: bool | None = None  # unattended-upgrades switched on
    lists_age_s: float | None = None
    lock_holder: str | None = None  # "pid 123 (unattended-upgr)"
    errors: list[str] = Field(default_factory=list)  # sources that cannot be parsed, Signed-By conflicts


class SecureBoot(_Facts):
    efi: bool = False
    enabled: bool | None = False  # None: EFI host whose variable could not be read
    mok_key: str | None = None  # DKMS' own certificate on disk
    mok_enrolled: bool | None = None  # is it among the enrolled keys


class GpuUser(_Facts):
    pid: int
    comm: str
    user: str | None = None
    devices: list[str] = Field(default_factory=list)


class Service(_Facts):
    present: bool = False
    enabled: bool = False
    running: bool = False


class Runfile(_Facts):
    uninstaller: str | None = None
    traces: list[str] = Field(default_factory=list)


class RebootRequired(_Facts):
    required: bool = False
    packages: list[str] = Field(default_factory=list)


class Modprobe(_Facts):
    blacklisted: list[str] = Field(default_factory=list)  # module names blacklisted anywhere in modprobe.d


class Initrd(_Facts):
    kernel: str
    newer_than_blacklist: bool | None = None  # built after the newest nouveau blacklist file was written


class Disk(_Facts):
    path: str
    free: int  # bytes
    size: int


class Nvcc(_Facts):
    path: str  # as a shell would find it: /usr/bin/nvcc, /usr/local/cuda-12.4/bin/nvcc
    target: str | None = None  # the file that it leads to
    version: str | None = None  # "12.4"
    build: str | None = None  # "12.4.131"
    package: str | None = None  # dpkg package that owns the target
    on_path: bool = False  # its folder is on the PATH that /etc gives to every login
    environment: str | None = None  # prefix of the conda environment that it belongs to


class Toolkit(_Facts):
    """One CUDA toolkit on the disk, whoever put it there."""

    path: str  # /usr/local/cuda-12.4; the real folder
    version: str | None = None  # "12.4"
    release: str | None = None  # "12.4.1", of its version.json
    package: str | None = None  # a dpkg package that owns files in it; None: runfile or copied by hand
    compiler: bool = False  # bin/nvcc is there
    headers: bool = False  # include/cuda_runtime.h is there
    runtime: bool = False  # libcudart is there
    uninstaller: str | None = None  # bin/cuda-uninstaller of a runfile


class Alternative(_Facts):
    """One group of update-alternatives."""

    name: str  # cuda, cuda-12
    link: str  # /usr/local/cuda
    manual: bool = False
    current: str | None = None  # where /etc/alternatives/NAME leads
    choices: dict[str, int] = Field(default_factory=dict)  # path -> priority
    dangling: list[str] = Field(default_factory=list)  # choices that are not there any more


class CudaLink(_Facts):
    """/usr/local/cuda and /usr/local/cuda-NN: what is there."""

    path: str
    kind: Literal["link", "directory", "file"] = "link"
    target: str | None = None  # one step: /etc/alternatives/cuda
    resolved: str | None = None  # the folder in the end; None: the link leads nowhere


class CudaLibrary(_Facts):
    """One file of a CUDA library (libcudart, libcudnn, libnccl, libcublas, libnvJitLink, …; cuda-compat's libcuda)."""

    soname: str  # libcudnn.so.9: what a program asks for
    path: str  # as found: /usr/lib/x86_64-linux-gnu/libcudnn.so.9
    target: str | None = None  # the real file
    version: str | None = None  # from the real file's name: 9.14.0
    package: str | None = None  # owner of the path; of the target where both lie in one folder
    in_cache: bool | None = None  # found by /etc/ld.so.cache; None: there is no cache to be read


class Header(_Facts):
    """cudnn_version.h, nccl.h: the version that programs are compiled against."""

    name: str  # cudnn, nccl
    path: str
    version: str | None = None  # 9.14.0, 2.28.3
    package: str | None = None


class ShellLine(_Facts):
    """An assignment about CUDA that somebody wrote into a shell's start file; of the line nothing else is kept."""

    file: str
    line: int
    text: str
    variable: str  # PATH, LD_LIBRARY_PATH, CUDA_HOME, CUDA_PATH, CUDA_VISIBLE_DEVICES, …
    paths: list[str] = Field(default_factory=list)  # folders of CUDA or cuDNN that it names
    missing: list[str] = Field(default_factory=list)  # those of them that are not on the disk
    front: list[str] = Field(default_factory=list)  # those of them that come before the old value
    replaces: bool = False  # a list (PATH, …) is set without its old value


class Compilers(_Facts):
    """Host compilers: nvcc hands its code to gcc, and refuses one that is too new."""

    gcc: str | None = None  # major of what /usr/bin/gcc leads to: "13"
    available: list[str] = Field(default_factory=list)  # majors with a g++: ["11", "13"]


class Shells(_Facts):
    """What starts a user's session here, as far as files of ours can reach it."""

    fish: bool = False
    csh: bool = False  # csh or tcsh
    zsh: bool = False
    environment_modules: str | None = None  # folder for modulefiles: /etc/environment-modules/modules, …
    lmod: str | None = None  # folder for Lua modulefiles: /etc/lmod/modules, …


class Cuda(_Facts):
    """CUDA in userland: toolkits, compilers, links, libraries, shells."""

    nvccs: list[Nvcc] = Field(default_factory=list)  # in the order of a login's PATH, then those not on it
    toolkits: list[Toolkit] = Field(default_factory=list)
    alternatives: list[Alternative] = Field(default_factory=list)
    links: list[CudaLink] = Field(default_factory=list)
    libraries: list[CudaLibrary] = Field(
        default_factory=list
    )  # in the loader's order: its cache, then the rest
    headers: list[Header] = Field(default_factory=list)
    ld_so_conf: dict[str, list[str]] = Field(default_factory=dict)  # file -> folders, files that name CUDA
    shell_lines: list[ShellLine] = Field(default_factory=list)
    compilers: Compilers = Compilers()
    shells: Shells = Shells()
    # Modulefiles cuda/X.Y that somebody else wrote, where the role would put its own
    other_modulefiles: list[str] = Field(default_factory=list)


class CondaPackage(_Facts):
    """A package of conda, by the name of its record."""

    version: str
    build: str | None = None  # py3.11_cuda12.1_cudnn8.9.2_0


class CudartLink(_Facts):
    """A link libcudart.so… of an environment whose name promises another version than it leads to."""

    path: str
    target: str | None = None  # the real file; None: it leads nowhere
    version: str | None = None  # by the real file's name


class CondaEnvironment(_Facts):
    """One conda environment, the base of a prefix left out."""

    name: str
    path: str
    prefix: str | None = None  # the conda it belongs to; None: only named in an environments.txt
    owner: str | None = None
    state: Literal["whole", "partial", "foreign"] = "whole"  # foreign: no environment, something else
    unfinished: bool = False  # a mark of ours says that making it was cut off
    python: str | None = None  # 3.11.9
    packages: dict[str, CondaPackage] = Field(default_factory=dict)  # those that concern CUDA, see condaprobe
    pip: dict[str, str] = Field(default_factory=dict)  # the same of pip: torch -> 2.6.0+cu124
    builds: dict[str, Literal["cuda", "cpu"]] = Field(default_factory=dict)  # torch -> cuda, as far as known
    cuda: str | None = None  # CUDA that its framework or its packages bring: "12.4"
    cudart_links: list[CudartLink] = Field(default_factory=list)
    lib64: bool = False
    record: dict[str, object] | None = None  # what we noted when we made it; None: not made by us
    digest: str | None = None  # over the names of all its packages
    changed: bool | None = None  # its packages are others than when we made it; None: not made by us


class CondaPrefix(_Facts):
    """One installation of conda."""

    path: str
    state: Literal["whole", "partial", "foreign", "empty"] = "whole"
    missing: list[str] = Field(default_factory=list)  # what is not there, or must not be there, when partial
    unfinished: bool = False  # a mark of ours says that installing it was cut off
    owner: str | None = None
    distribution: Literal["miniconda", "miniforge", "anaconda", "other"] = "other"
    version: str | None = None  # of conda: 26.5.3
    python: str | None = None
    channels: list[str] | None = None  # of all its configuration files together; None: conda's own default
    condarcs: dict[str, list[str]] = Field(default_factory=dict)  # file -> channels
    settings: dict[str, str] = Field(default_factory=dict)  # other keys of PREFIX/.condarc with one value
    asks_terms: bool = False  # it has the plugin that asks for Anaconda's terms of service
    tos_accepted: list[str] = Field(
        default_factory=list
    )  # channels whose terms are accepted, for everybody or by its owner
    record: dict[str, object] | None = None


class Conda(_Facts):
    """Conda on the host: installations and environments, by files alone."""

    prefixes: list[CondaPrefix] = Field(default_factory=list)
    environments: list[CondaEnvironment] = Field(default_factory=list)
    homes: dict[str, str] = Field(default_factory=dict)  # user -> home, of users that log in
    looked: list[str] = Field(default_factory=list)  # paths that were asked for, written out
    shell_init: dict[str, str] = Field(default_factory=dict)  # user -> prefix of conda's block in .bashrc


class FileError(_Facts):
    """Why a daemon.json is not changed. line and column count from 1."""

    line: int
    column: int
    message: str
    hint: str = ""


class DaemonFile(_Facts):
    """A daemon.json: of its values only those that are compared here; others may be secret."""

    path: str = "/etc/docker/daemon.json"
    present: bool = False
    unreadable: bool = False  # it is there and may not be read
    error: FileError | None = None
    warnings: list[str] = Field(default_factory=list)
    keys: list[str] = Field(default_factory=list)  # every name at its top
    value: dict[str, object] = Field(default_factory=dict)  # runtimes, default-runtime, features, …
    refused: dict[str, FileError] = Field(default_factory=dict)  # key that cannot be written there, and why
    runtime_exists: bool = True  # the program of runtimes.nvidia, where it is an absolute path, is there


class DaemonFlag(_Facts):
    """A flag of dockerd. value and the whole text only of keys that are compared here."""

    key: str  # as daemon.json has it: runtimes for --add-runtime
    text: str
    value: str = ""
    place: str  # "/etc/systemd/system/docker.service.d/override.conf, line 3"


class DockerInfo(_Facts):
    """What a running daemon says of itself."""

    version: str = ""
    runtimes: dict[str, str] = Field(default_factory=dict)  # name -> path
    default_runtime: str = ""
    cgroup_driver: str = ""
    live_restore: bool = False
    rootless: bool = False
    data_root: str = ""
    cdi_spec_dirs: list[str] = Field(default_factory=list)
    running: int = 0
    proxy: dict[str, str] = Field(default_factory=dict)  # http, https, no_proxy; without user and password


class RootlessDocker(_Facts):
    user: str
    uid: int
    running: bool = False
    file: DaemonFile = DaemonFile()


class Docker(_Facts):
    """Which docker a host has. engine None: none for the whole system."""

    engine: str | None = None  # /usr/bin/dockerd
    package: str | None = None  # docker.io, docker-ce, moby-engine; None: of no package
    version: str | None = None  # 28.2.2
    snap: bool = False
    podman: bool = False  # the program docker is podman's
    desktop: list[str] = Field(default_factory=list)  # users whose docker goes to Docker Desktop
    rootless: list[RootlessDocker] = Field(default_factory=list)
    file: DaemonFile = DaemonFile()
    flags: list[DaemonFlag] = Field(default_factory=list)
    conflicts: list[str] = Field(
        default_factory=list
    )  # keys that are in the file and a flag: it does not start
    pid: int | None = None  # of the running daemon
    file_is_newer: bool | None = None  # written after the daemon started
    hook_is_newer: bool = False  # the toolkit came after the daemon started: --gpus waits for a restart
    proxy_elsewhere: str = ""  # where a proxy is set that goes before our drop-in
    info: DockerInfo | None = None  # None: it does not run, or was not asked
    group: list[str] | None = None  # members of the group docker; None: there is no such group


class Containerd(_Facts):
    path: str | None = None
    package: str | None = None
    version: str | None = None
    config_version: int | None = None  # None: there is no file
    imports: list[str] = Field(default_factory=list)
    runtime: bool = False  # nvidia is registered
    default_runtime: str = ""
    cri_disabled: bool = False
    pid: int | None = None


class Podman(_Facts):
    path: str | None = None
    package: str | None = None
    version: str | None = None


class ToolkitConfig(_Facts):
    """nvidia-container-runtime: is its program there, what does its configuration say."""

    config: str | None = None
    mode: str | None = None  # auto, legacy, cdi, jit-cdi, csv
    no_cgroups: bool = False
    program: bool = False
    ctk: bool = False


class CdiSpec(_Facts):
    path: str
    cdi_version: str = ""
    versions: list[str] = Field(default_factory=list)  # of the driver's libraries that it names
    gpus: list[int] = Field(default_factory=list)
    caps: list[int] = Field(default_factory=list)
    stale: str = ""  # why it does not fit the loaded driver


class RunningContainer(_Facts):
    id: str  # 12 digits
    runtime: str  # docker, containerd, podman
    pid: int | None = None
    comm: str | None = None
    gpu: bool = False
    name: str | None = None
    image: str | None = None

    @property
    def title(self) -> str:
        """As messages name it."""
        what = [word for word in (self.image, self.comm) if word]
        return f"{self.name or self.id} ({', '.join([self.runtime, *what])})"


class Containers(_Facts):
    """Container runtimes and NVIDIA's toolkit for them; the toolkit's packages are under facts.packages."""

    docker: Docker = Docker()
    containerd: Containerd = Containerd()
    podman: Podman = Podman()
    toolkit: ToolkitConfig = ToolkitConfig()
    cdi: list[CdiSpec] = Field(default_factory=list)
    cdi_units: Literal["toolkit", "ours", "masked"] | None = None  # who keeps the specification current
    cgroups: Literal["v2", "hybrid", "v1"] | None = None
    running: list[RunningContainer] = Field(default_factory=list)
    device_links_missing: list[str] = Field(default_factory=list)  # devices without a link in /dev/char
    # Files in which apt trusts NVIDIA's key for every repository -> whether it can be taken out of them for certain.
    old_keys: dict[str, bool] = Field(default_factory=dict)
    # Daemons that did not take up yet what was written -> its keys; none where they were started since.
    pending: dict[str, list[str]] = Field(default_factory=dict)
    users: list[str] = Field(default_factory=list)  # accounts of people


class Facts(_Facts):
    """Everything that one read of a host says."""

    host: HostInfo = HostInfo()
    gpus: list[Gpu] = Field(default_factory=list)
    nvswitches: list[str] = Field(default_factory=list)  # PCI slots
    nvlink5_switch: bool = False
    module: Module = Module()
    kernels: Kernels = Kernels()
    packages: dict[str, Package] = Field(default_factory=dict)  # NVIDIA, CUDA, kernel and toolkit names only
    package_problems: list[str] = Field(
        default_factory=list
    )  # any package of the host that dpkg left unfinished
    libraries: list[Library] = Field(default_factory=list)
    smi: Smi = Smi()
    apt: Apt = Apt()
    runfile: Runfile = Runfile()
    secure_boot: SecureBoot = SecureBoot()
    reboot_required: RebootRequired = RebootRequired()
    gpu_users: list[GpuUser] = Field(default_factory=list)
    devices: list[str] = Field(default_factory=list)  # /dev/nvidia0, /dev/nvidiactl, …
    services: dict[str, Service] = Field(default_factory=dict)
    own_files: dict[str, str] = Field(
        default_factory=dict
    )  # sha256 of the files that the roles write, by path
    modprobe: Modprobe = Modprobe()
    initrds: list[Initrd] = Field(default_factory=list)
    disks: list[Disk] = Field(default_factory=list)
    desktop: bool = False  # a display manager or desktop session package is installed
    cuda: Cuda = Cuda()
    conda: Conda = Conda()
    containers: Containers = Containers()
    cuda_dirs: dict[str, str | None] = Field(default_factory=dict)  # /usr/local/cuda-13.0 -> version
    run_lock: str | None = Field(None, max_length=16384)  # text of the lock of runs; see hostlock
    unreadable: list[str] = Field(default_factory=list)  # what root would have seen
    trouble: Trouble | None = None  # None: not asked for; see provision.trouble
