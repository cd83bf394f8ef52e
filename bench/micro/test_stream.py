"""A connection's receiving half: a socket pair's bytes become messages, without a socket's queues."""

import socket

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from omq._core.link.connection import Connection
from omq._core.link.poller import Poller
from omq._core.wire.framing import encode_frame
from omq._core.wire.pool import Pool

WRITE_BYTES = 32768  # before the connection reads


class _Counter:
    """Stands in for the engine: counts messages."""

    def __init__(self) -> None:
        self.messages = 0

    def on_command(self, body: bytes) -> None:
        raise AssertionError(body)

    def on_message(self, parts: list[bytes]) -> None:
        self.messages += 1

    def on_lost(self, reason: BaseException | None) -> None:
        raise AssertionError(reason)


@pytest.mark.parametrize("size", [16, 128, 1024, WRITE_BYTES // 2])
def test_decode_through_a_socket_pair(benchmark: BenchmarkFixture, size: int) -> None:
    far, near = socket.socketpair()
    near.setblocking(False)
    counter, poller = _Counter(), Poller()
    connection = Connection(counter, near.detach(), poller, Pool(), None, 0)
    connection.start(b"")
    frame = encode_frame(b"x" * size)
    count = WRITE_BYTES // len(frame)
    piece = frame * count

    def write() -> None:
        far.sendall(piece)

    benchmark.pedantic(poller.dispatch, setup=write, rounds=2000, warmup_rounds=100)  # type: ignore[no-untyped-call]
    assert counter.messages == count * 2100
    connection.close()
    poller.close()
    far.close()
