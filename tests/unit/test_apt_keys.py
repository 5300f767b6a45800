"""Where the key of a repository comes from: given, installed, in a keyring of the host, and only then fetched."""

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import configure as apt_configure
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.lib import openpgp
from tests.unit.test_openpgp import FPR4, V4, _new

KEY = _new(6, V4)
OTHER = _new(6, V4[:-1] + b"\x77")
(FPR_OTHER,) = openpgp.fingerprints(OTHER)


@pytest.fixture
def keyrings(tmp_path, monkeypatch):
    monkeypatch.setattr(apt_sources, "installed_key", lambda name: (None, None))
    monkeypatch.setattr(apt_sources.key_on_host, "__defaults__", ((str(tmp_path), "/nowhere"),))
    return tmp_path


def fetched(url):
    raise AssertionError("nothing is fetched")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"cuda-archive-keyring.gpg": KEY}, True),
        ({"other.gpg": OTHER, "zz.gpg": KEY}, True),
        ({"other.gpg": OTHER}, False),
        # apt trusts every key of a file: one too many is not this key
        ({"both.gpg": KEY + OTHER}, False),
        ({"cuda.gpg": b"<html>404</html>"}, False),
        ({"notes.txt": KEY}, False),
        ({"huge.gpg": KEY + bytes(1 << 20)}, False),
        ({}, False),
    ],
)
def test_a_keyring_of_the_host_is_taken_by_its_fingerprint(keyrings, files, found):
    for name, data in files.items():
        (keyrings / name).write_bytes(data)
    spec = {"name": "cuda", "key_url": "https://repo.test/key.pub", "fingerprint": FPR4}
    if found:
        assert apt_sources.key_bytes(spec, fetch=fetched) == KEY
    else:
        assert apt_sources.key_bytes(spec, fetch=lambda url: KEY) == KEY, "then it is fetched"
        with pytest.raises(AssertionError):
            apt_sources.key_bytes(spec, fetch=fetched)


@pytest.mark.parametrize(
    ("given", "installed", "fetches"),
    [
        ({}, None, True),
        ({}, KEY, False),
        ({}, OTHER, True),
        ({"key": "text"}, OTHER, False),
        ({"key_url": None}, OTHER, False),
        # it is in a keyring of the host
        ({"fingerprint": FPR_OTHER}, KEY, False),
        # refused later: nothing says which key it is to be
        ({"fingerprint": None}, None, True),
    ],
)
def test_in_check_mode_only_a_key_that_a_run_would_fetch_is_unknown(keyrings, monkeypatch, given, installed, fetches):
    (keyrings / "other.gpg").write_bytes(OTHER)
    monkeypatch.setattr(apt_sources, "installed_key", lambda name: (installed and "/key.gpg", installed))
    params = {"name": "cuda", "key": None, "key_url": "https://repo.test/key.pub", "fingerprint": FPR4, **given}
    assert apt_configure._must_fetch(params) is fetches
