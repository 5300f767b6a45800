"""init for a fleet: names from files, groups by hardware, and the inventory that is written of both."""

import pytest

from provision import inventory
from provision.catalog import load_catalog
from provision.commands import init
from provision.errors import UnreachableError, UsageError
from provision.inventory import hostlists, variables
from provision.inventory.hostlists import from_file, from_ssh_config
from provision.lib import yaml_reader
from provision.parts.hardware import group_name, kinds
from provision.runs.fleet import fleet_of
from tests.unit.hosts import host

CATALOG = load_catalog()
LIST = init.Source("hosts.txt")
FLEET = {
    "hgx01": host(["H100"] * 8, "580-server 580.126.20 open signed", nvswitches=4),
    "hgx02": host(["H100"] * 8, nvswitches=4),
    "hgx03": host(["H100"] * 7, nvswitches=4),
    "ws1": host(["RTX 4090"], desktop=True),
    "ws2": host(["RTX 4090"]),
    "both": host(["V100", "RTX 4090"]),
    "never": host(["V100", "RTX 5090"]),
    "web": host(),
}


# ---- names ------------------------------------------------------------------------------------------------------------


def test_names_of_a_list(tmp_path):
    path = tmp_path / "hosts.txt"
    path.write_text("gpu01\n\n# the new ones\ngpu02, gpu03   gpu[04:06]\t10.0.0.7 # by address\ngpu01\n")
    assert from_file(path, init.check_name) == ["gpu01", "gpu02", "gpu03", "gpu[04:06]", "10.0.0.7"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu01\nubuntu@gpu02\n", ["line 2", "ubuntu@gpu02"]),
        ("gpu01\n-l\n", ["line 2"]),
        ("# nothing\n", ["names no host"]),
        ("gpu[3:1]\n", ["no range"]),
        ("gpu[01:3]\n", ["no range"]),
        ("gpu[1:z]\n", ["no range"]),
        ("gpu[1:9:0]\n", ["no range"]),
        ("gpu[c:a]\n", ["no range"]),
        ("1:2:3\n", ["no host name"]),
        ("a:b\n", ["no host name"]),
    ],
)
def test_a_list_that_cannot_be_used(tmp_path, text, words):
    (tmp_path / "hosts.txt").write_text(text)
    with pytest.raises(UsageError) as caught:
        from_file(tmp_path / "hosts.txt", init.check_name)
    assert all(word in caught.value.issue.message for word in words)
    assert caught.value.issue.hint


def test_a_list_from_windows_and_addresses(tmp_path):
    (tmp_path / "hosts.txt").write_bytes(b"\xef\xbb\xbfgpu01\r\nfd00::1 gpu[a:c] gpu[08:12:2]\r\n")
    assert from_file(tmp_path / "hosts.txt", init.check_name) == ["gpu01", "fd00::1", "gpu[a:c]", "gpu[08:12:2]"]
    init.run(["gpu[a:c]", "gpu[08:12:2]"], tmp_path / "hosts.yml")
    assert len(inventory.load([str(tmp_path / "hosts.yml")]).hosts) == 6, "Ansible takes the same ranges"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpu01:2222", "ansible_port: 2222"),
        ("[fd00::1]:22", "as fd00::1"),
        ("ansible_user=x", "--from-inventory"),
        ("[gpus]", "--from-inventory"),
        ("ada@gpu01", "--user ada"),
        ("gpu 01", "letters"),
    ],
)
def test_what_was_meant_by_no_name(name, hint):
    with pytest.raises(UsageError) as caught:
        init.check_name(name)
    assert hint in caught.value.issue.hint


def test_hosts_of_sshs_configuration(tmp_path, monkeypatch):
    monkeypatch.setattr("provision.inventory.hostlists.SSH_CONFIG", tmp_path / "config")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/10-gpu").write_text("Host gpu03 gpu04\n  ProxyJump bastion\nInclude deeper\n")
    (tmp_path / "deeper").write_text('host = gpu05\nHost "gpu06"  # the last\n')
    (tmp_path / "config").write_text(
        "Include conf.d/*\nInclude nowhere\nHost *\n  User ubuntu\n\nHost gpu01 gpu02 !gpu99 gpu1?\n  HostName 10.0.0.1\n"
        "Match host gpu07\n  User root\nHost=gpu08\nHost gpu01\n#Host gpu09\n  HostKeyAlias x\n"
    )
    # Relative includes lie in ~/.ssh (ssh_config(5)), also those of included files and of a file that -F names.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/config").write_text("Include deeper\n")
    assert from_ssh_config(tmp_path / "elsewhere/config", init.check_name) == ["gpu05", "gpu06"]
    assert from_ssh_config(tmp_path / "config", init.check_name) == [
        "gpu03",
        "gpu04",
        "gpu05",
        "gpu06",
        "gpu01",
        "gpu02",
        "gpu08",
    ]


