"""The S-expression server, tested with plain sockets and the bytes of the protocol."""

from __future__ import annotations

import errno
import random
import socket
import struct
import time
from types import SimpleNamespace

import pytest

from omq.broker.core.permissions import Permission
from omq.broker.errors import BrokerFailed, Damaged, StoreFull
from omq.broker.sexp import server as servers
from omq.broker.sexp.connection import Limits
from tests.support.waits import until
from tests.system.broker.sexp.sexp_server import (
    CREATED,
    MESSAGE,
    PING,
    PUBLISHED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    Peer,
    ServerThread,
)

V1 = b"\x00\x00\x00\x00\x00\x00\x00\x01"
V2 = b"\x00\x00\x00\x00\x00\x00\x00\x02"


@pytest.fixture
def running():
    with ServerThread() as running:
        yield running


# ------------------------------------------------------------------------------------------------- handshake


def bytes_in(running: ServerThread) -> int:
    """Returns how many bytes of the version the only connection has received."""
    return sum(
        len(one._protocol._handshake_bytes) or 8 * bool(one._protocol.version) for one in running.server.connections
    )


@pytest.mark.parametrize("version", [V1, V2])
def test_the_server_answers_with_the_same_version(running, version):
    with Peer(running.address) as peer:
        peer.send(version)
        assert peer.exactly(8) == version


def test_the_handshake_byte_by_byte_and_all_at_once(running):
    running.create("t")
    data = V1 + b"(Connect 1 c)(Subscribe t From_current)\n"
    with Peer(running.address) as peer:
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at, byte in enumerate(data, 1):
            peer.send(bytes([byte]))
            until(lambda at=at: bytes_in(running) >= min(at, 8))
        assert peer.exactly(8) == V1
        assert peer.frame() == (SUBSCRIBED, b"((id 1)(topic t))")
    with Peer(running.address) as peer:
        peer.send(data)
        assert peer.exactly(8) == V1
        assert peer.frame() == (SUBSCRIBED, b"((id 1)(topic t))")


@pytest.mark.parametrize(
    "data", [bytes(8), b"\x00" * 7 + b"\x03", b"\xff" * 8, b"\x01" + bytes(7), b"GET / HTTP/1.1\r\n\r\n"]
)
def test_a_wrong_version_is_answered_by_minus_one_and_the_end(running, data):
    with Peer(running.address) as peer:
        peer.send(data)
        assert peer.exactly(8) == b"\xff" * 8
        assert peer.over()


def test_a_silent_client_is_disconnected():
    with (
        ServerThread(Limits(handshake_timeout=0.1)) as running,
        Peer(running.address) as peer,
        Peer(running.address) as other,
    ):
        other.shake(1)
        assert peer.over()
        assert other.error() == "Connect was not sent in time"
        assert other.over()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"(Subscribe t From_current)", "the first command must be Connect"),
        (b"(Ack 1)", "the first command must be Connect"),
        (b"(Connect 2 c)", "Connect has version 2, the handshake had 1"),
        (b'(Connect 1 "")', "a client's id must not be empty"),
        (b"(Connect 1)", "Connect has 2 arguments, not 1"),
        (b"(Connect 1 c)(Connect 1 c)", "Connect may be sent only once"),
        (b"(Connect 1 c)(From_beginning)", "From_beginning is not a command of version 1"),
        (b"(Connect 1 c)(Publish t a)", "Publish is not a command of version 1"),
        (b"(Connect 1 c)(Create t Broadcast Transient)", "Create is not a command of version 1"),
        (
            b"(Connect 1 c)(Subscribe t (From_beginning))",
            "a replay must be From_beginning, From_current, (From_message <id>) or (From_time <time>)",
        ),
        (b"(Connect 1 c)hello\n", "a command must be a list, not hello"),
        (b"(Connect 1 c))", "unexpected closing parenthesis"),
    ],
)
def test_what_ends_a_connection(running, data, error):
    with Peer(running.address) as peer:
        peer.shake(1)
        peer.send(data)
        assert peer.error() == error
        assert peer.over()


