"""The protocol as its page specifies it: libzmq's DEALER against a real broker over TCP."""

import base64
import json
import time
from datetime import datetime

import pytest

from omq.broker import Server
from tests.support.libzmq_broker_client import RawClient, crc32c, raw, read_block, read_header, record, u32, u64
from tests.support.waits import until

assert crc32c(b"123456789") == 0xE3069283


@pytest.fixture(scope="module", params=["disk", "memory"])
def server(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("broker") if request.param == "disk" else None
    with Server(directory, memory=directory is None) as server:
        yield server


@pytest.fixture
def client(server):
    with raw(server.endpoints["zmtp"]) as client:
        yield client


@pytest.fixture
def other(server):
    with raw(server.endpoints["zmtp"]) as client:
        yield client


@pytest.fixture
def topic(client, request):
    name = f"t-{request.node.name}"
    client.create(name, persistence="weak")
    return name.encode()


@pytest.fixture
def jobs(client, request):
    name = f"j-{request.node.name}"
    client.create(name, delivery="round-robin", persistence="weak")
    return name.encode()


ABC = [record(b"a"), record(b"b"), record(b"c")]


# The session


def test_hello_is_welcomed(client):
    assert client.welcome["version"] == 1
    assert client.welcome["max_body"] == 64 << 20
    assert len(bytes.fromhex(client.welcome["broker"])) == 16
    assert isinstance(client.welcome["persistent"], bool)


def test_ping_flush_and_bye(client):
    assert client.ask(b"PING", expect=b"PONG") == []
    assert client.ask(b"FLUSH", expect=b"FLUSHED") == []
    assert client.ask(b"BYE", expect=b"BYE") == []
    assert client.error(b"SUBSCRIBE", b"t", {}) == "state"


def test_a_client_id_has_one_session(server, client, topic, jobs):
    client.append(jobs, *ABC)
    client.send(b"CONSUME", b"c", jobs, {})
    assert client.answer(b"c")[0] == b"CONSUMING"
    assert len(client.jobs(b"c", 3)) == 3
    client.send(b"SUBSCRIBE", b"s", topic, {"name": "n"})
    assert client.answer(b"s")[0] == b"SUBSCRIBED"
    with raw(server.endpoints["zmtp"], client=client.client) as again:
        assert client.answer(b"c")[:3] == [b"ERROR", b"c", b"state"]
        assert client.answer(b"s")[:3] == [b"ERROR", b"s", b"state"]
        again.send(b"SUBSCRIBE", b"s", topic, {"name": "n"})
        assert again.answer(b"s")[0] == b"SUBSCRIBED"
        again.send(b"CONSUME", b"c", jobs, {})
        assert again.answer(b"c")[0] == b"CONSUMING"
        assert [count for _, _, count in again.jobs(b"c", 3)] == [2, 1, 1]  # the first one was begun


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("syntax", [b"FETCH", b"1"]),
        ("syntax", [b"PING", b"x" * 17]),
        ("syntax", [b"APPEND", b"1", b"TOPIC", record(b"a")[:-1] + b"b"]),
        ("version", [b"HELLO", b"1", {"version": 2, "client": "0" * 32}]),
        ("state", [b"COMMIT", b"1", b"c", ["bm9uZQ=="]]),
        ("topic", [b"APPEND", b"1", b"nowhere", record(b"a")]),
        ("overrun", [b"SUBSCRIBE", b"1", b"short", {"replay": 0}]),
    ],
)
def test_errors_have_the_tag_and_the_code(client, topic, code, message):
    client.create("short", persistence="weak", settings={"max_messages": 1})
    for _ in range(3):
        client.append(b"short", *ABC)
    client.send(*(topic if part == b"TOPIC" else part for part in message))
    command, tag, found, text, *ids = client.next()
    assert (command, tag, found) == (b"ERROR", message[1][:16], code.encode())
    assert text.decode()
    if code == "overrun":
        assert int.from_bytes(ids[0], "big") > 1
    assert client.ask(b"PING", expect=b"PONG") == []


def test_a_message_of_one_part_and_an_empty_one(client):
    client.send(b"PING")
    assert client.next()[:3] == [b"ERROR", b"", b"syntax"]
    client.send(b"")
    assert client.next()[:3] == [b"ERROR", b"", b"syntax"]


# Publishing


