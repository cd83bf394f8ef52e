"""A small SOCKS 5 proxy (RFC 1928, RFC 1929), which a test can have answer as it likes."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import Self

BOUND = 30.0


class SocksServer:
    """Accepts, connects and relays, each connection in a thread of its own.

    Args:
        user: The name and password that it asks for; `None` for neither.
        names: The ports of 127.0.0.1 that stand for names; any other name is unknown to it.
        instead: What it sends for its first answer, its answer to the credentials and to the request; `None` for what
            is right, empty for nothing at all.

    Attributes:
        received: What each client has sent, message by message.
        silent: Set when a client waits for an answer that does not come.
    """

    def __init__(
        self,
        user: tuple[bytes, bytes] | None = None,
        names: dict[bytes, int] | None = None,
        instead: tuple[bytes | None, ...] = (None, None, None),
        *,
        hangs_up: bool = False,
    ) -> None:
        self.received: list[list[bytes]] = []
        self.silent = threading.Event()
        self._user = user
        self._names = names or {}
        self._instead = instead
        self._hangs_up = hangs_up
        self._open: set[socket.socket] = set()
        self._ended = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in tuple(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in tuple(self._threads):
            thread.join(BOUND)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while not self._ended:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(BOUND)
        self._open.add(client)
        received: list[bytes] = []
        self.received.append(received)
        with client, contextlib.suppress(OSError, EOFError):
            self._speak(client, received)
        self._open.discard(client)

    def _answer(self, client: socket.socket, step: int, right: bytes) -> None:
        answer = self._instead[step]
        if answer == b"":
            self.silent.set()
            while client.recv(100):
                pass
            raise EOFError
        client.sendall(right if answer is None else answer)
        if answer is not None and self._hangs_up:
            raise EOFError

    def _speak(self, client: socket.socket, received: list[bytes]) -> None:
        greeting = exactly(client, 2)
        received.append(greeting + exactly(client, greeting[1]))
        method = 2 if self._user is not None else 0
        fits = method in received[-1][2:]
        self._answer(client, 0, bytes([5, method if fits else 255]))
        if not fits:
            raise EOFError
        if self._user is not None:
            head = exactly(client, 2)
            name = exactly(client, head[1])
            size = exactly(client, 1)
            password = exactly(client, size[0])
            received.append(head + name + size + password)
            good = (name, password) == self._user
            self._answer(client, 1, bytes([1, not good]))
            if not good:
                raise EOFError
        request = exactly(client, 4)
        if request[3] == 3:
            size = exactly(client, 1)
            name = exactly(client, size[0])
            received.append(request + size + name + exactly(client, 2))
            target = ("127.0.0.1", self._names.get(name, 0))
        else:
            packed = exactly(client, {1: 4, 4: 16}[request[3]])
            port = exactly(client, 2)
            received.append(request + packed + port)
            family = socket.AF_INET if request[3] == 1 else socket.AF_INET6
            target = (socket.inet_ntop(family, packed), int.from_bytes(port, "big"))
        try:
            server = socket.create_connection(target, BOUND) if target[1] else None
        except ConnectionRefusedError:
            self._answer(client, 2, bytes([5, 5, 0, 1, *bytes(6)]))
            raise EOFError from None
        if server is None:
            self._answer(client, 2, bytes([5, 4, 0, 1, *bytes(6)]))
            raise EOFError
        with server:
            self._open.add(server)
            # A name for its own address: the form with the longest answer. What the server sends follows at once.
            self._answer(client, 2, bytes([5, 0, 0, 3, 5]) + b"proxy" + bytes(2))
            relay(client, server)
            self._open.discard(server)


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def relay(one: socket.socket, other: socket.socket) -> None:
    """Carries bytes both ways until one side ends."""
    while True:
        for sock in select.select([one, other], [], [], BOUND)[0]:
            data = sock.recv(65536)
            if not data:
                return
            (other if sock is one else one).sendall(data)