def test_one_client_an_id(running):
    topic = running.create("t")
    with running.peer(client=b"one") as one:
        one.subscribe(b"t")
        with running.peer(client=b"one") as other:
            assert other.error() == "client one is connected already"
            assert other.over()
        running.publish("t", b"still here")
        assert one.message() == (1, topic, b"still here")
    until(lambda: not running.server.clients)
    with running.peer(client=b"one") as again:
        again.subscribe(b"t")


def turned_away(peer: Peer) -> bool:
    """Returns whether the connection is closed without an answer."""
    try:
        peer.shake(1)
    except (EOFError, ConnectionError):
        return True
    return False


def test_clients_beyond_the_limit_are_turned_away_and_logged_once(caplog):
    with ServerThread(max_connections=2) as running:
        with running.peer() as one, running.peer():
            for _ in range(5):
                with Peer(running.address) as late:
                    assert turned_away(late)
            running.create("t")
            assert one.subscribe(b"t")
            assert running.broker.connections["sexp"] == 2
            (line,) = [record.getMessage() for record in caplog.records if "is turned away" in record.message]
            assert line.startswith(f"{running.endpoint}: a client of tcp://127.0.0.1:")
            assert line.endswith("max_connections is 2")
        until(lambda: not running.server.connections)
        with running.peer() as again:
            again.subscribe(b"t")


def test_without_a_limit_the_descriptors_are_shared_with_the_other_clients(monkeypatch, caplog):
    monkeypatch.setattr(servers, "room_for_connections", lambda: 5)
    with ServerThread() as running:
        running.broker.connections["zmtp"] = 4
        with running.peer(), Peer(running.address) as late:
            assert turned_away(late)
            assert "5 are connected, and the other descriptors are for the store" in caplog.text
            running.broker.connections["zmtp"] = 3
            with running.peer():
                assert running.broker.connections["sexp"] == 2


class Listener:
    """A listener without a descriptor for the next connection."""

    def accept(self):
        raise OSError(errno.EMFILE, "Too many open files")


def test_a_lack_of_descriptors_is_counted_and_logged_once_a_minute(caplog):
    with ServerThread() as running:
        for _ in range(3):
            running.call(accept(running.server, Listener()))
        assert running.broker.accepts_failed["sexp"] == {"max_connections": 0, "descriptors": 3, "other": 0}
        (record,) = [record for record in caplog.records if getattr(record, "event", "") == "accept_failed"]
        assert (record.listener, record.kind, record.reason) == ("sexp", "descriptors", "Too many open files")
        with running.peer() as peer:
            running.create("t")
            assert peer.subscribe(b"t")


async def accept(server, broken):
    """Has the server accept from a listener that fails, and checks that it tries again later."""
    loop, calls = server.loop, []
    server.loop = SimpleNamespace(remove_reader=calls.append, call_later=lambda *call: calls.append(call[1:]))
    try:
        server._accept(broken)
    finally:
        server.loop = loop
    assert calls == [broken, (server._accept_again, broken)]


# --------------------------------------------------------------------------------------------------- topics


def test_the_bytes_of_a_subscription(running):
    running.create("prices")
    with Peer(running.address) as peer:
        peer.send(V1)
        assert peer.exactly(8) == V1
        peer.send(b"(Connect 1 client-7)\n(Subscribe prices From_beginning)\n")
        assert peer.exactly(27) == b"\x00\x00\x00\x17\x03((id 1)(topic prices))"
        running.publish("prices", b"AAPL 189.95")
        assert (
            peer.exactly(28) == b"\x00\x00\x00\x18\x02" + b"\x00" * 7 + b"\x01" + b"\x00\x00\x00\x01" + b"AAPL 189.95"
        )
        peer.send(b"(Unsubscribe prices)\n")
        assert peer.exactly(27) == b"\x00\x00\x00\x17\x04((id 1)(topic prices))"


@pytest.mark.parametrize(
    ("replay", "ids"),
    [
        (b"From_beginning", [1, 2, 3, 4]),
        (b"From_current", [4]),
        (b"(From_message 0)", [1, 2, 3, 4]),
        (b"(From_message 2)", [3, 4]),
        (b"(From_message 3)", [4]),
    ],
)
def test_replay(running, replay, ids):
    topic = running.create("t")
    running.publish("t", b"a", b"b")
    running.publish("t", b"c")
    with running.peer() as peer:
        peer.subscribe(b"t", replay)
        running.publish("t", b"d")
        assert [peer.message() for _ in ids] == [(id, topic, b" abcd"[id : id + 1]) for id in ids]


