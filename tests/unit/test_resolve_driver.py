"""resolve, from a table: which driver, or why not."""

from datetime import date
from pathlib import Path

import pytest

from provision.catalog import load_catalog
from provision.lib import yaml_reader
from provision.parts.decision import DriverConfig
from provision.parts.driver.resolve import resolve_driver
from tests.unit.candidates import CANDIDATES
from tests.unit.hosts import host

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/driver.yml").read_text())
TODAY = date(2026, 11, 28)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_resolve_driver(case):
    facts = host(
        case["gpus"],
        case.get("installed"),
        case.get("nvswitches", 0),
        case.get("secure_boot"),
        drivers=case.get("drivers", []),
        **case.get("facts", {}),
    )
    candidates = {channel: CANDIDATES[name] for channel, name in case.get("offers", {}).items()}
    today = date.fromisoformat(case["today"]) if "today" in case else TODAY
    config = dict(case.get("config", {}))
    config["toolkits"] = tuple(config.get("toolkits", ()))
    decision = resolve_driver(DriverConfig(**config), facts, load_catalog(), candidates, today)
    expect = dict(case["expect"])
    if "warning" in expect:
        assert expect.pop("warning") in [issue.code for issue in decision.warnings]
    if "blocker" in expect:
        code = expect["blocker"]
        assert decision.blockers, decision
        first = decision.blockers[0]
        assert code in ("any", first.code), decision.blockers
        said = " ".join([first.message, *first.because, first.hint or ""])
        assert all(word in said for word in expect.get("words", [])), said
        assert "beside apt's packages" not in said or case.get("installed")
        assert first.hint, "every refusal names a way out"
        assert decision.target is None
        return
    assert not decision.blockers, decision.blockers
    if "ask" in expect:
        assert decision.ask == expect["ask"]
        assert decision.target is None
        return
    assert decision.ask is None
    if expect.pop("nothing", False):
        assert decision.target is None
        return
    target = decision.target
    assert target is not None
    have = [f"{name}={version}" for name, version in target.packages.items()]
    assert set(expect.pop("has", [])) <= set(have), have
    assert not set(expect.pop("lacks", [])) & set(target.packages)
    if "pinning" in expect:
        wanted = expect.pop("pinning")
        assert (target.pinning[0] if target.pinning else None) == wanted
    for field, value in expect.items():
        assert getattr(target, field) == value, field
    assert target.installed or {"channel", "branch", "version", "modules", "build"} <= {
        r.what for r in decision.reasons
    }
