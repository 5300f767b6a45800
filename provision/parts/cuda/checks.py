"""The checks of CUDA in userland, by facts alone: toolkits, nvcc, links, shells, holds. Libraries: library_checks.

Where the inventory asks for nothing (``expect.cuda.manage``), checks that compare with it have nothing to say, and those
that find damage still look.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Protocol

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, deb_version
from provision.facts import CudaLibrary, Facts, Package, ShellLine
from provision.lib.findings import Check
from provision.parts.check import CudaExpect, Expect, check, failed, passed, skipped, warned
from provision.parts.cuda.packages import installed_channels, of_channels, of_kind, purge, shared_from

LINK = "/usr/local/cuda"
# Forward compatibility is for data-center cards (source: NVIDIA's CUDA compatibility guide).
_CONSUMER = re.compile(r"GeForce|TITAN", re.I)


class Owned(Protocol):
    """A file that the probe found, and what it belongs to."""

    @property
    def path(self) -> str: ...
    @property
    def version(self) -> str | None: ...
    @property
    def package(self) -> str | None: ...


def installed(facts: Facts) -> dict[str, Package]:
    """Packages of which files are on the disk, by name."""
    return {name: package for name, package in facts.packages.items() if package.there}


def owner(row: Owned) -> str:
    """Who a file belongs to, as text."""
    if getattr(row, "environment", None):
        return "of a conda environment"
    return f"package {row.package}" if row.package else "of no package"


def folder_of(version: str) -> str:
    """Where NVIDIA's packages put a toolkit."""
    return f"/usr/local/cuda-{version}"


def default_folder(facts: Facts, want: CudaExpect) -> str | None:
    """The toolkit that programs and shells should get by default: the wanted one, else what the link leads to."""
    if want.default:
        return folder_of(want.default)
    return next((link.resolved for link in facts.cuda.links if link.path == LINK), None)


def _older(version: str, than: str) -> bool:
    return bool(deb_version.compare(version, than) < 0)


def fits(version: str, wanted: str) -> bool:
    """9.14.0 and 9.14.0.64 agree: the shorter one says less."""
    short, long = sorted((version, wanted), key=len)
    return f"{long}.".startswith(f"{short}.")


# --- toolkits, compilers, links ----------------------------------------------------------------------------


@check("cuda.toolkits")
def toolkits(facts: Facts, expect: Expect) -> Check:
    """Every requested toolkit is installed, complete and from apt; no file of a package is missing."""
    want, rows, here = expect.cuda, facts.cuda.toolkits, installed(facts)
    have = {row.version: row for row in rows if row.path != LINK}
    evidence = []
    for row in rows:
        extra = ", not in the inventory" if want.manage and row.version not in want.versions else ""
        evidence.append(f"{row.path}: CUDA {row.release or row.version or '?'}, {owner(row)}{extra}")
    empty = gutted(
        here,
        [version for version, row in have.items() if row.compiler],
        [version for version, row in have.items() if row.runtime],
    )
    if empty:
        folder = folder_of(empty[0])
        return failed(f"files of packages are gone from {folder}", evidence, put_back(folder))
    missing = [version for version in want.versions if version not in have]
    if missing:
        return failed(f"CUDA {', '.join(missing)} is not there", evidence, "provision apply installs it")
    absent = [name for name in want.names if name not in here]
    if absent:
        return failed(f"missing packages: {len(absent)}", absent[:12] + evidence, "provision apply installs them")
    bare = [version for version in want.versions if not have[version].compiler]
    if bare and want.profile != "runtime":
        return failed(
            f"CUDA {', '.join(bare)} has no compiler",
            evidence,
            f"provision apply installs what cuda_toolkit_profile: {want.profile} has",
        )
    foreign = [have[version] for version in want.versions if have[version].package is None]
    if foreign:
        tool, path = foreign[0].uninstaller, foreign[0].path
        way = f"remove it with {tool}" if tool else f"move {path} away"
        return warned(
            f"{path} is of no package: no update reaches it",
            evidence,
            f"{way}, then provision apply installs it from apt",
        )
    if not rows:
        return skipped("no CUDA toolkit")
    return passed(", ".join(f"CUDA {row.release or row.version or '?'}" for row in rows), evidence)