def test_append_stores_records_as_they_are(client, topic):
    records = record(b"one") + record(b"two", b"key") + record(b"", None, {"h": b"v", "ü": b""}) + record(b"x", b"", {})
    assert client.append(topic, records) == 1
    before = time.time()
    following, first, header, stored = client.ask(b"READ", topic, 1, 0, u32(10_000), expect=b"RANGE")
    assert (following, first) == (u64(0), u64(1))
    assert stored == records
    count, id, timestamp, size = read_header(header)
    assert (count, id, size) == (4, 1, len(records))
    assert abs(timestamp / 1e6 - before) < 60


def test_publish_makes_the_record(client, topic):
    assert client.ask(b"PUBLISH", topic, b"body", expect=b"PUBLISHED") == [u64(1)]
    assert client.ask(b"PUBLISH", topic, b"body", b"key", {"a": "b"}, b"me", 1, expect=b"PUBLISHED") == [u64(2)]
    assert client.ask(b"PUBLISH", topic, b"body", b"key", {"a": "b"}, b"me", 1, expect=b"PUBLISHED") == [u64(2)]
    assert client.ask(b"PUBLISH", topic, b"", b"", b"", b"", b"", expect=b"PUBLISHED") == [u64(3)]
    client.send(b"SUBSCRIBE", b"s", topic, {"replay": "earliest"})
    assert client.answer(b"s")[0] == b"SUBSCRIBED"
    assert client.blocks(b"s", 3) == [(1, b"body", None, {}), (2, b"body", b"key", {"a": b"b"}), (3, b"", None, {})]


def test_pipelined_appends_are_stored_in_order_and_answered(client, topic):
    for number in range(500):
        client.send(b"APPEND", b"%d" % number, topic, record(b"%d" % number), b"p", number + 1, number)
    answers = [client.next() for _ in range(500)]
    assert {(answer[0], int(answer[1]), answer[2]) for answer in answers} == {
        (b"PUBLISHED", number, u64(number + 1)) for number in range(500)
    }
    client.send(b"APPEND", b"again", topic, record(b"499"), b"p", 500)
    assert client.next() == [b"PUBLISHED", b"again", u64(500)]


@pytest.mark.parametrize("persistence", ["transient", "async", "weak", "strong"])
def test_every_persistence_answers_and_replays(client, persistence, request):
    if persistence == "strong" and not client.welcome["persistent"]:
        assert client.error(b"CREATE", {"name": "s", "persistence": "strong"}) == "topic"
        return
    name = f"p-{persistence}"
    client.create(name, persistence=persistence)
    assert client.append(name.encode(), *ABC) == 1
    assert client.append(name.encode(), *ABC) == 4
    client.send(b"SUBSCRIBE", b"s", name, {"replay": "earliest"})
    assert client.answer(b"s")[0] == b"SUBSCRIBED"
    assert [id for id, *_ in client.blocks(b"s", 6)] == [1, 2, 3, 4, 5, 6]


def test_bodies_up_to_the_limit_and_no_further(client, topic):
    body = b"x" * (1 << 20)
    assert client.ask(b"PUBLISH", topic, body, expect=b"PUBLISHED") == [u64(1)]
    assert client.error(b"PUBLISH", topic, b"x" * ((64 << 20) + 1)) == "too-large"
    assert client.error(b"APPEND", topic, b"\0" * ((80 << 20) + 1)) == "too-large"
    *_, records = client.ask(b"READ", topic, 1, 0, u32(1), expect=b"RANGE")
    assert records[9:] == body


def test_stage_commit_and_abort(client, topic):
    assert client.ask(b"STAGE", topic, ABC[0] + ABC[1], b"\x00stage", 1, expect=b"STAGED") == []
    assert client.ask(b"STAGE", topic, ABC[0] + ABC[1], b"\x00stage", 1, expect=b"STAGED") == []
    assert client.ask(b"STAGE", topic, ABC[2], b"\x00stage", 2, expect=b"STAGED") == []
    assert client.ask(b"STAGE", topic, ABC[2], b"gone", expect=b"STAGED") == []
    assert client.ask(b"ABORT", b"gone", expect=b"ABORTED") == []
    name = base64.b64encode(b"\x00stage").decode()
    for _ in range(2):
        (answer,) = client.ask(b"COMMIT", b"c" + topic, [name], expect=b"COMMITTED")
        assert json.loads(answer) == [{"stage": name, "topic": topic.decode(), "first": 1, "count": 3}]
    client.send(b"SUBSCRIBE", b"s", topic, {"replay": "earliest"})
    assert client.answer(b"s")[0] == b"SUBSCRIBED"
    assert [body for _, body, *_ in client.blocks(b"s", 3)] == [b"a", b"b", b"c"]


