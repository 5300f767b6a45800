"""verify for a prolog and a monitor: one line at most, and its exit code; and what gpu_verify_site may say."""

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.prove import proofs
from provision import inventory
from provision.commands.verify import for_monitor
from provision.documents import VerifiedHost, VerifyDocument
from provision.errors import Issue
from provision.inventory import site_checks
from provision.lib.findings import Check


def document(*rows, errors=()):
    checks = [Check(id=name, status=status, message=message) for name, status, message in rows]
    return VerifyDocument(hosts={"gpu01": VerifiedHost(status="pass", checks=checks)}, errors=list(errors))


GOOD, WARN = ("driver.smi", "pass", "sees all 8"), ("driver.hold", "warn", "not held | 3")
BAD = ("gpu.xid", "fail", "Xid 95 at 0000:9b:00: an\nuncorrectable error")


@pytest.mark.parametrize(
    ("rows", "slurm", "nagios"),
    [
        ([GOOD], ([], 0), (["GPU OK - 1 check"], 0)),
        ([GOOD, WARN], ([], 0), (["GPU WARNING - gpu01: driver.hold: not held / 3"], 1)),
        (
            [GOOD, WARN, BAD],
            (["gpu01: gpu.xid: Xid 95 at 0000:9b:00: an uncorrectable error"], 1),
            (["GPU CRITICAL - gpu01: gpu.xid: Xid 95 at 0000:9b:00: an uncorrectable error"], 2),
        ),
        (
            [BAD, BAD],
            (["gpu01: gpu.xid: Xid 95 at 0000:9b:00: an uncorrectable error (and 1 more)"], 1),
            (["GPU CRITICAL - gpu01: gpu.xid: Xid 95 at 0000:9b:00: an uncorrectable error (and 1 more)"], 2),
        ),
    ],
)
def test_one_line_and_its_code(rows, slurm, nagios):
    assert for_monitor(document(*rows), nagios=False) == slurm
    assert for_monitor(document(*rows), nagios=True) == nagios


def test_a_host_that_could_not_be_read():
    found = document(errors=[Issue(code="host.unreachable", message="gpu01 does not answer")])
    assert for_monitor(found, nagios=False) == (["gpu01 does not answer"], 1)
    assert for_monitor(found, nagios=True) == (["GPU UNKNOWN - gpu01 does not answer"], 3)


@pytest.mark.parametrize(
    "rows",
    [
        [{"name": "a b", "command": ["/x"]}],
        [{"name": "a", "command": ["x"]}],
        [{"name": "a", "command": []}],
        [{"name": "a", "command": ["/x"]}, {"name": "a", "command": ["/y"]}],
    ],
)
def test_a_wrong_check_of_the_site_is_refused(rows):
    with pytest.raises(ValueError):
        site_checks.check(rows)
    site_checks.check([{"name": "scratch-2", "command": ["/usr/local/sbin/x", "--quick"]}])


# --- this machine alone: nothing is started that is not needed (tests/unit/conftest.py makes every start of a program fail)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "gpu_verify_timeout: 60\ngpu_verify_skip: [apt.*]\n",
            {"gpu_verify_timeout": 60, "gpu_verify_skip": ["apt.*"]},
        ),
        ("gpu_verify_expect: '{{ wanted }}'\n", None),
        ("gpu_verify_expect: !vault x\n", None),
        ("other: 1\n", None),
        ("[1, 2]", None),
        ("a: [", None),
        (None, None),
    ],
)
def test_variables_of_this_machine(tmp_path, text, found):
    if text is not None:
        (tmp_path / "site.yml").write_text(text)
    got = inventory.this_machine([f"@{tmp_path}/site.yml"])
    assert (got.hosts[0].vars if got else None) == found


def test_this_machine_needs_no_process_of_ansible():
    (host,) = inventory.this_machine().hosts
    assert (host.name, host.connection.kind, host.implicit_local) == ("localhost", "local", True)


def test_reading_the_kernel_log_asks_no_card(monkeypatch):
    ran = []
    monkeypatch.setattr(proofs.prove_count, "bus_cards", lambda: ["0000:9b:00.0"])
    monkeypatch.setattr(proofs.prove_job, "run", lambda job: ran.append((job.module, job.function)))
    proofs.main({"only": ["gpu.xid"]})
    assert ran == [("prove.xid", "read")]
