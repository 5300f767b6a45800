# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What versions apt has and what it would do, asked in private folders: nothing of the host changes, root is not needed.

``main`` answers two questions, ``offer`` and ``simulate``; the parsers and ``judge`` are pure. Runs on hosts:
standard library only, any Python from 3.8.
"""

from __future__ import annotations

import atexit
import io
import os
import re
import shutil
import stat
import tempfile
import time

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import conf as apt_conf
from ansible_collections.gpu.provision.plugins.module_utils.apt import disk as apt_disk
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import (
    deb_version,
    driver_names,
    host_tree,
    proxies,
    scratch,
)

_WORKDIR = "gpu-provision-apt-"
# package names on one command line
_CHUNK = 400
_DPKG_ARCH = "/var/lib/dpkg/arch"

# Packages whose loss takes a machine off the network, off ssh or out of apt; removal is refused whoever asks.
_NEVER_REMOVED = frozenset(
    (
        "apt",
        "dpkg",
        "init",
        "libc6",
        "netplan.io",
        "network-manager",
        "openssh-server",
        "sudo",
        "systemd",
        "systemd-resolved",
        "udev",
    )
)
_KERNEL = re.compile(r"^linux-(image|modules|modules-extra|image-unsigned)-(?!nvidia-[0-9]{3}-)")
_KERNEL_META = re.compile(
    r"^linux-(generic|lowlatency|virtual|server|aws|azure|gcp|gke|ibm|kvm|nvidia|oem|oracle|raspi)\b"
)
_HEADERS = re.compile(r"^linux-headers-")
_TOOLKIT = re.compile(r"^(nvidia-container-|libnvidia-container|nvidia-docker|docker|containerd|podman)")
_DESKTOP = re.compile(
    r"^((ubuntu|kubuntu|xubuntu|lubuntu|ubuntu-mate|ubuntustudio|edubuntu)-desktop.*|gdm3|lightdm|sddm|"
    r"gnome-shell|plasma-desktop|xserver-xorg(-core)?|xorg|xwayland)$"
)


def main(args, session=True):
    """Entry of the fast read: args["op"] is ``offer``, ``simulate`` or ``cleanup``; see those. Raises AptError.

    session: this process answers all three, so that the folder of ``offer`` ends with it.
    """
    args = dict(args)
    operation = args.pop("op", None)
    if operation == "offer":
        answer = candidates(**args, session=session)
        if session:
            # Where the caller is gone before it asks for more, nobody else takes the folder away.
            atexit.register(scratch.remove, answer["workdir"])
        return answer
    if operation == "simulate":
        answer = simulate(**args)
        # The transaction would refuse it, so that nobody has to agree first.
        return dict(answer, full=apt_disk.full(answer)) if answer["ok"] else answer
    if operation == "cleanup":
        return cleanup(**args)
    raise AptError("apt.usage", "unknown operation %r" % operation)


# --- offer


def candidates(
    sources=(),
    omit=(),
    patterns=(),
    refresh="if_stale",
    max_age_s=21600,
    timeout=300,
    environment=None,
    alone=False,
    session=False,
):
    """Return what versions the repositories have, with our sources added to the host's own.

    sources: dicts with name, uris, suites, components, architectures, key (armored or base64), key_url,
    fingerprint; a source of the host for the same repository steps back. omit: [{"file", "line"}] of the host's
    sources to leave out. patterns: regular expressions that names must match from start to end. refresh:
    ``if_stale`` fetches lists that are older than max_age_s or than the host's sources, and those of our new
    sources; the host's own lists are used otherwise, and unchanged ones are not fetched again. environment: the
    proxy (see proxies.within), for the keys' downloads and for apt, where it goes before the host's own
    configuration. alone: the host's own sources do not count. session: see main.

    Returns {"workdir", "packages": {name: [version dicts, newest first]}, "refreshed", "errors": [text],
    "problems": [what parse_update_errors says]}. ``simulate`` takes the workdir over and removes it.
    """
    _clean_old_workdirs()
    work = scratch.make("apt") if session else tempfile.mkdtemp(prefix=_WORKDIR)
    try:
        os.chmod(work, 0o755)  # noqa: S103 - apt's _apt user reads keys and lists here
        with proxy(environment):
            return _candidates(
                work, list(sources), list(omit), list(patterns), refresh, max_age_s, timeout, environment or {}, alone
            )
    except BaseException:
        shutil.rmtree(work)
        raise


def proxy(environment):
    """As proxies.within; raises AptError ``apt.usage``."""
    try:
        return proxies.within(environment)
    except ValueError as error:
        raise AptError("apt.usage", str(error)) from None


def _candidates(work, sources, omit, patterns, refresh, max_age_s, timeout, environment, alone):
    errors = _write_sources(work, sources, omit, alone)
    _seed_lists(work)
    config = _write_config(work, environment)
    refreshed, problems = _refresh(work, config, sources, refresh, max_age_s, timeout, errors)
    found = _names(config, patterns)
    packages = _versions(config, found) if found else {}
    return {"workdir": work, "packages": packages, "refreshed": refreshed, "errors": errors, "problems": problems}


def _write_sources(work, sources, omit, alone=False):
    """Write the private sources; returns errors about sources of the host that cannot be used."""
    parts = os.path.join(work, "sources.list.d")
    os.makedirs(parts)
    ours = {key for spec in sources for key in apt_sources.repositories(apt_sources.spec_source(spec))}
    host, errors, texts = ([], [], {}) if alone else apt_sources.read_sources()
    left_out = {(item["file"], item.get("line")) for item in omit}
    for path, text in texts.items():
        dropped = [
            source
            for source in host
            if source["file"] == path
            and (
                (path, source["line"]) in left_out
                or (path, None) in left_out
                or ours & set(apt_sources.repositories(source))
            )
        ]
        target = (
            os.path.join(work, "sources.list")
            if path == apt_sources.MAIN
            else os.path.join(parts, os.path.basename(path))
        )
        _write(target, apt_sources.without(text, path, dropped))
    for spec in sources:
        _write(_own_file(work, spec), apt_sources.render(spec, signed_by=_private_key(work, spec)))
    return errors


def _own_file(work, spec):
    return os.path.join(work, "sources.list.d", os.path.basename(apt_files.sources_path(spec["name"])))


def _private_key(work, spec):
    """Put the key of a source into the work folder; returns its path, or False when the source has none."""
    data = apt_sources.key_bytes(spec)
    if data is None:
        return False
    os.makedirs(os.path.join(work, "keys"), exist_ok=True)
    path = os.path.join(work, "keys", spec["name"] + ".gpg")
    with open(path, "wb") as handle:
        handle.write(data)
    os.chmod(path, 0o644)
    return path


def _seed_lists(work):
    """Links to the host's lists, so that unchanged repositories are answered from them."""
    lists = os.path.join(work, "lists")
    os.makedirs(os.path.join(lists, "partial"))
    for folder in ("cache/archives/partial", "log"):
        os.makedirs(os.path.join(work, folder))
    host = "/var/lib/apt/lists"
    for name in os.listdir(host) if os.path.isdir(host) else ():
        path = os.path.join(host, name)
        if name != "lock" and os.path.isfile(path) and os.access(path, os.R_OK):
            os.symlink(path, os.path.join(lists, name))


