# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The checks of CUDA in userland: toolkits, nvcc, links, libraries, shells. Pure functions, as those of ``checks``.

``expect["cuda"]`` says what the inventory asks for (see WISH). Where it asks for nothing, checks that compare with a wish
have nothing to say, and those that find damage still look. Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, deb_version
from provision.parts import verdicts

# manage: toolkits are asked for. versions: their minors. cudnn: CUDA major -> version. nccl: version, with or without its
# suffix. names: packages that must be held. environment: logins get the default on their PATH. needs: of each minor the
# driver for everything ("full") and by minor-version compatibility ("minimum"): the catalog is not on the host.
WISH = {
    "manage": False,
    "versions": [],
    "default": None,
    "profile": "full",
    "cudnn": {},
    "nccl": None,
    "hold": False,
    "names": [],
    "environment": False,
    "needs": {},
}
LINK = "/usr/local/cuda"
_NONE = {
    "nvccs": [],
    "toolkits": [],
    "alternatives": [],
    "links": [],
    "libraries": [],
    "headers": [],
    "ld_so_conf": {},
    "shell_lines": [],
}
# Forward compatibility is for data-center cards (source: NVIDIA's CUDA compatibility guide).
_CONSUMER = re.compile(r"GeForce|TITAN", re.I)
_verdict = verdicts.verdict


def wish_of(want):
    """What expect asks for of CUDA, whole: see WISH."""
    return dict(WISH, **(want.get("cuda") or {}))


def cuda_of(facts):
    """facts.Cuda, also of facts that were recorded before there was one."""
    return dict(_NONE, **(facts.get("cuda") or {}))


def installed(facts):
    """Packages of which files are on the disk, by name."""
    return {name: row for name, row in facts["packages"].items() if row["status"][1] not in "nc"}


def owner(row):
    """Who a file belongs to, in words."""
    if row.get("environment"):
        return "of a conda environment"
    return "package %s" % row["package"] if row["package"] else "of no package"


def folder_of(version):
    """Where NVIDIA's packages put a toolkit."""
    return "/usr/local/cuda-%s" % version


def default_folder(facts, wish):
    """The toolkit that programs and shells should get by default: the wanted one, else what the link leads to."""
    if wish["default"]:
        return folder_of(wish["default"])
    return next((link["resolved"] for link in cuda_of(facts)["links"] if link["path"] == LINK), None)


def _older(version, than):
    return deb_version.compare(version, than) < 0


def fits(version, wanted):
    """9.14.0 and 9.14.0.64 agree: the shorter one says less."""
    short, long = sorted((version, wanted), key=len)
    return (long + ".").startswith(short + ".")


# --- toolkits, compilers, links ----------------------------------------------------------------------------


def toolkits(facts, want):
    """Every wanted toolkit is there, whole and from apt; none that a package owns lies in pieces."""
    check, wish, cuda = "cuda.toolkits", wish_of(want), cuda_of(facts)
    have = {row["version"]: row for row in cuda["toolkits"] if row["path"] != LINK}
    evidence = []
    for row in cuda["toolkits"]:
        what = "%s: CUDA %s, %s" % (row["path"], row["release"] or row["version"] or "?", owner(row))
        extra = wish["manage"] and row["version"] not in wish["versions"]
        evidence.append(what + (", not in the inventory" if extra else ""))
    empty = gutted(
        installed(facts),
        [version for version, row in have.items() if row["compiler"]],
        [version for version, row in have.items() if row["runtime"]],
    )
    if empty:
        folder = folder_of(empty[0])
        return _verdict(check, "fail", "files of packages are gone from %s" % folder, evidence, put_back(folder))
    missing = [version for version in wish["versions"] if version not in have]
    if missing:
        return _verdict(
            check, "fail", "CUDA %s is not there" % ", ".join(missing), evidence, "provision apply installs it"
        )
    absent = [name for name in wish["names"] if name not in installed(facts)]
    if absent:
        return _verdict(
            check,
            "fail",
            "packages of what is wanted are not installed: %d" % len(absent),
            absent[:12] + evidence,
            "provision apply installs them",
        )
    bare = [version for version in wish["versions"] if not have[version]["compiler"]]
    if bare and wish["profile"] != "runtime":
        return _verdict(
            check,
            "fail",
            "CUDA %s has no compiler" % ", ".join(bare),
            evidence,
            "provision apply installs what cuda_toolkit_profile: %s has" % wish["profile"],
        )
    foreign = [have[version] for version in wish["versions"] if have[version]["package"] is None]
    if foreign:
        tool = foreign[0]["uninstaller"]
        way = "remove it with %s" % tool if tool else "move %s away" % foreign[0]["path"]
        return _verdict(
            check,
            "warn",
            "%s is of no package: no update reaches it" % foreign[0]["path"],
            evidence,
            "%s, then provision apply installs it from apt" % way,
        )
    if not cuda["toolkits"]:
        return _verdict(check, "skip", "no CUDA toolkit")
    named = ["CUDA %s" % (row["release"] or row["version"] or "?") for row in cuda["toolkits"]]
    return _verdict(check, "pass", ", ".join(named), evidence)


