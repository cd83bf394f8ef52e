"""inproc: two sockets of one context, connected by a pair of pipes. No handshake, no kernel."""

from __future__ import annotations

import asyncio

from omq._core.queues.peer import RecvQueue
from omq._core.queues.pipe import Pipe
from omq._core.queues.wait_queue import WaitQueue
from omq.engine.dialer_base import Backoff, DialerBase, outcome_of
from omq.engine.lifecycle import ConnectionState, DialerState, ListenerState, StateMachine
from omq.engine.session_base import SessionBase
from omq.engine.views import SocketView
from omq.errors import HandshakeError, RemoteProtocolError
from omq.event import EventKind
from omq.options import Options
from omq.types import COMPATIBLE
from omq.zmtp.command import parse_traffic_command
from omq.zmtp.handshake import PeerMetadata


class PipeSession(SessionBase):
    """Supervises one end of an inproc connection."""

    peer: Pipe

    def __init__(self, engine: SocketView, endpoint: str, dialer: InprocDialer | None, options: Options) -> None:
        super().__init__(engine, endpoint, dialer, options)
        self._early: list[bytes] = []  # commands that came before this end joined routing
        self._partner: PipeSession | None = None
        pattern = engine.pattern
        # Messages that the other end sends before this one is ready wait in a queue of their own: this end may be
        # refused.
        recv_queue = RecvQueue(WaitQueue()) if pattern.queues_messages else None
        conflate = engine.options.conflate and recv_queue is not None
        recv_hwm = engine.options.recv_hwm if not engine.options.conflate else 0
        self.peer = Pipe(self, recv_queue, recv_hwm, engine.driver.bell, engine.driver.pipe_lock, conflate)
        if dialer is not None:
            self.peer.origin = dialer.origin

    def join(self, pipe: Pipe, partner: PipeSession) -> None:
        """Connects two ends. Then each engine must call `ready` in its own thread. *pipe*: that of this end."""
        for one, other in ((self, partner), (partner, self)):
            theirs = other.engine
            one._partner = other
            own = theirs.properties(other.options).get(b"Identity", b"")
            one.identity = one.options.peer_identity if one.is_named else own
            metadata = {name.lower(): content for name, content in theirs.options.metadata}
            one.info = PeerMetadata((3, 1), theirs.socket_type, own, b"", metadata)
        pipe.join(partner.peer)

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
        """Returns whether this end takes part in routing, and is connected."""
        return self.state is ConnectionState.READY and not self.peer.lost

    def ready(self) -> None:
        """Lets this end join routing, unless it is refused."""
        if self.is_over:
            # This end was ended in its own thread while the other thread connected the two.
            self._leave_partner()
            return
        self.engine.session_connected(self, dialled=self._dialer is not None)
        if self._dialer is not None and self._dialer.leaving:
            self._deliver(self._dialer)
            return
        with self.engine.lock:
            refusal = self.engine.pattern.refusal(self.identity)
        if refusal is None:
            if self._dialer is not None:
                self._dialer.connected()
            self.engine.session_ready(self)
            with self.engine.lock:
                self._open_recv_queue()
            early, self._early = self._early, []
            for body in early:
                self.on_command(body)
            return
        self.info = None
        self.end(HandshakeError(refusal))

    def on_command(self, body: bytes) -> None:
        """Handles a command from the other end's pattern; in this end's thread."""
        if self.is_ready:
            try:
                with self.engine.lock:
                    self.engine.pattern.obey(self, parse_traffic_command(body))
            except RemoteProtocolError as error:
                self.end(error)
        elif not self.is_over:
            self._early.append(body)

    def _deliver(self, dialer: DialerBase) -> None:
        """Hands over the messages of a dialer that leaves, and ends; messages for this end can still be received."""
        engine = self.engine
        engine.session_ready(self, routed=False)
        with engine.lock:
            engine.pattern.deliver(self, dialer.messages)
            if engine.pattern.queues_messages and engine.pattern.recv_queue is not None:
                self.peer.hand_to(engine.pattern.recv_queue)
        self.end(None)

    def leave(self) -> None:
        """Ends this end; messages that were sent are with the other one."""
        engine = self.engine
        with engine.lock:
            if engine.pattern.send_queue is not None and engine.options.linger != 0 and engine.is_last(self):
                engine.pattern.send_queue.entrust(self.peer)
        self.end(None)

    def _open_recv_queue(self) -> None:
        """Makes messages available that have arrived or will, unless the peer still waits for its identity (ROUTER)."""
        pattern = self.engine.pattern
        if not pattern.queues_messages:
            self.peer.arrive()
        elif self in pattern.sessions:
            assert pattern.recv_queue is not None
            self.peer.hand_to(pattern.recv_queue)

    def refuse(self, refusal: RemoteProtocolError | HandshakeError) -> None:
        """Ends a connection that one of the two sockets refuses."""
        if not self.is_over:
            self.engine.session_connected(self, dialled=self._dialer is not None)
            self.rejected = isinstance(refusal, RemoteProtocolError)
            self.end(refusal)

    def _tear_down(self, before: ConnectionState, reason: Exception | None) -> None:
        if before is ConnectionState.CONNECTING or before is ConnectionState.HANDSHAKING:
            self.info = None  # the other side refused
        with self.engine.lock:
            self.engine.pattern.disconnected(self)
            self.peer.close()
            if before is not ConnectionState.READY:
                self.peer.leave_queue()  # its own queue
            self.engine.pattern.departed(self)
        self._leave_partner()
        self.engine.session_ended(self, before, reason)

    def _leave_partner(self) -> None:
        """Ends the other end, in that end's thread."""
        partner, self._partner = self._partner, None
        if partner is not None:
            engine = partner.engine  # read first: an end that is over drops it
            if not partner.is_over:
                engine.call(partner.end, None)

    def half_close(self) -> bool:
        """Returns true: messages that were sent are with the other end."""
        return True


