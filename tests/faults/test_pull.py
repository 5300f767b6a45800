"""A host that keeps itself: the role installs a timer, its service converges the host from a git repository, and reports."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from tests.faults.conftest import ROOT, driver_packages
from tests.lab.engine import engine
from tests.package import environment
from tests.sample import THOROUGH

pytestmark = pytest.mark.lab

METRICS = "/var/lib/node_exporter"
BARE = "/srv/fleet.git"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Wheels of the program and of all that it needs."""
    out = tmp_path_factory.mktemp("pull")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out)]
    subprocess.run([*pip, str(ROOT)], check=True, capture_output=True)
    (wheel,) = out.glob("gpu_provision-*.whl")
    return environment.wheels(out / "wheels", wheel, "gpu-provision")


def ready(host, wheels):
    """Give the host git, and Python what makes environments: the lab's archive has neither."""
    copy = engine()
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    theirs = host.run("python3 -c 'import sys; print(*sys.version_info[:2], sep=\".\")'").stdout.strip()
    if theirs != mine:
        pytest.skip(f"wheels of Python {mine} are of no use to the host's {theirs}")
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    copy("cp", str(library / "ensurepip"), f"{host.container}:/usr/lib/python{mine}/")
    copy("cp", str(wheels), f"{host.container}:/srv/wheels")
    for path in (shutil.which("git"), "/usr/lib/git-core"):
        copy("cp", path, f"{host.container}:{Path(path).parent}/")
    if host.run("git --version", check=False).rc:
        pytest.skip("this machine's git does not run on the lab's base")


def publish(lab, host, folder, **values):
    """Put the fleet's inventory into a bare repository on the host, as a git server would have it."""
    work = folder / "fleet"
    if not work.exists():
        subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(work)], check=True)
    inventory = {"all": {"hosts": {"self": values}}}
    (work / "hosts.yml").write_text(yaml.safe_dump(inventory))
    me = ["git", "-C", str(work), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run([*me, "add", "."], check=True)
    subprocess.run([*me, "commit", "--quiet", "-m", "change"], check=True)
    bare = folder / "fleet.git"
    shutil.rmtree(bare, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", "--bare", str(work), str(bare)], check=True)
    host.run(f"rm -rf {BARE}")
    engine()("cp", str(bare), f"{host.container}:{BARE}")
    host.run(f"chown -R root:root {BARE}")


def numbers(host):
    text = host.run(f"cat {METRICS}/gpu_provision_pull.prom").stdout
    rows = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name.split("{")[0].removeprefix("gpu_provision_pull_"): float(value) for name, value in rows}


def test_the_service_converges_a_host_reports_and_goes_without_a_trace(fleet, tmp_path, wheels):
    command = fleet({"name": "gpu01", "gpus": ["RTX 4090"], "nouveau": False})
    host = command.lab.host("gpu01")
    ready(host, wheels)
    publish(command.lab, host, tmp_path, gpu_verify_run=False, nvidia_driver_branch="580")
    play = tmp_path / "pull.yml"
    role = {
        "gpu_pull_source": BARE,
        "gpu_pull_version": "main",
        "gpu_pull_inventory": "hosts.yml",
        "gpu_pull_host": "self",
        "gpu_pull_metrics_dir": METRICS,
        "gpu_pull_find_links": "/srv/wheels",
    }

    def played(**more):
        tasks = {
            "hosts": "all",
            "gather_facts": False,
            "become": True,
            "roles": [{"role": "gpu.provision.gpu_pull", **role, **more}],
        }
        play.write_text(yaml.safe_dump([tasks]))
        done = command.ansible(play)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "changed=0" not in played()
    assert "changed=0" in played(), "a second run changes nothing"
    assert "gpu-pull.timer" in host.run("systemctl list-timers --all --no-pager").stdout
    assert not driver_packages(host)

    host.run("systemctl start gpu-pull.service", timeout=400)
    assert any("580" in version for version in driver_packages(host).values())
    found = numbers(host)
    assert (found["last_result"], found["drifted"], found["reboot_needed"]) == (0, 0, 0)
    assert "gpu_provision_drift_host_drifted" in host.run(f"cat {METRICS}/gpu_provision_drift.prom").stdout
    journal = host.run("journalctl -u gpu-pull.service --no-pager -o cat").stdout
    assert "self: done" in journal, journal

    before = driver_packages(host)
    if THOROUGH:
        refuses(command.lab, host, tmp_path, found)
        assert driver_packages(host) == before

    played(gpu_pull_state="absent")
    left = host.run(
        "ls /etc/systemd/system/gpu-pull* /opt/gpu-pull /var/lib/gpu-pull /etc/gpu-provision/pull.json", check=False
    )
    assert not left.stdout, left.stdout
    assert "gpu-pull" not in host.run("systemctl list-units --all --no-pager 'gpu-pull*' --no-legend").stdout
    assert not THOROUGH or "changed=0" in played(gpu_pull_state="absent")
    assert driver_packages(host) == before


# tests/system/test_pull.py: a failure is reported.
def refuses(lab, host, folder, found):
    """What cannot be is refused and reported."""
    publish(lab, host, folder, gpu_verify_run=False, nvidia_driver_branch="470")
    assert host.run("systemctl start gpu-pull.service", check=False, timeout=400).rc
    assert (
        numbers(host)["last_result"] == 5
        and numbers(host)["last_success_timestamp_seconds"] == found["last_run_timestamp_seconds"]
    )
    assert "hint:" in host.run("journalctl -u gpu-pull.service --no-pager -o cat").stdout
    assert host.run("systemctl is-failed gpu-pull.service", check=False).stdout.strip() == "failed"
