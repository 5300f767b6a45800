"""The last resort, the way back and the way without ssh: simulated hosts, with the real apt and dpkg."""

import signal
import time

import pytest
import yaml

from tests import sample
from tests.faults.conftest import Command, driver_packages, holds
from tests.lab import Lab

pytestmark = pytest.mark.lab

# What is only called after NVIDIA: kernels of DGX systems, the container toolkit. Small packages of the real names.
FOREIGN = [
    "linux-image-6.8.0-1010-nvidia",
    "linux-modules-extra-6.8.0-1010-nvidia",
    "nvidia-container-toolkit",
    "libnvidia-container1",
]
PACK = (
    "for n in {names}; do mkdir -p /tmp/p/DEBIAN; printf 'Package: %s\\nVersion: 1.0-1\\nArchitecture: amd64\\n"
    "Maintainer: x <x@example.org>\\nDescription: x\\n' $n >/tmp/p/DEBIAN/control; dpkg-deb -b /tmp/p /tmp/p.deb >/dev/null; "
    "dpkg -i /tmp/p.deb; rm -r /tmp/p /tmp/p.deb; done"
).format(names=" ".join(FOREIGN))
HOSTS = [
    {
        "name": "g8",
        "gpus": ["A100"],
        "nouveau": False,
        "installed": ["580-server open signed held"],
        "toolkits": ["12.8 runtime held"],
        "run": [PACK, "apt-mark hold nvidia-container-toolkit >/dev/null"],
    },
    # A3: a .run file, and packages' libraries over it
    {
        "name": "mixed",
        "gpus": ["RTX 4090"],
        "nouveau": False,
        "runfile": "570.124.06",
        "run": ["apt-get install -y -q --no-install-recommends libnvidia-compute-580"],
    },
    # B2, B4 and G2 at once: a new kernel without headers, a cut-off package, a hold on nothing; and no network
    {
        "name": "console",
        "gpus": ["A100 x2"],
        "nouveau": False,
        "kernels": ["6.8.0-44-generic"],
        "installed": ["580-server open dkms held"],
    },
]


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    with Lab.start(HOSTS if sample.THOROUGH else HOSTS[:1]) as lab:
        yield Command(lab, tmp_path_factory.mktemp("state"))


def configure(command, name, **values):
    folder = command.lab.inventory.parent / "host_vars"
    folder.mkdir(exist_ok=True)
    text = yaml.safe_dump({f"nvidia_driver_{key}": value for key, value in values.items()})
    (folder / f"{name}.yml").write_text(text)


def versions(host, names):
    """What dpkg says of packages, as text."""
    return host.run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Abbrev} ${Version}\n", *names]).stdout


def toolkit(host):
    listed = host.run("dpkg-query -W -f '${Package}\\n' 'cuda-*' 'libcu*' 'libnpp*'").stdout.split()
    return sorted(name for name in listed if not name.startswith("cuda-drivers"))


def test_purge_takes_the_driver_alone_and_undo_brings_it_back(command):
    host = command.lab.host("g8")
    before, held, stays = driver_packages(host), holds(host), versions(host, [*FOREIGN, *toolkit(host)])
    configure(command, "g8", branch="595-server")
    document = command.json("rescue", "g8", "--purge", "--yes")
    assert document["hosts"]["g8"]["status"] == "rescued", document["hosts"]["g8"]
    after = driver_packages(host)
    assert {version.split(".")[0] for name, version in after.items() if name.startswith("nvidia-utils")} == {"595"}
    assert versions(host, [*FOREIGN, *toolkit(host)]) == stays
    assert set(after) <= holds(host) and "nvidia-container-toolkit" in holds(host)
    undone = command.json("rescue", "g8", "--undo", "--yes")
    assert undone["hosts"]["g8"]["status"] == "undone", undone["hosts"]["g8"]
    assert driver_packages(host) == before
    assert holds(host) == held
    assert versions(host, [*FOREIGN, *toolkit(host)]) == stays


# With real apt: tests/apt/test_rescue_purge.py, a .run file and a purge that is killed.
@pytest.mark.thorough
def test_two_installers_become_one(command):
    host = command.lab.host("mixed")
    # The controller dies in the middle of the purge: the next run finishes it.
    first = command.start("rescue", "mixed", "--purge", "--yes")
    deadline = time.monotonic() + 120
    while not host.run("ls /var/lib/gpu-provision/purge.json", check=False).stdout:
        assert time.monotonic() < deadline and first.poll() is None, "the purge did not begin"
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    document = command.json("rescue", "mixed", "--purge", "--yes")
    assert document["hosts"]["mixed"]["status"] == "rescued", document["hosts"]["mixed"]
    assert host.run("ls /usr/bin/nvidia-uninstall /usr/bin/nvidia-installer /var/lib/nvidia", check=False).stdout == ""
    assert "570.124.06" not in host.run("ls /usr/lib/x86_64-linux-gnu").stdout
    assert host.run("dpkg-query -S /usr/bin/nvidia-smi").stdout.startswith("nvidia-utils-")


# With real apt: tests/apt/test_rescue_offline.py.
@pytest.mark.thorough
def test_from_the_console_without_network(command):
    host = command.lab.host("console")
    before = driver_packages(host)
    host.run("apt-get update -qq; apt-get install -y -q --no-install-recommends linux-image-6.8.0-45-generic")
    host.run("apt-mark hold libnvidia-gl-580-server >/dev/null")
    host.fail_postinst("nvidia-utils-580-server")
    host.run("apt-get install -y -q --reinstall --allow-change-held-packages nvidia-utils-580-server", check=False)
    host.fail_postinst()
    host.run(
        "mkdir -p /media/usb; cd /media/usb; apt-get download -q linux-headers-6.8.0-45 linux-headers-6.8.0-45-generic"
    )
    host.run("sed 's/^[0-9.]*\\( .*sim.internal\\)/127.0.0.9\\1/' /etc/hosts >/tmp/hosts; cat /tmp/hosts >/etc/hosts")
    held = holds(host)
    script = command.lab.folder / "console.py"
    command.run("rescue", "console", "--offline-script", "-o", str(script))
    # Not by ssh: as a stick would bring it, in pieces that fit into one command.
    text = script.read_text()
    for at in range(0, len(text), 65536):
        host.run(
            ["python3", "-c", "import sys; open('/root/rescue.py', 'a').write(sys.argv[1])", text[at : at + 65536]]
        )
    said = host.run("python3 /root/rescue.py -y --debs /media/usb", check=False, timeout=300)
    assert said.rc == 0, said.stdout + said.stderr
    for code in ("dpkg.unfinished", "holds.not_installed", "kernel.no_module_for_next_boot"):
        assert code in said.stdout, said.stdout
    assert driver_packages(host) == before
    # The hold that the cut-off reinstallation lost is back, the one on nothing is gone.
    assert holds(host) == (held | set(before)) - {"libnvidia-gl-580-server"}
    host.restart()
    command.run("verify", "-l", "console")
    # What rescue does not do either is left: files that only apply writes. No package has to change.
    plan = command.json("plan", "-l", "console", rc=2)["hosts"]["console"]
    assert plan["packages"] == [], plan