def gutted(names, with_compiler, with_runtime):
    """Toolkits ("12.4") whose packages dpkg has and whose files somebody deleted, oldest first.

    names: of installed packages. with_compiler, with_runtime: the toolkits whose nvcc, whose libcudart is on the disk.
    """
    need = {"cuda-nvcc": with_compiler, "cuda-cudart": with_runtime}
    found = {
        package.version
        for package in map(cuda_names.parse, names)
        if package and package.version and package.base in need and package.version not in need[package.base]
    }
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def put_back(folder):
    """A command that has apt unpack again what dpkg knows of a folder."""
    return (
        "put them back: dpkg -S %s | sed 's/: .*//; s/,//g' | xargs dpkg-query -W -f '${Package}=${Version} '"
        " | xargs apt-get install -y --reinstall" % folder
    )


def nvccs(facts, want):
    """The nvcc that a login finds is the wanted default; every other one is named."""
    check, wish, cuda = "cuda.nvcc", wish_of(want), cuda_of(facts)
    found = cuda["nvccs"]
    on_path = [row for row in found if row["on_path"]]
    evidence = [
        "%s: %s, %s%s"
        % (
            row["path"],
            row["build"] or row["version"] or "version not known",
            owner(row),
            ", on the PATH of a login" if row["on_path"] else "",
        )
        for row in found
    ]
    first = on_path[0] if on_path else None
    asked = wish["manage"] and wish["default"] and wish["profile"] != "runtime"
    if asked and wish["environment"] and not first:
        return _verdict(
            check,
            "fail",
            "no nvcc is on the PATH of a login",
            evidence,
            "provision apply writes /etc/profile.d/gpu-provision-cuda.sh; then log in again",
        )
    if asked and first and first["version"] != wish["default"]:
        hint = "see cuda.link and cuda.environment: what comes before /usr/local/cuda/bin on the PATH has to go"
        if (first["package"] or "").startswith("nvidia-cuda-toolkit"):
            hint = "apt-get remove nvidia-cuda-toolkit, or let provision apply put /usr/local/cuda/bin before it"
        if wish["environment"]:
            return _verdict(
                check,
                "fail",
                "nvcc is %s at a login, wanted is %s" % (first["version"] or "?", wish["default"]),
                evidence,
                hint,
            )
        return _verdict(
            check,
            "warn",
            "nvcc is %s at a login, the default is %s" % (first["version"] or "?", wish["default"]),
            evidence,
            hint,
        )
    if not found:
        return _verdict(check, "skip", "no nvcc")
    folder = default_folder(facts, wish)
    linked = next((row for row in found if folder and (row["target"] or "").startswith(folder + "/")), None)
    if not asked and first and linked and first["version"] != linked["version"]:
        return _verdict(
            check,
            "warn",
            "nvcc is %s at a login, /usr/local/cuda has %s" % (first["version"] or "?", linked["version"]),
            evidence,
            "programs are built with one and find the other: put /usr/local/cuda/bin first, or remove %s"
            % (first["package"] or first["path"]),
        )
    if not first:
        return _verdict(check, "pass", "%d, none on the PATH of a login" % len(found), evidence)
    return _verdict(check, "pass", "%s at a login" % (first["build"] or first["version"] or "?"), evidence)


