"""The actions that a `Node` decides on, for the driver that has the sockets and the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from omq.pzq.cluster.leadership import LeaderSnapshot

Keys = Sequence[str]


class Broadcast(NamedTuple):
    """Send a message to all nodes (see `omq.pzq.cluster` for all kinds)."""

    kind: str
    body: dict[str, Any]


class Restarted(NamedTuple):
    """Note a peer's store and incarnation, which are others than before: what it was sent is void."""

    peer: str


class Persist(NamedTuple):
    """Have the records on the disk before anything else is sent; where that fails, what was *before* is stated on."""

    before: LeaderSnapshot


class Replica(NamedTuple):
    """Send the bodies of messages to a peer."""

    peer: str
    origin: str
    keys: Keys


class RecordAcks(NamedTuple):
    """Drop messages that are stored here: they are finished."""

    origin: str
    positions: dict[str, int]  # by key: where the store has them


class RecordRemoteAck(NamedTuple):
    """Keep on the disk that a message was acknowledged in its owner's place."""

    origin: str
    key: str


class ForgetRemoteAck(NamedTuple):
    """Keep that no longer."""

    key: str


class Answer(NamedTuple):
    """Answer the producers of messages: they are replicated, or they are not."""

    keys: Keys
    done: bool


Action = Broadcast | Restarted | Persist | Replica | RecordAcks | RecordRemoteAck | ForgetRemoteAck | Answer
