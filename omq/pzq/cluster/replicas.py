"""The replicas that other nodes send, until they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omq.pzq.cluster.keys import KeyMap, Keys
from omq.pzq.cluster.run import Run
from omq.store.async_store import AsyncStore
from omq.store.errors import StoreFull
from omq.store.interface import Append


class ReplicaWriter:
    """Stores each replica once, and answers a node when all that it has sent together are stored.

    Args:
        journal: The store.
        wanted: Returns which of an owner's messages are to be stored.
        stored: Called with an owner and keys after each write, with its result.
    """

    def __init__(
        self,
        journal: AsyncStore,
        wanted: Callable[[str, Sequence[str]], Sequence[str]],
        stored: Callable[[str, Keys, Append], None],
    ) -> None:
        self._journal = journal
        self._wanted = wanted
        self._stored = stored
        self._storing: KeyMap[_Waiting] = KeyMap()

    def take(self, origin: str, topic: int, runs: list[Run], answer: Callable[[str], None]) -> None:
        """Stores replicas.

        Args:
            origin: The owner of the messages.
            topic: The topic of its replicas.
            runs: The messages.
            answer: Called with the reason why they are refused, or with nothing.
        """
        answers = _Answers(answer)
        for run in runs:
            wanted = self._wanted(origin, run.keys)
            if storing := self._storing.find(wanted):
                for _, waiting in storing:
                    answers.join(waiting)
                wanted = [key for key in wanted if key not in self._storing]
            if wanted:
                self._store(origin, topic, run if len(wanted) == len(run.keys) else run.some(set(wanted)), answers)
        answers.one("")

    def _store(self, origin: str, topic: int, run: Run, answers: _Answers) -> None:
        keys, records = run.keys, run.records
        waiting = _Waiting()
        answers.join(waiting)
        self._storing.put(keys, waiting)
        self._journal.waiting += len(records)

        def stored(write: Append) -> None:
            self._journal.waiting -= len(records)
            self._storing.take(keys)
            self._stored(origin, keys, write)
            if isinstance(write.error, StoreFull) and len(keys) > 1:
                # Where not all of them have room, half may: the others are asked about again.
                self._store(origin, topic, run.some(set(keys[: len(keys) // 2])), answers)
            for each in waiting.answers:
                each.one("" if write.error is None else f"not stored: {write.error}")

        self._journal.submit(Append(topic, records, len(keys)), stored)


class _Waiting:
    """The answers that wait for one write."""

    def __init__(self) -> None:
        self.answers: list[_Answers] = []


class _Answers:
    """Answers a node once all its replicas are stored, or with the first reason why one is not.

    Args:
        answer: Called with the reason, or with nothing.
    """

    def __init__(self, answer: Callable[[str], None]) -> None:
        self._answer = answer
        self._left = 1
        self._why = ""

    def join(self, waiting: _Waiting) -> None:
        """Waits for one more write."""
        self._left += 1
        waiting.answers.append(self)

    def one(self, why: str) -> None:
        """One write has ended."""
        self._left -= 1
        self._why = self._why or why
        if not self._left:
            self._answer(self._why)
