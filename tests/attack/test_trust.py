"""Trust comes from the catalog and the inventory, not from the party that is checked.

Sources of inventories, archives that unpack to more than they may, key rings against real gpgv, and programs of others.
"""

import base64
import contextlib
import gzip
import io
import json
import os
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from jinja2 import Environment

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from ansible_collections.gpu.provision.plugins.module_utils.lib import openpgp, run_as
from ansible_collections.gpu.provision.plugins.module_utils.prove import job as prove_job
from ansible_collections.gpu.provision.plugins.module_utils.prove import proofs
from provision.catalog import load_catalog
from provision.commands import mirror as command
from provision.errors import HostFailedError, ProvisionError, RefusedError, UsageError
from provision.inventory import mirror_layout
from provision.lib import yaml_reader
from provision.lock.model import parse
from provision.mirror import conda
from provision.mirror.keys import signer
from provision.mirror.make import Maker
from provision.mirror.need import Need, Upstream, needs
from provision.mirror.seen import seen_of
from provision.mirror.store import Store, here
from provision.parts.conda.desired import CondaConfig
from provision.parts.proof import Bounds, Measured
from provision.parts.proofs import judge
from provision.pull import source as pulling
from provision.pull.source import Source, fetch
from provision.pull.unpack import BadArchiveError, unpack
from tests.lab import aptrepo
from tests.lab.debfile import Package
from tests.sample import turn

ROOT = Path(__file__).parents[2]
SHA, COMMIT = "a" * 64, "b" * 40

# --- sources of inventories

UNPROVEN = [
    Source("http://h.example/inventory.tar.gz"),
    Source("http://h.example/x.tgz", version=COMMIT),
    Source("http://h.example/x.tar.gz", verify_commit=True),
    Source("http://h.example/fleet.git"),
    Source("http://h.example/fleet.git", version="main"),
    Source("http://h.example/fleet.git", version=COMMIT[:12]),
    Source("http://h.example/fleet.git", sha256=SHA),
    Source("git://h.example/fleet.git"),
    Source("git://h.example/fleet.git", version="v1.0"),
    Source("http://h.example/x.tar.gz?y", sha256=SHA),
]
NO_SOURCE = [
    Source(url)
    for url in (
        "",
        "HTTP://h.example/x.tar.gz",
        "ext::sh -c id",
        "file://h.example/x.tar.gz",
        "ftp://h.example/x.tar.gz",
        "fd::1",
        "-u",
        "git@h.example::x",
        "relative/path",
        "http+git://h/x",
        "javascript:1",
        " https://h.example/x.git",
    )
]
PROVEN = [
    Source("https://h.example/x.tar.gz"),
    Source("https://h.example/fleet.git"),
    Source("ssh://git@h.example/fleet.git"),
    Source("git@h.example:fleet.git"),
    Source("/srv/fleet"),
    Source("file:///srv/x.tar.gz"),
    Source("http://h.example/x.tar.gz", sha256=SHA),
    Source("http://h.example/fleet.git", version=COMMIT),
    Source("git://h.example/fleet.git", version=SHA),
    Source("git://h.example/fleet.git", verify_commit=True),
]


