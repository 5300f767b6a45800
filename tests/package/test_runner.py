"""A job as AWX starts it: ansible-runner, process isolation with podman, and an image of the collection and the command.

The image is what ``execution-environment/`` asks for, on the lab's base and without a network: the same packages from wheels,
the collection by ansible-galaxy. The survey is that of docs/awx-job-template.json; credentials are files.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from provision.lib import yaml_reader
from tests.package import environment
from tests.package.conftest import ROOT

TEMPLATE = json.loads((ROOT / "docs/awx-job-template.json").read_text())["job_templates"][0]
SURVEY = TEMPLATE["related"]["survey_spec"]["spec"]
IMAGE = "localhost/gpu-lab-ee"
CONTAINERFILE = """\
FROM {base}
COPY dist /tmp/dist
RUN cd /tmp/dist && PYTHONPATH=$(echo pip-*.whl) python3 -m pip install --quiet --no-index --find-links . --no-compile \\
    --break-system-packages --root-user-action ignore ansible-core ansible-runner gpu-provision \\
 && ansible-galaxy collection install --offline --collections-path /usr/share/ansible/collections *.tar.gz && rm -r /tmp/dist
WORKDIR /runner
ENV HOME=/home/runner
CMD ["bash"]
"""


def test_the_survey_asks_for_variables_of_the_roles():
    for question in SURVEY:
        (option,) = [
            options[question["variable"]]
            for path in (ROOT / "roles").glob("*/meta/argument_specs.yml")
            for options in [yaml_reader.load(path.read_text())["argument_specs"]["main"]["options"]]
            if question["variable"] in options
        ]
        if option.get("choices"):
            assert question["choices"] == option["choices"]
        if question["choices"]:
            assert question["default"] in question["choices"]
    assert TEMPLATE["playbook"] == "site.yml" and TEMPLATE["become_enabled"]


@pytest.fixture(scope="session")
def image(tmp_path_factory, wheel, collection):
    """The tag of the image, built from this checkout; it goes when the tests are over. EE_IMAGE names one that is built already."""
    if not importlib.util.find_spec("ansible_runner"):
        pytest.skip("ansible-runner is not installed")
    if os.geteuid():
        pytest.skip("not root: ansible-runner would start another podman than the lab's")
    from tests.lab.engine import engine
    from tests.lab.image import base

    podman = engine()
    if podman.program != "podman":
        pytest.skip("podman is not installed: the lab has docker")
    if given := os.environ.get("EE_IMAGE"):
        yield given
        return
    start, _ = base()
    context = tmp_path_factory.mktemp("image")
    (file,), (tarball,) = wheel.parent.glob("*.whl"), collection.parent.glob("*.tar.gz")
    try:
        dist = environment.wheels(context / "dist", file, "pip", "ansible-core", "ansible-runner", "gpu-provision")
    except LookupError as problem:
        pytest.skip(f"no wheels for the image: {problem}")
    said = podman("run", "--rm", *podman.run_flags, start, "python3", "-c", "import sys; print(*sys.version_info[:2])")
    if said.stdout.split() != [str(number) for number in sys.version_info[:2]]:
        pytest.skip(f"the lab's base has Python {said.stdout.strip()}, the wheels are those of {sys.version}")
    (dist / tarball.name).write_bytes(tarball.read_bytes())
    (context / "Containerfile").write_text(CONTAINERFILE.format(base=start))
    tag = f"{IMAGE}:{os.getpid()}"
    podman("build", "--quiet", *podman.run_flags, "--network", "none", "--tag", tag, str(context))
    yield tag
    podman("rmi", "--force", tag)


@pytest.fixture
def job(image, lab, target, tmp_path):
    """(start, a secret): ``start(job, **answers)`` runs the template's job; it returns the process, its status, its events."""
    from tests.lab.engine import engine

    folder = tmp_path / "private"
    rows = yaml_reader.load(lab.inventory.read_text())["all"]["children"]["gpu"]
    become = rows["hosts"][target.name].pop("ansible_become_password")
    key = Path(rows["vars"].pop("ansible_ssh_private_key_file"))
    known = rows["vars"]["ansible_ssh_common_args"].partition("UserKnownHostsFile=")[2].split()[0]
    files = {
        # AWX lists the playbooks of a project only: one line that names ours.
        "project/site.yml": "- ansible.builtin.import_playbook: gpu.provision.site\n",
        "project/key.asc": Path(rows["vars"]["nvidia_driver_repo_key"]).read_text(),
        "project/known_hosts": Path(known).read_text(),
        # The two parts of a machine credential, in files that only ansible-runner opens.
        "env/ssh_key": key.read_text(),
        "env/passwords": json.dumps({r"BECOME password.*:\s*$": become}),
        "env/cmdline": "--ask-become-pass",
        # Root's podman: ansible-builder's user 1000 could not read root's files. A job that hangs must not hang the tests.
        "env/settings": json.dumps({"container_options": [*engine().run_flags, "--network=host", "--user=root"]}),
    }
    rows["vars"]["nvidia_driver_repo_key"] = "/runner/project/key.asc"
    rows["vars"]["ansible_ssh_common_args"] = "-o UserKnownHostsFile=/runner/project/known_hosts"
    files["inventory/hosts.yml"] = yaml.safe_dump({"gpu_nodes": rows})
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)

    def start(job, **survey):
        # also the container's name
        ident = f"{job}-{os.getpid()}"
        answers = {question["variable"]: question["default"] for question in SURVEY} | survey
        extra = yaml_reader.load(TEMPLATE["extra_vars"]) | answers
        (folder / "env/extravars").write_text(json.dumps(extra))
        options = ["--process-isolation", "--process-isolation-executable", "podman", "--container-image", image]
        words = [*options, "--ident", ident, "--playbook", TEMPLATE["playbook"]]
        argv = [sys.executable, "-m", "ansible_runner", "run", str(folder), *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
        artifacts = folder / "artifacts" / ident
        events = [json.loads(path.read_text()) for path in (artifacts / "job_events").glob("*.json")]
        assert (artifacts / "rc").exists(), done.stdout + done.stderr
        assert (artifacts / "rc").read_text() == str(done.returncode)
        return done, (artifacts / "status").read_text(), sorted(events, key=lambda event: event["counter"])

    return start, become


@pytest.mark.lab
def test_a_job_of_awx_provisions_and_changes_nothing_the_second_time(job, target):
    start, secret = job
    done, status, events = start("first")
    assert (done.returncode, status) == (0, "successful"), done.stdout + done.stderr
    assert "nvidia" in target.run("apt-mark showhold").stdout
    kinds = {event["event"] for event in events}
    assert {"playbook_on_start", "runner_on_ok", "playbook_on_stats"} <= kinds
    assert not {"runner_on_failed", "runner_on_unreachable"} & kinds
    assert events[-1]["event_data"]["changed"][target.name]
    # AWX stores what is printed and the events.
    assert secret not in done.stdout + json.dumps(events)
    done, status, events = start("second")
    assert (done.returncode, status) == (0, "successful"), done.stdout + done.stderr
    assert events[-1]["event_data"]["changed"] == {} and events[-1]["event_data"]["failures"] == {}
    # An answer that cannot be had: the job is red, and its event says why.
    done, status, events = start("third", nvidia_driver_branch="99")
    assert (done.returncode, status) == (2, "failed"), done.stdout + done.stderr
    (failed,) = [event for event in events if event["event"] == "runner_on_failed"]
    assert "99" in failed["event_data"]["res"]["msg"]