def publish_each_second(running, monkeypatch, *bodies):
    """Publishes messages whose timestamps are 1,500,000,000 seconds, and one more each."""
    for second, body in enumerate(bodies, 1_500_000_000):
        monkeypatch.setattr("omq.store.memory.wall", lambda second=second: second * 1_000_000)
        running.publish("t", body)


@pytest.mark.parametrize(
    ("replay", "ids"),
    [
        (b"(From_time 0)", [1, 2, 3, 4]),
        (b"(From_time 1500000000.000001)", [2, 3, 4]),
        (b"(From_time (2017-07-14 02:40:02Z))", [3, 4]),
        (b"(From_time 1500000003)", [4]),
    ],
)
def test_replay_from_a_time(running, monkeypatch, replay, ids):
    topic = running.create("t")
    publish_each_second(running, monkeypatch, b"a", b"b", b"c")
    with running.peer() as peer:
        peer.subscribe(b"t", replay)
        running.publish("t", b"d")
        assert [peer.message() for _ in ids] == [(id, topic, b" abcd"[id : id + 1]) for id in ids]


def test_a_replay_from_a_time_whose_messages_were_dropped_begins_at_the_oldest(running, monkeypatch):
    topic = running.create("t", max_messages=2)
    publish_each_second(running, monkeypatch, b"a", b"b", b"c", b"d")
    with running.peer() as peer:
        peer.subscribe(b"t", b"(From_time 1500000001)")
        assert peer.error() == "Subscribe t: messages below 3 are no longer kept: the subscription begins with 3"
        assert [peer.message(), peer.message()] == [(3, topic, b"c"), (4, topic, b"d")]


def test_any_body_and_what_has_no_place(running):
    topic = running.create("t")
    bodies = [b"", b"\x00" * 70_000, bytes(range(256)), b"last"]
    from omq._core import blocks

    records = b"".join(
        blocks.encode_record(body, key=b"k" * at if at else None, headers={"a": b"b", "c": b""} if at % 2 else None)
        for at, body in enumerate(bodies)
    )
    with running.peer() as peer:
        peer.subscribe(b"t")
        running.publish("t", records=records, count=len(bodies))
        assert [peer.message() for _ in bodies] == [(at, topic, body) for at, body in enumerate(bodies, 1)]


def test_what_a_topic_refuses_leaves_the_connection_open(running):
    running.create("t")
    running.create("jobs", delivery="round-robin")
    running.publish("t", b"a")
    refusals = [
        (b"(Subscribe nothing From_current)", "Subscribe nothing: there is no topic 'nothing'"),
        (b"(Subscribe t (From_message 2))", "Subscribe t: id 2 is above the newest id of topic 't', 1"),
        (b"(Subscribe t (From_message 99999999999999999999999))", None),
        (b"(Subscribe t (From_time 9e9))", "Subscribe t: replay=2255-03-14T16:00:00Z: must not be in the future"),
        (b"(Subscribe t (From_time 9e99))", None),
        (b"(Subscribe jobs From_beginning)", "Subscribe jobs: a round-robin topic is read From_current"),
        (b"(Subscribe jobs (From_time 0))", "Subscribe jobs: a round-robin topic is read From_current"),
        (b"(Subscribe jobs (From_message 0))", "Subscribe jobs: a round-robin topic is read From_current"),
        (b"(Unsubscribe t)", "Unsubscribe t: this connection has no subscription to topic 't'"),
        (b"(Unsubscribe nothing)", "Unsubscribe nothing: this connection has no subscription to topic 'nothing'"),
        (b'(Subscribe "" From_current)', None),
        (b"(Subscribe a/b From_current)", None),
        (b'(Subscribe "a\\nb" From_current)', None),
        (b'(Subscribe "\\255" From_current)', None),
        (b"(Subscribe " + b"x" * 10_000 + b" From_current)", None),
    ]
    with running.peer() as peer:
        for data, error in refusals:
            peer.send(data)
            found = peer.error()
            assert error is None or found.partition("; ")[0] == error
            assert len(found) < 500
        peer.subscribe(b"t")
        peer.send(b"(Subscribe t From_beginning)")
        assert peer.error() == "Subscribe t: this connection already has a subscription to topic 't'"
        running.publish("t", b"b")
        assert peer.message()[2] == b"b"


