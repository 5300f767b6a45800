"""The catalog: every fact is there, everything refers to something, and the questions get the right answers."""

from __future__ import annotations

import os
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from provision import catalog as package
from provision.catalog import UNSURE, VARIABLE, Catalog, Gpu, files, load_catalog, other_catalog, read_catalog
from provision.catalog.models.base import last_day
from provision.catalog.review import contradictions, gaps, stale, unlinked, unsure
from provision.catalog.toolkits import c_library
from provision.catalog.versions import between, key, same
from provision.commands.catalog import check
from provision.errors import UsageError
from provision.lib import yaml_reader
from provision.planning import plan_from_facts
from tests.unit.hosts import host

REAL = Path(package.__file__).parent / "data"
FOLDER = Path(__file__).parents[1] / "catalog"
CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/catalog_gpus.yml").read_text())
CATALOG = load_catalog()


def gpu(text: str) -> Gpu:
    found = CATALOG.find_gpu(text).gpu
    assert found is not None, text
    return found


# --- the data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [REAL, FOLDER], ids=["real", "frozen"])
def test_everything_refers_to_something(folder: Path) -> None:
    assert contradictions(Catalog(folder)) == []


def test_the_generated_catalog_is_that_of_the_files(tmp_path: Path) -> None:
    assert files.GENERATED.read_text() == files.generate(), "make docs writes it"
    copy = tmp_path / "copy"
    shutil.copytree(REAL, copy)
    for name in files.TOPICS:
        assert getattr(Catalog(REAL), name) == getattr(Catalog(copy), name), name


def changed(folder: Path, *changes: tuple[str, str, str]) -> Catalog:
    """The frozen catalog with some lines put before others: (file, line that is there, new lines)."""
    for path in FOLDER.glob("*.yml"):
        shutil.copy(path, folder)
    for name, there, more in changes:
        path = folder / f"{name}.yml"
        text = path.read_text()
        assert text.count(there) == 1
        path.write_text(text.replace(there, f"{more}\n{there}"))
    return Catalog(folder)


def test_a_minor_of_a_major_that_nothing_is_known_of_is_named() -> None:
    data = CATALOG.cuda_data.model_copy(update={"minor_version_compatibility": {}})
    bare = Catalog(FOLDER)
    bare.__dict__["cuda_data"] = data
    with pytest.raises(UsageError) as raised:
        _ = bare.cuda_minors
    assert raised.value.issue.code


def test_what_a_new_ubuntu_still_lacks_is_named(tmp_path: Path) -> None:
    row = '  "28.04": {codename: zesty, kernel_ga: "8.0", standard_support_until: null, support: standard, gcc: "17"}'
    catalog = changed(tmp_path, ("ubuntu", '  "26.04": {codename: resolute,', row))
    assert contradictions(catalog) == []
    missing = set(gaps(catalog)) - set(gaps(CATALOG))
    assert all(line.startswith("Ubuntu 28.04 (zesty): ") for line in missing)
    for words in ("repositories.yml, cuda", "archive.offers", "nvidia.offers", "cuda.yml"):
        assert any(words in line for line in missing), words


class _NoDuplicates(yaml.SafeLoader):
    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(name, deep=True) for name, _ in node.value]
        twice = {name for name in names if names.count(name) > 1}
        assert not twice, f"{node.start_mark}: twice: {twice}"
        return super().construct_mapping(node, deep)


@pytest.mark.parametrize("path", sorted(REAL.glob("*.yml")), ids=lambda path: path.name)
def test_no_key_is_there_twice(path: Path) -> None:
    assert yaml.load(path.read_text(), Loader=_NoDuplicates)  # noqa: S506 -- a SafeLoader


# Counted in the sources that the catalog was made from.
@pytest.mark.parametrize(
    ("rows", "count"),
    [
        (CATALOG.gpu_data.devices, 828),
        (CATALOG.gpu_data.boards, 64),
        (CATALOG.gpu_data.id_ranges, 32),
        (CATALOG.gpu_data.chips, 49),
        (CATALOG.architectures.architectures, 11),
        (CATALOG.branches, 25),
        (CATALOG.drivers.archive.transitional, 12),
        (CATALOG.cuda_minors, 24),
        (CATALOG.cuda_data.releases, 64),
        (CATALOG.cudnn_data.pairs, 18),
        (CATALOG.nccl_data.pairs, 20),
        (CATALOG.frameworks.torch.releases, 29),
        (CATALOG.frameworks.tensorflow.releases, 12),
        (CATALOG.frameworks.tensorflow.and_cuda, 14),
        (CATALOG.ubuntu_data.releases, 4),
        ([s for row in CATALOG.conda.miniconda.installers for s in row.sha256], 64),
        ([s for row in CATALOG.conda.miniforge.installers for s in row.sha256], 2),
        (CATALOG.container_toolkit.packages.set, 4),
        (CATALOG.traps, 32),
    ],
)
def test_no_fact_was_lost(rows: Any, count: int) -> None:
    assert len(rows) == count


