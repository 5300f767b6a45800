"""Reading a host and planning for it: the loop around the pure parts (probe, resolve, plan, checks).

``call(program, args)`` runs one read-only host program and returns its result: over the fast read's session for the
commands, through Ansible modules for the action plugins. Nothing here changes a host.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils import aptcommon, aptquery, checks, names
from provision.catalog import Catalog, load_catalog
from provision.errors import Issue, ProvisionError, RefusedError, UsageError
from provision.facts import Facts
from provision.plan import HostPlan
from provision.plan.driver import apply_simulation, conflicting, cuda_entries, driver_spec, expectation
from provision.resolve.decision import CHANNELS, Decision, DriverWish, kernel_flavours
from provision.resolve.driver import resolve_driver
from provision.resolve.installed import is_cuda_uri, is_ppa_uri
from provision.resolve.offer import Candidate, Offer

Call = Callable[[str, dict[str, Any]], Any]


def plan_host(name: str, call: Call, values: dict[str, Any], catalog: Catalog | None = None) -> HostPlan:
    """Plan one host.

    values: effective role variables (variables.effective). Raises UnreachableError or HostFailedError from ``call``
    and UsageError for values that cannot be used.
    """
    facts = Facts.model_validate(call("probe", {}))
    return plan_from_facts(name, facts, call, values, catalog)


def plan_from_facts(
    name: str, facts: Facts, call: Call, values: dict[str, Any], catalog: Catalog | None = None
) -> HostPlan:
    """As plan_host, with the facts at hand: apt is asked only where packages have to change."""
    catalog = catalog or load_catalog()
    wish = DriverWish.from_vars(values)
    offers: dict[str, Offer] = {}
    workdirs: dict[str, str] = {}  # on the host, by channel: apt's private folders
    decision = resolve_driver(wish, facts, catalog, offers)
    try:
        while decision.ask is not None:
            channel = decision.ask
            _refuse_unreadable_sources(facts, decision)
            if decision.blockers:
                break
            source = source_spec(channel, wish, facts, catalog)
            answer = call("aptquery", offer_args(source, wish, facts))
            workdirs[channel] = answer["workdir"]
            offers[channel] = Offer.from_json(answer, keep=lambda c, s=source, k=channel: _is_from(c, k, s))
            decision = resolve_driver(wish, facts, catalog, offers)
        plan = _plan(name, wish, facts, decision, catalog)
        if plan.status != "blocked" and (plan.spec["install"] or plan.spec["remove"]):
            channel = decision.target.channel if decision.target else ""
            errors = offers[channel].errors if channel in offers else []
            _simulate(plan, facts, call, workdirs.pop(channel, None), errors)
    finally:
        if workdirs:
            call("aptquery", {"op": "cleanup", "workdirs": list(workdirs.values())})
    return plan


def expect_of(facts: Facts, values: dict[str, Any], catalog: Catalog | None = None) -> dict[str, Any]:
    """What verify holds a host to: the wish, and where it leaves a choice, what resolve keeps."""
    catalog = catalog or load_catalog()
    wish = DriverWish.from_vars(values)
    expect = expectation(wish, facts, resolve_driver(wish, facts, catalog, {}))
    expect["gpus"] = int(values.get("gpu_verify_expected_gpus") or 0)
    return expect


def verify_host(call: Call, values: dict[str, Any], catalog: Catalog | None = None) -> list[dict[str, Any]]:
    """Read one host and judge it; see checks for what a verdict is."""
    data = Facts.model_validate(call("probe", {}))
    verdicts = checks.run(data.model_dump(), expect_of(data, values, catalog))
    if values.get("gpu_verify_strict"):
        for verdict in verdicts:
            if verdict["status"] == "warn":
                verdict["status"] = "fail"
    return list(verdicts)


def describe_gpus(facts: Facts, catalog: Catalog) -> list[str]:
    """Return the GPUs of a host as people say it: ``2 x H100 SXM5 80GB``."""
    counts: dict[str, int] = {}
    for gpu in facts.gpus:
        name = catalog.gpu_by_id(gpu.device).name
        counts[name] = counts.get(name, 0) + 1
    return [f"{count} x {name}" for name, count in counts.items()]


# --- what apt is asked -------------------------------------------------------------------------------------------


def source_spec(channel: str, wish: DriverWish, facts: Facts, catalog: Catalog) -> dict[str, Any] | None:
    """Return the repository of a channel as aptquery's SourceSpec; None for the Ubuntu archive.

    Raises UsageError when the catalog has no such repository for this Ubuntu and none is given, and RefusedError when
    neither the catalog nor the inventory says by which key it is signed.
    """
    if channel == "ubuntu" and not conflicting(facts):
        return None
    kind = "ppa" if channel == "ppa" else "cuda"
    repository = catalog.repository(kind, ubuntu=facts.host.os.version_id, arch=facts.host.arch)
    if kind == "ppa":
        url, key, fingerprint = wish.ppa_url, wish.ppa_key, wish.ppa_key_fingerprint
    else:
        url, key, fingerprint = wish.repo_url, wish.repo_key, wish.repo_key_fingerprint
    for value in (url, key if "://" in key else ""):
        _refuse_odd_url(value)
    text, key_url = _load_key(key)
    base = (url or repository.url).rstrip("/")
    if not text and not key_url:
        key_url = (
            repository.key_url if not url else f"{base}/{Path(repository.key_url or '3bf863cc.pub').name}"
        )
    wanted = (fingerprint or repository.fingerprint or "").replace(" ", "").upper() or None
    if text is None and (wanted is None or key_url is None):
        prefix = "nvidia_driver_ppa_key" if kind == "ppa" else "nvidia_driver_repo_key"
        raise RefusedError(
            "apt.key_unknown",
            f"the key of {CHANNELS[kind]} for Ubuntu {facts.host.os.version_id} is not known to the catalog",
            because=[repository.note or "no source states its fingerprint", "nothing is installed on trust"],
            hint=f"set {prefix} to the key and {prefix}_fingerprint to its fingerprint as the vendor states it, "
            "or nvidia_driver_channel: ubuntu",
        )
    return {
        "name": kind,
        "uris": base + "/",
        "suites": repository.suite,
        "components": repository.components,
        "key": text,
        "key_url": key_url,
        "fingerprint": wanted,
    }


def _refuse_odd_url(url: str) -> None:
    """Refuse what would break apt's file, and a password that plans, logs and a file for everyone would show."""
    if not url:
        return
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*:/[^\s\x00-\x1f\x7f]*", url):
        raise UsageError(
            "usage.url", f"{url!r} is not the address of a repository", hint="write it as https://mirror.example.org/path/"
        )  # fmt: skip
    if "@" in url.split("//", 1)[-1].split("/", 1)[0]:
        raise UsageError(
            "usage.url_with_password", "a repository's address must not hold a user or password",
            because=[aptcommon.redact(url)], hint="put them into a file in /etc/apt/auth.conf.d on the host (apt_auth.conf(5))",
        )  # fmt: skip


