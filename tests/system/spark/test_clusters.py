"""The same program on every kind of master: retries in one process, executors as processes, a cluster of its own."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import omq
from tests.system.spark.conftest import ROOT, TOP

pytestmark = [pytest.mark.alone, pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(420)]

PROGRAM_TIMEOUT_S = 240  # seconds that a program may take on a busy machine

#: What every program begins with: a session on the master that the first argument names.
SESSION = """
import json, os, sys
from tests.system.spark.conftest import session

conf = {"spark.executor.memory": "1g", "spark.executor.cores": "1", "spark.cores.max": "2"}
# Nothing begins before both executors are there.
conf["spark.scheduler.minRegisteredResourcesRatio"] = "1.0"
spark = session(sys.argv[1], **conf)
arguments = json.loads(sys.argv[2])

def report(**found):
    print("reported", json.dumps(found), flush=True)
"""
ROUND_TRIP = """
from tests.system.spark.test_clusters import owner

reader = spark.read.format("omq").option("socket", "PULL").option("connect", ",".join(arguments["urls"]))
frame = reader.option("columns", "value,parts,endpoint,timestamp,sequence").option("maxRows", 100).load()
rows = frame.selectExpr("CAST(value AS STRING) AS value", "size(parts) AS parts", "endpoint", "sequence").collect()
owners = spark.range(0, 2, 1, 2).mapInArrow(owner, "pid bigint").collect()
out = spark.range(0, 1000, 1, 4).selectExpr("CAST(id AS STRING) AS value").write.format("omq").mode("append")
out.option("socket", "PUSH").option("connect", arguments["out"]).save()
report(
    types=frame.dtypes,
    rows=sorted([row.endpoint, row.sequence, row.value, row.parts] for row in rows),
    executors=len({row.pid for row in owners}),
)
"""
AVAILABLE = """
reader = spark.readStream.format("omq").option("socket", "PULL").option("connect", arguments["url"])
frame = reader.option("columns", "value").option("quietSeconds", 2).load()
out = frame.writeStream.format("omq").option("socket", "PUSH").option("connect", arguments["out"])
query = out.option("checkpointLocation", arguments["checkpoint"]).trigger(availableNow=True).start()
query.awaitTermination()
report(batches=[one.batchId for one in query.recentProgress if one.numInputRows])
"""
RETRIED = """
import time
from pyspark import TaskContext

def once(batches):
    for batch in batches:
        yield batch
    if TaskContext.get().attemptNumber() == 0:
        time.sleep(2)
        raise RuntimeError("the first attempt fails after its rows")

# Rows that are large and batches that are small leave for the sink before the task fails.
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
frame = spark.range(0, 100, 1, 2).selectExpr("concat(id, repeat(' ', 100000)) AS value")
frame = frame.mapInArrow(once, "value string")
frame.write.format("omq").mode("append").option("socket", "PUSH").option("connect", arguments["out"]).save()
report(done=True)
"""


def owner(batches: Any) -> Iterator[Any]:
    """The process that the Python workers of this executor are forked from."""
    import pyarrow as pa

    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"pid": [os.getppid()]})


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(TOP)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }


def run_program(code: str, master: str, **arguments: Any) -> dict[str, Any]:
    """Runs a program to its end; returns what it reported."""
    command = [sys.executable, "-c", SESSION + code, master, json.dumps(arguments)]
    ran = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False
    )
    found = re.findall(r"^reported (.*)$", ran.stdout, re.MULTILINE)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(found) == 1, ran.stdout
    result: dict[str, Any] = json.loads(found[0])
    return result


class Daemon:
    """A Master or a Worker of a standalone cluster."""

    def __init__(self, role: str, pattern: str, host: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        name = f"org.apache.spark.deploy.{role.lower()}.{role}"
        command = [str(home / "bin" / "spark-class"), name, "--host", host, "--webui-port", "0", *arguments]
        self._process = subprocess.Popen(
            command, env=environment(SPARK_HOME=str(home), SPARK_LOCAL_IP=host), stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        self.found_line = ""
        for line in self._process.stderr:
            if found := re.search(pattern, line):
                self.found_line = found[0]
                break
        # Its output from here on is not used, and must not fill the pipe.
        self._reader = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        assert self._process.stderr is not None
        self._process.terminate()
        self._process.wait(60)
        self._reader.join(60)
        self._process.stderr.close()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and two workers, each on an address of its own."""
    running = [Daemon("Master", r"spark://127\.0\.0\.1:\d+", "127.0.0.1", "--port", "0")]
    master = running[0].found_line
    try:
        for host in ("127.0.0.2", "127.0.0.3"):
            work = str(tmp_path_factory.mktemp("work"))
            arguments = ("--cores", "1", "--memory", "1g", "--work-dir", work, master)
            running.append(Daemon("Worker", "Successfully registered", host, *arguments))
        assert all(one.found_line for one in running)
        yield master
    finally:
        with contextlib.ExitStack() as stack:
            for one in running:
                stack.callback(one.stop)


