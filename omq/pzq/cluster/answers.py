"""The answers to producers whose messages are stored and wait for replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from omq.pzq.cluster.keys import KeyMap, Keys
from omq.pzq.device.producer_server import ProducerRequest


class PendingAnswers:
    """The waiting producers, by key of their messages.

    Args:
        accept: Answers producers, with a text or without.
    """

    def __init__(self, accept: Callable[[list[ProducerRequest], bytes | None], None]) -> None:
        self._accept = accept
        #: Requests whose messages were stored together, in the order of the keys, and the number of the first key.
        self._requests: KeyMap[tuple[int, list[ProducerRequest]]] = KeyMap()
        self._repeated: dict[str, list[ProducerRequest]] = {}  # requests that repeat a message

    def add(self, keys: Keys, requests: list[ProducerRequest]) -> None:
        """Adds the requests of messages, one for each."""
        at = 0
        for range_ in keys.ranges:
            self._requests.put_range(range_, (range_.first - at, requests))
            at += range_.end - range_.first

    def add_repeated(self, key: str, requests: Iterable[ProducerRequest]) -> None:
        """Adds requests that repeat a message."""
        repeated = self._repeated.setdefault(key, [])
        known = [*repeated, *self._of(self._requests.find([key]))]
        repeated += [one for one in requests if one not in known]

    def answer(self, keys: Sequence[str], text: bytes | None) -> None:
        """Answers the producers of messages."""
        requests = self._of(self._requests.take(keys))
        if self._repeated:
            requests += chain.from_iterable(self._repeated.pop(key, ()) for key in keys)
        if requests:
            self._accept(requests, text)

    @staticmethod
    def _of(found: Iterable[tuple[tuple[str, int, int], tuple[int, list[ProducerRequest]]]]) -> list[ProducerRequest]:
        return [one for (_, first, end), (base, requests) in found for one in requests[first - base : end - base]]
