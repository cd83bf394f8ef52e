"""Failures while Spark reads and writes, with real executors: nothing hangs, nothing is left."""

import collections
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import omq
from tests.system.spark.conftest import ROOT, TOP, Feeder
from tests.system.spark.test_replay import receivers

pytestmark = [pytest.mark.alone, pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(240)]

PROGRAM = """
import os, sys
from tests.system.spark.conftest import session
spark = session(sys.argv[1], **{"spark.executor.memory": "1g", "spark.task.maxFailures": "4"})
"""
BATCH = """
reader = spark.read.format("omq").option("socket", "PULL").option("connect", sys.argv[2])
frame = reader.option("maxRows", 1000).option("columns", "sequence").load()
marker = sys.argv[3]

def pass_on(batches):
    for batch in batches:
        yield batch
        if not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), 9)

print("rows", frame.mapInArrow(pass_on, "sequence bigint").count(), flush=True)
"""
STREAM = """
reader = spark.readStream.format("omq").option("socket", "PULL").option("connect", sys.argv[2])
frame = reader.option("triggerSeconds", 0.5).load()
query = frame.writeStream.format("noop").option("checkpointLocation", sys.argv[3]).start()
while not query.recentProgress:
    query.awaitTermination(0.2)
print("running", flush=True)
query.awaitTermination()
"""
SINK = """
frame = spark.range(0, 100000, 1, 1).selectExpr("concat(id, repeat(' ', 100)) AS value")
print("running", flush=True)
writer = frame.write.format("omq").mode("append").option("socket", "PUSH").option("connect", sys.argv[2])
writer.option("send_hwm", 10).option("send_buffer", 65536).save()
print("done", flush=True)
"""
LARGE = """
from tests.system.spark.test_failures import workers, peak
reader = spark.read.format("omq").option("socket", "PULL").option("connect", sys.argv[2]).option("maxRows", 4)
rows = reader.option("columns", "value").load().selectExpr("sha2(value, 256) AS digest").collect()
print("digests", *(row.digest for row in rows), flush=True)
print("peak", max(map(peak, workers(os.getpid()))), flush=True)
"""


def started(code: str, master: str, *arguments: str, program: str = PROGRAM) -> "subprocess.Popen[str]":
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(TOP)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-c", program + code, master, *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                found += [int(folder.name), *children(int(folder.name))]
        except OSError:
            continue
    return found


def workers(pid: int) -> list[int]:
    """The Python workers below a driver, and what they are forked from."""
    named = b"pyspark.daemon\0pyspark.worker"
    return [one for one in children(pid) if named in Path(f"/proc/{one}/cmdline").read_bytes()]


def peak(pid: int) -> int:
    """The most memory that a process has had, in MiB."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10


def gone(pids: list[int], within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.1)
    return False


def feeding(push: omq.PUSH) -> Any:
    def job() -> None:
        try:
            while True:
                push.send(b"x" * 100)
        except omq.ClosedError:
            pass

    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("master", ["local[2,4]", "local-cluster[2,1,1024]"])
def test_a_worker_killed_in_a_batch_is_replaced_and_reads_what_comes_next(master: str, tmp_path: Path) -> None:
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push:
        feeding(push)
        process = started(BATCH, master, push.endpoints[0], str(tmp_path / "killed"))
        out, _ = process.communicate(timeout=200)
        push.stop()
    assert process.returncode == 0
    assert "rows 1000" in out


UNUSED = """
seen = []
def sink(frame, number):
    seen.extend(int(row.value) for row in frame.collect())

frame = spark.readStream.format("omq").option("socket", "PULL").option("connect", sys.argv[2])
frame = frame.option("maxRowsPerTrigger", 3000).option("triggerSeconds", 0.3).load()
query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", sys.argv[3]).start()
while len(seen) < 20000 and query.isActive:
    query.awaitTermination(0.1)
