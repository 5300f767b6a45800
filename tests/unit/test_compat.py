"""compat: a table of combinations, and what must hold for any combination."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import date
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import provision
from provision.catalog import SUPPORT_ORDER, Catalog, load_catalog
from provision.commands.compat import CompatDocument, run
from provision.compat import compat
from provision.compat.answer import CompatAnswer, CompatRequest
from provision.errors import UsageError
from provision.lib import yaml_reader
from provision.render import Renderer
from provision.render.base import put
from provision.render.compat import view
from tests.sample import THOROUGH

CASES: list[dict[str, Any]] = yaml_reader.load((Path(__file__).parents[1] / "cases/compat.yml").read_text())
CATALOG = load_catalog()
# The facts themselves, each with a source: asked of the catalog as it ships.
SHIPPED = Catalog(Path(provision.__file__).parent / "catalog/data")
FACTS: list[dict[str, Any]] = [
    case
    for name in ("compat_frameworks", "compat_drivers", "compat_field")
    for case in yaml_reader.load((Path(__file__).parents[1] / f"cases/{name}.yml").read_text())
]
TODAY = date(2026, 11, 28)
# The newest branch when these facts were written down: one that came later is no answer to them.
NEWEST = 620
DRIVERS = SHIPPED.drivers
vars(SHIPPED)["drivers"] = DRIVERS.model_copy(
    update={"branches": {number: row for number, row in DRIVERS.branches.items() if number <= NEWEST}}
)
KNOWN = {
    "fits",
    "support",
    "branches",
    "recommended",
    "minimum",
    "modules",
    "cuda",
    "release",
    "range",
    "cudnn",
    "nccl",
    "tag",
    "python",
    "offers",
    "conflicts",
    "because",
    "warnings",
    "no_warnings",
    "nearest",
    "error",
    "hint",
    "gcc_max",
    "pins",
    "said",
    "image",
    "torch",
    "tensorflow",
    "jax",
    "pin",
    "pins_hold",
    "sure",
    "unsure",
}


def name(case: dict[str, Any]) -> str:
    return " ".join(f"{k}={'+'.join(v) if isinstance(v, list) else v}" for k, v in case["config"].items()) or "nothing"


def said(answer: CompatAnswer) -> dict[str, Any]:
    """The answer as the table writes it."""
    driver = answer.driver
    return {
        "fits": answer.fits,
        "support": answer.support,
        "branches": [driver.branches[0], driver.branches[-1]] if driver.branches else [],
        "recommended": driver.recommended,
        "minimum": driver.minimum,
        "modules": driver.modules,
        "offers": [f"{o.channel}/{o.series}" for o in driver.offers],
        "cuda": answer.cuda.chosen,
        "release": answer.cuda.release,
        "range": answer.cuda.range,
        "gcc_max": answer.cuda.gcc_max,
        "pins": [pin for library in (answer.cudnn, answer.nccl) if library for pin in library.pins],
        "cudnn": answer.cudnn.version if answer.cudnn else None,
        "nccl": answer.nccl.version if answer.nccl else None,
        "pin": answer.cudnn.pins[0] if answer.cudnn and answer.cudnn.pins else None,
        "torch": f"{answer.torch.version}+{answer.torch.tag}" if answer.torch else None,
        "tensorflow": answer.tensorflow.version if answer.tensorflow else None,
        "jax": answer.jax.extra if answer.jax else None,
        "tag": answer.torch.tag if answer.torch else None,
        "image": answer.image.runs if answer.image else None,
        "python": answer.python,
        "conflicts": sorted(issue.code for issue in answer.conflicts),
    }


@pytest.mark.parametrize("case", CASES, ids=name)
def test_compat(case: dict[str, Any]) -> None:
    judge(case, CATALOG)


@pytest.mark.parametrize("case", FACTS, ids=name)
def test_the_catalog_that_ships(case: dict[str, Any]) -> None:
    judge(case, SHIPPED)


def judge(case: dict[str, Any], catalog: Catalog) -> None:
    expect = case["expect"]
    assert set(expect) <= KNOWN
    if "error" in expect:
        with pytest.raises(UsageError) as caught:
            compat(CompatRequest(**case["config"]), catalog, today=TODAY)
        assert caught.value.issue.code == expect["error"]
        assert expect.get("hint", "") in (caught.value.issue.hint or "")
        return
    answer = compat(CompatRequest(**case["config"]), catalog, today=TODAY)
    got = said(answer)
    wanted = {k: v for k, v in expect.items() if k in got}
    if "conflicts" in wanted:
        wanted["conflicts"] = sorted(wanted["conflicts"])
    assert {k: got[k] for k in wanted} == wanted
    codes = {issue.code for issue in answer.warnings}
    assert set(expect.get("warnings", [])) <= codes
    assert not set(expect.get("no_warnings", [])) & codes
    doubts = [issue.message for issue in answer.warnings if issue.code == "catalog.uncertain"]
    assert not (expect.get("sure") and doubts), doubts
    assert "unsure" not in expect or any(expect["unsure"] in doubt for doubt in doubts), doubts
    assert expect.get("pins_hold", "") in ["", *got["pins"]]
    if "because" in expect:
        assert any(expect["because"] in line for issue in answer.conflicts for line in issue.because)
    issues = [*answer.conflicts, *answer.warnings]
    sentences = [" ".join([i.message, "; ".join(i.because), i.hint or ""]) for i in issues]
    texts = [*(" ".join(x.split()) for x in sentences), *[near.text for near in answer.nearest]]
    assert any(expect.get("said", "") in text for text in texts or [""]), texts
    changes = [near.change for near in answer.nearest]
    for change in expect.get("nearest", []):
        assert change in changes


def test_the_table_is_large_and_says_nothing_twice() -> None:
    for cases, least in ((CASES, 60), (FACTS, 400)):
        names = [name(case) for case in cases]
        assert len(names) >= least
        assert len(set(names)) == len(names)


def test_the_schema_has_its_name_in_json() -> None:
    data = compat(CompatRequest(gpu=("H100",)), CATALOG, today=TODAY).model_dump(mode="json", by_alias=True)
    assert data["schema"] == "provision/compat/1"
    assert {"fits", "support", "conflicts", "warnings", "driver", "cuda", "cudnn", "nccl", "python"} <= set(data)
    assert {"branches", "recommended", "minimum", "modules"} <= set(data["driver"])
    assert {"chosen", "range"} <= set(data["cuda"])
    assert CompatAnswer.model_validate(data).fits


@pytest.mark.parametrize(("cuda", "clashes"), [("12.9", True), ("13.0", True), ("13.1.1", True), ("13.2", False)])
def test_headers_that_clash_with_the_c_library(cuda: str, clashes: bool) -> None:
    """As if a repository for 26.04 held older toolkits, as that of a site or Ubuntu's own does."""
    site = Catalog(SHIPPED.folder)
    ranges = site.cuda_data.repository_ranges
    older = {**ranges, "26.04": ranges["26.04"].model_copy(update={"first": "12.0"})}
    site.__dict__["cuda_data"] = site.cuda_data.model_copy(update={"repository_ranges": older})
    answer = compat(CompatRequest(cuda=cuda, ubuntu="26.04"), site, today=TODAY)
    found = [issue for issue in answer.warnings if issue.code == "cuda.c_library_too_new"]
    assert bool(found) is clashes
    assert all(issue.hint and issue.hint.startswith("CUDA 13.2 or newer") for issue in found)


