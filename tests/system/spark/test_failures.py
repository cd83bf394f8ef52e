"""What goes wrong while Spark reads and writes, with real executors: nothing hangs, nothing is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import omq
from tests.system.spark.conftest import ROOT, TOP

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PROGRAM = """
import os, sys
from tests.system.spark.conftest import session
spark = session(sys.argv[1], spark__executor__memory="1g", spark__task__maxFailures="4")
"""
BATCH = """
reader = spark.read.format("omq").option("socket", "PULL").option("connect", sys.argv[2])
frame = reader.option("maxRows", 1000).option("columns", "sequence").load()
marker = sys.argv[3]

def stage(batches):
    for batch in batches:
        yield batch
        if not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), 9)

print("rows", frame.mapInArrow(stage, "sequence bigint").count(), flush=True)
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


def started(code: str, master: str, *arguments: str) -> "subprocess.Popen[str]":
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(TOP)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-c", PROGRAM + code, master, *arguments]
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


def gone(pids: list[int], within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.1)
    return False


def feeding(push: omq.PUSH) -> Any:
    import threading

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


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_driver_that_is_stopped_leaves_no_process(how: int, tmp_path: Path) -> None:
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push:
        feeding(push)
        process = started(STREAM, "local[2]", push.endpoints[0], str(tmp_path))
        assert process.stdout is not None
        for line in process.stdout:
            if "running" in line:
                break
        below = children(process.pid)
        assert below
        process.send_signal(how)
        process.wait(60)
        process.stdout.close()
        assert gone(below, within=60)
        push.stop()
