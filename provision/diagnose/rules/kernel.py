"""A module for every kernel that matters: headers, DKMS builds, prebuilt packages, versions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, driver_names
from provision.catalog import Branch
from provision.diagnose import queries
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule
from provision.facts.diagnostics import DkmsTree


def _bare_kernels(case: Case) -> list[str]:
    """Kernels that run or boot next and have no nvidia module, where a driver is to be."""
    if not queries.own_gpus(case) or not queries.has_driver(case) or queries.brought_in(case):
        return []
    return [kernel for kernel in queries.kernels_that_matter(case) if not queries.modules_of(case, kernel)]


def _which(case: Case, kernel: str) -> str:
    kernels = case.facts.kernels
    if kernel == kernels.running:
        return "runs"
    return "boots next" if kernel == kernels.next else "installed"


def _have(case: Case) -> list[str]:
    """Evidence: which kernels have a module."""
    rows = [
        f"{module.path}: {module.version or 'no version'}, for {module.kernel}" for module in case.facts.module.on_disk
    ]
    return rows[:4] or ["no kernel has an nvidia module"]


def _tree(case: Case) -> DkmsTree | None:
    """The DKMS tree of the installed driver; of any driver where the packages do not say."""
    trees = queries.boot(case).dkms
    version = queries.installed(case).version or queries.library_version(case)
    return next((tree for tree in trees if tree.version == version), trees[-1] if trees else None)


def _failed_build(case: Case, kernel: str) -> DkmsTree | None:
    """The tree whose last build was for this kernel and did not end well."""
    for tree in queries.boot(case).dkms:
        done = {build.kernel for build in tree.builds}
        if tree.make_log and tree.make_error and tree.make_kernel == kernel and kernel not in done:
            return tree
    return None


def _kernels_in_the_way(case: Case) -> list[str]:
    """Kernels that neither run nor boot next, and whose failed build keeps dpkg from configuring their packages."""
    if not case.facts.package_problems or not queries.own_gpus(case):
        return []
    present = {kernel.release for kernel in case.facts.kernels.installed}
    have = {module.kernel for module in case.facts.module.on_disk}
    return [
        tree.make_kernel for tree in queries.boot(case).dkms if tree.make_kernel in present - have and tree.make_kernel
    ]


def _dkms(case: Case) -> bool:
    return queries.driver_origin(case) == "dkms"


# --- headers -----------------------------------------------------------------------------------------------------


@rule("kernel.headers_missing")
def _headers_missing(case: Case) -> Iterator[Found]:
    if not _dkms(case):
        return
    bare = [
        kernel
        for kernel in _bare_kernels(case)
        if (row := queries.kernel_row(case.facts, kernel)) is not None and not row.headers
    ]
    if not bare:
        return
    with_headers = [kernel.release for kernel in case.facts.kernels.installed if kernel.headers]
    evidence = [
        f"kernel {kernel} ({_which(case, kernel)}): /lib/modules/{kernel}/build is not there" for kernel in bare
    ]
    evidence.append("headers are there for: " + (", ".join(with_headers) or "no kernel"))
    evidence += _dkms_text(case)
    metas = [name for name in case.facts.kernels.metapackages if name.startswith(("linux-image-", "linux-generic"))]
    lacking = _missing_header_metas(case)
    if metas and lacking:
        evidence.append(f"{', '.join(metas)} is installed, {', '.join(lacking)} is not")
    if case.facts.reboot_required.required:
        evidence.append(
            "/run/reboot-required is there: " + (", ".join(case.facts.reboot_required.packages) or "no package named")
        )
    text = ", ".join(f"linux-headers-{kernel}" for kernel in bare)
    extra = f" and {', '.join(lacking)}, so that the next kernel brings its own" if lacking else ""
    yield Found(
        f"no headers for kernel {', '.join(bare)}, so DKMS could not build the module for it",
        evidence,
        queries.build_here(
            case,
            f"install {text}{extra}, and build the module before any reboot",
            f"apt-get install {text.replace(',', '')}{extra}, then dkms autoinstall, before any reboot",
        ),
        reboot=case.facts.kernels.running not in bare and case.facts.module.loaded is None,
    )


def _dkms_text(case: Case) -> list[str]:
    rows = []
    for tree in queries.boot(case).dkms:
        built = [f"{build.kernel}: {'installed' if build.installed else 'built'}" for build in tree.builds]
        rows.append(f"dkms {tree.name}/{tree.version}: " + (", ".join(built) or "added, built for no kernel"))
    return rows


def _missing_header_metas(case: Case) -> list[str]:
    """Header metapackages that belong to the installed image metapackages and are not installed."""
    metas = set(case.facts.kernels.metapackages)
    wanted = []
    for name in metas:
        match = re.match(r"^linux-image-(?!unsigned-)([a-z].*)$", name)
        if match and f"linux-{match.group(1)}" not in metas:
            wanted.append(f"linux-headers-{match.group(1)}")
    return sorted(set(wanted) - metas)


@rule("kernel.headers_metapackage")
def _headers_metapackage(case: Case) -> Iterator[Found]:
    if not _dkms(case) or not queries.own_gpus(case) or queries.in_container(case):
        return
    lacking = _missing_header_metas(case)
    if lacking:
        images = sorted(name for name in case.facts.kernels.metapackages if name.startswith("linux-image-"))
        yield Found(
            f"{', '.join(images)} brings new kernels, and {', '.join(lacking)} is not installed: they come without headers",
            [
                *(f"{name}: installed" for name in images),
                *(f"{name}: not installed" for name in lacking),
                *_dkms_text(case),
            ],
            queries.apply(f"install {', '.join(lacking)}"),
        )


# --- builds ------------------------------------------------------------------------------------------------------


@rule("kernel.build_failed")
def _build_failed(case: Case) -> Iterator[Found]:
    for kernel in dict.fromkeys([*_bare_kernels(case), *_kernels_in_the_way(case)]):
        tree = _failed_build(case, kernel)
        if tree is None:
            continue
        limit = _max_kernel(case, tree.version)
        # What no repository of Ubuntu's brought is as NVIDIA builds it.
        channel: Any = queries.installed(case).channel or "cuda"
        known = case.catalog.known_bad("driver", tree.version, ubuntu=_ubuntu(case), channel=channel, kernel=kernel)
        too_new = bool(known) or (limit is not None and _series(kernel) > _series(limit))
        evidence = [f"{tree.make_log}: {tree.said}", *_dkms_text(case)]
        evidence += [
            f"known: {row.symptom} ({', '.join(row.versions)}): {row.fix or 'no fix known'}" for row in known[:2]
        ]
        evidence += [f"{name} is installed: apt takes no other" for name in _pins(case)]
        if limit and too_new:
            evidence.append(f"branch {driver_names.branch(tree.version)} builds up to kernel {limit}")
        compiler = queries.boot(case).compiler
        if compiler and compiler.missing:
            evidence.append(f"/proc/version: the kernel was built by {compiler.kernel}, which is not installed")
        elif compiler and compiler.other:
            evidence.append(f"the kernel was built by {compiler.other}, and /usr/bin/gcc leads to {compiler.used}")
        evidence += queries.package_text(
            case, [n for n, p in case.facts.packages.items() if p.broken and driver_names.is_driver_package(n)]
        )
        evidence += queries.boot(case).crashes[:2]
        others = [k for k in _with_module(case) if k != kernel]
        repair = _way_to_a_build(case, tree, others, too_new)
        yield Found(
            f"driver {tree.version} does not compile for kernel {kernel} ({_which(case, kernel)})"
            + (": the kernel is too new for it" if too_new else ""),
            evidence,
            repair,
            *_finish(case),
            reboot=kernel == case.facts.kernels.running and case.facts.module.loaded is None,
        )


@rule("kernel.other_module")
def _other_module(case: Case) -> Iterator[Found]:
    """Where dpkg waits for it: what others make of their modules is no business of the driver's otherwise."""
    if not case.facts.package_problems:
        return
    present = {kernel.release for kernel in case.facts.kernels.installed}
    for tree in queries.boot(case).dkms_others:
        if tree.make_kernel not in present or tree.make_kernel in {build.kernel for build in tree.builds}:
            continue
        yield Found(
            f"{tree.name} {tree.version}, a module that is not the driver's, does not compile for kernel {tree.make_kernel}",
            [
                f"{tree.make_log}: {tree.said}",
                *(f"dpkg: {problem}" for problem in case.facts.package_problems[:4]),
                *(
                    f"the driver itself is well there: {queries.module_text(module)}"
                    for module in queries.modules_of(case, tree.make_kernel or "")[:1]
                ),
            ],
            queries.manual(
                f"by hand, because {tree.name} is not ours: install a version of it that builds on {tree.make_kernel}, or remove "
                f"its package (dpkg -S {tree.source} names it); then dpkg --configure -a"
            ),
            reboot=False,
        )


