"""The commands of a ZMTP session, and all errors of their arguments."""

import asyncio
import gc
import json
import random
import struct
import weakref
from contextlib import asynccontextmanager

import pytest

from omq._core import blocks
from omq.broker import protocol as p
from omq.broker.core.broker import Broker
from omq.broker.core.permissions import Permission, Permissions
from omq.broker.core.user_limits import UserLimit
from omq.broker.zmtp import session as sessions
from omq.broker.zmtp.session import ClientSession
from omq.store.lmdb.layout import topic_key
from omq.store.lmdb.store import DEAD_LETTERS
from tests.support.broker_core import append, core, run_pending, until
from tests.support.lmdb_faults import spoil

CLIENT = "0123456789abcdef" * 2
ONE = blocks.encode([b"one"])
RECORDS = blocks.encode([b"one", b"two"])


def shown(value, limit):
    """Returns the start of a value's text without all of it: a `repr` of 80 MiB takes a second."""
    if isinstance(value, bytes):
        value = value[:limit]
    elif isinstance(value, list):
        value = [part[:limit] for part in value]
    return repr(value)[:limit]


class SessionTransport:
    """A server without a socket, which records the messages to each session."""

    def __init__(self, broker):
        self.broker = broker
        self.clients = {}
        self.waiting = 0
        self.tasks = []

    def put(self, session, parts):
        session.got.append([bytes(part) for part in parts])

    def pending(self, session):
        return self.waiting

    def spawn(self, work):
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def session(self, user=None, hello=True, identity=b"a", client=CLIENT):
        session = ClientSession(self.broker, self, identity, user, "tcp://peer")
        session.got = []
        if hello:
            session.handle([p.HELLO, b"h", p.pack_json({"version": 1, "client": client})])
            assert session.got.pop(0)[0] == p.WELCOME
        return session


async def ask(session, *message):
    """Sends a request, and returns the next answer."""
    before = len(session.got)
    session.handle(list(message))
    await until(lambda: len(session.got) > before)
    return session.got.pop(before)


async def prepared(broker, name=b"t", delivery="broadcast", **settings):
    await broker.create(name.decode(), delivery=delivery, persistence="weak", settings=settings)
    return SessionTransport(broker).session()


def j(**what):
    return json.dumps(what).encode()