def test_a_configuration_that_includes_itself_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("provision.inventory.hostlists.SSH_CONFIG", tmp_path / "config")
    opened = []
    real = hostlists._text
    monkeypatch.setattr(hostlists, "_text", lambda path, what: opened.append(path.name) or real(path, what))
    for name in ("config", "a", "b", "c"):
        (tmp_path / name).write_text(f"Host gpu-{name}\nInclude *\n")
    assert sorted(from_ssh_config(tmp_path / "config", init.check_name)) == ["gpu-a", "gpu-b", "gpu-c", "gpu-config"]
    assert sorted(opened) == ["a", "b", "c", "config"], "each once, not 3 to the power of 16 times"


def test_tabs_and_what_is_no_name_of_a_host_in_sshs_configuration(tmp_path):
    (tmp_path / "config").write_text('Host\tgpu01\tgit@example.org\nHOST = "gpu 02" gpu03 a:b\nHost gpu04\r\n')
    assert from_ssh_config(tmp_path / "config", init.check_name) == ["gpu01", "gpu03", "gpu04"]


def test_sshs_configuration_without_hosts_or_at_all(tmp_path):
    (tmp_path / "config").write_text("Host *\n  User x\n")
    for name in ("config", "none"):
        with pytest.raises(UsageError):
            from_ssh_config(tmp_path / name, init.check_name)


# ---- groups ---------------------------------------------------------------------------------------------------------------


def test_groups_are_hosts_of_the_same_cards():
    found = kinds(FLEET, CATALOG)
    assert {kind.name: kind.hosts for kind in found} == {
        "h100_sxm5_80gb": ["hgx01", "hgx02", "hgx03"],
        "rtx_4090": ["ws2"],
        "rtx_4090_desktop": ["ws1"],
        "rtx_4090_and_v100_pcie_32gb": ["both"],
        "rtx_5090_and_v100_pcie_32gb": ["never"],
        "without_gpu": ["web"],
    }
    by_name = {kind.name: kind for kind in found}
    assert found[0].name == "h100_sxm5_80gb" and found[-1].name == "without_gpu"
    hgx, both, never = (
        by_name[n] for n in ("h100_sxm5_80gb", "rtx_4090_and_v100_pcie_32gb", "rtx_5090_and_v100_pcie_32gb")
    )
    assert (hgx.cards, hgx.odd, hgx.nvswitch) == ("8x H100 SXM5 80GB", {"hgx03": "7x H100 SXM5 80GB"}, True)
    assert both.recommended == 580, "a V100 ends with 580, whatever the other card can do"
    assert both.branches[-1] == 580 and hgx.branches[-1] > 580
    assert not never.branches and "together" in never.refused["never"]
    assert not both.refused


@pytest.mark.parametrize(
    ("cards", "desktop", "taken", "expected"),
    [
        (["H100 SXM5 80GB"], False, [], "h100_sxm5_80gb"),
        (["GeForce RTX 4090"], True, [], "rtx_4090_desktop"),
        (["Tesla T4"], False, ["t4"], "t4_2"),
        (["Tesla T4"], False, ["t4", "t4_2"], "t4_3"),
        (["3090 of a kind"], False, [], "gpu_3090_of_a_kind"),
        (["A10", "Tesla T4"], False, [], "a10_and_t4"),
        ([], False, [], "without_gpu"),
    ],
)
def test_names_of_groups(cards, desktop, taken, expected):
    assert group_name(cards, desktop, taken) == expected


# ---- the file ---------------------------------------------------------------------------------------------------------------