def links(facts, want):
    """/usr/local/cuda and /usr/local/cuda-NN lead to the wanted toolkits, and stay when another one is installed."""
    check, wish, cuda = "cuda.link", wish_of(want), cuda_of(facts)
    rows = {row["path"]: row for row in cuda["links"]}
    group = next((row for row in cuda["alternatives"] if row["name"] == "cuda"), None)
    evidence = [
        "%s: %s"
        % (
            row["path"],
            row["kind"] if row["kind"] != "link" else "%s -> %s" % (row["target"], row["resolved"] or "nothing"),
        )
        for row in cuda["links"]
    ]
    if group:
        evidence.append("alternative cuda: %s" % ("manual" if group["manual"] else "auto, the newest wins"))
    own = rows.get(LINK)
    if not wish["manage"] or not wish["default"]:
        dead = [path for path, row in rows.items() if row["kind"] == "link" and not row["resolved"]]
        if dead:
            return _verdict(
                check,
                "warn",
                "%s leads nowhere" % dead[0],
                evidence,
                "update-alternatives --auto %s, or rm %s where no toolkit is left"
                % (dead[0].rsplit("/", 1)[-1], dead[0]),
            )
        if not own:
            return _verdict(check, "skip", "no /usr/local/cuda", evidence)
        return _verdict(check, "pass", "%s" % (own["resolved"] or LINK), evidence)
    if own and own["kind"] != "link":
        return _verdict(
            check,
            "fail",
            "/usr/local/cuda is a %s, not a link" % own["kind"],
            evidence,
            "look what is in it, move it away (mv /usr/local/cuda /usr/local/cuda-old), provision apply",
        )
    wanted = folder_of(wish["default"])
    if not own or own["resolved"] != wanted:
        return _verdict(
            check,
            "fail",
            "/usr/local/cuda leads to %s, wanted is %s" % ((own or {}).get("resolved") or "nothing", wanted),
            evidence,
            "provision apply sets it; by hand: update-alternatives --set cuda %s" % wanted,
        )
    for path, row in sorted(rows.items()):
        major = path.rpartition("-")[2]
        mine = [folder_of(v) for v in wish["versions"] if v.split(".")[0] == major]
        mine = [wanted] if wanted in mine else mine
        if mine and row["resolved"] not in mine:
            return _verdict(
                check,
                "fail",
                "%s leads to %s, wanted is %s" % (path, row["resolved"] or "nothing", mine[0]),
                evidence,
                "provision apply sets it; by hand: update-alternatives --set cuda-%s %s" % (major, mine[0]),
            )
    if group is None or not group["manual"]:
        return _verdict(
            check,
            "warn",
            "the next toolkit that is installed moves /usr/local/cuda",
            evidence,
            "provision apply fixes it; by hand: update-alternatives --set cuda %s" % wanted,
        )
    return _verdict(check, "pass", wanted, evidence)


def driver_version(facts):
    """Version of the loaded driver, or None."""
    loaded = facts["module"]["loaded"]
    return loaded["version"] if loaded else None


def metas_with_driver(facts):
    """Installed packages of CUDA that bring a driver along (scenario F8), sorted."""
    found = ((name, cuda_names.parse(name)) for name in installed(facts))
    return sorted(name for name, package in found if package and package.kind == "meta_with_driver")


def is_consumer(name):
    """True for cards without forward compatibility, by nvidia-smi's name."""
    return bool(_CONSUMER.search(name))


def active_compat(facts):
    """Rows of cuda-compat's libcuda that programs find in place of the driver's."""
    cuda = cuda_of(facts)
    named = {path for line in cuda["shell_lines"] if line["variable"] == "LD_LIBRARY_PATH" for path in line["paths"]}
    return [
        row
        for row in cuda["libraries"]
        if row["soname"] == "libcuda.so.1" and (row["in_cache"] or row["path"].rpartition("/")[0] in named)
    ]


def effective_driver(facts):
    """Version of the libcuda that programs get: cuda-compat's where it is found first, else the loaded driver's."""
    active = active_compat(facts)
    return active[0]["version"] if active and active[0]["version"] else driver_version(facts)


def judged_toolkits(facts, wish):
    """Minors of toolkits, there or wished for, whose driver is known."""
    found = {row["version"] for row in cuda_of(facts)["toolkits"]} | set(wish["versions"])
    return [minor for minor in sorted(wish["needs"], key=deb_version.natural_key) if minor in found]