def test_architectures_have_as_many_gpus_as_pci_ids_lists() -> None:
    chips = CATALOG.gpu_data.chips
    found: dict[str, int] = {}
    for device in CATALOG.gpu_data.devices.values():
        found[chips[device.chip].cc] = found.get(chips[device.chip].cc, 0) + 1
    assert found == {
        "3.0": 131,
        "3.5": 57,
        "3.7": 1,
        "5.0": 43,
        "5.2": 44,
        "6.0": 13,
        "6.1": 95,
        "7.0": 21,
        "7.5": 112,
        "8.0": 28,
        "8.6": 114,
        "8.9": 62,
        "9.0": 28,
        "10.0": 15,
        "10.3": 10,
        "10.7": 4,
        "11.0": 1,
        "12.0": 44,
        "12.1": 5,
    }


def _walk(value: Any) -> Any:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _walk(inner)


@pytest.mark.parametrize("path", sorted(REAL.glob("*.yml")), ids=lambda path: path.name)
def test_every_file_says_where_its_facts_come_from_and_when(path: Path) -> None:
    data = yaml_reader.load(path.read_text())
    dated = data.get("sources") or {t["id"]: t for t in data["traps"]}
    assert dated
    assert all(entry["source"] and entry["as_of"] for entry in dated.values())
    marks = {
        v for node in _walk(data) if isinstance(node, dict) for k, v in node.items() if str(k).endswith("certainty")
    }
    assert marks <= UNSURE | {"verified", "sourced"}


# What the sources themselves call unsure stays unsure.
@pytest.mark.parametrize(
    ("what", "certainty"),
    [
        (CATALOG.branch(565).max_cuda_certainty, "knowledge"),
        (CATALOG.branch(580).eol_certainty, "conflicting"),
        (CATALOG.branch(590).eol_certainty, "conflicting"),
        (CATALOG.branch(615).type_certainty, "unknown"),
        (CATALOG.gpu_data.chips["GR100"].certainty, "inferred"),
        (gpu("GH200").modules_certainty, "knowledge"),
        (CATALOG.architectures.compute_capabilities["10.3"].first_branch_certainty, "inferred"),
        (CATALOG.architectures.compute_capabilities["12.1"].first_branch_certainty, "inferred"),
        (CATALOG.repositories.unknown_keys[0].certainty, "unknown"),
        (CATALOG.cuda("13.5").driver_certainty, "inferred"),
        (CATALOG.cuda("11.3").sm_certainty, "inferred"),
        (CATALOG.frameworks.tensorflow.arch_lists[0].certainty, "inferred"),
    ],
)
def test_uncertainty_is_carried_along(what: str, certainty: str) -> None:
    assert what == certainty


def test_what_is_not_sure_is_listed_with_its_note_and_source() -> None:
    lines = unsure(CATALOG)
    assert any(line.startswith("drivers branches 580 eol: conflicting; 2028-06 by NVIDIA's page;") for line in lines)
    assert not any(line.startswith("drivers branches 595") for line in lines)


@pytest.mark.parametrize(
    ("file", "seen", "source", "old", "bare"),
    [
        ("nccl", "2026-08-31", "docs.nvidia.com", False, False),
        ("nccl", "2026-08-30", "docs.nvidia.com", True, False),
        ("nccl", "2026-08", "a page of the vendor", False, True),
        ("cuda", "~2025-08-18/2026-10", "listings in public files; owner/name", False, False),
        ("cuda", "2025", "https://example.org/x", True, False),
        ("gpus", "2020", "what people say", False, True),
    ],
)
def test_sources_that_are_old_or_without_a_link(
    tmp_path: Path, file: str, seen: str, source: str, old: bool, bare: bool
) -> None:
    catalog = changed(tmp_path)
    path = tmp_path / f"{file}.yml"
    row = f'sources:\n  tried: {{source: "{source}", as_of: "{seen}"}}\n'
    path.write_text(path.read_text().replace("sources:\n", row, 1))
    assert any(f"{file}.yml, tried:" in line for line in stale(catalog, date(2026, 11, 29))) is old
    assert any(f"{file}.yml, tried:" in line for line in unlinked(catalog)) is bare