def _way_to_a_build(case: Case, tree: DkmsTree, others: list[str], too_new: bool) -> Repair:
    """What makes the build possible; others: kernels that have a module."""
    compiler = queries.boot(case).compiler
    if re.search(r"No space left", tree.make_error or ""):
        return queries.manual("make room on the disk (df -h), then dkms autoinstall")
    if compiler and compiler.missing:
        package = re.sub(r"^(?:x86_64|aarch64)-linux-gnu-", "", compiler.kernel)
        return queries.manual(f"apt-get install {package}, the compiler that built the kernel, then dkms autoinstall")
    if compiler and compiler.other:
        return queries.manual(
            f"lead gcc to the kernel's compiler: update-alternatives --set gcc /usr/bin/{compiler.other} (it leads to "
            f"{compiler.used}), then dkms autoinstall"
        )
    stay = f", or stay on {others[0]}, which has a module" if others else ""
    branch = case.catalog.find_branch(tree.version)
    ended = bool(branch and branch.ended and deb_version.compare(tree.version, branch.last_version) >= 0)
    named = str(case.values.get("nvidia_driver_branch", "recommended")) != "recommended" or bool(
        case.values.get("nvidia_driver_version")
    )
    later = _later(case, branch) if branch and ended else []
    if branch and later and (named or _pins(case)):
        return queries.manual(
            f"take branch {later[0]}, since {branch.number} has ended{stay}: nvidia_driver_branch in the "
            "inventory, then provision apply"
        )
    if branch and later:
        return _update(f"move on from {branch.number}, which has ended{stay}")
    text = ("take a newer driver for it" if too_new or ended else "take a newer driver of the branch") + stay
    if named:
        return queries.manual(f"{text}: the inventory names this driver (nvidia_driver_branch, nvidia_driver_version)")
    return _update(text)


