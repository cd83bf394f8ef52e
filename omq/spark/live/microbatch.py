"""Microbatches that Spark has not committed: they can be read again."""

from __future__ import annotations

from collections.abc import Iterator

import omq
from omq.spark.live.columns import Taken
from omq.unpatched import threading


class Microbatch:
    """The part of a microbatch that one partition has, for any number of readers, which may begin before its end.

    Attributes:
        number: Its number, as the end offset has it.
        rows: Messages.
        read: Messages that some reader has had.
        bytes: Bytes of their bodies.
        over: Whether nothing more comes.
        bounded: Whether it ended because there was no more room in it.
        error: Why it ended, if that was not as it should be.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows = self.read = self.bytes = 0
        self.over = self.bounded = False
        self.error: Exception | None = None
        self._taken: list[Taken] = []
        self._changed = threading.Condition()

    def add(self, taken: Taken) -> None:
        """Appends what was taken."""
        with self._changed:
            self._taken.append(taken)
            self.rows += taken.marks.count
            self.bytes += taken.size
            self._changed.notify_all()

    def end(self, bounded: bool, error: Exception | None = None) -> None:
        """Nothing more comes."""
        with self._changed:
            self.over, self.bounded, self.error = True, bounded, error
            self._changed.notify_all()

    def begin_again(self) -> bool:
        """Has what failed go on where it failed; gives whether it had failed."""
        with self._changed:
            failed = self.error is not None
            if failed:
                self.over, self.error = False, None
            return failed

    def follow(self, patience: float | None = None, at: int = 0) -> Iterator[Taken | None]:
        """Everything from the beginning, up to the end.

        Args:
            patience: Seconds after which `None` says that there is nothing yet; `None`: it is never said.
            at: How many of those that were added are left out, from the first.

        Raises:
            Exception: Why it ended, if that was not as it should be.
            StateError: It has not so many.
        """
        with self._changed:
            if at > len(self._taken):
                raise omq.StateError(
                    f"microbatch {self.number} has {len(self._taken)} batches, and a task had {at} of it"
                )
            rows = sum(one.marks.count for one in self._taken[:at])
        while True:
            with self._changed:
                if len(self._taken) == at and not self.over:
                    self._changed.wait(patience)
                taken = self._taken[at] if len(self._taken) > at else None
                if taken is None and self.error is not None:
                    raise self.error
                if taken is None and self.over:
                    return
            if taken is not None or patience is not None:
                yield taken
            if taken is not None:
                at += 1
                rows += taken.marks.count
                self.read = max(self.read, rows)


class Uncommitted:
    """The microbatches that may be asked for again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, Microbatch] = {}
        self._committed = -1

    def find(self, number: int) -> tuple[Microbatch, bool]:
        """Returns a microbatch, and whether it has to be filled: it is new, or has failed before its end.

        Raises:
            StateError: It has been committed.
        """
        with self._lock:
            if number <= self._committed:
                raise omq.StateError(f"microbatch {number} has been committed, and is not kept any more")
            found = self._kept.get(number)
            if found is None:
                found = self._kept[number] = Microbatch(number)
                return found, True
            return found, found.begin_again()

    def commit(self, number: int) -> None:
        """Forgets microbatches up to this one."""
        with self._lock:
            self._committed = max(self._committed, number)
            for one in [one for one in self._kept if one <= number]:
                del self._kept[one]

    def __iter__(self) -> Iterator[Microbatch]:
        with self._lock:
            return iter(list(self._kept.values()))