def test_the_check_fails_for_contradictions_alone(tmp_path: Path) -> None:
    assert check(None).exit_code == 0
    changed(tmp_path)
    path = tmp_path / "architectures.yml"
    path.write_text(path.read_text().replace("last_branch: 470", "last_branch: 471", 1))
    document = check(tmp_path)
    assert (document.exit_code, len(document.contradictions)) == (3, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("sources: [", "while parsing"),
        ("", "nccl_data"),
        ("x: 1\n" * (1 << 20), "larger than 4 MiB"),
        ("sources: {}\n", "apt: Field required"),
    ],
)
def test_a_folder_that_is_no_catalog_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    changed(tmp_path)
    (tmp_path / "nccl.yml").unlink()
    if text is not None:
        (tmp_path / "nccl.yml").write_text(text)
    with pytest.raises(UsageError) as raised:
        read_catalog(tmp_path)
    assert raised.value.issue.code == "catalog.folder"
    assert said in " ".join(raised.value.issue.because)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ubuntu", "codename: noble", "codename: noble, colour: brown"),
        ("nccl", "source: redist", "source: hearsay"),
        ("gpus", "chip: GK107", "chip: GK999"),
        ("drivers", "certainty: inferred", "certainty: perhaps"),
        ("cuda", '"12.4": {sm:', '"12,4": {sm:'),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, name: str, old: str, new: str) -> None:
    for path in FOLDER.glob("*.yml"):
        shutil.copy(path, tmp_path)
    path = tmp_path / f"{name}.yml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValidationError):
        contradictions(Catalog(tmp_path))


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        ("architectures", "last_branch: 470", "last_branch: 471", "Kepler: unknown branch 471"),
        ("frameworks", "offered: [cu130, cu132]", "offered: [cu130, cu139]", "torch 2.15.0: unknown tag 'cu139'"),
        (
            "gpus",
            'architecture: Kepler, cc: "3.0"',
            'architecture: Kepler, cc: "3.1"',
            "unknown compute capability '3.1'",
        ),
        ("repositories", '"24.04": cuda,', '"24.04": cudda,', "cuda: unknown key 'cudda'"),
        ("cuda", 'first: "13.3"', 'first: "13.9"', "repository range 26.04: unknown CUDA minor '13.9'"),
    ],
)
def test_a_broken_reference_is_named(tmp_path: Path, name: str, old: str, new: str, problem: str) -> None:
    for path in FOLDER.glob("*.yml"):
        shutil.copy(path, tmp_path)
    path = tmp_path / f"{name}.yml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert any(problem in line for line in contradictions(Catalog(tmp_path)))


# --- GPUs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES["names"], ids=lambda case: case["text"])
def test_names_people_write(case: dict[str, str]) -> None:
    found = gpu(case["text"])
    assert (found.architecture, found.cc) == (case["architecture"], case["cc"])
    if "id" in case:
        assert case["id"] in found.ids
    if "name" in case:
        assert found.name == case["name"]
    if "fabric" in case:
        assert found.fabric == case["fabric"]


@pytest.mark.parametrize("case", CASES["ambiguous"], ids=lambda case: case["text"])
def test_ambiguous_names_give_every_candidate(case: dict[str, Any]) -> None:
    match = CATALOG.find_gpu(case["text"])
    assert match.gpu is None
    assert [c.cc for c in match.candidates] == case["ccs"]
    assert len({c.name for c in match.candidates}) == len(match.candidates)


@pytest.mark.parametrize("case", CASES["unknown"], ids=lambda case: case["text"])
def test_unknown_names_give_the_nearest(case: dict[str, Any]) -> None:
    match = CATALOG.find_gpu(case["text"])
    assert match.gpu is None
    assert not match.candidates
    if case["nearest"]:
        assert case["nearest"] in match.nearest
    else:
        assert not match.nearest


def test_every_gpu_is_found_by_the_names_that_nvidia_smi_prints() -> None:
    for device_id, device in CATALOG.gpu_data.devices.items():
        own = CATALOG.gpu_by_id(device_id)
        for text in device.also:
            match = CATALOG.find_gpu(text)
            found = [match.gpu] if match.gpu else list(match.candidates)
            assert (own.architecture, own.cc) in [(g.architecture, g.cc) for g in found], (device_id, text)


