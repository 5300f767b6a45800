"""What a host is held to, and its verdicts: the checks that read, and those that run something.

``call`` is as in planning. Checks that read are in the parts' checks.py; provision/parts/checks.py runs them. What the others
measure on the host (plugins/module_utils/prove: programs, bounded, nothing left behind) is judged by provision/parts/proofs.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.prove.names import NAMES, wanted
from provision.catalog import Catalog, load_catalog
from provision.errors import UsageError
from provision.facts import Facts, ShellLine
from provision.inventory import cards
from provision.lib.findings import Check
from provision.parts import checks
from provision.parts.base import Host
from provision.parts.check import Expect
from provision.parts.containers.plan import containers_to_run
from provision.parts.cuda.plan import LINK
from provision.parts.desired import Desired
from provision.parts.driver import verdict
from provision.parts.driver.installed import own_gpus
from provision.parts.proof import Bounds
from provision.parts.proofs import judged
from provision.parts.registry import PARTS, decide
from provision.planning import Call, read_facts

# Checks that run something: only where a pattern can mean one of them is the host asked to.
_RUN = ("gpu.", "cuda.compile", "python.", "container.run", "site.")
# Of these none is run for LOCAL: they load cards, compile, or start containers and interpreters.
_SLOW = tuple(name for name in NAMES if name != "gpu.xid")


@dataclass(frozen=True)
class CheckSelection:
    """How closely to look. only: names or patterns of checks, all when empty; deep: take the time; skip: names of checks that
    are left out; soak: seconds of load for gpu.soak, which does not run without."""

    only: tuple[str, ...] = ()
    deep: bool = False
    skip: tuple[str, ...] = ()
    soak: float = 0.0

    def wants(self, name: str) -> bool:
        return bool(wanted(name, self.only))

    def wants_to_run(self) -> bool:
        """False where no pattern can mean a check that runs something."""
        literal = [re.split(r"[*?\[]", pattern)[0] for pattern in self.only]
        return not self.only or any(
            text.startswith(start) or start.startswith(text) for text in literal for start in _RUN
        )


EVERYTHING = CheckSelection()
# What reads, the kernel's log and the site's own: for a prolog and a monitor.
QUICK = CheckSelection(skip=_SLOW)


def verify_host(
    call: Call, values: dict[str, Any], catalog: Catalog | None = None, selection: CheckSelection = EVERYTHING
) -> list[Check]:
    """Read one host, have it prove what it can, and judge it.

    Raises UsageError where a pattern of ``selection`` means none of this host's checks.
    """
    catalog = catalog or load_catalog()
    facts = read_facts(call, values)
    expect = expect_of(facts, values, catalog)
    found = checks.run(facts, expect)
    if runs(values, selection):
        found += judged(
            call("prove.proofs", prove_args(facts, values, expect, catalog, selection)),
            bounds(facts, values, expect, catalog),
        )
    refuse_unknown(selection, (check.code for check in found))
    return select(found, values, selection)


def read_checks(facts: Facts, values: dict[str, Any], catalog: Catalog) -> list[Check]:
    """Judge a host by the checks that need nothing but its facts."""
    return select(checks.run(facts, expect_of(facts, values, catalog)), values)


def runs(values: dict[str, Any], selection: CheckSelection) -> bool:
    """Whether checks that run something are asked for at all."""
    return bool(values.get("gpu_verify_run", True)) and selection.wants_to_run()


def select(
    checks: Iterable[Check], values: dict[str, Any], selection: CheckSelection = EVERYTHING, *, of_one: bool = False
) -> list[Check]:
    """Return the checks that were asked for; with gpu_verify_strict a warning counts as a failure.

    of_one: these are not all of a host's checks, so that nothing is said of those that are missing.
    """
    found: list[Check] = []
    checks = list(checks)
    for check in [*checks, *([] if of_one else _never_run(checks, values))]:
        if not selection.wants(check.code) or check.code.split("[")[0] in selection.skip:
            continue
        left_out = [p for p in values.get("gpu_verify_skip") or () if wanted(check.code, [p])]
        if left_out and not selection.only:
            said = f"left out (gpu_verify_skip: {left_out[0]})"
            check = check.model_copy(update={"level": "skip", "message": said, "evidence": [], "not_run": [said]})
        if check.level == "warning" and values.get("gpu_verify_strict"):
            check = check.model_copy(update={"level": "error"})
        found.append(check)
    return found


def _never_run(checks: Iterable[Check], values: dict[str, Any]) -> list[Check]:
    """The checks that run something and that the host was not asked for: what is not proven is reported."""
    there = {check.code.split("[")[0] for check in checks}
    left = [name for name in NAMES if name not in there]
    said = "left out (gpu_verify_run: false)"
    if values.get("gpu_verify_run", True):
        left = [name for name in left if any(wanted(name, [p]) for p in values.get("gpu_verify_skip") or ())]
    return [Check(id=name, status="skip", message=said, not_run=[said]) for name in left]


def _exported(line: ShellLine) -> tuple[str, str]:
    """A variable that a start file of everybody sets to a plain value; empty for all others."""
    match = re.search(r"\b([A-Z][A-Z0-9_]*)=[\"']?([A-Za-z0-9_,.:-]*)[\"']?\s*$", line.text)
    return (match[1], match[2]) if match and line.file.startswith("/etc/") else ("", "")


def refuse_unknown(selection: CheckSelection, found: Iterable[str]) -> None:
    """Raise UsageError for a pattern that means none of the checks that were found (names)."""
    names = sorted({*found, *NAMES, "site.check", "gpu.trend", "gpu.soak"})
    for pattern in selection.only:
        if not any(wanted(name, [pattern]) for name in names):
            nearest = difflib.get_close_matches(pattern, names, n=1)
            raise UsageError(
                "verify.unknown_check",
                f"no check is called {pattern}",
                because=[f"there are: {', '.join(names)}"],
                hint=f"did you mean {nearest[0]}?" if nearest else "docs/checks.md and docs/prove.md list them",
            )


def expect_of(facts: Facts, values: dict[str, Any], catalog: Catalog | None = None) -> Expect:
    """What verify expects of a host: what the inventory asks for, and where that leaves a choice, what resolve keeps."""
    host = Host(facts, catalog or load_catalog(), Desired(values))
    decide(host)
    expect = Expect.model_validate({part.name: part.expect(host, host.decisions[part.name]) for part in PARTS})
    asked = values.get("gpu_verify_expect")
    update = {"gpus": cards.count(asked), "cards": str(asked or "")}
    return expect.model_copy(update={"driver": expect.driver.model_copy(update=update)})


def driven_gpus(facts: Facts) -> int:
    """How many cards the host's driver should have: those on the bus that are not passed through, in a container those that
    it was given, and at least those of nvidia-smi (WSL shows none on the bus)."""
    count, smi = len(own_gpus(facts)), facts.smi
    if facts.host.container:
        nodes = sum(bool(re.match(r"/dev/nvidia[0-9]+$", node)) for node in facts.devices)
        count = min(count, nodes or int(bool(smi.path)))
    return max(count, len(smi.gpus))


def interpreters(facts: Facts, values: dict[str, Any], expect: Expect) -> list[str]:
    """Interpreters to judge: gpu_verify_python, then those of the environments that are asked for.

    What is asked for without CUDA is not held to use a GPU; of what is not there, conda.environments tells.
    """
    there = {env.path for env in facts.conda.environments if env.state == "whole" and env.python}
    asked = [f"{env.path}/bin/python" for env in expect.conda.environments if env.path in there and env.build != "cpu"]
    return list(dict.fromkeys([*(values.get("gpu_verify_python") or ()), *asked]))


def bounds(facts: Facts, values: dict[str, Any], expect: Expect, catalog: Catalog) -> Bounds:
    """What measurements of the host are held against."""
    return Bounds(
        # of cards that virtual machines have the driver knows nothing: gpu.bus alone counts them
        cards=str(values.get("gpu_verify_expect") or expect.driver.gpus or "") if own_gpus(facts) == facts.gpus else "",
        gpus=driven_gpus(facts),
        excused=tuple(values.get("gpu_verify_excuse") or ()),
        bandwidth=catalog.bandwidth,
        least={name: value for name, value in (values.get("gpu_verify_bandwidth") or {}).items() if value},
        recovered=verdict.recovered(((gpu.recovery, gpu.bus_id) for gpu in facts.smi.gpus), catalog.xids),
        installed={header.name: header.version for header in facts.cuda.headers if header.version},
    )


def prove_args(
    facts: Facts, values: dict[str, Any], expect: Expect, catalog: Catalog, selection: CheckSelection = EVERYTHING
) -> dict[str, Any]:
    """Arguments of the host's program ``prove``: users, toolkits, interpreters, what a login exports, limits."""
    # What a login exports: lines that people wrote for everyone, and ours where it was asked for.
    exported = [
        folder
        for line in facts.cuda.shell_lines
        if line.variable == "LD_LIBRARY_PATH" and line.file.startswith("/etc/")
        for folder in line.paths
    ]
    if values.get("cuda_toolkit_ld_library_path") and values.get("cuda_toolkit_versions"):
        exported.append(f"{LINK}/lib64")
    return {
        "users": [user.model_dump() for user in facts.gpu_users],
        "toolkits": [
            {"version": toolkit.version, "path": toolkit.path}
            for toolkit in facts.cuda.toolkits
            if toolkit.compiler and toolkit.version
        ],
        "library_path": ":".join(dict.fromkeys(exported)),
        "environment": {
            name: value
            for line in facts.cuda.shell_lines
            for name, value in [_exported(line)]
            if name == "CUDA_VISIBLE_DEVICES" or name.startswith("NCCL_")
        },
        "only": list(selection.only),
        "skip": [*selection.skip, *(values.get("gpu_verify_skip") or () if not selection.only else ())],
        "deep": selection.deep or bool(values.get("gpu_verify_deep")),
        "soak_s": selection.soak,
        "busy": values.get("gpu_verify_busy") or "skip",
        "python": interpreters(facts, values, expect),
        "containers": containers_to_run(Desired(values).containers, facts, catalog),
        "timeout_s": int(values.get("gpu_verify_timeout") or 120),
        "site": list(values.get("gpu_verify_site") or ()),
        # what the site's checks read
        "about": {
            "version": 1,
            "host": facts.host.hostname,
            "driver": facts.smi.driver_version,
            "gpus": [
                {"index": gpu.index, "name": gpu.name, "uuid": gpu.uuid, "bus_id": gpu.bus_id} for gpu in facts.smi.gpus
            ],
        },
    }
