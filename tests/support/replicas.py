"""Replicas that apply the same journal, and all of their state.

As a process, it applies the entries of a file from the position of its store, and prints each position:

    python -m tests.support.replicas DIR FILE
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

from omq.store.interface import Write
from omq.store.internal import ApplyEntry
from omq.store.lmdb.applier import TOPIC_KINDS
from omq.store.lmdb.layout import BLOCK, PIECE, STAGE, STAGED, TOPIC, without_checksum
from omq.store.lmdb.replica import LmdbReplica
from omq.store.replication.codec import Entry, Kind, decode, encode
from tests.support.fork_server import ForkedProcess
from tests.support.open_store import Opened

SIZE = struct.Struct(">I")
#: Bounds that make caches, cuts and cleaning up matter in small histories.
SMALL: Final = {
    "applier.MAX_DELETIONS": 2,
    "replica.MAX_DELETIONS": 2,
    "producers.PRUNE_BATCH": 4,
    "producers.MAX_CACHED_PRODUCERS": 2,
    "producers.MAX_ANSWERS": 12,
}


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Makes the bounds of a store small."""
    for name, value in SMALL.items():
        patch.setattr(f"omq.store.lmdb.{name}", value)
    patch.setattr("omq.store.block_builder.BLOCK_BYTES", 100)


def payload(timestamp: int, *writes: Write, term: int = 1) -> bytes:
    return encode(Entry(Kind.WRITES, term, timestamp, list(writes)))


def entry(position: int, payload: bytes) -> ApplyEntry:
    """Returns what a node submits for an entry of the journal."""
    found = decode(payload)
    return ApplyEntry(position, found.term, found.timestamp, found.writes, found.wall)


def apply(node: Opened, *writes: Write, timestamp: int = 0, term: int = 1) -> list[Any]:
    """Applies writes in the next entry; returns them. Without a timestamp the clock stands still."""
    at, _ = node.log.position
    node.do(ApplyEntry(at + 1, term, timestamp, list(writes)))
    return list(writes)


def results(entries: Iterable[ApplyEntry]) -> list[list[Any]]:
    """Returns the result of each write of some entries."""
    assert [one.error for one in entries if one.error is not None] == []
    return [[result(write) for write in one.writes] for one in entries]


def result(write: Write) -> Any:
    if write.error is not None:
        return type(write).__name__, repr(write.error)
    return type(write).__name__, {
        one.name: getattr(write, one.name) for one in fields(write) if not one.init and one.name != "error"
    }


def dump(store: LmdbReplica) -> dict[Any, Any]:
    """Returns all replicated state: topics, and the rows of the store, without what each node has of its own."""
    with store._strong.read() as reading:
        found = {bytes(key): bytes(value) for key, value in reading.cursor()}
    known = {TOPIC.unpack(key)[1] for key in found if key[:1] == b"t"}
    found = {
        key: value
        for key, value in found.items()
        if key[:1] != b"q" and (key[:1] not in TOPIC_KINDS or TOPIC.unpack_from(key)[1] in known)
    }
    # The pieces of deleted topics are deleted later.
    stages = {STAGE.unpack(without_checksum(key, value))[0] for key, value in found.items() if key[:1] == b"G"}
    pieces = {value[BLOCK.size :] for key, value in found.items() if key[:1] == b"b" and value[0] == STAGED}
    rows: dict[Any, Any] = {
        key: value for key, value in found.items() if key[:1] != b"g" or key in pieces or PIECE.unpack(key)[1] in stages
    }
    topics = [topic for topic in store.topics() if topic.persistence != "transient"]
    return rows | {"topics": topics, "names": [(topic.id, topic.name) for topic in store.topics()]}


def write_journal(path: Path, payloads: list[bytes]) -> None:
    path.write_bytes(b"".join(SIZE.pack(len(one)) + one for one in payloads))


def start(directory: Path, journal: Path) -> ForkedProcess:
    """Starts a process that applies a journal."""
    program = "from tests.support.replicas import main; main()"
    return ForkedProcess("-c", program, directory, journal, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def main() -> None:
    directory, data = sys.argv[1], Path(sys.argv[2]).read_bytes()
    payloads, at = [], 0
    while at < len(data):
        (size,) = SIZE.unpack_from(data, at)
        payloads.append(data[at + SIZE.size : at + SIZE.size + size])
        at += SIZE.size + size
    shrink(pytest.MonkeyPatch())
    with Opened.as_replica(directory) as node:
        done, _ = node.log.position
        entries = [entry(number, one) for number, one in enumerate(payloads, 1) if number > done]
        # Groups of all sizes: the writer takes what has come when it ends a commit.
        node.log.submit_many(entries)
        for one in entries:
            node.wait([one])
            assert one.error is None
            print(one.position, flush=True)
