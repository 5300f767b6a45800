# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""SHA-256 and SHA-1 by Python itself, where it can: hashlib loads OpenSSL, which takes longer than all that a read has to hash.

Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

try:
    from _sha1 import sha1
except ImportError:
    from hashlib import sha1
try:
    # Python 3.12 and later
    from _sha2 import sha256
except ImportError:
    try:
        from _sha256 import sha256
    except ImportError:
        from hashlib import sha256

__all__ = ["sha1", "sha256"]
