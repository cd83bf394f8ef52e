"""Datagram endpoints: no handshake, no peer that answers, and messages may be lost (RFC 48 over UDP)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from omq._core.link.datagram import DatagramReceiver, DatagramSender
from omq._core.queues.groups import GroupRecvQueue
from omq.engine.dialer_base import Backoff, DialerBase
from omq.engine.lifecycle import ConnectionState, DialerState, ListenerState, StateMachine
from omq.engine.resolver import resolver_of
from omq.engine.session_base import SessionBase
from omq.engine.views import SocketView
from omq.errors import ConnectError, OptionError
from omq.event import EventKind
from omq.options import Options
from omq.transport import DatagramTransport, Endpoint, refusal
from omq.types import COMPATIBLE
from omq.zmtp.handshake import PeerMetadata


def refuse_security(endpoint: str, options: Options) -> None:
    """Raises `OptionError` if `security` is set: datagrams are neither encrypted nor authenticated."""
    if options.security is not None:
        raise OptionError(
            f"option security={options.security.name}: {endpoint} carries datagrams without encryption or "
            "authentication; use tcp, or leave security out"
        )


class DatagramSession(SessionBase):
    """Supervises one datagram descriptor: of all senders to a bound endpoint, or the receivers of a connected one.

    Args:
        engine: The socket.
        endpoint: The endpoint of ours that it belongs to.
        fd: The descriptor; owned from here on.
        options: The options for the endpoint.
        dialer: The dialer that has connected it; `None` if it is bound.
    """

    def __init__(
        self, engine: SocketView, endpoint: str, fd: int, options: Options, dialer: DatagramDialer | None
    ) -> None:
        super().__init__(engine, endpoint, dialer, options)
        (peer_type,) = COMPATIBLE[engine.socket_type]
        self.info = PeerMetadata((3, 1), peer_type, b"", b"", {})
        if dialer is None:
            self.remote_address = ""
        self._core: DatagramSender | DatagramReceiver
        try:
            if dialer is not None:
                self._core = DatagramSender(self, fd, engine.driver.flusher is None)
                self._core.origin = dialer.origin
            else:
                queue = engine.pattern.recv_queue
                assert isinstance(queue, GroupRecvQueue)
                poller, most = engine.driver.poller, options.max_message_size
                self._core = DatagramReceiver(self, fd, poller, queue, engine.options.recv_hwm, most)
        except BaseException:
            os.close(fd)
            raise
        self.peer = self._core

    @property
    def is_named(self) -> bool:
        """Returns whether this side has assigned the peer an identity: datagrams have none."""
        return False

    @property
    def redials(self) -> bool:
        """Returns whether this side dials again after the end: datagrams need no second attempt."""
        return False

    @property
    def is_linked(self) -> bool:
        """Returns whether it takes part in routing."""
        return self.state is ConnectionState.READY

    def start(self) -> None:
        """Joins routing at once: there is no handshake."""
        if self._dialer is not None:
            self.engine.session_connected(self, dialled=True)
        else:
            self.move(ConnectionState.HANDSHAKING)
        self.engine.session_ready(self)
        with self.engine.lock:
            self._core.start()

    def leave(self) -> None:
        """Ends the session; hands queued messages to the kernel, which takes or drops them."""
        if self.engine.options.linger != 0:
            self.half_close()
        self.end(None)

    def half_close(self) -> bool:
        """Hands queued messages to the kernel; returns true, because nothing else is in progress."""
        self.peer.flush_now()
        return True

    def _tear_down(self, before: ConnectionState, reason: Exception | None) -> None:
        with self.engine.lock:
            self.engine.pattern.disconnected(self)
            self._core.close()
        self.engine.session_ended(self, before, reason)

    def close_after_fork(self) -> None:
        """Closes the inherited descriptor, which the parent uses too, in a forked child."""
        self._core.close_after_fork()


class DatagramListener(StateMachine[ListenerState]):
    """A bound datagram endpoint. The kernel keeps what arrives from the start; it is read once there is a loop.

    Args:
        engine: The socket.
        transport: The transport of the endpoint.
        endpoint: The endpoint to bind.
        options: The options of the endpoint.
    """

    descriptor: int | None = None

    def __init__(
        self, engine: SocketView, transport: DatagramTransport[Any], endpoint: Endpoint, options: Options
    ) -> None:
        self.engine = engine
        self.options = options
        self.state = ListenerState.BOUND
        sock, self.endpoint = transport.listen(endpoint, options)
        self._fd = sock.detach()
        self._session: DatagramSession | None = None

    def start(self) -> None:
        """Starts to receive."""
        self.move(ListenerState.ACCEPTING)
        fd, self._fd = self._fd, -1
        self._session = DatagramSession(self.engine, self.endpoint, fd, self.options, None)
        self._session.start()

    def leave_loop(self) -> None:
        """Does nothing: the session handles the end of a loop."""

    def enter_loop(self) -> None:
        """Does nothing: the session continues in another loop by itself."""

    def close_after_fork(self) -> None:
        """Closes the inherited descriptor, which the parent uses too, in a forked child."""
        if self._fd >= 0:
            os.close(self._fd)

    def close(self) -> None:
        """Stops receiving; messages that have arrived can still be received."""
        if self.state is ListenerState.CLOSED:
            return
        self.move(ListenerState.CLOSED)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._session is not None:
            self._session.end(None)


class DatagramDialer(DialerBase):
    """A connected datagram endpoint: messages leave as soon as its host has an address.

    Args:
        engine: The socket.
        transport: The transport of the endpoint.
        endpoint: The endpoint to connect to.
        options: The options of the endpoint.
    """

    engine: SocketView
    session: DatagramSession | None

    def __init__(
        self, engine: SocketView, transport: DatagramTransport[Any], endpoint: Endpoint, options: Options
    ) -> None:
        super().__init__(engine, str(endpoint), options)
        self.session = None
        self._transport = transport
        self._target = endpoint
        self._backoff = Backoff(options)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Sends from now on, or once the host has been resolved."""
        self.go_on(DialerState.CONNECTING)
        self.engine.emit(EventKind.CONNECT_DELAYED, self.endpoint)
        known = self._transport.lookup(self._target, self.options).known
        if known:
            self._open(known)
        else:
            self._task = self.engine.spawn(self._resolve(), f"omq resolve {self.endpoint}")

    async def _resolve(self) -> None:
        lookup = self._transport.lookup(self._target, self.options)
        try:
            infos = await resolver_of(self.engine.loop).resolve(self.engine.loop, lookup)
        except OSError as error:
            self._fail(refusal(ConnectError, self.endpoint, error))
            return
        self._open(infos)

    def _open(self, infos: Any) -> None:
        try:
            sock = self._transport.connect(self._target, self.options, infos)
        except ConnectError as error:
            self._fail(error)
            return
        self.go_on(DialerState.CONNECTED)
        self.session = DatagramSession(self.engine, self.endpoint, sock.detach(), self.options, self)
        self.session.start()

    def _fail(self, error: ConnectError) -> None:
        self.engine.emit(EventKind.CONNECT_FAILED, self.endpoint, reason=error)
        pause = self._backoff.next("failed") if self.wanted else None
        if pause is None:
            self.give_up()
            return
        self.go_on(DialerState.WAITING)
        self.engine.emit(EventKind.CONNECT_RETRIED, self.endpoint, delay=pause)
        self._timer = self.engine.loop.call_later(pause, self._again)

    def _again(self) -> None:
        self._timer = None
        if self.state is DialerState.WAITING:
            self.start()

    def enter_loop(self) -> None:
        """Continues in another loop; a session continues by itself."""
        if self.state is DialerState.CONNECTING:
            self.go_on(DialerState.CONNECTED)
            self.go_on(DialerState.WAITING)
        self._again()

    def _end(self) -> None:
        super()._end()
        if self._task is not None and self.engine.in_loop:
            self._task.cancel()
        self._task = None