def _later(case: Case, branch: Branch) -> list[int]:
    """Living branches after this one that drive the cards; old cards have none, and only a build that Ubuntu patched."""
    fitting = case.catalog.branches_for(queries.catalog_gpu(case, gpu) for gpu in queries.own_gpus(case))
    rows = case.catalog.branches
    return [row.number for row in rows if row.ended is False and row.number > branch.number and row.number in fitting]


def _update(words: str) -> Repair:
    found = queries.realign(words)
    found.args["values"] = {"nvidia_driver_update": True}
    return found


def _pins(case: Case) -> list[str]:
    """NVIDIA's packages that pin the driver to a branch or to a version."""
    packages = case.facts.packages
    return [name for name in packages if name.startswith("nvidia-driver-pinning-") and packages[name].installed]


def _finish(case: Case) -> tuple[Repair, ...]:
    """What dpkg left half-configured can be finished once there is something that builds."""
    if not case.facts.package_problems:
        return ()
    return (Repair(action="dpkg.configure", words="finish what dpkg left (dpkg --configure -a)"),)


def _with_module(case: Case) -> list[str]:
    have = {module.kernel for module in case.facts.module.on_disk}
    return queries.newest(
        kernel.release for kernel in case.facts.kernels.installed if kernel.image and kernel.release in have
    )


