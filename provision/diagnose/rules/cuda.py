"""CUDA in userland: libraries that shadow others, compilers, links, shells, and what the driver can run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, driver_names
from provision.diagnose import queries
from provision.diagnose.candidates import apt
from provision.diagnose.checks import level_of, user, verdict
from provision.diagnose.finding import Level, Repair
from provision.diagnose.rule import Case, Found, rule
from provision.facts import Cuda, CudaLibrary, ShellLine
from provision.facts.diagnostics import Bundled
from provision.lib.findings import Check
from provision.parts.cuda import checks as cuda_checks
from provision.parts.cuda import library_checks
from provision.parts.cuda.packages import of_kind

_OWN_LINE = "remove these lines (ld.so.conf.d serves every program, cuda-select one shell)"


def exported(case: Case) -> dict[str, ShellLine]:
    """{folder: line} of everything that a start file puts into LD_LIBRARY_PATH or LD_PRELOAD."""
    found: dict[str, ShellLine] = {}
    for line in case.facts.cuda.shell_lines:
        if line.variable in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
            for path in line.paths:
                found.setdefault(path, line)
    return found


def _in_folder(case: Case, folder: str) -> list[CudaLibrary]:
    """Libraries in a folder of LD_LIBRARY_PATH, by the path or by what its links lead to."""
    links = {link.path: link.resolved for link in case.facts.cuda.links if link.resolved}
    real = next(
        (folder.replace(path, str(to), 1) for path, to in links.items() if (folder + "/").startswith(path + "/")),
        folder,
    )
    real = re.sub(r"/(?:lib64|targets/[^/]+/lib)$", "", real)
    return [
        row
        for row in case.facts.cuda.libraries
        if row.path.rpartition("/")[0] == folder
        or (real.startswith("/usr/local/cuda-") and (row.target or "").startswith(real + "/"))
    ]


def shadows(case: Case) -> Iterator[tuple[ShellLine, CudaLibrary, Bundled]]:
    """(line, library that it brings first, library of a Python environment that is not found because of it)."""
    bundled: dict[str, list[Bundled]] = {}
    for row in user(case).bundled:
        bundled.setdefault(row.soname, []).append(row)
    for other in case.facts.cuda.libraries:
        # Of toolkits several may be there, and a shell chooses one; cuDNN and NCCL of a package are for everybody.
        if other.package and re.match(r"^lib(?:cudnn|nccl)", other.soname):
            own = Bundled(
                environment=f"package {other.package}", soname=other.soname, path=other.path, version=other.version
            )
            bundled.setdefault(other.soname, []).append(own)
    for folder, line in exported(case).items():
        for library in _in_folder(case, folder):
            for row in bundled.get(library.soname, ()):
                if row.path != library.path and not (row.version and row.version == library.version):
                    yield line, library, row


def _older(library: CudaLibrary, row: Bundled) -> bool:
    """True where the system's library is older than the environment's: symbols that it asks for are missing."""
    have = library.version or ""
    folder = re.match(r"^/usr/local/cuda-([0-9.]+)/", library.target or "")
    # The minor of the toolkit says more than a soname's version: libnvJitLink.so.12 has none in its name before 12.4.
    have = folder[1] if folder and have.count(".") < 1 else have
    if not row.version or not have:
        return False
    size = min(have.count("."), row.version.count(".")) + 1
    short = [".".join(text.split(".")[:size]) for text in (have, row.version)]
    try:
        return bool(deb_version.compare(short[0], short[1]) < 0)
    except ValueError:
        return False


@rule("cuda.shadowed_library")
def _shadowed(case: Case) -> Iterator[Found]:
    yield from shadowing(case, cudnn=False)


def shadowing(case: Case, cudnn: bool) -> Iterator[Found]:
    """One finding for all libraries of a kind; with a Python environment that is hit, or for the lines alone."""
    hits = [hit for hit in shadows(case) if ("cudnn" in hit[1].soname) is cudnn]
    lines = list(dict.fromkeys(_place(line) for line, _, _ in hits))
    if hits:
        worst = [hit for hit in hits if _older(hit[1], hit[2]) and not hit[2].environment.startswith("package ")]
        line, library, row = (worst or hits)[0]
        evidence = lines + [
            f"{one.soname}: {one.path} ({one.version or '?'}) is found before {other.path} ({other.version or '?'})"
            for _, one, other in worst + [hit for hit in hits if hit not in worst]
        ]
        yield Found(
            f"{library.soname} of {row.environment} is shadowed by {library.path}",
            evidence,
            queries.manual(f"{_OWN_LINE}: {', '.join(lines[:3])}"),
            level="error" if worst else "warning",
        )
        return
    kinds, _ = cuda_checks.sorted_lines(case.facts, case.expect.cuda)
    of_cudnn = {
        _place(line)
        for line in case.facts.cuda.shell_lines
        if any(re.search(r"cudnn", path, re.I) for path in line.paths)
    }
    of_cudnn |= {_place(line) for line, library, _ in shadows(case) if "cudnn" in library.soname}
    shown = [text for text in kinds.get("shadowing", ()) if (text in of_cudnn) is cudnn]
    if shown:
        yield Found(
            "LD_LIBRARY_PATH puts CUDA's libraries before those that frameworks bring",
            shown,
            queries.manual(_OWN_LINE),
            level="warning",
        )


def _place(line: ShellLine) -> str:
    return f"{line.file} line {line.line}: {line.text}"


@rule("cuda.unowned_library")
def _unowned_first(case: Case) -> Iterator[Found]:
    said = verdict(case, library_checks.libraries)
    if level_of(said) and not library_checks.false_links(case.facts) and " is found before " in said.message:
        yield Found(said.message, said.evidence, queries.manual(said.way_out), level=level_of(said))


@rule("cuda.false_link")
def _false_link(case: Case) -> Iterator[Found]:
    rows = library_checks.false_links(case.facts)
    if rows:
        paths = [row.path for row in rows]
        yield Found(
            f"{paths[0]} is a link by hand to version {rows[0].version}",
            [f"{row.path} -> {row.target} ({row.version}), of no package" for row in rows],
            Repair(action="file.aside", words=f"move {', '.join(paths)} aside", args={"paths": paths}),
        )
    links = [(env, link) for env in case.facts.conda.environments for link in env.cudart_links]
    if links:
        yield Found(
            f"{len(links)} links of libcudart in conda environments lead to another version than their name says",
            [f"{link.path} leads {'to ' + link.target if link.target else 'nowhere'}" for _, link in links],
            queries.manual(f"remove {links[0][1].path} and install the cudatoolkit that the program asks for"),
            level="warning",
        )


@rule("cuda.loader_blind")
def _loader_blind(case: Case) -> Iterator[Found]:
    cuda = case.facts.cuda
    in_path = {row.path for folder in exported(case) for row in _in_folder(case, folder)}
    groups: dict[str, list[CudaLibrary]] = {}
    for row in cuda.libraries:
        # forward compatibility is not to be found by everybody
        if row.soname != "libcuda.so.1":
            groups.setdefault(row.soname, []).append(row)
    blind: dict[str, list[str]] = {}
    for toolkit in cuda.toolkits:
        for soname, rows in groups.items():
            own = [row for row in rows if (row.target or "").startswith(toolkit.path + "/")]
            if own and all(row.in_cache is False for row in rows) and not any(row.path in in_path for row in rows):
                blind.setdefault(toolkit.path, []).append(soname)
    for path, sonames in blind.items():
        yield Found(
            f"the loader does not find the libraries of {path}",
            [f"{soname}: in {path}, not in /etc/ld.so.cache" for soname in sonames],
            queries.apply("write ld.so.conf.d for the toolkits and run ldconfig", "cuda")
            if case.values.get("cuda_toolkit_versions")
            else queries.manual(
                f"echo {path}/lib64 > /etc/ld.so.conf.d/cuda.conf, then ldconfig; or an rpath when programs are built"
            ),
            # Programs that were built with an rpath, and Python's wheels, do not care.
            level="warning" if case.values.get("cuda_toolkit_versions") else "note",
        )
        return


@rule("cuda.loader_dead")
def _loader_dead(case: Case) -> Iterator[Found]:
    if rows := library_checks.loader_gone(case.facts):
        yield Found(
            library_checks.gone_text(rows),
            [row.place for row in rows],
            queries.manual(f"remove the line from {rows[0].file} (or install again what it was for), then ldconfig"),
        )


@rule("shell.cards_hidden")
def _cards_hidden(case: Case) -> Iterator[Found]:
    rows = user(case).hidden_cards
    if rows and queries.own_gpus(case) and not queries.in_container(case):
        yield Found(
            f"{rows[0].file} line {rows[0].line} hides cards from every program: {rows[0].text}",
            [row.place for row in rows],
            queries.manual(
                f"remove the line from {rows[0].file}; sessions and services that run keep it until they restart"
            ),
        )


@rule("cuda.nvcc_differs")
def _nvcc(case: Case) -> Iterator[Found]:
    said = verdict(case, cuda_checks.nvccs)
    level = level_of(said)
    if level and _in_the_way(verdict(case, cuda_checks.links)):
        # no toolkit can be made the default before that is mended
        return
    if level:
        repair = _repair(case, said.way_out)
        if repair.action == "apply":
            # What is in the way may stay: the roles put the managed one before it.
            repair = queries.apply("put /usr/local/cuda/bin first on the PATH of every login", "cuda")
        yield Found(said.message, said.evidence, repair, level=level)
        return
    first = next((row for row in case.facts.cuda.nvccs if row.on_path), None)
    others = [row for row in case.facts.cuda.nvccs if (row.target or "").startswith("/usr/local/cuda") and row.version]
    if (
        first
        and (first.package or "").startswith("nvidia-cuda-toolkit")
        and others
        and all(row.version != first.version for row in others)
    ):
        yield Found(
            f"nvcc is Ubuntu's {first.version} at a login, and NVIDIA's {others[0].version} is in {others[0].path}",
            said.evidence,
            queries.manual(
                "put /usr/local/cuda/bin before /usr/bin on the PATH, or apt-get remove nvidia-cuda-toolkit"
            ),
            level="warning",
        )


def _repair(case: Case, hint: str) -> Repair:
    """What the inventory asks for is for the roles; all else is a person's."""
    return (
        queries.apply(hint, "cuda")
        if case.values.get("cuda_toolkit_versions") and "provision apply" in hint
        else queries.manual(hint)
    )


