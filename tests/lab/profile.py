"""Images of prepared hosts: identity of a release, kernels, sources and installed packages, by the real apt and dpkg.

Hosts that differ only in name, address and hardware share one image, so a host starts in seconds and forty of a kind
are prepared once.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

from . import contents, repos
from .engine import LabError, engine
from .image import _commit, _scratch, image
from .paths import fingerprint_of
from .setup import say
from .sim import driver_files
from .sim.standin import program
from .spec import HostSpec

_ORIGINS = """\
// Automatically upgrade packages from these (origin:archive) pairs
Unattended-Upgrade::Allowed-Origins {
	"${distro_id}:${distro_codename}";
	"${distro_id}:${distro_codename}-security";
	"${distro_id}ESMApps:${distro_codename}-apps-security";
	"${distro_id}ESM:${distro_codename}-infra-security";
};

Unattended-Upgrade::Package-Blacklist {
};

Unattended-Upgrade::DevRelease "auto";
"""
_HELD = (
    "nvidia-|libnvidia-|cuda-|linux-(modules|objects|signatures)-nvidia-|xserver-xorg-video-nvidia-|libcu|libn(pp|ccl|v)|"
    "nsight-|gds-tools"
)
# What NVIDIA's own images name for their runtime and devel flavours.
_RUNTIME = ["cuda-libraries", "cuda-nvtx"]
_PROFILES = {
    "full": ["cuda-toolkit"],
    "runtime": _RUNTIME,
    "compiler": [*_RUNTIME, "cuda-minimal-build", "cuda-libraries-dev", "cuda-command-line-tools", "cuda-nvml-dev"],
}
_EVERYDAY = ("jq", "rsync", "tmux", "libxml2")


def files(spec: HostSpec) -> dict[str, str | bytes]:
    """Files that make the base a fresh server of the release."""
    release, codename = spec.release, spec.release.codename
    version = spec.ubuntu
    archive_key, nvidia_key = repos.keys()
    deb822 = (
        f"Types: deb\nURIs: {repos.archive_url()}\nSuites: {codename} {codename}-updates\n"
        "Components: main universe restricted multiverse\nSigned-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n\n"
        f"Types: deb\nURIs: {repos.archive_url()}\nSuites: {codename}-security\n"
        "Components: main universe restricted multiverse\nSigned-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n"
    )
    one_line = "".join(
        f"deb [signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg] {repos.archive_url()} {suite} "
        "main universe restricted multiverse\n"
        for suite in (codename, f"{codename}-updates", f"{codename}-security")
    )
    found: dict[str, str | bytes] = {
        "/usr/lib/os-release": (
            f'PRETTY_NAME="Ubuntu {release.name.split(" (")[0]}"\nNAME="Ubuntu"\nVERSION_ID="{version}"\n'
            f'VERSION="{release.name}"\nVERSION_CODENAME={codename}\nID=ubuntu\nID_LIKE=debian\n'
            f'HOME_URL="https://www.ubuntu.com/"\nUBUNTU_CODENAME={codename}\nLOGO=ubuntu-logo\n'
        ),
        "/etc/lsb-release": (
            f"DISTRIB_ID=Ubuntu\nDISTRIB_RELEASE={version}\nDISTRIB_CODENAME={codename}\n"
            f'DISTRIB_DESCRIPTION="Ubuntu {release.name.split(" (")[0]}"\n'
        ),
        "/etc/environment": (
            'PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/games:/usr/local/games:/snap/bin"\n'
        ),
        "/etc/issue": f"Ubuntu {release.name.split(' (')[0]} \\n \\l\n",
        "/usr/share/keyrings/ubuntu-archive-keyring.gpg": _binary(archive_key),
        "/etc/apt/apt.conf.d/50unattended-upgrades": _ORIGINS,
        "/etc/apt/apt.conf.d/20auto-upgrades": (
            'APT::Periodic::Update-Package-Lists "1";\n'
            f'APT::Periodic::Unattended-Upgrade "{1 if spec.unattended else 0}";\n'
        ),
        "/etc/default/grub": (
            f"GRUB_DEFAULT={'saved' if spec.saved else '0'}\nGRUB_TIMEOUT_STYLE=hidden\nGRUB_TIMEOUT=0\n"
            "GRUB_DISTRIBUTOR=`( . /etc/os-release; echo ${NAME:-Ubuntu} ) 2>/dev/null || echo Ubuntu`\n"
            'GRUB_CMDLINE_LINUX_DEFAULT="quiet splash"\nGRUB_CMDLINE_LINUX=""\n'
        ),
        "/etc/ssh/sshd_config.d/50-lab.conf": "PermitRootLogin no\nPasswordAuthentication no\nUseDNS no\n",
        "/etc/needrestart/conf.d/50-lab.conf": "",
    }
    if "archive" in spec.sources:
        if version >= "24.04":
            found["/etc/apt/sources.list.d/ubuntu.sources"] = deb822
            found["/etc/apt/sources.list"] = "# Ubuntu sources have moved to /etc/apt/sources.list.d/ubuntu.sources\n"
        else:
            found["/etc/apt/sources.list"] = one_line
    if "cuda" in spec.all_sources:
        number = version.replace(".", "")
        found["/usr/share/keyrings/cuda-archive-keyring.gpg"] = _binary(nvidia_key)
        found[f"/etc/apt/sources.list.d/cuda-ubuntu{number}-x86_64.list"] = (
            f"deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] {repos.nvidia_url(version)} /\n"
        )
        found["/etc/apt/preferences.d/cuda-repository-pin-600"] = (
            "Package: nsight-compute\nPin: origin *ubuntu.com*\nPin-Priority: -1\n\n"
            "Package: nsight-systems\nPin: origin *ubuntu.com*\nPin-Priority: -1\n\n"
            "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n"
        )
    if spec.runfile:
        found.update(_runfile(spec))
    return found


def _binary(key) -> bytes:  # type: ignore[no-untyped-def]
    from .aptrepo import _gpg

    return _gpg(key.home, "--export")


def _runfile(spec: HostSpec) -> dict[str, str | bytes]:
    """What NVIDIA's .run installer leaves behind, with modules for the first kernel only."""
    version = spec.runfile
    assert version is not None
    kernel = spec.all_kernels[0]
    found: dict[str, str | bytes] = {
        "/usr/bin/nvidia-uninstall": "#!/bin/sh\nexit 0\n",
        "/usr/bin/nvidia-installer": "#!/bin/sh\nexit 0\n",
        "/usr/bin/nvidia-smi": program("nvidia-smi"),
        "/usr/bin/nvidia-persistenced": program("nvidia-persistenced"),
        "/var/lib/nvidia/log": f"nvidia-installer log\n{version}\n",
        "/var/log/nvidia-installer.log": (
            f"nvidia-installer log file '/var/log/nvidia-installer.log'\ninstaller version: {version}\n"
        ),
        "/usr/lib/modprobe.d/nvidia-installer-disable-nouveau.conf": (
            "# generated by nvidia-installer\nblacklist nouveau\noptions nouveau modeset=0\n"
        ),
    }
    for base in ("libnvidia-compute", "libnvidia-cfg1"):
        for path, file in contents.fill(base, version.split(".")[0], version, "open")[0].items():
            found[path] = file if isinstance(file, str) else f"LINK {file.link}" if file.link else file.data
    for chip in ("ga10x", "tu10x"):
        found[f"/usr/lib/firmware/nvidia/{version}/gsp_{chip}.bin"] = "simulated\n"
    old = any(gpu["architecture"] in ("Kepler", "Maxwell", "Pascal", "Volta") for gpu in spec.machine()["gpus"])
    for name, data in driver_files.modules(version, "proprietary" if old else "open", kernel).items():
        found[f"/lib/modules/{kernel}/kernel/drivers/video/{name}"] = data
    return found


