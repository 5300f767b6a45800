"""What NVIDIA's repository offers of CUDA, for tests of resolve: small, with the relations that matter and the real names.

13.0 are the packages of a real host (tests/fixtures/cuda-13.0.control: CUDA 13.0.2, cuDNN 9.14, NCCL 2.28.3); the other
toolkits are made after them, with the component versions of the catalog where it has them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from provision.parts.candidates import Candidate, Candidates

CONTROL = Path(__file__).parents[1] / "fixtures/cuda-13.0.control"
ARCHIVE = "http://archive.test/ubuntu"
URI = "http://mirror.test/compute/cuda/repos/ubuntu2404/x86_64/"
# Component builds of the releases that the tests use: cudart, nvcc and the rest; cublas.
BUILDS = {
    "11.7.1": ("11.7.99", "11.10.3.66"),
    "11.8.0": ("11.8.89", "11.11.3.6"),
    "12.2.2": ("12.2.140", "12.2.5.6"),
    "12.4.0": ("12.4.99", "12.4.2.65"),
    "12.4.1": ("12.4.127", "12.4.5.8"),
    "12.5.1": ("12.5.82", "12.5.3.2"),
    "12.6.3": ("12.6.77", "12.6.4.1"),
    "12.8.1": ("12.8.90", "12.8.4.1"),
    "12.9.1": ("12.9.79", "12.9.1.4"),
    "13.1.1": ("13.1.80", "13.2.1.1"),
    "13.3.1": ("13.3.29", "13.6.0.2"),
    "13.5.0": ("13.5.37", "13.10.0.20"),
}


def make(name: str, version: str, depends: str = "", conflicts: str = "", provides: str = "") -> Candidate:
    return Candidate(name, version, depends, provides, URI, "/", "", "NVIDIA", 1000, conflicts)


@cache
def real() -> tuple[Candidate, ...]:
    """The packages of the real host."""
    found = []
    for stanza in CONTROL.read_text().strip().split("\n\n"):
        row = dict(line.split(": ", 1) for line in stanza.splitlines())
        found.append(
            make(
                row["Package"],
                row["Version"],
                row.get("Depends", ""),
                row.get("Conflicts", ""),
                row.get("Provides", ""),
            )
        )
    return tuple(found)


def toolkit(release: str) -> list[Candidate]:
    """A toolkit with its metapackages, each asking for its parts with >=, as NVIDIA's do."""
    build, cublas = BUILDS[release]
    major, minor, _ = release.split(".")
    tail = f"{major}-{minor}"
    config = f"cuda-toolkit-{tail}-config-common, cuda-toolkit-{major}-config-common, cuda-toolkit-config-common"

    def part(name: str, depends: str = "", version: str = build) -> Candidate:
        return make(f"{name}-{tail}", f"{version}-1", depends.replace("%", tail))

    def needs(*names: str, version: str = build) -> str:
        return ", ".join(f"{name}-{tail} (>= {version})" for name in names)

    return [
        part(
            "cuda-toolkit",
            f"{needs('cuda-libraries', 'cuda-libraries-dev', 'cuda-compiler', 'cuda-tools', version=release)}, "
            + needs("cuda-documentation", "cuda-nvml-dev"),
            release,
        ),
        part("cuda-libraries", f"{needs('cuda-cudart', 'cuda-nvrtc')}, {needs('libcublas', version=cublas)}", release),
        part(
            "cuda-libraries-dev",
            f"{needs('cuda-cudart-dev', 'cuda-nvrtc-dev')}, " + needs("libcublas-dev", version=cublas),
            release,
        ),
        part("cuda-minimal-build", f"{needs('cuda-compiler', version=release)}, {needs('cuda-cudart-dev')}", release),
        part("cuda-compiler", needs("cuda-nvcc", "cuda-cuobjdump"), release),
        part("cuda-command-line-tools", needs("cuda-gdb", "cuda-nvtx"), release),
        part(
            "cuda-tools",
            f"{needs('cuda-command-line-tools', 'cuda-nsight-compute', version=release)}, " + needs("gds-tools"),
            release,
        ),
        part("cuda-nsight-compute", f"nsight-compute-20{major}.{minor} (>= 20{major}.{minor})", release),
        make(f"nsight-compute-20{major}.{minor}", f"20{major}.{minor}.0.1-1"),
        make(f"cuda-toolkit-{tail}-config-common", f"{build}-1"),
        make(f"cuda-toolkit-{major}-config-common", f"{build}-1"),
        make("cuda-toolkit-config-common", f"{build}-1"),
        part("cuda-cudart", config),
        part("cuda-cudart-dev", "cuda-cudart-% (>= " + build + ")"),
        part("cuda-nvrtc"),
        part("cuda-nvrtc-dev", "cuda-nvrtc-%"),
        part("cuda-nvml-dev"),
        part("cuda-documentation"),
        part("cuda-nvcc", "build-essential, cuda-cudart-dev-%"),
        part("cuda-cuobjdump"),
        part("cuda-nvtx"),
        part("cuda-gdb", "cuda-cuobjdump-%"),
        part("gds-tools"),
        part("libcublas", config, cublas),
        part("libcublas-dev", "libcublas-% (>= " + cublas + ")", cublas),
        # What the role never takes.
        part("cuda", f"{needs('cuda-toolkit', version=release)}, cuda-runtime-{tail}, cuda-demo-suite-{tail}", release),
        part("cuda-runtime", "cuda-drivers (>= 520), " + needs("cuda-libraries", version=release), release),
        part("cuda-demo-suite", "cuda-runtime-%"),
        make(f"cuda-compat-{tail}", "999.1-1"),
    ]


