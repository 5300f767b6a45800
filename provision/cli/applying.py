"""What apply does between its command line and its document: plan, show, ask, carry out, go on."""

from __future__ import annotations

import json
import os
import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.gpu.provision.plugins.plugin_utils.lockfile import VARIABLE
from provision.catalog import VARIABLE as CATALOG
from provision.catalog import other_catalog
from provision.cli.base import Settings, agreed, finish, open_fleet, with_values
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.documents import ApplyDocument, PlanDocument
    from provision.render import Renderer
    from provision.rollout.observers import RunObserver
    from provision.rollout.options import RolloutOptions
    from provision.rollout.state import Store, Where
    from provision.runs.fleet import Fleet
    from provision.runs.rollback import Rollback


_SUDO_PASSWORDS = {"ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"}
# Ansible's own variables that are no secrets.
_PUBLIC = {
    "ansible_become",
    "ansible_become_user",
    "ansible_connection",
    "ansible_host",
    "ansible_port",
    "ansible_python_interpreter",
    "ansible_ssh_private_key_file",
    "ansible_user",
}


@dataclass(frozen=True)
class How:
    """Options of one call, that a run does not keep. break_lock: take the lock of another run."""

    yes: bool = False
    check: bool = False
    break_lock: bool = False


def begin(settings: Settings, options: RolloutOptions, how: How, *, rollback: str | None = None) -> int:
    """Plan, ask, change, prove. rollback: the run whose hosts go back to what they had before it."""
    if rollback and VARIABLE in options.values:
        raise UsageError("usage.rollback", "--rollback uses its own lock", hint="leave --lock or --no-lock out")
    back = _rollback(settings, rollback)
    if back is not None:
        options = options.model_copy(update={"rollback": back.run.run})
        settings = replace(settings, inventory=settings.inventory or _where_it_was(back))
    fleet, renderer = open_fleet(with_values(settings, options.values or False), "apply", dial=back is None)
    if back is not None:
        _settle(fleet, back, renderer)
    return _carry_out(settings, fleet, renderer, options, None, how, back)


def _settle(fleet: Fleet, back: Rollback, renderer: Renderer) -> None:
    """Wait for what the run left running on hosts, where it was interrupted: they are not compared in the middle of it."""
    from provision.commands import apply as command
    from provision.lib import own_state
    from provision.rollout.state import FILE, RunState

    state = own_state.read_or_none(Path(back.run.folder or ".") / FILE, RunState)
    if state is not None:
        command.settle(fleet, state, renderer.progress())


def _rollback(settings: Settings, run: str | None) -> Rollback | None:
    """Find a run to go back before. Raises UsageError for one that is not known, or that did not change anything."""
    if run is None:
        return None
    from provision.runs import engine, history, rollback

    base = settings.run_dir or engine.runs_folder()
    found = history.find(run, base)
    if found is None:
        raise UsageError(
            "usage.run",
            f"--rollback {run}: no run has that name",
            because=[folder.name for folder in history.folders(base)[:5]],
            hint="provision history lists the runs of this machine; those of others are undone from there",
        )
    return rollback.of_run(found)


def _where_it_was(back: Rollback) -> list[str]:
    """The inventory of the run, as far as it is still there: rolling back may be said in another folder."""
    from provision.rollout.state import FILE, read

    folder = Path(back.run.folder or ".")
    sources = read(folder).where.sources if (folder / FILE).is_file() else []
    return [source for source in sources if "," in source or Path(source).exists()]


def go_on(settings: Settings, run: str, options: RolloutOptions, how: How, *, rollback: str | None = None) -> int:
    """Go on with a run: its hosts that are not done, with its options.

    Raises UsageError for options beside --resume, for a run that is not known, and for an inventory that is not the run's.
    """
    if how.check or rollback or options != type(options)():
        raise UsageError(
            "usage.resume",
            "--resume uses the options of the run",
            hint="leave the other options out; or begin a new run: provision apply",
        )
    from provision.commands import apply as command
    from provision.render import Renderer

    talk = Renderer(as_json=settings.json, verbosity=settings.verbose).progress()
    store = command.reopen(run, settings.run_dir, talk)
    state = store.state
    where = state.where
    given = [*(f"@{name}" for name in where.files), *([json.dumps(where.values)] if where.values else [])]
    settings = replace(
        settings,
        inventory=settings.inventory or list(where.sources),
        limit=settings.limit or where.limit,
        forks=settings.forks or where.forks,
        extra_vars=[*given, *settings.extra_vars],
        vault_id=settings.vault_id or list(where.vault_password_files),
    )
    other = settings.catalog or (where.catalog and Path(where.catalog)) or None
    with other_catalog(other):
        fleet, renderer = open_fleet(with_values(settings, state.options.values or False), "apply")
        part = command.part_of(fleet, state, settings.limit)
        if not part.hosts:
            renderer.say(f"nothing is left of {state.run}: {state.count()}")
        command.settle(part, state, renderer.progress())
        back = _rollback(settings, state.options.rollback)
        return _carry_out(settings, part, renderer, state.options, store, how, back)


