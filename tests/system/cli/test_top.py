"""`omq top` with a broker, a device of pzq, and a program that exports the metrics of sockets."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import omq.broker
import omq.pzq
from tests.support.fork_server import ForkedProcess
from tests.system.broker.server_process import broker
from tests.system.cli.command_process import BOUND, failed, on_terminal, run, screen_of, start

pytestmark = pytest.mark.timeout(120)
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class SocketMetrics(Collector):
    """Metrics of a socket whose counters grow with each scrape.

    Args:
        name: The name of the socket.
    """

    def __init__(self, name: str = "feed") -> None:
        self._name = name
        self.count = 0

    def collect(self) -> Iterator[Metric]:
        self.count += 1000
        for name in ("messages_sent", "sent_bytes", "messages_dropped"):
            counter = CounterMetricFamily(f"omq_socket_{name}", name, labels=("socket", "type"))
            counter.add_metric((self._name, "PUB"), self.count)
            yield counter
        for name in ("send_queue_messages", "peers"):
            gauge = GaugeMetricFamily(f"omq_socket_{name}", name, labels=("socket", "type"))
            gauge.add_metric((self._name, "PUB"), 3)
            yield gauge


@contextmanager
def exporting(collector: Collector, port: int = 0) -> Iterator[str]:
    """Exports metrics, and yields the endpoint."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    server, thread = start_http_server(port, "127.0.0.1", registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(BOUND)


@contextmanager
def hanging() -> Iterator[str]:
    """Accepts connections without an answer, and yields the endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


#: A program that exports the metrics of its sockets.
SOCKETS = """
import sys, time
import omq, omq.metrics
from prometheus_client import start_http_server

pull = omq.PULL(bind="tcp://127.0.0.1:*")
push = omq.PUSH(connect=pull.endpoints[0])
pub = omq.PUB(bind="tcp://127.0.0.1:*", send_hwm=1, linger=0)
sub = omq.SUB(connect=pub.endpoints[0], subscribe=b"", recv_hwm=1)
pub.wait_subscribed()
omq.metrics.SocketCollector({"feed": push, "sink": pull, "ticks": pub})
server, _ = start_http_server(0, "127.0.0.1")
print(server.server_port, flush=True)
while True:
    push.send(b"x" * 100)
    pull.recv()
    pub.send(b"y" * 100_000)
    time.sleep(0.001)
