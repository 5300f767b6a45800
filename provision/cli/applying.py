"""What apply does between its command line and its document: plan, show, ask, carry out, go on."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from provision.cli.base import Settings, agreed, finish, open_fleet, with_values
from provision.errors import UsageError
from provision.lock.model import VARIABLE

if TYPE_CHECKING:
    from provision.documents import ApplyDocument, PlanDocument
    from provision.render import Renderer
    from provision.rollout.observers import RunObserver
    from provision.rollout.options import RolloutOptions
    from provision.rollout.state import Store
    from provision.runs.fleet import Fleet
    from provision.runs.rollback import Rollback


@dataclass(frozen=True)
class How:
    """Options of one call, that a run does not keep. break_lock: take the lock of another run."""

    yes: bool = False
    check: bool = False
    break_lock: bool = False


def begin(settings: Settings, options: RolloutOptions, how: How, *, rollback: str | None = None) -> int:
    """Plan, ask, change, prove. rollback: the run whose hosts go back to what they had before it."""
    if rollback and VARIABLE in options.values:
        raise UsageError("usage.rollback", "--rollback has a lock of its own", hint="leave --lock or --no-lock out")
    back = _rollback(settings, rollback)
    if back is not None:
        options = options.model_copy(update={"rollback": back.run.run})
        settings = replace(settings, inventory=settings.inventory or _where_it_was(back))
    fleet, renderer = open_fleet(with_values(settings, options.values or False), "apply")
    return _carry_out(settings, fleet, renderer, options, None, how, back)


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
            f"--rollback {run}: no run is called like that",
            because=[folder.name for folder in history.folders(base)[:5]],
            hint="provision history lists the runs of this machine; those of others are undone from there",
        )
    return rollback.of_run(found)


def _where_it_was(back: Rollback) -> list[str]:
    """The inventory of the run, as far as it is still there: rolling back may be said in another folder."""
    from pathlib import Path

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
            "--resume goes on with the options that the run began with",
            hint="leave the other options out; or begin a new run: provision apply",
        )
    from provision.commands import apply as command
    from provision.render import Renderer

    talk = Renderer(as_json=settings.json, verbosity=settings.verbose).progress()
    store = command.reopen(run, settings.run_dir, talk)
    state = store.state
    settings = replace(
        settings, inventory=settings.inventory or list(state.where.sources), limit=settings.limit or state.where.limit
    )
    fleet, renderer = open_fleet(with_values(settings, state.options.values or False), "apply")
    part = command.part_of(fleet, state, settings.limit)
    if not part.hosts:
        renderer.say(f"nothing is left of {state.run}: {state.count()}")
    command.settle(part, state, renderer.progress())
    return _carry_out(settings, part, renderer, state.options, store, how, _rollback(settings, state.options.rollback))


def _carry_out(
    settings: Settings,
    fleet: Fleet,
    renderer: Renderer,
    options: RolloutOptions,
    store: Store | None,
    how: How,
    back: Rollback | None,
) -> int:
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
        keep=command.stays_up if not options.staged else lambda plan: False,
        waits=command.can_wait(fleet, options),
        before=keep_before,
    )
    if back is not None:
        back.refuse(planned, named, limited=settings.limit is not None)
    planned_at = time.monotonic()
    names = command.to_change(planned)
    if names and not renderer.as_json:
        _show(renderer, command, fleet, planned, options, store)

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
    renderer: Renderer, command: Any, fleet: Fleet, planned: PlanDocument, options: RolloutOptions, store: Store | None
) -> None:
    renderer.show(planned)
    state = store.state if store else None
    total = state.total if state and state.total else len(command.to_change(planned))
    renderer.lines(command.preview(command.stages(fleet, planned, options, state), options, total))


def _where(settings: Settings, fleet: Fleet, options: RolloutOptions) -> Any:
    from provision.rollout.state import Where

    names = [name for name in fleet.inventory.extra_vars if name not in options.values]
    return Where(sources=_absolute(fleet.inventory.sources), limit=settings.limit, extra_vars=names)


def _absolute(sources: list[str]) -> list[str]:
    """Files by their whole path: --resume may be said in another folder."""
    from pathlib import Path

    return [str(Path(source).absolute()) if Path(source).exists() else source for source in sources]