@check("cuda.origin")
def origin(facts: Facts, expect: Expect) -> Check:
    """Every toolkit that apt brought is of one origin: NVIDIA's repository or the Ubuntu archive."""
    found = installed_channels(facts.packages)
    evidence = [f"CUDA {version} is from {of_channels(channel)}" for version, channel in found.items()]
    mixed = [version for version, channel in found.items() if "," in channel]
    if mixed:
        return failed(
            f"parts of CUDA {', '.join(mixed)} are from the Ubuntu archive and others from NVIDIA's repository",
            evidence,
            f"{purge(mixed)}, then provision apply installs it from one of the two",
        )
    if len(set(found.values())) > 1:
        return warned(
            "toolkits are from the Ubuntu archive and from NVIDIA's repository: they share packages of the same names",
            evidence,
            "cuda_toolkit_channel says which of the two; cuda_toolkit_prune: true removes toolkits that are not listed",
        )
    if not found:
        return skipped("no toolkit of apt's")
    shared = shared_from(facts.packages, next(iter(found.values())))
    if shared:
        return warned(
            f"the toolkits are from {of_channels(next(iter(found.values())))}, and packages that they share are not",
            [f"{name} {facts.packages[name].version}" for name in shared],
            "provision apply brings them from one of the two",
        )
    return passed(f"CUDA {', '.join(found)} from {of_channels(next(iter(found.values())))}")


def gutted(
    names: Iterable[str], with_compiler: Collection[str | None], with_runtime: Collection[str | None]
) -> list[str]:
    """Toolkits ("12.4") whose packages dpkg has and whose files somebody deleted, oldest first.

    names: of installed packages. with_compiler, with_runtime: the toolkits whose nvcc, whose libcudart is on the disk.
    """
    need = {"cuda-nvcc": with_compiler, "cuda-cudart": with_runtime}
    found = {
        str(package.version)
        for package in map(cuda_names.parse, names)
        if package and package.version and package.base in need and package.version not in need[package.base]
    }
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def put_back(folder: str) -> str:
    """A command that has apt unpack again what dpkg knows of a folder."""
    return (
        f"put them back: dpkg -S {folder} | sed 's/: .*//; s/,//g' | xargs dpkg-query -W -f '${{Package}}=${{Version}} '"
        " | xargs apt-get install -y --reinstall"
    )


@check("cuda.nvcc")
def nvccs(facts: Facts, expect: Expect) -> Check:
    """The nvcc that a login finds is the wanted default; every other one is named."""
    want, found = expect.cuda, facts.cuda.nvccs
    evidence = [
        f"{row.path}: {row.build or row.version or 'version not known'}, {owner(row)}"
        f"{', on the PATH of a login' if row.on_path else ''}"
        for row in found
    ]
    first = next((row for row in found if row.on_path), None)
    asked = want.manage and want.default and want.profile != "runtime"
    if asked and want.environment and not first:
        return failed(
            "no nvcc is on the PATH of a login",
            evidence,
            "provision apply writes /etc/profile.d/gpu-provision-cuda.sh; then log in again",
        )
    if asked and first and first.version != want.default:
        hint = "see cuda.link and cuda.environment: what comes before /usr/local/cuda/bin on the PATH has to go"
        if (first.package or "").startswith("nvidia-cuda-toolkit"):
            hint = "apt-get remove nvidia-cuda-toolkit, or let provision apply put /usr/local/cuda/bin before it"
        if want.environment:
            return failed(f"nvcc is {first.version or '?'} at a login, wanted is {want.default}", evidence, hint)
        return warned(f"nvcc is {first.version or '?'} at a login, the default is {want.default}", evidence, hint)
    if not found:
        return skipped("no nvcc")
    folder = default_folder(facts, want)
    linked = next((row for row in found if folder and (row.target or "").startswith(f"{folder}/")), None)
    if not asked and first and linked and first.version != linked.version:
        return warned(
            f"nvcc is {first.version or '?'} at a login, /usr/local/cuda has {linked.version}",
            evidence,
            "programs are built with one and find the other: put /usr/local/cuda/bin first, or remove"
            f" {first.package or first.path}",
        )
    if not first:
        return passed(f"{len(found)}, none on the PATH of a login", evidence)
    return passed(f"{first.build or first.version or '?'} at a login", evidence)


