"""Structured Streaming from a broker's topics, against a real Spark."""

import json
import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omq.broker import Client, Server
from tests.support.ports import held
from tests.support.waits import until
from tests.system.spark.conftest import Seen
from tests.system.spark.topic_io import stream

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(120)]


def drained(frame: Any, checkpoint: Path, seen: Any = None) -> Any:
    """Runs a query over what is there; the query."""
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = (writer.format("noop") if seen is None else writer.foreachBatch(seen)).start()
    assert query.awaitTermination(60)
    return query


@pytest.mark.slow
def test_every_message_comes_once_and_in_order_over_many_microbatches(
    spark: Any, url: str, client: Client, topic: str, started: list[Any], tmp_path: Path
) -> None:
    count = 3000
    seen = Seen(count)
    client.publish_many(topic, [b"%d" % n for n in range(1000)])
    frame = stream(spark, url, topic=topic, startingOffsets="earliest", maxRowsPerTrigger=1000)
    query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path)).start()
    started.append(query)
    client.publish_many(topic, [b"%d" % n for n in range(1000, count)])
    seen.wait()
    assert seen.ids == list(range(1, count + 1))
    assert [int(row.value) for row in seen.rows] == list(range(count))
    assert max(seen.batches) <= 1000


def test_available_now_takes_what_was_there_in_bounded_microbatches(
    spark: Any, url: str, client: Client, topic: str, tmp_path: Path
) -> None:
    client.publish_many(topic, [b"x"] * 1500)
    seen = Seen(1500)
    going = threading.Event()

    def feed() -> None:
        with Client(url) as other:
            while not going.wait(0.01):
                other.publish(topic, b"later")

    def more(frame: Any, number: int) -> None:
        seen(frame, number)
        if number == 0:
            threading.Thread(target=feed, daemon=True).start()

    frame = stream(spark, url, topic=topic, startingOffsets="earliest", maxRowsPerTrigger=1000, minRowsPerTrigger=900)
    drained(frame, tmp_path, more)
    going.set()
    assert seen.batches == [1000, 500]
    after = Seen(1)
    drained(frame, tmp_path, after)
    assert after.ids[0] == 1501
    assert {row.value for row in after.rows} == {b"later"}


def test_a_microbatch_is_bounded_in_bytes(spark: Any, url: str, client: Client, topic: str, tmp_path: Path) -> None:
    client.publish_many(topic, [b"x" * 991] * 40)  # 1,000 bytes each with the record's header
    seen = Seen(40)
    drained(stream(spark, url, topic=topic, startingOffsets="earliest", maxBytesPerTrigger="30k"), tmp_path, seen)
    assert seen.batches == [31, 9]
    assert seen.ids == list(range(1, 41))


@pytest.mark.slow
def test_a_microbatch_waits_for_rows_but_not_longer_than_it_may(
    spark: Any, url: str, client: Client, topic: str, started: list[Any], tmp_path: Path
) -> None:
    seen = Seen(60)
    frame = stream(spark, url, topic=topic, startingOffsets="earliest", minRowsPerTrigger=50, maxTriggerDelay="5s")
    started.append(frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path)).start())
    for _ in range(50):
        client.publish(topic, b"x")
        time.sleep(0.01)  # the trigger sees some of them
    published = time.monotonic()  # the delay counts from the trigger that saw them, and Spark may take seconds for that
    until(lambda: sum(seen.batches) == 50)
    assert seen.batches in ([50], [0, 50])  # the first microbatch is planned in any case
    client.publish_many(topic, [b"x"] * 10)
    seen.wait()
    assert seen.batches[-2:] == [50, 10]
    assert time.monotonic() - published > 4.9


def test_a_topic_is_split_in_a_stream(spark: Any, url: str, client: Client, topic: str, tmp_path: Path) -> None:
    client.publish_many(topic, [b"x"] * 1000)
    found: list[tuple[int, int]] = []

    def sink(frame: Any, number: int) -> None:
        found.append((frame.rdd.getNumPartitions(), frame.count()))

    drained(stream(spark, url, topic=topic, startingOffsets="earliest", minPartitions=4), tmp_path, sink)
    assert found == [(4, 1000)]


