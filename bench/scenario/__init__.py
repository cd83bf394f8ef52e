"""The scenarios, by the name that the command line uses."""

from __future__ import annotations

from bench.plan import Scenario
from bench.scenario import (
    crowd,
    curve,
    datagrams,
    fair,
    fanout,
    inproc,
    latency,
    one_part,
    spark,
    sparse,
    stream,
    stuck,
    throughput,
    websocket,
)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for module in (
        throughput,
        latency,
        inproc,
        stream,
        fanout,
        sparse,
        crowd,
        stuck,
        fair,
        curve,
        websocket,
        one_part,
        datagrams,
        spark,
    )
    for scenario in module.SCENARIOS
}
