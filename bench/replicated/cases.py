"""The cases: publishing, replays, and topics that are not written."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import omq.asyncio.broker
from bench.broker.client_process import TRIPS, WARMUP_TRIPS
from bench.broker.drivers import TOPIC
from bench.broker.servers import serving
from bench.measure import percentiles
from bench.plan import RATE, Metric
from bench.processes import RunError
from bench.replicated.cluster import JOURNAL, DriverProcess, MeasuredCluster, busy
from bench.replicated.report import ClusterTable
from omq.broker import Client
from omq.cli.bench.measure import calibrated

SERVERS = Metric("servers", "servers us", 2, less_is_better=True)
CLIENT = Metric("client", "client us", 2, less_is_better=True)
MEDIAN = Metric("p50", "p50 us", 0, less_is_better=True)
TAIL = Metric("p99", "p99 us", 0, less_is_better=True)
LEADER = Metric("leader", "leader, % of a core", 1, less_is_better=True)
FOLLOWERS = Metric("followers", "a follower", 1, less_is_better=True)
NATS = Metric("nats", "a NATS server", 1, less_is_better=True)
ENTRIES = Metric("entries", "entries/s", 1, less_is_better=True)
BYTES = Metric("bytes", "journal B/s", 0, less_is_better=True)

#: Bytes of a message, and messages in flight.
LOADS = ((100, 1000), (16 << 10, 256))
CLUSTER_ROW, WINDOW_ROW, GATHER_ROW = "omq, cluster", "nats-py, publish_async", "nats-py, gather"
JOURNAL_ROW = "floor: appends to the journal"
REPLAY_BYTES = 1024
REPLAY_DEPTH = 1000
CREATED_AT_ONCE = 1000  # topics
SETTLE_S = 5.0
TIMEOUT_S = 120.0
POLL_INTERVAL_S = 0.5


def publish(cluster: MeasuredCluster, rounds: int, seconds: float) -> list[ClusterTable]:
    """Measures producers with messages in flight, and such that wait for each acknowledgement."""
    tables = []
    with ExitStack() as stack:
        for size, depth in LOADS:
            title = f"publish strong, {size:,} B, {depth} in flight"
            table = ClusterTable("publish", title, (RATE, SERVERS, CLIENT), WINDOW_ROW, CLUSTER_ROW, 0.7)
            single = ClusterTable("publish", f"publish strong, {size:,} B, one at a time", (MEDIAN, TAIL), "nats-py")
            leader = cluster.brokers.leader().endpoint
            drivers = {CLUSTER_ROW: stack.enter_context(DriverProcess("omq_client", leader, size, depth, {}))}
            drivers[CLUSTER_ROW].call("create")
            server = cluster.servers[0].url.removeprefix("nats://")
            maker = stack.enter_context(DriverProcess("nats_replicated", server, size, depth, {}))
            maker.call("create")
            server = cluster.server_of(TOPIC)  # nats-py publishes at the leader of its stream
            for row, way in ((WINDOW_ROW, "window"), (GATHER_ROW, "gather")):
                drivers[row] = stack.enter_context(DriverProcess("nats_replicated", server, size, depth, {"by": way}))
            server = cluster.server_of(JOURNAL)
            drivers[JOURNAL_ROW] = stack.enter_context(DriverProcess("journal_appends", server, size, depth, {}))
            drivers[JOURNAL_ROW].call("create")
            for _ in range(rounds):
                for row, driver in drivers.items():
                    table.add(row, **_burst(cluster, driver, seconds, depth))
                for row, driver in (("omq, cluster", drivers[CLUSTER_ROW]), ("nats-py", drivers[WINDOW_ROW])):
                    driver.call("trips", WARMUP_TRIPS)
                    single.add(row, **percentiles(driver.call("trips", TRIPS)))
            tables += [table, single]
    return tables


def _burst(cluster: MeasuredCluster, driver: DriverProcess, seconds: float, depth: int) -> dict[str, float]:
    used = [0.0, 0.0]

    def burst(count: int) -> float:
        before = cluster.busy()
        report = driver.call("publish", count)
        used[:] = [cluster.busy() - before, report["busy"]]
        return float(report["ended"] - report["started"])

    count, took = calibrated(burst, seconds, 2 * depth)
    return {"rate": count / took, "servers": 1e6 * used[0] / count, "client": 1e6 * used[1] / count}


def replay(cluster: MeasuredCluster, rounds: int, messages: int, place: Path) -> list[ClusterTable]:
    """Measures replays of a topic by a broker without a cluster, by the leader and by a follower."""
    plain, follower = "a broker without a cluster", "a follower"
    title = f"replay of {messages:,} messages of {REPLAY_BYTES:,} B"
    broker_time = Metric("servers", "broker us", 2, less_is_better=True)
    table = ClusterTable("replay", title, (RATE, broker_time, CLIENT), plain, follower, 0.9)
    with serving("omq", {}, place) as server, ExitStack() as stack:
        leader = cluster.brokers.leader()
        other = cluster.brokers.followers()[0]
        pids = cluster.broker_pids()
        nodes = {plain: (server.endpoint, server.pid), follower: (other.endpoint, pids[other.name])}
        nodes["the leader"] = leader.endpoint, pids[leader.name]
        drivers = {}
        for row, (endpoint, _) in nodes.items():
            options = {"role": "any"} if row == follower else {}
            driver = DriverProcess("omq_client", endpoint, REPLAY_BYTES, REPLAY_DEPTH, options)
            drivers[row] = stack.enter_context(driver)
        for row in (plain, "the leader"):
            drivers[row].call("create")
            drivers[row].call("publish", messages)
        _wait_for(other.endpoint, lambda client: _last(client) >= messages)
        time.sleep(SETTLE_S)
        rows = list(nodes)
        for number in range(rounds):
            for row in rows[number % len(rows) :] + rows[: number % len(rows)]:
                pid = nodes[row][1]
                before = busy([pid])
                report = drivers[row].call("replay", messages)
                used = 1e6 * (busy([pid]) - before) / messages
                rate = messages / (report["ended"] - report["started"])
                table.add(row, rate=rate, servers=used, client=1e6 * report["busy"] / messages)
    return [table]


def idle(cluster: MeasuredCluster, rounds: int, seconds: float, topics: int) -> list[ClusterTable]:
    """Measures the cost of topics that are not written."""
    table = ClusterTable("idle", f"a cluster at rest, {seconds:g} s", (LEADER, FOLLOWERS, NATS, ENTRIES, BYTES))
    for row, count in (("without topics", 0), (f"with {topics:,} topics", topics)):
        if count:
            asyncio.run(_create(cluster.endpoints, count))
            for node in cluster.brokers.nodes:
                _wait_for(node.endpoint, lambda client: len(client.topics()) >= topics)
        time.sleep(SETTLE_S)
        for _ in range(rounds):
            table.add(row, **_rest(cluster, seconds))
    return [table]


def _rest(cluster: MeasuredCluster, seconds: float) -> dict[str, float]:
    pids = cluster.broker_pids()
    leader = pids.pop(cluster.brokers.leader().name)
    groups = {"leader": [leader], "followers": list(pids.values()), "nats": cluster.server_pids()}
    state = cluster.stream(JOURNAL)["state"]
    before = {key: busy(group) for key, group in groups.items()}
    begun = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - begun
    found = {key: 100 * (busy(group) - before[key]) / len(group) / took for key, group in groups.items()}
    after = cluster.stream(JOURNAL)["state"]
    return {
        **found,
        "entries": (after["last_seq"] - state["last_seq"]) / took,
        "bytes": (after["bytes"] - state["bytes"]) / took,
    }


async def _create(endpoints: list[str], topics: int) -> None:
    async with omq.asyncio.broker.Client(endpoints, timeout=TIMEOUT_S) as client:
        for first in range(0, topics, CREATED_AT_ONCE):
            numbers = range(first, min(first + CREATED_AT_ONCE, topics))
            await asyncio.gather(*(client.create(f"topic{number}", persistence="weak") for number in numbers))


def _wait_for(endpoint: str, condition: object) -> None:
    """Waits until a broker has what was written.

    Raises:
        RunError: It does not get it in time.
    """
    end = time.monotonic() + TIMEOUT_S
    with Client(endpoint, role="any", timeout=TIMEOUT_S) as client:
        while not condition(client):  # type: ignore[operator]
            if time.monotonic() > end:
                raise RunError(f"{endpoint} does not get what was written within {TIMEOUT_S:.0f} s")
            time.sleep(POLL_INTERVAL_S)


def _last(client: Client) -> int:
    return next((topic.last for topic in client.topics() if topic.name == TOPIC), 0)
