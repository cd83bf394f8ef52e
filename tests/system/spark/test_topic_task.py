"""The task of a topic while the broker changes under it: a broker, and no Spark."""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import omq
from omq.broker import Client, Server
from omq.spark.topics import read as reading
from omq.spark.topics.catalog import DataLoss, TopicCatalog, stream_offset
from omq.spark.topics.offsets import TopicRange
from omq.spark.topics.read import _read
from omq.spark.topics.settings import TopicSettings
from omq.spark.topics.sink import TaskAttempt, TaskCommit, TopicSink
from tests.support.fork_server import ForkedProcess
from tests.support.ports import held

pytestmark = pytest.mark.timeout(60)

COUNT = 20
SERVER = """
import sys, time
from omq.broker import Server
with Server(sys.argv[1], bind=sys.argv[2]):
    time.sleep(60)
"""


class Place:
    """An address with a broker, which another one can replace."""

    def __init__(self, port: int) -> None:
        self.url = f"tcp://127.0.0.1:{port}"
        self._stack = contextlib.ExitStack()

    def serve(self, body: bytes, **settings: Any) -> Client:
        """A new broker, with a topic that has such messages; a client of it."""
        self._stack.close()
        self._stack.enter_context(Server(memory=True, bind=self.url))
        client = self._stack.enter_context(Client(self.url, timeout=20.0))
        client.create("t", persistence="transient", **settings)
        client.publish_many("t", [body] * COUNT)
        return client

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def place() -> Iterator[Place]:
    with held() as port:
        place = Place(port)
        yield place
        place.close()


def settings(place: Place, **options: str) -> TopicSettings:
    return TopicSettings.parse(
        "read", {"connect": place.url, "topic": "t", "batchBytes": "1", "timeout": "20", **options}
    )


def planned(settings: TopicSettings) -> TopicRange:
    """The range of everything that is there."""
    catalog = TopicCatalog(settings)
    try:
        broker, infos = catalog.required_topics()
        begin, end = stream_offset(broker, infos, {"t": 1}), stream_offset(broker, infos, {"t": COUNT + 1})
        (part,) = catalog.ranges(begin, end, broker, infos)
    finally:
        catalog.close()
    return part


