"""Modules that write files of ours do it in one step, as Ansible starts them."""

import json
import os
import subprocess
import sys

import provision.collection as collection


def driver_boot(**arguments):
    done = subprocess.run(
        [sys.executable, "-m", "ansible_collections.gpu.provision.plugins.modules.driver_boot"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": {"start": False, **arguments}}),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(collection.COLLECTIONS_PATH)},
    )
    return json.loads(done.stdout)


def test_driver_boot(tmp_path):
    path = tmp_path / "modprobe.d/gpu-provision.conf"
    files = [{"path": str(path), "content": "blacklist nouveau\n"}]
    assert driver_boot(files=files, _ansible_check_mode=True)["done"] == [f"wrote {path}"]
    assert not path.exists()
    assert driver_boot(files=files)["done"] == [f"wrote {path}"]
    assert path.read_text() == "blacklist nouveau\n" and path.stat().st_mode & 0o777 == 0o644
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    assert not driver_boot(files=files)["changed"]
    (tmp_path / "file").write_text("")
    failed = driver_boot(files=[{"path": str(tmp_path / "file/x.conf"), "content": "x"}])
    assert failed["code"] == "boot.file" and f"{tmp_path}/file/x.conf" in failed["msg"] and failed["hint"]
