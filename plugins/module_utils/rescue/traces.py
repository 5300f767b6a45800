# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What a driver leaves on a disk that no package owns: found by exact names in known places, never by a pattern over all.

``find`` is pure over a HostTree. Names are those of NVIDIA's .run installer (its own .manifest lists them; branches 390 to
620) and of DKMS; every one is looked up in dpkg's lists of files, and what any package owns is not ours. The container
toolkit (libnvidia-container*, nvidia-container-*, nvidia-ctk, nvidia-cdi-hook), CUDA's folders, nvidia-fs and the kernel's
own modules (nvidiafb, i2c-nvidia-gpu) match none of these names.

Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import os
import re
import stat

TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu", "i386-linux-gnu")
LIBRARY_FOLDERS = tuple("/usr/lib/" + triplet for triplet in TRIPLETS) + ("/usr/lib64", "/usr/lib32", "/usr/lib")
_LIBRARY = re.compile(
    r"^(libcuda|libcudadebugger|libnvcuvid|libnvoptix|libEGL_nvidia|libGLX_nvidia|libGLESv1_CM_nvidia|libGLESv2_nvidia|"
    r"libvdpau_nvidia|libnvidia-[a-z0-9-]+|libnvsdm)\.so(\.[0-9.]+)?$"
)
_CONTAINERS = "libnvidia-container"
# Below each folder of libraries: (folder, names in it).
_INNER = (
    ("vdpau", r"libvdpau_nvidia\.so(\.[0-9.]+)?"),
    ("gbm", r"nvidia-drm_gbm\.so"),
    ("tls", r"libnvidia-tls\.so(\.[0-9.]+)?"),
    ("xorg/modules/drivers", r"nvidia_drv\.so"),
    ("xorg/modules/extensions", r"(libglx\.so\.[0-9.]+|libglxserver_nvidia\.so(\.[0-9.]+)?)"),
    ("nvidia/wine", r"_?nvngx(_dlssg)?\.dll"),
)
BINARIES = frozenset(
    (
        "nvidia-bug-report.sh",
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-debugdump",
        "nvidia-installer",
        "nvidia-modprobe",
        "nvidia-ngx-updater",
        "nvidia-pcc",
        "nvidia-persistenced",
        "nvidia-powerd",
        "nvidia-settings",
        "nvidia-sleep.sh",
        "nvidia-smi",
        "nvidia-uninstall",
        "nvidia-xconfig",
    )
)
# In /usr/bin and made by others; everything else there that begins with nvidia- is named, not removed.
_OTHERS = re.compile(r"^nvidia-(?:container|ctk|cdi|docker|toolkit)")
MODULE = re.compile(r"^nvidia(-uvm|-modeset|-drm|-peermem)?\.ko(\.(xz|gz|zst))?$")
_MODULE_PLACES = (
    "updates/dkms",
    "updates",
    "extra",
    "weak-updates",
    "misc",
    "kernel/drivers/video",
    "kernel/drivers/video/nvidia",
    "kernel/drivers/char/drm",
    "kernel/extra",
    "kernel/misc",
)
_PREBUILT = re.compile(r"^nvidia-[0-9][0-9][0-9](-server|srv)?(-open)?$")
# Modules of DKMS that are the driver: the archive calls its -server series nvidia-srv, Debian its own nvidia-current.
DKMS_NAMES = ("nvidia", "nvidia-srv", "nvidia-open", "nvidia-current", "nvidia-current-open")
_VERSION = re.compile(r"^[0-9]{3}\.[0-9.]+$")
_SOURCE = re.compile(r"^(?:nvidia|nvidia-srv|nvidia-open|nvidia-current|nvidia-current-open)-[0-9]{3}\.[0-9.]+$")
FILES = (
    "/etc/OpenCL/vendors/nvidia.icd",
    "/etc/vulkan/icd.d/nvidia_icd.json",
    "/usr/share/vulkan/icd.d/nvidia_icd.json",
    "/usr/share/vulkansc/icd.d/nvidia_icd_vksc.json",
    "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
    "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
    "/usr/share/egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json",
    "/usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json",
    "/usr/share/egl/egl_external_platform.d/99_nvidia_wayland2.json",
    "/usr/share/applications/nvidia-settings.desktop",
    "/usr/share/pixmaps/nvidia-settings.png",
    "/usr/share/icons/hicolor/128x128/apps/nvidia-settings.png",
    "/usr/share/dbus-1/system.d/nvidia-dbus.conf",
    "/usr/lib/systemd/system-sleep/nvidia",
    "/usr/share/man/man1/nvidia-smi.1.gz",
    "/usr/share/man/man1/nvidia-settings.1.gz",
    "/usr/share/man/man1/nvidia-xconfig.1.gz",
    "/usr/share/man/man1/nvidia-installer.1.gz",
    "/usr/share/man/man1/nvidia-modprobe.1.gz",
    "/usr/share/man/man1/nvidia-persistenced.1.gz",
    "/usr/share/man/man1/nvidia-cuda-mps-control.1.gz",
)
UNITS = (
    "nvidia-hibernate.service",
    "nvidia-persistenced.service",
    "nvidia-powerd.service",
    "nvidia-resume.service",
    "nvidia-suspend.service",
    "nvidia-suspend-then-hibernate.service",
)
# what lies in /etc is the owner's
_UNIT_FOLDERS = ("/usr/lib/systemd/system", "/lib/systemd/system")
# Folders that hold nothing but a driver's files: taken as a whole, where no package owns the folder.
TREES = (
    "/usr/share/nvidia",
    "/usr/share/doc/NVIDIA_GLX-1.0",
    "/usr/lib/nvidia",
    "/usr/lib32/nvidia",
    "/var/lib/nvidia",
)
# Settings that came with it: moved into the snapshot.
_ASIDE = re.compile(r"^nvidia-(?:installer[a-z-]*|graphics-drivers(?:-[a-z]+)*|blacklists-nouveau)\.conf$")
_ASIDE_FOLDERS = ("/etc/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
_X_FILES = ("10-nvidia.conf", "nvidia-drm-outputclass.conf", "10-nvidia-drm-outputclass.conf")
_X_FOLDERS = ("/usr/share/X11/xorg.conf.d", "/etc/X11/xorg.conf.d")
_X_MADE = re.compile(rb"^#.*\b(?:nvidia-xconfig|nvidia-settings|nvidia-installer):", re.M)


class Traces(object):
    """What was found. All are sorted lists of absolute paths, except the last two.

    files: to be removed; trees: folders to be removed with all in them; aside: to be moved into the snapshot; links:
    dangling enablements of removed units; kernels: releases that lose a module; dkms: [(name, version)];
    left: [(path, why)] of what looks like a driver's and is not touched.
    """

    __slots__ = ("aside", "dkms", "files", "kernels", "left", "links", "trees")

    def __init__(self):
        self.files, self.trees, self.aside, self.links, self.kernels = [], [], [], [], []
        self.dkms, self.left = [], []

    @property
    def any(self):
        return bool(self.files or self.trees or self.aside or self.links or self.dkms)


def find(tree, with_packages=False):
    """Return the Traces of a host. with_packages: a driver's packages are still there, and will take theirs along.

    Then modules of DKMS and of signed packages, and their trees, are not counted: those are made on the host and no
    list names them. Mounted files (a container that was given its host's driver) are left.
    """
    found = Traces()
    candidates = _libraries(tree) + _binaries(tree, found) + [p for p in FILES if _is_there(tree, p)] + _units(tree)
    modules = _modules(tree)
    folders = [p for p in TREES if tree.is_dir(p) and not tree.is_link(p)] + _firmware(tree) + _sources(tree)
    asides = _asides(tree)
    owned = owners(tree, candidates + [path for path, _ in modules] + folders + asides)
    mounted = _mounted(tree)
    for path in candidates:
        _take(path, owned, mounted, found, found.files)
    for path, kernel in modules:
        made = "/updates/dkms/" in path or "/kernel/nvidia-" in path
        if with_packages and made:
            continue
        if _take(path, owned, mounted, found, found.files) and kernel not in found.kernels:
            found.kernels.append(kernel)
    for path in folders:
        if not (with_packages and path.startswith("/usr/src/")):
            _take(path, owned, mounted, found, found.trees)
    for path in asides:
        _take(path, owned, mounted, found, found.aside)
    found.dkms = [] if with_packages else _dkms(tree)
    found.links = _dangling(tree, [path for path in found.files if path.endswith(".service")])
    for name in ("files", "trees", "aside", "links", "kernels"):
        setattr(found, name, sorted(set(getattr(found, name))))
    return found


def uninstaller(tree):
    """Path of the driver's own uninstaller, where a .run file put it there; None otherwise.

    Only a file that root owns and nobody else can write is started.
    """
    for path in ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-installer"):
        info = tree.stat(path)
        if info is None or not stat.S_ISREG(info.st_mode) or not info.st_mode & 0o100:
            continue
        if info.st_mode & 0o022 or (tree.live and info.st_uid != 0) or owners(tree, [path]):
            continue
        return path
    return None


def owners(tree, paths):
    """{path: package} of those paths that a package owns, by dpkg's lists. One pass, whatever the number of paths."""
    wanted = {}
    for path in paths:
        for spelling in _spellings(path):
            wanted[spelling.encode("utf-8", "surrogateescape")] = path
    found = {}
    info = "/var/lib/dpkg/info"
    for name in tree.names(info) if wanted else ():
        if not name.endswith(".list"):
            continue
        data = tree.read_bytes("%s/%s" % (info, name)) or b""
        # A list that has none of these letters has none of these paths: most lists of a host end here.
        if not any(
            word in data
            for word in (b"nvidia", b"NVIDIA", b"libcuda", b"libnv", b"nvngx", b"libglx", b"xorg.conf", b"ld.so")
        ):
            continue
        for line in set(data.split(b"\n")).intersection(wanted):
            found.setdefault(wanted[line], name[: -len(".list")])
    return found


def _spellings(path):
    """dpkg may know a path from before /usr was merged, or after."""
    for top in ("/lib/", "/lib32/", "/lib64/", "/bin/", "/sbin/"):
        if path.startswith(top):
            return (path, "/usr" + path)
        if path.startswith("/usr" + top):
            return (path, path[4:])
    return (path,)


def _take(path, owned, mounted, found, into):
    if path in owned:
        return False
    if path in mounted:
        found.left.append((path, "it is mounted into this system: it belongs to the machine below"))
        return False
    into.append(path)
    return True


def _is_there(tree, path):
    return tree.stat(path, follow=False) is not None


def _real_folders(tree, folders):
    """Without those that are another spelling of one before them (/lib64 leads to /usr/lib64)."""
    return [path for path in folders if tree.is_dir(path) and tree.resolve(path) == path]


def _libraries(tree):
    paths = []
    for folder in _real_folders(tree, LIBRARY_FOLDERS):
        names = [name for name in tree.names(folder) if not name.startswith(_CONTAINERS)]
        paths += ["%s/%s" % (folder, name) for name in names if _LIBRARY.match(name)]
        for inner, pattern in _INNER:
            where = "%s/%s" % (folder, inner)
            paths += ["%s/%s" % (where, name) for name in tree.names(where) if re.match("^%s$" % pattern, name)]
    return paths


def _binaries(tree, found):
    paths = []
    for folder in _real_folders(tree, ("/usr/bin", "/usr/sbin")):
        names = [name for name in tree.names(folder) if name.startswith("nvidia-")]
        paths += ["%s/%s" % (folder, name) for name in names if name in BINARIES]
        odd = ["%s/%s" % (folder, name) for name in names if name not in BINARIES and not _OTHERS.match(name)]
        owned = owners(tree, odd)
        found.left += [
            (path, "no package owns it, and it is no known part of a driver") for path in odd if path not in owned
        ]
    return paths


def _units(tree):
    paths = ["%s/%s" % (folder, unit) for folder in _real_folders(tree, _UNIT_FOLDERS) for unit in UNITS]
    return [path for path in paths if _is_there(tree, path)]


def _modules(tree):
    """[(path, kernel release)]"""
    found = []
    for base in _real_folders(tree, ("/lib/modules", "/usr/lib/modules")):
        for kernel in tree.names(base):
            top = "%s/%s" % (base, kernel)
            kernel_folders = tree.names(top + "/kernel")
            places = list(_MODULE_PLACES) + ["kernel/" + name for name in kernel_folders if _PREBUILT.match(name)]
            for place in places:
                where = "%s/%s" % (top, place)
                found += [("%s/%s" % (where, name), kernel) for name in tree.names(where) if MODULE.match(name)]
    return found


def _firmware(tree):
    """Folders of one version; those of chips (ga102, tu102) are linux-firmware's."""
    return [
        "%s/%s" % (folder, name)
        for folder in _real_folders(tree, ("/usr/lib/firmware/nvidia", "/lib/firmware/nvidia"))
        for name in tree.names(folder)
        if _VERSION.match(name)
    ]


def _sources(tree):
    return [
        "/usr/src/" + name for name in tree.names("/usr/src") if _SOURCE.match(name) and tree.is_dir("/usr/src/" + name)
    ]


def _dkms(tree):
    found = []
    for name in DKMS_NAMES:
        for version in tree.names("/var/lib/dkms/" + name):
            path = "/var/lib/dkms/%s/%s" % (name, version)
            if version[:1].isdigit() and tree.is_dir(path) and not tree.is_link(path):
                found.append((name, version))
    return found


def _asides(tree):
    paths = []
    for folder in _real_folders(tree, _ASIDE_FOLDERS):
        paths += ["%s/%s" % (folder, name) for name in tree.names(folder) if _ASIDE.match(name)]
    for folder in _real_folders(tree, _X_FOLDERS):
        paths += ["%s/%s" % (folder, name) for name in tree.names(folder) if name in _X_FILES]
    if _X_MADE.search(tree.read_bytes("/etc/X11/xorg.conf", 65536) or b""):
        paths.append("/etc/X11/xorg.conf")
    for name in tree.names("/etc/ld.so.conf.d"):
        path = "/etc/ld.so.conf.d/" + name
        if name.endswith(".conf") and _leads_to_driver(tree.read(path, 65536) or ""):
            paths.append(path)
    return paths


def _leads_to_driver(text):
    """True for a list of folders that are all a driver's: /usr/lib/nvidia-384, /usr/lib32/nvidia, …"""
    lines = [line.split("#", 1)[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    return bool(lines) and all(
        re.match(
            r"^/usr/lib(?:32|64|/(?:%s))?/nvidia(?:-[0-9]{3})?(?:/(?:current|tls|vdpau))?/?$" % "|".join(TRIPLETS), line
        )
        for line in lines
    )


def _dangling(tree, units):
    """Enablements (links in *.wants and *.requires) of units that go, or that went when a run was cut off."""
    gone = {os.path.basename(path) for path in units}
    found = []
    for folder in tree.names("/etc/systemd/system"):
        if folder.endswith((".wants", ".requires")):
            for name in tree.names("/etc/systemd/system/" + folder):
                path = "/etc/systemd/system/%s/%s" % (folder, name)
                if tree.is_link(path) and (name in gone or (name in UNITS and not tree.exists(path))):
                    found.append(path)
    return found


def _mounted(tree):
    """Mount points, as /proc/self/mountinfo names them."""
    text = tree.read("/proc/self/mountinfo") or ""
    return {line.split(" ")[4] for line in text.splitlines() if line.count(" ") > 4}