WRONG = [
    ("syntax", [b"NOTHING", b"1"]),
    ("syntax", [b"", b"1"]),
    ("syntax", [b"\xff\xfe", b"1"]),
    ("syntax", [b"PING"]),
    ("syntax", [b"PING", b"1", b"2"]),
    ("syntax", [b"PING", b"x" * 17]),
    ("syntax", [b"append", b"1", b"t", RECORDS]),
    ("syntax", [b"HELLO", b"1"]),
    ("syntax", [b"HELLO", b"1", b"{"]),
    ("syntax", [b"HELLO", b"1", b"[" * 60_000]),
    ("syntax", [b"HELLO", b"1", b"\xff"]),
    ("syntax", [b"HELLO", b"1", b"[]"]),
    ("version", [b"HELLO", b"1", j(version=2, client=CLIENT)]),
    ("version", [b"HELLO", b"1", b""]),
    ("syntax", [b"HELLO", b"1", j(version=1)]),
    ("syntax", [b"HELLO", b"1", j(version=1, client="me")]),
    ("syntax", [b"HELLO", b"1", j(version=1, client="g" * 32)]),
    ("syntax", [b"HELLO", b"1", j(version=1, client=7)]),
    ("state", [b"HELLO", b"1", j(version=1, client="f" * 32)]),
    ("syntax", [b"PURGE", b"1"]),
    ("syntax", [b"PURGE", b"1", b"t", b"7"]),
    ("syntax", [b"PURGE", b"1", b"t", p.u64(1), b"x"]),
    ("topic", [b"PURGE", b"1", b"nowhere"]),
    ("topic", [b"PURGE", b"1", b"t", p.u64(1)]),
    ("syntax", [b"REQUEUE", b"1"]),
    ("syntax", [b"REQUEUE", b"1", b"t", b"7"]),
    ("syntax", [b"REQUEUE", b"1", b"t", b"", b"jobs", b""]),
    ("topic", [b"REQUEUE", b"1", b"nowhere"]),
    ("topic", [b"REQUEUE", b"1", b"jobs"]),
    ("topic", [b"REQUEUE", b"1", b"t", p.u64(1)]),
    ("topic", [b"REQUEUE", b"1", b"t", b"", b"t"]),
    ("topic", [b"REQUEUE", b"1", b"t", b"", b"nowhere"]),
    ("topic", [b"REQUEUE", b"1", b"t", b"", b"a/b"]),
    ("topic", [b"APPEND", b"1", b"nowhere", RECORDS]),
    ("topic", [b"APPEND", b"1", b"", RECORDS]),
    ("topic", [b"APPEND", b"1", b"a/b", RECORDS]),
    ("topic", [b"APPEND", b"1", b"a\nb", RECORDS]),
    ("topic", [b"APPEND", b"1", b"\xff", RECORDS]),
    ("topic", [b"APPEND", b"1", b"x" * 10_240, RECORDS]),
    ("syntax", [b"APPEND", b"1", b"t"]),
    ("syntax", [b"APPEND", b"1", b"t", b""]),
    ("syntax", [b"APPEND", b"1", b"t", b"junk"]),
    ("syntax", [b"APPEND", b"1", b"t", RECORDS[:-1]]),
    ("syntax", [b"APPEND", b"1", b"t", RECORDS + b"\0"]),
    ("syntax", [b"APPEND", b"1", b"t", RECORDS[:-1] + b"X"]),
    ("syntax", [b"APPEND", b"1", b"t", b"\xff" * 100]),
    ("syntax", [b"APPEND", b"1", b"t", RECORDS, b"producer"]),
    ("syntax", [b"APPEND", b"1", b"t", RECORDS, b"producer", b"\0"]),
    ("syntax", [b"APPEND", b"1", b"t", RECORDS, b"producer", p.u64(0)]),
    ("syntax", [b"APPEND", b"1", b"t", RECORDS, b"", p.u64(1)]),
    ("syntax", [b"APPEND", b"1", b"t", RECORDS, b"p" * 65, p.u64(1)]),
    ("syntax", [b"APPEND", b"1", b"t", RECORDS, b"p", p.u64(1), b"1234"]),
    ("syntax", [b"APPEND", b"1", b"t", RECORDS, b"p", p.u64(1), p.u64(1), b"", b""]),
    ("syntax", [b"APPEND", b"1", b"t", RECORDS, b"p", p.u64(1), p.u64(1), b"two records"]),
    ("syntax", [b"APPEND", b"1", b"t", ONE, b"", b"", b"", b"i" * 256]),
    ("syntax", [b"PUBLISH", b"1", b"t", b"x", b"", b"[]"]),
    ("syntax", [b"PUBLISH", b"1", b"t", b"x", b"", b'{"a": 1}']),
    ("syntax", [b"PUBLISH", b"1", b"t", b"x", b"", b"", b"p"]),
    ("topic", [b"PUBLISH", b"1", b"nowhere", b"x"]),
    ("syntax", [b"STAGE", b"1", b"t", RECORDS, b""]),
    ("syntax", [b"STAGE", b"1", b"t", RECORDS, b"s" * 256]),
    ("syntax", [b"STAGE", b"1", b"t", b"junk", b"s"]),
    ("syntax", [b"COMMIT", b"1", b"", b"[]"]),
    ("syntax", [b"COMMIT", b"1", b"c", b"[]"]),
    ("syntax", [b"COMMIT", b"1", b"c", b"{}"]),
    ("syntax", [b"COMMIT", b"1", b"c", b"[1]"]),
    ("syntax", [b"COMMIT", b"1", b"c", b'["*"]']),
    ("syntax", [b"COMMIT", b"1", b"c", b'[""]']),
    ("state", [b"COMMIT", b"1", b"c", b'["bm9uZQ=="]']),
    ("topic", [b"SUBSCRIBE", b"1", b"nowhere", b"{}"]),
    ("topic", [b"SUBSCRIBE", b"1", b"jobs", b"{}"]),
    ("topic", [b"SUBSCRIBE", b"1", b"t", j(replay="yesterday")]),
    ("topic", [b"SUBSCRIBE", b"1", b"t", j(replay=1)]),
    ("topic", [b"SUBSCRIBE", b"1", b"t", j(replay=-1)]),
    ("topic", [b"SUBSCRIBE", b"1", b"t", j(name="")]),
    ("topic", [b"SUBSCRIBE", b"1", b"t", j(name="a/b")]),
    ("syntax", [b"SUBSCRIBE", b"1", b"t", j(replay=1.5)]),
    ("syntax", [b"SUBSCRIBE", b"1", b"t", j(replay={})]),
    ("syntax", [b"SUBSCRIBE", b"1", b"t", j(replay={"time": 1})]),
    ("syntax", [b"SUBSCRIBE", b"1", b"t", j(replay={"timestamp": 1, "id": 1})]),
    ("syntax", [b"SUBSCRIBE", b"1", b"t", j(replay={"timestamp": -1})]),
    ("syntax", [b"SUBSCRIBE", b"1", b"t", j(replay={"timestamp": 1.5})]),
    ("syntax", [b"SUBSCRIBE", b"1", b"t", j(replay={"timestamp": True})]),
    ("topic", [b"SUBSCRIBE", b"1", b"t", j(replay={"timestamp": 2**62})]),
    ("topic", [b"SUBSCRIBE", b"1", b"t", j(replay={"timestamp": 10**400})]),
    ("syntax", [b"SUBSCRIBE", b"1", b"t", j(name=7)]),
    ("syntax", [b"SUBSCRIBE", b"1", b"t", j(credit=-1)]),
    ("syntax", [b"SUBSCRIBE", b"1", b"t", j(credit="lots")]),
    ("topic", [b"CONSUME", b"1", b"t", b"{}"]),
    ("syntax", [b"CONSUME", b"1", b"jobs", j(ack_timeout=0)]),
    ("syntax", [b"CONSUME", b"1", b"jobs", j(ack_timeout=1e-9)]),
    ("syntax", [b"CONSUME", b"1", b"jobs", j(ack_timeout=1e10)]),
    ("syntax", [b"CONSUME", b"1", b"jobs", j(ack_timeout=True)]),
    ("syntax", [b"CONSUME", b"1", b"jobs", j(ack_timeout="soon")]),
    ("syntax", [b"CONSUME", b"1", b"jobs", b'{"ack_timeout": 1e400}']),
    ("syntax", [b"CONSUME", b"1", b"jobs", b'{"ack_timeout": NaN}']),
    ("syntax", [b"CONSUME", b"1", b"jobs", j(credit=True)]),
    ("syntax", [b"CREDIT", b"1", b"7"]),
    ("syntax", [b"POSITION", b"1", b"7"]),
    ("syntax", [b"ACK", b"1", p.u64(1)]),
    ("syntax", [b"ACK", b"1", p.u64(2), p.u64(1)]),
    ("syntax", [b"ACK", b"1", p.u64(0), p.u64(1)]),
    ("syntax", [b"ACK", b"1"]),
    ("syntax", [b"NACK", b"1", b""]),
    ("syntax", [b"READ", b"1", b"t", p.u64(1), p.u64(0), p.u64(100)]),
    ("syntax", [b"READ", b"1", b"t", p.u64(1), p.u64(0)]),
    ("topic", [b"READ", b"1", b"nowhere", p.u64(1), p.u64(0), p.u32(100)]),
    ("syntax", [b"OFFSET_AFTER", b"1", b"t", p.u64(1), p.u64(0), p.u32(100)]),
    ("syntax", [b"OFFSET_AFTER", b"1", b"t", p.u64(1), p.u64(0)]),
    ("topic", [b"OFFSET_AFTER", b"1", b"nowhere", p.u64(1), p.u64(0), p.u64(100)]),
    ("syntax", [b"OFFSET_AT", b"1", b"t"]),
    ("syntax", [b"OFFSET_AT", b"1", b"t", p.u32(1)]),
    ("topic", [b"OFFSET_AT", b"1", b"nowhere", p.u64(1)]),
    ("syntax", [b"CREATE", b"1", j(name=7)]),
    ("syntax", [b"CREATE", b"1", j(name="n", settings=[])]),
    ("topic", [b"CREATE", b"1", j(name="n/n")]),
    ("topic", [b"CREATE", b"1", j(name="n", delivery="both")]),
    ("topic", [b"CREATE", b"1", j(name="n", delivery=["x"])]),
    ("topic", [b"CREATE", b"1", j(name="n", settings={"max_age": "old"})]),
    ("topic", [b"CREATE", b"1", j(name="t", persistence="async")]),
    ("syntax", [b"ALTER", b"1"]),
    ("syntax", [b"ALTER", b"1", b"[]"]),
    ("syntax", [b"ALTER", b"1", j(settings={})]),
    ("syntax", [b"ALTER", b"1", j(name=7)]),
    ("syntax", [b"ALTER", b"1", j(name="t", settings=[])]),
    ("syntax", [b"ALTER", b"1", j(name="t", force=1)]),
    ("topic", [b"ALTER", b"1", j(name="n/n")]),
    ("topic", [b"ALTER", b"1", j(name="nowhere")]),
    ("topic", [b"ALTER", b"1", j(name="t", settings={"max_age": "old"})]),
    ("topic", [b"ALTER", b"1", j(name="t", settings={"colour": None})]),
    ("topic", [b"ALTER", b"1", j(name="t", settings={"delivery": "round-robin"})]),
    ("topic", [b"DELETE", b"1", b"nowhere"]),
    ("topic", [b"TOPICS", b"1", b"nowhere"]),
    ("topic", [b"DURABLES", b"1", b"nowhere"]),
    ("topic", [b"DELETE_DURABLE", b"1", b"t", b"absent"]),
    ("topic", [b"DELETE_DURABLE", b"1", b"jobs", b"absent"]),
    ("syntax", [b"CONSUME", b"1", b"t", j(group=7)]),
    ("syntax", [b"CONSUME", b"1", b"t", j(group="g", replay=None)]),
    ("syntax", [b"CONSUME", b"1", b"t", j(group="g", replay={"timestamp": -1})]),
    ("topic", [b"CONSUME", b"1", b"t", j(group="g", replay={"timestamp": 2**62})]),
    ("topic", [b"CONSUME", b"1", b"t", j(group="g", replay="yesterday")]),
    ("topic", [b"CONSUME", b"1", b"t", j(group="g", replay=1)]),
    ("topic", [b"CONSUME", b"1", b"t", j(group="a/b")]),
    ("topic", [b"CONSUME", b"1", b"t", j(group="")]),
    ("topic", [b"CONSUME", b"1", b"jobs", j(group="g")]),
    ("syntax", [b"GROUPS", b"1"]),
    ("topic", [b"GROUPS", b"1", b"nowhere"]),
    ("syntax", [b"SEEK_GROUP", b"1", b"t", b"g"]),
    ("syntax", [b"SEEK_GROUP", b"1", b"t", b"g", b"{}"]),
    ("topic", [b"SEEK_GROUP", b"1", b"t", b"g", j(replay=0)]),
    ("topic", [b"SEEK_GROUP", b"1", b"t", b"g" * 256, j(replay=0)]),
    ("topic", [b"SEEK_GROUP", b"1", b"jobs", b"g", j(replay=0)]),
    ("syntax", [b"DELETE_GROUP", b"1", b"t"]),
    ("topic", [b"DELETE_GROUP", b"1", b"t", b"g"]),
    ("topic", [b"DELETE_GROUP", b"1", b"jobs", b"g"]),
    ("syntax", [b"REACK_GROUP", b"1", b"t", p.u64(2), b"g", p.u64(1)]),
    ("syntax", [b"REACK_GROUP", b"1", b"t", p.u64(2), b"g", b"1", p.u64(1), p.u64(1)]),
    ("topic", [b"REACK_GROUP", b"1", b"t", p.u64(2), b"g", p.u64(1), p.u64(1), p.u64(1)]),
    ("topic", [b"REACK_GROUP", b"1", b"t", p.u64(9), b"g", p.u64(1), p.u64(1), p.u64(1)]),
    ("topic", [b"REACK_GROUP", b"1", b"jobs", p.u64(1), b"g", p.u64(1), p.u64(1), p.u64(1)]),
    ("syntax", [b"SUBSCRIBE", b"1", b"t", j(take_over=1)]),
    ("topic", [b"SUBSCRIBE", b"1", b"t", j(take_over=True)]),
    ("too-large", [b"HELLO", b"1", b" " * 65_537]),
    ("too-large", [b"PUBLISH", b"1", b"t", b"x", b"", b" " * 65_537]),
    ("too-large", [b"PUBLISH", b"1", b"t", b"x", bytes(80 << 20)]),
    ("too-large", [b"SUBSCRIBE", b"1", b"t", b" " * 65_537]),
    ("too-large", [b"CONSUME", b"1", b"jobs", b" " * 65_537]),
    ("too-large", [b"CREATE", b"1", b" " * 65_537]),
    ("too-large", [b"ALTER", b"1", b" " * 65_537]),
    ("too-large", [b"COMMIT", b"1", b"c", b" " * (1 << 20) + b"1"]),
    ("too-large", [b"COMMIT", b"1", b"c", json.dumps(["czE="] * 4097).encode()]),
    ("too-large", [b"ACK", b"1", p.u64(1) * 2 * 4097]),
    ("too-large", [b"NACK", b"1", *[p.u64(1) * 4096] * 2, p.u64(1), p.u64(1)]),
    ("topic", [b"DELETE_DURABLE", b"1", b"t", b"x" * 256]),
    ("topic", [b"TOPICS", b"1", b"x" * 256]),
]


@pytest.mark.parametrize(("code", "message"), WRONG, ids=lambda one: shown(one, 60))
async def test_invalid_messages_are_answered_and_the_next_one_is_executed(code, message):
    async with core() as broker:
        await broker.create("jobs", delivery="round-robin", persistence="weak")
        session = await prepared(broker)
        answer = await ask(session, *message)
        tag = message[1][:16] if len(message) > 1 else b""
        assert answer[:3] == [b"ERROR", tag, code.encode()]
        assert answer[3]
        assert await ask(session, b"PING", b"2") == [b"PONG", b"2"]
        assert session.tags == {}
        assert sum(broker.refused.values()) == 1


@pytest.mark.parametrize("command", [b"SUBSCRIBE", b"CONSUME"])
async def test_hello_comes_first(command):
    async with core() as broker:
        await broker.create("t", persistence="weak")
        session = SessionTransport(broker).session(hello=False)
        assert (await ask(session, command, b"1", b"t", b"{}"))[2] == b"state"
        assert (await ask(session, b"PUBLISH", b"1", b"t", b"x"))[0] == b"PUBLISHED"