def _write_config(work, environment):
    """Write the private apt.conf (given by -c, so it is read after the host's own) and return its path."""
    config = os.path.join(work, "apt.conf")
    lines = [
        # Hooks of the host act on the host: apt-file, appstream, docker-clean, …
        "#clear APT::Update::Pre-Invoke;",
        "#clear APT::Update::Post-Invoke;",
        "#clear APT::Update::Post-Invoke-Success;",
        'Dir::Etc::sourcelist "%s/sources.list";' % work,
        'Dir::Etc::sourceparts "%s/sources.list.d";' % work,
        'Dir::State::lists "%s/lists";' % work,
        'Dir::Cache "%s/cache";' % work,
        'Dir::Cache::archives "%s/cache/archives";' % work,
        'Dir::Log "%s/log";' % work,
        'Dir::State::status "%s";' % (os.path.join(work, "status")),
        'Acquire::Languages "none";',
    ]
    status = apt_common.status_text()
    _write(os.path.join(work, "status"), status)
    lines += _architectures(status)
    lines += _without_our_proxy()
    if environment:
        # What no_proxy names is direct: apt reads that from the environment.
        proxy = (environment.get("http_proxy", ""), environment.get("https_proxy", ""))
        lines.append(apt_files.render_proxy(*proxy))
    _write(config, "\n".join(lines) + "\n")
    # another's proxy may have a password
    os.chmod(config, 0o600)
    return config


def _without_our_proxy():
    """Configuration that takes back what our own file says of the proxy: it may be the one of last year."""
    if not os.path.exists(apt_files.PROXY):
        return []
    found = {}
    folder = os.path.dirname(apt_files.PROXY)
    names_ = [name for name in sorted(_listdir(folder)) if apt_conf.is_read(name, ("conf", ""))]
    for path in [os.path.join(folder, name) for name in names_] + ["/etc/apt/apt.conf"]:
        if path != apt_files.PROXY and os.path.isfile(path):
            apt_conf.parse_conf(host_tree.read_text(path, errors="replace"), found)
    others = [key for key in found if re.match(r"acquire::https?::proxy(::|$)", key)]
    return ["#clear Acquire::http::Proxy;", "#clear Acquire::https::Proxy;"] + [
        '%s "%s";' % (key, found[key]) for key in others if isinstance(found[key], str)
    ]


def _architectures(status):
    """Configuration that spares apt from asking dpkg (twice in every call) for what stands in dpkg's files."""
    own = re.search(r"^Package: dpkg\n(?:[^\n]+\n)*?Architecture: (\S+)$", status, re.M)
    if own is None:
        return []
    folder = "/etc/apt/apt.conf.d"
    for path in ["/etc/apt/apt.conf"] + [os.path.join(folder, name) for name in _listdir(folder)]:
        if os.path.isfile(path) and "architectures" in host_tree.read_text(path, errors="replace").lower():
            # the host has its own word on it
            return []
    names_ = [own.group(1)]
    if os.path.exists(_DPKG_ARCH):
        names_ += [line for line in host_tree.read_text(_DPKG_ARCH, errors="replace").split() if line not in names_]
    return ["APT::Architectures { %s };" % " ".join('"%s";' % name for name in names_)]


def _refresh(work, config, sources, refresh, max_age_s, timeout, errors):
    if refresh not in ("if_stale", "always", "never"):
        raise AptError("apt.usage", "refresh must be if_stale, always or never, not %r" % refresh)
    if refresh == "never":
        return False, []
    only_ours = refresh == "if_stale" and lists_are_current(max_age_s)
    argv = ["apt-get", "-c", config] + apt_common.option_args() + ["update"]
    problems = []
    if only_ours:
        missing = [spec for spec in sources if not _has_lists(work, spec)]
        # the caller waits for all of them
        end = time.monotonic() + timeout
        for spec in missing:
            only = [
                "Dir::Etc::sourcelist=" + _own_file(work, spec),
                "Dir::Etc::sourceparts=-",
                "APT::Get::List-Cleanup=0",
            ]
            problems += _update(argv + apt_common.option_args(only), max(10, end - time.monotonic()), errors)
        return bool(missing), problems
    return True, _update(argv, timeout, errors)