def _in_the_way(said: Check) -> bool:
    """True for a verdict on the link that found a folder or a file in its place."""
    return level_of(said) == "error" and said.message.endswith("not a link")


@rule("cuda.link")
def _link(case: Case) -> Iterator[Found]:
    said = verdict(case, cuda_checks.links)
    level = level_of(said)
    if level:
        # What is in a folder that stands in the link's place only a person knows.
        repair = queries.manual(said.way_out) if _in_the_way(said) else _repair(case, said.way_out)
        yield Found(said.message, said.evidence, repair, level=level)
        return
    group = next((row for row in case.facts.cuda.alternatives if row.name == "cuda"), None)
    link = next((row for row in case.facts.cuda.links if row.path == cuda_checks.LINK), None)
    several = [row for row in case.facts.cuda.toolkits if row.path != cuda_checks.LINK and row.version]
    if link is None or len(several) < 2:
        return
    if group and group.manual:
        # somebody chose it
        return
    leads = "is a folder" if link.kind == "directory" else f"leads to {link.resolved or 'nothing'}"
    how = (
        "alternative cuda: auto, the next toolkit moves it"
        if group
        else "not managed by update-alternatives: the next installation moves it"
    )
    yield Found(
        f"/usr/local/cuda {leads}, of {len(several)} toolkits, and the next one that is installed may move it",
        [
            f"/usr/local/cuda: {link.kind} -> {link.resolved or 'nothing'}",
            how,
            *(f"{row.path}: CUDA {row.release or row.version}" for row in several),
        ],
        queries.manual(
            "choose one for good: update-alternatives --set cuda /usr/local/cuda-X.Y, or cuda_toolkit_default in the inventory"
        ),
        level="note",
    )


