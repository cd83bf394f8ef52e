"""One work queue: which messages of a topic wait, come back, are finished, or become dead letters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from omq.errors import OmqError
from omq.ranges import Range, RangeMap, RangeSet, append_range
from omq.store.async_store import AsyncStore
from omq.store.errors import DamagedError, Gone, StoreError
from omq.store.interface import Acknowledge, Reader, TopicState, Write
from omq.workqueue.ack_deadlines import InFlight

log = logging.getLogger("omq.store")

#: As how many bytes a block counts at least, and a read that finds none: so a turn is short with the smallest blocks.
MIN_BLOCK_BYTES: Final = 16 << 10
#: Messages that are moved to the dead letters at a time.
_DEAD_LETTER_BATCH: Final = 256
#: Seconds after which dead letters are moved that could not be moved before.
_RETRY_DELAY_S: Final = 1.0


class QueueOwner(Protocol):
    """The topic of a work queue, as the queue sees it.

    Attributes:
        name: The topic's name, for the log.
        deleted: It is gone, or about to go.
    """

    name: str
    deleted: bool

    def touch(self) -> None:
        """Takes note that the queue's numbers change."""

    def changed(self) -> None:
        """Takes note that there is something for `WorkQueue.unsaved` to return."""

    def wake(self) -> None:
        """Takes note that there is something to deliver."""

    def delivering(self, count: int, size: int, tries: int) -> None:
        """Takes note that messages of `size` bytes are delivered, for the time numbered `tries`; and of a change."""

    def finished(self, first: int, last: int) -> None:
        """Takes note that messages are finished."""

    def damaged(self, first: int, last: int) -> None:
        """Takes note that messages cannot be read, for ever. They are finished next."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Makes a call later, unless the owner has ended by then."""

    def retry_delay(self, tries: int) -> float:
        """Returns the seconds that a message waits which was delivered so often in vain."""

    async def dead_letter_topic(self) -> int:
        """Returns the id of the topic for dead letters, which is made if it is not there."""

    def move_to_dead_letters(self, id: int, target: int, moved: Callable[[Write], None]) -> None:
        """Submits the write that makes a message a dead letter; `moved` gets it back."""

    def moved_to_dead_letters(self, target: int, write: Any) -> None:
        """Takes note that this write is done."""


class Recipient(Protocol):
    """The consumer that is delivered to; see `omq.workqueue.consumer`."""

    active: bool

    def fits(self, queue: WorkQueue, header: bytes, records: memoryview, count: int) -> int:
        """Returns how many messages of a block it takes."""

    def hold(self, first: int, last: int, tries: int) -> None:
        """Records a delivery to it, by place."""

    def send(self, queue: WorkQueue, header: bytes, records: memoryview, count: int, tries: int) -> None:
        """Sends it the first messages of a block."""

    def failed(self, error: Exception) -> None:
        """Ends it."""


