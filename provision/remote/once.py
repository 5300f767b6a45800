"""A cache that threads may share: the first caller computes, the others wait instead of doing it too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class once(Generic[T]):  # noqa: N801 - a decorator
    """Remember what a function returned for its positional arguments; exceptions are not remembered."""

    def __init__(self, fn: Callable[..., T]) -> None:
        # fresh: the function itself, of which nothing is remembered
        self.fresh, self._found, self._lock = fn, dict[Any, T](), threading.RLock()
        self.__doc__ = fn.__doc__

    def __call__(self, *args: Any) -> T:
        if args in self._found:
            return self._found[args]
        with self._lock:
            if args not in self._found:
                self._found[args] = self.fresh(*args)
            return self._found[args]

    def cache_clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._found.clear()
