# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What packages of a release need, by apt itself: an apt root of its own, with sources and keys of that release.

Nothing of this machine counts but apt's program and its way to the internet: another release, another processor, or a
Debian resolves as well. Lists are verified by apt against the keys before a line of them is used. Standard library only, any
Python from 3.8.
"""

from __future__ import annotations

import base64
import io
import os
import re
import shutil

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, host_tree, openpgp, scratch
from ansible_collections.gpu.provision.plugins.module_utils.mirror import index as mirror_index

_INST = re.compile(r"^Inst (\S+?)(?::\S+)?(?: \[[^\]]+\])? \((\S+) .*?\[([^\]]+)\]\)")
_TIMEOUT = 900


def resolve(args):
    """Return what a mirror must hold for sets of packages. Raises AptError; nothing is written but a folder in /tmp.

    args: codename, arch; sources: SourceSpecs of apt.query with ``path``, where the repository lies in the mirror; sets: lists
    of ``name=version`` or ``name`` that must fit together on one host; base: [[name, version, arch, provides]] that hosts have
    of no repository; present: root of a mirror whose own packages count too, or None; environment: the proxy.

    Returns {"packages": [{"name", "version", "arch", "path", "url", "sha256", "size", "repository", "places": [[suite,
    component]], "stanza"}], "missing": [{"name", "version", "have"}], "releases": {"PATH SUITE": text of InRelease or
    Release}, "signatures": {"PATH SUITE": text of Release.gpg}, "bases": {"PATH SUITE": URI}, "keys": {name of a source: base64}}.
    """
    with scratch.Folder("mirror") as work:
        os.chmod(work, 0o755)  # noqa: S103 - apt's _apt user reads keys and lists here
        with apt_query.proxy(args.get("environment")):
            return _resolve(work, args)


def _resolve(work, args):
    sources = [dict(source) for source in args["sources"]]
    for source in sources:
        source["key_data"] = _key(source)
    if args.get("present"):
        sources += present_sources(args["present"], sources)
    archs = [args["arch"]] + sorted(
        {item.split("=")[0].partition(":")[2] for names in args["sets"] for item in names} - {"", args["arch"]}
    )
    config = _write_root(work, sources, archs)
    _update(config)
    lists = _lists(work, sources, archs)
    asked = sorted({item for names in args["sets"] for item in names})
    available = _candidates_of(lists, {item.split("=")[0].split(":")[0] for item in asked})
    missing = _missing(asked, available)
    picked = {}
    if not missing:
        texts = [one["text"] for one in lists]
        _write_status(work, args.get("base") or [], mirror_index.names(texts))
        for names in args["sets"]:
            for key in _simulate(config, names):
                picked[key] = None
    return {
        "packages": _packages(lists, set(picked)),
        "missing": missing,
        "releases": _texts(work, sources, "InRelease", "Release"),
        "signatures": _texts(work, sources, "Release.gpg"),
        "bases": {
            _place(source, suite): _base(source, suite)
            for source in sources
            for suite in source["suites_list"]
            if not source.get("present")
        },
        "keys": {
            source["name"]: base64.b64encode(source["key_data"]).decode("ascii")
            for source in sources
            if source["key_data"] and not source.get("present")
        },
        "archs": archs,
    }


def _key(source):
    """Bytes of the key of a source: given, by fingerprint, or those of a keyring that lies here that have a fingerprint."""
    if source.get("signed_by"):
        try:
            data = openpgp.only(host_tree.read_file(source["signed_by"]), source["fingerprint"])
            if not data:
                raise ValueError("it has no key of the fingerprints %s" % " ".join(source["fingerprint"]))
            return data
        except (OSError, ValueError) as error:
            raise AptError(
                "mirror.no_key",
                "the key of %s is not here: %s" % (source["name"], source["signed_by"]),
                because=[str(error)],
                hint="name it with --archive-key FILE: the package ubuntu-keyring has it, every Ubuntu host too",
            ) from None
    data = apt_sources.key_bytes(source)
    if data is None:
        raise AptError(
            "mirror.no_key",
            "nobody says by which key %s is signed" % source["name"],
            hint="gpu-provision trusts no unknown key: give its key, or lock a host again that has the repository",
        )
    return data


def present_sources(root, sources):
    """The repositories of sources as they lie in a mirror that was signed anew, as sources of apt's.

    Only their indexes are read: packages that the originals dropped are found again. Trusted because this mirror's own
    manifest has their checksums.
    """
    found = []
    for source in sources:
        for suite in apt_sources.split_words(source.get("suites")) or ["/"]:
            folder = os.path.join(root, source["path"], "" if suite.endswith("/") else "dists/" + suite)
            if os.path.isfile(os.path.join(folder, "Release")):
                found.append(dict(source, name="present-%d" % len(found), suites=suite, present=root, key_data=None))
    return found


def _write_root(work, sources, archs):
    """Write the apt root; returns its apt.conf."""
    for folder in (
        "etc/sources.list.d",
        "etc/preferences.d",
        "etc/trusted.gpg.d",
        "lists/partial",
        "keys",
        "log",
        "cache/archives/partial",
        "copies",
    ):
        os.makedirs(os.path.join(work, folder))
    for source in sources:
        uri, key = source["uris"], None
        source["suites_list"] = apt_sources.split_words(source.get("suites")) or ["/"]
        if source.get("present"):
            uri = "file:" + _copy(work, source)
        else:
            key = os.path.join(work, "keys", source["name"] + ".gpg")
            with io.open(key, "wb") as handle:
                handle.write(source["key_data"])
            os.chmod(key, 0o644)
        source["uri_here"] = uri
        spec = dict(source, uris=uri, signed_by=None)
        text = apt_sources.render(spec, signed_by=key or False)
        if source.get("present"):
            text += "Trusted: yes\nAllow-Insecure: yes\nBy-Hash: no\n"
        _write(os.path.join(work, "etc/sources.list.d", source["name"] + ".sources"), text)
    _write(os.path.join(work, "status"), "")
    config = os.path.join(work, "apt.conf")
    lines = [
        "#clear APT::Update::Pre-Invoke;",
        "#clear APT::Update::Post-Invoke;",
        "#clear APT::Update::Post-Invoke-Success;",
        "#clear APT::Architectures;",
        "#clear APT::Default-Release;",
        'APT::Architecture "%s";' % archs[0],
        "APT::Architectures { %s };" % " ".join('"%s";' % arch for arch in archs),
        'Dir::Etc::sourcelist "/dev/null";',
        'Dir::Etc::sourceparts "%s/etc/sources.list.d";' % work,
        'Dir::Etc::preferences "/dev/null";',
        'Dir::Etc::preferencesparts "%s/etc/preferences.d";' % work,
        'Dir::Etc::trusted "/dev/null";',
        'Dir::Etc::trustedparts "%s/etc/trusted.gpg.d";' % work,
        'Dir::State::lists "%s/lists";' % work,
        'Dir::State::status "%s/status";' % work,
        'Dir::State::extended_states "%s/extended_states";' % work,
        'Dir::Cache "%s/cache";' % work,
        'Dir::Cache::archives "%s/cache/archives";' % work,
        'Dir::Log "%s/log";' % work,
        'Acquire::Languages "none";',
        'Acquire::GzipIndexes "false";',
        'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";',
        'Acquire::IndexTargets::deb::CNF::DefaultEnabled "false";',
        'Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";',
        'Acquire::AllowInsecureRepositories "false";',
        'APT::Get::AllowUnauthenticated "false";',
    ]
    environ = os.environ
    if environ.get("http_proxy") or environ.get("https_proxy"):
        lines.append(apt_files.render_proxy(environ.get("http_proxy", ""), environ.get("https_proxy", "")))
    _write(config, "\n".join(lines) + "\n")
    # another's proxy may have a password
    os.chmod(config, 0o600)
    return config


def _copy(work, source):
    """The indexes of a repository of the mirror, in the apt root: the folder of the mirror may be closed to apt's user."""
    target = os.path.join(work, "copies", source["name"])
    for suite in source["suites_list"]:
        inner = "" if suite.endswith("/") else os.path.join("dists", suite)
        old = os.path.join(source["present"], source["path"], inner)
        for folder, _, files in os.walk(old):
            below = os.path.relpath(folder, old)
            for name in files:
                if name in ("Release", "Packages", "Packages.gz"):
                    new = os.path.join(target, inner, below)
                    os.makedirs(new, exist_ok=True)
                    shutil.copyfile(os.path.join(folder, name), os.path.join(new, name))
    return target


