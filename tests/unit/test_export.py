"""diagnose --export: a case leads to the diagnosis of its host, and nothing in it names the host, its people or its parts."""

import ipaddress

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ansible_collections.gpu.provision.plugins.module_utils.probe import export
from provision import bundles
from provision.bundles import case as exported_case
from provision.bundles.mask import Mask
from provision.catalog import load_catalog
from provision.commands import diagnose as command
from provision.diagnose import diagnose
from provision.errors import UsageError
from provision.facts.diagnostics import Diagnosed
from provision.inventory import Connection, Host, Inventory
from provision.runs.fleet import Fleet
from tests.sample import share
from tests.unit import brokenhosts

FILES = ("diagnose_boot", "diagnose_kinds", "diagnose_healthy", "diagnose_worlds")
# Every third case: each takes half a second.
CASES = [(name, case) for name in FILES for case in brokenhosts.load(name)[1]][::3]
SECRETS = (
    "falcon77",
    "falcon77.hangar.test",
    "hangar.test",
    "mwinter",
    "Marie Winter",
    "10.77.3.14",
    "fd00:77::abcd",
    "aa:bb:cc:77:88:99",
    "SN7700421",
    "4c4c4544-0077-4d10-8031-b4c04f4e3232",
    "0123456789abcdef0123456789abcd77",
    "hf_abcdefghijklmnopqrstuvwxyz7",
    "pw77secret",
    "deb.hangar.test",
    "kduarte",
    "oldcontroller",
    "pilot42",
)
PRIVATE = {
    "/var/log/apt/history.log": "Start-Date: 2026-11-20  10:00:00\nCommandline: apt-get install -y libnvidia-cfg1\n"
    "Requested-By: kduarte (5000)\nInstall: libnvidia-cfg1:amd64 (1)\nEnd-Date: 2026-11-20  10:00:09\n",
    "/etc/gpu-provision/lock.json": '{"run": "1", "who": "kduarte", "controller": {"name": "oldcontroller"}}',
    "/proc/sys/kernel/hostname": "falcon77\n",
    "/etc/hostname": "falcon77\n",
    "/etc/hosts": "127.0.0.1 localhost\n10.77.3.14 falcon77.hangar.test falcon77\n",
    "/etc/resolv.conf": "search hangar.test\nnameserver 10.77.3.14\n",
    "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nmwinter:x:1000:1000:Marie Winter,,,:/home/mwinter:/bin/bash\n",
    "/home/mwinter/.bashrc": "export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz7\nexport PATH=/home/mwinter/bin:$PATH\n",
    "/proc/net/if_inet6": "fd00007700000000000000000000abcd 02 40 00 80 eth0\n",
    "/sys/class/net/eth0/address": "aa:bb:cc:77:88:99\n",
    "/sys/class/dmi/id/product_serial": "SN7700421\n",
    "/sys/class/dmi/id/product_uuid": "4c4c4544-0077-4d10-8031-b4c04f4e3232\n",
    "/etc/machine-id": "0123456789abcdef0123456789abcd77\n",
    "/etc/modprobe.d/zz-local.conf": "# by Marie Winter (mwinter@hangar.test) on falcon77, SN7700421, 10.77.3.14, "
    "aa:bb:cc:77:88:99, see /nfs/home/pilot42/notes\n",
    "/etc/apt/sources.list.d/zz-local.list": "# deb https://mwinter:pw77secret@deb.hangar.test/ubuntu noble main\n",
}
LOG = "[    1.0] NVRM: falcon77.hangar.test serial: SN7700421 of mwinter at fd00:77::abcd, board " + SECRETS[9] + "\n"