def too_new(facts, wish):
    """[(minor, oldest driver)] of toolkits that the driver cannot run at all."""
    have = effective_driver(facts)
    needs = ((minor, wish["needs"][minor].get("minimum")) for minor in judged_toolkits(facts, wish))
    return [(minor, least) for minor, least in needs if have and least and _older(have, least)]


def limited_toolkits(facts, wish):
    """Minors that run by minor-version compatibility only: without PTX."""
    have = effective_driver(facts)
    needs = ((minor, wish["needs"][minor].get("full")) for minor in judged_toolkits(facts, wish))
    return [minor for minor, full in needs if have and full and _older(have, full)]


def driver(facts, want):
    """The driver runs every toolkit, and nothing that came with a toolkit takes the driver's place."""
    check, wish, cuda = "cuda.driver", wish_of(want), cuda_of(facts)
    version = driver_version(facts)
    metas = metas_with_driver(facts)
    compat = [row for row in cuda["libraries"] if row["soname"] == "libcuda.so.1"]
    active = active_compat(facts)
    consumer = [gpu["name"] for gpu in facts["smi"]["gpus"] if is_consumer(gpu["name"])]
    evidence = ["driver %s" % version] if version else []
    evidence += [
        "%s: libcuda %s, %s%s"
        % (row["path"], row["version"], owner(row), "" if row in active else ", not found by programs")
        for row in compat
    ]
    if active and consumer:
        return _verdict(
            check,
            "fail",
            "%s takes the place of the driver's libcuda" % active[0]["path"],
            evidence,
            "%s has no forward compatibility (error 804): take that folder from the loader's path, "
            "apt-get remove %s" % (consumer[0], active[0]["package"] or "it"),
        )
    if active and version and active[0]["version"] and _older(active[0]["version"], version):
        return _verdict(
            check,
            "warn",
            "%s is older than the driver and found before its libcuda" % active[0]["path"],
            evidence,
            "take its folder from the loader's path: forward compatibility is for older drivers",
        )
    judged = judged_toolkits(facts, wish)
    effective = effective_driver(facts)
    for minor, least in too_new(facts, wish):
        return _verdict(
            check,
            "fail",
            "driver %s cannot run CUDA %s" % (effective, minor),
            evidence,
            "it takes %s or newer: provision compat --cuda %s tells which drivers do" % (least, minor),
        )
    limited = limited_toolkits(facts, wish)
    if limited:
        return _verdict(
            check,
            "warn",
            "CUDA %s runs on driver %s by minor-version compatibility only" % (", ".join(limited), effective),
            evidence,
            "PTX of it does not run: build for the cards themselves (nvcc -arch=native), or take driver %s or newer"
            % wish["needs"][limited[-1]]["full"],
        )
    if metas and (wish["manage"] or want["manage"]):
        return _verdict(
            check,
            "warn",
            "%s moves the driver along with the toolkit" % metas[0],
            evidence + ["installed: %s" % ", ".join(metas)],
            "apt-mark manual the cuda-toolkit-X-Y that is to stay, then apt-get remove %s" % " ".join(metas),
        )
    if not version:
        return _verdict(check, "skip", "no driver is loaded", evidence)
    if not judged:
        return _verdict(check, "skip", "no toolkit to compare with", evidence)
    return _verdict(check, "pass", "driver %s runs CUDA %s" % (version, ", ".join(judged)), evidence)


# --- shells, holds ------------------------------------------------------------------------------------------


def is_everybodys(line):
    """True for a line of a file that every user's shell reads; what new users get (/etc/skel) is theirs."""
    return line["file"].startswith("/etc/") and not line["file"].startswith("/etc/skel/")


