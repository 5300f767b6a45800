"""nvcc and the programs that it builds: a SIMULATION that compiles nothing.

``nvcc -V`` prints what the real one of a release prints. ``nvcc -o PROGRAM SOURCE.cu`` checks what the real one checks
(input, host compiler and its version, target architectures, headers, libraries), then writes a stand-in program. That
program decides from the state of the simulated host whether the real one would run, and fails with the real one's words;
on success it prints the text after each ``// gpu-provision-expect:`` line of its source.

Texts: nvcc 11.8 to 13.0, cudaGetErrorString; which case gives which error: CUDA compatibility guide (driver and runtime),
compatibility guides of Hopper and Blackwell (code and PTX).
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import sys

from . import smi, state

EXPECT = re.compile(r"//\s*gpu-provision-expect:\s?(.*)")
# minor-version compatibility of a major
MINIMUM = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
VERSION = """\
nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-%(year)d NVIDIA Corporation
Built on %(built)s
Cuda compilation tools, release %(release)s, V%(version)s
Build cuda_%(release)s.r%(release)s/compiler.%(compiler)s
"""
# cudaGetErrorString of the errors that can come up here.
ERRORS = {
    35: "CUDA driver version is insufficient for CUDA runtime version",
    100: "no CUDA-capable device is detected",
    209: "no kernel image is available for execution on the device",
    222: "the provided PTX was compiled with an unsupported toolchain.",
    802: "system not yet initialized",
    803: "system has unsupported display driver / cuda driver combination",
}
HELP = """\
This is a stand-in for nvcc on a simulated host: it compiles nothing.
Known: -V --version -h --help --list-gpu-arch --list-gpu-code -o -c -arch -gencode -ccbin -cudart -I -L -l
-allow-unsupported-compiler
"""
_WRAPPER = """\
#!/usr/bin/python3 -SE
# Stand-in on a simulated host; see /usr/local/lib/sim.
import sys

TOOLKIT = %s
if sys.argv[1:] in (["-V"], ["--version"]):
    # Also where the simulator is not installed.
    sys.stdout.write(%s)
    sys.exit(0)
sys.path.insert(0, "/usr/local/lib")
from sim.nvcc import main

sys.exit(main(sys.argv[1:], TOOLKIT))
"""
_PROGRAM = """\
#!/usr/bin/python3 -SE
# Built by the stand-in nvcc on a simulated host: it computes nothing.
import sys

sys.path.insert(0, "/usr/local/lib")
from sim.nvcc import run