class Session:
    def __init__(self, name):
        self.name = name

    def call(self, module, args, *, timeout=60):
        assert module == "probe.facts"
        return FLEET[self.name].model_dump(mode="json")

    def close(self):
        return


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """asked(names, …) runs init over made-up hosts and gives (document, path)."""
    from provision import remote

    def open_session(one):
        if one.name not in FLEET:
            raise UnreachableError(
                "connect.refused", "connection refused: port 22\nof 10.0.0.9", host=one.name, hint="start sshd"
            )
        return Session(one.name)

    monkeypatch.setattr(remote, "open_session", open_session)

    def ask(*names, source=LIST, sources=None, **more):
        fleet = fleet_of(inventory.load(sources or [",".join([*names, ""])]))
        path = tmp_path / "out/hosts.yml"
        return init.run_scanned(fleet, path, source, **more), path

    return ask


def test_the_inventory_loads_and_says_what_was_seen(asked):
    document, path = asked(*FLEET, "gone", source=init.Source("hosts.txt", login=init.Login("ubuntu")))
    assert document.exit_code == 4 and document.unreached == {"gone": "connection refused: port 22\nof 10.0.0.9"}
    assert document.content == path.read_text()
    assert max(len(line) for line in document.content.splitlines() if str(path) not in line) <= 120
    loaded = inventory.load([str(path)])
    assert not loaded.warnings
    values = variables.effective_all(loaded.hosts)
    assert {h.name for h in loaded.hosts} == {*FLEET, "gone"}
    assert all(h.connection.user == "ubuntu" for h in loaded.hosts), "hosts that were not reached too"
    assert loaded.groups["unreached"] == ["gone"]
    assert set(loaded.groups["gpus"]) == set(FLEET) - {"web"}
    assert values["hgx01"]["gpu_verify_expect"] == "8x H100 SXM5 80GB"
    assert values["hgx03"]["gpu_verify_expect"] == "7x H100 SXM5 80GB"
    assert values["web"]["gpu_verify_expect"] == ""
    assert values["ws1"]["nvidia_driver_branch"] == "recommended", "nothing is chosen for people, only said"
    text = document.content
    assert "gone:   # connection refused: port 22 of 10.0.0.9" in text
    assert '# nvidia_driver_branch: "580"' in text and "driver 580.126.20 open" in text
    assert text.index("hgx03:   #") < text.index("most of its kind have 8x H100")
    assert document.groups["h100_sxm5_80gb"].hosts == ["hgx01", "hgx02", "hgx03"]


def test_commented_variables_are_right_where_somebody_takes_them_in(asked):
    _, path = asked("hgx01", "both")
    lines = []
    for line in path.read_text().splitlines():
        bare = line.lstrip()
        named = bare.startswith(('# nvidia_driver_branch: "', "# cuda_toolkit_versions"))
        lines.append(line.replace("# ", "", 1) if named else line)
    found = variables.effective_all(inventory.load([_write(path, "\n".join(lines))]).hosts)
    assert found["both"]["nvidia_driver_branch"] == "580" and found["both"]["cuda_toolkit_versions"]


def _write(path, text):
    # The starter's own example of a branch stands before the group's: YAML takes the last of two.
    (path.parent / "taken.yml").write_text(text)
    return str(path.parent / "taken.yml")


def test_beside_an_inventory_only_groups_are_written(asked, tmp_path):
    old = tmp_path / "old.yml"
    old.write_text(
        "all: {hosts: {hgx01: {ansible_host: 10.0.0.1}, ws2: }, vars: {ansible_user: ada, nvidia_driver_branch: '580'}}"
    )
    document, path = asked(sources=[str(old)], source=init.Source("old.yml", overlay=(str(old),)))
    assert "ansible_user" not in yaml_reader.load(document.content)["all"].get("vars", {})
    loaded = inventory.load([str(old), str(path)])
    values = variables.effective_all(loaded.hosts)
    assert values["hgx01"]["nvidia_driver_branch"] == "580", "what the inventory says stays"
    assert loaded.host("hgx01").connection.address == "10.0.0.1"
    assert loaded.groups["h100_sxm5_80gb"] == ["hgx01"]
    assert document.next_source == f" -i {old} -i {path}"
    inside = init._source(tmp_path / "inv/gpu_groups.yml", (str(tmp_path / "inv"),))
    assert inside.count("-i") == 2, "a folder that is not there is no folder"
    (tmp_path / "inv").mkdir()
    assert init._source(tmp_path / "inv/gpu_groups.yml", (str(tmp_path / "inv"),)) == f" -i {tmp_path / 'inv'}"