def _update(argv, timeout, errors):
    result = update(argv, timeout)
    problems = parse_update_errors(result.text)
    if problems or result.timed_out:
        errors.append(way(argv[argv.index("-c") + 1]))
    errors.extend(problem["message"] for problem in problems)
    if result.timed_out:
        errors.append("apt-get update was ended after %d s" % timeout)
    return problems


def update(argv, timeout, log=None, sleep=time.sleep):
    """Run one refresh of the lists; a mirror caught in the middle of its own sync is asked again twice (N5)."""
    for pause in (5, 15, None):
        result = apt_common.run(argv, timeout, log=log)
        syncing = any(problem["code"] == "apt.mirror_sync" for problem in parse_update_errors(result.text))
        if not syncing or pause is None:
            break
        sleep(pause)
    return result


def way(config=None):
    """Say by which proxies apt goes, by its own word: the configuration beats the environment (apt.conf(5))."""
    argv = ["apt-config"] + (["-c", config] if config else []) + ["dump"]
    return apt_way(apt_common.run(argv, 60).out, os.environ)


def apt_way(dump, environ):
    """The words of ``way``. dump: what ``apt-config dump`` prints; environ: of apt."""
    found, direct = {}, []
    for scheme, host, value in re.findall(r'^Acquire::(https?)::Proxy(?:::(\S+))? "(.*)";$', dump, re.M | re.I):
        if not host:
            found[scheme.lower()] = value
        elif value == "DIRECT" and host not in direct:
            direct.append(host)
    configured = {scheme: found.get(scheme) or found.get("http") for scheme in ("http", "https")}
    taken = {scheme + "_proxy": url or environ.get(scheme + "_proxy") for scheme, url in configured.items()}
    if not any(taken.values()):
        return "apt: without a proxy (none in its configuration, nor in the environment)"
    return "apt: " + proxies.of_environment(taken) + (" (not for %s)" % ", ".join(direct) if direct else "")


def _has_lists(work, spec):
    source = apt_sources.spec_source(spec)
    present = os.listdir(os.path.join(work, "lists"))
    for uri in source["uris"]:
        for suite in source["suites"]:
            name = list_name(uri, suite)
            if not any(name + end in present for end in ("InRelease", "Release")):
                return False
    return True


def list_name(uri, suite):
    """Start of the file names that apt gives to the lists of a repository, up to ``InRelease``."""
    place = re.sub(r"^[a-z0-9+.-]+:(?://)?(?:[^/@]*@)?", "", uri.rstrip("/") + "/")
    # Flat repositories end in a slash; "/" itself adds nothing, "./" stays.
    place += suite.lstrip("/") if suite.endswith("/") else "dists/%s/" % suite
    quoted = "".join("%%%02x" % ord(char) if char in '\\|{}[]<>"^~_=!@#$%^&*' else char for char in place)
    return quoted.replace("/", "_")


def lists_age():
    """Seconds since the lists of the host were refreshed; None when they never were."""
    stamps = []
    for path in ("/var/lib/apt/periodic/update-success-stamp", "/var/lib/apt/lists/partial", "/var/lib/apt/lists"):
        try:
            stamps.append(os.stat(path).st_mtime)
        except OSError:
            continue
    if not any(name.endswith("Release") for name in _listdir("/var/lib/apt/lists")):
        return None
    return max(0.0, time.time() - max(stamps)) if stamps else None


def lists_are_current(max_age_s=21600):
    """True when the host's lists are young enough and no sources file was written since they were fetched."""
    age = lists_age()
    if age is None or age > max_age_s:
        return False
    # The folders too: a file that was copied with its old time, or taken away, shows there.
    written = [os.path.dirname(apt_sources.MAIN), apt_sources.MAIN, apt_sources.PARTS]
    written += [os.path.join(apt_sources.PARTS, name) for name in _listdir(apt_sources.PARTS)]
    stamps = [os.stat(path).st_mtime for path in written if os.path.exists(path)]
    return time.time() - max(stamps or [0.0]) > age


def _listdir(path):
    try:
        return os.listdir(path)
    except OSError:
        return []


def _names(config, patterns):
    if not patterns:
        return []
    out = _cache(config, ["pkgnames"]).out
    wanted = re.compile("|".join("(?:%s)" % pattern for pattern in patterns))
    return sorted(name for name in set(out.split()) if wanted.fullmatch(name))


def _versions(config, found):
    """Return what is available of the names found, {name: [version dicts]}.

    ``apt-cache policy NAME`` looks at every list file for every version, a millisecond a name; ``showpkg`` says from
    the cache which list files hold a version, and the header of ``policy`` what each of those files is. So policy is
    asked only for names where more than that counts: installed ones, pinned ones, and list files of unknown names.
    """
    header = _cache(config, ["policy"]).out
    tables, stanzas, rest = {}, [], found
    if not _has_pins():
        text = "".join(_cache(config, ["showpkg"] + part).out for part in _parts(found))
        tables = tables_from_lists(parse_showpkg(text), parse_places(header))
        rest = [name for name in found if name not in tables]
    for part in _parts(rest):
        tables.update(parse_policy(_cache(config, ["policy"] + part).out))
    for part in _parts(found):
        stanzas += apt_common.parse_stanzas(_cache(config, ["show"] + part, may_fail=True).out)
    return available_versions(tables, stanzas, parse_releases(header))


