"""One queue: a round-robin topic of the store, which messages of it wait, and which are settled."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from omq._core import blocks
from omq.pzq.cluster.keys import Keys
from omq.pzq.cluster.run import Run, run_of
from omq.pzq.wire import key_format, keys_of, pack, unpack
from omq.ranges import RangeSet, append_range, ranges_of
from omq.store.async_store import AsyncStore
from omq.store.errors import DamagedError, Gone, StoreError, StoreFull
from omq.store.interface import Append, MoveToDeadLetter, Settle, TopicState, Write

if TYPE_CHECKING:
    from omq.pzq.device.outlet import Consumer

log = logging.getLogger("omq.pzq")

#: Bytes of records that are read from the store at a time, about.
READ: Final = 1 << 20
#: Seconds after which something is tried again for which there was no room.
AGAIN: Final = 1.0


class Flight:
    """A message that was read from the store and is not settled.

    Attributes:
        queue: Where it is from.
        id: Its number there.
        key: What consumers call it.
        parts: Its body.
        size: Bytes of that.
        tries: How often it was delivered.
        holder: Who has it, or had it when its time was up; `None`: nobody.
        number: Which of its holder's deliveries it is.
        deadline: When its time is up, by the monotonic clock.
        settled: It was acknowledged.
    """

    __slots__ = ("deadline", "holder", "id", "key", "number", "parts", "queue", "settled", "size", "tries")

    def __init__(self, queue: Queue, id: int, key: bytes, parts: list[bytes], size: int, tries: int) -> None:
        self.queue = queue
        self.id = id
        self.key = key
        self.parts = parts
        self.size = size
        self.tries = tries
        self.holder: Consumer | None = None
        self.number = 0
        self.deadline = 0.0
        self.settled = False


class Queue:
    """Gives messages in the order in which they came, those first that came back.

    Args:
        journal: Where the store is.
        state: The topic.
        later: Makes a call after some seconds, unless the device has ended by then.
        max_deliveries: After how many deliveries in vain a message becomes a dead letter; `None`: never.
        graveyard: The topic of dead letters; needed with `max_deliveries`.

    Attributes:
        keys: What keys of its messages are made with (see `key_of`).
        named: Its messages have their keys with them.
        dead_lettered: Messages that have become dead letters.
        damaged: Messages that could not be read, and were passed over.
        lost: Messages that are not in the store though nobody was done with them: in a cluster others may have them.
    """

    named = False

    def __init__(
        self,
        journal: AsyncStore,
        state: TopicState,
        later: Callable[[float, Callable[[], None]], None],
        max_deliveries: int | None = None,
        graveyard: int = 0,
    ) -> None:
        self.id = state.id
        self.name = state.name
        self.dead_lettered = 0
        self.damaged = 0
        self.lost = RangeSet(state.jumped)
        self._journal = journal
        self._later = later
        self._max_deliveries = max_deliveries
        self._graveyard = graveyard
        self.keys = key_format(journal.store.id, state.id)
        settled = journal.store.settled(state.id)
        self._handed = max(settled.handed, settled.watermark, state.first - 1)
        self._handed_before = self._handed  # in an earlier life: these were delivered once at least
        self._told = self._handed  # what the store knows of it
        self._deliveries = settled.deliveries
        #: Ranges that are not read yet: first and last id of each, ascending.
        self._unread: deque[tuple[int, int]] = deque(settled.missing(state.first, state.last))
        self._readable = state.last
        self._ready: deque[Flight] = deque()
        self._back: list[tuple[int, Flight]] = []  # what came back, the oldest first
        self._done: list[tuple[int, int]] = []  # settled, and not submitted
        self._acked: list[int] = []  # likewise, one by one
        #: A message of this id is done.
        self.done = self._acked.append
        self._again: dict[int, int] = {}  # deliveries of what was delivered again, not submitted
        self._saving = False  # a write is under way, or waits for room
        self._blocked = False  # the topic cannot be read now
        #: In a cluster: whether its messages may be delivered now; and who is told of what is done.
        self.may: Callable[[], bool] | None = None
        self.left: Callable[[int], None] | None = None
        self._tell_lost: Callable[[int, int], None] | None = None
        self._discarded: set[int] = set()
        self._kept: list[Callable[[], None]] = []  # to be called once what is done by now is kept
        self._keeping: list[Callable[[], None]] = []  # likewise, with the write that is under way

    def tell(self, left: Callable[[int], None], lost: Callable[[int, int], None]) -> None:
        """Has a cluster told of each message that is done with, and of ranges that are lost."""

        def done(id: int) -> None:
            self._acked.append(id)
            self._discarded.discard(id)
            left(id)

        self.done = done
        self.left = left
        self._tell_lost = lost

    # ------------------------------------------------------------------ what waits

    def grown(self, last: int) -> None:
        """Messages up to *last* can be read."""
        if last > self._readable:
            append_range(self._unread, self._readable + 1, last)
            self._readable = last

    def head(self) -> Flight | None:
        """The next message to be delivered; it stays where it is."""
        if self.may is not None and not self.may():
            return None
        back, ready = self._back, self._ready
        while back:
            if not (back[0][1].settled or self._is_discarded(back[0][1])):
                return back[0][1]
            heappop(back)
        while True:
            while not ready:
                if not self._unread or self._blocked:
                    return None
                self._read()
            if not self._is_discarded(ready[0]):
                return ready[0]
            ready.popleft()

    def _is_discarded(self, flight: Flight) -> bool:
        if not self._discarded or flight.id not in self._discarded:
            return False
        self._discarded.remove(flight.id)
        flight.settled = True
        return True

    def take(self) -> Flight:
        """Takes out what `head` has given: it is delivered now."""
        flight = heappop(self._back)[1] if self._back else self._ready.popleft()
        flight.tries += 1
        if flight.id > self._handed:
            self._handed = flight.id
        if flight.tries > 1:
            self._again[flight.id] = flight.tries
        return flight

    def take_some(self, most: int, room: int, alone: bool) -> list[Flight]:
        """Takes out what comes next, as `take` does: *most* messages, whose bodies fit; *alone*: the first need not."""
        taken: list[Flight] = []
        while len(taken) < most:
            flight = self.head()
            if flight is None or (flight.size > room and (taken or not alone)):
                break
            room -= flight.size
            taken.append(self.take())
            if not (self._back or self._discarded or self._handed_before >= flight.id):
                # Nearly always: what follows was read, is new, and comes in the order of its numbers.
                room -= self._take_new(taken, most - len(taken), room)
        return taken

    def _take_new(self, taken: list[Flight], most: int, room: int) -> int:
        """Takes out what was read and never delivered; the bytes of that."""
        ready, size = self._ready, 0
        for _ in range(min(most, len(ready))):
            size += ready[0].size
            if size > room:
                size -= ready[0].size
                break
            flight = ready.popleft()
            flight.tries = 1
            taken.append(flight)
        self._handed = max(self._handed, taken[-1].id)
        return size

    def _read(self) -> None:
        """Reads some of what is next."""
        first, last = self._unread.popleft()
        stop, size = last + 1, 0
        try:
            with self._journal.store.read(self.id) as reader:
                for header, records in reader.blocks(first, stop):
                    start, count, _, _ = blocks.read_header(header)
                    self._gone(first, start - 1)
                    self._add(header, records)
                    first = start + count
                    size += len(records)
                    if size >= READ:
                        break
                else:
                    self._gone(first, stop - 1)
                    first = stop
        except Gone as error:
            self._gone(first, min(error.first, stop) - 1)
            first = min(error.first, stop)
        except DamagedError as error:
            log.error("messages are lost: %s", error)
            if error.last:
                beyond = min(error.last + 1, stop)
                self.damaged += beyond - max(error.first, first)
                self._lose(max(error.first, first), beyond - 1)
                self._gone(first, beyond - 1)
                first = beyond
            else:
                self._block()
        except StoreError as error:
            log.error("messages cannot be read now: %s", error)
            self._block()
        if first < stop:
            self._unread.appendleft((first, stop - 1))

    def _block(self) -> None:
        self._blocked = True

        def unblock() -> None:
            self._blocked = False

        self._later(AGAIN, unblock)

    def _add(self, header: bytes, records: memoryview) -> None:
        before, deliveries, ready = self._handed_before, self._deliveries, self._ready
        for id, key, parts, size in self._messages(header, records):
            tries = deliveries.pop(id, 1) if id <= before else 0
            flight = Flight(self, id, key, parts, size, tries)
            if tries and self._is_dead(flight):
                self._bury(flight)
            else:
                ready.append(flight)

    def _messages(self, header: bytes, records: memoryview) -> Iterator[tuple[int, bytes, list[bytes], int]]:
        """Number, key, parts and bytes of each message of a block."""
        first, count, when, _ = blocks.read_header(header)
        messages: list[blocks.Message] = blocks.decode(header, records, "")
        for message, key in zip(messages, keys_of(self.keys, when, first, count), strict=True):
            body, ends = message.body, message.key
            yield message.id, key, [body] if ends is None else unpack(body, ends), len(body)

    # ------------------------------------------------------------------ what comes back

    def settle(self, flight: Flight) -> None:
        """A message is done."""
        flight.settled = True
        flight.parts = []
        self.done(flight.id)

    def discard(self, id: int) -> None:
        """A message is done with elsewhere: it is not delivered any more. `save` keeps it."""
        self._acked.append(id)
        unread, discarded = self._unread, self._discarded
        discarded.add(id)
        while unread and unread[0][0] in discarded:  # what another node delivers is never read here
            first, last = unread.popleft()
            discarded.remove(first)
            if first < last:
                unread.appendleft((first + 1, last))

    def returned(self, flight: Flight) -> bool:
        """A message was delivered in vain; whether it is to be delivered again."""
        if self._is_discarded(flight):
            return False
        if self._is_dead(flight):
            flight.settled = True
            self._bury(flight)
            return False
        heappush(self._back, (flight.id, flight))
        return True

    def _gone(self, first: int, last: int) -> None:
        """These are settled."""
        if first <= last:
            append_range(self._done, first, last)

    def _lose(self, first: int, last: int) -> None:
        """These cannot be read: in a cluster others may have them."""
        self.lost.add(first, last)
        if self._tell_lost is not None:
            self._tell_lost(first, last)

    def _pass_over(self, first: int, last: int, *, settle: bool) -> None:
        """Of these what was not read yet is lost; what was is here, and may be done with any moment.

        Args:
            first: The first.
            last: The last.
            settle: Whether that is sure; else reading is tried again.
        """
        unread, self._unread = self._unread, deque()
        for begin, end in unread:
            low, high = max(begin, first), min(end, last)
            if low > high or not settle:
                self._unread.append((begin, end))
            else:
                self._unread += [each for each in ((begin, low - 1), (high + 1, end)) if each[0] <= each[1]]
                self.damaged += high - low + 1
                self._gone(low, high)
            if low <= high:
                self._lose(low, high)

    def _is_dead(self, flight: Flight) -> bool:
        return self._max_deliveries is not None and flight.tries >= self._max_deliveries

    def _bury(self, flight: Flight) -> None:
        """Moves a message to the dead letters."""

        def moved(write: MoveToDeadLetter) -> None:
            if write.error is None:
                self.dead_lettered += 1
                if self.left is not None:
                    self.left(write.id)
            elif isinstance(write.error, Gone | DamagedError):
                log.error("message %d is no dead letter: %s", write.id, write.error)
                self.damaged += 1
                self._lose(write.id, write.id)
                self._gone(write.id, write.id)
                self.save()
            elif isinstance(write.error, StoreFull):
                self._later(AGAIN, lambda: self._bury(flight))

        flight.parts = []
        self._journal.submit(MoveToDeadLetter(self.id, flight.id, self._graveyard), moved)

    # ------------------------------------------------------------------ what is kept

    def save(self) -> None:
        """Has the store keep what was settled; one write at a time is under way, so that the next one takes it all."""
        if self._saving or not (self._acked or self._done or self._again or self._handed != self._told):
            return
        self._keeping, self._kept = self._kept, []
        for first, last in ranges_of(self._acked):
            self._gone(first, last)
        self._acked.clear()
        done, self._done = self._done, []
        again, self._again = self._again, {}
        self._told = self._handed
        self._saving = True
        self._journal.submit(Settle(self.id, done, self._handed, again), self._saved)

    def _saved(self, write: Write) -> None:
        assert isinstance(write, Settle)
        if write.error is None:
            self._saving = False
            keeping, self._keeping = self._keeping, []
            self.save()
            for call in keeping:
                call()
            return
        self._kept = self._keeping + self._kept
        self._done = write.ranges + self._done
        self._again = {**write.deliveries, **self._again}
        self._told = 0
        if isinstance(write.error, StoreFull):
            self._later(AGAIN, self._save_again)
        else:
            log.error("%s: what consumers have acknowledged is not kept: %s", self.name, write.error)

    def kept(self, call: Callable[[], None]) -> None:
        """Makes a call once what is done by now is kept."""
        self._kept.append(call)
        self.save()
        if not self._saving:
            self._kept.remove(call)
            call()

    def _save_again(self) -> None:
        self._saving = False
        self.save()

    def count(self) -> int:
        """Messages that the store holds and that are not settled, as it is committed."""
        store = self._journal.store
        state, settled = store.topic(self.id), store.settled(self.id)
        low = max(settled.watermark, state.first - 1)
        # What was passed over after a crash is settled, too.
        return state.last - low - sum(last - first + 1 for first, last in settled.above(low))

    # ------------------------------------------------------------------ what a cluster asks

    def live(self) -> Iterator[tuple[int, Keys]]:
        """What is stored and not settled: the number of a message, its key, and those of the ones behind it."""
        for header, records in self._read_live():
            first, count, when, _ = blocks.read_header(header)
            yield first, self._keys(first, count, when, header, records)

    def _keys(self, first: int, count: int, when: int, header: bytes, records: memoryview) -> Keys:
        return run_of(self.keys, when, first, count)

    def runs(self, ids: Iterable[int]) -> Iterator[Run]:
        """Messages by their numbers, those that follow each other together; what cannot be read is left out."""
        for first, last in ranges_of(ids):
            for header, records in self._read_blocks(first, last):
                begin, count, when, _ = blocks.read_header(header)
                yield Run(self._keys(begin, count, when, header, records), bytes(records), self.named)

    def messages(self) -> Iterator[tuple[int, bytes, list[bytes]]]:
        """Number, key and parts of each message that is stored and not settled."""
        for header, records in self._read_live():
            for id, key, parts, _ in self._messages(header, records):
                yield id, key, parts

    def _read_live(self) -> Iterator[tuple[bytes, memoryview]]:
        settled = self._journal.store.settled(self.id)
        state = self._journal.store.topic(self.id)
        for first, last in list(settled.missing(state.first, state.last)):
            yield from self._read_blocks(first, last)

    def _read_blocks(self, first: int, last: int) -> Iterator[tuple[bytes, memoryview]]:
        """Blocks and parts of such, while they are looked at; what is damaged is left out."""
        while first <= last:
            try:
                with self._journal.store.read(self.id) as reader:
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

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be delivered."""
        return not (self._back or self._ready or self._unread)