class InprocListener(StateMachine[ListenerState]):
    """A bound inproc name."""

    descriptor: int | None = None

    def __init__(self, engine: SocketView, endpoint: str, options: Options) -> None:
        self.engine = engine
        self.endpoint = endpoint
        self.options = options
        self.state = ListenerState.BOUND
        engine.context.inproc.bind(endpoint, self)

    def start(self) -> None:
        """Connects the dialers that came before the bind."""
        self.move(ListenerState.ACCEPTING)
        for dialer in self.engine.context.inproc.open(self.endpoint):
            dialer.engine.call(dialer.dial)

    def accept(self, client: PipeSession) -> None:
        """Connects to a dialer's end; runs in this engine's thread."""
        engine = self.engine
        # Read before the check: an end that is over, in its own thread, has dropped them.
        theirs, pipe = client.engine, client.peer
        if client.is_over:
            return
        if not engine.wants_peers:
            theirs.call(client.end, None)
            return
        server = PipeSession(engine, self.endpoint, None, self.options)
        if theirs.socket_type not in COMPATIBLE[engine.socket_type]:
            refusal = RemoteProtocolError(f"{theirs.socket_type.value} cannot talk to {engine.socket_type.value}")
            server.refuse(refusal)
            theirs.call(client.refuse, refusal)
            return
        client.join(pipe, server)
        server.ready()
        theirs.call(client.ready)

    def leave_loop(self) -> None:
        """Does nothing: a name needs no loop."""

    def enter_loop(self) -> None:
        """Does nothing: a name needs no loop."""

    def close_after_fork(self) -> None:
        """Does nothing: there is no descriptor."""

    def close(self) -> None:
        """Releases the name; connections stay."""
        if self.state is not ListenerState.CLOSED:
            self.move(ListenerState.CLOSED)
            self.engine.context.inproc.unbind(self.endpoint)


class InprocDialer(DialerBase):
    """Connects to an inproc name when it is bound, and again when the other end has gone."""

    engine: SocketView

    def __init__(self, engine: SocketView, endpoint: str, options: Options) -> None:
        super().__init__(engine, endpoint, options)
        self.session: PipeSession | None = None
        self._backoff = Backoff(options)

    def start(self) -> None:
        self.dial()

    def dial(self) -> None:
        """Looks the name up; runs in this engine's thread."""
        if self.state is DialerState.CLOSED:
            return
        if not self.wanted:
            self.give_up()
            return
        if self.state is not DialerState.CONNECTING:
            self.go_on(DialerState.CONNECTING)
            self.engine.emit(EventKind.CONNECT_DELAYED, self.endpoint)
        listener = self.engine.context.inproc.find(self.endpoint, self)
        if listener is None:
            return
        self.go_on(DialerState.CONNECTED)
        session = self.session = PipeSession(self.engine, self.endpoint, self, self.options)
        session.ended.add_done_callback(self._again)
        with self.engine.lock:
            refusal = self.engine.pattern.refusal(b"") if not self.leaving else None
        if refusal is not None:
            # Refused before the two meet: otherwise the other end would take itself for connected, and send.
            session.refuse(HandshakeError(refusal))
            return
        listener.engine.call(listener.accept, session)

    def _again(self, _: asyncio.Future[None]) -> None:
        session, self.session = self.session, None
        if self.state is DialerState.CLOSED:
            return
        outcome = "handshake failed" if session is None else outcome_of(session)
        pause = self._backoff.next(outcome) if self.wanted else None
        if pause is None:
            self.give_up()
            return
        self.go_on(DialerState.WAITING)
        self.engine.emit(EventKind.CONNECT_RETRIED, self.endpoint, delay=pause)
        self.engine.loop.call_later(pause, self.dial)

    def enter_loop(self) -> None:
        if self.session is not None and not self.session.is_over:
            self.session.enter_loop()
            self.session.ended.add_done_callback(self._again)
        elif self.state is not DialerState.CLOSED:
            self.session = None
            if self.state is DialerState.CONNECTED:
                self.go_on(DialerState.WAITING)
            self.dial()

    def close(self) -> None:
        if self.session is not None:
            self.session.ended.remove_done_callback(self._again)
        self.engine.context.inproc.forget(self.endpoint, self)
        super().close()