def _parts(found):
    return [found[start : start + _CHUNK] for start in range(0, len(found), _CHUNK)]


def _has_pins():
    """True when the host's preferences name packages; pins of whole repositories are in the header of policy."""
    folder = "/etc/apt/preferences.d"
    for path in ["/etc/apt/preferences"] + [os.path.join(folder, name) for name in _listdir(folder)]:
        if os.path.isfile(path) and re.search(
            r"^package:(?![ \t]*\*[ \t]*$)", host_tree.read_text(path, errors="replace"), re.M | re.I
        ):
            return True
    return False


def _cache(config, args, may_fail=False):
    argv = ["apt-cache"] + (["-c", config] if config else []) + apt_common.option_args() + args
    result = apt_common.run(argv, 120)
    if result.rc != 0 and not may_fail:
        code, message = classify(result.text)
        raise AptError(
            code,
            "apt cannot read its sources or lists: %s" % message,
            because=error_lines(result.text),
            hint="correct what apt-get check on the host complains of",
            problems=parse_update_errors(result.text),
        )
    return result


# --- simulate


def simulate(
    workdir=None, install=(), remove=(), unhold=("all_driver",), preferences=None, keep=False, timeout=120, gone=()
):
    """Return what apt would do, from its own solver.

    {"ok", "changes", "download_bytes", "disk_bytes"} and, when it finds no way, "code" (stable), "message" (one
    line), "because" (apt's own lines), "error" (both as one text) and "unmet" (see parse_unmet).

    workdir: from ``offer``, removed afterwards unless keep; None asks with the host's own sources and lists.
    install: ["name=version" or "name"]; remove: names; unhold: names whose hold does not count; "all_driver" among them
    stands for every driver package. preferences: text that our own preferences file will have; None: as it is. gone: names
    that count as not there, as if they had been purged.
    """
    own = workdir is None
    work = scratch.make("apt") if own else _checked_workdir(workdir)
    try:
        status = apt_common.status_text()
        _write(os.path.join(work, "status"), without_packages(without_holds(status, unhold), gone))
        config = _write_host_config(work, status) if own else os.path.join(work, "apt.conf")
        if preferences is not None:
            _write_preferences(work, config, preferences)
        argv = ["apt-get", "-c", config, "-s"] + change_args(install, remove, downgrade=True)
        result = apt_common.run(argv, timeout)
        if result.rc != 0 or result.timed_out:
            return _refusal(result, timeout)
        changes = parse_simulation(result.out)
        _add_sizes(config, changes, status)
        return {
            "ok": True,
            "code": None,
            "message": None,
            "because": [],
            "error": None,
            "unmet": [],
            "changes": changes,
            "download_bytes": sum(change["download_bytes"] for change in changes),
            "disk_bytes": sum(change["disk_bytes"] for change in changes),
        }
    finally:
        if own or not keep:
            shutil.rmtree(work)


def _write_preferences(work, config, text):
    """The host's preferences with ours as it will be, for a simulation before anything is written."""
    folder, ours = os.path.join(work, "preferences.d"), os.path.basename(apt_files.PREFERENCES)
    os.makedirs(folder)
    host = os.path.dirname(apt_files.PREFERENCES)
    for name in _listdir(host):
        if name != ours and os.path.isfile(os.path.join(host, name)):
            os.symlink(os.path.join(host, name), os.path.join(folder, name))
    if text:
        _write(os.path.join(folder, ours), text)
    with io.open(config, "a", encoding="utf-8") as handle:
        handle.write('Dir::Etc::preferencesparts "%s";\n' % folder)


def cleanup(workdirs):
    """Remove the folders of V(offer) that no simulation took over."""
    for workdir in workdirs:
        shutil.rmtree(_checked_workdir(workdir))
    return {"removed": len(workdirs)}


def change_args(install, remove, downgrade):
    """Arguments of the one apt-get call: used by the simulation and by the change, so that both mean the same."""
    for item in list(install) + list(remove):
        if not re.match(r"^[a-z0-9][a-z0-9.+-]*(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+)?$", item):
            raise AptError("apt.usage", "not a package, or package=version: %r" % item)
    args = apt_common.option_args() + ["--no-install-recommends", "--fix-broken"]
    if downgrade:
        args.append("--allow-downgrades")
    return args + ["install"] + list(install) + [name + "-" for name in remove]


def _write_host_config(work, status):
    """apt.conf for a simulation with the host's own sources: only status and the binary cache are private."""
    config = os.path.join(work, "apt.conf")
    lines = ['Dir::State::status "%s/status";' % work, 'Dir::Cache::pkgcache "%s/pkgcache.bin";' % work]
    if os.geteuid() != 0:
        lines.append('Dir::Cache::srcpkgcache "%s/srcpkgcache.bin";' % work)
    lines += _architectures(status)
    _write(config, "\n".join(lines) + "\n")
    return config


def _checked_workdir(workdir):
    """The folder comes back over the wire: only one of ours, made by this user, is used and removed."""
    path = os.path.abspath(workdir)
    name_ok = os.path.basename(path).startswith(_WORKDIR) and os.path.dirname(path) == os.path.abspath(
        tempfile.gettempdir()
    )
    try:
        info = os.lstat(path)
    except OSError:
        info = None
    if not name_ok or info is None or not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise AptError("apt.workdir_gone", "the work folder %s no longer exists" % workdir, hint="ask again")
    return path


def _clean_old_workdirs(older_than_s=86400):
    """Work folders that nobody came back for."""
    base = tempfile.gettempdir()
    for name in _listdir(base):
        path = os.path.join(base, name)
        if not name.startswith(_WORKDIR):
            continue
        info = os.lstat(path)
        if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and time.time() - info.st_mtime > older_than_s:
            shutil.rmtree(path)


