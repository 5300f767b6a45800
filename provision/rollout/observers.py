"""Where others hook into a rollout: locks on hosts, history, metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provision.errors import Issue

if TYPE_CHECKING:
    from provision.documents import AppliedHost, ApplyDocument


class RunObserver:
    """Called as a rollout goes on. Every method may be left out; none is called in check mode.

    ``commands.apply.run(..., observers=[...])`` takes any number; they are called in that order, from the main thread.
    Of one host the order is: before_wave, its drain hook, its change and its proof, its resume hook, after_host.
    What before_wave gave (a lock) is taken back in after_host, which is called once for every host that
    before_wave allowed, also after a failure or Ctrl-C. kill -9 calls nothing more: what must survive it is a lock
    whose owner can be seen to be gone. An error that a method raises ends the rollout (resume hooks run first), so
    a method catches what it can live with and says it in ``document.errors`` at the end.
    """

    def begin(self, folder: Path) -> None:
        """Called once, before anything else: the run's folder (its name is the run's) is there, and state.json in it."""

    def before_wave(self, wave: int, hosts: Sequence[str]) -> Mapping[str, Issue]:
        """Called before anything is done to the hosts of a wave, before they are drained.

        Returns why hosts must not be touched, by name: they are left alone as ``blocked`` (exit code 5), with that
        issue, or as ``unreachable`` (4) where its code begins with ``connect.``. wave: counted from 1 over all sessions
        of a run; 0 is the second look at what an earlier session had begun.
        """
        return {}

    def after_host(self, host: str, result: AppliedHost) -> None:
        """Called when a wave is through with a host and its resume hook has run."""

    def at_end(self, document: ApplyDocument) -> None:
        """Called once, with the finished document, before it is written to the run's folder as result.json.

        The folder is ``document.run_dir``; state.json there has the inventory's sources and the options.
        """
