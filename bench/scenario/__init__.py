"""The scenarios, by the name that the command line uses."""

from __future__ import annotations

from bench.plan import Scenario
from bench.scenario import (
    connections,
    curve,
    datagrams,
    face,
    fairness,
    fanout,
    inproc,
    latency,
    one_part,
    spark,
    sparse_traffic,
    stream,
    stuck_consumer,
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
        sparse_traffic,
        connections,
        stuck_consumer,
        fairness,
        curve,
        websocket,
        one_part,
        datagrams,
        face,
        spark,
    )
    for scenario in module.SCENARIOS
}