def _refusal(result, timeout):
    text = result.text
    code, message = classify(text)
    if result.timed_out:
        code, message = "apt.timeout", "apt's simulation did not end within %d s" % timeout
    lines = error_lines(text)
    return {
        "ok": False,
        "code": code,
        "message": message,
        "because": lines,
        "error": "\n".join([message] + lines),
        "unmet": parse_unmet(text),
        "changes": [],
        "download_bytes": 0,
        "disk_bytes": 0,
    }


def _add_sizes(config, changes, status):
    """Add download_bytes (less what is cached) and disk_bytes to each change."""
    sizes = {}
    wanted = ["%s=%s" % (change["name"], change["version"]) for change in changes if change["version"]]
    for start in range(0, len(wanted), _CHUNK):
        out = _cache(config, ["show"] + wanted[start : start + _CHUNK], may_fail=True).out
        for stanza in apt_common.parse_stanzas(out):
            sizes.setdefault((stanza.get("Package"), stanza.get("Version")), stanza)
    present = {package.name: package for package in apt_common.parse_status(status) if package.present}
    for change in changes:
        name = change["name"].split(":")[0]
        stanza = sizes.get((name, change["version"]), {})
        size = _int(stanza.get("Size"))
        change["download_bytes"] = 0 if _is_cached(stanza, size) else size
        before = present[name].fields.get("Installed-Size") if name in present else None
        change["disk_bytes"] = (_int(stanza.get("Installed-Size")) - _int(before)) * 1024


def _is_cached(stanza, size):
    if not stanza.get("Version"):
        return False
    name = "%s_%s_%s.deb" % (stanza["Package"], stanza["Version"].replace(":", "%3a"), stanza.get("Architecture"))
    try:
        return os.stat(os.path.join(apt_common.ARCHIVES, name)).st_size == size
    except OSError:
        return False


def _write(path, text):
    with io.open(path, "w", encoding="utf-8") as handle:
        handle.write(text)


def _int(text):
    return host_tree.integer(text) or 0


# --- parsers: pure


def without_holds(status, unhold):
    """Text of a status file in which the named packages (with "all_driver", every driver package) are not held."""

    free = frozenset(unhold)

    def is_free(name):
        return name in free or ("all_driver" in free and driver_names.is_driver_package(name))

    # Only the line changes, so that everything else stays as dpkg wrote it.
    stanza = re.compile(r"^(Package: (\S+)\n(?:[^\n]+\n)*?Status: )hold ", re.M)
    return stanza.sub(lambda found: found.group(1) + ("install " if is_free(found.group(2)) else "hold "), status)


def without_packages(status, gone):
    """Text of a status file without the stanzas of the named packages."""
    if not gone:
        return status
    stanzas = re.split(r"\n\n+(?=Package: )", status)
    return "\n\n".join(text for text in stanzas if text.partition("\n")[0].partition(": ")[2] not in gone)


_INST = re.compile(r"^Inst (\S+)(?: \[([^\]]+)\])? \((\S+) (.*?)\[([^\]]+)\]\)")
_REMV = re.compile(r"^(?:Remv|Purg) (\S+)(?: \[([^\]]+)\])?")


def parse_simulation(text):
    """Return the changes of ``apt-get -s`` output, in its order.

    [{"action": install | upgrade | downgrade | remove, "name", "version", "from_version", "origin"}]; version is
    None for removals. A package that is taken out and put back within the run counts as changed, not as removed.
    """
    changes = {}
    for line in text.split("\n"):
        installed, removed = _INST.match(line), _REMV.match(line)
        if installed:
            name, old, new, origin, _ = installed.groups()
            earlier = changes.get(name)
            if old is None and earlier is not None:
                old = earlier["from_version"]
            changes[name] = {
                "action": change_action(old, new),
                "name": name,
                "version": new,
                "from_version": old,
                "origin": origin.strip() or None,
            }
        elif removed:
            name, old = removed.groups()
            changes[name] = {"action": "remove", "name": name, "version": None, "from_version": old, "origin": None}
    return list(changes.values())


def change_action(old, new):
    """Name of the change from version old (None: not installed) to version new."""
    if old is None:
        return "install"
    return {-1: "upgrade", 0: "install", 1: "downgrade"}[deb_version.compare(old, new)]


_UNMET_HEAD = re.compile(r"^ (\S+)\s*: (Depends|PreDepends|Pre-Depends|Conflicts|Breaks|Recommends): (.*)$")
_UNMET_MORE = re.compile(r"^ {2,}(Depends|PreDepends|Pre-Depends|Conflicts|Breaks|Recommends): (.*)$")


def parse_unmet(text):
    """Return [{"package", "relation", "wants", "but"}] of apt's list of unmet dependencies."""
    found = []
    package = None
    for line in text.split("\n"):
        head, more = _UNMET_HEAD.match(line), _UNMET_MORE.match(line)
        if head:
            package, relation, rest = head.groups()
        elif more and package:
            relation, rest = more.groups()
        else:
            continue
        wants, _, but = rest.partition(" but ")
        found.append(
            {"package": package.rstrip(":"), "relation": relation, "wants": wants.strip(), "but": but.strip() or None}
        )
    return found


def error_lines(text):
    """apt's own message: its E: lines and the list of unmet dependencies, without repeats."""
    lines = []
    for line in text.split("\n"):
        if (line.startswith("E: ") or _UNMET_HEAD.match(line) or _UNMET_MORE.match(line)) and line not in lines:
            lines.append(line.rstrip())
    return lines


