"""One queue of a device: a work queue on a topic of the store, whose messages have keys."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from omq._core import blocks
from omq.pzq.cluster.keys import Keys
from omq.pzq.cluster.replica_batch import ReplicaBatch, consecutive_keys
from omq.pzq.wire import key_format, keys_of, pack, unpack
from omq.ranges import RangeSet, ranges_of
from omq.store.async_store import AsyncStore
from omq.store.errors import DamagedError, Gone, InDoubt, NotLeader, OutOfSpace, StoreError
from omq.store.interface import Acknowledge, Append, MoveToDeadLetter, TopicState, Write
from omq.workqueue.queue import DeadLetter, WorkQueue

log = logging.getLogger("omq.pzq")

#: Seconds after which a write is tried again after the disk was full.
RETRY_DELAY_S: Final = 1.0


class DeviceQueue:
    """A work queue of a device, whose messages have keys.

    Args:
        store: The store.
        state: The topic.
        later: Schedules a call in some seconds, unless the device is closed by then.
        max_deliveries: Failed deliveries after which a message becomes a dead letter; `None`: never.
        dead_letter_topic_id: The topic of dead letters; needed with `max_deliveries`.

    Attributes:
        work: The work queue.
        keys: The format of its keys (see `key_of`).
        named: True if its records have the keys of their messages.
        dead_lettered: The number of messages that have become dead letters.
        damaged_count: The number of messages that could not be read, and were skipped.
        lost: The ids of unfinished messages that the store has lost; other nodes of a cluster may have them.
        may_deliver: Returns whether its messages may be delivered now; `None`: always.
    """

    named = False
    deleted = False

    def __init__(
        self,
        store: AsyncStore,
        state: TopicState,
        later: Callable[[float, Callable[[], None]], None],
        max_deliveries: int | None = None,
        dead_letter_topic_id: int = 0,
    ) -> None:
        self.id = state.id
        self.name = state.name
        self.label = f"topic {state.name!r}"
        self.log_fields = {"topic": state.name}
        self.dead_lettered = 0
        self.damaged_count = 0
        self.lost = RangeSet(state.jumped)
        self.keys = key_format(store.store.id, state.id)
        self.may_deliver: Callable[[], bool] | None = None
        self._store = store
        self._dead_letter_topic = dead_letter_topic_id
        self._blocked = False  # the topic cannot be read now
        self._saving = False  # a write is in progress, or waits for space on the disk
        self._on_finished: Callable[[int], None] | None = None
        self._on_lost: Callable[[int, int], None] | None = None
        self._after_next_save: list[Callable[[], None]] = []  # callbacks for the next write
        self._after_save: list[Callable[[], None]] = []  # callbacks for the write in progress
        self.later = later
        self.wake: Callable[[], None] = _nothing  # set by the `ConsumerServer`
        # Messages that were delivered before the start of the device may have reached a consumer.
        self.work = WorkQueue(self, store, state, max_tries=max_deliveries, presumed_tries=1)

    def report_to(self, finished: Callable[[int], None], lost: Callable[[int, int], None]) -> None:
        """Sets the callbacks of a cluster for finished messages and for lost ranges."""
        self._on_finished = finished
        self._on_lost = lost

    # ------------------------------------------------------------------ the owner of a work queue

    def touch(self) -> None:
        pass

    def changed(self) -> None:
        pass  # the `ConsumerServer` calls `save` at the end of each turn

    def delivering(self, count: int, size: int, tries: int) -> None:
        pass

    def finished(self, first: int, last: int) -> None:
        if self._on_finished is not None:
            for id in range(first, last + 1):
                self._on_finished(id)

    def damaged(self, first: int, last: int) -> None:
        self.damaged_count += last - first + 1
        self._lose(first, last)

    def retry_delay(self, tries: int) -> float:
        return 0.0

    async def dead_letter_topic(self) -> int:
        return self._dead_letter_topic

    def move_to_dead_letters(self, id: int, letter: DeadLetter, target: int, moved: Callable[[Write], None]) -> None:
        self._store.submit(MoveToDeadLetter(self.id, id, target), moved)  # without headers, which pzq does not have

    def moved_to_dead_letters(self, target: int, write: Any) -> None:
        self.dead_lettered += 1

    # ------------------------------------------------------------------ delivery

    @property
    def is_ready(self) -> bool:
        """Returns whether it has messages that may be delivered now."""
        return self.work.ready > 0 and not self._blocked and (self.may_deliver is None or self.may_deliver())

    def oldest(self) -> int:
        """Returns when the next message to deliver was stored, in us since 1970; 0 if it cannot be read."""
        first, last, _ = self.work.next()
        try:
            with self._store.store.read(self.id) as reader:
                for header, _ in reader.blocks(first, last + 1):
                    when: int = blocks.read_header(header)[2]
                    return when
        except StoreError:
            pass  # the delivery reports it
        return 0

    def block(self) -> None:
        """Stops deliveries for `RETRY_DELAY_S`, as the topic cannot be read."""
        self._blocked = True

        def unblock() -> None:
            self._blocked = False

        self.later(RETRY_DELAY_S, unblock)

    def messages_of(self, header: bytes, records: memoryview) -> Iterator[tuple[int, bytes, list[bytes], int]]:
        """Yields id, key, parts and bytes of each message of a block."""
        first, count, when, _ = blocks.read_header(header)
        messages: list[blocks.Message] = blocks.decode(header, records, "")
        for message, key in zip(messages, keys_of(self.keys, when, first, count), strict=True):
            body, ends = message.body, message.key
            yield message.id, key, [body] if ends is None else unpack(body, ends), len(body)

    def discard(self, id: int) -> None:
        """Marks a message as finished by another node, so that it is not delivered; `save` stores that."""
        self.work.finish_elsewhere(id, id)

    def _lose(self, first: int, last: int) -> None:
        """Marks messages as lost: other nodes of a cluster may have them."""
        self.lost.add(first, last)
        if self._on_lost is not None:
            self._on_lost(first, last)

    # ------------------------------------------------------------------ acknowledgements in the store

    def save(self) -> None:
        """Stores the acknowledgements; one write runs at a time, and the next one takes all that came meanwhile."""
        if self._saving or (write := self.work.unsaved()) is None:
            return
        self._after_save, self._after_next_save = self._after_next_save, []
        self._saving = True
        self._store.submit(write, self._saved)

    def _saved(self, write: Acknowledge) -> None:
        if write.error is None:
            self._saving = False
            calls, self._after_save = self._after_save, []
            self.save()
            for call in calls:
                call()
            return
        self._after_next_save = self._after_save + self._after_next_save
        self.work.take_back(write)
        if isinstance(write.error, OutOfSpace):
            self.later(RETRY_DELAY_S, self._save_again)
        elif not isinstance(write.error, NotLeader | InDoubt):  # the next leader delivers these messages again
            log.error("%s: cannot store acknowledgements: %s", self.name, write.error)

    def _save_again(self) -> None:
        self._saving = False
        self.save()

    def when_saved(self, call: Callable[[], None]) -> None:
        """Calls *call* once all acknowledgements so far are stored."""
        self._after_next_save.append(call)
        self.save()
        if not self._saving:
            self._after_next_save.remove(call)
            call()

    def count(self) -> int:
        """Returns the number of committed messages that are not acknowledged."""
        store = self._store.store
        state, acks = store.topic(self.id), store.ack_set(self.id)
        low = max(acks.floor, state.first - 1)
        # Ids that were skipped after a crash count as acknowledged.
        return state.last - low - sum(last - first + 1 for first, last in acks.above(low))

    # ------------------------------------------------------------------ for a cluster

    def live(self) -> Iterator[tuple[int, Keys]]:
        """Yields the unacknowledged messages: the id of a first message, and the keys of it and the ones after it."""
        for header, records in self._read_live():
            first, count, when, _ = blocks.read_header(header)
            yield first, self._keys(first, count, when, header, records)

    def _keys(self, first: int, count: int, when: int, header: bytes, records: memoryview) -> Keys:
        return consecutive_keys(self.keys, when, first, count)

    def batches(self, ids: Iterable[int]) -> Iterator[ReplicaBatch]:
        """Yields messages by their ids, consecutive ones together; leaves out those that cannot be read."""
        for first, last in ranges_of(ids):
            for header, records in self._read_blocks(first, last):
                begin, count, when, _ = blocks.read_header(header)
                yield ReplicaBatch(self._keys(begin, count, when, header, records), bytes(records), self.named)

    def messages(self) -> Iterator[tuple[int, bytes, list[bytes]]]:
        """Yields id, key and parts of each unacknowledged message."""
        for header, records in self._read_live():
            for id, key, parts, _ in self.messages_of(header, records):
                yield id, key, parts

    def _read_live(self) -> Iterator[tuple[bytes, memoryview]]:
        acks = self._store.store.ack_set(self.id)
        state = self._store.store.topic(self.id)
        for first, last in list(acks.missing(state.first, state.last)):
            yield from self._read_blocks(first, last)

    def _read_blocks(self, first: int, last: int) -> Iterator[tuple[bytes, memoryview]]:
        """Yields blocks, valid until the next one is read; leaves out those that are damaged."""
        while first <= last:
            try:
                with self._store.store.read(self.id) as reader:
                    for header, records in reader.blocks(first, last + 1):
                        begin, count, _, _ = blocks.read_header(header)
                        first = begin + count
                        yield header, records
                return
            except Gone as error:
                first = error.first
            except DamagedError as error:
                beyond = min(error.last or last, last) + 1
                self._skip(max(first, error.first), beyond - 1, is_permanent=error.last > 0)
                first = beyond

    def _skip(self, first: int, last: int, *, is_permanent: bool) -> None:
        """Marks waiting messages as lost. Those in flight were read before, and may still be acknowledged.

        Args:
            first: The first id.
            last: The last id.
            is_permanent: False if they are to be read again later.
        """
        for begin, end in list(self.work.waiting_ids(first, last)):
            if is_permanent:
                self.damaged(begin, end)
                self.work.finish_elsewhere(begin, end)
            else:
                self._lose(begin, end)


class ReplicaQueue(DeviceQueue):
    """A queue of replicas: messages of another node, or of this one from before it lost its disk.

    Attributes:
        owner: The name of the node that owns them.
    """

    owner: str = ""
    named = True

    def dead_letter_like(self, queue: DeviceQueue) -> None:
        """Takes the dead-letter topic and the limit of deliveries from another queue."""
        self._dead_letter_topic = queue._dead_letter_topic
        self.work.limit_tries(queue.work.max_tries)

    def move_to_dead_letters(self, id: int, letter: DeadLetter, target: int, moved: Callable[[Write], None]) -> None:
        # A dead letter has no key in its record: it is stored as a new record before the replica is finished.
        def stored(write: Append) -> None:
            if write.error is None:
                self.work.finish(id, id)
                self.save()
            moved(write)

        write = Append(target, b"", 1)
        try:
            with self._store.store.read(self.id) as reader:
                for header, records in reader.blocks(id, id + 1):
                    for _, _, parts, _ in self.messages_of(header, records):
                        write.records = pack(parts) if len(parts) > 1 else blocks.encode(parts)
        except StoreError as error:
            write.error = error
            moved(write)
            return
        if not write.records:
            write.error = Gone(f"message {id} is not in the store", id + 1)
            moved(write)
            return
        self._store.submit(write, stored)

    def messages_of(self, header: bytes, records: memoryview) -> Iterator[tuple[int, bytes, list[bytes], int]]:
        for id, _, parts, size in super().messages_of(header, records):
            key, *rest = parts
            yield id, key, rest, size - len(key)

    def _keys(self, first: int, count: int, when: int, header: bytes, records: memoryview) -> Keys:
        return Keys.of([key.decode(errors="replace") for _, key, _, _ in self.messages_of(header, records)])


def _nothing() -> None:
    pass
