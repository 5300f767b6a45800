"""What NVIDIA's redistrib_VERSION.json say: releases of CUDA with their driver, and versions of cuDNN and NCCL.

Source of the shape: the files themselves: release_product, release_label, and an object with a version for each component.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provision.catalog import Catalog
from provision.catalog.update.place import Place, nothing
from provision.catalog.update.row import VERSION, Left, Row
from provision.catalog.versions import key, minor


def read(place: Place, catalog: Catalog) -> Iterator[Row | Left]:
    """Yield what the file at an address says, or every redistrib_*.json in a folder."""
    found = False
    for path in place.files("redistrib_*.json"):
        data = place.json(path)
        if data is None:
            continue
        found = True
        label, address = str(data.get("release_label")), place.address(path)
        product = data.get("release_product", "cuda")
        if not VERSION.match(label) or product not in ("cuda", "cudnn", "nccl"):
            yield Left(address, "it does not say of which release of CUDA, cuDNN or NCCL it is")
        elif product == "cuda":
            yield from _cuda(data, label, address, catalog)
        else:
            yield from _library(product, data, address, catalog)
    if not found:
        raise nothing(place, "redistrib_*.json")


def _version(data: dict[str, Any], component: str) -> str | None:
    part = data.get(component)
    version = str(part.get("version")) if isinstance(part, dict) else ""
    return version if VERSION.match(version) else None


def _cuda(data: dict[str, Any], label: str, address: str, catalog: Catalog) -> Iterator[Row | Left]:
    if minor(label) not in catalog.cuda_data.minors:
        if key(label) > min(map(key, catalog.cuda_data.minors)):
            yield Left(address, f"CUDA {label}: cuda.yml has no row in minors for {minor(label)}")
        return
    origin, driver = ("redistrib_cuda", address), _version(data, "nvidia_driver")
    row = catalog.cuda_data.releases.get(label)
    if row is None or (driver and row.driver is None):
        fields = {"driver": driver, "source": origin[0], "certainty": "sourced", "note": None}
        yield Row(("cuda", "releases"), label, fields, origin)
    elif driver and row.driver != driver:
        yield Left(address, f"CUDA {label}: it came with driver {driver}, and cuda.yml says {row.driver}")


def _library(product: str, data: dict[str, Any], address: str, catalog: Catalog) -> Iterator[Row | Left]:
    version, part = _version(data, product), data.get(product)
    variants = part.get("cuda_variant") if isinstance(part, dict) else None
    majors = [int(v) for v in variants if str(v) in ("11", "12", "13", "14")] if isinstance(variants, list) else []
    known = catalog.cudnn_versions if product == "cudnn" else catalog.nccl_versions
    if version is None or not majors:
        yield Left(address, f"it does not say which {product} it has, or for which CUDA")
        return
    new = [major for major in majors if major not in known.get(version, ())]
    if new:
        origin = (f"redistrib_{product}", address)
        fields = {"cuda_majors": new, "list": [version], "source": origin[0]}
        yield Row((product, "versions"), None, fields, origin)
