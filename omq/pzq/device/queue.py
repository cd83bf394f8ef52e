"""One queue of a device: a round-robin topic of the store, and what a cluster asks of it."""

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
from omq.store.errors import DamagedError, Gone, OutOfSpace, StoreError
from omq.store.interface import Acknowledge, Append, MoveToDeadLetter, TopicState, Write
from omq.workqueue.queue import WorkQueue

log = logging.getLogger("omq.pzq")

#: Seconds after which something is tried again for which there was no room.
RETRY_DELAY_S: Final = 1.0


class DeviceQueue:
    """A work queue of a device, whose messages have keys.

    Args:
        store: Where the store is.
        state: The topic.
        later: Makes a call after some seconds, unless the device has ended by then.
        max_deliveries: After how many deliveries in vain a message becomes a dead letter; `None`: never.
        dead_letter_topic_id: The topic of dead letters; needed with `max_deliveries`.

    Attributes:
        work: Which of its messages wait, and which are finished.
        keys: What keys of its messages are made with (see `key_of`).
        named: Its messages have their keys with them.
        dead_lettered: Messages that have become dead letters.
        damaged_count: Messages that could not be read, and were passed over.
        lost: Messages that are not in the store though they were not finished: in a cluster others may have them.
        may: In a cluster: returns whether its messages may be delivered now.
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
        self.dead_lettered = 0
        self.damaged_count = 0
        self.lost = RangeSet(state.jumped)
        self.keys = key_format(store.store.id, state.id)
        self.may_deliver: Callable[[], bool] | None = None
        self._store = store
        self._dead_letter_topic = dead_letter_topic_id
        self._blocked = False  # the topic cannot be read now
        self._saving = False  # a write is under way, or waits for room
        self._on_finished: Callable[[int], None] | None = None
        self._on_lost: Callable[[int, int], None] | None = None
        self._after_next_save: list[Callable[[], None]] = []  # to be called once what is finished by now is kept
        self._after_save: list[Callable[[], None]] = []  # likewise, with the write that is under way
        self.later = later
        self.wake: Callable[[], None] = _nothing  # set by who delivers it
        # What was delivered before the device was started may have reached a consumer.
        self.work = WorkQueue(self, store, state, max_tries=max_deliveries, presumed_tries=1)

    def report_to(self, finished: Callable[[int], None], lost: Callable[[int, int], None]) -> None:
        """Reports each finished message, and lost ranges, to a cluster."""
        self._on_finished = finished
        self._on_lost = lost

    # ------------------------------------------------------------------ what its work queue needs

    def touch(self) -> None:
        pass

    def changed(self) -> None:
        pass  # who delivers it calls `save` at the end of each turn

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

    def move_to_dead_letters(self, id: int, target: int, moved: Callable[[Write], None]) -> None:
        self._store.submit(MoveToDeadLetter(self.id, id, target), moved)

    def moved_to_dead_letters(self, target: int, write: Any) -> None:
        self.dead_lettered += 1

    # ------------------------------------------------------------------ what waits

    @property
    def is_ready(self) -> bool:
        """Returns whether it has something that may be delivered now."""
        return self.work.ready > 0 and not self._blocked and (self.may_deliver is None or self.may_deliver())

    def oldest(self) -> int:
        """Returns when the next message was stored, in microseconds since 1970; 0: it cannot be read."""
        first, last, _ = self.work.next()
        try:
            with self._store.store.read(self.id) as reader:
                for header, _ in reader.blocks(first, last + 1):
                    when: int = blocks.read_header(header)[2]
                    return when
        except StoreError:
            pass  # it is reported where it is delivered
        return 0

    def block(self) -> None:
        """Delivers nothing for a while: it cannot be read."""
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
        """Takes note that a message was finished elsewhere: it is not delivered any more. `save` keeps it."""
        self.work.finish_elsewhere(id, id)

    def _lose(self, first: int, last: int) -> None:
        """Takes note that messages cannot be read: in a cluster others may have them."""
        self.lost.add(first, last)
        if self._on_lost is not None:
            self._on_lost(first, last)

    # ------------------------------------------------------------------ what is kept

    def save(self) -> None:
        """Has the store keep what was finished; one write at a time is under way, so that the next one takes it all."""
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
        else:
            log.error("%s: what consumers have acknowledged is not kept: %s", self.name, write.error)

    def _save_again(self) -> None:
        self._saving = False
        self.save()

    def when_saved(self, call: Callable[[], None]) -> None:
        """Makes a call once what is finished by now is kept."""
        self._after_next_save.append(call)
        self.save()
        if not self._saving:
            self._after_next_save.remove(call)
            call()

    def count(self) -> int:
        """Messages that the store holds and that are not settled, as it is committed."""
        store = self._store.store
        state, settled = store.topic(self.id), store.settled(self.id)
        low = max(settled.watermark, state.first - 1)
        # What was passed over after a crash is settled, too.
        return state.last - low - sum(last - first + 1 for first, last in settled.above(low))

    # ------------------------------------------------------------------ what a cluster asks

    def live(self) -> Iterator[tuple[int, Keys]]:
        """Yields what is stored and not settled: the number of a message, its key, and those of the ones after it."""
        for header, records in self._read_live():
            first, count, when, _ = blocks.read_header(header)
            yield first, self._keys(first, count, when, header, records)

    def _keys(self, first: int, count: int, when: int, header: bytes, records: memoryview) -> Keys:
        return consecutive_keys(self.keys, when, first, count)

    def batches(self, ids: Iterable[int]) -> Iterator[ReplicaBatch]:
        """Messages by their numbers, those that follow each other together; what cannot be read is left out."""
        for first, last in ranges_of(ids):
            for header, records in self._read_blocks(first, last):
                begin, count, when, _ = blocks.read_header(header)
                yield ReplicaBatch(self._keys(begin, count, when, header, records), bytes(records), self.named)

    def messages(self) -> Iterator[tuple[int, bytes, list[bytes]]]:
        """Number, key and parts of each message that is stored and not settled."""
        for header, records in self._read_live():
            for id, key, parts, _ in self.messages_of(header, records):
                yield id, key, parts

    def _read_live(self) -> Iterator[tuple[bytes, memoryview]]:
        settled = self._store.store.settled(self.id)
        state = self._store.store.topic(self.id)
        for first, last in list(settled.missing(state.first, state.last)):
            yield from self._read_blocks(first, last)

    def _read_blocks(self, first: int, last: int) -> Iterator[tuple[bytes, memoryview]]:
        """Blocks and parts of such, while they are looked at; what is damaged is left out."""
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
                self._pass_over(max(first, error.first), beyond - 1, settle=error.last > 0)
                first = beyond

    def _pass_over(self, first: int, last: int, *, settle: bool) -> None:
        """Loses those messages that wait; what is in flight was read before, and may be acknowledged any moment.

        Args:
            first: The first.
            last: The last.
            settle: They are damaged for ever; else reading is tried again.
        """
        for begin, end in list(self.work.waiting_ids(first, last)):
            if settle:
                self.damaged(begin, end)
                self.work.finish_elsewhere(begin, end)
            else:
                self._lose(begin, end)


class ReplicaQueue(DeviceQueue):
    """Messages of another node, or of this one from before it lost its disk: each has its key with it.

    Attributes:
        owner: Whose they are.
    """

    owner: str = ""
    named = True

    def dead_letter_like(self, queue: DeviceQueue) -> None:
        """Has messages become dead letters as those of another queue do."""
        self._dead_letter_topic = queue._dead_letter_topic
        self.work.limit_tries(queue.work.max_tries)

    def move_to_dead_letters(self, id: int, target: int, moved: Callable[[Write], None]) -> None:
        # A dead letter has no key with it, so it is another record than the replica, and stored before that one goes.
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
            write.error = Gone(f"message {id} is not there", id + 1)
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