def _update(config):
    argv = ["apt-get", "-c", config] + apt_common.option_args() + ["update"]
    result = apt_query.update(argv, _TIMEOUT)
    problems = apt_query.parse_update_errors(result.text)
    if result.rc == 0 and not problems:
        return
    code = problems[0]["code"] if problems else apt_query.classify(result.text)[0]
    raise AptError(
        code,
        "the repositories could not be read",
        because=[problem["message"] for problem in problems]
        or apt_query.error_lines(result.text)
        or [result.text[-400:]],
        hint="a mirror is filled on a host with internet access: --on HOST names it, gpu_proxy_http its proxy",
    )


def _lists(work, sources, archs):
    """Texts of all Packages lists, with where each belongs."""
    found = []
    for source in sources:
        for suite in source["suites_list"]:
            start = apt_query.list_name(source["uri_here"], suite)
            places = [("", start + "Packages")]
            if not suite.endswith("/"):
                places = [
                    (component, "%s%s_binary-%s_Packages" % (start, component, arch))
                    for component in apt_sources.split_words(source.get("components"))
                    for arch in archs
                ]
            for component, name in places:
                text = _read(os.path.join(work, "lists", name))
                if text:
                    found.append({"source": source, "suite": suite, "component": component, "text": text})
    return found


def _read(path):
    if not os.path.isfile(path):
        return ""
    # As it came, byte for byte: a signature is over it.
    return host_tree.read_text(path, 1 << 28, "surrogateescape")


