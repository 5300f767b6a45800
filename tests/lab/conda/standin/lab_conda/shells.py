"""Commands that run things in an environment, and those about shells and settings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from .environments import target
from .failure import Failure
from .prefix import root
from .settings import config, read_rc, write_rc


def run_command(args):
    prefix = target(args)
    if not os.path.isfile(os.path.join(prefix, "conda-meta/history")):
        raise Failure("EnvironmentLocationNotFound: Not a conda environment: %s" % prefix)
    env = dict(
        os.environ,
        CONDA_PREFIX=prefix,
        CONDA_DEFAULT_ENV=os.path.basename(prefix),
        CONDA_EXE=os.path.abspath(sys.argv[0]),
        PATH=os.path.join(prefix, "bin") + ":" + os.environ.get("PATH", "/usr/bin:/bin"),
    )
    folder = os.path.join(prefix, "etc/conda/activate.d")
    scripts = (
        [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".sh")]
        if os.path.isdir(folder)
        else []
    )
    text = "".join('. "%s"\n' % path for path in scripts) + 'exec "$@"\n'
    return subprocess.run(["bash", "-c", text, "conda-run", *args.command], env=env, check=False).returncode


def configure(args):
    path = args.file or {"system": os.path.join(root(), ".condarc"), "env": os.path.join(target(args), ".condarc")}.get(
        args.where or "", os.path.expanduser("~/.condarc")
    )
    values = read_rc(path)
    if args.show is not None or args.get is not None:
        shown = config() if args.show is not None else values
        keys = args.show or args.get or sorted(shown)
        print(
            json.dumps({key: shown.get(key) for key in keys})
            if args.json
            else "\n".join("%s: %s" % (k, shown.get(k)) for k in keys)
        )
        return 0
    for key, value in args.set or ():
        values[key] = {"true": True, "false": False}.get(value.lower(), value)
    for key, value in args.add or ():
        values[key] = [value] + [item for item in values.get(key) or [] if item != value]
    for key, value in args.append or ():
        values[key] = [item for item in values.get(key) or [] if item != value] + [value]
    for key, value in args.remove or ():
        values[key] = [item for item in values.get(key) or [] if item != value]
    for (key,) in args.remove_key or ():
        values.pop(key, None)
    write_rc(path, values)
    return 0


BLOCK = """# >>> conda initialize >>>
# !! Contents within this block are managed by 'conda init' !!
__conda_setup="$('{0}/bin/conda' 'shell.{1}' 'hook' 2> /dev/null)"
if [ $? -eq 0 ]; then
    eval "$__conda_setup"
else
    if [ -f "{0}/etc/profile.d/conda.sh" ]; then
        . "{0}/etc/profile.d/conda.sh"
    else
        export PATH="{0}/bin:$PATH"
    fi
fi
unset __conda_setup
# <<< conda initialize <<<
"""


def init(args):
    for shell in args.shells or ["bash"]:
        path = os.path.expanduser("~/.zshrc" if shell == "zsh" else "~/.bashrc")
        before = ""
        if os.path.isfile(path):
            with open(path) as file:
                before = file.read()
        text = re.sub(r"\n?# >>> conda initialize >>>\n.*?# <<< conda initialize <<<\n+", "\n", before, flags=re.S)
        if not args.reverse:
            text = text.rstrip("\n") + "\n\n" + BLOCK.format(root(), "posix" if shell == "bash" else shell) + "\n"
        if not args.dry_run and text != before:
            with open(path, "w") as file:
                file.write(text)
        print("%-13s %s" % ("modified" if text != before else "no change", path))
    return 0


def shell_hook(_):
    with open(os.path.join(root(), "etc/profile.d/conda.sh")) as file:
        sys.stdout.write(file.read())
    return 0