# Subscribing


def subscribe(client, tag, topic, **what):
    client.send(b"SUBSCRIBE", tag, topic, what)
    name, _, answer = client.answer(tag)
    assert name == b"SUBSCRIBED", answer
    return json.loads(answer)


def consume(client, tag, topic, **what):
    client.send(b"CONSUME", tag, topic, what)
    name, _, answer = client.answer(tag)
    assert name == b"CONSUMING", answer
    return json.loads(answer)


@pytest.mark.parametrize(
    ("replay", "position"), [("earliest", 0), ("latest", 3), (0, 0), (1, 1), (3, 3)], ids=lambda one: f"{one}"
)
def test_a_subscription_from_each_place(client, topic, replay, position):
    client.append(topic, *ABC)
    answer = subscribe(client, b"s", topic, replay=replay)
    assert answer["position"] == position
    assert answer["topic_id"] == json.loads(client.ask(b"TOPICS", topic)[0])[0]["id"]
    client.append(topic, record(b"d"))
    assert [id for id, *_ in client.blocks(b"s", 4 - position)] == list(range(position + 1, 5))


def test_credit_in_bytes(client, topic):
    one = record(b"x" * 100)
    for _ in range(10):
        client.append(topic, one)
    subscribe(client, b"s", topic, replay="earliest", credit=0)
    assert client.silent()
    client.send(b"CREDIT", b"s", 3 * len(one))
    assert len(client.blocks(b"s", 3)) == 3
    assert client.silent()
    client.send(b"CREDIT", b"s", 1 << 62)
    assert len(client.blocks(b"s", 7)) == 7


def test_cancel_ends_a_subscription_and_frees_its_tag(client, topic):
    subscribe(client, b"s", topic)
    client.send(b"CANCEL", b"s")
    assert client.answer(b"s") == [b"CANCELLED", b"s"]
    client.append(topic, *ABC)
    assert client.silent()
    assert subscribe(client, b"s", topic, replay=2)["position"] == 2


def test_a_name_keeps_its_position(server, client, other, topic):
    client.append(topic, *ABC)
    assert subscribe(client, b"s", topic, replay="earliest", name="n")["position"] == 0
    assert len(client.blocks(b"s", 3)) == 3
    assert other.error(b"SUBSCRIBE", topic, {"name": "n"}) == "topic"
    client.send(b"POSITION", b"s", 2)
    client.ask(b"FLUSH", expect=b"FLUSHED")
    (names,) = other.ask(b"DURABLES", topic, expect=b"DURABLES")
    (name,) = json.loads(names)
    assert time.time() - 60 < name.pop("active") <= time.time()
    assert name == {"name": "n", "position": 2, "lag": 1, "held": True}
    assert other.error(b"DELETE_DURABLE", topic, b"n") == "topic"
    client.close()
    until(lambda: not json.loads(other.ask(b"DURABLES", topic)[0])[0]["held"])
    assert subscribe(other, b"s", topic, replay="earliest", name="n")["position"] == 2
    assert [id for id, *_ in other.blocks(b"s", 1)] == [3]
    other.ask(b"BYE", expect=b"BYE")
    assert other.ask(b"DELETE_DURABLE", topic, b"n", expect=b"DURABLE_DELETED") == []
    assert json.loads(other.ask(b"DURABLES", topic)[0]) == []


def test_deleting_a_topic_ends_its_readers(client, other, topic, jobs):
    before = json.loads(client.ask(b"TOPICS")[0])
    subscribe(client, b"s", topic)
    consume(client, b"c", jobs)
    assert other.ask(b"DELETE", topic, expect=b"DELETED") == []
    assert other.ask(b"DELETE", jobs, expect=b"DELETED") == []
    assert client.answer(b"s")[:3] == [b"ERROR", b"s", b"topic"]
    assert client.answer(b"c")[:3] == [b"ERROR", b"c", b"topic"]
    assert client.error(b"PUBLISH", topic, b"x") == "topic"
    left = json.loads(client.ask(b"TOPICS")[0])
    assert {one["name"] for one in before} - {one["name"] for one in left} == {
        topic.decode(),
        jobs.decode(),
    }
    made = client.create(topic.decode(), persistence="weak")
    assert made["id"] > max(one["id"] for one in before)