@pytest.mark.parametrize("config", [{"cuda": "11.0.3"}, {"image_cuda": "11.0.3"}, {"image_cuda": "11.0"}])
def test_the_oldest_driver_that_is_named_runs_what_is_asked_for(config: dict[str, Any]) -> None:
    """11.0.3 needs a newer one than the first release of its minor does."""
    answer = compat(CompatRequest(**config), CATALOG, today=TODAY)
    named = {answer.driver.minimum, answer.image.minimum if answer.image else answer.driver.minimum}
    assert len(named) == 1 and (answer.image is None or answer.image.full_from in named)
    assert compat(CompatRequest(**config, driver=named.pop()), CATALOG, today=TODAY).fits


def test_without_a_day_the_catalogs_own_counts() -> None:
    request = CompatRequest(driver="595")
    assert not compat(request, CATALOG).warnings
    late = compat(request, CATALOG, today=date(2027, 4, 1))
    assert [issue.code for issue in late.warnings] == ["driver.ended"]


def test_an_ended_branch_is_not_recommended() -> None:
    request = CompatRequest(gpu=("V100", "T4"))
    assert compat(request, CATALOG, today=date(2028, 1, 1)).driver.recommended == 580
    after = compat(CompatRequest(gpu=("T4",), modules="proprietary"), CATALOG, today=date(2027, 4, 1))
    assert after.driver.recommended == 580


# --- what must hold for any combination -------------------------------------------------------------------------------

