"""Heartbeats: PINGs to peers, and the timeouts of silent ones (RFC 37, Connection Heartbeating; `zmq_setsockopt(3)`).

A socket has one timer for all its connections: they are in a heap by due time, and those that are due at nearly the
same time are checked together. Nothing here runs for a message: a connection counts its received bytes anyway, and a
count that has grown shows that the peer lives.
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

_MAX_EXACT_CONNECTIONS: Final = 32  # with more connections, some are checked a little late, together with others
_LATE_S: Final = 0.02  # seconds; with a short interval, a fiftieth of it
_TIMER_SLACK_S: Final = 0.0005  # seconds: the loop's timers count milliseconds
_MAX_CHECKS_PER_TURN: Final = 200  # checks per turn: the loop has other work
_MAX_UNSENT_BYTES: Final = 65536  # with more bytes queued, a peer gets no PINGs: it does not read


class PeerLiveness:
    """The liveness of one connection; times are seconds of `time.monotonic()`.

    Attributes:
        session: The session of the connection.
        ping: The PING frame to send; empty if we send none.
        next_ping: The time of the next PING; infinite if we send none.
        ping_sent: The time of the first PING after which nothing has arrived; infinite if there is none.
        ttl: Seconds of silence after which the peer asks us to end the connection.
        last_received: The last time at which bytes were known to have arrived.
        bytes_in: The number of bytes received by then.
        due: The time of the next check; infinite once the connection has ended.
    """

    __slots__ = ("bytes_in", "due", "last_received", "next_ping", "ping", "ping_sent", "session", "ttl")

    def __init__(self, session: ConnectedSession, ping: bytes, next_ping: float) -> None:
        self.session = session
        self.ping = ping
        self.next_ping = next_ping
        self.ping_sent = self.ttl = self.due = math.inf
        self.last_received = 0.0
        self.bytes_in = 0

    @property
    def timeout(self) -> float:
        """Seconds after a PING within which bytes must arrive."""
        options = self.session.options
        return options.heartbeat_timeout or options.heartbeat_interval or math.inf

    def __lt__(self, other: PeerLiveness) -> bool:
        return self.due < other.due


class Heartbeat:
    """The heartbeats of one socket's connections.

    Args:
        engine: The socket.
    """

    def __init__(self, engine: SocketView) -> None:
        self._engine = engine
        self._livenesses: dict[ConnectedSession, PeerLiveness] = {}
        self._heap: list[tuple[float, PeerLiveness]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self._pings: dict[int, bytes] = {}  # by TTL in tenths of a second: most connections share one
        self._shortest = 1.0  # seconds: the shortest interval so far, at most one second

    def begin(self, session: ConnectedSession) -> None:
        """Starts after a handshake: the first PING is sent after a whole interval. On the loop's thread."""
        interval = session.options.heartbeat_interval
        # RFC 23 has no PING: a peer of ZMTP 3.0 would not answer, and its connection would be ended for that.
        if interval is not None and _knows_ping(session):
            ttl = round((session.options.heartbeat_ttl or 0) * 10)
            ping = self._pings.get(ttl)
            if ping is None:
                ping = self._pings[ttl] = command.ping(ttl)
            self._shortest = min(self._shortest, interval)
            liveness = self._livenesses[session] = PeerLiveness(session, ping, time.monotonic() + interval)
            self._schedule(liveness)

    def end(self, session: ConnectedSession) -> None:
        """Stops for a connection that has ended."""
        liveness = self._livenesses.pop(session, None)
        if liveness is not None:
            liveness.due = math.inf

    def pinged(self, session: ConnectedSession, ttl: int) -> None:
        """Applies the changed TTL of a PING. On the loop's thread.

        Args:
            session: The session that received the PING.
            ttl: Tenths of a second of silence after which to end the connection; 0 for no limit.
        """
        liveness = self._livenesses.get(session)
        if liveness is None:
            if not ttl:
                return
            liveness = self._livenesses[session] = PeerLiveness(session, b"", math.inf)
        liveness.ttl = ttl / 10 if ttl else math.inf
        liveness.last_received = time.monotonic()
        liveness.bytes_in = session.peer.bytes_in
        liveness.ping_sent = math.inf
        if liveness.last_received + liveness.ttl < liveness.due:
            self._schedule(liveness)

    def leave_loop(self) -> None:
        """Stops the timer: the loop ends, or has ended."""
        if self._timer is not None:
            if self._engine.in_loop:
                self._timer.cancel()
            self._timer = None

    def enter_loop(self) -> None:
        """Restarts the timer in another loop."""
        self._arm()

    def stop(self) -> None:
        """Stops for good: the socket is closed."""
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
        liveness.due = min(
            liveness.next_ping, liveness.ping_sent + liveness.timeout, liveness.last_received + liveness.ttl
        )
        if liveness.due < math.inf:
            heapq.heappush(self._heap, (liveness.due, liveness))

    def _arm(self) -> None:
        """Sets the timer for the first connection that is due, or a little later."""
        heap = self._heap
        while heap and heap[0][0] != heap[0][1].due:
            heapq.heappop(heap)  # checked earlier, or ended
        if not heap:
            return
        late = min(_LATE_S, self._shortest / 50) if len(heap) > _MAX_EXACT_CONNECTIONS else 0.0
        due = heap[0][0] + late
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._engine.loop.call_later(max(0.0, due - time.monotonic()), self._check)

    def _check(self) -> None:
        self._timer = None
        now = time.monotonic() + _TIMER_SLACK_S
        silent: list[tuple[ConnectedSession, Exception]] = []
        with self._engine.lock:
            for _ in range(_MAX_CHECKS_PER_TURN):
                if not self._heap or self._heap[0][0] > now:
                    break
                due, liveness = heapq.heappop(self._heap)
                if due != liveness.due:
                    continue
                try:
                    reason = self._check_one(liveness, now)
                except Exception as error:  # no memory, for example: it must not affect other connections
                    reason = error
                if reason is None:
                    self._put(liveness)
                else:
                    silent.append((liveness.session, reason))
        self._arm()
        for session, reason in silent:
            session.end(reason)

    def _check_one(self, liveness: PeerLiveness, now: float) -> Exception | None:
        """Sends a PING if it is due. Returns the reason to end the connection, or `None`."""
        peer = liveness.session.peer
        asked_for = now - liveness.ping_sent >= liveness.timeout
        # Unread bytes in the kernel show that the peer lives and that we are slow: it gets no PING meanwhile.
        if peer.bytes_in != liveness.bytes_in or (
            (asked_for or now - liveness.last_received >= liveness.ttl) and peer.has_unread
        ):
            liveness.bytes_in = peer.bytes_in
            liveness.last_received = now
            liveness.ping_sent = math.inf
        elif asked_for and peer.held_up:
            liveness.ping_sent = now  # the peer has no room for the PING, so its silence proves nothing
        elif asked_for:
            return TransportError(f"nothing received within heartbeat_timeout={liveness.timeout} s of a PING")
        elif now - liveness.last_received >= liveness.ttl:
            return TransportError(f"nothing received within the TTL of {liveness.ttl} s in the peer's PING")
        if now >= liveness.next_ping:
            interval = liveness.session.options.heartbeat_interval
            assert interval is not None
            if peer.unsent_bytes >= _MAX_UNSENT_BYTES or peer.probe(liveness.ping):
                liveness.ping_sent = min(liveness.ping_sent, now)
            liveness.next_ping += interval
            if liveness.next_ping <= now:  # the loop was held up: PINGs that were missed are not sent now
                liveness.next_ping = now + interval
        return None


def _knows_ping(session: ConnectedSession) -> bool:
    assert session.info is not None
    return session.info.answers_ping
