"""Repairs in place, with real apt and dpkg."""

from __future__ import annotations

import shutil

import pytest

from . import packages
from .packages import OLD, names, pinned
from .rootfs import Repo, Root

pytestmark = pytest.mark.rootfs


def step(root: Root, action: str, check: bool = False, **args: object) -> dict[str, object]:
    """Carry one step out; returns its own answer."""
    done = root.module("rescue_step", check=check, steps=[{"action": action, "args": args}], lock_timeout=20)
    assert "steps" in done, done
    (answer,) = done["steps"]
    return dict(answer)


def test_what_was_cut_off_is_finished_and_its_holds_stay(root: Root, repo: Repo) -> None:
    """B4: a postinst fails; dpkg is asked in vain until the cause is gone."""
    repo.add("lab-tool", "1.0")
    packages.driver(repo, "550", OLD, postinst="[ -e /cured ] || exit 10")
    repo.publish()
    root.module("apt_sources", **repo.spec())
    failed = root.module("apt_transaction", install=pinned("550", OLD), update_cache=True, reserve_mib=1)
    assert failed["code"] == "apt.dpkg_failed", failed
    assert root.selections()["nvidia-dkms-550-open"] == f"hF {OLD}"

    answer = step(root, "dpkg.configure")
    assert (answer["ok"], answer["changed"]) == (False, False), answer
    assert answer["code"] == "apt.dpkg_failed" and answer["hint"]
    told = step(root, "dpkg.configure", check=True)
    assert told["changed"] and "nvidia-dkms-550-open" in str(told["said"])
    root.write("/cured", "")
    done = step(root, "dpkg.configure")
    assert done["ok"] and done["changed"], done
    now = root.selections()
    assert {name: now[name] for name in names("550")} == dict.fromkeys(names("550"), f"hi {OLD}")
    assert not step(root, "dpkg.configure")["changed"]


def test_what_an_unfinished_package_waits_for_is_fetched(host: Root, repo: Repo) -> None:
    """A .deb put in with dpkg -i, without what it depends on."""
    repo.add("lab-base", "1.0")
    repo.add("lab-top", "1.0", Depends="lab-base")
    repo.publish()
    host.sh("apt-get -q update && cd /tmp && apt-get -q download lab-top && dpkg -i lab-top_*.deb", check=False)
    assert host.selections()["lab-top"] == "iU 1.0"
    before = host.selections()
    done = step(host, "dpkg.configure")
    assert done["ok"] and done["changed"], done
    assert host.selections() == {**before, "lab-top": "ii 1.0", "lab-base": "ii 1.0"}


def test_a_removal_is_no_way_to_finish(host: Root, repo: Repo) -> None:
    """apt's own --fix-broken would take the package away again: that is not asked for."""
    repo.add("lab-top", "1.0", Depends="lab-gone")
    repo.publish()
    host.sh("apt-get -q update && cd /tmp && apt-get -q download lab-top && dpkg -i lab-top_*.deb", check=False)
    before = host.selections()
    answer = step(host, "dpkg.configure")
    assert not answer["ok"], answer
    assert host.selections() == before


def test_holds_are_lifted_and_apt_installs_again(host: Root, repo: Repo) -> None:
    repo.add("lab-libs", "1.0")
    repo.publish()
    host.sh("apt-get -q update; apt-mark hold lab-libs lab-tool")
    assert "held" in host.sh("apt-get -q install -y lab-libs 2>&1", check=False).lower()
    done = step(host, "holds.clear", packages=["lab-libs"])
    assert done["changed"], done
    assert host.sh("apt-mark showhold").split() == sorted([*names("550"), "lab-tool"])
    host.sh("apt-get -q install -y lab-libs")
    assert not step(host, "holds.clear", packages=["lab-libs"])["changed"]


def test_sources_that_contradict_each_other(host: Root) -> None:
    source = host.sh("cat /etc/apt/sources.list.d/*.sources")
    uri = next(line.split()[1] for line in source.splitlines() if line.startswith("URIs:"))
    host.write("/etc/apt/sources.list.d/zz.list", f"deb {uri} /\n")
    assert "Conflicting values" in host.sh("apt-get update 2>&1", check=False)
    done = step(host, "sources.drop", entries=[{"file": "/etc/apt/sources.list.d/zz.list", "line": 1}])
    assert done["changed"], done
    host.sh("apt-get -q update")
    assert not step(host, "sources.drop", entries=[{"file": "/etc/apt/sources.list.d/zz.list", "line": 1}])["changed"]


