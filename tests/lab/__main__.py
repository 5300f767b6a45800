"""``python -m tests.lab``: start, list, change and stop simulated GPU hosts by hand."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from provision.lib import yaml_reader

from . import Lab, LabError, labs, repos, setup
from .image import clean, image
from .lab import down_all, open_shell

EXAMPLE = """\
hosts file: one line a host, for example
  - {name: gpu01, gpus: [H100 SXM5 80GB x8], nvswitch: 4}
  - {name: gpu02, gpus: [V100 x2], ubuntu: "22.04", installed: [535 proprietary signed held]}
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("setup", help="install what the lab needs")
    commands.add_parser("image", help="build the image and print its tag")
    repo = commands.add_parser("repo", help="build the repositories; print their folder, or serve them until Ctrl-C")
    repo.add_argument("--ubuntu", default="24.04")
    repo.add_argument("--serve", action="store_true")
    up = commands.add_parser("up", help="start the hosts of a file")
    up.add_argument("hosts", type=Path, help="YAML file, or - for stdin")
    up.add_argument("--name", default="lab")
    down = commands.add_parser("down", help="stop a lab; without a name all of them, and what was left behind")
    down.add_argument("name", nargs="?")
    commands.add_parser("clean", help="remove the lab's images that no container uses")
    commands.add_parser("list", help="labs and their hosts")
    publish = commands.add_parser(
        "publish", help=f"publish newer versions: {', '.join(repos.PUBLICATIONS)} (all when none is named)"
    )
    publish.add_argument("what", nargs="*", choices=[*repos.PUBLICATIONS, []])
    publish.add_argument("--name", default="lab")
    run_ = commands.add_parser("run", help="run a command on a host as root")
    run_.add_argument("host")
    run_.add_argument("words", nargs=argparse.REMAINDER)
    run_.add_argument("--name", default="lab")
    for verb, text in (
        ("reboot", "restart hosts"),
        ("reset", "start hosts again from their prepared image"),
        ("shell", "log in over ssh"),
    ):
        one = commands.add_parser(verb, help=text)
        one.add_argument("host", nargs="?" if verb != "shell" else None)
        one.add_argument("--name", default="lab")
    options = parser.parse_args(argv)
    try:
        return _act(options)
    except (LabError, ValueError) as problem:
        print(f"lab: {problem}", file=sys.stderr)
        return 1


def _act(options: argparse.Namespace) -> int:
    command = options.command
    if command == "setup":
        setup.ensure()
    elif command == "image":
        setup.ensure()
        with repos.locked("image"):
            tag, what = image()
        setup.say(f"simulated hosts; base: {what}")
        print(tag)
    elif command == "repo":
        setup.ensure()
        if options.serve:
            _serve(options.ubuntu)
        else:
            print(repos.built(options.ubuntu))
    elif command == "up":
        text = sys.stdin.read() if str(options.hosts) == "-" else options.hosts.read_text()
        started = time.monotonic()
        lab = Lab.up(yaml_reader.load(text), options.name)
        setup.say(f"{len(lab.hosts)} hosts up in {time.monotonic() - started:.1f} s")
        print(lab.inventory)
    elif command == "down":
        if options.name:
            Lab.attach(options.name).down()
        else:
            down_all()
    elif command == "clean":
        clean()
    elif command == "list":
        for name in labs():
            lab = Lab.attach(name)
            print(f"{name}  {lab.inventory}")
            for host in lab.hosts.values():
                print(
                    f"  {host.name:12} {host.address}:{host.port}  Ubuntu {host.spec.ubuntu}  "
                    + (", ".join(host.spec.gpus) or "no GPU")
                )
    elif command == "publish":
        Lab.attach(options.name).publish(*options.what)
    elif command == "run":
        result = Lab.attach(options.name).host(options.host).run(options.words, check=False, timeout=3600)
        sys.stdout.write(result.stdout)
        sys.stderr.write(result.stderr)
        return result.rc
    elif command == "shell":
        return open_shell(Lab.attach(options.name).host(options.host))
    else:
        lab = Lab.attach(options.name)
        for host in [lab.host(options.host)] if options.host else lab.hosts.values():
            host.restart() if command == "reboot" else host.reset()
    return 0


def _serve(ubuntu: str) -> None:
    with Lab.start([], release=ubuntu) as lab:
        lab.served.add_release(ubuntu)
        print(
            json.dumps(
                {
                    "address": lab.server_address,
                    "archive": repos.archive_url(),
                    "nvidia": repos.nvidia_url(ubuntu),
                    "hosts": [repos.ARCHIVE_HOST, repos.NVIDIA_HOST],
                    "keys": {
                        name: {"file": str(key.public), "fingerprint": key.fingerprint}
                        for name, key in zip(("archive", "nvidia"), repos.keys(), strict=True)
                    },
                },
                indent=1,
            ),
            flush=True,
        )
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    sys.exit(main())
