# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Read CUDA as programs see it: toolkits, compilers, links, libraries, headers. Part of the probe; nothing is started.

``read_cuda`` returns provision.facts.Cuda as a dict. Folders are looked at by name, never walked. Standard library
only, Python 3.8 and later.
"""

from __future__ import annotations

import os
import re

from ansible_collections.gpu.provision.plugins.module_utils.cuda import files as cuda_files
from ansible_collections.gpu.provision.plugins.module_utils.cuda import shell as cuda_shell
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, lazy_re, ld_cache, own_files
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import integer

# Folder of a toolkit's target (source: NVIDIA's packages of 13.0) and Debian's name, by dpkg's architecture.
TARGETS = {"amd64": ("x86_64-linux",), "arm64": ("sbsa-linux", "aarch64-linux")}
TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
# Libraries that decide whether programs start, and whose mixing breaks them; the rest follows its toolkit.
_FAMILIES = "cudart|cublasLt|cublas|cufft|curand|cusolver|cusparseLt|cusparse|nvJitLink|nvrtc|cudnn(?:_[a-z_]+)?|nccl"
_LIBRARY = lazy_re.compile(r"^lib(?P<family>" + _FAMILIES + r")\.so\.(?P<version>[0-9][0-9.]*)$")
_PREFIXES = ("libcu", "libnv", "libnccl")
_LINKS = lazy_re.compile(r"^cuda(?:-[0-9]+)?$")
_GROUPS = lazy_re.compile(r"^(?:cuda(?:-[0-9]+)?|(?:lib)?cudnn.*|nvcc)$")
_RELEASE = lazy_re.compile(r"^[0-9]+\.[0-9]+(?:\.[0-9]+)*")
_HEAD = 65536
_MOST_ENVIRONMENTS = 64
_CONDA_HOMES = ("miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba", ".conda")


def read_cuda(tree, packages, owners, arch, folders):
    """Return (facts.Cuda as a dict, {/usr/local/cuda-X.Y: release or version of every real folder, or None}).

    packages, owners: of the probe. arch: dpkg's name. folders: where the loader looks besides its cache, in order.
    """
    lines, path, library_path = cuda_shell.read_lines(tree)
    reader = _Reader(tree, packages, owners, arch)
    toolkits = reader.toolkits()
    cuda = {
        "nvccs": reader.nvccs(path),
        "toolkits": toolkits,
        "alternatives": read_alternatives(tree),
        "links": read_links(tree),
        "libraries": reader.libraries(library_path + folders),
        "headers": reader.headers(),
        "ld_so_conf": read_ld_so_conf(tree),
        "loader_gone": read_loader_gone(tree),
        "shell_lines": lines,
        "compilers": read_compilers(tree),
        "shells": read_shells(tree),
    }
    cuda["other_modulefiles"] = modulefiles(tree, cuda["shells"])[1]
    return cuda, reader.folders


def _folders(tree):
    names = [name for name in tree.names("/usr/local") if re.match(r"^cuda(?:-[0-9]|$)", name)]
    paths = ["/usr/local/" + name for name in names]
    return [path for path in paths if not tree.is_link(path) and tree.is_dir(path)]


class _Reader(object):
    def __init__(self, tree, packages, owners, arch):
        self.tree, self.owners = tree, owners
        self.targets = TARGETS.get(arch, ())
        self.triplet = TRIPLETS.get(arch, arch)
        self.installed = [name for name in packages if packages[name]["status"][1] not in "nc"]
        self.packages = packages
        self._real, self._homes, self.folders = {}, {}, {}

    # ---- toolkits and compilers

    def toolkits(self):
        """[facts.Toolkit] of /usr/local: folders in which there is a compiler, headers or the runtime library."""
        found = []
        for path in _folders(self.tree):
            names = set(self.tree.names(path + "/bin"))
            library = self._library_folder(path)
            row = {
                "path": path,
                "compiler": "nvcc" in names,
                "headers": self.tree.exists(path + "/include/cuda_runtime.h"),
                "runtime": any(name.startswith("libcudart.so.") for name in self.tree.names(library)),
                "uninstaller": path + "/bin/cuda-uninstaller" if "cuda-uninstaller" in names else None,
            }
            version, release, build = self._version(path, row["compiler"] or row["runtime"])
            if path != "/usr/local/cuda":
                self.folders[path] = release or version
            if row["compiler"] or row["headers"] or row["runtime"]:
                row.update(version=version, release=release, package=self._toolkit_owner(path, version))
                self._homes[path] = (version, build)
                found.append(row)
        return sorted(found, key=lambda row: deb_version.natural_key(row["path"]))

    def _version(self, path, real):
        """(minor, release, build of nvcc) of a toolkit, each None where it does not say."""
        text = self.tree.read(path + "/version.json", _HEAD) or ""
        parts = dict(re.findall(r'"(cuda|cuda_nvcc)"\s*:\s*\{[^}]*"version"\s*:\s*"([^"]+)"', text))
        release = parts.get("cuda")
        if release is None:
            match = re.search(r"CUDA Version ([0-9.]+)", self.tree.read(path + "/version.txt", _HEAD) or "")
            release = match.group(1) if match else None
        if release:
            return ".".join(release.split(".")[:2]), release, parts.get("cuda_nvcc")
        header = self.tree.read(path + "/include/cuda.h", _HEAD, head=True) or ""
        header = header[max(0, header.find("CUDA_VERSION") - 64) :]
        number = re.search(r"^#define[ \t]+CUDA_VERSION[ \t]+([0-9]{4,6})\b", header, re.M)
        if number:
            return "%d.%d" % (int(number.group(1)) // 1000, int(number.group(1)) % 1000 // 10), None, None
        name = re.match(r"^cuda-([0-9]+\.[0-9]+)$", os.path.basename(path))
        return name.group(1) if name and real else None, None, None

    def _toolkit_owner(self, path, version):
        """A package with files in the folder: the compiler's, else the runtime's, else any of that release."""
        suffix = "-" + (version or "").replace(".", "-")
        named = [name for name in self.installed if version and name.split(":")[0].endswith(suffix)]
        parts = ("cuda-nvcc", "cuda-cudart", "cuda-cudart-dev")
        first = [name for part in parts for name in named if name.startswith(part + suffix)]
        return self.owners.first(path + "/", first + named, part=True)

    def nvccs(self, path):
        """[facts.Nvcc], those on a login's PATH first, in its order. path: folders of that PATH."""
        found, seen = [], set()
        places = [(folder, True) for folder in path]
        places += [(home + "/bin", False) for home in sorted(self._homes, key=deb_version.natural_key)]
        places += [("/usr/bin", False), ("/usr/lib/nvidia-cuda-toolkit/bin", False)]
        places += [(folder + "/bin", False) for folder in self._other_prefixes()]
        for folder, on_path in places:
            row = self._nvcc(folder, on_path) if folder.startswith("/") else None
            if row and (on_path or row["target"] not in seen):
                seen.add(row["target"])
                if not any(other["path"] == row["path"] for other in found):
                    found.append(row)
        return found

    def _nvcc(self, folder, on_path):
        path = folder + "/nvcc"
        if not self.tree.exists(path):
            return None
        target = self.tree.resolve(path)
        script = self.tree.read_bytes(target, 2048, head=True) or b""
        if script.startswith(b"#!"):
            match = re.search(rb"(/[^\s\"';|&$]+/nvcc)(?=[\s\"';]|$)", script[script.find(b"\n") :])
            inner = self.tree.resolve(match.group(1).decode("utf-8", "replace")) if match else target
            target = inner if self.tree.exists(inner) else target
        home = os.path.dirname(os.path.dirname(target))
        package = self._owner(target) or self._owner(path)
        version, build = self._homes.get(home, (None, None))
        if package:
            match = _RELEASE.match(re.sub(r"^[0-9]+:", "", self.packages[package]["version"]))
            build = match.group(0) if match else build
        conda = None
        if not package and version is None and self.tree.is_dir(home + "/conda-meta"):
            conda = home
            names = (
                re.match(r"^cuda-nvcc(?:-tools|-impl)?-([0-9.]+)-", n) for n in self.tree.names(home + "/conda-meta")
            )
            build = next((match.group(1) for match in names if match), None)
        if version is None and build is None:
            version, _, build = self._version(home, False)
        version = version or (".".join(build.split(".")[:2]) if build else None)
        return {
            "path": path,
            "target": target,
            "version": version,
            "build": build,
            "package": package,
            "on_path": on_path,
            "environment": conda,
        }

    def _other_prefixes(self):
        """Where else people install a compiler: /opt, NVIDIA's HPC SDK, conda environments. Two levels, no walk."""
        tree = self.tree
        tops = ["/opt/" + name for name in tree.names("/opt")]
        sdk = "/opt/nvidia/hpc_sdk"
        found = [
            "%s/%s/%s/compilers" % (sdk, system, release)
            for system in (tree.names(sdk) if "/opt/nvidia" in tops else [])
            for release in tree.names("%s/%s" % (sdk, system))
        ]
        mounts = cuda_shell.Mounts(tree)
        homes = ["/root"] + (
            [] if mounts.remote("/home") else ["/home/" + n for n in tree.names("/home")[:_MOST_ENVIRONMENTS]]
        )
        for home in homes:
            if not mounts.remote(home):
                tops += ["%s/%s" % (home, name) for name in tree.names(home) if name in _CONDA_HOMES]
        for top in tops:
            found.append(top)
            if not mounts.remote(top):
                found += ["%s/envs/%s" % (top, name) for name in tree.names(top + "/envs")]
        return found[: 4 * _MOST_ENVIRONMENTS]

    def _owner(self, path):
        """Package that owns a program of CUDA."""
        release = re.match(r"^/usr/local/cuda-([0-9]+)\.([0-9]+)", path)
        if release:
            wanted = ["cuda-nvcc-%s-%s" % release.groups()]
        else:
            wanted = ["nvidia-cuda-toolkit", "nvidia-cuda-toolkit-gcc", "nvidia-cuda-dev"]
        return self.owners.first(path, [name for name in self.installed if name.split(":")[0] in wanted])

    # ---- libraries and headers

    def _library_folder(self, home):
        if self.tree.is_dir(home + "/lib64"):
            return home + "/lib64"
        found = ["%s/targets/%s/lib" % (home, target) for target in self.targets]
        return next((folder for folder in found if self.tree.is_dir(folder)), home + "/lib")

    def _resolve_folder(self, folder):
        if folder not in self._real:
            self._real[folder] = self.tree.resolve(folder)
        return self._real[folder]

    def _resolve(self, path):
        """Like tree.resolve, with folders remembered: hundreds of libraries lie in a handful of them."""
        for _ in range(8):
            folder, name = os.path.split(path)
            path = "%s/%s" % (self._resolve_folder(folder).rstrip("/"), name)
            target = self.tree.link(path)
            if target is None:
                return path
            path = target if target.startswith("/") else os.path.normpath(os.path.join(os.path.dirname(path), target))
        return self.tree.resolve(path)

    def libraries(self, folders):
        """[facts.CudaLibrary]: those of the loader's cache in its order, then the others, by folder."""
        data = self.tree.read_bytes("/etc/ld.so.cache")
        cache = {}
        for soname, path in ld_cache.entries(data or b"", (b"libcu", b"libnccl", b"libnv")):
            if _LIBRARY.match(soname) or soname == "libcuda.so.1":
                cache.setdefault((soname, self._resolve(path)), path)
        found = [(soname, path, target, True) for (soname, target), path in cache.items()]
        for folder in self._library_folders(folders):
            for soname, path in self._sonames(folder):
                target = self._resolve(path)
                if (soname, target) not in cache:
                    cache[soname, target] = path
                    found.append((soname, path, target, False if data else None))
        # The driver's own libcuda is reported under facts.libraries; here only what stands in for it.
        return [
            self._library(*row)
            for row in found
            if self.tree.exists(row[2]) and (row[0] != "libcuda.so.1" or "/compat" in row[2])
        ]

    def _library_folders(self, folders):
        own = [self._library_folder(home) for home in sorted(self._homes, key=deb_version.natural_key)]
        compat = ["%s/compat" % path for path in _folders(self.tree)]
        places = folders + own + compat + ["/usr/lib/" + self.triplet, "/usr/lib/cuda/lib64", "/usr/local/lib"]
        real = {}
        for folder in places:
            real.setdefault(self._resolve_folder(folder), folder)
        return list(real.values())

    def _sonames(self, folder):
        """(name that programs ask for, path) of a folder: links, and files that no link of it leads to."""
        names = [name for name in self.tree.names(folder) if name.startswith(_PREFIXES) and _LIBRARY.match(name)]
        linked = {os.path.basename(self.tree.link("%s/%s" % (folder, name)) or "") for name in names}
        found = [name for name in names if name not in linked or self.tree.is_link("%s/%s" % (folder, name))]
        if folder.endswith("/compat"):
            found += [name for name in ("libcuda.so.1",) if self.tree.exists("%s/%s" % (folder, name))]
        # libcudnn.so.8 and libcudnn.so.8.0.3, both copied as files: the shorter name is what programs ask for.
        short = {name for name in found if any(name.startswith(other + ".") for other in found)}
        return [(name, "%s/%s" % (folder, name)) for name in found if name not in short]

    def _library(self, soname, path, target, in_cache):
        version = _file_version(target)
        if version == soname.partition(".so.")[2] or version is None:
            version = self._sibling_version(target) or version
        family = "cuda-compat" if soname == "libcuda.so.1" else _LIBRARY.match(soname).group("family").lower()
        real = "%s/%s" % (self._resolve_folder(os.path.dirname(path)).rstrip("/"), os.path.basename(path))
        package = self._library_owner(real, family)
        if package is None and os.path.dirname(real) == os.path.dirname(target):
            # ldconfig makes such links itself.
            package = self._library_owner(target, family)
        return {
            "soname": soname,
            "path": path,
            "target": target,
            "version": version,
            "package": package,
            "in_cache": in_cache,
        }

    def _sibling_version(self, target):
        """A copy without links: the file beside it with the whole version in its name and the same size."""
        own = self.tree.stat(target)
        folder, name = os.path.split(target)
        for other in self.tree.names(folder):
            if other.startswith(name + ".") and own:
                found = self.tree.stat("%s/%s" % (folder, other))
                if found and found.st_size == own.st_size:
                    return _file_version(other)
        return None

    def _library_owner(self, path, family):
        family = re.sub(r"^cudnn_.*", "cudnn", family)
        family = "cublas" if family == "cublaslt" else family
        release = re.match(r"^/usr/local/cuda-([0-9]+)\.([0-9]+)/", path)
        suffix = "-%s-%s" % release.groups() if release else ""
        names = [
            name
            for name in self.installed
            if family in name and name.split(":")[0].endswith(suffix) and "-dev" not in name
        ]
        return self.owners.first(path, names)

    def headers(self):
        """[facts.Header] of cuDNN and NCCL in the order of the compiler's search, each file once."""
        found, seen = [], set()
        folders = ["/usr/local/include", "/usr/include/" + self.triplet, "/usr/include"]
        folders += [home + "/include" for home in sorted(self._homes, key=deb_version.natural_key)]
        for library, names in (("cudnn", ("cudnn_version.h", "cudnn.h")), ("nccl", ("nccl.h",))):
            for folder in folders:
                for name in names:
                    row = self._header(library, "%s/%s" % (folder, name), seen)
                    if row:
                        found.append(row)
                        break
        return found

    def _header(self, library, path, seen):
        target = self._resolve(path)
        if target in seen or not self.tree.exists(target):
            return None
        text = self.tree.read(target, _HEAD, head=True) or ""
        values = dict(re.findall(r"^#define\s+(?:CUDNN|NCCL)_(MAJOR|MINOR|PATCHLEVEL|PATCH)\s+([0-9]+)", text, re.M))
        if "MAJOR" not in values:
            return None
        seen.add(target)
        names = [name for name in self.installed if library in name]
        real = "%s/%s" % (self._resolve_folder(os.path.dirname(path)).rstrip("/"), os.path.basename(path))
        parts = (values["MAJOR"], values.get("MINOR"), values.get("PATCHLEVEL") or values.get("PATCH"))
        return {
            "name": library,
            "path": path,
            "version": ".".join(part for part in parts if part),
            "package": self.owners.first(target, names) or self.owners.first(real, names),
        }


