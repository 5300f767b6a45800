"""A host with tokens in the files of users and of the system: no command prints one, and none is written, on either side.

A simulation: kernel, cards and NVIDIA's programs are stand-ins; apt, systemd, sudo and ssh are real.
"""

import pytest

from provision.lib import yaml_reader
from tests import forked, sample

pytestmark = pytest.mark.lab

# Each place has a token of its own: what leaks names where it leaked from.
NAMES = (
    "condarc_token condarc_password condarc_alias condarc_key apt_login apt_user apt_error apt_proxy daemon_proxy daemon_log"
    " environment_proxy environment_token pip_system pip_user pip_proxy dropin_proxy dropin_token profile_token netrc history"
)
TOKENS = {name: f"S3CRETx{name.replace('_', '')}x0" for name in NAMES.split()}
FILES = {
    "/home/lab/.condarc": "channels:\n  - https://conda.invalid/t/{condarc_token}/chan\n  - https://u:{condarc_password}@conda.invalid/c\n"
    "channel_alias: https://u:{condarc_alias}@conda.invalid/\nanaconda_token: {condarc_key}\n",
    "/etc/apt/sources.list.d/private.list": "deb http://u:{apt_login}@private.invalid/ubuntu noble main\n"
    "deb https://{apt_user}@private.invalid/ubuntu noble main\ndeb http://u:{apt_error}@private.invalid/ubuntu\n",
    "/etc/apt/apt.conf.d/98private": 'Acquire::http::Proxy::private.invalid "http://u:{apt_proxy}@proxy.invalid:3128";\n',
    "/etc/docker/daemon.json": '{{"http-proxy": "http://u:{daemon_proxy}@proxy.invalid:3128", "log-driver": "splunk", '
    '"log-opts": {{"splunk-token": "{daemon_log}"}}}}\n',
    "/etc/environment": "FTP_PROXY=http://u:{environment_proxy}@proxy.invalid:3128\nHF_TOKEN={environment_token}\n",
    "/etc/pip.conf": "[global]\nindex-url = https://u:{pip_system}@pip.invalid/simple\nproxy = http://u:{pip_proxy}@proxy.invalid:3128\n",
    "/home/lab/.config/pip/pip.conf": "[global]\nextra-index-url = https://{pip_user}@pip.invalid/simple\n",
    "/etc/systemd/system/docker.service.d/proxy.conf": '[Service]\nEnvironment="HTTPS_PROXY=http://u:{dropin_proxy}@proxy.invalid:3128"\n'
    "Environment=WANDB_API_KEY={dropin_token}\n",
    "/etc/profile.d/site.sh": "export NGC_API_KEY={profile_token}\n",
    "/home/lab/.netrc": "machine h.invalid login u password {netrc}\n",
}
# A conda of the user, by its marks alone.
CONDA = (
    "install -d -o lab /home/lab/miniconda3/conda-meta /home/lab/miniconda3/bin && cd /home/lab/miniconda3 && touch"
    " conda-meta/history conda-meta/conda-26.5.3-py313_0.json conda-meta/python-3.13.5-x_0.json "
    " && printf '#!/bin/sh\\n' > bin/conda"
    " && cp bin/conda bin/python && chmod 755 bin/* && chown -R lab /home/lab"
)
COMMANDS = [
    ("scan",),
    ("scan", "-v"),
    ("scan", "--json"),
    ("envs",),
    ("envs", "-v"),
    ("envs", "--json", "-v"),
    ("plan",),
    ("plan", "-v"),
    ("plan", "--json"),
    ("diagnose",),
    ("diagnose", "-v"),
    ("diagnose", "--json"),
    ("apply", "--yes", "-vvv", "--json"),
    ("plan", "--json"),
    ("lock",),
    ("drift",),
    ("drift", "-v"),
    ("drift", "--json"),
    ("history", "gpu01", "--json"),
    ("verify", "--json"),
    ("rescue", "--offline-script", "-o", "{output}", "--json"),
    ("rescue", "--dry-run", "-v"),
    ("init", "--from-inventory", "-o", "{output}", "--json"),
]
# With -v and as JSON a read says more than without; make test has most commands in one of the two.
LEFT_OUT = [words for words in COMMANDS if len(words) == 1 and words != ("lock",)]
LEFT_OUT += [("scan", "--json"), ("envs", "-v"), ("diagnose", "-v"), ("drift", "-v")]
# Where we, or apt on our behalf, write on a host.
WRITTEN = "/var/log /var/lib/gpu-provision /var/cache/gpu-provision /tmp /var/tmp /run /root /etc/gpu-provision"


