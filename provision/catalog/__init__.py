"""Catalog: what can exist. Facts about GPUs, drivers, CUDA and what goes with them, and the questions they answer.

The data lies beside this file as ``*.yml``, one topic a file, each with its sources, and is read when it is first
asked for. Nothing here reads a host. API, short::

    catalog = load_catalog()                          # one object a process
    catalog.gpu_by_id("2330") -> Gpu                  # exact id; else by id range (certainty "inferred"); else
                                                      # certainty "unknown", architecture None
    catalog.find_gpu("rtx3090") -> GpuMatch           # .gpu (one answer or a family) | .candidates | .nearest
    catalog.branches -> tuple[Branch, ...]            # oldest first
    catalog.branch("580" | 580 | "580-server" | "580.95.05") -> Branch     # UsageError names the nearest
    catalog.find_branch(...) -> Branch | None
    catalog.branches_for([gpu, ...]) -> set[int]      # branches that drive every one of them with one flavour
    catalog.flavours([gpu, ...], 580) -> list         # "open" / "proprietary", preferred first; [] = none
    catalog.max_cuda(580) -> "13.0"
    catalog.min_driver_for_cuda("12.8") -> "525.60.13"            # full=True: the version the toolkit came with
    catalog.min_branch_for_cuda("12.8", gpus) -> int | None       # by minor-version compatibility; full=True: without
    catalog.cuda("12.4") -> CudaMinor ; catalog.cuda_range([gpu, ...]) -> CudaRange(first, last) | None
    catalog.toolkit_support("11.3", gpu) -> "native" | "binary" | "jit" | "none"
    catalog.torch_support("2.6.0", "cu124", gpu), catalog.tensorflow_support("2.18", gpu) -> the same
    catalog.cudnn_for("12.4", gpus) -> CudnnPair | None ; catalog.nccl_for("12.4", ubuntu="22.04") -> NcclPair | None
    catalog.torch("2.6") -> TorchRelease ; catalog.tensorflow("2.18") -> TensorflowRelease
    catalog.ubuntu("24.04" | "noble") -> UbuntuRelease
    catalog.offers(580, ubuntu="24.04") -> list[Offer]            # where the branch is known to be offered
    catalog.transitional("570", ubuntu="24.04") -> Transitional | None
    catalog.repository("cuda", ubuntu="24.04", arch="amd64") -> Repository(url, suite, components, fingerprint, ...)
    catalog.fabric(gpu) -> "never" | "nvswitch" | "nvswitch+nvlsm" | "nvl72" | "depends" | "unknown"
    catalog.nvswitch_ids -> {"1af1": "GA100 ...", ...}
    catalog.known_bad("driver", "580.119.02") -> list[KnownBad]
    catalog.traps -> tuple[Trap, ...]

Gpu: ids, name, chip, architecture, cc, segment, mobile, mig, fabric, first_branch, last_branch, certainty, note.
Branch: number, type, max_cuda, last_version, last_date, eol, supported_now, open, oldest_architecture, max_kernel,
is_long_term_or_production, is_ended(date).
"""
