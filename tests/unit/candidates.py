"""What repositories offer, for tests of resolve: small, with the relations that matter and the real names.

Relations after canonical/nvidia-graphics-drivers (580-noble) and NVIDIA's repository; the lab has them in full.
"""

from dataclasses import replace

from provision.parts.candidates import Candidate, Candidates

ARCHIVE_URI = "http://archive.test/ubuntu/"
CUDA_URI = "http://mirror.test/compute/cuda/repos/ubuntu2404/x86_64/"


def available(*groups: list[Candidate]) -> Candidates:
    packages: dict[str, list[Candidate]] = {}
    for group in groups:
        for candidate in group:
            packages.setdefault(candidate.name, []).append(candidate)
    return Candidates(packages)


def archive(series: str, upstream: str, revision: str = "0ubuntu0.24.04.1") -> list[Candidate]:
    """A genuine series of the archive, both flavours where it has open modules."""
    version, exact = f"{upstream}-{revision}", f"nvidia-kernel-common-{series}-{upstream}"
    number = int(series.split("-")[0])

    def make(name: str, depends: str = "", provides: str = "") -> Candidate:
        return Candidate(name, version, depends, provides, ARCHIVE_URI, "noble-updates", "restricted", "Ubuntu", 1000)

    rows = [
        make(f"nvidia-kernel-common-{series}", f"nvidia-firmware-{series}-{upstream}", exact),
        make(f"nvidia-firmware-{series}-{upstream}"),
        make(f"nvidia-utils-{series}", exact),
        make(f"libnvidia-compute-{series}", f"{exact}, ocl-icd-libopencl1"),
        make(f"nvidia-compute-utils-{series}", f"libnvidia-compute-{series}, adduser"),
        make(f"libnvidia-cfg1-{series}", exact),
        make(f"libnvidia-gl-{series}", f"{exact}, libnvidia-common-{series}, libnvidia-egl-wayland1"),
        make(f"libnvidia-common-{series}", exact),
    ]
    for flavour in ("", "-open") if number >= 515 else ("",):
        common = f"nvidia-kernel-common-{series} (<= {upstream}-1), nvidia-kernel-common-{series} (>= {upstream})"
        source = f"nvidia-kernel-source-{series}{flavour} (= {version})"
        rows += [
            make(f"nvidia-kernel-source-{series}{flavour}"),
            make(f"nvidia-dkms-{series}{flavour}", f"dkms, {source}, {common}"),
            make(
                f"nvidia-headless-no-dkms-{series}{flavour}",
                f"{common}, {source}, libnvidia-compute-{series} (= {version}), "
                f"nvidia-compute-utils-{series} (= {version}), libnvidia-cfg1-{series} (= {version})",
            ),
            make(
                f"nvidia-headless-{series}{flavour}",
                f"nvidia-headless-no-dkms-{series}{flavour}, nvidia-dkms-{series}{flavour}",
            ),
            make(
                f"nvidia-driver-{series}{flavour}",
                f"libnvidia-gl-{series} (= {version}), nvidia-dkms-{series}{flavour} (<= {upstream}-1), {common}, "
                f"{source}, libnvidia-compute-{series} (= {version}), nvidia-utils-{series} (= {version}), "
                f"nvidia-compute-utils-{series} (= {version}), libnvidia-cfg1-{series} (= {version})",
            ),
        ]
    return rows


def transitional(series: str, to: str, version: str) -> list[Candidate]:
    """A series that the archive turned into packages that only depend on another one."""
    bases = ("nvidia-dkms", "nvidia-driver", "nvidia-headless", "nvidia-utils", "libnvidia-compute")
    flavours = {"nvidia-dkms", "nvidia-driver", "nvidia-headless"}
    rows = []
    for base in bases:
        for flavour in ("", "-open") if base in flavours and int(series.split("-")[0]) >= 515 else ("",):
            rows.append(Candidate(f"{base}-{series}{flavour}", version, f"{base}-{to}{flavour}", uri=ARCHIVE_URI))
    return rows


def signed(series: str, upstream: str, *kernels: str, meta: str = "generic") -> list[Candidate]:
    """Signed modules of a series for kernels, and the metapackage of a kernel flavour that leads to the last."""
    common = f"nvidia-kernel-common-{series} (<= {upstream}-1), nvidia-kernel-common-{series} (>= {upstream})"
    rows = []
    for flavour in ("", "-open"):
        for kernel in kernels:
            base = kernel.rsplit("-", 1)[0]
            version = f"{base}.{base.rsplit('-', 1)[1]}"
            rows.append(
                Candidate(
                    f"linux-modules-nvidia-{series}{flavour}-{kernel}",
                    version,
                    f"linux-objects-nvidia-{series}{flavour}-{kernel} (= {version}), "
                    f"linux-signatures-nvidia-{kernel} (= {version}), {common}",
                    uri=ARCHIVE_URI,
                )
            )
            rows.append(Candidate(f"linux-objects-nvidia-{series}{flavour}-{kernel}", version, uri=ARCHIVE_URI))
        rows.append(
            Candidate(
                f"linux-modules-nvidia-{series}{flavour}-{meta}",
                "6.8.0-48.48",
                f"linux-modules-nvidia-{series}{flavour}-{kernels[-1]} (= 6.8.0-48.48), {common}",
                f"nvidia-dkms-{series}{flavour} (= {upstream}-0ubuntu0.24.04.1), nvidia-prebuilt-kernel",
                ARCHIVE_URI,
            )
        )
    return rows


