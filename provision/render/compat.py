"""compat: the answer first, then what it rests on, then warnings and the nearest thing that works."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import RenderableType

from provision.render.base import Text, columns, text
from provision.render.plan import issue

_SUPPORT = {
    "native": "code is built for these GPUs (native)",
    "binary": "runs code that is built for an older GPU of the same generation (binary)",
    "jit": "the driver compiles the code at its first start (jit)",
    "none": "no code runs on these GPUs (none)",
}


def view(answer: Any) -> Iterable[RenderableType]:
    """Return what to print of commands.compat.CompatDocument (not imported here: it brings the whole catalog)."""
    verdict = ("it fits", "bold green") if answer.fits else ("it does not fit", "bold red")
    yield Text.assemble(verdict, f"  {_SUPPORT[answer.support]}" if answer.support else "")
    # What would work stands below once, not as a hint too.
    offered = {nearest.text for nearest in answer.nearest}
    for conflict in answer.conflicts:
        rest = "; or ".join(part for part in (conflict.hint or "").split("; or ") if part not in offered)
        yield from issue(conflict.model_copy(update={"hint": rest or None}), 0, "error")
    rows = _rows(answer)
    if rows:
        yield columns(list(rows))
    for warning in answer.warnings:
        yield from issue(warning, 0)
    for nearest in answer.nearest:
        yield text("would fit: " if nearest.fits_all else "one step: ", nearest.text, styles=("green", ""))


def _rows(answer: Any) -> list[tuple[str | Text, str | Text]]:
    rows: list[tuple[str | Text, str | Text]] = []
    for gpu in answer.gpus:
        facts = [gpu.name, gpu.architecture, f"compute capability {gpu.cc}" if gpu.cc else None, gpu.support]
        rows.append(("GPU", ", ".join(fact for fact in facts if fact)))
    driver = answer.driver
    if driver.branches:
        shown = f"{driver.recommended} recommended; fit: " if driver.recommended else "fit: "
        rows.append(("driver", shown + ", ".join(str(branch) for branch in driver.branches)))
        if driver.minimum:
            rows.append(("", f"at least {driver.minimum}"))
        if driver.modules:
            rows.append(("modules", ", ".join(driver.modules)))
    cuda = answer.cuda
    if cuda.chosen or cuda.range:
        parts = [
            cuda.release or cuda.chosen,
            cuda.package,
            f"gcc up to {cuda.gcc_max}" if cuda.gcc_max else None,
            f"range {' to '.join(cuda.range)}" if cuda.range else None,
        ]
        rows.append(("CUDA", ", ".join(part for part in parts if part)))
    for title, library in (("cuDNN", answer.cudnn), ("NCCL", answer.nccl)):
        if library:
            pins = ", ".join(library.pins) or f"no package, a wheel of nvidia-{title.lower()}"
            rows.append((title, f"{library.version} for CUDA {library.cuda}: {pins}"))
    if answer.torch:
        rows.append(("torch", f"{answer.torch.version}+{answer.torch.tag}, {answer.torch.index_url}"))
    if answer.tensorflow:
        parts = [answer.tensorflow.version, f"CUDA {answer.tensorflow.cuda}", answer.tensorflow.extra]
        rows.append(("TensorFlow", ", ".join(part for part in parts if part)))
    if answer.jax:
        needs = f"cuDNN {answer.jax.cudnn} or newer, NCCL {answer.jax.nccl} or newer"
        rows.append(("JAX", f"{answer.jax.version}, CUDA {answer.jax.cuda}, {answer.jax.extra}, {needs}"))
    if answer.machine != "x86_64":
        rows.append(("processor", answer.machine))
    image = answer.image
    if image:
        how = "in full" if image.runs == "full" else "by minor-version compatibility"
        full = f", everything from {image.full_from} on" if image.full_from else ""
        rows.append(("image", f"CUDA {image.cuda} runs {how}; driver {image.minimum} at least{full}"))
        rows += [("", name) for name in image.names]
    if answer.python:
        rows.append(("Python", ", ".join(answer.python)))
    rows.append(("facts of", answer.catalog))
    return rows