@check("cuda.link")
def links(facts: Facts, expect: Expect) -> Check:
    """/usr/local/cuda and /usr/local/cuda-NN lead to the wanted toolkits, and stay when another one is installed."""
    want, rows = expect.cuda, {row.path: row for row in facts.cuda.links}
    group = next((row for row in facts.cuda.alternatives if row.name == "cuda"), None)
    evidence = [
        f"{row.path}: {row.target} -> {row.resolved or 'nothing'}" if row.kind == "link" else f"{row.path}: {row.kind}"
        for row in facts.cuda.links
    ]
    if group:
        evidence.append(f"alternative cuda: {'manual' if group.manual else 'auto, the newest wins'}")
    own = rows.get(LINK)
    if not want.manage or not want.default:
        dead = [path for path, row in rows.items() if row.kind == "link" and not row.resolved]
        if dead:
            name = dead[0].rsplit("/", 1)[-1]
            return warned(
                f"{dead[0]} leads nowhere",
                evidence,
                f"update-alternatives --auto {name}, or rm {dead[0]} where no toolkit is left",
            )
        if not own:
            return skipped("no /usr/local/cuda", evidence)
        return passed(own.resolved or LINK, evidence)
    if own and own.kind != "link":
        return failed(
            f"/usr/local/cuda is a {own.kind}, not a link",
            evidence,
            "check its content, move it away (mv /usr/local/cuda /usr/local/cuda-old), provision apply",
        )
    wanted = folder_of(want.default)
    if not own or own.resolved != wanted:
        return failed(
            f"/usr/local/cuda leads to {own and own.resolved or 'nothing'}, wanted is {wanted}",
            evidence,
            f"provision apply sets it; by hand: update-alternatives --set cuda {wanted}",
        )
    for path, row in sorted(rows.items()):
        major = path.rpartition("-")[2]
        mine = [folder_of(version) for version in want.versions if version.split(".")[0] == major]
        mine = [wanted] if wanted in mine else mine
        if mine and row.resolved not in mine:
            return failed(
                f"{path} leads to {row.resolved or 'nothing'}, wanted is {mine[0]}",
                evidence,
                f"provision apply sets it; by hand: update-alternatives --set cuda-{major} {mine[0]}",
            )
    if group is None or not group.manual:
        return warned(
            "the next toolkit that is installed moves /usr/local/cuda",
            evidence,
            f"provision apply fixes it; by hand: update-alternatives --set cuda {wanted}",
        )
    return passed(wanted, evidence)


def driver_version(facts: Facts) -> str | None:
    """Version of the loaded driver, or None."""
    return facts.module.loaded.version if facts.module.loaded else None


def is_consumer(name: str) -> bool:
    """True for cards without forward compatibility, by nvidia-smi's name."""
    return bool(_CONSUMER.search(name))


def active_compat(facts: Facts) -> list[CudaLibrary]:
    """Rows of cuda-compat's libcuda that programs find in place of the driver's."""
    lines = facts.cuda.shell_lines
    named = {path for line in lines if line.variable == "LD_LIBRARY_PATH" for path in line.paths}
    return [
        row
        for row in facts.cuda.libraries
        if row.soname == "libcuda.so.1" and (row.in_cache or row.path.rpartition("/")[0] in named)
    ]


def effective_driver(facts: Facts) -> str | None:
    """Version of the libcuda that programs get: cuda-compat's where it is found first, else the loaded driver's."""
    active = active_compat(facts)
    return active[0].version if active and active[0].version else driver_version(facts)


def judged_toolkits(facts: Facts, want: CudaExpect) -> list[str]:
    """Minors of toolkits, there or asked for, whose driver is known."""
    found = {row.version for row in facts.cuda.toolkits} | set(want.versions)
    return [minor for minor in sorted(want.needs, key=deb_version.natural_key) if minor in found]