def exported(case, hosts, root):
    """What the host program says of a case whose tree has private words in many places."""
    tree = brokenhosts.merged(hosts.get(case.get("host"), {}), case.get("tree"))
    given = tree.get("files", {})
    people = PRIVATE["/etc/passwd"] + given.get("/etc/passwd", "")
    tree["files"] = {**PRIVATE, **given, "/etc/passwd": people, "/proc/sys/kernel/hostname": "falcon77\n"}
    programs = dict(case.get("programs", {}))
    programs["dmesg"] = programs.get("dmesg", "") + LOG
    return brokenhosts.facts_of({**case, "host": None, "tree": tree, "programs": programs}, {}, root, export.collect)


def same(case, hosts, tmp_path):
    """Export a case, replay it, and return (bytes of the file, diagnosis of the host, diagnosis of the case)."""
    answer = exported(case, hosts, tmp_path / "host")
    data = exported_case.make(answer, case.get("values", {}), {"hosts": ["falcon77"], "users": ["mwinter"]})
    (tmp_path / "case.tar").write_bytes(data)
    bundle = bundles.read(tmp_path / "case.tar")
    values = brokenhosts.values_of({"values": dict(bundle.values)})
    here = diagnose(Diagnosed.of_host(answer["facts"]), brokenhosts.values_of(case), load_catalog())
    return data, here, diagnose(bundle.facts, values, load_catalog())


@pytest.mark.parametrize(
    ("name", "case"), share(CASES, 3), ids=[f"{name}: {case['name']}" for name, case in share(CASES, 3)]
)
def test_a_case_has_the_diagnosis_of_its_host_and_names_nobody(name, case, tmp_path):
    data, here, there = same(case, brokenhosts.load(name)[0], tmp_path)
    assert command._signature(here.findings) == command._signature(there.findings)
    assert bool(here.unknown) == bool(there.unknown)
    text = data.decode("utf-8", "replace").lower()
    assert not [word for word in SECRETS if word.lower() in text]


@pytest.mark.parametrize("name", ["h100x1", "h100x2"])
def test_a_recorded_machine_is_exported(name, tmp_path):
    case = {"tree": {"base": name, "smi": "works"}, "smi": {"xml": name}, "values": {"nvidia_driver_manage": False}}
    data, here, there = same(case, {}, tmp_path)
    assert command._signature(here.findings) == command._signature(there.findings)
    text = data.decode("utf-8", "replace").lower()
    assert not [word for word in SECRETS if word.lower() in text]
    assert len(data) < 4 << 20


def test_a_case_is_a_row_of_the_tables(tmp_path):
    hosts, cases = brokenhosts.load("diagnose_boot")
    case = next(case for case in cases if case.get("errors") and "tree" in case)
    _, here, _ = same(case, hosts, tmp_path)
    _, found = brokenhosts.diagnosed(
        {"exported": tmp_path / "case.tar", "values": case.get("values", {})}, {}, tmp_path
    )
    assert [finding.code for finding in found.errors] == [finding.code for finding in here.errors] != []


def test_containers_and_their_images_are_named_by_numbers(tmp_path):
    hosts, cases = brokenhosts.load("diagnose_boot")
    answer = exported(next(case for case in cases if case.get("errors") and "tree" in case), hosts, tmp_path / "host")
    answer["facts"]["containers"]["running"] = [
        {
            "id": "deadbeef0077",
            "runtime": "docker",
            "gpu": True,
            "name": "moonshot-train",
            "image": "registry.hangar.test:5000/moonshot/llm:7",
        }
    ]
    answer["files"]["/etc/cron.d/pull"] = {
        "text": "* * * * * root docker pull registry.hangar.test:5000/moonshot/llm:8 && docker restart moonshot-train\n",
        "mtime": 0,
    }
    text = exported_case.make(answer, {}, {"hosts": ["falcon77"], "users": []}).decode("utf-8", "replace")
    assert "container1" in text and "image1" in text
    assert not [word for word in ("deadbeef0077", "moonshot", "hangar") if word in text]


NAMES = st.from_regex(r"[a-z]{3,8}[0-9]{2}", fullmatch=True)
ADDRESSES = st.ip_addresses().filter(lambda a: not (a.is_loopback or a.is_unspecified)).map(str)