class WorkQueue:
    """The messages of a topic that consumers share: each goes to one, and to the next one if that does not acknowledge.

    A message is called by its id here, and by its *place*, `base` plus its id, where there are several queues.

    Args:
        owner: The topic.
        store: Where it is stored.
        state: What the store has of it.
        max_tries: Deliveries in vain after which a message becomes a dead letter; `None`: never.
        presumed_tries: Deliveries that count of what was delivered before the store was opened, and is not finished.

    Attributes:
        id: The topic's id.
        base: What places of its messages begin after; set by who delivers several queues.
        max_tries: See above.
        handed: The highest id that was ever delivered.
        readable: The newest id that can be read.
        ahead: Ids above `handed` that are finished already.
    """

    def __init__(
        self,
        owner: QueueOwner,
        store: AsyncStore,
        state: TopicState,
        *,
        max_tries: int | None = None,
        presumed_tries: int = 0,
    ) -> None:
        self.id = state.id
        self.base = 0
        self.readable = state.last
        self._owner = owner
        self._store = store
        #: What was delivered, came back, and is to be delivered again.
        self._redo: RangeMap[InFlight] = RangeMap()
        #: What has failed, and waits for its retry delay: until its deadline.
        self._delayed: RangeMap[InFlight] = RangeMap()
        self._due: list[tuple[float, int, int]] = []  # a heap of when, first and last id of what is in there, or was
        self._looks_at = 0.0  # when the loop looks at it next; 0: it does not
        self._done: list[tuple[int, int]] = []  # finished, and not submitted
        self._again: dict[int, int] = {}  # attempts in vain, not submitted
        self._dead: list[Range[InFlight]] = []  # for the dead-letter topic, once that is there
        self._moving: asyncio.Task[None] | None = None
        #: What is in flight, and was finished elsewhere: it is not delivered again.
        self._void = RangeSet()
        settled = store.store.settled(state.id)
        self.handed = max(settled.handed, settled.watermark, state.first - 1)
        self._saved = self.handed  # what the store has of it
        #: What is finished above that: elsewhere, or by consumers of a server that was killed.
        self.ahead = RangeSet(settled.above(self.handed))
        for first, last in settled.missing(state.first, self.handed):
            for piece in _cut(first, last, settled.deliveries, presumed_tries):
                self._redo.put(piece.first, piece.last, piece.value)
        self.limit_tries(max_tries)

    # ------------------------------------------------------------------ what is there

    @property
    def ready(self) -> int:
        """Messages that can be delivered now."""
        return self._redo.count + max(self.readable - self.handed - self.ahead.count, 0)

    @property
    def waiting(self) -> int:
        """Messages that wait: ready, or for their retry delay."""
        return self.ready + self._delayed.count

    def unfinished(self, last: int) -> int:
        """Returns the messages up to `last` that are not finished and not in flight; may be called in any thread."""
        return self._redo.count + self._delayed.count + max(last - self.handed - self.ahead.count, 0)

    def touch(self) -> None:
        """Takes note that the numbers of its consumers change."""
        self._owner.touch()

    def grown(self, last: int) -> None:
        """Takes note that messages up to `last` can be read."""
        self.readable = max(self.readable, last)

    def waiting_places(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yields those of some messages, by place, that were delivered, came back, and wait to be delivered again."""
        for waiting in (self._redo, self._delayed):
            for piece in waiting.within(first - self.base, last - self.base):
                yield piece.first + self.base, piece.last + self.base

    def waiting_ids(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yields those of some messages that wait, whether they were delivered before or not."""
        for waiting in (self._redo, self._delayed):
            yield from ((piece.first, piece.last) for piece in waiting.within(first, last))
        yield from self.ahead.missing(max(first, self.handed + 1), min(last, self.readable))

    async def close(self) -> None:
        """Stops moving dead letters: what was delivered too often is found again when the store is opened next."""
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.gather(self._moving, return_exceptions=True)

    # ------------------------------------------------------------------ what is finished

    def finish(self, first: int, last: int) -> None:
        """Takes note that messages are finished."""
        self._owner.touch()
        append_range(self._done, first, last)
        if self._void:
            self._void.discard(first, last)
        self._owner.finished(first, last)
        self._owner.changed()

    def finish_late(self, first: int, last: int) -> int:
        """Finishes those messages that came back and that no other consumer has begun with; returns how many."""
        pieces = [*self._redo.take(first, last), *self._delayed.take(first, last)]
        for piece in pieces:
            self.finish(piece.first, piece.last)
        return sum(piece.count for piece in pieces)

    def finish_ahead(self, first: int, last: int) -> None:
        """Finishes messages that were not delivered from here yet; they need not be readable yet."""
        first = max(first, self.handed + 1)
        if first <= last:
            self.ahead.add(first, last)
            self.finish(first, last)

    def finish_elsewhere(self, first: int, last: int) -> None:
        """Takes note that messages were finished elsewhere, wherever they are here."""
        waiting = RangeSet(
            (piece.first, piece.last) for ids in (self._redo, self._delayed) for piece in ids.within(first, last)
        )
        for begin, end in waiting.missing(first, min(last, self.handed)):  # these are in flight
            self._void.add(begin, end)
            append_range(self._done, begin, end)
        self.finish_late(first, last)
        self.finish_ahead(first, last)

    # ------------------------------------------------------------------ what comes back

    def returned(self, piece: Range[InFlight]) -> None:
        """Delivers messages of a consumer that is gone to others, at once."""
        if not self._owner.deleted:
            for part in self._valid(piece):
                self._keep_tries(part)
                if not self._is_spent(part):
                    self._redeliver(part)

    def failed(self, piece: Range[InFlight], delay: float | None = None) -> None:
        """Delivers messages again that were delivered in vain: others pass them while they wait.

        Args:
            piece: The messages.
            delay: Seconds; `None`: as the owner's `retry_delay` is.
        """
        if self._owner.deleted:
            return
        for part in self._valid(piece):
            self._keep_tries(part)
            if self._is_spent(part):
                continue
            wait = self._owner.retry_delay(part.value.tries) if delay is None else delay
            if wait <= 0:
                self._redeliver(part)
                continue
            due = asyncio.get_running_loop().time() + wait
            self._delayed.put(part.first, part.last, InFlight(part.value.tries, due))
            heappush(self._due, (due, part.first, part.last))
            self._look_at(due)

    def unseen(self, piece: Range[InFlight]) -> None:
        """Delivers messages again that come back without having been looked at: this delivery does not count."""
        self._owner.touch()
        if not self._owner.deleted:
            for part in self._valid(piece):
                self._redeliver(part, part.value.tries - 1)

    def _valid(self, piece: Range[InFlight]) -> Iterable[Range[InFlight]]:
        """Returns those messages of a piece that were not finished elsewhere while they were in flight."""
        if not self._void:
            return (piece,)
        valid = [Range(first, last, piece.value) for first, last in self._void.missing(piece.first, piece.last)]
        self._void.discard(piece.first, piece.last)
        return valid

    def _keep_tries(self, piece: Range[InFlight]) -> None:
        """Has the store keep how often messages were attempted."""
        self._owner.touch()
        self._again.update(dict.fromkeys(range(piece.first, piece.last + 1), piece.value.tries))
        self._owner.changed()

    def _redeliver(self, piece: Range[InFlight], tries: int | None = None) -> None:
        self._redo.put(piece.first, piece.last, InFlight(piece.value.tries if tries is None else tries))
        self._owner.wake()

    def _look_at(self, due: float) -> None:
        """Has the loop look at what is delayed when this time has come."""
        if not self._looks_at or due < self._looks_at:
            self._looks_at = due
            self._owner.later(max(due - asyncio.get_running_loop().time(), 0), self._retry_due)

    def _retry_due(self) -> None:
        """Delivers again what has waited for its time."""
        self._looks_at = 0.0
        now = asyncio.get_running_loop().time() + 0.001  # what is due in a moment is due now
        while self._due and self._due[0][0] <= now:
            _, first, last = heappop(self._due)
            for piece in self._delayed.take(first, last):
                if piece.value.deadline > now:  # it has failed again meanwhile
                    self._delayed.put(piece.first, piece.last, piece.value)
                else:
                    self._redeliver(piece)
        if self._due:
            self._look_at(self._due[0][0])

    # ------------------------------------------------------------------ delivering

    def next(self) -> tuple[int, int, int]:
        """Returns the ids to be delivered next, first and last of a range, and how often they were attempted."""
        if self._redo:
            head = self._redo.head
            return head.first, head.last, head.value.tries
        if self.ahead:
            self.handed = self.ahead.first_gap(self.handed + 1) - 1
            self.ahead.discard(1, self.handed)
        last = min(self.readable, self.ahead.first - 1) if self.ahead else self.readable
        return self.handed + 1, last, 0

    def serve(self, reader: Reader, consumer: Recipient, portion: int, limit: int) -> tuple[int, bool]:
        """Delivers what is next to one consumer.

        Args:
            reader: Reads the topic.
            consumer: Who gets it.
            portion: Messages at most.
            limit: Bytes of records, about.

        Returns:
            About how many bytes it was; and whether the consumer took all that it was given.

        Raises:
            StoreError: They cannot be read.
        """
        first, last, tries = self.next()
        stop = min(last, first + portion - 1) + 1
        served, reached = 0, stop
        try:
            for header, records in reader.blocks(first, stop):
                count = int.from_bytes(header[4:8], "big")
                start = int.from_bytes(header[8:16], "big")
                self._gone(first, start - 1)
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
            log.error("topic %r: %s", self._owner.name, error)
            reached = min(error.last + 1, stop)
            self._owner.damaged(max(error.first, first), reached - 1)
        # What is not there is gone: dropped by the topic's limits, never given, or damaged and quarantined.
        self._gone(first, reached - 1)
        return max(served, MIN_BLOCK_BYTES), True

    def _deliver(
        self, consumer: Recipient, header: bytes, records: memoryview, first: int, count: int, tries: int
    ) -> int:
        """Delivers a block, as far as the consumer takes it; returns how many messages it took."""
        self._moved_on(first, first + count - 1)
        taken = 0
        try:
            if taken := consumer.fits(self, header, records, count):
                consumer.hold(self.base + first, self.base + first + taken - 1, tries)
                self._owner.delivering(taken, len(records), tries)
                consumer.send(self, header, records, taken, tries)
        except Exception as error:
            log.exception("topic %r: a consumer has failed", self._owner.name)
            consumer.failed(error)
        if taken < count:
            self._redo.put(first + taken, first + count - 1, InFlight(tries - 1))
        return taken

    def _moved_on(self, first: int, last: int) -> None:
        """Takes note that ids do not wait to be delivered any more."""
        if last > self.handed:
            self.handed = last
        if self._redo:
            self._redo.take(first, last)

    def _gone(self, first: int, last: int) -> None:
        """Takes note that nothing is kept under these ids, which were to be delivered."""
        if first <= last:
            self._moved_on(first, last)
            self.finish(first, last)

    # ------------------------------------------------------------------ what is dropped

    def expire(self, first: int) -> int:
        """Drops what waits below `first`: the store does not keep it any more; returns how many messages."""
        expired = 0
        for waiting in (self._redo, self._delayed):
            if waiting and waiting.head.first < first:
                expired += sum(piece.count for piece in waiting.take(1, first - 1))
        if self.handed + 1 < first:
            acked = sum(end - begin + 1 for begin, end in self.ahead.discard(1, first - 1))
            expired += first - 1 - self.handed - acked
            self.handed = first - 1
            self._owner.changed()
        return expired

    def drop_oldest(self, count: int) -> int:
        """Makes the oldest messages that no consumer has dead letters, `count` at most; returns how many."""
        dropped = 0
        while dropped < count and (piece := self._take_oldest(count - dropped)) is not None:
            dropped += piece.count
            self._dead.append(piece)
        if dropped:
            self._owner.changed()
            self._move_dead()
        return dropped

    def _take_oldest(self, most: int) -> Range[InFlight] | None:
        """Takes the oldest messages out of what waits, at most `most`; `None` where nothing waits."""
        waiting = [ranges for ranges in (self._redo, self._delayed) if ranges]
        if waiting:
            oldest = min(waiting, key=lambda ranges: ranges.head.first)
            head = oldest.head
            return oldest.take(head.first, min(head.last, head.first + most - 1))[0]
        first, last, _ = self.next()
        last = min(last, first + most - 1)
        if first > last:
            return None
        self.handed = last
        return Range(first, last, InFlight(0))

    # ------------------------------------------------------------------ what is kept

    def unsaved(self) -> Acknowledge | None:
        """Returns the write for what the store does not have yet; `None` where it has all."""
        if not self._done and not self._again and self.handed == self._saved:
            return None
        done, self._done = self._done, []
        again, self._again = self._again, {}
        self._saved = self.handed
        return Acknowledge(self.id, done, self.handed, again)

    def take_back(self, write: Acknowledge) -> None:
        """Takes a write back that was not done: it is to be part of the next one."""
        self._done = write.ranges + self._done
        self._again = {**write.deliveries, **self._again}
        self._saved = 0

    # ------------------------------------------------------------------ dead letters

    def limit_tries(self, max_tries: int | None) -> None:
        """Has messages become dead letters after a number of deliveries in vain; `None`: never."""
        self.max_tries = max_tries
        for piece in list(self._redo):
            if self._is_spent(piece):
                self._redo.take(piece.first, piece.last)

    def _is_spent(self, piece: Range[InFlight]) -> bool:
        """Returns whether messages were delivered as often as they may be: then they go to the dead letters."""
        if self.max_tries is None or piece.value.tries < self.max_tries:
            return False
        self._dead.append(piece)
        self._move_dead()
        return True

    def _move_dead(self) -> None:
        if self._moving is None and self._dead and not self._owner.deleted:
            self._moving = asyncio.get_running_loop().create_task(self._move_all_dead())

    async def _move_all_dead(self) -> None:
        """Moves what was delivered too often to the dead-letter topic."""
        try:
            while self._dead and not self._owner.deleted:
                target = await self._owner.dead_letter_topic()
                if not await self._move_some_dead(target):
                    self._owner.later(_RETRY_DELAY_S, self._move_dead)
                    break
        except (OmqError, StoreError) as error:
            log.error("topic %r: dead letters cannot be moved now: %s", self._owner.name, error)
            self._owner.later(_RETRY_DELAY_S, self._move_dead)
        finally:
            self._moving = None

    async def _move_some_dead(self, target: int) -> bool:
        """Moves some, and waits for them, so that others have their turns; returns whether all of them went."""
        tries: dict[int, int] = {}
        while self._dead and len(tries) < _DEAD_LETTER_BATCH:
            piece = self._dead.pop(0)
            stop = min(piece.last + 1, piece.first + _DEAD_LETTER_BATCH - len(tries))
            tries.update(dict.fromkeys(range(piece.first, stop), piece.value.tries))
            if stop <= piece.last:
                self._dead.insert(0, Range(stop, piece.last, piece.value))
        answered = asyncio.get_running_loop().create_future()
        left, all_went = len(tries), True

        def moved(id: int, write: Write) -> None:
            nonlocal left, all_went
            error = write.error
            if error is None:
                self._owner.touch()
                self._owner.moved_to_dead_letters(target, write)
                self._owner.finished(id, id)
            elif isinstance(error, Gone | DamagedError):
                log.error("topic %r: message %d is not a dead letter: %s", self._owner.name, id, error)
                self._owner.damaged(id, id)
                self.finish(id, id)
            elif not self._owner.deleted:
                # The disk may be full, or the dead-letter topic was deleted at this moment.
                self._dead.append(Range(id, id, InFlight(tries[id])))
                all_went = False
            left -= 1
            if not left and not answered.done():
                answered.set_result(None)

        for id in tries:
            self._owner.move_to_dead_letters(id, target, lambda write, id=id: moved(id, write))  # type: ignore[misc]
        await answered
        return all_went


def _cut(first: int, last: int, deliveries: dict[int, int], presumed: int) -> Iterable[Range[InFlight]]:
    """Yields a range that was delivered before the store was opened, cut where attempts are known.

    The others count as attempted `presumed` times: whether a consumer had begun with them is not known after a kill.
    """
    again = sorted(id for id in deliveries if first <= id <= last) if deliveries else []
    for id in again:
        if first < id:
            yield Range(first, id - 1, InFlight(presumed))
        yield Range(id, id, InFlight(deliveries[id]))
        first = id + 1
    if first <= last:
        yield Range(first, last, InFlight(presumed))
