# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Go back to a snapshot: what a rescue changed, and only that, as far as apt still has the earlier versions.

Three states are compared: the snapshot, what the rescue left (its last ``mark``) and now. What the rescue changed and
nobody has changed since goes back; what differs from both is named and left. Packages come first, with the sources that
work now (those of the snapshot may be what was broken), then holds, then files, then what is made from them. Never taken
back: the removal of a kernel, a hold on a package that is not there (it makes every later installation fail, G2), half-done
packages, and the pieces of a driver that no package owned.

``plan`` changes nothing; ``run`` takes a snapshot of its own first, so that an undo can be undone. Standard library only,
any Python from 3.8.
"""

from __future__ import annotations

import os
import shutil

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt import transaction as apt_transaction
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, driver_names, host_tree, own_files
from ansible_collections.gpu.provision.plugins.module_utils.rescue import common as rescue_common
from ansible_collections.gpu.provision.plugins.module_utils.rescue import snapshot as rescue_snapshot

_CHUNK = 300
# Files from which something else is made: (beginning of the path, what is made).
_MADE_FROM = (
    ("/etc/modprobe.d/", "initramfs"),
    ("/usr/lib/modprobe.d/", "initramfs"),
    ("/lib/modprobe.d/", "initramfs"),
    ("/etc/initramfs-tools/", "initramfs"),
    ("/etc/dracut.conf.d/", "initramfs"),
    ("/etc/modules", "initramfs"),
    ("/etc/ld.so.conf", "loader"),
    ("/etc/default/grub", "grub"),
    ("/etc/systemd/", "units"),
    ("/etc/apt/", "lists"),
    ("/usr/share/keyrings/", "lists"),
)


def main(args):
    """Entry of the fast read, as root: args["op"] is ``plan`` (default) with ``id``; see ``plan``."""
    args = dict(args)
    if args.pop("op", "plan") != "plan":
        raise AptError("undo.usage", "unknown operation")
    return plan(**args)


# --- plan


def plan(id=None):  # noqa: A002 - the word of the command line
    """Return what going back to a snapshot would change; changes nothing. id: None for the newest; see Host.find.

    {"id", "made", "reason", "finished", "install": ["name=version"], "remove": [names], "purge": [names whose
    configuration goes too], "hold", "release": [names], "auto": [names to mark], "manual": [names], "files":
    [{"path", "action": restore | remove}], "left": [{"what", "why"}], "changes": apt's answer, "problems": [as
    apt.query.judge], "nothing": bool}. Raises SnapshotError or AptError.
    """
    host = rescue_snapshot.Host()
    id_ = _target(host, id)
    manifest = host.manifest(id_)
    before = rescue_snapshot.read_packages(host.text(id_, "packages.tsv"))
    after, after_files = host.after(id_)
    packages = apt_common.read_status()
    native = apt_common.native_arch(packages)
    now = rescue_snapshot.read_packages("\n".join(host.package_rows()))
    before, after, now = (_named(rows, native) for rows in (before, after, now))
    wanted = package_changes(before, after, now)
    left = wanted.pop("left")
    left += _drop_missing(wanted, _available([item.partition("=")[0] for item in wanted["install"]]))
    wanted.update(_marks(host, id_, wanted, before, after, now, native))
    files, more = file_changes(manifest["files"], after_files, host)
    files = [c for c in files if c["action"] == "restore" or not _owners(c["path"]) - set(wanted["remove"])]
    changes, problems = _ask(wanted, packages) if wanted["install"] or wanted["remove"] else ([], [])
    return dict(
        wanted,
        id=id_,
        made=manifest["made"],
        reason=manifest["reason"],
        left=left + more,
        files=files,
        finished=not os.path.exists(host.inside(id_, "unfinished")),
        changes=changes,
        problems=problems,
        nothing=not (files or any(wanted.values())),
    )


def _target(host, id_):
    """The snapshot to go back to. An undo that was interrupted is gone on with, not undone."""
    found = host.find(id_)
    manifest = host.manifest(found)
    open_ = os.path.exists(host.inside(found, "unfinished"))
    if id_ is None and open_ and manifest.get("undo_of"):
        return host.find(manifest["undo_of"])
    return found


def _named(rows, native):
    """{selection name: row} of {(name, arch): row}; None stays None."""
    if rows is None:
        return None
    return {name if arch in ("", "all", native) else "%s:%s" % (name, arch): row for (name, arch), row in rows.items()}


def _version(row):
    """Version of a package of which something is on the disk, else None."""
    return None if row is None or row["state"] in ("not-installed", "config-files") else row["version"]


def package_changes(before, after, now):
    """Compare three readings, {selection name: row}; after may be None (a rescue that was interrupted before its first mark).

    Returns {"install", "remove", "purge", "hold", "release", "left"}; see plan. Pure.
    """
    result = {"install": [], "remove": [], "purge": [], "hold": [], "release": [], "left": []}
    for name in sorted(set(before) | set(now)):
        was, is_ = before.get(name), now.get(name)
        left = after.get(name) if after is not None else None
        mine = _is_mine(name, was, left, is_, after is not None)
        if _version(was) != _version(is_):
            _version_change(name, was, _version(is_), mine, result)
        elif _is_new(was) and is_ is not None and is_["state"] == "config-files" and (mine or _version(left)):
            # an undo that was interrupted between removing and this
            result["purge"].append(name)
        _hold_change(name, was, left, is_, after is not None, result)
    return result


def _is_mine(name, was, left, is_, known):
    """True when a rescue made this difference and nobody has changed it since."""
    if known:
        return _version(left) == _version(is_) and (_version(left) != _version(was) or was is None)
    bare = name.split(":")[0]
    return (
        driver_names.is_driver_package(bare) or cuda_names.parse(bare) is not None or bare.startswith("linux-headers-")
    )


def _is_new(was):
    """True for a package of which the snapshot knows nothing, not even configuration that was left."""
    return was is None or was["state"] == "not-installed"


def _version_change(name, was, new, mine, result):
    old, why = _version(was), apt_query.protection(name)
    if not mine:
        what = "%s: %s in the snapshot, %s now" % (name, old or "absent", new or "absent")
        result["left"].append({"what": what, "why": "somebody else changed it since"})
    elif old is None and why in ("it is a kernel package", "it is essential to the system"):
        result["left"].append({"what": name, "why": "it was installed since, and %s: it stays" % why})
    elif old is None:
        result["remove"].append(name)
        if _is_new(was):
            result["purge"].append(name)
    else:
        result["install"].append("%s=%s" % (name, old))


def _hold_change(name, was, left, is_, known, result):
    """Holds of packages that are there in the end."""
    held, holds = was is not None and was["want"] == "hold", is_ is not None and is_["want"] == "hold"
    if held == holds:
        return
    left_held = left is not None and left["want"] == "hold"
    if known and left_held != holds:
        result["left"].append({"what": "the hold of %s" % name, "why": "somebody else changed it since"})
    elif held and _version(was) is None:
        why = "the package is not installed, and such a hold makes later installations fail"
        result["left"].append({"what": "the hold of %s" % name, "why": why})
    elif held:
        result["hold"].append(name)
    elif _version(was) is not None:
        result["release"].append(name)


def _available(wanted):
    """{name: versions that a repository has} for these names, by apt."""
    available = {}
    for start in range(0, len(wanted), _CHUNK):
        argv = ["apt-cache"] + apt_common.option_args() + ["policy"] + wanted[start : start + _CHUNK]
        result = apt_common.run(argv, 120)
        if result.rc != 0:
            code, message = apt_query.classify(result.text)
            raise AptError(
                code,
                "apt cannot read its sources or lists: %s" % message,
                because=apt_query.error_lines(result.text),
                hint="repair apt first: provision diagnose names the cause",
            )
        for name, table in apt_query.parse_policy(result.out).items():
            available[name] = {row["version"] for row in table["versions"] if row["where"]}
    return available


def _drop_missing(wanted, available):
    """Take out what no repository has any more; the driver as a whole, since its parts go together. Returns the left."""
    missing = {}
    for item in wanted["install"]:
        name, _, version = item.partition("=")
        if version not in available.get(name, ()):
            missing[name] = version
    left = [
        {"what": "%s %s" % pair, "why": "no configured repository still has this version"}
        for pair in sorted(missing.items())
    ]
    if any(driver_names.is_version_locked(name.split(":")[0]) for name in missing):
        stays = [
            name for name in _all(wanted) if driver_names.is_driver_package(name.split(":")[0]) and name not in missing
        ]
        left += [{"what": name, "why": "it depends on those that are missing"} for name in stays]
        missing.update(dict.fromkeys(stays))
    wanted["install"] = [item for item in wanted["install"] if item.partition("=")[0] not in missing]
    for key in ("remove", "purge"):
        wanted[key] = [name for name in wanted[key] if name not in missing]
    wanted["hold"] = [name for name in wanted["hold"] if name not in missing]
    return left


def _all(wanted):
    return [item.partition("=")[0] for item in wanted["install"]] + wanted["remove"]


def _marks(host, id_, wanted, before, after, now, native):
    """auto and manual: what the snapshot says of packages that come back, or came back in an undo that was interrupted."""
    then, today = (
        {
            name if arch in ("", "all", native) else "%s:%s" % (name, arch)
            for name, arch in rescue_snapshot.read_auto(text)
        }
        for text in (host.text(id_, "extended_states"), host.extended_states())
    )
    coming = {item.partition("=")[0] for item in wanted["install"]}
    back = {
        name
        for name, row in before.items()
        if after is not None
        and _version(row)
        and _version(row) == _version(now.get(name))
        and _version(row) != _version(after.get(name))
        and (name in then) != (name in today)
    }
    found = sorted(coming | back)
    return {"auto": [n for n in found if n in then], "manual": [n for n in found if n not in then]}


def _ask(wanted, packages):
    unhold = ["all_driver"] + [name.split(":")[0] for name in _all(wanted)]
    answer = apt_query.simulate(install=wanted["install"], remove=wanted["remove"], unhold=unhold)
    if not answer["ok"]:
        return [], [
            {
                "code": answer["code"],
                "message": "apt finds no way back: %s" % answer["message"],
                "because": answer["because"],
                "hint": "correct what apt names; provision rescue HOST updates the driver instead",
            }
        ]
    asked = [item.partition("=")[0] for item in wanted["install"]]
    installed = {p.name: p.version for p in packages if p.present}
    essential = [p.name for p in packages if p.essential]
    problems = apt_query.judge(answer["changes"], wanted["remove"], None, asked, installed, essential, os.uname()[2])
    return answer["changes"], problems


def file_changes(entries, after, host):
    """Return ([{"path", "action"}], [{"what", "why"}]) of what files would change, and what is left.

    entries: of the manifest; after: {path: fingerprint} of the last mark or None; host: reads what is there now.
    """
    changes, left = [], []
    known = set()
    for entry in entries:
        path = entry["path"]
        known.add(path)
        is_ = rescue_snapshot.fingerprint(host.real(path))
        if is_ == entry["state"]:
            continue
        if entry["kind"] == "deleted":
            if is_ is None and entry["state"] is not None:
                why = "a piece of a driver that no package owned; its copy is in the snapshot"
                left.append({"what": path, "why": why})
            continue
        if is_ != after.get(path, entry["state"]) if after is not None else entry["kind"] == "watched":
            left.append({"what": path, "why": "somebody else changed it since"})
            continue
        changes.append({"path": path, "action": "restore" if entry["state"] is not None else "remove"})
    came = sorted(path for path, state in (after or {}).items() if path not in known and state is not None)
    for path in came:
        is_ = rescue_snapshot.fingerprint(host.real(path))
        if is_ is None:
            continue
        if is_ == after[path]:
            changes.append({"path": path, "action": "remove"})
        else:
            left.append({"what": path, "why": "it came with the rescue, and somebody else changed it since"})
    return changes, left


# --- run


def run(id=None, expect=None, check=False, lock_timeout=600, timeout=3600):  # noqa: A002
    """Go back. Returns {"changed", "id", "snapshot" (the one that undoes this), "done": [lines], "left", "warnings"}.

    expect: the ``changes`` of the plan that was shown; apt's answer must be the same. Raises SnapshotError or AptError.
    """
    found = plan(id)
    if found["problems"]:
        first = found["problems"][0]
        raise AptError(
            first["code"],
            "refused before anything was changed: " + first["message"],
            because=first["because"],
            hint=first["hint"],
            problems=found["problems"],
        )
    answer = {
        "changed": not found["nothing"],
        "id": found["id"],
        "snapshot": None,
        "done": [],
        "left": found["left"],
        "warnings": [],
        "plan": found,
    }
    if check or found["nothing"]:
        if not check:
            rescue_snapshot.finish(found["id"])
        return answer
    answer["snapshot"] = _own_snapshot(found)
    _packages(found, expect, lock_timeout, timeout, answer)
    _files(found, answer)
    _refresh(found, answer)
    rescue_snapshot.finish(answer["snapshot"])
    rescue_snapshot.finish(found["id"])
    return answer


def _own_snapshot(found):
    """The snapshot that undoes this undo; one that was interrupted has made it already."""
    host = rescue_snapshot.Host()
    newest = host.find()
    if os.path.exists(host.inside(newest, "unfinished")) and host.manifest(newest).get("undo_of") == found["id"]:
        return newest
    paths = [change["path"] for change in found["files"]]
    made = rescue_snapshot.take("undo of %s" % found["id"], paths, resume=False, undo_of=found["id"])
    return made["id"]


def _packages(found, expect, lock_timeout, timeout, answer):
    if any(found[key] for key in ("install", "remove", "hold", "release")):
        result = apt_transaction.run(
            {
                "install": found["install"],
                "remove": found["remove"],
                "hold": False,
                "extra_hold": found["hold"],
                "extra_release": found["release"],
                "expect": found["changes"] if expect is None else expect,
                "update_cache": False,
                "lock_timeout": lock_timeout,
                "timeout": timeout,
            }
        )
        answer["warnings"] += result["warnings"]
        for words, rows in (
            ("%d packages are restored", [c for c in result["changes"] if c["action"] != "remove"]),
            ("%d packages are removed again", [c for c in result["changes"] if c["action"] == "remove"]),
            ("%d are on hold again", result["held"]),
            ("%d are no longer on hold", result["unheld"]),
        ):
            if rows:
                answer["done"].append(words % len(rows))
    for verb in ("auto", "manual"):
        if found[verb]:
            rescue_common.command(["apt-mark", verb] + found[verb], 60)
    native = apt_common.native_arch(apt_common.read_status())
    rows = [apt_common.selection_name(p, native) for p in apt_common.read_status() if p.state == "config-files"]
    purged, warnings = rescue_common.purge_configuration([n for n in rows if n in found["purge"]], lock_timeout)
    answer["warnings"] += warnings
    if purged:
        answer["done"].append("purged the configuration of %d packages" % len(purged))
    rescue_snapshot.mark(answer["snapshot"])


def _files(found, answer):
    """Put files back as they were. Compared anew: the packages have changed some, and own others."""
    host = rescue_snapshot.Host()
    entries = {entry["path"]: entry for entry in host.manifest(found["id"])["files"]}
    for change in found["files"]:
        path = change["path"]
        if change["action"] == "remove":
            if not os.path.lexists(path) or _owners(path):
                # gone with its package, or a package that stays has it
                continue
            os.unlink(path)
        else:
            copy = host.inside(found["id"], "files") + path
            if rescue_snapshot.fingerprint(copy) != entries[path]["state"]:
                answer["left"].append({"what": path, "why": "its copy in the snapshot is damaged"})
                continue
            _restore(copy, entries[path])
        answer["done"].append("%s %s" % ("restored" if change["action"] == "restore" else "removed", path))


def _restore(copy, entry):
    """Put one copy back in one step, with mode and owner."""
    path = entry["path"]
    if not os.path.isdir(os.path.dirname(path)):
        os.makedirs(os.path.dirname(path), 0o755)
    if os.path.islink(copy):
        temporary = os.path.join(os.path.dirname(path), ".%s.gpu-provision" % os.path.basename(path))
        if os.path.lexists(temporary):
            os.unlink(temporary)
        os.symlink(os.readlink(copy), temporary)
        own_files.rename(temporary, path)
        return
    with own_files.replacing(path) as target, host_tree.open_file(copy) as source:
        shutil.copyfileobj(source, target)
        target.flush()
        os.fchown(target.fileno(), entry["uid"], entry["gid"])
        os.fchmod(target.fileno(), entry["mode"])


def _owners(path):
    """Names of packages that own a path, by dpkg: a file that came with a package goes with it."""
    result = apt_common.run(["dpkg-query", "-S", path], 60)
    return {
        name.strip()
        for line in result.out.splitlines()
        if result.rc == 0 and line.endswith(": " + path) and not line.startswith("diversion ")
        for name in line[: -len(": " + path)].split(",")
    }


def _refresh(found, answer):
    """Make anew what is made from the files that changed."""
    paths = [change["path"] for change in found["files"]]
    made = {what for path in paths for start, what in _MADE_FROM if path.startswith(start)}
    if "loader" in made:
        rescue_common.command(["ldconfig"], 120)
    if "units" in made:
        rescue_common.reload_units()
    if "grub" in made and rescue_common.has("update-grub"):
        rescue_common.command(["update-grub"], 300)
    if "initramfs" in made:
        rescue_common.rebuild_initramfs()
    if "lists" in made:
        argv = ["apt-get"] + apt_common.option_args() + ["update"]
        result = apt_query.update(argv, 900)
        if result.rc != 0:
            lines = apt_query.error_lines(result.text)
            answer["warnings"].append(
                "the lists could not be refreshed with the sources of the snapshot: %s" % (lines[0] if lines else "")
            )