# Consuming


def test_jobs_are_acknowledged_given_back_and_delivered_again(client, jobs):
    client.append(jobs, *ABC)
    consume(client, b"c", jobs, credit=2)
    assert client.jobs(b"c", 2) == [(1, b"a", 1), (2, b"b", 1)]
    assert client.silent()
    client.send(b"ACK", b"c", 1, 1)
    assert client.jobs(b"c", 1) == [(3, b"c", 1)]
    client.send(b"NACK", b"c", 2, 2, 3, 3)
    assert client.jobs(b"c", 2) == [(2, b"b", 2), (3, b"c", 2)]
    client.send(b"ACK", b"c", u64(2) + u64(3))
    client.ask(b"FLUSH", expect=b"FLUSHED")
    client.append(jobs, record(b"d"))
    assert client.jobs(b"c", 1) == [(4, b"d", 1)]


def test_credit_in_messages(client, jobs):
    client.append(jobs, *[record(b"%d" % number) for number in range(100)])
    consume(client, b"c", jobs, credit=0)
    assert client.silent()
    client.send(b"CREDIT", b"c", 10)
    assert [id for id, *_ in client.jobs(b"c", 10)] == list(range(1, 11))
    assert client.silent()


def test_overdue_messages_go_to_another_consumer(client, other, jobs):
    client.append(jobs, *ABC)
    consume(client, b"c", jobs, credit=3, ack_timeout=0.1)
    assert len(client.jobs(b"c", 3)) == 3
    client.send(b"CANCEL", b"none")
    consume(other, b"c", jobs, credit=10, ack_timeout=30)
    got = other.jobs(b"c", 3)
    assert sorted(got) == [(1, b"a", 2), (2, b"b", 1), (3, b"c", 1)]
    assert got[-1][0] == 1  # what has failed waits, and the others pass it


def test_messages_of_a_consumer_that_ends_are_requeued_at_once(client, other, jobs):
    client.append(jobs, *ABC)
    consume(client, b"c", jobs)
    assert len(client.jobs(b"c", 3)) == 3
    consume(other, b"c", jobs)
    client.socket.close(linger=0)
    assert other.jobs(b"c", 3) == [(1, b"a", 2), (2, b"b", 1), (3, b"c", 1)]
    other.send(b"CANCEL", b"c")
    assert other.answer(b"c") == [b"CANCELLED", b"c"]


def test_a_nack_names_its_delay(client, jobs):
    client.append(jobs, *ABC)
    consume(client, b"c", jobs)
    assert len(client.jobs(b"c", 3)) == 3
    began = time.monotonic()
    client.send(b"NACK", b"c", u32(300), 1, 1)
    client.send(b"NACK", b"c", u32(0), 2, 2, 3, 3)
    assert client.jobs(b"c", 2) == [(2, b"b", 2), (3, b"c", 2)]
    assert client.jobs(b"c", 1) == [(1, b"a", 2)]
    assert time.monotonic() - began >= 0.29
    client.send(b"NACK", b"c", u32(0))
    assert client.answer(b"c")[:3] == [b"ERROR", b"c", b"syntax"]


def test_progress_keeps_a_message(client, other, jobs):
    client.append(jobs, *ABC)
    consume(client, b"c", jobs, ack_timeout=0.4)
    assert len(client.jobs(b"c", 3)) == 3
    consume(other, b"c", jobs)
    for _ in range(4):
        assert other.silent()  # 0.2 s
        client.send(b"PROGRESS", b"c", 1, 1)
    client.send(b"ACK", b"c", 1, 3)
    client.ask(b"FLUSH", expect=b"FLUSHED")
    assert other.silent()


