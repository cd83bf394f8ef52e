"""`omq demo-broker`: a feed into a topic, and a replay of it, while the broker is killed and started again."""

import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from omq.broker import Client
from omq.cli.blocks import Stock
from omq.cli.demo import chosen
from omq.cli.feed import END, Feed
from omq.cli.number import Finite
from omq.cli.players import BrokerProcess, ReplayProcess
from omq.errors import OmqError

TOPIC: Final = "files"
REPLAY_AT: Final = 0.2  # of the feed's time: the subscriber comes, and asks for the beginning
KILL_AT: Final = 0.5  # of the feed's time, or of what it may publish
AWAY: Final = 1.0  # seconds that the broker stays dead
PATIENCE: Final = 60.0  # seconds that the replay may take once the feed has ended
TICK: Final = 0.05  # seconds between two looks


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        feed: Who has published.
        replay: Who has received.
        away: Seconds between the broker's death and its serving again.
    """

    feed: Feed
    replay: ReplayProcess
    away: float = 0.0

    @property
    def lost(self) -> int:
        """Messages that were acknowledged and not received."""
        return max(0, self.feed.acknowledged - (self.replay.received - self.replay.repeated))

    @property
    def same(self) -> bool:
        """Whether the subscriber has got, in this order, the bytes that were acknowledged, and no others."""
        return self.replay.digest == self.feed.digest and self.feed.acknowledged == self.feed.published

    @property
    def failed(self) -> bool:
        """Whether a promise was broken."""
        replay = self.replay
        return bool(self.lost or replay.repeated or replay.missing or self.feed.disordered or not self.same)


def rate(number: float, seconds: float) -> str:
    """So many a second."""
    return f"{number / seconds:,.0f}" if seconds > 0 else "-"


def table(outcome: Outcome) -> Table:
    """The result."""
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


class Show:
    """What is seen while it runs: two bars in a terminal, and a line for each event in any case.

    Args:
        console: Where to.
        seconds: What the feed takes.
    """

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        self._began = time.monotonic()
        columns = (
            TextColumn("{task.description:<9}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[told]}"),
        )
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._feed = self.progress.add_task("published", total=seconds, told="")
        self._replay = self.progress.add_task("received", total=None, told="", start=False)

    def say(self, text: str) -> None:
        """An event."""
        self._console.print(f"{time.monotonic() - self._began:5.1f} s  {text}", highlight=False, soft_wrap=True)

    def look(self, feed: Feed | None, replay: ReplayProcess | None) -> None:
        """The state of things."""
        if feed is not None:
            told = f"{feed.acknowledged:,} acknowledged"
            self.progress.update(self._feed, completed=feed.elapsed, told=told)
        if replay is not None and feed is not None:
            told = f"{replay.received:,} received"
            self.progress.start_task(self._replay)
            self.progress.update(self._replay, total=feed.published, completed=replay.received, told=told)


class Demo:
    """Everything that runs, one after the other.

    Args:
        stock: The files.
        folder: Where the broker's directory is to be.
        seconds: What the feed takes.
        limit: Bytes that it publishes at most.
        show: What is seen.
    """

    def __init__(self, stock: Stock, folder: Path, seconds: float, limit: int, show: Show) -> None:
        self._folder = folder
        self._limit = limit
        self._seconds = seconds
        self._show = show
        self._feed = Feed(stock, TOPIC, seconds, limit)
        self._replay = ReplayProcess(TOPIC, END)

    def play(self) -> Outcome:
        """Plays it.

        Raises:
            ClickException: Something does not come in time, or ends that should not.
        """
        show, feed, replay = self._show, self._feed, self._replay
        outcome = Outcome(feed, replay)
        with show.progress, BrokerProcess(self._folder) as broker, replay, feed:
            endpoint = broker.start()
            show.say(f"the broker serves at {endpoint}")
            with Client(endpoint) as client:
                client.create(TOPIC, delivery="broadcast", persistence="strong")
            feed.start(endpoint)
            show.say(
                f"the feed begins: every message is on the disk before it counts as acknowledged ({TOPIC!r}, strong)"
            )
            self._until(lambda: self._come(REPLAY_AT))
            replay.start(endpoint)
            show.say(f"a subscriber asks for the beginning; {feed.acknowledged:,} messages are there already")
            self._until(lambda: self._come(KILL_AT))
            broker.kill()
            died = time.monotonic()
            show.say(
                f"the broker is killed (SIGKILL): {feed.acknowledged:,} acknowledged, {replay.received:,} received"
            )
            self._until(lambda: time.monotonic() > died + AWAY)
            broker.start(endpoint)
            outcome.away = time.monotonic() - died
            show.say(f"the broker serves again, {outcome.away:.2f} s after its death; both go on by themselves")
            self._until(lambda: not feed.alive)
            show.say(f"the feed ends: {feed.acknowledged:,} acknowledged")
            end = time.monotonic() + PATIENCE
            self._until(lambda: replay.done or time.monotonic() > end)
            show.say(f"the subscriber {'has reached' if replay.done else 'has NOT reached'} the end")
            broker.end()
        return outcome

    def _come(self, share: float) -> bool:
        """Whether the feed has come so far."""
        feed = self._feed
        return feed.elapsed > share * self._seconds or feed.size > share * self._limit or not feed.alive

    def _until(self, condition: Callable[[], bool]) -> None:
        """Waits, and shows how it goes."""
        while not condition():
            self._feed.check()
            self._replay.check()
            self._show.look(self._feed, self._replay)
            time.sleep(TICK)
        self._feed.check()
        self._show.look(self._feed, self._replay)


@click.command("demo-broker")
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The directory whose files are fed; the standard library if left out.",
)
@click.option("--seconds", type=Finite(1, 600), default=9.0, show_default=True, help="How long the feed runs.")
@click.option("--limit", type=click.IntRange(1), default=512, show_default=True, help="MB to publish at most.")
@click.option("--block", type=click.IntRange(1, 1024), default=1, show_default=True, help="KiB in a message.")
def demo_broker(directory: Path | None, seconds: float, limit: int, block: int) -> None:
    """Feed files into a topic, replay them from the beginning, and kill the broker in the middle.

    The files are published again and again until the time is over. The broker is killed with SIGKILL and started
    again on the same directory; nothing that it has acknowledged may be missing or come twice.
    """
    console = Console()
    stock = chosen(directory, block * 1024, limit * 1_000_000, console)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="omq-demo-") as folder:
            outcome = Demo(stock, Path(folder), seconds, limit * 1_000_000, Show(console, seconds)).play()
    except KeyboardInterrupt:
        click.echo("interrupted; every process has ended", err=True)
        sys.exit(130)
    except (OmqError, OSError) as fault:
        raise click.ClickException(str(fault)) from None
    console.print(table(outcome))
    if outcome.failed:
        raise click.ClickException("what was received is not what was acknowledged")
    console.print("what was received is, byte for byte and in order, what was acknowledged", highlight=False)
