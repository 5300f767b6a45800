# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""torch, tensorflow and jax of one Python interpreter: do they see the cards, compute right, and with which libraries?

``find`` and ``look`` are jobs that run under the interpreter that is judged (Python 3.7 and later). A framework is
imported once with the library path that a login exports and once without: where the two differ, somebody's export
shadows the libraries that the framework brought.
"""

from __future__ import annotations

import re
import sys

FRAMEWORKS = ("torch", "tensorflow", "jax")
# Libraries whose version matters, and what the loader may find in several places.
_LIBRARIES = (
    "libcudart",
    "libcudnn",
    "libnccl",
    "libcublas",
    "libcublasLt",
    "libcusparse",
    "libcusolver",
    "libcufft",
    "libcurand",
    "libnvJitLink",
    "libnvrtc",
    "libcuda",
)
# What keeps a framework from taking a whole card, and from talking much.
ENVIRONMENT = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TOKENIZERS_PARALLELISM": "false",
}


def find(args, say):
    """Job: {"python": "3.12.3", "prefix", "frameworks": [names that can be imported]}; imports none of them."""
    import importlib.util

    found = [name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None]
    return {"python": sys.version.split()[0], "prefix": sys.prefix, "frameworks": found}


def look(args, say):
    """Job: import one framework and compute with it.

    args: {"framework", "compute_on": [indexes of cards, as the framework counts them]}. Returns {"version", "cuda"
    (None: built for the CPU), "available", "count", "architectures", "cudnn", "nccl", "cards": [{"index", "name",
    "cc", "wrong"}], "libraries": {name: path}, "why" (what it says when it sees no card)}.
    """
    say("importing %s" % args["framework"])
    result = {"torch": _torch, "tensorflow": _tensorflow, "jax": _jax}[args["framework"]](args["compute_on"], say)
    result["libraries"] = loaded_libraries()
    return result


def loaded_libraries(maps="/proc/self/maps"):
    """Return {"libcudnn.so.9": path, …} of CUDA libraries that are mapped into this process."""
    found = {}
    with open(maps) as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            match = re.match(r"(lib[A-Za-z]+)(?:-[0-9a-f]{8})?\.so(?:\.[0-9]+)*$", path.rpartition("/")[2])
            if match and match.group(1) in _LIBRARIES:
                found[path.rpartition("/")[2]] = "/" + path
    return found


def _small(size=64):
    """Two matrices of small whole numbers as lists, and their product: exact in any precision that keeps 11 bits."""
    a = [[(i + 2 * k) % 7 for k in range(size)] for i in range(size)]
    b = [[(3 * k + j) % 5 for j in range(size)] for k in range(size)]
    columns = list(zip(*b))  # noqa: B905 -- Python 3.8
    return a, b, [[sum(map(int.__mul__, row, column)) for column in columns] for row in a]


def _torch(compute_on, say):
    import torch

    result = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "available": torch.cuda.is_available(),
        "count": 0,
        "architectures": [],
        "cudnn": None,
        "nccl": None,
        "cards": [],
        "why": None,
        "hip": getattr(torch.version, "hip", None),
    }
    if not torch.version.cuda:
        return result
    result["architectures"] = list(torch.cuda.get_arch_list())
    if not result["available"]:
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            result["why"] = str(error)
        return result
    result["count"] = torch.cuda.device_count()
    a, b, right = _small()
    for index in compute_on:
        say("computing on card %d" % index)
        card = {
            "index": index,
            "name": torch.cuda.get_device_name(index),
            "cc": "%d.%d" % torch.cuda.get_device_capability(index),
            "wrong": None,
        }
        try:
            device = "cuda:%d" % index
            product = torch.tensor(a, dtype=torch.float32).to(device) @ torch.tensor(b, dtype=torch.float32).to(device)
            if product.cpu().to(torch.int64).tolist() != right:
                card["wrong"] = "the product differs from the CPU's"
        except RuntimeError as error:
            card["wrong"] = str(error).splitlines()[0]
        result["cards"].append(card)
    cudnn = torch.backends.cudnn.version()
    result["cudnn"] = cudnn_text(cudnn) if cudnn else None
    if hasattr(torch.cuda, "nccl") and torch.distributed.is_available() and torch.distributed.is_nccl_available():
        result["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return result


def cudnn_text(number):
    """9.14.0 for what cudnnGetVersion returns: 91400 (from 9 on), 8902 before."""
    if number >= 90000:
        return "%d.%d.%d" % (number // 10000, number % 10000 // 100, number % 100)
    return "%d.%d.%d" % (number // 1000, number % 1000 // 100, number % 100)


def _tensorflow(compute_on, say):
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    cards = tf.config.list_physical_devices("GPU")
    result = {
        "version": tf.__version__,
        "cuda": build.get("cuda_version") if tf.test.is_built_with_cuda() else None,
        "available": bool(cards),
        "count": len(cards),
        "cudnn": build.get("cudnn_version"),
        "nccl": None,
        "cards": [],
        "architectures": [str(code) for code in build.get("cuda_compute_capabilities", [])],
        "why": None,
    }
    a, b, right = _small()
    for index in compute_on if cards else []:
        say("computing on card %d" % index)
        with tf.device("/GPU:%d" % index):
            product = tf.linalg.matmul(tf.constant(a, tf.float32), tf.constant(b, tf.float32))
        details = tf.config.experimental.get_device_details(cards[index])
        cc = details.get("compute_capability")
        result["cards"].append(
            {
                "index": index,
                "name": details.get("device_name", ""),
                "cc": "%d.%d" % tuple(cc) if cc else None,
                "wrong": None
                if product.numpy().astype(int).tolist() == right
                else "the product differs from the CPU's",
            }
        )
    return result


def _jax(compute_on, say):
    import importlib.util

    import jax

    plugins = [
        name
        for name in ("jax_cuda13_plugin", "jax_cuda12_plugin", "jax_cuda11_plugin")
        if importlib.util.find_spec(name) is not None
    ]
    result = {
        "version": jax.__version__,
        "cuda": plugins[0][8:10] if plugins else None,
        "available": False,
        "count": 0,
        "architectures": [],
        "cudnn": None,
        "nccl": None,
        "cards": [],
        "why": None,
    }
    try:
        cards = [card for card in jax.devices("gpu") if card.platform in ("gpu", "cuda")]
    except RuntimeError as error:
        result["why"] = str(error).splitlines()[0]
        return result
    result.update(available=bool(cards), count=len(cards), cuda=result["cuda"] or "built in")
    import jax.numpy as jnp

    a, b, right = _small()
    for index in compute_on:
        say("computing on card %d" % index)
        left = jax.device_put(jnp.array(a, dtype="float32"), cards[index])
        product = left @ jax.device_put(jnp.array(b, dtype="float32"), cards[index])
        result["cards"].append(
            {
                "index": index,
                "name": cards[index].device_kind,
                "cc": getattr(cards[index], "compute_capability", None),
                "wrong": None if product.astype("int32").tolist() == right else "the product differs from the CPU's",
            }
        )
    return result


# --- judging -----------------------------------------------------------------------------------------------


def culprit(message, library_path, own, exists):
    """Return (path below library_path, the framework's own path or None) of the library behind an import error, or None.

    An error names the library that lacks a symbol ("..., version libnvJitLink.so.12"), the one that asks for it, the one
    that cannot be loaded, or just cuDNN or NCCL by word. own: {name: path} of what loads without library_path;
    exists: callable(path) -> bool.
    """
    names = [
        first or second for first, second in re.findall(r"version (lib[\w.+-]+)|\b(lib[A-Za-z_]+\.so[.0-9]*)", message)
    ]
    # The library that lacks the symbol is named last, after 'version'.
    names.sort(key=lambda name: ("version " + name) not in message)
    for word, start in (("cudnn", "libcudnn"), ("nccl", "libnccl")):
        if word in message.lower():
            names += sorted(name for name in own if name.startswith(start + ".") or name.startswith(start + "_"))
    for name in names:
        for folder in library_path.split(":"):
            if folder and exists(folder.rstrip("/") + "/" + name):
                return folder.rstrip("/") + "/" + name, own.get(name)
    return None