print("in order", seen == list(range(20000)), flush=True)
query.stop()
"""


def test_workers_that_are_not_reused_lose_nothing(tmp_path: Path) -> None:
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push:
        threading.Thread(target=lambda: push.send_many([b"%d" % n for n in range(20_000)]), daemon=True).start()
        code = PROGRAM.replace("{", '{"spark.python.worker.reuse": "false", ')
        process = started(code + UNUSED, "local[2]", push.endpoints[0], str(tmp_path), program="")
        out, _ = process.communicate(timeout=200)
        push.stop()
    assert process.returncode == 0
    assert "in order True" in out


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("program", ["STREAM", "SINK"])
def test_a_driver_that_is_stopped_leaves_no_process(program: str, how: int, tmp_path: Path) -> None:
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push, omq.PULL(bind="tcp://127.0.0.1:*", recv_hwm=1) as pull:
        feeding(push)
        # The sink stands still once the PULL, which no caller reads, is full.
        code, url = (STREAM, push.endpoints[0]) if program == "STREAM" else (SINK, pull.endpoints[0])
        before = set(receivers())
        process = started(code, "local[2]", url, str(tmp_path))
        assert process.stdout is not None
        for line in process.stdout:
            if "running" in line:
                break
        if program == "SINK":
            pull.wait_connected(timeout=60)
        below = [*children(process.pid), *(set(receivers()) - before)]
        assert below
        process.send_signal(how)
        process.wait(60)
        process.stdout.close()
        assert gone(below, within=60)
        push.stop()


def test_the_rows_of_a_sink_whose_worker_is_killed_come_again() -> None:
    got = collections.Counter[int]()
    with omq.PULL(bind="tcp://127.0.0.1:*", recv_hwm=100, recv_buffer=8192, recv_timeout=100) as pull:
        process = started(SINK, "local[2,4]", pull.endpoints[0])
        got.update(int(pull.recv()) for _ in range(1000))
        at_work = workers(process.pid)
        # The youngest is a worker, and forked from the one that is to live.
        os.kill(max(at_work), signal.SIGKILL)
        while process.poll() is None or pull.poll(0.5):
            with contextlib.suppress(omq.ReceiveTimeout):
                got.update(map(int, pull.recv_many(1000, timeout=0.5)))
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "done" in out
    assert sorted(got) == list(range(100_000))
    assert max(got.values()) == 2
    assert got.total() < 200_000


def test_rows_of_256_mib_need_memory_for_four(tmp_path: Path) -> None:
    body = bytes(range(256)) * (1 << 20)
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0, send_hwm=1) as push:
        threading.Thread(target=lambda: [push.send(body) for _ in range(4)], daemon=True).start()
        process = started(
            LARGE,
            "local[1]",
            push.endpoints[0],
            program=PROGRAM.replace('executor.memory": "1g', 'driver.memory": "3g'),
        )
        out, _ = process.communicate(timeout=200)
        push.stop()
    assert process.returncode == 0
    assert out.count(hashlib.sha256(body).hexdigest()) == 4
    assert int(out.partition("peak")[2]) < 1300


def rounds(spark: Any, feed: Feeder) -> None:
    """Reads and writes that end well, and some that fail."""
    url = feed.push([b"x" * 100_000] * 20)
    reader = spark.read.format("omq").option("socket", "PULL")
    assert reader.option("connect", url).option("maxRows", 20).load().count() == 20
    with pytest.raises(Exception, match="parts"):
        reader.option("connect", feed.push([[b"a", b"b"]])).option("maxRows", 1).load().collect()
    pull = feed.open(omq.PULL, bind="tcp://127.0.0.1:*")
    frame = spark.range(0, 100, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    writer = frame.write.format("omq").mode("append").option("socket", "PUSH")
    writer.option("connect", pull.endpoints[0]).save()
    with pytest.raises(Exception, match="no peer is connected"):
        writer.option("connect", "tcp://127.0.0.1:1").option("connectTimeout", 0.1).save()
    pull.stop()


def test_reads_and_writes_leave_no_descriptor_and_no_process(spark: Any, feed: Feeder) -> None:
    driver = os.getpid()

    def held() -> tuple[int, int]:
        """Processes below the driver, and the most descriptors that a worker has."""
        return len(children(driver)), max(len(os.listdir(f"/proc/{pid}/fd")) for pid in workers(driver))

    rounds(spark, feed)
    processes, descriptors = held()
    for _ in range(8):
        rounds(spark, feed)
    after = held()
    assert after[0] <= processes + 2  # a worker for each core, at most
    assert after[1] <= descriptors + 4