@pytest.mark.slow
def test_latest_begins_with_what_comes_and_a_restart_goes_on(
    spark: Any, url: str, client: Client, topic: str, tmp_path: Path
) -> None:
    client.publish_many(topic, [b"before"] * 10)
    frame = stream(spark, url, topic=topic)
    drained(frame, tmp_path, lambda frame, number: frame.collect())
    client.publish_many(topic, [b"after"] * 10)
    seen = Seen(10)
    drained(frame, tmp_path, seen)
    assert seen.ids == list(range(11, 21))


def test_a_sink_that_raises_gets_the_same_rows_again(
    spark: Any, url: str, client: Client, topic: str, tmp_path: Path
) -> None:
    client.publish_many(topic, [b"%d" % n for n in range(100)])
    frame = stream(spark, url, topic=topic, startingOffsets="earliest", maxRowsPerTrigger=60)
    tried: list[list[int]] = []

    def sink(frame: Any, number: int) -> None:
        tried.append([row.id for row in frame.collect()])
        if len(tried) == 1:
            raise RuntimeError("the sink does not like it")

    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="the sink does not like it"):
        writer.trigger(availableNow=True).start().awaitTermination(60)
    client.publish(topic, b"later")
    drained(frame, tmp_path, sink)
    assert tried == [list(range(1, 61)), list(range(1, 61)), list(range(61, 102))]


@pytest.mark.slow
def test_a_first_microbatch_that_fails_does_not_move_the_start(
    spark: Any, url: str, client: Client, topic: str, tmp_path: Path
) -> None:
    client.publish_many(topic, [b"before"] * 3)
    frame = stream(spark, url, topic=topic)

    def broken(frame: Any, number: int) -> None:
        raise RuntimeError("it crashes")

    writer = frame.writeStream.foreachBatch(broken).option("checkpointLocation", str(tmp_path))
    for _ in range(2):
        with pytest.raises(Exception, match="it crashes"):
            writer.trigger(availableNow=True).start().awaitTermination(60)
        client.publish(topic, b"after")
    seen = Seen(2)
    drained(frame, tmp_path, seen)
    assert seen.ids == [4, 5]


@pytest.mark.slow
def test_a_crash_before_the_first_commit_does_not_move_a_start_that_is_pinned(
    spark: Any, url: str, client: Client, topic: str, tmp_path: Path
) -> None:
    client.publish_many(topic, [b"before"] * 5)
    frame = stream(spark, url, topic=topic, subscription="job")

    def broken(frame: Any, number: int) -> None:
        raise RuntimeError("it crashes")

    # The start is pinned; the microbatch that crashes is nowhere but in the checkpoint that is lost.
    drained(frame, tmp_path / "first", lambda frame, number: None)
    client.publish_many(topic, [b"after"] * 5)
    writer = frame.writeStream.foreachBatch(broken).option("checkpointLocation", str(tmp_path / "second"))
    with pytest.raises(Exception, match="it crashes"):
        writer.trigger(availableNow=True).start().awaitTermination(60)
    client.publish_many(topic, [b"later"] * 5)
    seen = Seen(10)
    drained(frame, tmp_path / "third", seen)
    assert seen.ids == list(range(6, 16))


def test_a_subscription_moves_with_the_commits(
    spark: Any, url: str, client: Client, topic: str, started: list[Any], tmp_path: Path
) -> None:
    client.publish_many(topic, [b"x"] * 5)
    frame = stream(spark, url, topic=topic, startingOffsets=f'{{"{topic}": 3}}', subscription="job")
    seen = Seen(3)
    started.append(frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path)).start())
    seen.wait()
    assert seen.ids == [3, 4, 5]
    client.publish(topic, b"x")  # the commit comes with the next microbatch
    until(lambda: client.durables(topic)[0].position >= 5, lambda: client.durables(topic))


