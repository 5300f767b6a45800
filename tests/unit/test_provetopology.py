"""How cards are joined, how fast that should be, and what is known to slow it down."""

import json
import re
import struct
from itertools import combinations

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import topology as prove_topology
from provision.catalog import load_catalog
from provision.parts.driver import links
from tests.unit.provecases import FIXTURES, card, table

BANDWIDTH = load_catalog().bandwidth
PLAIN = {"level": "PHB", "nvlinks": 0, "switched": False, "version": None, "nvlink_gb_per_s": 0.0}


def read_topology(text):
    """Parse `nvidia-smi topo -m`: {(a, b): word} for cards a < b; network cards and affinities are left out."""
    columns, found = [], {}
    for line in text.splitlines():
        # The header is underlined by an escape sequence.
        cells = [cell.strip() for cell in re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t")]
        if not columns and "GPU0" in cells[1:]:
            columns = cells
            continue
        row = re.match(r"GPU([0-9]+)$", cells[0])
        for name, cell in zip(columns, cells, strict=False) if row else ():
            column = re.match(r"GPU([0-9]+)$", name)
            if row and column and int(row.group(1)) < int(column.group(1)):
                found[(int(row.group(1)), int(column.group(1)))] = cell
    return found


@pytest.mark.parametrize("case", table("topology"), ids=lambda case: case["name"])
def test_the_way_and_its_rate(case):
    cards = [
        card(index, **{"pcie.max_generation": generation, "pcie.max_width": width})
        for index, (generation, width) in case["cards"].items()
    ]
    named = {(row["a"], row["b"]): row for row in case.get("pairs", [])}
    pairs = [
        {**PLAIN, **case.get("each", {}), "a": a, "b": b, **named.get((a, b), {})}
        for a, b in combinations(case["cards"], 2)
    ]
    found = links.expected(cards, pairs, BANDWIDTH)
    assert found["way"] == case["expect"]["way"]
    assert found["gb_per_s"] == case["expect"]["gb_per_s"]
    assert case["expect"]["words"] in found["words"]


@pytest.mark.parametrize(("measured", "status"), [(355.0, "pass"), (330.0, "pass"), (200.0, "warn"), (26.3, "fail")])
def test_what_was_measured_on_nvlink_is_judged(measured, status):
    # 355 and 330: four and two H100 or H200; 26.3: the same four with NCCL_P2P_DISABLE=1.
    assert links.judge_rate(measured, 478.1, BANDWIDTH.allreduce["nvlink"])[0] == status


def test_a_bound_of_the_users_own_takes_the_place_of_the_catalogs():
    share = BANDWIDTH.allreduce["nvlink"]
    assert links.judge_rate(26.3, 478.1, share, least=20.0)[0] == "pass"
    assert links.judge_rate(355.0, 478.1, share, least=400.0)[0] == "fail"
    assert links.judge_rate(3.0, None, share)[0] == "pass"
    assert "not judged" in links.judge_rate(3.0, None, share)[1]


def test_every_way_has_its_shares():
    for kind in ("allreduce", "peer"):
        shares = getattr(BANDWIDTH, kind)
        assert set(shares) == set(links.LINK_TYPES)
        warns = [shares[way].warn for way in links.LINK_TYPES]
        assert warns == sorted(warns, reverse=True), "farther is slower"


def test_nvidia_smi_says_the_same_as_nvml():
    recorded = json.loads((FIXTURES / "h200x4/scenes.json").read_text())
    survey = recorded["scenes"]["everything"]["answers"][0]["result"]
    told = read_topology((FIXTURES / "h200x4/topo.txt").read_text())
    assert told == {(pair["a"], pair["b"]): links.topology_name(pair) for pair in survey["pairs"]}
    assert len(told) == 6


def test_a_matrix_of_several_ways_is_read():
    text = (
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\x1b[0m\n"
        "GPU0\t X \tNV4\tSYS\tPIX\t0-31\nGPU1\tNV4\t X \tNODE\tSYS\t0-31\nGPU2\tSYS\tNODE\t X \tSYS\t32-63\n"
        "NIC0\tPIX\tSYS\tSYS\t X \n"
    )
    assert read_topology(text) == {(0, 1): "NV4", (0, 2): "SYS", (1, 2): "NODE"}


def _config(control=None, before=()):
    """Bytes of a bridge's configuration space: a chain of extended capabilities, the last one ACS."""
    data = bytearray(4096)
    chain = [*before, *([0x000D] if control is not None else [])]
    for number, kind in enumerate(chain):
        place = 0x100 + 0x20 * number
        following = place + 0x20 if number + 1 < len(chain) else 0
        struct.pack_into("<I", data, place, kind | 1 << 16 | following << 20)
        if kind == 0x000D:
            struct.pack_into("<HH", data, place + 4, 0x5F, control)
    return bytes(data)


@pytest.mark.parametrize(
    ("config", "answer"),
    [
        # SrcValid, ReqRedir, CmpltRedir, UpstreamFwd: as in the field (scenario J5)
        (_config(0x1D), True),
        (_config(0x1D, before=(0x0001, 0x0019)), True),
        (_config(0x01), False),
        (_config(), False),
        (_config(0x1D)[:64], None),
    ],
)
def test_access_control_of_bridges(config, answer):
    assert prove_topology.redirects(config) is answer


def test_hints_of_a_host(tmp_path):
    assert prove_topology.host_hints(str(tmp_path)) == []
    group = tmp_path / "sys/kernel/iommu_groups/7"
    group.mkdir(parents=True)
    (group / "type").write_text("DMA-FQ\n")
    for slot, kind in (("0000:00:01.0", "0x060400"), ("0000:01:00.0", "0x030200")):
        device = tmp_path / "sys/bus/pci/devices" / slot
        device.mkdir(parents=True)
        (device / "class").write_text(kind + "\n")
        (device / "config").write_bytes(_config(0x1D))
    first, second = prove_topology.host_hints(str(tmp_path))
    assert "iommu=pt" in first
    assert "0000:00:01.0" in second
    assert "0000:01:00.0" not in second
    (group / "type").write_text("identity\n")
    assert len(prove_topology.host_hints(str(tmp_path))) == 1
