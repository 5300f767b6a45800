"""What apply does between the words of its command line and its document: plan, show, ask, carry out, go on."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from provision.cli.base import Settings, agreed, finish, open_fleet, with_values
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.commands.fleet import Fleet
    from provision.documents import ApplyDocument, PlanDocument
    from provision.render import Renderer
    from provision.rollout.options import RolloutOptions
    from provision.rollout.seams import Seam
    from provision.rollout.state import Store


def begin(settings: Settings, options: RolloutOptions, *, yes: bool, check: bool) -> int:
    """Plan, ask, change, prove."""
    fleet, renderer = open_fleet(with_values(settings, options.values or False), "apply")
    return _carry_out(settings, fleet, renderer, options, None, yes=yes, check=check)


def go_on(settings: Settings, run: str, options: RolloutOptions, *, yes: bool, check: bool) -> int:
    """Go on with a run: its hosts that are not done, with its options.

    Raises UsageError for options beside --resume, for a run that is not known, and for an inventory that is not the run's.
    """
    if check or options != type(options)():
        raise UsageError(
            "usage.resume", "--resume goes on with the options that the run began with",
            hint="leave the other options out; or begin a new run: provision apply",
        )  # fmt: skip
    from provision.commands import apply as command
    from provision.render import Renderer

    talk = Renderer(as_json=settings.json, verbosity=settings.verbose).progress()
    store = command.reopen(run, settings.run_dir, talk)
    state = store.state
    settings = replace(
        settings,
        inventory=settings.inventory or list(state.where.sources),
        limit=settings.limit or state.where.limit,
    )
    fleet, renderer = open_fleet(with_values(settings, state.options.values or False), "apply")
    part = command.part_of(fleet, state, settings.limit)
    if not part.hosts:
        renderer.say(f"nothing is left of {state.run}: {state.count()}")
    return _carry_out(settings, part, renderer, state.options, store, yes=yes, check=False)


def _carry_out(
    settings: Settings, fleet: Fleet, renderer: Renderer, options: RolloutOptions, store: Store | None, *,
    yes: bool, check: bool,
) -> int:  # fmt: skip
    from provision import engine
    from provision.commands import apply as command
    from provision.commands import plan as planning

    planned = planning.run(
        fleet,
        renderer.progress(),
        on_change=lambda: engine.make_ready(fleet.inventory),
        keep=command.stays_up if not options.staged else lambda plan: False,
        waits=command.can_wait(fleet, options),
    )
    planned_at = time.monotonic()
    names = command.to_change(planned)
    if names and not renderer.as_json:
        _show(renderer, command, fleet, planned, options, store)

    def run(**more: Any) -> ApplyDocument:
        return command.run(
            fleet, planned, renderer.progress(), options=options, resumed=store, where=_where(settings, fleet, options),
            run_base=settings.run_dir, check=check, verbosity=settings.verbose, seams=seams(fleet, settings),
            planned_at=planned_at, **more,
        )  # fmt: skip

    if names and not (yes or check) and not agreed(renderer, len(names)):
        engine.dismiss()
        if store is not None and store.state.owing():
            return finish(settings, run(declined=True), renderer)
        renderer.errors(planned.errors)
        renderer.say("nothing was changed")
        return planned.exit_code
    return finish(settings, run(), renderer)


def seams(fleet: Fleet, settings: Settings) -> list[Seam]:
    """Return what is told of the rollout: locks on hosts, history."""
    return []


def _show(
    renderer: Renderer,
    command: Any,
    fleet: Fleet,
    planned: PlanDocument,
    options: RolloutOptions,
    store: Store | None,
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
