"""Results of commands: text for people, or JSON for programs; and the confirmation before a change."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import click

from omq.broker.start_time import describe_time
from omq.broker.types import DurableInfo, GroupInfo, Message, TopicInfo
from omq.cli.errors import echo
from omq.cli.store import message_row
from omq.cli.tables import COLUMN_GAP, print_aligned, printable


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A durable subscription or a consumer group, as `omq consumer` prints it.

    Attributes:
        name: Its name.
        kind: `durable` or `group`.
        position: The cursor of a durable subscription: the id of the last acknowledged message.
        lag: The number of kept messages that it has not acknowledged.
        in_flight: The number of those that the consumers of a group have.
        open: The number of clients that have it open.
        active: When it was last in use, in seconds since 1970.
    """

    name: str
    kind: str
    position: int | None
    lag: int
    in_flight: int | None
    open: int
    active: float


Row = TopicInfo | DurableInfo | GroupInfo | ConsumerRow
_F = TypeVar("_F", bound=Callable[..., Any])


def json_option(function: _F) -> _F:
    """Adds `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def yes_option(function: _F) -> _F:
    """Adds `--yes`, which `confirm` takes, to a command."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(function)


def confirm(question: str, yes: bool) -> None:
    """Asks on the terminal, and ends the command unless the answer is yes.

    Args:
        question: The question.
        yes: True does not ask.

    Raises:
        UsageError: Standard input is not a terminal.
        Abort: The answer is not yes.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("--yes is missing: standard input is not a terminal to ask for confirmation")
    click.confirm(question, abort=True, err=True)


def print_json(value: object) -> None:
    """Prints a value as one line of JSON."""
    echo(json.dumps(value, ensure_ascii=False))


def print_table(kind: type[Row], rows: Sequence[Row], as_json: bool) -> None:
    """Prints objects: a header and a line for each, or a JSON array.

    Args:
        kind: The class of the objects, whose fields are the columns.
        rows: The objects.
        as_json: True prints JSON.
    """
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    names = [field.name for field in fields(kind)]
    cells = [[text_of(getattr(row, name)) for name in names] for row in rows]
    is_number = [any(type(getattr(row, name)) is int for row in rows) for name in names]
    print_aligned([name.upper() for name in names], cells, is_number)


def print_fields(row: Row, as_json: bool) -> None:
    """Prints an object: a line for each field, or a JSON object."""
    if as_json:
        print_json(asdict(row))
        return
    names = [field.name for field in fields(row)]
    width = max(map(len, names))
    for name in names:
        echo(f"{name.ljust(width)}{COLUMN_GAP}{text_of(getattr(row, name))}".rstrip())


def print_result(text: str, as_json: bool, **values: object) -> None:
    """Prints the result of a change: the text, or the values as a JSON object."""
    if as_json:
        print_json(values)
    else:
        echo(text)


def print_message(message: Message, as_json: bool) -> None:
    """Prints a message: a line, or a JSON object as `omq store dump` does. Bytes that are not UTF-8 are in base64."""
    row = message_row(message)
    if as_json:
        print_json(row)
        return
    pairs: list[tuple[str, str]] = [(name, row[name]) for name in ("key", "key_base64") if name in row]
    pairs += row.get("headers", {}).items()
    if "body_base64" in row:
        pairs.append(("body_base64", row["body_base64"]))
    words = [str(message.id), describe_time(round(message.timestamp * 1e6)), *(f"{name}={one}" for name, one in pairs)]
    echo(printable(" ".join((*words, row.get("body", ""))).rstrip()))


def text_of(value: object) -> str:
    """Formats the value of a field: settings as the arguments of `omq topic alter`, seconds since 1970 as a time."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return describe_time(round(value * 1e6))
        case dict():
            return printable(" ".join(f"{key}={setting_text(one)}" for key, one in value.items()))
    return printable(str(value))


def setting_text(value: object) -> str:
    """Formats the value of a setting, as `--topic` and `omq topic alter` take it."""
    if isinstance(value, list):
        return ",".join(map(setting_text, value))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
