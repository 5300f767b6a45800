"""dkms: add, build, install, remove, autoinstall and status, with the texts, folders and exit codes of the real one.

'Building' writes module files with a true .modinfo. It fails where the real one fails: no headers for the kernel,
or a kernel newer than the driver's source compiles on (``MAX_KERNEL`` in the source's dkms.conf, from the catalog).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from . import driver_files, initramfs, state

TREE, SOURCES = "/var/lib/dkms", "/usr/src"
MOK = "/var/lib/shim-signed/mok"


class Failed(Exception):
    """What dkms prints before it ends, and its exit code."""

    def __init__(self, code, *lines):
        super().__init__("\n".join(lines))
        self.code = code


def conf(name, version):
    """Settings of a source's dkms.conf."""
    text = state.read("%s/%s-%s/dkms.conf" % (SOURCES, name, version))
    if text is None:
        raise Failed(
            2,
            "Error! Could not find module source directory.",
            "Directory: %s/%s-%s does not exist." % (SOURCES, name, version),
        )
    return dict(re.findall(r'^(\w+)(?:\[\d+\])?="?([^"\n]*)"?$', text, re.M))


def add(name, version):
    conf(name, version)
    folder = "%s/%s/%s" % (TREE, name, version)
    if os.path.exists(folder):
        return
    os.makedirs(folder + "/build", exist_ok=True)
    os.symlink("%s/%s-%s" % (SOURCES, name, version), folder + "/source")
    print("Creating symlink %s/source -> %s/%s-%s" % (folder, SOURCES, name, version))


def build(name, version, kernel):
    settings = conf(name, version)
    folder = "%s/%s/%s/%s/x86_64" % (TREE, name, version, kernel)
    if os.path.isdir(folder + "/module"):
        return
    if not os.path.isdir("/lib/modules/%s/build" % kernel):
        raise Failed(
            21,
            "Error! Your kernel headers for kernel %s cannot be found at /lib/modules/%s/build or /lib/modules/%s/source."
            % (kernel, kernel, kernel),
            "Please install the linux-headers-%s package or use the --kernelsourcedir option to tell DKMS where it's located."
            % kernel,
        )
    print("\nBuilding module:\nCleaning build area...")
    log = "%s/%s/%s/build/make.log" % (TREE, name, version)
    limit = settings.get("MAX_KERNEL")
    if limit and _series(kernel) > _series(limit):
        state.write(
            log,
            "DKMS make.log for %s-%s for kernel %s (x86_64)\n"
            % (name, version, kernel)
            + "nvidia-drm/nvidia-drm-drv.c: error: too few arguments to function 'drm_helper_mode_fill_fb_struct'\n"
            "make[1]: *** [Makefile:1992: nvidia-drm] Error 2\n",
        )
        raise Failed(
            10,
            "Error! Bad return status for module build on kernel: %s (x86_64)" % kernel,
            "Consult %s for more information." % log,
        )
    signed_by = signer()
    os.makedirs(folder + "/module")
    flavour = settings.get("FLAVOUR", "proprietary")
    for file, data in driver_files.modules(version, flavour, kernel, signed_by).items():
        with open("%s/module/%s" % (folder, file), "wb") as handle:
            handle.write(data)
        if signed_by:
            print("Signing module %s/module/%s" % (folder, file))
    state.write(folder + "/log/make.log", "DKMS make.log for %s-%s for kernel %s (x86_64)\n" % (name, version, kernel))


def install(name, version, kernel):
    build(name, version, kernel)
    source = "%s/%s/%s/%s/x86_64/module" % (TREE, name, version, kernel)
    target = "/lib/modules/%s/updates/dkms" % kernel
    os.makedirs(target, exist_ok=True)
    for file in os.listdir(source):
        shutil.copy(os.path.join(source, file), target)
    link = "%s/%s/kernel-%s-x86_64" % (TREE, name, kernel)
    if os.path.islink(link):
        os.unlink(link)
    os.symlink("%s/%s/x86_64" % (version, kernel), link)
    subprocess.run(["depmod", kernel], check=True)