# In the order in which they are looked for: the first that is in the text names the failure.
_CLASSES = (
    ("apt.signed_by_conflict", r"Conflicting values set for option Signed-By"),
    ("apt.sources", r"The list of sources could not be read"),
    ("apt.disk_full", r"No space left on device|don't have enough free space"),
    ("apt.lock_timeout", r"Could not get lock|Unable to acquire the dpkg frontend lock|Unable to lock"),
    ("apt.dpkg_interrupted", r"dpkg was interrupted"),
    ("apt.version_not_found", r"Version '[^']*' for '[^']*' was not found"),
    ("apt.package_not_found", r"Unable to locate package|has no installation candidate"),
    ("apt.held", r"Held packages were changed"),
    ("apt.needs_reinstall", r"needs? to be reinstalled, but I can't find an archive"),
    ("apt.unmet", r"[Uu]nmet dependencies|held broken packages|Unable to satisfy dependencies|generated breaks"),
    ("apt.key", r"unauthenticated|cannot be authenticated"),
    ("apt.fetch", r"Failed to fetch|Unable to fetch some archives|Hash Sum mismatch|unexpected size"),
    ("apt.dpkg_failed", r"Sub-process .* returned an error code|dpkg: error processing"),
)
_MESSAGES = {
    "apt.signed_by_conflict": "two sources files list one repository with different keys",
    "apt.sources": "a sources file cannot be read",
    "apt.disk_full": "the disk is full",
    "apt.lock_timeout": "another program holds apt's lock",
    "apt.dpkg_interrupted": "dpkg was interrupted earlier and has not finished",
    "apt.version_not_found": "no repository has a requested version",
    "apt.package_not_found": "no repository has a requested package",
    "apt.held": "a package that is on hold would have to change",
    "apt.needs_reinstall": "a half-installed package is in no repository",
    "apt.unmet": "the packages cannot be installed together",
    "apt.key": "a repository is not signed by a key that is trusted",
    "apt.fetch": "packages could not be fetched",
    "apt.dpkg_failed": "a package failed while it was set up",
}


def classify(text):
    """Return (stable code, one line in plain words) for the output of a failed apt-get; ``apt.failed`` when new."""
    for code, pattern in _CLASSES:
        if re.search(pattern, text):
            return code, _MESSAGES[code]
    return "apt.failed", "apt-get failed"


_URL = r"(?P<uri>[a-z][a-z0-9+.-]*:/\S*?)"
# "URI SUITE InRelease"; a flat repository has two spaces where the suite would be.
_RELEASE = _URL + r"(?: +(?P<suite>(?!(?:In)?Release)\S+))? +(?:In)?Release"
_UPDATE_ERRORS = tuple(
    (code, re.compile(pattern))
    for code, pattern in (
        (
            "apt.signed_by_conflict",
            r"Conflicting values set for option (?:Signed-By|Trusted) regarding source "
            + _URL
            + r" (?P<suite>\S+): (?P<detail>.*)",
        ),
        ("apt.key", r"GPG error: " + _RELEASE + r"(?:\.gpg)?: (?P<detail>.*)"),
        (
            "apt.no_release",
            r"The repository '" + _RELEASE + r"' (?P<detail>(?:does not have|no longer has) a Release file.*)",
        ),
        ("apt.key", r"The repository '" + _RELEASE + r"' (?P<detail>is (?:not|no longer) signed.*)"),
        ("apt.expired", r"Release file for " + _URL + r" (?P<detail>is (?:expired|not valid yet).*)"),
        ("apt.release_changed", r"Repository '" + _RELEASE + r"' (?P<detail>changed its .*)"),
        ("apt.fetch", r"Failed to fetch " + _URL + r"\s+(?P<detail>.*)"),
        ("apt.sources", r"(?P<detail>Malformed (?:entry|line|stanza) .*|Type '.*' is not known on .*)"),
        ("apt.lock_timeout", r"(?P<detail>Could not get lock .*)"),
    )
)
_KEY_ID = re.compile(
    r"(?:NO_PUBKEY|EXPKEYSIG|REVKEYSIG|KEYEXPIRED|BADSIG|Missing key|Signing key on|key) ([0-9A-F]{16,40})"
)
_SYNC = re.compile(r"Mirror sync in progress|unexpected size|Hash Sum mismatch")


def parse_update_errors(text):
    """Return what is wrong with single repositories, from the output of ``apt-get update``.

    [{"code", "repository" (URI, or None), "suite", "key" (id, or None), "message" (apt's line), "fatal": bool}].
    fatal: apt reads nothing at all any more, whoever owns the repository. One entry a repository and code.
    """
    found = {}
    for line in text.split("\n"):
        if line[:3] not in ("E: ", "W: "):
            continue
        for code, pattern in _UPDATE_ERRORS:
            match = pattern.search(line)
            if match:
                _add_problem(found, code, match.groupdict(), line)
                break
    return list(found.values())


def _add_problem(found, code, group, line):
    uri, detail = group.get("uri"), group.get("detail") or ""
    if code == "apt.fetch" and _SYNC.search(line):
        code = "apt.mirror_sync"
    if code == "apt.fetch" and _KEY_ID.search(detail):
        code = "apt.key"
    key = _KEY_ID.search(detail)
    if uri:
        # A failed file is named by its own URL; the repository is what comes before dists/ or the index.
        uri = re.sub(r"(/dists/.*|/(In)?Release(\.gpg)?|/Packages(\.[a-z0-9]+)?)$", "", uri).rstrip("/")
    problem = {
        "code": code,
        "repository": uri,
        "suite": group.get("suite"),
        "key": key.group(1) if key else None,
        "message": line[3:].strip(),
        "fatal": code in ("apt.signed_by_conflict", "apt.sources"),
    }
    same = found.setdefault((code, uri), problem)
    if same["key"] is None and problem["key"] is not None:
        found[(code, uri)] = problem


