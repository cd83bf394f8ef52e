"""Reads ahead: what comes next is gathered in a thread while Spark takes what is there."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, Generic, TypeVar

from omq.unpatched import queue, threading

_T = TypeVar("_T")

DEPTH: Final = 1  # that wait, beside the one that is taken and the one that is gathered


class _End:
    """What follows the last item: why nothing else does."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Ahead(Generic[_T]):
    """A thread that goes through an iterator."""

    def __init__(self, items: Generator[_T, None, None]) -> None:
        self._items = items
        self._queue: queue.Queue[_T | _End] = queue.Queue(DEPTH)
        self._left = threading.Event()  # nobody takes anything any more
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
        except BaseException as caught:  # whatever it is belongs to who takes the items
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


def ahead(items: Generator[_T, None, None]) -> Generator[_T, None, None]:
    """Gives what a generator gives, and raises what it raises, from a thread in which it is one step ahead.

    Who stops taking ends the generator and waits for that.

    Args:
        items: The generator. The thread begins with the first step.
    """
    yield from _Ahead(items)
