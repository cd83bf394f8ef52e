"""One node of a cluster among raw sockets: a peer, and strangers."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from click.testing import CliRunner

import omq
from omq._core.blocks import encode
from omq.cli.pzq import pzq
from omq.pzq import Consumer, Device, NotReplicated, Producer
from omq.pzq.wire import key_format, key_of, pack
from tests.support.libzmq_pzq_clients import figures, raw
from tests.support.ports import held
from tests.support.pzq_nodes import HOSTS, Node, running, until

STATE: dict[str, Any] = {"incarnations": [1], "store": "", "records": {}, "heard": {}, "holds": {}, "known": {}}
pytestmark = pytest.mark.timeout(60)
KEY = b"1700000000000000|0b9c2d4e-8a4f-8c5e-9b1a-123456789abc"


@contextmanager
def device(tmp_path: Path, **options: object) -> Iterator[tuple[Device, int, int]]:
    """The first of two nodes; the other one is the test's. Gives the ports of receive and broadcast, too."""
    with (
        held(*HOSTS) as receive,
        held(*HOSTS) as broadcast,
        Device(
            tmp_path / "data",
            receive=f"tcp://127.0.0.1:{receive}",
            monitor="tcp://127.0.0.1:*",
            broadcast=f"tcp://127.0.0.1:{broadcast}",
            nodes=[f"tcp://127.0.0.2:{receive}"],
            **{"timeout_nodes": 1_000_000, "timeout_replication": 2_000_000, **options},
        ) as made,
    ):
        yield made, receive, broadcast


class Peer:
    """Another node: replicas come, keep-alives go."""

    def __init__(self, receive: int, broadcast: int) -> None:
        self.context = zmq.Context()
        self.router, self.sub, self.pub = (self.context.socket(kind) for kind in (zmq.ROUTER, zmq.SUB, zmq.PUB))
        self.router.bind(f"tcp://127.0.0.2:{receive}")
        self.sub.bind(f"tcp://127.0.0.2:{broadcast}")
        self.sub.subscribe(b"CLUSTER")
        self.pub.sndhwm = 0
        self.pub.connect(f"tcp://127.0.0.1:{broadcast}")
        self.name = f"tcp://127.0.0.2:{broadcast}".encode()
        self.sub.rcvtimeo = self.router.rcvtimeo = 10_000
        self._number = 0
        self._telling = threading.Lock()  # frames of two threads would be mixed up in one message
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(0.1):
            self.beat()

    def beat(self) -> None:
        """Sends a keep-alive."""
        self._number += 1
        self.publish("KALV", **STATE, number=self._number)

    def publish(self, kind: str, **body: object) -> None:
        """Broadcasts a message."""
        self.broadcast(kind.encode(), json.dumps({"from": self.name.decode(), **body}).encode())

    def broadcast(self, *frames: bytes) -> None:
        with self._telling:
            self.pub.send_multipart([b"CLUSTER", *frames])

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self.context.destroy(linger=0)

    def wait_for(self, kind: str) -> dict[str, Any]:
        """Returns the device's next broadcast of this kind."""
        while True:
            _, of, body = self.sub.recv_multipart()
            if of == kind.encode():
                return dict(json.loads(body))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Device, int, int]]:
    with device(tmp_path, replicas=1) as made:
        yield made


@pytest.fixture
def other(place: tuple[Device, int, int]) -> Iterator[Peer]:
    made = Peer(*place[1:])
    made.wait_for("KALV")  # its subscription is known
    yield made
    made.end()


def test_a_peer_takes_replicas(place: tuple[Device, int, int], other: Peer) -> None:
    made = place[0]
    until(lambda: figures(made.endpoints["monitor"])["nodes_alive"] == 2, "the peer is alive")
    with raw(zmq.DEALER, made.endpoints["receive"]) as producer:
        producer.send_multipart([b"id", b"", b"one", b"", b"two"])
        peer, id, header, empty, head, records = other.router.recv_multipart()
        assert header == f"REPLICAS:tcp://127.0.0.1:{place[2]}".encode()
        assert (empty, records) == (b"", pack([b"one", b"", b"two"]))
        key, count = head.split()
        assert count == b"1"
        assert not producer.poll(200)  # not before the replica is there
        other.router.send_multipart([peer, id, b"1", b""])
        assert producer.recv_multipart() == [b"id", b"1", b""]
    with Consumer(made.endpoints["send"]) as consumer:
        consumer.recv(timeout=10).ack()
    assert other.wait_for("REMOVES")["keys"] == [key.decode()]