sys.exit(run(%s))
"""
# Options with a value, which may stand in the same word after "=" or be the next word.
_VALUED = {
    "-o": "output",
    "--output-file": "output",
    "-arch": "arch",
    "--gpu-architecture": "arch",
    "-gencode": "gencode",
    "--generate-code": "gencode",
    "-code": "code",
    "--gpu-code": "code",
    "-ccbin": "ccbin",
    "--compiler-bindir": "ccbin",
    "-cudart": "cudart",
    "--cudart": "cudart",
    "-x": "language",
    "-std": "std",
    "--std": "std",
    "-Xcompiler": "passed",
    "-Xlinker": "passed",
    "-I": "include",
    "-L": "library_path",
    "-l": "library",
    "-D": "define",
    "-O": "level",
}
_FLAGS = {
    "-c",
    "-dc",
    "-V",
    "--version",
    "-h",
    "--help",
    "--list-gpu-arch",
    "--list-gpu-code",
    "-allow-unsupported-compiler",
    "--allow-unsupported-compiler",
    "-Wno-deprecated-gpu-targets",
    "--keep",
    "-v",
    "-g",
    "-G",
    "-lineinfo",
    "-w",
    "-rdc=true",
    "-m64",
    "--use_fast_math",
}


class Stop(Exception):
    """The compiler gives up: the text goes to stderr, the exit code is 1."""


def wrapper(toolkit):
    """Text of bin/nvcc of a release: {release, version, year, built, compiler, sm, gcc_max}."""
    return _WRAPPER % (json.dumps(toolkit).replace("null", "None"), repr(VERSION % toolkit))


def main(argv, toolkit):
    """The compiler; returns its exit code."""
    try:
        options, inputs = _arguments(argv)
        if "-h" in options or "--help" in options:
            sys.stdout.write(HELP)
            return 0
        if "-V" in options or "--version" in options:
            sys.stdout.write(VERSION % toolkit)
            return 0
        for option, prefix in (("--list-gpu-arch", "compute"), ("--list-gpu-code", "sm")):
            if option in options:
                print("\n".join("%s_%s" % (prefix, chip) for chip in toolkit["sm"] if chip.isdigit()))
                return 0
        return _compile(options, inputs, toolkit)
    except Stop as problem:
        sys.stderr.write(str(problem) + "\n")
        return 1


def _arguments(argv):
    """({option: [values]}, input files)."""
    options, inputs, words = {}, [], list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word in _FLAGS:
            options.setdefault(word, []).append(True)
        elif name in _VALUED and (equals or word == name):
            if not equals:
                if not words:
                    raise Stop("nvcc fatal   : '%s': expected an argument" % word)
                value = words.pop(0)
            options.setdefault(_VALUED[name], []).append(value)
        elif word[:2] in ("-I", "-L", "-l", "-D", "-O") and len(word) > 2:
            options.setdefault(_VALUED[word[:2]], []).append(word[2:])
        elif word.startswith("-") and word != "-":
            raise Stop("nvcc fatal   : Unknown option '%s'" % word)
        else:
            inputs.append(word)
    return options, inputs


def _compile(options, inputs, toolkit):
    if not inputs:
        raise Stop("nvcc fatal   : No input files specified; use option --help for more information")
    major = int(toolkit["release"].split(".")[0])
    targets = _targets(options, toolkit)
    top = os.path.dirname(os.path.dirname(os.path.realpath(sys.argv[0])))
    if not os.path.isdir(top + "/include"):
        # the distribution's toolkit has its headers in /usr/include
        top = "/usr"
    if "-Wno-deprecated-gpu-targets" not in options:
        _warn_of_old_targets(targets, toolkit)
    compiler = _host_compiler(options)
    if not any(name in options for name in ("-allow-unsupported-compiler", "--allow-unsupported-compiler")):
        _check_host_compiler(compiler, toolkit, top)
    for name in inputs:
        if not os.path.exists(name):
            raise Stop("cc1plus: fatal error: %s: No such file or directory\ncompilation terminated." % name)
    if not os.path.exists(top + "/include/cuda_runtime.h"):
        raise Stop("cc1plus: fatal error: cuda_runtime.h: No such file or directory\ncompilation terminated.")
    text = "\n".join(state.read(name, "") for name in inputs)
    dynamic = _link(options, top, major) if not {"-c", "-dc"} & set(options) else []
    built = {
        "release": toolkit["release"],
        "targets": targets,
        "dynamic": dynamic,
        "prints": EXPECT.findall(text),
        "numbered": "error %d: %s" in text,
    }
    default = "a.out" if not {"-c", "-dc"} & set(options) else os.path.splitext(inputs[0])[0] + ".o"
    output = options.get("output", [default])[-1]
    try:
        with open(output, "w") as handle:
            handle.write(_PROGRAM % repr(built))
        os.chmod(output, 0o755)  # noqa: S103 - a program
    except OSError as problem:
        raise Stop(
            "/usr/bin/ld: cannot open output file %s: %s\ncollect2: error: ld returned 1 exit status"
            % (output, problem.strerror)
        ) from problem
    return 0


def _targets(options, toolkit):
    """[(kind, chip)] that the program carries: ("sm", "90") is code, ("ptx", "90") is PTX."""
    known = toolkit["sm"]
    targets = []
    for value in options.get("gencode", ()):
        parts = dict(part.split("=", 1) for part in value.replace("[", "").replace("]", "").split(",") if "=" in part)
        rest = [part for part in value.replace("[", "").replace("]", "").split(",") if "=" not in part]
        for code in [parts.get("code", ""), *rest]:
            targets.append(_target(code.strip("'\""), known))
    for value in options.get("arch", ()):
        if value == "native":
            found = sorted({gpu["compute"].replace(".", "") for gpu in _gpus()})
            if not found:
                sys.stderr.write("nvcc warning : Cannot find valid GPU for '-arch=native', default arch is used\n")
            targets += [("sm", chip) for chip in found if chip in known] or _default(known)
        elif value in ("all", "all-major"):
            targets += [("sm", chip) for chip in known if chip.isdigit()] + [("ptx", known[-1].rstrip("af"))]
        else:
            kind, chip = _target(value, known)
            targets.append((kind, chip))
            if kind == "sm" and "code" not in options:
                # -arch=sm_90 is compute_90 with code for both
                targets.append(("ptx", chip))
    return targets or _default(known)


def _target(text, known):
    match = re.match(r"^(sm|compute|lto)_(\d+[af]?)$", text)
    if not match or match.group(2) not in known:
        raise Stop("nvcc fatal   : Unsupported gpu architecture '%s'" % text.replace("sm_", "compute_"))
    return ("ptx" if match.group(1) == "compute" else "sm"), match.group(2)


def _default(known):
    """Default target: 5.2 as long as the compiler knows it, then 7.5."""
    chip = "52" if "52" in known else "75"
    return [("sm", chip), ("ptx", chip)]


def _warn_of_old_targets(targets, toolkit):
    release = tuple(int(part) for part in toolkit["release"].split("."))
    old = [chip for _, chip in targets if int(chip.rstrip("af")) < 75]
    if (12, 8) <= release < (13, 0) and old:
        sys.stderr.write(
            "nvcc warning : Support for offline compilation for architectures prior to '<compute/sm/lto>_75' will be "
            "removed in a future release (Use -Wno-deprecated-gpu-targets to suppress warning).\n"
        )
    elif release[0] == 11 and {"35", "37", "50"} & set(old):
        sys.stderr.write(
            "nvcc warning : The 'compute_35', 'compute_37', 'compute_50', 'sm_35', 'sm_37' and 'sm_50' architectures are "
            "deprecated, and may be removed in a future release (Use -Wno-deprecated-gpu-targets to suppress warning).\n"
        )


def _host_compiler(options):
    wanted = options.get("ccbin", [os.environ.get("NVCC_CCBIN") or "gcc"])[-1]
    path = os.path.join(wanted, "gcc") if os.path.isdir(wanted) else wanted
    found = shutil.which(path)
    if found is None:
        raise Stop(
            "%s: No such file or directory\nnvcc fatal   : Failed to preprocess host compiler properties." % wanted
        )
    return found


def _check_host_compiler(compiler, toolkit, top):
    done = subprocess.run([compiler, "-dumpversion"], stdout=subprocess.PIPE, check=False)
    version = done.stdout.decode().strip()
    if not version.split(".")[0].isdigit():
        raise Stop("nvcc fatal   : Failed to preprocess host compiler properties.")
    limit = toolkit["gcc_max"]
    if int(version.split(".")[0]) > limit:
        where = top + "/bin/../targets/x86_64-linux/include"
        text = (
            "unsupported GNU version! gcc versions later than %s are not supported! The nvcc flag "
            "'-allow-unsupported-compiler' can be used to override this version check; however, using an unsupported host "
            "compiler may cause compilation failure or incorrect run time execution. Use at your own risk." % limit
        )
        raise Stop(
            "In file included from %s/cuda_runtime.h:82,\n                 from <command-line>:\n"
            "%s/crt/host_config.h:143:2: error: #error -- %s\n  143 | #error -- %s\n      |  ^~~~~"
            % (where, where, text, text)
        )


def _link(options, top, major):
    """Sonames of shared libraries that the program will look for when it starts; Stop where one cannot be linked."""
    names = list(options.get("library", ()))
    if options.get("cudart", ["static"])[-1] == "shared":
        names.append("cudart")
    folders = list(options.get("library_path", ())) + [
        top + "/lib64",
        top + "/targets/x86_64-linux/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/local/lib",
        top + "/targets/x86_64-linux/lib/stubs",
    ]
    needed = []
    for name in names:
        if name in ("m", "dl", "rt", "pthread", "stdc++", "c"):
            continue
        found = next((f for f in ("%s/lib%s.so" % (folder, name) for folder in folders) if os.path.exists(f)), None)
        if found is None:
            raise Stop(
                "/usr/bin/ld: cannot find -l%s: No such file or directory\ncollect2: error: ld returned 1 exit status"
                % name
            )
        needed.append(_soname(found))
    return needed


def _soname(path):
    """Soname of a link chain: the name one step before the file with the full version."""
    name = os.path.basename(path)
    while os.path.islink(path):
        path = os.path.join(os.path.dirname(path), os.readlink(path))
        if os.path.islink(path):
            name = os.path.basename(path)
    return name if not path.endswith("stubs/libcuda.so") else "libcuda.so.1"


def run(program):
    """A built program; returns its exit code."""
    missing = next((name for name in program["dynamic"] if not _loadable(name)), None)
    if missing:
        sys.stderr.write(
            "%s: error while loading shared libraries: %s: cannot open shared object file: No such file or directory\n"
            % (sys.argv[0], missing)
        )
        return 127
    problem = why_not(program)
    if problem:
        # A source that prints code and text to stdout, or one that prints the text alone to stderr.
        if program["numbered"]:
            print("error %d: %s (the first call)" % (problem, ERRORS[problem]))
        else:
            sys.stderr.write(ERRORS[problem] + "\n")
        return 1
    for line in program["prints"]:
        print(line)
    return 0


def why_not(program):
    """cudaError (see ERRORS) of the first call of a program of {release, targets}; None where it runs."""
    library = _driver_library()
    if library is None:
        return 35
    loaded = state.loaded().get("nvidia")
    if loaded is None:
        return 100
    if loaded["version"] != library:
        return 803
    runtime = tuple(int(part) for part in program["release"].split("."))
    branch = int(library.split(".")[0])
    known = max((number for number in smi.CUDA if number <= branch), default=None)
    offered = tuple(int(part) for part in smi.CUDA[known].split(".")) if known else (0, 0)
    if runtime > offered:
        exact = tuple(int(part) for part in library.split("."))
        if runtime[0] > offered[0] or exact < MINIMUM[runtime[0]]:
            return 35
    gpus = _gpus()
    if not gpus:
        return 100
    if smi.gpus()[0]["fabric_state"] == "In Progress":
        return 802
    return _code_for(gpus[0]["compute"], program["targets"], runtime <= offered)


def _code_for(compute, targets, compiles_ptx):
    """None where a GPU finds code that it can run, else the error."""
    chip = int(compute.replace(".", ""))
    for kind, target in targets:
        number = int(target.rstrip("af"))
        if kind != "sm":
            continue
        # Code runs on the same major from its minor on, a family's (f) likewise; what ends in a on its own chip only.
        if number == chip or (number // 10 == chip // 10 and number < chip and not target.endswith("a")):
            return None
    if any(kind == "ptx" and target[-1].isdigit() and int(target) <= chip for kind, target in targets):
        return None if compiles_ptx else 222
    return 209


def _gpus():
    """GPUs that a program sees: those that work, less what CUDA_VISIBLE_DEVICES hides."""
    if state.loaded().get("nvidia") is None:
        return []
    shown = smi.gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return shown
    wanted = [word for word in visible.split(",") if word]
    return [gpu for gpu in shown if str(gpu["index"]) in wanted or gpu["uuid"] in wanted]


def _driver_library():
    """Version of the libcuda that the loader takes; None without one."""
    folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    folders += ["/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64"]
    for folder in folders:
        link = folder + "/libcuda.so.1"
        if os.path.exists(link):
            return os.path.basename(os.path.realpath(link)).split(".so.", 1)[1]
    return None


def _loadable(soname):
    if soname == "libcuda.so.1":
        return _driver_library() is not None
    folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    for name in sorted(glob.glob("/etc/ld.so.conf.d/*.conf")):
        folders += [line.strip() for line in state.read(name, "").splitlines() if line.startswith("/")]
    folders += ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib"]
    return any(os.path.exists("%s/%s" % (folder, soname)) for folder in folders)
