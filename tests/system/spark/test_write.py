"""`df.write.format("omq")` against a real Spark."""

import threading
from typing import Any

import pytest

import omq
from tests.system.spark.conftest import Feeder

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(120)]

ANY_TIME = {"connectTimeout": "none"}


def write(frame: Any, **options: Any) -> None:
    frame.write.format("omq").mode("append").options(**options).save()


def test_rows_to_a_pull(spark: Any, feed: Feeder) -> None:
    pull = feed.open(omq.PULL, bind="tcp://127.0.0.1:*")
    write(spark.range(5000).selectExpr("CAST(id AS STRING) AS value"), socket="PUSH", connect=pull.endpoints[0])
    got: list[Any] = []
    while len(got) < 5000:
        got += pull.recv_many(5000, timeout=10)
    assert sorted(map(int, got)) == list(range(5000))


def test_parts_and_empty_and_large_values(spark: Any, feed: Feeder) -> None:
    pull = feed.open(omq.PULL, bind="tcp://127.0.0.1:*")
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.extend(pull.recv_multipart(timeout=60) for _ in range(4)))
    reader.start()
    frame = spark.sql("SELECT array(CAST('a' AS BINARY), CAST('' AS BINARY), CAST('b' AS BINARY)) AS parts")
    write(frame, socket="PUSH", connect=pull.endpoints[0])
    frame = spark.sql(
        "SELECT CAST(value AS BINARY) AS value"
        " FROM VALUES (''), ('x'), (repeat('0123456789abcdef', 2097152)) AS t(value)"
    )
    write(frame.coalesce(1), socket="PUSH", connect=pull.endpoints[0])
    reader.join(60)
    assert sorted(got, key=lambda parts: len(b"".join(parts))) == [
        [b""],
        [b"x"],
        [b"a", b"", b"b"],
        [b"0123456789abcdef" * 2097152],
    ]


def test_topics_to_a_subscriber(spark: Any, feed: Feeder) -> None:
    sub = feed.open(omq.SUB, bind="tcp://127.0.0.1:*", subscribe=b"t")
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value", "CONCAT('t', id % 2) AS topic").coalesce(1)
    write(frame, socket="PUB", connect=sub.endpoints[0], subscribers=1, xpub_nodrop="true")
    assert [sub.recv_multipart(timeout=10) for _ in range(100)] == [[b"t%d" % (n % 2), b"%d" % n] for n in range(100)]
    write(frame.select("value"), socket="PUB", connect=sub.endpoints[0], subscribers=1, topic="tt", xpub_nodrop="true")
    assert [sub.recv_multipart(timeout=10) for _ in range(100)] == [[b"tt", b"%d" % n] for n in range(100)]


def test_all_tasks_share_an_endpoint_that_is_bound(spark: Any, feed: Feeder, tmp_path: Any) -> None:
    url = f"ipc://{tmp_path}/bound"
    pull = feed.open(omq.PULL, connect=url)
    for _ in range(2):
        write(spark.range(0, 4000, 1, 4).selectExpr("CAST(id AS STRING) AS value"), socket="PUSH", bind=url)
    got: list[Any] = []
    while len(got) < 8000:
        got += pull.recv_many(8000, timeout=10)
    assert sorted(map(int, got)) == sorted([*range(4000)] * 2)


def test_a_socket_without_room_slows_the_task_down(spark: Any, feed: Feeder) -> None:
    pull = feed.open(omq.PULL, bind="tcp://127.0.0.1:*", recv_hwm=1, recv_buffer=8192)
    written = threading.Event()
    stalled: list[bool] = []

    def job() -> None:
        got = len(pull.recv_many(1, timeout=60))
        stalled.append(not written.wait(2))
        while got < 20_000:
            got += len(pull.recv_many(1000, timeout=10))

    feed.run(job)
    frame = spark.range(0, 20_000, 1, 1).selectExpr("repeat('x', 2000) AS value")
    write(frame, socket="PUSH", connect=pull.endpoints[0], send_hwm=10, send_buffer=8192)
    written.set()
    feed.join()
    assert stalled == [True]


@pytest.mark.parametrize(
    ("columns", "options", "complaint"),
    [
        ("id", {}, "column 'id' of type bigint"),
        ("CAST(NULL AS STRING) AS value", ANY_TIME, "has a null"),
        pytest.param(
            "CAST(id AS STRING) AS value",
            {"send_timeout": "0.2", "send_hwm": "1", **ANY_TIME},
            "no room for the message",
            marks=pytest.mark.slow,
        ),
        ("CAST(id AS STRING) AS value", {"linger": "0.2", **ANY_TIME}, "within linger=0.2"),
        pytest.param(
            "CAST(id AS STRING) AS value",
            {"connectTimeout": "0.5"},
            "connectTimeout=0.5 s; .*connection refused",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_be_sent_is_refused(
    spark: Any, columns: str, options: dict[str, str], complaint: str, feed: Feeder
) -> None:
    usual = {"socket": "PUSH", "connect": "tcp://127.0.0.1:1"}
    with pytest.raises(Exception, match=complaint):
        write(spark.range(0, 10, 1, 1).selectExpr(*columns.split(", ")), **usual | options)


def test_nothing_is_overwritten(spark: Any) -> None:
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    writer = frame.write.format("omq").mode("overwrite").option("socket", "PUSH").option("connect", "tcp://h:1")
    with pytest.raises(Exception, match=r"use mode\('append'\)"):
        writer.save()
