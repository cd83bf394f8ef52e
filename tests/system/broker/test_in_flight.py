"""The number of requests of `publish_many` in flight, counted by a broker that answers late."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import omq
from omq._core import blocks
from tests.support.fake_broker import ScriptedBroker, Topic
from tests.system.broker.client_twins import Blocking, Looped

IDLE_TIMEOUT_S = 0.1  # seconds without a request after which no further one is expected


@pytest.fixture(params=[Blocking, Looped], ids=["blocking", "asyncio"])
def twin(request: pytest.FixtureRequest) -> Iterator[Blocking | Looped]:
    twin: Blocking | Looped = request.param()
    yield twin
    twin.close()


class Late:
    """A broker that answers the waiting requests once no more arrive.

    Attributes:
        most: Records that waited for their answers at once.
        requests: Records of each request.
    """

    def __init__(self) -> None:
        self.socket = omq.ROUTER(bind="tcp://127.0.0.1:*")
        self.broker = ScriptedBroker()
        self.broker.topics["t"] = Topic()
        self.most = 0
        self.requests: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        waiting = 0
        while not self._over.is_set():
            try:
                name, *parts = self.socket.recv_multipart(timeout=IDLE_TIMEOUT_S)
            except omq.ReceiveTimeout:
                while self.broker.up:
                    self.broker.step()
                waiting = 0
            else:
                self.broker.up.append(parts)
                if parts[0] == b"APPEND":
                    count = blocks.check(parts[3])
                    self.requests.append(count)
                    waiting += count
                    self.most = max(self.most, waiting)
                else:
                    self.broker.step()
            while self.broker.down:
                self.socket.send_multipart([name, *self.broker.down.popleft()])

    def __enter__(self) -> Late:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.socket.close()


def numbered(count: int) -> Iterator[bytes]:
    return (b"%d" % number for number in range(count))


@pytest.mark.parametrize("in_flight", [1, pytest.param(3, marks=pytest.mark.slow), 10, 100])
def test_no_more_messages_wait_for_their_answers_than_were_asked_for(twin, in_flight):
    count = 4 * in_flight
    with Late() as late:
        client = twin.Client(late.socket.endpoints[0])
        ids = twin.wait(client.publish_many("t", numbered(count), in_flight=in_flight))
        twin.wait(client.close())
    assert ids == list(range(1, count + 1))
    assert late.broker.topics["t"].bodies == list(numbered(count))
    assert late.most <= in_flight
    # Several requests share the window, else each would wait for the whole one before it.
    assert late.most > in_flight // 4
    assert max(late.requests) <= max(in_flight // 4, 1)


def test_else_it_is_as_much_as_eight_mebibytes(twin):
    with Late() as late:
        client = twin.Client(late.socket.endpoints[0])
        twin.wait(client.publish_many("t", [bytes(100_000)] * 200))
        twin.wait(client.close())
    # 64 requests at once at most, each of one body here.
    assert 32 <= late.most <= (8 << 20) // 100_000


@pytest.mark.parametrize("in_flight", [0, -1])
def test_another_number_is_refused_by_its_name(twin, in_flight):
    client = twin.Client("tcp://127.0.0.1:9")
    with pytest.raises(ValueError, match="in_flight="):
        twin.wait(client.publish_many("t", [b"x"], in_flight=in_flight))
    twin.wait(client.close())
