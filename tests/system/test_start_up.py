"""What a command loads: each module costs every user a moment, in every command."""

import subprocess
import sys

# Together they take longer to load than all modules of a plan itself.
NOT_FOR_A_PLAN = ("asyncio", "invoke", "http.client", "packaging", "ssl", "urllib.request")
LOAD = f"""
import sys
import provision.cli, provision.commands.plan, provision.remote.client, provision.render, provision.runs.fleet
print(*sorted(set({NOT_FOR_A_PLAN!r}) & set(sys.modules)))
"""


def test_a_plan_loads_nothing_that_it_does_not_need():
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


RESOLVE = """
import sys
from provision.inventory import Connection
from provision.remote import target
target._USER_CONFIG, target._SYSTEM_CONFIG = sys.argv[1], "/nowhere"
found = target.resolve(Connection(address="gpu01"))
print(found.user, found.port, found.reasons)
"""


def test_match_exec_of_ssh_is_carried_out(tmp_path):
    (tmp_path / "config").write_text('Match exec "true"\n  User yes\nMatch exec "false"\n  Port 77\n')
    argv = [sys.executable, "-c", RESOLVE, str(tmp_path / "config")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert done.stdout.split() == ["yes", "22", "()"]