def fabric(number: str, upstream: str, series: str | None = None) -> list[Candidate]:
    """Fabric manager of the archive, built for one series, or of NVIDIA's repository (series None)."""
    if series is None:
        version, uri = f"{upstream}-1", CUDA_URI
        depends = ""
    else:
        version, uri = f"{upstream}-0ubuntu0.24.04.1", ARCHIVE_URI
        depends = f"nvidia-kernel-common-{series}-{upstream}"
    return [
        Candidate(f"nvidia-fabricmanager-{number}", version, depends, uri=uri),
        Candidate(f"libnvidia-nscq-{number}", version, uri=uri),
    ]


def cuda_suffixed(series: str, upstream: str) -> list[Candidate]:
    """A branch before 590 in NVIDIA's repository."""
    rows = archive(series, upstream, "0ubuntu1")
    version = f"{upstream}-0ubuntu1"
    rows += [
        Candidate(f"nvidia-open-{series}", version, f"nvidia-driver-{series}-open (>= {upstream})"),
        Candidate(f"cuda-drivers-{series}", version, f"nvidia-driver-{series} (>= {upstream})"),
    ]
    return [Candidate(c.name, c.version, c.depends, c.provides, CUDA_URI, "/", "", "NVIDIA", 1000) for c in rows]


def cuda_plain(upstream: str, proprietary: bool = True) -> list[Candidate]:
    """A branch from 590 on in NVIDIA's repository: no branch in the names, a pinning package beside them."""
    version, number = f"{upstream}-1ubuntu1", upstream.split(".")[0]

    def make(name: str, depends: str = "", own: str = version) -> Candidate:
        return Candidate(name, own, depends, "", CUDA_URI, "/", "", "NVIDIA", 1000)

    rows = [
        make("nvidia-open", f"nvidia-driver-open (>= {upstream})"),
        make("nvidia-driver-open", f"nvidia-dkms-open (= {version}), libnvidia-compute (= {version})"),
        make("nvidia-dkms-open", f"dkms, nvidia-kernel-source-open (= {version})"),
        make("nvidia-kernel-source-open"),
        make("libnvidia-compute", f"libnvidia-gpucomp (= {version})"),
        make("libnvidia-gpucomp"),
        make(f"nvidia-driver-pinning-{number}", "", f"{number}-1"),
        make("nvidia-fabricmanager"),
        make("libnvidia-nscq"),
    ]
    if proprietary:
        rows += [
            make("cuda-drivers", f"nvidia-driver (>= {upstream})"),
            make("nvidia-driver", f"nvidia-dkms (= {version}), libnvidia-compute (= {version})"),
            make("nvidia-dkms", f"dkms, nvidia-kernel-source (= {version})"),
            make("nvidia-kernel-source"),
        ]
    return rows


def ppa(
    series: str, upstream: str, uri: str = "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu/"
) -> list[Candidate]:
    """A series of the graphics-drivers PPA: the archive's names, versions of its own, no signed modules."""
    return [
        replace(c, version=c.version.replace("0ubuntu", "0ubuntu0~gpu"), uri=uri, origin="LP-PPA-graphics-drivers")
        for c in archive(series, upstream, "0ubuntu24.04.1")
    ]


def headers(*kernels: str) -> list[Candidate]:
    return [Candidate(f"linux-headers-{kernel}", "6.8.0-48.48", uri=ARCHIVE_URI) for kernel in kernels]


KERNELS = ("6.8.0-45-generic", "6.8.0-48-generic")

CANDIDATES = {
    "noble": available(
        archive("470-server", "470.256.02"),
        transitional("470", "535", "470.256.02-0ubuntu0.24.04.5"),
        archive("535", "535.288.01"),
        archive("535-server", "535.288.01"),
        archive("550", "550.163.01"),
        transitional("570", "580", "570.211.01-0ubuntu1.24.04.1"),
        archive("580", "580.142"),
        archive("580-server", "580.126.20", "0ubuntu0.24.04.2"),
        transitional("590", "595", "590.48.01-0ubuntu0.24.04.5"),
        archive("595", "595.58.03"),
        archive("595-server", "595.58.03"),
        signed("580", "580.142", *KERNELS),
        signed("580-server", "580.126.20", *KERNELS),
        signed("595-server", "595.58.03", *KERNELS),
        signed("595", "595.58.03", *KERNELS),
        fabric("580", "580.126.20", "580-server"),
        fabric("535", "535.274.02", "535-server"),
        headers("generic", *KERNELS),
    ),
    "noble-complete": available(archive("580", "580.142"), headers("generic", *KERNELS)),
    "noble-unsigned": available(
        archive("580", "580.142"), archive("580-server", "580.126.20"), headers("generic", *KERNELS)
    ),
    "noble-two-580": available(
        archive("580-server", "580.159.04"),
        archive("580-server", "580.126.20"),
        signed("580-server", "580.126.20", *KERNELS),
        fabric("580", "580.126.20", "580-server"),
        headers("generic", *KERNELS),
    ),
    "bad-and-good": available(archive("580", "580.119.02"), archive("580", "580.105.08"), headers("generic", *KERNELS)),
    "bad": available(archive("580", "580.119.02"), headers("generic", *KERNELS)),
    "ppa": available(ppa("580", "580.159.04"), headers("generic", *KERNELS)),
    # A mirror of the PPA has another address; what its Release file says of its origin is what tells it from the archive.
    "mirrored-ppa": available(
        ppa("580", "580.159.04", "http://mirror.test/ppa/"), archive("580", "580.142"), headers("generic", *KERNELS)
    ),
    "cuda": available(
        [Candidate("nvlsm", "2026.02.3-1", uri=CUDA_URI)],
        cuda_plain("620.70.06", proprietary=False),
        cuda_plain("595.71.05"),
        cuda_suffixed("580", "580.126.20"),
        cuda_suffixed("570", "570.211.01"),
        fabric("580", "580.126.20"),
        headers("generic", *KERNELS),
    ),
    "empty": available(headers("generic", *KERNELS)),
}
