"""Names the cause of what is broken: facts in, findings out. Pure; see rule (how), pages (what is said) and finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from provision.catalog import Catalog
    from provision.diagnose.finding import Diagnosis
    from provision.facts import Facts

__all__ = ["diagnose"]


def diagnose(facts: Facts, values: Mapping[str, Any], catalog: Catalog) -> Diagnosis:
    """Return what is wrong with one host, what has to be mended first at the head.

    facts: of the host program ``probe.diagnostics`` (with those of the probe alone much stays unsaid); values: the host's
    effective role variables; catalog: load_catalog(). Never raises for any facts.
    """
    from provision.diagnose.judge import judge
    from provision.diagnose.rule import Case

    return judge(Case(facts, values, catalog))