def test_replicas_of_a_peer(place: tuple[Device, int, int], other: Peer) -> None:
    made = place[0]
    until(lambda: figures(made.endpoints["monitor"])["nodes_alive"] == 2, "the peer is alive")
    with raw(zmq.DEALER, made.endpoints["receive"]) as peer:
        for _ in range(2):  # the second one is there already
            peer.send_multipart([b"7", b"REPLICAS:" + other.name, b"", KEY + b" 1", encode([b"body"])])
            assert peer.recv_multipart() == [b"7", b"1", b""]
    assert figures(made.endpoints["monitor"])["replicas"] == 1
    assert other.wait_for("ASK")["keys"] == [KEY.decode()]
    other.publish("REMOVES", keys=[KEY.decode()])
    until(lambda: figures(made.endpoints["monitor"])["messages"] == 0, "the replica is removed")


@pytest.mark.slow
def test_a_consumer_and_a_node_acknowledge_the_same_messages(
    place: tuple[Device, int, int], other: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    made, count = place[0], 500
    until(lambda: figures(made.endpoints["monitor"])["nodes_alive"] == 2, "the peer is alive")
    with (
        raw(zmq.DEALER, made.endpoints["receive"]) as peer,
        raw(zmq.ROUTER, made.endpoints["send"], rcvhwm=0, sndhwm=0) as consumer,
    ):
        replicas = [key_of(key_format(32 * "7", 1), 1_700_000_000_000_000, number) for number in range(count)]
        for number, key in enumerate(replicas):
            peer.send_multipart([b"id", b"REPLICAS:" + other.name, b"", key + b" 1", encode([b"body"])])
            peer.recv_multipart()
            peer.send_multipart([b"id", b"", b"%d" % number])  # one of its own
        keys = []
        for _ in range(count):
            device, key, *_ = consumer.recv_multipart()
            keys.append(key)
        for key in keys:
            consumer.send_multipart([device, key, b"1"])
            other.publish("REMOVES", keys=[key.decode()])
        for key in replicas:
            other.publish("REMOVES", keys=[key.decode()])
        until(lambda: figures(made.endpoints["monitor"])["messages"] == 0, "nothing is left")
    assert not [record for record in caplog.records if "ignoring" in record.message or record.exc_info]


def test_a_keep_alive_has_what_the_page_lists(place: tuple[Device, int, int], other: Peer) -> None:
    body = other.wait_for("KALV")
    assert body["from"] == f"tcp://127.0.0.1:{place[2]}"
    assert {*body} == {"from", "incarnations", "number", "store", "records", "heard", "holds", "timeout", "known"}


def test_a_node_that_has_no_part_in_the_cluster_reports_why(tmp_path: Path) -> None:
    with device(tmp_path, replicas=1, http="127.0.0.1:0") as (made, receive, broadcast):
        other = Peer(receive, broadcast)
        try:
            it = other.wait_for("KALV")
            assert figures(made.endpoints["monitor"])["aside"] is None
            later = {it["from"]: [it["store"], it["incarnations"][-1] + 1]}
            other.publish("KALV", **{**STATE, "number": 1 << 40, "known": later})
            assert "is an older copy: it lacks the incarnation" in other.wait_for("ASIDE")["why"]
        finally:
            other.end()
        assert "is an older copy: it lacks the incarnation" in figures(made.endpoints["monitor"])["aside"]
        with pytest.raises(urllib.error.HTTPError, match="503") as error:
            urllib.request.urlopen(f"{made.endpoints['http']}/healthz", timeout=10)
        with error.value as answer:
            assert b"this node has no part in its cluster: the directory of" in answer.read()


def test_a_node_announces_its_endpoint(place: tuple[Device, int, int]) -> None:
    assert place[0].endpoints["broadcast"] == f"tcp://127.0.0.1:{place[2]}"


def test_a_message_that_no_node_takes_is_stored_and_not_replicated(tmp_path: Path) -> None:
    with device(tmp_path, replicas=1, timeout_replication=300_000) as (made, _, _):
        with Producer(made.endpoints["receive"], timeout=10) as producer, pytest.raises(NotReplicated):
            producer.send(b"one")
        with raw(zmq.DEALER, made.endpoints["receive"]) as bare:
            bare.send_multipart([b"id", b"", b"two"])
            assert bare.recv_multipart() == [b"id", b"1", b"", b"REPLICATION_FAILED"]
        with Consumer(made.endpoints["send"]) as consumer:  # of two nodes neither takes over, so neither is fenced
            assert [consumer.recv(timeout=10).body for _ in range(2)] == [b"one", b"two"]


@pytest.mark.parametrize(
    "frames",
    [
        [b"KALV"],
        [b"KALV", b'{"from":"tcp://10.0.0.1:5"}'],
        [b"KALV", b"{"],
        [b"KALV", b"[]"],
        [b"KALV", b'{"from":"%(name)s","incarnations":"x"}'],
        [
            b"KALV",
            b'{"from":"%(name)s","incarnations":[2],"number":1,"store":"","records":{"a":1},"heard":{},"holds":{},'
            b'"known":{}}',
        ],
        [b"ASK", b"{}"],
        [b"ASK", b'{"from":"x","to":"%(me)s","origin":"y","keys":["k"]}'],
        [b"TOLD", b"7"],
        [b"GONE", b'{"from":[],"to":"%(me)s","origin":"y","keys":7}'],
        [b"GONE", b'{"from":"%(name)s","to":"%(me)s","origin":"y","keys":7}'],
        [b"ASIDE", b'{"from":"%(name)s"}'],
        [b"ASIDE", b"[]"],
        [b"REMOVES"],
        [b"REMOVES", b"\xff"],
        [b"REMOVES", b'{"from":"%(name)s","keys":7}'],
        [b"NONE", b'{"from":"%(name)s"}'],
        [],
    ],
)
def test_what_cannot_be_understood_counts_for_nothing(
    place: tuple[Device, int, int], other: Peer, frames: list[bytes]
) -> None:
    made = place[0]
    until(lambda: figures(made.endpoints["monitor"])["nodes_alive"] == 2, "the peer is alive")
    me = f"tcp://127.0.0.1:{place[2]}".encode()
    filled = [frame.replace(b"%(name)s", other.name).replace(b"%(me)s", me) for frame in frames]
    other._ended.set()
    other._thread.join()
    other.broadcast(*filled)
    other.beat()
    time.sleep(0.1)
    assert figures(made.endpoints["monitor"])["nodes_alive"] == 2
    other.wait_for("KALV")


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([KEY, b"REPLICA:%(name)s", b"", b"b"], b"replicas are accepted from"),
        ([b"1", b"REPLICAS:tcp://10.0.0.1:5", b"", KEY + b" 1", encode([b"b"])], b"is not a node of this cluster"),
        ([b"1", b"REPLICAS:%(name)s", b""], b"these are not valid replicas"),
        ([b"1", b"REPLICAS:%(name)s"], b"these are not valid replicas"),
        ([b"1", b"REPLICAS:%(name)s", b"", KEY + b" 1"], b"these are not valid replicas"),
        ([b"1", b"REPLICAS:%(name)s", b"x", KEY + b" 1", encode([b"b"])], b"these are not valid replicas"),
        ([b"1", b"REPLICAS:%(name)s", b"", KEY + b" 2", encode([b"b"])], b"damaged"),
        ([b"1", b"REPLICAS:%(name)s", b"", KEY + b" 0", b""], b"out of range"),
        ([b"1", b"REPLICAS:%(name)s", b"", b"nothing", encode([b"b"])], b"not a valid first key"),
        ([b"1", b"REPLICAS:%(name)s", b"", KEY + b" 1", encode([b"b"])[:-1]], b"damaged"),
        ([b"1", b"REPLICAS:%(name)s", b"", KEY + b" 1", encode([b"b"])[:-1] + b"c"], b"damaged"),
        ([b"1", b"REPLICAS:%(name)s", b"", b"", encode([b"b"])], b"no key before"),
        ([b"1", b"REPLICAS:%(name)s", b"", b"", 2 * pack([KEY, b"b"])], b"twice"),
    ],
)
def test_what_is_no_replica_is_refused(place: tuple[Device, int, int], frames: list[bytes], reason: bytes) -> None:
    name = f"tcp://127.0.0.2:{place[2]}".encode()
    with raw(zmq.DEALER, place[0].endpoints["receive"]) as peer:
        peer.send_multipart([frame.replace(b"%(name)s", name) for frame in frames])
        answer = peer.recv_multipart()
        assert answer[1] == b"0"
        assert reason in answer[-1]