@pytest.fixture(params=["local[2,4]", "local-cluster[2,1,1024]", "standalone"])
def master(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("standalone") if request.param == "standalone" else request.param)


class Gathered:
    """The messages that a PULL receives in a thread."""

    def __init__(self) -> None:
        self.pull = omq.PULL(bind="tcp://127.0.0.1:*")
        self.url = self.pull.endpoints[0]
        self.values: list[int] = []
        self._thread = threading.Thread(target=self._gather)
        self._thread.start()

    def _gather(self) -> None:
        try:
            for value in self.pull:
                self.values.append(int(value))
        except omq.ClosedError:
            pass

    def stop(self) -> list[int]:
        """Everything that has come; the socket is closed."""
        while self.pull.poll(0.5):
            pass
        self.pull.stop()
        self._thread.join(10)
        return sorted(self.values)


@pytest.fixture
def gathered() -> Iterator[Gathered]:
    found = Gathered()
    yield found
    found.pull.stop()


@pytest.fixture
def pushing() -> Iterator[Callable[[list[bytes]], str]]:
    """Makes a PUSH that sends messages; gives its endpoint."""
    sockets = []

    def push(messages: list[bytes]) -> str:
        sock = omq.PUSH(bind="tcp://127.0.0.1:*", linger=0)
        sockets.append(sock)
        sock.send_many(messages)
        return sock.endpoints[0]

    yield push
    for sock in sockets:
        sock.stop()


def test_several_endpoints_are_read_and_rows_written(
    master: str, gathered: Gathered, pushing: Callable[[list[bytes]], str]
) -> None:
    urls = [pushing([b"%d" % (1000 * n + k) for k in range(100)]) for n in range(2)]
    found = run_program(ROUND_TRIP, master, urls=urls, out=gathered.url)
    assert found["types"] == [
        ["value", "binary"],
        ["parts", "array<binary>"],
        ["endpoint", "string"],
        ["timestamp", "timestamp"],
        ["sequence", "bigint"],
    ]
    assert found["rows"] == sorted([url, k, str(1000 * n + k), 1] for n, url in enumerate(urls) for k in range(100))
    assert found["executors"] == (1 if master.startswith("local[") else 2)
    assert gathered.stop() == list(range(1000))


def test_available_now_drains_and_a_restart_goes_on(
    master: str, gathered: Gathered, pushing: Callable[[list[bytes]], str], tmp_path: Path
) -> None:
    numbers: list[int] = []
    for round_ in range(2):
        url = pushing([b"%d" % (100 * round_ + k) for k in range(100)])
        found = run_program(AVAILABLE, master, url=url, out=gathered.url, checkpoint=str(tmp_path / "checkpoint"))
        numbers += found["batches"]
    assert numbers == [0, 1]
    assert gathered.stop() == list(range(200))


def test_a_retried_task_sends_its_rows_again_and_none_is_missing(master: str, gathered: Gathered) -> None:
    assert run_program(RETRIED, master, out=gathered.url) == {"done": True}
    sent = gathered.stop()
    assert set(sent) == set(range(100))
    assert 100 < len(sent) <= 200
