"""`omq store`: inspects and compacts the directory of a broker that is not running."""

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from omq.broker.types import Message
from omq.cli.errors import echo, errors_of_command
from omq.cli.examples import ExampleGroup
from omq.store.errors import DamagedError

if TYPE_CHECKING:
    from omq.store.lmdb.inspector import Inspector

DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))

EXAMPLE: Final = """\
omq broker data --bind tcp://127.0.0.1:5555 --topic prices:broadcast:weak &
broker=$!
export OMQ_BROKER=tcp://127.0.0.1:5555
omq topic publish prices 'AAPL 189.95'
kill $broker
wait $broker
omq store dump data"""


@click.group(cls=ExampleGroup, example=EXAMPLE)
def store() -> None:
    """Inspect or compact a broker's directory while no broker uses it."""


@contextmanager
def open_inspector(directory: Path) -> Iterator["Inspector"]:
    """Opens a store for inspection, and reports errors as errors of the command."""
    with errors_of_command("the store", "broker"):
        from omq.store.lmdb.inspector import Inspector

        with Inspector(directory) as inspector:
            yield inspector


@store.command()
@DIRECTORY
def verify(directory: Path) -> None:
    """Read everything and report damage. The exit status is 1 if there is any."""
    damaged = 0
    with open_inspector(directory) as inspector:
        if not inspector.clean_shutdown:
            echo("not shut down cleanly; this is harmless")
        for error in inspector.check_rows():
            damaged += 1
            echo(str(error))
        for topic in inspector.topics.values():
            records, size, found = inspector.check(topic)
            damaged += len(found)
            echo(f"{topic.name}: {records} messages, {size} bytes, {'damaged' if found else 'well'}")
            for error in found:
                echo(f"  {error}")
    sys.exit(1 if damaged else 0)


@store.command()
@DIRECTORY
@click.option("--topic", "name", help="Only this topic.")
@click.option("--start", type=click.IntRange(0), default=0, help="The first id.")
@click.option("--stop", type=click.IntRange(0), default=0, help="The id after the last one.")
def dump(directory: Path, name: str | None, start: int, stop: int) -> None:
    """Print messages as lines of JSON. Bytes are printed as text if they are UTF-8, else as base64."""
    with open_inspector(directory) as inspector:
        topics = [inspector.find(name)] if name is not None else list(inspector.topics.values())
        damaged = False
        for topic in topics:
            for message in inspector.messages(topic, start, stop):
                if isinstance(message, DamagedError):
                    click.echo(f"omq: {message}", err=True)
                    damaged = True
                else:
                    echo(json.dumps(message_row(message), ensure_ascii=False))
    sys.exit(1 if damaged else 0)


def message_row(message: Message) -> dict[str, Any]:
    """Returns the JSON object of a message."""
    row: dict[str, Any] = {"topic": message.topic, "id": message.id, "timestamp": message.timestamp}
    row.update(as_text("body", message.body))
    if message.key is not None:
        row.update(as_text("key", message.key))
    if message.headers:
        row["headers"] = dict(part for name, value in message.headers.items() for part in as_text(name, value))
    return row


def as_text(name: str, value: bytes) -> Iterator[tuple[str, str]]:
    """Yields the name and the text of bytes: text under *name* if they are UTF-8, else base64 under *name*_base64."""
    try:
        yield name, value.decode()
    except UnicodeDecodeError:
        yield f"{name}_base64", base64.b64encode(value).decode()


@store.command()
@DIRECTORY
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stats(directory: Path, as_json: bool) -> None:
    """Print the topics and the sizes of the files."""
    with open_inspector(directory) as inspector:
        topics = [
            {
                "id": topic.id,
                "name": topic.name,
                "delivery": topic.delivery.replace("_", "-"),
                "persistence": topic.persistence,
                "settings": topic.settings,
                "first": topic.first,
                "last": topic.last,
                "bytes": topic.bytes,
            }
            for topic in inspector.topics.values()
        ]
        sizes = {name: {"file_bytes": size, "used_bytes": used} for name, (size, used) in inspector.sizes().items()}
        row = {"id": inspector.id, "orderly": inspector.clean_shutdown, "topics": topics, "files": sizes}
        row |= {"snapshot": inspector.format.snapshot, "origin": inspector.format.origin}
        if inspector.format.replica:
            row["position"] = inspector.applied.position
    if as_json:
        echo(json.dumps(row))
        return
    if row["snapshot"]:
        echo(f"snapshot of store {row['id']}, taken at {row['snapshot']}")
    if origin := inspector.format.origin:
        echo(f"store {row['id']}, restored from a snapshot of store {origin['store']}, taken at {origin['time']}")
    if "position" in row:
        echo(f"position: {row['position']}, the last applied entry of the journal")
    for name, size in sizes.items():
        echo(f"{name}: {size['file_bytes']} bytes, {size['used_bytes']} of them in use")
    for topic in topics:
        echo("{id} {name}: {delivery}, {persistence}, ids {first} to {last}, {bytes} bytes".format(**topic))


@store.command()
@DIRECTORY
def compact(directory: Path) -> None:
    """Make the files smaller: replace them by copies without free pages."""
    with errors_of_command("the store", "broker"):
        from omq.store.lmdb.compaction import compact as compact_store

        for name, size in compact_store(directory).items():
            echo(f"{name}: {size.before} bytes before, {size.after} bytes after")