def of_role(source):
    """Whether the role's own rule, which runs on the controller, takes a source."""
    tasks = yaml_reader.load((ROOT / "roles/gpu_pull/tasks/install.yml").read_text())
    (task,) = [one for one in tasks if "__gpu_pull_safe" in one.get("vars", {})]
    jinja = Environment(autoescape=True)
    jinja.tests["match"] = lambda text, pattern: bool(re.match(pattern, text))
    jinja.filters["bool"] = bool
    rule = jinja.compile_expression(task["ansible.builtin.assert"]["that"])
    return rule(
        gpu_pull_source=source.url,
        gpu_pull_version=source.version,
        gpu_pull_sha256=source.sha256,
        gpu_pull_verify_commit=source.verify_commit,
        **task["vars"],
    )


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
            pulling.urllib.request.Request("https://h.example/x.tar.gz"),
            None,
            302,
            "Found",
            {},
            "http://h.example/x.tar.gz",
        )
    allowed = pulling._Encrypted().redirect_request(
        pulling.urllib.request.Request("https://h.example/x.tar.gz"),
        None,
        302,
        "Found",
        {},
        "https://h.example/y.tar.gz",
    )
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
    "outside": packed(("../x", b"")),
    "outside, deep": packed(("a/../../x", b"")),
    "absolute": packed(("/etc/x", b"")),
    "symbolic link": packed(info("a", tarfile.SYMTYPE, link="b")),
    "through a link": packed(info("a", tarfile.SYMTYPE, link="/tmp"), ("a/x", b"")),
    "hard link": packed(("b", b""), info("a", tarfile.LNKTYPE, link="b")),
    "character device": packed(info("a", tarfile.CHRTYPE)),
    "block device": packed(info("a", tarfile.BLKTYPE)),
    "FIFO": packed(info("a", tarfile.FIFOTYPE)),
    "sparse": packed(info("a", tarfile.GNUTYPE_SPARSE)),
    "many entries": packed(*[(f"f{i}", b"") for i in range(30)]),
    "large file": packed(info("a", size=3 << 20)),
    "large in parts": packed(*[info(str(i), size=1 << 19) for i in range(5)]),
    "large long name": header(tarfile.GNUTYPE_LONGNAME, 3 << 20),
    "large pax header": header(tarfile.XHDTYPE, 3 << 20),
    "names within names": io.BytesIO(
        gzip.compress((info("x", tarfile.GNUTYPE_LONGNAME, 1).tobuf() + b"y" + b"\0" * 511) * 1800)
    ),
    "a file twice": packed(("a", b"1"), ("a", b"2")),
    "a file as a folder": packed(("a", b"1"), ("a/b", b"2")),
    "no gzip": io.BytesIO(b"<html>"),
    "empty": io.BytesIO(b""),
    "cut off": io.BytesIO(packed(("a", b"x" * 9000)).getvalue()[:40]),
    "bomb": io.BytesIO(gzip.compress(bytes(50 << 20))),
    "bomb in members": io.BytesIO(gzip.compress(bytes(1 << 20)) * 9),
    "xz": io.BytesIO(b"\xfd7zXZ\x00" + b"\0" * 99),
    "zip": io.BytesIO(b"PK\x03\x04" + b"\0" * 99),
}


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


# --- key rings, against real gpgv


def wrap(tag, body):
    """An OpenPGP packet with a length of four octets."""
    return bytes([0xC0 | tag, 0xFF]) + len(body).to_bytes(4, "big") + body


def armored(data, kind="PUBLIC KEY BLOCK", head=""):
    text = base64.encodebytes(data).decode()
    return f"-----BEGIN PGP {kind}-----\n{head}\n{text}-----END PGP {kind}-----\n".encode()


def first(ring):
    """Body of the first packet of a ring: the key itself."""
    return next(body for _, body in openpgp.packets(ring))


def rest(ring):
    """What follows the first packet: names and signatures."""
    return b"".join(wrap(tag, body) for tag, body in list(openpgp.packets(ring))[1:])


@dataclass
class Rings:
    """Two keys: ours, by whose fingerprint we go, and that of somebody else; a message signed by each."""

    ours: bytes
    other: bytes
    secret: bytes
    fingerprint: str
    by_ours: Path
    by_other: Path


@pytest.fixture(scope="module")
def rings():
    home = Path(tempfile.mkdtemp(prefix="gpg-"))

    def gpg(*words):
        return subprocess.run(
            [
                "gpg",
                "--homedir",
                str(home),
                "--batch",
                "--quiet",
                "--passphrase",
                "",
                "--pinentry-mode",
                "loopback",
                *words,
            ],
            check=True,
            capture_output=True,
        ).stdout

    made = {}
    for name in ("ours", "other"):
        gpg("--quick-gen-key", name, "ed25519", "sign", "never")
        (home / "message").write_text("Origin: Ubuntu\n")
        gpg("--local-user", name, "--output", str(home / name), "--clearsign", str(home / "message"))
        made[name] = gpg("--export", name)
    (fingerprint,) = openpgp.primaries(made["ours"])
    yield Rings(
        made["ours"], made["other"], gpg("--export-secret-keys", "other"), fingerprint, home / "ours", home / "other"
    )
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)
    # The agent removes its sockets while this goes on.
    shutil.rmtree(home, ignore_errors=True)


