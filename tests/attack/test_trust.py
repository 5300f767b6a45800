"""Trust comes from the catalog and the inventory, not from the party that is checked.

Sources of inventories, archives that unpack to more than they may, key rings against real gpgv, and programs of others.
"""

import gzip
import io
import re
import tarfile
from pathlib import Path

import pytest
import yaml
from jinja2 import Environment

from provision.errors import HostFailedError, ProvisionError, UsageError
from provision.pull import source as pulling
from provision.pull.source import Source, fetch
from provision.pull.unpack import BadArchiveError, unpack

ROOT = Path(__file__).parents[2]
SHA, COMMIT = "a" * 64, "b" * 40

# --- sources of inventories

UNPROVEN = [
    Source("http://h.example/inventory.tar.gz"), Source("http://h.example/x.tgz", version=COMMIT),
    Source("http://h.example/x.tar.gz", verify_commit=True), Source("http://h.example/fleet.git"),
    Source("http://h.example/fleet.git", version="main"), Source("http://h.example/fleet.git", version=COMMIT[:12]),
    Source("http://h.example/fleet.git", sha256=SHA), Source("git://h.example/fleet.git"),
    Source("git://h.example/fleet.git", version="v1.0"), Source("http://h.example/x.tar.gz?y", sha256=SHA),
]  # fmt: skip
NO_SOURCE = [
    Source(url) for url in (
        "", "HTTP://h.example/x.tar.gz", "ext::sh -c id", "file://h.example/x.tar.gz", "ftp://h.example/x.tar.gz", "fd::1",
        "-u", "git@h.example::x", "relative/path", "http+git://h/x", "javascript:1", " https://h.example/x.git",
    )
]  # fmt: skip
PROVEN = [
    Source("https://h.example/x.tar.gz"), Source("https://h.example/fleet.git"), Source("ssh://git@h.example/fleet.git"),
    Source("git@h.example:fleet.git"), Source("/srv/fleet"), Source("file:///srv/x.tar.gz"),
    Source("http://h.example/x.tar.gz", sha256=SHA), Source("http://h.example/fleet.git", version=COMMIT),
    Source("git://h.example/fleet.git", version=SHA), Source("git://h.example/fleet.git", verify_commit=True),
]  # fmt: skip


def of_role(source):
    """Whether the role's own rule, which runs on the controller, takes a source."""
    tasks = yaml.safe_load((ROOT / "roles/gpu_pull/tasks/install.yml").read_text())
    (task,) = [one for one in tasks if "__gpu_pull_safe" in one.get("vars", {})]
    jinja = Environment(autoescape=True)
    jinja.tests["match"] = lambda text, pattern: bool(re.match(pattern, text))
    jinja.filters["bool"] = bool
    rule = jinja.compile_expression(task["ansible.builtin.assert"]["that"])
    return rule(
        gpu_pull_source=source.url, gpu_pull_version=source.version, gpu_pull_sha256=source.sha256,
        gpu_pull_verify_commit=source.verify_commit, **task["vars"],
    )  # fmt: skip


@pytest.mark.parametrize("source", UNPROVEN + NO_SOURCE, ids=lambda one: f"{one.url} {one.version[:6]}")
def test_an_inventory_from_nobody_in_particular_is_refused(source, tmp_path):
    with pytest.raises(UsageError) as refused:
        fetch(source, tmp_path / "state")
    assert refused.value.issue.code == ("usage.source_unproven" if source in UNPROVEN else "usage.source")
    assert refused.value.issue.hint and not (tmp_path / "state").exists()
    assert not of_role(source)


@pytest.mark.parametrize("source", PROVEN, ids=lambda one: f"{one.url} {one.version[:6]}")
def test_an_inventory_from_a_proven_sender_or_by_its_content_is_taken(source):
    pulling.refuse_unproven(source)
    assert of_role(source)


def test_a_checksum_that_is_none_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no checksum"):
        fetch(Source("https://h.example/x.tar.gz", sha256="abc"), tmp_path)


def test_https_does_not_lead_to_http():
    with pytest.raises(OSError, match="not https"):
        pulling._Encrypted().redirect_request(
            pulling.urllib.request.Request("https://h.example/x.tar.gz"), None, 302, "Found", {}, "http://h.example/x.tar.gz"
        )  # fmt: skip
    allowed = pulling._Encrypted().redirect_request(
        pulling.urllib.request.Request("https://h.example/x.tar.gz"), None, 302, "Found", {}, "https://h.example/y.tar.gz"
    )  # fmt: skip
    assert allowed.full_url.endswith("/y.tar.gz")


def test_a_repository_that_sends_another_commit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pulling, "_run", lambda source, folder, *words: "c" * 40)
    with pytest.raises(HostFailedError, match="another commit"):
        fetch(Source("https://h.example/fleet.git", version=COMMIT), tmp_path)


# --- archives


