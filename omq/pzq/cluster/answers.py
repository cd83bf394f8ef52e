"""The producers whose messages are stored, and answered once enough nodes have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from omq.pzq.cluster.keys import KeyMap, Keys
from omq.pzq.device.producer_server import Asked


class PendingAnswers:
    """Remembers which producer waits for which message.

    Args:
        accept: Answers producers, with a text or without.
    """

    def __init__(self, accept: Callable[[list[Asked], bytes | None], None]) -> None:
        self._accept = accept
        #: Those whose messages were stored together, in the order of the keys, and the number of the first one's key.
        self._asked: KeyMap[tuple[int, list[Asked]]] = KeyMap()
        self._again: dict[str, list[Asked]] = {}  # those that have repeated a message

    def add(self, keys: Keys, asked: list[Asked]) -> None:
        """Adds the producers of messages, one for each."""
        at = 0
        for run in keys.runs:
            self._asked.put_run(run, (run.first - at, asked))
            at += run.end - run.first

    def add_repeated(self, key: str, asked: Iterable[Asked]) -> None:
        """Adds producers that have sent a message again."""
        again = self._again.setdefault(key, [])
        known = [*again, *self._of(self._asked.find([key]))]
        again += [one for one in asked if one not in known]

    def answer(self, keys: Sequence[str], text: bytes | None) -> None:
        """Answers the producers of messages."""
        asked = self._of(self._asked.take(keys))
        if self._again:
            asked += chain.from_iterable(self._again.pop(key, ()) for key in keys)
        if asked:
            self._accept(asked, text)

    @staticmethod
    def _of(found: Iterable[tuple[tuple[str, int, int], tuple[int, list[Asked]]]]) -> list[Asked]:
        return [one for (_, first, end), (base, asked) in found for one in asked[first - base : end - base]]
