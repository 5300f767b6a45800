"""The lab must behave as the field does, or what passes on it says nothing."""

from __future__ import annotations

import json

import pytest

from tests.lab import Lab, LabError

pytestmark = pytest.mark.lab
APT = "DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -q -y"
SIGNED_580 = (
    "linux-modules-nvidia-580-server-open-generic nvidia-headless-no-dkms-580-server-open nvidia-utils-580-server"
)


def candidate(host, package):
    words = host.run(f"apt-cache policy {package}").stdout.split()
    return words[words.index("Candidate:") + 1]


def test_new_libraries_on_an_old_module_end_in_the_known_error(own_lab):
    (host,) = own_lab.add([{"name": "mismatch", "gpus": ["A100"], "installed": ["580-server open signed"]}])
    assert host.run("nvidia-smi -L").stdout.startswith("GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-")
    own_lab.publish("drivers")
    host.run(f"apt-get -q update && {APT} dist-upgrade")
    failed = host.ssh("nvidia-smi", check=False)
    assert failed.rc == 18
    assert (
        failed.stdout == "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n"
    )
    assert "API mismatch" in host.run("dmesg").stdout
    host.restart()
    assert "580.173.02" in host.run("nvidia-smi").stdout


def test_publishing_moves_candidates_and_unattended_upgrades_takes_them(own_lab):
    (host,) = own_lab.add(
        [{"name": "later", "gpus": ["A100"], "installed": ["580-server open signed"], "sources": ["archive", "cuda"]}]
    )
    before = {name: candidate(host, name) for name in ("linux-generic", "jq", "nvidia-driver-595")}
    own_lab.publish()
    host.run("apt-get -q update")
    for name, old in before.items():
        assert candidate(host, name) != old
    host.run("unattended-upgrade", timeout=300)
    moved = host.run("grep -E ' (upgrade|install) ' /var/log/dpkg.log").stdout
    assert "linux-image-6.8.0-48-generic" in moved
    assert "jq:amd64" in moved


def test_nouveau_comes_back_when_the_initramfs_was_not_rebuilt(new_host):
    host = new_host(gpus=["RTX 3090"])
    host.run("printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' > /etc/modprobe.d/blacklist-nouveau.conf")
    host.restart()
    assert "nouveau" in host.describe()["modules"]
    host.run("update-initramfs -u -k all")
    host.restart()
    assert "nouveau" not in host.describe()["modules"]


def test_470_is_only_a_way_to_another_branch(new_host):
    host = new_host(gpus=["K80"])
    host.run(f"apt-get -q update && {APT} install --no-install-recommends nvidia-driver-470")
    host.restart()
    assert "535.288.01" in host.run("dpkg-query -W -f '${Version}' nvidia-kernel-common-535").stdout
    assert host.run("nvidia-smi", check=False).rc == 9
    assert "supported through the NVIDIA 470.xx Legacy drivers" in host.run("dmesg").stdout


def test_470_server_drives_a_k80(new_host):
    host = new_host(gpus=["K80 x2"], installed=["470-server proprietary signed"])
    assert host.run("nvidia-smi -L").stdout.count("Tesla K80") == 2


@pytest.mark.parametrize(("secure_boot", "rc"), [(False, 0), (True, 9), ("enrolled", 0)])
def test_secure_boot_wants_a_known_signature(new_host, secure_boot, rc):
    host = new_host(gpus=["V100"], installed=["580-server proprietary dkms"], secure_boot=secure_boot)
    assert host.run("nvidia-smi", check=False).rc == rc
    refused = host.run("modprobe nvidia", check=False)
    if rc:
        assert refused.stderr == "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n"
    state = host.run("mokutil --sb-state").stdout
    assert state == f"SecureBoot {'enabled' if secure_boot else 'disabled'}\n"


@pytest.mark.parametrize(
    ("gpus", "installed", "rc", "log"),
    [
        (["P100"], "580-server open signed", 6, "does not include the required GPU"),
        (["RTX 5090"], "580 proprietary signed", 6, "RmInitAdapter failed!"),
        (["V100"], "595 proprietary signed", 9, "supported through the NVIDIA 580.xx Legacy drivers"),
        (["RTX 5090"], "550 open signed", 9, "not supported by the"),
        (["V100", "RTX 4090"], "580 proprietary signed", 0, "loading NVIDIA UNIX x86_64 Kernel Module  580.142"),
    ],
)
def test_a_branch_and_a_flavour_drive_what_they_can(new_host, gpus, installed, rc, log):
    host = new_host(gpus=gpus, installed=[installed])
    assert host.run("nvidia-smi", check=False).rc == rc
    assert log in host.run("dmesg").stdout


def test_dkms_fails_where_the_source_is_too_old_for_the_kernel(new_host):
    host = new_host(gpus=["V100"], kernel="6.17.0-14-generic")
    host.run("apt-get -q update")
    done = host.run(f"{APT} install nvidia-headless-550 nvidia-utils-550", check=False)
    assert done.rc == 100
    assert (
        "Error! Bad return status for module build on kernel: 6.17.0-14-generic (x86_64)" in done.stdout + done.stderr
    )
    assert "returned error exit status 10" in done.stdout + done.stderr
    assert host.run("dkms status").stdout == "nvidia/550.163.01: added\n"
    assert "half-configured" in host.run("dpkg-query -W -f '${db:Status-Status}' nvidia-dkms-550").stdout


