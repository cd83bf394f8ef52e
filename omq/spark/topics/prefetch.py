"""Prefetches: a thread gathers the next item while Spark takes the one before."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, Generic, TypeVar

from omq.unpatched import queue, threading

_T = TypeVar("_T")

DEPTH: Final = 1  # items that wait, next to the one that is taken and the one that is gathered


class _End:
    """The end of the items, and its error."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Prefetcher(Generic[_T]):
    """A thread that goes through an iterator."""

    def __init__(self, items: Generator[_T, None, None]) -> None:
        self._items = items
        self._queue: queue.Queue[_T | _End] = queue.Queue(DEPTH)
        self._left = threading.Event()  # nothing is taken any more
        # A daemon: a process that ends does not wait for a broker.
        self._thread = threading.Thread(target=self._gather, name="omq-read-ahead", daemon=True)
        self._thread.start()

    def _gather(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                if not self._put(item):
                    self._items.close()
                    return
        except BaseException as caught:  # the caller that takes the items gets it
            error = caught
        self._put(_End(error))

    def _put(self, item: _T | _End) -> bool:
        while not self._left.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Iterator[_T]:
        try:
            while not isinstance(item := self._queue.get(), _End):
                yield item
            if item.error is not None:
                raise item.error
        finally:
            self._left.set()
            self._thread.join()


def prefetched(items: Generator[_T, None, None]) -> Generator[_T, None, None]:
    """Yields what a generator yields, and raises what it raises, from a thread in which it is one step ahead.

    A caller that stops taking ends the generator and waits for that.

    Args:
        items: The generator. The thread begins with the first step.
    """
    yield from _Prefetcher(items)