# Each makes a ring that holds, or hides, the key of somebody else beside ours.
KINDS = {
    "the other alone": lambda r: r.other,
    "both": lambda r: r.ours + r.other,
    "the other first": lambda r: r.other + r.ours,
    "both, armored": lambda r: armored(r.ours + r.other),
    "two armored blocks": lambda r: armored(r.ours) + armored(r.other),
    "as a subkey without a signature": lambda r: r.ours + wrap(14, first(r.other)),
    "as a subkey with its own signatures": lambda r: r.ours + wrap(14, first(r.other)) + rest(r.other),
    "ours as a subkey of it": lambda r: (
        wrap(6, first(r.other)) + rest(r.other) + wrap(14, first(r.ours)) + rest(r.ours)
    ),
    "between ours and its names": lambda r: wrap(6, first(r.ours)) + r.other + rest(r.ours),
    "in an unknown packet": lambda r: r.ours + wrap(60, r.other),
    "in a reserved packet": lambda r: r.ours + wrap(0, r.other),
    "in a marker packet": lambda r: r.ours + wrap(10, r.other),
    "in a padding packet": lambda r: r.ours + wrap(21, r.other),
    "compressed": lambda r: r.ours + wrap(8, b"\1" + zlib.compress(r.other)[2:-4]),
    "compressed by zlib": lambda r: r.ours + wrap(8, b"\2" + zlib.compress(r.other)),
    "in literal data": lambda r: r.ours + wrap(11, b"b\0\0\0\0\0" + r.other),
    "in a trust packet": lambda r: r.ours + wrap(12, r.other),
    "in a user attribute": lambda r: r.ours + wrap(17, r.other),
    "as a secret key": lambda r: r.ours + r.secret,
    "as a secret key, first": lambda r: r.secret + r.ours,
    "as a secret subkey": lambda r: r.ours + wrap(7, first(r.secret)) + rest(r.secret),
    "in a message block": lambda r: armored(r.ours) + armored(r.other, "MESSAGE"),
    "in a private key block": lambda r: armored(r.ours) + armored(r.secret, "PRIVATE KEY BLOCK"),
    "in an indented block": lambda r: armored(r.ours) + b" " + armored(r.other).replace(b"\n", b"\n "),
    "in a block with CR alone": lambda r: armored(r.ours) + armored(r.other).replace(b"\n", b"\r"),
    "in a header line": lambda r: armored(r.ours, head="Comment: " + base64.b64encode(r.other).decode() + "\n"),
    "before an armored block": lambda r: r.other + b"\n" + armored(r.ours),
    "after an armored block": lambda r: armored(r.ours) + r.other,
    "armored within armor": lambda r: armored(armored(r.other) + r.ours),
    "behind a length that lies": lambda r: r.ours + b"\xcd\xff\0\0\0\2" + r.other,
    "behind a length to the end": lambda r: r.ours + b"\xb7" + r.other,
    "in parts": lambda r: (
        r.ours + b"\xc6\xe5" + first(r.other)[:32] + bytes([len(first(r.other)) - 32]) + first(r.other)[32:]
    ),
    "of version 3": lambda r: r.ours + wrap(6, b"\3" + first(r.other)[1:]) + rest(r.other),
    "of version 6": lambda r: r.ours + wrap(6, b"\6" + first(r.other)[1:]) + rest(r.other),
    "in HTML": lambda r: b"<html><pre>" + armored(r.ours + r.other) + b"</pre>",
    "an error page": lambda r: b"<html>404</html>",
    "empty": lambda r: b"",
    "cut off": lambda r: r.ours[:60],
    "ours alone": lambda r: r.ours,
    "ours, armored": lambda r: armored(r.ours),
}


def good(ring, message, folder):
    """Whether gpgv takes the message with this ring."""
    (folder / "ring.gpg").write_bytes(ring)
    return (
        subprocess.run(["gpgv", "--keyring", str(folder / "ring.gpg"), str(message)], capture_output=True).returncode
        == 0
    )


@pytest.mark.skipif(not (shutil.which("gpgv") and shutil.which("gpg")), reason="gpg and gpgv")
@pytest.mark.parametrize("kind", KINDS)
def test_no_ring_lets_the_signature_of_another_key_through(kind, rings, tmp_path):
    data = KINDS[kind](rings)
    written = []
    with contextlib.suppress(ValueError):
        written.append(openpgp.only(data, [rings.fingerprint]))
    with contextlib.suppress(apt_common.AptError):
        spec = {"name": "x", "key": base64.b64encode(data).decode(), "fingerprint": rings.fingerprint}
        written.append(apt_sources.key_bytes(spec))
    for ring in written:
        assert not good(ring, rings.by_other, tmp_path)
    if kind in ("both", "the other first", "as a secret key", "in a trust packet", "ours alone", "ours, armored"):
        assert good(written[0], rings.by_ours, tmp_path), "and ours is still in it"


# --- the archive that a mirror copies

CATALOG = load_catalog()
KEYRING = Path(__file__).parents[1] / "fixtures/ubuntu-archive-keyring.gpg"