def test_a_kernel_without_headers_has_no_module(new_host):
    host = new_host(gpus=["V100"], installed=["580 proprietary dkms"], kernels=["6.8.0-44-generic"])
    assert host.run("nvidia-smi -L", check=False).rc == 0
    host.run(f"{APT} install --no-install-recommends linux-image-6.8.0-45-generic")
    host.restart()
    assert host.describe()["release"] == "6.8.0-45-generic"
    assert host.run("nvidia-smi", check=False).rc == 9
    text = host.run("modprobe nvidia", check=False).stderr
    assert text == "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0-45-generic\n"
    host.run("grub-reboot 'Advanced options for Ubuntu>Ubuntu, with Linux 6.8.0-44-generic'")
    host.restart()
    assert host.describe()["release"] == "6.8.0-44-generic"
    host.restart()
    assert host.describe()["release"] == "6.8.0-45-generic"


def test_fabric_manager_wants_its_own_version_and_nvswitches(new_host):
    host = new_host(gpus=["H100 x8"], nvswitch=4, installed=["580-server open signed fm"])
    assert "State                                          : In Progress" in host.run("nvidia-smi -q").stdout
    host.run("systemctl start nvidia-fabricmanager")
    assert "State                                          : Completed" in host.run("nvidia-smi -q").stdout
    host.run("systemctl stop nvidia-fabricmanager && sed -i 's/580.126.20/580.95.05/' /usr/bin/nv-fabricmanager")
    failed = host.run("systemctl start nvidia-fabricmanager; journalctl -u nvidia-fabricmanager -o cat", check=False)
    assert (
        "fabric manager NVIDIA GPU driver interface version 580.95.05 don't match with driver version 580.126.20. "
        "Please update with matching NVIDIA driver package." in failed.stdout
    )


def test_an_nvlink_5_switch_shows_as_infiniband(new_host):
    host = new_host(gpus=["B200 x8"], nvlink5=True, installed=["580-server open signed"])
    assert "SW_MNG" in host.ssh("cat /sys/class/infiniband/*/device/vpd").stdout
    assert "lo" in host.ssh("ls /sys/class/net").stdout.split()
    assert host.ssh("cat /sys/class/net/lo/address").stdout == "00:00:00:00:00:00\n"
    assert host.ssh("nvidia-smi -L").stdout.count("B200") == 8


def test_a_busy_host_shows_its_job_and_keeps_the_module(new_host):
    host = new_host(gpus=["A100 x2"], installed=["580-server open signed"], busy=True)
    apps = host.ssh("nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader").stdout.splitlines()
    assert len(apps) == 2
    host.run("systemctl stop nvidia-persistenced")
    host.run("rmmod nvidia_uvm", check=False)
    refused = host.run("rmmod nvidia_drm nvidia_modeset nvidia", check=False)
    assert refused.rc == 1
    assert "is in use" in refused.stderr


def test_a_postinst_can_be_made_to_fail(new_host):
    host = new_host(gpus=["A100"])
    host.fail_postinst("libnvidia-compute-580-server")
    host.run("apt-get -q update")
    assert host.run(f"{APT} install {SIGNED_580}", check=False).rc == 100
    host.fail_postinst()
    host.run("dpkg --configure -a")
    host.restart()
    assert host.run("nvidia-smi -L").rc == 0


def test_a_runfile_driver_works_and_belongs_to_nobody(new_host):
    host = new_host(gpus=["H100"], runfile="570.86.10")
    assert "570.86.10" in host.run("nvidia-smi").stdout
    owner = host.run("dpkg -S /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.10", check=False)
    assert "no path found matching pattern" in owner.stderr


def test_nvidias_repository_stays_on_a_branch_only_when_pinned(new_host):
    host = new_host(gpus=["H100"], sources=["archive", "cuda"])
    host.run("apt-get -q update")
    assert candidate(host, "nvidia-open").startswith("620.")
    host.run(f"{APT} install nvidia-driver-pinning-595")
    assert candidate(host, "nvidia-open").startswith("595.71.05-")
    host.run(f"{APT} install nvidia-open", timeout=300)
    host.restart()
    assert "595.71.05" in host.run("nvidia-smi").stdout
    assert host.run("nvidia-smi --query-gpu=persistence_mode --format=csv,noheader").stdout == "Enabled\n"


def test_sudo_can_ask_for_a_password(new_host):
    host = new_host(gpus=[], sudo="password")
    assert host.ssh("sudo -n true", check=False).rc == 1
    assert host.ssh("echo 'correct horse' | sudo -S -p '' id -u").stdout == "0\n"
    assert host.ssh("echo wrong | sudo -S -p '' id -u", check=False).rc == 1


