"""Topics in and out on every kind of master: tasks that fail, that run twice, and whose workers are killed."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omq.broker import Client, Server
from tests.system.spark.test_clusters import master, run_program, standalone  # noqa: F401 - fixtures
from tests.system.spark.topic_io import bodies, messages

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(420)]

COUNT = 3000

#: Reads and writes everything there is, with a disturbance between them.
CODE = """
from tests.system.spark.test_topic_clusters import DISTURBANCES
from tests.system.spark.topic_io import configured, read, sink, stream

for name, value in arguments.get("conf", {}).items():
    spark.conf.set(name, value)
url, disturb = arguments["url"], DISTURBANCES[arguments["disturbed"]]

def disturbed(batches):
    yield from disturb(batches, arguments["marker"])

options = {"topic": "in", "startingOffsets": "earliest", "minPartitions": 2, "batchBytes": "10k"}
kind = "value binary, key binary, headers map<string,binary>"
if arguments["how"] == "batch":
    frame = read(spark, url, **options).select("value", "key", "headers").mapInArrow(disturbed, kind)
    configured(frame.write, url, {"topic": "out"}).mode("append").save()
else:
    frame = stream(spark, url, maxRowsPerTrigger=1000, **options).select("value", "key", "headers")
    writer = sink(frame.mapInArrow(disturbed, kind), url, arguments["checkpoint"], topic="out")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
report(done=True)
"""


def calm(batches: Any, marker: str) -> Iterator[Any]:
    """Disturbs nothing."""
    yield from batches


def failing(batches: Any, marker: str) -> Iterator[Any]:
    """Fails in the first attempt, after rows."""
    from pyspark import TaskContext

    yield from batches
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the first attempt fails after its rows")


def killed(batches: Any, marker: str) -> Iterator[Any]:
    """Kills its worker, once, after some rows."""
    import os

    for batch in batches:
        yield batch
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(os.getpid(), 9)


def slow(batches: Any, marker: str) -> Iterator[Any]:
    """The first attempt of one task is slow after its rows, so that speculation begins another one."""
    import time

    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    if context.partitionId() == 1:
        Path(f"{marker}.{context.attemptNumber()}").touch()
        if context.attemptNumber() == 0:
            time.sleep(15)


DISTURBANCES = {"calm": calm, "failing": failing, "killed": killed, "slow": slow}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "broker", bind="tcp://127.0.0.1:*") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.endpoints["zmtp"], timeout=20.0) as client:
        client.create("in")
        client.create("out")
        client.publish_many("in", [b"%d" % n for n in range(COUNT)])
        yield client


@pytest.mark.parametrize("how", ["batch", "stream"])
@pytest.mark.parametrize("disturbed", ["calm", "failing", "killed"])
def test_every_row_is_published_once(
    how: str,
    disturbed: str,
    master: str,  # noqa: F811
    server: Server,
    client: Client,
    tmp_path: Path,
) -> None:
    found = run_program(
        CODE,
        master,
        url=server.endpoints["zmtp"],
        how=how,
        disturbed=disturbed,
        marker=str(tmp_path / "marker"),
        checkpoint=str(tmp_path / "checkpoint"),
    )
    assert found == {"done": True}
    assert sorted(map(int, bodies(client, "out"))) == list(range(COUNT))
    assert (tmp_path / "marker").exists() == (disturbed == "killed")


@pytest.mark.parametrize("how", ["batch", "stream"])
def test_attempts_that_run_at_once_publish_once(
    how: str,
    standalone: str,  # noqa: F811 - the only one with executors on two hosts, as Spark wants for a second attempt
    server: Server,
    client: Client,
    tmp_path: Path,
) -> None:
    found = run_program(
        "spark.stop()\nspark = session(sys.argv[1], **conf, **{'spark.speculation': 'true',"
        " 'spark.speculation.interval': '100ms', 'spark.speculation.multiplier': '1.1',"
        " 'spark.speculation.quantile': '0.4', 'spark.speculation.minTaskRuntime': '100ms'})\n" + CODE,
        standalone,
        url=server.endpoints["zmtp"],
        how=how,
        disturbed="slow",
        marker=str(tmp_path / "marker"),
        checkpoint=str(tmp_path / "checkpoint"),
    )
    assert found == {"done": True}
    assert (tmp_path / "marker.1").exists()  # there was another attempt
    assert len(messages(client, "out")) == COUNT
    assert sorted(map(int, bodies(client, "out"))) == list(range(COUNT))


#: What each option has a read give, or a write leave; only counts and first and last bodies are reported.
OPTIONS = """
import json
from tests.system.spark.topic_io import configured, read, sink, stream, written