def test_an_exact_id_wins_over_its_range() -> None:
    # K80, in a range that mixes 3.5 and 3.7
    assert CATALOG.gpu_by_id("102d").cc == "3.7"
    assert CATALOG.gpu_by_id("102d").certainty == "sourced"


@pytest.mark.parametrize(
    ("device_id", "architecture", "cc", "last_branch"),
    [("23ab", "Hopper", "9.0", None), ("1dee", "Volta", "7.0", 580), ("1011", "Kepler", None, 470)],
)
def test_an_unlisted_id_is_judged_by_its_range(
    device_id: str, architecture: str, cc: str | None, last_branch: int | None
) -> None:
    found = CATALOG.gpu_by_id(device_id)
    assert (found.architecture, found.cc, found.last_branch) == (architecture, cc, last_branch)
    assert found.certainty == "inferred"


def test_an_id_newer_than_the_catalog_gets_what_is_maintained_and_open() -> None:
    found = CATALOG.gpu_by_id("10de:3fff")
    assert found.certainty == "unknown"
    assert found.turing_or_newer
    assert CATALOG.branches_for([found]) == {595, 620}
    assert CATALOG.flavours([found], 620) == ["open"]


def test_an_id_older_than_kepler_is_driven_by_nothing() -> None:
    # Fermi
    found = CATALOG.gpu_by_id("06d1")
    assert not found.turing_or_newer
    assert CATALOG.branches_for([found]) == set()


@pytest.mark.parametrize("text", ["", "H100", "12345", "10df:2330"])
def test_what_is_no_id_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a PCI device id"):
        CATALOG.gpu_by_id(text)


def test_subsystems_tell_boards_of_one_id_apart() -> None:
    assert CATALOG.gpu_by_id("25b6", subsystem="10de:14a9").name == "A16"
    assert CATALOG.gpu_by_id("25b6", subsystem="10de:157e").name == "A2"


@pytest.mark.parametrize(
    ("text", "mig"), [("A100", True), ("H100", True), ("A40", False), ("V100", False), ("GB10", None), ("B200", True)]
)
def test_mig(text: str, mig: bool | None) -> None:
    assert gpu(text).mig is mig


@pytest.mark.parametrize("case", CASES["flavours"], ids=lambda case: f"{'+'.join(case['gpus'])} {case['branch']}")
def test_module_flavours(case: dict[str, Any]) -> None:
    assert CATALOG.flavours([gpu(text) for text in case["gpus"]], case["branch"]) == case["flavours"]


@pytest.mark.parametrize(
    ("texts", "first", "last"),
    [
        (["K80"], 450, 470),
        (["GTX 1080 Ti"], 450, 580),
        (["V100"], 450, 580),
        (["T4"], 450, 620),
        (["A100"], 450, 620),
        (["RTX 3090"], 455, 620),
        (["L40S"], 535, 620),
        (["H100"], 520, 620),
        (["RTX 5090"], 570, 620),
        (["B300"], 580, 620),
        (["V100", "RTX 4090"], 525, 580),
        (["K80", "T4"], 450, 470),
    ],
)
def test_branches(texts: list[str], first: int, last: int) -> None:
    found = CATALOG.branches_for([gpu(text) for text in texts])
    assert (min(found), max(found)) == (first, last)


@pytest.mark.parametrize("texts", [["V100", "RTX 5090"], ["K80", "RTX 4090"], ["K80", "H100"]])
def test_no_branch_for_all(texts: list[str]) -> None:
    assert CATALOG.branches_for([gpu(text) for text in texts]) == set()


@pytest.mark.parametrize("case", CASES["support"], ids=lambda case: f"{case['cuda']} {case['gpu']}")
def test_support_of_a_toolkit(case: dict[str, str]) -> None:
    assert CATALOG.toolkit_support(case["cuda"], gpu(case["gpu"])) == case["support"]


# --- driver branches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "kind", "cuda", "is_open"),
    [
        (470, "LTSB", "11.4", "none"),
        (535, "LTSB", "12.2", "available"),
        (550, "PB", "12.4", "available"),
        (570, "PB", "12.8", "default"),
        (580, "LTSB", "13.0", "default"),
        (595, "PB", "13.2", "default"),
        (610, "NFB", "13.3", "default"),
        (620, "LTSB", "13.5", "only"),
    ],
)
def test_branch_rows(number: int, kind: str, cuda: str, is_open: str) -> None:
    branch = CATALOG.branch(number)
    assert (branch.number, branch.type, branch.open) == (number, kind, is_open)
    assert CATALOG.max_cuda(number) == cuda


