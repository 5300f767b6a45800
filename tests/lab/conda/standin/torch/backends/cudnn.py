"""torch.backends.cudnn of the stand-in."""

from __future__ import annotations

from .. import _loader
from .._build import BUILD


def is_available():
    return bool(BUILD["cuda"])


def version():
    """cuDNN's number of what was loaded (90100, 8902); raises what torch raises for an older one than it was built with."""
    if not BUILD["cudnn"]:
        return None
    found = (_loader.LOADED.get("cudnn") or (None, None))[1]
    if not found:
        return None
    have, built = ([int(part) for part in text.split(".")[:3]] for text in (found, BUILD["cudnn"]))
    if have[0] == built[0] and have < built:
        raise RuntimeError(
            "cuDNN version incompatibility: PyTorch was compiled  against %s but found runtime version %s. PyTorch already "
            "comes bundled with cuDNN. One option to resolving this error is to ensure PyTorch can find the bundled cuDNN."
            % (tuple(built), tuple(have))
        )
    return have[0] * (10000 if have[0] >= 9 else 1000) + have[1] * 100 + have[2]
