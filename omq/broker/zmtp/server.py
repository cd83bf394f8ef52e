"""The ZMTP server: a ROUTER, whose peers are the broker's clients."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from typing import Any, Final

import omq.asyncio as omq
from omq.broker.core.broker import AcceptFailure, Broker
from omq.broker.core.user_limits import HANDSHAKE_TIMEOUT_S, UserUsage
from omq.broker.errors import BrokerFailed
from omq.broker.protocol import HEARTBEAT_INTERVAL_S, HEARTBEAT_TIMEOUT_S, MAX_APPEND_BYTES, MAX_PARTS
from omq.broker.zmtp.session import MAX_PENDING_BYTES, ClientSession, Parts
from omq.errors import ClosedError
from omq.event import Event, EventKind, HandshakeFailure
from omq.message import PeerInfo
from omq.serving.connection_events import ConnectionEvents
from omq.serving.descriptors import connection_limit, is_shortage, room_for_handshakes
from omq.serving.rate_limit import RateLimit
from omq.serving.router import MESSAGE_MARGIN_BYTES, RECV_BATCH, TIME_SLICE_S, bind, unbind
from omq.types import Security

log = logging.getLogger("omq.broker")

#: Messages of one peer that may wait in the socket before its connection is no longer read.
RECV_HWM: Final = 256
#: Bytes that are sent to a peer between two checks of how many were written.
_CHECK_INTERVAL_BYTES: Final = 4 << 20
#: Bytes that may wait for a peer that does not read its answers; above that its session ends.
_MAX_UNREAD_BYTES: Final = 192 << 20
#: Seconds between two checks whether blocked peers have room.
_POLL_INTERVAL_S: Final = 0.005
#: Seconds between two log lines about handshakes that have failed.
_HANDSHAKE_LOG_INTERVAL_S: Final = 10.0


class ZmtpServer:
    """Serves ZeroMQ clients at a ROUTER socket.

    Args:
        broker: The core.
        endpoints: The endpoints to bind.
        security: The mechanism; `None` admits every client.
        max_connections: The clients that each endpoint serves. `None` derives it from the descriptor limit of the
            process, with a reserve for the store and the status page.
        heartbeat_interval: Seconds between two PINGs to a client.
        heartbeat_timeout: Seconds without an answer to a PING after which a client is dead: its connection is closed,
            and its messages in flight go to others.

    Attributes:
        sessions: The sessions by the peer's identity.
        clients: The sessions that have sent HELLO, by user and client id.
    """

    def __init__(
        self,
        broker: Broker,
        endpoints: Iterable[str],
        security: Security | None = None,
        *,
        max_connections: int | None = None,
        heartbeat_interval: float = HEARTBEAT_INTERVAL_S,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        self._max_connections = max_connections
        self._heartbeat = heartbeat_interval, heartbeat_timeout
        self.sessions: dict[bytes, ClientSession] = {}
        self.clients: dict[tuple[str | None, str], ClientSession] = {}
        self._broker = broker
        self._endpoints = tuple(endpoints)
        self._security = security
        #: Peers that wait for their identity: their addresses and the times of their handshakes.
        self._waiting_peers: dict[bytes, list[tuple[str, float]]] = {}
        #: The usage of the user of each connection, by identity and time of the handshake.
        self._usages: dict[tuple[bytes, float], UserUsage] = {}
        self._blocked: dict[ClientSession, None] = {}  # sessions whose peers have no room
        self._poll_timer: asyncio.TimerHandle | None = None
        self._next_update = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusal_log = RateLimit()
        self._handshake_log = RateLimit(_HANDSHAKE_LOG_INTERVAL_S)
        self._ending = False

    def bind(self) -> list[str]:
        """Binds the socket, and returns the resolved endpoints; clients wait for `serve`. Raises as `router.bind`."""
        limit = connection_limit(self._max_connections, len(self._endpoints), log)
        self._socket = omq.ROUTER(
            # Sends never wait for a peer: credit and `_MAX_UNREAD_BYTES` bound the bytes that are queued for it.
            send_hwm=0,
            recv_hwm=RECV_HWM,
            max_message_size=MAX_APPEND_BYTES + MESSAGE_MARGIN_BYTES,
            max_parts=MAX_PARTS,
            heartbeat_interval=self._heartbeat[0],
            heartbeat_timeout=self._heartbeat[1],
            max_connections=limit,
            max_handshakes=room_for_handshakes(len(self._endpoints)),
            handshake_timeout=HANDSHAKE_TIMEOUT_S,
            security=self._security,
            linger=1.0,
        )
        self._events = ConnectionEvents(self._socket, self._on_event, log, self._end_sessions)
        bound = bind(self._socket, self._events, self._endpoints)
        self._broker.add_listener("zmtp", limit * len(self._endpoints))
        return bound

    def serve(self) -> None:
        """Starts to serve clients."""
        self._receiver = asyncio.create_task(self._serve(), name="omq broker: messages")
        self._events.start("omq broker: connections")

    def change_core(self, broker: Broker) -> None:
        """Continues with another core over the same store."""
        self._broker = broker
        for session in self.sessions.values():
            session.change_core(broker)

    async def pause(self) -> None:
        """Stops receiving; requests that were received are still answered."""
        if not hasattr(self, "_socket"):
            return
        self._ending = True
        unbind(self._socket)
        if not hasattr(self, "_receiver"):
            return
        self._receiver.cancel()
        await asyncio.gather(self._receiver, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)

    async def close(self) -> None:
        """Sends what is queued, and closes all connections. Idempotent."""
        if not hasattr(self, "_socket"):
            return
        await self.pause()
        await self._events.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        await self._socket.close()
        self._events.close()
        for session in tuple(self.sessions.values()):
            session.connection_lost()
        self.sessions.clear()
        self._broker.connections["zmtp"] = 0
        self._count_connections(())

    # ------------------------------------------------------------------ receiving

    async def _serve(self) -> None:
        """Receives and executes requests."""
        socket = self._socket
        sessions = self.sessions
        slice_start = time.monotonic()
        while True:
            # recv_many does not yield to the loop while messages wait, and some peers always have more.
            if time.monotonic() - slice_start > TIME_SLICE_S:
                await asyncio.sleep(0)
                slice_start = time.monotonic()
            try:
                batch: list[Any] = await socket.recv_many(RECV_BATCH)
            except ClosedError:
                return
            self._events.handle()
            for message in batch:
                if time.monotonic() - slice_start > TIME_SLICE_S:  # some requests take long
                    self._broker.store.flush()
                    self._events.held = True
                    await asyncio.sleep(0)
                    self._events.held = False
                    slice_start = time.monotonic()
                session = sessions.get(message[0])
                if session is not None and len(message) > 1:
                    del message[0]
                    try:
                        session.handle(message)
                    except Exception:
                        log.exception("the session of %s failed and has ended", session.peer)
                        session.connection_lost()
                # Without a session the connection is closed, and nothing could be answered.
            self._broker.store.flush()
            self._events.handle()
            self._end_sessions()

    def _on_event(self, event: Event) -> None:
        peer = event.peer
        if event.kind is EventKind.HANDSHAKE_SUCCEEDED and peer is not None:
            self._count_connection(peer)
            self._add_peer(peer.identity, peer.user_id, event.remote_address, peer.since)
        elif event.kind is EventKind.DISCONNECTED and peer is not None:
            usage = self._usages.pop((peer.identity, peer.since), None)
            if usage is not None:
                usage.disconnected()
            self._remove_peer(peer.identity, peer.since, str(event.reason))
        elif event.kind is EventKind.HANDSHAKE_FAILED:
            kind = event.category or HandshakeFailure.PROTOCOL
            self._broker.handshake_failures[kind] += 1
            if self._handshake_log.passes():
                log.info(
                    "%s: handshake failed: %s (%d earlier failures were not logged)",
                    event.remote_address,
                    event.reason,
                    self._handshake_log.suppressed,
                    extra={
                        "event": "handshake_failed",
                        "peer": event.remote_address,
                        "kind": str(kind),
                        "reason": event.reason,
                        "suppressed": self._handshake_log.suppressed,
                    },
                )
        elif event.kind is EventKind.ACCEPT_FAILED:
            self._accept_failed(event)
        elif event.kind is EventKind.MISSED:
            self._recount()

    def _accept_failed(self, event: Event) -> None:
        kind: AcceptFailure = "other"
        if event.error is None:
            kind = "max_connections"
        elif is_shortage(event.error):
            kind = "descriptors"
        self._broker.accepts_failed["zmtp"][kind] += 1
        if self._refusal_log.passes():
            log.warning(
                "%s: a client is turned away (%d earlier ones were not logged): %s",
                event.endpoint,
                self._refusal_log.suppressed,
                event.reason,
                extra={
                    "event": "accept_failed",
                    "listener": "zmtp",
                    "kind": kind,
                    "reason": event.reason,
                    "suppressed": self._refusal_log.suppressed,
                },
            )

    def _add_peer(self, identity: bytes, user: str | None, address: str, since: float) -> None:
        current = self.sessions.get(identity)
        if current is not None:
            # A peer may choose its identity. The socket reads the second peer once the first one is gone.
            if current.user != user:
                # Unread requests of one user must not be executed with the permissions of another one.
                log.warning(
                    "%s of %s has the identity of %s of %s: it is not served",
                    address,
                    user,
                    current.peer,
                    current.user,
                    extra={"event": "identity_refused", "peer": address, "user": user},
                )
            elif self._events.is_leaving(identity):
                self._replace(current, address, since)
            else:
                self._waiting_peers.setdefault(identity, []).append((address, since))
            return
        self.sessions[identity] = ClientSession(self._broker, self, identity, user, address, since)
        self._broker.connections["zmtp"] = len(self.sessions)

    def _remove_peer(self, identity: bytes, since: float, reason: str) -> None:
        """Removes a peer whose connection was closed; the next peer with its identity takes its place.

        The time of the handshake distinguishes peers of one identity: on ipc all addresses are equal.
        """
        session = self.sessions.get(identity)
        waiting = self._waiting_peers.get(identity, [])
        if session is None:
            return
        if session.since == since:
            _log_lost(session, reason)
            if waiting:
                self._replace(session, *waiting.pop(0))
            else:
                self._events.leave(identity)  # requests that it sent before are executed first
        else:
            waiting[:] = [one for one in waiting if one[1] != since]
        if not waiting:
            self._waiting_peers.pop(identity, None)

    def _replace(self, current: ClientSession, address: str, since: float) -> None:
        """Gives an identity's session to the next peer, which the socket reads from now on."""
        self._events.stay(current.identity)
        self._blocked.pop(current, None)
        current.connection_lost()
        self.sessions[current.identity] = ClientSession(
            self._broker, self, current.identity, current.user, address, since
        )

    def _end_sessions(self) -> None:
        """Ends the sessions of closed connections, once their last requests are executed."""
        gone = self._events.take_gone()
        if not gone:
            return
        for identity in gone:
            session = self.sessions.pop(identity, None)
            if session is not None:
                self._blocked.pop(session, None)
                try:
                    session.connection_lost()
                except Exception:
                    log.exception("the end of a session failed")
        self._broker.connections["zmtp"] = len(self.sessions)

    def _count_connection(self, peer: PeerInfo) -> None:
        """Counts a connection for its user, whether it has a session or not."""
        key = peer.identity, peer.since
        if key not in self._usages:
            self._usages[key] = self._broker.user_limits.of(peer.user_id)
            self._usages[key].connected()

    def _count_connections(self, peers: Iterable[PeerInfo]) -> None:
        """Counts the connections of all users again."""
        for usage in self._usages.values():
            usage.disconnected()
        self._usages.clear()
        for peer in peers:
            self._count_connection(peer)

    def _recount(self) -> None:
        self._count_connections(self._socket.peers)
        for peer in self._events.recount(self.sessions):
            self._add_peer(peer.identity, peer.user_id, peer.endpoint, peer.since)

    # ------------------------------------------------------------------ sending

    def put(self, session: ClientSession, parts: Parts) -> None:
        """Sends a message to the session's peer; never waits."""
        for part in parts:
            session.bytes_queued += len(part) + 2
        try:
            self._socket.send_multipart_nowait((session.identity, *parts))
        except ClosedError:
            session.alive = False
        unwritten = session.bytes_queued - session.bytes_written
        if session.bytes_queued - session.bytes_checked > _CHECK_INTERVAL_BYTES and (
            time.monotonic() >= self._next_update or unwritten > _MAX_UNREAD_BYTES
        ):
            self._update_written()
            if session.bytes_queued - session.bytes_written > _MAX_UNREAD_BYTES and session.alive:
                log.warning(
                    "%s does not read: %d bytes wait for it; its session has ended",
                    session.peer,
                    session.bytes_queued - session.bytes_written,
                    extra={"event": "connection_stuck", "peer": session.peer, "user": session.user, **session.held()},
                )
                session.connection_lost()

    def _update_written(self) -> None:
        """Updates how many bytes were written to each peer; with many peers at most a twentieth of the time."""
        began = time.monotonic()
        for peer in self._socket.peers:
            session = self.sessions.get(peer.identity)
            if session is not None:
                session.bytes_checked = session.bytes_queued
                session.bytes_written = peer.bytes_out
                # bytes_out counts frame headers, too, so that it may exceed the bytes that were queued.
                if session.bytes_written > session.bytes_queued:
                    session.bytes_queued = session.bytes_checked = session.bytes_written
        now = time.monotonic()
        self._next_update = now + 20 * (now - began)

    def pending(self, session: ClientSession) -> int:
        """Returns about how many bytes wait for the session's peer; see `SessionTransport.pending`."""
        unwritten = session.bytes_queued - session.bytes_written
        if unwritten >= MAX_PENDING_BYTES:
            self._blocked[session] = None
            if self._poll_timer is None:
                delay = max(_POLL_INTERVAL_S, self._next_update - time.monotonic())
                self._poll_timer = asyncio.get_running_loop().call_later(delay, self._poll)
        return unwritten

    def _poll(self) -> None:
        self._poll_timer = None
        self._update_written()
        blocked, self._blocked = self._blocked, {}
        for session in blocked:
            if not session.alive:
                continue
            try:
                session.resume()
            except Exception as error:
                log.exception("the session of %s failed", session.peer)
                session.end(BrokerFailed(f"the broker has failed: {type(error).__name__}"))

    # ------------------------------------------------------------------ tasks

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _log_lost(session: ClientSession, reason: str) -> None:
    """Logs the end of a connection whose consumers have messages in flight, or that has durable subscriptions open."""
    held = session.held()
    effects = []
    if held["in_flight"]:
        effects.append(f"its {held['in_flight']} messages in flight go to others")
    if held["durables"]:
        effects.append(f"its durable subscriptions may be opened by others: {', '.join(map(repr, held['durables']))}")
    if effects:
        log.info(
            "%s: %s; %s",
            session.peer,
            reason,
            "; ".join(effects),
            extra={
                "event": "connection_lost",
                "peer": session.peer,
                "user": session.user,
                "reason": reason,
                **held,
            },
        )
