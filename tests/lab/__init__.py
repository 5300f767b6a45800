"""Simulated GPU hosts: containers with real systemd, sshd, apt and dpkg, and stand-ins for what needs a GPU.

``with Lab.start([{"name": "gpu01", "gpus": ["H100 x8"], "nvswitch": 4}]) as lab: lab.host("gpu01").run("nvidia-smi")``
"""

from .debfile import File, Package
from .engine import LabError
from .lab import Lab, LabHost, Result, labs
from .spec import HostSpec

__all__ = ["File", "HostSpec", "Lab", "LabError", "LabHost", "Package", "Result", "labs"]
