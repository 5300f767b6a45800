"""The command line."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import sys

from .environments import create, env_command, info, install, list_packages, target, version
from .failure import Failure
from .shells import configure, init, run_command, shell_hook
from .terms import tos


def parser():
    top = argparse.ArgumentParser(prog="conda")
    top.add_argument("-V", "--version", action="store_true")
    commands = top.add_subparsers(dest="command_name")

    def add(name, function, **options):
        sub = commands.add_parser(name, **options)
        sub.set_defaults(function=function)
        return sub

    def where(sub):
        sub.add_argument("-n", "--name")
        sub.add_argument("-p", "--prefix")

    def solving(sub):
        where(sub)
        sub.add_argument("-c", "--channel", action="append")
        sub.add_argument("--override-channels", action="store_true")
        for flag in (
            ("-q", "--quiet"),
            ("-k", "--insecure"),
            ("--offline",),
            ("--no-deps",),
            ("--strict-channel-priority",),
            ("--json",),
        ):
            sub.add_argument(*flag, action="store_true")
        sub.add_argument("-y", "--yes", action="store_true")
        sub.add_argument("-d", "--dry-run", action="store_true")
        sub.add_argument("--solver")

    for name, function in (("create", create), ("install", install), ("update", install)):
        sub = add(name, function)
        solving(sub)
        sub.add_argument("--file", action="append")
        sub.add_argument("specs", nargs="*")
    sub = add("env", env_command)
    sub.add_argument("action", choices=["create", "export", "list", "remove"])
    where(sub)
    sub.add_argument("-f", "--file")
    sub.add_argument("--no-builds", action="store_true")
    for flag in ("-q", "--quiet"), ("-y", "--yes"), ("--json",):
        sub.add_argument(*flag, action="store_true")
    sub.add_argument("--solver")
    sub = add("remove", lambda args: (shutil.rmtree(target(args)), 0)[1])
    where(sub)
    sub.add_argument("--all", action="store_true", required=True)
    sub.add_argument("-y", "--yes", action="store_true")
    sub = add("list", list_packages)
    where(sub)
    for flag in ("--json",), ("--explicit",), ("-e", "--export"), ("--md5",):
        sub.add_argument(*flag, action="store_true")
    sub.add_argument("specs", nargs="*")
    sub = add("info", info)
    sub.add_argument("--json", action="store_true")
    sub.add_argument("-e", "--envs", action="store_true")
    sub = add("run", run_command)
    where(sub)
    sub.add_argument("--no-capture-output", "--live-stream", action="store_true")
    sub.add_argument("command", nargs=argparse.REMAINDER)
    sub = add("config", configure)
    where(sub)
    sub.add_argument("--file")
    for name in ("system", "env"):
        sub.add_argument("--" + name, dest="where", action="store_const", const=name)
    sub.add_argument("--json", action="store_true")
    sub.add_argument("--show", nargs="*")
    sub.add_argument("--get", nargs="*")
    for name in ("set", "add", "append", "remove"):
        sub.add_argument("--" + name, nargs=2, action="append")
    sub.add_argument("--remove-key", nargs=1, action="append")
    sub = add("init", init)
    sub.add_argument("shells", nargs="*")
    for flag in ("--reverse",), ("-d", "--dry-run"), ("-q", "--quiet"):
        sub.add_argument(*flag, action="store_true")
    sub = add("tos", tos)
    sub.add_argument("action", nargs="?", choices=["accept", "reject", "view"])
    for name in ("site", "system", "user"):
        sub.add_argument("--" + name, dest="location", action="store_const", const=name)
    sub.add_argument("-c", "--channel", action="append")
    sub.add_argument("--override-channels", action="store_true")
    for name in ("shell.posix", "shell.bash", "shell.zsh"):
        add(name, shell_hook).add_argument("what", nargs="*")
    return top


def main():
    if len(sys.argv) > 1 and sys.argv[1] in ("activate", "deactivate"):
        print("\nCondaError: Run 'conda init' before 'conda %s'\n" % sys.argv[1], file=sys.stderr)
        return 1
    args = parser().parse_args()
    if args.version:
        print("conda " + version())
        return 0
    if not args.command_name:
        parser().print_help()
        return 0
    try:
        return args.function(args)
    except Failure as failure:
        print("\n%s\n" % failure, file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno == errno.ENOSPC:
            print("\nNoSpaceLeftError: No space left on devices.\n", file=sys.stderr)
        elif error.errno in (errno.EACCES, errno.EROFS):
            print(
                "\nEnvironmentNotWritableError: The current user does not have write permissions to the target environment.\n"
                "  environment location: %s\n  uid: %d\n  gid: %d\n\n%s"
                % (getattr(args, "prefix", ""), os.getuid(), os.getgid(), error),
                file=sys.stderr,
            )
        else:
            print("\nCondaError: %s\n" % error, file=sys.stderr)
        return 1
