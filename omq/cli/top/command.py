"""`omq top`: shows the traffic of processes that export metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from omq.cli.errors import echo, errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.parameters import FiniteFloat, sigterm_interrupts
from omq.cli.sockets.output import is_terminal
from omq.cli.sockets.pace import Pacer
from omq.cli.tables import print_aligned, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from omq.cli.top.process import MonitoredProcess
    from omq.cli.top.rows import TopRow

EXAMPLE: Final = """\
omq broker data --bind tcp://127.0.0.1:5555 --http 127.0.0.1:5556 --topic prices:broadcast:weak --ready-file ready &
broker=$!
until test -e ready; do sleep 0.1; done
omq top 127.0.0.1:5556 -n 1
kill $broker"""
REFRESH_S: Final = 0.25  # of the table on a terminal
TITLE_AND_FRAME_LINES: Final = 6  # of the table
GAP_WIDTH: Final = 2  # between its columns
UNITS: Final = ("", "k", "M", "G", "T", "P")


def count_text(value: float | None) -> str:
    """Returns a number of messages or peers, or a rate: with a decimal below 10, if it has one."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 9.95 and not value.is_integer() else f"{value:,.0f}"


def bytes_text(value: float | None) -> str:
    """Returns a number of bytes with a decimal unit: `512`, `1.5k`, `20M`."""
    if value is None:
        return "-"
    for unit in UNITS:
        if value < 999.5 or unit == UNITS[-1]:
            break
        value /= 1000
    return f"{value:.1f}{unit}" if value < 9.95 and unit else f"{value:.0f}{unit}"


#: The heads of the columns after the first three, the value of a row, and its text.
COLUMNS: Final[tuple[tuple[str, str, Callable[[float | None], str]], ...]] = (
    ("in/s", "messages_in", count_text),
    ("out/s", "messages_out", count_text),
    ("B in/s", "bytes_in", bytes_text),
    ("B out/s", "bytes_out", bytes_text),
    ("queue", "queue", count_text),
    ("peers", "peers", count_text),
    ("drops", "drops", count_text),
)
HEAD: Final = ("process", "socket or topic", "type", *(head for head, _, _ in COLUMNS))
NAME_COLUMNS: Final = 2
TEXT_COLUMNS: Final = 3
SORT_KEYS: Final = ("process", "name", "type", *(value.replace("_", "-") for _, value, _ in COLUMNS))


def cells_of(row: TopRow) -> list[str]:
    """Returns the texts of a row."""
    name = row.state or row.name or "-"
    return [printable(row.process), printable(name), printable(row.type) or "-"] + [
        text(getattr(row, value)) for _, value, text in COLUMNS
    ]


