"""Ansible's connection to a root of tests/apt: runs everything by chroot, as root."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: root_of_test
short_description: chroot into a folder
description: Runs the tasks of a play in a root file system below a folder of this machine. For tests only.
options:
  folder:
    description: The root file system.
    vars: [{name: root_of_test_folder}]
"""


class Connection(ConnectionBase):
    """Nothing to open, nothing to close; files are copied below the folder."""

    transport = "root_of_test"
    has_pipelining = True
    _ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}

    def _connect(self):
        self._connected = True
        return self

    def exec_command(self, cmd, in_data=None, sudoable=True):
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        argv = ["chroot", self.get_option("folder"), "/bin/sh", "-c", cmd]
        done = subprocess.run(argv, input=in_data or b"", capture_output=True, check=False, env=self._ENVIRONMENT)
        return done.returncode, done.stdout, done.stderr

    def put_file(self, in_path, out_path):
        shutil.copy(in_path, self._inside(out_path))

    def fetch_file(self, in_path, out_path):
        shutil.copy(self._inside(in_path), out_path)

    def _inside(self, path):
        return Path(self.get_option("folder")) / path.lstrip("/")

    def close(self):
        self._connected = False