def too_new(facts: Facts, want: CudaExpect) -> list[tuple[str, str]]:
    """[(minor, oldest driver)] of toolkits that the driver cannot run at all."""
    have = effective_driver(facts)
    needs = ((minor, want.needs[minor].minimum) for minor in judged_toolkits(facts, want))
    return [(minor, least) for minor, least in needs if have and least and _older(have, least)]


def limited_toolkits(facts: Facts, want: CudaExpect) -> list[str]:
    """Minors that run by minor-version compatibility only: without PTX."""
    have = effective_driver(facts)
    needs = ((minor, want.needs[minor].full) for minor in judged_toolkits(facts, want))
    return [minor for minor, full in needs if have and full and _older(have, full)]


@check("cuda.driver")
def driver(facts: Facts, expect: Expect) -> Check:
    """The driver runs every toolkit, and nothing that came with a toolkit takes the driver's place."""
    want, version, effective = expect.cuda, driver_version(facts), effective_driver(facts)
    metas, active, judged = (
        of_kind(facts.packages, "meta_with_driver"),
        active_compat(facts),
        judged_toolkits(facts, expect.cuda),
    )
    consumer = [gpu.name for gpu in facts.smi.gpus if is_consumer(gpu.name)]
    evidence = [f"driver {version}"] if version else []
    evidence += [
        f"{row.path}: libcuda {row.version}, {owner(row)}{'' if row in active else ', not found by programs'}"
        for row in facts.cuda.libraries
        if row.soname == "libcuda.so.1"
    ]
    if active and consumer:
        return failed(
            f"{active[0].path} replaces the driver's libcuda",
            evidence,
            f"{consumer[0]} has no forward compatibility (error 804): take that folder from the loader's path, "
            f"apt-get remove {active[0].package or 'it'}",
        )
    if active and version and active[0].version and _older(active[0].version, version):
        return warned(
            f"{active[0].path} is older than the driver and found before its libcuda",
            evidence,
            "take its folder from the loader's path: forward compatibility is for older drivers",
        )
    for minor, least in too_new(facts, want):
        return failed(
            f"driver {effective} cannot run CUDA {minor}",
            evidence,
            f"it takes {least} or newer: provision compat --cuda {minor} tells which drivers do",
        )
    limited = limited_toolkits(facts, want)
    if limited:
        return warned(
            f"CUDA {', '.join(limited)} runs on driver {effective} by minor-version compatibility only",
            evidence,
            "PTX of it does not run: build for the cards themselves (nvcc -arch=native), or take driver"
            f" {want.needs[limited[-1]].full} or newer",
        )
    if metas and (want.manage or expect.driver.manage):
        return warned(
            f"{metas[0]} moves the driver along with the toolkit",
            [*evidence, f"installed: {', '.join(metas)}"],
            f"apt-mark manual the cuda-toolkit-X-Y to keep, then apt-get remove {' '.join(metas)}",
        )
    if not version:
        return skipped("no driver is loaded", evidence)
    if not judged:
        return skipped("no toolkit to compare with", evidence)
    return passed(f"driver {version} runs CUDA {', '.join(judged)}", evidence)


# --- shells, holds ------------------------------------------------------------------------------------------


def is_everybodys(line: ShellLine) -> bool:
    """True for a line of a file that every user's shell reads; what new users get (/etc/skel) is theirs."""
    return line.file.startswith("/etc/") and not line.file.startswith("/etc/skel/")