def _load_key(key: str) -> tuple[str | None, str | None]:
    """Return (armored text, URL) of a key that was given as text, file on the controller, or URL."""
    if not key:
        return None, None
    if "BEGIN PGP" in key:
        return key, None
    if "://" in key:
        return None, key
    path = Path(key).expanduser()
    try:
        return path.read_text(encoding="ascii"), None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "usage.key_unreadable", f"cannot read the repository key {key}", because=[str(error)],
            hint="give an armored key (gpg --armor --export) as a file, as text, or as a URL",
        ) from error  # fmt: skip


def offer_args(source: dict[str, Any] | None, wish: DriverWish, facts: Facts) -> dict[str, Any]:
    """Return aptquery's arguments for a channel's source: what to add, entries to leave out, names to look at."""
    omit = (
        [{"file": e.file, "line": e.line} for e in cuda_entries(facts)]
        if source and source["name"] == "cuda"
        else []
    )
    kernels = {kernel for kernel in (facts.kernels.running, facts.kernels.next) if kernel}
    patterns = [
        r"(nvidia|libnvidia|xserver-xorg-video-nvidia|cuda-drivers|linux-modules-nvidia|linux-objects-nvidia"
        r"|linux-signatures-nvidia)(-.*)?",
        r"libnvsdm|nvlsm",
        *[f"linux-headers-{re.escape(kernel)}" for kernel in sorted({*kernel_flavours(facts), *kernels})],
    ]
    return {
        "op": "offer",
        "sources": [source] if source else [],
        "omit": omit,
        "patterns": patterns,
        "refresh": "always" if wish.update or source else "if_stale",
    }


def _is_from(candidate: Candidate, channel: str, source: dict[str, Any] | None) -> bool:
    """True when a candidate belongs to the channel: NVIDIA's names exist in more than one repository."""
    if not names.is_driver_package(candidate.name):
        return True
    cuda, ppa = is_cuda_uri(candidate.uri), is_ppa_uri(candidate.uri)
    if channel == "ubuntu":
        return (
            not cuda
            and not ppa
            and candidate.origin != "NVIDIA"
            and not candidate.origin.startswith("LP-PPA-")
        )
    if source and candidate.uri.rstrip("/") == source["uris"].rstrip("/"):
        return True
    return cuda if channel == "cuda" else ppa


