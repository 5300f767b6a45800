"""What the tests of gpu checks share: tables, Outcomes, good cards."""

import json
from copy import deepcopy
from pathlib import Path

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import job as prove_job
from ansible_collections.gpu.provision.plugins.module_utils.prove import proofs
from provision.lib import yaml_reader
from provision.parts.proof import Bounds
from provision.parts.proofs import judged

TESTS = Path(__file__).parents[1]
FIXTURES = TESTS / "fixtures/prove"
H100 = "NVIDIA H100 80GB HBM3"


def table(name):
    """The cases of tests/cases/prove_NAME.yml."""
    return yaml_reader.load((TESTS / f"cases/prove_{name}.yml").read_text())


def outcome(result=None, message=None, status=None, **more):
    """An Outcome: ok with a result, else an error with a message."""
    return prove_job.Outcome(status or ("ok" if message is None else "error"), result=result, message=message, **more)


def proven(args, bandwidth=None):
    """What the controller makes of what this machine measures, as dicts; bounds as in args."""
    expect = args.get("expect") or {}
    bounds = Bounds(
        cards=str(expect.get("cards") or expect.get("gpus") or ""),
        bandwidth=bandwidth,
        least=args.get("least") or {},
        installed=args.get("installed") or {},
    )
    # As it comes over a session.
    return [check.model_dump() for check in judged(json.loads(json.dumps(proofs.main(args))), bounds)]


def says(words, *parts):
    """Assert that all words are in the parts (strings or lists)."""
    text = " | ".join(" | ".join(part) if isinstance(part, (list, tuple)) else str(part) for part in parts)
    for word in words:
        assert str(word) in text, f"{word!r} is not in: {text}"


def card(index=0, **change):
    """A healthy H100 as provenvml.survey shows it; change: dotted paths."""
    good = {
        "index": index,
        "name": H100,
        "uuid": f"GPU-{index:08d}-0000-0000-0000-000000000000",
        "bus_id": f"0000:{index:02x}:00.0",
        "pci_id": "2330",
        "minor": index,
        "cc": "9.0",
        "memory_mib": 81559,
        "used_mib": 1,
        "vbios": "96.00.DA.00.0C",
        "persistence": True,
        "compute_mode": 0,
        "mig": {"current": False, "pending": False},
        "mig_instances": [],
        "ecc": {
            "on": True,
            "pending": True,
            "volatile_uncorrected": 0,
            "volatile_corrected": 0,
            "aggregate_uncorrected": 0,
            "aggregate_corrected": 0,
            "retired_pages": [None, None],
            "retired_pending": None,
            "remapped": {"corrected": 0, "uncorrected": 0, "pending": False, "failed": False},
        },
        "pcie": {
            "generation": 5,
            "width": 16,
            "max_generation": 5,
            "max_width": 16,
            "card_generation": 5,
            "replays": 0,
        },
        "nvlinks": [],
        "fabric": None,
        "temperature": {"now": 35, "shutdown": 95, "slowdown": 89, "maximum": 87},
        "power_limit_w": 700.0,
        "max_sm_mhz": 1980,
        "max_memory_mhz": 2619,
        "users": [],
    }
    good = deepcopy(good)
    for path, value in change.items():
        *parents, last = path.split(".")
        node = good
        for part in parents:
            node = node[part]
        node[last] = value
    return good
