"""A Spark of our own, once a run; tests that need one are skipped, loudly, where there is no Java."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import omq
from omq.broker import Client, Server
from tests.support.fork_server import Template, executable

ROOT = Path(__file__).parents[3]
#: Where the module lies that Spark finds the data source by; an installed package has it at the top.
TOP = ROOT / "omq" / "spark" / "top"


def java() -> str:
    """Returns why Spark cannot run here; empty if it can."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "PySpark is not installed: pip install 'omq-zmtp[spark]'"
    from omq.spark.java import missing

    return missing()


MISSING = java()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if MISSING and here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"!! SPARK IS NOT TESTED: {MISSING}"))


#: What the processes of Spark and the receivers import.
MODULES = (
    "omq.spark.live.source",
    "omq.spark.source",
    "omq.spark.topics.sink",
    "omq.spark.topics.source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sets the variables by which Python workers find this package, and start in forks.

    Spark puts its `pyspark.zip`, which has no bytecode, at the front of the path, so that every Python process that it
    starts compiles PySpark first. It starts one for each streaming source, and fails the query with "Python worker
    failed to connect back" if that takes 10 s (`PythonWorkerFactory.createSimpleWorker`); no option changes this limit.
    """
    before = dict(os.environ)
    path = os.pathsep.join([str(ROOT), str(TOP), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ |= {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ.pop("SPARK_HOME", None)
    template = Template(MODULES, path=path, frozen=True)
    os.environ["PYSPARK_PYTHON"] = str(executable(tmp_path_factory.mktemp("python"), template))
    yield
    os.environ.clear()
    os.environ.update(before)


def session(master: str, **conf: str) -> Any:
    """Starts Spark."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("omq-tests")
    usual = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        # A JVM that lives a minute has no time for its best compiler; it would take a core from those who are tested.
        # Nor has it time to verify Spark's classes.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.metricsEnabled": "false",
    }
    for name, value in {**usual, **conf}.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


#: Small queries take less than half of their time. By default each one compiles Java, and each microbatch starts twenty
#: processes, of `chmod` and `readlink`, for the files of its checkpoint.
QUICK = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
}


@pytest.fixture(scope="session")
def spark(environment: None) -> Iterator[Any]:
    """The session that most tests share: `local[2]`."""
    found = session("local[2]", **QUICK)
    yield found
    _stop(found)


def _stop(found: Any) -> None:
    from pyspark import SparkContext

    found.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=30)
        SparkContext._gateway = SparkContext._jvm = None


class Feeder:
    """Threads that send while Spark reads."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._sockets: list[omq.Socket] = []
        self.errors: list[BaseException] = []

    def open(self, kind: type[omq.Socket], **options: Any) -> omq.Socket:
        """A socket that is stopped when the test ends."""
        sock = kind(**{"linger": 0, **options})
        self._sockets.append(sock)
        return sock

    def run(self, job: Callable[[], object]) -> None:
        """Runs a job in a thread."""

        def safe() -> None:
            try:
                job()
            except omq.ClosedError:
                pass
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=safe, daemon=True)
        self._threads.append(thread)
        thread.start()

    def push(self, messages: list[Any], **options: Any) -> str:
        """Binds a PUSH that sends these messages to the first peer; returns its endpoint."""
        sock = self.open(omq.PUSH, bind="tcp://127.0.0.1:*", **options)

        def job() -> None:
            for message in messages:
                sock.send_multipart(message if isinstance(message, list) else [message])

        self.run(job)
        return sock.endpoints[0]

    def join(self) -> None:
        """Waits until every job is done."""
        for thread in self._threads:
            thread.join(60)

    def stop(self) -> None:
        for sock in self._sockets:
            sock.stop()
        self.join()
        assert not self.errors, [str(error) for error in self.errors]


@pytest.fixture
def feed() -> Iterator[Feeder]:
    feeder = Feeder()
    yield feeder
    feeder.stop()


@pytest.fixture
def started() -> Iterator[list[Any]]:
    """Queries that are stopped when the test ends."""
    queries: list[Any] = []
    yield queries
    for query in queries:
        query.stop()


class Seen:
    """The rows that reached a `foreachBatch`."""

    def __init__(self, wanted: int) -> None:
        self.rows: list[Any] = []
        self.batches: list[int] = []
        self.numbers: list[int] = []
        self._wanted = wanted
        self._all = threading.Event()

    def __call__(self, frame: Any, number: int) -> None:
        rows = frame.collect()
        self.batches.append(len(rows))
        self.numbers.append(number)
        self.rows += rows
        if len(self.rows) >= self._wanted:
            self._all.set()

    def wait(self) -> None:
        assert self._all.wait(60), self.batches

    @property
    def ids(self) -> list[int]:
        return [row.id for row in self.rows]

    @property
    def values(self) -> list[int]:
        return [int(row.value) for row in self.rows]


# ---------------------------------------------------------------------- a broker


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(memory=True, bind="tcp://127.0.0.1:*") as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    return server.endpoints["zmtp"]


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, timeout=20.0) as client:
        yield client


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic with the name of the test."""
    name = request.node.name
    client.create(name, persistence="transient", max_bytes=256 << 20)
    yield name
    with contextlib.suppress(Exception):
        client.delete(name)
