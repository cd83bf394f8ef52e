"""The actions that a `Node` decides on. The driver carries them out."""

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
    """Save the new store and incarnation of a peer, and drop what waits for it."""

    peer: str


class Persist(NamedTuple):
    """Sync the votes to the disk before anything else is sent; if that fails, restore those of *before*."""

    before: LeaderSnapshot


class Replica(NamedTuple):
    """Send the bodies of messages to a peer."""

    peer: str
    origin: str
    keys: Keys


class RecordAcks(NamedTuple):
    """Finish messages that are stored here."""

    origin: str
    positions: dict[str, int]  # by key


class RecordRemoteAck(NamedTuple):
    """Store the remote ack of a message."""

    origin: str
    key: str


class ForgetRemoteAck(NamedTuple):
    """Delete a remote ack."""

    key: str


class Answer(NamedTuple):
    """Answer the producers of messages; `done`: the messages have enough replicas."""

    keys: Keys
    done: bool


Action = Broadcast | Restarted | Persist | Replica | RecordAcks | RecordRemoteAck | ForgetRemoteAck | Answer