def _candidates_of(lists, wanted):
    """{name: versions}, of the names wanted, newest first."""
    found = {}
    for one in lists:
        for stanza in mirror_index.stanzas(one["text"], wanted):
            fields = mirror_index.fields(stanza)
            found.setdefault(fields["Package"], set()).add(fields["Version"])
    return {name: sorted(versions, key=deb_version.key, reverse=True) for name, versions in found.items()}


def _missing(asked, available):
    missing = []
    for item in asked:
        name, _, version = item.partition("=")
        have = available.get(name.split(":")[0], [])
        if (version and version not in have) or not have:
            missing.append({"name": name, "version": version or None, "have": have[:8]})
    return missing


def _write_status(work, base, named):
    """What counts as installed: what hosts have that no repository has. So the closure is whole for any host."""
    lines = []
    for name, version, arch, provides in base:
        if name in named:
            continue
        lines += ["Package: " + name, "Status: install ok installed", "Architecture: " + arch, "Version: " + version]
        lines += ["Provides: " + provides] if provides else []
        lines += ["Maintainer: nobody", "Description: base", ""]
    # Not even a line break where nothing is left: apt takes it for a package without a name.
    _write(os.path.join(work, "status"), "".join(line + "\n" for line in lines))


def _simulate(config, names):
    argv = ["apt-get", "-c", config, "-s"] + apt_query.change_args(names, (), downgrade=True)
    result = apt_common.run(argv, _TIMEOUT)
    if result.rc != 0 or result.timed_out:
        code, message = apt_query.classify(result.text)
        raise AptError(
            code,
            "apt finds no way to install what is locked: %s" % message,
            because=apt_query.error_lines(result.text)[:12],
            hint="lock a verified host again: packages of two hosts may not fit together",
        )
    return [found.groups() for found in map(_INST.match, result.out.split("\n")) if found]


def _packages(lists, wanted):
    """Stanzas of the packages wanted ({(name, version, arch)}), each with every place where it is listed."""
    found, names = {}, {name for name, _, _ in wanted}
    for one in lists:
        source = one["source"]
        for stanza in mirror_index.stanzas(one["text"], names):
            fields = mirror_index.fields(stanza)
            key = (fields["Package"], fields["Version"], fields["Architecture"])
            if key not in wanted:
                continue
            name = os.path.normpath(fields["Filename"])
            if name.startswith(("/", "..")) or "SHA256" not in fields:
                raise AptError(
                    "mirror.odd_index", "%s is listed without a checksum, or outside its repository" % key[0]
                )
            path = "%s/%s" % (source["path"], name)
            row = found.setdefault(
                (path, fields["SHA256"]),
                {
                    "name": key[0],
                    "version": key[1],
                    "arch": key[2],
                    "path": path,
                    "sha256": fields["SHA256"],
                    "size": int(fields["Size"]),
                    "repository": source["path"],
                    "places": [],
                    "stanza": stanza,
                    "url": None if source.get("present") else source["uris"].split()[0].rstrip("/") + "/" + name,
                },
            )
            if row["url"] is None and not source.get("present"):
                row["url"] = source["uris"].split()[0].rstrip("/") + "/" + name
            if [one["suite"], one["component"]] not in row["places"]:
                row["places"].append([one["suite"], one["component"]])
    lost = sorted("%s %s" % key[:2] for key in wanted - {(r["name"], r["version"], r["arch"]) for r in found.values()})
    if lost:
        raise AptError("mirror.odd_index", "apt names packages that no list has", because=lost[:8])
    return sorted(found.values(), key=lambda row: row["path"])


def _texts(work, sources, *endings):
    """The verified files of each suite, as they came: {"PATH SUITE": text}."""
    found = {}
    for source in sources:
        for suite in source["suites_list"]:
            if source.get("present"):
                continue
            start = os.path.join(work, "lists", apt_query.list_name(source["uri_here"], suite))
            for ending in endings:
                text = _read(start + ending)
                if text:
                    found.setdefault(_place(source, suite), text)
    return found


def _place(source, suite):
    return "%s %s" % (source["path"], suite)


def _base(source, suite):
    uri = source["uris"].split()[0].rstrip("/")
    return uri if suite.endswith("/") else "%s/dists/%s" % (uri, suite)


def _write(path, text):
    with io.open(path, "w", encoding="utf-8") as handle:
        handle.write(text)