@rule("shell.cuda_lines")
def _lines(case: Case) -> Iterator[Found]:
    kinds, _ = cuda_checks.sorted_lines(case.facts, case.expect.cuda)
    lines = [text for kind in ("doubled", "frozen", "stale", "elsewhere") for text in kinds.get(kind, ())]
    if lines:
        counts = ", ".join(
            f"{len(kinds[kind])} {kind}" for kind in ("doubled", "frozen", "stale", "elsewhere") if kinds.get(kind)
        )
        files = list(dict.fromkeys(text.split(" line ")[0] for text in lines))
        yield Found(
            f"lines about CUDA in start files are in the way: {counts}",
            lines,
            queries.manual(
                f"remove them from {', '.join(files[:3])}{' and others' if len(files) > 3 else ''}; "
                "a file in /etc/profile.d serves every login"
            ),
        )


@rule("cuda.driver_too_old")
def _driver_too_old(case: Case) -> Iterator[Found]:
    want = case.expect.cuda
    rows = cuda_checks.too_new(case.facts, want)
    have = cuda_checks.effective_driver(case.facts)
    if rows:
        minor, least = rows[0]
        wanted = case.driver_managed and minor in want.versions
        yield Found(
            f"driver {have} cannot run CUDA {minor}",
            [f"driver {have}", *(f"CUDA {minor} needs {least} or newer" for minor, least in rows)],
            queries.apply(f"a driver from {least} on", "driver")
            if wanted
            else queries.manual(
                f"a driver from {least} on, or a toolkit that {have} runs (provision compat --driver {have})"
            ),
            level="error" if minor in want.versions else "warning",
        )


