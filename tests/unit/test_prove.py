"""The entry: which checks run, on which cards, and what a recorded machine's answers make of them."""

import array
import ast
import json
import mmap
import os
import re
import time
from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import count as prove_count
from ansible_collections.gpu.provision.plugins.module_utils.prove import cudnn, nccl, nvml, proofs
from ansible_collections.gpu.provision.plugins.module_utils.prove import job as prove_job
from ansible_collections.gpu.provision.plugins.module_utils.prove import ptx as prove_ptx
from ansible_collections.gpu.provision.plugins.module_utils.prove import topology as prove_topology
from ansible_collections.gpu.provision.plugins.module_utils.prove.names import NAMES
from provision.catalog import load_catalog
from provision.errors import UsageError
from provision.parts.cuda import proofs as cuda_proofs
from provision.parts.driver import proofs as driver_proofs
from provision.parts.proof import Bounds, Measured
from provision.parts.proofs import PROOFS, judge, judged
from provision.planning.verification import CheckSelection, refuse_unknown
from provision.remote import bundle
from tests.unit.provecases import FIXTURES, card, outcome, proven, says

BANDWIDTH = load_catalog().bandwidth
MACHINES = sorted(path.parent for path in FIXTURES.glob("*/scenes.json"))
SCENES = [
    (machine, title) for machine in MACHINES for title in json.loads((machine / "scenes.json").read_text())["scenes"]
]


# --- recorded machines ---------------------------------------------------------------------------------------------


def replay(monkeypatch, note, scene):
    """Give the answers that children gave on a real machine to the code again, in their order."""
    answers = iter(scene["answers"])

    def run_all(jobs):
        outcomes = []
        for job in jobs:
            row = next(answers)
            assert [job.module, job.function] == row["job"]
            fields = ("seconds", "result", "message", "at", "output", "code", "name")
            outcomes.append(prove_job.Outcome(row["status"], **{name: row[name] for name in fields}))
        return outcomes

    monkeypatch.setattr(prove_job, "run_all", run_all)
    monkeypatch.setattr(prove_count, "bus_cards", lambda: note["bus"])
    monkeypatch.setattr(prove_topology, "host_hints", lambda: note["hints"])
    monkeypatch.setattr(proofs.run_as, "account", lambda *paths: None)
    monkeypatch.setattr(os, "access", lambda *arguments: True)
    real = os.path.exists
    # What lay in the scenes' own folder is gone; what a library path of theirs pointed at was there.
    monkeypatch.setattr(
        os.path, "exists", lambda path: str(path).startswith("/tmp/prove/system/libcudnn") or real(path)
    )
    # These machines were recorded before gpu.dcgm, which runs nothing in a child.
    checks = proven({"skip": ["gpu.dcgm"], **scene["args"]}, BANDWIDTH if scene["judged"] else None)
    assert next(answers, None) is None, "every child that ran then runs now"
    return checks


@pytest.mark.parametrize(("machine", "title"), SCENES, ids=[f"{m.name}: {t}" for m, t in SCENES])
def test_recorded_scenes(monkeypatch, machine, title):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    note = json.loads((machine / "scenes.json").read_text())
    scene = note["scenes"][title]
    checks = replay(monkeypatch, note, scene)
    for now, then in zip(checks, scene["checks"], strict=True):
        assert [now[key] for key in ("id", "status", "message", "numbers")] == [
            then[key] for key in ("id", "status", "message", "numbers")
        ]
        assert now["hint"] or now["status"] in ("pass", "skip")


def test_four_cards_pass_everything():
    note = json.loads((FIXTURES / "h200x4/scenes.json").read_text())
    checks = note["scenes"]["everything"]["checks"]
    assert {check["status"] for check in checks} == {"pass"}
    assert sum(check["seconds"] for check in checks) < 60


def test_the_variable_that_slows_nccl_is_named(monkeypatch):
    note = json.loads((FIXTURES / "h200x4/scenes.json").read_text())
    (check,) = replay(monkeypatch, note, note["scenes"]["peer traffic off"])
    assert check["status"] == "fail"
    says(["unset NCCL_P2P_DISABLE=1"], check["hint"])


