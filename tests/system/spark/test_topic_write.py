"""Rows into a broker's topics, against a real Spark: once, or at least once."""

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omq.broker import Client, Server
from tests.support.cluster_members import Changes, Members
from tests.support.ports import held
from tests.system.spark.topic_io import bodies, messages, read, sink, stream, written

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(120)]

ONCE, LEAST = {"delivery": "exactly-once"}, {"delivery": "at-least-once"}


@pytest.fixture
def source(client: Client, topic: str) -> Iterator[str]:
    """A topic with a hundred messages."""
    name = f"source of {topic}"
    client.create(name, persistence="transient")
    client.publish_many(name, [b"%d" % n for n in range(100)])
    yield name
    client.delete(name)


def done(writer: Any) -> Any:
    """Runs a query over what is there; the query."""
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    return query


@pytest.mark.parametrize("options", [{}, ONCE, LEAST])
def test_a_row_is_a_message_with_its_key_and_headers(
    options: dict[str, str], spark: Any, url: str, client: Client, topic: str
) -> None:
    frame = spark.sql(
        """SELECT * FROM VALUES
        ('a', CAST('k' AS BINARY), map('n', CAST('v' AS BINARY), 'm', CAST('' AS BINARY))),
        ('', CAST('' AS BINARY), map()),
        ('\u00e4', NULL, NULL) AS t(value, key, headers)"""
    ).coalesce(1)
    written(frame, url, topic=topic, **options)
    assert [(one.body, one.key, one.headers) for one in messages(client, topic)] == [
        (b"a", b"k", {"n": b"v", "m": b""}),
        (b"", b"", {}),
        ("\u00e4".encode(), None, {}),
    ]


@pytest.mark.parametrize("options", [ONCE, LEAST])
def test_rows_of_any_size_in_many_partitions_arrive_in_the_order_of_theirs(
    options: dict[str, str], spark: Any, url: str, client: Client, topic: str
) -> None:
    frame = spark.range(0, 20_000, 1, 4).selectExpr(
        "CAST(concat(id, repeat(' ', CAST(id % 100 AS INT))) AS BINARY) AS value", "CAST(id AS STRING) AS key"
    )
    written(frame, url, topic=topic, **options)
    found = messages(client, topic)
    assert sorted(int(one.body) for one in found) == list(range(20_000))
    assert all(one.key == one.body.strip() and len(one.body) == len(one.key) + int(one.key) % 100 for one in found)
    assert [one.id for one in found] == list(range(1, 20_001))
    for part in range(4):
        of_one = [int(one.body) for one in found if int(one.body) // 5000 == part]
        assert of_one == sorted(of_one)
    if options is ONCE:
        assert [int(one.body) for one in found] == list(range(20_000))  # partition by partition


@pytest.mark.parametrize("options", [ONCE, LEAST])
def test_a_column_names_the_topic_of_each_row_and_the_option_wins(
    options: dict[str, str], spark: Any, url: str, client: Client, topic: str
) -> None:
    names = [f"{topic}.{number}" for number in range(3)]
    for name in names:
        client.create(name, persistence="transient")
    frame = spark.range(0, 3000, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value", f"concat('{topic}.', id % 3) AS topic", "CAST(id AS STRING) AS key"
    )
    written(frame, url, **options)
    for number, name in enumerate(names):
        assert sorted(map(int, bodies(client, name))) == list(range(number, 3000, 3))
    written(frame, url, topic=topic, **options)
    assert sorted(map(int, bodies(client, topic))) == list(range(3000))
    for name in names:
        client.delete(name)


def test_no_rows_are_no_messages(spark: Any, url: str, client: Client, topic: str) -> None:
    written(spark.range(0).selectExpr("CAST(id AS STRING) AS value"), url, topic=topic)
    assert messages(client, topic) == []


@pytest.mark.parametrize("options", [ONCE, pytest.param(LEAST, marks=pytest.mark.slow)])
def test_a_stream_from_topic_to_topic(
    options: dict[str, str], spark: Any, url: str, client: Client, topic: str, source: str, tmp_path: Path
) -> None:
    frame = stream(spark, url, topic=source, startingOffsets="earliest", maxRowsPerTrigger=60, minPartitions=3)
    query = done(sink(frame.select("value", "key", "headers"), url, tmp_path, topic=topic, **options))
    assert [one.numInputRows for one in query.recentProgress if one.numInputRows] == [60, 40]
    assert sorted(map(int, bodies(client, topic))) == list(range(100))
    if options is ONCE:
        assert list(map(int, bodies(client, topic))) == list(range(100))


def test_a_microbatch_that_spark_repeats_publishes_nothing(
    spark: Any, url: str, client: Client, topic: str, source: str, tmp_path: Path
) -> None:
    frame = stream(spark, url, topic=source, startingOffsets="earliest", maxRowsPerTrigger=50, minPartitions=2)
    writer = sink(frame.select("value"), url, tmp_path, topic=topic)
    done(writer)
    assert len(messages(client, topic)) == 100
    # As a crash inside the commit leaves it: what was published is not in the checkpoint.
    for name in ("1", ".1.crc"):
        (tmp_path / "commits" / name).unlink()
    client.publish(source, b"100")
    done(writer)
    assert list(map(int, bodies(client, topic))) == list(range(101))
    # Another query publishes them again.
    shutil.rmtree(tmp_path)
    frame = stream(spark, url, topic=source, startingOffsets="earliest")
    done(sink(frame.select("value"), url, tmp_path, topic=topic))
    assert len(messages(client, topic)) == 202


def test_a_complete_result_is_written_each_time(
    spark: Any, url: str, client: Client, topic: str, source: str, tmp_path: Path
) -> None:
    frame = stream(spark, url, topic=source, startingOffsets="earliest", maxRowsPerTrigger=50)
    counted = frame.groupBy().count().selectExpr("CAST(count AS STRING) AS value")
    done(sink(counted, url, tmp_path, topic=topic).outputMode("complete"))
    assert bodies(client, topic) == [b"50", b"100"]


def test_a_task_that_fails_leaves_nothing(spark: Any, url: str, client: Client, topic: str) -> None:
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "CASE WHEN id = 900 THEN raise_error('no') ELSE string(id) END AS value"
    )
    with pytest.raises(Exception, match="no"):
        written(frame, url, topic=topic)
    assert messages(client, topic) == []


