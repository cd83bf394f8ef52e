"""Measures the pauses of publishers when a leader is killed: of the brokers, of the journal's stream, or both."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import nats
import nats.errors
import nats.js.errors

from bench.plan import Metric
from bench.processes import RunError
from bench.replicated.cluster import JOURNAL, MeasuredCluster, ignored
from bench.replicated.report import ClusterTable
from omq.broker import Client

PAUSE = Metric("pause", "omq, s", 2, less_is_better=True)
PLAIN_PAUSE = Metric("plain", "nats-py, s", 2, less_is_better=True)
ELECTION = Metric("election", "election of the journal's leader, s", 2, less_is_better=True)
BEYOND = Metric("beyond", "omq beyond it, s", 2, less_is_better=True)
KILLED = {
    "the broker that leads": (True, False),
    "the server that leads the stream": (False, True),
    "both": (True, True),
}
ELECTED = f"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.{JOURNAL}"
PLAIN = "plain"  # a stream of nats-py next to the journal
STEADY_S = 2.0  # before a kill
TIMEOUT_S = 90.0  # of a publication
ATTEMPT_TIMEOUT_S = 0.3  # of nats-py, which tries again
PUBLISH_INTERVAL_S = 0.002


class GapClock:
    """The longest time between two successes of a thread that publishes.

    Args:
        publish: Publishes until it is stopped, and calls `succeeded` after each success.

    Attributes:
        elected: The time of the last election of the journal's leader, if `publish` sets it.
    """

    def __init__(self, publish: Callable[[GapClock], None]) -> None:
        self.stopped = threading.Event()
        self.longest = 0.0
        self.last = 0.0
        self.elected = 0.0
        self._thread = threading.Thread(target=publish, args=(self,), daemon=True)
        self._thread.start()

    def succeeded(self) -> None:
        """Counts a success."""
        now = time.monotonic()
        if self.last:
            self.longest = max(self.longest, now - self.last)
        self.last = now

    def wait(self, after: float) -> None:
        """Waits for a success after a time.

        Raises:
            RunError: There is none in time.
        """
        end = time.monotonic() + TIMEOUT_S
        while self.last <= after:
            if time.monotonic() > end or not self._thread.is_alive():
                raise RunError("a publisher does not go on")
            time.sleep(0.01)

    def stop(self) -> None:
        """Ends the thread."""
        self.stopped.set()
        self._thread.join(TIMEOUT_S)


def pauses(cluster: MeasuredCluster, rounds: int) -> list[ClusterTable]:
    """Measures the longest pauses between acknowledgements when a leader is killed with SIGKILL."""
    table = ClusterTable("pause", "longest pause at a SIGKILL", (PAUSE, PLAIN_PAUSE, ELECTION, BEYOND))
    with Client(cluster.endpoints, timeout=TIMEOUT_S) as client:
        client.create("pause", persistence="strong")
    asyncio.run(_create_stream(cluster.servers.urls))
    for _ in range(rounds):
        for row, (broker, server) in KILLED.items():
            table.add(row, **_pause(cluster, broker, server))
    return [table]


def _pause(cluster: MeasuredCluster, broker: bool, server: bool) -> dict[str, float]:
    leader = cluster.brokers.leader()
    index = cluster.brokers.nodes.index(leader)
    leading = cluster.servers[index]
    cluster.move((JOURNAL, PLAIN), leading.name)
    others = [one.url for one in cluster.servers.all if one is not leading]
    clocks = [
        GapClock(lambda clock: _publish(cluster.endpoints, clock)),
        GapClock(lambda clock: asyncio.run(_publish_plain(others, clock))),
    ]
    try:
        for clock in clocks:
            clock.wait(0.0)
        time.sleep(STEADY_S)
        for clock in clocks:
            clock.longest = 0.0
        killed = time.monotonic()
        if server:
            leading.kill()
        if broker:
            leader.kill()
        for clock in clocks:
            clock.wait(killed + 0.1)  # an answer may be on its way
        time.sleep(STEADY_S)
        for clock in clocks:
            clock.wait(time.monotonic())
        pause, plain = (clock.longest for clock in clocks)
        election = max(0.0, clocks[1].elected - killed)
        return {"pause": pause, "plain": plain, "election": election, "beyond": pause - election}
    finally:
        for clock in clocks:
            clock.stop()
        if server:
            leading.start()
        if broker:
            leader.start()
            leader.serving()


def _publish(endpoints: list[str], clock: GapClock) -> None:
    with Client(endpoints, timeout=TIMEOUT_S) as client:
        while not clock.stopped.wait(PUBLISH_INTERVAL_S):
            client.publish("pause", b"x" * 100)
            clock.succeeded()


async def _create_stream(urls: list[str]) -> None:
    connection = await nats.connect(urls, error_cb=ignored)
    await connection.jetstream(timeout=TIMEOUT_S).add_stream(name=PLAIN, subjects=[PLAIN], num_replicas=3)
    await connection.close()


async def _publish_plain(urls: list[str], clock: GapClock) -> None:
    connection = await nats.connect(urls, error_cb=ignored)
    stream = connection.jetstream()

    async def elected(message: object) -> None:
        clock.elected = time.monotonic()

    await connection.subscribe(ELECTED, cb=elected)
    while not clock.stopped.is_set():
        await asyncio.sleep(PUBLISH_INTERVAL_S)
        try:
            await stream.publish(PLAIN, b"x" * 100, timeout=ATTEMPT_TIMEOUT_S)
        except (nats.errors.Error, nats.js.errors.Error):
            continue
        clock.succeeded()
    await connection.close()
