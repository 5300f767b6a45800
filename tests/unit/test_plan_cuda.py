"""What a plan does for CUDA besides packages: links, files, the loader, and what goes (tests/cases/plan_cuda.yml)."""

from pathlib import Path

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.cuda import files as cuda_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.facts import Shells
from provision.lib import yaml_reader
from provision.parts.cuda.files import wanted_files
from provision.parts.cuda.plan import plan_cuda
from provision.parts.decision import Decision
from tests.unit.cudahosts import case_candidates, case_config, case_host, resolved

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/plan_cuda.yml").read_text())
MODULES = "/etc/environment-modules/modules"


def settled(case):
    """A host on which the files for case["settled"] (default first) and the links are as they should be."""
    facts = case_host(case)
    listed = case.get("settled", [])
    if not listed:
        return facts
    shells = Shells.model_validate(case.get("shells", {}))
    files = wanted_files(listed, listed[0], ld_library_path=False, shells=shells, arch="amd64")
    text = files[cuda_files.LD_SO_CONF]
    folders = [line for line in text.splitlines() if line.startswith("/")]
    names = {"cuda": listed[0], **{f"cuda-{version.split('.')[0]}": version for version in reversed(listed)}}
    gone, uncached = case.get("dangling", []), case.get("uncached", [])
    cuda = {
        "links": [
            {
                "path": f"/usr/local/{name}",
                "target": f"/etc/alternatives/{name}",
                "resolved": f"/usr/local/cuda-{version}",
            }
            for name, version in names.items()
        ],
        "alternatives": [
            {
                "name": name,
                "link": f"/usr/local/{name}",
                "manual": True,
                "current": f"/usr/local/cuda-{version}",
                "choices": {f"/usr/local/cuda-{version}": 1, **dict.fromkeys(case.get("choices", []), 1)},
                "dangling": gone,
            }
            for name, version in names.items()
        ],
        "ld_so_conf": {cuda_files.LD_SO_CONF: folders},
        "libraries": [
            {
                "soname": "libcublas.so",
                "path": f"{folder}/libcublas.so",
                "in_cache": Path(folder).parts[3] not in uncached,
            }
            for folder in folders
        ],
        "shells": shells.model_dump(),
        "other_modulefiles": case.get("other_modulefiles", []),
    }
    made = type(facts.cuda).model_validate({**facts.cuda.model_dump(), **cuda})
    own = {path: apt_files.sha256(text) for path, text in files.items() if path not in case.get("lost", [])}
    return facts.model_copy(update={"cuda": made, "own_files": own})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_plan_cuda(case):
    facts, config, expect = settled(case), case_config(case), case["expect"]
    decision = resolved(config, facts, case_candidates(case), Decision())
    assert not decision.blockers
    plan = plan_cuda(config, facts, decision, None)
    assert [step.title for step in plan.steps if step.id != "hold"] == expect["steps"]
    said = " ".join([*(step.because for step in plan.steps), *(d for step in plan.steps for d in step.details)])
    said += " ".join(f"{reason.what} {reason.value} {reason.because}" for reason in decision.reasons)
    for word in expect.get("words", []):
        assert word in said, said
    for word in expect.get("not_words", []):
        assert word not in said, said
    assert [issue.code for issue in decision.warnings] == expect.get("warnings", [])
    assert all(issue.hint for issue in decision.warnings)
    if "ldconfig" in expect:
        assert plan.spec["environment"]["ldconfig"] is expect["ldconfig"]
    if "removes" in expect:
        removed = plan.apt.remove if plan.apt else []
        parts = [cuda_names.parse(name) for name in removed]
        assert {part.version for part in parts if part.base == "cuda-nvcc"} == set(expect["removes"])
        assert not {part.kind for part in parts} & {"cudnn", "nccl"}