async def test_a_tag_in_use_ends_its_subscription():
    async with core() as broker:
        session = await prepared(broker)
        assert (await ask(session, b"SUBSCRIBE", b"s", b"t", b""))[0] == b"SUBSCRIBED"
        assert (await ask(session, b"SUBSCRIBE", b"s", b"t", b""))[2] == b"state"
        assert broker.topic("t").readers == 0
        assert (await ask(session, b"SUBSCRIBE", b"s", b"t", b""))[0] == b"SUBSCRIBED"


@pytest.mark.parametrize(
    "message", [[b"ACK", b"s", p.u64(1), p.u64(1)], [b"NACK", b"s", p.u64(1), p.u64(1)], [b"CREDIT", b"s", b"1"]]
)
async def test_an_error_with_the_tag_of_a_subscription_ends_it(message):
    async with core() as broker:
        session = await prepared(broker)
        await ask(session, b"SUBSCRIBE", b"s", b"t", b"")
        assert (await ask(session, *message))[:2] == [b"ERROR", b"s"]
        assert broker.topic("t").readers == 0


async def test_a_consumer_has_no_position():
    async with core() as broker:
        session = await prepared(broker, delivery="round-robin")
        await ask(session, b"CONSUME", b"s", b"t", b"")
        assert (await ask(session, b"POSITION", b"s", p.u64(1)))[2] == b"state"
        assert broker.topic("t").readers == 0


async def test_commands_for_an_ended_tag_are_ignored():
    async with core() as broker:
        session = await prepared(broker)
        for command in (b"CREDIT", b"POSITION"):
            session.handle([command, b"s", p.u64(1)])
        for command in (b"ACK", b"NACK"):
            session.handle([command, b"s", p.u64(1), p.u64(1)])
        assert session.got == []
        assert await ask(session, b"CANCEL", b"s") == [b"CANCELLED", b"s"]


async def test_bodies_and_records_that_are_too_large(monkeypatch):
    async with core() as broker:
        session = await prepared(broker)
        monkeypatch.setattr(p, "MAX_BODY_BYTES", 10)
        assert (await ask(session, b"PUBLISH", b"1", b"t", b"x" * 11))[2] == b"too-large"
        assert (await ask(session, b"APPEND", b"1", b"t", blocks.encode([b"x" * 11])))[2] == b"too-large"
        assert (await ask(session, b"PUBLISH", b"1", b"t", b"x" * 10))[0] == b"PUBLISHED"
        monkeypatch.setattr(p, "MAX_APPEND_BYTES", 30)
        assert (await ask(session, b"APPEND", b"1", b"t", blocks.encode([b"x"] * 4)))[2] == b"too-large"
        monkeypatch.setattr(p, "MAX_RECORDS", 1)
        assert (await ask(session, b"APPEND", b"1", b"t", RECORDS))[2] == b"syntax"


async def test_too_much_without_an_answer_is_busy_and_goes_on_later(monkeypatch):
    async with core() as broker:
        session = await prepared(broker)
        monkeypatch.setattr(p, "WINDOW_BYTES", len(RECORDS) * 2)
        for tag in (b"1", b"2", b"3"):
            session.handle([b"APPEND", tag, b"t", RECORDS])
        await until(lambda: len(session.got) == 3)
        assert sorted((answer[1], answer[0]) for answer in session.got) == [
            (b"1", b"PUBLISHED"),
            (b"2", b"PUBLISHED"),
            (b"3", b"ERROR"),
        ]
        assert session.got[0][2] == b"busy"
        assert (await ask(session, b"APPEND", b"4", b"t", RECORDS))[0] == b"PUBLISHED"


async def test_a_busy_append_is_not_overtaken_until_it_is_repeated(monkeypatch):
    async with core() as broker:
        session = await prepared(broker)
        large = blocks.encode([b"x" * 1000])
        monkeypatch.setattr(p, "WINDOW_BYTES", 1000)

        def send(tag, records, sequence, first_outstanding=1):
            session.handle([b"APPEND", tag, b"t", records, b"me", p.u64(sequence), p.u64(first_outstanding)])

        send(b"1", RECORDS, 1)
        send(b"2", large, 2)
        send(b"3", RECORDS, 3)
        await until(lambda: len(session.got) == 3)
        codes = {answer[1]: answer[2] for answer in session.got if answer[0] == b"ERROR"}
        assert codes == {b"2": b"busy", b"3": b"busy"}
        session.got.clear()
        send(b"2", large, 2, 2)
        await until(lambda: session.got)
        send(b"3", RECORDS, 3, 3)
        await until(lambda: len(session.got) == 2)
        assert [answer[:2] for answer in session.got] == [[b"PUBLISHED", b"2"], [b"PUBLISHED", b"3"]]


async def test_a_handler_that_fails_costs_its_request_only(monkeypatch, caplog):
    async with core() as broker:
        session = await prepared(broker)

        def fails(*_):
            raise RuntimeError("a bug")

        monkeypatch.setitem(ClientSession._HANDLERS, b"PING", (fails, 0, 0))
        assert (await ask(session, b"PING", b"1"))[2] == b"failed"
        assert "a bug" in caplog.text
        monkeypatch.setattr(broker, "create", fails)
        assert (await ask(session, b"CREATE", b"1", j(name="n")))[2] == b"failed"
        assert (await ask(session, b"PUBLISH", b"1", b"t", b"x"))[0] == b"PUBLISHED"


async def test_a_new_session_of_a_client_takes_over():
    async with core() as broker:
        await broker.create("t", persistence="weak")
        transport = SessionTransport(broker)
        before = transport.session()
        await ask(before, b"SUBSCRIBE", b"s", b"t", j(name="n"))
        after = transport.session(identity=b"b")
        assert before.got[-1][:3] == [b"ERROR", b"s", b"state"]
        assert (await ask(after, b"SUBSCRIBE", b"s", b"t", j(name="n")))[0] == b"SUBSCRIBED"
        assert (await ask(before, b"SUBSCRIBE", b"s", b"t", b""))[2] == b"state"
        before.connection_lost()
        assert broker.topic("t").readers == 1
        assert transport.clients == {(None, CLIENT): after}


async def test_the_client_id_of_another_user_is_another_one():
    async with core() as broker:
        await broker.create("t", persistence="weak")
        transport = SessionTransport(broker)
        mine = transport.session(user="me")
        await ask(mine, b"SUBSCRIBE", b"s", b"t", b"")
        transport.session(user="you", identity=b"b")
        assert broker.topic("t").readers == 1


async def test_messages_of_a_lost_session_are_requeued():
    async with core() as broker:
        await broker.create("j", delivery="round-robin", persistence="weak")
        await broker.create("t", persistence="weak")
        transport = SessionTransport(broker)
        one, other = transport.session(), transport.session(identity=b"b", client="f" * 32)
        await ask(one, b"APPEND", b"1", b"j", RECORDS)
        await ask(one, b"CONSUME", b"c", b"j", b"")
        await until(lambda: one.got and one.got[-1][0] == b"JOBS")
        await ask(one, b"SUBSCRIBE", b"s", b"t", b"")
        one.connection_lost()
        assert broker.topic("t").readers == 0
        await ask(other, b"CONSUME", b"c", b"j", b"")
        await until(lambda: len(other.got) == 2)
        # It had begun with the first one only.
        assert [(command, tag, counts) for command, tag, _, _, counts in other.got] == [
            (b"JOBS", b"c", p.u32(2)),
            (b"JOBS", b"c", b""),
        ]
        assert b"".join(records for _, _, _, records, _ in other.got) == RECORDS
        assert [blocks.read_header(header)[:2] for _, _, header, _, _ in other.got] == [(1, 1), (2, 1)]
        answers = len(one.got)
        one.handle([b"PUBLISH", b"1", b"t", b"x"])
        await until(lambda: broker.topic("t").last == 1)
        assert len(one.got) == answers


async def test_bye_ends_the_session_and_hello_begins_another():
    async with core() as broker:
        session = await prepared(broker)
        await ask(session, b"SUBSCRIBE", b"s", b"t", b"")
        assert await ask(session, b"BYE", b"b") == [b"BYE", b"b"]
        assert broker.topic("t").readers == 0
        assert (await ask(session, b"SUBSCRIBE", b"s", b"t", b""))[2] == b"state"
        assert (await ask(session, b"HELLO", b"h", j(version=1, client="f" * 32)))[0] == b"WELCOME"


async def test_a_subscription_has_no_more_than_its_credit():
    async with core() as broker:
        session = await prepared(broker)
        for _ in range(5):
            await ask(session, b"APPEND", b"1", b"t", blocks.encode([b"x" * 100]))
        assert (await ask(session, b"SUBSCRIBE", b"s", b"t", j(replay="earliest", credit=0)))[0] == b"SUBSCRIBED"
        size = len(blocks.encode([b"x" * 100]))
        session.handle([b"CREDIT", b"s", p.u64(1)])
        for expected in range(1, 6):
            await until(lambda: session.got)
            block = session.got.pop(0)
            assert block[:2] == [b"BLOCK", b"s"]
            assert blocks.read_header(block[2])[0] == expected
            await run_pending(broker)
            assert session.got == []
            session.handle([b"CREDIT", b"s", p.u64(size - 1)])  # what was too much is owed
            await run_pending(broker)
            assert session.got == []
            session.handle([b"CREDIT", b"s", p.u64(1)])