def test_records_hold_no_identifiers():
    records = list(FIXTURES.rglob("*.json"))
    assert records
    for path in records:
        for found in re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", path.read_text()):
            assert found.startswith("00000000-0000-0000-0000-00000000"), f"{path.name}: {found}"


# --- without a card --------------------------------------------------------------------------------------------------


def test_everything_that_a_host_needs_is_in_the_bundle():
    sent = set(bundle.needed("prove.proofs"))
    folder = Path(proofs.__file__).parent
    assert {f"prove.{path.stem}" for path in folder.glob("*.py")} <= sent | {"prove.__init__"}
    # What the host's server was sent, it hands on: as a loader, it has get_source.
    assert "def get_source" in bundle.program("_importer")


ODD = [{}, {"why": [5], "outcome": 5}, {"survey": {"status": "ok", "result": []}, "computed": [[1, 2]], "rows": [{}]}]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("check", [*PROOFS, "gpu.unheard_of"])
def test_an_answer_that_is_none_fails_its_check_and_no_other(check, odd):
    rows = [{"id": f"{check}[/x]", "found": odd}, {"id": "gpu.xid", "skip": "no card"}, 5]
    failed, skipped = judged({"measured": rows}, Bounds(bandwidth=BANDWIDTH))
    assert (failed.status, failed.message) == ("fail", "/x gave an invalid answer")
    assert (skipped.status, skipped.message) == ("skip", "no card")


# --- which checks, which cards -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "patterns", "answer"),
    [
        ("gpu.compute", [], True),
        ("gpu.compute", ["gpu.*"], True),
        ("gpu.compute", ["gpu.comp"], False),
        ("cuda.compile[12.4]", ["cuda.compile"], True),
        ("cuda.compile[12.4]", ["cuda.compile[12.4]"], True),
        ("cuda.compile[12.4]", ["cuda.compile[11.8]"], False),
        ("cuda.compile[12.4]", ["cuda.compile[12.*]"], True),
        ("python.framework[/opt/a b/bin/python]", ["python.*"], True),
        ("gpu.nccl", ["cuda.*", "gpu.n*"], True),
    ],
)
def test_patterns(check, patterns, answer):
    assert proofs.wanted(check, patterns) is answer


def test_checks_can_be_left_out():
    checks = proven({"skip": ["gpu.*"], "timeout_s": 20})
    assert [check["id"] for check in checks] == ["cuda.compile"]


def test_a_check_has_one_time_for_all_its_steps(monkeypatch, tmp_path):
    asked = []

    def run_all(jobs):
        asked.extend(job.timeout_s for job in jobs)
        time.sleep(0.3)
        return [outcome({"python": "3.12.3", "prefix": "/v", "frameworks": ["torch", "jax"]}) for _ in jobs]

    monkeypatch.setattr(prove_job, "run_all", run_all)
    monkeypatch.setattr(prove_count, "no_card", lambda *arguments: "no card")
    args = {"python": ["/usr/bin/env"], "only": ["python.*"], "timeout_s": 20, "library_path": str(tmp_path)}
    proofs.main(args)
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] < 20 - 0.3 * (len(asked) - 1) + 0.1
    assert proofs.longest(args) >= 20 * 8


@pytest.mark.parametrize("activates", [True, False])
def test_an_environment_that_sets_its_library_path_is_judged_with_it(monkeypatch, tmp_path, activates):
    python = tmp_path / "envs/tf/bin/python"
    script = tmp_path / ("envs/tf" + proofs.ACTIVATION)
    for file in (python, script) if activates else (python,):
        file.parent.mkdir(parents=True)
        file.write_text("")
        file.chmod(0o755)
    asked = []

    def run_all(jobs):
        asked.extend(job.env.get("LD_LIBRARY_PATH") for job in jobs if job.module == "prove.framework")
        return [outcome({"python": "3.9.1", "prefix": "/v", "frameworks": ["tensorflow"]}) for _ in jobs]

    monkeypatch.setattr(prove_job, "run_all", run_all)
    monkeypatch.setattr(prove_count, "no_card", lambda *arguments: "no card")
    proofs.main({"python": [str(python)], "only": ["python.*"], "library_path": "/usr/local/cuda/lib64"})
    own = str(tmp_path / "envs/tf/lib")
    # What can be imported, then the framework with what a login exports and without.
    expected = [own, own + ":/usr/local/cuda/lib64", own] if activates else [None, "/usr/local/cuda/lib64", None]
    assert asked == expected


