"""`omq demo`: the files of a directory, streamed through worker processes, beside pyzmq doing the same."""

import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
import uvloop
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from omq.cli.blocks import Stock, recheck, standard_library, take_stock
from omq.cli.libraries import LIBRARIES, installed
from omq.cli.roles import WORKERS
from omq.cli.round import Round, play_round

READING: Final = 8.0  # seconds that finding and reading the files may take
ROUNDS_END: Final = 25.0  # seconds after which no further round of both libraries is begun
#: What the standard library's directory holds beside the standard library.
NOT_STANDARD: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})


@dataclass
class Score:
    """What one library did in all its rounds.

    Attributes:
        name: The library.
        rounds: Every round.
        wrong: Blocks whose digest is not the disk's, over all rounds.
        changed: Blocks whose digest is not the one first taken, but the disk's now.
    """

    name: str
    rounds: list[Round] = field(default_factory=list)
    wrong: int = 0
    changed: int = 0

    def add(self, result: Round, stock: Stock) -> None:
        """Takes in a round and checks every digest of it."""
        self.rounds.append(result)
        differing = {n: d for n, d in result.digests.items() if stock.digests[n : n + 1] != [d]}
        wrong = recheck(stock, differing)
        self.wrong += len(wrong)
        self.changed += len(differing) - len(wrong)

    @property
    def seconds(self) -> float:
        """The median over the rounds."""
        return statistics.median(result.seconds for result in self.rounds)

    @property
    def repeated(self) -> int:
        """Blocks that arrived once more than they should, over all rounds."""
        return sum(result.repeated for result in self.rounds)

    @property
    def failed(self) -> bool:
        """Whether what arrived is not what was sent."""
        return bool(self.wrong or self.repeated)

    def cells(self, stock: Stock) -> list[str]:
        """The library's column of the table."""
        seconds, last = self.seconds, self.rounds[-1]
        verdict = "all match the disk"
        if self.failed:
            verdict = f"{self.wrong:,} DIFFER, {self.repeated:,} came twice"
        elif self.changed:
            verdict = f"all match ({self.changed:,} changed on disk meanwhile)"
        return [
            f"{len(stock.files):,}",
            f"{last.size:,}",
            f"{len(last.digests):,}",
            f"{seconds:.3f}",
            f"{len(last.digests) / seconds:,.0f}",
            f"{last.size / seconds / 1e6:,.0f}",
            verdict,
        ]


ROWS: Final = ("files", "bytes", "messages", "seconds (median)", "messages a second", "MB/s", "digests")


def table(stock: Stock, scores: list[Score], missing: list[str]) -> Table:
    """The result: a column for each library, also for one that is not installed."""
    out = Table(title=f"one PUSH, {WORKERS} PULL processes, tcp, {stock.block // 1024} KiB messages")
    out.add_column("")
    columns = []
    for score in scores:
        out.add_column(f"{score.name} (asyncio)", justify="right", overflow="fold")
        columns.append(score.cells(stock))
    for name in missing:
        out.add_column(name, justify="right", overflow="fold")
        columns.append(["-"] * (len(ROWS) - 1) + [f"to compare: pip install {name}"])
    for row in zip(ROWS, *columns, strict=True):
        out.add_row(*row)
    return out


async def play_rounds(stock: Stock, names: list[str], rounds: int, console: Console) -> list[Score]:
    """Lets every library have its rounds, by turns: what disturbs the machine disturbs both."""
    scores = {name: Score(name) for name in names}
    end = time.monotonic() + ROUNDS_END
    for turn in range(rounds):
        if turn and time.monotonic() > end:
            console.print(f"{turn} of {rounds} rounds played, as each takes long here")
            break
        for name in names if turn % 2 == 0 else reversed(names):
            label = f"{name}, round {turn + 1} of {rounds}"
            scores[name].add(await play_shown(name, stock, label, console), stock)
    return list(scores.values())


async def play_shown(name: str, stock: Stock, label: str, console: Console) -> Round:
    """One round with a bar that lives as long as the round, and a line that stays."""
    columns = (
        TextColumn(label),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[shares]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=stock.size, shares="")

        def show(so_far: Round) -> None:
            shares = "  ".join(f"worker {n + 1}: {share:,}" for n, share in enumerate(so_far.shares))
            progress.update(task, completed=so_far.size, shares=shares)

        result = await play_round(name, stock, show)
    shares = " + ".join(f"{share:,}" for share in result.shares)
    console.print(f"{label}: {shares} messages in {result.seconds:.3f} s", highlight=False)
    return result


def chosen(directory: Path | None, block: int, limit: int, console: Console) -> Stock:
    """Finds and reads the files.

    Raises:
        ClickException: There is nothing to send, or no directory to look into.
    """
    root = directory or standard_library()
    if not root.is_dir():
        raise click.BadParameter(f"{root} is not a directory", param_hint="--dir")
    prune = frozenset() if directory else NOT_STANDARD
    console.print(f"reading {root}", highlight=False, soft_wrap=True)
    stock = take_stock(root, block=block, limit=limit, seconds=READING, prune=prune)
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in stock.skipped.items())
    if not stock.files:
        raise click.ClickException(f"{root} has no readable file" + (f" (skipped: {skipped})" if skipped else ""))
    console.print(f"{len(stock.files):,} files, {stock.size / 1e6:,.1f} MB", highlight=False)
    if skipped:
        console.print(f"skipped: {skipped}", highlight=False)
    if stock.cut:
        console.print(stock.cut, highlight=False)
    return stock


@click.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The directory to stream; the standard library if left out.",
)
@click.option("--rounds", type=click.IntRange(1, 20), default=5, show_default=True, help="Rounds of each library.")
@click.option("--limit", type=click.IntRange(1), default=256, show_default=True, help="MB to stream at most.")
@click.option("--block", type=click.IntRange(1, 65536), default=16, show_default=True, help="KiB in a message.")
def demo(directory: Path | None, rounds: int, limit: int, block: int) -> None:
    """Stream files through two worker processes that hash them, and check every digest.

    One process sends the files in blocks (PUSH), two take them (PULL) and report over a feed (PUB) what this
    one shows (SUB). pyzmq does the same beside it, if it is installed.
    """
    console = Console()
    names = [name for name in LIBRARIES if installed(name)]
    try:
        stock = chosen(directory, block * 1024, limit * 1_000_000, console)
        scores = uvloop.run(play_rounds(stock, names, rounds, console))
    except KeyboardInterrupt:
        click.echo("interrupted; every process has ended", err=True)
        sys.exit(130)
    console.print(table(stock, scores, [name for name in LIBRARIES if name not in names]))
    if len(scores) == 2:
        ours, theirs = scores
        ratio = theirs.seconds / ours.seconds
        console.print(f"{ours.name} does {ratio:.2f} times what {theirs.name} does in the same time", highlight=False)
    if unread := sum(len(score.rounds[-1].unread) for score in scores):
        console.print(f"{unread:,} blocks could not be read any more")
    if any(score.failed for score in scores):
        raise click.ClickException("what arrived is not what was sent")