def test_the_catalogs_keys_are_those_of_ubuntus_own_keyring():
    cd_images = "843938DF228D22F7B3742BC0D94AA3F0EFE21092"
    assert {*CATALOG.archive_keys, cd_images} == set(openpgp.primaries(KEYRING.read_bytes()))
    assert openpgp.primaries(openpgp.only(KEYRING.read_bytes(), CATALOG.archive_keys)) == CATALOG.archive_keys[::-1]


@pytest.mark.parametrize(
    ("uri", "known"),
    [
        ("http://archive.ubuntu.com/ubuntu", True),
        ("http://de.archive.ubuntu.com/ubuntu/", True),
        ("https://security.ubuntu.com/ubuntu", True),
        ("http://ports.ubuntu.com/ubuntu-ports/", True),
        ("http://us-east-1.ec2.archive.ubuntu.com/ubuntu/", True),
        ("http://azure.archive.ubuntu.com/ubuntu/", True),
        ("http://archive.ubuntu.com.evil.example/ubuntu/", False),
        ("http://evilarchive.ubuntu.com/ubuntu/", False),
        ("http://evil.example/archive.ubuntu.com/ubuntu", False),
        ("http://archive.ubuntu.com@evil.example/ubuntu", False),
        ("http://archive.ubuntu.com:80@evil.example/ubuntu", False),
        ("http://archive.ubuntu.com/../evil/ubuntu", False),
        ("http://archive.ubuntu.com/ubuntu\nTrusted: yes", False),
        ("http://archive.ubuntu.com/ubuntu\n", False),
        ("file:/srv/ubuntu", False),
        ("mirror://archive.ubuntu.com/ubuntu", False),
        ("copy:/root/ubuntu", False),
        ("http://archive.ubuntu.com/ubuntu?x", False),
        ("http://archive.ubuntu.com#.evil.example/ubuntu", False),
        ("ftp://archive.ubuntu.com/ubuntu", False),
        ("http://аrchive.ubuntu.com/ubuntu", False),  # noqa: RUF001 - a Cyrillic letter
        ("", False),
    ],
)
def test_which_address_is_ubuntus_own(uri, known):
    assert CATALOG.is_archive(uri) is known


NONE = Upstream()
LOCK = """
schema: provision/lock/1
groups:
  one:
    ubuntu: '24.04'
    arch: amd64
    driver:
      {version: 580.95.05, series: '580', flavour: open, build: signed, channel: ubuntu, variant: headless,
       packages: {nvidia-utils-580: 580.95.05-0ubuntu0.24.04.2}}
    repositories:
      cuda: {uri: "https://developer.example.org/compute/cuda/repos/ubuntu2404/x86_64/", suite: /, key: null}
hosts:
  gpu07: {group: one}
"""


def said(uri="http://archive.ubuntu.com/ubuntu", keyring=None, of_source=None, **more):
    """What the host says of itself. keyring: its own of Ubuntu; of_source: the one that its sources name."""
    b64 = [None if one is None else base64.b64encode(one).decode() for one in (keyring, of_source)]
    entry = {
        "file": "/etc/apt/sources.list.d/ubuntu.sources",
        "uris": [uri],
        "signed_by": None,
        "key": b64[1],
        "suites": ["noble", "noble-updates", "noble-security"],
        "components": ["main"],
    }
    return {"arch": "amd64", "archive_key": b64[0], "packages": [], "conda": {}, "sources": [entry], **more}


def archive_of(answer, upstream=NONE, values=None):
    wanted = needs(parse(LOCK), {"gpu07": seen_of("gpu07", answer)}, {"gpu07": values or {}}, CATALOG, upstream)
    return wanted[0].sources[0]


def test_a_host_names_an_archive_of_its_own(rings):
    with pytest.raises(RefusedError) as refused:
        archive_of(said("http://evil.example/ubuntu", rings.other, rings.other))
    issue = refused.value.issue
    assert (
        issue.code == "mirror.archive_unknown"
        and issue.message.startswith("gpu07 ")
        and "evil.example" in issue.message
    )
    assert "--archive" in issue.hint


def test_a_host_names_a_key_of_its_own(rings):
    for answer in (said(keyring=rings.other), said(of_source=rings.other), said(keyring=b"no key")):
        with pytest.raises(RefusedError) as refused:
            archive_of(answer)
        assert refused.value.issue.code == "mirror.archive_key_unknown" and "gpu07" in refused.value.issue.message


