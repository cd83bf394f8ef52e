"""Metrics and log of a real broker."""

from __future__ import annotations

import json
import re
import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import omq
from omq.broker import BrokerError, Client
from omq.errors import OmqError
from tests.support.broker_cluster import broker_cluster
from tests.support.nats_servers import nats_servers
from tests.support.waits import until
from tests.system.broker.server_process import broker, get

pytestmark = pytest.mark.timeout(120)

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "monitoring"
EVERYWHERE = ("--bind", "tcp://127.0.0.1:*", "--sexp", "tcp://127.0.0.1:*", "--http", "127.0.0.1:0")


def scrape(endpoints: dict[str, str]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Returns the samples of `/metrics` by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(get(f"{endpoints['http']}/metrics").decode())
        for sample in family.samples
    }


def value(endpoints: dict[str, str], name: str, **labels: str) -> float | None:
    return scrape(endpoints).get((f"omq_broker_{name}", frozenset(labels.items())))


def entries(log: str) -> list[dict[str, Any]]:
    """Parses a log in JSON: each line is one object."""
    return [json.loads(line) for line in log.splitlines()]


@pytest.mark.xdist_group("nats")
def test_rules_and_dashboard_use_metrics_of_a_real_broker(tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    with (
        nats_servers(tmp_path / "nats", 1, sync_always=True) as servers,
        broker_cluster(tmp_path, servers, *EVERYWHERE, "--servers-sync", count=1, replicas=1) as cluster,
    ):
        endpoints = cluster.leader().endpoints
        with Client(endpoints["zmtp"]) as client:
            client.create("t", persistence="strong")
            client.subscribe("t", name="n").close()
            client.consume("t", group="g").close()
            with pytest.raises(BrokerError):
                client.publish("nowhere", b"x")
        names = {name for name, _ in scrape(endpoints)}
        for file in ("omq-broker.rules.yml", "omq-broker.dashboard.json"):
            used = set(re.findall(r"\b(?:omq_broker|process)_\w+", (EXAMPLES / file).read_text()))
            assert len(used) > 15
            assert used <= names


def test_a_kill_is_not_damage(tmp_path: Path) -> None:
    """The alert `OmqBrokerStoreDamaged` would last from each crash to the next restart."""
    arguments = (tmp_path / "data", *EVERYWHERE, "--topic", "t:broadcast:strong", "--log-format", "json")
    with broker(tmp_path, *arguments) as command:
        command.serving()
        command.process.kill()
        command.ended()
    with broker(tmp_path, *arguments) as command:
        assert value(command.serving(), "store_findings") == 0
        command.end()
        (found,) = [entry["finding"] for entry in entries(command.log) if entry["event"] == "store_finding"]
        assert found == "the store was not shut down cleanly"


def test_the_lag_of_each_durable_subscription(tmp_path: Path) -> None:
    with broker(tmp_path, tmp_path / "data", *EVERYWHERE, "--topic", "orders:broadcast:strong") as command:
        endpoints = command.serving()
        began = time.time()
        with Client(endpoints["zmtp"]) as client:
            client.subscribe("orders", name="abandoned").close()
            with client.subscribe("orders", name="billing") as subscription:
                client.publish_many("orders", [b"x"] * 10)
                for _ in range(3):
                    subscription.ack(subscription.recv(timeout=10))
                client.flush(timeout=10)
                labels = {"topic": "orders", "subscription": "billing"}
                until(lambda: value(endpoints, "subscription_lag_messages", **labels) == 7)
                until(lambda: value(endpoints, "subscription_open", **labels) == 1)
            abandoned = {"topic": "orders", "subscription": "abandoned"}
            until(lambda: value(endpoints, "subscription_lag_messages", **abandoned) == 10)
            until(lambda: value(endpoints, "subscription_open", **abandoned) == 0)
            active = value(endpoints, "subscription_last_activity_timestamp_seconds", **abandoned)
            assert active is not None
            assert began - 1 <= active <= time.time() + 1
            until(lambda: value(endpoints, "topic_durable_subscriptions", topic="orders") == 2)
            client.delete_durable("orders", "abandoned")
            until(lambda: value(endpoints, "subscription_lag_messages", **abandoned) is None)
            until(lambda: value(endpoints, "publish_seconds_count", persistence="strong"))
        command.end()


def test_a_deleted_topic_leaves_unused_bytes_in_the_file(tmp_path: Path) -> None:
    with broker(tmp_path, tmp_path / "data", *EVERYWHERE, "--topic", "t:broadcast:strong") as command:
        endpoints = command.serving()
        with Client(endpoints["zmtp"], timeout=30) as client:
            client.publish_many("t", [bytes(100_000)] * 100)
            until(lambda: (value(endpoints, "store_used_bytes", environment="strong") or 0) > 10_000_000)
            size, used = (value(endpoints, f"store_{one}", environment="strong") for one in ("bytes", "used_bytes"))
            assert size is not None
            assert used is not None
            assert used <= size
            client.delete("t")
            until(lambda: (value(endpoints, "store_used_bytes", environment="strong") or size) < used / 4)
            assert (value(endpoints, "store_bytes", environment="strong") or 0) >= size
        command.end()


def test_handshakes_that_fail_are_counted_by_reason(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("alice:secret\n")
    arguments = (*EVERYWHERE, "--users-file", tmp_path / "users", "--log-format", "json")
    with broker(tmp_path, "--memory", *arguments) as command:
        endpoints = command.serving()
        for _ in range(2):
            with (
                Client(endpoints["zmtp"], timeout=1.0, security=omq.PlainClient("alice", "wrong")) as client,
                pytest.raises(OmqError),
            ):
                client.topics()
        found = value(endpoints, "handshake_failures_total", reason="authentication")
        assert found is not None
        assert found >= 2
        assert value(endpoints, "handshake_failures_total", reason="timeout") == 0
        command.end()
        failures = [entry for entry in entries(command.log) if entry.get("event") == "handshake_failed"]
        assert len(failures) == 1  # of one kind within ten seconds
        assert failures[0]["kind"] == "authentication"
        assert failures[0]["peer"].startswith("tcp://127.0.0.1:")
        assert "secret" not in command.log


def test_the_log_as_json(tmp_path: Path) -> None:
    data = tmp_path / "data"
    arguments = (*EVERYWHERE, "--topic", "jobs:round-robin:weak", "--log-format", "json")
    with broker(tmp_path, data, *arguments) as command:
        endpoints = command.serving()
        with Client(endpoints["zmtp"]) as client:
            client.create("a\u2028b", persistence="weak", max_age=5)
            client.delete("a\u2028b")
            client.publish("jobs", b"work")
            peer = omq.DEALER(connect=endpoints["zmtp"], linger=0)
            peer.send_multipart([b"HELLO", b"h", b'{"version": 1, "client": "%b"}' % (b"0" * 32)])
            peer.send_multipart([b"CONSUME", b"c", b"jobs", b"{}"])
            while peer.recv_multipart(timeout=10)[0] != b"JOBS":
                pass
            peer.stop()
            until(lambda: "connection_lost" in command.log)
        command.end()
    found = {entry["event"]: entry for entry in entries(command.log) if "event" in entry}
    assert all({"time", "level", "logger", "message"} <= entry.keys() for entry in entries(command.log))
    started = found["started"]
    assert (started["version"], started["topics"], started["findings"]) == (omq.__version__, 1, 0)
    assert started["directory"] == str(data)
    assert re.fullmatch(r"[0-9a-f]{32}", started["store"])
    assert set(found["limits"]["max_connections"]) == {"zmtp", "sexp"}
    assert found["topic_created"]["topic"] == found["topic_deleted"]["topic"] == "a\u2028b"
    assert found["topic_created"]["settings"] == {"max_age": 5.0}
    assert found["topic_created"]["user"] is None
    assert found["topic_created"]["peer"].startswith("tcp://127.0.0.1:")
    lost = found["connection_lost"]
    assert (lost["in_flight"], lost["consumed"], lost["durables"]) == (1, ["jobs"], [])
    listeners = {entry["listener"] for entry in entries(command.log) if entry.get("event") == "listening"}
    assert listeners == {"zmtp", "sexp", "http"}
    assert found["stopping"]["signal"] == "SIGTERM"
    assert entries(command.log)[-1]["event"] == "stopped"


def test_silent_connections_do_not_keep_the_status_page_out(tmp_path: Path) -> None:
    """Connections without a handshake, more than the process has descriptors, at two endpoints."""
    arguments = ("--bind", "tcp://127.0.0.1:*", "--bind", "tcp://127.0.0.1:*", "--http", "127.0.0.1:0")
    with broker(tmp_path, "--memory", *arguments, descriptors=(200, 200)) as command, ExitStack() as stack:
        endpoints = command.serving()
        listeners = json.loads(get(f"{endpoints['http']}/topics.json"))["endpoints"]["zmtp"]
        assert len(listeners) == 2
        for endpoint in listeners:
            host, port = endpoint.removeprefix("tcp://").split(":")
            for _ in range(110):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        assert get(f"{endpoints['http']}/healthz") == b"ok\n"
        assert value(endpoints, "max_connections", listener="zmtp") == 136
        assert value(endpoints, "accepts_failed_total", listener="zmtp", reason="descriptors") == 0
        command.end()


def test_a_lack_of_descriptors_is_counted_and_logged(tmp_path: Path) -> None:
    """The limit of the process is lowered while it runs, as if something else used its descriptors."""
    with broker(tmp_path, "--memory", *EVERYWHERE, "--log-format", "json") as command, ExitStack() as stack:
        endpoints = command.serving()
        get(f"{endpoints['http']}/healthz")
        open_now = len([*Path(f"/proc/{command.process.pid}/fd").iterdir()])
        resource_limit(command.process.pid, open_now + 2)
        host, port = endpoints["zmtp"].removeprefix("tcp://").split(":")
        for _ in range(10):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        until(lambda: '"kind": "descriptors"' in command.log, lambda: command.log)
        resource_limit(command.process.pid, 1000)
        found = value(endpoints, "accepts_failed_total", listener="zmtp", reason="descriptors")
        assert found is not None
        assert found >= 1
        assert command.log.count('"accept_failed"') == 1  # one line a minute
        with Client(endpoints["zmtp"]) as client:
            client.create("t", persistence="weak")
            assert client.publish("t", b"x") == 1
        command.end()


def resource_limit(pid: int, descriptors: int) -> None:
    """Sets the soft limit of descriptors of a process."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors, hard))


@pytest.mark.parametrize("value", ["xml", "JSON", ""])
def test_an_invalid_log_format_is_named(value: str, tmp_path: Path) -> None:
    with broker(tmp_path, "--memory", "--log-format", value) as command:
        assert command.ended() == 2
        assert "--log-format" in command.log
        assert repr(value) in command.log
