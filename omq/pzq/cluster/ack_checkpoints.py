"""Publishes this node's ack checkpoints, and stores those of all nodes."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from itertools import islice
from pathlib import Path
from typing import Any, Final

from omq.executor import in_thread
from omq.pzq.cluster.acked_keys import MAX_RANGES, AckCheckpoint, AckedKeys, Checkpoints, Ranges, parse_checkpoints
from omq.pzq.device.queue import DeviceQueue
from omq.pzq.wire import stem_of
from omq.store.async_store import AsyncStore
from omq.store.errors import StoreError

log = logging.getLogger("omq.pzq")

FILE: Final = "done.json"
#: Seconds between two checkpoints.
STATE_INTERVAL_S: Final = 0.25
#: The part of the time that making checkpoints may take.
MAX_SHARE: Final = 0.05
#: Seconds between two writes of the file.
WRITE_INTERVAL_S: Final = 1.0


class AckCheckpoints:
    """Makes the ack checkpoints of a node's queues, and stores all checkpoints. Lives in one event loop.

    The file is written in a thread and not synced: an older file covers fewer messages, but is never wrong.

    Args:
        database: The directory of the file.
        store: The store.
        name: The name of the node.
        queues: The queues of its own messages.
        acked: The checkpoints of all nodes.
    """

    def __init__(
        self, database: Path, store: AsyncStore, name: str, queues: list[DeviceQueue], acked: AckedKeys
    ) -> None:
        self._path = database / FILE
        self._store = store
        self._name = name
        self._queues = queues
        self._acked = acked
        self._newest = 0
        self._next = self._next_write = 0.0
        self._written_checkpoints: dict[str, dict[str, list[Any]]] = {}
        self._writing: asyncio.Future[None] | None = None
        self._fails = False
        self._unreadable: set[int] = set()  # queues whose ack rows are damaged

    def load(self) -> Checkpoints:
        """Returns the checkpoints of the file; an empty map if the file is missing or not valid."""
        try:
            return parse_checkpoints(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as wrong:
            log.warning("%s is ignored, other nodes may send its content: %s", self._path, wrong)
            return {}

    def tick(self, newest: int) -> None:
        """Updates checkpoints and file when they are due; the driver calls it several times a second.

        Args:
            newest: The time at which the node's newest message was stored, in microseconds since 1970.
        """
        self._newest = newest
        now = time.monotonic()
        if now >= self._next:
            self.update()
            self._next = now + max(STATE_INTERVAL_S, (time.monotonic() - now) / MAX_SHARE)
        if (
            now >= self._next_write
            and self._writing is None
            and (checkpoints := self._acked.to_json()) != self._written_checkpoints
        ):
            self._next_write = now + WRITE_INTERVAL_S
            self._writing = in_thread(self._write, checkpoints)
            self._writing.add_done_callback(self._written)

    async def close(self) -> None:
        """Writes the last checkpoints."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
        self.update()
        if (checkpoints := self._acked.to_json()) != self._written_checkpoints:
            self._write(checkpoints)

    def update(self) -> None:
        """Makes a checkpoint of each queue now."""
        for queue in self._queues:
            stem = stem_of(self._store.store.id, queue.id)
            # The clock may be set back, and a checkpoint does not cover messages that were stored after its time.
            at = self._acked.next_time(self._name, stem, max(time.time_ns() // 1000, self._newest))
            try:
                self._acked.add_checkpoint(self._name, stem, AckCheckpoint(at, self._ranges(queue)))
            except StoreError as wrong:
                if queue.id not in self._unreadable:
                    log.warning(
                        "cluster: cannot read the acks of %s, other nodes do not get them: %s", queue.name, wrong
                    )
                self._unreadable.add(queue.id)

    def _ranges(self, queue: DeviceQueue) -> Ranges:
        """Returns the committed acks without lost ids: the store counts these as acked, but others may have them."""
        acks, first = self._store.store.ack_set(queue.id), self._store.store.topic(queue.id).first
        low = max(acks.floor, first - 1)
        below = list(queue.lost.missing(1, low))[-MAX_RANGES // 2 :]
        above = (gap for begin, end in acks.above(low) for gap in queue.lost.missing(begin, end))
        return [*below, *islice(above, MAX_RANGES - len(below))]

    def _write(self, checkpoints: dict[str, dict[str, list[Any]]]) -> None:
        try:
            new = self._path.with_suffix(".new")
            new.write_bytes(json.dumps(checkpoints).encode())
            new.replace(self._path)
        except OSError as error:
            if not self._fails:
                log.warning("cluster: %s is not written, other nodes may have its content: %s", self._path, error)
            self._fails = True
        else:
            self._written_checkpoints, self._fails = checkpoints, False

    def _written(self, _: Any) -> None:
        self._writing = None