def test_a_host_adds_a_key_to_ubuntus_own(rings):
    ubuntus = KEYRING.read_bytes()
    for answer in (said(keyring=rings.other + ubuntus), said(keyring=ubuntus, of_source=rings.other)):
        source = archive_of(answer)
        assert openpgp.primaries(base64.b64decode(source["key"])) == CATALOG.archive_keys[::-1]
        assert source["fingerprint"] == CATALOG.archive_keys
    # A host without any keyring lends none: the fingerprints go with the file of the machine that fetches.
    source = archive_of(said())
    assert source["fingerprint"] == CATALOG.archive_keys and "key" not in source


def test_a_companys_own_archive_is_named_by_a_person(rings, tmp_path):
    (tmp_path / "own.gpg").write_bytes(rings.ours)
    url = "http://mirror.example.org/ubuntu"
    for key in (rings.fingerprint, str(tmp_path / "own.gpg"), armored(rings.ours).decode()):
        for order, values in (
            (Upstream(url, key), {}),
            (Upstream(), {"gpu_mirror_archive_url": url, "gpu_mirror_archive_key": key}),
        ):
            source = archive_of(said("http://evil.example/ubuntu", rings.other + rings.ours), order, values)
            assert source["uris"] == url + "/" and source["fingerprint"] == [rings.fingerprint]
            assert openpgp.primaries(base64.b64decode(source["key"])) == [rings.fingerprint]
    for key in ("ABCD", str(tmp_path / "absent"), str(Path(__file__))):
        with pytest.raises(UsageError):
            archive_of(said(url), Upstream(url, key))


def test_a_key_of_nvidias_repository_needs_a_fingerprint_too(rings):
    lock = LOCK.replace("24.04'", "26.04'").replace("ubuntu2404", "ubuntu2604")
    path = apt_files.sources_path("cuda")
    entry = {
        "file": path,
        "uris": ["https://x/"],
        "suites": ["/"],
        "components": [],
        "signed_by": "/k",
        "key": base64.b64encode(rings.other).decode(),
    }
    answer = said()
    answer["sources"].append(entry)
    assert CATALOG.repository("cuda", ubuntu="26.04").fingerprint is None, "or the test is about nothing"
    with pytest.raises(UsageError) as refused:
        needs(parse(lock), {"gpu07": answer}, {"gpu07": {}}, CATALOG)
    assert refused.value.issue.code == "mirror.no_key"


@pytest.mark.parametrize(
    "change",
    [
        {"arch": 1},
        {"sources": "x"},
        {"sources": [{}]},
        {"packages": [["a\nPackage: b", "1", "amd64", ""]]},
        {"packages": [["a"]]},
        {"conda": {"/e": {"packages": [{"name": "a"}], "wheels": [], "problems": []}}},
        {"archive_key": "A" * (1 << 21)},
        {"conda": {"/e": {"packages": [], "wheels": [{"name": "a\n", "version": "1", "tags": []}], "problems": []}}},
    ],
    ids=str,
)
def test_an_answer_that_is_none_is_the_hosts_fault(change):
    with pytest.raises(HostFailedError) as refused:
        seen_of("gpu07", said(**change))
    assert refused.value.issue.code == "host.bad_answer" and "gpu07" in refused.value.issue.message
    with pytest.raises(HostFailedError):
        seen_of("gpu07", [])


def package(url, **more):
    return {"name": "python", "version": "3.12.1", "build": "0", "sha256": SHA, "url": url, **more}


@pytest.mark.parametrize(
    "record",
    [
        package("https://evil.example/conda-forge/linux-64/python-3.12.1-0.conda"),
        package("https://good.example/conda.evil/conda-forge/linux-64/python-3.12.1-0.conda"),
        package("file:///root/conda-forge/linux-64/python-3.12.1-0.conda"),
        package("https://good.example/conda/conda-forge/linux-64/other-3.12.1-0.conda"),
        package("https://good.example/conda/../../ubuntu/dists/python-3.12.1-0.conda"),
        package("https://good.example/conda/x/../linux-64/python-3.12.1-0.conda"),
        package("https://good.example/conda/conda-forge/linux-64/python-3.12.1-0.conda", subdir="win-64"),
        package("https://good.example/conda/conda-forge/linux-64/python-3.12.1-0.conda", sha256=None),
    ],
    ids=lambda record: record["url"],
)
def test_a_package_of_conda_from_where_only_a_host_says(record):
    found = conda.channels([record], "https://good.example/conda", ["conda-forge"], "amd64")
    assert not found.files and len(found.problems) == 1
    assert not any(rows for rows in found.records.values())