async def test_a_peer_that_does_not_read_gets_nothing_until_it_does():
    async with core() as broker:
        session = await prepared(broker)
        transport = session._transport
        await ask(session, b"APPEND", b"1", b"t", RECORDS)
        transport.waiting = sessions.MAX_PENDING_BYTES
        await ask(session, b"SUBSCRIBE", b"s", b"t", j(replay="earliest"))
        session.handle([b"READ", b"r", b"t", p.u64(1), p.u64(0), p.u32(1000)])
        assert await ask(session, b"PING", b"1") == [b"PONG", b"1"]
        transport.waiting = 0
        session.resume()
        await until(lambda: len(session.got) == 2)
        assert {answer[0] for answer in session.got} == {b"RANGE", b"BLOCK"}


async def test_reads_are_answered_block_by_block():
    async with core() as broker:
        session = await prepared(broker, max_messages=8)
        for number in range(10):
            await ask(session, b"APPEND", b"1", b"t", blocks.encode([b"%d" % number]))
        first = broker.topic("t").state().first
        start, bodies, answers = 0, [], 0
        while True:
            command, tag, following, oldest, *parts = await ask(
                session, b"READ", b"r", b"t", p.u64(start), p.u64(0), p.u32(25)
            )
            assert (command, tag, p.number(oldest)) == (b"RANGE", b"r", first)
            assert parts
            for header, records in zip(parts[::2], parts[1::2], strict=True):
                bodies += [(message.id, message.body) for message in blocks.decode(header, records, "t")]
            answers += 1
            start = p.number(following)
            if not start:
                break
        assert bodies == [(id, b"%d" % (id - 1)) for id in range(first, 11)]
        assert answers > 1
        nothing = [b"RANGE", b"r", p.u64(0), p.u64(first)]
        assert await ask(session, b"READ", b"r", b"t", p.u64(11), p.u64(0), p.u32(100)) == nothing
        assert await ask(session, b"READ", b"r", b"t", p.u64(9), p.u64(9), p.u32(100)) == nothing
        one = await ask(session, b"READ", b"r", b"t", p.u64(9), p.u64(10), p.u32(0))
        assert one[2] == p.u64(0)
        assert blocks.read_header(one[4])[:2] == (9, 1)


async def test_a_limit_of_bytes_includes_the_record_that_has_the_last_one():
    async with core() as broker:
        session = await prepared(broker, max_messages=8)
        for number in range(10):
            await ask(session, b"APPEND", b"1", b"t", blocks.encode([b"%d" % number]))
        first = broker.topic("t").state().first

        async def reach(start: int, stop: int, size: int) -> tuple[int, int]:
            command, tag, *numbers = await ask(
                session, b"OFFSET_AFTER", b"r", b"t", p.u64(start), p.u64(stop), p.u64(size)
            )
            assert (command, tag) == (b"OFFSET", b"r")
            return p.number(numbers[0]), p.number(numbers[1])

        assert await reach(5, 0, 0) == (6, 10)  # one at least, and each record has ten bytes
        assert await reach(5, 0, 10) == (6, 10)
        assert await reach(5, 0, 11) == (7, 20)
        assert await reach(5, 8, 1000) == (8, 30)
        assert await reach(5, 0, 1000) == (11, 60)
        assert await reach(1, 0, 1) == (first + 1, 10)
        assert await reach(11, 0, 1) == (11, 0)
        assert await reach(20, 0, 1) == (20, 0)


async def test_offset_at_returns_the_id_the_timestamp_and_whether_messages_were_dropped(monkeypatch):
    async with core() as broker:
        session = await prepared(broker, max_messages=2)

        async def found(timestamp: int) -> list[int]:
            command, tag, *numbers = await ask(session, b"OFFSET_AT", b"r", b"t", p.u64(timestamp))
            assert (command, tag) == (b"OFFSET", b"r")
            return [p.number(one) for one in numbers]

        assert await found(0) == [1, 0, 0]
        for number in range(1, 4):
            monkeypatch.setattr("omq.store.memory.wall", lambda number=number: 100 * number)
            await ask(session, b"APPEND", b"1", b"t", blocks.encode([b"%d" % number]))
            if number == 2:
                assert await found(0) == await found(100) == [1, 100, 0]
        assert await found(0) == await found(200) == [2, 200, 1]
        assert await found(201) == await found(300) == [3, 300, 0]
        assert await found(301) == await found(2**64 - 1) == [4, 0, 0]


async def test_offset_after_scans_a_bounded_size_and_can_be_continued(monkeypatch):
    monkeypatch.setattr("omq.broker.zmtp.range_reads.MAX_SCAN_BYTES", 25)
    async with core() as broker:
        session = await prepared(broker)
        for number in range(3):
            await ask(session, b"APPEND", b"1", b"t", blocks.encode([bytes([number]) * 30]))
        at, seen = 1, 0
        while at < 4:
            _, _, following, more = await ask(session, b"OFFSET_AFTER", b"r", b"t", p.u64(at), p.u64(0), p.u64(1000))
            assert p.number(following) > at
            at, seen = p.number(following), seen + p.number(more)
        assert (at, seen) == (4, 117)


async def test_stages_are_published_at_once_and_a_commit_counts_once():
    async with core() as broker:
        await broker.create("u", persistence="weak")
        session = await prepared(broker)
        assert await ask(session, b"STAGE", b"1", b"t", RECORDS, b"s1", p.u64(1)) == [b"STAGED", b"1"]
        assert await ask(session, b"STAGE", b"1", b"t", RECORDS, b"s1", p.u64(1)) == [b"STAGED", b"1"]
        assert await ask(session, b"STAGE", b"1", b"u", RECORDS, b"s2") == [b"STAGED", b"1"]
        assert broker.topic("t").last == 0
        expected = [
            {"stage": "czE=", "topic": "t", "first": 1, "count": 2},
            {"stage": "czI=", "topic": "u", "first": 1, "count": 2},
        ]
        for _ in range(2):
            command, tag, answer = await ask(session, b"COMMIT", b"2", b"c", b'["czE=", "czI="]')
            assert (command, tag, json.loads(answer)) == (b"COMMITTED", b"2", expected)
        await until(lambda: broker.topic("t").readable == 2)
        await ask(session, b"STAGE", b"1", b"t", RECORDS, b"s3")
        assert await ask(session, b"ABORT", b"3", b"s3") == [b"ABORTED", b"3"]
        for stage in (b"p/1", b"p/2", b"q/1"):
            assert await ask(session, b"STAGE", b"3", b"t", RECORDS, stage) == [b"STAGED", b"3"]
        assert await ask(session, b"ABORT", b"3", b"p/", b"all") == [b"ABORTED", b"3"]
        assert (await ask(session, b"COMMIT", b"3", b"of p", b'["cC8y"]'))[2] == b"state"
        assert (await ask(session, b"COMMIT", b"3", b"of q", b'["cS8x"]'))[0] == b"COMMITTED"
        assert (await ask(session, b"COMMIT", b"4", b"d", b'["czM="]'))[2] == b"state"


@pytest.mark.parametrize("persistence", ["strong", "weak", "async", "transient"])
async def test_a_commit_is_counted_and_answered_alike_when_its_topic_is_gone(tmp_path, persistence):
    broker = Broker(tmp_path)
    await broker.start()
    for name in ("t", "u"):
        await broker.create(name, persistence=persistence)
    session = SessionTransport(broker).session("another")
    for stage, topic in ((b"s1", b"t"), (b"s2", b"u"), (b"s3", b"t")):
        assert (await ask(session, b"STAGE", b"1", topic, RECORDS, stage))[0] == b"STAGED"
    assert broker.topic("t").stats()["published"] == 0
    stages = b'["czE=", "czI=", "czM="]'
    first = await ask(session, b"COMMIT", b"2", b"c", stages)
    assert [one["topic"] for one in json.loads(first[2])] == ["t", "u", "t"]
    await broker.delete("u")
    for _ in range(2):
        assert await ask(session, b"COMMIT", b"2", b"c", stages) == first
        await broker.create("u", persistence=persistence)  # another one
    counted = [broker.topic(name).stats() for name in ("t", "u")]
    assert [(one["published"], one["published_bytes"]) for one in counted] == [(4, 2 * len(RECORDS)), (0, 0)]
    await broker.close()


async def test_more_stages_than_a_transient_topic_keeps_are_full():
    async with core() as broker:
        await broker.create("t", persistence="transient", settings={"max_bytes": 2 * len(RECORDS)})
        session = SessionTransport(broker).session()
        for stage in (b"1", b"2"):
            assert (await ask(session, b"STAGE", b"1", b"t", RECORDS, stage))[0] == b"STAGED"
        code, text = (await ask(session, b"STAGE", b"1", b"t", RECORDS, b"3"))[2:]
        assert code == b"full"
        assert b"commit or abort some" in text
        assert (await ask(session, b"ABORT", b"1", b"2"))[0] == b"ABORTED"
        assert (await ask(session, b"STAGE", b"1", b"t", RECORDS, b"3"))[0] == b"STAGED"


