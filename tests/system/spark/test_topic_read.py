"""Batches from a broker's topics, against a real Spark."""

import datetime
import hashlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from omq.broker import Client, Record, Server
from tests.support.ports import held
from tests.system.spark.topic_io import read

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(120)]


def test_a_message_is_a_row_with_all_that_the_broker_knows_of_it(
    spark: Any, url: str, client: Client, topic: str
) -> None:
    client.publish(topic, b"one", key=b"k", headers={"source": b"demo", "\u00e4": b""})
    client.publish_many(topic, [b"", Record(b"three", headers={"n": b"\x00"}), Record(b"4", key=b"")])
    frame = read(spark, url, topic=topic)
    assert frame.dtypes == [
        ("topic", "string"),
        ("id", "bigint"),
        ("timestamp", "timestamp"),
        ("key", "binary"),
        ("value", "binary"),
        ("headers", "map<string,binary>"),
    ]
    rows = frame.collect()
    assert [(row.topic, row.id, row.key, row.value, row.headers) for row in rows] == [
        (topic, 1, b"k", b"one", {"source": b"demo", "\u00e4": b""}),
        (topic, 2, None, b"", None),
        (topic, 3, None, b"three", {"n": b"\x00"}),
        (topic, 4, b"", b"4", None),
    ]
    age = datetime.datetime.now() - rows[0].timestamp
    assert abs(age.total_seconds()) < 60


def test_columns_are_chosen_by_option_and_by_schema(spark: Any, url: str, client: Client, topic: str) -> None:
    client.publish_many(topic, [b"a", b"b"])
    assert [tuple(row) for row in read(spark, url, topic=topic, columns="value,id").collect()] == [(b"a", 1), (b"b", 2)]
    frame = spark.read.format("omq").schema("id bigint").option("connect", url).option("topic", topic).load()
    assert [tuple(row) for row in frame.collect()] == [(1,), (2,)]
    assert read(spark, url, topic=topic).select("key").count() == 2
    with pytest.raises(Exception, match="the schema does not match"):
        spark.read.format("omq").schema("id string").option("connect", url).option("topic", topic).load().collect()


@pytest.mark.slow
def test_batches_of_any_size_have_every_row_once(spark: Any, url: str, client: Client, topic: str) -> None:
    sizes = [0, 1, 70_000, 3_000_000, 5, 12, 1_000_000] * 2
    wanted = [hashlib.sha256(bytes([n]) * size).hexdigest() for n, size in enumerate(sizes)]
    client.publish_many(topic, [bytes([n]) * size for n, size in enumerate(sizes)])
    for size in ("10", "100k", "16m"):
        rows = read(spark, url, topic=topic, batchBytes=size).selectExpr("id", "sha2(value, 256) AS digest").collect()
        assert [row.id for row in rows] == list(range(1, len(sizes) + 1))
        assert [row.digest for row in rows] == wanted


def test_a_temporary_view_in_sql_reads_a_topic_and_is_frozen_at_its_first_action(
    spark: Any, url: str, client: Client, topic: str
) -> None:
    client.publish_many(topic, [b"x"] * 10)
    create = f"CREATE OR REPLACE TEMPORARY VIEW ticks USING omq OPTIONS (connect '{url}', topic '{topic}')"
    spark.sql(create)
    assert spark.sql("SELECT id FROM ticks").count() == 10
    client.publish_many(topic, [b"x"] * 5)
    assert spark.sql("SELECT id FROM ticks").count() == 10
    spark.sql(create)
    assert spark.sql("SELECT id FROM ticks").count() == 15


def test_a_topic_is_split_by_ids(spark: Any, url: str, client: Client, topic: str) -> None:
    client.publish_many(topic, [b"%d" % n for n in range(1000)])
    rows = read(spark, url, topic=topic, minPartitions=7).selectExpr("id", "spark_partition_id() AS part").collect()
    assert sorted(row.id for row in rows) == list(range(1, 1001))
    sizes = Counter(row.part for row in rows)
    assert len(sizes) == 7
    assert max(sizes.values()) - min(sizes.values()) <= 1
    assert read(spark, url, topic=topic).rdd.getNumPartitions() == 1


def test_several_topics_by_name_and_by_pattern(spark: Any, url: str, client: Client) -> None:
    for name in ("ticks.a", "ticks.b", "other ticks"):
        client.create(name, persistence="transient")
        client.publish_many(name, [name.encode()] * 3)

    def found(**options: Any) -> list[tuple[str, int]]:
        return sorted((row.topic, row.id) for row in read(spark, url, **options).collect())

    two = [(name, id) for name in ("ticks.a", "ticks.b") for id in (1, 2, 3)]
    assert found(topics="ticks.a, ticks.b") == two
    assert found(topicPattern=r"ticks\..") == two
    assert found(topicPattern="ticks") == []
    assert found(topics="ticks.a,other ticks", startingOffsets='{"ticks.a": 3, "other ticks": 4}') == [("ticks.a", 3)]
    for name in ("ticks.a", "ticks.b", "other ticks"):
        client.delete(name)


