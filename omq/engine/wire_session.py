"""One wire connection, from its descriptor to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from omq._core.link import handshake_io
from omq._core.link.connection import Connection
from omq._core.queues.peer import ended_peer
from omq.engine.heartbeat import Heartbeat
from omq.engine.lifecycle import ConnectionState, StateMachine
from omq.engine.views import DialerView, LimiterView, SocketView
from omq.engine.zap import Authenticator
from omq.errors import HandshakeError, HandshakeTimeout, ProtocolError, RemoteProtocolError, TransportError
from omq.options import Options
from omq.transport import Relay, StreamTransport
from omq.types import TRAITS
from omq.unpatched import socket
from omq.zmtp import command
from omq.zmtp.handshake import Handshake, PeerMetadata
from omq.zmtp.handshake_cache import CachedHandshake
from omq.zmtp.mechanism import Question
from omq.zmtp.no_handshake import NoHandshake
from omq.zmtp.websocket import WebSocketHandshake

log = logging.getLogger("omq")

_GONE = -1  # stands for a descriptor that was closed or passed on
# Looking up a member of an enumeration calls a Python function each time.
_CONNECTING, _HANDSHAKING, _READY = ConnectionState.CONNECTING, ConnectionState.HANDSHAKING, ConnectionState.READY
_LEAVING, _CLOSING, _OVER = ConnectionState.LEAVING, ConnectionState.CLOSING, ConnectionState.OVER
_BEFORE_READY = frozenset({_CONNECTING, _HANDSHAKING})
_KERNEL_DELAY_S = 0.05  # seconds after which everything that a peer's kernel has sent has arrived
_SETTLE_TIMEOUT_S = 5.0  # a peer that has ended its side and takes no byte for so long gets no more
_POLL_INTERVAL_S, _LONG_POLL_INTERVAL_S = 0.002, 0.1  # between two checks whether a peer's kernel has everything


class WireSocketView(SocketView, Protocol):
    """A socket whose peers have connections.

    Attributes:
        authenticator: Decides whether to admit a peer.
        heartbeat: Sends PINGs to peers.
    """

    authenticator: Authenticator
    heartbeat: Heartbeat


class WireSession(StateMachine[ConnectionState]):
    """Supervises one connection: handshake, traffic, one ordered and idempotent end.

    Attributes:
        peer: The Cython connection, once the handshake has finished.
        options: The options of its endpoint. Options of the whole socket, which may change in use, are the engine's.
        info: The peer's metadata, once the handshake has finished.
        since: The time at which the handshake finished, in seconds of `time.time()`.
        mechanism: The name of its security mechanism.
        user_id: The user id that authentication found; `None` for none.
        remote_address: The peer's address, as an endpoint; empty if unknown.
        dropped_reported: The number of dropped messages of the peer that monitors have received.
        rejected: Whether the handshake has failed because one side has rejected the other.
        descriptor: Its descriptor, for monitors, also after its end.
        already_sent: The beginning of our side of the handshake, if it was sent before the session was made.
    """

    peer: Connection

    # Class attributes, because most connections never set them, and there may be thousands.
    identity = b""
    info: PeerMetadata | None = None
    since = 0.0
    user_id: str | None = None
    dropped_reported = 0
    rejected = False
    _ended: asyncio.Future[None] | None = None
    _left = False  # out of routing before its end
    _ceased = False  # the user drains: we send the peer nothing more
    already_sent = b""
    _unsent = b""
    _answered = False  # accepted, and the peer may consider the handshake finished
    _watched = False  # the loop watches its handshake
    _write_blocked = False  # the loop watches for room to write
    _timer: asyncio.TimerHandle | None = None
    _admission: asyncio.Task[None] | None = None
    _relay: Relay | None = None
    _metadata: Mapping[bytes, bytes] = MappingProxyType({})

    def __init__(
        self,
        engine: WireSocketView,
        fd: int,
        transport: StreamTransport[Any],
        endpoint: str,
        remote_address: str,
        options: Options,
        dialer: DialerView | None,
        limiter: LimiterView | None = None,
    ) -> None:
        self.state = _CONNECTING
        self.engine = engine
        self.options = options
        self.endpoint = endpoint
        self.remote_address = remote_address
        self._transport = transport
        self._dialer = dialer
        self._limiter = limiter
        socket_type = engine.socket_type
        self._handshake: Handshake | CachedHandshake | WebSocketHandshake = (
            engine.authenticator.handshake(
                socket_type,
                engine.properties(options),
                options,
                transport.upgrade(endpoint, dialled=dialer is not None),
            )
            if TRAITS[socket_type].handshakes
            else NoHandshake(socket_type)
        )
        self.mechanism = self._handshake.mechanism
        relay = transport.relay(fd, endpoint, options, dialled=dialer is not None)
        if relay is not None:
            self._relay = relay
            fd = relay.fd
        self._fd = fd
        self.descriptor: int | None = fd

    @property
    def is_ready(self) -> bool:
        """Returns whether the session is ready, or only our side of the stream has ended (`CLOSING`)."""
        return self.state is _READY or self.state is _CLOSING

    @property
    def accepted(self) -> bool:
        """Returns whether the peer has dialled."""
        return self._dialer is None

    @property
    def is_named(self) -> bool:
        """Returns whether this side has assigned the peer's identity (`peer_identity`)."""
        return self._dialer is not None and bool(self.options.peer_identity)

    @property
    def redials(self) -> bool:
        """Returns whether this side has dialled, and its dialer neither leaves nor has ended."""
        return self._dialer is not None and self._dialer.dials_on

    @property
    def is_linked(self) -> bool:
        """Returns whether it takes part in routing, and has not ended."""
        return self.state is _READY and not self.peer.lost

    @property
    def ended(self) -> asyncio.Future[None]:
        """A future that is done when the peer takes no more messages, or the session has ended.

        The dialer waits for it.
        """
        if self._ended is None:
            self._ended = self.engine.loop.create_future()
            if self.state is _OVER:
                self._ended.set_result(None)
        return self._ended

    def _resolve_ended(self) -> None:
        if self._ended is not None and not self._ended.done() and self.engine.in_loop:
            self._ended.set_result(None)

    # ------------------------------------------------------------------ handshake

    def start(self) -> None:
        """Starts the handshake."""
        self.engine.session_connected(self, dialled=self._dialer is not None)
        refusal = self._refusal(b"")
        if refusal is not None:
            # Refused before the handshake: a peer that has finished its own would take itself for connected, and send.
            self.end(HandshakeError(refusal))
            return
        timeout = self.options.handshake_timeout
        if timeout is not None and self._limiter is None:
            self._timer = self.engine.loop.call_later(timeout, self.time_out)
        self._watch()
        greeting = self._handshake.start()
        if self._handshake.done:
            self._establish()  # a type without a handshake
        elif self._dialer is None:
            # If many peers come at once, this one's greeting has arrived: the answers to it leave together.
            self._unsent = greeting
            self._read_handshake()
        elif self.already_sent:
            self._write(greeting)
            self._read_handshake()  # the peer may have answered by now
        else:
            self._write(greeting)

    def _watch(self) -> None:
        """Starts to read the handshake, or continues."""
        if self._dialer is None:
            self.engine.handshakes.add(self._fd, self._read_handshake)
        else:
            self.engine.loop.add_reader(self._fd, self._read_handshake)
        self._watched = True

    def _unwatch(self) -> None:
        """Stops reading the handshake."""
        if self._watched:
            self._watched = False
            if self._dialer is None:
                self.engine.handshakes.remove(self._fd)
            else:
                self.engine.loop.remove_reader(self._fd)

    def catch_up(self) -> None:
        """Continues the handshake with the bytes that have arrived."""
        if self._watched:
            self._read_handshake()

    def time_out(self) -> None:
        """Ends a handshake that takes too long; for an accepted connection, the limiter calls this."""
        self.catch_up()  # if we were late, and not the peer, bytes of the peer are waiting
        if self.state is not _HANDSHAKING:
            return
        hint = self._handshake.hint
        timeout = self.options.handshake_timeout
        self.end(HandshakeTimeout(f"no handshake within handshake_timeout={timeout} s" + (hint and f": {hint}")))

    def _read_handshake(self) -> None:
        """Reads what the peer sends before traffic may flow."""
        while self._fd >= 0:
            try:
                data = handshake_io.receive(self._fd)
            except OSError as error:
                self.end(error)
                return
            if data is None:
                self._write(b"")
                return
            if not data:
                hint = self._handshake.hint
                self.end(EOFError("the peer closed the connection during the handshake" + (hint and f": {hint}")))
                return
            self._go_on(self._handshake.receive, data)
            if self._dialer is None or self.state is not _HANDSHAKING:
                return
            if self._handshake.done or self._handshake.question is not None:
                return
            # libuv reports a connection that was reset once only, and stops watching it. If the peer's last bytes were
            # still unread then, the reset is found here or never.

    def _go_on(self, step: Callable[..., bytes], *arguments: Any) -> None:
        """Continues the handshake by one step, and sends its answer."""
        handshake = self._handshake
        try:
            answer = step(*arguments)
        except (ProtocolError, HandshakeError) as error:
            self.rejected = True
            self._write(handshake.failure())
            self.end(error)
            return
        if handshake.peer_may_send and not self._claim_place():
            return
        self._write(answer)
        if self.state is not _HANDSHAKING:
            return
        self.engine.authenticator.watch_cookies()
        # The next bytes are traffic, or wait for an answer that is not given yet: they stay in the kernel.
        if handshake.done:
            self._unwatch()
            if not self._unsent:
                self._establish()
        elif handshake.question is not None:
            self._unwatch()
            self._admission = self.engine.spawn(self._decide(handshake.question), "omq admission")

    def _claim_place(self) -> bool:
        """Claims a place for the connection, once; returns false, and ends the session, if there is none."""
        if self._limiter is None or self._answered:
            return True
        refusal = self._refusal(b"") or self._limiter.claim(self)
        if refusal is not None:
            self.end(HandshakeError(refusal))
            return False
        self._answered = True
        return True

    async def _decide(self, question: Question) -> None:
        """Answers the mechanism's question; only the handshake timeout ends the wait."""
        engine = self.engine  # kept until there is an answer, even if the session ends meanwhile
        try:
            decision = await engine.authenticator.decide(question, self._remote_ip(), self.options)
        except Exception as error:
            log.exception("the admission of a peer could not be decided")
            self.end(error)
            return
        if self.state is not _HANDSHAKING:
            return
        self._admission = None
        self.user_id, self._metadata = decision.user_id, decision.metadata
        self._watch()
        self._go_on(self._handshake.answer, decision.refusal, decision.why)

    def _remote_ip(self) -> str:
        """Returns the peer's IP address; empty if it is unknown or the connection is over."""
        if self._fd < 0:
            return ""
        if self._relay is not None:
            return self._relay.remote_ip
        sock = socket.socket(fileno=self._fd)
        try:
            return self._transport.remote_ip(sock)
        finally:
            sock.detach()

    def _write(self, data: bytes) -> None:
        """Sends handshake bytes; a peer that takes none of them runs into the handshake timeout."""
        if self.already_sent and data:
            common = min(len(self.already_sent), len(data))
            if data[:common] == self.already_sent[:common]:
                data, self.already_sent = data[common:], self.already_sent[common:]
        if self._unsent:
            data = self._unsent + data
        if not data or self._fd < 0:
            return
        try:
            sent = handshake_io.transmit(self._fd, data)
        except OSError as error:
            self.end(error)
            return
        self._unsent = data[sent:]
        if self._unsent:
            self.engine.loop.add_writer(self._fd, self._write_on)
            self._write_blocked = True
        elif self._write_blocked:
            self.engine.loop.remove_writer(self._fd)
            self._write_blocked = False

    def _write_on(self) -> None:
        self._write(b"")
        if self._handshake.done and not self._unsent and self.state is _HANDSHAKING:
            self._establish()

    def _establish(self) -> None:
        """Finishes the handshake: the descriptor joins the socket's epoll set."""
        engine = self.engine
        pattern = engine.pattern
        info = self._handshake.peer
        if self.is_named or info.identity:
            self.identity = self.options.peer_identity if self.is_named else info.identity
        if not self._claim_place():  # a type without a handshake has not claimed a place yet
            return
        refusal = self._refusal(info.identity)
        if refusal is not None:
            self.end(HandshakeError(refusal))
            return
        if self._limiter is not None:
            self._limiter.admit(self)
        self._release_descriptor()
        options = engine.options
        driver = engine.driver
        fd, self._fd = self._fd, _GONE  # the connection closes it
        self.peer = Connection(
            self,
            fd,
            driver.poller,
            engine.context.pool,
            pattern.recv_queue if pattern.queues_messages else None,
            options.recv_hwm if not options.conflate else 0,
            self.options.max_message_size,
            pattern.max_parts(self.options),
            driver.flusher,
            self._handshake.codec,
            background=engine.context.background,
        )
        if self._dialer is not None:
            self.peer.origin = self._dialer.origin
        self.peer.asking = pattern.asking(info.subscribes_by_command)
        unread = self._handshake.unread
        del self._handshake  # saves memory for thousands of idle connections
        self.info = info
        if self._metadata:
            self.info = info._replace(properties={**info.properties, **self._metadata})
        self.since = time.time()
        try:
            leaves = self._leaves_at_once
            if self._dialer is not None:
                self._dialer.connected()
            engine.session_ready(self, routed=not leaves)
            if self.state is _READY or self.state is _CLOSING:
                engine.heartbeat.begin(self)
                with engine.lock:
                    self.peer.start(unread)
                if self._ceased:
                    self.cease()
            if leaves and self.is_linked:
                self._deliver()
        except (OSError, MemoryError) as error:  # the epoll set cannot hold more descriptors
            self.end(error)

    @property
    def _leaves_at_once(self) -> bool:
        """Returns whether `disconnect` was called before the handshake finished: it does not join routing."""
        return self._dialer is not None and self._dialer.leaving

    def _refusal(self, identity: bytes) -> str | None:
        """Returns the reason why the socket refuses this peer, or `None` if it does not."""
        if self._leaves_at_once:
            return None
        with self.engine.lock:
            return self.engine.pattern.refusal(identity)

    def _deliver(self) -> None:
        """Sends the peer the messages of its dialer, and leaves."""
        assert self._dialer is not None
        with self.engine.lock:
            self.engine.pattern.deliver(self, self._dialer.messages)
            if self.is_linked and not self._dialer.messages:
                self.move(_LEAVING)
                self._leave_routing()

    def _release_descriptor(self) -> None:
        """Removes the descriptor from the event loop, which is the only one to watch it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.engine.in_loop:
            self._unwatch()
            if self._write_blocked:
                self.engine.loop.remove_writer(self._fd)
                self._write_blocked = False

    def _close_descriptor(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, _GONE
            os.close(fd)

    # ------------------------------------------------------------------ traffic

    def on_command(self, body: bytes) -> None:
        """Handles a command that the core does not handle itself."""
        if self.state is _OVER:
            return
        if self.peer.untold and self.engine.driver.has_thread:
            self.peer.untold -= 1
        if not self.is_ready:
            return  # has left routing
        try:
            match command.parse_traffic_command(body):
                case command.Ping(ttl, _):
                    if not self._ceased:
                        self.engine.heartbeat.pinged(self, ttl)
                case command.Pong(_):
                    pass
                case command.Error(reason):
                    self.end(RemoteProtocolError(f"the peer reports an error: {command.quoted(reason)}"))
                case order:
                    with self.engine.lock:
                        self.engine.pattern.obey(self, order)
        except RemoteProtocolError as error:
            self.end(error)

    def on_message(self, parts: list[bytes]) -> None:
        """Ignores a message that nothing takes, because the connection ends."""

    def on_restrained(self, _: None = None) -> None:
        """Holds a command back until everything from the peer has arrived; checks again in a moment."""
        if self.state is not _OVER and self.engine.in_loop:
            self.engine.loop.call_later(_KERNEL_DELAY_S, self._look_again)

    def _look_again(self) -> None:
        if self.state is not _OVER:
            with self.engine.lock:
                again = self.peer.look_again()
            if again:
                self.on_restrained()

    def on_settling(self, _: None = None) -> None:
        """Handles the end of the peer's side of the stream: it gets the rest of its batch, and nothing new."""
        if self.state not in (_READY, _LEAVING) or not self.engine.in_loop:
            return
        self.engine.heartbeat.end(self)  # it can no longer answer PINGs
        if self.state is _READY:
            self.move(_LEAVING)
            with self.engine.lock:
                self._leave_routing()
        self._resolve_ended()
        # That side was the only way to learn whether the peer lives. `linger` does not limit this: it may be infinite,
        # and is meant for peers that can still connect or send.
        self._end_if_stalled("the peer has ended its side", -1)

    def _end_if_stalled(self, why: str, before: int) -> None:
        """Ends a connection that drains if the peer has taken nothing since *before* bytes were left for it."""
        if self.state is _OVER or not self.engine.in_loop:
            return
        left = self.peer.untaken_bytes
        if left and left == before:
            self.end(TransportError(f"{why} and has taken nothing for {_SETTLE_TIMEOUT_S} s"))
        else:
            self.engine.loop.call_later(_SETTLE_TIMEOUT_S, self._end_if_stalled, why, left)

    def on_lost(self, reason: Exception | None) -> None:
        """Handles the end of the descriptor."""
        if reason is None and self.state is not _CLOSING:
            reason = EOFError("the peer closed the connection")
        self.end(reason)  # after our half close, the peer's end is not an error

    # ------------------------------------------------------------------ the end

    def leave(self) -> None:
        """Ends the connection when the messages accepted for it have left, or `linger` has passed."""
        linger = self.engine.options.linger
        if self.state is not _READY or linger == 0 or not self.engine.in_loop:
            self.end(None)
            return
        self.move(_LEAVING)
        if linger is not None:
            self._timer = self.engine.loop.call_later(linger, self.end)
        send_queue = self.engine.pattern.send_queue
        with self.engine.lock:
            if send_queue is not None and self.engine.is_last(self):
                send_queue.entrust(self.peer)
            self._leave_routing()
        if not self.peer.unsent_bytes:
            self._finish_closing(
                _POLL_INTERVAL_S
            )  # at once: the user has disconnected, and expects nothing more from it

    def on_dismissed(self, _: None = None) -> None:
        """Ends a peer that the user has closed, when the messages accepted for it have left, regardless of `linger`."""
        if self.state is not _OVER and self.engine.in_loop:
            self.engine.loop.call_soon(self._leave_dismissed)

    def _leave_dismissed(self) -> None:
        if self.state is _OVER or not self.engine.in_loop:
            return
        if self._dialer is not None:
            self._dialer.stop_dialling()
        if self.state is _READY:
            self.move(_LEAVING)
            with self.engine.lock:
                self._leave_routing()
            self._end_if_stalled("the peer was closed", -1)

    def _leave_routing(self) -> None:
        """Leaves routing; accepted messages still leave."""
        self._left = True
        self.engine.pattern.disconnected(self)
        self.peer.retire()

    def on_drained(self, _: None = None) -> None:
        """Ends a leaving session, because the kernel has all accepted messages."""
        if self.state is _LEAVING and self.engine.in_loop:
            self.engine.loop.call_soon(self._finish_closing, _POLL_INTERVAL_S)

    def _finish_closing(self, pause: float) -> None:
        """Ends a connection that has left routing as soon as the peer's kernel has everything."""
        if self.state is _OVER:
            return
        with self.engine.lock:
            parted = self.half_close()
        if parted:
            self.end(None)
        else:
            self.engine.session_drained()
            self.engine.loop.call_later(pause, self._finish_closing, min(pause * 1.5, _LONG_POLL_INTERVAL_S))

    def end(self, reason: Exception | None = None) -> None:
        """Ends the session, once: leaves routing, closes the connection, reports that."""
        before = self.state
        if before is _OVER:
            return
        if not self.engine.on_loop_thread and self.engine.in_loop:
            self.engine.post(self.end, reason)
            return
        self.move(_OVER)
        if reason is not None and self._relay is not None:
            reason = self._relay.error or reason  # the engine sees the end of its descriptor only
        if self._admission is not None and self.engine.in_loop:
            self._admission.cancel()
        if self._timer is not None and self.engine.in_loop:
            self._timer.cancel()
        self.engine.heartbeat.end(self)
        if self._limiter is not None:
            self._limiter.leave(self)
        if before in _BEFORE_READY:
            self._release_descriptor()
            self._close_descriptor()
        else:
            try:
                with self.engine.lock:
                    try:
                        self._reclaim()
                        if not self._left:
                            self.engine.pattern.disconnected(self)
                    finally:
                        self.peer.close()
                    self.engine.pattern.departed(self)
            except Exception:
                log.exception("a peer could not be removed from routing")
        self.engine.session_ended(self, before, reason)
        self._resolve_ended()
        self._drop_references(before)

    def _drop_references(self, before: ConnectionState) -> None:
        """Drops all references to objects that refer to the session.

        A message that was not received yet keeps the connection, and so the session, which describes the sender.
        """
        self.engine = weakref.proxy(self.engine)
        self._dialer = self._limiter = self._timer = self._admission = None
        if before not in _BEFORE_READY:
            self.peer = ended_peer(self.peer)

    def leave_loop(self) -> None:
        """Leaves a loop that ends, or has ended."""
        live = self.engine.in_loop
        if self._timer is not None and live:
            self._timer.cancel()
        if self.state is _HANDSHAKING:
            if self._watched and (live or self._dialer is None):
                self._unwatch()
            if self._write_blocked and live:
                self.engine.loop.remove_writer(self._fd)
        self._watched = self._write_blocked = False
        self._timer = self._admission = self._ended = None

    def enter_loop(self) -> None:
        """Continues in another loop. There, a session that is leaving has as long as `close` waits."""
        if self.state is _HANDSHAKING:
            timeout = self.options.handshake_timeout
            if timeout is not None and self._limiter is None:
                self._timer = self.engine.loop.call_later(timeout, self.time_out)
            if self._handshake.question is not None:
                self._admission = self.engine.spawn(self._decide(self._handshake.question), "omq admission")
            elif not self._handshake.done:
                self._watch()
            self._write_on()
        elif self.state is _LEAVING and not self.peer.unsent_bytes:
            self._finish_closing(_POLL_INTERVAL_S)

    def _reclaim(self) -> None:
        """Keeps messages that have not begun to leave: for the next peer or, if its dialer leaves, for the endpoint."""
        if self.engine.closed:
            return
        if self._dialer is not None and self._dialer.leaving:
            self._dialer.messages[:0] = self.peer.take_back()
        else:
            self.engine.pattern.reclaim(self)

    def close_after_fork(self) -> None:
        """Closes the inherited descriptor, which the parent uses too, in a forked child."""
        if self.state in _BEFORE_READY:
            self._close_descriptor()
        else:
            self.peer.close_after_fork()

    def cease(self) -> None:
        """Ends our side of the stream, so that the peer stops sending; what it has sent still arrives."""
        self._ceased = True
        if self.state is _HANDSHAKING:
            return  # the peer may have finished it, and have sent a message
        if self.state is not _READY:
            self.end(None)
            return
        self.engine.heartbeat.end(self)  # no PING can be sent, and none is answered
        with self.engine.lock:
            self.peer.cease()

    def half_close(self) -> bool:
        """Ends this side of the stream.

        Returns:
            Whether the peer's kernel has everything, so that closing loses nothing.
        """
        if self.state is _READY or self.state is _LEAVING:
            self.move(_CLOSING)
        if self.state is not _CLOSING:
            return True
        parted = self.peer.half_close() or self._transport.hands_over
        return parted and (self._relay is None or self._relay.delivered)