@pytest.mark.parametrize("text", ["580", 580, "580-server", "580.95.05", "580.126.20"])
def test_ways_to_name_a_branch(text: str | int) -> None:
    assert CATALOG.branch(text).number == 580


@pytest.mark.parametrize("text", ["999", "58", "5800", "nvidia", "580-", "580.x"])
def test_unknown_branches(text: str) -> None:
    assert CATALOG.find_branch(text) is None
    with pytest.raises(UsageError) as caught:
        CATALOG.branch(text)
    assert caught.value.issue.code == "catalog.unknown_branch"
    assert caught.value.issue.hint


def test_branches_are_in_order_and_three_are_supported_now() -> None:
    numbers = [branch.number for branch in CATALOG.branches]
    assert numbers == sorted(numbers)
    assert [b.number for b in CATALOG.branches if b.supported_now] == [580, 595, 620]
    assert {b.number for b in CATALOG.branches if b.is_long_term_or_production} >= {470, 535, 550, 570, 580, 595, 620}
    assert not {b.number for b in CATALOG.branches if b.is_long_term_or_production} & {575, 590, 610, 615}


@pytest.mark.parametrize(
    ("number", "day", "ended"),
    [
        (580, "2026-11-27", False),
        (580, "2028-06-30", False),
        (580, "2028-07-01", True),
        (550, "2025-04-17", False),
        (550, "2025-04-18", True),
        (455, "2026-11-27", True),
        (590, "2026-11-27", True),
        (615, "2026-11-27", False),
    ],
)
def test_when_a_branch_ends(number: int, day: str, ended: bool) -> None:
    assert CATALOG.branch(number).is_ended(date.fromisoformat(day)) is ended


@pytest.mark.parametrize(
    ("text", "day"), [("2028", "2028-12-31"), ("2024-02", "2024-02-29"), ("2026-12", "2026-12-31")]
)
def test_last_day(text: str, day: str) -> None:
    assert last_day(text) == date.fromisoformat(day)


@pytest.mark.parametrize(
    ("branch", "ubuntu", "channels"),
    [
        (580, "24.04", {"ubuntu", "cuda"}),
        (570, "24.04", {"cuda"}),
        (580, "26.04", {"ubuntu"}),
        (595, "26.04", {"ubuntu", "cuda"}),
        (470, "24.04", {"ubuntu"}),
        (535, "24.04", set()),
        (470, "26.04", set()),
    ],
)
def test_where_a_branch_is_offered(branch: int, ubuntu: str, channels: set[str]) -> None:
    assert {available.channel for available in CATALOG.known_series(branch, ubuntu=ubuntu)} == channels


def test_470_on_noble_is_real_as_server_only() -> None:
    assert [available.series for available in CATALOG.known_series(470, ubuntu="noble")] == ["470-server"]


@pytest.mark.parametrize(
    ("series", "ubuntu", "to"),
    [
        ("470", "24.04", "535"),
        ("470-server", "24.04", None),
        ("535", "24.04", "580"),
        ("550-server", "24.04", "570-server"),
        ("570", "22.04", "580"),
        ("570-server", "24.04", "580-server"),
        ("590", "26.04", "595"),
        ("580", "24.04", None),
    ],
)
def test_transitional_packages(series: str, ubuntu: str, to: str | None) -> None:
    found = CATALOG.transitional(series, ubuntu=ubuntu)
    assert (found.to if found else None) == to


# --- CUDA, cuDNN, NCCL, frameworks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuda", "full", "version"),
    [
        ("11.4", False, "450.80.02"),
        ("12", False, "525.60.13"),
        ("12.8", False, "525.60.13"),
        ("13.2", False, "580.65.06"),
        ("12.4", True, "550.54.14"),
        ("12.4.1", True, "550.54.15"),
        ("13.0.2", True, "580.95.05"),
        ("13.5.0", True, None),
    ],
)
def test_oldest_driver_for_a_cuda(cuda: str, full: bool, version: str | None) -> None:
    assert CATALOG.min_driver_for_cuda(cuda, full=full) == version


@pytest.mark.parametrize("cuda", ["10.2", "14.0", "x", ""])
def test_no_driver_is_known_for_a_cuda_that_there_is_not(cuda: str) -> None:
    with pytest.raises(UsageError):
        CATALOG.min_driver_for_cuda(cuda)


