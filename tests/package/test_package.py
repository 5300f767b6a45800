"""Wheel and collection, built from this checkout and used outside it."""

import json
import sys
from pathlib import Path

import provision
from provision.lib import yaml_reader
from tests.package.conftest import BIN, ROOT, run


def test_one_version():
    galaxy = yaml_reader.load((ROOT / "galaxy.yml").read_text())
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert galaxy["version"] == provision.__version__
    assert f"## {provision.__version__}" in changelog


def test_wheel_runs_without_the_checkout(wheel, tmp_path):
    # The editable install's path hook would find the checkout first: -S leaves it out, PYTHONPATH brings the rest.
    site = next(path for path in sys.path if path.endswith("site-packages"))
    code = "import provision, provision.collection as c; print(provision.__file__); print(c.ROOT)"
    out = run(sys.executable, "-S", "-c", code, cwd=tmp_path, PYTHONPATH=f"{wheel}:{site}")
    package, root = out.split()
    assert package.startswith(str(wheel))
    assert root.startswith(str(wheel))
    shipped = Path(root)
    for name in ("roles/nvidia_driver/tasks/main.yml", "playbooks/site.yml", "plugins/module_utils/probe/facts.py"):
        assert (shipped / name).read_bytes() == (ROOT / name).read_bytes()
    out = run(
        sys.executable,
        "-S",
        "-m",
        "provision",
        "-i",
        "localhost,",
        "--json",
        "scan",
        cwd=tmp_path,
        PYTHONPATH=f"{wheel}:{site}",
    )
    assert json.loads(out)["hosts"]["localhost"]
    words = ("-S", "-m", "provision", "--json", "diagnose", "--explain", "driver.missing")
    out = run(sys.executable, *words, cwd=tmp_path, PYTHONPATH=f"{wheel}:{site}")
    assert json.loads(out)["pages"][0]["code"] == "driver.missing"


def test_collection_runs_without_the_checkout(collection, tmp_path):
    play = tmp_path / "play.yml"
    play.write_text(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n"
        "    - gpu.provision.gpu_facts:\n      register: read\n"
        "    - ansible.builtin.assert:\n        that: read.gpu_facts.host.boot_id | length > 0\n"
    )
    env = {"ANSIBLE_COLLECTIONS_PATH": str(collection), "ANSIBLE_PYTHON_INTERPRETER": sys.executable}
    run(BIN / "ansible-playbook", "-i", "localhost,", "-c", "local", play, cwd=tmp_path, **env)
    run(BIN / "ansible-playbook", "-i", "localhost,", "--syntax-check", "gpu.provision.site", cwd=tmp_path, **env)
    run(BIN / "ansible-playbook", "-i", "localhost,", "--syntax-check", "gpu.provision.verify", cwd=tmp_path, **env)
    shipped = collection / "ansible_collections/gpu/provision"
    assert (shipped / "provision/catalog/data/gpus.yml").is_file()
    assert (shipped / "provision/diagnose/findings/driver.missing.md").is_file()
    assert not (shipped / ".collections").exists()
    assert not (shipped / ".venv").exists()
    assert not [
        path.name for path in shipped.iterdir() if path.name.endswith(("_cache", ".hypothesis", ".cache", ".git"))
    ]


def test_modules_are_documented(collection, tmp_path):
    names = [path.stem for path in (ROOT / "plugins/modules").glob("*.py")]
    assert names
    out = run(
        BIN / "ansible-doc",
        "--json",
        "-t",
        "module",
        *[f"gpu.provision.{name}" for name in names],
        cwd=tmp_path,
        ANSIBLE_COLLECTIONS_PATH=str(collection),
    )
    docs = json.loads(out)
    for name in names:
        doc = docs[f"gpu.provision.{name}"]
        assert doc["doc"]["short_description"]
        assert {"check_mode", "diff_mode"} <= set(doc["doc"]["attributes"])
        assert doc["examples"] and doc["return"]
