"""The lab's CUDA packages and its stand-in compiler: what they hold must agree with what it stands for."""

import ast
import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import errors as prove_errors
from provision.lib import yaml_reader
from tests.lab import cuda_repo, nvidia_repo, sofile, ubuntu_cuda
from tests.lab.debfile import File
from tests.lab.releases import RELEASES
from tests.lab.sim import nvcc, smi, state

CASES = yaml_reader.load((Path(__file__).parents[2] / "cases/lab_nvcc.yml").read_text())


def unpack(packages, root):
    """Write the files of packages below a folder."""
    for package in packages:
        for name, file in package.files.items():
            target = root / name.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, File) and file.link is not None:
                target.symlink_to(file.link)
                continue
            target.write_bytes(file.data if isinstance(file, File) else file.encode())
            target.chmod(file.mode if isinstance(file, File) else 0o644)


@pytest.mark.parametrize("row", CASES["compile"], ids=lambda row: row["name"])
def test_compiler(row, tmp_path, monkeypatch, capfd):
    toolkit = cuda_repo.Toolkit(row["release"])
    unpack(toolkit.packages(), tmp_path)
    program = tmp_path / toolkit.prefix.lstrip("/") / "bin/nvcc"
    folder = tmp_path / "path"
    folder.mkdir()
    if row["gcc"]:
        (folder / "gcc").write_text(f"#!/bin/sh\necho {row['gcc']}\n")
        (folder / "gcc").chmod(0o755)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("a.cu").write_text("#include <cuda_runtime.h>\n// gpu-provision-expect: the sum is 42\nint main() {}\n")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "argv", [str(program), *row["words"]])
    described = {**cuda_repo.abilities(toolkit.minor), "release": toolkit.minor}
    assert nvcc.main(row["words"], described) == row["rc"]
    out, err = capfd.readouterr()
    assert row.get("says", "") in err
    assert row.get("prints", "") in out
    made = [path.name for path in Path().iterdir() if path.name != "a.cu"]
    assert made == ([row["made"]] if "made" in row else [])
    if made:
        (call,) = [node for node in ast.walk(ast.parse(Path(made[0]).read_text())) if isinstance(node, ast.Dict)]
        assert ast.literal_eval(call)["prints"] == ["the sum is 42"]