def packages_of(spec: HostSpec) -> tuple[list[str], list[str]]:
    """(packages to install for the kernels, further apt-get install word lists joined by spaces)."""
    kernels = []
    for name in spec.all_kernels:
        kernel = spec.release.kernel(name)
        kernels += [f"linux-image-{name}", f"linux-modules-extra-{name}"] + (
            [f"linux-headers-{name}"] if spec.headers else []
        )
        if kernel.current:
            kernels.append(f"linux-{kernel.meta}" if spec.headers else f"linux-image-{kernel.meta}")
    drivers = [" ".join(_driver(text, spec)) for text in spec.installed if not _is_package(text)]
    own = [text for text in spec.installed if _is_package(text)]
    return kernels, drivers + _compiler(spec) + [_toolkit(text, spec) for text in spec.toolkits] + own


def _compiler(spec: HostSpec) -> list[str]:
    found = [f"gcc-{spec.gcc} g++-{spec.gcc}"] if spec.gcc else []
    return found + (["nvidia-cuda-toolkit"] if spec.distribution_cuda else [])


def _toolkit(text: str, spec: HostSpec) -> str:
    """apt words for a toolkit: ``MINOR [full|compiler|runtime] [held]``."""
    minor, *flags = text.split()
    unknown = set(flags) - {"full", "compiler", "runtime", "held"}
    if unknown or not re.fullmatch(r"\d+\.\d+", minor):
        raise ValueError(f"{spec.name}: cannot read the toolkit {text!r}")
    bases = next((_PROFILES[flag] for flag in flags if flag in _PROFILES), _PROFILES["full"])
    return " ".join(f"{base}-{minor.replace('.', '-')}" for base in bases)