def test_hosts_of_three_releases_start_side_by_side(lab):
    names = {"24.04": "noble", "22.04": "jammy", "26.04": "resolute"}
    hosts = lab.add([{"name": name, "gpus": ["T4"], "ubuntu": version} for version, name in names.items()])
    try:
        for host in hosts:
            release = host.ssh(". /etc/os-release; echo $ID $VERSION_ID $VERSION_CODENAME").stdout.split()
            assert release == ["ubuntu", host.spec.ubuntu, host.name]
            assert host.ssh("uname -r").stdout.strip() == host.spec.release.default_kernel
            host.ssh("sudo apt-get -q update")
            assert candidate(host, "nvidia-driver-580-server").startswith("580.126.20-")
        identities = {host.ssh("cat /etc/machine-id").stdout for host in hosts}
        assert len(identities) == 3
        inventory = lab.inventory.read_text()
        assert all(host.address in inventory for host in hosts)
    finally:
        lab.remove(*names.values())


def test_reset_forgets_what_was_done(new_host):
    host = new_host(gpus=["T4"])
    host.run("touch /root/trace")
    host.reset()
    assert host.run("ls /root/trace", check=False).rc == 2


def test_xml_has_the_shape_of_the_real_one(new_host):
    from xml.etree import ElementTree

    host = new_host(gpus=["H100 x2"], nvswitch=4, installed=["580-server open signed"])
    log = ElementTree.fromstring(host.run("nvidia-smi -q -x").stdout)  # noqa: S314 - our own stand-in wrote it
    assert log.findtext("driver_version") == "580.126.20"
    assert log.findtext("cuda_version") == "13.0"
    assert [gpu.findtext("product_name") for gpu in log.iter("gpu")] == ["NVIDIA H100 80GB HBM3"] * 2
    assert log.findtext("gpu/fabric/state") == "In Progress"


def test_mistakes_in_a_description_are_named():
    with pytest.raises(ValueError, match="no GPU 'H1000'"), Lab.start([{"name": "a", "gpus": ["H1000"]}]):
        pass
    with pytest.raises(LabError, match="no lab named"):
        Lab.attach("nowhere")
    with pytest.raises(KeyError, match=r"has no kernel 9\.9"), Lab.start([{"name": "a", "kernel": "9.9.0-1-generic"}]):
        pass


def test_json_of_a_boot(new_host):
    host = new_host(gpus=["T4"], nouveau=False)
    assert json.loads(json.dumps(host.describe()))["modules"] == {}


def test_toolkits_links_and_compilers_of_other_people(new_host):
    host = new_host(
        ubuntu="22.04",
        gpus=["A100"],
        installed=["535-server open signed held"],
        toolkits=["11.8 compiler held", "13.0"],
        cuda_link="directory",
        gcc="12",
    )
    assert host.run("cat /usr/local/cuda/notes.txt").stdout == "mine\n"
    assert host.run("gcc -dumpversion").stdout == "12\n"
    held = host.run("apt-mark showhold").stdout.split()
    assert "cuda-nvcc-11-8" in held and "nvidia-utils-535-server" in held
    host.run("printf '// gpu-provision-expect: fine\\n' > /root/a.cu")
    built = host.run("cd /root && /usr/local/cuda-11.8/bin/nvcc a.cu", check=False)
    assert built.rc == 1
    assert "unsupported GNU version! gcc versions later than 11 are not supported!" in built.stderr
    host.run("cd /root && /usr/local/cuda-11.8/bin/nvcc -allow-unsupported-compiler -arch=sm_80 a.cu")
    assert host.run("/root/a.out").stdout == "fine\n"
    # 535 runs no program of CUDA 13: the driver is of an older major.
    host.run("cd /root && /usr/local/cuda-13.0/bin/nvcc -arch=sm_80 -o b a.cu")
    failed = host.run("/root/b", check=False)
    assert (failed.rc, failed.stderr) == (1, "CUDA driver version is insufficient for CUDA runtime version\n")


def test_real_shells_and_module_systems(new_host):
    host = new_host(gpus=[], shells=["fish", "tcsh", "zsh"], modules="lmod")
    for shell in ("fish", "tcsh", "zsh"):
        assert host.ssh(f"{shell} -c 'echo hello'").stdout == "hello\n"
    assert "Modules based on Lua" in host.ssh("bash -lc 'module --version' 2>&1").stdout


def test_publishing_cuda_brings_newer_ones_of_everything(own_lab):
    (host,) = own_lab.add([{"name": "later", "gpus": ["A100"], "sources": ["archive", "cuda"]}])
    names = ("cuda", "cuda-toolkit-13-0", "libcudnn9-cuda-12", "libnccl2")
    before = {name: candidate(host, name) for name in names}
    driver = candidate(host, "nvidia-open")
    own_lab.publish("cuda")
    host.run("apt-get -q update")
    after = {name: candidate(host, name) for name in names}
    assert after == {
        "cuda": "13.5.0-1",
        "cuda-toolkit-13-0": "13.0.3-1",
        "libcudnn9-cuda-12": "9.28.0.42-1",
        "libnccl2": "2.32.3-1+cuda13.4",
    }
    assert not set(before.items()) & set(after.items())
    assert candidate(host, "nvidia-open") == driver