@rule("cuda.minor_compat_only")
def _minor_only(case: Case) -> Iterator[Found]:
    want = case.expect.cuda
    limited = cuda_checks.limited_toolkits(case.facts, want)
    old = {minor for minor, _ in cuda_checks.too_new(case.facts, want)}
    left = [minor for minor in limited if minor not in old]
    if left:
        have = cuda_checks.effective_driver(case.facts)
        yield Found(
            f"CUDA {', '.join(left)} runs on driver {have} by minor-version compatibility only",
            [f"CUDA {minor}: {want.needs[minor].full} runs all of it" for minor in left],
            queries.manual("build for the cards themselves (nvcc -arch=native); PTX needs the newer driver"),
        )


@rule("cuda.compat_library")
def _compat(case: Case) -> Iterator[Found]:
    active = cuda_checks.active_compat(case.facts)
    consumer = [gpu.name for gpu in case.facts.smi.gpus if cuda_checks.is_consumer(gpu.name)]
    consumer = consumer or [
        found.name
        for gpu in queries.own_gpus(case)
        for found in [queries.catalog_gpu(case, gpu)]
        if found.name and cuda_checks.is_consumer(found.name)
    ]
    version = cuda_checks.driver_version(case.facts)
    packages = sorted(
        name for name, row in case.facts.packages.items() if row.installed and name.startswith("cuda-compat")
    )
    if active and consumer:
        level: Level = "error"
        message = f"{active[0].path} replaces the driver's libcuda; {consumer[0]} has no forward compatibility"
    elif active and version and active[0].version and deb_version.compare(active[0].version, version) < 0:
        level, message = ("warning", f"{active[0].path} is older than the driver and found before its libcuda")
    elif packages and consumer:
        level, message = "note", f"{packages[0]} is installed, and {consumer[0]} has no forward compatibility"
    else:
        return
    evidence = [f"{row.path}: libcuda {row.version or '?'}, package {row.package or 'none'}" for row in active]
    evidence += [f"{name} {case.facts.packages[name].version}" for name in packages] + [
        f"driver {version or 'not loaded'}"
    ]
    owned = [row.package for row in active if row.package] if active else packages
    yield Found(
        message,
        evidence,
        queries.manual(
            f"apt-get remove {owned[0]}" if owned else "remove its folder from LD_LIBRARY_PATH and /etc/ld.so.conf.d"
        ),
        level=level,
    )


@rule("cuda.meta_pulls_driver")
def _meta(case: Case) -> Iterator[Found]:
    metas = of_kind(case.facts.packages, "meta_with_driver")
    replaced = []
    for row in apt(case).transactions:
        gone = [
            change.name
            for change in row.changes
            if change.action in ("remove", "purge") and driver_names.is_driver_package(change.name)
        ]
        came = [change.name for change in row.changes if change.action == "install" and change.name in metas]
        if gone and came:
            replaced.append(f"{row.title}: {came[0]} came, {', '.join(gone[:4])} went")
    if not metas:
        return
    server = any((parsed := driver_names.parse(name)) and parsed.server for name in queries.installed(case).packages)
    message = f"{metas[0]} installs its own driver"
    if replaced:
        message = f"{metas[0]} replaced the driver"
    elif server:
        message += ", which the -server packages here conflict with"
    yield Found(
        message,
        [f"installed: {', '.join(metas)}", *replaced],
        queries.manual(f"apt-mark manual the cuda-toolkit-X-Y to keep, then apt-get remove {' '.join(metas)}"),
        # Where the owner keeps the driver by it, it is a way to do so.
        level="warning" if case.driver_managed else "note",
    )


@rule("cuda.files_gone")
def _gutted(case: Case) -> Iterator[Found]:
    if case.facts.cuda == Cuda():
        # facts that were recorded before CUDA was read
        return
    said = verdict(case, cuda_checks.toolkits)
    if level_of(said) == "error" and said.message.startswith("files of packages are gone"):
        yield Found(said.message, said.evidence, queries.manual(said.way_out))