def parse_releases(text):
    """Return {"uri suite/component arch": origin} from ``apt-cache policy`` without names."""
    origins = {}
    where = None
    for line in text.split("\n"):
        head = re.match(r"^ *-?[0-9]+ (\S+ .*?)(?: Packages)?$", line)
        release = re.match(r"^ +release (.*)$", line)
        if head:
            where = head.group(1).strip()
        elif release and where:
            found = re.search(r"(?:^|,)o=([^,]*)", release.group(1))
            origins[where] = found.group(1) if found else None
    return origins


def parse_places(text):
    """Return {file name of a list: (priority, "uri suite/component arch")} from ``apt-cache policy`` without names.

    The names are made as apt makes them; a repository of another form is missing here.
    """
    places = {}
    for line in text.split("\n"):
        found = re.match(r"^ *(-?[0-9]+) ([a-z][a-z0-9+.-]*:\S+) (?:(\S+)/(\S+) (\S+))? ?Packages$", line)
        if found:
            priority, uri, suite, component, arch = found.groups()
            if suite:
                name = "%s%s_binary-%s_Packages" % (list_name(uri, suite), component, arch)
                where = "%s %s/%s %s" % (uri, suite, component, arch)
            else:
                name, where = list_name(uri, "/") + "Packages", uri
            places[name] = (int(priority), where)
    return places


def parse_showpkg(text):
    """Return {name: [(version, [file])]} of ``apt-cache showpkg``, newest first."""
    packages = {}
    name, inside = None, False
    for line in text.split("\n"):
        if line.startswith("Package: "):
            name, inside = line[9:].strip(), False
            packages[name] = []
        elif line.startswith("Versions:"):
            inside = name is not None
        elif line.startswith("Reverse Depends:"):
            # a blank line stands after every version
            inside = False
        elif inside and line.strip() and not line.startswith(" "):
            version, _, files = line.partition(" ")
            packages[name].append((version, re.findall(r"\(([^)]*)\)", files)))
    return packages


def tables_from_lists(packages, places):
    """Return what parse_policy would, for those packages of which every version comes from a list file in places."""
    tables = {}
    for name, versions in packages.items():
        rows = []
        for version, files in versions:
            found = [places.get(re.sub(r"\.(gz|xz|lz4|bz2|zst|lzma)$", "", os.path.basename(f))) for f in files]
            if not found or None in found:
                break
            rows.append(
                {
                    "version": version,
                    "priority": max(priority for priority, _ in found),
                    "where": [where for _, where in found],
                }
            )
        else:
            best = max([row["priority"] for row in rows] or [0])
            newest = [row["version"] for row in rows if row["priority"] == best and best > 0]
            if rows:
                tables[name] = {"candidate": newest[0] if newest else None, "versions": rows}
    return tables


def parse_policy(text):
    """Return {name: {"candidate", "versions": [{"version", "priority", "where": ["uri suite/component arch"]}]}}."""
    tables = {}
    table = version = None
    for line in text.split("\n"):
        name = re.match(r"^(\S+):$", line)
        candidate = re.match(r"^  Candidate: (\S+)$", line)
        row = re.match(r"^ (?:\*\*\*|   ) (\S+) (-?[0-9]+)(?: \(phased [0-9]+%\))?$", line)
        source = re.match(r"^ +-?[0-9]+ (\S+ .*?)(?: Packages)?$", line)
        if name:
            table = tables.setdefault(name.group(1), {"candidate": None, "versions": []})
        elif table is None:
            continue
        elif candidate:
            table["candidate"] = None if candidate.group(1) == "(none)" else candidate.group(1)
        elif row:
            version = {"version": row.group(1), "priority": int(row.group(2)), "where": []}
            table["versions"].append(version)
        elif source and version and re.match(r"^[a-z][a-z0-9+.-]*:", source.group(1)):
            version["where"].append(source.group(1).strip())
    return tables


def available_versions(tables, stanzas, origins):
    """Join policy tables, stanzas of ``apt-cache show`` and origins to {name: [version dicts, newest first]}.

    Versions that are only installed, and in no repository, are left out: they cannot be fetched.
    """
    details = {}
    for stanza in stanzas:
        details.setdefault((stanza.get("Package"), stanza.get("Version")), stanza)
    packages = {}
    for name, table in tables.items():
        available = []
        for row in table["versions"]:
            stanza = details.get((name, row["version"]))
            if not row["where"] or stanza is None:
                continue
            where = row["where"][0]
            uri, _, rest = where.partition(" ")
            place = rest.split(" ")[0]
            suite, _, component = place.partition("/")
            available.append(
                {
                    "version": row["version"],
                    "depends": stanza.get("Depends"),
                    "pre_depends": stanza.get("Pre-Depends"),
                    "provides": stanza.get("Provides"),
                    "conflicts": stanza.get("Conflicts"),
                    "breaks": stanza.get("Breaks"),
                    "replaces": stanza.get("Replaces"),
                    "size": _int(stanza.get("Size")),
                    "installed_size": _int(stanza.get("Installed-Size")) * 1024,
                    "uri": uri,
                    "filename": stanza.get("Filename"),
                    "sha256": stanza.get("SHA256"),
                    "suite": suite or None,
                    "component": component or None,
                    "origin": origins.get(where),
                    "also": [other.partition(" ")[0] for other in row["where"][1:]],
                    "priority": row["priority"],
                    "candidate": row["version"] == table["candidate"],
                }
            )
        if available:
            packages[name] = sorted(available, key=lambda item: deb_version.key(item["version"]), reverse=True)
    return packages


