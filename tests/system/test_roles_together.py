"""Which roles the first one plans for, in real plays: a role that Ansible skips has no effect, whatever it asks for.

No host is needed: ``cuda_toolkit_versions: ["99.9"]`` cannot be planned, so the task that fails shows which role
planned for the toolkits. Each case is a play on a host of its own, all in one run, in check mode on this machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from provision.collection import COLLECTIONS_PATH

DRIVER, CUDA = "gpu.provision.nvidia_driver", "gpu.provision.cuda_toolkit"


def include(**more):
    return {"ansible.builtin.include_role": {"name": CUDA}, **more}


def imported(name, **more):
    return {"ansible.builtin.import_role": {"name": name}, **more}


# case: (the play, which role's plan fails: the first one plans for both, or the role for itself, or nobody)
PLAYS = {
    "both": ({"roles": [DRIVER, CUDA]}, "nvidia_driver"),
    "when false": ({"roles": [DRIVER, {"role": CUDA, "when": False}]}, None),
    "when false of a host's variable": ({"roles": [DRIVER, {"role": CUDA, "when": "wanted | default(false)"}]}, None),
    "when true": ({"roles": [DRIVER, {"role": CUDA, "when": "inventory_hostname is defined"}]}, "nvidia_driver"),
    "when asks for what is set later": (
        {
            "tasks": [
                imported(DRIVER),
                {"ansible.builtin.set_fact": {"later": True}},
                imported(CUDA, when="later | bool"),
            ]
        },
        "cuda_toolkit",
    ),
    "when asks for what a role reports": (
        {"roles": [DRIVER, {"role": CUDA, "when": "not (nvidia_driver_reboot_required | default(false) | bool)"}]},
        "cuda_toolkit",
    ),
    "a block that does not run": ({"tasks": [imported(DRIVER), {"block": [imported(CUDA)], "when": False}]}, None),
    "another order": ({"roles": [CUDA, DRIVER]}, "cuda_toolkit"),
    "included in a loop": ({"tasks": [imported(DRIVER), include(loop=[1, 2])]}, "cuda_toolkit"),
    "included and skipped": ({"tasks": [imported(DRIVER), include(when=False)]}, None),
    "variables of the role": ({"roles": [DRIVER, {"role": CUDA, "cuda_toolkit_versions": []}]}, None),
    "tagged never": ({"roles": [DRIVER, {"role": CUDA, "tags": ["never"]}]}, None),
}
TAGGED = {"roles": [{"role": DRIVER, "tags": ["driver"]}, {"role": CUDA, "tags": ["cuda"]}]}


def run(folder: Path, plays, *options: str) -> dict[str, str | None]:
    """Run the plays, a host each, and return {host: role whose plan failed, or None}."""
    names = [f"h{number}" for number in range(len(plays))]
    inventory = {
        "all": {
            "hosts": dict.fromkeys(names, {"cuda_toolkit_versions": ["99.9"]}),
            "vars": {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"},
        }
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (folder / "play.yml").write_text(
        yaml.safe_dump(
            [
                {"hosts": name, "gather_facts": False, "ignore_errors": True, **play}
                for name, play in zip(names, plays, strict=True)
            ]
        )
    )
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "--check", "-i", "hosts.yml", "play.yml", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS_PATH),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CONFIG": "",
        },
    )
    failed: dict[str, str | None] = dict.fromkeys(names)
    task = ""
    for line in done.stdout.splitlines():
        if line.startswith("TASK ["):
            task = line
        elif (found := re.match(r"fatal: \[(\w+)\]", line)) and failed[found[1]] is None:
            # Errors are ignored so that the next play runs; only a host's first one says who planned.
            assert "there is no CUDA toolkit 99.9" in line
            failed[found[1]] = task.split("gpu.provision.")[1].split(" ")[0]
    assert done.stdout.count("PLAY [h") == len(plays), done.stdout + done.stderr
    return failed


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    found = run(tmp_path_factory.mktemp("plays"), [play for play, _ in PLAYS.values()])
    return dict(zip(PLAYS, found.values(), strict=True))


@pytest.mark.parametrize("case", PLAYS)
def test_a_role_is_planned_for_where_it_runs(outcomes, case):
    assert outcomes[case] == PLAYS[case][1]


@pytest.mark.parametrize(
    ("options", "planned"),
    [
        (("--tags", "driver"), None),
        (("--skip-tags", "cuda"), None),
        (("--tags", "cuda"), "cuda_toolkit"),
        (("--tags", "driver,cuda"), "nvidia_driver"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_tags_choose_what_is_planned(tmp_path, options, planned):
    assert run(tmp_path, [TAGGED], *options) == {"h0": planned}
