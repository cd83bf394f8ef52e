"""Publishing and reading in columns, with both twins of the client."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import pytest

from omq.broker import Record, Server
from omq.broker.columns import Columns, Strings, encode_columns
from omq.broker.errors import Overrun, TooLarge, TopicError
from tests.system.broker.client_twins import TWINS, twins


@pytest.fixture(params=list(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from twins(request.param)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(memory=True, bind="tcp://127.0.0.1:*") as server:
        yield server


@pytest.fixture
def client(twin: Any, server: Server) -> Iterator[Any]:
    client = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    yield client
    twin.wait(client.close())


@pytest.fixture
def topic(twin: Any, client: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name
    twin.wait(client.create(name, persistence="transient", max_bytes=32 << 20))
    yield name
    twin.wait(client.delete(name))


def strings(values: list[bytes]) -> Strings:
    return Strings(array("i", accumulate(map(len, values), initial=0)), b"".join(values), len(values))


def bodies(found: list[Columns]) -> list[bytes]:
    values: list[bytes] = []
    for one in found:
        assert one.bodies is not None
        ends = struct.unpack(f"={one.count + 1}i", one.ends)
        assert ends[-1] == one.size
        values += [bytes(memoryview(one.bodies)[a:b]) for a, b in pairwise(ends)]
    return values


def ids(found: list[Columns]) -> list[int]:
    return [id for one in found for id in struct.unpack(f"={one.count}q", one.ids)]


def test_what_is_published_as_columns_is_read_as_columns(twin: Any, client: Any, topic: str) -> None:
    wanted = [b"%d" % n * (n % 100) for n in range(20_000)]
    keys = [b"k%d" % n for n in range(20_000)]
    encoded = list(encode_columns(strings(wanted), keys=strings(keys), target=100_000))
    assert sum(one.count for one in encoded) == 20_000
    assert len(encoded) > 10
    assert twin.wait(client.publish_many(topic, iter(encoded))) == list(range(1, 20_001))
    assert [(one.body, one.key) for one in twin.all(client.read(topic, 5, 8))] == list(
        zip(wanted[4:7], keys[4:7], strict=True)
    )
    found = twin.all(client.read_columns(topic, batch_bytes=1 << 20))
    assert bodies(found) == wanted
    assert ids(found) == list(range(1, 20_001))
    assert all(one.size <= 1 << 20 for one in found)
    assert len(found) >= sum(map(len, wanted)) >> 20
    some = twin.all(client.read_columns(topic, 100, 200, parts=["keys"]))
    assert ids(some) == list(range(100, 200))
    assert (some[0].bodies, some[0].headers) == (None, None)
    assert some[0].keys is not None
    assert some[0].keys.data == b"".join(keys[99:199])


def test_columns_are_printed_without_their_content(twin: Any, client: Any, topic: str) -> None:
    headers = Strings(array("i", [0, 1, 1]), None, 2, counts=True), strings([b"h"]), strings([b"v" * 1000])
    (records,) = encode_columns(strings([b"x" * 1000, b"y" * 1000]), keys=strings([b"k" * 1000, b""]), headers=headers)
    assert re.fullmatch(r"<Records: 2 messages, 4\d{3} bytes>", repr(records))
    twin.wait(client.publish_many(topic, [records]))
    (found,) = twin.all(client.read_columns(topic))
    assert repr(found) == "<Columns: 2 messages, 2000 bytes of bodies>"
    assert repr(found.keys) == "<Texts: 2 rows, 0 nulls>"
    assert repr(found.headers) == "<Maps: 2 rows, 1 nulls>"


def test_a_body_larger_than_a_batch_stands_alone(twin: Any, client: Any, topic: str) -> None:
    wanted = [b"a", b"b" * 3_000_000, b"c"]
    asked: list[int] = []

    def memory(size: int) -> bytearray:
        asked.append(size)
        return bytearray(size)

    twin.wait(client.publish_many(topic, wanted))
    found = twin.all(client.read_columns(topic, batch_bytes=1000, memory=memory))
    assert bodies(found) == wanted
    assert [one.count for one in found] == [1, 1, 1]
    assert max(asked) == 3_000_000


def test_columns_are_staged(twin: Any, client: Any, topic: str) -> None:
    encoded = list(encode_columns(strings([b"a", b"b", b"c"]), target=1))
    assert twin.wait(client.stage(topic, encoded, topic)) == 4
    assert twin.wait(client.commit(topic, [topic]))[0].count == 3
    assert bodies(twin.all(client.read_columns(topic))) == [b"a", b"b", b"c"]


def test_ids_that_are_no_longer_kept_are_an_overrun(twin: Any, client: Any) -> None:
    twin.wait(client.create("short", persistence="transient", max_messages=10))
    for _ in range(30):
        twin.wait(client.publish("short", b"x"))
    (info,) = [one for one in twin.wait(client.topics()) if one.name == "short"]
    assert info.first > 1
    with pytest.raises(Overrun) as caught:
        twin.all(client.read_columns("short", 1, 30))
    assert caught.value.first == info.first
    assert ids(twin.all(client.read_columns("short"))) == list(range(info.first, 31))
    assert ids(twin.all(client.read_columns("short", info.first, 25))) == list(range(info.first, 25))
    twin.wait(client.delete("short"))


def test_a_limit_of_bytes_ends_after_a_whole_record(twin: Any, client: Any, topic: str) -> None:
    twin.wait(client.publish_many(topic, [b"x" * 991] * 1000))  # 1,000 bytes with the record's header
    assert twin.wait(client.offset_after(topic, 1, 1001, 100_000)) == 101
    assert twin.wait(client.offset_after(topic, 501, 1001, 1)) == 502
    assert twin.wait(client.offset_after(topic, 501, 600, 1_000_000)) == 600
    assert twin.wait(client.offset_after(topic, 501, 501, 1)) == 501


def test_the_id_of_the_store_is_known_once_the_broker_has_answered(twin: Any, client: Any, server: Server) -> None:
    twin.wait(client.topics())
    assert len(bytes.fromhex(client.broker)) == 16


def test_what_does_not_fit_is_refused(twin: Any, client: Any, topic: str) -> None:
    with pytest.raises(ValueError, match="parts='body'"):
        twin.call(lambda: client.read_columns(topic, parts=["body"]))
    with pytest.raises(ValueError, match="batch_bytes=0"):
        twin.call(lambda: client.read_columns(topic, batch_bytes=0))
    with pytest.raises(TopicError):
        twin.all(client.read_columns("nowhere"))
    with pytest.raises(TypeError, match="Records"):
        twin.wait(client.publish_many(topic, [*encode_columns(strings([b"a"])), b"b"]))
    with pytest.raises(TypeError, match="several bodies"):
        twin.wait(client.publish_many(topic, next(encode_columns(strings([b"a"])))))
    with pytest.raises(TypeError):
        twin.wait(client.publish_many(topic, [Record(b"a"), *encode_columns(strings([b"a"]))]))
    with pytest.raises(TooLarge, match="row 1"):
        list(encode_columns(strings([b"a", bytes((64 << 20) + 1)])))
