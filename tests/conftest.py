"""Fixtures that need more than one file: the lab of simulated hosts, shared by a whole test run."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

# Makes the collection importable, for every test file that runs alone.
import provision.collection  # noqa: F401
from provision import catalog
from tests import sample

# Tests pin behaviour, not data: a new row in the real catalog breaks none of them.
_REAL_CATALOG, catalog.FOLDER = catalog.FOLDER, Path(__file__).parent / "catalog"

# A change is judged by the same examples every time it is tried in CI; people's runs, and make test-all, look for new ones.
# How fast examples are made says how busy the machine is, and nothing of the product.
CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=25, derandomize=bool(os.environ.get("CI")), **CALM)
settings.register_profile("thorough", max_examples=500, derandomize=False, **CALM)
settings.load_profile(sample.PROFILE)

if TYPE_CHECKING:
    from tests.lab import Lab, LabHost

_numbers = itertools.count(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if sample.THOROUGH:
        for item in items:
            item.add_marker(pytest.mark.timeout(3600))
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others than root can enter. Not below pytest's own, which the next pytest that starts here closes to them."""
    with tempfile.TemporaryDirectory(prefix="gpt-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A lab without hosts; it ends with the test run. What a test publishes here, later tests see: see own_lab."""
    from tests.lab import Lab

    with Lab.start([]) as started:
        yield started


@pytest.fixture
def own_lab() -> Iterator[Lab]:
    """A lab of one test's own, for tests that publish."""
    from tests.lab import Lab

    with Lab.start([]) as started:
        yield started


@pytest.fixture
def new_host(lab: Lab) -> Iterator[Callable[..., LabHost]]:
    """Start one host for one test: ``new_host(gpus=["H100 x2"], installed=["550 open signed held"])``."""
    started: list[str] = []

    def start(**spec: Any) -> LabHost:
        spec.setdefault("name", f"host{next(_numbers)}")
        (host,) = lab.add([spec])
        started.append(host.name)
        return host

    yield start
    lab.remove(*started)


@pytest.fixture(scope="session")
def schemas() -> dict[str, Any]:
    """A validator for each schema of the documents, by its id."""
    from jsonschema import Draft202012Validator

    from provision.cli.schemas import schemas

    return {name: Draft202012Validator(schema) for name, schema in schemas().items()}


@pytest.fixture(autouse=True)
def documents_fit(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Every document that a test prints fits its own schema."""
    from provision.documents import Document

    to_json = Document.to_json

    def checked(document: Document) -> str:
        text = to_json(document)
        data = json.loads(text)
        request.getfixturevalue("schemas")[data["schema"]].validate(data)
        return text

    monkeypatch.setattr(Document, "to_json", checked)


@pytest.fixture
def real_catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The catalog that is shipped, for the pages that are made from it."""
    monkeypatch.setattr(catalog, "FOLDER", _REAL_CATALOG)
    catalog._loaded.cache_clear()
    yield
    catalog._loaded.cache_clear()
