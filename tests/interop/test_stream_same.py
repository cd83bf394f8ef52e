"""One program of STREAM, drawn by chance, with omq's twins and with libzmq: each step is seen in the same way."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop
import zmq

import omq
import omq.asyncio
from tests.support.waits import BOUND

STEPS = 40


class Libzmq:
    """libzmq's STREAM."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._stream = self._context.socket(zmq.STREAM)
        self._stream.linger = 0
        self._stream.rcvtimeo = int(BOUND * 1000)
        self.port = self._stream.bind_to_random_port("tcp://127.0.0.1")

    def recv(self) -> list[bytes]:
        return list(self._stream.recv_multipart())

    def send(self, peer: bytes, body: bytes) -> bool:
        try:
            self._stream.send_multipart([peer, body], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):  # as long as it does not know that the peer has gone
                return False
            raise
        return True

    def has_more(self) -> bool:
        return bool(self._stream.poll(0))

    def close(self) -> None:
        self._stream.close()
        self._context.term()


class Blocking:
    """omq's blocking twin."""

    def __init__(self) -> None:
        self._stream: Any = self.do(lambda: self.library().STREAM(linger=0, recv_timeout=BOUND, send_timeout=BOUND))
        self.port = int(self.do(lambda: self._stream.bind("tcp://127.0.0.1:*")).rsplit(":", 1)[1])

    def library(self) -> Any:
        return omq

    def do(self, work: Any) -> Any:
        return work()

    def recv(self) -> list[bytes]:
        return list(self.do(lambda: self._stream.recv_multipart()))

    def send(self, peer: bytes, body: bytes) -> bool:
        try:
            self.do(lambda: self._stream.send_multipart([peer, body]))
        except omq.UnroutableError:
            return False
        return True

    def has_more(self) -> bool:
        return bool(self.do(lambda: self._stream.poll(0)))

    def close(self) -> None:
        self.do(lambda: self._stream.close())


class Awaited(Blocking):
    """omq's asyncio twin, whose loop runs while a call does."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        super().__init__()

    def library(self) -> Any:
        return omq.asyncio

    def do(self, work: Any) -> Any:
        async def run() -> Any:
            result = work()
            return await result if asyncio.iscoroutine(result) or hasattr(result, "__await__") else result

        return self._loop.run_until_complete(run())

    def close(self) -> None:
        super().close()
        self._loop.close()


@pytest.fixture(params=[Libzmq, Blocking, Awaited], ids=lambda kind: kind.__name__)
def stream(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = request.param()
    yield made
    made.close()


def read(stream: Any, plain: socket.socket, size: int | None) -> bytes:
    """Reads a number of bytes, or `None` for all up to the end; calls the socket meanwhile, which libzmq needs."""
    found = b""
    plain.settimeout(0.002)
    until = time.monotonic() + BOUND
    while size is None or len(found) < size:
        assert time.monotonic() < until, "nothing comes"
        stream.has_more()
        try:
            more = plain.recv(65536)
        except TimeoutError:
            continue
        if not more:
            assert size is None, "the end has come early"
            break
        found += more
    return found


@pytest.mark.parametrize("seed", range(8))
def test_every_step_of_a_program_is_seen(stream: Any, seed: int) -> None:
    chance = random.Random(seed)
    plains: dict[bytes, socket.socket] = {}
    gone: list[bytes] = []
    for number in range(STEPS):
        body = bytes([number]) * chance.choice((1, 100, 8192, 8193, 100_000))
        step = chance.choice(("dial", "sends", "receives", "closed", "ends", "halves", "late")) if plains else "dial"
        peer = chance.choice(sorted(plains)) if plains else b""
        if step == "dial":
            plain = socket.create_connection(("127.0.0.1", stream.port), timeout=BOUND)
            peer, nothing = stream.recv()
            assert nothing == b""
            assert (len(peer), peer[:1]) == (5, b"\0")
            assert peer not in plains
            assert peer not in gone
            plains[peer] = plain
        elif step == "sends":
            plains[peer].settimeout(BOUND)
            plains[peer].sendall(body)
            found = b""
            while len(found) < len(body):
                sender, more = stream.recv()
                assert sender == peer
                assert more
                found += more
            assert found == body
        elif step == "receives":
            assert stream.send(peer, body)
            assert read(stream, plains[peer], len(body)) == body
        elif step == "late" and gone:
            assert not stream.send(chance.choice(gone), body)
        elif step == "closed":
            assert stream.send(peer, b"")
            with plains.pop(peer) as plain:
                assert read(stream, plain, None) == b""
            gone.append(peer)
        elif step in ("ends", "halves"):
            with plains.pop(peer) as plain:
                if step == "halves":
                    plain.shutdown(socket.SHUT_WR)
                else:
                    plain.close()
                assert stream.recv() == [peer, b""]
                if step == "halves":
                    assert read(stream, plain, None) == b""
            gone.append(peer)
            while stream.send(peer, b"x"):  # libzmq takes a moment
                time.sleep(0.001)
    assert not stream.has_more()
    for plain in plains.values():
        plain.close()
