"""What a plan writes into files, as text: for ``plan --diff``. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import redact
from provision.parts.plan import HostPlan


class Content(NamedTuple):
    """A file that is written, with its whole new text; None: it is removed."""

    path: str
    text: str | None


def contents(plan: HostPlan) -> Iterator[Content]:
    """Return the files that a plan writes or removes, without passwords.

    A file that is changed in place (daemon.json) is not among them: the plan names its keys.
    """
    parts = plan.spec.get("parts", {})
    named = " ".join(line for step in plan.steps if step.id == "sources" for line in step.details)
    for one in _of_apt((plan.spec.get("apt") or {}).get("configure") or {}):
        if one.path in named:
            yield one
    for file in (parts.get("nvidia_driver") or {}).get("boot", {}).get("files", []):
        yield Content(file["path"], file["content"])
    environment = (parts.get("cuda_toolkit") or {}).get("environment") or {}
    for file in environment.get("files", []):
        yield Content(file["path"], file["content"])
    for path in environment.get("absent", []):
        yield Content(path, None)


def _of_apt(configure: dict[str, Any]) -> Iterator[Content]:
    for spec in configure.get("repositories", []):
        path = apt_files.sources_path(spec["name"])
        text = None
        if spec.get("state") != "absent":
            text = apt_files.render_sources(
                spec["name"], spec["uris"], spec["suites"], spec["components"], False, spec.get("signed_by")
            )
        yield Content(path, text)
    patterns, proxy = configure.get("unattended_blacklist"), configure.get("proxy")
    yield Content(apt_files.PREFERENCES, configure.get("preferences"))
    yield Content(apt_files.UNATTENDED, apt_files.render_unattended(patterns) if patterns else None)
    yield Content(apt_files.PROXY, redact.text(proxy) if proxy else None)