"""


def rows_of(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def rows_until(process: Any, **values: Any) -> list[dict[str, Any]]:
    """Reads rows until one has these values, and returns all of them."""
    found: list[dict[str, Any]] = []
    end = time.monotonic() + BOUND
    while not found or any(found[-1][name] != value for name, value in values.items()):
        assert time.monotonic() < end, found
        found.append(json.loads(process.stdout.readline()))
    return found


def test_topics_devices_and_sockets_are_rows(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    with ExitStack() as stack:
        pzq_words = (
            "--database",
            tmp_path / "queue",
            *(f"--{one}-dsn=tcp://127.0.0.1:*" for one in ("receive", "send")),
        )
        served = stack.enter_context(broker(tmp_path, "--memory", "--bind=tcp://127.0.0.1:*", "--http=127.0.0.1:0"))
        device = stack.enter_context(
            broker(
                tmp_path / "queue", *pzq_words, "--monitor-dsn=tcp://127.0.0.1:*", "--http=127.0.0.1:0", program="pzq"
            )
        )
        topics, queue = served.serving(), device.serving()
        client = stack.enter_context(omq.broker.Client(topics["zmtp"]))
        client.create("prices", persistence="transient")
        client.create("jobs", delivery="round-robin", persistence="transient")
        subscription = stack.enter_context(client.subscribe("prices"))
        producer = stack.enter_context(omq.pzq.Producer(queue["receive"]))
        sockets = stack.enter_context(exporting(SocketMetrics()))
        process = start("top", topics["http"], queue["http"], sockets, "-i", "0.5", "--json")
        rows_until(process, type="PUB")
        client.publish_many("prices", [b"x" * 100] * 50)
        client.publish_many("jobs", [b"x"] * 7)
        producer.send(b"work")
        subscription.recv_many(50, timeout=BOUND)
        rows = rows_until(process, type="pzq", queue=1.0) + rows_until(process, type="PUB")
        rows += rows_until(process, type="PUB")
        os.kill(process.pid, signal.SIGINT)
        process.communicate(BOUND)
        assert process.wait(BOUND) == 0
    table = {row["name"] or row["type"]: row for row in rows}
    assert set(table) == {"prices", "jobs", "pzq", "feed"}
    assert {row["process"] for row in rows} == {topics["http"][7:], queue["http"][7:], sockets}
    assert table["jobs"]["queue"] == 7
    assert table["prices"]["peers"] == 1
    assert max(row["messages_in"] or 0 for row in rows if row["name"] == "prices") > 0
    assert max(row["bytes_out"] or 0 for row in rows if row["name"] == "prices") > 0
    assert table["pzq"]["peers"] == 1
    assert table["feed"]["type"] == "PUB"
    assert table["feed"]["messages_in"] is None
    assert table["feed"]["messages_out"] > 0
    assert (table["feed"]["queue"], table["feed"]["peers"]) == (3, 3)
    assert table["feed"]["drops"] >= 2000


def test_sockets_of_a_program_are_rows() -> None:
    with ForkedProcess("-c", SOCKETS, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        endpoint = program.stdout.readline().decode().strip()
        rows = {row["name"]: row for row in rows_of(run("top", endpoint, "-n", "1", "--json"))}
        program.kill()
        program.communicate(BOUND)
    feed, sink, ticks = rows["feed"], rows["sink"], rows["ticks"]
    assert (feed["type"], sink["type"], ticks["type"]) == ("PUSH", "PULL", "PUB")
    assert feed["messages_out"] > 0
    assert feed["bytes_out"] > 100 * feed["messages_out"]
    assert sink["messages_in"] > 0
    assert ticks["drops"] > 0
    assert {row["peers"] for row in rows.values()} == {1}


def test_a_process_that_is_away_comes_back_without_negative_rates(free_port: int) -> None:
    with exporting(SocketMetrics(), free_port) as endpoint:
        process = start("top", endpoint, "-i", "0.2", "--json")
        rows_until(process, name="feed")
    rows = rows_until(process, state="away: Connection refused")
    with exporting(SocketMetrics(), free_port):
        rows += rows_until(process, name="feed")
        rows += [json.loads(process.stdout.readline()) for _ in range(3)]
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(BOUND)
    assert process.wait(BOUND) == 0
    rates = [row["messages_out"] for row in rows if row["messages_out"] is not None]
    assert rates
    assert min(rates) >= 0


def test_a_process_that_hangs_has_a_row_and_does_not_delay_the_others() -> None:
    with hanging() as silent, exporting(SocketMetrics()) as endpoint:
        rows = rows_of(run("top", silent, endpoint, "-i", "0.3", "-t", "1", "-n", "8", "--json"))
    assert len(rows) == 16
    states = [row["state"] for row in rows if row["process"] == silent]
    assert states[0] == "no answer yet"
    assert states[-1] == "no answer within 1 s"
    times = [row["time"] for row in rows if row["process"] == endpoint]
    assert max(after - before for before, after in pairwise(times)) < 1
    assert all(row["messages_out"] > 0 for row in rows if row["process"] == endpoint)


def test_a_pipe_gets_lines_with_the_time() -> None:
    with exporting(SocketMetrics("a\x1b[2J")) as endpoint:
        lines = run("top", endpoint, endpoint, "-i", "0.2", "-n", "2").decode().splitlines()
    assert re.split("  +", lines[0]) == [
        "TIME", "PROCESS", "SOCKET OR TOPIC", "TYPE", "IN/S", "OUT/S", "B IN/S", "B OUT/S", "QUEUE", "PEERS",
        "DROPS",
    ]  # fmt: skip
    assert len(lines) == 4
    assert re.fullmatch(rf"\d\d:\d\d:\d\d  {endpoint}  a\\x1b\[2J +PUB +- +[\d,]+ +- +[\d.]+k +3 +3 +[\d,]+", lines[1])


def test_rows_are_sorted() -> None:
    with exporting(SocketMetrics("a")) as first, exporting(SocketMetrics("b")) as second:
        run("top", second, "-n", "1", "-i", "0.1")  # its counters are higher
        rows = rows_of(run("top", first, second, "-n", "1", "-i", "0.2", "--json", "--sort", "drops"))
    assert [row["name"] for row in rows] == ["b", "a"]


def test_a_terminal_shows_a_table_until_a_signal() -> None:
    size = {"COLUMNS": "140", "LINES": "20", "TERM": "xterm"}
    with exporting(SocketMetrics("[red]feed")) as endpoint:
        process, terminal = on_terminal("top", endpoint, "-i", "0.2", env={**os.environ, **size})
        seen = ""
        while not re.search(r" \[red\]feed +PUB +- +[\d,]+ +- +[\d.]+k +3 +3 ", seen):
            assert select.select([terminal], [], [], BOUND)[0], seen
            seen += ANSI.sub("", os.read(terminal, 65536).decode(errors="replace"))
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(BOUND) == 0
    rest = screen_of(terminal).decode(errors="replace")
    assert "omq top, every 0.2 s" in seen
    assert "Traceback" not in rest
    assert "\x1b[?25h" in rest  # the cursor is visible again


def test_without_any_answer_the_status_is_1(free_port: int) -> None:
    text = failed(start("top", str(free_port), "-n", "2", "-i", "0.1"))
    assert text == f"Error: no answer from '{free_port}'"


def test_arguments_that_are_not_valid_are_named() -> None:
    assert "'nonsense' is not valid" in failed(start("top", "nonsense"), 2)
    assert "--interval" in failed(start("top", "1", "-i", "0"), 2)


def test_a_closed_pipe_ends_it() -> None:
    with exporting(SocketMetrics()) as endpoint:
        process = start("top", endpoint, "-i", "0.1")
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        assert process.wait(BOUND) == 1
        assert process.stderr.read() == b""
