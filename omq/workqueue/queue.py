"""A work queue: tracks the messages of a topic that wait, are redelivered, are finished or become dead letters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple, Protocol

from omq._core.blocks import read_header
from omq.errors import OmqError
from omq.ranges import Range, RangeMap, RangeSet, append_range
from omq.store.async_store import AsyncStore
from omq.store.errors import DamagedError, Gone, StoreError
from omq.store.interface import Acknowledge, DeadLetterReason, Reader, TopicState, Write
from omq.workqueue.ack_deadlines import InFlight

log = logging.getLogger("omq.store")

#: The size for which a smaller block, or a read without a block, counts. It keeps turns short if blocks are small.
MIN_BLOCK_BYTES: Final = 16 << 10
#: Dead letters that are moved at a time.
_DEAD_LETTER_BATCH: Final = 256
#: The delay after which failed moves of dead letters are retried.
_DEAD_LETTER_RETRY_S: Final = 1.0


class DeadLetter(NamedTuple):
    """The value of a range of messages that become dead letters.

    Attributes:
        tries: The number of deliveries that count.
        reason: The reason.
    """

    tries: int
    reason: DeadLetterReason


class QueueOwner(Protocol):
    """The topic of a work queue, to which the queue reports.

    Attributes:
        label: The topic and the group with their names, as text of log lines.
        log_fields: The same as fields of log lines.
    """

    label: str
    log_fields: dict[str, str]

    @property
    def deleted(self) -> bool:
        """Returns whether the topic is deleted, or about to be; that may fail."""

    def touch(self) -> None:
        """Reports that the numbers of the queue have changed."""

    def changed(self) -> None:
        """Reports that `WorkQueue.unsaved` has acknowledgements to save."""

    def wake(self) -> None:
        """Reports that messages have become ready."""

    def delivering(self, count: int, size: int, tries: int) -> None:
        """Reports that `count` messages of a block of `size` bytes are delivered, for the `tries`-th time.

        The owner also does what `touch` and `changed` do: the queue does not call them for a delivery.
        """

    def finished(self, first: int, last: int) -> None:
        """Reports that messages are finished."""

    def damaged(self, first: int, last: int) -> None:
        """Reports that messages are damaged. The queue finishes them next."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Schedules a call, unless the owner has ended by then."""

    def retry_delay(self, tries: int) -> float:
        """Returns the seconds before the redelivery of a message that has failed `tries` times."""

    async def dead_letter_topic(self) -> int:
        """Returns the id of the dead-letter topic. Creates the topic if it does not exist."""

    def move_to_dead_letters(self, id: int, letter: DeadLetter, target: int, moved: Callable[[Write], None]) -> None:
        """Submits the write that moves a message to the dead-letter topic. `moved` gets the finished write."""

    def moved_to_dead_letters(self, target: int, write: Any) -> None:
        """Reports that the write of `move_to_dead_letters` has succeeded."""


class Recipient(Protocol):
    """The methods of `QueueConsumer` that its queues call."""

    active: bool

    def fits(self, queue: WorkQueue, header: bytes, records: memoryview, count: int) -> int:
        """Returns the number of messages of a block that it takes."""

    def record_delivery(self, first: int, last: int, tries: int) -> None:
        """Records a delivery to it, by global id."""

    def send(self, queue: WorkQueue, header: bytes, records: memoryview, count: int, tries: int) -> None:
        """Sends it the first messages of a block."""

    def failed(self, error: Exception) -> None:
        """Ends it after an error."""