# --- judge: pure


def judge(
    changes, allowed_remove=(), family_version=None, requested=(), installed=None, essential=(), running_kernel=None
):
    """Return the problems of a simulation, [{"code", "message", "because", "hint"}]; an empty list means safe.

    allowed_remove: names that may go; requested: names asked for, which may be upgraded; family_version:
    upstream version at which every package of the driver must end; installed: {name: version} of the host
    (optional: finds members of the family that would stay behind); essential: names never to be removed;
    running_kernel: its release (optional). Source of the rules: field reports G1, G4, G6, G8, F8. What dpkg was cut off
    at while it unpacked it, apt puts in again at its version before it does anything else: that is no change of its own.
    """
    problems = []
    allowed_remove, requested, essential = (set(allowed_remove), {_bare(name) for name in requested}, set(essential))
    moves_driver = family_version or any(map(driver_names.is_driver_package, allowed_remove | requested))
    for change in changes:
        name = _bare(change["name"])
        if change["action"] == "install" and change["version"] == change["from_version"]:
            continue
        if driver_names.is_driver_package(name) and not moves_driver:
            problems.append(_dragged(change, name))
        elif change["action"] == "remove":
            problems += _judge_removal(change, name, allowed_remove, essential, running_kernel)
        elif name not in requested:
            problems += _judge_change(change, name)
    return problems + _judge_family(changes, family_version, installed or {})


def _bare(name):
    return re.split("[:=]", name, maxsplit=1)[0]


def _protection(name, essential, running_kernel):
    """Return (why a package is protected, whether even a named removal is refused), or None."""
    if name in essential or name in _NEVER_REMOVED:
        return "it is essential to the system", True
    if (_KERNEL.match(name) or _HEADERS.match(name)) and running_kernel and name.endswith("-" + running_kernel):
        return "it belongs to the running kernel", True
    if _KERNEL.match(name) or _KERNEL_META.match(name):
        return "it is a kernel package", True
    if _HEADERS.match(name):
        return "kernel headers are needed to build modules", False
    if _TOOLKIT.match(name):
        return "containers need it", False
    if _DESKTOP.match(name):
        return "it belongs to the desktop", False
    return None


def protection(name, essential=(), running_kernel=None):
    """Why a package must not be lost by the way ("it is a kernel package"); None where nothing speaks for it."""
    why = _protection(_bare(name), essential, running_kernel)
    return why[0] if why else None


def _judge_removal(change, name, allowed_remove, essential, running_kernel):
    named = name in allowed_remove or change["name"] in allowed_remove
    why = None if driver_names.is_driver_package(name) else _protection(name, essential, running_kernel)
    if named and not (why and why[1]):
        return []
    if why:
        because, hint = why[0], "change the requested versions; nothing was changed"
        code = "apt.protected"
    else:
        because, hint = "it was not requested", "if it may be removed, add it to the list of removals"
        code = "apt.removes"
    return [_problem(code, "apt would remove %s %s" % (name, change["from_version"] or ""), because, hint)]


def _judge_change(change, name):
    if driver_names.is_driver_package(name):
        return []
    kernel = _KERNEL.match(name) or _KERNEL_META.match(name)
    if change["action"] == "install" and change["from_version"] is None and not kernel:
        # a new dependency
        return []
    if change["action"] == "install" and change["from_version"] is None:
        message = "apt would install the kernel package %s %s" % (name, change["version"])
        because = "it was not requested, and it may change which kernel boots next"
    else:
        message = "apt would %s %s from %s to %s" % (change["action"], name, change["from_version"], change["version"])
        because = "it is not part of the request"
    return [_problem("apt.unrelated", message, because, "upgrade it separately first, or request it with its version")]


def _dragged(change, name):
    """A toolkit's metapackage that brings a driver along would replace the one that is there (field report F8)."""
    return _problem(
        "apt.drags_driver",
        "apt would %s %s %s" % (change["action"], name, change.get("version") or ""),
        "no part of the driver was requested",
        "name the package without the driver: cuda-toolkit-X-Y instead of cuda",
    )


def _judge_family(changes, family_version, installed):
    ends = {}
    gone = set()
    for change in changes:
        name = _bare(change["name"])
        if change["action"] == "remove":
            gone.add(name)
        elif driver_names.is_version_locked(name):
            ends[name] = driver_names.upstream(change["version"])
    if family_version is None:
        if len(set(ends.values())) <= 1:
            return []
        mixed = ["%s %s" % item for item in sorted(ends.items())]
        hint = "pin every package of the driver to one version"
        return [_problem("apt.family", "the driver's packages would have different versions", mixed, hint)]
    wrong = ["%s would be %s" % item for item in sorted(ends.items()) if item[1] != family_version]
    for name, version in sorted(installed.items()):
        package = driver_names.parse(name) if driver_names.is_version_locked(name) else None
        if package is None or name in ends or name in gone or package.exact:
            continue
        same_branch = package.branch in (None, driver_names.branch(family_version))
        if ends and same_branch and driver_names.upstream(version) != family_version:
            wrong.append("%s would stay at %s" % (name, driver_names.upstream(version)))
    if not wrong:
        return []
    message = "not every package of the driver would be at %s" % family_version
    return [_problem("apt.family", message, wrong, "pin every package of the driver to one version")]


def _problem(code, message, because, hint):
    return {
        "code": code,
        "message": message.strip(),
        "because": [because] if isinstance(because, str) else list(because),
        "hint": hint,
    }
