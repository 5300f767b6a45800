"""Build conda installations and environments as file trees, from a few words each.

Keys of a description, beside those of tests/unit/trees.py:
    prefixes [{path, conda, python, channel, packages [NAME-VERSION-BUILD], lacks [paths], extra {path: text}}]
    environments [{path, python, packages [NAME-VERSION-BUILD], pip [NAME-VERSION], files {path: text}, links {path: target},
                  lacks [paths]}]
"""

import json

from tests.unit import trees


def build(root, tree):
    """Write the tree below root and return root as text."""
    trees.build(root, {key: value for key, value in tree.items() if key not in ("prefixes", "environments")})
    root.mkdir(parents=True, exist_ok=True)
    for prefix in tree.get("prefixes", []):
        _prefix(root, **prefix)
    for environment in tree.get("environments", []):
        _environment(root, **environment)
    return str(root)


def _prefix(
    root,
    path,
    conda="26.5.3",
    python="3.13.5",
    channel="https://repo.anaconda.com/pkgs/main",
    packages=(),
    lacks=(),
    extra=None,
):
    _environment(root, path, python, [f"conda-{conda}-py313_0", *packages])
    record = {"build": "py313_0", "channel": channel, "name": "conda", "version": conda}
    trees.write(root, f"{path}/conda-meta/conda-{conda}-py313_0.json", json.dumps(record))
    trees.write(root, f"{path}/bin/conda", "#!/bin/sh\n").chmod(0o755)
    for name, text in (extra or {}).items():
        trees.write(root, f"{path}/{name}", text)
    for name in lacks:
        for file in root.glob(f"{path[1:]}/{name}"):
            file.unlink()


def _environment(root, path, python="3.11.9", packages=(), pip=(), files=None, links=None, lacks=()):
    trees.write(root, f"{path}/conda-meta/history", "==> 2026-11-01 10:00:00 <==\n")
    for name in [f"python-{python}-h955ad1f_0", *packages]:
        trees.write(root, f"{path}/conda-meta/{name}.json", "{}")
    trees.write(root, f"{path}/bin/python", "").chmod(0o755)
    site = f"{path}/lib/python{'.'.join(python.split('.')[:2])}/site-packages"
    for name in pip:
        trees.write(root, f"{site}/{name}.dist-info/METADATA", "")
    for name, text in (files or {}).items():
        trees.write(root, f"{path}/{name.replace('SITE', site.removeprefix(path + '/'))}", text)
    for name, target in (links or {}).items():
        trees.link(root, f"{path}/{name}", target)
    for name in lacks:
        (root / path[1:] / name).unlink()