def test_instances_stand_for_their_card():
    whole = card(0)
    parts = card(
        1,
        mig={"current": True, "pending": True},
        mig_instances=[{"uuid": "MIG-a", "name": "1g"}, {"uuid": "MIG-b", "name": "2g"}],
    )
    assert [(unit["label"], unit["uuid"], unit["mig"]) for unit in proofs.units([whole, parts])] == [
        ("0", whole["uuid"], False),
        ("1:0", "MIG-a", True),
        ("1:1", "MIG-b", True),
    ]
    assert proofs.units([card(0, mig={"current": True, "pending": True})]) == []


def test_who_uses_a_card():
    users = [
        {"pid": 7, "comm": "python3", "user": "ann", "devices": ["/dev/nvidia1", "/dev/nvidiactl"]},
        {"pid": 9, "comm": "watcher", "user": None, "devices": ["/dev/nvidiactl"]},
    ]
    cards = [card(0), card(1, users=[7, 8]), card(2)]
    assert proofs.occupied(cards, users) == {1: "python3 (pid 7, ann), pid 8"}
    assert proofs.occupied(cards, users, own=(7, 8)) == {}
    many = [card(0, users=list(range(1, 8)))]
    assert "and 3 more" in proofs.occupied(many, [])[0]


def computed(index=0, **numbers):
    """(unit, Outcome) of a card that computed well; numbers: what differs."""
    good = {
        "gflops": 30000.0,
        "memory_gb_per_s": 2800.0,
        "host_to_card_gb_per_s": 54.0,
        "card_to_host_gb_per_s": 54.0,
        "jit_ms": 50.0,
    }
    unit = {"label": str(index), "index": index, "name": card()["name"], "mig": False}
    result = {"card": {"name": card()["name"]}, "cuda": "13.0", "wrong": [], "load": [], "numbers": {**good, **numbers}}
    return unit, outcome(result)


@pytest.mark.parametrize(
    ("rows", "least", "status", "words"),
    [
        ([computed(0), computed(1)], {}, "pass", ["right on 2 of 2", "30000 GFLOP/s"]),
        ([computed(0), computed(1, gflops=20000.0)], {}, "warn", ["card 1 has 20000 GFLOP/s", "30000"]),
        ([computed(0), computed(1, memory_gb_per_s=900.0)], {}, "warn", ["card 1 has 900 GB/s of memory"]),
        (
            [computed(0, host_to_card_gb_per_s=20.0), computed(1, host_to_card_gb_per_s=20.0)],
            {},
            "warn",
            ["32 % of the 63.0"],
        ),
        ([computed(0, card_to_host_gb_per_s=3.0)], {}, "fail", ["5 % of the 63.0"]),
        ([computed(0, card_to_host_gb_per_s=3.0)], {"host": 2.0}, "pass", []),
        ([computed(0)], {"memory": 3000}, "fail", ["2800", "at least 3000"]),
        (
            [
                (computed(0)[0], outcome(message="no answer within 9 s", status="timeout", at="matrix product")),
                computed(1),
            ],
            {},
            "fail",
            ["card 0 did not end", "matrix product", "power cycle"],
        ),
        (
            [(computed(0)[0], outcome(message="CudaError: x", code=222))],
            {},
            "fail",
            ["error 222", "newer than the driver"],
        ),
    ],
)
def test_compute_is_judged(rows, least, status, words):
    found, message, evidence, hint, _ = driver_proofs.judge_compute(
        rows, [], [card(0), card(1)], Bounds(bandwidth=BANDWIDTH, least=least)
    )
    assert found == status, message
    says(words, message, evidence, hint or "")
    assert hint or status == "pass"


