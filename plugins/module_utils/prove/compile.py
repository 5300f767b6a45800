# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""A small program, compiled by a toolkit's nvcc for the cards that are there, and run on each of them.

Job ``build`` (run in a child) compiles and runs; ``read_nvcc`` says what nvcc complains about.
Sources: NVIDIA's installation and compiler guides, the toolkits' crt/host_config.h.
"""

from __future__ import annotations

import os
import re
import subprocess
import time

# Every toolkit from 9 on compiles it. The first line is read by stand-ins for nvcc in simulated hosts.
SOURCE = r"""// gpu-provision-expect: OK
#include <cstdio>
#include <cuda_runtime.h>

static const int N = 1 << 20, M = 128;

__global__ void add(const float *a, const float *b, float *c) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) c[i] = a[i] + b[i];
}

__global__ void multiply(const float *a, const float *b, float *c) {
  __shared__ float ta[16][16], tb[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < M; k += 16) {
    ta[threadIdx.y][threadIdx.x] = a[row * M + k + threadIdx.x];
    tb[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * M + column];
    __syncthreads();
    for (int i = 0; i < 16; i++) sum += ta[threadIdx.y][i] * tb[i][threadIdx.x];
    __syncthreads();
  }
  c[row * M + column] = sum;
}

static int bad(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return 0;
  printf("error %d: %s (%s)\n", (int)error, cudaGetErrorString(error), what);
  return 1;
}

