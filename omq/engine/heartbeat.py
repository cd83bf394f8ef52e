"""Signs of life, asked for and given (RFC 37, Connection Heartbeating; `zmq_setsockopt(3)`, `ZMQ_HEARTBEAT_*`).

One timer a socket, however many connections: they stand in a heap by the time at which each is due, and those that
are due at nearly the same time are looked after together. Nothing here runs for a message: a connection counts its
bytes anyway, and a count that has grown is a sign of life, whatever the bytes were.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from typing import Final

from omq.engine.views import ConnectedSession, SocketView
from omq.errors import TransportError
from omq.zmtp import command

_MAX_EXACT_CONNECTIONS: Final = 32  # connections above which some are looked at a little late, together with others
_LATE_S: Final = 0.02  # seconds; with a short interval, a fiftieth of it
_EARLY_S: Final = 0.0005  # seconds: the loop's timers count milliseconds
_MAX_CHECKS_PER_TURN: Final = 200  # connections looked at in one go: the loop has other things to do
_MAX_UNSENT_BYTES: Final = 65536  # bytes that wait for a peer above which it gets no more PINGs: it does not read


class PeerLiveness:
    """The liveness of one connection; times are seconds of `time.monotonic()`.

    Attributes:
        session: The connection.
        ping: What it is sent; empty where we send none.
        next_ping: When it gets the next PING; infinite where we send none.
        asked: When the first PING was sent after which nothing has arrived; infinite while none is open.
        ttl: Seconds of silence after which the peer wants to be given up.
        heard: When something was last known to have arrived.
        bytes_in: What had arrived then.
        due: When it is looked at again; infinite once it is over.
    """

    __slots__ = ("asked", "bytes_in", "due", "heard", "next_ping", "ping", "session", "ttl")

    def __init__(self, session: ConnectedSession, ping: bytes, next_ping: float) -> None:
        self.session = session
        self.ping = ping
        self.next_ping = next_ping
        self.asked = self.ttl = self.due = math.inf
        self.heard = 0.0
        self.bytes_in = 0

    @property
    def timeout(self) -> float:
        """Seconds after a PING within which something has to arrive."""
        options = self.session.options
        return options.heartbeat_timeout or options.heartbeat_interval or math.inf

    def __lt__(self, other: PeerLiveness) -> bool:
        return self.due < other.due


class Heartbeat:
    """The signs of life of one socket's connections.

    Args:
        engine: The socket.
    """

    def __init__(self, engine: SocketView) -> None:
        self._engine = engine
        self._livenesses: dict[ConnectedSession, PeerLiveness] = {}
        self._heap: list[tuple[float, PeerLiveness]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self._pings: dict[int, bytes] = {}  # by the tenths of a second that they allow: most connections share one
        self._shortest = 1.0  # seconds: the shortest interval yet, or less than that which matters

    def begin(self, session: ConnectedSession) -> None:
        """A handshake is done: the first PING goes out after a whole interval. On the loop's thread."""
        interval = session.options.heartbeat_interval
        # RFC 23 knows no PING: a peer of ZMTP 3.0 would not answer, and be given up for that.
        if interval is not None and _knows_ping(session):
            ttl = round((session.options.heartbeat_ttl or 0) * 10)
            ping = self._pings.get(ttl)
            if ping is None:
                ping = self._pings[ttl] = command.ping(ttl)
            self._shortest = min(self._shortest, interval)
            liveness = self._livenesses[session] = PeerLiveness(session, ping, time.monotonic() + interval)
            self._schedule(liveness)

    def end(self, session: ConnectedSession) -> None:
        """A connection is over."""
        liveness = self._livenesses.pop(session, None)
        if liveness is not None:
            liveness.due = math.inf

    def pinged(self, session: ConnectedSession, ttl: int) -> None:
        """A PING allows another time of silence than the one before. On the loop's thread.

        Args:
            session: From whom.
            ttl: Tenths of a second of silence after which the peer may be given up; 0 for no such hint.
        """
        liveness = self._livenesses.get(session)
        if liveness is None:
            if not ttl:
                return
            liveness = self._livenesses[session] = PeerLiveness(session, b"", math.inf)
        liveness.ttl = ttl / 10 if ttl else math.inf
        liveness.heard = time.monotonic()
        liveness.bytes_in = session.peer.bytes_in
        liveness.asked = math.inf
        if liveness.heard + liveness.ttl < liveness.due:
            self._schedule(liveness)

    def leave_loop(self) -> None:
        """The loop ends, or has ended."""
        if self._timer is not None:
            if self._engine.in_loop:
                self._timer.cancel()
            self._timer = None

    def enter_loop(self) -> None:
        """The socket goes on in another loop."""
        self._arm()

    def stop(self) -> None:
        """The socket is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()
        self._livenesses.clear()

    # ------------------------------------------------------------------ the timer

    def _schedule(self, liveness: PeerLiveness) -> None:
        if self._livenesses.get(liveness.session) is liveness:
            self._put(liveness)
            self._arm()

    def _put(self, liveness: PeerLiveness) -> None:
        liveness.due = min(liveness.next_ping, liveness.asked + liveness.timeout, liveness.heard + liveness.ttl)
        if liveness.due < math.inf:
            heapq.heappush(self._heap, (liveness.due, liveness))

    def _arm(self) -> None:
        """Sets the timer for when the first connection is due, or a little later."""
        heap = self._heap
        while heap and heap[0][0] != heap[0][1].due:
            heapq.heappop(heap)  # looked at earlier, or over
        if not heap:
            return
        late = min(_LATE_S, self._shortest / 50) if len(heap) > _MAX_EXACT_CONNECTIONS else 0.0
        due = heap[0][0] + late
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._engine.loop.call_later(max(0.0, due - time.monotonic()), self._look)

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic() + _EARLY_S
        silent: list[tuple[ConnectedSession, Exception]] = []
        with self._engine.lock:
            for _ in range(_MAX_CHECKS_PER_TURN):
                if not self._heap or self._heap[0][0] > now:
                    break
                due, liveness = heapq.heappop(self._heap)
                if due != liveness.due:
                    continue
                try:
                    reason = self._look_at(liveness, now)
                except Exception as error:  # no memory, for example: one connection's failure is not the others'
                    reason = error
                if reason is None:
                    self._put(liveness)
                else:
                    silent.append((liveness.session, reason))
        self._arm()
        for session, reason in silent:
            session.end(reason)

    def _look_at(self, liveness: PeerLiveness, now: float) -> Exception | None:
        """Sends a PING if it is time. Gives the reason why the connection is to end, or `None`."""
        peer = liveness.session.peer
        asked_for = now - liveness.asked >= liveness.timeout
        # Unread bytes in the kernel show that the peer lives, and that we are slow: it is not asked meanwhile.
        if peer.bytes_in != liveness.bytes_in or ((asked_for or now - liveness.heard >= liveness.ttl) and peer.unheard):
            liveness.bytes_in = peer.bytes_in
            liveness.heard = now
            liveness.asked = math.inf
        elif asked_for and peer.held_up:
            liveness.asked = now  # the peer has no room for the PING, so its silence says nothing
        elif asked_for:
            return TransportError(f"no sign of life within heartbeat_timeout={liveness.timeout} s of a PING")
        elif now - liveness.heard >= liveness.ttl:
            return TransportError(f"no sign of life within the {liveness.ttl} s that the peer gave itself with a PING")
        if now >= liveness.next_ping:
            interval = liveness.session.options.heartbeat_interval
            assert interval is not None
            if peer.unsent_bytes >= _MAX_UNSENT_BYTES or peer.probe(liveness.ping):
                liveness.asked = min(liveness.asked, now)
            liveness.next_ping += interval
            if liveness.next_ping <= now:  # the loop was held up: PINGs that were missed are not sent now
                liveness.next_ping = now + interval
        return None


def _knows_ping(session: ConnectedSession) -> bool:
    assert session.info is not None
    return session.info.answers_ping
