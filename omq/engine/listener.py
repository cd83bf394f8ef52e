"""A bound endpoint: accepts connections, and makes a session for each."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

from omq._core.link.handshake_io import accept
from omq.engine.connection_limiter import ConnectionLimiter
from omq.engine.lifecycle import ListenerState, StateMachine
from omq.engine.views import SocketView
from omq.event import EventKind
from omq.options import Options
from omq.transport import Endpoint, StreamTransport
from omq.unpatched import socket

#: Seconds without accepting if descriptors or memory are short, or too many handshakes are in progress.
_RETRY_DELAY_S = 0.1
_MAX_ACCEPTS_PER_TURN = 64  # per turn: the loop has other work
_ACCEPTING = ListenerState.ACCEPTING
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener(StateMachine[ListenerState]):
    """The listening sockets of one endpoint. They listen from the start, and accept once there is a loop.

    Args:
        engine: The socket.
        transport: The transport of the endpoint.
        endpoint: The endpoint to bind.
        options: The options of the endpoint.

    Attributes:
        endpoint: The endpoint with its real address and port.
        options: The options of the endpoint.
    """

    def __init__(
        self, engine: SocketView, transport: StreamTransport[Any], endpoint: Endpoint, options: Options
    ) -> None:
        self.engine = engine
        self._transport = transport
        self.options = options
        self._sockets, self.endpoint, self._cleanup = transport.listen(endpoint, options)
        self._limiter = ConnectionLimiter(engine, options)
        self._timer: asyncio.TimerHandle | None = None  # set while it is paused
        self.state = ListenerState.BOUND

    @property
    def descriptor(self) -> int | None:
        """The descriptor of its first socket, for monitors."""
        return self._sockets[0].fileno() if self._sockets else None

    def start(self) -> None:
        """Starts to accept."""
        if self.state is not ListenerState.CLOSED:
            self.engine.handshakes.open()
            self.move(ListenerState.ACCEPTING)
            self._watch()

    def _watch(self) -> None:
        for sock in self._sockets:
            kind = (int(sock.family), int(sock.type), sock.proto)
            self.engine.loop.add_reader(sock.fileno(), self._accept, sock.fileno(), kind)

    def leave_loop(self) -> None:
        """Leaves a loop that ends, or has ended."""
        self._limiter.leave_loop()
        if self.engine.in_loop:
            for sock in self._sockets:
                self.engine.loop.remove_reader(sock.fileno())

    def enter_loop(self) -> None:
        """Continues in another loop."""
        self._limiter.enter_loop()
        if self.state is ListenerState.ACCEPTING:
            self._watch()
        else:
            self._resume()

    def _pause(self) -> None:
        """Stops accepting for a moment: a level-triggered loop would spin on connections that it cannot accept."""
        self.move(ListenerState.PAUSED)
        for sock in self._sockets:
            self.engine.loop.remove_reader(sock.fileno())
        self._timer = self.engine.loop.call_later(_RETRY_DELAY_S, self._resume)

    def _resume(self) -> None:
        """Accepts again; tries later if the loop can watch no more descriptors (epoll_ctl(2), ENOSPC)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.state is not ListenerState.PAUSED:
            return
        try:
            self.start()
        except OSError as error:
            self.engine.emit(EventKind.ACCEPT_FAILED, self.endpoint, reason=error)
            self._pause()

    def _accept(self, listening: int, kind: tuple[int, int, int]) -> None:
        transport = self._transport
        limiter = self._limiter
        for turn in range(_MAX_ACCEPTS_PER_TURN):
            if self.state is not _ACCEPTING:
                return
            if limiter.full and turn:
                return  # the loop calls again if more connections wait
            if not limiter.has_room():
                # Connections lose nothing by waiting in the backlog.
                self._pause()
                limiter.on_leave = self._resume
                return
            try:
                accepted = accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                scarce = error.errno in _SCARCE
                if scarce and limiter.shed(f"the oldest handshake makes room: {error}"):
                    continue
                self.engine.emit(EventKind.ACCEPT_FAILED, self.endpoint, reason=error)
                if scarce:
                    self._pause()
                return
            if accepted is None:
                return
            fd, address = accepted
            refusal: str | OSError | None = limiter.refusal
            if refusal is None:
                sock = socket.socket(*kind, fileno=fd)
                try:
                    refusal = transport.rejection(sock, address, self.options)
                    transport.tune(sock, self.options)
                    remote = transport.remote_address(sock) if address is None else transport.endpoint_of(address)
                except OSError as error:
                    refusal = error  # the peer reset the connection before it was accepted
                sock.detach()
            if refusal is not None:
                os.close(fd)
                self.engine.emit(EventKind.ACCEPT_FAILED, self.endpoint, reason=refusal)
                continue
            try:
                self.engine.adopt(fd, transport, self.endpoint, remote, self.options, None, limiter)
            except Exception as error:  # its transport lacks something else, such as descriptors
                self.engine.emit(EventKind.ACCEPT_FAILED, self.endpoint, reason=error)
                if isinstance(error, OSError) and error.errno in _SCARCE:
                    self._pause()
                    return

    def close_after_fork(self) -> None:
        """Closes the inherited descriptors in a forked child; the endpoint's file stays the parent's."""
        for sock in self._sockets:
            sock.close()

    def give_back(self) -> None:
        """Closes the listener, but leaves a descriptor of the program (`use_fd`) open, and the program's."""
        if self.options.use_fd is not None:
            for sock in self._sockets:
                if self.engine.in_loop:
                    self.engine.loop.remove_reader(sock.fileno())
                sock.detach()
            self._sockets = ()
        self.close()

    def close(self) -> None:
        """Stops listening; connections that it accepted stay."""
        if self.state is not ListenerState.CLOSED:
            self.move(ListenerState.CLOSED)
            # The file goes first: while the socket is open, no process takes the file for a stale one.
            self._cleanup()
            for sock in self._sockets:
                if self.engine.in_loop:
                    self.engine.loop.remove_reader(sock.fileno())
                sock.close()
