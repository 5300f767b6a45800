"""Commands that make environments and show what is in them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

from .failure import Failure
from .prefix import records, root
from .settings import channel_urls, chosen_channels, config, rc_paths
from .solver import Spec, repodata, solve, virtual_packages
from .terms import check_terms
from .transaction import transaction


def target(args):
    if getattr(args, "prefix", None):
        return os.path.abspath(args.prefix)
    if getattr(args, "name", None):
        return root() if args.name == "base" else os.path.join(root(), "envs", args.name)
    return os.environ.get("CONDA_PREFIX") or root()


def read_specs(path):
    """Specs of a file: (explicit URLs, specs) of a list."""
    with open(path) as file:
        lines = [line.split("#")[0].strip() for line in file]
    lines = [line for line in lines if line]
    return "@EXPLICIT" in lines, [line for line in lines if line != "@EXPLICIT"]


def create(args):
    prefix = target(args)
    if os.path.isdir(os.path.join(prefix, "conda-meta")) and not args.dry_run:
        if not args.yes:
            raise Failure("CondaValueError: prefix already exists: %s" % prefix)
        shutil.rmtree(prefix)
    return install(args, prefix, "create")


def install(args, prefix=None, verb="install"):
    prefix = prefix or target(args)
    if verb == "install" and not os.path.isfile(os.path.join(prefix, "conda-meta/history")):
        raise Failure("EnvironmentLocationNotFound: Not a conda environment: %s" % prefix)
    texts, explicit = list(args.specs), []
    for path in args.file or ():
        is_explicit, lines = read_specs(path)
        if is_explicit:
            explicit += lines
        else:
            texts += lines
    if explicit:
        chosen = {}
        for url in explicit:
            url, _, digest = url.partition("#")
            name, version, build = re.sub(r"\.(tar\.bz2|conda)$", "", url.rsplit("/", 1)[1]).rsplit("-", 2)
            chosen[name] = {"name": name, "version": version, "build": build, "url": url, "fn": url.rsplit("/", 1)[1]}
        transaction(prefix, chosen, verb, ())
        return 0
    channels = chosen_channels(args)
    check_terms(channels)
    specs = [Spec(text) for text in texts]
    keep = [
        Spec("%s==%s" % (r["name"], r["version"]))
        for r in records(prefix).values()
        if r["name"] not in {s.name for s in specs}
    ]
    print(
        "Channels:\n%s\nPlatform: linux-64\nCollecting package metadata (repodata.json): done"
        % "\n".join(" - " + c for c in channels)
    )
    chosen = solve(specs + (keep if verb == "install" else []), repodata(channels))
    print("Solving environment: done\n\n## Package Plan ##\n\n  environment location: %s\n" % prefix)
    for record in chosen.values():
        print("  %-20s %s-%s" % (record["name"], record["version"], record["build"]))
    if not args.dry_run:
        transaction(prefix, chosen, " ".join(sys.argv), specs)
    return 0


def read_environment(path):
    """(channels, specs, pip requirements) of an environment.yml, in the shape that people write."""
    channels, specs, pip, where = [], [], [], None
    with open(path) as file:
        for line in file:
            line = line.split(" #")[0].rstrip()
            if not line or line.startswith("#"):
                continue
            key = re.match(r"(\w+):\s*(.*)$", line)
            if key:
                where = key.group(1)
                continue
            item = re.match(r"(\s*)-\s*(.+)$", line)
            if not item:
                continue
            value = item.group(2).strip("\"'")
            if where == "channels":
                channels.append(value)
            elif where in ("dependencies", "pip"):
                if value in ("pip:", "pip :"):
                    where = "pip"
                    continue
                (pip if where == "pip" and len(item.group(1)) > 2 else specs).append(value)
    return channels, specs, pip


def env_create(args):
    prefix = target(args)
    channels, specs, pip = read_environment(args.file)
    if os.path.isdir(os.path.join(prefix, "conda-meta")):
        raise Failure("CondaValueError: prefix already exists: %s" % prefix)
    args.channel, args.override_channels = (
        [c for c in channels if c != "nodefaults"],
        "nodefaults" in channels or bool(channels),
    )
    args.specs, args.file, args.dry_run, args.yes = specs, [], False, True
    install(args, prefix, "create")
    if pip:
        print("Installing pip dependencies: ...working...", flush=True)
        done = subprocess.run([os.path.join(prefix, "bin/python"), "-m", "pip", "install", "-U", *pip], check=False)
        if done.returncode:
            raise Failure("CondaEnvException: Pip failed")
    return 0


def env_command(args):
    if args.action == "create":
        return env_create(args)
    if args.action == "export":
        return export(args)
    if args.action == "list":
        return list_environments(args)
    shutil.rmtree(target(args))
    return 0


def environments():
    folder = os.path.join(root(), "envs")
    found = [root()]
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if os.path.isfile(os.path.join(folder, name, "conda-meta/history")):
            found.append(os.path.join(folder, name))
    return found


def list_environments(args):
    if args.json:
        print(json.dumps({"envs": environments()}, indent=2))
    else:
        print("# conda environments:\n#")
        for path in environments():
            print("%-24s %s" % ("base" if path == root() else os.path.basename(path), path))
    return 0


def pip_list(prefix):
    done = subprocess.run(
        [os.path.join(prefix, "bin/python"), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    known = {re.sub(r"[-_.]+", "-", name) for name in records(prefix)}
    listed = json.loads(done.stdout) if done.returncode == 0 else []
    return [item for item in listed if re.sub(r"[-_.]+", "-", item["name"].lower()) not in known]


def export(args):
    prefix = target(args)
    if not os.path.isfile(os.path.join(prefix, "conda-meta/history")):
        raise Failure("EnvironmentLocationNotFound: Not a conda environment: %s" % prefix)
    there = records(prefix)
    print("name: %s\nchannels:" % (None if args.prefix else args.name))
    for channel in dict.fromkeys(record["channel"] for record in there.values()):
        print("  - " + channel)
    print("dependencies:")
    for record in there.values():
        print("  - %s=%s%s" % (record["name"], record["version"], "" if args.no_builds else "=" + record["build"]))
    pip = pip_list(prefix)
    if pip:
        print("  - pip:")
        for item in pip:
            print("      - %s==%s" % (item["name"].lower(), item["version"]))
    print("prefix: " + prefix)
    return 0


def list_packages(args):
    prefix = target(args)
    if not os.path.isdir(os.path.join(prefix, "conda-meta")):
        raise Failure("EnvironmentLocationNotFound: Not a conda environment: %s" % prefix)
    there = [record for name, record in records(prefix).items() if not args.specs or re.search(args.specs[0], name)]
    if args.explicit:
        print(
            "# This file may be used to create an environment using:\n# $ conda create --name <env> --file <this file>\n"
            "# platform: linux-64\n@EXPLICIT"
        )
        print("\n".join(record["url"] for record in there))
        return 0
    rows = []
    for record in there:
        name = "%s-%s-%s" % (record["name"], record["version"], record["build"])
        rows.append(
            {
                "base_url": record["channel"],
                "build_number": record.get("build_number", 0),
                "build_string": record["build"],
                "channel": record["channel"].rsplit("/", 1)[-1],
                "dist_name": name,
                "name": record["name"],
                "platform": record.get("subdir", "linux-64"),
                "version": record["version"],
            }
        )
    rows += [
        {
            "base_url": "https://conda.anaconda.org/pypi",
            "build_number": 0,
            "build_string": "pypi_0",
            "channel": "pypi",
            "dist_name": "%s-%s-pypi_0" % (item["name"], item["version"]),
            "name": item["name"].lower(),
            "platform": "pypi",
            "version": item["version"],
        }
        for item in pip_list(prefix)
        if not args.specs or re.search(args.specs[0], item["name"])
    ]
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        print(
            "# packages in environment at %s:\n#\n# Name                    Version                   Build  Channel"
            % prefix
        )
        for row in rows:
            print("%-25s %-15s %15s  %s" % (row["name"], row["version"], row["build_string"], row["channel"]))
    return 0


def info(args):
    data = {
        "conda_version": version(),
        "root_prefix": root(),
        "conda_prefix": root(),
        "default_prefix": root(),
        "sys.prefix": root(),
        "envs": environments(),
        "envs_dirs": [os.path.join(root(), "envs")],
        "pkgs_dirs": [os.path.join(root(), "pkgs")],
        "channels": channel_urls(config().get("channels") or ["defaults"]),
        "config_files": [path for path in rc_paths() if os.path.isfile(path)],
        "virtual_pkgs": virtual_packages(),
        "platform": "linux-64",
        "python_version": "%d.%d.%d.final.0" % sys.version_info[:3],
        "UID": os.getuid(),
        "rc_path": os.path.expanduser("~/.condarc"),
        "sys_rc_path": os.path.join(root(), ".condarc"),
    }
    if args.envs:
        return list_environments(args)
    print(json.dumps(data, indent=2) if args.json else "\n".join("%24s : %s" % item for item in data.items()))
    return 0


def version():
    return records(root())["conda"]["version"]