def test_names_in_every_form(running):
    names = ["my topic", 'a"b', "a(b", "ä", "a;b", "a\\b", "#|", "#;x", "x" * 255]
    for at, name in enumerate(names, 1):
        assert running.create(name) == at
    with running.peer() as peer:
        assert peer.subscribe(b'"my topic"') == b'((id 1)(topic "my topic"))'
        assert peer.subscribe(b'"a\\034b"') == b'((id 2)(topic "a\\"b"))'
        assert peer.subscribe(b'"a\\x28b"') == b'((id 3)(topic "a(b"))'
        assert peer.subscribe("ä".encode()) == b'((id 4)(topic "\\195\\164"))'
        assert peer.subscribe(b'"a;b"') == b'((id 5)(topic "a;b"))'
        assert peer.subscribe(b"a\\b") == b'((id 6)(topic "a\\\\b"))'
        assert peer.subscribe(b'"#|"') == b'((id 7)(topic "#|"))'
        assert peer.subscribe(b'"#\\\n  ;x"') == b'((id 8)(topic "#;x"))'
        assert peer.subscribe(b"x" * 255) == b"((id 9)(topic " + b"x" * 255 + b"))"


def test_a_deleted_topic(running):
    for delivery in ("broadcast", "round-robin"):
        running.create("t", delivery=delivery)
        with running.peer() as peer:
            record = peer.subscribe(b"t")
            running.delete("t")
            assert peer.frame() == (UNSUBSCRIBED, record)
            assert peer.error() == "t: topic 't' was deleted"
            peer.send(b"(Subscribe t From_current)")
            assert peer.error() == "Subscribe t: there is no topic 't'"


def test_a_replay_from_below_what_is_kept_begins_at_the_oldest(running):
    topic = running.create("t", max_messages=2)
    for body in (b"a", b"b", b"c", b"d"):
        running.publish("t", body)
    with running.peer() as peer:
        peer.subscribe(b"t", b"(From_message 1)")
        assert peer.error() == "Subscribe t: messages below 3 are no longer kept: the subscription begins with 3"
        assert [peer.message(), peer.message()] == [(3, topic, b"c"), (4, topic, b"d")]
    with running.peer() as peer:
        peer.subscribe(b"t", b"From_beginning")
        assert peer.message() == (3, topic, b"c")


def test_permissions_are_those_of_the_wildcard():
    permissions = (
        Permission("*", "open*", ["subscribe", "create"]),
        Permission("alice", "*", ["publish", "subscribe"]),
    )
    with ServerThread(permissions=permissions) as running, running.peer(2) as peer:
        running.create("closed")
        peer.send(b"(Create open Broadcast Transient)(Subscribe open From_current)")
        assert [peer.frame()[0], peer.frame()[0]] == [CREATED, SUBSCRIBED]
        for command, reason in (
            (b"Subscribe closed From_current", "may not subscribe 'closed'"),
            (b"Publish open x", "may not publish 'open'"),
            (b"Create shut Broadcast Transient", "may not create 'shut'"),
        ):
            peer.send(b"(%b)" % command)
            assert peer.error().endswith(reason)


# ------------------------------------------------------------------------------------------------- version 2


def test_the_bytes_of_version_2(running):
    with Peer(running.address) as peer:
        peer.send(V2)
        assert peer.exactly(8) == V2
        peer.send(b'(Connect 2 c)(Create t Broadcast (Persistent Weak))(Publish t AAPL)(Publish t "\\000")\n')
        assert peer.exactly(22) == b"\x00\x00\x00\x12\x06((id 1)(topic t))"
        assert peer.exactly(17) == b"\x00\x00\x00\x0d\x05" + bytes(7) + b"\x01" + b"\x00\x00\x00\x01"
        assert peer.exactly(17) == b"\x00\x00\x00\x0d\x05" + bytes(7) + b"\x02" + b"\x00\x00\x00\x01"
        peer.send(b"(Subscribe t From_beginning)")
        assert peer.frame()[0] == SUBSCRIBED
        assert [peer.message()[2], peer.message()[2]] == [b"AAPL", b"\x00"]


