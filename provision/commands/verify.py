"""verify: the checks of every host, with their evidence. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

from provision.catalog import load_catalog
from provision.commands.fleet import Fleet, Silent, Talk, ask_all
from provision.documents import Check, CheckStatus, VerifiedHost, VerifyDocument
from provision.errors import Exit, Issue, ProvisionError
from provision.inventory import Host
from provision.planning import verify_host

_WORST: tuple[CheckStatus, ...] = ("fail", "warn", "pass")


def run(fleet: Fleet, talk: Talk | None = None, hosts: Sequence[Host] | None = None) -> VerifyDocument:
    """Check hosts (all of the fleet when None). Exit code 3 where a check failed; warnings do not fail."""
    catalog = load_catalog()
    answers = ask_all(
        fleet,
        fleet.hosts if hosts is None else hosts,
        "verifying",
        lambda host, session: verify_host(session.call, dict(fleet.values[host.name]), catalog),
        talk or Silent(),
    )
    document = VerifyDocument()
    codes: list[Exit] = []
    for name, answer in answers.items():
        if isinstance(answer, ProvisionError):
            unreachable = answer.exit_code == Exit.UNREACHABLE
            document.hosts[name] = VerifiedHost(status="unreachable" if unreachable else "failed")
            document.errors.append(answer.issue)
            codes.append(answer.exit_code)
            continue
        checks = [Check.model_validate(verdict) for verdict in answer]
        document.hosts[name] = VerifiedHost(status=worst_status(checks), checks=checks)
        failed = [check for check in checks if check.status == "fail"]
        document.errors += [as_issue(name, check) for check in failed]
        codes.append(Exit.CHECK_FAILED if failed else Exit.OK)
    return document.conclude(codes)


def worst_status(checks: Sequence[Check]) -> CheckStatus:
    """Return the gravest status: fail, warn, pass; skip when nothing was judged."""
    seen = {check.status for check in checks}
    return next((status for status in _WORST if status in seen), "skip")


def as_issue(host: str, check: Check) -> Issue:
    return Issue(
        code=f"check.{check.id}", host=host, message=f"{check.id}: {check.message}", because=check.evidence,
        hint=check.hint,
    )  # fmt: skip
