"""The send socket: which consumer gets which message, what it holds, and what it says of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, Final

import omq.asyncio as omq
from omq.errors import ClosedError, OmqError
from omq.event import Event, EventKind
from omq.message import PeerInfo
from omq.pzq.device.queue import Flight, Queue
from omq.pzq.device.watch import log_connection
from omq.pzq.errors import Malformed
from omq.pzq.wire import DELIVERIES, PREFETCH, STORED, read_ack, shown
from omq.serving.connection_events import MAX_LAST_BATCHES, ConnectionEvents
from omq.types import Security

log = logging.getLogger("omq.pzq")

#: Messages that consumers may have together, whatever their size.
MOST: Final = 1 << 17
#: Messages that are delivered, and acknowledgements that are taken, before others have their turn.
PORTION: Final = 512
#: Bytes of an acknowledgement beyond which a connection ends.
MAX_ACK: Final = 1 << 20
#: Seconds after which the loop gets a turn between two batches.
TURN: Final = 0.002
HEARTBEAT: Final = 10.0
SILENCE: Final = 30.0
#: A consumer that lets a message's time run out is tried again after that time, then after twice as long, so often.
RESTS: Final = 10
#: Seconds between two lines about acknowledgements that are refused.
QUIET: Final = 1.0


class Consumer:
    """A connection of a consumer.

    Attributes:
        identity: What the socket calls it.
        address: Where it is.
        counts: It is told which delivery each message is.
        prefetch: Messages that it may hold, as it says; 0: it does not.
        room: Messages that it may hold now.
        held: How many it holds.
        trials: How often in a row its time was up; from its answer on 0.
        retried: When it is tried again.
        number: How many it was sent.
        heard: The highest number of those that it has answered.
        answered: When it answered last, by the monotonic clock.
        sent: Bytes of keys and bodies that it was sent.
        choked: Some of that has not left: it does not read.
        line: Where it waits for its turn.
    """

    __slots__ = (
        "address",
        "answered",
        "choked",
        "counts",
        "heard",
        "held",
        "identity",
        "line",
        "number",
        "prefetch",
        "retried",
        "room",
        "sent",
        "trials",
    )

    def __init__(self, peer: PeerInfo, address: str, line: deque[Consumer]) -> None:
        self.line = line
        self.identity = peer.identity
        self.address = address
        self.counts = peer.properties.get(DELIVERIES.lower()) == b"1"
        wanted = peer.properties.get(PREFETCH.lower(), b"")
        self.prefetch = int(wanted) if wanted.isdigit() and len(wanted) < 10 else 0
        self.room = self.prefetch or MOST
        self.held = self.number = self.heard = self.sent = self.trials = 0
        self.answered = self.retried = 0.0
        self.choked = False

    def move(self, line: deque[Consumer], room: int = 0) -> None:
        """It waits there from now on, behind the others, and may hold so many; 0: as many as it takes."""
        self.room = room or self.prefetch or MOST
        if self.line is not line:
            self.choked = False
            self.line.remove(self)
            line.append(self)
            self.line = line


class Outlet:
    """Delivers queues to consumers, in turn. Lives in one event loop.

    Args:
        name: What its socket is for.
        queues: What it delivers, the oldest message first.
        ack_timeout: Microseconds within which a message is acknowledged, or delivered again.
        reaper_frequency: Microseconds between two looks for those that were not.
        inflight_size: Bytes of bodies that consumers may have; a larger one is delivered alone.

    Attributes:
        bytes: Bytes of bodies that consumers have.
        held: The messages that they have, by key, in the order of their deadlines, but for those that got a longer one.
        consumers: Who is connected, by what the socket calls them.
        counts: What has happened: `delivered`, `redelivered`, `acknowledged`, `returned`, `expired`, `refused`.
    """

    def __init__(
        self, name: str, queues: list[Queue], ack_timeout: int, reaper_frequency: int, inflight_size: int
    ) -> None:
        self.bytes = 0
        self.held: dict[bytes, Flight] = {}
        self.consumers: dict[bytes, Consumer] = {}
        self.counts: Counter[str] = Counter()
        self._name = name
        self._queues = queues
        self._timeout = ack_timeout / 1e6
        self._timeout_frame = b"%d" % ack_timeout
        self._reaper_frequency = reaper_frequency / 1e6
        self._limit = inflight_size
        self._turn: deque[Consumer] = deque()
        self._late: deque[Consumer] = deque()  # who lets messages expire gets some if there is nobody else
        self._longer: list[tuple[float, bytes]] = []  # a heap of the keys of those, and of some that have ended
        self._expired: dict[bytes, Flight] = {}  # whose time is up, and that nobody else has got yet
        self._woken = False
        self._ending = False  # nothing more is delivered
        self._paused = False
        self._next_line = 0.0

    # ------------------------------------------------------------------ life

    def start(self, endpoint: str, security: Security | None) -> str:
        """Listens; the endpoint, resolved.

        Raises:
            EndpointError: The endpoint cannot be understood.
            BindError: It cannot be listened on.
        """
        # On the wire it is what the original's DEALER is, but each message goes where it is sent.
        self._socket = omq.ROUTER(
            router_rename=True,
            send_hwm=0,  # what waits for a consumer is in flight, which is bounded
            recv_hwm=4 * PORTION,
            max_message_size=MAX_ACK,
            max_parts=16,
            heartbeat_interval=HEARTBEAT,
            heartbeat_timeout=SILENCE,
            security=security,
            linger=1.0,
        )
        self._events = ConnectionEvents(self._socket, self._happened, log, self._idle)
        try:
            bound = self._socket.bind(endpoint)
        except BaseException:
            self._events.close()
            self._socket.stop()
            raise
        self._loop = asyncio.get_running_loop()
        self._serving = self._loop.create_task(self._serve(), name=f"omq pzq: {self._name}")
        self._events.start(f"omq pzq: connections of {self._name}")
        self._reaper = self._loop.call_later(self._reaper_frequency, self._reap)
        return bound

    async def pause(self) -> None:
        """Takes and delivers nothing more; what was acknowledged is with the store."""
        if not hasattr(self, "_serving") or self._paused:
            return
        self._ending = self._paused = True
        self._reaper.cancel()
        for endpoint in self._socket.endpoints:
            with suppress(OmqError):
                self._socket.unbind(endpoint)
        for _ in range(MAX_LAST_BATCHES):  # what was acknowledged by now counts
            if not self._events.messages_wait():
                break
            await asyncio.sleep(0)
        await self._events.stop()
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._save()

    async def close(self) -> None:
        """Ends. Idempotent."""
        if not hasattr(self, "_serving"):
            return
        await self.pause()
        await self._socket.close()
        self._events.close()

    # ------------------------------------------------------------------ who is there

    def _happened(self, event: Event) -> None:
        log_connection(self._name, event)
        peer = event.peer
        if event.kind is EventKind.HANDSHAKE_SUCCEEDED and peer is not None:
            self._come(peer, event.remote_address)
        elif event.kind is EventKind.DISCONNECTED and peer is not None:
            if peer.identity in self.consumers:
                self._events.leave(peer.identity)  # what it said before is heard first
        elif event.kind is EventKind.MISSED:
            for one in self._events.recount(self.consumers):
                self._come(one, one.endpoint)

    def _idle(self) -> None:
        """Parts and delivers after events while no messages came."""
        self._part()
        self.wake()

    def _come(self, peer: PeerInfo, address: str) -> None:
        consumer = self.consumers[peer.identity] = Consumer(peer, address, self._turn)
        self._turn.append(consumer)

    def _part(self) -> None:
        """Takes back what consumers had whose connections are over, once their last acknowledgements are heard."""
        gone = {self.consumers.pop(identity) for identity in self._events.take_gone()}
        for consumer in gone:
            consumer.line.remove(consumer)
        if any(consumer.held for consumer in gone):
            for flight in [flight for flight in self.held.values() if flight.holder in gone]:
                self._take_back(flight)
                self.counts["returned"] += 1
                flight.queue.returned(flight)

    # ------------------------------------------------------------------ in

    async def _serve(self) -> None:
        socket = self._socket
        turned = time.monotonic()
        while True:
            if time.monotonic() - turned > TURN:
                await asyncio.sleep(0)
                turned = time.monotonic()
            try:
                batch: list[Any] = await socket.recv_many(PORTION)
            except ClosedError:
                return
            self._events.handle()
            held, turn, done = self.held, self._turn, 0
            now = time.monotonic()
            for message in batch:
                flight = held.get(message[1]) if len(message) == 3 and message[2] == STORED else None
                if flight is None or (consumer := flight.holder) is None or consumer.identity != message[0]:
                    self._heard(message)
                    continue
                # Nearly all of them are so: `_heard` says the same at length.
                del held[flight.key]
                self.bytes -= flight.size
                consumer.held -= 1
                if flight.number > consumer.heard:
                    consumer.heard = flight.number
                if consumer.answered != now:  # its first answer of this batch; trials grow between batches
                    consumer.answered = now
                    if consumer.trials:
                        consumer.trials = 0
                        consumer.move(turn)
                flight.queue.done(flight.id)
                done += 1
            self.counts["acknowledged"] += done
            self._part()
            self._pump()

    def _heard(self, message: list[bytes]) -> None:
        consumer = self.consumers.get(message[0])
        if consumer is None:
            return
        try:
            key, done = read_ack(message)
        except Malformed as error:
            self._refuse(consumer, str(error))
            return
        flight = self.held.get(key)
        if flight is not None and flight.holder is consumer:
            self._take_back(flight)
        else:
            flight = self._expired.get(key)
            if flight is None or flight.holder is not consumer:
                what = "no message in flight" if key not in self.held else "a message that another consumer has"
                self._refuse(consumer, f"{shown(key)} is the key of {what}")
                return
            if not done:  # it waits to be delivered again, as it is
                return
            del self._expired[key]
        consumer.answered = time.monotonic()
        consumer.heard = max(consumer.heard, flight.number)
        consumer.trials = 0
        consumer.move(self._turn)
        if done:
            self.counts["acknowledged"] += 1
            flight.queue.settle(flight)
        else:
            self.counts["returned"] += 1
            flight.holder = None
            flight.queue.returned(flight)

    def _refuse(self, consumer: Consumer, why: str) -> None:
        """The protocol has no answer for a consumer: who runs the device is told."""
        self.counts["refused"] += 1
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + QUIET
            log.warning("%s: an acknowledgement of %s counts for nothing: %s", self._name, consumer.address, why)

    def _take_back(self, flight: Flight) -> None:
        """A message is in flight no more."""
        del self.held[flight.key]
        self.bytes -= flight.size
        assert flight.holder is not None
        flight.holder.held -= 1

    def _reap(self) -> None:
        """Takes back what was not acknowledged in time."""
        now = time.monotonic()
        expired = 0
        for flight in self._over(now):
            consumer = flight.holder
            assert consumer is not None
            # Who says how many it takes ahead answers them one after the other: it has not come to this one yet.
            if consumer.prefetch and flight.number > consumer.heard and consumer.answered + self._timeout > now:
                del self.held[flight.key]
                flight.deadline = consumer.answered + self._timeout
                self.held[flight.key] = flight
                heappush(self._longer, (flight.deadline, flight.key))
                continue
            expired += 1
            self._take_back(flight)
            if consumer.line is not self._late:
                consumer.trials += 1
                consumer.retried = now + self._timeout * 2 ** min(consumer.trials - 1, RESTS)
                consumer.move(self._late)
            if flight.queue.returned(flight):
                self._expired[flight.key] = flight
        if expired:
            self.counts["expired"] += expired
            log.info("%s: %d messages were not acknowledged in time", self._name, expired)
        self._look()
        for consumer in tuple(self._late) if self._turn else ():
            if consumer.retried <= now and not consumer.choked:
                consumer.move(self._turn, 1)
        self._reaper = self._loop.call_later(self._reaper_frequency, self._reap)
        self.wake()

    def _over(self, now: float) -> list[Flight]:
        """Whose time is up."""
        over: dict[bytes, Flight] = {}
        while self._longer and self._longer[0][0] <= now:
            deadline, key = heappop(self._longer)
            longer = self.held.get(key)
            if longer is not None and longer.deadline == deadline:
                over[key] = longer
        for flight in self.held.values():
            if flight.deadline > now:
                # Behind it are such as were delivered later, and those of the heap, whose time comes sooner.
                break
            over[flight.key] = flight
        return list(over.values())

    def _look(self) -> None:
        """Looks which of those that are late read what they are sent: it would else be sent to them again and again."""
        for peer in self._socket.peers:
            consumer = self.consumers.get(peer.identity)
            if consumer is None:
                continue
            consumer.choked = consumer.line is self._late and peer.bytes_out < consumer.sent
            # Frames have headers, which are not counted as sent: they would hide as much that has not left.
            consumer.sent = max(consumer.sent, peer.bytes_out)

    # ------------------------------------------------------------------ out

    def grown(self) -> None:
        """Messages have come. All else that `wake` is for has come with a call of its own."""
        if self.consumers:
            self.wake()

    def wake(self) -> None:
        """There may be something to deliver, or to be kept."""
        if not self._woken and not self._ending:
            self._woken = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Delivers what there is room for."""
        self._woken = False
        if self._ending:
            return
        deadline = time.monotonic() + self._timeout
        sent = b"%d" % (time.time_ns() // 1000)
        held, line, timeout = self.held, self._turn or self._late, self._timeout_frame
        out: list[tuple[bytes, ...]] = []
        flights = self._take(min(PORTION, MOST - len(held), self._room()))
        for flight in flights:
            consumer = line[0]
            while consumer.held >= consumer.room or consumer.choked:
                line.rotate(-1)
                consumer = line[0]
            line.rotate(-1)
            consumer.held += 1
            consumer.number += 1
            consumer.sent += len(flight.key) + flight.size
            flight.number = consumer.number
            flight.holder = consumer
            flight.deadline = deadline
            held[flight.key] = flight
            self.bytes += flight.size
            if flight.tries > 1:
                self._expired.pop(flight.key, None)
                self.counts["redelivered"] += 1
            if consumer.counts:
                tries = b"%d" % flight.tries
                out.append((consumer.identity, flight.key, sent, timeout, tries, b"", *flight.parts))
            else:
                out.append((consumer.identity, flight.key, sent, timeout, b"", *flight.parts))
        if len(flights) == PORTION:
            self.wake()
        if out:
            try:
                self._socket.send_many_nowait(out)
            except ClosedError:
                self._ending = True
            self.counts["delivered"] += len(out)
        self._save()

    def _take(self, most: int) -> list[Flight]:
        """The oldest messages of all queues, so many at most; a key begins with when its message was stored.

        Nothing is read from the store that nobody can be given.
        """
        room, alone = self._limit - self.bytes, not self.held
        if most <= 0 or (room <= 0 and not alone):
            return []
        if len(self._queues) == 1:
            return self._queues[0].take_some(most, room, alone)
        taken: list[Flight] = []
        while len(taken) < most:
            heads = [flight for queue in self._queues if (flight := queue.head()) is not None]
            flight = min(heads, key=lambda flight: flight.key, default=None)
            if flight is None or (flight.size > room and (taken or not alone)):
                break
            room -= flight.size
            taken.append(flight.queue.take())
        return taken

    def _room(self) -> int:
        """Messages that consumers can be given now.

        Those that are late wait for others even where these have no room: they would else get most of what comes back.
        """
        room = 0
        for consumer in self._turn or self._late:
            if not consumer.choked and consumer.held < consumer.room:
                room += consumer.room - consumer.held
                if room >= PORTION:
                    break
        return room

    def _save(self) -> None:
        for queue in self._queues:
            queue.save()