url, checkpoint, middle = arguments["url"], arguments["checkpoint"], arguments["middle"]

def span(frame):
    values = sorted(int(row.value) for row in frame.select("value").collect())
    return [len(values), values[0], values[-1]] if values else [0]

def drained(name, **options):
    sizes = []
    frame = stream(spark, url, startingOffsets="earliest", **options)
    query = (frame.writeStream.foreachBatch(lambda batch, number: sizes.append(batch.count()))
             .option("checkpointLocation", checkpoint + name).trigger(availableNow=True).start())
    query.awaitTermination()
    return sizes

found = {
    "offsets": span(read(spark, url, topic="in", startingOffsets='{"in": 101}', endingOffsets='{"in": 201}')),
    "since": span(read(spark, url, topic="in", startingTimestamp=middle)),
    "until": span(read(spark, url, topic="in", endingTimestamp=middle)),
    "split": read(spark, url, topic="in", minPartitions=5, batchBytes="1k").rdd.getNumPartitions(),
    "topics": span(read(spark, url, topics="in,more")),
    "pattern": span(read(spark, url, topicPattern="in|more")),
    "loss": span(read(spark, url, topic="in", failOnDataLoss=False, columns="value,id")),
    "rows": drained("rows", topic="in", maxRowsPerTrigger=1000, minRowsPerTrigger=10, maxTriggerDelay="1s"),
    "bytes": sum(drained("bytes", topic="in", maxBytesPerTrigger="4k")),
    "subscription": sum(drained("subscription", topic="in", subscription="spark")),
}
rows = read(spark, url, topic="in").select("value", "key", "headers")
written(rows.limit(100), url, topic="out", delivery="at-least-once")
written(rows.limit(100).selectExpr("value", "'column' AS topic"), url)
again = stream(spark, url, topic="in", startingOffsets="earliest").select("value")
for _ in range(2):  # the second goes on from the checkpoint, and has nothing to do
    sink(again, url, checkpoint + "again", topic="again").trigger(availableNow=True).start().awaitTermination()
report(**found)
"""


def test_every_option_holds(master: str, server: Server, client: Client, tmp_path: Path) -> None:  # noqa: F811
    for name in ("more", "column", "again"):
        client.create(name)
    time.sleep(0.05)
    middle = int(time.time() * 1000)
    time.sleep(0.05)
    client.publish_many("in", [b"%d" % n for n in range(COUNT, COUNT + 500)])
    client.publish_many("more", [b"%d" % n for n in range(9000, 9010)])
    found = run_program(
        OPTIONS, master, url=server.endpoints["zmtp"], checkpoint=str(tmp_path / "checkpoint-"), middle=str(middle)
    )
    everything = COUNT + 500
    assert sum(found["rows"]) == everything
    assert max(found.pop("rows")) == 1000
    assert found == {
        "offsets": [100, 100, 199],
        "since": [500, COUNT, everything - 1],
        "until": [COUNT, 0, COUNT - 1],
        "split": 5,
        "topics": [everything + 10, 0, 9009],
        "pattern": [everything + 10, 0, 9009],
        "loss": [everything, 0, everything - 1],
        "bytes": everything,
        "subscription": everything,
    }
    assert len(messages(client, "out")) >= 100
    assert len(messages(client, "column")) == 100
    assert sorted(map(int, bodies(client, "again"))) == list(range(everything))
