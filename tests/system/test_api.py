"""provision.api: names that stay, documents of this machine, errors that are raised."""

import inspect
import json
import re
from pathlib import Path

import pytest

from provision import api
from tests.sample import share

ROOT = Path(__file__).parents[2]
STABLE = {
    "inventory": "(*sources, limit, variables, vault_ids, vault_password, become_password, forks)",
    "scan": "(fleet)",
    "plan": "(fleet)",
    "verify": "(fleet, checks, deep)",
    "drift": "(fleet)",
    "diagnose": "(fleet)",
}


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return api.inventory("localhost,")


def test_names_and_parameters_stay():
    assert set(api.__all__) == {"Issue", "ProvisionError", *STABLE}
    for name, wanted in STABLE.items():
        parameters = inspect.signature(getattr(api, name)).parameters.values()
        names = ["*" * (one.kind == one.VAR_POSITIONAL) + one.name for one in parameters]
        assert f"({', '.join(names)})" == wanted


@pytest.mark.parametrize("name", share(["scan", "plan", "drift", "diagnose", "verify"], 2))
def test_a_document_of_this_machine(fleet, name, capfd):
    document = getattr(api, name)(fleet)
    assert list(document.hosts) == ["localhost"]
    assert json.loads(document.to_json())["schema"] == f"provision/{name}/1"
    assert capfd.readouterr() == ("", "")


def test_what_cannot_begin_is_raised(tmp_path):
    with pytest.raises(api.ProvisionError) as caught:
        api.inventory(str(tmp_path / "none.yml"))
    assert (caught.value.issue.code, bool(caught.value.issue.hint)) == ("inventory.missing", True)


def test_the_page_names_every_function():
    page = (ROOT / "docs/api.md").read_text()
    assert set(re.findall(r"^\| `(\w+)\(", page, re.M)) == set(STABLE)
