"""CUDA toolkits on simulated hosts: side by side with a driver, what every kind of shell sees, and what stays away.

Five hosts serve the file, two of them in make test. The tests of ``build`` go in order, each on what the one before left, as
a person would.
"""

import json
import re

import pytest

from tests import sample
from tests.faults.conftest import Command, driver_packages, holds, transactions
from tests.lab import Lab

pytestmark = pytest.mark.lab

HOSTS = [
    {
        "name": "build",
        "ubuntu": "22.04",
        "gpus": ["H100"],
        "nouveau": False,
        "shells": ["fish", "tcsh", "zsh"],
        "modules": "tcl",
    },
    {"name": "server", "gpus": ["A100"], "sources": ["archive", "cuda"], "installed": ["580-server open signed held"]},
    {"name": "distro", "gpus": ["RTX 4090"], "installed": ["580 open signed held"], "distribution_cuda": True},
    {
        "name": "library",
        "ubuntu": "22.04",
        "gpus": ["A100"],
        "sources": ["archive", "cuda"],
        "installed": ["580-server open signed held", "libnccl2=2.15.5-1+cuda11.8"],
        "run": ["apt-mark hold libnccl2"],
    },
    # Both origins of one name: somebody ran Ubuntu's own command while NVIDIA's repository was there.
    {
        "name": "both",
        "ubuntu": "26.04",
        "gpus": ["RTX 4090"],
        "nouveau": False,
        "sources": ["archive", "cuda"],
        "installed": ["580 open signed held"],
        "run": ["apt-get install -y -q cuda-toolkit-13-1"],
    },
]
THREE = {"cuda_toolkit_versions": ["11.8", "12.4", "13.0"], "cuda_toolkit_default": "12.4"}
ETC = (
    "find /etc -path /etc/sim -prune -o -type f -print0 | sort -z | xargs -0 sha256sum; "
    "find /etc -type l -printf '%p %l\\n' | sort"
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with Lab.start(HOSTS if sample.THOROUGH else HOSTS[:1]) as lab:
        yield Command(lab, tmp_path_factory.mktemp("state"))


def on(host, config, *more):
    """Words that limit a command to one host and say what is wanted there."""
    return ["-l", host, "-e", json.dumps(config), *more]


def cuda_packages(host):
    """{installed package of CUDA, cuDNN or NCCL: version}, by dpkg and the product's own test of names."""
    import provision.collection  # noqa: F401
    from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names

    rows = host.run("dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'").stdout.splitlines()
    found = [row.split() for row in rows]
    return {row[1]: row[2] for row in found if row[0] == "installed" and cuda_names.is_cuda_package(row[1])}


def moved(host, *words):
    """Packages that an apt command would install, upgrade or remove."""
    said = host.run(f"apt-get -s {' '.join(words)}").stdout
    return {match[1] for match in re.finditer(r"^(?:Inst|Remv) (\S+)", said, re.M)}


def release(text):
    """Release that an nvcc -V names; None where there is none."""
    match = re.search(r"release ([0-9.]+), V", text)
    return match[1] if match else None


# --- build: three toolkits --------------------------------------------------------------------------------------------


def test_three_toolkits_and_a_driver_in_one_transaction(fleet):
    host = fleet.lab.host("build")
    before = int(transactions(host))
    applied = fleet.json("apply", "--yes", *on("build", THREE))["hosts"]["build"]
    assert applied["status"] == "done"
    assert int(transactions(host)) == before + 1
    assert driver_packages(host)
    assert host.run("nvidia-smi -L").stdout.startswith("GPU 0")
    for minor in THREE["cuda_toolkit_versions"]:
        assert release(host.run(f"/usr/local/cuda-{minor}/bin/nvcc -V").stdout) == minor
    assert host.run("readlink -f /usr/local/cuda /usr/local/cuda-12").stdout.split() == ["/usr/local/cuda-12.4"] * 2
    installed = cuda_packages(host)
    assert installed["libnccl2"] == installed["libnccl-dev"]
    assert installed["libnccl2"].endswith("+cuda12.4")
    assert set(installed) <= holds(host)
    assert not [name for name in installed if re.match(r"cuda(-runtime)?(-\d+-\d+)?$", name)]


def test_a_program_of_every_toolkit_runs(fleet):
    host = fleet.lab.host("build")
    for minor in THREE["cuda_toolkit_versions"]:
        built = host.ssh(
            "cd $(mktemp -d) && printf '#include <cuda_runtime.h>\\n// gpu-provision-expect: it adds up\\n' > a.cu && "
            f"/usr/local/cuda-{minor}/bin/nvcc -arch=sm_90 -o a a.cu && ./a"
        )
        assert built.stdout == "it adds up\n"


def test_a_second_run_changes_nothing(fleet):
    host = fleet.lab.host("build")
    etc = host.run(ETC).stdout
    again = fleet.json("apply", "--yes", *on("build", THREE))
    assert again["run_dir"] is None
    assert again["hosts"]["build"]["status"] == "unchanged"
    assert fleet.json("plan", *on("build", THREE))["hosts"]["build"]["status"] == "converged"
    plain = fleet.ansible("site.yml", *on("build", THREE))
    assert plain.returncode == 0, plain.stdout + plain.stderr
    assert "changed=0" in plain.stdout, plain.stdout
    assert host.run(ETC).stdout == etc


# What an nvcc -V says to each; None: not found. Files of logins do not reach what is no login. Shells by themselves, and what
# they select, are tests/system/test_cuda_shells.py; here is what needs an ssh server, systemd and real logins.
SEES = [
    ("a command over ssh, which is no login", "nvcc -V", None),
    ("an interactive login over ssh", "bash -lic 'nvcc -V' 2>/dev/null", "12.4"),
    ("fish", "fish -c 'nvcc -V'", "12.4"),
    ("tcsh that has selected", "tcsh -c 'cuda-select 13.0; nvcc -V'", "13.0"),
    ("a unit of systemd", "sudo systemd-run --quiet --pipe --wait nvcc -V", None),
    ("sudo as a login", "sudo -i nvcc -V", "12.4"),
    ("a module", "bash -lc 'module load cuda/13.0 && nvcc -V'", "13.0"),
]


@pytest.mark.parametrize(("command", "expected"), [row[1:] for row in SEES], ids=[row[0] for row in SEES])
def test_what_each_kind_of_shell_sees(fleet, command, expected):
    said = fleet.lab.host("build").ssh(command, check=False)
    assert release(said.stdout) == expected, said


def test_zsh_reads_what_it_is_told_to(fleet):
    """zsh does not read /etc/profile by itself, as Debian and Ubuntu ship it."""
    host = fleet.lab.host("build")
    assert release(host.ssh("zsh -lc 'nvcc -V'", check=False).stdout) is None
    told = "zsh -c '. /etc/profile.d/gpu-provision-cuda.sh; cuda-select 13.0; nvcc -V'"
    assert release(host.ssh(told).stdout) == "13.0"


def test_select_none_restores_exactly(fleet):
    host = fleet.lab.host("build")
    # Printed by a program, so that what is not exported does not count.
    show = "env | sort | grep -aE 'CUDA|LD_LIBRARY_PATH|^PATH='; echo --"
    lines = ["export LD_LIBRARY_PATH=:/opt/one:", show, "cuda-select 11.8", show, "cuda-select none", show]
    host.ssh("cat > select.sh <<'END'\n" + "\n".join(lines) + "\nEND")
    said = host.ssh("bash -l -c '. ./select.sh'").stdout
    before, between, after, rest = said.split("--\n")
    assert rest == ""
    assert after == before
    assert "CUDA_HOME=/usr/local/cuda-11.8\n" in between
    assert "LD_LIBRARY_PATH=/usr/local/cuda-11.8/lib64" in between
    assert between.index("PATH=/usr/local/cuda-11.8/bin:") >= 0


def test_libraries_are_found_without_a_variable(fleet):
    host = fleet.lab.host("build")
    listed = host.run(
        "ldconfig -p | sed -n 's/^\\t\\(\\S*\\) .* => /\\1 /p' | while read n p; do echo $n $(readlink -f $p); done"
    )
    first: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        first.setdefault(*line.split())
    assert first["libcudart.so.12"].startswith("/usr/local/cuda-12.4/")
    assert first["libcudart.so.13"].startswith("/usr/local/cuda-13.0/")
    assert first["libcudart.so.11.0"].startswith("/usr/local/cuda-11.8/")
    assert "LD_LIBRARY_PATH" not in host.ssh("bash -lc env").stdout


# The rules of this and the next two: tests/cases/plan_cuda.yml; an upgrade that moves nothing: tests/apt/test_cuda_role.py.
@pytest.mark.thorough
def test_a_person_adds_a_toolkit_and_the_default_stays(fleet):
    """Scenario H3: the link must not follow the last installation."""
    host = fleet.lab.host("build")
    host.run("DEBIAN_FRONTEND=noninteractive apt-get -q -y install cuda-toolkit-13-2", timeout=300)
    assert host.run("readlink -f /usr/local/cuda").stdout.strip() == "/usr/local/cuda-12.4"
    assert release(host.ssh("bash -lc 'nvcc -V'").stdout) == "12.4"
    # Not listed, so it stays and nobody holds it.
    assert fleet.json("plan", *on("build", THREE))["hosts"]["build"]["status"] == "converged"
    four = {**THREE, "cuda_toolkit_versions": ["11.8", "12.4", "13.0", "13.2"]}
    fleet.run("apply", "--yes", *on("build", four))
    assert host.run("readlink -f /usr/local/cuda").stdout.strip() == "/usr/local/cuda-12.4"
    assert "cuda-nvcc-13-2" in holds(host)


@pytest.mark.thorough
def test_later_versions_move_nothing_that_is_held(fleet):
    host = fleet.lab.host("build")
    fleet.lab.publish("cuda", "security")
    host.run("apt-get -qq update")
    candidates = host.run("apt-cache policy libnccl2 cuda-toolkit-13-0 libcudnn9-cuda-12").stdout
    assert "2.32.3-1+cuda13.4" in candidates
    assert "13.0.3-1" in candidates
    assert "9.28.0.42-1" in candidates
    upgraded = moved(host, "dist-upgrade")
    assert upgraded, "the security updates must move"
    assert not upgraded & set(cuda_packages(host))
    four = {**THREE, "cuda_toolkit_versions": ["11.8", "12.4", "13.0", "13.2"]}
    assert fleet.json("plan", *on("build", four))["hosts"]["build"]["status"] == "converged"


@pytest.mark.thorough
def test_removal_is_asked_for_and_takes_one_toolkit(fleet):
    host = fleet.lab.host("build")
    fewer = {**THREE, "cuda_toolkit_versions": ["12.4", "13.0", "13.2"]}
    before = cuda_packages(host)
    # Without the word it stays, and nothing of it is removed.
    fleet.run("apply", "--yes", *on("build", fewer))
    assert cuda_packages(host) == before
    pruned = {**fewer, "cuda_toolkit_prune": True}
    planned = fleet.json("plan", *on("build", pruned), rc=2)["hosts"]["build"]
    gone = {package["name"] for package in planned["packages"] if package["action"] == "remove"}
    assert "cuda-nvcc-11-8" in gone
    fleet.run("apply", "--yes", *on("build", pruned))
    after = cuda_packages(host)
    assert not [name for name in after if "-11-8" in name]
    lost = set(before) - set(after)
    assert {name for name in lost if "-11-8" not in name} <= {"cuda-toolkit-11-config-common"} | {
        name for name in lost if name.startswith("nsight-")
    }
    assert set(after) <= holds(host)
    assert host.run("ls -d /usr/local/cuda-11.8", check=False).rc
    assert driver_packages(host)
    assert fleet.json("plan", *on("build", pruned))["hosts"]["build"]["status"] == "converged"


def test_when_none_is_wanted_our_files_go_and_nothing_else(fleet):
    host = fleet.lab.host("build")
    listing = "find /etc /usr/local -path /etc/sim -prune -o -print | sort"
    before = set(host.run(listing).stdout.splitlines())
    packages = cuda_packages(host)
    fleet.run("apply", "--yes", *on("build", {"cuda_toolkit_versions": []}))
    gone = before - set(host.run(listing).stdout.splitlines())
    assert "/etc/profile.d/gpu-provision-cuda.sh" in gone
    assert {path for path in gone if "gpu-provision" not in path and "/modules/cuda" not in path} == set()
    assert cuda_packages(host) == packages
    assert release(host.ssh("bash -lc 'nvcc -V'", check=False).stdout) is None


# --- the others -------------------------------------------------------------------------------------------------------


# tests/apt/test_cuda_repository.py and test_cuda_role.py: no driver comes or goes.
@pytest.mark.thorough
def test_a_toolkit_leaves_a_server_driver_alone(fleet):
    """Scenario F8: the package called cuda replaces the -server driver; ours must not touch it."""
    host = fleet.lab.host("server")
    driver = driver_packages(host)
    host.run("apt-get -qq update")
    trap = host.run(
        f"apt-mark unhold {' '.join(driver)} >/dev/null; apt-get -s install cuda-13-0 2>&1", check=False
    ).stdout
    host.run(["apt-mark", "hold", *driver])
    assert re.search(r"^Remv nvidia|Conflicts: nvidia-kernel-common|Depends: nvidia-", trap, re.M), trap
    config = {"cuda_toolkit_versions": ["13.0"], "cuda_toolkit_profile": "compiler"}
    fleet.run("apply", "--yes", *on("server", config))
    assert driver_packages(host) == driver
    assert set(driver) <= holds(host)
    installed = cuda_packages(host)
    assert "cuda-nvcc-13-0" in installed
    assert "cuda-toolkit-13-0" not in installed
    assert not {"cuda", "cuda-13-0", "cuda-runtime-13-0"} & set(installed)


@pytest.mark.thorough
def test_the_distributions_nvcc_is_named_and_loses(fleet):
    """Scenario H2: /usr/bin/nvcc of the distribution must not shadow what is managed."""
    host = fleet.lab.host("distro")
    assert release(host.ssh("bash -lc 'nvcc -V'").stdout) == "12.0"
    config = {"cuda_toolkit_versions": ["12.8"]}
    planned = fleet.json("plan", *on("distro", config), rc=2)["hosts"]["distro"]
    assert "nvidia-cuda-toolkit" in json.dumps(planned["warnings"])
    fleet.run("apply", "--yes", *on("distro", config))
    assert "nvidia-cuda-toolkit" in host.run("dpkg-query -W -f '${Package} '").stdout, "nobody asked to remove it"
    for shell in ("bash -lc", "sh -lc"):
        assert release(host.ssh(f"{shell} 'nvcc -V'").stdout) == "12.8"
    # no login: /usr/bin is all there is
    assert release(host.ssh("nvcc -V").stdout) == "12.0"
    checks = {check["id"]: check for check in fleet.json("verify", *on("distro", config))["hosts"]["distro"]["checks"]}
    assert "/usr/bin/nvcc" in json.dumps(checks)
    fleet.run("apply", "--yes", *on("distro", {**config, "cuda_toolkit_remove_distribution": True}))
    assert "nvidia-cuda-toolkit" not in host.run("dpkg-query -W -f '${Package} '").stdout
    assert release(host.ssh("nvcc -V", check=False).stdout) is None
    assert driver_packages(host)


# The versions: tests/unit/test_resolve_cuda_lab.py; with real apt: tests/apt/test_cuda_repository.py.
@pytest.mark.thorough
def test_cudnn_and_nccl_go_with_their_cuda(fleet):
    """Scenarios I2 and J1: an unpinned libcudnn8 is another CUDA's, an unpinned libnccl-dev wants another libnccl2."""
    host = fleet.lab.host("library")
    host.run("apt-get -qq update")
    assert "libcudnn8 (8.9.7.29-1+cuda12.2" in host.run("apt-get -s install libcudnn8").stdout
    refused = host.run("apt-get -s install libnccl-dev 2>&1", check=False)
    assert refused.rc == 100
    assert re.search(r"libnccl-dev : Depends: libnccl2 \(= \S+\+cuda1[23]", refused.stdout)
    config = {"cuda_toolkit_versions": ["11.8"], "cuda_toolkit_cudnn": "8", "cuda_toolkit_profile": "compiler"}
    fleet.run("apply", "--yes", *on("library", config))
    installed = cuda_packages(host)
    assert installed["libcudnn8"] == installed["libcudnn8-dev"]
    assert installed["libcudnn8"].endswith("+cuda11.8")
    assert installed["libnccl2"] == installed["libnccl-dev"]
    assert installed["libnccl2"].endswith("+cuda11.8")
    assert {"libcudnn8", "libcudnn8-dev", "libnccl2", "libnccl-dev"} <= holds(host)
    assert not moved(host, "dist-upgrade") & set(installed)
    assert fleet.json("plan", *on("library", config))["hosts"]["library"]["status"] == "converged"


# The rules: tests/cases/cuda.yml.
@pytest.mark.thorough
def test_cuda_of_the_archive_stays_the_archives(fleet):
    host = fleet.lab.host("both")
    config = {"cuda_toolkit_versions": ["13.1"], "cuda_toolkit_cudnn": "none", "cuda_toolkit_nccl": "none"}
    # apt took what toolkits share from whoever has it newer.
    assert cuda_packages(host)["cuda-toolkit-config-common"] == "13.3.29-1"
    fleet.run("apply", "--yes", *on("both", config))
    parts = cuda_packages(host)
    assert {version.rpartition("-")[2] for version in parts.values()} == {"0ubuntu1"}
    assert set(parts) <= holds(host)
    host.run(f"apt-mark unhold {' '.join(parts)}")
    assert not moved(host, "dist-upgrade") & set(parts), "NVIDIA's, which are newer, are pinned away"
    host.run(f"apt-mark hold {' '.join(parts)}")
    assert fleet.json("plan", *on("both", config))["hosts"]["both"]["status"] == "converged"
    checks = fleet.json("verify", *on("both", config))["hosts"]["both"]["checks"]
    assert {c["id"]: c["status"] for c in checks}["cuda.origin"] == "pass"
    refused = fleet.json("plan", *on("both", {**config, "cuda_toolkit_versions": ["13.3"]}), rc=5)["hosts"]["both"]
    assert [issue["code"] for issue in refused["blockers"]] == ["cuda.two_origins"]
    fleet.run("apply", "--yes", *on("both", {**config, "cuda_toolkit_versions": ["13.3"], "cuda_toolkit_prune": True}))
    assert {version.rpartition("-")[2] for version in cuda_packages(host).values()} == {"1"}
