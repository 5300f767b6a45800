"""A mirror filled from repositories that gpg signed, with real apt, and what apt and pip take from it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import alone as apt_alone
from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.mirror import apt as mirror_apt
from ansible_collections.gpu.provision.plugins.module_utils.mirror import index as mirror_index
from provision.commands import mirror as command
from provision.errors import HostFailedError, ProvisionError, RefusedError, UsageError
from provision.inventory import mirror_layout
from provision.mirror.keys import signer
from provision.mirror.make import Maker
from provision.mirror.need import Need
from provision.mirror.store import Store, here
from tests.lab import aptrepo
from tests.lab.conda.wheels import wheel
from tests.lab.debfile import Package
from tests.unit.test_mirror import SUITES

needs_apt = pytest.mark.skipif(not (shutil.which("apt-get") and shutil.which("gpg")), reason="apt-get and gpg")


def test_apt_knows_our_own_sources_only_as_long_as_it_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(apt_sources, "PARTS", str(tmp_path))
    for name in ("gpu-provision-mirror.sources", "ubuntu.sources", "gpu-provision-old.list"):
        (tmp_path / name).write_text("Types: deb\n")
    monkeypatch.setenv("APT_CONFIG", "/of/the/caller")
    with apt_alone.within(True):
        path = Path(apt_common.environment()["APT_CONFIG"])
        dump = subprocess.check_output(
            ["apt-config", "dump"], env={"APT_CONFIG": str(path), "PATH": "/usr/bin"}, text=True
        )
        (parts,) = [line.split('"')[1] for line in dump.splitlines() if line.startswith("Dir::Etc::sourceparts ")]
        assert [entry.name for entry in Path(parts).iterdir()] == ["gpu-provision-mirror.sources"]
        assert 'Dir::Etc::sourcelist "/dev/null";' in dump and 'APT::Get::List-Cleanup "0";' in dump
    assert not path.exists() and "APT_CONFIG" not in apt_common.environment()
    with apt_alone.within(False):
        assert "APT_CONFIG" not in apt_common.environment()


@pytest.fixture(scope="session")
def key(tmp_path_factory):
    with_short_path = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    yield aptrepo.make_key(with_short_path, "Upstream")
    subprocess.run(["gpgconf", "--homedir", str(with_short_path / "gnupg"), "--kill", "all"], check=False)
    # The agent removes its sockets while this goes on.
    shutil.rmtree(with_short_path, ignore_errors=True)


@pytest.fixture(scope="session")
def own_key(tmp_path_factory):
    return signer("new", tmp_path_factory.mktemp("own"))


def packages(*versions):
    for version in versions:
        yield Package(
            "driver",
            version,
            suites=("noble-updates",),
            component="restricted",
            fields={"Depends": "tool (>= 1), libc6"},
        )
    yield Package("tool", "2", suites=("noble",), fields={"Depends": "helper | other"})
    yield Package("helper", "1", arch="all", suites=("noble", "noble-updates"))
    yield Package("unneeded", "1", suites=("noble",))


class Upstreams:
    """An archive in a folder, and a Need of it."""

    def __init__(self, root, key):
        self.root, self.key = root, key

    def publish(self, *versions):
        index = aptrepo.Index()
        for suite in SUITES.split():
            index.paragraphs[suite] = {part: [] for part in mirror_layout.COMPONENTS.split()}
        aptrepo.add_to_pool(self.root, list(packages(*versions)), index)
        aptrepo.publish(self.root, index, self.key, origin="Ubuntu", label="Ubuntu", codename="noble", version="24.04")

    def need(self, *asked):
        source = {
            "name": "archive-0",
            "path": "ubuntu",
            "uris": f"file:{self.root}/",
            "suites": SUITES,
            "components": mirror_layout.COMPONENTS,
            "key": self.key.public.read_text(),
        }
        return Need("24.04", "amd64", "noble", [list(asked)], [source], [["libc6", "2.39", "amd64", ""]])


@pytest.fixture
def upstream(tmp_path, key):
    found = Upstreams(tmp_path / "upstream", key)
    found.publish("1.0", "2.0")
    return found


def fill(root, need, own=None, **options):
    return Maker(Store(str(root), here, {}), own, **options).run([need], [])


def offered(root, key_text, *asked):
    """What apt finds in a mirror, as a host would ask it."""
    source = {
        "name": "m",
        "path": "ubuntu",
        "uris": f"file:{root}/ubuntu/",
        "suites": SUITES,
        "components": mirror_layout.COMPONENTS,
        "key": key_text,
    }
    base = [["libc6", "2.36", "amd64", ""]]
    args = {"codename": "noble", "arch": "amd64", "sources": [source], "sets": [list(asked)], "base": base}
    return mirror_apt.resolve(args)


@needs_apt
@pytest.mark.parametrize("own", [False, True], ids=["originals", "signed"])
def test_everything_that_is_needed_and_nothing_else(upstream, own_key, tmp_path, own):
    root, mine = tmp_path / "mirror", own_key if own else None
    made = fill(root, upstream.need("driver=1.0"), mine)
    assert made.packages == {"24.04 amd64": {"driver": "1.0", "tool": "2", "helper": "1"}}
    assert {path.name for path in root.rglob("*.deb")} == {
        "driver_1.0_amd64.deb",
        "tool_2_amd64.deb",
        "helper_1_all.deb",
    }
    assert (made.changed, made.files) == (True, sum(1 for path in root.rglob("*") if path.is_file()) - 1)
    text = own_key.public if own else upstream.key.public.read_text()
    answer = offered(root, text, "driver=1.0")
    assert not answer["missing"] and len(answer["packages"]) == 3
    with pytest.raises(apt_common.AptError):
        offered(root, upstream.key.public.read_text() if own else own_key.public, "driver=1.0")
    # The originals' index names what is not here; one of our own does not.
    assert bool(offered(root, text, "unneeded")["missing"]) is own

    again = fill(root, upstream.need("driver=1.0"), mine)
    assert (again.fetched, again.changed) == (0, False)
    assert command.verify(str(root)).ok


@needs_apt
def test_what_a_disk_lost_is_found_and_comes_back(upstream, tmp_path):
    root = tmp_path / "mirror"
    fill(root, upstream.need("driver=1.0"))
    damaged, gone = sorted(root.rglob("*.deb"))[:2]
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    gone.unlink()
    (root / "stray").write_text("?")
    checked = command.verify(str(root))
    assert checked.exit_code == 3 and checked.extra == ["stray"]
    assert {error.message.split(":")[0] for error in checked.errors} == {
        str(path.relative_to(root)) for path in (damaged, gone)
    }
    assert fill(root, upstream.need("driver=1.0")).fetched == 2
    assert command.verify(str(root)).ok


@needs_apt
def test_a_run_that_was_cut_off_goes_on(upstream, tmp_path):
    root = tmp_path / "mirror"
    need = upstream.need("driver=1.0")
    store = Store(str(root), here, {})
    store.ask("open")
    answer = store.resolve(
        {"codename": "noble", "arch": "amd64", "sources": need.sources, "sets": need.sets, "base": need.base}
    )
    part = store.ask("fetch", files=answer["packages"], budget=-1)
    assert len(part["left"]) == 3 and not part["done"]
    store.ask("fetch", files=answer["packages"][:1])
    assert fill(root, need).packages["24.04 amd64"]["driver"] == "1.0"
    assert not (root / ".partial").exists()


@needs_apt
def test_a_version_that_the_originals_dropped_stays_in_the_mirror(upstream, own_key, tmp_path):
    kept, signed = tmp_path / "kept", tmp_path / "signed"
    fill(kept, upstream.need("driver=1.0"))
    fill(signed, upstream.need("driver=1.0"), own_key)
    shutil.rmtree(upstream.root)
    upstream.publish("2.0", "3.0")
    again = fill(kept, upstream.need("driver=1.0"))
    assert "driver 1.0" in again.stayed[0] and (again.fetched, again.changed) == (0, False)
    assert not fill(signed, upstream.need("driver=1.0"), own_key).fetched
    with pytest.raises(HostFailedError) as gone:
        fill(tmp_path / "new", upstream.need("driver=1.0"))
    assert gone.value.issue.code == "mirror.version_gone" and "there is 3.0, 2.0" in gone.value.issue.because[0]
    # One that is signed anew has both; the lock that moves on takes the old one along until it is pruned.
    fill(signed, upstream.need("driver=3.0"), own_key)
    for version in ("1.0", "3.0"):
        assert not offered(signed, own_key.public, f"driver={version}")["missing"]
    pruned = fill(signed, upstream.need("driver=3.0"), own_key, prune=True)
    assert any(path.endswith("driver_1.0_amd64.deb") for path in pruned.removed)
    assert offered(signed, own_key.public, "driver=1.0")["missing"] and command.verify(str(signed)).ok


@needs_apt
def test_refusals(upstream, own_key, tmp_path):
    root = tmp_path / "mirror"
    fill(root, upstream.need("driver=1.0"))
    with pytest.raises(RefusedError) as other:
        fill(root, upstream.need("driver=1.0"), own_key)
    assert other.value.issue.code == "mirror.other_signature"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("!")
    for folder, need, code in (
        (foreign, upstream.need("driver=1.0"), "mirror.not_ours"),
        (tmp_path / "new", upstream.need("driver=9.9"), "mirror.version_gone"),
        (tmp_path / "new", upstream.need("nothing"), "mirror.version_gone"),
    ):
        with pytest.raises(ProvisionError) as refused:
            fill(folder, need)
        assert refused.value.issue.code == code and refused.value.issue.hint
    with pytest.raises(HostFailedError):
        command.verify(str(tmp_path / "none"))
    wrong = upstream.need("driver=1.0")
    wrong.sources[0]["key"] = own_key.public
    with pytest.raises(HostFailedError) as unsigned:
        fill(tmp_path / "new", wrong)
    assert unsigned.value.issue.code.startswith("apt.")


def test_the_key_is_made_once_and_is_its_owners_alone(own_key):
    assert own_key.made and own_key.file.stat().st_mode & 0o777 == 0o600
    again = signer("new", own_key.file.parent)
    assert (again.fingerprint, again.made) == (own_key.fingerprint, False)
    assert mirror_index.unsigned(own_key.clear("Origin: x\n- y\n")).strip() == "Origin: x\n- y"
    with pytest.raises(UsageError):
        signer("nobody@example.invalid")


def test_pip_takes_wheels_from_the_index_of_a_mirror(tmp_path):
    name, content = wheel("tiny", "1.0", {"tiny.py": b"x = 1\n"})
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / name).write_bytes(content)
    root, files = tmp_path / "mirror", command._wheels(str(tmp_path / "wheels"))
    made = Maker(Store(str(root), here, {})).run([], [], files)
    assert made.changed and not Maker(Store(str(root), here, {})).run([], [], files).changed
    pip = [sys.executable, "-m", "pip", "--isolated", "download", "--no-deps", "--dest", str(tmp_path / "got")]
    done = subprocess.run(
        [*pip, "--index-url", f"file://{root}/conda/simple", "tiny==1.0"], capture_output=True, text=True
    )
    assert done.returncode == 0 and (tmp_path / "got" / name).read_bytes() == content, done.stderr
    with pytest.raises(UsageError):
        command._wheels(str(root))
