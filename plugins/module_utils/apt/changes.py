# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What a transaction changes, as data: what is done, half done, what differs between two readings, which holds to write.

Pure functions over dpkg's status. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names


def packages_done(packages, install, remove):
    """True when every ``name=version`` is installed, nothing to remove is there, and dpkg has nothing unfinished."""
    by_name = {}
    native = apt_common.native_arch(packages)
    for package in packages:
        if package.arch in ("", "all", native):
            by_name[package.name] = package
        by_name["%s:%s" % (package.name, package.arch)] = package
        if package.unfinished:
            return False
    for item in install:
        name, _, version = item.partition("=")
        package = by_name.get(name)
        if package is None or not package.installed or (version and package.version != version):
            return False
    return not present_names(packages, remove)


def half_unpacked(packages, install, others=()):
    """Lists of "name=version" that dpkg began to unpack and apt must unpack again: ours, and those of other people.

    Apt of Ubuntu 24.04 takes them for installed and lets what depends on them fail. install: what is asked for; where that
    is another version, its installation mends it. others: names that are ours too.
    """
    asked = dict(item.partition("=")[::2] for item in install)
    ours, foreign = [], []
    for p in packages:
        broken = p.present and p.version and (p.flag == "reinstreq" or p.state == "half-installed")
        if broken and asked.get(p.name, "") in ("", p.version):
            own = p.name in asked or p.name in others or driver_names.is_driver_package(p.name)
            (ours if own else foreign).append("%s=%s" % (p.name, p.version))
    return [names for names in (ours, foreign) if names]


def half_purged(packages, others=()):
    """Names of the driver's and other packages that dpkg was cut off at just before it forgot them.

    dpkg selects for purge what it removes and what leaves no configuration behind (removal_bulk in its remove.c).
    """
    native = apt_common.native_arch(packages)
    return [
        apt_common.selection_name(p, native)
        for p in packages
        if p.want == "purge"
        and p.state == "config-files"
        and (p.name in others or driver_names.is_driver_package(p.name))
    ]


def present_names(packages, wanted):
    """Those of the wanted names of which something is on the disk, in their order."""
    present = {p.name for p in packages if p.present} | {"%s:%s" % (p.name, p.arch) for p in packages if p.present}
    return [name for name in wanted if name in present]


def holds_from_status(packages, hold, release=False, extra_hold=(), held_before=(), extra_release=()):
    """Return [(name, selection)] to write, so that exactly the right packages are on hold; empty when all is right.

    hold: every present driver package, by exact name; release: the driver's holds are lifted instead. extra_hold,
    extra_release: names besides them. held_before: what else was on hold. Holds on packages that are not there are
    always cleared within the driver's names and the extra ones: they make later installs fail (G2).
    """
    native = apt_common.native_arch(packages)
    extra, free, before = set(extra_hold), set(extra_release), set(held_before)
    selections = []
    for package in packages:
        driver = driver_names.is_driver_package(package.name)
        name = apt_common.selection_name(package, native)
        if not package.present:
            if package.held and (driver or package.name in extra or package.name in free):
                selections.append((name, "deinstall" if package.state == "config-files" else "purge"))
            continue
        wanted = (hold and driver) or package.name in extra
        if (release and driver) or package.name in free:
            if package.held:
                selections.append((name, "install"))
        elif (wanted or package.name in before) and not package.held and package.want != "deinstall":
            selections.append((name, "hold"))
    return selections


def restore_holds(journal, packages, write):
    """Hold again by a journal, through write(selections). Returns the names that are on hold afterwards."""
    # A failed removal leaves "deinstall": that request is over, the package is still there.
    for package in packages:
        if package.want in ("deinstall", "purge") and package.present:
            package.want = "install"
    selections = holds_from_status(
        packages,
        journal["hold"],
        journal["release"],
        journal["extra_hold"],
        journal["held_before"],
        journal.get("extra_release") or (),
    )
    write(selections)
    now = {p.name for p in packages if p.held} | {name.split(":")[0] for name, how in selections if how == "hold"}
    return sorted(now - {name.split(":")[0] for name, how in selections if how != "hold"})


def differences(before, after):
    """Return the changes between two readings of dpkg's status, as simulate words them."""

    def table(packages):
        native = apt_common.native_arch(packages)
        return {apt_common.selection_name(p, native): p for p in packages if p.present}

    old, new = table(before), table(after)
    changes = []
    for name in sorted(set(old) | set(new)):
        was, now = old.get(name), new.get(name)
        if was is not None and now is not None and (was.version, was.unfinished) == (now.version, now.unfinished):
            continue
        if now is None:
            action = "remove"
        elif was is None:
            action = "install"
        else:
            action = apt_query.change_action(was.version, now.version)
        changes.append(
            {
                "action": action,
                "name": name,
                "version": now.version if now else None,
                "from_version": was.version if was else None,
            }
        )
    return changes


def applied(packages, changes):
    """Return the packages as they would be after the changes of a simulation."""
    native = apt_common.native_arch(packages)
    table = {apt_common.selection_name(p, native): p for p in packages}
    for change in changes:
        name, _, arch = change["name"].partition(":")
        was = table.get(change["name"])
        fields = {
            "Package": name,
            "Architecture": arch or (was.arch if was else "all"),
            "Version": change["version"],
            "Status": "install ok installed" if change["version"] else "deinstall ok config-files",
        }
        table[change["name"]] = apt_common.Installed(fields)
        if was is not None and was.held and change["version"]:
            table[change["name"]].want = "hold"
    return list(table.values())


def diff_text(packages, held, names_shown):
    """Return one line for each present package of the given names: name, version, and whether it is on hold."""
    native = apt_common.native_arch(packages)
    lines = []
    for package in packages:
        if package.present and package.name in names_shown:
            state = " (%s)" % package.state if package.unfinished else ""
            hold = " held" if package.name in held else ""
            lines.append("%s %s%s%s\n" % (apt_common.selection_name(package, native), package.version, state, hold))
    return "".join(sorted(lines))


def compare_with_plan(expect, changes):
    """Return what differs between a plan's changes and a simulation, as lines; empty when they agree."""

    def table(items):
        return {item["name"]: (item["action"], item.get("version")) for item in items}

    planned, now = table(expect), table(changes)
    lines = []
    for name in sorted(set(planned) | set(now)):
        if planned.get(name) != now.get(name):
            lines.append("%s: planned %s, now %s" % (name, _describe(planned.get(name)), _describe(now.get(name))))
    return lines


def without_finished(expect, finished, packages):
    """Return a plan's changes without those that are done already: by finishing what an earlier run had begun.

    finished: what that changed, by name; packages: as they are now. A package that is elsewhere than planned stays.
    """
    native = apt_common.native_arch(packages)
    now = {apt_common.selection_name(p, native): p.version for p in packages if p.present}
    return [
        change
        for change in expect
        if change["name"] not in finished or now.get(change["name"]) != change.get("version")
    ]


def _describe(change):
    return "nothing" if change is None else " ".join(part for part in change if part)