int main() {
  float *host[3], *card[3];
  for (int j = 0; j < 3; j++) {
    host[j] = new float[N];
    if (bad(cudaMalloc((void **)&card[j], N * sizeof(float)), "cudaMalloc")) return 1;
  }
  for (int i = 0; i < N; i++) { host[0][i] = i % 61; host[1][i] = i % 53; }
  for (int j = 0; j < 2; j++)
    if (bad(cudaMemcpy(card[j], host[j], N * sizeof(float), cudaMemcpyHostToDevice), "copy to the card")) return 1;
  add<<<N / 256, 256>>>(card[0], card[1], card[2]);
  if (bad(cudaGetLastError(), "launch of add")) return 1;
  if (bad(cudaMemcpy(host[2], card[2], N * sizeof(float), cudaMemcpyDeviceToHost), "add")) return 1;
  for (int i = 0; i < N; i++)
    if (host[2][i] != host[0][i] + host[1][i]) { printf("wrong: sum %d\n", i); return 1; }
  multiply<<<dim3(M / 16, M / 16), dim3(16, 16)>>>(card[0], card[1], card[2]);
  if (bad(cudaGetLastError(), "launch of multiply")) return 1;
  if (bad(cudaMemcpy(host[2], card[2], M * M * sizeof(float), cudaMemcpyDeviceToHost), "multiply")) return 1;
  for (int i = 0; i < M; i++)
    for (int j = 0; j < M; j++) {
      float sum = 0;
      for (int k = 0; k < M; k++) sum += host[0][i * M + k] * host[1][k * M + j];
      if (host[2][i * M + j] != sum) { printf("wrong: product %d %d\n", i, j); return 1; }
    }
  printf("OK\n");
  return 0;
}
"""

# What nvcc -V and --list-gpu-arch do not say of toolkits before 11: what they compile PTX for at most.
_OLD_NEWEST = {"8.0": "6.2", "9.0": "7.0", "9.1": "7.0", "9.2": "7.2", "10.0": "7.5", "10.1": "7.5", "10.2": "7.5"}


def read_nvcc(said):
    """Return (kind, sentence, hint) for what a failed nvcc printed.

    kind: host_compiler_missing, host_compiler_too_new, unsupported_architecture, toolkit_incomplete, headers_clash,
    or other.
    """
    too_new = re.search(r"unsupported GNU version! gcc versions later than ([0-9]+)", said)
    if too_new:
        most = too_new.group(1)
        return (
            "host_compiler_too_new",
            "gcc is newer than %s, the newest that this nvcc takes" % most,
            "apt-get install g++-%s; then nvcc -ccbin g++-%s (CUDAHOSTCXX=g++-%s for CMake)" % (most, most, most),
        )
    arch = re.search(r"Unsupported gpu architecture '(\w+)'|Value '(\w+)' is not defined for option 'gpu-name'", said)
    if arch:
        name = arch.group(1) or arch.group(2)
        return ("unsupported_architecture", "this nvcc does not compile for %s" % name, "take a toolkit that does")
    if re.search(
        r"\b(gcc|g\+\+|c\+\+|cc1plus)['\u2019]?: (command )?not found|cannot execute '?cc1plus|Cannot find compiler",
        said,
    ) or ("Failed to preprocess host compiler properties" in said):
        return "host_compiler_missing", "nvcc finds no C++ compiler", "apt-get install g++"
    missing = re.search(
        r"(\w+): not found|fatal error: (\S+): No such file|cannot find -l(\w+)|Could not open (\S+)", said
    )
    if missing:
        what = next(group for group in missing.groups() if group)
        return (
            "toolkit_incomplete",
            "the toolkit lacks %s" % what,
            "its packages are not all there: cuda-toolkit-X-Y, or cuda-minimal-build-X-Y, has it",
        )
    if "exception specification is incompatible" in said:
        return (
            "headers_clash",
            "the toolkit's mathematical headers do not fit this C library",
            "known of CUDA up to 12.9 from glibc 2.41 on, and of 13.0 and 13.1 from 2.42 on (Ubuntu 26.04 has 2.43): "
            "CUDA 13.2 or newer, or a container of an older Ubuntu",
        )
    lines = [line.strip() for line in said.splitlines() if re.search(r"error|fatal", line)]
    return "other", lines[0] if lines else "nvcc failed without saying why", None


def newest_below(known, cc):
    """Return the newest compute capability in known ("8.0", …) that is not above cc, or None."""
    fits = [value for value in known if _key(value) <= _key(cc)]
    return max(fits, key=_key) if fits else None


def _key(cc):
    return tuple(int(part) for part in cc.split("."))


def code_for(cc, known):
    """Return (nvcc's -gencode value, how) to serve a card of compute capability cc by a toolkit that knows ``known``.

    how: native; jit (PTX of an older architecture that the driver compiles); none (the toolkit has given the card up).
    An empty ``known`` means that the toolkit could not be asked: native is tried.
    """
    plain = cc.replace(".", "")
    if not known or cc in known:
        return "arch=compute_%s,code=sm_%s" % (plain, plain), "native"
    older = newest_below(known, cc)
    if older is None:
        return None, "none"
    older = older.replace(".", "")
    return "arch=compute_%s,code=compute_%s" % (older, older), "jit"


def known_architectures(nvcc, version, run):
    """Return the compute capabilities that an nvcc compiles for; empty when it cannot say. run: list -> (rc, text)."""
    rc, said = run([nvcc, "--list-gpu-arch"])
    found = re.findall(r"^compute_([0-9]+)([0-9])[af]?$", said, re.M) if rc == 0 else []
    if found:
        return ["%s.%s" % pair for pair in found]
    newest = _OLD_NEWEST.get(version)
    return [newest] if newest else []


def build(args, say):
    """Job: compile SOURCE and run it.

    args: {"nvcc": path, "version": "12.4", "folder": empty folder, "cards": [{"label", "uuid", "cc"}],
    "codes": [gencode values, for tests]}. Returns {"built", "how": {cc: native | jit | none}, "compiler": g++ used
    or None, "said": text of nvcc when it failed, "default_too_new": major or None, "nvcc_s", "runs": [..]}.
    """
    folder, cards = args["folder"], args["cards"]
    source, program = os.path.join(folder, "check.cu"), os.path.join(folder, "check")
    with open(source, "w") as file:
        file.write(SOURCE)

    def run(command, more=None):
        done = subprocess.run(  # noqa: S603 -- a list, never through a shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(os.environ, TMPDIR=folder, **(more or {})),
            check=False,
        )
        return done.returncode, done.stdout.decode("utf-8", "replace")

    say("asking nvcc what it compiles for")
    known = known_architectures(args["nvcc"], args["version"], run)
    how, codes = {}, list(args.get("codes") or [])
    for cc in sorted({card["cc"] for card in cards}):
        code, how[cc] = code_for(cc, known)
        if code and not args.get("codes") and code not in codes:
            codes.append(code)
    result = {
        "built": False,
        "how": how,
        "compiler": None,
        "said": "",
        "default_too_new": None,
        "runs": [],
        "nvcc_s": 0.0,
    }
    if cards and not codes:
        return result
    flags = [word for code in codes for word in ("-gencode", code)]
    say("compiling with %s" % args["nvcc"])
    started = time.monotonic()
    rc, result["said"] = run([args["nvcc"], *flags, "-o", program, source])
    if rc != 0 and read_nvcc(result["said"])[0] == "host_compiler_too_new":
        most = int(re.search(r"later than ([0-9]+)", result["said"]).group(1))
        result["default_too_new"] = most
        older = older_compiler(most)
        if older:
            rc, result["said"] = run([args["nvcc"], *flags, "-ccbin", older, "-o", program, source])
            result["compiler"] = older
    result["nvcc_s"] = round(time.monotonic() - started, 2)
    result["built"] = rc == 0 and os.path.exists(program)
    if not result["built"]:
        return result
    result["said"] = ""
    for card in cards:
        if how[card["cc"]] == "none":
            continue
        say("running on card %s" % card["label"])
        started = time.monotonic()
        rc, said = run([program], {"CUDA_VISIBLE_DEVICES": card["uuid"]})
        result["runs"].append(
            {
                "label": card["label"],
                "cc": card["cc"],
                "rc": rc,
                "said": said[-2000:],
                "seconds": round(time.monotonic() - started, 2),
            }
        )
    return result


def cards_by_smi(args, say):
    """Job: {"cards": [{"label", "uuid", "cc"}]} as nvidia-smi tells them: for interpreters that cannot load the driver's
    libraries (of another C library or architecture) while programs of the host can."""
    say("asking nvidia-smi")
    command = ["nvidia-smi", "--query-gpu=index,uuid,compute_cap", "--format=csv,noheader"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)  # noqa: S603
    rows = [[word.strip() for word in line.split(",")] for line in done.stdout.decode("utf-8", "replace").splitlines()]
    good = [row for row in rows if done.returncode == 0 and len(row) == 3 and re.match(r"[0-9]+\.[0-9]$", row[2])]
    return {"cards": [{"label": row[0], "uuid": row[1], "cc": row[2]} for row in good]}


def older_compiler(most, exists=os.path.exists):
    """Return the newest g++-N of the host with N not above most, or None."""
    for major in range(most, 4, -1):
        path = "/usr/bin/g++-%d" % major
        if exists(path):
            return path
    return None
