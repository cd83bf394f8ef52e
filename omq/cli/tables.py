"""Tables: lines with aligned columns, and with a frame on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from omq.cli.errors import echo

COLUMN_GAP: Final = "  "


def print_aligned(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> None:
    """Prints a header and a line for each row, in aligned columns.

    Args:
        head: The names of the columns.
        rows: The cells.
        numbers: Whether each column has numbers, which are aligned to the right.
    """
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, numbers, strict=True)
        padded = (text.rjust(width) if right else text.ljust(width) for text, width, right in cells)
        echo(COLUMN_GAP.join(padded).rstrip())


def print_framed(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> None:
    """Prints a table with a frame if standard output is a terminal, and in aligned columns otherwise."""
    if sys.stdout is None or not sys.stdout.isatty():
        print_aligned([name.upper() for name in head], rows, numbers)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name, right in zip(head, numbers, strict=True):
        table.add_column(name, justify="right" if right else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def printable(text: str) -> str:
    """Escapes line breaks and control characters of a text, which a terminal might interpret."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
