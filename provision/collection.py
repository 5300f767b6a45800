"""Where the Ansible collection lies, and its stdlib-only shared code.

One set of roles, playbooks and plugins serves three installs: this checkout (through the tracked link
``.collections``), the wheel (inside the package) and a collection installed by ansible-galaxy (this package
then lies inside it).
"""

import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _find() -> tuple[Path, Path]:
    """Return (folder for ANSIBLE_COLLECTIONS_PATH, root of the collection)."""
    wheel = _PACKAGE / "_collections"
    if wheel.is_dir():
        return wheel, wheel / "ansible_collections/gpu/provision"
    root = _PACKAGE.parent
    if root.parent.name == "gpu" and root.parent.parent.name == "ansible_collections":
        return root.parent.parent.parent, root
    return root / ".collections", root


COLLECTIONS_PATH, ROOT = _find()
MODULE_UTILS = ROOT / "plugins" / "module_utils"

if str(COLLECTIONS_PATH) not in sys.path:
    sys.path.append(str(COLLECTIONS_PATH))
