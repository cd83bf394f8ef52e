"""Spark: reads of a socket and a topic next to the ceiling without either, and writes of sinks."""

from __future__ import annotations

from functools import partial

from bench import spark
from bench.plan import MEGABYTES, Case, Metric, Scenario, ScenarioOptions, Target, size_text

METRICS = (MEGABYTES, Metric("rate", "rows/s"), Metric("worker", "worker MiB", less_is_better=True))
TOPIC_METRICS = (*METRICS, Metric("commit", "commit ms", less_is_better=True))
#: Shares of the ceiling, by bytes of a row: of a topic, and of a live socket.
TOPIC_SHARES = {1 << 10: 0.60, 1 << 20: 0.65}
SHARES = {1 << 10: 0.55, 1 << 20: 0.65}
PYZMQ_RATIO = 1.3
#: Ratios to the reader by hand, by bytes of a row, where both are stages in `mapInArrow`.
STAGE_RATIOS = {1 << 10: 1.7, 1 << 20: 1.1}
SINK_MB_PER_S = 350.0  # at 1 KiB
TOPIC_SINK_MB_PER_S = 300.0  # at 1 KiB, exactly once
COMMIT_MS = 100.0


def _cases(options: ScenarioOptions) -> list[Case]:
    cases = []
    for size in options.sizes or tuple(SHARES):
        runs = {
            "spark-omq": partial(spark.read_omq, size),
            "spark-pyzmq": partial(spark.read_pyzmq, size),
            "spark-ceiling": partial(spark.ceiling, size),
            "spark-stage": partial(spark.read_stage, size),
            "spark-stage-ceiling": partial(spark.stage_ceiling, size),
        }
        targets = (
            Target(SHARES.get(size, 0.55), "spark-ceiling"),
            Target(PYZMQ_RATIO, "spark-pyzmq"),
            Target(STAGE_RATIOS.get(size, 1.1), "spark-pyzmq", subject="spark-stage"),
            Target(1024.0, metric=METRICS[2]),
        )
        title = f"PULL into Spark's noop, one partition, {size_text(size)} rows"
        cases.append(Case(title, "spark-omq", runs, METRICS, targets))
        sink = {"spark-omq": partial(spark.write_omq, size)}
        bound = (Target(SINK_MB_PER_S),) if size == 1 << 10 else ()
        cases.append(
            Case(f"a DataFrame into PUSH, one partition, {size_text(size)} rows", "spark-omq", sink, METRICS, bound)
        )
        cases += _topics(size)
    return cases


def _topics(size: int) -> list[Case]:
    read = {"spark-topic": partial(spark.read_topic, size), "spark-ceiling": partial(spark.ceiling, size)}
    shares = (Target(TOPIC_SHARES.get(size, 0.60), "spark-ceiling"), Target(1024.0, metric=METRICS[2]))
    whole = {
        "spark-topic-all": partial(spark.read_topic, size, "all"),
        "spark-ceiling-all": partial(spark.ceiling, size, "all"),
        "spark-ceiling": partial(spark.ceiling, size),
    }
    whole_shares = (Target(TOPIC_SHARES.get(size, 0.60), "spark-ceiling-all"),)
    sinks = {
        "spark-topic": partial(spark.write_topic, size, "exactly-once", "strong"),
        "spark-topic-weak": partial(spark.write_topic, size, "exactly-once", "weak"),
        "spark-topic-direct": partial(spark.write_topic, size, "at-least-once", "strong"),
        "spark-discard": partial(spark.discard, size),
    }
    bounds: tuple[Target, ...] = (Target(COMMIT_MS, metric=TOPIC_METRICS[3]),)
    if size == 1 << 10:
        bounds = (Target(TOPIC_SINK_MB_PER_S), *bounds)
    text = size_text(size)
    return [
        Case(f"a topic into Spark's noop, one partition, {text} rows", "spark-topic", read, METRICS, shares),
        Case(
            f"a topic with all its columns into Spark's noop, one partition, {text} rows",
            "spark-topic-all",
            whole,
            METRICS,
            whole_shares,
        ),
        Case(
            f"a DataFrame into a topic, exactly once, one partition, {text} rows",
            "spark-topic",
            sinks,
            TOPIC_METRICS,
            bounds,
        ),
    ]


SCENARIOS = (
    Scenario(
        "spark",
        "format('omq') in local[2], next to pyzmq in mapInArrow and a reader without a network",
        (
            "spark-omq",
            "spark-pyzmq",
            "spark-ceiling",
            "spark-stage",
            "spark-stage-ceiling",
            "spark-topic",
            "spark-topic-all",
            "spark-ceiling-all",
            "spark-topic-weak",
            "spark-topic-direct",
            "spark-discard",
        ),
        _cases,
    ),
)
