"""scan: the facts of every host. Reads only."""

from __future__ import annotations

from provision.catalog import load_catalog
from provision.documents import ScanDocument, ScannedHost
from provision.errors import Exit, ProvisionError
from provision.facts import Facts
from provision.layers.cuda import describe_cuda
from provision.layers.driver import describe_origin
from provision.lib.findings import Finding, Level
from provision.parts.driver.installed import installed_driver
from provision.planning import describe_gpus, read_facts
from provision.runs.fleet import Fleet, Silent, Talk, ask_all


def run(fleet: Fleet, talk: Talk | None = None) -> ScanDocument:
    """Read every host once. Unreachable and failed hosts are listed apart; the others have their facts."""
    answers = ask_all(
        fleet,
        fleet.hosts,
        "reading hosts",
        lambda host, session: describe(read_facts(session.call, fleet.values[host.name])),
        talk or Silent(),
        shown=_in_brief,
    )
    document = ScanDocument()
    codes: list[Exit] = []
    for name, answer in answers.items():
        if isinstance(answer, ProvisionError):
            document.hosts[name] = ScannedHost(status=answer.host_status, summary=answer.issue.message)
            document.errors.append(answer.issue)
            codes.append(answer.exit_code)
        else:
            document.hosts[name] = answer
    return document.conclude(codes)


def _in_brief(host: ScannedHost) -> str:
    cells = [", ".join(host.gpus) or "no NVIDIA GPU", host.driver or "no driver", host.cuda, host.summary]
    return "; ".join(filter(None, cells))


def describe(facts: Facts) -> ScannedHost:
    """Return a host's facts with the texts that a table shows."""
    driver, noticed = describe_driver(facts), remarks(facts)
    return ScannedHost(
        status="ok",
        gpus=describe_gpus(facts, load_catalog()),
        driver=driver,
        origin=describe_origin(facts) if driver else None,
        cuda=describe_cuda(facts),
        summary="; ".join(remark.message for remark in noticed),
        remarks=noticed,
        facts=facts,
    )


def describe_driver(facts: Facts) -> str | None:
    """Return the loaded module's version and flavour; without one, what is on disk for the running kernel, or installed."""
    loaded = facts.module.loaded
    if loaded is not None:
        return " ".join(filter(None, (loaded.version, loaded.flavour)))
    for module in facts.module.on_disk:
        if module.kernel == facts.kernels.running and module.version:
            return f"{module.version} {module.flavour or ''}".strip() + " (not loaded)"
    versions = installed_driver(facts).versions or sorted({lib.version for lib in facts.libraries if lib.version})
    return f"{' and '.join(versions)} (no module for the running kernel)" if versions else None


def remarks(facts: Facts) -> list[Finding]:
    """Return what a person should notice, gravest first."""
    found: list[Finding] = []

    def say(code: str, level: Level, message: str) -> None:
        found.append(Finding(code=code, level=level, message=message))

    unfinished = [name for name, package in facts.packages.items() if package.broken]
    if unfinished or facts.package_problems:
        say("dpkg.unfinished", "error", "dpkg unfinished: " + ", ".join((unfinished + facts.package_problems)[:3]))
    if facts.smi.path and facts.smi.timed_out:
        say("driver.smi", "error", "nvidia-smi hangs")
    elif facts.smi.ran and facts.smi.rc:
        say("driver.smi", "error", f"nvidia-smi fails ({facts.smi.rc})")
    others = sorted({gpu.driver or "nothing" for gpu in facts.gpus if gpu.driver != "nvidia"})
    if others and facts.gpus:
        say("driver.bound", "warning", f"GPUs bound to {', '.join(others)}")
    if facts.runfile.uninstaller:
        say("driver.runfile", "note", "driver from a runfile")
    held = sum(package.held for package in facts.packages.values())
    if held:
        say("holds", "note", f"{held} packages held")
    if facts.reboot_required.required:
        say("reboot.pending", "note", "reboot pending")
    if facts.run_lock:
        from provision.runs.run_lock import left_behind

        if left_behind("", facts):
            say("host.lock", "warning", "a run that ended left its lock")
    if facts.gpu_users:
        count = len(facts.gpu_users)
        say("gpus.used", "note", "1 process uses the GPUs" if count == 1 else f"{count} processes use the GPUs")
    if facts.apt.errors:
        say("apt.sources", "error", "apt sources broken")
    refused = facts.refused
    if refused:
        say("host.facts", "warning", f"{len(refused)} facts cannot be used: {refused[0]}")
    if len(facts.unreadable) > len(refused):
        say("host.unreadable", "note", f"{len(facts.unreadable) - len(refused)} things need root to be read")
    return found