@settings(deadline=None, phases=[Phase.generate])
@given(
    host=NAMES,
    domain=NAMES,
    user=NAMES,
    address=ADDRESSES,
    mac=st.binary(min_size=6, max_size=6).filter(any).map(lambda b: b.hex(":")),
    serial=st.from_regex(r"[A-Z]{2}[0-9]{8}", fullmatch=True),
    uuid=st.uuids().map(str),
    before=st.sampled_from(["", "/home/", "at ", "https://", "(", "x=", "'", '"', "//", ": ", "=["]),
    after=st.sampled_from(["", "/x", " ", ")", "'", ",", ":", "\n", ": failed", ";", "]"]),
)
def test_no_name_stays_wherever_it_stands(host, domain, user, address, mac, serial, uuid, before, after):
    own = {"hosts": [f"{host}.{domain}.test"], "users": [user], "addresses": [address, mac], "serials": [serial]}
    mask = Mask(own)
    for word in (host, f"{host}.{domain}.test", user, address, mac, serial, uuid, str(ipaddress.ip_address(address))):
        given_text = f"{before}{word}{after}"
        found = mask.text(given_text)
        assert word not in found, (given_text, found)
        assert mask.text(found) == found


def test_versions_words_of_programs_and_public_places_stay():
    mask = Mask(
        {"hosts": ["driver"], "users": ["ubuntu", "nvidia"], "addresses": [], "serials": ["Default string"]},
        ["cuda-toolkit"],
    )
    for text in (
        "libcurand-12-4_10.3.5.147-1_amd64.deb",
        "10.3.5.147",
        "9.8.0.87-1+cuda12",
        "libcublas-12-4 (>= 12.4.5.8), libcudnn9 (= 9.8.0.87), libcurand (<< 10.3.5.147)",
        "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/",
        "http://us-east-1.ec2.archive.ubuntu.com/ubuntu noble main",
        "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.",
        "0000:1b:00.0",
        "c10::cuda::device and std::vector",
        "driver nvidia of ubuntu, 127.0.0.1, ::1, Default string",
        "00000000:1B:00.0",
    ):
        assert mask.text(text, version=True) == text


def test_the_command_writes_the_case_and_refuses_many_hosts(tmp_path, monkeypatch):
    hosts, cases = brokenhosts.load("diagnose_boot")
    case = next(case for case in cases if case.get("errors") and "tree" in case)
    answer = exported(case, hosts, tmp_path / "host")
    connection = Connection(address="10.77.3.14", user="mwinter")
    fleet = Fleet(
        Inventory(hosts=[Host(name="falcon77", vars={}, groups=(), connection=connection)], sources=[], warnings=[]),
        {"falcon77": brokenhosts.values_of(case)},
    )
    monkeypatch.setattr(command, "ask_all", lambda *given, **more: {"falcon77": answer})
    document = command.export(fleet, tmp_path / "out.tar")
    assert document.exported == str(tmp_path / "out.tar") and document.exit_code == 3
    replayed = command.of_bundle(tmp_path / "out.tar", brokenhosts.values_of({}))
    assert [f.code for f in replayed.hosts["host"].findings] == [f.code for f in document.hosts["falcon77"].findings]
    two = Fleet(Inventory(hosts=[Host(name="a"), Host(name="b")], sources=[], warnings=[]), {"a": {}, "b": {}})
    with pytest.raises(UsageError, match="one host"):
        command.export(two, tmp_path / "two.tar")


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b'{"facts": {}}', b'{"facts": {"host": {}}, "smi": {}}'])
def test_a_damaged_case_is_refused(broken, tmp_path):
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        entry = tarfile.TarInfo("case.json")
        entry.size = len(broken)
        archive.addfile(entry, io.BytesIO(broken))
    (tmp_path / "case.tar").write_bytes(out.getvalue())
    with pytest.raises(UsageError):
        bundles.read(tmp_path / "case.tar")