@pytest.mark.parametrize(
    ("texts", "first", "last"),
    [
        (["K80"], "11.0", "11.8"),
        (["V100"], "11.0", "12.9"),
        (["H100"], "11.8", "13.5"),
        (["RTX 5090"], "12.8", "13.5"),
        (["V100", "H100"], "11.8", "12.9"),
    ],
)
def test_cuda_range(texts: list[str], first: str, last: str) -> None:
    span = CATALOG.cuda_range([gpu(text) for text in texts])
    assert span is not None
    assert (span.first, span.last) == (first, last)


def test_no_toolkit_of_the_catalog_targets_3_0() -> None:
    assert CATALOG.cuda_range([gpu("GTX 680")]) is None


@pytest.mark.parametrize(("text", "minor"), [("12.4", "12.4"), ("12.4.1", "12.4"), ("13", "13.5"), ("11", "11.8")])
def test_cuda_by_text(text: str, minor: str) -> None:
    assert CATALOG.cuda(text).version == minor


@pytest.mark.parametrize(("text", "near"), [("12.7", "12.6, 12.8"), ("13.9", "13.5"), ("10.2", "11.0"), ("twelve", "")])
def test_cuda_that_there_is_not(text: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        CATALOG.cuda(text)
    assert caught.value.issue.code == "catalog.unknown_cuda"
    assert near in (caught.value.issue.hint or "")


@pytest.mark.parametrize(
    ("cuda", "texts", "pin"),
    [
        ("11.8", [], "libcudnn8=8.9.6.50-1+cuda11.8"),
        ("12.1", [], "libcudnn8=8.9.0.131-1+cuda12.1"),
        ("12.4", [], "libcudnn9-cuda-12=9.1.0.70-1"),
        ("12.8", ["RTX 5090"], "libcudnn9-cuda-12=9.8.0.87-1"),
        ("12.9", ["V100"], "libcudnn9-cuda-12=9.10.2.21-1"),
        ("13.0", [], "libcudnn9-cuda-13=9.12.0.46-1"),
        ("13.5", [], "libcudnn9-cuda-13=9.17.0.29-1"),
    ],
)
def test_cudnn_pins(cuda: str, texts: list[str], pin: str) -> None:
    pair = CATALOG.cudnn_for(cuda, [gpu(text) for text in texts])
    assert pair is not None
    assert pair.pins[0] == pin
    assert pair.pins[1].split("=")[1] == pin.split("=")[1]


@pytest.mark.parametrize(
    ("version", "cc", "drives"),
    [
        ("9.10.2.21", "6.0", True),
        ("9.11.0.98", "6.0", False),
        ("9.11.0.98", "7.5", True),
        ("9.5.1.17", "12.0", False),
        ("9.7.0.66", "12.0", True),
        ("8.9.7.29", "5.0", True),
        ("8.9.7.29", "3.7", False),
        ("8.9.7.29", "9.0", True),
    ],
)
def test_which_gpus_a_cudnn_drives(version: str, cc: str, drives: bool) -> None:
    assert CATALOG.cudnn_drives(version, cc) is drives


@pytest.mark.parametrize(
    ("cuda", "ubuntu", "pin"),
    [
        ("11.8", "22.04", "libnccl2=2.15.5-1+cuda11.8"),
        ("11.8", "20.04", "libnccl2=2.16.2-1+cuda11.8"),
        ("12.4", None, "libnccl2=2.21.5-1+cuda12.4"),
        ("13.0", None, "libnccl2=2.27.7-1+cuda13.0"),
        ("13.1", None, "libnccl2=2.27.7-1+cuda13.0"),
        ("13.5", None, "libnccl2=2.30.7-1+cuda13.3"),
    ],
)
def test_nccl_pins(cuda: str, ubuntu: str | None, pin: str) -> None:
    pair = CATALOG.nccl_for(cuda, ubuntu=ubuntu)
    assert pair is not None
    assert pair.pins[0] == pin
    assert pair.pins[1] == pin.replace("libnccl2", "libnccl-dev")
    assert (pair.certainty in UNSURE) is (not pin.endswith("cuda" + cuda))


@pytest.mark.parametrize(
    ("torch", "tag", "text", "support"),
    [
        ("1.12.0", "cu116", "H100", "none"),
        ("2.0.1", "cu118", "H100", "native"),
        ("2.6.0", "cu124", "RTX 4090", "binary"),
        ("2.6.0", "cu124", "RTX 5090", "none"),
        ("2.7.1", "cu128", "RTX 5090", "native"),
        ("2.7.1", "cu126", "RTX 5090", "none"),
        ("2.8.0", "cu128", "V100", "none"),
        ("2.14.1", "cu126", "V100", "native"),
        ("2.15.0", "cu132", "V100", "none"),
        ("2.15.0", "cu132", "GB10", "binary"),
        ("2.15.0", "cu130", "B300", "binary"),
        ("2.15.0", "cu132", "T4", "native"),
    ],
)
def test_support_of_a_torch_build(torch: str, tag: str, text: str, support: str) -> None:
    assert CATALOG.torch_support(torch, tag, gpu(text)) == support


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.6", "2.6.0"), ("2.7", "2.7.1"), ("2", "2.15.0"), ("1.12.1", "1.12.0"), ("v2.6.0", "2.6.0")],
)
def test_torch_by_text(text: str, version: str) -> None:
    assert CATALOG.torch(text).version == version