def test_create_finds_a_topic_as_asked_or_refuses(running):
    running.create("t", delivery="round-robin", persistence="transient", max_messages=10)
    with running.peer(2) as peer:
        peer.send(b"(Create t Round_robin Transient)")
        assert peer.frame() == (CREATED, b"((id 1)(topic t))")
        peer.send(b"(Create t Round_robin (Persistent Weak))")
        assert peer.error() == "Create t: topic 't' exists with delivery round-robin and persistence transient"
        peer.send(b"(Create a/b Broadcast Transient)")
        assert peer.error().startswith("Create a/b: ")
        peer.send(b"(Create s Broadcast (Persistent Strong))")
        assert peer.error().startswith("Create s: ")
        peer.send(b"(Publish nothing x)")
        assert peer.error() == "Publish nothing: there is no topic 'nothing'"


def test_many_messages_published_at_once(running):
    running.create("t")
    running.create("u")
    with running.peer(2) as peer, running.peer() as reader:
        reader.subscribe(b"t")
        count = 2000
        peer.send(b"".join(b"(Publish %b m%d)\n" % (b"ut"[at % 100 != 0 :][:1], at) for at in range(count)))
        found = [peer.frame() for _ in range(count)]
        assert {kind for kind, _ in found} == {PUBLISHED}
        ids: dict[int, list[int]] = {1: [], 2: []}
        for _, payload in found:
            id, topic = struct.unpack(">QI", payload)
            ids[topic].append(id)
        assert ids == {1: list(range(1, 1981)), 2: list(range(1, 21))}
        bodies = [reader.message()[2] for _ in range(1980)]
        assert bodies == [b"m%d" % at for at in range(count) if at % 100]


def test_a_client_that_closes_its_side_gets_the_answers(running):
    with running.peer(2) as peer:
        peer.send(b"(Create t Broadcast (Persistent Weak))(Publish t a)")
        peer.sock.shutdown(socket.SHUT_WR)
        assert [peer.frame()[0], peer.frame()[0]] == [CREATED, PUBLISHED]
        assert peer.over()


def test_a_subscriber_that_closes_its_side_gets_the_answers(running):
    for name in ("t", "jobs"):
        running.create(name, delivery="broadcast" if name == "t" else "round-robin")
    running.create("full", delivery="round-robin", max_messages=1, overflow="block")
    with running.peer(2) as peer, running.peer(2) as other:
        peer.subscribe(b"t")
        peer.subscribe(b"jobs")
        peer.send(b"(Publish full a)")
        assert peer.frame()[0] == PUBLISHED
        peer.send(b"(Publish full b)(Create new Broadcast Transient)")
        assert peer.frame()[0] == CREATED
        peer.sock.shutdown(socket.SHUT_WR)
        topic, jobs = running.broker.topic("t"), running.broker.topic("jobs")
        until(lambda: topic.readers == jobs.readers == 0)
        other.send(b"(Publish jobs j)")
        assert other.frame()[0] == PUBLISHED
        other.subscribe(b"full")
        assert peer.frame()[0] == PUBLISHED
        assert peer.over()
        assert jobs.backlog == 1


def test_the_broker_ends_in_order():
    with ServerThread(Limits(close_timeout=0.2)) as running:
        running.create("t")
        peer = running.peer(2)
        peer.subscribe(b"t")
    assert peer.error() == "the broker is stopping"
    assert peer.over()
    peer.sock.close()


# ----------------------------------------------------------------------------------------------------- pings


