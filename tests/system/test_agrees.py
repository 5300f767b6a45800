"""What we read ourselves, held against the programs whose rules they are: gpg, dpkg, modinfo, zstd."""

import shutil
import subprocess

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.apt import lists as apt_lists
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, kmod, openpgp
from tests.unit import trees  # noqa: F401 - makes the collection importable
from tests.unit.test_debversion import EQUAL, RISING


@pytest.mark.skipif(not shutil.which("gpg"), reason="no gpg here")
def test_signers_of_what_gpg_signs(tmp_path):
    home = tmp_path / "gpg"
    home.mkdir(mode=0o700)

    def gpg(*words, data=b""):
        done = subprocess.run(
            ["gpg", "--homedir", str(home), "--batch", "--yes", *words], input=data, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    ids = []
    for kind in ("ed25519", "rsa2048"):
        gpg("--passphrase", "", "--quick-gen-key", f"{kind}@x", kind, "sign", "never")
        ids.append(openpgp.primaries(gpg("--export", f"{kind}@x"))[0][-16:])
    text = gpg("-u", "ed25519@x", "-u", "rsa2048@x", "--clearsign", data=b"Origin: x\nSuite: y\n")
    assert apt_lists.signers(text) == ids
    assert apt_lists.signers(gpg("-u", "rsa2048@x", "--detach-sign", data=b"Origin: x\n")) == ids[1:]
    assert apt_lists.signers(gpg("-u", "rsa2048@x", "--armor", "--detach-sign", data=b"Origin: x\n")) == ids[1:]
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=True)


@pytest.mark.skipif(shutil.which("gpg") is None, reason="no gpg here to compare with")
@pytest.mark.parametrize("algorithm", ["ed25519", "rsa2048"])
@pytest.mark.parametrize("armor", [[], ["--armor"]], ids=["binary", "armored"])
def test_agrees_with_gpg(tmp_path, algorithm, armor):
    tmp_path.chmod(0o700)
    gpg = ["gpg", "--homedir", str(tmp_path), "--batch", "--quiet"]
    key = ["--passphrase", "", "--quick-generate-key", "Test <t@example.org>", algorithm, "sign", "never"]
    subprocess.run([*gpg, *key], check=True)
    listed = subprocess.run([*gpg, "--with-colons", "--list-keys"], check=True, capture_output=True, text=True).stdout
    wanted = [line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:")]
    subkey = "cv25519" if algorithm == "ed25519" else "rsa2048"
    add = ["--passphrase", "", "--quick-add-key", wanted[0], subkey, "encr", "never"]
    subprocess.run([*gpg, *add], check=True)
    listed = subprocess.run([*gpg, "--with-colons", "--list-keys"], check=True, capture_output=True, text=True).stdout
    wanted = [line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:")]
    data = subprocess.run([*gpg, *armor, "--export"], check=True, capture_output=True).stdout
    assert len(wanted) == 2 and openpgp.fingerprints(data) == wanted
    subprocess.run(["gpgconf", "--homedir", str(tmp_path), "--kill", "all"], check=True)


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="no dpkg here to compare with")
def test_agrees_with_dpkg():
    pairs = list(zip(RISING, RISING[1:], strict=False)) + [pair for pair in EQUAL if not pair[0].endswith("-")]
    for one, other in pairs:
        relation = {-1: "lt", 0: "eq", 1: "gt"}[deb_version.compare(one, other)]
        assert subprocess.run(["dpkg", "--compare-versions", one, relation, other]).returncode == 0, (one, other)


@pytest.mark.skipif(shutil.which("zstd") is None, reason="no zstd program here")
def test_zst_by_program_where_no_library_is(tmp_path, monkeypatch):
    path = trees.write_module(tmp_path, "/nvidia.ko.zst", "580.65.06", pack="zst")
    import ctypes

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert kmod.info(str(path))["version"] == "580.65.06"


@pytest.mark.skipif(shutil.which("modinfo") is None, reason="no modinfo here to compare with")
@pytest.mark.parametrize("signer", [None, "Canonical Ltd. Secure Boot Signing"])
def test_agrees_with_modinfo(tmp_path, signer):
    path = trees.write_module(tmp_path, "/nvidia.ko", "580.65.06", "NVIDIA", signer)
    info = kmod.info(str(path))
    for field in ("version", "license", "signer"):
        shown = subprocess.run(
            ["modinfo", "-F", field, str(path)], capture_output=True, text=True, check=True
        ).stdout.strip()
        assert (info[field] or "") == shown
