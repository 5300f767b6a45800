"""catalog update: what sources say, how that differs from a catalog, and what is written into its files.

The answers of the Python package index are recorded and cut down (2026-11-29); indices of apt, redistrib and supported-gpus
files are written here in the shapes of the real ones.
"""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
from datetime import date
from pathlib import Path

import pytest

from provision.catalog import Catalog, read_catalog, update
from provision.catalog.review import contradictions
from provision.catalog.update import place
from provision.commands.catalog import CatalogUpdateDocument, update_
from provision.errors import UsageError
from provision.lib import yaml_reader

FROZEN = Path(__file__).parents[1] / "catalog"
INDEX = Path(__file__).parents[1] / "fixtures/catalog_update/python"
TODAY = date(2026, 11, 29)
JAX = """
jax:
  releases:
    "0.12.0": {python: ["3.12", "3.15"], source: wheels}
  builds:
    - {extra: cuda13, first: "0.11.1", last: "0.11.2", cuda: "13.0", least: "13.0", cudnn: "9.12.0.46", nccl: "2.27.7", cc: ["9.0"]}
    - {extra: cuda12, first: "0.11.1", last: "0.12.0.1", cuda: "12.9", least: "12.1", cudnn: "9.8", nccl: "2.18.1", cc: ["9.0"]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A catalog of the day before: without the newest releases that the recorded index has."""
    there = tmp_path / "catalog"
    shutil.copytree(FROZEN, there)
    frameworks = there / "frameworks.yml"
    lines = [line for line in frameworks.read_text().splitlines() if not line.startswith(('    "2.15.0"', '    "2.21'))]
    text = "\n".join(lines).replace('first: "2.9", last: "2.15"', 'first: "2.9", last: "2.14"')
    frameworks.write_text(text.replace('last: "2.21"', 'last: "2.20"').split("\njax:")[0] + JAX)
    cuda = there / "cuda.yml"
    cuda.write_text("\n".join(line for line in cuda.read_text().splitlines() if '"13.5.0": {' not in line) + "\n")
    cudnn = there / "cudnn.yml"
    cudnn.write_text(cudnn.read_text().replace('"9.28.1.4", ', ""))
    return there


def run(folder: Path, *sources: str, yes: bool = True) -> CatalogUpdateDocument:
    return update_(folder, sources, yes=yes, today=TODAY)


def rows(document: CatalogUpdateDocument) -> dict[str, str]:
    return {f"{c.sign} {c.row}": c.fields for c in document.changes if " sources." not in c.row}


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_an_index_fills_in_what_a_catalog_lacks_and_a_second_run_changes_nothing(folder: Path) -> None:
    before = files(folder)
    seen = run(folder, f"python={INDEX}", yes=False)
    assert (seen.exit_code, seen.written, files(folder)) == (2, False, before)
    written = run(folder, f"python={INDEX}")
    assert (written.exit_code, written.written, rows(written)) == (0, True, rows(seen))
    assert "+ frameworks.yml torch.arch_lists.2.15 2.15 cu132" in rows(written)
    now = read_catalog(folder)
    torch = now.torch("2.15")
    assert (torch.version, torch.default, torch.cudnn, torch.nccl) == ("2.15.0", "cu132", "9.26.0.51", "2.30.7")
    assert torch.python == ("3.11", "3.12", "3.13", "3.14", "3.15")
    codes = now.torch_arch_list("2.15.0", "cu132")
    assert codes is not None
    assert (codes.certainty, codes.ptx, codes.source) == ("inferred", "12.0", "python_torch")
    tensorflow = now.tensorflow("2.21")
    assert (tensorflow.cuda, tensorflow.cudnn, tensorflow.python) == ("12.5", "9.3", ("3.10", "3.13"))
    assert now.frameworks.tensorflow.and_cuda["2.21.0"].cudnn == "<10.0,>=9.3.0.75"
    assert now.cudnn_versions["9.28.1.4"] == (13,)
    assert now.cuda("13.5.0").version == "13.5"
    jax = now.jax("0.12.0.1")
    assert jax.python == ("3.12", "3.15")
    assert [(b.extra, b.cudnn, b.certainty) for b in jax.builds if b.extra == "cuda13"] == [
        ("cuda13", "9.12.0.46", "inferred")
    ]
    assert contradictions(now) == []
    again = run(folder, f"python={INDEX}")
    assert (again.changes, again.exit_code) == ([], 0)
    # a row of several releases of which one is otherwise now
    assert any("jax 0.12.0.1, cuda12: cudnn 9.10.2.21, not 9.8" in line for line in again.left)


