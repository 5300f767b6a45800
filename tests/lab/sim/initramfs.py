"""update-initramfs: an initramfs that records what it would hold back, as it was when it was built.

A real initramfs carries modprobe.d; forgetting to rebuild it after blacklisting nouveau brings nouveau back at the
next boot. So does forgetting it here: boot.py reads the blacklist from the image of the kernel that starts.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import time

from . import state
from .modprobe_conf import blacklisted


def build(kernel):
    """Write /boot/initrd.img-KERNEL."""
    content = {"simulated initramfs of": kernel, "built": time.time(), "blacklist": blacklisted()}
    state.write("/boot/initrd.img-" + kernel, json.dumps(content) + "\n", 0o600)


def blacklist_in(kernel):
    """Blacklist inside the initramfs of a kernel; empty when there is none."""
    try:
        return json.loads(state.read("/boot/initrd.img-" + kernel, "{}"))["blacklist"]
    except (KeyError, ValueError):
        return []


def kernels():
    """Releases with an image in /boot, oldest first."""
    names = [path[len("/boot/vmlinuz-") :] for path in glob.glob("/boot/vmlinuz-*")]
    return sorted(names, key=version_key)


def version_key(release):
    """Sort key that orders kernel releases as ``sort -V`` does."""
    key, digits = [], ""
    for char in release + "\0":
        if char.isdigit():
            digits += char
            continue
        if digits:
            key.append((1, int(digits), ""))
            digits = ""
        key.append((0, 0, char))
    return key


def main(argv):
    """update-initramfs -u|-c|-d [-k RELEASE|all]; -u without -k means the newest kernel, as the real one has it."""
    kernel, mode, words = None, None, list(argv)
    while words:
        word = words.pop(0)
        if word in ("-u", "-c", "-d"):
            mode = word
        elif word == "-k":
            kernel = words.pop(0)
        elif word.startswith("-k"):
            kernel = word[2:]
        elif word.startswith("-") and set(word[1:]) <= set("ucdkvbt") and len(word) > 2:
            mode = "-" + next(letter for letter in word[1:] if letter in "ucd")
            kernel = words.pop(0) if "k" in word else kernel
    if mode is None:
        print("You must specify at least one of -c, -u, or -d.", file=sys.stderr)
        return 1
    if kernel is None:
        chosen = kernels()[-1:]
    elif kernel == "all":
        chosen = kernels()
    else:
        chosen = [kernel]
    for release in chosen:
        image = "/boot/initrd.img-" + release
        if mode == "-d":
            if os.path.exists(image):
                os.unlink(image)
            continue
        if mode == "-u" and not os.path.exists(image) and kernel != "all":
            print("update-initramfs: %s does not exist. Cannot update." % image, file=sys.stderr)
            return 1
        print("update-initramfs: Generating " + image)
        build(release)
    return 0
