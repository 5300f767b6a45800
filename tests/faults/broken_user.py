"""Simulated hosts on which the driver is well, and CUDA, containers, conda or a proxy are broken by what breaks them in the field.

``BROKEN`` has one for each report, as broken.py. What no program may do by itself (a line in somebody's .bashrc, a file that
somebody wrote, terms of use) a person does by the words of the finding: ``person``.
"""

import shlex

from tests.faults.kinds import Broken
from tests.lab import repos
from tests.lab.conda import publish
from tests.lab.containers import debian

QUIET = "DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Dpkg::Use-Pty=0"
DRIVER = {"gpus": ["A100"], "nouveau": False, "installed": ["580-server open signed held"]}
TOOLKIT = {**DRIVER, "toolkits": ["12.8"]}
CONDA = "/opt/miniconda3"
# Terms, then the way that the finding names: channels without any.
FORGE = f"printf 'channels:\\n  - conda-forge\\n' > {CONDA}/.condarc"
DAEMON = debian.DAEMON_JSON.replace('["rack=7"]', '["rack=7"],\n  "data-root": "/data/docker"')


def write(host, path, text):
    host.run(f"printf %s {shlex.quote(text)} > {path}")


# --- C3: the question that nobody sees


def _hung(host):
    """-y does not answer debconf: apt-get waits for a password, and is killed when the patience of its caller is over."""
    host.run(
        "apt-get update -qq; sleep 60 | timeout -s KILL 20 apt-get install -y -q "
        "nvidia-headless-580-server-open nvidia-utils-580-server",
        check=False,
    )
    assert host.run("dpkg --audit").stdout, "it was to hang in the postinst of nvidia-dkms"


# --- H, I: libraries and compilers


def _wheel(host):
    """An environment with NVIDIA's wheels, as pip leaves it; the file is what matters, not what is in it."""
    site = "/opt/venvs/x/lib/python3.11/site-packages"
    host.run(
        f"mkdir -p {site}/nvidia/nvjitlink/lib {site}/nvidia_nvjitlink_cu12-12.9.86.dist-info {site}/nvidia/cudnn/lib "
        f"{site}/nvidia_cudnn_cu12-9.1.0.70.dist-info && touch {site}/nvidia_nvjitlink_cu12-12.9.86.dist-info/METADATA "
        f"{site}/nvidia_cudnn_cu12-9.1.0.70.dist-info/METADATA {site}/nvidia/nvjitlink/lib/libnvJitLink.so.12 "
        f"{site}/nvidia/cudnn/lib/libcudnn.so.9; echo home = /usr/bin > /opt/venvs/x/pyvenv.cfg"
    )


def _exported(host):
    _wheel(host)
    write(
        host,
        "/etc/profile.d/cuda.sh",
        "export PATH=/usr/local/cuda/bin:$PATH\nexport LD_LIBRARY_PATH=/usr/local/cuda-12.8/lib64:\n",
    )


def _not_exported(host):
    host.run("sed -i /LD_LIBRARY_PATH/d /etc/profile.d/cuda.sh")


def _tarball(host):
    """cuDNN from a tarball, copied into the toolkit as NVIDIA's guide for tarballs says, and exported by the site."""
    _wheel(host)
    host.run(
        "cd /usr/local/cuda-12.8/targets/x86_64-linux/lib && touch libcudnn.so.9.0.0 && ln -s libcudnn.so.9.0.0 libcudnn.so.9"
    )
    write(host, "/etc/profile.d/site.sh", "export LD_LIBRARY_PATH=/usr/local/cuda-12.8/lib64:$LD_LIBRARY_PATH::\n")


def _no_tarball(host):
    host.run("rm /etc/profile.d/site.sh")


def _appended(host):
    """The line of the guides, run at each deploy: double quotes write the PATH of that moment."""
    line = 'echo "export PATH=$PATH:/usr/local/cuda/bin" >> /home/lab/.bashrc'
    host.run(f"for i in 1 2 3 4; do {line}; done; chown lab: /home/lab/.bashrc")