def test_a_package_of_conda_from_where_the_inventory_says():
    right = package("https://good.example/conda/conda-forge/linux-64/python-3.12.1-0.conda")
    assert conda.channels([right], "https://good.example/conda", [], "amd64").files
    assert conda.channels([right], "", ["https://good.example/conda/conda-forge"], "amd64").files
    assert "miniconda_channel_alias" in conda.channels([right], "", ["conda-forge"], "amd64").problems[0]


def test_where_wheels_are_looked_for_no_host_says():
    config = CondaConfig.from_vars({})
    found = command._indexes(config, [{"index": "https://evil.example/simple", "wheels": []}], CATALOG)
    assert not any("evil" in one for one in found)
    named = CondaConfig.from_vars({"miniconda_pip_index_url": "https://good.example/simple"})
    assert command._indexes(named, [], CATALOG) == ["https://good.example/simple"]


@pytest.mark.skipif(not (shutil.which("apt-get") and shutil.which("gpg")), reason="apt-get and gpg")
def test_an_evil_archive_at_the_right_address_gets_nothing_into_a_mirror(rings, tmp_path):
    """Who answers for Ubuntu's server signs with his key: apt is given the catalog's alone, also before our own signature."""
    short = Path(tempfile.mkdtemp(prefix="evil-"))
    evil = aptrepo.make_key(short, "Evil")
    try:
        index = aptrepo.Index()
        for suite in mirror_layout.archive_suites("noble").split():
            index.paragraphs[suite] = {part: [] for part in mirror_layout.COMPONENTS.split()}
        aptrepo.add_to_pool(tmp_path / "evil", [Package("driver", "1.0", suites=("noble",))], index)
        aptrepo.publish(
            tmp_path / "evil", index, evil, origin="Ubuntu", label="Ubuntu", codename="noble", version="24.04"
        )
        public = openpgp.dearmor(evil.public.read_bytes())
        source = archive_of(said(keyring=KEYRING.read_bytes() + public, of_source=public))
        source |= {"uris": f"file:{tmp_path}/evil/"}
        root = tmp_path / "mirror"
        maker = Maker(Store(str(root), here, {}), signer("new", tmp_path / "own"))
        with pytest.raises(ProvisionError) as refused:
            maker.run([Need("24.04", "amd64", "noble", [["driver=1.0"]], [source])], [])
        assert "could not be read" in refused.value.issue.message
        assert not list(root.rglob("*.deb")) and not list(root.rglob("*Release*")) and not list(root.rglob("Packages*"))
        # The same with the keyring that lies where the mirror is filled.
        (tmp_path / "here.gpg").write_bytes(public)
        other = {**source, "signed_by": str(tmp_path / "here.gpg")}
        del other["key"]
        with pytest.raises(ProvisionError) as refused:
            maker.run([Need("24.04", "amd64", "noble", [["driver=1.0"]], [other])], [])
        assert refused.value.issue.code == "mirror.no_key"
    finally:
        subprocess.run(["gpgconf", "--homedir", str(short / "gnupg"), "--kill", "all"], check=False)
        # The agent removes its sockets while this goes on.
        shutil.rmtree(short, ignore_errors=True)


# --- programs of others

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/usr/bin/python3", os.X_OK), reason="only root becomes others; /usr/bin/python3"
)
# nobody here
USER, OTHER = 54321, 54322


