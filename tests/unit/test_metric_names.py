"""The names of all exported metrics follow Prometheus' conventions (prometheus.io/docs/practices/naming)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from omq.metrics import SocketCollector

#: Units that are not base units, and words that Prometheus' types or labels stand for.
WRONG = re.compile(
    r"_(ms|us|ns|milliseconds|microseconds|nanoseconds|minutes|hours|kb|mb|kib|mib|kilobytes|megabytes|percent|"
    r"count|counter|gauge|per_second|rate|number)(_|$)"
)
#: Units stand at the end; that of a time of day is part of "timestamp_seconds" or "start_time_seconds".
UNITS = ("bytes", "seconds")


def broker() -> Iterable[Metric]:
    from omq.broker.http.metrics import MetricsPage
    from tests.support.broker_stats import statistics, topic

    text = MetricsPage().encode(statistics(topic("a", 1)))[0].decode()
    return [family for family in text_string_to_metric_families(text) if not family.name.startswith("process_")]


def device() -> Iterable[Metric]:
    from omq.pzq.device.http import DeviceMetrics
    from omq.pzq.device.stats import METRICS

    return DeviceMetrics(dict.fromkeys(METRICS, 0)).collect()


def ingest() -> Iterable[Metric]:
    from omq.cli.ingest.http import IngestMetrics

    stats = SimpleNamespace(received=0, received_bytes=0, published=0, batches=0, refused=0)
    idle: Any = SimpleNamespace(stats=stats, in_flight=0, peers=0, waiting_s=0.0)
    return IngestMetrics(idle).collect()


def sockets() -> Iterable[Metric]:
    return SocketCollector(registry=None).collect()


@pytest.fixture(params=[broker, device, ingest, sockets], ids=lambda system: system.__name__)
def families(request: pytest.FixtureRequest) -> list[Metric]:
    found = [*request.param()]
    assert found
    return found


def test_a_name_has_the_prefix_of_its_system_and_plain_words(families: list[Metric]) -> None:
    prefixes = {re.match(r"omq_[a-z]+_", family.name)[0] for family in families}  # type: ignore[index]
    assert len(prefixes) == 1
    for family in families:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", family.name), family.name
        assert not WRONG.search(family.name), family.name


def test_a_unit_is_a_base_unit_and_comes_last(families: list[Metric]) -> None:
    for family in families:
        words = family.name.split("_")
        assert not {*UNITS} & {*words[:-1]}, family.name


def test_counters_and_only_counters_end_in_total(families: list[Metric]) -> None:
    for family in families:
        assert family.type in ("counter", "gauge", "histogram", "info"), family.name
        assert "total" not in family.name.split("_"), family.name
        if family.type == "counter":
            assert all(sample.name == f"{family.name}_total" for sample in family.samples)


def test_a_histogram_has_a_unit(families: list[Metric]) -> None:
    for family in families:
        if family.type == "histogram":
            assert family.name.endswith(UNITS), family.name


def test_a_help_text_is_a_sentence(families: list[Metric]) -> None:
    for family in families:
        assert re.fullmatch(r"[A-Z0-9].*\.", family.documentation), (family.name, family.documentation)