def test_transient_stages_that_are_dropped_give_their_room_back(spark: Any, url: str, client: Client) -> None:
    client.create("small", persistence="transient", max_bytes=1 << 20)
    frame = spark.range(0, 700, 1, 1).selectExpr(
        "CASE WHEN id = 699 THEN raise_error('no') ELSE repeat('x', 1000) END AS value"
    )
    for _ in range(4):  # each takes most of the room that stages of the topic have
        with pytest.raises(Exception, match="no"):
            written(frame, url, topic="small")
    written(frame.limit(300), url, topic="small")
    assert len(messages(client, "small")) == 300
    client.delete("small")


VALUE = "CAST(id AS STRING) AS value"


@pytest.mark.parametrize(
    ("columns", "options", "error"),
    [
        ([VALUE], {"topic": "nowhere"}, "TopicError: option topic='nowhere': tcp://.* has no such topic"),
        ([VALUE], {}, "OptionError: option 'socket' is missing .* or an option or a column 'topic'"),
        ([VALUE, "'nowhere' AS topic"], {}, "TopicError: column 'topic' with 'nowhere': there is no topic"),
        (["NULLIF('a', 'a') AS value"], {"topic": "well"}, "OptionError: column 'value', .* row 0: its body is null"),
        ([VALUE, "id"], {"topic": "well"}, "OptionError: column 'id': a topic takes value, key, headers, topic"),
        pytest.param(
            [VALUE, "map('a', NULLIF('a', 'a')) AS headers"],
            {"topic": "well"},
            "row 0: a header's name or value is null",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_does_not_fit_is_reported_in_the_driver_in_the_first_line(
    columns: list[str], options: dict[str, str], error: str, spark: Any, url: str, client: Client
) -> None:
    client.create("well", persistence="transient")
    with pytest.raises(Exception, match=error) as caught:
        written(spark.range(0, 3, 1, 1).selectExpr(*columns), url, **options)
    if "row 0" not in error and "column 'topic'" not in error:
        assert error.partition(" ")[0] in str(caught.value).splitlines()[0]
    assert "Traceback" not in str(caught.value)
    assert messages(client, "well") == []


def test_overwrite_is_refused(spark: Any, url: str, topic: str) -> None:
    frame = spark.range(1).selectExpr(VALUE)
    with pytest.raises(Exception, match=r"mode\('overwrite'\): the messages of a topic cannot be replaced"):
        frame.write.format("omq").mode("overwrite").option("connect", url).option("topic", topic).save()


def test_topics_of_kinds_that_have_no_common_transaction_are_refused_together(spark: Any, tmp_path: Path) -> None:
    with Server(tmp_path, bind="tcp://127.0.0.1:*") as server, Client(server.endpoints["zmtp"]) as client:
        client.create("strong", persistence="strong")
        client.create("weak", persistence="weak")
        frame = spark.range(10).selectExpr(VALUE, "CASE WHEN id % 2 = 0 THEN 'strong' ELSE 'weak' END AS topic")
        with pytest.raises(
            Exception, match="of strong topics, of weak and async topics, and of transient topics separately"
        ):
            written(frame, server.endpoints["zmtp"])
        assert messages(client, "strong") == []
        assert messages(client, "weak") == []
        written(frame, server.endpoints["zmtp"], **LEAST)
        assert sorted(map(int, bodies(client, "weak"))) == [1, 3, 5, 7, 9]


def test_a_broker_that_is_away_is_reported_when_the_write_is_planned(spark: Any) -> None:
    with held() as port, pytest.raises(Exception, match=r"option connect='tcp.*option timeout=0\.5") as caught:
        written(spark.range(1).selectExpr(VALUE), f"tcp://127.0.0.1:{port}", topic="t", timeout=0.5)
    assert "BrokerTimeout: option connect" in str(caught.value).splitlines()[0]
    assert "Traceback" not in str(caught.value)


@pytest.mark.slow
def test_a_sink_in_a_stream_reports_what_is_wrong(spark: Any, url: str, source: str, tmp_path: Path) -> None:
    frame = stream(spark, url, topic=source, startingOffsets="earliest")
    with pytest.raises(Exception, match="option topic='nowhere'") as caught:
        done(sink(frame.select("value"), url, tmp_path, topic="nowhere"))
    assert "Traceback" not in str(caught.value)
    with pytest.raises(Exception, match="column 'id': a topic takes"):
        done(sink(frame.select("value", "id"), url, tmp_path / "other", topic=source))


@pytest.mark.parametrize("method", ["read", "readStream"])
def test_a_socket_and_a_topic_exclude_each_other(method: str, spark: Any, url: str) -> None:
    reader = getattr(spark, method).format("omq").option("connect", url)
    with pytest.raises(Exception, match="options 'socket' and 'topicPattern' exclude each other"):
        reader.option("socket", "PULL").option("topicPattern", "t").load()
    neither = getattr(spark, method).format("omq").option("connect", url)
    with pytest.raises(Exception, match=r"option 'socket' is missing .* or 'topic', 'topics' or 'topicPattern'"):
        neither.load()


@pytest.mark.slow
def test_a_broker_that_is_back_in_a_moment_fails_no_write_and_doubles_no_row(spark: Any, tmp_path: Path) -> None:
    count = 40_000
    with held() as port, contextlib.ExitStack() as stack:
        url = f"tcp://127.0.0.1:{port}"
        ended = threading.Event()

        def restart() -> None:
            with Server(tmp_path / "broker", bind=url):
                ended.wait(1.0)
            while not ended.wait(0.3):
                with Server(tmp_path / "broker", bind=url):
                    ended.wait(0.7)

        thread = threading.Thread(target=restart)
        thread.start()
        stack.callback(thread.join)
        stack.callback(ended.set)
        with Client(url) as client:
            client.create("in")
            client.create("out")
            client.publish_many("in", (b"%d" % n for n in range(count)))
            frame = stream(spark, url, topic="in", startingOffsets="earliest", maxRowsPerTrigger=count // 8)
            done(sink(frame.select("value"), url, tmp_path / "checkpoint", topic="out"))
            assert [int(one) for one in bodies(client, "out")] == list(range(count))
            written(frame_of(spark, count), url, topic="out")
            written(frame_of(spark, count), url, topic="out", **LEAST)
            assert client.topics("out")[0].last == 3 * count


def test_changes_of_the_leader_of_a_cluster_fail_no_query_and_double_no_row(spark: Any, tmp_path: Path) -> None:
    count = 40_000
    with (
        Server(tmp_path / "broker", bind="tcp://127.0.0.1:*") as server,
        Members(server.endpoints["zmtp"]) as cluster,
        Client(server.endpoints["zmtp"]) as client,
    ):
        client.create("in")
        client.create("out")
        client.publish_many("in", (b"%d" % n for n in range(count)))
        url = ", ".join(cluster.endpoints)
        with Changes(cluster, interval=0.5) as changes:
            frame = stream(spark, url, topic="in", startingOffsets="earliest", maxRowsPerTrigger=count // 8)
            done(sink(frame.select("value"), url, tmp_path / "checkpoint", topic="out"))
            assert [int(one) for one in bodies(client, "out")] == list(range(count))
            written(frame_of(spark, count), url, topic="out")
            written(frame_of(spark, count), cluster.members[1].endpoint, topic="out", **LEAST)
            assert read(spark, url, topic="out").count() == 3 * count
            assert changes.count > 1
        assert client.topics("out")[0].last == 3 * count


def frame_of(spark: Any, count: int) -> Any:
    return spark.range(0, count, 1, 2).selectExpr(VALUE)