def _not_appended(host):
    host.run("sed -i '/export PATH=.*cuda/d' /home/lab/.bashrc")


# --- G3, H3, I2, J1: toolkits and libraries


def _second_toolkit(host):
    """H3: a second toolkit, installed by hand; /usr/local/cuda follows it."""
    host.run(f"apt-get update -qq; {QUIET} install cuda-nvcc-13-0 cuda-toolkit-13-config-common", timeout=300)
    host.run("update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-13.0 130", check=False)
    assert host.run("readlink -f /usr/local/cuda").stdout.strip() == "/usr/local/cuda-13.0"


def _first_toolkit(host):
    assert host.run("readlink -f /usr/local/cuda").stdout.strip() == "/usr/local/cuda-12.8"
    assert host.run("test -x /usr/local/cuda-13.0/bin/nvcc; echo $?").stdout == "0\n"


def _other_cuda(host):
    """I2: an update by hand takes the cuDNN of CUDA 12 for a toolkit of 11.8; it is held, and from then on all is refused (G3)."""
    host.run(f"apt-get update -qq; {QUIET} install libcudnn8 libcudnn8-dev; apt-mark hold libcudnn8 libcudnn8-dev")
    assert "+cuda12" in host.run("dpkg-query -W -f '${Version}' libcudnn8").stdout
    older = host.run("apt-cache madison libcudnn8 | grep +cuda11.8 | head -1 | cut -d'|' -f2").stdout.strip()
    said = host.run(f"{QUIET} --allow-downgrades install libcudnn8={older} libcudnn8-dev={older} 2>&1", check=False)
    assert "Held packages were changed and -y was used without --allow-change-held-packages" in said.stdout, said.stdout


def _cudnn_of_11(host):
    rows = host.run("dpkg-query -W -f '${db:Status-Want} ${Version}\\n' libcudnn8 libcudnn8-dev").stdout.split("\n")[:2]
    assert rows[0] == rows[1] and rows[0].startswith("hold ") and rows[0].endswith("+cuda11.8"), rows


def _other_nccl(host):
    """J1: apt refuses the -dev package for another CUDA beside the held library, and somebody forces it."""
    host.run("apt-get update -qq; apt-mark hold libnccl2")
    said = host.run(f"{QUIET} install libnccl-dev 2>&1", check=False)
    assert "libnccl-dev : Depends: libnccl2 (= " in said.stdout, said.stdout
    host.run("cd /tmp; apt-get download -q libnccl-dev; dpkg -i --force-depends libnccl-dev_*.deb")


def _nccl_of_11(host):
    rows = host.run("dpkg-query -W -f '${db:Status-Want} ${Version}\\n' libnccl2 libnccl-dev").stdout.split("\n")[:2]
    assert rows[0] == rows[1] and rows[0].startswith("hold ") and rows[0].endswith("+cuda11.8"), rows


# --- L: docker


def _docker(host):
    debian.install_docker(host)
    debian.add_image(host)


def _replaced(host):
    """An installer's template comes over a file with the site's own keys; dockerd finds another data-root, and no image."""
    debian.install_docker(host, DAEMON)
    host.run("cp /etc/docker/daemon.json /etc/docker/daemon.json.bak")
    write(
        host, "/etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}}\n'
    )


def _put_back(host):
    host.run("cp /etc/docker/daemon.json.bak /etc/docker/daemon.json && systemctl restart docker")


def _comma(host):
    """A hand adds a key without the comma; docker runs on until somebody restarts it, and then not any more."""
    debian.install_docker(host)
    host.run("cp -a /etc/docker/daemon.json /etc/docker/daemon.json.bak")
    write(host, "/etc/docker/daemon.json", debian.DAEMON_JSON.replace('["rack=7"]\n', '["rack=7"]\n  "debug": true\n'))
    host.run("systemctl restart docker", check=False)