@pytest.mark.parametrize("overflow", ["reject", "block", "drop-oldest"])
def test_a_full_topic(client, other, topic, overflow):
    settings = {"max_messages": 3, "overflow": overflow}
    name = f"full {overflow}"
    client.create(name, delivery="round-robin", persistence="weak", settings=settings)
    assert client.append(name.encode(), *ABC) == 1
    client.send(b"PUBLISH", b"more", name.encode(), b"d")
    if overflow == "reject":
        assert client.answer(b"more")[:3] == [b"ERROR", b"more", b"full"]
    elif overflow == "block":
        assert client.silent()
        consume(other, b"c", name.encode())
        assert len(other.jobs(b"c", 3)) == 3
        other.send(b"ACK", b"c", 1, 1)
        assert client.answer(b"more") == [b"PUBLISHED", b"more", u64(4)]
        assert other.jobs(b"c", 1) == [(4, b"d", 1)]
    else:
        assert client.answer(b"more") == [b"PUBLISHED", b"more", u64(4)]
        until(
            lambda: any(one["name"] == f"{name}.dead" and one["last"] for one in json.loads(client.ask(b"TOPICS")[0]))
        )
        consume(other, b"c", name.encode())
        assert [id for id, *_ in other.jobs(b"c", 3)] == [2, 3, 4]


def test_what_is_kept_until_it_is_read(client, other):
    client.create("kept", persistence="weak", settings={"max_messages": 3, "overflow": "block", "retain_for": "n"})
    assert client.append(b"kept", *ABC) == 1
    client.send(b"PUBLISH", b"more", b"kept", b"d")
    assert client.silent()
    (name,) = json.loads(other.ask(b"DURABLES", b"kept")[0])
    name.pop("active")
    assert name == {"name": "n", "position": 0, "lag": 3, "held": False}
    assert other.error(b"DELETE_DURABLE", b"kept", b"n") == "topic"
    assert subscribe(other, b"s", b"kept", name="n")["position"] == 0
    other.send(b"POSITION", b"s", 2)
    assert client.answer(b"more") == [b"PUBLISHED", b"more", u64(4)]
    (topic,) = json.loads(client.ask(b"TOPICS", b"kept")[0])
    assert (topic["first"], topic["settings"]["retain_for"]) == (3, "n")


def test_altered_settings_apply_to_publications_that_wait(client, other):
    client.create("altered", persistence="weak", settings={"max_messages": 3, "overflow": "block", "max_age": 60})
    client.append(b"altered", *ABC)
    client.send(b"PUBLISH", b"more", b"altered", b"d")
    assert client.silent()
    changes = {"name": "altered", "settings": {"max_messages": 4, "max_age": None}}
    (topic,) = map(json.loads, other.ask(b"ALTER", changes, expect=b"ALTERED"))
    assert (topic["settings"], topic["first"]) == ({"max_messages": 4, "overflow": "block"}, 1)
    assert client.answer(b"more") == [b"PUBLISHED", b"more", u64(4)]
    lower = {"name": "altered", "settings": {"max_messages": 2, "overflow": None}}
    assert other.error(b"ALTER", lower) == "topic"
    (topic,) = map(json.loads, other.ask(b"ALTER", {**lower, "force": True}, expect=b"ALTERED"))
    assert topic["first"] == 3


def test_publications_that_wait_for_room_can_be_cancelled(client, other):
    client.create(
        "given up", delivery="round-robin", persistence="weak", settings={"max_messages": 3, "overflow": "block"}
    )
    assert client.append(b"given up", *ABC) == 1
    client.send(b"PUBLISH", b"p", b"given up", b"no")
    client.send(b"PUBLISH", b"q", b"given up", b"yes")
    assert client.silent()
    client.send(b"CANCEL", b"p")
    assert client.answer(b"p") == [b"CANCELLED", b"p"]
    assert client.answer(b"p")[:3] == [b"ERROR", b"p", b"state"]
    consume(other, b"c", b"given up")
    assert len(other.jobs(b"c", 3)) == 3
    other.send(b"ACK", b"c", 1, 3)
    assert client.answer(b"q") == [b"PUBLISHED", b"q", u64(4)]
    assert other.jobs(b"c", 1) == [(4, b"yes", 1)]