@pytest.mark.parametrize(
    ("text", "version"), [("2.18", "2.18"), ("2.18.1", "2.18"), ("2.16", "2.16.1"), ("2.10", "2.10")]
)
def test_tensorflow_by_text(text: str, version: str) -> None:
    assert CATALOG.tensorflow(text).version == version


@pytest.mark.parametrize("call", [CATALOG.torch, CATALOG.tensorflow, CATALOG.ubuntu])
@pytest.mark.parametrize("text", ["99.9", "x", ""])
def test_unknown_releases_name_known_ones(call: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        call(text)
    assert caught.value.issue.hint


# --- Ubuntu, repositories, known-bad versions -------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["24.04", "noble", "Ubuntu 24.04", "2404"])
def test_ubuntu_by_text(text: str) -> None:
    found = CATALOG.ubuntu(text)
    assert (found.version, found.codename, found.cuda_first) == ("24.04", "noble", "12.5")


@pytest.mark.parametrize(
    ("cuda", "ubuntu", "there"),
    [
        ("12.4", "24.04", False),
        ("12.5", "24.04", True),
        ("12.4", "22.04", True),
        ("13.0", "20.04", False),
        ("12.9", "20.04", True),
        ("12.9", "26.04", False),
        ("13.3", "26.04", True),
        ("11.6", "22.04", False),
    ],
)
def test_cuda_in_the_repository(cuda: str, ubuntu: str, there: bool) -> None:
    assert CATALOG.cuda_in_repository(cuda, ubuntu=ubuntu) is there


CUDA_KEY = "EB693B3035CD5710E231E123A4B469963BF863CC"
CUDA_URL = "https://developer.download.nvidia.com/compute/cuda/repos"


@pytest.mark.parametrize(
    ("name", "ubuntu", "arch", "url", "suite", "fingerprint"),
    [
        ("cuda", "24.04", "amd64", f"{CUDA_URL}/ubuntu2404/x86_64/", "/", CUDA_KEY),
        ("cuda", "jammy", "arm64", f"{CUDA_URL}/ubuntu2204/sbsa/", "/", CUDA_KEY),
        ("cuda", "26.04", "amd64", f"{CUDA_URL}/ubuntu2604/x86_64/", "/", None),
        (
            "container_toolkit",
            "24.04",
            "arm64",
            "https://nvidia.github.io/libnvidia-container/stable/deb/arm64/",
            "/",
            "C95B321B61E88C1809C4F759DDCAE044F796ECB0",
        ),
        (
            "ppa",
            "24.04",
            "amd64",
            "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu",
            "noble",
            "2388FF3BE10A76F638F80723FCAE110B1118213C",
        ),
    ],
)
def test_repositories(name: str, ubuntu: str, arch: str, url: str, suite: str, fingerprint: str | None) -> None:
    found = CATALOG.repository(name, ubuntu=ubuntu, arch=arch)
    assert (found.url, found.suite, found.fingerprint) == (url, suite, fingerprint)


def test_the_key_of_the_cuda_repository_has_a_url() -> None:
    assert CATALOG.repository("cuda", ubuntu="24.04").key_url == f"{CUDA_URL}/ubuntu2404/x86_64/3bf863cc.pub"


@pytest.mark.parametrize(
    "args", [("cudda", "24.04", "amd64"), ("cuda", "23.04", "amd64"), ("cuda", "24.04", "riscv64")]
)
def test_repositories_that_there_are_not(args: tuple[str, str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        CATALOG.repository(args[0], ubuntu=args[1], arch=args[2])
    assert caught.value.issue.hint


@pytest.mark.parametrize(
    ("version", "where", "bad"),
    [
        ("580.119.02", {}, True),
        ("580.119.02", {"kernel": "6.8.0-45-generic"}, False),
        ("580.119.02", {"kernel": "6.17.9-76061709-generic"}, True),
        ("580.126.20", {}, False),
        ("580.126.20", {"ubuntu": "26.04", "channel": "cuda"}, True),
        ("580.126.20", {"ubuntu": "26.04", "channel": "ubuntu"}, False),
        ("595.58.03", {}, False),
        ("595.58.03", {"care": True}, True),
    ],
)
def test_known_bad_drivers(version: str, where: dict[str, Any], bad: bool) -> None:
    assert bool(CATALOG.known_bad("driver", version, **where)) is bad


def test_known_bad_container_toolkit() -> None:
    assert [entry.severity for entry in CATALOG.known_bad("container_toolkit", "1.17.7")] == ["avoid"]
    assert len(CATALOG.known_bad("container_toolkit", "1.17.8", care=True)) == 2
    assert len(CATALOG.known_bad("container_toolkit", "1.20.0", care=True)) == 1


def test_trap_ids_are_stable_and_their_texts_are_there() -> None:
    texts = {trap.id: trap.match for trap in CATALOG.traps}
    assert texts["nvml_version_mismatch"] == "Failed to initialize NVML: Driver/library version mismatch"
    assert texts["fabricmanager_absent_802"] == "Error 802: system not yet initialized"
    assert texts["no_pubkey_cuda"] == "NO_PUBKEY A4B469963BF863CC"


@pytest.mark.parametrize(
    ("wanted", "version", "yes"),
    [("12.4", "12.4.1", True), ("12.4", "12.40", False), ("12", "12.4", True), ("12.4.1", "12.4", False)],
)
def test_version_prefixes(wanted: str, version: str, yes: bool) -> None:
    assert same(wanted, version) is yes


def test_the_last_of_a_span_covers_its_point_releases() -> None:
    assert between("9.10.2.21", "9.0.0", "9.10.2")
    assert not between("9.11.0.98", "9.0.0", "9.10.2")


def test_another_folder_counts_for_plans_and_for_what_they_start(tmp_path: Path, monkeypatch: Any) -> None:
    """--catalog and the variable mean the same; what is no catalog is refused before a host is asked."""
    monkeypatch.delenv(VARIABLE, raising=False)
    own = load_catalog()
    newer = tmp_path / "newer"
    shutil.copytree(own.folder, newer)
    text = (newer / "cuda.yml").read_text()
    (newer / "cuda.yml").write_text(text.replace('"24.04": {first: "12.5"', '"24.04": {first: "12.6"'))
    facts, config = host(["RTX 4090"], "580 580.142 open signed"), {"cuda_toolkit_versions": ["12.5"]}

    def begins_with() -> list[str]:
        def call(*_: object) -> dict[str, object]:
            return {"workdir": None, "packages": {}, "refreshed": True, "errors": []}

        plan = plan_from_facts("gpu01", facts, call, config)
        return [issue.because[0] for issue in plan.blockers if issue.code == "cuda.not_in_repository"]

    assert begins_with() == ["it begins with 12.5 and ends with the current one"], "apt has none here"
    with other_catalog(newer):
        assert os.environ[VARIABLE] == str(newer) and load_catalog().folder == newer
        assert begins_with() == ["it begins with 12.6 and ends with the current one"]
        with other_catalog(None):
            assert load_catalog().folder == newer
    assert load_catalog() is own and VARIABLE not in os.environ
    with other_catalog(tmp_path), pytest.raises(UsageError, match="holds no catalog"):
        begins_with()


def test_every_toolkit_has_an_answer_about_every_c_library() -> None:
    """Each asks which newer toolkit fits, and none asks that of the newer ones again: it would not end."""
    for release in CATALOG.ubuntu_data.releases.values():
        late = [m.version for m in CATALOG.cuda_minors if c_library(CATALOG, m, release.glibc)]
        fit = [m.version for m in CATALOG.cuda_minors if m.version not in late]
        for version in late:
            found = c_library(CATALOG, CATALOG.cuda(version), release.glibc)
            newer = [one for one in fit if key(one) > key(version)]
            assert found and found[1].startswith(f"CUDA {newer[0]} or newer, or "), version
