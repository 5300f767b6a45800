"""playbook.yml for pyinfra."""

from pyinfra import host
from pyinfra.facts.server import Command
from pyinfra.operations import apt, files, server, systemd

apt.packages(packages=host.data.bench_packages, _sudo=True)
held = set((host.get_fact(Command, command="apt-mark showhold") or "").split())
missing = {item.split("=")[0] for item in host.data.bench_packages} - held
if missing:
    server.shell(commands=["apt-mark hold " + " ".join(sorted(missing))], _sudo=True)
files.put(src=host.data.bench_file, dest="/etc/modprobe.d/gpu-provision.conf", mode="644", _sudo=True)
systemd.service("nvidia-persistenced", running=True, enabled=True, _sudo=True)
server.shell(commands=["nvidia-smi -L"], _sudo=True)