def _carry_out(
    settings: Settings,
    fleet: Fleet,
    renderer: Renderer,
    options: RolloutOptions,
    store: Store | None,
    how: How,
    back: Rollback | None,
) -> int:
    from provision.commands import actions
    from provision.commands import apply as command
    from provision.commands import plan as planning
    from provision.runs import engine, rollback

    named = [host.name for host in fleet.hosts]
    if back is not None:
        fleet = back.fleet(fleet)
    before, keep_before = rollback.before_of(fleet)
    planned = planning.run(
        fleet,
        renderer.progress(),
        on_change=lambda: engine.make_ready(fleet.inventory),
        keep=actions.stays_up if not options.staged else lambda plan: False,
        waits=command.can_wait(fleet, options),
        before=keep_before,
    )
    if back is not None:
        # Of a run that goes on, the other hosts are done, or were named when it began.
        back.refuse(planned, named, limited=settings.limit is not None or store is not None)
    planned_at = time.monotonic()
    names = command.to_change(planned)
    if names and not renderer.as_json:
        _show(renderer, command, fleet, planned, options, store, settings.run_dir)

    def run(**more: Any) -> ApplyDocument:
        return command.run(
            fleet,
            planned,
            renderer.progress(),
            options=options,
            resumed=store,
            where=_where(settings, fleet, options),
            run_base=settings.run_dir,
            check=how.check,
            verbosity=settings.verbose,
            planned_at=planned_at,
            observers=observers(fleet, planned, renderer, options, how, before),
            **more,
        )

    if names and not (how.yes or how.check) and not agreed(renderer, len(names)):
        engine.dismiss()
        if store is not None and store.state.owing():
            return finish(settings, run(declined=True), renderer)
        renderer.errors(planned.errors)
        renderer.say("nothing was changed")
        return planned.exit_code
    return finish(settings, run(), renderer)


def observers(
    fleet: Fleet, planned: PlanDocument, renderer: Renderer, options: RolloutOptions, how: How, before: dict[str, Any]
) -> list[RunObserver]:
    """Return the observers of the rollout: the locks of the hosts, and the record of the run."""
    from provision.runs.history import Recorder

    command = "provision apply" + (f" --rollback {options.rollback}" if options.rollback else "")
    return [Recorder(fleet, planned.hosts, command, renderer.progress(), force=how.break_lock, before=before)]


def _show(
    renderer: Renderer,
    command: Any,
    fleet: Fleet,
    planned: PlanDocument,
    options: RolloutOptions,
    store: Store | None,
    base: Path | None,
) -> None:
    renderer.show(planned)
    state = store.state if store else None
    total = state.total if state and state.total else len(command.to_change(planned))
    renderer.lines(
        [*_outage(planned, base), *command.preview(command.stages(fleet, planned, options, state), options, total)]
    )


def _outage(planned: PlanDocument, base: Path | None) -> list[str]:
    """What past runs say of the hosts that reboot; nothing where there was none: a time that nobody measured is not told."""
    from provision.commands.history import place
    from provision.render.text import plural
    from provision.rollout.summary import duration
    from provision.runs import history

    plans = planned.hosts
    took = history.reboots(place(base), [name for name in plans if plans[name].reboot.needed])
    if not took:
        return []
    slowest = max(took, key=lambda name: took[name])
    return [f"  reboots in earlier runs: {plural(len(took), 'host')}, at most {duration(took[slowest])} ({slowest})"]


def _where(settings: Settings, fleet: Fleet, options: RolloutOptions) -> Where:
    """How this run is started, as far as that is no secret."""
    from provision.inventory import absolute_file
    from provision.rollout.state import Where

    limit = ",".join(absolute_file(part) for part in settings.limit.split(",")) if settings.limit else settings.limit
    given = [text.strip() for text in settings.extra_vars]
    files = [absolute_file(text) for text in given if text.startswith("@")]
    # What comes out of a pipe is gone by then: its variables have to be given again.
    lasting = all(Path(name[1:]).is_file() for name in files)
    typed = {name for text in given if not text.startswith("@") for name in _names(text)}
    names = [name for name in fleet.inventory.extra_vars if name not in options.values]
    values = {name: fleet.inventory.extra_vars[name] for name in names if name in typed}
    values = {name: value for name, value in values.items() if _is_public(name, value)}
    again = [name for name in names if name not in values and (name in typed or not lasting)]
    asks = ["-K"] if settings.ask_become_pass or set(again) & _SUDO_PASSWORDS else []
    return Where(
        sources=_absolute(fleet.inventory.sources),
        limit=limit,
        values=values,
        files=[name[1:] for name in files] if lasting else [],
        extra_vars=[name for name in again if name not in _SUDO_PASSWORDS],
        vault_password_files=fleet.inventory.vault_ids,
        asks=[*asks, *(["--ask-vault-pass"] if settings.ask_vault_pass else [])],
        forks=settings.forks,
        catalog=os.environ.get(CATALOG),
        run_dir=str(settings.run_dir.absolute()) if settings.run_dir else None,
    )


def _names(text: str) -> list[str]:
    """Names of the variables in one -e: key=value pairs, JSON or YAML."""
    if text.startswith(("{", "[")):
        import yaml

        found = yaml.safe_load(text)
        return list(found) if isinstance(found, dict) else []
    return [word.partition("=")[0] for word in shlex.split(text) if "=" in word]


def _is_public(name: str, value: Any) -> bool:
    """True for a variable that is no secret: one of our roles, or of those that say how to log in, without a password in it."""
    from ansible_collections.gpu.provision.plugins.module_utils.lib import redact
    from provision.inventory.variables import known

    shown = f"{name}: {json.dumps(value)}"
    return (name in known() or name in _PUBLIC) and redact.text(shown) == shown


def _absolute(sources: list[str]) -> list[str]:
    """Files by their whole path: --resume may be said in another folder."""
    return [str(Path(source).absolute()) if Path(source).exists() else source for source in sources]