def test_a_card_that_computes_wrong():
    unit, done = computed(0)
    done.result["wrong"] = [
        "matrix product: 3 of 16777216 values are wrong; the first is number 7: 1.0, the CPU has 2.0"
    ]
    status, message, _, hint, _ = driver_proofs.judge_compute(
        [(unit, done)], [], [card(0)], Bounds(bandwidth=BANDWIDTH)
    )
    assert status == "fail"
    says(["computes wrong", "3 of 16777216", "must not be used"], message, hint)


# --- the numbers that a card is compared with ----------------------------------------------------------------------------


def test_the_product_that_the_cpu_expects_is_the_product():
    from ansible_collections.gpu.provision.plugins.module_utils.prove import cuda as prove_cuda

    n = 96
    a, b, product = prove_cuda.pattern_product(n)
    rows_a = [array.array("f", a[i * n * 4 : (i + 1) * n * 4]) for i in range(n)]
    rows_b = [array.array("f", b[i * n * 4 : (i + 1) * n * 4]) for i in range(n)]
    columns = list(zip(*rows_b, strict=True))
    for i in range(0, n, 7):
        right = [sum(x * y for x, y in zip(rows_a[i], column, strict=True)) for column in columns]
        assert list(array.array("f", product[i % prove_cuda.ROWS])) == right
    # Exact in float, and no tile of the kernel looks like its neighbour.
    assert prove_cuda.ROWS * prove_cuda.COLUMNS * 4096 < 2**24
    assert prove_ptx.TILE % prove_cuda.ROWS
    assert prove_ptx.TILE % prove_cuda.COLUMNS


