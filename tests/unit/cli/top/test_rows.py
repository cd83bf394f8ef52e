"""The rows of `omq top`."""

import pytest

import omq
from omq.cli.top.rows import METRICS, Scrape, Source, TopRow, rows_of, sorted_rows
from omq.metrics import SocketCollector

SOCKETS = """\
# HELP omq_socket_messages_sent_total Messages.
# TYPE omq_socket_messages_sent_total counter
omq_socket_messages_sent_total{socket="a",type="PUSH"} 100.0
omq_socket_sent_bytes_total{socket="a",type="PUSH"} 5e3
omq_socket_messages_received_total{socket="b \\"\\\\\\n",type="PULL"} 3
omq_socket_send_queue_messages{socket="a",type="PUSH"} 7
omq_socket_recv_queue_messages{socket="a",type="PUSH"} 2
omq_socket_peers{socket="a",type="PUSH"} NaN
omq_socket_messages_dropped_total{socket="a",type="PUSH"} 4
process_open_fds 12
# a line about omq_socket_peers
"""


def scrape(time: float = 0.0, **values: float) -> Scrape:
    return Scrape(time, {Source("a", "PUSH"): values})


def test_values_are_read_by_socket_and_type() -> None:
    found = Scrape.parse(SOCKETS, 1.5)
    assert found.time == 1.5
    assert found.values == {
        Source("a", "PUSH"): {"messages_out": 100.0, "bytes_out": 5000.0, "queue": 9.0, "drops": 4.0},
        Source('b "\\\n', "PULL"): {"messages_in": 3.0},
    }


def test_topics_devices_and_ingests_have_rows() -> None:
    text = """\
omq_broker_messages_published_total{topic="prices"} 5.0
omq_broker_messages_dropped_total{topic="prices"} 1.0
omq_broker_messages_expired_total{topic="prices"} 2.0
omq_broker_topic_lag_messages{topic="prices"} 6.0
omq_broker_topic_subscribers{topic=""} 1.0
omq_broker_store_bytes{environment="strong"} 1.0
omq_pzq_messages 3.0
omq_pzq_producers 1.0
omq_pzq_consumers 2.0
omq_ingest_peers 4.0
"""
    rows = rows_of("host:1", None, Scrape.parse(text, 0.0))
    assert rows == [
        TopRow("host:1", "", "ingest", peers=4.0),
        TopRow("host:1", "", "pzq", queue=3.0, peers=3.0),
        TopRow("host:1", "", "topic", peers=1.0),
        TopRow("host:1", "prices", "topic", queue=6.0, drops=3.0),
    ]


def test_each_metric_is_exported() -> None:
    """The names are those of the broker, pzq and ingest."""
    pytest.importorskip("aiohttp")
    from omq.broker.http.metrics import SAMPLES
    from omq.broker.ingest import Ingest
    from omq.cli.ingest.http import IngestMetrics
    from omq.pzq.device.stats import METRICS as DEVICE

    class Idle:
        stats = type("", (), dict.fromkeys(("received", "received_bytes", "published", "batches", "refused"), 0))
        in_flight = peers = 0
        waiting_s = 0.0

    idle: Ingest = Idle()  # type: ignore[assignment]
    ingest = {sample.name for family in IngestMetrics(idle).collect() for sample in family.samples}
    device = {f"omq_pzq_{one.metric}" + "_total" * (one.kind == "counter") for one in DEVICE.values()}
    names = {name for name in METRICS if not name.startswith("omq_socket_")}
    assert names <= {*SAMPLES, *ingest, *device}


def test_each_metric_of_a_socket_is_exported() -> None:
    with omq.PUSH() as push:
        collector = SocketCollector([push], registry=None)
        exported = {sample.name for family in collector.collect() for sample in family.samples}
    assert {name for name in METRICS if name.startswith("omq_socket_")} <= exported


@pytest.mark.parametrize("text", ["<html>", "omq_socket_peers{", "omq_socket_peers x", 'omq_socket_peers{socket="a} 1'])
def test_other_texts_are_not_metrics(text: str) -> None:
    try:
        assert Scrape.parse(text, 0.0).values == {}
    except ValueError:
        assert text != "<html>"


def test_counters_become_rates_and_gauges_stay() -> None:
    before, now = (
        scrape(10.0, messages_in=100.0, queue=5.0, drops=1.0),
        scrape(12.0, messages_in=150.0, queue=2.0, drops=4.0),
    )
    (row,) = rows_of("p", before, now)
    assert (row.messages_in, row.messages_out, row.queue, row.drops) == (25.0, None, 2.0, 4.0)


def test_a_counter_that_has_begun_again_is_never_negative() -> None:
    (row,) = rows_of(
        "p", scrape(0.0, messages_in=1e6, messages_out=5.0), scrape(2.0, messages_in=10.0, messages_out=5.0)
    )
    assert (row.messages_in, row.messages_out) == (5.0, 0.0)


def test_a_rate_needs_two_scrapes_of_the_socket() -> None:
    (first,) = rows_of("p", None, scrape(messages_in=5.0))
    assert first.messages_in is None
    other = Scrape(0.0, {Source("b", "PULL"): {"messages_in": 1.0}})
    (new,) = rows_of("p", other, scrape(1.0, messages_in=5.0))
    assert (new.name, new.messages_in) == ("a", None)
    (same,) = rows_of("p", scrape(1.0, messages_in=5.0), scrape(1.0, messages_in=6.0))
    assert same.messages_in is None


def test_a_process_without_sockets_has_a_row_that_states_it() -> None:
    (row,) = rows_of("p", None, Scrape.parse("python_info 1.0\n", 0.0))
    assert row.state == "no sockets, topics or devices of omq"


def test_rows_are_sorted_and_those_without_a_value_come_last() -> None:
    rows = [
        TopRow("p", "b", "PULL", messages_in=0.0),
        TopRow("q", state="away"),
        TopRow("p", "a", "SUB", messages_in=9.0),
        TopRow("p", "c", "PUSH"),
    ]
    assert [row.name for row in sorted_rows(rows, "messages_in")] == ["a", "b", "", "c"]
    assert [row.name for row in sorted_rows(rows, "name")] == ["a", "b", "c", ""]
    assert [row.type for row in sorted_rows(rows, "type")] == ["PULL", "PUSH", "SUB", ""]
    assert sorted_rows(rows, "process") == rows
