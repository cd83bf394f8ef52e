"""One stream that executors on several hosts read in turn: every message once, in order, whichever host dies."""

from __future__ import annotations

import collections
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.network_namespaces import BRIEF, NAMESPACES, Cluster, Hosts, Process, Unavailable, running, sweep

pytestmark = [pytest.mark.alone, pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(700)]

COUNT = 40_000
SIZE = 1024  # so that the kernel's buffers do not hold them all, and the feed goes on while executors change
ROWS = 2000  # of a microbatch
HOP = 6  # the microbatch in which an executor is killed, or the one after it
MAX_EMPTY_BATCHES = 4  # microbatches without a message after which no more are awaited
BATCH_TIMEOUT_S = 120.0  # seconds that one microbatch may take, and the session before the first
LASTING = 400.0  # seconds that all microbatches may take together

PROGRAM = (sys.executable, "-m", "tests.support.spark_host_programs")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A host for the driver and the peer that sends, and two for executors."""
    try:
        made = Hosts(tmp_path_factory.mktemp("hosts"), "driver", "first", "second")
    except Unavailable as error:
        pytest.skip(f"!! SPARK ON SEVERAL HOSTS IS NOT TESTED: {error}")
    with made:
        yield made


@pytest.fixture(scope="module")
def cluster(hosts: Hosts) -> Iterator[Cluster]:
    with Cluster(hosts) as made:
        yield made


class Seen:
    """The content of microbatches, and the errors in it."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self._distinct: set[int] = set()
        self._empty = 0
        #: Why no more are looked at.
        self.end = ""

    def add(self, batch: dict[str, Any]) -> None:
        self.batches.append(batch)
        self._distinct.update(batch["numbers"])
        self._empty = 0 if batch["numbers"] else self._empty + 1

    @property
    def is_whole(self) -> bool:
        """Returns whether all messages have been seen, with nothing after them, on either host."""
        return len(self._distinct) == COUNT and self._empty >= 2

    @property
    def is_quiet(self) -> bool:
        return self._empty >= MAX_EMPTY_BATCHES

    @property
    def numbers(self) -> list[int]:
        return [number for batch in self.batches for number in batch["numbers"]]

    def hosts(self, *, before_kill: bool = False) -> set[str]:
        """Returns the hosts where messages were read."""
        batches = [batch for batch in self.batches if batch["numbers"] and not (before_kill and batch["killed"])]
        return {batch["host"] for batch in batches}

    def wrong(self) -> list[str]:
        """Returns the errors in what was seen: every message has to come once and in order."""
        found = []
        times = collections.Counter(self.numbers)
        missing = [number for number in range(COUNT) if number not in times]
        doubled = [number for number, count in times.items() if count > 1]
        if missing:
            found.append(f"{len(missing)} of {COUNT} are missing, first {missing[0]}, last {missing[-1]}")
        if doubled:
            found.append(f"{len(doubled)} came more than once, first {min(doubled)}: {self._places(min(doubled))}")
        steps = list(zip(self.numbers, self.numbers[1:], strict=False))
        backwards = [(a, b) for a, b in steps if b <= a]
        if backwards:
            a, b = backwards[0]
            found.append(
                f"{len(backwards)} steps backwards, first from {a} ({self._places(a)}) to {b} ({self._places(b)})"
            )
        return found

    def _places(self, number: int) -> str:
        return ", ".join(f"batch {b['batch']} on {b['host']}" for b in self.batches if number in b["numbers"])

    def table(self) -> str:
        """A line for each microbatch."""
        lines = []
        for batch in self.batches:
            numbers = batch["numbers"]
            span = f"{numbers[0]:6d} .. {numbers[-1]:6d}" if numbers else ""
            more = f"  counted {batch['counted']}" if batch["counted"] is not None else ""
            more += f"  after the kill on {batch['killed']}" if batch["killed"] else ""
            lines.append(f"{batch['batch']:4d} {batch['host']:8s}{len(numbers):6d} rows  {span}{more}")
        rows: collections.Counter[str] = collections.Counter()
        for batch in self.batches:
            rows[batch["host"]] += len(batch["numbers"])
        total = f"{len(self.numbers)} rows for {COUNT} messages; by host: {dict(rows)}; ended: {self.end}"
        return "\n".join([total, *lines])


def stream(cluster: Cluster, kind: str, **more: Any) -> Seen:
    """Streams what a PUB or a PUSH sends, until all of it has come, or nothing more does."""
    sender = {"SUB": "PUB", "PULL": "PUSH"}[kind]
    address = cluster.hosts.addresses[cluster.driver]
    fed = {"kind": sender, "address": address, "size": SIZE, "count": COUNT}
    options = {"socket": kind, "columns": "value,sequence", "maxRowsPerTrigger": ROWS, "triggerSeconds": "0.5"}
    # Several record batches are on their way when an executor is killed.
    options |= {"batchBytes": "256k", "recv_buffer": "65536"} | ({"subscribe": ""} if kind == "SUB" else {})
    seen = Seen()
    with running(cluster.hosts, cluster.driver, "feeder.log", *PROGRAM, "feed", json.dumps(fed)) as feeder:
        options["connect"] = feeder.wait_report(BATCH_TIMEOUT_S)["url"]
        given = {
            "master": cluster.master,
            "address": address,
            "hosts": cluster.executors,
            "conf": cluster.conf() | {"spark.executor.extraJavaOptions": BRIEF},
            "options": options,
            **more,
        }
        with running(cluster.hosts, cluster.driver, "driver.log", *PROGRAM, "read", json.dumps(given)) as driver:
            _follow(seen, driver, feeder)
            driver.end_input()
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(60)
        seen.end += f"; the feeder {'has sent all' if feeder.has_reported('sent') else 'has not sent all'}"
    return seen