def sorted_lines(facts, wish):
    """({kind: [words]}, [words of harmless lines]) of people's lines about CUDA in start files of shells.

    Kinds: shadowing (libraries before those of frameworks), elsewhere (another toolkit than the default first), stale
    (folders that are gone), doubled, frozen (a PATH without its old value).
    """
    cuda = cuda_of(facts)
    links_to = {row["path"]: row["resolved"] for row in cuda["links"]}
    default = default_folder(facts, wish)
    known = {row["path"]: row["version"] for row in cuda["toolkits"]}
    seen, bad, quiet = {}, {}, []
    for line in cuda["shell_lines"]:
        where = "%s line %d: %s" % (line["file"], line["line"], line["text"])
        key = (line["file"], line["variable"], tuple(line["paths"]), line["replaces"])
        others = sorted({_toolkit_of(path, links_to) for path in line["front"]} & set(known) - {default})
        if line["missing"]:
            bad.setdefault("stale", []).append("%s (%s is not there)" % (where, ", ".join(line["missing"])))
        elif line["paths"] and key in seen:
            bad.setdefault("doubled", []).append("%s (as line %d)" % (where, seen[key]))
        elif line["variable"] == "PATH" and line["replaces"] and _is_script(line["file"]):
            bad.setdefault("frozen", []).append("%s (drops what others put on the PATH)" % where)
        elif line["variable"] in ("LD_LIBRARY_PATH", "LD_PRELOAD") and line["paths"]:
            bad.setdefault("shadowing", []).append(where)
        elif line["variable"] == "PATH" and others and default in known and is_everybodys(line):
            bad.setdefault("elsewhere", []).append(
                "%s (CUDA %s, the default is %s)" % (where, known[others[0]], known[default])
            )
        else:
            quiet.append(where)
        seen.setdefault(key, line["line"])
    return bad, quiet


def environment(facts, want):
    """No line that somebody wrote into a start file of shells is stale, doubled, or hides what others need."""
    check, wish, cuda = "cuda.environment", wish_of(want), cuda_of(facts)
    lines = cuda["shell_lines"]
    if not lines:
        return _verdict(check, "pass" if cuda["toolkits"] else "skip", "no line about CUDA in start files")
    bad, quiet = sorted_lines(facts, wish)
    evidence = [text for kind in ("shadowing", "elsewhere", "stale", "doubled", "frozen") for text in bad.get(kind, [])]
    if bad.get("shadowing"):
        return _verdict(
            check,
            "warn",
            "LD_LIBRARY_PATH puts CUDA before the libraries that frameworks bring (%d lines)" % len(bad["shadowing"]),
            evidence,
            "take LD_LIBRARY_PATH out of them: ld.so.conf.d serves every program, cuda-select one shell",
        )
    if bad.get("elsewhere"):
        return _verdict(
            check,
            "warn",
            "another toolkit than the default comes first on the PATH (%d lines)" % len(bad["elsewhere"]),
            evidence,
            "take them out: /usr/local/cuda/bin follows the default, cuda-select changes one shell",
        )
    if bad:
        return _verdict(
            check,
            "warn",
            "stale or doubled lines about CUDA: %d" % len(evidence),
            evidence,
            "take them out of these files; what a login needs is in /etc/profile.d/gpu-provision-cuda.sh",
        )
    return _verdict(check, "pass", "none in the way (%d about CUDA)" % len(quiet), quiet[:12])


def _is_script(file):
    return not file.startswith("/etc/environment") and not file.endswith((".conf", ".pam_environment"))


def _toolkit_of(path, links_to):
    """Folder of the toolkit that a folder belongs to, links followed."""
    for link, resolved in links_to.items():
        if path == link or path.startswith(link + "/"):
            return resolved
    match = re.match(r"^(/usr/local/cuda-[0-9.]+)(?:/|$)", path)
    return match.group(1) if match else None


def held(facts, want):
    """Every package of the wanted toolkits, cuDNN and NCCL is held; no hold is left on one that is gone."""
    check, wish = "cuda.hold", wish_of(want)
    there = installed(facts)
    stale = sorted(
        name
        for name, row in facts["packages"].items()
        if row["status"][0] == "h" and row["status"][1] in "nc" and cuda_names.is_cuda_package(name)
    )
    loose = [name for name in wish["names"] if name in there and there[name]["status"][0] != "h"]
    if wish["hold"] and loose:
        return _verdict(
            check,
            "fail",
            "%d of %d packages of CUDA are not held" % (len(loose), len(wish["names"])),
            loose[:12],
            "an update can move them: provision apply holds them",
        )
    if stale:
        return _verdict(
            check,
            "warn",
            "%d holds on packages of CUDA that are not installed" % len(stale),
            stale[:12],
            "later installs fail with 'held broken packages': apt-mark unhold %s" % " ".join(stale[:6]),
        )
    if not wish["hold"] or not wish["names"]:
        return _verdict(check, "skip", "no hold is asked for")
    return _verdict(check, "pass", "all %d held" % len(wish["names"]))


CHECKS = (toolkits, nvccs, links, driver, environment, held)