async def test_a_topic_that_is_refused_is_deleted_by_its_name(tmp_path):
    broker = Broker(tmp_path)
    await broker.start()
    await broker.create("t", persistence="strong")
    await ask(SessionTransport(broker).session(), b"APPEND", b"1", b"t", RECORDS)
    await broker.close()
    spoil(tmp_path, topic_key(b"n", 1))
    broker = Broker(tmp_path)
    await broker.start()
    broker.permissions = Permissions([Permission("alice", "t", ["publish"]), Permission("bob", "t", ["delete"])])
    alice, bob = SessionTransport(broker).session("alice"), SessionTransport(broker).session("bob", identity=b"b")
    assert (await ask(alice, b"APPEND", b"1", b"t", RECORDS))[2] == b"damaged"
    assert (await ask(alice, b"DELETE", b"1", b"t"))[2] == b"permission"
    assert await ask(bob, b"DELETE", b"1", b"t") == [b"DELETED", b"1"]
    assert (await ask(bob, b"DELETE", b"1", b"t"))[2] == b"topic"
    assert (await broker.create("t", persistence="strong")).last == 0
    assert (await ask(alice, b"APPEND", b"1", b"t", RECORDS))[0] == b"PUBLISHED"
    await broker.close()


async def test_the_stages_of_another_user_are_others():
    async with core() as broker:
        await broker.create("t", persistence="weak")
        transport = SessionTransport(broker)
        one, other = transport.session("one"), transport.session("other", identity=b"b")
        assert await ask(one, b"STAGE", b"1", b"t", RECORDS, b"s") == [b"STAGED", b"1"]
        assert (await ask(other, b"COMMIT", b"2", b"c", b'["cw=="]'))[2] == b"state"
        assert await ask(other, b"ABORT", b"3", b"s") == [b"ABORTED", b"3"]
        (_, _, answer) = await ask(one, b"COMMIT", b"2", b"c", b'["cw=="]')
        assert json.loads(answer) == [{"stage": "cw==", "topic": "t", "first": 1, "count": 2}]


@pytest.mark.parametrize("persistence", ["strong", "transient"])
async def test_a_sequence_below_the_first_outstanding_one_is_not_stored(tmp_path, persistence):
    broker = Broker(tmp_path)
    await broker.start()
    await broker.create("t", persistence=persistence)
    session = SessionTransport(broker).session()

    async def append(sequence, first_outstanding):
        return await ask(session, b"APPEND", b"a", b"t", RECORDS, b"p", p.u64(sequence), p.u64(first_outstanding))

    for sequence in (1, 2, 4):
        assert (await append(sequence, sequence))[0] == b"PUBLISHED"
    for sequence in (3, 2):  # one that was never stored, and one that was
        assert (await append(sequence, sequence))[:3] == [b"ERROR", b"a", b"duplicate-sequence"]
    assert await append(4, 4) == [b"PUBLISHED", b"a", p.u64(5)]
    assert broker.topics["t"].last == 6
    await broker.close()


@pytest.mark.parametrize("persistence", ["strong", "transient"])
async def test_a_commit_asks_again_whether_its_user_may_publish(tmp_path, persistence):
    broker = Broker(tmp_path)
    await broker.start()
    for name in ("t", "u"):
        await broker.create(name, persistence=persistence)
    session = SessionTransport(broker).session("alice")
    for name in (b"t", b"u"):
        assert (await ask(session, b"STAGE", b"s", name, RECORDS, b"s" + name))[0] == b"STAGED"
    stages = p.pack_json(["c3Q=", "c3U="])
    broker.permissions = Permissions([Permission("alice", "t", ["publish"])])
    answer = await ask(session, b"COMMIT", b"c", b"c", stages)
    assert answer == [b"ERROR", b"c", b"permission", b"alice may not publish 'u'"]
    assert [broker.topics[name].state().last for name in ("t", "u")] == [0, 0]
    broker.permissions = Permissions([Permission("alice", "*", ["publish"])])
    assert (await ask(session, b"COMMIT", b"c", b"c", stages))[0] == b"COMMITTED"
    assert [broker.topics[name].state().last for name in ("t", "u")] == [2, 2]
    await broker.close()


async def test_the_producers_of_another_user_are_others():
    async with core() as broker:
        await broker.create("t", persistence="weak")
        transport = SessionTransport(broker)
        ids = {}
        for user in ("one", "other", None, "-"):
            session = transport.session(user, client=(user or "absent").encode().hex().ljust(32, "0"))
            appended = await ask(session, b"APPEND", b"1", b"t", RECORDS, b"p", p.u64(1))
            again = await ask(session, b"PUBLISH", b"1", b"t", b"x", b"", b"", b"p", p.u64(1))
            assert appended == again
            ids[user] = appended[2]
        assert len(set(ids.values())) == 4


async def test_no_client_takes_the_place_of_a_topics_dead_letters(tmp_path):
    broker = Broker(tmp_path)
    await broker.start()
    try:
        dead = await broker.create("dead", persistence="strong")
        jobs = await broker.create(
            "jobs",
            delivery="round-robin",
            persistence="weak",
            settings={"max_deliveries": 1, "dead_letter": "dead"},
        )
        for user in (None, "one"):
            session = SessionTransport(broker).session(user)
            for sequence in (1, 2):
                await ask(
                    session,
                    *(b"APPEND", b"1", b"dead", RECORDS, DEAD_LETTERS + jobs.id.to_bytes(4, "big")),
                    *(p.u64(sequence), p.u64(2**63)),
                )
        before = dead.last
        await ask(session, b"APPEND", b"1", b"jobs", RECORDS)
        assert (await ask(session, b"CONSUME", b"c", b"jobs", b""))[0] == b"CONSUMING"
        await until(lambda: session.got)
        session.handle([b"NACK", b"c", p.u64(1), p.u64(2)])
        await until(lambda: jobs.dead_lettered == 2)
        await until(lambda: dead.readable == before + 2)
    finally:
        await broker.close()


async def test_a_stage_is_called_by_the_name_that_the_client_gave_it(tmp_path):
    for broker in (Broker(None), Broker(tmp_path)):
        await broker.start()
        try:
            for name in ("t", "u"):
                await broker.create(name, persistence="weak")
            session = SessionTransport(broker).session("another")
            await ask(session, b"STAGE", b"1", b"t", RECORDS, b"st")
            for message in (
                [b"STAGE", b"1", b"u", RECORDS, b"st"],
                [b"COMMIT", b"1", b"c", b'["eHg="]'],
                [b"COMMIT", b"1", b"c", b'["c3Q=", "eHg="]'],
            ):
                answer = await ask(session, *message)
                assert answer[2] == b"state"
                assert b"stage 'st'" in answer[3] or b"stage 'xx'" in answer[3]
        finally:
            await broker.close()


GRANTED = [
    ("publish", [b"APPEND", b"1", b"t", RECORDS]),
    ("publish", [b"PUBLISH", b"1", b"t", b"x"]),
    ("publish", [b"STAGE", b"1", b"t", RECORDS, b"s"]),
    ("subscribe", [b"SUBSCRIBE", b"1", b"t", b"{}"]),
    ("subscribe", [b"READ", b"1", b"t", p.u64(1), p.u64(0), p.u32(9)]),
    ("subscribe", [b"OFFSET_AFTER", b"1", b"t", p.u64(1), p.u64(0), p.u64(9)]),
    ("subscribe", [b"OFFSET_AT", b"1", b"t", p.u64(1)]),
    ("subscribe", [b"DURABLES", b"1", b"t"]),
    ("consume", [b"CONSUME", b"1", b"j", b"{}"]),
    ("consume", [b"CONSUME", b"1", b"t", j(group="g")]),
    ("consume", [b"GROUPS", b"1", b"t"]),
    ("create", [b"CREATE", b"1", j(name="t", persistence="weak")]),
    ("delete", [b"DELETE", b"1", b"t"]),
    ("admin", [b"ALTER", b"1", j(name="t", settings={"max_age": 60})]),
    ("admin", [b"PURGE", b"1", b"t"]),
    ("admin", [b"REQUEUE", b"1", b"t"]),
]


@pytest.mark.parametrize(("action", "message"), GRANTED, ids=lambda one: shown(one, 40))
async def test_each_command_needs_its_permission(action, message):
    permissions = [Permission("alice", "*", [action]), Permission("bob", "*", {"publish", "subscribe"} - {action})]
    async with core(permissions=permissions) as broker:
        await broker.create("t", persistence="weak")
        await broker.create("j", delivery="round-robin", persistence="weak")
        transport = SessionTransport(broker)
        for user in ("bob", None, "*"):
            answer = await ask(transport.session(user), *message)
            assert answer[:3] == [b"ERROR", b"1", b"permission"], user
        assert (await ask(transport.session("alice"), *message))[0] != b"ERROR"


@pytest.mark.parametrize(
    "name", [b"x" * 256, b"x" * (16 << 20), b"a/b", b"a\nb", b"", b"\xff"], ids=lambda one: shown(one, 8)
)
async def test_a_name_that_no_topic_has_never_reaches_the_permissions(name):
    async with core(permissions=[Permission("*", "*", ["subscribe", "create"])]) as broker:
        session = SessionTransport(broker).session()
        assert (await ask(session, b"DURABLES", b"1", name))[2] == b"topic"
        assert (await ask(session, b"READ", b"1", name, p.u64(1), p.u64(0), p.u32(9)))[2] == b"topic"
        assert broker.permissions._cache == {}


