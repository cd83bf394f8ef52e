"""Feeds a topic and replays it while the broker is killed and started again: `make demo-broker`."""

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from child_processes import OmqServer
from demo_commands import SETTINGS, choose_files, directory_option, reporter, scratch_folder
from file_blocks import FileSet
from omq.broker import Client
from omq.cli.parameters import FiniteFloat
from topic_publisher import END, FeedPublisher
from topic_subscriber import ReplayProcess

TOPIC: Final = "files"
REPLAY_SHARE: Final = 0.2  # of the feed, until the subscriber asks for its beginning
KILL_SHARE: Final = 0.5  # of the feed, until the broker is killed
RESTART_DELAY_S: Final = 1.0
REPLAY_TIMEOUT_S: Final = 60.0  # after the end of the feed
POLL_INTERVAL_S: Final = 0.05


@dataclass
class DemoResult:
    """The result.

    Attributes:
        feed: The publisher.
        replay: The subscriber.
        away: Seconds from the broker's death until it serves again.
    """

    feed: FeedPublisher
    replay: ReplayProcess
    away: float = 0.0

    @property
    def lost(self) -> int:
        """The number of messages that were acknowledged and not received."""
        return max(0, self.feed.acknowledged - (self.replay.received - self.replay.repeated))

    @property
    def same(self) -> bool:
        """True if the subscriber has received, in their order, the bytes that were acknowledged, and no others."""
        return self.replay.digest == self.feed.digest and self.feed.acknowledged == self.feed.published

    @property
    def failed(self) -> bool:
        """True if a promise was broken."""
        replay = self.replay
        return bool(self.lost or replay.repeated or replay.missing or self.feed.disordered or not self.same)


def rate(number: float, seconds: float) -> str:
    """Returns a rate a second as text."""
    return f"{number / seconds:,.0f}" if seconds > 0 else "-"


def table(outcome: DemoResult) -> Table:
    """Returns the result as a table."""
    feed, replay = outcome.feed, outcome.replay
    away = f"seconds without the {outcome.away:.2f} in which there was no broker"
    out = Table(title=f"a strong topic, {feed.block // 1024} KiB messages, its broker killed once", caption=away)
    out.add_column("")
    for head in ("messages", "MB", "seconds", "messages a second"):
        out.add_column(head, justify="right")
    sending, receiving = feed.seconds - outcome.away, replay.seconds - outcome.away
    out.add_row("published", f"{feed.published:,}", f"{feed.size / 1e6:,.1f}")
    acknowledged, received = rate(feed.acknowledged, sending), rate(replay.received, receiving)
    out.add_row("acknowledged", f"{feed.acknowledged:,}", f"{feed.size / 1e6:,.1f}", f"{sending:.2f}", acknowledged)
    out.add_row("received", f"{replay.received:,}", f"{replay.size / 1e6:,.1f}", f"{receiving:.2f}", received)
    out.add_row("lost", f"{outcome.lost:,}")
    out.add_row("came twice", f"{replay.repeated:,}")
    return out


class ProgressBars:
    """The output while the demo runs: two bars on a terminal, and a line for each event.

    Args:
        console: The output.
        seconds: The time of the feed.
    """

    def __init__(self, console: Console, seconds: float) -> None:
        self.report = reporter(console)
        columns = (
            TextColumn("{task.description:<9}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[count]}"),
        )
        self.bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._feed = self.bars.add_task("published", total=seconds, count="")
        self._replay = self.bars.add_task("received", total=None, count="", start=False)

    def update(self, feed: FeedPublisher, replay: ReplayProcess) -> None:
        """Draws the bars."""
        self.bars.update(self._feed, completed=feed.elapsed, count=f"{feed.acknowledged:,} acknowledged")
        self.bars.start_task(self._replay)
        count = f"{replay.received:,} received"
        self.bars.update(self._replay, total=feed.published, completed=replay.received, count=count)