def _cuda_link(spec: HostSpec) -> list[str]:
    """Lines that put something of a person's in the place of /usr/local/cuda, over what packages made of it."""
    if spec.cuda_link is None:
        return []
    newest = max(
        (text.split()[0] for text in spec.toolkits), key=lambda text: [int(n) for n in text.split(".")], default="12.1"
    )
    target = f"/usr/local/cuda-{newest}"
    if spec.cuda_link == "symlink":
        return [f"mkdir -p {target}", f"ln -sfn {target} /usr/local/cuda"]
    return ["rm -f /usr/local/cuda", "mkdir -p /usr/local/cuda/bin", "echo mine > /usr/local/cuda/notes.txt"]


def _is_package(text: str) -> bool:
    return not re.match(r"^\d{3}(-server)?(\s|$)", text)


def _driver(text: str, spec: HostSpec) -> list[str]:
    """apt words for a driver set: ``SERIES [open] [signed|dkms] [cuda] [desktop] [fm] [held] [=VERSION]``."""
    words = text.split()
    series, flags = words[0], {word for word in words[1:] if not word.startswith("=")}
    unknown = flags - {"open", "proprietary", "signed", "dkms", "cuda", "desktop", "fm", "held"}
    if unknown:
        raise ValueError(f"{spec.name}: cannot read {sorted(unknown)} in {text!r}")
    suffix = "-open" if "open" in flags else ""
    branch = series.split("-")[0]
    if "cuda" in flags:
        if int(branch) >= 590:
            return [f"nvidia-driver-pinning-{branch}", "&&", "nvidia-open" if suffix else "cuda-drivers"]
        return [f"nvidia-open-{branch}" if suffix else f"cuda-drivers-{branch}"]
    built = []
    if "dkms" not in flags:
        for name in spec.all_kernels:
            kernel = spec.release.kernel(name)
            built.append(f"linux-modules-nvidia-{series}{suffix}-{kernel.meta if kernel.current else name}")
    if "desktop" in flags:
        built.append(f"nvidia-driver-{series}{suffix}")
    else:
        headless = "nvidia-headless" if "dkms" in flags else "nvidia-headless-no-dkms"
        built += [f"{headless}-{series}{suffix}", f"nvidia-utils-{series}"]
    if "fm" in flags:
        built += [f"nvidia-fabricmanager-{branch}", f"libnvidia-nscq-{branch}"]
    return built


def script(spec: HostSpec) -> str:
    """Shell that turns the image into the prepared host."""
    kernels, installs = packages_of(spec)
    apt = "DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Sandbox::User=root"
    held = any("held" in text.split() for text in [*spec.installed, *spec.toolkits])
    lines = [
        "set -eu",
        "tar -C /stage/tree -c . | tar -C / -x --keep-directory-symlink --no-same-owner",
        "ln -sf ../usr/lib/os-release /etc/os-release",
        "mkdir -p /etc/sim /run/sim && cp -a /stage/sim/. /etc/sim/",
        f"echo {spec.all_kernels[-1]} > /run/sim/release",
    ]
    if spec.all_sources:
        lines.append(f"{apt} update")
    lines.append(
        f"{apt} install --no-install-recommends initramfs-tools grub2-common mokutil {' '.join(_EVERYDAY)} {' '.join(kernels)}"
    )
    for words in installs:
        lines += [f"{apt} install --no-install-recommends {part.strip()}" for part in words.split("&&")]
    if spec.runfile:
        lines += ["update-initramfs -u -k all", f"depmod {spec.all_kernels[0]}"]
    if held:
        lines.append(
            "dpkg-query -W -f '${db:Status-Status} ${Package}\\n' | sed -n 's/^installed //p' | "
            f"grep -E '^({_HELD})' | "
            "xargs -r apt-mark hold >/dev/null"
        )
    if spec.desktop:
        lines.append("mkdir -p /usr/share/xsessions && touch /usr/share/xsessions/ubuntu.desktop")
    if spec.gcc:
        lines += [f"ln -sf {kind}-{spec.gcc} /usr/bin/{kind}" for kind in ("gcc", "g++")]
    lines += _cuda_link(spec) + spec.run
    lines.append("update-grub 2>/dev/null")
    titles = "Advanced options for Ubuntu>Ubuntu, with Linux"
    if spec.saved:
        lines.append(f"grub-set-default '{titles} {spec.saved}'")
    if spec.next:
        lines.append(f"grub-reboot '{titles} {spec.next}'")
    lines.append("rm -rf /etc/sim /run/sim /run/reboot-required* /var/cache/apt/archives/*.deb /var/cache/apt/*.bin")
    return "\n".join(lines) + "\n"


