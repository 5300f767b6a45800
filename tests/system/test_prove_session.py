"""prove through a session, as ``provision verify`` calls it: the children get their sources from what was sent."""

import sys

from provision import remote
from provision.inventory import Connection, Host
from provision.parts.proof import Bounds
from provision.parts.proofs import judged


def test_checks_run_from_sources_in_memory():
    session = remote.open_session(Host(name="here", connection=Connection(kind="local", python=sys.executable)))
    try:
        only = ["gpu.count", "gpu.compute", "python.*"]
        answer = session.call("prove.proofs", {"only": only, "python": [sys.executable]}, timeout=120)
    finally:
        session.close()
    framework = f"python.framework[{sys.executable}]"
    checks = [check.model_dump() for check in judged(answer, Bounds())]
    found = {check["id"]: check for check in checks}
    assert set(found) == {"gpu.count", "gpu.compute", framework}
    assert all(check["message"] for check in checks)
    # A child answered: the version of the interpreter can come from nowhere else.
    assert found[framework]["status"] != "skip" or sys.version.split()[0] in found[framework]["message"]
    # No child is reported as one that could not be fed its sources.
    assert not [check for check in checks if "get_source" in check["message"] or "Error" in check["message"]]
