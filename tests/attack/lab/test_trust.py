"""A host that names an archive and a key of its own, and a whole ``provision mirror --sign`` that would sign what it serves."""

import pytest
import yaml

from provision.lib import yaml_reader
from tests.faults.test_mirror import CONFIG, HOST

pytestmark = pytest.mark.lab

SOURCES = "/etc/apt/sources.list /etc/apt/sources.list.d/ubuntu.sources /etc/apt/sources.list.d/*.list"
# The key of another repository in the place of Ubuntu's, and an address of the host's own.
OWN_KEY = "cp $(ls /usr/share/keyrings/cuda-archive-keyring.gpg /etc/apt/keyrings/gpu-provision-cuda* 2>/dev/null | head -n 1) "


# tests/attack/test_trust.py: the same two refusals, with real key rings.
@pytest.mark.thorough
def test_a_host_that_names_an_archive_and_a_key_of_its_own(fleet, tmp_path):
    command = fleet(
        {"name": "gpu01", **HOST, "installed": ["580-server open signed held"], "sources": ["archive", "cuda"]}
    )
    command.env["XDG_DATA_HOME"] = str(tmp_path / "data")
    host = command.lab.host("gpu01")
    folder = command.lab.inventory.parent / "group_vars"
    folder.mkdir(exist_ok=True)
    (folder / "gpu.yml").write_text(yaml.safe_dump({**CONFIG, "cuda_toolkit_versions": []}))
    command.run("apply", "--yes")
    command.run("lock")
    host.run(OWN_KEY + "/usr/share/keyrings/ubuntu-archive-keyring.gpg")

    def mirror(address, **variables):
        host.run(
            f"for f in {SOURCES}; do [ ! -f $f ] || sed -i -E 's#http://[a-z.]+/ubuntu\\b#http://{address}/ubuntu#' $f; done"
        )
        inventory = yaml_reader.load(command.lab.inventory.read_text())
        for row in inventory["all"]["children"]["gpu"]["hosts"].values():
            row.update(variables)
        command.lab.inventory.write_text(yaml.safe_dump(inventory))
        done = command.json("mirror", "/var/tmp/mirror", "--on", "gpu01", "--sign", "new", rc=5)
        assert not host.run("find /var/tmp/mirror -type f", check=False).stdout.strip()
        (issue,) = done["errors"]
        assert "gpu01" in issue["message"], issue
        return issue

    # Nobody says that this archive is ours: the host is named, and nothing is in the mirror.
    issue = mirror("evil.example", gpu_mirror_archive_url="", gpu_mirror_archive_key="")
    assert issue["code"] == "mirror.archive_unknown" and "http://evil.example/ubuntu" in issue["message"], issue
    # The address is right, the key is the host's own: Ubuntu's are pinned.
    assert mirror("archive.ubuntu.com")["code"] == "mirror.archive_key_unknown"
