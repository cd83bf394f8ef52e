"""Spark: what a reader gets from a socket beside the ceiling without one, and what the sink sends."""

from __future__ import annotations

from functools import partial

from bench import spark
from bench.plan import MEGABYTES, Case, Metric, Scenario, Settings, Target, size_text

METRICS = (MEGABYTES, Metric("rate", "rows/s"), Metric("worker", "worker MiB", less_is_better=True))
#: Of the ceiling, by bytes of a row.
SHARES = {1 << 10: 0.55, 1 << 20: 0.65}
BY_HAND = 1.3
#: Of the reader by hand, where both are stages in `mapInArrow`.
STAGES = {1 << 10: 1.7, 1 << 20: 1.1}
SINK = 350.0  # MB/s at 1 KiB


def _cases(settings: Settings) -> list[Case]:
    cases = []
    for size in settings.sizes or tuple(SHARES):
        runs = {
            "spark-omq": partial(spark.read_omq, size),
            "spark-pyzmq": partial(spark.read_pyzmq, size),
            "spark-ceiling": partial(spark.ceiling, size),
            "spark-stage": partial(spark.read_stage, size),
            "spark-stage-ceiling": partial(spark.stage_ceiling, size),
        }
        targets = (
            Target(SHARES.get(size, 0.55), "spark-ceiling"),
            Target(BY_HAND, "spark-pyzmq"),
            Target(STAGES.get(size, 1.1), "spark-pyzmq", subject="spark-stage"),
            Target(1024.0, metric=METRICS[2]),
        )
        title = f"PULL into Spark's noop, one partition, {size_text(size)} rows"
        cases.append(Case(title, "spark-omq", runs, METRICS, targets))
        sink = {"spark-omq": partial(spark.write_omq, size)}
        bound = (Target(SINK),) if size == 1 << 10 else ()
        cases.append(
            Case(f"a DataFrame into PUSH, one partition, {size_text(size)} rows", "spark-omq", sink, METRICS, bound)
        )
    return cases


SCENARIOS = (
    Scenario(
        "spark",
        "format('omq') in local[2], beside pyzmq in mapInArrow and a reader without a network",
        ("spark-omq", "spark-pyzmq", "spark-ceiling", "spark-stage", "spark-stage-ceiling"),
        _cases,
    ),
)