def _file_version(name):
    match = re.search(r"\.so\.([0-9][0-9.]*)$", name)
    return match.group(1) if match else None


def read_alternatives(tree):
    """[facts.Alternative] of CUDA and cuDNN. Source of the format: update-alternatives(1), FILES."""
    found = []
    base = "/var/lib/dpkg/alternatives"
    for name in tree.names(base):
        if not _GROUPS.match(name):
            continue
        lines = (tree.read("%s/%s" % (base, name)) or "").splitlines()
        if len(lines) < 2:
            continue
        # Mode and link, then (name, link) of each slave, an empty line, then each choice: path, priority, slaves.
        end = next((at for at in range(2, len(lines), 2) if not lines[at]), len(lines))
        width, choices = 2 + (end - 2) // 2, {}
        for at in range(end + 1, len(lines) - 1, width):
            if lines[at] and integer(lines[at + 1]) is not None:
                choices[lines[at]] = integer(lines[at + 1])
        found.append(
            {
                "name": name,
                "link": lines[1],
                "manual": lines[0] == "manual",
                "current": tree.link("/etc/alternatives/" + name),
                "choices": choices,
                "dangling": [path for path in sorted(choices) if not tree.exists(path)],
            }
        )
    return found


def read_links(tree):
    """[facts.CudaLink]: /usr/local/cuda and /usr/local/cuda-NN, whatever they are."""
    found = []
    for name in tree.names("/usr/local"):
        if _LINKS.match(name):
            path = "/usr/local/" + name
            link, folder = tree.is_link(path), tree.is_dir(path)
            found.append(
                {
                    "path": path,
                    "kind": "link" if link else "directory" if folder else "file",
                    "target": tree.link(path) if link else None,
                    "resolved": tree.resolve(path) if folder else None,
                }
            )
    return found