def sorted_lines(facts: Facts, want: CudaExpect) -> tuple[dict[str, list[str]], list[str]]:
    """({kind: [texts]}, [texts of harmless lines]) of people's lines about CUDA in start files of shells.

    Kinds: shadowing (libraries before those of frameworks), elsewhere (another toolkit than the default first), stale
    (folders that are gone), doubled, frozen (a PATH without its old value).
    """
    links_to = {row.path: row.resolved for row in facts.cuda.links}
    default = default_folder(facts, want)
    known = {row.path: row.version for row in facts.cuda.toolkits}
    seen: dict[tuple[object, ...], int] = {}
    bad: dict[str, list[str]] = {}
    quiet: list[str] = []
    for line in facts.cuda.shell_lines:
        where = f"{line.file} line {line.line}: {line.text}"
        key = (line.file, line.variable, tuple(line.paths), line.replaces)
        others = sorted(
            path for path in {_toolkit_of(path, links_to) for path in line.front} - {default} if path in known
        )
        if line.missing:
            bad.setdefault("stale", []).append(f"{where} ({', '.join(line.missing)} is not there)")
        elif line.paths and key in seen:
            bad.setdefault("doubled", []).append(f"{where} (as line {seen[key]})")
        elif line.variable == "PATH" and line.replaces and _is_script(line.file):
            bad.setdefault("frozen", []).append(f"{where} (drops what others put on the PATH)")
        elif line.variable in ("LD_LIBRARY_PATH", "LD_PRELOAD") and line.paths:
            bad.setdefault("shadowing", []).append(where)
        elif line.variable == "PATH" and others and default in known and is_everybodys(line):
            shown = f"{where} (CUDA {known[others[0]]}, the default is {known[default]})"
            bad.setdefault("elsewhere", []).append(shown)
        else:
            quiet.append(where)
        seen.setdefault(key, line.line)
    return bad, quiet


@check("cuda.environment")
def environment(facts: Facts, expect: Expect) -> Check:
    """No line that somebody wrote into a start file of shells is stale, doubled, or hides what others need."""
    if not facts.cuda.shell_lines:
        return (passed if facts.cuda.toolkits else skipped)("no line about CUDA in start files")
    bad, quiet = sorted_lines(facts, expect.cuda)
    evidence = [text for kind in ("shadowing", "elsewhere", "stale", "doubled", "frozen") for text in bad.get(kind, [])]
    if bad.get("shadowing"):
        count = len(bad["shadowing"])
        return warned(
            f"LD_LIBRARY_PATH puts CUDA before the libraries that frameworks bring ({count} lines)",
            evidence,
            "remove LD_LIBRARY_PATH from them: ld.so.conf.d serves every program, cuda-select one shell",
        )
    if bad.get("elsewhere"):
        return warned(
            f"another toolkit than the default comes first on the PATH ({len(bad['elsewhere'])} lines)",
            evidence,
            "remove them: /usr/local/cuda/bin follows the default, cuda-select changes one shell",
        )
    if bad:
        return warned(
            f"stale or doubled lines about CUDA: {len(evidence)}",
            evidence,
            "remove them from these files; what a login needs is in /etc/profile.d/gpu-provision-cuda.sh",
        )
    return passed(f"none in the way ({len(quiet)} about CUDA)", quiet[:12])


def _is_script(file: str) -> bool:
    return not file.startswith("/etc/environment") and not file.endswith((".conf", ".pam_environment"))


def _toolkit_of(path: str, links_to: dict[str, str | None]) -> str | None:
    """Folder of the toolkit that a folder belongs to, links followed."""
    for link, resolved in links_to.items():
        if path == link or path.startswith(f"{link}/"):
            return resolved
    match = re.match(r"^(/usr/local/cuda-[0-9.]+)(?:/|$)", path)
    return match.group(1) if match else None


@check("cuda.hold")
def held(facts: Facts, expect: Expect) -> Check:
    """Every package of the wanted toolkits, cuDNN and NCCL is held; no hold is left on one that is gone."""
    want, here = expect.cuda, installed(facts)
    stale = sorted(
        name
        for name, package in facts.packages.items()
        if package.held and not package.there and cuda_names.is_cuda_package(name)
    )
    loose = [name for name in want.names if name in here and not here[name].held]
    if want.hold and loose:
        return failed(
            f"{len(loose)} of {len(want.names)} packages of CUDA are not held",
            loose[:12],
            "an update can move them: provision apply holds them",
        )
    if stale:
        return warned(
            f"{len(stale)} holds on packages of CUDA that are not installed",
            stale[:12],
            f"later installs fail with 'held broken packages': apt-mark unhold {' '.join(stale[:6])}",
        )
    if not want.hold or not want.names:
        return skipped("no hold is asked for")
    return passed(f"all {len(want.names)} held")


CHECKS = (toolkits, origin, nvccs, links, driver, environment, held)
