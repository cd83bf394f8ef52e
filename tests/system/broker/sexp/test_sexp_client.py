"""The S-expression client against the broker's server and against fake ones."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import omq.broker
from omq.broker.config import TopicSpec
from omq.broker.errors import BrokerError, TooLarge, VersionFault
from omq.broker.sexp import Client
from omq.broker.sexp.connection import Limits
from omq.broker.sexp.server import SexpServer
from omq.errors import BindError, ClosedError, ConnectError, EndpointError, ReceiveTimeout, StateError, Timeout
from tests.support.waits import until
from tests.system.broker.sexp.sexp_server import ServerThread

V2 = b"\x00\x00\x00\x00\x00\x00\x00\x02"


@pytest.fixture
def running():
    with ServerThread() as running:
        yield running


def test_create_publish_and_replay(running):
    with Client(running.endpoint) as client:
        topic = client.create("my topic", persistence="weak")
        assert client.create("my topic", persistence="weak") == topic
        assert client.publish("my topic", b"AAPL 189.95") == 1
        bodies = [bytes([at % 256]) * at for at in range(1000)]
        assert client.publish_many("my topic", bodies) == list(range(2, 1002))
        assert client.publish_many("my topic", []) == []
        with client.subscribe("my topic", replay="earliest") as subscription:
            assert (subscription.topic, subscription.topic_id) == ("my topic", topic)
            messages = [subscription.recv(timeout=5) for _ in range(1001)]
            assert [(one.id, one.topic) for one in messages] == [(at, "my topic") for at in range(1, 1002)]
            assert [one.body for one in messages] == [b"AAPL 189.95", *bodies]
            with pytest.raises(ReceiveTimeout):
                subscription.recv(timeout=0.01)
        assert list(subscription) == []
        with client.subscribe("my topic", replay=1000) as subscription:
            assert next(subscription).id == 1001
        for start in (0.0, datetime(2020, 1, 1, tzinfo=UTC)):
            with client.subscribe("my topic", replay=start) as subscription:
                assert next(subscription).id == 1


def test_what_is_refused(running):
    with Client(running.endpoint) as client:
        with pytest.raises(BrokerError, match="Subscribe nothing: there is no topic"):
            client.subscribe("nothing")
        with pytest.raises(BrokerError, match="Publish nothing: there is no topic"):
            client.publish_many("nothing", [b"a", b"b"])
        with pytest.raises(BrokerError, match="must not contain a slash"):
            client.publish("a/b", b"")
        client.create("t", persistence="transient")
        with pytest.raises(BrokerError, match="topic 't' exists with delivery"):
            client.create("t", persistence="weak")
        with pytest.raises(BrokerError, match="above the newest id"):
            client.subscribe("t", replay=7)
        with pytest.raises(BrokerError, match="must not be in the future"):
            client.subscribe("t", replay=time.time() + 3600)
        with pytest.raises(ValueError, match=r"^replay=datetime.*: must have a time zone"):
            client.subscribe("t", replay=datetime(2020, 1, 1))
        with pytest.raises(TooLarge):
            client.publish("t", bytes(20_000))
        for wrong in ("text", 3, None):
            with pytest.raises(TypeError, match=rf"^body={wrong!r}: must be bytes or another contiguous buffer"):
                client.publish("t", wrong)
        for wrong in ("text", b"one body", bytearray(b"one body")):
            with pytest.raises(TypeError, match="must be an iterable of several bodies"):
                client.publish_many("t", wrong)
        assert client.publish("t", b"a" * 60_000) == 1
        with client.subscribe("t"), pytest.raises(BrokerError, match="already"):
            client.subscribe("t")


def test_version_1_only_subscribes(running):
    running.create("t")
    with Client(running.endpoint, version=1, client="one") as client:
        until(lambda: set(running.server.clients) == {b"one"})
        with pytest.raises(StateError):
            client.publish("t", b"")
        with client.subscribe("t") as subscription:
            running.publish("t", b"a")
            assert subscription.recv(timeout=5).body == b"a"
    with pytest.raises(StateError):
        Client(running.endpoint, version=3)


def test_a_deleted_topic_ends_its_subscription_alone(running):
    running.create("t")
    running.create("u")
    with Client(running.endpoint) as client, client.subscribe("u") as other:
        subscription = client.subscribe("t")
        running.publish("t", b"last")
        running.delete("t")
        assert subscription.recv(timeout=5).body == b"last"
        with pytest.raises(BrokerError, match="'t' was deleted"):
            subscription.recv(timeout=5)
        client.publish("u", b"a")
        assert other.recv(timeout=5).body == b"a"


def test_where_a_replay_begins_is_noted(running):
    running.create("t", max_messages=1)
    running.publish("t", b"a")
    running.publish("t", b"b")
    with Client(running.endpoint) as client, client.subscribe("t", replay=0) as subscription:
        assert subscription.recv(timeout=5).id == 2
        assert "begins with 2" in subscription.note


def test_a_busy_program_stays_connected():
    with ServerThread(Limits(ping_interval=0.05)) as running:
        running.create("t")
        with Client(running.endpoint) as client, client.subscribe("t") as subscription:
            (connection,) = running.server.connections
            until(lambda: connection.transport.queued > 200)  # some twenty pings
            running.publish("t", b"a")
            assert subscription.recv(timeout=5).body == b"a"


def test_a_slow_program_holds_up_the_server_and_loses_nothing(running, monkeypatch):
    monkeypatch.setattr("omq.broker.sexp.client.MAX_BACKLOG_BYTES", 1 << 20)
    running.create("t")
    body = bytes(64 << 10)
    with Client(running.endpoint) as client, client.subscribe("t") as subscription:
        for _ in range(500):
            running.publish("t", body)
        (connection,) = running.server.connections
        until(lambda: connection.transport.unsent)
        assert [subscription.recv(timeout=5).id for _ in range(500)] == list(range(1, 501))


def test_a_lost_connection_and_how_to_go_on(running):
    running.create("t")
    with Client(running.endpoint, client="one") as client:
        subscription = client.subscribe("t")
        running.publish("t", b"a", b"b", b"c")
        last = subscription.recv(timeout=5).id
        (connection,) = running.server.connections
        running.on_loop(connection.transport.close)
        until(lambda: not running.server.connections)
        assert [subscription.recv(timeout=5).id for _ in range(2)] == [2, 3]
        with pytest.raises(ClosedError):
            subscription.recv(timeout=5)
        with pytest.raises(ClosedError):
            client.publish("t", b"")
        with Client(running.endpoint, client="one") as again, again.subscribe("t", replay=last) as subscription:
            assert [subscription.recv(timeout=5).id for _ in range(2)] == [2, 3]


def test_a_second_client_of_one_id(running):
    with Client(running.endpoint, client="one"):
        second = Client(running.endpoint, client="one")
        with pytest.raises((ClosedError, BrokerError), match="connected already"):
            second.create("t")
        second.close()


def test_no_server():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConnectError, match="within"):
            Client(endpoint, timeout=0.1)
    with pytest.raises(ConnectError):
        Client(endpoint, timeout=5)


@contextlib.contextmanager
def false_server(output: bytes, quiet: bool = False) -> Iterator[str]:
    """Runs a server of one connection that sends *output*, and then closes it or stays silent."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(output)
                while not quiet and sock.recv(100)[-1:] not in (b"\n", b""):
                    pass
                if quiet:
                    over.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("output", "errors"),
    [
        (b"\xff" * 8, VersionFault),
        (V2 + b"\x00\x00\x00\x00", (ConnectError, BrokerError)),
        (V2 + b"\x00\x00\x00\x02\x09x", (ConnectError, BrokerError)),
        (V2, ClosedError),
    ],
)
def test_a_server_that_speaks_otherwise(output, errors):
    with false_server(output) as endpoint, pytest.raises(errors), Client(endpoint) as client:
        client.create("t")