def read_loader_gone(tree):
    """[{file, line, text}] of lines of the loader's configuration whose CUDA folder is not there (remote ones are not asked)."""
    mounts, found = cuda_shell.Mounts(tree), []
    for file in ["/etc/ld.so.conf"] + ["/etc/ld.so.conf.d/" + name for name in tree.names("/etc/ld.so.conf.d")]:
        if not file.endswith(".conf"):
            continue
        for number, line in enumerate((tree.read(file, 65536) or "").splitlines(), 1):
            path = line.split("#", 1)[0].strip()
            if not path.startswith("/") or ".." in path or not cuda_shell.names_cuda(path) or mounts.remote(path):
                continue
            if not tree.exists(path) and not tree.is_noted(path):
                found.append({"file": file, "line": number, "text": path[:300]})
    return found[:20]


def read_ld_so_conf(tree):
    """{file: [folders]} of the loader's configuration files that name CUDA."""
    found = {}
    names = ["/etc/ld.so.conf"] + ["/etc/ld.so.conf.d/" + name for name in tree.names("/etc/ld.so.conf.d")]
    for file in names:
        lines = (line.split("#", 1)[0].strip() for line in (tree.read(file, _HEAD) or "").splitlines())
        folders = [line for line in lines if line.startswith("/")]
        if any(map(cuda_shell.names_cuda, folders)):
            found[file] = folders
    return found