def _follow(seen: Seen, driver: Process, feeder: Process) -> None:
    end = time.monotonic() + LASTING
    while not seen.end:
        try:
            facts = driver.wait_report(BATCH_TIMEOUT_S)
        except AssertionError as error:
            seen.end = str(error)
            break
        if "failed" in facts:
            seen.end = f"the query failed: {facts['failed'].splitlines()[0]}\n{driver.tail()}"
            break
        seen.add(facts)
        if seen.is_whole:
            seen.end = "all messages have been seen"
        elif seen.is_quiet and feeder.has_reported("sent"):
            seen.end = f"{MAX_EMPTY_BATCHES} microbatches without a message"
        elif time.monotonic() > end:
            seen.end = f"{LASTING:g} s have passed"


def check(seen: Seen, cluster: Cluster) -> None:
    """Every message came once and in order, to both hosts."""
    if wrong := seen.wrong():
        pytest.fail("\n".join([*wrong, seen.table(), cluster.errors()]), pytrace=False)
    assert seen.numbers == list(range(COUNT))
    assert seen.hosts(before_kill=True) == set(cluster.executors), f"not both hosts took part\n{seen.table()}"


def test_nothing_of_one_host_is_seen_on_another(hosts: Hosts) -> None:
    """The other tests rely on this."""
    code = "import os, socket; s = socket.socket(socket.AF_UNIX); s.bind('\\0omq-hosts'); s.listen()"
    code += "; open('/tmp/mine', 'x'); print(socket.gethostname(), os.listdir('/tmp'), flush=True); input()"
    with contextlib.ExitStack() as stack:
        for name in ("first", "second"):
            process = stack.enter_context(running(hosts, name, "", sys.executable, "-c", code))
            process.wait_printed(rf"^{name} \['mine'\]$", 30)
    # Nor on the machine itself.
    with socket.socket(socket.AF_UNIX) as ours, pytest.raises(ConnectionRefusedError):
        ours.connect("\0omq-hosts")


def test_hosts_that_a_killed_run_left_are_swept(hosts: Hosts, tmp_path: Any) -> None:
    code = "import os, sys; from pathlib import Path; from tests.support.network_namespaces import Hosts, Process\n"
    code += "hosts = Hosts(Path(sys.argv[1]), 'driver', 'first'); Process(hosts, 'first', '', ['sleep', '1000'])\n"
    code += "print(*hosts.namespaces.values(), flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    left = done.stdout.split()
    assert len(left) == 2, done.stderr
    # Another run may have swept them first.
    assert set(sweep()) <= set(left)
    there = {path.name for path in NAMESPACES.iterdir()}
    assert not there & set(left)
    assert there >= set(hosts.namespaces.values())


@pytest.mark.parametrize("kind", ["SUB", "PULL"])
def test_microbatches_that_hop_between_hosts_have_every_message_once_and_in_order(kind: str, cluster: Cluster) -> None:
    seen = stream(cluster, kind)
    check(seen, cluster)
    assert all(batch["tasks"] == 1 and len(batch["numbers"]) <= ROWS for batch in seen.batches)
    # It is one connection that they all read.
    assert [number for batch in seen.batches for number in batch["sequences"]] == list(range(COUNT))


@pytest.mark.parametrize("kind", ["SUB", "PULL"])
def test_a_count_and_a_collect_on_two_hosts_see_the_same_rows(kind: str, cluster: Cluster) -> None:
    seen = stream(cluster, kind, counts=True)
    check(seen, cluster)
    assert [batch["counted"] for batch in seen.batches] == [len(batch["numbers"]) for batch in seen.batches]


@pytest.mark.parametrize(
    ("victim", "at"),
    [
        pytest.param("first", HOP, id="the_one_that_read_first_while_it_reads"),
        pytest.param("first", HOP + 1, id="the_one_that_read_first_while_the_other_reads"),
        pytest.param("second", HOP + 1, id="the_other_while_it_reads"),
    ],
)
@pytest.mark.parametrize("kind", ["SUB", "PULL"])
def test_a_killed_executor_costs_no_message(kind: str, victim: str, at: int, cluster: Cluster) -> None:
    seen = stream(cluster, kind, kill=victim, at=at)
    assert any(batch["killed"] == victim for batch in seen.batches), f"no executor was killed\n{seen.table()}"
    check(seen, cluster)