def remove(name, version, kernels):
    folder = "%s/%s/%s" % (TREE, name, version)
    if not os.path.isdir(folder):
        raise Failed(3, "Error! The module/version combo: %s-%s is not located in the DKMS tree." % (name, version))
    for kernel in kernels or built(name, version):
        link = "%s/%s/kernel-%s-x86_64" % (TREE, name, kernel)
        if os.path.islink(link) and os.readlink(link).split("/")[0] == version:
            os.unlink(link)
            for file in driver_files.modules(version, "open", kernel):
                path = "/lib/modules/%s/updates/dkms/%s" % (kernel, file)
                if os.path.exists(path):
                    os.unlink(path)
            if os.path.isdir("/lib/modules/" + kernel):
                subprocess.run(["depmod", kernel], check=True)
        shutil.rmtree("%s/%s" % (folder, kernel), ignore_errors=True)
    if not built(name, version):
        shutil.rmtree(folder)
        parent = os.path.dirname(folder)
        if not os.listdir(parent):
            os.rmdir(parent)


def built(name, version):
    """Kernels that a module version was built for."""
    folder = "%s/%s/%s" % (TREE, name, version)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted((n for n in names if os.path.isdir("%s/%s/x86_64/module" % (folder, n))), key=initramfs.version_key)


def added():
    """(name, version) pairs in the DKMS tree."""
    pairs = []
    for name in sorted(os.listdir(TREE)) if os.path.isdir(TREE) else []:
        for version in sorted(os.listdir("%s/%s" % (TREE, name))):
            if not version.startswith("kernel-"):
                pairs.append((name, version))
    return pairs


def signer():
    """Common name of the machine owner key, made when Secure Boot first needs one; None where modules stay unsigned."""
    if not (state.host().get("secure_boot") or os.path.exists(MOK + "/MOK.der")):
        return None
    if not os.path.exists(MOK + "/MOK.der"):
        if os.environ.get("DEBIAN_FRONTEND") != "noninteractive":
            # shim-signed asks for the password of the new key, and -y does not answer debconf.
            print(
                "Configuring Secure Boot\n\nEnter a password for Secure Boot. It will be asked again after a reboot.\n"
            )
            sys.stdin.readline()
        os.makedirs(MOK, exist_ok=True)
        for name in ("MOK.der", "MOK.priv"):
            shutil.copy("%s/own-%s" % (state.ETC, name), "%s/%s" % (MOK, name))
        os.chmod(MOK + "/MOK.priv", 0o600)
    return state.read(state.ETC + "/own-name")


def _series(release):
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2]))


def status(only):
    for name, version in added():
        if only and only != name:
            continue
        kernels = built(name, version)
        if not kernels:
            print("%s/%s: added" % (name, version))
        for kernel in kernels:
            link = "%s/%s/kernel-%s-x86_64" % (TREE, name, kernel)
            here = os.path.islink(link) and os.readlink(link).split("/")[0] == version
            print("%s/%s, %s, x86_64: %s" % (name, version, kernel, "installed" if here else "built"))


def autoinstall(kernels):
    for name, version in added():
        for kernel in kernels:
            install(name, version, kernel)


def main(argv):
    words, options = [], {"kernels": []}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.partition("=")
        if word in ("-m", "-v", "-k", "--kernelver"):
            key, value, equals = word, rest.pop(0), "="
        if key in ("-k", "--kernelver") and equals:
            options["kernels"].append(value.split("/")[0])
        elif key in ("-m", "-v") and equals:
            options[key] = value
        elif word == "--all":
            options["all"] = True
        elif not word.startswith("-"):
            words.append(word)
    action, target = (words + ["status"])[0], (words[1:] or [options.get("-m", "")])[0]
    name, _, version = target.partition("/")
    version = version or options.get("-v", "")
    kernels = options["kernels"] or [state.release()]
    try:
        if action == "status":
            status(name)
        elif action == "autoinstall":
            autoinstall(kernels)
        elif action == "add":
            add(name, version)
        elif action in ("build", "install"):
            add(name, version)
            for kernel in kernels:
                (build if action == "build" else install)(name, version, kernel)
        elif action in ("remove", "uninstall"):
            remove(name, version, options["kernels"])
        else:
            raise Failed(1, "Error! Unknown action specified: " + action)
    except Failed as problem:
        print(problem, file=sys.stderr)
        return problem.code
    return 0
