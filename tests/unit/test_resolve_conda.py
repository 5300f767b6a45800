"""resolve for conda, from a table: what is made, of what, or why not."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from provision.catalog import load_catalog
from provision.lib import yaml_reader
from provision.parts.conda.desired import CondaConfig, EnvironmentConfig, with_files
from provision.parts.conda.resolve import resolve_conda
from provision.parts.decision import Decision, Target
from tests.unit.hosts import host

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/conda.yml").read_text())


def given(case):
    """The config, facts and driver decision of a case."""
    driver = case.get("driver")
    loaded = case.get("loaded", driver)
    facts = host(case["gpus"], **case.get("facts", {}), conda=case.get("conda", {}))
    if loaded not in (None, "none"):
        facts.module = facts.module.model_validate({"loaded": {"version": loaded, "flavour": "open"}})
    target = Target("ubuntu", "x", driver, "open", "signed", "headless") if driver else None
    config = CondaConfig.from_vars({f"miniconda_{name}": value for name, value in case["config"].items()})
    return config, facts, Decision(target=target)


def look(thing, path):
    """Value at a dotted path of attributes, keys and numbers."""
    for part in path.split("."):
        if isinstance(thing, dict):
            thing = thing[part]
        elif isinstance(thing, (list, tuple)):
            thing = thing[int(part)]
        else:
            thing = getattr(thing, part)
    return list(thing) if isinstance(thing, tuple) else thing


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_resolve_conda(case):
    config, facts, driver = given(case)
    decision = resolve_conda(config, facts, load_catalog(), driver)
    expect = case["expect"]
    codes = [issue.code for issue in decision.blockers]
    if "blockers" in expect:
        assert codes == expect["blockers"] or (expect["blockers"] == ["any"] and codes), decision.blockers
        said = " ".join(" ".join([issue.message, *issue.because, issue.hint or ""]) for issue in decision.blockers)
        assert all(str(word) in said for word in expect.get("words", [])), said
        assert not any(word in said for word in expect.get("lacks", [])), said
        assert all(issue.hint for issue in decision.blockers), "every refusal names a way out"
        follow(config, facts, driver, decision)
        return
    assert not codes, decision.blockers
    for kind, named in (
        ("environments", {target.config.name: target for target in decision.environments}),
        ("prefixes", {target.path: target for target in decision.prefixes}),
    ):
        if kind in expect:
            assert set(named) == set(expect[kind])
            for name, values in expect[kind].items():
                assert {path: look(named[name], path) for path in values} == values
    assert set(expect.get("warnings", [])) <= {issue.code for issue in decision.warnings}
    told = " ".join(f"{r.what} {r.value} {r.because}" for r in decision.reasons)
    assert all(word in told for word in expect.get("reasons", [])), told


def follow(config, facts, driver, decision):
    """Set what the hints name, each alternative by itself: none of the refused environments may be refused again."""
    for issue in decision.blockers:
        named = re.match(r"environment (\S+): ", issue.message)
        env = next((e for e in config.environments if named and e.name == named[1]), None)
        for alternative in (issue.hint or "").split("; or "):
            own = dict(re.findall(r'\b(torch|tensorflow|cuda|python|cudnn): "([^"]+)"', alternative))
            own |= dict.fromkeys(re.findall(r"\bno (cuda|python)\b", alternative), "")
            own |= dict.fromkeys(re.findall(r"leave (torch_from) out", alternative), "auto")
            own |= dict.fromkeys(re.findall(r"leave (cuda|cudnn) out", alternative), "")
            branch = re.search(r'nvidia_driver_branch: "([^"]+)"', alternative)
            ours = dict(re.findall(r'\bminiconda_(version|python): "([^"]+)"', alternative))
            ours |= dict.fromkeys(re.findall(r"\bminiconda_(repair|rebuild|accept_tos): true", alternative), True)
            ours |= dict(re.findall(r"\bminiconda_(prefix|users_prefix): ([^\s;,]+)", alternative))
            if env is not None and own and not env.file:
                if "torch" in env.torch and "cuda" in own:
                    own.setdefault("torch", env.torch.split("+")[0])
                changed = replace(config, environments=(replace(env, **own),))
                facts_then = facts
            elif branch:
                version = load_catalog().branch(branch[1]).last_version
                other = Decision(target=Target("ubuntu", branch[1], version, "open", "signed", "headless"))
                again = resolve_conda(config, facts, load_catalog(), other)
                assert issue.message not in [other_issue.message for other_issue in again.blockers]
                assert len(again.blockers) < len(decision.blockers)
                continue
            elif ours:
                changed, facts_then = replace(config, **ours), moved(facts, ours)
            else:
                continue
            again = resolve_conda(changed, facts_then, load_catalog(), driver)
            assert not again.blockers, (alternative, again.blockers)


def moved(facts, ours):
    """Facts as the probe would have them after a change of places: looked at anew."""
    if not {"prefix", "users_prefix"} & set(ours):
        return facts
    return facts.model_copy(update={"conda": facts.conda.model_copy(update={"looked": []})})


def test_hints_of_the_table_are_followed_at_all():
    """The test above follows nothing where a hint is worded otherwise: here it must find enough to follow."""
    followed = 0
    for case in CASES:
        config, facts, driver = given(case)
        for issue in resolve_conda(config, facts, load_catalog(), driver).blockers:
            followed += bool(re.search(r'\b(torch|tensorflow|cuda|python): "|\bminiconda_\w+: ', issue.hint or ""))
    assert followed >= 25


def test_every_pair_of_torch_and_gpu_is_decided_and_every_refusal_can_be_followed():
    catalog = load_catalog()
    refused = 0
    for gpu in ("K80", "P100", "V100", "T4", "RTX 4090", "H100", "B200"):
        for version in list(catalog.frameworks.torch.releases)[::4]:
            for driver in ("470.256.02", "550.163.01", "580.126.20"):
                case = {
                    "gpus": [gpu],
                    "driver": driver,
                    "config": {"environments": [{"name": "x", "torch": version, "python": "3.11"}]},
                }
                config, facts, decision = given(case)
                out = resolve_conda(config, facts, catalog, decision)
                refused += bool(out.blockers)
                follow(config, facts, decision, out)
                assert bool(out.blockers) != bool(out.environments)
    assert refused > 40


def test_files_are_read_beside_the_inventory(tmp_path):
    (tmp_path / "env.yml").write_text("dependencies: [python]\n")
    config = CondaConfig.from_vars(
        {"miniconda_environments": [{"name": "a", "file": "env.yml"}, {"name": "b", "file": "gone.yml"}]}
    )
    read = with_files(config, tmp_path)
    assert read.environments[0].content == "dependencies: [python]\n"
    assert read.environments[1].content is None
    assert "No such file" in read.environments[1].unreadable


def test_the_probe_is_told_where_to_look():
    config = CondaConfig.from_vars(
        {
            "miniconda_users": ["alice"],
            "miniconda_users_prefix": "/data/{user}/conda",
            "miniconda_environments": [
                {"name": "a"},
                {"name": "b", "user": "bob"},
                {"name": "c", "prefix": "/srv/conda"},
            ],
        }
    )
    assert config.prefix_paths() == ["/opt/miniconda3", "/data/alice/conda", "/data/bob/conda", "/srv/conda"]
    assert CondaConfig(users=("alice",)).prefix_paths() == ["~alice/.miniconda3"]
    assert CondaConfig().prefix_paths() == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "no text in UTF-8"),
        (b"dependencies: [python=3.11, 3.1]", "3.1 is neither"),
        (b"dependencies: [python=3.11, {pip: requests}]", "is neither"),
        (b"dependencies: [python=3.11, {pip: [1]}]", "is neither"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, content, words):
    (tmp_path / "e.yml").write_bytes(content)
    config = CondaConfig.from_vars({"miniconda_environments": [{"name": "a", "file": "e.yml"}]})
    decision = resolve_conda(with_files(config, tmp_path), host(["H100"]), load_catalog(), Decision())
    assert [issue.code for issue in decision.blockers] == ["conda.file_unreadable"]
    assert words in decision.blockers[0].because[0]


@pytest.mark.parametrize(
    ("then", "now", "action"),
    [
        ("dependencies: [python=3.11]\n", "# why\nname: other\ndependencies:\n  - python=3.11\n", ""),
        ("dependencies: [python=3.11]\n", "dependencies: [python=3.12]\n", None),
        (
            "@EXPLICIT\nhttps://h/c/noarch/a-1-0.conda\n",
            "# made today\n@EXPLICIT\n\nhttps://h/c/noarch/a-1-0.conda\n",
            "",
        ),
        ("@EXPLICIT\nhttps://h/c/noarch/a-1-0.conda\n", "@EXPLICIT\nhttps://h/c/noarch/a-2-0.conda\n", None),
    ],
)
def test_a_file_that_asks_for_the_same_makes_nothing_anew(then, now, action):
    def asked(content):
        env = replace(EnvironmentConfig(name="a", file="e.yml"), content=content)
        return CondaConfig(environments=(env,))

    spec = {"wish": asked(then).environments[0].asked(), "file_content": then, "packages": [], "pip": []}
    env = {"name": "a", "path": "/opt/miniconda3/envs/a", "python": "3.11.9", "record": {"spec": spec}}
    facts = host(["H100"], conda={"prefixes": [{"path": "/opt/miniconda3"}], "environments": [env]})
    decision = resolve_conda(asked(now), facts, load_catalog(), Decision())
    if action is None:
        assert [issue.because for issue in decision.blockers] == [
            ["its file asks for something else than when it was made"]
        ]
    else:
        assert not decision.blockers and decision.environments[0].action == action
