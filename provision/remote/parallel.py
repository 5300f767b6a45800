"""One function over many hosts, in threads; one host's failure is its own result."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from provision.errors import HostFailedError, ProvisionError
from provision.inventory import Host
from provision.remote import answers

T = TypeVar("T")
MAX_FORKS = 64


def for_each(
    hosts: Sequence[Host],
    fn: Callable[[Host], T],
    *,
    forks: int | None = None,
    on_done: Callable[[Host, T | ProvisionError], None] | None = None,
) -> dict[str, T | ProvisionError]:
    """Call fn(host) for every host, at most forks at a time (None: 64), and return the results by name, in order.

    A ProvisionError that fn raises is that host's result, with its name filled in; data of the host that does not fit a model
    becomes "host.bad_answer"; any other exception becomes a HostFailedError "internal.error" with the traceback as its
    cause. on_done runs in the caller's thread.
    Ctrl-C: no further host is started, the caller gets KeyboardInterrupt at once; threads are daemons.
    """
    if not hosts:
        return {}
    todo: queue.SimpleQueue[Host] = queue.SimpleQueue()
    for host in hosts:
        todo.put(host)
    done: queue.SimpleQueue[tuple[Host, Any]] = queue.SimpleQueue()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                host = todo.get_nowait()
            except queue.Empty:
                return
            done.put((host, _one(host, fn)))

    limit = max(1, min(len(hosts), forks or MAX_FORKS))
    for number in range(limit):
        threading.Thread(target=work, name=f"host-{number}", daemon=True).start()
    found: dict[str, T | ProvisionError] = {}
    try:
        while len(found) < len(hosts):
            host, result = done.get()
            found[host.name] = result
            if on_done is not None:
                on_done(host, result)
    finally:
        stop.set()
    return {host.name: found[host.name] for host in hosts}


def _one(host: Host, fn: Callable[[Host], T]) -> T | ProvisionError:
    try:
        return fn(host)
    except ProvisionError as error:
        if error.issue.host is None:
            error.issue.host = host.name
        return error
    except ValidationError as error:
        # What is validated here is what the host said.
        places = [".".join(str(part) for part in wrong["loc"]) for wrong in error.errors()[:3]]
        return answers.error(
            host.name, f"{error.title} is not what it should be", [f"wrong: {place}" for place in places]
        )
    except Exception as error:  # noqa: BLE001 - a defect must not take the other hosts' results with it
        frame = traceback.extract_tb(error.__traceback__)[-1]
        failed = HostFailedError(
            "internal.error",
            f"unexpected {type(error).__name__}: {error}",
            host=host.name,
            because=[f"{frame.filename}:{frame.lineno} in {frame.name}"],
            hint="this is a defect of gpu-provision; -v or PROVISION_TRACEBACK=1 shows the traceback",
        )
        failed.__cause__ = error
        return failed