def bodies(batches: Iterator[Any]) -> list[bytes]:
    return [body for batch in batches for body in batch.column("value").to_pylist()]


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("taken", [0, 2])
def test_messages_of_another_broker_at_the_address_are_not_read(
    taken: int, fails: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    mine = b"m" * 300_000  # not all of them on their way at once
    place.serve(mine)
    given = settings(place, failOnDataLoss=fails)
    part = planned(given)
    batches = _read(given, part)
    assert bodies(next(batches) for _ in range(taken)) == [mine] * taken
    place.serve(b"another's")
    error = rf"topic 't': ids \d+ to {COUNT} are lost: another broker is now at {place.url}"
    if fails == "true":
        with pytest.raises(DataLoss, match=error):
            bodies(batches)
    else:
        with caplog.at_level(logging.WARNING, "omq.spark"):
            assert set(bodies(batches)) <= {mine}
        assert "another broker is now at" in caplog.text


def test_a_topic_that_ends_before_what_was_planned_has_lost_messages(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.serve(b"x")
    part = planned(settings(place))
    part.stop += 5  # as if a crash had taken the newest ones of a weak topic
    batches = _read(settings(place), part)
    assert bodies(next(batches) for _ in range(COUNT)) == [b"x"] * COUNT
    with pytest.raises(DataLoss, match="topic 't': ids 21 to 25 are lost: it ends with 20"):
        next(batches)
    with caplog.at_level(logging.WARNING, "omq.spark"):
        assert len(bodies(_read(settings(place, failOnDataLoss="false"), part))) == COUNT
    assert "ids 21 to 25 are lost" in caplog.text


def test_ids_without_messages_are_reported_and_fail_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place.serve(b"x")
    part = planned(settings(place))

    def columns(client: Client, *_: object) -> Iterator[Any]:
        yield from client.read_columns("t", 1, 6)
        yield from client.read_columns("t", 11, 18)

    monkeypatch.setattr(reading, "_columns", columns)
    assert len(bodies(_read(settings(place), part))) == 12
    assert "5 of the ids 6 to 17 have no message: " in caplog.text
    assert "3 of the ids 18 to 20 have no message: " in caplog.text


@pytest.mark.slow
def test_ids_that_a_killed_broker_may_have_given_are_reported_and_fail_nothing(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def serve() -> ForkedProcess:
        return ForkedProcess("-c", SERVER, tmp_path, place.url)

    process = serve()
    with Client(place.url) as client:
        client.create("t", persistence="async")
        client.create("written", persistence="weak")
        client.publish_many("t", [b"x"] * COUNT)
        client.publish("written", b"x")  # with what is before it
        process.kill()
        process.wait()
        process = serve()
        try:
            part = planned(settings(place))
            first = client.publish("t", b"y")
            assert first > COUNT + 1
            for stop, found in ((first, COUNT), (first + 1, COUNT + 1)):
                part.stop = stop
                caplog.clear()
                assert len(bodies(_read(settings(place, batchBytes="1m"), part))) == found
                assert f"{first - 1 - COUNT} of the ids" in caplog.text
        finally:
            process.kill()
            process.wait()


def commit(client: Client, url: str, topic: str, count: int, attempt: int) -> None:
    """Stages and commits one microbatch as a task and a driver do."""
    writer = TopicSink(TopicSettings.parse("writeStream", {"connect": url, "topic": topic}))
    stage = f"query/7/0/{attempt}"
    client.stage(topic, [b"y"] * count, stage)
    writer.commit([TaskCommit("query/7", [stage], Counter({topic: count}), count, client.broker)])


@pytest.mark.parametrize("rows", [2, 4])
def test_a_microbatch_that_comes_again_with_other_rows_is_an_error(rows: int, place: Place) -> None:
    client = place.serve(b"x")
    commit(client, place.url, "t", 3, 0)
    commit(client, place.url, "t", 3, 1)  # as after a crash in the commit
    with pytest.raises(
        omq.StateError, match=rf"query/7: this microbatch was .* with 3 rows for 't'\. It now has {rows} rows"
    ):
        commit(client, place.url, "t", rows, 2)
    assert len(list(client.read("t"))) == COUNT + 3


def test_so_is_one_that_comes_again_for_another_topic(place: Place) -> None:
    client = place.serve(b"x")
    client.create("other", persistence="transient")
    commit(client, place.url, "t", 3, 0)
    with pytest.raises(omq.StateError, match=r"with 3 rows for 't'\. It now has 3 rows for 'other', which are not"):
        commit(client, place.url, "other", 3, 1)


def test_a_microbatch_that_was_published_before_is_reported(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    client = place.serve(b"x")
    with caplog.at_level(logging.WARNING, "omq.spark"):
        commit(client, place.url, "t", 3, 0)
        assert caplog.text == ""
        commit(client, place.url, "t", 3, 1)
        assert (
            "query/7: this microbatch, with 3 rows for 't', was published before, and is not published again"
            in caplog.text
        )


def test_what_is_staged_at_two_brokers_is_not_published(place: Place) -> None:
    chosen = TopicSettings.parse("writeStream", {"connect": place.url, "topic": "t"})
    place.serve(b"x")
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"y" * 100_000] * 10, pa.binary())})
    with chosen.client() as client:
        task = TaskAttempt(chosen, client, "query/7")

        def batches() -> Iterator[Any]:
            yield from [batch] * 30  # more than is on its way at once
            place.serve(b"z")
            yield from [batch] * 30

        with pytest.raises(omq.StateError, match=f"another broker is now at {place.url} than the one at which"):
            task.write(batches())
    mixed = [TaskCommit("query/8", [f"query/8/{n}"], Counter(t=1), 1, broker) for n, broker in enumerate("ab")]
    with pytest.raises(omq.StateError, match=r"query/8: another broker is now at .* than the one at which tasks"):
        TopicSink(chosen).commit(mixed)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("taken", [0, 2])
def test_a_topic_that_is_deleted_meanwhile_fails_the_task(taken: int, again: bool, place: Place) -> None:
    client = place.serve(b"x" * 300_000)  # not all of them on their way at once
    part = planned(settings(place))
    batches = _read(settings(place), part)
    assert len(bodies(next(batches) for _ in range(taken))) == taken
    client.delete("t")
    if again:
        client.create("t", persistence="transient")
        client.publish_many("t", [b"another's"] * COUNT)
    error = "topic 't': ids 1 to 20 are lost: it was deleted" + (", and created again" if again else "")
    with pytest.raises(DataLoss, match=error):
        bodies(batches)