def read_compilers(tree):
    """facts.Compilers: nvcc hands the host's part of a program to gcc and refuses one that is too new."""
    match = re.search(r"gcc-([0-9]+)$", tree.resolve("/usr/bin/gcc")) if tree.exists("/usr/bin/gcc") else None
    named = [name for name in tree.names("/usr/bin") if name.startswith("g++-")]
    majors = {match.group(1) for match in (re.match(r"^g\+\+-([0-9]+)$", name) for name in named) if match}
    return {"gcc": match.group(1) if match else None, "available": sorted(majors, key=int)}


def read_shells(tree):
    """facts.Shells. Folders of modulefiles by the packages environment-modules 5.2 and lmod 8.6 of Debian."""

    def program(*names):
        return any(tree.exists(folder + name) for name in names for folder in ("/usr/bin/", "/bin/"))

    return {
        "fish": program("fish"),
        "csh": program("csh", "tcsh", "bsd-csh"),
        "zsh": program("zsh"),
        "environment_modules": _module_folder(tree, "/usr/share/modules/init", "/etc/environment-modules"),
        "lmod": _module_folder(tree, "/usr/share/lmod", "/etc/lmod"),
    }


def _module_folder(tree, program, base):
    """Where an administrator's modulefiles belong: the first folder of the search path that packages do not own."""
    if not tree.is_dir(program):
        return None
    lines = (tree.read(base + "/modulespath", _HEAD) or "").splitlines()
    listed = [line.split("#", 1)[0].strip().rstrip("/") for line in lines]
    own = [path for path in listed if path.startswith("/") and not path.startswith("/usr/") and "$" not in path]
    return own[0] if own else base + "/modules"


def modulefiles(tree, shells):
    """(paths of the modulefiles that the role wrote, which say so in their first lines; paths of other people's)."""
    own, other = [], []
    for base in (shells["environment_modules"], shells["lmod"]):
        for name in tree.names(base + "/cuda") if base else []:
            path = "%s/cuda/%s" % (base, name)
            if cuda_files.MODULE.search(path):
                ours = own_files.has_header(tree.read_bytes(path, 512, head=True) or b"")
                (own if ours else other).append(path)
    return own, other
