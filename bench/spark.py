"""Measures the reads and writes of Spark: one session for all rounds, `noop` as the sink of every read."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import omq.broker
from bench.measure import Sample
from bench.processes import ROOT, RunError

BATCH_BYTES = 16 << 20  # of a record batch
PYZMQ_BATCH_BYTES = 4 << 20  # the same where pyzmq reads large rows: the best size for it
TOTAL_BYTES = 2 << 30  # of a measured run

_session: list[Any] = []

FEEDER = """
import sys, omq
size = int(sys.argv[1])
push = omq.PUSH(bind="tcp://127.0.0.1:*", linger=0)
print(push.endpoints[0], flush=True)
messages = [b"x" * size] * max(1, min(256, (1 << 22) // size))
while True:
    push.send_many(messages)
"""
CONSUMER = """
import sys, omq
size, count = int(sys.argv[1]), int(sys.argv[2])
pull = omq.PULL(bind="tcp://127.0.0.1:*")
print(pull.endpoints[0], flush=True)
while count > 0:
    count -= len(pull.recv_many(4096))
print("done", flush=True)
"""


@contextlib.contextmanager
def _child(code: str, *arguments: int) -> Iterator[tuple[str, Any]]:
    """Runs a process next to Spark; yields its first line, and its output."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.stdout
        finally:
            process.kill()


def session() -> Any:
    """Returns the Spark session, started at first use: `local[2]`, 1 GiB."""
    if _session:
        return _session[0]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "omq/spark/top")])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        from pyspark.sql import SparkSession

        found = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.host", "127.0.0.1")
            .getOrCreate()
        )
    except Exception as error:
        raise RunError(f"Spark does not start: {error}") from None
    found.sparkContext.setLogLevel("ERROR")
    atexit.register(found.stop)
    _session.append(found)
    return found


def _sample(size: int, count: int, took: float) -> Sample:
    return {"rate": count / took, "megabytes": count * size / took / 1e6, "worker": _worker_peak()}


def _timed(frame: Any, size: int, count: int) -> Sample:
    _forget_peaks()
    begun = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return _sample(size, count, time.perf_counter() - begun)


def _workers() -> Iterator[Path]:
    """Yields the folders in /proc of the Python workers of this session."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and b"pyspark.daemon" in (folder / "cmdline").read_bytes() and _is_ours(folder):
                yield folder


def _forget_peaks() -> None:
    for folder in _workers():
        with contextlib.suppress(OSError):
            (folder / "clear_refs").write_text("5")


def _worker_peak() -> float:
    """Returns the largest memory of a Python worker since `_forget_peaks`, in MiB."""
    peak = 0
    for folder in _workers():
        with contextlib.suppress(OSError, IndexError):
            peak = max(peak, int((folder / "status").read_text().partition("VmHWM:")[2].split()[0]))
    return peak / 1024


def _is_ours(folder: Path) -> bool:
    return str(ROOT / "omq/spark/top").encode() in (folder / "environ").read_bytes()


def _mapped(stage: Any) -> Any:
    """Returns the output of a stage as a frame of one partition."""
    return session().range(0, 1, 1, 1).mapInArrow(stage, "value binary")


def _count(size: int) -> int:
    return max(1, TOTAL_BYTES // size)


def read_omq(size: int) -> Sample:
    """Reads with `format("omq")`."""
    with _child(FEEDER, size) as (url, _):
        reader = session().read.format("omq").option("socket", "PULL").option("connect", url)
        frame = reader.option("columns", "value").option("maxRows", _count(size)).load()
        return _timed(frame, size, _count(size))


def read_pyzmq(size: int) -> Sample:
    """Reads with pyzmq in `mapInArrow`, in the fastest way that was found."""
    from bench.peers.spark import pulled_by_pyzmq

    with _child(FEEDER, size) as (url, _):
        batch = PYZMQ_BATCH_BYTES if size >= 65536 else BATCH_BYTES
        return _timed(_mapped(partial(pulled_by_pyzmq, url, size, _count(size), batch)), size, _count(size))


def read_stage(size: int) -> Sample:
    """Reads with `pull_batches` in `mapInArrow`."""
    from bench.peers.spark import pulled_by_omq

    with _child(FEEDER, size) as (url, _):
        return _timed(_mapped(partial(pulled_by_omq, url, _count(size))), size, _count(size))


def ceiling(size: int, columns: str = "value") -> Sample:
    """Reads batches that are built before, without a network. *columns*: `value`, or `all` of a topic's."""
    from bench.peers.spark import Prebuilt

    spark = session()
    spark.dataSource.register(Prebuilt)
    reader = (
        spark.read.format("prebuilt").option("size", size).option("count", _count(size)).option("batch", BATCH_BYTES)
    )
    return _timed(reader.option("columns", columns).load(), size, _count(size))