def _max_kernel(case: Case, version: str) -> str | None:
    branch = case.catalog.find_branch(version)
    return branch.max_kernel if branch else None


def _series(release: str) -> tuple[int, int]:
    match = re.match(r"^([0-9]+)\.([0-9]+)", release)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def _ubuntu(case: Case) -> str | None:
    version = case.facts.host.os.version_id
    return version if version in case.catalog.ubuntu_data.releases else None


@rule("kernel.source_missing")
def _source_missing(case: Case) -> Iterator[Found]:
    if not _dkms(case) or not _bare_kernels(case):
        return
    tree = _tree(case)
    if tree is not None and tree.source_missing:
        yield Found(
            f"the source of driver {tree.version} is gone, so DKMS can build it for no other kernel",
            [
                f"{tree.source}/dkms.conf: not there",
                *_dkms_text(case),
                *queries.package_text(case, _dkms_packages(case)),
            ],
            queries.again(case, names, "dkms autoinstall")
            if (names := _dkms_packages(case))
            else queries.apply("install the DKMS package at its version, which brings the source, and build"),
        )


def _dkms_packages(case: Case) -> list[str]:
    return sorted(
        name
        for name in queries.installed(case).packages
        if driver_names.parse(name).base in ("nvidia-dkms", "nvidia-kernel-source")
    )


# --- no module ---------------------------------------------------------------------------------------------------


@rule("kernel.no_module")
def _no_module(case: Case) -> Iterator[Found]:
    """The running kernel has none."""
    kernels = case.facts.kernels
    if kernels.running in _bare_kernels(case) and case.facts.module.loaded is None:
        yield from _without(case, kernels.running, "the running kernel")


@rule("kernel.no_module_for_next_boot")
def _no_module_next(case: Case) -> Iterator[Found]:
    kernels = case.facts.kernels
    later = kernels.next != kernels.running or case.facts.module.loaded is not None
    if kernels.next and later and kernels.next in _bare_kernels(case):
        yield from _without(case, kernels.next, "the kernel that boots next")


def _without(case: Case, kernel: str, which: str) -> Iterator[Found]:
    have = [release for release in _with_module(case) if release != kernel]
    origin = queries.driver_origin(case)
    evidence = [f"/lib/modules/{kernel}: no nvidia module", *_have(case)]
    if kernel == case.facts.kernels.next and case.facts.kernels.next_because:
        evidence.append(f"boots next: {case.facts.kernels.next_because}")
    package = _prebuilt_name(case, kernel)
    if kernel == case.facts.kernels.running and case.facts.kernels.next in _with_module(case):
        # a plan looks at the next boot, and finds nothing to do
        repair = queries.reboot(f"reboot into {case.facts.kernels.next}, which has its module")
    elif origin == "signed" and queries.present(case, [package]):
        evidence += queries.package_text(case, [package])
        repair = queries.again(case, [package])
    elif origin == "signed":
        evidence.append(f"{package}: not installed")
        repair = queries.apply(f"install {package}, or the module by DKMS where the archive has none for this kernel")
    elif origin == "dkms":
        evidence += _dkms_text(case)
        text = f"build the module for {kernel} with DKMS"
        repair = queries.build_here(case, text, f"{text}: dkms autoinstall -k {kernel}")
    elif origin == "runfile":
        evidence.append(
            "the driver was installed by a runfile, for one kernel: dkms is "
            + ("installed" if "dkms" in case.facts.packages else "not installed")
        )
        text = f"run the .run installer again for {kernel}, with --dkms and the kernel's headers"
        repair = queries.manual(
            text + ("; or install the driver from apt, which follows the kernel" if case.driver_managed else "")
        )
    else:
        evidence.append(
            f"packages of the driver: {len(queries.installed(case).packages)}, none of them brings a module"
        )
        repair = queries.apply("install the module's package beside the libraries")
    if case.facts.module.loaded is not None:
        evidence.append(f"{queries.loaded_text(case)} for {case.facts.kernels.running}: it works until the reboot")
    yield Found(
        f"{which}, {kernel}, has no nvidia module" + (f"; {', '.join(have[:3])} has one" if have else ""),
        evidence,
        repair,
    )