@pytest.mark.parametrize("row", CASES["run"], ids=lambda row: row["name"])
def test_built_program(row, monkeypatch):
    module = row.get("module", row["driver"])
    gpus = [
        {"index": number, "uuid": f"GPU-{number}", "compute": compute, "fabric_state": row.get("fabric", "N/A")}
        for number, compute in enumerate(row["compute"])
    ]
    monkeypatch.setattr(nvcc, "_driver_library", lambda: row["driver"])
    monkeypatch.setattr(state, "loaded", lambda: {"nvidia": {"version": module}} if module else {})
    monkeypatch.setattr(smi, "gpus", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in row.get("env", {}).items():
        monkeypatch.setenv(name, value)
    assert nvcc.why_not({"release": row["release"], "targets": row["targets"]}) == row["error"]


@pytest.mark.parametrize("code", nvcc.ERRORS)
def test_the_product_knows_the_errors_that_programs_end_with(code):
    assert prove_errors.code_in(nvcc.ERRORS[code]) == code
    assert prove_errors.code_in(f"error {code}: {nvcc.ERRORS[code]} (the first call)") == code


def test_nvcc_tells_its_version_as_the_real_one_of_a_recorded_host(tmp_path):
    unpack(cuda_repo.Toolkit("13.0.2").packages(), tmp_path)
    done = subprocess.run([tmp_path / "usr/local/cuda-13.0/bin/nvcc", "-V"], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2025 NVIDIA Corporation\n"
        "Built on Wed_Aug_20_01:58:59_PM_PDT_2025\nCuda compilation tools, release 13.0, V13.0.88\n"
        "Build cuda_13.0.r13.0/compiler.36424714_0\n"
    )


def relations(packages):
    """(package, alternatives) of every dependency."""
    for package in packages:
        for group in filter(None, package.fields.get("Depends", "").split(", ")):
            yield (package, [re.match(r"^(\S+)(?: \((\S+) (\S+)\))?$", item).groups() for item in group.split(" | ")])


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("ubuntu", RELEASES)
def test_every_dependency_is_in_the_repositories(ubuntu, later):
    of_nvidia = nvidia_repo.packages(ubuntu, cuda=later)
    packages = of_nvidia + ubuntu_cuda.packages(RELEASES[ubuntu])
    names = {package.name for package in packages} | {"zlib1g", "make"}
    for package in packages:
        names |= {item.split(" ")[0] for item in package.fields.get("Provides", "").split(", ")}
    cuda = cuda_repo.packages(ubuntu, later=later)
    for package in cuda:
        for field in ("Depends", "Provides", "Conflicts", "Breaks", "Replaces"):
            assert all(package.fields.get(field, "x").split(", ")), (package.name, package.version, field)
    missing = [(p.name, group) for p, group in relations(cuda) if not any(item[0] in names for item in group)]
    assert not missing
    assert len({(p.name, p.version) for p in cuda}) == len(cuda)


def closure(packages, wanted):
    """Names that a package pulls, first alternatives only."""
    by_name = {}
    for package in packages:
        by_name.setdefault(package.name, package)
    found, todo = set(), [wanted]
    while todo:
        name = todo.pop()
        if name not in found and name in by_name:
            found.add(name)
            todo += [group[0][0] for _, group in relations([by_name[name]])]
    return found


def test_a_toolkit_pulls_no_driver_and_its_namesakes_do():
    packages = nvidia_repo.packages("22.04")
    for minor in ("11-8", "12-4", "13-0", "13-3"):
        assert not {n for n in closure(packages, f"cuda-toolkit-{minor}") if "nvidia-" in n or "cuda-drivers" in n}
        for trap in (f"cuda-{minor}", f"cuda-runtime-{minor}"):
            assert {"cuda-drivers", "nvidia-open"} & closure(packages, trap), trap
    unbundled = nvidia_repo.packages("24.04", cuda=True)
    assert not {"cuda-drivers", "nvidia-open"} & closure(unbundled, "cuda-13-4")


def test_repositories_hold_the_ranges_of_the_catalog():
    minors = {ubuntu: {cuda_repo.minor_of(v) for v in cuda_repo.releases(ubuntu)} for ubuntu in RELEASES}
    assert {"11.8", "12.4", "13.0"} <= minors["22.04"]
    assert minors["24.04"].isdisjoint({"11.8", "12.4"})
    assert "12.5" in minors["24.04"]
    assert min(minors["26.04"], key=cuda_repo.numbers) == "13.3"


def test_relations_of_13_0_are_those_of_a_real_host():
    """A devel image's packages (measured, 2026-11): some of them, with every kind of relation."""
    built = {package.name: package for package in cuda_repo.Toolkit("13.0.2").packages()}
    measured = {
        "cuda-compiler-13-0": "cuda-cuobjdump-13-0 (>= 13.0.85), cuda-cuxxfilt-13-0 (>= 13.0.85), cuda-nvcc-13-0 (>= 13.0.88), "
        "cuda-crt-13-0 (>= 13.0.88), libnvptxcompiler-13-0 (>= 13.0.88), libnvvm-13-0 (>= 13.0.88), cuda-nvprune-13-0 (>= 13.0.85)",
        "cuda-cudart-13-0": "cuda-toolkit-config-common | cuda-cudart-11-2, cuda-toolkit-13-config-common | cuda-cudart-11-2, "
        "cuda-toolkit-13-0-config-common",
        "cuda-nsight-compute-13-0": "nsight-compute-2025.3.1 (>= 2025.3.1.4)",
        "libcublas-dev-13-0": "cuda-culibos-dev-13-0, libcublas-13-0 (>= 13.1.0.3)",
        "cuda-command-line-tools-13-0": "cuda-cupti-dev-13-0 (>= 13.0.85), cuda-gdb-13-0 (>= 13.0.85), "
        "cuda-nvdisasm-13-0 (>= 13.0.85), cuda-nvtx-13-0 (>= 13.0.85), cuda-sanitizer-13-0 (>= 13.0.85)",
    }
    assert {name: built[name].fields["Depends"] for name in measured} == measured
    assert built["cuda-toolkit-13-config-common"].version == "13.0.96-1"
    assert built["cuda-compat-13-0"].version == "580.95.05-0ubuntu1"


def test_cudnn_9_14_has_the_relations_of_a_real_host():
    built = {p.name: p.fields for p in cuda_repo.cudnn("24.04") if p.version == "9.14.0.64-1"}
    assert built["libcudnn9-cuda-13"]["Conflicts"] == "libcudnn9"
    headers = built["libcudnn9-headers-cuda-13"]
    assert headers["Conflicts"] == "libcudnn8-dev, libcudnn9-dev-cuda-12 (<< 9.14.0.64), libcudnn9-headers"
    assert headers["Replaces"] == "libcudnn9-dev-cuda-12 (<< 9.14.0.64), libcudnn9-headers"
    assert headers["Breaks"] == built["libcudnn9-dev-cuda-13"]["Breaks"] == "libcudnn9-dev-cuda-12 (<< 9.14.0.64)"
    assert built["libcudnn9-dev-cuda-13"]["Depends"] == (
        "libcudnn9-headers-cuda-13 (= 9.14.0.64-1), libcudnn9-cuda-13 (= 9.14.0.64-1)"
    )


def test_both_layouts_of_cudnn():
    by_version = {}
    for package in cuda_repo.cudnn("24.04"):
        by_version.setdefault(package.version, {})[package.name] = package
    old, new = by_version["9.8.0.87-1"], by_version["9.10.2.21-1"]
    assert "libcudnn9-headers-cuda-12" not in old
    assert "update-alternatives" in old["libcudnn9-dev-cuda-12"].scripts["postinst"]
    assert "postinst" not in new["libcudnn9-dev-cuda-12"].scripts
    assert f"{cuda_repo.INCLUDE}/cudnn.h" in new["libcudnn9-headers-cuda-12"].files
    assert f"{cuda_repo.LIB}/libcudnn.so" in new["libcudnn9-dev-cuda-12"].files


def test_a_patch_release_and_the_later_day():
    first = {(p.name, p.version) for p in cuda_repo.packages("22.04")}
    later = {(p.name, p.version) for p in cuda_repo.packages("22.04", later=True)} - first
    assert {("cuda-toolkit-12-4", "12.4.0-1"), ("cuda-toolkit-12-4", "12.4.1-1")} <= first
    # what 13.0.3 changed
    assert ("libcublas-13-0", "13.1.1.3-1") in later
    # and what it did not
    assert not {row for row in later if row[0] == "cuda-nvcc-13-0"}
    assert ("libcudnn9-cuda-13", "9.28.1.4-1") in later
    assert ("cuda-toolkit-13-5", "13.5.0-1") in later
    assert {version for name, version in later if name == "libnccl2"} == {"2.31.2-1+cuda12.9", "2.32.3-1+cuda13.4"}


def test_a_library_can_be_loaded_and_asked(tmp_path):
    path = tmp_path / "libcudnn.so.9"
    path.write_bytes(
        sofile.build(
            "libcudnn.so.9", {"cudnnGetVersion": sofile.constant(91400), "ncclGetVersion": sofile.stores(22803)}
        )
    )
    library, number = ctypes.CDLL(str(path)), ctypes.c_int()
    assert library.cudnnGetVersion() == 91400
    assert library.ncclGetVersion(ctypes.byref(number)) == 0
    assert number.value == 22803