def _below(spec: HostSpec) -> HostSpec | None:
    """The fresh server with its kernels that the image of this host is a layer over; None for such a server itself.

    None also where something else comes before the kernels: files that their initramfs holds, other sources.
    """
    if "archive" not in spec.sources or spec.extra or spec.runfile:
        return None
    plain = HostSpec(
        name="plain",
        ubuntu=spec.ubuntu,
        kernels=spec.all_kernels,
        headers=spec.headers,
        shells=spec.shells,
        modules=spec.modules,
    )
    return None if plain.profile() == spec.profile() else plain


def prepare(spec: HostSpec, repository_address: str, repository_state: str) -> str:
    """Return the tag of the prepared image.

    repository_address: IP of the lab's package server; repository_state: what its repositories hold, as a hash.
    """
    with repos.locked("image"):
        source, _ = image(spec.extras)
    described = json.dumps(spec.profile(), sort_keys=True)
    hardware = spec.runfile and str(spec.machine()["gpus"])
    extra = f"{source} {repository_state} {described} {hardware} {repos.keys()}"
    tag = f"localhost/gpu-lab-host:{fingerprint_of('profile.py', extra=extra)}"
    with repos.locked("profile-" + tag.rsplit(":", 1)[1]):
        if engine().image(tag):
            return tag
        below = _below(spec)
        if below:
            source = prepare(below, repository_address, repository_state)
        say(
            f"preparing Ubuntu {spec.ubuntu} with {', '.join(spec.all_kernels)}"
            + (f" and {', '.join(spec.installed)}" if spec.installed else "")
        )
        with tempfile.TemporaryDirectory(prefix="stage-", dir=_scratch()) as name:
            stage = Path(name)
            for path, text in {**files(spec), **spec.extra}.items():
                target = stage / "tree" / path.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(text, str) and text.startswith("LINK "):
                    target.symlink_to(text[5:])
                    continue
                target.write_bytes(text.encode() if isinstance(text, str) else text)
                target.chmod(0o755 if isinstance(text, str) and text.startswith("#!") else 0o644)
            (stage / "sim").mkdir()
            write_machine(spec, stage / "sim")
            (stage / "prepare.sh").write_text(script(spec))
            flags = ["-v", f"{stage}:/stage:ro"]
            for host in (repos.ARCHIVE_HOST, repos.NVIDIA_HOST):
                flags += ["--add-host", f"{host}:{repository_address}"]
            try:
                _commit(source, ["sh", "/stage/prepare.sh"], tag, flags)
            except LabError as problem:
                raise LabError(f"{spec.name}: {problem}") from problem
    return tag


def write_machine(spec: HostSpec, folder: Path) -> None:
    """Write the hardware and, for Secure Boot, the machine's own key into what becomes /etc/sim."""
    (folder / "host.json").write_text(json.dumps(spec.machine(), indent=1) + "\n")
    own = mok()
    for name in ("own-MOK.der", "own-MOK.priv", "own-name"):
        shutil.copy(own / name, folder / name)
    enrolled = folder / "enrolled.der"
    if spec.secure_boot == "enrolled":
        shutil.copy(own / "own-MOK.der", enrolled)


def mok() -> Path:
    """Folder with a machine owner key (RSA, certificate in DER) and its common name."""
    from .engine import run
    from .paths import KEYS

    folder = KEYS / "mok"
    with repos.locked("mok"):
        if not (folder / "own-name").exists():
            folder.mkdir(parents=True, exist_ok=True)
            name = "gpu-lab Secure Boot Module Signature key"
            run(
                [
                    "openssl",
                    "req",
                    "-new",
                    "-x509",
                    "-newkey",
                    "rsa:2048",
                    "-nodes",
                    "-days",
                    "36500",
                    "-subj",
                    f"/CN={name}",
                    "-outform",
                    "DER",
                    "-keyout",
                    str(folder / "own-MOK.priv"),
                    "-out",
                    str(folder / "own-MOK.der"),
                ]
            )
            (folder / "own-name").write_text(name)
    return folder