async def test_topics_are_those_that_a_client_may_do_something_with():
    async with core(permissions=[Permission("alice", "a*", ["subscribe"])]) as broker:
        for name in ("a2", "a1", "b"):
            await broker.create(name, persistence="weak")
        transport = SessionTransport(broker)
        (_, _, reply) = await ask(transport.session("alice"), b"TOPICS", b"1")
        assert [topic["name"] for topic in json.loads(reply)] == ["a1", "a2"]
        assert (await ask(transport.session("alice"), b"TOPICS", b"1", b"b"))[2] == b"permission"
        # A client that may not use a topic does not learn whether it exists.
        assert (await ask(transport.session("alice"), b"APPEND", b"1", b"none", RECORDS))[2] == b"permission"


@pytest.mark.slow
async def test_many_lists_of_many_topics_leave_turns_to_others():
    async with core() as broker:
        for number in range(150):
            await broker.create(f"t{number:03}", persistence="transient")
        session = SessionTransport(broker).session()
        for number in range(5):
            session.handle([b"TOPICS", b"%d" % number])
        assert await ask(session, b"PING", b"p") == [b"PONG", b"p"]
        seen = set()
        while sum(answer[0] == b"TOPICS" for answer in session.got) < 5:
            seen.add(sum(answer[0] == b"TOPICS" for answer in session.got))
            await asyncio.sleep(0)
        assert seen == {0, 1, 2, 3, 4}
        names = [[topic["name"] for topic in json.loads(answer[2])] for answer in session.got]
        assert names == [[f"t{number:03}" for number in range(150)]] * 5


@pytest.mark.slow
async def test_lists_of_topics_are_sent_to_sessions_in_turn():
    async with core() as broker:
        for number in range(200):
            await broker.create(f"t{number:03}", persistence="transient")
        transport = SessionTransport(broker)
        greedy, gone, other = transport.session(), transport.session(), transport.session()
        for number in range(30):
            greedy.handle([b"TOPICS", b"%d" % number])
            gone.handle([b"TOPICS", b"%d" % number])
        gone.connection_lost()
        await ask(other, b"TOPICS", b"o")
        assert len(greedy.got) <= 2
        await asyncio.gather(*transport.tasks)
        assert len(greedy.got) == 30
        assert not gone.got


async def test_a_session_forgets_deleted_topics():
    async with core() as broker:
        session = SessionTransport(broker).session()
        topics = []
        for _ in range(200):
            topic = weakref.ref(await broker.create("t", persistence="transient"))
            await ask(session, b"SUBSCRIBE", b"s", b"t")
            await ask(session, b"CANCEL", b"s")
            await ask(session, b"DELETE", b"d", b"t")
            topics.append(topic)
        gc.collect()
        assert sum(topic() is not None for topic in topics) <= 64


# Message ids


@asynccontextmanager
async def waiting_ids(count):
    """Has sessions of one user publish the same message with one id to a full topic; yields the broker and them."""
    async with core() as broker:
        session = await prepared(broker, max_messages=1, overflow="block")
        await ask(session, b"APPEND", b"0", b"t", ONE)
        sessions = [session._transport.session(client=f"{number:032x}") for number in range(count)]
        publish_ids(sessions)
        await until(lambda: broker.topic("t").stats()["blocked"] == count)
        yield broker, sessions


def publish_ids(sessions):
    for one in sessions:
        one.got.clear()
        one.handle([b"APPEND", b"a", b"t", ONE, b"", b"", b"", b"order 17"])


@pytest.mark.parametrize("changes", [{"max_messages": None, "overflow": None}, {"overflow": "drop-oldest"}])
async def test_a_message_id_that_waits_in_several_sessions_is_stored_once(changes):
    async with waiting_ids(3) as (broker, sessions):
        topic = await broker.alter("t", changes, force=True)
        await until(lambda: all(one.got for one in sessions))
        assert [one.got for one in sessions] == [[[b"PUBLISHED", b"a", p.u64(2)]]] * 3
        assert (topic.state().last, topic.stats()["published"]) == (2, 2)


async def test_message_ids_that_wait_are_rejected_if_the_topic_no_longer_blocks():
    async with waiting_ids(2) as (broker, sessions):
        topic = await broker.alter("t", {"overflow": "reject"})
        await until(lambda: all(one.got for one in sessions))
        assert [one.got[0][:3] for one in sessions] == [[b"ERROR", b"a", b"full"]] * 2
        await broker.purge(topic, None)
        publish_ids(sessions)
        await until(lambda: all(one.got for one in sessions))
        assert [one.got for one in sessions] == [[[b"PUBLISHED", b"a", p.u64(2)]]] * 2


# Consumers whose group is created first: the answer comes later


async def gathered(session):
    """Waits for the background requests of a session, and returns its answers in order."""
    await asyncio.gather(*session._transport.tasks)
    return [answer[:2] + answer[2:3] * (answer[0] == b"ERROR") for answer in session.got]


def consumers(broker):
    return {group["name"]: group["consumers"] for group in broker.topic("t").group_stats()}


async def test_sessions_that_create_the_same_group_share_it():
    async with core() as broker:
        session = await prepared(broker)
        other = session._transport.session(client="f" * 32)
        for one in (session, other):
            one.handle([b"CONSUME", b"c", b"t", j(group="g")])
        assert await gathered(session) == [[b"CONSUMING", b"c"]]
        assert await gathered(other) == [[b"CONSUMING", b"c"]]
        assert consumers(broker) == {"g": 2}


async def test_a_cancelled_consumer_does_not_begin_under_its_next_tag():
    async with core() as broker:
        session = await prepared(broker)
        session.handle([b"CONSUME", b"c", b"t", j(group="a")])
        session.handle([b"CANCEL", b"c"])
        session.handle([b"CONSUME", b"c", b"t", j(group="b")])
        assert await gathered(session) == [[b"CANCELLED", b"c"], [b"CONSUMING", b"c"]]
        assert consumers(broker) == {"a": 0, "b": 1}


async def test_a_cancelled_consumer_whose_group_cannot_be_created_gets_no_error():
    async with core() as broker:
        session = await prepared(broker)
        session.handle([b"CONSUME", b"c", b"t", j(group="a", replay=7)])  # above the newest id
        session.handle([b"CANCEL", b"c"])
        session.handle([b"CONSUME", b"c", b"t", j(group="b")])
        assert await gathered(session) == [[b"CANCELLED", b"c"], [b"CONSUMING", b"c"]]
        assert consumers(broker) == {"b": 1}
        session.handle([b"CONSUME", b"d", b"t", j(group="a", replay=7)])
        assert (await gathered(session))[2:] == [[b"ERROR", b"d", b"topic"]]


@pytest.mark.parametrize("command", [b"SUBSCRIBE", b"CONSUME"])
async def test_a_tag_in_use_ends_a_consumer_whose_group_is_created(command):
    async with core() as broker:
        session = await prepared(broker)
        session.handle([b"CONSUME", b"c", b"t", j(group="a")])
        session.handle([command, b"c", b"t", j(group="a")])
        assert await gathered(session) == [[b"ERROR", b"c", b"state"]]
        assert (consumers(broker), session.tags) == ({"a": 0}, {})


@pytest.mark.parametrize("how", ["lost", "bye", "replaced"])
async def test_a_session_that_ends_while_a_group_is_created_has_no_consumer(how):
    async with core() as broker:
        session = await prepared(broker)
        session.handle([b"CONSUME", b"c", b"t", j(group="a")])
        if how == "lost":
            session.connection_lost()
        elif how == "bye":
            session.handle([b"BYE", b"b"])
        else:
            session._transport.session()
        expected = {"lost": [], "bye": [[b"BYE", b"b"]], "replaced": [[b"ERROR", b"c", b"state"]]}
        assert await gathered(session) == expected[how]
        assert (consumers(broker), session.tags) == ({"a": 0}, {})


async def test_a_topic_that_is_deleted_while_a_group_is_created_refuses_the_consumer():
    async with core() as broker:
        session = await prepared(broker)
        session.handle([b"CONSUME", b"c", b"t", j(group="a")])
        session.handle([b"DELETE", b"d", b"t"])
        assert sorted(await gathered(session)) == [[b"DELETED", b"d"], [b"ERROR", b"c", b"topic"]]


async def test_a_permission_that_is_revoked_while_a_group_is_created_refuses_the_consumer():
    async with core() as broker:
        session = await prepared(broker)
        session.handle([b"CONSUME", b"c", b"t", j(group="a")])
        broker.set_permissions([Permission("alice", "*", ["consume"])])
        assert await gathered(session) == [[b"ERROR", b"c", b"permission"]]
        assert consumers(broker) == {"a": 0}


async def test_random_messages_are_answered_or_passed_over():
    drawn = random.Random(7)
    commands = [*ClientSession._HANDLERS, b"", b"X"]
    parts = [b"", b"t", b"j", b"s", RECORDS, p.u64(1), p.u64(0), p.u32(1), b"{}", b"[]"]
    parts += [j(replay="earliest"), b"\xff" * 9]
    async with core() as broker:
        await broker.create("j", delivery="round-robin", persistence="weak")
        session = await prepared(broker)
        for _ in range(3000):
            message = [drawn.choice(commands), *drawn.choices(parts, k=drawn.randrange(7))]
            session.handle(message)
        await asyncio.gather(*session._transport.tasks)
        assert not [answer for answer in session.got if answer[0] == b"ERROR" and answer[2] == b"failed"]
        assert (await ask(session, b"PING", b"done"))[0] is not None