def test_dead_letters(client, topic):
    client.create("again", delivery="round-robin", persistence="weak", settings={"max_deliveries": 2})
    client.append(b"again", record(b"bad", b"key", {"h": b"v"}))
    consume(client, b"c", b"again")
    for count in (1, 2):
        assert client.jobs(b"c", 1) == [(1, b"bad", count)]
        client.send(b"NACK", b"c", 1, 1)
    until(lambda: any(one["name"] == "again.dead" and one["last"] for one in json.loads(client.ask(b"TOPICS")[0])))
    _, _, header, records = client.ask(b"READ", b"again.dead", 1, 0, u32(1000), expect=b"RANGE")
    ((id, body, key, headers),) = read_block(header, records)
    when = datetime.fromisoformat(headers.pop("omq-dead-time").decode())
    assert abs(when.timestamp() - time.time()) < 60
    assert (id, body, key) == (1, b"bad", b"key")
    assert list(headers.items()) == [
        ("h", b"v"),
        ("omq-dead-topic", b"again"),
        ("omq-dead-id", b"1"),
        ("omq-dead-deliveries", b"2"),
        ("omq-dead-reason", b"max-deliveries"),
    ]


def test_dead_letters_are_requeued(client, topic):
    client.create("first", delivery="round-robin", persistence="weak", settings={"max_messages": 2})
    for number in range(1, 5):
        headers = {"own": b"%d" % number, "omq-dead-topic": b"first", "omq-dead-id": b"7"}
        client.append(topic, record(b"%d" % number, b"k", headers))
    client.append(topic, record(b"no header"))
    assert client.ask(b"REQUEUE", topic, 1, expect=b"REQUEUED") == [u64(1), u64(2)]
    assert client.ask(b"REQUEUE", topic, expect=b"REQUEUED") == [u64(1), u64(3)]
    assert client.error(b"REQUEUE", topic) == "full"
    *_, header, records = client.ask(b"READ", b"first", 1, 0, u32(1000), expect=b"RANGE")
    assert read_block(header, records)[-1] == (2, b"2", b"k", {"own": b"2"})
    consume(client, b"c", b"first")
    assert client.jobs(b"c", 2) == [(1, b"1", 1), (2, b"2", 1)]
    client.send(b"ACK", b"c", 1, 2)
    client.ask(b"FLUSH", expect=b"FLUSHED")
    assert client.ask(b"REQUEUE", topic, expect=b"REQUEUED") == [u64(2), u64(5)]
    assert client.error(b"REQUEUE", topic) == "topic"
    assert client.error(b"REQUEUE", topic, b"", b"nowhere") == "topic"
    assert client.error(b"REQUEUE", topic, 99, b"first") == "topic"
    client.send(b"ACK", b"c", 3, 4)
    client.ask(b"FLUSH", expect=b"FLUSHED")
    assert client.ask(b"REQUEUE", topic, 5, b"first", expect=b"REQUEUED") == [u64(1), u64(0)]
    assert client.ask(b"REQUEUE", topic, 5, b"first", expect=b"REQUEUED") == [u64(0), u64(0)]
    assert [body for _, body, _ in client.jobs(b"c", 3)] == [b"3", b"4", b"no header"]


def test_a_topic_is_purged(client, other, topic, jobs):
    client.append(topic, *ABC)
    subscribe(other, b"s", topic, replay=0, credit=0)
    assert client.ask(b"PURGE", topic, 0, expect=b"PURGED") == [u64(0)]
    assert client.ask(b"PURGE", topic, 2, expect=b"PURGED") == [u64(2)]
    assert client.ask(b"PURGE", topic, 2, expect=b"PURGED") == [u64(0)]
    assert client.error(b"PURGE", topic, 4) == "topic"
    other.send(b"CREDIT", b"s", 1000)
    assert other.answer(b"s")[2:3] == [b"overrun"]
    assert client.ask(b"PURGE", topic, expect=b"PURGED") == [u64(1)]
    client.append(jobs, *ABC)
    consume(other, b"c", jobs, credit=1)
    assert other.jobs(b"c", 1) == [(1, b"a", 1)]
    assert client.ask(b"PURGE", jobs, expect=b"PURGED") == [u64(2)]
    other.send(b"NACK", b"c", u32(0), 1, 1)
    assert other.jobs(b"c", 1) == [(1, b"a", 2)]


# Reading and administration


def test_read_by_range(client, topic):
    for number in range(1, 6):
        client.append(topic, record(b"%d" % number))
    start, bodies = 1, []
    while start:
        following, first, *parts = client.ask(b"READ", topic, start, 5, u32(1), expect=b"RANGE")
        assert first == u64(1)
        for header, records in zip(parts[::2], parts[1::2], strict=True):
            bodies += [body for _, body, *_ in read_block(header, records)]
        start = int.from_bytes(following, "big")
    assert bodies == [b"1", b"2", b"3", b"4"]
    assert client.ask(b"READ", topic, 6, 0, u32(1), expect=b"RANGE") == [u64(0), u64(1)]


