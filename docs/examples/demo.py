"""Streams the files of a directory through worker processes, and has pyzmq do the same: `make demo`."""

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
import uvloop
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from demo_commands import SETTINGS, choose_files, directory_option, exit_codes
from file_blocks import FileSet, recheck
from hash_processes import WORKERS
from hash_rounds import Round, run_round
from libraries import LIBRARIES, installed

LAST_ROUND_S: Final = 25.0  # after the start no further round of both libraries begins


@dataclass
class LibraryResult:
    """The rounds of one library.

    Attributes:
        name: The library.
        rounds: Every round.
        wrong: Blocks of all rounds whose digest is not that of the disk.
        changed: Blocks of all rounds whose digest is not the first one, but that of the disk now.
    """

    name: str
    rounds: list[Round] = field(default_factory=list)
    wrong: int = 0
    changed: int = 0

    def add(self, result: Round, file_set: FileSet) -> None:
        """Adds a round and checks every digest of it."""
        self.rounds.append(result)
        differing = {n: d for n, d in result.digests.items() if file_set.digests[n : n + 1] != [d]}
        wrong = recheck(file_set, differing)
        self.wrong += len(wrong)
        self.changed += len(differing) - len(wrong)

    @property
    def seconds(self) -> float:
        """The median time of a round."""
        return statistics.median(result.seconds for result in self.rounds)

    @property
    def repeated(self) -> int:
        """Blocks of all rounds that arrived once more than they should."""
        return sum(result.repeated for result in self.rounds)

    @property
    def failed(self) -> bool:
        """True if a block that arrived is not one that was sent, or arrived twice."""
        return bool(self.wrong or self.repeated)

    def cells(self, file_set: FileSet) -> list[str]:
        """Returns the column of the table."""
        seconds, last = self.seconds, self.rounds[-1]
        verdict = "all match the disk"
        if self.failed:
            verdict = f"{self.wrong:,} DIFFER, {self.repeated:,} came twice"
        elif self.changed:
            verdict = f"all match ({self.changed:,} changed on disk meanwhile)"
        return [
            f"{len(file_set.files):,}",
            f"{last.size:,}",
            f"{len(last.digests):,}",
            f"{seconds:.3f}",
            f"{len(last.digests) / seconds:,.0f}",
            f"{last.size / seconds / 1e6:,.0f}",
            verdict,
        ]


ROWS: Final = ("files", "bytes", "messages", "seconds (median)", "messages a second", "MB/s", "digests")


def table(file_set: FileSet, scores: list[LibraryResult], missing: list[str]) -> Table:
    """Returns the result: a column for each library, also for one that is not installed."""
    out = Table(title=f"one PUSH, {WORKERS} PULL processes, tcp, {file_set.block // 1024} KiB messages")
    out.add_column("")
    columns = []
    for score in scores:
        out.add_column(f"{score.name} (asyncio)", justify="right", overflow="fold")
        columns.append(score.cells(file_set))
    for name in missing:
        out.add_column(name, justify="right", overflow="fold")
        columns.append(["-"] * (len(ROWS) - 1) + [f"to compare: pip install {name}"])
    for row in zip(ROWS, *columns, strict=True):
        out.add_row(*row)
    return out


async def run_rounds(file_set: FileSet, names: list[str], rounds: int, console: Console) -> list[LibraryResult]:
    """Runs the rounds of the libraries in turns, so that other load on the machine affects both."""
    scores = {name: LibraryResult(name) for name in names}
    end = time.monotonic() + LAST_ROUND_S
    for turn in range(rounds):
        if turn and time.monotonic() > end:
            console.print(f"{turn} of {rounds} rounds run, as each takes long here")
            break
        for name in names if turn % 2 == 0 else reversed(names):
            label = f"{name}, round {turn + 1} of {rounds}"
            scores[name].add(await run_round_shown(name, file_set, label, console), file_set)
    return list(scores.values())


async def run_round_shown(name: str, file_set: FileSet, label: str, console: Console) -> Round:
    """Runs one round; a bar shows its progress, and one line stays."""
    columns = (
        TextColumn(label),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[shares]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=file_set.size, shares="")

        def show(so_far: Round) -> None:
            shares = "  ".join(f"worker {n + 1}: {share:,}" for n, share in enumerate(so_far.shares))
            progress.update(task, completed=so_far.size, shares=shares)

        result = await run_round(name, file_set, show)
    shares = " + ".join(f"{share:,}" for share in result.shares)
    console.print(f"{label}: {shares} messages in {result.seconds:.3f} s", highlight=False)
    return result


@click.command(context_settings=SETTINGS)
@directory_option
@click.option("--rounds", type=click.IntRange(1, 20), default=5, show_default=True, help="Rounds of each library.")
@click.option("--limit", type=click.IntRange(1), default=256, show_default=True, help="MB to stream at most.")
@click.option("--block", type=click.IntRange(1, 65536), default=16, show_default=True, help="KiB in a message.")
def demo(directory: Path | None, rounds: int, limit: int, block: int) -> None:
    """Stream files through two worker processes that hash them, and check every digest.

    One process sends the files in blocks (PUSH), two take them (PULL) and report over a feed (PUB) to this one (SUB).
    pyzmq does the same next to it, if it is installed.
    """
    console = Console()
    names = [name for name in LIBRARIES if installed(name)]
    with exit_codes():
        file_set = choose_files(directory, block, limit, console)
        scores = uvloop.run(run_rounds(file_set, names, rounds, console))
    console.print(table(file_set, scores, [name for name in LIBRARIES if name not in names]))
    if len(scores) == 2:
        ours, theirs = scores
        ratio = theirs.seconds / ours.seconds
        console.print(f"{ours.name} does {ratio:.2f} times what {theirs.name} does in the same time", highlight=False)
    if unread := sum(len(score.rounds[-1].unread) for score in scores):
        console.print(f"{unread:,} blocks could not be read any more")
    if any(score.failed for score in scores):
        raise click.ClickException("what arrived is not what was sent")


if __name__ == "__main__":
    demo()