def test_numbers_are_big_endian():
    assert p.u64(258) == struct.pack("!Q", 258)
    assert p.ranges([p.u64(1), p.u64(2), p.u64(5), p.u64(5)]) == [(1, 2), (5, 5)]
    assert p.ranges([p.pack_ranges([(1, 2), (5, 5)])]) == [(1, 2), (5, 5)]
    assert p.packed_ranges([]) == []
    many = [(id, id) for id in range(1, 2 * p.MAX_PAIRS + 2, 1)]
    parts = p.packed_ranges(many)
    assert [len(part) // 16 for part in parts] == [p.MAX_PAIRS, p.MAX_PAIRS, 1]
    assert [pair for part in parts for pair in p.ranges([part])] == many


async def test_jobs_are_returned_and_a_subscription_has_none():
    async with core() as broker:
        session = await prepared(broker, b"j", "round-robin")
        await broker.create("t", persistence="weak")
        await ask(session, b"APPEND", b"1", b"j", RECORDS)
        assert (await ask(session, b"CONSUME", b"c", b"j", b"{}"))[0] == b"CONSUMING"
        await until(lambda: session.got)
        session.got.clear()
        session.handle([b"RETURN", b"c", p.u64(1), p.u64(2)])
        await until(lambda: broker.topic("j").backlog == 2)
        session.handle([b"CREDIT", b"c", p.u64(5)])
        await until(lambda: session.got)
        assert session.got.pop()[-1] == b""  # each for the first time
        await ask(session, b"SUBSCRIBE", b"s", b"t", b"{}")
        assert (await ask(session, b"RETURN", b"s", p.u64(1), p.u64(2)))[2] == b"state"
        assert (await ask(session, b"SUBSCRIBE", b"r", b"t", j(reset=1)))[2] == b"syntax"


@pytest.mark.parametrize(
    "settings",
    [
        {"dead_letter": "secret"},
        {"dead_letter": "made"},
        {"max_deliveries": 1},
        {"max_messages": 1, "overflow": "drop-oldest"},
    ],
)
async def test_dead_letters_go_where_their_maker_may_publish_and_create(settings):
    permissions = [Permission("eve", "q", ["create"]), Permission("eve", "q*", ["publish", "create"])]
    async with core(permissions=permissions[:1]) as broker:
        await broker.create("secret", persistence="weak")
        about = {"name": "q", "delivery": "round-robin", "persistence": "weak", "settings": settings}
        session = SessionTransport(broker).session("eve")
        assert (await ask(session, b"CREATE", b"1", j(**about)))[2] == b"permission"
        assert "q" not in broker.topics
    async with core(permissions=permissions) as broker:
        about["settings"] = {"dead_letter": "q2", "max_deliveries": 1}
        assert (await ask(SessionTransport(broker).session("eve"), b"CREATE", b"1", j(**about)))[0] == b"CREATED"


async def test_altered_dead_letters_go_where_the_client_may_publish_and_create():
    rows = [Permission("eve", "q", ["admin"]), Permission("eve", "q2", ["publish"])]
    async with core() as broker:
        await broker.create("q", delivery="round-robin", persistence="weak", settings={"dead_letter": "secret"})
        session = SessionTransport(broker).session("eve")
        about = j(name="q", settings={"dead_letter": "q2"})
        broker.set_permissions(rows)
        assert (await ask(session, b"ALTER", b"1", j(name="q", settings={"max_deliveries": 3})))[0] == b"ALTERED"
        answer = await ask(session, b"ALTER", b"1", about)
        assert (answer[2], b"may not create 'q2'" in answer[3]) == (b"permission", True)
        broker.set_permissions(rows[:1])
        answer = await ask(session, b"ALTER", b"1", about)
        assert (answer[2], b"may not publish 'q2'" in answer[3]) == (b"permission", True)
        assert broker.topic("q").dead_letter == "secret"
        broker.set_permissions([*rows, Permission("*", "q2", ["create"])])
        assert (await ask(session, b"ALTER", b"1", about))[0] == b"ALTERED"
        assert broker.topic("q").dead_letter == "q2"


async def test_alter_answers_with_the_topic_and_needs_force_to_drop_messages():
    async with core() as broker:
        session = await prepared(broker, max_messages=10)
        await ask(session, b"APPEND", b"1", b"t", RECORDS)
        answer = await ask(session, b"ALTER", b"2", j(name="t", settings={"max_age": 60, "max_messages": None}))
        assert answer[:2] == [b"ALTERED", b"2"]
        about = json.loads(answer[2])
        assert (about["name"], about["settings"], about["last"]) == ("t", {"max_age": 60.0}, 2)
        lower = {"name": "t", "settings": {"max_messages": 1}}
        answer = await ask(session, b"ALTER", b"3", j(**lower))
        assert (answer[2], b"1 of the 2 messages" in answer[3]) == (b"topic", True)
        answer = await ask(session, b"ALTER", b"4", j(**lower, force=True))
        assert json.loads(answer[2])["first"] == 2
        assert (await ask(session, b"ALTER", b"5", j(name="t")))[0] == b"ALTERED"


async def test_purge_and_requeue_need_permissions():
    permissions = [
        Permission("op", "q.dead", ["admin"]),
        Permission("op", "open", ["publish"]),
        Permission("chief", "*", ["admin"]),
        Permission("user", "*", ["publish", "subscribe", "consume", "create", "delete"]),
    ]
    async with core(permissions=permissions) as broker:
        for name in ("q.dead", "q", "open"):
            await broker.create(name, persistence="weak")
        op, chief, user = (SessionTransport(broker).session(name) for name in ("op", "chief", "user"))
        record = blocks.encode_record(b"x", None, {"omq-dead-topic": b"q"})
        for _ in range(4):
            assert (await ask(user, b"APPEND", b"1", b"q.dead", record))[0] == b"PUBLISHED"
        for command in (b"PURGE", b"REQUEUE"):
            assert (await ask(user, command, b"1", b"q.dead"))[2] == b"permission"
            assert (await ask(op, command, b"1", b"q"))[2] == b"permission"
        assert (await ask(op, b"REQUEUE", b"1", b"q.dead"))[2:] == [b"permission", b"op may not publish 'q'"]
        assert (await ask(op, b"REQUEUE", b"1", b"q.dead", b"", b"q"))[2] == b"permission"
        assert await ask(op, b"REQUEUE", b"1", b"q.dead", p.u64(1), b"open") == [b"REQUEUED", b"1", p.u64(1), p.u64(2)]
        assert await ask(chief, b"REQUEUE", b"1", b"q.dead", p.u64(2)) == [b"REQUEUED", b"1", p.u64(1), p.u64(3)]
        assert await ask(op, b"PURGE", b"1", b"q.dead") == [b"PURGED", b"1", p.u64(2)]
        assert [broker.topic(name).last for name in ("q", "open")] == [1, 1]


async def test_reack_acknowledges_for_an_earlier_session_of_the_same_topic():
    async with core() as broker:
        session = await prepared(broker, b"j", "round-robin")
        await ask(session, b"APPEND", b"1", b"j", RECORDS)
        await ask(session, b"CONSUME", b"c", b"j", b"{}")
        await until(lambda: session.got)
        topic = broker.topic("j")
        again = session._transport.session(identity=b"b")  # the same client
        assert topic.backlog == 2
        assert (await ask(again, b"REACK", b"1", b"j", p.u64(topic.id + 1), p.u64(1), p.u64(2)))[2] == b"topic"
        assert topic.backlog == 2
        assert await ask(again, b"REACK", b"2", b"j", p.u64(topic.id), p.u64(1), p.u64(1)) == [b"REACKED", b"2"]
        assert broker.store.store.ack_set(topic.id).floor == 1
        await ask(again, b"CONSUME", b"c", b"j", b"{}")
        await until(lambda: again.got)
        assert blocks.read_header(again.got.pop()[2])[:2] == (2, 1)
        # Also what was delivered again in this session.
        assert (await ask(again, b"REACK", b"3", b"j", p.u64(topic.id), p.u64(2), p.u64(2)))[0] == b"REACKED"
        assert broker.store.store.ack_set(topic.id).floor == 2
        unnamed = session._transport.session(identity=b"n", hello=False)
        assert (await ask(unnamed, b"REACK", b"4", b"j", p.u64(topic.id), p.u64(1), p.u64(1)))[2] == b"state"


@pytest.mark.parametrize("change", ["moved", "created again"])
async def test_reack_group_does_not_undo_a_move(change):
    async with core() as broker:
        session = await prepared(broker)
        await ask(session, b"APPEND", b"1", b"t", RECORDS)
        argument = j(group="g", replay="earliest")
        answer = await ask(session, b"CONSUME", b"c", b"t", argument)
        before = json.loads(answer[2])["generation"]
        topic = broker.topic("t")

        def reack(generation, id):
            names = b"t", p.u64(topic.id), b"g", p.u64(generation)
            return ask(session, b"REACK_GROUP", b"r", *names, p.u64(id), p.u64(id))

        await until(lambda: session.got)
        assert await reack(before, 1) == [b"REACKED", b"r"]
        assert topic.group_stats()[0]["lag"] == 1
        await ask(session, b"CANCEL", b"c")
        if change == "moved":
            await topic.seek_group("g", "earliest")
        else:
            await topic.delete_group("g")
            await topic.make_group("g", "earliest")
        assert await reack(before, 2) == [b"REACKED", b"r"]
        assert topic.group_stats()[0]["lag"] == 2
        session.got.clear()
        answer = await ask(session, b"CONSUME", b"c", b"t", argument)
        now = json.loads(answer[2])["generation"]
        assert now > before
        await until(lambda: session.got)
        assert await reack(before, 1) == [b"REACKED", b"r"]
        group = topic.group_stats()[0]
        assert (group["lag"], group["in_flight"]) == (2, 2)
        assert await reack(now, 2) == [b"REACKED", b"r"]
        assert topic.group_stats()[0]["lag"] == 1
        assert 2 in broker.store.store.ack_set(topic.id, "g")


async def test_only_a_group_has_a_generation():
    async with core() as broker:
        session = await prepared(broker, b"j", "round-robin")
        answer = await ask(session, b"CONSUME", b"c", b"j", b"{}")
        assert json.loads(answer[2]) == {"topic_id": broker.topic("j").id}


@pytest.mark.parametrize("user", [None, "alice"])
async def test_a_subscription_is_not_resumed_after_another_client_has_opened_it(user):
    async with core() as broker:
        first = await prepared(broker)
        held = json.dumps({"name": "n", "replay": "earliest"}).encode()
        resumed = json.dumps({"name": "n", "replay": "earliest", "resume": True}).encode()
        assert (await ask(first, b"SUBSCRIBE", b"1", b"t", held))[0] == b"SUBSCRIBED"
        first.connection_lost()
        first = first._transport.session()
        assert (await ask(first, b"SUBSCRIBE", b"1", b"t", resumed))[0] == b"SUBSCRIBED"
        first.connection_lost()
        first = first._transport.session()
        other = first._transport.session(user, client=CLIENT if user else "f" * 32)
        assert (await ask(other, b"SUBSCRIBE", b"1", b"t", held))[0] == b"SUBSCRIBED"
        assert (await ask(first, b"SUBSCRIBE", b"1", b"t", resumed))[2] == b"taken-over"
        assert (await ask(first, b"SUBSCRIBE", b"1", b"t", held))[2] == b"topic"
        other.connection_lost()
        assert (await ask(first, b"SUBSCRIBE", b"1", b"t", resumed))[2] == b"taken-over"
        assert (await ask(first, b"SUBSCRIBE", b"1", b"t", held))[0] == b"SUBSCRIBED"


# ------------------------------------------------------------------ statistics and log


def recorded(broker):
    """Returns the number of recorded publications by persistence."""
    return {persistence: sum(one.counts) for persistence, one in broker.publish_latency.items() if sum(one.counts)}


async def test_stored_publications_are_counted_by_persistence():
    async with core() as broker:
        session = await prepared(broker)
        await broker.create("memory", persistence="transient")
        assert (await ask(session, b"APPEND", b"1", b"t", RECORDS))[0] == b"PUBLISHED"
        assert (await ask(session, b"PUBLISH", b"1", b"t", b"body"))[0] == b"PUBLISHED"
        assert (await ask(session, b"APPEND", b"1", b"memory", RECORDS, b"p", p.u64(1), p.u64(1)))[0] == b"PUBLISHED"
        assert recorded(broker) == {"weak": 2, "transient": 1}
        assert 0 < broker.publish_latency["weak"].seconds < 60


async def test_refused_publications_are_not_counted():
    async with core() as broker:
        session = await prepared(broker, max_messages=1, overflow="reject")
        assert (await ask(session, b"APPEND", b"1", b"t", RECORDS))[2] == b"full"
        assert (await ask(session, b"APPEND", b"1", b"t", b"junk"))[2] == b"syntax"
        assert (await ask(session, b"APPEND", b"1", b"nowhere", RECORDS))[2] == b"topic"
        assert recorded(broker) == {}


async def test_a_publication_of_a_lost_connection_is_counted():
    async with core() as broker:
        session = await prepared(broker)
        session.handle([b"APPEND", b"1", b"t", RECORDS])
        session.connection_lost()
        await until(lambda: recorded(broker) == {"weak": 1})


async def test_a_session_lists_what_it_holds():
    async with core() as broker:
        session = await prepared(broker)
        assert session.held() == {"in_flight": 0, "consumed": [], "durables": []}
        await broker.create("jobs", delivery="round-robin", persistence="weak")
        await ask(session, b"APPEND", b"1", b"jobs", RECORDS)
        await ask(session, b"SUBSCRIBE", b"s", b"t", b"{}")
        for number in range(30):
            await ask(session, b"SUBSCRIBE", b"d%d" % number, b"t", j(name=f"n{number:02}"))
        session.handle([b"CONSUME", b"c", b"jobs", b"{}"])
        await until(lambda: session.in_flight == 2)
        held = session.held()
        assert (held["in_flight"], held["consumed"]) == (2, ["jobs"])
        assert held["durables"] == [f"t/n{number:02}" for number in range(20)]


async def test_durable_subscriptions_are_listed_by_name():
    async with core() as broker:
        session = await prepared(broker)
        for name in ("b", "a"):
            await ask(session, b"SUBSCRIBE", name.encode(), b"t", j(name=name))
        assert [one["name"] for one in json.loads((await ask(session, b"DURABLES", b"1", b"t"))[2])] == ["a", "b"]


# ---------------------------------------------------------------------- limits of users


async def test_a_publisher_above_its_rate_is_answered_busy_later_and_its_order_stays(monkeypatch):
    monkeypatch.setattr(sessions, "THROTTLE_DELAY_S", 0.05)
    monkeypatch.setattr(sessions, "_MAX_THROTTLED", 2)
    async with core(user_limits=[UserLimit("*", publish_byte_rate=100_000)]) as broker:
        session = await prepared(broker)
        large = blocks.encode([bytes(250_000)])
        producer = (b"p" * 16,)
        assert (await ask(session, p.APPEND, b"1", b"t", large, *producer, p.u64(1), p.u64(1)))[0] == p.PUBLISHED
        later = [[p.APPEND, b"%d" % number, b"t", RECORDS, *producer, p.u64(number), p.u64(2)] for number in (2, 3, 4)]
        for message in later:
            session.handle(list(message))
        assert [answer[:3] for answer in session.got] == [[p.ERROR, b"4", b"busy"]], "not all may wait"
        session.got.clear()
        await until(lambda: len(session.got) == 2)
        assert [answer[:3] for answer in session.got] == [[p.ERROR, b"2", b"busy"], [p.ERROR, b"3", b"busy"]]
        assert session.got[0][3].startswith(b"publish_byte_rate=100000: user '*' publishes more")
        assert session._throttled == session._unanswered_bytes == 0
        session.got.clear()
        await until(lambda: session.usage._refilled(100_000) > 1000)
        session.handle(list(later[1]))  # before the one that was refused first
        assert session.got.pop()[:3] == [p.ERROR, b"3", b"busy"]
        for message in later:
            session.handle(list(message))
        await until(lambda: len(session.got) == 3)
        assert [answer[0] for answer in session.got] == [p.PUBLISHED] * 3


async def test_a_late_busy_leaves_a_subscription_that_has_its_tag_meanwhile(monkeypatch):
    monkeypatch.setattr(sessions, "THROTTLE_DELAY_S", 0.01)
    async with core(user_limits=[UserLimit("*", publish_byte_rate=1000)]) as broker:
        session = await prepared(broker)
        large = blocks.encode([bytes(250_000)])
        assert (await ask(session, p.APPEND, b"1", b"t", large))[0] == p.PUBLISHED
        session.handle([p.APPEND, b"s", b"t", ONE])
        assert (await ask(session, p.SUBSCRIBE, b"s", b"t", j(credit=1 << 20)))[0] == p.SUBSCRIBED
        await until(lambda: session.got)
        assert session.got.pop()[:3] == [p.ERROR, b"s", b"busy"]
        await append(broker, broker.topic("t"), [b"one"])
        await until(lambda: session.got)
        assert session.got.pop()[:2] == [p.BLOCK, b"s"]


@pytest.mark.parametrize(
    "request_of",
    [
        lambda tag: [p.APPEND, tag, b"full", ONE],
        lambda tag: [p.APPEND, tag, b"nowhere", ONE],
        lambda tag: [p.COMMIT, tag, b"c", b'["cw=="]'],
        lambda tag: [p.DELETE, tag, b"nowhere"],
        lambda tag: [p.PURGE, tag, b"t", p.u64(99)],
        lambda tag: [p.READ, tag, b"t", p.u64(1), p.u64(0), b""],
        lambda tag: [b"NOTHING", tag],
    ],
    ids=lambda request: request(b"")[0].decode(),
)
async def test_an_error_of_another_request_leaves_the_subscription_with_its_tag(request_of):
    async with core() as broker:
        session = await prepared(broker)
        await broker.create("full", delivery="round-robin", persistence="weak", settings={"max_messages": 1})
        await append(broker, broker.topic("full"), [b"there"])
        assert (await ask(session, p.SUBSCRIBE, b"s", b"t", j(credit=1 << 20)))[0] == p.SUBSCRIBED
        assert (await ask(session, *request_of(b"s")))[:2] == [p.ERROR, b"s"]
        await append(broker, broker.topic("t"), [b"one"])
        await until(lambda: session.got)
        assert session.got.pop()[:2] == [p.BLOCK, b"s"]


async def test_a_topic_beyond_the_limit_of_its_user_is_refused():
    async with core(user_limits=[UserLimit("alice", topics=1)]) as broker:
        alice = SessionTransport(broker).session("alice")
        assert (await ask(alice, p.CREATE, b"1", j(name="a", persistence="weak")))[0] == p.CREATED
        assert (await ask(alice, p.CREATE, b"2", j(name="b", persistence="weak")))[:3] == [p.ERROR, b"2", b"full"]
