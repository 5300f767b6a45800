"""The lab's conda: an installer, channels and a wheel index for simulated hosts. Everything here is a simulation.

Real in it: the installer's command line and what it leaves when it is cut off; channels, packages and their format; pip
and wheels; files, rights, disks, proxies. Not real: conda itself, the Python inside (the host's own, whatever version the
package says), and torch, which answers from the host's nvidia-smi.
"""

from tests.lab.conda.installer import Installer
from tests.lab.conda.packages import write_channels
from tests.lab.conda.server import Proxy, Server
from tests.lab.conda.wheels import write_index

__all__ = ["Installer", "Proxy", "Server", "write_channels", "write_index"]