def _toolkit_by_hand(host):
    """NVIDIA's guide: repository, packages, nvidia-ctk, restart; no links in /dev/char, and a container at work.

    systemd's cgroup driver, as docker has it by itself on cgroup v2; the lab's machine may have v1.
    """
    debian.install_docker(
        host, debian.DAEMON_JSON.replace('["rack=7"]', '["rack=7"],\n  "exec-opts": ["native.cgroupdriver=systemd"]')
    )
    debian.add_image(host)
    write(host, "/etc/apt/sources.list.d/nvidia-container-toolkit.list", f"deb [trusted=yes] {repos.toolkit_url()} /\n")
    host.run(f"apt-get update -qq; {QUIET} install nvidia-container-toolkit", timeout=240)
    host.run("nvidia-ctk runtime configure --runtime=docker && systemctl restart docker")
    host.run("docker run -d --name train --gpus all --network none tiny:1 /bin/sleep 6000")


def _links(host):
    host.run("nvidia-ctk system create-dev-char-symlinks --create-all")


# --- M: conda


def _miniconda(host):
    values = publish.variables()
    host.run(
        f"mkdir -p /var/tmp/c && cd /var/tmp/c && python3 - {shlex.quote(values['miniconda_installer_url'])} <<'X'\n"
        "import re, sys, urllib.request\n"
        "page = urllib.request.urlopen(sys.argv[1]).read().decode()\n"
        "name = [n for n in re.findall('href=\"([^\"]+[.]sh)\"', page) if n.startswith('Miniconda3') and '26.5' in n][0]\n"
        "open('i.sh', 'wb').write(urllib.request.urlopen(sys.argv[1] + name).read())\nX\n"
        f"bash /var/tmp/c/i.sh -b -p {CONDA}"
    )


def _terms(host):
    _miniconda(host)
    said = host.run(f"{CONDA}/bin/conda create -y -n x python 2>&1", check=False)
    assert "CondaToSNonInteractiveError" in said.stdout, said.stdout


def _forge(host):
    host.run(FORGE)


def _cpu(host):
    """The environment is made while the driver does not work: the solver takes the build for the processor, without a word."""
    _miniconda(host)
    base = publish.variables()["miniconda_channel_alias"]
    host.run(f"{FORGE}; {CONDA}/bin/conda config --system --set channel_alias {base}")
    host.run("mv /usr/bin/nvidia-smi /root/; rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia", check=False)
    host.run(f"CONDA_OVERRIDE_CUDA= {CONDA}/bin/conda create -y -n torch-gpu python=3.11 pytorch=2.5.1")
    host.run("mv /root/nvidia-smi /usr/bin/; modprobe nvidia; modprobe nvidia_uvm", check=False)


def _cuda_build(host):
    host.run(
        f"{CONDA}/bin/conda env remove -y -n torch-gpu; {CONDA}/bin/conda create -y -n torch-gpu python=3.11 'pytorch=2.5.1=*cuda*'"
    )


def _guarded(host):
    """Ubuntu's .bashrc, and conda init's block at its end: a command over ssh never gets there."""
    _miniconda(host)
    host.run(FORGE)
    write(host, "/home/lab/.bashrc", "case $- in\n    *i*) ;;\n      *) return;;\nesac\n")
    host.run(f"su lab -c '{CONDA}/bin/conda init bash'")
    said = host.ssh("bash -c 'source ~/.bashrc; conda activate base' 2>&1", check=False)
    assert said.rc, said.stdout


def _for_everybody(host):
    host.run(f"ln -s {CONDA}/etc/profile.d/conda.sh /etc/profile.d/conda.sh")


# --- N: proxies


def _one_layer(host):
    host.run(
        "printf 'export http_proxy=http://10.41.13.6:3128\\nexport https_proxy=$http_proxy\\n' >> /home/lab/.profile"
    )


def _dockers_own(host):
    _docker(host)
    host.run("printf 'http_proxy=http://10.41.13.6:3128\\nhttps_proxy=http://10.41.13.6:3128\\n' >> /etc/environment")


def _drop_in(host):
    host.run(
        'mkdir -p /etc/systemd/system/docker.service.d && printf \'[Service]\\nEnvironment="HTTP_PROXY=http://10.41.13.6:3128" '
        '"HTTPS_PROXY=http://10.41.13.6:3128"\\n\' > /etc/systemd/system/docker.service.d/http-proxy.conf && '
        "systemctl daemon-reload && systemctl restart docker"
    )