def test_how_far_a_number_of_bytes_reaches(client, topic):
    for number in range(1, 6):
        client.append(topic, record(b"%d" % number))  # ten bytes each
    assert client.ask(b"OFFSET_AFTER", topic, 2, 0, u64(20), expect=b"OFFSET") == [u64(4), u64(20)]
    assert client.ask(b"OFFSET_AFTER", topic, 2, 0, u64(1), expect=b"OFFSET") == [u64(3), u64(10)]
    assert client.ask(b"OFFSET_AFTER", topic, 2, 5, u64(1000), expect=b"OFFSET") == [u64(5), u64(30)]


def test_a_time_is_found_and_replayed_from(client, topic):
    times = []
    for number in range(1, 4):
        client.append(topic, record(b"%d" % number))
        _, _, header, _ = client.ask(b"READ", topic, number, 0, u32(1), expect=b"RANGE")
        times.append(read_header(header)[2])
        until(lambda: time.time_ns() // 1000 > times[-1])
    for number, timestamp in enumerate(times, 1):
        found = [u64(number), u64(timestamp), u64(0)]
        assert client.ask(b"OFFSET_AT", topic, timestamp, expect=b"OFFSET") == found
    assert client.ask(b"OFFSET_AT", topic, 0, expect=b"OFFSET") == [u64(1), u64(times[0]), u64(0)]
    assert client.ask(b"OFFSET_AT", topic, times[-1] + 1, expect=b"OFFSET") == [u64(4), u64(0), u64(0)]
    assert subscribe(client, b"s", topic, replay={"timestamp": times[1]})["position"] == 1
    assert [body for _, body, *_ in client.blocks(b"s", 2)] == [b"2", b"3"]
    future = (int(time.time()) + 3600) * 1_000_000
    assert client.error(b"SUBSCRIBE", topic, {"replay": {"timestamp": future}}) == "topic"


def test_topics_are_described(client):
    what = {"delivery": "round-robin", "persistence": "async", "settings": {"max_age": 3600, "max_deliveries": 5}}
    made = client.create("same", **what)
    assert {key: made[key] for key in what} == what
    assert client.create("same", **what) == made
    assert client.error(b"CREATE", {"name": "same", "delivery": "round-robin"}) == "topic"
    client.append(b"same", *ABC)

    def topic_info():
        (info,) = json.loads(client.ask(b"TOPICS", b"same", expect=b"TOPICS")[0])
        return info

    assert (topic_info()["first"], topic_info()["last"], topic_info()["subscribers"]) == (1, 3, 0)
    until(lambda: topic_info()["bytes"] >= sum(map(len, ABC)))  # of an async topic: once they are written
    every = json.loads(client.ask(b"TOPICS", expect=b"TOPICS")[0])
    assert [one["name"] for one in every] == sorted(one["name"] for one in every)


# Many at once


@pytest.mark.slow  # the client's test of this name is not
def test_fifty_subscribers_and_a_hundred_topics(server, client):
    names = [b"many-%d" % number for number in range(100)]
    for number, name in enumerate(names):
        client.send(b"CREATE", b"%d" % number, {"name": name.decode(), "persistence": "weak"})
    for _ in names:
        assert client.next()[0] == b"CREATED"
    readers = [RawClient(server.endpoints["zmtp"]) for _ in range(50)]
    try:
        for reader in readers:
            for name in names:
                reader.send(b"SUBSCRIBE", name[5:], name, {"replay": "earliest"})
            assert {reader.next()[0] for _ in names} == {b"SUBSCRIBED"}
        for number in range(3):
            for name in names:
                client.send(b"PUBLISH", b"p", name, b"%d" % number)
        for reader in readers:
            got = {name[5:]: [] for name in names}
            while sum(map(len, got.values())) < 300:
                _, tag, header, records = reader.next()
                got[tag] += [body for _, body, *_ in read_block(header, records)]
            assert set(map(tuple, got.values())) == {(b"0", b"1", b"2")}
    finally:
        for reader in readers:
            reader.close()
