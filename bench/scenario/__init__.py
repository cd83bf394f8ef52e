"""The scenarios, by the name that the command line uses."""

from __future__ import annotations

from bench.plan import Scenario
from bench.scenario import crowd, curve, fanout, inproc, latency, spark, sparse, stuck, throughput

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for module in (throughput, latency, inproc, fanout, sparse, crowd, stuck, curve, spark)
    for scenario in module.SCENARIOS
}