def stage_ceiling(size: int) -> Sample:
    """Reads the same batches in `mapInArrow`, where Spark copies a row less often than from a data source."""
    from bench.peers.spark import prebuilt

    return _timed(_mapped(partial(prebuilt, size, _count(size), BATCH_BYTES)), size, _count(size))


# ---------------------------------------------------------------------- topics


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="omq-bench-") as folder:
        yield Path(folder)


_broker: list[str] = []
_filled: set[str] = set()


def broker() -> str:
    """Returns the endpoint of a broker on the disk, a process of its own that is started at first use."""
    if not _broker:
        folder = tempfile.TemporaryDirectory(prefix="omq-bench-")
        ready = Path(folder.name) / "ready"
        command = [sys.executable, "-m", "omq.cli.main", "broker", f"{folder.name}/topics", "--ready-file", str(ready)]
        process = subprocess.Popen([*command, "--log-level", "error"], env={**os.environ, "PYTHONPATH": str(ROOT)})

        def end() -> None:
            process.terminate()
            process.wait()
            folder.cleanup()

        atexit.register(end)
        while not ready.exists():
            if process.poll() is not None:
                raise RunError("the broker does not start")
            time.sleep(0.01)
        _broker.append(json.loads(ready.read_text(encoding="utf-8"))["zmtp"])
    return _broker[0]


def _topic(size: int) -> str:
    """Returns the name of a topic with the messages of a measured run; it is filled at first use."""
    name = f"of {size} bytes"
    if name not in _filled:
        with omq.broker.Client(broker()) as client:
            client.create(name, persistence="strong")
            client.publish_many(name, (b"x" * size for _ in range(_count(size))))
        _filled.add(name)
    return name


def read_topic(size: int, columns: str = "value") -> Sample:
    """Reads a topic with `format("omq")`; *columns*: `value`, or `all`."""
    name = _topic(size)
    reader = session().read.format("omq").option("connect", broker()).option("topic", name)
    reader = reader if columns == "all" else reader.option("columns", columns)
    return _timed(reader.load(), size, _count(size))


def write_topic(size: int, delivery: str, persistence: str) -> Sample:
    """Writes a DataFrame into an empty topic; the sample has the time of the commit, too."""
    from bench.peers.spark import TimedCommit

    count = _count(size) // 4
    spark = session()
    spark.dataSource.register(TimedCommit)
    frame = spark.range(0, count, 1, 1).selectExpr(f"CAST(repeat('x', {size}) AS BINARY) AS value")
    with omq.broker.Client(broker()) as client, _temporary_folder() as folder:
        client.create("sink", persistence=persistence)
        try:
            _forget_peaks()
            begun = time.perf_counter()
            writer = frame.write.format("omqtimed").mode("append").option("connect", broker())
            writer.option("topic", "sink").option("delivery", delivery).option("timing", str(folder / "took")).save()
            took = time.perf_counter() - begun
            (info,) = client.topics("sink")
        finally:
            client.delete("sink")
        if info.last != count:
            raise RunError(f"{info.last} of {count} rows arrived")
        commit = float((folder / "took").read_text(encoding="ascii"))
    return {**_sample(size, count, took), "commit": 1000 * commit}


def discard(size: int) -> Sample:
    """Writes the same DataFrame to an Arrow writer that throws it away: the time of Spark itself."""
    from bench.peers.spark import Discard

    count = _count(size) // 4
    spark = session()
    spark.dataSource.register(Discard)
    frame = spark.range(0, count, 1, 1).selectExpr(f"CAST(repeat('x', {size}) AS BINARY) AS value")
    _forget_peaks()
    begun = time.perf_counter()
    frame.write.format("discard").mode("append").save()
    return {**_sample(size, count, time.perf_counter() - begun), "commit": 0.0}


# ---------------------------------------------------------------------- live sockets


def write_omq(size: int) -> Sample:
    """Writes with `write.format("omq")`, up to the arrival of the last message."""
    count = _count(size) // 4
    with _child(CONSUMER, size, count) as (url, output):
        frame = session().range(0, count, 1, 1).selectExpr(f"CAST(repeat('x', {size}) AS BINARY) AS value")
        _forget_peaks()
        begun = time.perf_counter()
        writer = frame.write.format("omq").mode("append").option("socket", "PUSH")
        writer.option("connect", url).option("send_hwm", 10_000).save()
        output.readline()
        took = time.perf_counter() - begun
    return _sample(size, count, took)