def test_ptx_is_old_enough_for_every_driver():
    modern, old = prove_ptx.text((9, 0)), prove_ptx.text((3, 5))
    assert modern.startswith(".version 6.0\n.target sm_50\n")
    assert old.startswith(".version 6.0\n.target sm_30\n")
    for kernel in ("add", "ramp", "ramp_wrong", "copy", "fill", "fill_wrong", "matmul"):
        assert f".visible .entry {kernel}(" in modern
    assert "%%" not in modern
    # Sums of the ramp over as many cards as a host can have stay exact.
    assert prove_ptx.RAMP * (16 * 17 // 2) < 2**24


def test_the_convolution_that_the_cpu_expects():
    side, image = cudnn.SIDE, [[[0] * cudnn.SIDE for _ in range(cudnn.SIDE)] for _ in range(4)]
    image[1][0][side - 1] = 5
    weights = [[[[0] * 3 for _ in range(3)] for _ in range(4)] for _ in range(cudnn.FILTERS)]
    # looks one up and one to the right
    weights[2][1][0][2] = 7
    result = cudnn.reference(image, weights)
    assert result[2][1][side - 2] == 35
    assert sum(cudnn.flat(result)) == 35


# --- NCCL, peers, libraries ----------------------------------------------------------------------------------------------

PAIR = {"a": 0, "b": 1, "level": "PHB", "nvlinks": 18, "switched": True, "version": "4.0", "nvlink_gb_per_s": 478.1}
PASS = ("pass", ["NCCL 2.28.3 is /usr/lib/libnccl.so.2"], None)


def reduced(bus=330.0, **more):
    rows = [{"bytes": 8, "us": 20.0, "bus_gb_per_s": 0.0}, {"bytes": 1 << 30, "us": 3000.0, "bus_gb_per_s": bus}]
    return outcome({"version": "2.28.3", "path": "/x", "cards": 2, "rows": rows, "wrong": [], "init_ms": 400, **more})


@pytest.mark.parametrize(
    ("done", "more", "status", "words"),
    [
        (reduced(), {}, "pass", ["330.0 GB/s, 69 % of the 478.1", "18 links of NVLink 4.0 through switches"]),
        (reduced(200.0), {}, "warn", ["is slow", "42 %", "gpu.p2p"]),
        (reduced(20.0), {}, "fail", ["is slow", "4 %"]),
        (reduced(20.0), {"exported": {"NCCL_P2P_DISABLE": "1"}}, "fail", ["unset NCCL_P2P_DISABLE=1"]),
        (reduced(20.0), {"least": 10.0}, "pass", ["at least 10.0"]),
        (reduced(), {"least": 400.0}, "fail", ["at least 400.0 is asked for"]),
        (reduced(), {"bandwidth": None}, "pass", ["not judged"]),
        (
            reduced(wrong=["1GiB: 7 of 268435456 sums on card 1 are wrong, the first is number 3"]),
            {},
            "fail",
            ["7 of 268435456", "NCCL_P2P_DISABLE"],
        ),
        (reduced(cards=1), {}, "pass", ["right on one card"]),
        (
            outcome(message="no answer within 90 s", status="timeout", at="ncclCommInitAll over 2 cards"),
            {"hints": ["the IOMMU translates"]},
            "fail",
            ["did not end", "ncclCommInitAll", "NCCL_P2P_DISABLE=1", "IOMMU"],
        ),
        (
            outcome(message="AttributeError: /x/libnccl.so.2: undefined symbol: ncclGetVersion"),
            {
                "library": (
                    "warn",
                    ["the login's library path puts another NCCL first: /x/libnccl.so.2"],
                    "do not export that folder",
                )
            },
            "fail",
            ["/x/libnccl.so.2, and fails", "do not export"],
        ),
        (
            reduced(),
            {
                "library": (
                    "fail",
                    ["the NCCL that loads is 2.18.3, installed is 2.28.3: /x"],
                    "another file comes first",
                )
            },
            "fail",
            ["2.18.3", "another file"],
        ),
    ],
)
def test_nccl_is_judged(done, more, status, words):
    least = {"allreduce": more["least"]} if "least" in more else {}
    found, message, evidence, hint, _ = cuda_proofs.judge_nccl(
        done,
        [card(0), card(1)],
        [PAIR],
        Bounds(bandwidth=more.get("bandwidth", BANDWIDTH), least=least),
        more.get("library", PASS),
        more.get("hints", []),
        more.get("exported", {}),
    )
    assert found == status, message
    says(words, message, evidence, hint or "")
    assert hint or status == "pass"


def peers(*rows):
    fields = ("from", "to", "access", "gb_per_s", "us", "wrong", "wrong_direct")
    return outcome({"pairs": [dict(zip(fields, row, strict=True)) for row in rows]})


@pytest.mark.parametrize(
    ("done", "pair", "status", "words"),
    [
        (
            peers((0, 1, True, 380.0, 7.0, 0, 0), (1, 0, True, 381.0, 7.0, 0, 0)),
            {},
            "pass",
            ["2 pairs right, 380.0 to 381.0"],
        ),
        (
            peers((0, 1, True, 380.0, 7.0, 5, 0), (1, 0, True, 381.0, 7.0, 0, 0)),
            {},
            "fail",
            ["0 to 1: 5 words arrive wrong", "ACS"],
        ),
        (peers((0, 1, True, 380.0, 7.0, 0, 9), (1, 0, True, 381.0, 7.0, 0, 0)), {}, "fail", ["9 words arrive wrong"]),
        (
            peers((0, 1, False, 20.0, 7.0, 0, None), (1, 0, False, 20.0, 7.0, 0, None)),
            {},
            "fail",
            ["NV18 and no peer access"],
        ),
        (
            peers((0, 1, True, 380.0, 7.0, 0, 0), (1, 0, True, 150.0, 7.0, 0, 0)),
            {},
            "warn",
            ["1 to 0: 150.0 GB/s, 31 %"],
        ),
        (peers((0, 1, True, 50.0, 7.0, 0, 0), (1, 0, True, 380.0, 7.0, 0, 0)), {}, "fail", ["0 to 1: 50.0 GB/s, 10 %"]),
        (
            peers((0, 1, False, 20.0, 9.0, 0, None), (1, 0, False, 20.0, 9.0, 0, None)),
            {"nvlinks": 0},
            "pass",
            ["through the host: these cards have no peer access"],
        ),
        (
            peers((0, 1, False, 20.0, 9.0, 0, None), (1, 0, False, 6.0, 9.0, 0, None)),
            {"nvlinks": 0},
            "warn",
            ["1 to 0: 6.0 GB/s, others of its kind reach 20.0"],
        ),
        (
            outcome(message="no answer within 90 s", status="timeout", at="from card 0 to card 1"),
            {},
            "fail",
            ["from card 0 to card 1", "IOMMU"],
        ),
    ],
)
def test_peers_are_judged(done, pair, status, words):
    found, message, evidence, hint, _ = driver_proofs.judge_peers(
        done, [0, 1], [card(0), card(1)], [{**PAIR, **pair}], Bounds(bandwidth=BANDWIDTH), []
    )
    assert found == status, message
    says(words, message, evidence, hint or "")
    assert hint or status == "pass"


def test_errors_that_nvlinks_count_meanwhile_are_told():
    done = peers((0, 1, True, 380.0, 7.0, 0, 0), (1, 0, True, 380.0, 7.0, 0, 0))
    done.result["link_errors"] = [0, None]
    arguments = ([0, 1], [card(0), card(1)], [dict(PAIR)], Bounds(bandwidth=BANDWIDTH), [])
    assert driver_proofs.judge_peers(done, *arguments)[0] == "pass"
    done.result["link_errors"] = [0, 7]
    found, message, *_, numbers = driver_proofs.judge_peers(done, *arguments)
    assert (found, message) == ("warn", "card 1: its NVLinks counted 7 errors meanwhile")
    assert (numbers["gpu0_nvlink_errors"], numbers["gpu1_nvlink_errors"]) == (0, 7)


class FakeNvml:
    """Counts as the second reading has them."""

    rows = {"a": {38: 5, 45: 0, 52: 4294967295, 59: None}, "b": dict.fromkeys((38, 45, 52, 59))}

    def card_by_uuid(self, uuid):
        return uuid

    def field(self, card, number):
        return self.rows[card.value][number]


def test_error_counters_of_links(monkeypatch):
    monkeypatch.setattr(nvml, "Nvml", FakeNvml)
    monkeypatch.setattr(nvml, "_void", lambda uuid: type("Handle", (), {"value": uuid}))
    assert nvml.link_errors(["a", "b"]) == [4294967300, None]
    monkeypatch.setattr(nvml, "Nvml", lambda: (_ for _ in ()).throw(OSError))
    assert nvml.link_errors(["a"]) == []


OWN = outcome({"name": "libnccl.so.2", "path": "/usr/lib/libnccl.so.2.28.3"})
OTHER = outcome({"name": "libnccl.so.2", "path": "/opt/x/libnccl.so.2"})
NONE = outcome(message="NotThere: the loader finds no libnccl.so.2 (<provelibrary.py>:50 in which)")
BROKEN = outcome(message="OSError: /opt/x/libnccl.so.2: file too short")


@pytest.mark.parametrize(
    ("login", "plain", "version", "installed", "status", "words"),
    [
        (OWN, None, "2.28.3", "2.28.3", "pass", ["NCCL 2.28.3 is /usr/lib/libnccl.so.2.28.3"]),
        (OWN, None, "2.28.3", None, "pass", []),
        (OWN, OWN, "2.28.3", "2.28.3-1+cuda13.0", "pass", []),
        (OTHER, OWN, "2.28.3", "2.28.3", "warn", ["another NCCL first: /opt/x/libnccl.so.2", "do not export"]),
        (
            OTHER,
            OWN,
            "2.18.3",
            "2.28.3",
            "fail",
            ["2.18.3, installed is 2.28.3", "without LD_LIBRARY_PATH=/opt/x it is /usr/lib"],
        ),
        (BROKEN, OWN, None, "2.28.3", "fail", ["does without", "file too short"]),
        (BROKEN, None, None, None, "fail", ["does not load"]),
        (NONE, None, None, None, "skip", ["the loader finds no libnccl.so.2"]),
        (NONE, NONE, None, None, "skip", []),
    ],
)
def test_which_library(login, plain, version, installed, status, words):
    found, sentences, hint = cuda_proofs.judge_library("NCCL", login, plain, "/opt/x", version, installed)
    assert found == status, sentences
    says(words, sentences, hint or "")
    assert "provelibrary.py" not in sentences[0]


@pytest.mark.parametrize(("number", "words"), [(22803, "2.28.3"), (2804, "2.8.4"), (21005, "2.10.5")])
def test_versions_of_nccl(number, words):
    assert nccl.version_text(number) == words


def test_shared_memory_that_nobody_maps_is_removed(tmp_path):
    def make(name):
        (tmp_path / name).write_bytes(b"x" * 4096)

    make("nccl-before")
    before = nccl.segments(str(tmp_path))
    for name in ("nccl-left", "nccl-used", "other"):
        make(name)
    with (tmp_path / "nccl-used").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        nccl.remove_left_behind(before, os.geteuid() + 1, str(tmp_path))
        assert (tmp_path / "nccl-left").exists(), "another user's"
        nccl.remove_left_behind(before, os.geteuid(), str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nccl-before", "nccl-used", "other"]
    assert nccl.segments(str(tmp_path / "absent")) == set()


def test_the_oldest_python_can_read_all_of_it():
    for path in Path(proofs.__file__).parent.glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 8))
    # It starts under interpreters that are judged, which may be older.
    ast.parse(prove_job.BOOT, feature_version=(3, 6))
    ast.parse(prove_job.sources("prove.framework")["prove.framework"], feature_version=(3, 7))


