"""Topics in and out on every kind of master: tasks that fail, that run twice, and whose workers are killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omq.broker import Client, Server
from tests.system.spark.test_clusters import master, standalone, told  # noqa: F401 - fixtures
from tests.system.spark.topics import bodies, messages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

COUNT = 3000

#: Reads and writes everything there is, with what disturbs it in a stage between.
CODE = """
from tests.system.spark.test_topic_clusters import DISTURBANCES
from tests.system.spark.topics import configured, read, sink, stream

for name, value in arguments.get("conf", {}).items():
    spark.conf.set(name, value)
url, disturb = arguments["url"], DISTURBANCES[arguments["disturbed"]]

def stage(batches):
    yield from disturb(batches, arguments["marker"])

options = {"topic": "in", "startingOffsets": "earliest", "minPartitions": 2, "batchBytes": "10k"}
kind = "value binary, key binary, headers map<string,binary>"
if arguments["how"] == "batch":
    frame = read(spark, url, **options).select("value", "key", "headers").mapInArrow(stage, kind)
    configured(frame.write, url, {"topic": "out"}).mode("append").save()
else:
    frame = stream(spark, url, maxRowsPerTrigger=1000, **options).select("value", "key", "headers")
    writer = sink(frame.mapInArrow(stage, kind), url, arguments["checkpoint"], topic="out")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
tell(done=True)
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
    found = told(
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
def test_attempts_that_run_beside_each_other_publish_once(
    how: str,
    standalone: str,  # noqa: F811 - the only one with executors on two hosts, as Spark wants for a second attempt
    server: Server,
    client: Client,
    tmp_path: Path,
) -> None:
    found = told(
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