class WorkQueue:
    """The messages of a topic that consumers share: each goes to one consumer, and to another one if it is not acked.

    The queue identifies a message by its id. A dispatcher with several queues uses *global ids*: `base` plus the id.

    Args:
        owner: The topic.
        store: The store of the topic.
        state: The committed state of the topic.
        max_tries: Failed deliveries after which a message becomes a dead letter; `None`: never.
        presumed_tries: The delivery count of messages that were in flight when the store was closed or killed.
        group: The consumer group of a broadcast topic; empty: the topic is round-robin.

    Attributes:
        id: The topic's id.
        base: The offset of global ids; set by the dispatcher.
        max_tries: As the argument.
        generation: The generation of the group; 0 without one.
        last_delivered: The highest id ever delivered.
        readable: The newest id that can be read.
        ahead: Ids above `last_delivered` that are finished already.
    """

    def __init__(
        self,
        owner: QueueOwner,
        store: AsyncStore,
        state: TopicState,
        *,
        max_tries: int | None = None,
        presumed_tries: int = 0,
        group: str = "",
    ) -> None:
        self.id = state.id
        self._group = group
        self.base = 0
        self.readable = state.last
        self._owner = owner
        self._store = store
        #: Messages that have come back and are ready for redelivery.
        self._requeued: RangeMap[InFlight] = RangeMap()
        #: Messages that have failed and wait for their retry delay, until their `deadline`.
        self._delayed: RangeMap[InFlight] = RangeMap()
        self._due: list[tuple[float, int, int]] = []  # a heap of deadlines with first and last id; may have stale ones
        self._retry_at = 0.0  # the time of the next call of `_retry_due`; 0: none is scheduled
        self._unsaved_acks: list[tuple[int, int]] = []
        self._unsaved_tries: dict[int, int] = {}
        self._dead_letters: list[Range[DeadLetter]] = []  # messages to move to the dead-letter topic
        self._dead_letter_task: asyncio.Task[None] | None = None
        #: Messages in flight that were finished elsewhere, and must not be redelivered.
        self._finished_in_flight = RangeSet()
        acks = store.store.ack_set(state.id, group)
        self.generation = acks.generation
        self.last_delivered = max(acks.last_delivered, acks.floor, state.first - 1)
        self._saved = self.last_delivered  # the value that the store has
        #: Ids above `last_delivered` that were acked elsewhere, or by consumers of a server that was killed.
        self.ahead = RangeSet(acks.above(self.last_delivered))
        for first, last in acks.missing(state.first, self.last_delivered):
            for piece in _split_by_tries(first, last, acks.deliveries, presumed_tries):
                self._requeued.put(piece.first, piece.last, piece.value)
        self.limit_tries(max_tries)

    # ------------------------------------------------------------------ counts

    @property
    def ready(self) -> int:
        """The number of messages that can be delivered now."""
        return self._requeued.count + max(self.readable - self.last_delivered - self.ahead.count, 0)

    @property
    def waiting(self) -> int:
        """The number of messages that are ready, or wait for their retry delay."""
        return self.ready + self._delayed.count

    def unfinished(self, last: int) -> int:
        """Returns the number of messages up to `last` that are not finished or in flight. Any thread may call it."""
        return self._requeued.count + self._delayed.count + max(last - self.last_delivered - self.ahead.count, 0)

    def touch(self) -> None:
        """Reports to the owner that the numbers of its consumers change."""
        self._owner.touch()

    def grown(self, last: int) -> None:
        """Makes messages up to `last` ready: they can be read."""
        self.readable = max(self.readable, last)

    def waiting_global_ids(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yields the ranges of global ids from `first` to `last` that wait for redelivery."""
        for waiting in (self._requeued, self._delayed):
            for piece in waiting.within(first - self.base, last - self.base):
                yield piece.first + self.base, piece.last + self.base

    def waiting_ids(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yields the ranges of ids from `first` to `last` that wait for a first delivery or a redelivery."""
        for waiting in (self._requeued, self._delayed):
            yield from ((piece.first, piece.last) for piece in waiting.within(first, last))
        yield from self.ahead.missing(max(first, self.last_delivered + 1), min(last, self.readable))

    async def close(self) -> None:
        """Stops moving dead letters. The next opening finds the rest by their delivery counts."""
        if self._dead_letter_task is not None:
            self._dead_letter_task.cancel()
            await asyncio.gather(self._dead_letter_task, return_exceptions=True)

    # ------------------------------------------------------------------ acks

    def finish(self, first: int, last: int) -> None:
        """Finishes messages that are neither waiting nor in flight any more."""
        self._owner.touch()
        append_range(self._unsaved_acks, first, last)
        if self._finished_in_flight:
            self._finished_in_flight.discard(first, last)
        self._owner.finished(first, last)
        self._owner.changed()

    def finish_late(self, first: int, last: int) -> int:
        """Finishes those messages that wait for redelivery; returns their number."""
        pieces = [*self._requeued.take(first, last), *self._delayed.take(first, last)]
        for piece in pieces:
            self.finish(piece.first, piece.last)
        return sum(piece.count for piece in pieces)

    def finish_ahead(self, first: int, last: int) -> None:
        """Finishes messages before their first delivery here. They need not be readable yet."""
        first = max(first, self.last_delivered + 1)
        if first <= last:
            self.ahead.add(first, last)
            self.finish(first, last)

    def finish_elsewhere(self, first: int, last: int) -> None:
        """Finishes messages that were acknowledged elsewhere, whether they wait or are in flight here."""
        waiting = RangeSet(
            (piece.first, piece.last) for ids in (self._requeued, self._delayed) for piece in ids.within(first, last)
        )
        for begin, end in waiting.missing(first, min(last, self.last_delivered)):  # in flight
            self._finished_in_flight.add(begin, end)
            append_range(self._unsaved_acks, begin, end)
        self.finish_late(first, last)
        self.finish_ahead(first, last)

    # ------------------------------------------------------------------ redelivery

    def requeue(self, piece: Range[InFlight]) -> None:
        """Returns messages of a consumer that has ended. They are ready at once, and the delivery counts."""
        for part in self._valid(piece):
            self._keep_tries(part)
            if not self._dead_lettered(part):
                self._redeliver(part)

    def retry(self, piece: Range[InFlight], delay: float | None = None) -> None:
        """Returns messages whose delivery has failed. They are ready after a delay, while others are delivered.

        Args:
            piece: The messages.
            delay: The delay in seconds; `None`: the owner's `retry_delay`.
        """
        for part in self._valid(piece):
            self._keep_tries(part)
            if self._dead_lettered(part):
                continue
            wait = self._owner.retry_delay(part.value.tries) if delay is None else delay
            if wait <= 0:
                self._redeliver(part)
                continue
            due = asyncio.get_running_loop().time() + wait
            self._delayed.put(part.first, part.last, InFlight(part.value.tries, due))
            heappush(self._due, (due, part.first, part.last))
            self._schedule_retry(due)

    def requeue_uncounted(self, piece: Range[InFlight]) -> None:
        """Returns messages that their consumer has not begun: ready at once, and the delivery does not count."""
        self._owner.touch()
        for part in self._valid(piece):
            self._redeliver(part, part.value.tries - 1)

    def _valid(self, piece: Range[InFlight]) -> Iterable[Range[InFlight]]:
        """Returns those messages of a range that were not finished elsewhere while they were in flight."""
        if not self._finished_in_flight:
            return (piece,)
        valid = [
            Range(first, last, piece.value) for first, last in self._finished_in_flight.missing(piece.first, piece.last)
        ]
        self._finished_in_flight.discard(piece.first, piece.last)
        return valid

    def _keep_tries(self, piece: Range[InFlight]) -> None:
        """Adds the delivery counts of messages to the next `unsaved`."""
        self._owner.touch()
        self._unsaved_tries.update(dict.fromkeys(range(piece.first, piece.last + 1), piece.value.tries))
        self._owner.changed()

    def _redeliver(self, piece: Range[InFlight], tries: int | None = None) -> None:
        self._requeued.put(piece.first, piece.last, InFlight(piece.value.tries if tries is None else tries))
        self._owner.wake()

    def _schedule_retry(self, due: float) -> None:
        """Schedules `_retry_due` at a time, unless it runs earlier."""
        if not self._retry_at or due < self._retry_at:
            self._retry_at = due
            self._owner.later(max(due - asyncio.get_running_loop().time(), 0), self._retry_due)

    def _retry_due(self) -> None:
        """Makes the messages ready whose retry delay has passed."""
        self._retry_at = 0.0
        now = asyncio.get_running_loop().time() + 0.001  # delays that end within 1 ms count as over
        while self._due and self._due[0][0] <= now:
            _, first, last = heappop(self._due)
            for piece in self._delayed.take(first, last):
                if piece.value.deadline > now:  # it has failed again since
                    self._delayed.put(piece.first, piece.last, piece.value)
                else:
                    self._redeliver(piece)
        if self._due:
            self._schedule_retry(self._due[0][0])

    # ------------------------------------------------------------------ delivery

    def next(self) -> tuple[int, int, int]:
        """Returns first and last id of the range to deliver next (empty if `first > last`), and its delivery count."""
        if self._requeued:
            head = self._requeued.head
            return head.first, head.last, head.value.tries
        if self.ahead:
            self.last_delivered = self.ahead.first_gap(self.last_delivered + 1) - 1
            self.ahead.discard(1, self.last_delivered)
        last = min(self.readable, self.ahead.first - 1) if self.ahead else self.readable
        return self.last_delivered + 1, last, 0

    def serve(self, reader: Reader, consumer: Recipient, max_batch: int, limit: int) -> tuple[int, bool]:
        """Delivers the next messages to one consumer.

        Args:
            reader: A reader of the topic.
            consumer: The consumer.
            max_batch: The highest number of messages.
            limit: The approximate limit of the bytes of records.

        Returns:
            The approximate number of bytes delivered, and whether delivery may continue: false if the consumer did not
            take all of a block.

        Raises:
            StoreError: The messages cannot be read.
        """
        first, last, tries = self.next()
        stop = min(last, first + max_batch - 1) + 1
        served, reached = 0, stop
        try:
            for header, records in reader.blocks(first, stop):
                start, count, _, _ = read_header(header)
                self._finish_missing(first, start - 1)
                first = start + count
                taken = self._deliver(consumer, header, records, start, count, tries + 1)
                served += max(len(records), MIN_BLOCK_BYTES)
                if taken < count or not consumer.active:
                    return served, not consumer.active
                if served >= limit:
                    reached = first
                    break
        except Gone as error:
            reached = min(error.first, stop)
        except DamagedError as error:
            if not error.last:
                raise
            log.error(
                "%s: %s",
                self._owner.label,
                error,
                extra={
                    "event": "messages_damaged",
                    **self._owner.log_fields,
                    "first": error.first,
                    "last": error.last,
                },
            )
            reached = min(error.last + 1, stop)
            self._owner.damaged(max(error.first, first), reached - 1)
        # Missing ids were dropped by retention, skipped after a crash, or quarantined.
        self._finish_missing(first, reached - 1)
        return max(served, MIN_BLOCK_BYTES), True

    def _deliver(
        self, consumer: Recipient, header: bytes, records: memoryview, first: int, count: int, tries: int
    ) -> int:
        """Delivers the messages of a block that the consumer takes; returns their number."""
        self._remove_waiting(first, first + count - 1)
        taken = 0
        try:
            if taken := consumer.fits(self, header, records, count):
                consumer.record_delivery(self.base + first, self.base + first + taken - 1, tries)
                self._owner.delivering(taken, len(records), tries)
                consumer.send(self, header, records, taken, tries)
        except Exception as error:
            log.exception("%s: a consumer has failed", self._owner.label)
            consumer.failed(error)
        if taken < count:
            self._requeued.put(first + taken, first + count - 1, InFlight(tries - 1))
        return taken

    def _remove_waiting(self, first: int, last: int) -> None:
        """Removes ids from those that wait for delivery."""
        if last > self.last_delivered:
            self.last_delivered = last
        if self._requeued:
            self._requeued.take(first, last)

    def _finish_missing(self, first: int, last: int) -> None:
        """Finishes ids that were to be delivered and have no message."""
        if first <= last:
            self._remove_waiting(first, last)
            self.finish(first, last)

    # ------------------------------------------------------------------ retention

    def expire(self, first: int) -> int:
        """Drops the waiting messages below `first`, which the store has dropped; returns their number."""
        expired = 0
        for waiting in (self._requeued, self._delayed):
            if waiting and waiting.head.first < first:
                expired += sum(piece.count for piece in waiting.take(1, first - 1))
        if self.last_delivered + 1 < first:
            acked = sum(end - begin + 1 for begin, end in self.ahead.discard(1, first - 1))
            expired += first - 1 - self.last_delivered - acked
            self.last_delivered = first - 1
            self._owner.changed()
        return expired

    def purge(self, last: int) -> int:
        """Finishes the messages up to `last` that wait and can be read; returns their number."""
        purged = self.finish_late(1, last)
        last = min(last, self.readable)
        if last > self.last_delivered:
            new = list(self.ahead.missing(self.last_delivered + 1, last))
            self.ahead.discard(1, last)
            self.last_delivered = last
            for first, end in new:
                self.finish(first, end)
                purged += end - first + 1
        return purged

    def drop_oldest(self, count: int) -> int:
        """Makes at most `count` of the oldest waiting messages dead letters; returns their number."""
        dropped = 0
        while dropped < count and (piece := self._take_oldest(count - dropped)) is not None:
            dropped += piece.count
            self._dead_letters.append(Range(piece.first, piece.last, DeadLetter(piece.value.tries, "overflow")))
        if dropped:
            self._owner.changed()
            self._start_dead_letter_task()
        return dropped

    def _take_oldest(self, limit: int) -> Range[InFlight] | None:
        """Removes at most `limit` of the oldest waiting messages and returns them; `None` if nothing waits."""
        waiting = [ranges for ranges in (self._requeued, self._delayed) if ranges]
        if waiting:
            oldest = min(waiting, key=lambda ranges: ranges.head.first)
            head = oldest.head
            return oldest.take(head.first, min(head.last, head.first + limit - 1))[0]
        first, last, _ = self.next()
        last = min(last, first + limit - 1)
        if first > last:
            return None
        self.last_delivered = last
        return Range(first, last, InFlight(0))

    # ------------------------------------------------------------------ persistence

    def unsaved(self) -> Acknowledge | None:
        """Returns the write for changes that the store does not have; `None` if there are not any."""
        if not self._unsaved_acks and not self._unsaved_tries and self.last_delivered == self._saved:
            return None
        done, self._unsaved_acks = self._unsaved_acks, []
        unsaved_tries, self._unsaved_tries = self._unsaved_tries, {}
        self._saved = self.last_delivered
        return Acknowledge(
            self.id, done, self.last_delivered, unsaved_tries, group=self._group, generation=self.generation
        )

    def take_back(self, write: Acknowledge) -> None:
        """Adds a failed write to the next one."""
        self._unsaved_acks = write.ranges + self._unsaved_acks
        self._unsaved_tries = {**write.deliveries, **self._unsaved_tries}
        self._saved = 0

    # ------------------------------------------------------------------ dead letters

    def limit_tries(self, max_tries: int | None) -> None:
        """Sets `max_tries`, and makes waiting messages dead letters that have failed as often already."""
        self.max_tries = max_tries
        for waiting in (self._requeued, self._delayed):
            for piece in list(waiting):
                if self._dead_lettered(piece):
                    waiting.take(piece.first, piece.last)
        self._start_dead_letter_task()  # `close` may have left some

    def _dead_lettered(self, piece: Range[InFlight]) -> bool:
        """Makes messages dead letters if they have reached `max_tries`; returns whether they have."""
        if self.max_tries is None or piece.value.tries < self.max_tries:
            return False
        self._dead_letters.append(Range(piece.first, piece.last, DeadLetter(piece.value.tries, "max-deliveries")))
        self._start_dead_letter_task()
        return True

    def _start_dead_letter_task(self) -> None:
        if self._dead_letter_task is None and self._dead_letters and not self._owner.deleted:
            self._dead_letter_task = asyncio.get_running_loop().create_task(self._move_dead_letters())

    async def _move_dead_letters(self) -> None:
        """Moves all dead letters to the dead-letter topic."""
        try:
            while self._dead_letters and not self._owner.deleted:
                target = await self._owner.dead_letter_topic()
                if not await self._move_dead_letter_batch(target):
                    self._owner.later(_DEAD_LETTER_RETRY_S, self._start_dead_letter_task)
                    break
        except (OmqError, StoreError) as error:
            log.error("%s: dead letters cannot be moved now: %s", self._owner.label, error)
            self._owner.later(_DEAD_LETTER_RETRY_S, self._start_dead_letter_task)
        finally:
            self._dead_letter_task = None

    async def _move_dead_letter_batch(self, target: int) -> bool:
        """Moves a batch of dead letters and waits for it, so that other work is not delayed.

        Returns:
            Whether all of them were moved.
        """
        letters: dict[int, DeadLetter] = {}
        while self._dead_letters and len(letters) < _DEAD_LETTER_BATCH:
            piece = self._dead_letters.pop(0)
            stop = min(piece.last + 1, piece.first + _DEAD_LETTER_BATCH - len(letters))
            letters.update(dict.fromkeys(range(piece.first, stop), piece.value))
            if stop <= piece.last:
                self._dead_letters.insert(0, Range(stop, piece.last, piece.value))
        answered = asyncio.get_running_loop().create_future()
        pending, all_moved = len(letters), True

        def moved(id: int, write: Write) -> None:
            nonlocal pending, all_moved
            error = write.error
            if error is None:
                self._owner.touch()
                self._owner.moved_to_dead_letters(target, write)
                self._owner.finished(id, id)
            elif isinstance(error, Gone | DamagedError):
                log.error("%s: message %d cannot become a dead letter: %s", self._owner.label, id, error)
                self._owner.damaged(id, id)
                self.finish(id, id)
            else:
                # The disk is full, or a topic was just deleted; the deletion of the owner may still fail.
                self._dead_letters.append(Range(id, id, letters[id]))
                all_moved = False
            pending -= 1
            if not pending and not answered.done():
                answered.set_result(None)

        for id, letter in letters.items():
            self._owner.move_to_dead_letters(id, letter, target, lambda write, id=id: moved(id, write))  # type: ignore[misc]
        await answered
        return all_moved


def _split_by_tries(first: int, last: int, deliveries: dict[int, int], presumed: int) -> Iterable[Range[InFlight]]:
    """Yields the parts of a range of redelivered messages, split so that each has one delivery count.

    Messages without a stored count get `presumed`: after a kill it is unknown whether a consumer had begun with them.
    """
    counted = sorted(id for id in deliveries if first <= id <= last) if deliveries else []
    for id in counted:
        if first < id:
            yield Range(first, id - 1, InFlight(presumed))
        yield Range(id, id, InFlight(deliveries[id]))
        first = id + 1
    if first <= last:
        yield Range(first, last, InFlight(presumed))