GPUS = (
    "K80",
    "GTX 680",
    "P100",
    "V100",
    "T4",
    "A100",
    "RTX 3090",
    "RTX 4060",
    "H100",
    "GH200",
    "RTX 5090",
    "B300",
    "GB10",
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "gpu": st.lists(st.sampled_from(GPUS), min_size=1, max_size=3, unique=True).map(tuple),
        "driver": st.sampled_from(
            ["470", "470-server", "535", "550.163.01", "570", "580", "580.65.05", "595", "610", "615", "620"]
        ),
        "cuda": st.sampled_from(["11", "11.0", "11.3", "11.8", "12.0", "12.4.1", "12.8", "12", "13", "13.0", "13.5"]),
        "cudnn": st.sampled_from(["8", "8.9.7.29", "9", "9.5", "9.10.2.21", "9.11", "9.17.0.29", "9.28.1.4"]),
        "torch": st.sampled_from(["1.12", "2.0", "2.6", "2.6+cu118", "2.7", "2.8+cu128", "2.11", "2.14", "2.15"]),
        "tensorflow": st.sampled_from(["2.10", "2.14", "2.15", "2.17", "2.18", "2.21"]),
        "ubuntu": st.sampled_from(["20.04", "22.04", "24.04", "26.04", "noble"]),
        "modules": st.sampled_from(["open", "proprietary"]),
        "image_cuda": st.sampled_from(["11.0", "11.8", "12.1", "12.6.3", "12", "13.0", "13.5"]),
    },
)


@settings(database=None)
@given(CONFIGS)
def test_any_combination_gets_an_answer_that_agrees_with_itself(config: dict[str, Any]) -> None:
    answer = compat(CompatRequest(**config), CATALOG, today=TODAY)
    driver = answer.driver
    if answer.fits:
        assert not answer.conflicts
        assert not answer.nearest
        assert driver.recommended in driver.branches
        assert driver.modules
        assert driver.branches == sorted(driver.branches)
        assert answer.support in (*SUPPORT_ORDER[:3], None)
        if "cuda" in config or "cudnn" in config:
            assert answer.cuda.chosen
    else:
        assert answer.conflicts
        assert all(issue.because or issue.hint for issue in answer.conflicts)
        assert driver.branches == []
        assert driver.recommended is None


@settings(database=None)
@given(CONFIGS, st.data())
def test_fewer_wishes_fit_at_least_as_well(config: dict[str, Any], data: st.DataObject) -> None:
    if not config:
        return
    less = data.draw(st.sampled_from(sorted(config)))
    fewer = {k: v for k, v in config.items() if k != less}
    if less == "driver" and "ubuntu" in config:
        # A branch that is asked for may be there unseen; of itself only what was seen is named.
        return
    all_of_them = compat(CompatRequest(**config), CATALOG, today=TODAY)
    rest = compat(CompatRequest(**fewer), CATALOG, today=TODAY)
    assert set(all_of_them.driver.branches) <= set(rest.driver.branches)


@settings(database=None)
@given(CONFIGS)
def test_what_is_offered_as_nearest_works(config: dict[str, Any]) -> None:
    works(config, compat(CompatRequest(**config), CATALOG, today=TODAY))


def works(config: dict[str, Any], answer: Any) -> None:
    for near in answer.nearest:
        if near.fits_all:
            change: dict[str, Any] = dict(near.change)
            if "gpu" in change:
                change["gpu"] = tuple(change["gpu"].split(", "))
            assert compat(CompatRequest(**{**config, **change}), CATALOG, today=TODAY).fits, near


@pytest.mark.parametrize(
    "config",
    [{"gpu": ("V100",), "driver": "595"}, {"gpu": ("V100", "RTX 5090")}, {"image_cuda": "13.0", "driver": "535"}],
)
def test_something_near_is_offered_that_works(config: dict[str, Any]) -> None:
    answer = compat(CompatRequest(**config), CATALOG, today=TODAY)
    assert not answer.fits and [near for near in answer.nearest if near.fits_all]
    works(config, answer)


WORDS = st.one_of(
    st.text(max_size=12),
    st.text(alphabet="0123456789.+-cu", max_size=10),
    st.sampled_from(
        ["RTX", "GeForce", "SXM", "580-", "580.", "12.", ".4", "+cu124", "2.6+", "v2", "10de:", "0x", "R580", "v"]
    ),
)