def test_progress_reports_how_far_the_newest_message_is(
    spark: Any, url: str, client: Client, topic: str, tmp_path: Path
) -> None:
    client.publish_many(topic, [b"x"] * 10)
    frame = stream(spark, url, topic=topic, startingOffsets="earliest", maxRowsPerTrigger=4)
    query = drained(frame, tmp_path)
    sources = [one.sources[0] for one in query.recentProgress if one.numInputRows]
    assert [one.numInputRows for one in sources] == [4, 4, 2]
    newest = [json.loads(one.latestOffset) for one in sources]
    assert [one["rowsBehind"] for one in newest] == [6, 2, 0]
    assert newest[0]["topics"][topic]["next"] == 11
    assert json.loads(sources[0].endOffset)["topics"][topic]["next"] == 5
    (info,) = client.topics(topic)
    assert "from" not in sources[1].endOffset  # the one before has its beginning
    assert json.loads(sources[0].endOffset) == {
        "broker": client.broker,
        "kind": "topics",
        "topics": {topic: {"from": 1, "id": info.id, "next": 5}},
        "version": 1,
    }


def test_a_topic_that_comes_later_is_found_by_the_pattern(
    spark: Any, url: str, client: Client, started: list[Any], tmp_path: Path
) -> None:
    client.create("found.a", persistence="transient")
    client.publish("found.a", b"old")
    seen = Seen(3)
    frame = stream(spark, url, topicPattern="found.*", startingOffsets="latest")
    query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path)).start()
    started.append(query)
    until(lambda: query.status["message"].startswith("Waiting for data"), lambda: query.status)
    client.create("found.b", persistence="transient")
    client.create("found.jobs", delivery="round-robin", persistence="transient")
    client.publish("found.jobs", b"no")
    client.publish_many("found.b", [b"1", b"2"])
    client.publish("found.a", b"new")
    seen.wait()
    assert sorted((row.topic, row.value) for row in seen.rows) == [
        ("found.a", b"new"),
        ("found.b", b"1"),
        ("found.b", b"2"),
    ]
    for name in ("found.a", "found.b", "found.jobs"):
        client.delete(name)