def packed(*entries, mode="w"):
    """A .tar.gz as a file in memory. entries: TarInfo, or (name, bytes)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.GNU_FORMAT) as archive:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry, io.BytesIO(b"\0" * (entry.size if entry.isfile() else 0)))
            else:
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                archive.addfile(info, io.BytesIO(entry[1]))
    return io.BytesIO(gzip.compress(out.getvalue(), 1))


def info(name, kind=tarfile.REGTYPE, size=0, link=""):
    found = tarfile.TarInfo(name)
    found.type, found.size, found.linkname = kind, size, link
    return found


def header(kind, size):
    """The start of a tar that says that a header entry of so many bytes follows, and so many zeros."""
    entry = info("x", kind, size)
    return io.BytesIO(gzip.compress(entry.tobuf() + b"\0" * size, 1))


BAD = {
    "outside": packed(("../x", b"")), "outside, deep": packed(("a/../../x", b"")), "absolute": packed(("/etc/x", b"")),
    "symbolic link": packed(info("a", tarfile.SYMTYPE, link="b")),
    "through a link": packed(info("a", tarfile.SYMTYPE, link="/tmp"), ("a/x", b"")),
    "hard link": packed(("b", b""), info("a", tarfile.LNKTYPE, link="b")), "character device": packed(info("a", tarfile.CHRTYPE)),
    "block device": packed(info("a", tarfile.BLKTYPE)), "FIFO": packed(info("a", tarfile.FIFOTYPE)),
    "sparse": packed(info("a", tarfile.GNUTYPE_SPARSE)), "many entries": packed(*[(f"f{i}", b"") for i in range(30)]),
    "large file": packed(info("a", size=3 << 20)), "large in parts": packed(*[info(str(i), size=1 << 19) for i in range(5)]),
    "large long name": header(tarfile.GNUTYPE_LONGNAME, 3 << 20), "large pax header": header(tarfile.XHDTYPE, 3 << 20),
    "names within names": io.BytesIO(gzip.compress((info("x", tarfile.GNUTYPE_LONGNAME, 1).tobuf() + b"y" + b"\0" * 511) * 1800)),
    "a file twice": packed(("a", b"1"), ("a", b"2")), "a file as a folder": packed(("a", b"1"), ("a/b", b"2")),
    "no gzip": io.BytesIO(b"<html>"), "empty": io.BytesIO(b""), "cut off": io.BytesIO(packed(("a", b"x" * 9000)).getvalue()[:40]),
    "bomb": io.BytesIO(gzip.compress(bytes(50 << 20))), "bomb in members": io.BytesIO(gzip.compress(bytes(1 << 20)) * 9),
    "xz": io.BytesIO(b"\xfd7zXZ\x00" + b"\0" * 99), "zip": io.BytesIO(b"PK\x03\x04" + b"\0" * 99),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_an_archive_that_holds_more_than_an_inventory_is_refused(name, tmp_path):
    (tmp_path / "in").mkdir()
    BAD[name].seek(0)
    with pytest.raises((BadArchiveError, OSError)):
        unpack(BAD[name], tmp_path / "in", most_bytes=2 << 20, most_entries=20)
    assert [path.name for path in tmp_path.iterdir()] == ["in"], "nothing outside"
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 2 << 20
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_plain_files_are_unpacked_in_members_too(tmp_path):
    whole = packed(("./group_vars/gpu.yml", b"x: 1\n"), ("hosts.yml", b"y" * 100_000)).getvalue()
    tar = gzip.decompress(whole)
    unpack(io.BytesIO(gzip.compress(tar[:700]) + gzip.compress(tar[700:])), tmp_path)
    assert (tmp_path / "group_vars/gpu.yml").read_text() == "x: 1\n"
    assert (tmp_path / "hosts.yml").stat().st_size == 100_000


def test_at_any_moment_the_archive_is_a_whole_one(tmp_path, monkeypatch):
    path, state = tmp_path / "x.tar.gz", tmp_path / "state"
    path.write_bytes(packed(("hosts.yml", b"one")).getvalue())
    # As earlier versions left it: a folder.
    (state / "archive").mkdir(parents=True)
    (state / "archive/hosts.yml").write_text("zero")
    source = Source(f"file://{path}")
    assert (fetch(source, state)[0] / "hosts.yml").read_text() == "one"
    path.write_bytes(packed(("hosts.yml", b"two")).getvalue())
    for step in ("unpack", "sync"):
        # Killed at this step: what is there is whole, and the next run tidies up.
        with monkeypatch.context() as patch:
            patch.setattr(pulling, step, lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                fetch(source, state)
        assert (state / "archive/hosts.yml").read_text() in ("one", "two")
    assert (fetch(source, state)[0] / "hosts.yml").read_text() == "two"
    assert len(list(state.iterdir())) == 2, "the link and what it leads to"
    path.write_bytes(b"damaged")
    with pytest.raises(ProvisionError):
        fetch(source, state)
    assert (state / "archive/hosts.yml").read_text() == "two"