def thirteen() -> list[Candidate]:
    """13.0 as on the real host, with the metapackage cuda-toolkit and what it adds there."""
    rows = [c for c in real() if c.name.endswith("-13-0") or c.name.startswith(("cuda-toolkit", "nsight"))]
    names = {c.name for c in rows}
    assert "cuda-toolkit-13-0" not in names
    return [
        *rows,
        make(
            "cuda-toolkit-13-0",
            "13.0.2-1",
            "cuda-compiler-13-0 (>= 13.0.2), cuda-libraries-13-0 (>= 13.0.2), "
            "cuda-libraries-dev-13-0 (>= 13.0.2), cuda-tools-13-0 (>= 13.0.2), cuda-nvml-dev-13-0 (>= 13.0.87)",
        ),
        make(
            "cuda-tools-13-0",
            "13.0.2-1",
            "cuda-command-line-tools-13-0 (>= 13.0.2), cuda-nsight-compute-13-0 (>= 13.0.2)",
        ),
    ]


def of_ubuntu(release: str) -> list[Candidate]:
    """A toolkit as the Ubuntu archive has it: the same names and relations, versions of its own."""
    return [
        replace(c, version=c.version.replace("-1", "-0ubuntu1"), uri=ARCHIVE, origin="Ubuntu", component="multiverse")
        for c in toolkit(release)
    ]


def cudnn9(version: str, *majors: str) -> list[Candidate]:
    """cuDNN 9 for CUDA majors; headers in a package of their own from 9.10 on, which keep libcudnn8-dev out."""
    full, rows = f"{version}-1", []
    split = tuple(int(part) for part in version.split(".")[:2]) >= (9, 10)
    for major in majors:
        library, header = f"libcudnn9-cuda-{major}", f"libcudnn9-dev-cuda-{major}"
        needs = f"{library} (= {full})" + (f", libcudnn9-headers-cuda-{major} (= {full})" if split else "")
        rows += [
            make(library, full, "zlib1g", "libcudnn9", "libcudnn9"),
            make(header, full, needs, "libcudnn9-dev", "libcudnn9-dev"),
            make(f"cudnn9-cuda-{major}", full, f"{header} (= {full})"),
        ]
        if split:
            rows.append(
                make(
                    f"libcudnn9-headers-cuda-{major}", full, "", "libcudnn8-dev, libcudnn9-headers", "libcudnn9-headers"
                )
            )
    return rows