def _prebuilt_name(case: Case, kernel: str) -> str:
    driver = queries.installed(case)
    series = driver.series or driver.branch or "BRANCH"
    return str(driver_names.prebuilt_modules(series, driver.flavour or "proprietary", kernel))


# --- versions ----------------------------------------------------------------------------------------------------


@rule("kernel.module_version")
def _module_version(case: Case) -> Iterator[Found]:
    """A module on the disk that is not of the libraries' version."""
    libraries = queries.library_version(case)
    if libraries is None or queries.in_container(case):
        return
    wrong = []
    for kernel in queries.kernels_that_matter(case):
        modules = queries.modules_of(case, kernel)
        if modules and modules[0].version and modules[0].version != libraries:
            wrong.append((kernel, modules[0]))
    if not wrong:
        return
    shadow = [
        other.path
        for kernel, module in wrong
        for other in queries.modules_of(case, kernel)[1:]
        if other.version == libraries
    ]
    evidence = [queries.module_text(module) for _, module in wrong] + queries.library_text(case)
    evidence += [f"{path} is of the right version and comes second" for path in shadow] + _dkms_text(case)
    evidence += [f"packages: {version}" for version in queries.installed(case).versions] + [queries.loaded_text(case)]
    versions = ", ".join(f"{module.version} for {kernel} ({_which(case, kernel)})" for kernel, module in wrong)
    running_only = all(kernel == case.facts.kernels.running for kernel, _ in wrong)
    yield Found(
        f"the module on the disk is {versions}, the libraries are {libraries}",
        evidence,
        queries.realign("bring module and libraries to one version: prebuilt modules, kernel and driver move together"),
        reboot=running_only and case.facts.module.loaded is not None,
    )


@rule("kernel.prebuilt_clamp")
def _clamp(case: Case) -> Iterator[Found]:
    """Module packages of single kernels without the metapackage that would move them along with the driver.

    Every package of prebuilt modules has such a clamp; with its metapackage apt moves both, which is well.
    """
    rows, moved = [], set()
    for name, package in case.facts.packages.items():
        parsed = driver_names.parse(name)
        if parsed is None or parsed.base != "linux-modules-nvidia" or package.status[1] in "nc":
            continue
        if parsed.kernel and not parsed.kernel[0].isdigit():
            moved.add((parsed.series, parsed.open))
        for match in re.finditer(r"(nvidia-kernel-common-[\w-]+) \(<=? ([^)]+)\)", package.depends or ""):
            rows.append((parsed, match.group(1), match.group(2)))
    rows = [row for row in rows if (row[0].series, row[0].open) not in moved]
    if not rows:
        return
    kept = set(queries.kernels_that_matter(case))
    old = sorted(row[0].name for row in rows if row[0].kernel not in kept)
    evidence = [f"{parsed.name} depends on {other} (<= {limit})" for parsed, other, limit in rows]
    evidence += queries.package_text(case, sorted({other for _, other, _ in rows}))
    meta = driver_names.prebuilt_modules(
        rows[0][0].series, "open" if rows[0][0].open else "proprietary", _meta_flavour(case)
    )
    evidence.append(f"{meta}, which would move them: not installed")
    text = f"install {meta}, and move module packages, kernel and driver in one transaction"
    if old:
        text += f"; {', '.join(old)} are for kernels that neither run nor boot next and can be removed"
    yield Found(
        f"{queries.counted(rows, 'prebuilt module package')} without a metapackage: updates move the kernel and leave the driver",
        evidence,
        queries.realign(text),
        level="error" if case.facts.package_problems else None,
    )


def _meta_flavour(case: Case) -> str:
    """``generic-hwe-22.04`` of linux-image-generic-hwe-22.04; else the flavour of the kernel that runs."""
    for name in case.facts.kernels.metapackages:
        match = re.match(r"^linux-image-(?!unsigned-)([a-z].*)$", name)
        if match:
            return match.group(1)
    return driver_names.kernel_flavour(case.facts.kernels.running) or "generic"
