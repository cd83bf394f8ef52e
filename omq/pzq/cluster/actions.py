"""What a node wants done: its state decides, and whoever has the sockets and the store does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from omq.pzq.cluster.possession import Statement

Keys = Sequence[str]


class KeepAlive(NamedTuple):
    """Tell all nodes that this one is there, and its state."""

    state: dict[str, Any]


class State(NamedTuple):
    """Tell all nodes what owners have stated as done with."""

    stated: dict[str, Any]


class Keep(NamedTuple):
    """Have the records on the disk before anything else is said; where that fails, what was *before* is stated on."""

    before: Statement


class Tell(NamedTuple):
    """Broadcast `ASK`, `TOLD` or `GONE`; it says itself to whom."""

    kind: str
    body: dict[str, Any]


class Remove(NamedTuple):
    """Broadcast that messages are done with."""

    keys: Keys


class Replica(NamedTuple):
    """Send the bodies of messages to a peer."""

    peer: str
    origin: str
    keys: Keys


class Settle(NamedTuple):
    """Messages that are stored here are done with: no consumer is to have them any more."""

    origin: str
    places: dict[str, int]  # by key: where the store has them


class Entomb(NamedTuple):
    """Keep on the disk that a message was acknowledged in its owner's place."""

    origin: str
    key: str


class Forget(NamedTuple):
    """That need not be kept any more."""

    key: str


class Answer(NamedTuple):
    """Tell the producers of messages: they are replicated, or they are not."""

    keys: Keys
    done: bool


Action = KeepAlive | State | Keep | Tell | Remove | Replica | Settle | Entomb | Forget | Answer