def _refuse_unreadable_sources(facts: Facts, decision: Decision) -> None:
    others = [error for error in facts.apt.errors if not is_cuda_uri(error)]
    if others:
        decision.block(
            "apt.sources_broken", "apt cannot read its sources: every apt call on this host fails", others[:4],
            "mend the named file first; it is not ours to change",
        )  # fmt: skip


# --- the plan -----------------------------------------------------------------------------------------------------


def _plan(name: str, wish: DriverWish, facts: Facts, decision: Decision, catalog: Catalog) -> HostPlan:
    target = decision.target
    source = source_spec(target.channel, wish, facts, catalog) if target else None
    spec, steps, reboot = driver_spec(wish, facts, decision, source)
    plan = HostPlan(
        host=name, status="converged", gpus=describe_gpus(facts, catalog), decisions=decision.reasons,
        steps=steps, spec=spec, reboot=reboot, blockers=[_on(name, issue) for issue in decision.blockers],
        warnings=[_on(name, issue) for issue in decision.warnings],
    )  # fmt: skip
    plan.spec["python"] = {"path": facts.host.python_path, "version": facts.host.python}
    if plan.reboot.blocked_by:
        plan.blockers.append(
            Issue(
                code="gpu.in_use", host=name, message="the GPUs are in use and the change would disturb them",
                because=plan.reboot.blocked_by[:8],
                hint="wait for them or stop them; nvidia_driver_reboot: always goes ahead all the same",
            )
        )  # fmt: skip
    if plan.blockers:
        plan.status, plan.steps = "blocked", []
    elif plan.steps:
        plan.status = "changes"
    if target:
        signed = "signed" if target.build == "signed" else "DKMS"
        plan.summary = (
            f"driver {target.version} {target.flavour}, {signed} modules, from {CHANNELS[target.channel]}"
        )
    elif not facts.gpus:
        plan.summary = "no NVIDIA GPU"
    elif not wish.manage:
        version = facts.module.loaded.version if facts.module.loaded else "none loaded"
        plan.summary = f"driver not managed here ({version})"
    return plan


def _on(host: str, issue: Issue) -> Issue:
    return issue.model_copy(update={"host": host})


def _simulate(plan: HostPlan, facts: Facts, call: Call, workdir: str | None, errors: list[str]) -> None:
    """Let apt say on the host what it would do, and judge that before anybody is asked to agree.

    errors: repositories that could not be read; where something is missing they are the likelier reason.
    """
    spec = plan.spec
    install = [*([spec["pinning"]] if spec["pinning"] else []), *spec["install"]]
    answer = call(
        "aptquery",
        {"op": "simulate", "workdir": workdir, "install": install, "remove": spec["remove"],
         "unhold": "all_driver"},
    )  # fmt: skip
    if not answer["ok"]:
        plan.blockers.append(
            Issue(
                code="apt.unmet", host=plan.host, message="apt finds no way to install this driver",
                because=[*errors[:4], *str(answer["error"]).splitlines()[:8]],
                hint="make that repository reachable from the host (network, proxy, mirror, key), then plan again"
                if errors
                else "look for half-configured packages (dpkg --audit) and for other sources of the same packages",
            )
        )  # fmt: skip
    else:
        apply_simulation(plan, answer)
        installed = {
            name: package.version for name, package in facts.packages.items() if package.status[1] not in "nc"
        }
        problems = aptquery.judge(
            answer["changes"],
            allowed_remove=[*spec["remove"], *filter(names.is_driver_package, installed)],
            family_version=spec.get("family_version"),
            requested=install,
            installed=installed,
            running_kernel=facts.kernels.running,
        )
        for problem in problems:
            plan.blockers.append(
                Issue(
                    code=problem["code"], host=plan.host, message=problem["message"],
                    because=problem.get("because") or [], hint=problem.get("hint"),
                )
            )  # fmt: skip
    if plan.blockers:
        plan.status, plan.steps = "blocked", []


def failed_plan(host: str, error: ProvisionError) -> HostPlan:
    """The plan of a host that could not be read or planned: its error in the plan's words."""
    status = {4: "unreachable", 5: "blocked"}.get(int(error.exit_code), "failed")
    issue = error.issue.model_copy(update={"host": host})
    return HostPlan.model_validate({"host": host, "status": status, "blockers": [issue.model_dump()]})