class Replicas(Queue):
    """Messages of another node, or of this one from before it lost its disk: each has its key with it.

    Attributes:
        owner: Whose they are.
    """

    owner: str = ""
    named = True

    def bury_like(self, queue: Queue) -> None:
        """Has messages become dead letters as those of another queue do."""
        self._max_deliveries, self._graveyard = queue._max_deliveries, queue._graveyard

    def _bury(self, flight: Flight) -> None:
        # A dead letter has no key with it, so it is another record than the replica, and stored before that one goes.
        def stored(write: Append) -> None:
            if write.error is None:
                self.dead_lettered += 1
                self.settle(flight)
                self.save()
            elif isinstance(write.error, StoreFull):
                self._later(AGAIN, lambda: self._bury(flight))

        record = pack(flight.parts) if len(flight.parts) > 1 else blocks.encode(flight.parts)
        self._journal.submit(Append(self._graveyard, record, 1), stored)

    def _messages(self, header: bytes, records: memoryview) -> Iterator[tuple[int, bytes, list[bytes], int]]:
        for id, _, parts, size in super()._messages(header, records):
            key, *rest = parts
            yield id, key, rest, size - len(key)

    def _keys(self, first: int, count: int, when: int, header: bytes, records: memoryview) -> Keys:
        return Keys.of([key.decode(errors="replace") for _, key, _, _ in self._messages(header, records)])