def cudnn8(*versions: str) -> list[Candidate]:
    rows = []
    for version in versions:
        rows += [make("libcudnn8", version), make("libcudnn8-dev", version, f"libcudnn8 (= {version})")]
    return rows


def nccl(*versions: str) -> list[Candidate]:
    rows = []
    for version in versions:
        rows += [make("libnccl2", version), make("libnccl-dev", version, f"libnccl2 (= {version})")]
    return rows


def available(*groups: list[Candidate]) -> Candidates:
    """Newest first, as aptquery answers; what is there twice once."""
    from provision.parts.cuda.packages import by_version

    packages: dict[str, dict[str, Candidate]] = {}
    for group in groups:
        for candidate in group:
            packages.setdefault(candidate.name, {})[candidate.version] = candidate
    return Candidates(
        {
            name: sorted(rows.values(), key=lambda c: by_version(c.version), reverse=True)
            for name, rows in packages.items()
        }
    )


LIBRARIES = [
    *cudnn8("8.9.6.50-1+cuda11.8", "8.9.7.29-1+cuda11.8", "8.9.6.50-1+cuda12.2", "8.9.7.29-1+cuda12.2"),
    *cudnn9("9.1.0.70", "11", "12"),
    *cudnn9("9.10.2.21", "11", "12"),
    *cudnn9("9.14.0.64", "12", "13"),
    *cudnn9("9.28.0.42", "12", "13"),
    *nccl(
        "2.15.5-1+cuda11.8",
        "2.16.5-1+cuda11.8",
        "2.21.5-1+cuda12.4",
        "2.25.1-1+cuda12.8",
        "2.27.3-1+cuda12.9",
        "2.28.3-1+cuda13.0",
        "2.30.7-1+cuda13.3",
    ),
]


def repository(*releases: str, libraries: list[Candidate] | None = None) -> Candidates:
    return available(
        *(toolkit(release) for release in releases if release != "13.0.2"),
        thirteen() if "13.0.2" in releases else [],
        LIBRARIES if libraries is None else libraries,
    )


CANDIDATES = {
    "jammy": repository(
        "11.7.1", "11.8.0", "12.2.2", "12.4.0", "12.4.1", "12.6.3", "12.8.1", "12.9.1", "13.0.2", "13.5.0"
    ),
    "noble": repository("12.5.1", "12.6.3", "12.8.1", "12.9.1", "13.0.2", "13.5.0"),
    "noble-951": repository("12.6.3", libraries=[*cudnn9("9.5.1.17", "12"), *cudnn9("9.14.0.64", "12")]),
    "resolute": repository("13.3.1", "13.5.0", libraries=[*cudnn9("9.28.0.42", "13"), *nccl("2.30.7-1+cuda13.3")]),
    "archive-13.1": available(of_ubuntu("13.1.1")),
    "old-12.4": repository("12.4.0"),
    "torn": available([c for c in toolkit("12.6.3") if c.name != "libcublas-dev-12-6"], LIBRARIES),
    "poisoned": available(
        [c for c in toolkit("12.6.3") if c.name != "cuda-tools-12-6"],
        [make("cuda-tools-12-6", "12.6.3-1", "cuda-drivers (>= 560)")],
    ),
    "thirteen-only": repository(
        "11.8.0", "12.4.1", "13.0.2", libraries=[*cudnn9("9.14.0.64", "13"), *nccl("2.28.3-1+cuda13.0")]
    ),
    "unreachable": Candidates({}, ["Failed to fetch http://mirror.test/compute/cuda/repos: no route to host"]),
}