def test_a_peer_that_never_sends_is_named(place: tuple[Device, int, int], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "omq.pzq")
    until(lambda: f"tcp://127.0.0.2:{place[2]} has sent nothing yet" in caplog.text, "the log has it")
    peer = Peer(*place[1:])
    try:
        until(lambda: f"tcp://127.0.0.2:{place[2]} is alive" in caplog.text, "the log has that it is alive")
    finally:
        peer.end()
    until(lambda: f"tcp://127.0.0.2:{place[2]} is silent" in caplog.text, "the log has that it is silent")


def test_strangers_are_no_nodes(tmp_path: Path) -> None:
    """The node's peer is elsewhere, so what comes from this host is a stranger's."""
    with (
        held() as receive,
        held() as broadcast,
        Device(
            tmp_path / "data",
            receive=f"tcp://127.0.0.1:{receive}",
            monitor="tcp://127.0.0.1:*",
            broadcast=f"tcp://127.0.0.1:{broadcast}",
            nodes=[f"tcp://192.0.2.1:{receive}"],
            timeout_nodes=1_000_000,
        ) as made,
    ):
        name = f"tcp://192.0.2.1:{broadcast}"
        with raw(zmq.DEALER, made.endpoints["receive"]) as peer, raw(zmq.PUB, f"tcp://127.0.0.1:{broadcast}") as pub:
            peer.send_multipart([b"7", b"REPLICAS:" + name.encode(), b"", KEY + b" 1", encode([b"body"])])
            answer = peer.recv_multipart()
            assert answer[:2] == [b"7", b"0"]
            assert b"this peer is not one" in answer[-1]
            for number in range(10):
                state = {"from": name, **STATE, "number": number}
                pub.send_multipart([b"CLUSTER", b"KALV", json.dumps(state).encode()])
                time.sleep(0.02)
        found = figures(made.endpoints["monitor"])
        assert (found["replicas"], found["nodes"], found["nodes_alive"]) == (0, 2, 1)