def found(text):
    return [name for name, token in TOKENS.items() if token in text]


def in_files(host):
    """{token: files} of what lies in our folders and logs on the host, and in its journal; snapshots are the host's own files."""
    tokens = " ".join(f"-e {token}" for token in TOKENS.values())
    kept = "--exclude-dir=snapshots --exclude-dir=backup"
    lines = host.run(f"grep -roFa {kept} {tokens} {WRITTEN} 2>&-", check=False).stdout.splitlines()
    journal = host.run(f"journalctl --no-pager -o export 2>&- | grep -oFa {tokens}", check=False).stdout.split()
    told = {}
    for line in [*lines, *(f"journal:{token}" for token in journal)]:
        file, token = line.rsplit(":", 1)
        # The host's own record of a command that its owner typed.
        if file != "/var/log/apt/history.log":
            told.setdefault(next(name for name in TOKENS if TOKENS[name] == token), set()).add(file)
    return told


def test_no_token_is_printed_or_written_anywhere(fleet, tmp_path):
    command = fleet({"name": "gpu01", "gpus": ["A100 x2"], "nouveau": False})
    host = command.lab.host("gpu01")
    for path, text in FILES.items():
        content = text.format(**TOKENS)
        host.run(f"mkdir -p $(dirname {path}) && cat > {path} <<'EOF'\n{content}EOF")
    host.run(
        "printf 'Start-Date: 2026-11-28  10:00:00\\nCommandline: apt-get -o Acquire::http::Proxy=http://u:%s@p:1 install nvidia-x"
        "\\nInstall: nvidia-utils-1 (1)\\n\\n' " + TOKENS["history"] + " >> /var/log/apt/history.log"
    )
    host.run(CONDA)
    # apt reads no other user's file, and a source that is malformed would stop every apt: it is there for the reads only.
    before = in_files(host)
    table = []
    for number, words in enumerate(words for words in COMMANDS if sample.THOROUGH or words not in LEFT_OUT):
        if words[0] == "apply":
            host.run("sed -i '$d' /etc/apt/sources.list.d/private.list")
        output = str(tmp_path / f"output{number}")
        argv = ["-i", str(command.lab.inventory), *(word.format(output=output) for word in words)]
        done = forked.run(argv, command.env, tmp_path, 600)
        leaked = found(done.stdout + done.stderr)
        table.append((" ".join(words), done.returncode, len(done.stdout) + len(done.stderr), leaked))
        print(
            f"{' '.join(words):42} rc {done.returncode}  {len(done.stdout) + len(done.stderr):7} characters  tokens {leaked or 0}"
        )
        assert done.returncode != 64 and "internal.error" not in done.stdout + done.stderr, (
            done.stderr[-2000:] + done.stdout[-2000:]
        )
    here = {}
    for path in [*tmp_path.rglob("*"), *command.lab.inventory.parent.rglob("*")]:
        if path.is_file() and (names := found(path.read_bytes().decode("utf-8", "replace"))):
            here[str(path)] = names
    there = {name: files for name, files in in_files(host).items() if files != before.get(name)}
    print(f"files here: {here or 0}; files and journal there: {there or 0}")
    assert [row for row in table if row[3]] == [] and here == {} and there == {}
    # The tokens were read, and what is around them was told: the host's own files still hold them.
    said = command.run("scan", "--json").stdout
    assert found(said) == []
    assert "https://conda.invalid/t/***/chan" in said and "http://***@private.invalid/ubuntu" in said
    for path in FILES:
        kept = found(host.run(f"cat {path}").stdout)
        assert all(name in kept for name in TOKENS if f"{{{name}}}" in FILES[path] and name != "apt_error"), path
    assert yaml_reader.load(said)