def test_hosts_without_a_gpu_are_left_out_of_what_nobody_called_a_gpu_host(asked):
    document, path = asked("hgx01", "web", source=init.Source("~/.ssh/config", leave_out=True))
    assert document.left_out == ["web"] and document.exit_code == 0
    assert [h.name for h in inventory.load([str(path)]).hosts] == ["hgx01"]
    with pytest.raises(UsageError) as caught:
        asked("web", source=init.Source("~/.ssh/config", leave_out=True), force=True)
    assert caught.value.issue.code == "init.no_gpu"


def test_nothing_is_written_where_nobody_answers_or_a_file_is_there(asked, tmp_path):
    with pytest.raises(UsageError) as caught:
        asked("gone")
    assert caught.value.issue.code == "init.none_reached" and "refused" in caught.value.issue.because[0]
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/hosts.yml").write_text("mine")
    with pytest.raises(UsageError) as caught:
        asked("hgx01")
    assert caught.value.issue.code == "init.exists"
    assert (tmp_path / "out/hosts.yml").read_text() == "mine"
    asked("hgx01", force=True)
    assert (tmp_path / "out/hosts.yml").read_text() != "mine"


def test_this_machine_needs_no_ssh(asked, monkeypatch):
    monkeypatch.setitem(FLEET, "localhost", FLEET["ws2"])
    _, path = asked("localhost")
    assert inventory.load([str(path)]).host("localhost").connection.kind == "local"
    assert yaml_reader.load(path.read_text())["all"]["children"]["rtx_4090"]["hosts"]["localhost"] == {
        "ansible_connection": "local"
    }


# ---- as it is typed ---------------------------------------------------------------------------------------------------------


def typed(capsys, *words):
    from provision import cli

    code = cli.run([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_from_a_list_hosts_are_looked_at_unless_told_otherwise(asked, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.txt").write_text("hgx0[1:3]\ngone\n")
    code, out, err = typed(capsys, "init", "--from-file", "hosts.txt")
    assert code == 4
    assert "wrote inventory/hosts.yml" in out and "h100_sxm5_80gb  hgx01 to hgx03 (3 hosts): 8x H100 SXM5 80GB" in out
    assert "error: gone: connection refused" in err and "then: provision plan" in err
    code, _, err = typed(capsys, "init", "--from-file", "hosts.txt")
    assert code == 64 and "already exists" in err
    code, out, _ = typed(capsys, "init", "--from-file", "hosts.txt", "--no-scan", "--force")
    assert code == 0 and "h100" not in (tmp_path / "inventory/hosts.yml").read_text()
    assert len(inventory.load([str(tmp_path / "inventory/hosts.yml")]).hosts) == 4


def test_named_hosts_are_looked_at_only_when_asked(asked, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert typed(capsys, "init", "gone")[0] == 0
    code, out, _ = typed(capsys, "init", "ws2", "--scan", "-o", "looked.yml", "--json")
    assert code == 0 and '"rtx_4090"' in out
    assert "-i looked.yml plan" in (tmp_path / "looked.yml").read_text()


def test_from_sshs_configuration(asked, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").write_text("Host ws2 web\n  User x\nHost *\n")
    code, out, _ = typed(capsys, "init", "--ssh-config", "config")
    assert code == 0 and "left out, no NVIDIA GPU: web" in out
    # A configuration that ssh does not read by itself has to be named; from then on it is.
    host = inventory.load(["inventory/hosts.yml"]).host("ws2")
    assert host.connection.ssh_extra_args == ("-F", str(tmp_path / "config"))
    monkeypatch.setattr("provision.cli.starting.SSH_CONFIG", tmp_path / "config")
    assert typed(capsys, "init", "--from-ssh-config", "--force")[0] == 0
    assert inventory.load(["inventory/hosts.yml"]).host("ws2").connection.ssh_extra_args == ()


def test_from_an_inventory(asked, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "old/hosts.ini").write_text("[some]\nws2 ansible_user=ada\nhgx01\n")
    code, out, err = typed(capsys, "init", "-i", "old", "--from-inventory")
    assert code == 0 and "wrote old/gpu_groups.yml" in out and "provision -i old plan" in err
    loaded = inventory.load(["old"])
    assert loaded.groups["rtx_4090"] == ["ws2"] and loaded.host("ws2").connection.user == "ada"
    assert typed(capsys, "init", "x", "-i", "old", "--from-inventory")[0] == 64