def test_nodes_with_curve_have_one_key(tmp_path: Path) -> None:
    public, secret = omq.curve_keypair()
    security = omq.CurveServer(secret)
    client = omq.CurveClient(public, secret_key=secret)
    with held(*HOSTS) as receive, held(*HOSTS) as broadcast:

        def node(one: int, other: int) -> Device:
            return Device(
                tmp_path / str(one),
                receive=f"tcp://{HOSTS[one]}:{receive}",
                monitor="tcp://127.0.0.1:*",
                broadcast=f"tcp://{HOSTS[one]}:{broadcast}",
                nodes=[f"tcp://{HOSTS[other]}:{receive}"],
                replicas=1,
                timeout_nodes=1_000_000,
                timeout_replication=5_000_000,
                security=security,
                peer_security=client,
            )

        with node(0, 1) as first, node(1, 0) as second:
            with Producer(first.endpoints["receive"], security=omq.CurveClient(public)) as producer:
                until(lambda: first._server.stats()["nodes_alive"] == 2, "both are alive")
                producer.send(b"secret")
            assert second._server.stats()["replicas"] == 1


def test_the_command_names_its_options() -> None:
    nodes = ("--nodes", "tcp://127.0.0.2:1,tcp://127.0.0.2:2")
    options = ("--broadcast-dsn", "tcp://127.0.0.1:3", "--timeout_replication", "5")
    done = CliRunner().invoke(pzq, [*nodes, *options])
    assert done.exit_code == 2
    assert "--nodes='tcp://127.0.0.2:2': is listed twice" in done.stderr


def test_the_command_speaks_curve_to_its_peers(tmp_path: Path) -> None:
    public, secret = omq.curve_keypair()
    (tmp_path / "key").write_bytes(secret)
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "keys").write_bytes(public + b"\n")
    curve = [f"--curve-secret-key-file={tmp_path / 'key'}", f"--curve-authorized-keys-file={tmp_path / 'keys'}"]
    with held(*HOSTS) as port, ExitStack() as stack:
        ports = [port, *(stack.enter_context(held(*HOSTS)) for _ in range(3))]
        nodes = [Node(number, ports, tmp_path, ["--replicas", "2", *curve]) for number in range(3)]
        stack.enter_context(running(nodes))
        client = omq.CurveClient(public, secret_key=secret)
        with Producer(nodes[0].receive, security=client, timeout=20) as producer:
            until(lambda: _stored(producer), "a message is on all nodes")


def _stored(producer: Producer) -> bool:
    try:
        producer.send(b"secret")
    except NotReplicated:
        return False
    return True
