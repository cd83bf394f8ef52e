"""Measures a stream of Spark from a live socket into `noop`: this tree next to others, in turns.

    python -m bench.spark_streams                                  # this tree alone
    python -m bench.spark_streams --tree ../before --rounds 5      # next to a built checkout of an older commit

Spark's workers put the working directory first on their path, so each run has the tree that it measures as its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import omq

TREE = Path(__file__).resolve().parent.parent
RUN_TIMEOUT_S = 180.0  # of a run, beyond its measured seconds
WARMUP_MICROBATCHES = 2  # microbatches that do not count

FEEDER = """
import sys, omq
size = int(sys.argv[1])
messages = [b"x" * size] * max(1, (1 << 20) // size)
with omq.PUSH(bind="tcp://127.0.0.1:*", send_hwm=len(messages) * 2, linger=0) as push:
    print(push.endpoints[0], flush=True)
    while True:
        push.send_many(messages)
"""


def measure(size: int, seconds: float) -> float:
    """Returns the MB/s of a query in the tree of this process, without its first microbatches."""
    from pyspark.sql import SparkSession

    assert Path(omq.__file__).is_relative_to(Path.cwd()), f"omq is of {omq.__file__}, not of {Path.cwd()}"
    feeder = subprocess.Popen((sys.executable, "-c", FEEDER, str(size)), stdout=subprocess.PIPE, text=True)
    try:
        assert feeder.stdout is not None
        endpoint = feeder.stdout.readline().strip()
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "2g")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        from omq.spark import register

        register(spark)
        with tempfile.TemporaryDirectory() as checkpoint:
            reader = spark.readStream.format("omq").option("socket", "PULL").option("connect", endpoint)
            query = (
                reader.option("columns", "value")
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .start()
            )
            until = time.monotonic() + RUN_TIMEOUT_S
            while len(query.recentProgress) < WARMUP_MICROBATCHES and time.monotonic() < until and query.isActive:
                time.sleep(0.1)
            time.sleep(seconds)
            progress = [dict(json.loads(one.json)) for one in query.recentProgress]
            query.stop()
        spark.stop()
    finally:
        feeder.kill()
        feeder.wait()
    return rate(progress[WARMUP_MICROBATCHES:], size)


def rate(progress: list[dict[str, Any]], size: int) -> float:
    """Returns the MB/s over the durations of the microbatches."""
    rows = sum(one["numInputRows"] for one in progress)
    spent = sum(one["durationMs"]["triggerExecution"] for one in progress)
    return rows * size / spent / 1e3 if spent else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tree", action="append", type=Path, default=[], help="another built checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", action="append", type=int, default=[], help="bytes of a row (64, 1024, 1048576)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = arguments.size or [64, 1024, 1 << 20]
    if arguments.one:
        print(json.dumps(measure(sizes[0], arguments.seconds)))
        return 0
    trees = [*arguments.tree, TREE]
    for size in sizes:
        found: dict[Path, list[float]] = {tree: [] for tree in trees}
        for _ in range(arguments.rounds):
            for tree in trees:
                found[tree].append(_run(tree.resolve(), size, arguments.seconds))
        for tree in trees:
            low, high = min(found[tree]), max(found[tree])
            print(
                f"{size:>8} B  {statistics.median(found[tree]):7.0f} MB/s ({low:.0f} to {high:.0f})  {tree}", flush=True
            )
    return 0


def _run(tree: Path, size: int, seconds: float) -> float:
    command = (
        sys.executable,
        "-P",
        str(TREE / "bench/spark_streams.py"),
        "--one",
        "--size",
        str(size),
        "--seconds",
        str(seconds),
    )
    ran = subprocess.run(
        command,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=seconds + 2 * RUN_TIMEOUT_S,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(f"{tree}: {ran.stderr[-2000:]}")
    return float(ran.stdout.splitlines()[-1])


if __name__ == "__main__":
    raise SystemExit(main())