class TopTable:
    """The rows of all processes.

    Args:
        processes: The processes.
        sort_key: The value by which rows are sorted.
    """

    def __init__(self, processes: Sequence[MonitoredProcess], sort_key: str) -> None:
        self._processes = processes
        self._sort_key = sort_key.replace("-", "_")

    def rows(self) -> list[TopRow]:
        """Returns the current rows in their order."""
        from omq.cli.top.rows import sorted_rows

        return sorted_rows((row for process in self._processes for row in process.rows()), self._sort_key)

    def print(self, as_json: bool) -> None:
        """Prints the current rows: lines of a table with the time, or one JSON object per line."""
        now = datetime.now().astimezone()
        if as_json:
            for row in self.rows():
                echo(json.dumps({"time": now.timestamp(), **asdict(row)}, ensure_ascii=False))
            return
        clock = now.strftime("%H:%M:%S")
        is_number = [column > TEXT_COLUMNS for column in range(len(HEAD) + 1)]
        head = ["TIME", *(name.upper() for name in HEAD)]
        print_aligned(head, [[clock, *cells_of(row)] for row in self.rows()], is_number)

    def table(self, console: Console, interval: float) -> Table:
        """Returns the current rows for a terminal, as many as its lines can show."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        rows = self.rows()
        space = max(1, console.height - TITLE_AND_FRAME_LINES)
        shown = [cells_of(row) for row in rows[:space]]
        hidden = f"{len(rows) - space} more rows" if len(rows) > space else None
        table = Table(title=f"omq top, every {interval:g} s", caption=hidden, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        widths = [max(map(len, cells)) for cells in zip(HEAD, *shown, strict=True)]
        # A narrow terminal cuts names, and no numbers.
        left = console.width - sum(widths[NAME_COLUMNS:]) - GAP_WIDTH * len(HEAD) - 1
        widths[0] = max(1, min(widths[0], left - min(widths[1], left // 2)))
        widths[1] = max(1, min(widths[1], left - widths[0]))
        for index, (name, width) in enumerate(zip(HEAD, widths, strict=True)):
            table.add_column(name, justify="right" if index >= TEXT_COLUMNS else "left", no_wrap=True, width=width)
        for row, cells in zip(rows, shown, strict=False):
            table.add_row(*map(Text, cells), style="red" if row.state else "yellow" if row.drops else None)
        return table


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.argument("endpoints", metavar="ENDPOINT...", nargs=-1, required=True)
@click.option(
    "-i", "--interval", type=FiniteFloat(0.1), default=1.0, show_default=True, help="Seconds between two scrapes."
)
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Tables after which to end.")
@click.option(
    "-t",
    "--timeout",
    type=FiniteFloat(0, min_open=True),
    default=2.0,
    show_default=True,
    help="Seconds after which a process without an answer is away.",
)
@click.option(
    "--sort", "sort_key", type=click.Choice(SORT_KEYS), default="process", show_default=True, help="The order of rows."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row and line.")
def top(
    endpoints: tuple[str, ...], interval: float, count: int | None, timeout: float, sort_key: str, as_json: bool
) -> None:
    """Show the traffic of the sockets, topics and devices of processes that export metrics at each ENDPOINT.

    An ENDPOINT is HOST:PORT, PORT or a URL such as http://127.0.0.1:8222/metrics, of `omq broker --http`, `omq pzq
    --http`, `omq ingest --http` or a program with omq.metrics. The command runs until SIGINT or SIGTERM. Rates are
    those of the last interval; drops count since the start of a process.

    Ends with status 1 if no process has answered at all.
    """
    with errors_of_command("omq top", "cli"), sigterm_interrupts():
        from omq.cli.top.process import MonitoredProcess  # needs prometheus_client

        processes = [MonitoredProcess(endpoint, timeout) for endpoint in dict.fromkeys(endpoints)]
        table = TopTable(processes, sort_key)
        with suppress(KeyboardInterrupt), ExitStack() as stack:
            is_live = is_terminal() and not as_json
            if is_live:
                show(table, interval, stack)
            for number in rounds(processes, interval, timeout):
                if number and not is_live:
                    table.print(as_json)
                if number == count:
                    break
    if not any(process.has_answered for process in processes):
        raise click.ClickException(f"no answer from {', '.join(map(repr, dict.fromkeys(endpoints)))}")


def rounds(processes: Sequence[MonitoredProcess], interval: float, timeout: float) -> Iterator[int]:
    """Scrapes processes every interval, and yields the number of a round once it has ended; the first one is 0.

    A process that does not answer delays the others once, by an interval at most: later rounds do not wait for it.
    """
    pacer = Pacer(interval)
    number = 0
    while True:
        pacer.wait()
        end = time.monotonic() + min(interval, timeout)
        awaited = [process for process in processes if process.is_up or not number]
        for process in processes:
            process.start()
        for process in awaited:
            process.wait(end)
        yield number
        number += 1


def show(table: TopTable, interval: float, stack: ExitStack) -> None:
    """Shows the table on the terminal until the stack unwinds."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    live = Live(
        console=console, get_renderable=lambda: table.table(console, interval), refresh_per_second=1 / REFRESH_S
    )
    stack.enter_context(live)