def test_pings_and_their_answers():
    with ServerThread(Limits(ping_interval=0.05)) as running, running.peer() as peer:
        running.create("t")
        forms = [b"%d", b"%d.", b"%d.25"]
        for at in range(6):
            kind, payload = peer.frame()
            assert (kind, len(payload)) == (PING, 4)
            (moment,) = struct.unpack(">I", payload)
            assert abs(moment - time.time()) < 5
            peer.send(b"(Ack " + forms[at % 3] % moment + b")\n")
        peer.send(b"(Subscribe t From_current)")
        while (kind := peer.frame()[0]) == PING:
            pass
        assert kind == SUBSCRIBED


def test_two_missed_answers_end_a_connection():
    with ServerThread(Limits(ping_interval=0.1, linger=0.1)) as running, running.peer() as peer:
        began = time.monotonic()
        assert [peer.frame()[0], peer.frame()[0]] == [PING, PING]
        assert peer.error() == "two pings were not answered"
        assert peer.over()
        assert time.monotonic() - began > 0.28
        until(lambda: not running.server.connections)


def test_an_answer_with_a_time_of_ocaml():
    with ServerThread(Limits(ping_interval=0.1)) as running, running.peer() as peer:
        for _ in range(5):
            kind, payload = peer.frame()
            assert kind == PING
            (moment,) = struct.unpack(">I", payload)
            peer.send(time.strftime("(Ack (%Y-%m-%d %H:%M:%S.123456Z))", time.gmtime(moment)).encode())


# --------------------------------------------------------------------------------------------- slow subscribers


def test_a_slow_subscriber_of_a_transient_topic_is_disconnected():
    limits = Limits(transient_window=4 << 20)
    with ServerThread(limits) as running, running.peer(receive_buffer=4096) as slow, running.peer() as quick:
        running.create("t", persistence="transient")
        slow.subscribe(b"t")
        quick.subscribe(b"t")
        body = bytes(64 << 10)
        count = 200
        for _ in range(count):
            running.publish("t", body)
            assert quick.message()[2] == body
        found = []
        while (frame := slow.frame())[0] == MESSAGE:
            found.append(struct.unpack_from(">Q", frame[1])[0])
        assert frame == (0, b"t: too slow: more than 4194304 bytes wait to be read")
        assert slow.over()
        assert found == list(range(1, len(found) + 1))
        assert len(found) < count


def test_a_slow_subscriber_of_a_kept_topic_goes_on_from_the_store(running):
    topic = running.create("t")
    with running.peer(receive_buffer=4096) as slow:
        slow.subscribe(b"t")
        body = bytes(64 << 10)
        count = 400
        for _ in range(count):
            running.publish("t", body)
        (connection,) = running.server.connections
        assert connection.transport.unsent < 1 << 20
        assert [slow.message() for _ in range(count)] == [(at, topic, body) for at in range(1, count + 1)]


def test_a_slow_subscriber_overtaken_by_retention_gets_a_remark(running):
    running.create("t", max_messages=10)
    with running.peer(receive_buffer=4096) as slow:
        slow.subscribe(b"t")
        body = bytes(64 << 10)
        for _ in range(400):
            running.publish("t", body)
        ids, gap = [], 0
        while not ids or ids[-1] < 400:
            kind, payload = slow.frame()
            if kind == MESSAGE:
                ids.append(struct.unpack_from(">Q", payload)[0])
            else:
                gap = len(ids)
                assert payload.startswith(b"t: messages below ")
        assert gap
        assert ids[:gap] == list(range(1, gap + 1))
        assert ids[gap:] == list(range(391, 401))


def test_a_client_resumes_by_id(running):
    topic = running.create("t")
    ids: list[int] = []
    for part in range(5):
        running.publish("t", *[b"m"] * 10)
        with running.peer(client=b"c") as peer:
            peer.subscribe(b"t", b"(From_message %d)" % (ids[-1] if ids else 0))
            for _ in range(7 if part < 4 else 22):
                id, found, _ = peer.message()
                assert found == topic
                ids.append(id)
    assert ids == list(range(1, 51))


# ------------------------------------------------------------------------------------------------- round robin


def test_round_robin_gives_each_message_to_one(running):
    running.create("jobs", delivery="round-robin")
    with running.peer() as one, running.peer() as other:
        one.subscribe(b"jobs")
        other.subscribe(b"jobs")
        for at in range(20):
            running.publish("jobs", b"%d" % at)
        found = [[one.message()[0] for _ in range(10)], [other.message()[0] for _ in range(10)]]
        assert sorted(found[0] + found[1]) == list(range(1, 21))