def test_lists_are_fetched_anew_or_come_back(host: Root, repo: Repo) -> None:
    lists = "ls /var/lib/apt/lists | grep -v -e lock -e partial"
    before = host.sh(lists)
    host.sh("rm /var/lib/apt/lists/*_Packages*")
    done = step(host, "lists.clean")
    assert done["ok"], "\n".join(done["said"])
    assert host.sh(lists) == before
    assert OLD in host.sh("apt-cache show nvidia-utils-550")
    # A list of a file: repository is a link to its file, so its name is all that can come back here.
    shutil.rmtree(repo.folder)
    answer = step(host, "lists.clean")
    assert not answer["ok"] and answer["code"] == "apt.fetch", answer
    assert host.sh(lists) == before


def test_old_kernels_make_room(host: Root, repo: Repo) -> None:
    for kernel in ("6.8.0-40-generic", "6.8.0-41-generic"):
        repo.add(f"linux-image-{kernel}", "6.8.0")
        repo.add(f"linux-modules-{kernel}", "6.8.0")
        host.write(f"/boot/initrd.img-{kernel}", "x" * 4096)
    repo.publish()
    installed = "linux-image-6.8.0-40-generic linux-modules-6.8.0-40-generic linux-image-6.8.0-41-generic"
    host.sh(f"apt-get -q update; apt-get -q install -y {installed} && touch /boot/vmlinuz-6.8.0-41-generic")
    newest = step(host, "boot.room", packages=["linux-image-6.8.0-41-generic"])
    assert not newest["ok"] and newest["code"] == "rescue.running_kernel", newest
    foreign = step(host, "boot.room", packages=["lab-tool"])
    assert not foreign["ok"] and host.selections()["lab-tool"] == "ii 1.0", foreign
    done = step(host, "boot.room", packages=["linux-image-6.8.0-40-generic", "linux-modules-6.8.0-40-generic"])
    assert done["ok"] and done["changed"], done
    there = host.sh("dpkg-query -W -f '${db:Status-Abbrev} ${Package}\\n' 'linux-*'").splitlines()
    assert there == ["ii  linux-image-6.8.0-41-generic"]
    assert host.sh("ls /boot").split() == ["initrd.img-6.8.0-41-generic", "vmlinuz-6.8.0-41-generic"]
    kept = host.sh("find /var/lib/gpu-provision/backup -name 'initrd*'").split()
    assert len(kept) == 1 and kept[0].endswith("/boot/initrd.img-6.8.0-40-generic")


def test_what_a_removal_took_along_comes_back_and_nothing_moves(host: Root, repo: Repo) -> None:
    """G8: by exact names; what would move another package is refused, what nobody offers is named."""
    repo.add("nvidia-container-toolkit", "1.18.0-1", Depends="lab-base")
    repo.add("lab-base", "1.0")
    repo.add("lab-rival", "1.0", Conflicts="lab-tool")
    repo.publish()
    host.sh("apt-get -q update")
    before = host.selections()
    assert step(host, "packages.install", check=True, packages=["nvidia-container-toolkit"])["changed"]
    assert host.selections() == before
    done = step(host, "packages.install", packages=["nvidia-container-toolkit"])
    assert done["ok"] and done["changed"], done
    after = {**before, "lab-base": "ii 1.0", "nvidia-container-toolkit": "ii 1.18.0-1"}
    assert host.selections() == after
    assert not step(host, "packages.install", packages=["nvidia-container-toolkit"])["changed"]
    refused = step(host, "packages.install", packages=["lab-rival"])
    assert not refused["ok"] and refused["code"] == "apt.removes" and "lab-tool" in str(refused["said"]), refused
    gone = step(host, "packages.install", packages=["linux-image-6.8.0-1010-nvidia"])
    assert not gone["ok"] and gone["code"] == "apt.not_offered", gone
    assert host.selections() == after
    odd = step(host, "packages.install", packages=["-o=x"])
    assert odd["code"] == "rescue.usage", odd
