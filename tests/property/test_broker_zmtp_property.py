"""Random messages of one client neither stop the broker nor affect another client."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from omq._core import blocks
from omq.broker import Server
from omq.broker import protocol as p
from omq.broker.zmtp.session import ClientSession
from tests.support.hypothesis_profiles import examples
from tests.support.libzmq_broker_client import RawClient, record

pytestmark = pytest.mark.timeout(300)

SETTINGS = {"max_messages": 1000}
TOPICS = (
    *({"name": name, "persistence": "weak", "settings": SETTINGS} for name in ("b", "c")),
    {"name": "j", "delivery": "round-robin", "persistence": "strong", "settings": {"max_deliveries": 2}},
    {"name": "k", "delivery": "round-robin", "persistence": "async"},
)
NUMBERS = st.sampled_from([0, 1, 2, 3, 10, 1000, 2**32, 2**63, 2**64 - 1])
RECORDS = [blocks.encode([b"x"]), blocks.encode([b"a", b"b"] * 20), blocks.encode_record(b"b", b"k", {"h": b"v"})]
#: The topics of the other client are among them: all but to delete them.
NAMES = st.sampled_from([b"b", b"c", b"j", b"k", b"own", b"", b"a/b", b"\xff", b"x" * 256])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
TIMES = st.integers(-1, 2**70).map(lambda microseconds: {"timestamp": microseconds})
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "version": st.just(1) | JSON,
        "client": st.sampled_from(["a" * 32, "b" * 32]) | JSON,
        "replay": st.sampled_from(["latest", "earliest"]) | st.integers(0, 20) | TIMES | JSON,
        "name": st.sampled_from(["n", "m"]) | JSON,
        "reset": st.booleans(),
        "credit": st.integers(0, 2**20) | JSON,
        "ack_timeout": st.sampled_from([0.01, 1]) | JSON,
        "delivery": st.sampled_from(["broadcast", "round-robin"]) | JSON,
        "persistence": st.sampled_from(["transient", "weak"]) | JSON,
        "settings": st.just({}) | st.fixed_dictionaries({"max_deliveries": st.just(1)}) | JSON,
    },
)
PARTS = st.one_of(
    NAMES,
    NUMBERS.map(p.u64),
    NUMBERS.map(lambda number: p.u32(number % 2**32)),
    st.sampled_from([*RECORDS, RECORDS[0][:-1], RECORDS[1] + b"\0"]),
    st.one_of(OPTIONS, JSON).map(lambda what: json.dumps(what).encode()),
    st.sampled_from([b'["czE="]', b"{" * 5000, b"s1", b"c1"]),
    st.binary(max_size=64),
)
TAGS = st.sampled_from([b"1", b"2", b"3", b"", b"t" * 16, b"t" * 17])
COMMANDS = st.sampled_from([*sorted(ClientSession._HANDLERS), b"", b"WHAT"])


def request(command: bytes, *parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    return st.tuples(st.just(command), TAGS, *parts).map(list)


NUMBER = NUMBERS.map(p.u64)
NUMBERED = st.integers(1, 30).map(p.u64)
WANTED = OPTIONS.map(lambda what: json.dumps(what).encode())
#: Most of these can be done.
VALID = st.one_of(
    request(p.HELLO, st.sampled_from([b"a", b"b"]).map(lambda id: b'{"version": 1, "client": "%s"}' % (id * 32))),
    *(request(command) for command in (p.BYE, p.FLUSH, p.PING, p.CANCEL, p.TOPICS)),
    request(p.APPEND, NAMES, st.sampled_from(RECORDS)),
    request(p.APPEND, NAMES, st.sampled_from(RECORDS), st.just(b"p"), NUMBERED, NUMBERED),
    request(p.PUBLISH, NAMES, st.binary(max_size=20)),
    request(p.STAGE, NAMES, st.sampled_from(RECORDS), st.just(b"s1"), NUMBERED),
    request(p.COMMIT, st.sampled_from([b"c1", b"c2"]), st.just(b'["czE="]')),
    request(p.ABORT, st.just(b"s1")),
    request(p.ABORT, st.just(b"s"), st.sampled_from([b"", b"all"])),
    request(p.SUBSCRIBE, st.sampled_from([b"b", b"own"]), WANTED),
    request(p.CONSUME, st.sampled_from([b"k", b"own"]), WANTED),
    *(request(command, NUMBER) for command in (p.CREDIT, p.POSITION)),
    *(request(command, NUMBERED, NUMBERED) for command in (p.ACK, p.NACK, p.RETURN)),
    request(p.OFFSET_AFTER, NAMES, NUMBER, NUMBER, NUMBER),
    request(p.OFFSET_AT, NAMES, NUMBER),
    request(p.READ, NAMES, NUMBER, NUMBER, NUMBERS.map(lambda number: p.u32(number % 2**32))),
    request(p.CREATE, OPTIONS.map(lambda what: json.dumps({**what, "name": "own"}).encode())),
    request(p.DELETE, st.just(b"own")),
    request(p.DURABLES, NAMES),
    request(p.DELETE_DURABLE, NAMES, st.sampled_from([b"n", b"m"])),
)
ANY = st.tuples(COMMANDS, st.lists(PARTS, max_size=8)).map(lambda drawn: [drawn[0], *drawn[1]])
#: What takes from others what is theirs is what the protocol allows, and is not sent here.
MESSAGES = st.one_of(VALID, VALID, ANY).filter(
    lambda sent: (
        not (sent[0] in (p.DELETE, p.CONSUME) and sent[2:3] in ([b"b"], [b"c"], [b"j"], [b"k"][sent[0] == p.CONSUME :]))
    )
)


class OtherClient:
    """A well-behaved client of one topic of each delivery."""

    def __init__(self, endpoint: str) -> None:
        self.client = RawClient(endpoint)
        self.client.ask(b"SUBSCRIBE", b"b", {"credit": 1 << 26}, expect=b"SUBSCRIBED")
        self.reading = b"q%d" % self.client._tag
        self.client.ask(b"CONSUME", b"j", {"credit": 1000}, expect=b"CONSUMING")
        self.working = b"q%d" % self.client._tag
        self.bodies = (b"good %d" % number for number in itertools.count())

    def works(self) -> None:
        """Publishes to both topics, and checks that each message arrives once."""
        for topic, read in ((b"b", self.blocks), (b"j", self.jobs)):
            body = next(self.bodies)
            id = self.client.append(topic, record(body))
            found: dict[int, bytes] = {}
            while id not in found:
                found.update(read())
            assert found[id] == body

    def blocks(self) -> dict[int, bytes]:
        return {one[0]: one[1] for one in self.client.blocks(self.reading, 1)}

    def jobs(self) -> dict[int, bytes]:
        found = self.client.jobs(self.working, 1)
        for id, _, count in found:
            assert count == 1
            self.client.send(b"ACK", self.working, id, id)
        return {id: body for id, body, _ in found}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(tmp_path_factory.mktemp("broker"), topics=TOPICS) as server:
        yield server.endpoints["zmtp"]


@pytest.fixture(scope="module")
def other(endpoint: str) -> Iterator[OtherClient]:
    one = OtherClient(endpoint)
    yield one
    one.client.close()


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
@given(sent=st.lists(MESSAGES, max_size=30), asks=st.booleans())
def test_random_messages_of_one_client_lose_nothing_of_another(
    endpoint: str, other: OtherClient, sent: list[list[bytes]], asks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    one = RawClient(endpoint, hello=False)
    try:
        one.send(b"HELLO", b"h", {"version": 1, "client": os.urandom(16).hex()})
        for message in sent:
            one.send(*message)
        other.works()
        if asks:
            one.send(b"PING", b"the last")
            assert one.answer(b"the last") == [b"PONG", b"the last"]
        other.works()
    finally:
        one.close()
    assert not [entry.getMessage() for entry in caplog.records if entry.exc_info]