def test_every_check_is_in_the_docs():
    page = (Path(__file__).parents[2] / "docs/prove.md").read_text()
    for check in (*[name for name, _ in proofs.Proof({}).plan()], "python.framework"):
        assert f"| `{check}" in page, check
    for name in ("allreduce", "peer", "host", "memory"):
        assert f"`{name}`" in page


def test_every_check_that_can_run_has_its_name_in_the_list():
    args = {"toolkits": [{"version": "12.4", "path": "/x"}], "python": ["/x/python"]}
    assert {name.split("[")[0] for name, _ in proofs.Proof(args).plan()} <= set(NAMES)
    with pytest.raises(UsageError) as refused:
        refuse_unknown(CheckSelection(only=("gpu.coumpute",)), ["apt.hold"])
    assert refused.value.issue.hint == "did you mean gpu.compute?"
    # a host without toolkits: nothing to judge, no slip
    refuse_unknown(CheckSelection(only=("cuda.compile",)), ["apt.hold"])


@pytest.mark.parametrize(
    ("survey", "seen", "bus", "status"),
    [
        # Cards that the driver knows, and CUDA hangs or fails on them.
        (outcome({"cards": [card()], "lost": []}), outcome(None, "no answer within 90 s", "timeout"), ["x"], "fail"),
        (
            outcome({"cards": [card()], "lost": []}),
            outcome(None, "system not yet initialized", code=802),
            ["x"],
            "fail",
        ),
        # Hidden from CUDA.
        (outcome({"cards": [card()], "lost": []}), outcome(None, "no device", code=100), ["x"], "fail"),
        # None at all: nothing that this check could be about.
        (outcome({"cards": [], "lost": []}), outcome(None, "no device", code=100), [], "skip"),
        # A driver that does not answer, with cards on the bus; and none that could.
        (outcome(None, "no answer within 90 s", "timeout"), outcome(None, "x"), ["x"], "fail"),
        (
            outcome(None, "OSError: libnvidia-ml.so.1: cannot open shared object file"),
            outcome(None, "x"),
            ["x"],
            "fail",
        ),
    ],
)
def test_cards_that_nothing_can_compute_on_are_no_skip(monkeypatch, survey, seen, bus, status):
    monkeypatch.setattr(prove_count, "bus_cards", lambda: bus)
    proof = proofs.Proof({})
    monkeypatch.setattr(proofs.Proof, "survey", property(lambda self: survey))
    monkeypatch.setattr(proofs.Proof, "seen", property(lambda self: seen))
    found = judge(Measured(id="gpu.compute", **proof.compute()), Bounds(gpus=len(bus)))
    assert found.status == status, found
    assert bool(found.hint) is (status == "fail")
