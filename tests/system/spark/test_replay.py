"""The messages that a live source keeps until Spark has committed it, and what the end of a query costs."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import omq
from tests.support.fork_server import SOCKETS, ForkedProcess
from tests.support.waits import until
from tests.system.spark.conftest import TOP, Feeder, Seen
from tests.system.spark.test_stream import stream

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(120)]


def receivers() -> list[int]:
    """The processes that have a connection of a Spark's."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_fork = (folder / "comm").read_bytes() == b"receiver\n"
            # Other tests have receivers, too, without a Spark.
            if (is_fork or b"omq.spark.live.receiver" in (folder / "cmdline").read_bytes()) and (
                str(TOP).encode() in (folder / "environ").read_bytes()
            ):
                found.append(int(folder.name))
    return found


@pytest.fixture
def started(spark: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts queries, all with one checkpoint; they are stopped when the test ends."""
    queries: list[Any] = []

    def start(frame: Any, sink: Callable[[Any, int], None], **trigger: Any) -> Any:
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", f"{tmp_path}/checkpoint")
        query = (writer.trigger(**trigger) if trigger else writer).start()
        queries.append(query)
        return query

    yield start
    for query in queries:
        query.stop()


def numbers(frame: Any) -> list[int]:
    return [int(row.value) for row in frame.collect()]


def test_every_action_in_a_batch_sees_the_same_rows(spark: Any, feed: Feeder, started: Callable[..., Any]) -> None:
    count = 2000
    url = feed.push([b"%d" % n for n in range(count)])
    seen: list[int] = []
    differing: list[tuple[Any, ...]] = []
    done = threading.Event()

    def sink(frame: Any, number: int) -> None:
        empty, size, first, second = frame.isEmpty(), frame.count(), numbers(frame), numbers(frame)
        if first != second or len(first) != size or empty != (size == 0):
            differing.append((number, empty, size, len(first), len(second)))
        seen.extend(first)
        if len(seen) >= count:
            done.set()

    started(stream(spark, socket="PULL", connect=url, maxRowsPerTrigger=1000, triggerSeconds=0.3), sink)
    assert done.wait(60), len(seen)
    assert not differing
    assert seen == list(range(count))


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True], ids=["stopped", "failed"])
def test_a_run_after_another_goes_on_with_what_its_peer_has_kept(
    fails: bool, spark: Any, feed: Feeder, started: Callable[..., Any]
) -> None:
    push = feed.open(omq.PUSH, bind="tcp://127.0.0.1:*")
    got: dict[int, list[int]] = {}
    some = threading.Event()
    rounds = 3

    def feeding() -> None:
        for number in itertools.count():
            push.send(b"%d" % number + b" " * 1000)
            time.sleep(0.0005)

    feed.run(feeding)

    def sink(frame: Any, number: int) -> None:
        rows = numbers(frame)
        if fails and number % 3 == 2 and rows and number not in failed:
            failed.add(number)
            raise RuntimeError("the sink does not like it")
        got[number] = rows
        if number % 3 == 2 and rows:
            some.set()

    failed: set[int] = set()
    frame = stream(spark, socket="PULL", connect=push.endpoints[0], maxRowsPerTrigger=300, triggerSeconds=0.3)
    before = set(receivers())
    for _ in range(rounds):
        some.clear()
        query = started(frame, sink)
        if fails and len(failed) < rounds - 1:
            with pytest.raises(Exception, match="the sink does not like it"):
                query.awaitTermination(60)
        else:
            assert some.wait(60)
            query.stop()
        until(lambda: not set(receivers()) - before, "the end of the query's receiver")
    rows = [number for one in sorted(got) for number in got[one]]
    assert rows == sorted(set(rows)), "a message has come twice, or out of order"
    # Each run goes on with what comes next; within it, nothing is missing.
    gaps = [later - sooner for sooner, later in itertools.pairwise(rows) if later != sooner + 1]
    assert len(gaps) <= 2 * (rounds - 1)
    assert rows[0] == 0


def test_a_killed_receiver_is_replaced_and_the_loss_logged(
    spark: Any, feed: Feeder, started: Callable[..., Any]
) -> None:
    before = set(receivers())
    push = feed.open(omq.PUSH, bind="tcp://127.0.0.1:*")
    got: list[int] = []
    came = threading.Event()
    lately: list[Any] = []

    def sink(frame: Any, number: int) -> None:
        rows = numbers(frame)
        got.extend(rows)
        if rows:
            came.set()

    query = started(stream(spark, socket="PULL", connect=push.endpoints[0], triggerSeconds=0.2), sink)
    push.send_many([b"%d" % n for n in range(100)])
    assert came.wait(60)
    (victim,) = set(receivers()) - before
    os.kill(victim, signal.SIGKILL)
    until(lambda: not push.peers)
    came.clear()
    push.send_many([b"%d" % n for n in range(100, 200)])
    deadline = time.monotonic() + 60
    while 199 not in got:
        assert time.monotonic() < deadline
        assert query.isActive
        time.sleep(0.05)
        lately = query.recentProgress
    assert got[-100:] == list(range(100, 200))
    assert len(got) == len(set(got))
    assert lately


def test_a_killed_receiver_fails_a_query_with_failondataloss(
    spark: Any, feed: Feeder, started: Callable[..., Any]
) -> None:
    before = set(receivers())
    url = feed.push([b"%d" % n for n in range(5000)])
    came = threading.Event()

    def sink(frame: Any, number: int) -> None:
        if frame.count() and not came.is_set():
            (victim,) = set(receivers()) - before
            os.kill(victim, signal.SIGKILL)
            came.set()

    frame = stream(spark, socket="PULL", connect=url, triggerSeconds=0.5, maxRowsPerTrigger=1000, failOnDataLoss="true")
    query = started(frame, sink)
    # Whether the receiver had set the next microbatch apart by then is chance: of that it had none, or a whole one.
    error = r"has died; about (0|1000) messages of microbatch 1 are lost, and \d+ that had.*failOnDataLoss=true"
    with pytest.raises(Exception, match=error):
        query.awaitTermination(60)


ENDING = """
import sys, omq
with omq.PUSH(bind="tcp://127.0.0.1:*") as push:
    print(push.endpoints[0], flush=True)
    push.send_many([b"%d" % n + b" " * 500 for n in range(20_000)])
"""


@pytest.mark.slow
def test_a_producer_that_ends_properly_loses_nothing_while_the_source_is_capped(
    spark: Any, started: Callable[..., Any]
) -> None:
    # It talks heartbeats, too, which a paused reader does not answer by itself.
    code = ENDING.replace('"tcp://127.0.0.1:*"', '"tcp://127.0.0.1:*", heartbeat_interval=0.2')
    with ForkedProcess("-c", code, stdout=subprocess.PIPE, text=True, template=SOCKETS) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        got: list[int] = []
        done = threading.Event()

        def sink(frame: Any, number: int) -> None:
            got.extend(numbers(frame))
            if len(got) >= 20_000:
                done.set()

        started(stream(spark, socket="PULL", connect=url, maxRowsPerTrigger=3000, triggerSeconds=0.3), sink)
        assert done.wait(60), len(got)
        assert process.wait(20) == 0
    assert got == list(range(20_000))


@pytest.mark.slow
def test_a_wrong_key_is_reported_in_the_driver(
    spark: Any, feed: Feeder, started: Callable[..., Any], tmp_path: Path
) -> None:
    public, secret = omq.curve_keypair()
    push = feed.open(omq.PUSH, bind="tcp://127.0.0.1:*", security=omq.CurveServer(secret))
    url = push.endpoints[0]
    for name, key in (("right", public), ("wrong", omq.curve_keypair()[0])):
        (tmp_path / name).write_bytes(key)
    options = {"socket": "PULL", "connect": url, "connectTimeout": 1, "triggerSeconds": 0.3}
    query = started(stream(spark, curveServerKeyFile=str(tmp_path / "wrong"), **options), Seen(1))
    with pytest.raises(Exception, match=r"no peer is connected after connectTimeout=1 s; last failure"):
        query.awaitTermination(60)
    seen = Seen(1)
    push.send(b"7")
    started(stream(spark, curveServerKeyFile=str(tmp_path / "right"), **options), seen)
    seen.wait()
    assert seen.values == [7]


def test_a_frame_that_is_used_twice_in_a_query_is_one_connection_whose_rows_come_twice(
    spark: Any, feed: Feeder, started: Callable[..., Any]
) -> None:
    url = feed.push([b"%d" % n for n in range(600)])
    frame = stream(spark, socket="PULL", connect=url, triggerSeconds=0.3, maxRowsPerTrigger=300, columns="value")
    seen = Seen(1200)
    started(frame.union(frame), seen)
    seen.wait()
    assert sorted(seen.values) == sorted([*range(600)] * 2)


# ---------------------------------------------------------------------- availableNow


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [pytest.param({}, id="usual", marks=pytest.mark.slow), pytest.param({"triggerSeconds": "1"}, id="a second")],
)
def test_available_now_ends_on_a_steady_feed(
    options: dict[str, str], spark: Any, feed: Feeder, started: Callable[..., Any]
) -> None:
    push = feed.open(omq.PUSH, bind="tcp://127.0.0.1:*")
    stop = threading.Event()

    def steady() -> None:
        number = 0
        while not stop.wait(0.001):
            push.send(b"%d" % number)
            number += 1

    feed.run(steady)
    got: dict[int, list[int]] = {}

    def sink(frame: Any, number: int) -> None:
        got[number] = numbers(frame)

    begun = time.monotonic()
    frame = stream(spark, socket="PULL", connect=push.endpoints[0], **options)
    query = started(frame, sink, availableNow=True)
    assert query.awaitTermination(60)
    took = time.monotonic() - begun
    # What comes from here on is the next run's.
    query = started(frame, sink, availableNow=True)
    assert query.awaitTermination(60)
    stop.set()
    rows = [number for one in sorted(got) for number in got[one]]
    assert len(got) == 2
    assert rows == list(range(len(rows)))
    assert took < (10 if options else 20)


@pytest.mark.slow
def test_available_now_drains_under_a_cap_in_several_microbatches(
    spark: Any, feed: Feeder, started: Callable[..., Any]
) -> None:
    count = 20_000
    push = feed.open(omq.PUSH, bind="tcp://127.0.0.1:*", send_hwm=0)
    push.send_many([b"%d" % n for n in range(count)])
    got: dict[int, list[int]] = {}

    def sink(frame: Any, number: int) -> None:
        got[number] = numbers(frame)

    frame = stream(spark, socket="PULL", connect=push.endpoints[0], maxRowsPerTrigger=10_000, quietSeconds=0.5)
    query = started(frame, sink, availableNow=True)
    assert query.awaitTermination(60)
    assert [number for one in sorted(got) for number in got[one]] == list(range(count))
    assert max(map(len, got.values())) == 10_000
    assert 2 <= len(got) <= 3
    # The connection has ended with the query, and swallows nothing.
    until(lambda: not push.peers)
    push.send_many([b"%d" % n for n in range(count, count + 2000)])
    got.clear()
    query = started(frame, sink, availableNow=True)
    assert query.awaitTermination(60)
    assert [number for one in sorted(got) for number in got[one]] == list(range(count, count + 2000))


# ---------------------------------------------------------------------- what can be seen


@pytest.fixture
def idle_progress(spark: Any) -> Iterator[None]:
    """Reports the progress of an idle query soon; Spark does that every 10 s."""
    name = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(name, "300ms")
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("idle_progress")
def test_the_progress_reports_how_the_connections_are(spark: Any, feed: Feeder, started: Callable[..., Any]) -> None:
    push = feed.open(omq.PUSH, bind="tcp://127.0.0.1:*")
    seen = Seen(100)
    query = started(stream(spark, socket="PULL", connect=push.endpoints[0], triggerSeconds=0.3), seen)
    push.send_many([b"%d" % n for n in range(100)])
    seen.wait()

    def partitions() -> list[dict[str, Any]]:
        sources = query.lastProgress and query.lastProgress["sources"]
        offset = json.loads(sources[0].get("latestOffset") or "{}") if sources else {}
        return list(offset.get("partitions", []))

    until(lambda: partitions() and partitions()[0]["taken"] == 100, partitions, 60)
    (one,) = partitions()
    assert one["endpoint"] == push.endpoints[0]
    assert (one["connected"], one["reconnects"], one["waiting"]) == (1, 0, 0)
    assert one["rows"] in (0, 100)