@settings(database=None)
@given(st.sampled_from(["driver", "cuda", "cudnn", "torch", "tensorflow", "ubuntu", "modules", "gpu"]), WORDS)
def test_nonsense_is_wrong_usage_and_nothing_else(kind: str, text: str) -> None:
    request = CompatRequest(gpu=(text,)) if kind == "gpu" else CompatRequest(**{kind: text})
    try:
        assert compat(request, CATALOG, today=TODAY).fits is not None
    except UsageError as error:
        assert error.issue.message


# --- text and JSON ------------------------------------------------------------------------------------------------------


def questions(count: int, seed: int = 16) -> Iterator[dict[str, Any]]:
    """Random questions from the catalog's own names: one to four items each, always the same for a seed."""
    pick = random.Random(seed)  # noqa: S311 -- questions, not secrets
    frameworks = SHIPPED.frameworks
    names = {
        "gpu": [board.name for board in SHIPPED.gpu_data.boards] + list(SHIPPED.gpu_data.devices),
        "driver": [str(branch.number) for branch in SHIPPED.branches],
        "cuda": [*SHIPPED.cuda_data.minors, *SHIPPED.cuda_data.releases],
        "cudnn": list(SHIPPED.cudnn_versions),
        "nccl": list(SHIPPED.nccl_versions),
        "torch": [f"{v}+{tag}" for v, row in frameworks.torch.releases.items() for tag in row.offered],
        "tensorflow": [v for row in frameworks.tensorflow.releases.values() for v in row.patches],
        "jax": list(frameworks.jax.releases),
        "ubuntu": list(SHIPPED.ubuntu_data.releases),
        "machine": ["x86_64", "aarch64"],
        "modules": ["open", "proprietary"],
        "image_cuda": list(SHIPPED.cuda_data.minors),
    }
    for _ in range(count):
        chosen = pick.sample(sorted(names), pick.randint(1, 4))
        asked: dict[str, Any] = {kind: pick.choice(names[kind]) for kind in chosen}
        yield {**asked, "gpu": (asked["gpu"],)} if "gpu" in asked else asked


def printed(document: CompatDocument, width: int) -> str:
    """What a person sees, in one line, so that where lines break does not matter."""
    where = Console(file=StringIO(), width=width)
    for thing in view(document):
        put(where, thing)
    text = where.file.getvalue()
    assert all(len(line) <= width for line in text.splitlines()), text
    return " ".join(text.split())


def test_text_and_json_say_the_same_and_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provision.commands.compat.load_catalog", lambda: SHIPPED)
    asked, number = 0, 2000 if THOROUGH else 50
    for config in questions(number):
        try:
            document = run(CompatRequest(**config))
        except UsageError:
            # A name that stands for several GPUs, an NCCL of another major, …
            continue
        asked += 1
        data, text = json.loads(document.to_json()), printed(document, 10_000)
        assert text.startswith("it fits" if data["fits"] else "it does not fit")
        assert data["exit_code"] == (0 if data["fits"] else 5)
        assert data["errors"] == data["conflicts"]
        offered = [near["text"] for near in data["nearest"]]
        for issue in [*data["conflicts"], *data["warnings"]]:
            assert text.count(": " + issue["message"] + " ") + text.endswith(": " + issue["message"]) == 1, config
            hints = [part for part in (issue["hint"] or "").split("; or ") if part not in offered]
            for part in [*issue["because"], *hints]:
                assert " ".join(part.split()) in text, config
        for line in offered:
            assert text.count(": " + line) == 1, (config, line)
        driver, cuda = data["driver"], data["cuda"]
        assert not driver["recommended"] or f"{driver['recommended']} recommended" in text
        assert not cuda["chosen"] or (cuda["release"] or cuda["chosen"]) in text
        for library in ("cudnn", "nccl"):
            assert all(pin in text for pin in (data[library] or {"pins": []})["pins"])
        assert not data["torch"] or f"{data['torch']['version']}+{data['torch']['tag']}" in text
        assert not data["tensorflow"] or data["tensorflow"]["version"] in text
        assert not data["jax"] or data["jax"]["extra"] in text
        assert not data["python"] or ", ".join(data["python"]) in text
    assert asked > number * 3 / 4


def test_reasons_stand_on_stdout_and_stderr_stays_empty(capsys: pytest.CaptureFixture[str]) -> None:
    Renderer().document(run(CompatRequest(gpu=("K80",), driver="535")))
    out, err = capsys.readouterr()
    assert "error: driver 535 does not drive Tesla K80" in out
    assert "because: " in out
    assert not err
