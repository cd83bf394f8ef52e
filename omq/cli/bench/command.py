"""`omq bench`: measures messages a second and round trips between two processes, next to pyzmq."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from omq.cli.bench.bar_chart import BarChart, svg
from omq.cli.bench.measure import PATTERNS, Figures, measure, medians
from omq.cli.errors import echo, errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.parameters import FiniteFloat, NonEmptyPath, sigterm_interrupts
from omq.cli.tables import print_framed

EXAMPLE: Final = "omq bench --pattern push-pull --size 128 --seconds 0.1 --rounds 1 --plot bench.svg"
LIBRARIES: Final = {"omq": "omq", "pyzmq": "zmq"}  # with the module that must be there
TRANSPORTS: Final = ("tcp", "ipc")
DEFAULT_SIZES: Final = ("128", "16KiB")
UNITS: Final = {"": 0, "B": 0, "K": 10, "KIB": 10, "M": 20, "MIB": 20}


def read_sizes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    """Parses the values of `--size`."""
    return tuple(size_of(value, ctx, param) for value in values)


def size_of(text: str, ctx: click.Context, param: click.Parameter) -> int:
    """Parses bytes, such as 128, 16KiB or 1MiB."""
    found = re.fullmatch(r"(\d{1,10})\s*([A-Z]*)", text.upper())
    if found is None or found[2] not in UNITS or not int(found[1]):
        raise click.BadParameter(f"{text!r}: must be bytes such as 128, 16KiB or 1MiB", ctx, param)
    return int(found[1]) << UNITS[found[2]]


class StatusLine:
    """A line on standard error that changes, if that is a terminal.

    Args:
        quiet: True shows nothing.
    """

    def __init__(self, quiet: bool) -> None:
        self._is_shown = not quiet and sys.stderr is not None and sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replaces the line."""
        if self._is_shown:
            click.echo(f"\r\033[K{text}", nl=False, err=True)


def size_text(size: int) -> str:
    """Returns a size as text: `128 B`, `16 KiB`, `1 MiB`."""
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.option(
    "--pattern", "patterns", type=click.Choice([*PATTERNS]), multiple=True, help="May be repeated. Default: all three."
)
@click.option(
    "--transport", "transports", type=click.Choice(TRANSPORTS), multiple=True, default=TRANSPORTS[:1], show_default=True
)
@click.option(
    "--size",
    "sizes",
    callback=read_sizes,
    multiple=True,
    default=DEFAULT_SIZES,
    metavar="BYTES",
    help="Bytes of a message, such as 128 or 16KiB; may be repeated. Default: 128 and 16KiB.",
)
@click.option(
    "--library",
    "libraries",
    type=click.Choice([*LIBRARIES]),
    multiple=True,
    help="May be repeated. Default: omq, and pyzmq if it is installed.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Runs of each; medians count.")
@click.option(
    "--seconds", type=FiniteFloat(0, min_open=True), default=1.0, show_default=True, help="Seconds of a measured burst."
)
@click.option(
    "--plot",
    type=NonEmptyPath(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="Write bar charts as SVG.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with every round.")
@click.option("-q", "--quiet", is_flag=True, help="Do not report the progress on standard error.")
def bench(
    patterns: tuple[str, ...],
    transports: tuple[str, ...],
    sizes: tuple[int, ...],
    libraries: tuple[str, ...],
    rounds: int,
    seconds: float,
    plot: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure blocking sockets between two processes of this machine, next to pyzmq if it is installed.

    push-pull and pub-sub measure messages a second, req-rep round trips in microseconds. Libraries take turns, round
    by round. Compare figures of one run only, on a machine that is otherwise idle.
    """
    for library in libraries:
        if find_spec(LIBRARIES[library]) is None:
            raise click.BadParameter(f"{library} is not installed: pip install {library}", param_hint="'--library'")
    chosen = libraries or tuple(name for name, module in LIBRARIES.items() if find_spec(module) is not None)
    cases = [(name, one, size) for name in patterns or PATTERNS for one in transports for size in sizes]
    results: dict[tuple[str, str, int], dict[str, list[Figures]]] = {}
    with errors_of_command("the command", "cli"), sigterm_interrupts():
        shown = StatusLine(quiet)
        for case in cases:
            found: dict[str, list[Figures]] = {library: [] for library in chosen}
            for number in range(rounds):
                for library in chosen:
                    shown.show(f"{_label(case)}: {library}, round {number + 1} of {rounds}")
                    found[library].append(measure(library, *case, seconds))
            results[case] = found
            shown.show("")
            if as_json:
                for library, samples in found.items():
                    names = dict(zip(("pattern", "transport", "size"), case, strict=True))
                    echo(json.dumps({**names, "library": library, **medians(samples), "rounds": samples}))
        if not as_json:
            print_tables(results)
        if plot is not None:
            plot.write_text(svg(charts(results, chosen)), encoding="utf-8")


#: The results of a case by library.
Results = dict[tuple[str, str, int], dict[str, list[Figures]]]


def _label(case: tuple[str, str, int]) -> str:
    pattern, transport, size = case
    return f"{pattern} {transport} {size_text(size)}"


def print_tables(results: Results) -> None:
    """Prints a table of rates, and one of round trips."""
    for title, keys, heads in (
        ("Throughput", ("rate", "megabytes"), ("messages/s", "MB/s")),
        ("Round trips", ("p50", "p99"), ("p50 us", "p99 us")),
    ):
        rows = []
        for case, found in results.items():
            if keys[0] not in next(iter(found.values()))[0]:
                continue
            ours = medians(found["omq"]) if "omq" in found else None
            for library, samples in found.items():
                figures = medians(samples)
                ratio = "" if ours is None else f"{ours[keys[0]] / figures[keys[0]]:.2f}"
                values = [f"{figures[key]:,.0f}" if key == "rate" else f"{figures[key]:,.1f}" for key in keys]
                rows.append((case[0], case[1], size_text(case[2]), library, *values, ratio))
        if rows:
            head = ("pattern", "transport", "size", "library", *heads, "omq / it")
            print_framed(title, head, rows, (False, False, True, False, True, True, True))


def charts(results: Results, libraries: tuple[str, ...]) -> list[BarChart]:
    """Returns the bar charts of the figures, one for each size."""
    found = []
    for title, key in (("Messages a second", "rate"), ("Round trip p50, microseconds", "p50")):
        for size in dict.fromkeys(size for _, _, size in results):
            groups = [
                (f"{case[0]} {case[1]}", [medians(samples[library])[key] for library in libraries])
                for case, samples in results.items()
                if case[2] == size and key in samples[libraries[0]][0]
            ]
            if groups:
                found.append(BarChart(f"{title}, {size_text(size)}", libraries, groups))
    return found