@pytest.fixture
def env():
    """A virtual environment of root's with a torch in it that says who runs it; others may enter it."""
    base = Path(tempfile.mkdtemp(prefix="env-", dir="/tmp"))  # noqa: S108 - pytest's own folders are closed to others
    base.chmod(0o755)
    version = subprocess.check_output(
        ["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], text=True
    )
    prefix = base / "venv"
    site = prefix / f"lib/python{version.strip()}/site-packages"
    (prefix / "bin").mkdir(parents=True)
    (site / "torch").mkdir(parents=True)
    (prefix / "bin/python").symlink_to("/usr/bin/python3")
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (site / "torch/__init__.py").write_text("import os\nraise ImportError('ran as %d' % os.getuid())\n")
    yield SimpleNamespace(base=base, prefix=prefix, site=site, python=str(prefix / "bin/python"), torch=site / "torch")
    shutil.rmtree(base)


def ran_as(env, *paths):
    """The user as whom the real child ran, by the rule for the environment (and more paths)."""
    user = run_as.account(env.python, *map(str, paths))
    job = prove_job.Job(
        "prove.framework",
        "look",
        {"framework": "torch", "compute_on": []},
        python=env.python,
        user=user,
        isolated=user is None,
    )
    outcome = prove_job.run(job)
    found = re.search(r"ran as (\d+)", outcome.message or "")
    return int(found[1]) if found else outcome.message


def chown(path, uid, gid=0, mode=None):
    os.chown(path, uid, gid, follow_symlinks=False)
    if mode is not None:
        path.chmod(mode)


# How somebody else comes to decide what root's environment imports. The first five are the review's.
WRITABLE = {
    "packages of a user": lambda e: (chown(e.torch, USER), chown(e.torch / "__init__.py", USER)),
    "site-packages of a user": lambda e: chown(e.site, USER),
    "site-packages 0777": lambda e: e.site.chmod(0o777),
    "site-packages 1777": lambda e: e.site.chmod(0o1777),
    "site-packages of a group": lambda e: chown(e.site, 0, USER, 0o2775),
    "one file of a user": lambda e: chown(e.torch / "__init__.py", USER),
    "one file 0666": lambda e: (e.torch / "__init__.py").chmod(0o666),
    "a deep file of a user": lambda e: (
        (e.torch / "a/b").mkdir(parents=True),
        (e.torch / "a/b/c.so").touch(),
        chown(e.torch / "a/b/c.so", USER),
    ),
    "pyvenv.cfg of a user": lambda e: chown(e.prefix / "pyvenv.cfg", USER),
    "usercustomize of a user": lambda e: (
        (e.site / "usercustomize.py").touch(),
        chown(e.site / "usercustomize.py", USER),
    ),
    "a .pth of a user": lambda e: ((e.site / "x.pth").touch(), chown(e.site / "x.pth", USER)),
    "a .pth that leads to a user's": lambda e: (e.site / "x.pth").write_text(f"{elsewhere(e)}\n"),
    "a .pth with a relative path": lambda e: (e.site / "x.pth").write_text(f"../../../../{elsewhere(e).name}\n"),
    "a .pth that imports": lambda e: (e.site / "x.pth").write_text(
        f"import sys; sys.path.insert(0, '{elsewhere(e)}')\n"
    ),
    "an editable installation": lambda e: (e.site / "__editable___t.py").write_text(
        f"MAPPING = {{'t': '{elsewhere(e)}/t'}}"
    ),
    "an egg-link": lambda e: (e.site / "t.egg-link").write_text(f"{elsewhere(e)}\n.\n"),
    "a package that is a link": lambda e: (e.site / "jax").symlink_to(elsewhere(e)),
    "a link over another's link": lambda e: (
        (elsewhere(e) / "l").symlink_to("/usr/lib"),
        (e.site / "jax").symlink_to(elsewhere(e) / "l"),
    ),
    "a library that is a link": lambda e: (
        (elsewhere(e) / "x.so").touch(),
        (e.torch / "x.so").symlink_to(elsewhere(e) / "x.so"),
    ),
    "the interpreter over another's link": lambda e: (
        (elsewhere(e) / "p").symlink_to("/usr/bin/python3"),
        relink(e, elsewhere(e) / "p"),
    ),
}


def elsewhere(env):
    """A folder of a user's, outside the environment."""
    path = env.base / "theirs"
    path.mkdir(exist_ok=True)
    chown(path, USER)
    return path


def relink(env, target):
    Path(env.python).unlink()
    Path(env.python).symlink_to(target)


@needs_root
@pytest.mark.parametrize(
    ("how", "closed"), [(how, closed) for number, how in enumerate(WRITABLE) for closed in turn((False, True), number)]
)
def test_root_runs_no_package_that_somebody_else_may_write(how, closed, env):
    WRITABLE[how](env)
    if closed:
        # Nobody cannot enter: it does not run at all, rather than as root.
        env.prefix.chmod(0o700)
    assert ran_as(env) not in (0, "0")
    if not closed:
        assert ran_as(env) in (65534, USER)


@needs_root
def test_what_is_roots_alone_runs_as_nobody_and_as_root_only_where_nobody_cannot(env):
    assert ran_as(env) == 65534
    env.prefix.chmod(0o700)
    assert run_as.account(env.python) is None and ran_as(env) == 0
    env.prefix.chmod(0o755)
    (env.prefix / "lib").chmod(0o700)
    assert ran_as(env) == 0, "packages that nobody can read"


@needs_root
def test_what_is_one_persons_runs_as_that_person(env):
    for path in (env.prefix, *env.prefix.rglob("*")):
        chown(path, USER)
    assert run_as.account(env.python) == (USER, 65534, "/") and ran_as(env) == USER
    chown(env.torch / "__init__.py", OTHER)
    assert ran_as(env) == 65534, "not as the one, what the other wrote"
    chown(env.torch / "__init__.py", USER, mode=0o666)
    assert ran_as(env) == 65534


@needs_root
def test_libraries_of_a_login_count_too(env):
    folder = env.base / "lib64"
    folder.mkdir()
    (folder / "libcudnn.so.9").touch()
    assert run_as.account(env.python, str(folder)) == run_as.NOBODY
    env.prefix.chmod(0o700)
    assert run_as.account(env.python, str(folder)) is None
    chown(folder / "libcudnn.so.9", USER)
    assert run_as.account(env.python, str(folder)) == run_as.NOBODY
    chown(folder, USER)
    assert run_as.account("/usr/bin/python3", str(folder)) == (USER, 65534, "/")
    assert run_as.account("/nowhere/python", str(folder / "absent"))[0] == USER


@needs_root
@pytest.mark.parametrize(
    "change",
    [
        lambda e: chown(e.prefix, USER),
        lambda e: chown(e.prefix / "bin/conda", USER),
        lambda e: chown(e.site, USER),
        lambda e: chown(e.site / "conda", USER),
        lambda e: e.site.chmod(0o1777),
        lambda e: e.prefix.chmod(0o777),
        lambda e: relink(e, elsewhere(e) / "python"),
    ],
)
def test_root_does_not_run_the_conda_of_a_prefix_that_somebody_else_may_write(change, env):
    (env.site / "conda").mkdir()
    program = env.prefix / "bin/conda"
    program.write_text("#!/bin/sh\nid -u\n")
    program.chmod(0o755)
    root = conda_common.Owner("root")
    assert conda_common.run([str(program)], root, 0o022, 60).text.strip() == "0"
    change(env)
    with pytest.raises(conda_common.CondaError) as refused:
        conda_common.run([str(program)], root, 0o022, 60)
    assert refused.value.code == "conda.foreign_prefix" and "miniconda_owner" in refused.value.hint


@needs_root
def test_an_access_list_is_a_right_to_write(env):
    env.prefix.chmod(0o700)
    nobodys = 0xFFFFFFFF
    rows = (
        (1, 7, nobodys),
        (2, 7, USER),
        (4, 5, nobodys),
        (16, 7, nobodys),
        (32, 5, nobodys),
        # acl(5), as the kernel has it
    )
    try:
        os.setxattr(
            env.torch,
            "system.posix_acl_access",
            struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows),
        )
    except OSError:
        pytest.skip("the file system has no access lists")
    assert run_as.account(env.python) == run_as.NOBODY


