"""Snapshots of a running broker, and brokers that serve restored ones."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from omq.broker import Client
from tests.support.fork_server import run
from tests.support.waits import until
from tests.system.broker.server_process import MAIN, broker

pytestmark = pytest.mark.timeout(120)


def omq(*words: object) -> subprocess.CompletedProcess[str]:
    return run("-c", MAIN, *map(str, words))


class Publisher(threading.Thread):
    """Publishes to a topic until it is stopped.

    Attributes:
        last: The last acknowledged id.
    """

    def __init__(self, endpoint: str, topic: str) -> None:
        super().__init__()
        self.last = 0
        self._endpoint = endpoint
        self._topic = topic
        self._stopped = threading.Event()

    def run(self) -> None:
        with Client(self._endpoint) as client:
            while not self._stopped.is_set():
                self.last = client.publish(self._topic, b"%d" % (self.last + 1))

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def test_a_snapshot_under_load_has_what_was_acknowledged(tmp_path: Path) -> None:
    store, snapshot, restored = (tmp_path / name for name in ("store", "snapshot", "restored"))
    topics = [word for name in ("strong", "weak") for word in ("--topic", f"{name}:broadcast:{name}")]
    with broker(tmp_path, store, *topics, "--topic", "jobs:round-robin:strong") as command:
        endpoint = command.serving()["zmtp"]
        with Client(endpoint) as client:
            client.publish_many("jobs", [b"done", b"open"])
            id = client.broker
            with client.consume("jobs", credit=1) as jobs:
                jobs.recv(timeout=10).ack()
                client.flush()
            client.publish("strong", b"1")
            with client.subscribe("strong", name="reader", replay="earliest") as reader:
                reader.ack(reader.recv(timeout=10))
                client.flush()
            with client.consume("strong", group="workers", replay="earliest") as worker:
                worker.recv(timeout=10).ack()
            publishers = [Publisher(endpoint, name) for name in ("strong", "weak")]
            publishers[0].last = 1
            for publisher in publishers:
                publisher.start()
            try:
                until(lambda: publishers[0].last > 1)
                acknowledged = [publisher.last for publisher in publishers]
                taken = omq("broker", "snapshot", store, snapshot)
            finally:
                for publisher in publishers:
                    publisher.stop()
            assert taken.returncode == 0, taken.stderr
            assert publishers[0].last > acknowledged[0]
        assert command.end() == 0
    assert omq("store", "verify", snapshot).returncode == 0
    refused = omq("broker", snapshot, "--bind", "tcp://127.0.0.1:*")
    assert refused.returncode == 1
    assert f"`omq broker restore {snapshot} DIR` makes a store of it" in refused.stderr
    assert omq("broker", "restore", snapshot, restored).returncode == 0
    with broker(tmp_path, restored) as command, Client(command.serving()["zmtp"]) as client:
        assert [topic.name for topic in client.topics()] == ["jobs", "strong", "weak"]
        assert client.broker != id
        for publisher, last in zip(("strong", "weak"), acknowledged, strict=True):
            bodies = [message.body for message in client.read(publisher)]
            assert bodies == [b"%d" % number for number in range(1, len(bodies) + 1)]
            assert len(bodies) >= last
        (durable,) = client.durables("strong")
        assert (durable.name, durable.position) == ("reader", 1)
        (group,) = client.groups("strong")
        assert (group.name, group.lag, group.consumers) == ("workers", client.topics("strong")[0].last - 1, 0)
        with client.consume("strong", group="workers") as worker:
            assert worker.recv(timeout=10).id == 2
        with client.consume("jobs") as jobs:
            assert jobs.recv(timeout=10).body == b"open"
