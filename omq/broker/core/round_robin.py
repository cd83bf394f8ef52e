"""Round-robin topics: every message goes to one consumer, and to the next one where that does not acknowledge it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, Literal, Protocol

from omq.broker.core.delivery_state import DeliveryState
from omq.broker.core.permissions import Permissions
from omq.broker.core.rate_limit import RateLimit
from omq.broker.core.share import Share
from omq.broker.core.sink import Sink
from omq.broker.core.stats import SubscriptionStats
from omq.broker.core.topic import BLOCK, TURN, Topic, Turns
from omq.broker.errors import BrokerError, BrokerFailed, Busy, PermissionDenied, TopicError, broker_error
from omq.broker.protocol import u32
from omq.broker.settings import dead_letter_of, overflow_of, retry_delay_of
from omq.ranges import Range, RangeMap, RangeSet, append_range
from omq.store.async_store import AsyncStore
from omq.store.errors import DamagedError, Gone, StoreError
from omq.store.interface import MoveToDeadLetter, Reader, Settle, TopicState, Write

log = logging.getLogger("omq.broker")

#: Messages that one consumer gets at most before the next one has its turn.
PORTION: Final = 4096
#: Messages that are moved to the dead letters at a time.
BURIED: Final = 256
#: Ranges of messages that clients say they have acknowledged, and that were not delivered as far as is known.
_AHEAD: Final = 1 << 17


class DeadLetters(Protocol):
    """Finds the topic for what was delivered too often."""

    async def dead_letter(self, topic: RoundRobinTopic) -> int:
        """The id of that topic, which is made if it is not there."""

    def took(self, id: int, count: int, size: int) -> None:
        """That topic has got some."""


class RoundRobinTopic(Topic):
    """A topic whose messages go to one consumer each, and are settled when it acknowledges them.

    Attributes:
        dead_letter: The topic that its dead letters go to; `None` where it has none. It differs from the setting where
            the broker had to break a ring of such topics.
    """

    delivery: Literal["broadcast", "round-robin"] = "round-robin"

    def __init__(self, state: TopicState, journal: AsyncStore, turns: Turns, dead_letters: DeadLetters) -> None:
        super().__init__(state, journal, turns)
        self._dead_letters = dead_letters
        self.dead_letter = dead_letter_of(self.name, self.delivery, self.settings)
        self._shares: dict[Share, None] = {}
        #: Those that have credit and room, the next one first.
        self._hungry: dict[Share, None] = {}
        #: What was delivered, came back, and is to be delivered again.
        self._redo: RangeMap[DeliveryState] = RangeMap()
        #: What has failed, and waits for its `retry_delay`: until its deadline.
        self._delayed: RangeMap[DeliveryState] = RangeMap()
        self._due: list[tuple[float, int, int]] = []  # a heap of when, first and last id of what is in there, or was
        self._looks_at = 0.0  # when the loop looks at it next; 0: it does not
        self._drops_oldest = overflow_of(self.delivery, self.settings) == "drop-oldest"
        self.dropped = self.expired = 0
        self._lines = RateLimit()  # about dropped work
        self._max_tries: int | None = self.settings.get("max_deliveries")
        self._done: list[tuple[int, int]] = []  # settled, and not submitted
        self._again: dict[int, int] = {}  # attempts in vain, not submitted
        self._buried: list[Range[DeliveryState]] = []  # for the dead-letter topic, once that is there
        self._burying: asyncio.Task[None] | None = None
        settled = journal.store.settled(state.id)
        #: The highest id that was ever delivered.
        self.handed = max(settled.handed, settled.watermark, state.first - 1)
        self._told = self.handed  # what the store knows of it
        #: What is acknowledged above that: by clients that were delivered it by a broker that was killed.
        self._ahead = RangeSet(settled.above(self.handed))
        for first, last in settled.missing(state.first, self.handed):
            for piece in _cut(first, last, settled.deliveries):
                if not self._is_spent(piece):
                    self._deliver_again(piece)

    # ------------------------------------------------------------------ consuming

    def consume(self, sink: Sink, ack_timeout: float, credit: int) -> Share:
        """Takes a share; see `Broker.consume`."""
        if self.deleted:
            raise TopicError(f"topic {self.name!r} is deleted")
        share = Share(self, sink, ack_timeout, credit, asyncio.get_running_loop())
        self.touch()
        self._shares[share] = None
        self.wants(share)
        return share

    def wants(self, share: Share) -> None:
        """A share has credit or room."""
        self._hungry[share] = None
        self._turns.ready(self)

    def left(self, share: Share) -> None:
        """A share has ended."""
        self.touch()
        self._shares.pop(share, None)
        self._hungry.pop(share, None)
        if self._hungry:  # it may have come before those
            self._turns.ready(self)

    @property
    def readers(self) -> int:
        return len(self._shares)

    def end(self, error: BrokerError | None) -> None:
        for share in tuple(self._shares):
            self._end(share, error)

    async def close(self) -> None:
        await super().close()
        if self._burying is not None:
            # What was delivered too often is found again when the topic is read next.
            self._burying.cancel()
            await asyncio.gather(self._burying, return_exceptions=True)

    def expel(self, permissions: Permissions) -> None:
        for share in tuple(self._shares):
            if not permissions.allows(share.sink.user, "consume", self.name):
                self._end(share, PermissionDenied(f"permission to consume {self.name!r} was taken away"))

    def _end(self, share: Share, error: BrokerError | None) -> None:
        share.end()
        try:
            share.sink.ended(error)
        except Exception:
            log.exception("topic %r: a door has failed", self.name)

    # ------------------------------------------------------------------ what comes back

    def settled(self, first: int, last: int) -> None:
        """Messages are acknowledged."""
        self.touch()
        if self.admission is not None:
            self.admission.go_on()
        append_range(self._done, first, last)
        self._changed()

    def settled_late(self, first: int, last: int) -> None:
        """Messages are acknowledged after their deadline: they count if nobody else has begun with them."""
        for piece in (*self._redo.take(first, last), *self._delayed.take(first, last)):
            self.settled(piece.first, piece.last)

    def settled_again(self, first: int, last: int) -> None:
        """Messages were acknowledged in a session that is over: they count if nobody else has begun with them.

        Raises:
            Busy: Too many ranges of what was never delivered, as far as is known, are acknowledged already.
        """
        self.settled_late(first, last)
        first, last = max(first, self.handed + 1), min(last, self.readable)
        if first > last:
            return
        # They were delivered, and a broker that was killed has not kept that.
        if len(self._ahead) >= _AHEAD:
            raise Busy(f"{len(self._ahead)} ranges of topic {self.name!r} are acknowledged ahead of what was delivered")
        self._ahead.add(first, last)
        self.settled(first, last)

    def waiting_of(self, ids: RangeSet) -> RangeSet:
        """Returns those of some messages that were delivered, came back, and wait to be delivered again."""
        found = RangeSet()
        for first, last in ids:
            for waiting in (self._redo, self._delayed):
                for piece in waiting.within(first, last):
                    found.add(piece.first, piece.last)
        return found

    def returned(self, piece: Range[DeliveryState]) -> None:
        """Messages come back from a consumer that is gone: others get them at once."""
        if self.deleted:
            return
        self._keep_attempts(piece)
        if not self._is_spent(piece):
            self._deliver_again(piece)

    def _keep_attempts(self, piece: Range[DeliveryState]) -> None:
        """Has the store know how often messages were attempted."""
        self.touch()
        self._again.update(dict.fromkeys(range(piece.first, piece.last + 1), piece.value.tries))
        self._changed()

    def failed(self, piece: Range[DeliveryState], delay: float | None = None) -> None:
        """Messages were delivered in vain: others pass them while they wait.

        Args:
            piece: The messages.
            delay: Seconds; `None`: as `retry_delay` says.
        """
        if self.deleted:
            return
        self._keep_attempts(piece)
        if self._is_spent(piece):
            return
        if delay is None:
            delay = retry_delay_of(self.settings, piece.value.tries)
        if delay <= 0:
            self._deliver_again(piece)
            return
        due = asyncio.get_running_loop().time() + delay
        self._delayed.put(piece.first, piece.last, DeliveryState(piece.value.tries, due))
        heappush(self._due, (due, piece.first, piece.last))
        self._look_at(due)

    def _is_spent(self, piece: Range[DeliveryState]) -> bool:
        """Returns whether messages were delivered as often as they may be: then they go to the dead letters."""
        if self._max_tries is None or piece.value.tries < self._max_tries:
            return False
        self._buried.append(piece)
        self._bury()
        return True

    def _deliver_again(self, piece: Range[DeliveryState]) -> None:
        self._redo.put(piece.first, piece.last, DeliveryState(piece.value.tries))
        if self._hungry:
            self._turns.ready(self)

    def _look_at(self, due: float) -> None:
        """Has the loop look at what waits when this time has come."""
        if not self._looks_at or due < self._looks_at:
            self._looks_at = due
            self._turns.later(max(due - asyncio.get_running_loop().time(), 0), self._retry_due)

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
                    self._deliver_again(piece)
        if self._due:
            self._look_at(self._due[0][0])

    def unseen(self, piece: Range[DeliveryState]) -> None:
        """Messages were delivered, and come back without having been looked at."""
        self.touch()
        if self.deleted:
            return
        self._redo.put(piece.first, piece.last, DeliveryState(piece.value.tries - 1))
        if self._hungry:
            self._turns.ready(self)

    # ------------------------------------------------------------------ handing out

    @property
    def _ready(self) -> int:
        """Messages that can be delivered now."""
        return self._redo.count + max(self.readable - self.handed - self._ahead.count, 0)

    @property
    def backlog(self) -> int:  # type: ignore[override]
        """Messages that wait to be delivered."""
        return self._ready + self._delayed.count

    @property
    def unfinished(self) -> int:
        """Messages that are not acknowledged, and not on their way to the dead letters; in any thread."""
        in_flight = sum(share.flight.count for share in tuple(self._shares))
        new = max(self.last - self.handed - self._ahead.count, 0)
        return self._redo.count + self._delayed.count + in_flight + new

    def used(self) -> tuple[int, int]:
        """Returns how many messages are not finished, and about how many bytes they have; in any thread."""
        unfinished, state = self.unfinished, self.state()
        kept = state.messages(0, self.last)
        return unfinished, state.bytes * min(unfinished, kept) // kept if kept else 0

    def grown(self, last: int) -> None:
        super().grown(last)
        if self._drops_oldest:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Moves the oldest work that no consumer has to the dead letters, as far as the topic has too much."""
        messages, size = self.used()
        most = self.settings.get("max_messages")
        excess = max(messages - most, 0) if most is not None else 0
        limit = self.settings.get("max_bytes")
        if limit is not None and size > limit and messages > 1:
            excess = max(excess, messages - max(messages * limit // size, 1))
        before = self.dropped
        while excess > 0 and (piece := self._take_oldest(excess)) is not None:
            excess -= piece.count
            self.dropped += piece.count
            self._buried.append(piece)
        if self.dropped > before:
            self._changed()
            self._bury()
            self._log_dropped(f"it is full: {self.dropped - before} unfinished messages go to the dead letters")

    def _take_oldest(self, most: int) -> Range[DeliveryState] | None:
        """Takes the oldest messages out of what waits, at most `most`; `None` where nothing waits."""
        waiting = [ranges for ranges in (self._redo, self._delayed) if ranges]
        if waiting:
            oldest = min(waiting, key=lambda ranges: ranges.head.first)
            head = oldest.head
            return oldest.take(head.first, min(head.last, head.first + most - 1))[0]
        self._pass_ahead()
        first, last = self.handed + 1, min(self.handed + most, self.readable)
        if self._ahead:
            last = min(last, self._ahead.first - 1)
        if first > last:
            return None
        self.handed = last
        return Range(first, last, DeliveryState(0))

    def refresh(self) -> None:
        """Forgets what `max_age` has dropped."""
        if "max_age" not in self.settings:
            return
        first = self.state().first
        expired = 0
        for waiting in (self._redo, self._delayed):
            if waiting and waiting.head.first < first:
                expired += sum(piece.count for piece in waiting.take(1, first - 1))
        if self.handed + 1 < first:
            acked = sum(end - begin + 1 for begin, end in self._ahead.discard(1, first - 1))
            expired += first - 1 - self.handed - acked
            self.handed = first - 1
            self._changed()
        self._count_expired(expired)

    def _count_expired(self, expired: int) -> None:
        if expired:
            self.touch()
            self.expired += expired
            self._log_dropped(f"{expired} unfinished messages are older than max_age={self.settings.get('max_age')}")

    def _log_dropped(self, what: str) -> None:
        if self._lines.passes():
            log.warning("topic %r: %s", self.name, what)

    def pump(self) -> bool:
        self.refresh()
        if not self._hungry or not self._ready:
            return False
        self.touch()
        left = TURN
        portion = min(-(-self._ready // len(self._hungry)), PORTION)
        try:
            with self._journal.store.read(self.id) as reader:
                while left > 0 and self._ready:
                    share = self._next_share()
                    if share is None:
                        return False
                    left -= self._serve(share, reader, min(portion, share.credit), left)
        except StoreError as error:
            log.error("topic %r cannot be read: %s", self.name, error)
            self.end(broker_error(error))
            return False
        return bool(self._hungry and self._ready)

    def _next_share(self) -> Share | None:
        """The share whose turn it is; it goes behind the others."""
        now = asyncio.get_running_loop().time()
        for share in tuple(self._hungry):
            if share.passed_over_until > now and any(one.passed_over_until <= now for one in self._shares):
                continue  # it hangs, and would only hold the messages back from those that do not
            del self._hungry[share]
            if share.credit > 0 and share.sink.room() > 0:
                self._hungry[share] = None
                return share
        return None

    def _serve(self, share: Share, reader: Reader, portion: int, limit: int) -> int:
        """Gives a share so many messages, if that is not more than about `limit` bytes; how many bytes it was."""
        if self._redo:
            head = self._redo.head
            first, tries = head.first, head.value.tries
            stop = min(head.last, first + portion - 1) + 1
        else:
            self._pass_ahead()
            first, tries = self.handed + 1, 0
            stop = min(self.readable, first + portion - 1) + 1
            if self._ahead:
                stop = min(stop, self._ahead.first)
        served, reached = 0, stop
        try:
            for header, records in reader.blocks(first, stop):
                count = int.from_bytes(header[4:8], "big")
                start = int.from_bytes(header[8:16], "big")
                self._gone(first, start - 1)
                first = start + count
                if not self._give(share, header, records, start, count, tries + 1):
                    return max(served, BLOCK)
                served += max(len(records), BLOCK)
                if served >= limit:
                    reached = first
                    break
        except Gone as error:
            reached = min(error.first, stop)
        except DamagedError as error:
            if not error.last:
                raise
            log.error("topic %r: %s", self.name, error)
            reached = min(error.last + 1, stop)
        # What is not there is gone: dropped by the topic's limits, never given, or damaged and quarantined.
        self._gone(first, reached - 1)
        return max(served, BLOCK)

    def _pass_ahead(self) -> None:
        """Goes on behind what is acknowledged already."""
        if self._ahead:
            self.handed = self._ahead.first_gap(self.handed + 1) - 1
            self._ahead.discard(1, self.handed)

    def _give(self, share: Share, header: bytes, records: memoryview, start: int, count: int, tries: int) -> bool:
        """Gives a block; whether the share goes on."""
        last = start + count - 1
        self._moved_on(start, last)
        share.hold(start, last, tries)
        if tries > 1:
            self.redelivered += count
        self.delivered += count
        self.delivered_bytes += len(records)
        self._changed()
        try:
            share.sink.block(header, records, u32(tries) * count if tries > 1 else b"")
        except Exception:
            log.exception("topic %r: a door has failed", self.name)
            self._end(share, BrokerFailed("the broker has failed to send"))
            return False
        return share.active

    def _moved_on(self, first: int, last: int) -> None:
        """Ids do not wait to be delivered any more."""
        if last > self.handed:
            self.handed = last
        if self._redo:
            self._redo.take(first, last)

    def _gone(self, first: int, last: int) -> None:
        """Nothing is kept under these ids, which were to be delivered."""
        if last < first:
            return
        self._moved_on(first, last)
        self.settled(first, last)

    # ------------------------------------------------------------------ what is kept

    def save(self) -> None:
        if not self._done and not self._again and self.handed == self._told:
            return
        done, self._done = self._done, []
        again, self._again = self._again, {}
        self._told = self.handed
        self._keep(Settle(self.id, done, self.handed, again))

    def _take_back(self, write: Write) -> None:
        assert isinstance(write, Settle)
        self._done = write.ranges + self._done
        self._again = {**write.deliveries, **self._again}
        self._told = 0

    # ------------------------------------------------------------------ dead letters

    def _bury(self) -> None:
        if self._burying is None and self._buried and not self.deleted:
            self._burying = asyncio.get_running_loop().create_task(self._bury_all())

    async def _bury_all(self) -> None:
        """Moves what was delivered too often to the dead-letter topic."""
        try:
            while self._buried and not self.deleted:
                target = await self._dead_letters.dead_letter(self)
                if not await self._move(target):
                    self._turns.later(1.0, self._bury)
                    break
        except BrokerError as error:
            log.error("topic %r: dead letters cannot be moved now: %s", self.name, error)
            self._turns.later(1.0, self._bury)
        finally:
            self._burying = None

    async def _move(self, target: int) -> bool:
        """Moves some, and waits for them, so that others have their turns; whether all of them went."""
        tries: dict[int, int] = {}
        while self._buried and len(tries) < BURIED:
            piece = self._buried.pop(0)
            stop = min(piece.last + 1, piece.first + BURIED - len(tries))
            tries.update(dict.fromkeys(range(piece.first, stop), piece.value.tries))
            if stop <= piece.last:
                self._buried.insert(0, Range(stop, piece.last, piece.value))
        answered = asyncio.get_running_loop().create_future()
        left, all_went = len(tries), True

        def moved(write: MoveToDeadLetter) -> None:
            nonlocal left, all_went
            error = write.error
            if error is None:
                self.touch()
                self.dead_lettered += 1
                if self.admission is not None:
                    self.admission.go_on()
                if write.size:
                    self._dead_letters.took(target, 1, write.size)
            elif isinstance(error, Gone | DamagedError):
                log.error("topic %r: message %d is no dead letter: %s", self.name, write.id, error)
                self.settled(write.id, write.id)
            elif not self.deleted:
                # The disk may be full, or the dead-letter topic was deleted at this moment.
                self._buried.append(Range(write.id, write.id, DeliveryState(tries[write.id])))
                all_went = False
            left -= 1
            if not left and not answered.done():
                answered.set_result(None)

        for id in tries:
            self._journal.submit(MoveToDeadLetter(self.id, id, target), moved)
        await answered
        return all_went

    # ------------------------------------------------------------------ what it tells

    def subscriptions(self) -> list[SubscriptionStats]:
        return [
            {
                "kind": "consumer",
                "door": one.sink.door,
                "name": None,
                "user": one.sink.user,
                "peer": one.sink.peer,
                "position": one.last,
                "lag": self.backlog,
                "in_flight": one.flight.count,
            }
            for one in self._shares
        ]


def _cut(first: int, last: int, deliveries: dict[int, int]) -> Iterable[Range[DeliveryState]]:
    """A range that was delivered before the broker began, cut where ids were attempted.

    The others count as not attempted: whether a consumer had begun with them is not known if the broker was killed.
    """
    again = sorted(id for id in deliveries if first <= id <= last) if deliveries else []
    for id in again:
        if first < id:
            yield Range(first, id - 1, DeliveryState(0))
        yield Range(id, id, DeliveryState(deliveries[id]))
        first = id + 1
    if first <= last:
        yield Range(first, last, DeliveryState(0))