def failing(frame: Any, checkpoint: Path) -> str:
    """Runs a query that fails; returns the error."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    with pytest.raises(Exception) as caught:
        writer.trigger(availableNow=True).start().awaitTermination(60)
    return str(caught.value)


Change = Callable[[Client, str], None]


def made_again(client: Client, topic: str) -> None:
    client.delete(topic)
    client.create(topic, persistence="transient")
    client.publish_many(topic, [b"new"] * 3)


def deleted(client: Client, topic: str) -> None:
    client.delete(topic)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason", "left"),
    [
        (made_again, "was deleted, and created again: messages after id 10 are not read", [1, 2, 3]),
        (deleted, "was deleted: messages after id 10 are not read", []),
    ],
)
def test_a_topic_that_is_gone_fails_the_query_or_is_passed_over(
    change: Change, reason: str, left: list[int], spark: Any, url: str, client: Client, topic: str, tmp_path: Path
) -> None:
    client.publish_many(topic, [b"x"] * 10)
    options = {"topic": topic, "startingOffsets": "earliest"}
    drained(stream(spark, url, **options), tmp_path)
    change(client, topic)
    error = failing(stream(spark, url, **options), tmp_path)
    assert f"DataLoss: topic {topic!r} {reason}" in error.splitlines()[0]
    assert "failOnDataLoss=false" in error
    assert "Traceback" not in error
    seen = Seen(len(left))
    drained(stream(spark, url, failOnDataLoss=False, **options), tmp_path, seen)
    assert seen.ids == left


@pytest.mark.slow
def test_retention_that_overtakes_a_stream_fails_it_or_is_passed_over(
    spark: Any, url: str, client: Client, tmp_path: Path
) -> None:
    client.create("overtaken", persistence="transient", max_messages=10)
    client.publish_many("overtaken", [b"x"] * 5)
    options = {"topic": "overtaken", "startingOffsets": "earliest"}
    drained(stream(spark, url, **options), tmp_path)
    for _ in range(30):
        client.publish("overtaken", b"y")
    (info,) = client.topics("overtaken")
    error = failing(stream(spark, url, **options), tmp_path)
    assert f"topic 'overtaken' now begins with {info.first}: ids 6 to {info.first - 1} are lost" in error
    seen = Seen(1)
    drained(stream(spark, url, failOnDataLoss=False, **options), tmp_path, seen)
    assert seen.ids == list(range(info.first, 36))
    client.delete("overtaken")


@pytest.mark.slow
def test_a_checkpoint_of_another_source_or_broker_is_refused(
    spark: Any, url: str, client: Client, topic: str, tmp_path: Path
) -> None:
    client.publish_many(topic, [b"x"] * 3)
    rate = spark.readStream.format("rate").load()
    drained(rate.selectExpr("value"), tmp_path / "rate")
    frame = stream(spark, url, topic=topic, startingOffsets="earliest")
    assert "checkpoint" in failing(frame, tmp_path / "rate")
    drained(frame, tmp_path / "topics")
    with Server(memory=True, bind="tcp://127.0.0.1:*") as other, Client(other.endpoints["zmtp"]) as there:
        there.create(topic, persistence="transient")
        there.publish_many(topic, [b"x"] * 9)
        error = failing(stream(spark, other.endpoints["zmtp"], topic=topic), tmp_path / "topics")
        assert "the checkpoint belongs to another broker" in error
        assert f"connect='{other.endpoints['zmtp']}'" in error


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topic": "nowhere"}, "option topic='nowhere': tcp://.* has no topic 'nowhere'; its topics are: "),
        # Options of a batch: which of the two it is, Spark reports only now.
        ({"topic": "few", "endingOffsets": "latest"}, "not an option of readStream: 'endingOffsets'"),
    ],
)
def test_what_the_broker_does_not_have_is_reported_when_the_query_begins(
    options: dict[str, Any], reason: str, spark: Any, url: str, client: Client, tmp_path: Path
) -> None:
    client.create("few", persistence="transient")
    error = failing(stream(spark, url, **options), tmp_path)
    assert re.search(reason, error.splitlines()[0]), error
    assert "Traceback" not in error


def test_a_broker_that_is_away_is_reported_by_the_options_that_name_it(spark: Any, tmp_path: Path) -> None:
    with held() as port:
        error = failing(stream(spark, f"tcp://127.0.0.1:{port}", topic="t", timeout=0.5), tmp_path)
    assert f"option connect='tcp://127.0.0.1:{port}': tcp://127.0.0.1:{port}: not connected to a broker" in error
    assert "(option timeout=0.5)" in error
    assert "Traceback" not in error


def test_a_broker_that_is_back_in_a_moment_fails_no_query(spark: Any, started: list[Any], tmp_path: Path) -> None:
    with held() as port:
        url = f"tcp://127.0.0.1:{port}"
        server = Server(tmp_path / "broker", bind=url)
        server.__enter__()
        try:
            with Client(url) as client:
                client.create("ticks", persistence="strong")
                client.publish_many("ticks", [b"%d" % n for n in range(1000)])
                seen = Seen(3000)
                frame = stream(spark, url, topic="ticks", startingOffsets="earliest", maxRowsPerTrigger=700)
                query = frame.writeStream.foreachBatch(seen)
                started.append(query.option("checkpointLocation", str(tmp_path / "checkpoint")).start())
                for round_ in range(1, 3):
                    until(lambda: len(seen.rows) >= 500 * round_)  # noqa: B023 - called at once
                    server.__exit__(None, None, None)
                    time.sleep(0.3)
                    server = Server(tmp_path / "broker", bind=url)
                    server.__enter__()
                    client.publish_many("ticks", [b"%d" % n for n in range(1000 * round_, 1000 * round_ + 1000)])
                seen.wait()
            assert [int(row.value) for row in seen.rows] == list(range(3000))
        finally:
            for one in started:
                one.stop()
            server.__exit__(None, None, None)


def test_latest_without_a_subscription_logs_what_that_means(caplog: pytest.LogCaptureFixture) -> None:
    from omq.spark.topics.catalog import TopicCatalog
    from omq.spark.topics.settings import TopicSettings

    with caplog.at_level(logging.WARNING, "omq.spark"):
        TopicCatalog(TopicSettings.parse("readStream", {"connect": "tcp://127.0.0.1:1", "topic": "t"})).stream_starts(
            {}
        )
    assert "a crash before the checkpoint has the first microbatch moves the start" in caplog.text