@needs_root
def test_a_child_that_becomes_another_gets_no_secrets_and_no_groups(env, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "S3CRET")
    monkeypatch.setenv("http_proxy", "http://u:S3CRET@proxy.example:1")
    (env.torch / "__init__.py").write_text(
        "import os\nraise ImportError('%s %s %s %s' % (sorted(os.environ), os.getgroups(), os.getresuid(), os.environ['HOME']))\n"
    )
    job = prove_job.Job(
        "prove.framework",
        "look",
        {"framework": "torch", "compute_on": []},
        python=env.python,
        isolated=False,
        user=run_as.account(env.python),
    )
    message = prove_job.run(job).message
    assert "MY_TOKEN" not in message and "http_proxy" not in message and "PATH" in message
    assert "[65534] (65534, 65534, 65534) /" in message


@needs_root
@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"result": 1}',
        '{"result": {"frameworks": 5, "python": 1}}',
        '{"result": {"frameworks": [{}], "python": "3"}}',
        '{"error": []}',
        '{"error": {}}',
        "[" * 5000,
        '{"result": {"frameworks": ["torch"], "python": "3"}}',
        "x" * (9 << 20),
    ],
    ids=lambda text: text[:40],
)
def test_an_interpreter_that_answers_anything_is_a_failed_check(text, env):
    """It is another's program: its answer is written by hand, from sitecustomize, before ours starts."""
    program = (
        f"import os, sys\nfor fd in range(3, 64):\n    try:\n        os.write(fd, {text!r}.encode() + b'\\n')\n"
        "    except OSError:\n        pass\nsys.stdin.buffer.read()\nos._exit(0)\n"
    )
    (env.site / "usercustomize.py").write_text(program)
    (env.site / "x.pth").write_text("import usercustomize\n")
    proof = proofs.Proof({"python": [env.python], "only": ["python.framework"], "timeout_s": 20})
    (row,) = proof.run()
    said = judge(Measured.of_host(json.loads(json.dumps(row))), Bounds())
    assert said.status in ("fail", "skip") and said.code.startswith("python.framework")