def test_rows_say_where_they_come_from_and_lines_of_people_stay(folder: Path) -> None:
    before = files(folder)
    run(folder, f"python={INDEX}")
    for name, text in before.items():
        assert set(text.splitlines()) - set((folder / name).read_text().splitlines()) == set(), name
    source = yaml_reader.load((folder / "frameworks.yml").read_text())["sources"]["python_torch"]
    assert source == {"source": f"{INDEX}/torch/json", "as_of": "2026-11-29", "reader": "python"}
    assert read_catalog(folder).day == "2026-11-29"
    later = update_(folder, [f"python={INDEX}"], yes=False, today=date(2027, 1, 5))
    assert {c.fields for c in later.changes} == {"as_of 2026-11-29 -> 2027-01-05"}


def test_what_an_index_does_not_say_is_left(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(INDEX, tmp_path / "index")
    path = tmp_path / "index/torch/json"
    data = json.loads(path.read_text())
    data["info"]["version"] = "2.14.1"
    data["releases"]["2.16.0rc1"] = data["releases"]["2.15.0"]
    data["releases"]["2.17.0"] = [row | {"yanked": True} for row in data["releases"]["2.15.0"]]
    path.write_text(json.dumps(data))
    document = run(folder, f"python={tmp_path}/index", yes=False)
    assert [line for line in document.left if line.startswith("torch 2.15.0: the index does not say")]
    assert "torch.releases.2.1" not in " ".join(row for row in rows(document) if row.startswith("+"))
    (tmp_path / "index/torch/2.15.0").mkdir()
    shutil.copy(INDEX / "torch/json", tmp_path / "index/torch/2.15.0/json")
    assert "+ frameworks.yml torch.releases.2.15.0" in rows(run(folder, f"python={tmp_path}/index", yes=False))


def index(*packages: tuple[str, str]) -> bytes:
    text = "\n\n".join(
        f"Package: {name}\nArchitecture: amd64\nVersion: {version}\nDescription: x" for name, version in packages
    )
    return text.encode()


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_nvidias_repository(folder: Path, tmp_path: Path) -> None:
    packages = index(
        ("libnvidia-compute-580", "580.200.01-0ubuntu1"),
        ("libnvidia-compute-580", "580.65.06-0ubuntu1"),
        ("libnvidia-compute", "620.80.01-1ubuntu1"),
        ("libnvidia-compute-570", "580.200.01-0ubuntu1"),
        ("libnvidia-compute", "630.10.01-1ubuntu1"),
        ("cuda-toolkit-13-5", "13.5.0-1"),
        ("cuda-toolkit-13-9", "13.9.0-1"),
        ("cuda-toolkit-12-4", "12.4.1-1"),
        ("libnccl2", "2.32.3-1+cuda13.5"),
        ("libnccl2", "2.31.2-1+cuda13.5"),
        ("libcudnn9-cuda-13", "9.99.0.1-1"),
        ("libcudnn9-cuda-13", "x:1-1"),
        ("libcudnn9-cuda-13", "1" * 5000),
        ("nvidia-container-toolkit", "1.30.0-1"),
    )
    put(tmp_path / "repos/ubuntu2404/x86_64/Packages.gz", gzip.compress(packages))
    document = run(folder, f"nvidia={tmp_path}/repos")
    found = rows(document)
    assert found["~ drivers.yml branches.580"].startswith("last_version 580.178.04 -> 580.200.01")
    assert "last_version_source none -> apt_cuda_2404" in found["~ drivers.yml branches.580"]
    assert found["~ drivers.yml nvidia.offers.24.04"].startswith(
        "inferred 590, 595, 610, 615, 620 -> 590, 595, 610, 615"
    )
    assert found["+ cuda.yml releases.13.5.0"].startswith("driver none")
    assert found["~ cuda.yml repository_ranges.24.04"].startswith("first 12.5 -> 12.4")
    assert found["+ nccl.yml pairs.13.5"].startswith("cuda 13.5; nccl 2.32.3")
    assert found["+ cudnn.yml versions"].startswith("cuda_majors 13; list 9.99.0.1")
    assert found["~ container_toolkit.yml versions"].startswith("newest 1.20.0 -> 1.30.0")
    assert any(line.startswith("driver branch 630: 630.10.01 is there") for line in document.left)
    assert any(line.startswith("CUDA 13.9: 13.9.0 is there") for line in document.left)
    branch = next(c for c in document.changes if c.row == "drivers.yml branches.580")
    assert branch.note
    now = read_catalog(folder)
    assert (now.branch(580).last_version, now.branch(580).note) == ("580.200.01", branch.note)
    assert now.nccl_for("13.5").pins[0] == "libnccl2=2.32.3-1+cuda13.5"  # type: ignore[union-attr]
    assert run(folder, f"nvidia={tmp_path}/repos").changes == []


def test_ubuntus_archive(folder: Path, tmp_path: Path) -> None:
    for pocket, packages in {
        "noble": index(("libnvidia-compute-580", "580.95.05-0ubuntu1")),
        "noble-updates": index(
            ("libnvidia-compute-580", "580.210.01-0ubuntu0.24.04.1"),
            ("libnvidia-compute-620-server", "620.70.06-0ubuntu0.24.04.1"),
            ("libnvidia-compute-550", "580.210.01-0ubuntu0.24.04.1"),
            ("libnvidia-compute-570", "580.210.01-0ubuntu0.24.04.1"),
            ("libnvidia-compute-595-server", "595.71.05-0ubuntu0.24.04.1"),
        ),
    }.items():
        put(tmp_path / f"ubuntu/dists/{pocket}/restricted/binary-amd64/Packages.xz", lzma.compress(packages))
    document = run(folder, f"ubuntu={tmp_path}/ubuntu")
    found = rows(document)
    assert "version 580.142 -> 580.210.01; date 2026-03 -> none" in found["~ drivers.yml archive.offers.24.04 580"]
    assert "version 620.70.06" in found["+ drivers.yml archive.offers.24.04 620-server"]
    assert "certainty inferred -> sourced" in found["~ drivers.yml archive.offers.24.04 595-server"]
    # 570 is known to lead to 580 there, 550 is not
    leading = [line for line in document.left if "transitional" in line]
    assert len(leading) == 1
    assert leading[0].startswith("Ubuntu 24.04: 550 has version 580.210.01, so it leads to 580: drivers.yml")
    assert {s.series for s in read_catalog(folder).known_series(620, ubuntu="24.04")} >= {"620-server"}
    assert run(folder, f"ubuntu={tmp_path}/ubuntu").changes == []


def test_a_row_that_people_marked_as_contradictory_is_left(folder: Path, tmp_path: Path) -> None:
    put(
        tmp_path / "ubuntu/dists/noble/restricted/binary-amd64/Packages",
        index(("libnvidia-compute-550", "550.999.01-0ubuntu1")),
    )
    document = run(folder, f"ubuntu={tmp_path}/ubuntu", yes=False)
    assert not any("24.04 550" in row for row in rows(document))
    assert any("archive.offers.24.04 550: sources contradict each other" in line for line in document.left)


def test_redistrib_names_the_driver_of_a_release(folder: Path, tmp_path: Path) -> None:
    cuda = {"release_label": "13.4.2", "release_product": "cuda", "nvidia_driver": {"version": "615.71.09"}}
    cudnn = {
        "release_label": "9.99.0",
        "release_product": "cudnn",
        "cudnn": {"version": "9.99.0.1", "cuda_variant": ["12", "13"]},
    }
    for name, data in (("13.4.2", cuda), ("9.99.0", cudnn), ("1", {"release_label": "[x]"})):
        put(tmp_path / f"redist/redistrib_{name}.json", json.dumps(data).encode())
    document = run(folder, f"redistrib={tmp_path}/redist")
    assert rows(document)["~ cuda.yml releases.13.4.2"].startswith("driver none -> 615.71.09")
    now = read_catalog(folder)
    assert (now.cuda_data.releases["13.4.2"].driver, now.cudnn_versions["9.99.0.1"]) == ("615.71.09", (12, 13))
    # people's note is still there
    assert now.cuda_data.releases["13.4.2"].note
    assert len(document.left) == 1
    assert run(folder, f"redistrib={tmp_path}/redist").changes == []


def test_supported_gpus_only_lower_a_first_branch(folder: Path, tmp_path: Path) -> None:
    """2882 (RTX 4060) is first listed by a 525 in the frozen catalog, 27b8 by 525 too; ffff is no device."""
    first = Catalog(folder).first_branches.devices
    device = next(name for name, row in first.items() if row.first > 530)
    chips = [{"devid": f"0x{device.upper()}", "name": "x"}, {"devid": "0xFFFF", "name": "NVIDIA X"}, {"devid": 7}, "y"]
    for version in ("530.41.03", "620.70.06"):
        put(tmp_path / f"gpus/{version}/supported-gpus.json", json.dumps({"chips": chips}).encode())
    document = run(folder, f"gpus={tmp_path}/gpus")
    assert list(rows(document)) == [f"~ first_branch.yml devices.{device}"]
    assert read_catalog(folder).first_branches.devices[device].version == "530.41.03"
    assert [line for line in document.left if line.startswith("device ffff, NVIDIA X")]
    assert run(folder, f"gpus={tmp_path}/gpus").changes == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("torch", "names no source"),
        ("index=/tmp", "names no source"),
        ("python=http://example.org/pypi", "neither a folder nor an address with https"),
        ("python=ftp://example.org/pypi", "neither a folder"),
        ("python={tmp}/none", "no such folder"),
        ("python={tmp}/empty", "there is no NAME/json"),
        ("nvidia={tmp}/empty", "there is no ubuntu2404"),
        ("ubuntu={tmp}/empty", "there is no dists/noble"),
        ("redistrib={tmp}/empty", "there is no redistrib"),
        ("gpus={tmp}/empty", "there is no supported-gpus.json"),
        ("python={tmp}/broken", "it is not JSON"),
        ("python={tmp}/list", "no object"),
        ("nvidia={tmp}/packed", "cannot be unpacked"),
        ("nvidia={tmp}/bomb", "larger than"),
    ],
)
def test_sources_that_cannot_be_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    monkeypatch.setattr(place, "_MOST_UNPACKED", 1 << 20)
    (tmp_path / "empty").mkdir()
    put(tmp_path / "broken/torch/json", b"{" * 100_000)
    put(tmp_path / "list/torch/json", b"[]")
    put(tmp_path / "packed/ubuntu2404/x86_64/Packages.gz", b"\x1f\x8bno")
    put(tmp_path / "bomb/ubuntu2404/x86_64/Packages.gz", gzip.compress(b"\n" * (2 << 20)))
    before = files(folder)
    with pytest.raises(UsageError) as raised:
        run(folder, source.format(tmp=tmp_path))
    issue = raised.value.issue
    assert said in " ".join([issue.message, *issue.because])
    assert issue.hint
    assert files(folder) == before