class Demo:
    """The run.

    Args:
        file_set: The files.
        folder: The directory for the broker's data and log.
        seconds: The time of the feed.
        limit: Bytes that the feed publishes at most.
        progress: The output.
    """

    def __init__(self, file_set: FileSet, folder: Path, seconds: float, limit: int, progress: ProgressBars) -> None:
        self._folder = folder
        self._limit = limit
        self._seconds = seconds
        self._progress = progress
        self._feed = FeedPublisher(file_set, TOPIC, seconds, limit)
        self._replay = ReplayProcess(TOPIC, END)

    def run(self) -> DemoResult:
        """Runs the broker, the feed and the replay, and kills the broker.

        Raises:
            ChildError: A process does not serve in time, or ends early.
        """
        report, feed, replay = self._progress.report, self._feed, self._replay
        outcome = DemoResult(feed, replay)
        with self._progress.bars, ExitStack() as brokers, replay, feed:
            broker, endpoint = self._serve(brokers, "tcp://127.0.0.1:*")
            report(f"the broker serves at {endpoint}")
            with Client(endpoint) as client:
                client.create(TOPIC, delivery="broadcast", persistence="strong")
            feed.start(endpoint)
            report(
                f"the feed begins: every message is on the disk before it counts as acknowledged ({TOPIC!r}, strong)"
            )
            self._until(lambda: self._reached(REPLAY_SHARE))
            replay.start(endpoint)
            report(f"a subscriber asks for the beginning; {feed.acknowledged:,} messages are there already")
            self._until(lambda: self._reached(KILL_SHARE))
            broker.kill()
            killed = time.monotonic()
            report(f"the broker is killed (SIGKILL): {feed.acknowledged:,} acknowledged, {replay.received:,} received")
            self._until(lambda: time.monotonic() > killed + RESTART_DELAY_S)
            broker, _ = self._serve(brokers, endpoint)
            outcome.away = time.monotonic() - killed
            report(f"the broker serves again, {outcome.away:.2f} s after its death; both go on by themselves")
            self._until(lambda: not feed.alive)
            report(f"the feed ends: {feed.acknowledged:,} acknowledged")
            end = time.monotonic() + REPLAY_TIMEOUT_S
            self._until(lambda: replay.done or time.monotonic() > end)
            report(f"the subscriber {'has reached' if replay.done else 'has NOT reached'} the end")
            broker.end(signal.SIGTERM)
        return outcome

    def _serve(self, brokers: ExitStack, endpoint: str) -> tuple[OmqServer, str]:
        """Starts a broker, and returns it and its endpoint once it serves."""
        arguments = ("broker", self._folder / "data", "--bind", endpoint)
        broker = brokers.enter_context(OmqServer("broker", self._folder, *arguments))
        return broker, broker.endpoints()["zmtp"]

    def _reached(self, share: float) -> bool:
        """Returns whether this share of the feed is over."""
        feed = self._feed
        return feed.elapsed > share * self._seconds or feed.size > share * self._limit or not feed.alive

    def _until(self, condition: Callable[[], bool]) -> None:
        """Waits, and shows the progress."""
        while True:
            over = condition()
            self._feed.check()
            self._replay.check()
            self._progress.update(self._feed, self._replay)
            if over:
                return
            time.sleep(POLL_INTERVAL_S)


@click.command(context_settings=SETTINGS)
@directory_option
@click.option("--seconds", type=FiniteFloat(1, 600), default=9.0, show_default=True, help="How long the feed runs.")
@click.option("--limit", type=click.IntRange(1), default=512, show_default=True, help="MB to publish at most.")
@click.option("--block", type=click.IntRange(1, 1024), default=1, show_default=True, help="KiB in a message.")
def demo_broker(directory: Path | None, seconds: float, limit: int, block: int) -> None:
    """Feed files into a topic, replay them from the beginning, and kill the broker in the middle.

    The files are published again and again until the time is over. The broker is killed with SIGKILL and started
    again on the same directory; nothing that it has acknowledged may be missing or come twice.
    """
    console = Console()
    with scratch_folder() as folder:
        file_set = choose_files(directory, block, limit, console)
        outcome = Demo(file_set, folder, seconds, limit * 1_000_000, ProgressBars(console, seconds)).run()
    console.print(table(outcome))
    if outcome.failed:
        raise click.ClickException("what was received is not what was acknowledged")
    console.print("what was received is, byte for byte and in order, what was acknowledged", highlight=False)


if __name__ == "__main__":
    demo_broker()