def test_unwritten_messages_go_to_the_next_consumer(running):
    running.create("jobs", delivery="round-robin", persistence="transient")
    body = bytes(100 << 10)
    count = 300
    with running.peer(receive_buffer=4096) as slow:
        slow.subscribe(b"jobs")
        for _ in range(count):
            running.publish("jobs", body)
        (connection,) = running.server.connections
        until(lambda: connection.transport.unsent)
        taken = connection.transport.written
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: not running.server.connections)
    # What the kernel had taken whole is delivered; what it had in part, or not at all, is not.
    whole = (taken - 8 - 25) // (17 + len(body))
    with running.peer() as other:
        other.subscribe(b"jobs")
        ids = sorted(other.message()[0] for _ in range(count - whole))
        assert ids == list(range(whole + 1, count + 1))


def test_messages_on_their_way_go_only_to_the_consumer_that_unsubscribes(running):
    running.create("jobs", delivery="round-robin")
    body = bytes(100 << 10)
    count = 100
    with running.peer(receive_buffer=4096) as slow, running.peer() as other:
        record = slow.subscribe(b"jobs")
        for _ in range(count):
            running.publish("jobs", body)
        slow.send(b"(Unsubscribe jobs)")
        until(lambda: any(one.leaving for one in running.server.connections))
        other.subscribe(b"jobs")
        ids = []
        while (frame := slow.frame())[0] == MESSAGE:
            ids.append(struct.unpack_from(">Q", frame[1])[0])
        assert frame == (UNSUBSCRIBED, record)
        ids += [other.message()[0] for _ in range(count - len(ids))]
        assert sorted(ids) == list(range(1, count + 1))


# ---------------------------------------------------------------------------------------------------- hostile


@pytest.mark.parametrize(
    "data",
    [
        b"a" * 200_000,
        b"(" * 1000,
        b'"' + b"\\" * 200_000,
        b"(Subscribe " + b"x" * 70_000,
        b";" + b" " * 200_000,
        b"#|" * 100_000,
        b"(" + b" " * 200_000,
        bytes(range(256)) * 100,
        b"(Connect 2 c)" * 10_000,
        b'(Publish t "\\999")',
    ],
    ids=lambda data: repr(data[:8]),
)
def test_hostile_input_ends_its_own_connection(running, data):
    topic = running.create("t")
    with running.peer() as good, running.peer(2) as bad:
        good.subscribe(b"t")
        try:
            bad.send(data)
            while bad.frame()[0] != 0:
                pass
            assert bad.over()
        except ConnectionError:
            pass  # it was still sending when its time was over
        running.publish("t", b"undisturbed")
        assert good.message() == (1, topic, b"undisturbed")


def test_endless_blanks_and_acks_disturb_no_other_client(running):
    running.create("t")
    with running.peer() as peer:
        peer.send(b"\n" * 300_000 + b"(Ack 1)\n" * 10_000 + b"; x\n" * 50_000)
        assert peer.subscribe(b"t") == b"((id 1)(topic t))"


def test_a_client_that_reads_no_answers_is_not_read(running):
    with running.peer(2, receive_buffer=4096) as peer:
        peer.sock.settimeout(0.5)
        line = b"(Unsubscribe %b)" % (b"x" * 200)
        with pytest.raises(TimeoutError):
            peer.send(line * 400_000)
        (connection,) = running.server.connections
        assert connection.transport.unsent < 1 << 20


def test_many_connections_at_once(running):
    topic = running.create("t")
    peers = [running.peer() for _ in range(300)]
    try:
        for peer in peers:
            peer.send(b"(Subscribe t From_current)")
        for peer in peers:
            assert peer.frame()[0] == SUBSCRIBED
        bodies = [b"%d" % at for at in range(20)]
        running.publish("t", *bodies)
        for peer in peers:
            assert [peer.message() for _ in bodies] == [(at, topic, body) for at, body in enumerate(bodies, 1)]
    finally:
        for peer in peers:
            peer.sock.close()
    until(lambda: not running.server.connections)