def test_a_server_that_does_not_answer():
    with false_server(V2, quiet=True) as endpoint, Client(endpoint, timeout=0.1) as client:
        with pytest.raises(Timeout):
            client.create("t")
        with pytest.raises(ClosedError):
            client.create("t")


def test_closed_from_another_thread(running):
    running.create("t")
    client = Client(running.endpoint)
    subscription = client.subscribe("t")
    found: list[Exception] = []

    def wait() -> None:
        try:
            subscription.recv()
        except ClosedError as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    client.close()
    client.close()
    thread.join(10)
    assert len(found) == 1
    assert list(subscription) == []
    with pytest.raises(ClosedError):
        client.publish("t", b"")


def test_the_topics_of_both_servers_are_the_same():
    with (
        omq.broker.Server(memory=True, sexp="tcp://127.0.0.1:*", topics=[TopicSpec("t", persistence="weak")]) as server,
        omq.broker.Client(server.endpoints["zmtp"]) as other,
        Client(server.endpoints["sexp"]) as client,
        client.subscribe("t") as subscription,
    ):
        assert other.publish("t", b"a", key=b"k", headers={"h": b"v"}) == 1
        assert subscription.recv(timeout=5).body == b"a"
        assert client.publish("t", b"b") == 2
        assert [one.body for one in other.read("t")] == [b"a", b"b"]


@pytest.mark.parametrize("endpoint", ["tcp://localhost:*", "tcp://*:0", "tcp://[::1]:*"])
def test_where_a_server_listens(running, endpoint):
    server = SexpServer(running.broker)
    try:
        found = running.call(server.start(endpoint))
    except BindError:
        pytest.skip("this machine has no such address")
    with Client(found.replace("0.0.0.0", "127.0.0.1")) as client:
        assert client.create("t", persistence="weak") == 1
    running.call(server.close())


@pytest.mark.parametrize("endpoint", ["", "tcp://", "tcp://a", "udp://a:1", "tcp://a:x", "tcp://a:65536", "tcp://:1"])
def test_where_no_server_listens(running, endpoint):
    with pytest.raises(EndpointError):
        running.call(SexpServer(running.broker).start(endpoint))
    with pytest.raises(EndpointError):
        Client(endpoint)


def test_a_port_in_use(running):
    with pytest.raises(BindError):
        running.call(SexpServer(running.broker).start(running.endpoint))
