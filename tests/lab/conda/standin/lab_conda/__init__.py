"""A stand-in for conda on simulated hosts: real channels, real packages, a simple solver, a real Python with real pip.

It answers to the commands that gpu-provision uses, with the words and exit codes of conda where they matter, and fails
where conda fails: terms that nobody accepted, a shell without ``conda init``, a build that does not exist, a full disk.
The Python of every environment is the host's own, whatever version the package says. Standard library only, from 3.8.
"""

from .main import main
from .prefix import link_package, write_history

__all__ = ["link_package", "main", "write_history"]
