"""envs: rows of a host, what scan says of conda, and the measuring of sizes."""

import os
import time

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.conda import size as conda_size
from provision.commands.envs import describe
from provision.documents import EnvsDocument
from provision.facts import Facts
from provision.layers.conda import conda_lines
from provision.render import Renderer

FACTS = Facts.model_validate(
    {
        "conda": {
            "prefixes": [
                {
                    "path": "/opt/miniconda3",
                    "distribution": "miniconda",
                    "version": "26.5.3",
                    "channels": ["conda-forge"],
                    "record": {"kind": "base"},
                    "owner": "root",
                },
                {"path": "/data/half", "state": "partial", "missing": ["bin/conda"], "owner": "carol"},
            ],
            "environments": [
                {
                    "name": "a",
                    "path": "/opt/miniconda3/envs/a",
                    "prefix": "/opt/miniconda3",
                    "python": "3.11.9",
                    "pip": {"torch": "2.6.0+cu124", "nvidia-cudnn-cu12": "9.1.0.70"},
                    "builds": {"torch": "cuda"},
                    "cuda": "12.4",
                    "record": {"spec": {}},
                    "changed": True,
                },
                {
                    "name": "b",
                    "path": "/opt/miniconda3/envs/b",
                    "prefix": "/opt/miniconda3",
                    "python": "3.10.1",
                    "packages": {"pytorch": {"version": "2.3.1", "build": "cpu_0"}},
                    "builds": {"torch": "cpu"},
                    "cudart_links": [{"path": "/x/libcudart.so.12", "target": None}],
                },
                {"name": "lone", "path": "/scratch/lone", "state": "partial"},
            ],
        }
    }
)


def test_rows_of_a_host():
    host = describe(
        FACTS, {"/opt/miniconda3/envs/a": {"total": 6_000_000_000, "own": 5_000_000_000}, "/data/half": None}
    )
    assert [row.path for row in host.rows] == [
        "/opt/miniconda3",
        "/opt/miniconda3/envs/a",
        "/opt/miniconda3/envs/b",
        "/data/half",
        "/scratch/lone",
    ]
    conda, good, cpu, half, lone = host.rows
    assert (conda.name, conda.made_by_us, conda.size_bytes) == ("miniconda 26.5.3", True, None)
    assert (good.frameworks, good.cuda, good.cudnn) == ({"torch": "2.6.0+cu124"}, "12.4", "9.1.0.70")
    assert (good.size_bytes, good.own_bytes, good.made_by_us) == (6_000_000_000, 5_000_000_000, True)
    assert good.notes == ["changed since gpu-provision made it"]
    assert cpu.notes == ["torch is a build for the CPU", "/x/libcudart.so.12 leads to nowhere"]
    assert half.notes == ["only part of it is there: bin/conda"]
    assert lone.notes == ["no whole environment"]


def test_what_is_printed(capsys, monkeypatch):
    document = EnvsDocument(hosts={"gpu01": describe(FACTS), "gpu02": describe(Facts())})
    for width in ("160", "60"):
        monkeypatch.setenv("COLUMNS", width)
        Renderer().document(document)
        shown = " ".join(capsys.readouterr().out.split())
        for word in ("gpu01", "torch 2.6.0+cu124", "build for the CPU", "owner carol", "gpu02", "no conda", "12.4"):
            assert word in shown, (width, word)
    # Without a head, a number says what it is of.
    assert "CUDA 12.4" in shown and "python 3." in shown


def test_what_scan_says():
    lines = conda_lines(FACTS)
    assert lines[0] == "/opt/miniconda3 miniconda 26.5.3"
    assert "environment a: python 3.11.9, torch 2.6.0+cu124, CUDA 12.4" in lines
    assert "environment b: python 3.10.1, torch 2.3.1 (CPU build)" in lines
    many = FACTS.model_copy(
        update={"conda": FACTS.conda.model_copy(update={"environments": FACTS.conda.environments * 10})}
    )
    assert conda_lines(many)[-1] == "and 18 more environments: provision envs shows all"
    assert conda_lines(Facts()) == []


def test_sizes_count_a_linked_file_once_and_say_what_is_shared(tmp_path):
    cache, env = tmp_path / "pkgs", tmp_path / "envs/a"
    for folder in (cache, env / "lib"):
        folder.mkdir(parents=True)
    (cache / "big").write_bytes(b"x" * 1_000_000)
    os.link(cache / "big", env / "lib/big")
    os.link(cache / "big", env / "lib/again")
    (env / "own").write_bytes(b"x" * 500_000)
    (env / "link").symlink_to("/")
    found = conda_size.main({"paths": [str(env), str(tmp_path / "gone"), str(tmp_path)]})
    assert found[str(tmp_path / "gone")] is None
    assert 1_500_000 <= found[str(env)]["total"] < 1_700_000
    assert 500_000 <= found[str(env)]["own"] < 700_000
    whole = found[str(tmp_path)]
    assert whole["own"] == whole["total"], "every link to the file lies inside"


def test_sizes_end_when_the_time_is_over(tmp_path):
    assert conda_size.size(str(tmp_path), time.monotonic() - 1) is None
    assert conda_size.size(str(tmp_path), time.monotonic() + 30) is not None


def test_an_installation_that_was_cut_off_is_said_to_be_in_one_line():
    prefix = {"path": "/opt/c", "state": "partial", "unfinished": True, "missing": ["bin/conda is missing"] * 5}
    assert describe(Facts.model_validate({"conda": {"prefixes": [prefix]}})).rows[0].notes == [
        "its installation was interrupted"
    ]
