"""Structured Streaming over live sockets, against a real Spark."""

import time
from pathlib import Path
from typing import Any

import pytest

import omq
from tests.support.waits import until
from tests.system.spark.conftest import Feeder, Seen

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(120)]


def stream(spark: Any, **options: Any) -> Any:
    return spark.readStream.format("omq").options(**options).load()


def wait_until_committed(checkpoint: Path, batch: int) -> None:
    """Waits until Spark has noted that a microbatch is done, which comes after its sink has returned."""
    until((checkpoint / "commits" / str(batch)).exists, f"the commit of microbatch {batch}")


def test_every_message_comes_once_and_in_order_over_many_microbatches(
    spark: Any, feed: Feeder, started: list[Any], tmp_path: Any
) -> None:
    count = 3000
    urls = [feed.push([b"%d" % n for n in range(count)]) for _ in range(2)]
    seen = Seen(2 * count)
    frame = stream(spark, socket="PULL", connect=",".join(urls), maxRowsPerTrigger=1000, triggerSeconds=0.3)
    started.append(frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path)).start())
    seen.wait()
    assert max(seen.batches) <= 2000
    assert len(seen.batches) >= 3
    for url in urls:
        of_one = [row for row in seen.rows if row.endpoint == url]
        assert [int(row.value) for row in of_one] == list(range(count))
        assert [row.sequence for row in of_one] == list(range(count))


def test_a_microbatch_is_bounded_in_bytes(spark: Any, feed: Feeder, started: list[Any], tmp_path: Any) -> None:
    url = feed.push([b"%09d" % n for n in range(30)])
    seen = Seen(30)
    frame = stream(spark, socket="PULL", connect=url, maxBytesPerTrigger=95, triggerSeconds=0.5, columns="value")
    started.append(frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path)).start())
    seen.wait()
    assert seen.values == list(range(30))
    assert max(seen.batches) == 10


def test_a_restart_from_a_checkpoint_goes_on_with_what_comes(spark: Any, feed: Feeder, tmp_path: Any) -> None:
    push = feed.open(omq.PUSH, bind="tcp://127.0.0.1:*")
    numbers = []
    for round_ in range(2):
        push.send_many([b"%d" % (round_ * 100 + n) for n in range(100)])
        seen = Seen(100)
        frame = stream(spark, socket="PULL", connect=push.endpoints[0], triggerSeconds=0.2)
        query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path)).start()
        seen.wait()
        numbers.append({number for number, rows in zip(seen.numbers, seen.batches, strict=True) if rows})
        # Of a microbatch that is not committed before the stop, the rows are lost.
        wait_until_committed(tmp_path, max(numbers[-1]))
        query.stop()
        assert sorted(seen.values) == list(range(round_ * 100, round_ * 100 + 100))
        until(lambda: not push.peers)
    assert max(numbers[0]) < min(numbers[1])


@pytest.mark.slow
def test_there_is_no_microbatch_when_nothing_came(spark: Any, feed: Feeder, started: list[Any], tmp_path: Path) -> None:
    push = feed.open(omq.PUSH, bind="tcp://127.0.0.1:*")
    seen = Seen(100)
    frame = stream(spark, socket="PULL", connect=push.endpoints[0], triggerSeconds=0.3)
    query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path)).start()
    started.append(query)
    for round_ in range(2):
        push.send_many([b"%d" % n for n in range(round_ * 50, round_ * 50 + 50)])
        until(lambda: len(seen.rows) >= round_ * 50 + 50, bound=60)  # noqa: B023 - called at once
        time.sleep(1.5)  # five triggers that have nothing to read
    assert seen.values == list(range(100))
    # The first one opens the connection, and may have come before the first message.
    assert len(seen.batches) <= 5
    assert 0 not in seen.batches[1:]
    assert len([one for one in (tmp_path / "offsets").iterdir() if one.name.isdigit()]) == len(seen.batches)


@pytest.mark.slow
def test_a_sink_that_raises_fails_the_query(spark: Any, feed: Feeder, tmp_path: Any) -> None:
    url = feed.push([b"1"] * 10)

    def sink(frame: Any, number: int) -> None:
        raise RuntimeError("the sink does not like it")

    frame = stream(spark, socket="PULL", connect=url, triggerSeconds=0.2)
    query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="the sink does not like it"):
        query.awaitTermination(60)