def test_a_file_that_is_too_large(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "_MOST_BYTES", 1 << 10)
    with pytest.raises(UsageError, match="cannot be read"):
        run(folder, f"python={INDEX}")


def test_the_programs_own_catalog_is_never_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for target in (None, FROZEN):
        with pytest.raises(UsageError, match="itself is not written"):
            update_(target, [f"python={INDEX}"], yes=True)
    with pytest.raises(UsageError, match="no source"):
        update_(folder, [], yes=True)


def test_a_folder_that_is_not_there_begins_as_a_copy(tmp_path: Path) -> None:
    run(tmp_path / "new", f"python={INDEX}")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in FROZEN.glob("*.yml")}
    assert "9.28.1.4" in read_catalog(tmp_path / "new").cudnn_versions


def test_what_would_contradict_itself_is_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = update.Row(("nccl", "pairs"), {"cuda": "99.1"}, {"cuda": "99.1", "nccl": "2.1"}, ("x", "y"))
    monkeypatch.setitem(update.READERS, "python", lambda _place, _catalog: iter([odd]))
    before = files(folder)
    with pytest.raises(UsageError, match="does not fit this catalog"):
        run(folder, f"python={INDEX}")
    wrong = update.Row(("nccl", "pairs"), {"cuda": "13.5"}, {"cuda": "13.5", "nccl": "two"}, ("x", "y"))
    monkeypatch.setitem(update.READERS, "python", lambda _place, _catalog: iter([wrong]))
    with pytest.raises(UsageError, match="holds no catalog"):
        run(folder, f"python={INDEX}")
    assert files(folder) == before


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (
            "a: # x\n  b:\n    - {k: one, v: old}  # why\n# end\n",
            "a: # x\n  b:\n    - {k: one, v: old}  # why\n    - {k: two}\n# end\n",
        ),
        ("a:\n  b:\n    - {k: one}", "a:\n  b:\n    - {k: one}\n    - {k: two}\n"),
        ('a:\n  b:\n    - {k: two, v: "1"}\n', "a:\n  b:\n    - {k: two, v: new}\n"),
    ],
)
def test_a_row_is_changed_in_its_line(text: str, want: str) -> None:
    row = update.Row(("file", "a", "b"), {"k": "two"}, {}, ("x", "y"))
    change = (
        update.Change("~", row, {"v": ("1", "new")}) if "two" in text else update.Change("+", row, {"k": (None, "two")})
    )
    assert update.edited(text, [change]) == want


@pytest.mark.parametrize(
    "value", ["yes", "9.10", "<10.0,>=9.3", "cu132", 'a "b"', "Ubuntu: x", None, ["1", "y"], [], True, 3, "ü"]
)
def test_what_is_written_is_read_as_it_was(value: object) -> None:
    row = update.Row(("file", "a"), "k2", {}, ("x", "y"))
    text = update.edited("a:\n  k: {v: 1}\n", [update.Change("+", row, {"v": (None, value)})])
    assert yaml_reader.load(text) == {"a": {"k": {"v": 1}, "k2": {"v": value}}}
