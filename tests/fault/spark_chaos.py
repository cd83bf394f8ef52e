"""A stream from topic to topic whose JVM, workers and broker are killed at moments that are chosen."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from omq.broker import Client
from tests.support.waits import until

ROOT: Final = Path(__file__).parents[2]
TOP: Final = ROOT / "omq" / "spark" / "top"
#: Where a kill is planned, for the processes of Spark.
PLAN: Final = "OMQ_TEST_KILL"
#: When and whom; a worker kills itself.
KILLS: Final = [(when, who) for when in ("before", "inside", "after") for who in ("jvm", "broker")] + [
    ("reading", "worker"),
    ("reading", "broker"),
    ("reading", "jvm"),
]
ROWS: Final = 300  # that are published before each kill
CATCH_UP_TIMEOUT_S: Final = 120.0  # seconds until a stream has caught up on a busy machine

DRIVER: Final = """
import sys
from tests.fault.spark_chaos import Killed, pass_on
from tests.system.spark.conftest import session
from tests.system.spark.topic_io import configured, stream

url, checkpoint = sys.argv[1:]
spark = session("local[2,4]", **{"spark.ui.showConsoleProgress": "false"})
spark.dataSource.register(Killed)
options = {"startingOffsets": "earliest", "maxRowsPerTrigger": 100, "minPartitions": 2, "batchBytes": 200}
frame = stream(spark, url, topic="in", **options).select("value").mapInArrow(pass_on, "value binary")
writer = frame.writeStream.format("omqkilled").option("connect", url).option("topic", "out")
query = writer.option("checkpointLocation", checkpoint).start()
print("running", spark.sparkContext._gateway.proc.pid, flush=True)
query.awaitTermination()
"""


# ---------------------------------------------------------------------- in Spark's processes


def strike(when: str) -> None:
    """Kills the process that the plan names, if this is its moment."""
    path = Path(os.environ[PLAN])
    try:
        plan = json.loads(path.read_text(encoding="ascii"))
        if plan["when"] != when:
            return
        path.rename(f"{path}.done")  # one process wins
    except (FileNotFoundError, ValueError):
        return
    victim = plan["victim"] or os.getpid()

    def kill() -> None:
        time.sleep(plan["delay"])
        os.kill(victim, signal.SIGKILL)

    if plan["delay"]:
        threading.Thread(target=kill, daemon=True).start()
    else:
        kill()
        if plan["who"] == "jvm":
            time.sleep(60)  # nothing follows: the JVM's processes end with it


def pass_on(batches: Any) -> Iterator[Any]:
    """Passes the batches on between source and sink."""
    for batch in batches:
        yield batch
        strike("reading")


def _killed() -> Any:
    from omq.spark.source import OmqDataSource
    from omq.spark.topics.sink import TopicSink

    class KilledSink(TopicSink):
        def commit(self, messages: list[Any], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
            strike("before")
            strike("inside")
            super().commit(messages, batchId)
            strike("after")

    class KilledSource(OmqDataSource):
        @classmethod
        def name(cls) -> str:
            return "omqkilled"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            made: Any = super().streamWriter(schema, overwrite)
            made.__class__ = KilledSink
            return made

    return KilledSource


def __getattr__(name: str) -> Any:
    # PySpark is needed only where Spark runs.
    if name == "Killed":
        return _killed()
    raise AttributeError(name)


# ---------------------------------------------------------------------- the driver


class SparkChaos:
    """Runs the stream, and kills what it stands on.

    Attributes:
        kills: What was killed, and when, in order.
    """

    def __init__(self, directory: Path, seed: int, port: int) -> None:
        self._chance = random.Random(seed)
        self._pauses = random.Random(seed)  # another thread's
        self._directory = directory
        self._url = f"tcp://127.0.0.1:{port}"
        self._plan = directory / "plan"
        self._broker: subprocess.Popen[bytes]
        self._ended = threading.Event()
        self._driver: subprocess.Popen[str] | None = None
        self._jvm = 0
        self._published = 0
        self.kills: list[tuple[str, str]] = []
        self._begin_broker()
        self._watch = threading.Thread(target=self._keep_broker, daemon=True)
        self._watch.start()
        self.client = Client(self._url, timeout=CATCH_UP_TIMEOUT_S)
        self.client.create("in")
        self.client.create("out")

    # ------------------------------------------------------------------ life and death

    def _begin_broker(self) -> None:
        command = [sys.executable, "-m", "omq.cli.main", "broker", str(self._directory / "topics"), "--bind", self._url]
        self._broker = subprocess.Popen([*command, "--log-level", "error"], cwd=ROOT)

    def _keep_broker(self) -> None:
        """Starts the broker again whenever it is killed, also while this process waits for it."""
        while not self._ended.is_set():
            self._broker.wait()
            if not self._ended.wait(self._pauses.choice([0, 0.3])):
                self._begin_broker()

    def _begin_driver(self) -> None:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(TOP)]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            PLAN: str(self._plan),
        }
        env.pop("SPARK_HOME", None)
        command = [sys.executable, "-c", DRIVER, self._url, str(self._directory / "checkpoint")]
        log = (self._directory / "driver.log").open("a")
        self._driver = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        log.close()
        assert self._driver.stdout is not None
        line = self._driver.stdout.readline().split()
        assert line[:1] == ["running"], self.driver_output()
        self._jvm = int(line[1])

    def _end_driver(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            os.killpg(driver.pid, signal.SIGKILL)  # its own session: itself, its JVM and their Python processes
            driver.wait()
            assert driver.stdout is not None
            driver.stdout.close()

    def driver_output(self) -> str:
        """The end of the drivers' output."""
        return (self._directory / "driver.log").read_text()[-5000:]

    def end(self) -> None:
        """Ends everything."""
        self._end_driver()
        self.client.close()
        self._ended.set()
        self._broker.kill()
        self._watch.join()
        self._broker.kill()  # it may have begun meanwhile
        self._broker.wait()

    # ------------------------------------------------------------------ a history

    def play(self, count: int) -> None:
        """Publishes, and kills, a number of times; then waits until the stream has caught up, and checks what came."""
        self._begin_driver()
        for _ in range(count):
            self._kill(*self._chance.choice(KILLS))
        self._publish()
        self._wait(lambda: self._arrived() >= self._published, "the end")
        self.check()
        self._end_driver()
        self.check()

    def _kill(self, when: str, who: str) -> None:
        victim = {"jvm": self._jvm, "broker": self._broker.pid, "worker": 0}[who]
        # Where the commit itself is the moment, anywhere in it.
        delay = self._chance.uniform(0.0005, 0.03) if when == "inside" else 0
        made = self._directory / "plan.new"
        made.write_text(json.dumps({"when": when, "who": who, "victim": victim, "delay": delay}), encoding="ascii")
        made.rename(self._plan)
        self._publish()
        done = Path(f"{self._plan}.done")
        self._wait(done.exists, f"a kill of the {who}, {when}")
        done.unlink()
        if who == "broker":
            self._wait(lambda: self._broker.pid != victim, "the broker's end")
        elif who == "jvm":
            self._wait(lambda: not _lives(victim), "the JVM's end")
            self._end_driver()
            self._begin_driver()
        self.kills.append((when, who))

    def _publish(self) -> None:
        bodies = [b"%d" % number for number in range(self._published, self._published + ROWS)]
        self.client.publish_many("in", bodies)
        self._published += ROWS

    def _arrived(self) -> int:
        return self.client.topics("out")[0].last

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        def looked() -> bool:
            assert what == "the JVM's end" or self._driver is None or self._driver.poll() is None, self.driver_output()
            time.sleep(0.02)
            return ready()

        until(looked, lambda: f"{what}; {self.kills}; {self.driver_output()}", CATCH_UP_TIMEOUT_S)

    def check(self) -> None:
        """Every row is there, and once."""
        found = Counter(int(one.body) for one in self.client.read("out"))
        missing = sorted(set(range(self._published)) - set(found))
        doubled = sorted(number for number, times in found.items() if times > 1)
        assert not missing, (len(missing), missing[:10], self.kills)
        assert not doubled, (len(doubled), doubled[:10], self.kills)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