@pytest.mark.parametrize(
    ("columns", "options", "complaint"),
    [
        (["value"], {"send_timeout": "0.2", "send_hwm": "1", "connectTimeout": "none"}, "no room for the message"),
        pytest.param(
            ["value"], {"linger": "0.2", "connectTimeout": "none"}, "within linger=0.2", marks=pytest.mark.slow
        ),
        pytest.param(
            ["NULLIF(value, value) AS value"],
            {"connectTimeout": "none"},
            "column 'value' has a null",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["value", "value AS topic"],
            {"connectTimeout": "none"},
            "column 'topic': it is for a PUB",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_sink_that_cannot_send_fails_the_query_and_the_next_one_is_not_hindered(
    columns: list[str], options: dict[str, str], complaint: str, spark: Any, feed: Feeder, tmp_path: Any
) -> None:
    def written(url: str, columns: list[str], **more: str) -> Any:
        source = feed.push([b"%d" % n for n in range(100)])
        frame = stream(spark, socket="PULL", connect=source, columns="value", triggerSeconds=0.2)
        writer = frame.selectExpr(*columns).writeStream.format("omq").options(socket="PUSH", connect=url, **more)
        return writer.option("checkpointLocation", str(tmp_path / url[-5:])).start()

    with pytest.raises(Exception, match=complaint):
        written("tcp://127.0.0.1:1", columns, **options).awaitTermination(60)
    pull = feed.open(omq.PULL, bind="tcp://127.0.0.1:*")
    query = written(pull.endpoints[0], ["value"])
    assert [int(pull.recv(timeout=60)) for _ in range(100)] == list(range(100))
    query.stop()


def test_a_stream_from_socket_to_socket(spark: Any, feed: Feeder, started: list[Any], tmp_path: Any) -> None:
    url = feed.push([b"%d" % n for n in range(2000)])
    pull = feed.open(omq.PULL, bind="tcp://127.0.0.1:*")
    frame = stream(spark, socket="PULL", connect=url, columns="value", triggerSeconds=0.2)
    query = frame.selectExpr("CAST(2 * CAST(CAST(value AS STRING) AS INT) AS STRING) AS value").writeStream
    query = query.format("omq").option("socket", "PUSH").option("connect", pull.endpoints[0])
    started.append(query.option("checkpointLocation", str(tmp_path)).start())
    got: list[Any] = []
    while len(got) < 2000:
        got += pull.recv_many(2000, timeout=60)
    assert list(map(int, got)) == [2 * n for n in range(2000)]


@pytest.mark.slow
def test_a_streaming_sink_that_binds_is_one_socket(spark: Any, feed: Feeder, started: list[Any], tmp_path: Any) -> None:
    url = feed.push([b"%d" % n for n in range(1000)])
    out = f"ipc://{tmp_path}/out"
    sub = feed.open(omq.SUB, connect=out, subscribe=b"")
    frame = stream(spark, socket="PULL", connect=url, columns="value", maxRowsPerTrigger=100, triggerSeconds=0.3)
    query = frame.writeStream.format("omq").option("socket", "PUB").option("bind", out).option("subscribers", 1)
    started.append(query.option("topic", "t").option("checkpointLocation", f"{tmp_path}/checkpoint").start())
    assert [sub.recv_multipart(timeout=60) for _ in range(1000)] == [[b"t", b"%d" % n] for n in range(1000)]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"connect": "tcp://127.0.0.1:1"}, r"tcp://127.0.0.1:1: no peer is connected.*connection refused"),
        pytest.param({"connect": "tcp://nowhere.invalid:1"}, "no peer is connected.*not known", marks=pytest.mark.slow),
        pytest.param(
            {"connect": "tcp://127.0.0.1:1", "trigger": "now"}, "no peer is connected", marks=pytest.mark.slow
        ),
    ],
)
def test_a_stream_without_a_peer_fails_with_the_reason(
    spark: Any, options: dict[str, str], complaint: str, tmp_path: Any
) -> None:
    now = {"availableNow": True} if options.pop("trigger", "") else {"processingTime": "0 seconds"}
    frame = stream(spark, socket="PULL", connectTimeout=1, triggerSeconds=0.3, **options)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(**now).start()
    with pytest.raises(Exception, match=complaint):
        query.awaitTermination(60)


@pytest.mark.slow
def test_a_stream_may_begin_before_its_peer(spark: Any, feed: Feeder, started: list[Any], tmp_path: Any) -> None:
    with omq.PUSH(bind="tcp://127.0.0.1:*") as found:
        url = found.endpoints[0]
    seen = Seen(100)
    frame = stream(spark, socket="PULL", connect=url, connectTimeout=30, triggerSeconds=0.3)
    query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path)).start()
    started.append(query)
    until(lambda: query.recentProgress, "the first microbatch", 60)
    feed.open(omq.PUSH, bind=url).send_many([b"%d" % n for n in range(100)])
    seen.wait()
    assert seen.values == list(range(100))
