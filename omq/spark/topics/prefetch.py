"""Prefetches from a generator: a background thread computes the next items while Spark processes the current one."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, Generic, TypeVar

from omq.unpatched import queue, threading

_T = TypeVar("_T")

QUEUE_ITEMS: Final = 1  # that wait; another one is processed, and another one computed


class _End:
    """The last entry of the queue, with the error of the generator."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Prefetcher(Generic[_T]):
    """A thread that runs a generator, and the queue of its items."""

    def __init__(self, items: Generator[_T, None, None]) -> None:
        self._items = items
        self._queue: queue.Queue[_T | _End] = queue.Queue(QUEUE_ITEMS)
        self._stopped = threading.Event()  # the consumer has stopped
        # A daemon thread: the end of the process must not wait for a broker.
        self._thread = threading.Thread(target=self._run, name="omq-read-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                if not self._put(item):
                    self._items.close()
                    return
        except BaseException as caught:  # raised again in the consumer
            error = caught
        self._put(_End(error))

    def _put(self, item: _T | _End) -> bool:
        while not self._stopped.is_set():
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
            self._stopped.set()
            self._thread.join()


def prefetched(items: Generator[_T, None, None]) -> Generator[_T, None, None]:
    """Yields the items of a generator, and raises its errors, while a thread runs it ahead: one item waits at most.

    Closing the result closes the generator, and waits for that.

    Args:
        items: The generator. The thread starts with the first item.
    """
    yield from _Prefetcher(items)