def test_more_than_a_transient_topic_remembers_is_noted_and_goes_on(running):
    running.create("t", persistence="transient", max_messages=3)
    with running.peer() as peer:
        peer.subscribe(b"t")
        for _ in range(20):
            running.publish("t", *[b"m"] * 10)
        ids = []
        while not ids or ids[-1] < 200:
            kind, payload = peer.frame()
            if kind == MESSAGE:
                ids.append(struct.unpack_from(">Q", payload)[0])
            else:
                assert payload.startswith(b"t: messages below ")
        assert ids == sorted(set(ids))


WORDS = [b"(", b")", b'"', b"\\", b"#|", b"|#", b";", b"#;", b"\n", b" ", b"Connect", b"Subscribe", b"Unsubscribe"]
WORDS += [b"Ack", b"Publish", b"Create", b"t", b"jobs", b"1", b"2", b"Broadcast", b"Transient", b"From_beginning"]
LINES = [b"(Subscribe t From_beginning)", b"(Subscribe jobs From_current)", b"(Unsubscribe t)", b"(Unsubscribe jobs)"]
LINES += [
    b"(Publish t a)",
    b"(Publish jobs a)",
    b"(Create u Broadcast Transient)",
    b"(Subscribe u From_current)",
    b"(Ack 1)",
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_broker_survives_any_bytes(seed):
    draw = random.Random(seed)
    with ServerThread(Limits(linger=0.1, ping_interval=0.2)) as running:
        running.create("t")
        running.create("jobs", delivery="round-robin", persistence="transient")
        for at in range(150):
            with Peer(running.address) as peer:
                data = V2 + b"(Connect 2 c%d)" % (at % 50)
                data += b"".join(draw.choice(LINES) for _ in range(draw.randrange(8)))
                data += b"".join(draw.choice(WORDS) for _ in range(draw.randrange(6)))
                cuts = sorted(draw.randrange(len(data) + 1) for _ in range(3))
                for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                    try:
                        peer.send(data[start:end])
                    except ConnectionError:
                        break
                if draw.random() < 0.5:
                    peer.exactly(8)
                if draw.random() < 0.3:
                    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with running.peer(client=b"good") as peer:
            peer.subscribe(b"t")
            last = running.publish("t", b"x")
            while peer.message()[0] < last:
                pass


# ---------------------------------------------------------------------------------------------- trouble below


def test_store_errors_are_reported_for_each_message(running, monkeypatch):
    running.create("t")

    def refuse(records, count, done, *, alive) -> None:
        done(0, StoreFull("the disk is full"))

    with running.peer(2) as peer:
        topic = running.broker.topic("t")
        append = topic.append
        monkeypatch.setattr(topic, "append", refuse)
        peer.send(b"(Publish t a)(Publish t b)")
        text = "Publish t: the disk is full"
        assert [peer.error(), peer.error()] == [text, text]
        monkeypatch.setattr(topic, "append", append)
        peer.send(b"(Publish t c)")
        assert peer.frame() == (PUBLISHED, struct.pack(">QI", 1, 1))


def test_reading_goes_on_after_damaged_messages(running):
    topic = running.create("t")
    running.publish("t", *(b"%d" % at for at in range(1, 11)))
    with running.peer() as peer:
        peer.subscribe(b"t")
        (connection,) = running.server.connections

        def damage() -> None:
            reading = connection.sinks["t"]
            reading.stop()
            reading.closed(Damaged("messages 3 to 7 are damaged", 3, 7))

        running.on_loop(damage)
        assert peer.error() == "t: messages 3 to 7 are damaged"
        assert [peer.message() for _ in range(3)] == [(at, topic, b"%d" % at) for at in (8, 9, 10)]


def test_a_topic_that_cannot_be_read_any_more(running):
    running.create("t")
    with running.peer() as peer:
        record = peer.subscribe(b"t")
        (connection,) = running.server.connections
        running.on_loop(lambda: connection.sinks["t"].closed(BrokerFailed("the store has failed")))
        assert peer.frame() == (UNSUBSCRIBED, record)
        assert peer.error() == "t: the store has failed"