def test_bounds_are_ids_words_and_times(spark: Any, url: str, client: Client, topic: str) -> None:
    client.publish_many(topic, [b"%d" % n for n in range(100)])
    time.sleep(0.01)
    middle = time.time_ns() // 1_000_000
    time.sleep(0.01)
    client.publish_many(topic, [b"%d" % n for n in range(100, 150)])

    def ids(**options: Any) -> list[int]:
        return [row.id for row in read(spark, url, topic=topic, **options).collect()]

    assert ids(startingOffsets="earliest", endingOffsets="latest") == list(range(1, 151))
    assert ids(startingOffsets=f'{{"{topic}": 149}}') == [149, 150]
    assert ids(startingOffsets=f'{{"{topic}": 151}}') == []
    assert ids(endingOffsets=f'{{"{topic}": 3}}') == [1, 2]
    assert ids(startingOffsets=f'{{"{topic}": 3}}', endingOffsets=f'{{"{topic}": 5}}') == [3, 4]
    assert ids(startingTimestamp=middle) == list(range(101, 151))
    assert ids(endingTimestamp=middle) == list(range(1, 101))
    assert ids(startingTimestamp=middle, endingTimestamp=middle) == []
    assert ids(startingTimestamp=middle + 86_400_000) == []
    assert ids(startingTimestamp=0) == list(range(1, 151))


def test_a_start_behind_retention_fails_or_begins_with_what_is_kept(spark: Any, url: str, client: Client) -> None:
    client.create("short", persistence="transient", max_messages=10)
    for _ in range(30):
        client.publish("short", b"x")
    (info,) = client.topics("short")
    assert info.first > 5
    for start in (f'{{"short": {info.first - 1}}}', '{"short": 5}'):
        with pytest.raises(Exception, match=rf"DataLoss: topic 'short' now begins with {info.first}.*failOnDataLoss"):
            read(spark, url, topic="short", startingOffsets=start).collect()
    found = read(spark, url, topic="short", startingOffsets='{"short": 5}', failOnDataLoss=False).collect()
    assert [row.id for row in found] == list(range(info.first, 31))
    gone = read(
        spark, url, topic="short", startingOffsets='{"short": 2}', endingOffsets='{"short": 4}', failOnDataLoss=False
    )
    assert gone.collect() == []
    client.delete("short")


def test_messages_that_go_between_plan_and_task_fail_it_or_are_passed_over(
    spark: Any, url: str, client: Client
) -> None:
    for fails in (True, False):
        client.create("moving", persistence="transient", max_messages=10)
        client.publish_many("moving", [b"x"] * 10)
        frame = read(spark, url, topic="moving", failOnDataLoss=fails)
        frame.rdd.getNumPartitions()  # planned now
        for _ in range(15):
            client.publish("moving", b"y")
        if fails:
            with pytest.raises(Exception, match="DataLoss: topic 'moving': ids 1 to 10 are no longer kept"):
                frame.collect()
        else:
            assert frame.collect() == []
        client.delete("moving")
    client.create("moving", persistence="transient")
    client.publish("moving", b"x")
    frame = read(spark, url, topic="moving")
    frame.rdd.getNumPartitions()
    client.delete("moving")
    client.create("moving", persistence="transient")
    client.publish("moving", b"another")
    with pytest.raises(Exception, match="topic 'moving': ids 1 to 1 are lost: it was deleted, and created again"):
        frame.collect()
    client.delete("moving")


@pytest.mark.slow
def test_a_read_of_a_few_rows_does_not_wait_for_all(spark: Any, url: str, client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x" * 100_000] * 200)
    frame = read(spark, url, topic=topic, batchBytes="1m")
    assert [row.id for row in frame.limit(3).collect()] == [1, 2, 3]
    assert frame.first().id == 1
    assert frame.count() == 200


@pytest.mark.parametrize("when", [pytest.param("plan", marks=pytest.mark.slow), "task"])
def test_a_broker_that_stays_away_is_reported_by_the_options_that_name_it(
    when: str, spark: Any, tmp_path: Path
) -> None:
    with held() as port:
        url = f"tcp://127.0.0.1:{port}"
        with Server(tmp_path, bind=url), Client(url) as client:
            client.create("t")
            client.publish("t", b"x")
            frame = read(spark, url, topic="t", timeout=0.5)
            if when == "task":
                assert frame.rdd.getNumPartitions() == 1  # planned now
        with pytest.raises(Exception, match=rf"BrokerTimeout: option connect='{url}'.*option timeout=0\.5") as caught:
            frame.collect()
        assert "Traceback" not in str(caught.value)
        with Server(tmp_path, bind=url):
            assert [row.value for row in read(spark, url, topic="t").collect()] == [b"x"]


def test_an_empty_topic_is_an_empty_frame(spark: Any, url: str, topic: str) -> None:
    frame = read(spark, url, topic=topic)
    assert frame.collect() == []
    assert frame.count() == 0


def test_a_round_robin_topic_is_looked_into(spark: Any, url: str, client: Client) -> None:
    client.create("jobs", delivery="round-robin", persistence="transient")
    client.publish_many("jobs", [b"a", b"b"])
    assert [row.value for row in read(spark, url, topic="jobs").collect()] == [b"a", b"b"]
    client.delete("jobs")
