"""A connection without an engine: one end of a socket pair, driven by the running loop."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from omq._core.calls.call import AsyncCore
from omq._core.link.connection import Connection
from omq._core.link.poller import Poller
from omq._core.queues.groups import GroupRecvQueue, OwnGroups
from omq._core.queues.peer import RecvQueue, SendQueue
from omq._core.queues.send_queue import RoundRobin
from omq._core.wire.pool import Pool
from omq.engine.driver import TASKS


class Session:
    """The engine's callbacks."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.messages: list[list[bytes]] = []
        self.lost: list[Exception | None] = []
        self.peer: Connection

    def on_command(self, body: bytes) -> None:
        self.commands.append(body)

    def on_message(self, parts: list[bytes]) -> None:
        self.messages.append(parts)

    def on_lost(self, reason: Exception | None) -> None:
        self.end(reason)

    def end(self, reason: Exception | None) -> None:
        self.lost.append(reason)
        self.peer.close()


class Driven(AsyncCore):
    """The calls of a socket over one or more bare connections.

    Args:
        queue: Whether messages wait in a receive queue; if not, the session gets them, and nothing can be sent.
        send_hwm: Messages.
        groups: Those of a DISH, whose receive queue it gets.
    """

    def __init__(self, *, queue: bool = True, send_hwm: int = 0, groups: OwnGroups | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.pool = Pool()
        self.poller = Poller(self.turn)
        self._queue = queue
        recv_queue = RecvQueue(self.readable) if groups is None else GroupRecvQueue(self.readable, groups.matcher)
        send_queue = RoundRobin(self.writable, send_hwm)
        send_queue.set_schedule(lambda: loop.call_soon(self._flush_turn, send_queue))
        self._assemble(recv_queue, send_queue, *TASKS, self.poller)
        self._set_loop(loop)
        loop.add_reader(self.poller.fd, self.poller.dispatch)
        self.sessions: list[Session] = []
        self.others: list[socket.socket] = []

    def _flush_turn(self, send_queue: SendQueue) -> None:
        send_queue.flush_turn()

    def link(self, recv_hwm: int = 0, *, buffer: int | None = None, start: bytes = b"", **limits: Any) -> socket.socket:
        """Adds a connection; gives the other end, which blocks for 10 seconds at most."""
        ours, theirs = socket.socketpair()
        if buffer is not None:
            for sock in (ours, theirs):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        theirs.settimeout(10)
        self.others.append(theirs)
        self.attach(ours, recv_hwm, start=start, **limits)
        return theirs

    def attach(self, ours: socket.socket, recv_hwm: int = 0, *, start: bytes = b"", **limits: Any) -> Session:
        """Adds a connection over this socket, which is its own from here on."""
        ours.setblocking(False)
        session = Session()
        session.peer = Connection(
            session, ours.detach(), self.poller, self.pool, self.recv_queue if self._queue else None, recv_hwm, **limits
        )
        self.sessions.append(session)
        assert self.send_queue is not None
        if self._queue:
            self.send_queue.add(session.peer)
        session.peer.start(start)
        return session

    @property
    def session(self) -> Session:
        (session,) = self.sessions
        return session

    async def feed(self, other: socket.socket, data: bytes) -> None:
        """Writes from the other end, while this one may have to read."""
        other.setblocking(False)
        async with asyncio.timeout(10):
            await asyncio.get_running_loop().sock_sendall(other, data)

    async def read(self, other: socket.socket, size: int) -> bytes:
        """Reads exactly *size* bytes at the other end."""
        other.setblocking(False)
        data = bytearray()
        async with asyncio.timeout(10):
            while len(data) < size:
                more = await asyncio.get_running_loop().sock_recv(other, size - len(data))
                if not more:
                    raise EOFError(bytes(data))
                data += more
        return bytes(data)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.poller.fd)
        for session in self.sessions:
            session.peer.close()
        for other in self.others:
            other.close()
        self.poller.close()

    def __enter__(self) -> Driven:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