def _every_layer(host):
    host.run(
        "printf 'http_proxy=http://10.41.13.6:3128\\nhttps_proxy=http://10.41.13.6:3128\\n' >> /etc/environment; "
        'printf \'Acquire::http::Proxy "http://10.41.13.6:3128";\\nAcquire::https::Proxy "http://10.41.13.6:3128";\\n\' '
        "> /etc/apt/apt.conf.d/95proxy"
    )


BROKEN = {
    "C3": Broken({"gpus": ["A100"], "nouveau": False, "secure_boot": True}, "dpkg.unfinished", _hung, reboots=1),
    "H1": Broken(
        TOOLKIT, "cuda.shadowed_library", _exported, person=_not_exported, told="/etc/profile.d/cuda.sh line 2"
    ),
    "H2": Broken(
        {**TOOLKIT, "distribution_cuda": True},
        "cuda.nvcc_differs",
        config={"cuda_toolkit_versions": ["12.8"]},
        reboots=0,
    ),
    "H5": Broken(
        TOOLKIT, "shell.cuda_lines", _appended, level="warning", person=_not_appended, told="/home/lab/.bashrc"
    ),
    "I1": Broken(TOOLKIT, "cudnn.shadowed_library", _tarball, person=_no_tarball, told="/etc/profile.d/site.sh line 1"),
    "H3": Broken(
        TOOLKIT,
        "cuda.link",
        _second_toolkit,
        config={"cuda_toolkit_versions": ["12.8"]},
        reboots=0,
        proves=_first_toolkit,
    ),
    "I2": Broken(
        {**DRIVER, "ubuntu": "22.04", "toolkits": ["11.8 compiler"]},
        "cudnn.wrong_cuda",
        _other_cuda,
        reboots=0,
        config={"cuda_toolkit_versions": ["11.8"], "cuda_toolkit_profile": "compiler", "cuda_toolkit_cudnn": "8"},
        proves=_cudnn_of_11,
    ),
    "J1": Broken(
        {
            **DRIVER,
            "ubuntu": "22.04",
            "toolkits": ["11.8 compiler"],
            "installed": [*DRIVER["installed"], "libnccl2=2.15.5-1+cuda11.8"],
        },
        "nccl.pair_differs",
        _other_nccl,
        folded=("dpkg.unmet",),
        reboots=0,
        config={"cuda_toolkit_versions": ["11.8"], "cuda_toolkit_profile": "compiler"},
        proves=_nccl_of_11,
    ),
    "L1": Broken(
        DRIVER,
        "containers.daemon_json_replaced",
        _replaced,
        level="warning",
        person=_put_back,
        told="from /etc/docker/daemon.json.bak",
        docker=True,
    ),
    "L2": Broken(DRIVER, "containers.daemon_json_unreadable", _comma, person=_put_back, told="line 5", docker=True),
    "L3": Broken(
        DRIVER,
        "containers.reload_takes_gpus",
        _toolkit_by_hand,
        level="warning",
        person=_links,
        told="create-dev-char-symlinks",
        docker=True,
    ),
    "M1": Broken(DRIVER, "conda.terms", _terms, level="warning", person=_forge, told="conda-forge"),
    "M2": Broken(DRIVER, "conda.cpu_build", _cpu, level="warning", person=_cuda_build, told="CONDA_OVERRIDE_CUDA"),
    "M3": Broken(DRIVER, "conda.activate", _guarded, level="note", person=_for_everybody, told="profile.d/conda.sh"),
    "N2": Broken(
        DRIVER, "proxy.layer_missing", _one_layer, level="warning", person=_every_layer, told="gpu_proxy_http"
    ),
    "N4": Broken(
        DRIVER,
        "proxy.docker_missing",
        _dockers_own,
        level="warning",
        person=_drop_in,
        told="/etc/systemd/system/docker.service.d/http-proxy.conf",
        docker=True,
    ),
}
