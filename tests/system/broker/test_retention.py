"""`retain_for` and `overflow="block"` of a broker: publishers wait for the durable subscription."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omq.broker
from omq.broker import BrokerTimeout, Server
from tests.support.fork_server import ForkedProcess
from tests.support.waits import until
from tests.system.broker.client_twins import TWINS, twins
from tests.system.broker.server_process import broker, get

pytestmark = pytest.mark.timeout(120)

BOUNDED = "max_messages=4:overflow=block:retain_for=archiver"
TOPICS = (f"full:broadcast:strong:{BOUNDED}", "free:broadcast:strong")

#: A publisher that waits for room until Ctrl-C.
WAITING = """
import sys
import omq.broker
with omq.broker.Client(sys.argv[1], timeout=None) as client:
    print("waits", flush=True)
    try:
        client.publish("full", b"given up")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.fixture
def endpoints(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yields the endpoints of a broker with the topics above."""
    with Server(tmp_path / "data", topics=TOPICS, bind="tcp://127.0.0.1:*", http="127.0.0.1:0") as server:
        yield server.endpoints


@pytest.fixture(params=sorted(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from twins(request.param)


class Publisher(threading.Thread):
    """Publishes messages one after the other, each once the one before is acknowledged.

    Attributes:
        ids: Those that were acknowledged.
    """

    def __init__(self, endpoint: str, bodies: list[bytes]) -> None:
        super().__init__(daemon=True)
        self._endpoint, self._bodies = endpoint, bodies
        self.ids: list[int] = []
        self.start()

    def run(self) -> None:
        with omq.broker.Client(self._endpoint, timeout=None) as client:
            for body in self._bodies:
                self.ids.append(client.publish("full", body))


def blocked(http: str) -> bool:
    """Returns whether publications wait for room."""
    return b'omq_broker_topic_blocked_messages{topic="full"} 0.0' not in get(f"{http}/metrics")


def read_all(endpoint: str, count: int) -> list[bytes]:
    """Reads and acknowledges messages as the reader of the topic."""
    with omq.broker.Client(endpoint, timeout=20) as client, client.subscribe("full", name="archiver") as reader:
        bodies = []
        while len(bodies) < count:
            message = reader.recv(timeout=20)
            bodies.append(message.body)
            reader.ack(message)
        client.flush()
        return bodies


def test_the_settings_through_a_client(endpoints: dict[str, str], twin: Any) -> None:
    client = twin.Client(endpoints["zmtp"], timeout=20)
    settings = {"retain_for": "archiver", "max_bytes": 1 << 20, "overflow": "block"}
    assert twin.wait(client.create("made", persistence="weak", **settings)).settings == settings
    twin.wait(client.publish_many("made", [b"a", b"b", b"c"]))
    assert [(one.name, one.position, one.lag) for one in twin.wait(client.durables("made"))] == [("archiver", 0, 3)]
    reader = twin.wait(client.subscribe("made", name="archiver"))
    a, b = twin.take(reader, 2)
    assert (a.body, b.body) == (b"a", b"b")
    twin.call(reader.ack, b)
    twin.wait(client.flush())
    until(lambda: twin.wait(client.topics("made"))[0].first == 3)
    twin.wait(reader.close())
    with pytest.raises(omq.broker.TopicError, match="retain_for"):
        twin.wait(client.delete_durable("made", "archiver"))
    with pytest.raises(omq.broker.TopicError, match="broadcast"):
        twin.wait(client.create("jobs", delivery="round-robin", retain_for="archiver"))
    hasty = twin.Client(endpoints["zmtp"], timeout=0.3)
    assert len(twin.wait(hasty.publish_many("full", [b"x"] * 4))) == 4
    with pytest.raises(BrokerTimeout):
        twin.wait(hasty.publish("full", b"given up"))
    twin.wait(hasty.close())
    twin.wait(client.close())


def test_two_publishers_wait_and_keep_nothing_else(endpoints: dict[str, str]) -> None:
    publishers = [
        Publisher(endpoints["zmtp"], [b"%s%d" % (who, number) for number in range(20)]) for who in (b"a", b"b")
    ]
    until(lambda: blocked(endpoints["http"]))
    with omq.broker.Client(endpoints["zmtp"], timeout=20) as client:
        begun = time.monotonic()
        assert client.publish_many("free", [b"x"] * 1000)[-1] == 1000
        assert get(f"{endpoints['http']}/healthz") == b"ok\n"
        assert time.monotonic() - begun < 10
    assert all(publisher.is_alive() for publisher in publishers)
    bodies = read_all(endpoints["zmtp"], 40)
    for publisher in publishers:
        publisher.join(20)
        assert publisher.ids == sorted(set(publisher.ids))
    assert sorted(publishers[0].ids + publishers[1].ids) == list(range(1, 41))
    for who in (b"a", b"b"):
        assert [body for body in bodies if body[:1] == who] == [b"%s%d" % (who, number) for number in range(20)]


def test_ctrl_c_ends_the_wait_and_stores_nothing(endpoints: dict[str, str]) -> None:
    with omq.broker.Client(endpoints["zmtp"], timeout=20) as client:
        client.publish_many("full", [b"1", b"2", b"3", b"4"])
        waiting = ForkedProcess("-c", WAITING, endpoints["zmtp"], stdout=subprocess.PIPE)
        try:
            until(lambda: blocked(endpoints["http"]))
            waiting.send_signal(signal.SIGINT)
            assert waiting.communicate(timeout=20)[0] == b"waits\ninterrupted\n"
            assert waiting.returncode == 0
        finally:
            waiting.kill()
            waiting.wait()
        until(lambda: not blocked(endpoints["http"]))
        assert read_all(endpoints["zmtp"], 4) == [b"1", b"2", b"3", b"4"]
        assert client.publish("full", b"5") == 5


def test_a_killed_broker_keeps_what_the_reader_has_not_and_publishes_nothing_twice(
    tmp_path: Path, free_port: int
) -> None:
    arguments = (tmp_path / "data", "--bind", f"tcp://127.0.0.1:{free_port}", "--http", "127.0.0.1:0")
    arguments += tuple(f"--topic={topic}" for topic in TOPICS)
    bodies = [b"%d" % number for number in range(24)]
    read: list[bytes] = []
    publisher = None
    for _ in range(2):
        with broker(tmp_path, *arguments) as started:
            endpoints = started.serving()
            publisher = publisher or Publisher(endpoints["zmtp"], bodies)
            until(lambda http=endpoints["http"]: blocked(http))
            read += read_all(endpoints["zmtp"], 7)
            until(lambda http=endpoints["http"]: blocked(http))
            started.process.kill()
            started.ended()
    assert publisher is not None
    with broker(tmp_path, *arguments) as started:
        read += read_all(started.serving()["zmtp"], len(bodies) - len(read))
        publisher.join(20)
    assert read == bodies
    assert publisher.ids == list(range(1, len(bodies) + 1))
