"""`omq store`: looks into the directory of a broker that is not running."""

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omq.broker.types import Message
from omq.serving.extras import missing_extra
from omq.store.errors import DamagedError, StoreError

if TYPE_CHECKING:
    from omq.store.lmdb.inspector import Inspector

DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))


@click.group()
def store() -> None:
    """Look into a broker's directory while no broker runs in it."""


def open_inspector(directory: Path) -> "Inspector":
    """The files of a store; what hinders ends the command."""
    try:
        from omq.store.lmdb.inspector import Inspector
    except ImportError as missing:
        raise click.ClickException(str(missing_extra("the store", missing, "broker"))) from None
    try:
        return Inspector(directory)
    except StoreError as error:
        raise click.ClickException(str(error)) from None


@store.command()
@DIRECTORY
def verify(directory: Path) -> None:
    """Read everything, and report what is damaged: then the exit status is 1."""
    damaged = 0
    with open_inspector(directory) as inspector:
        if not inspector.orderly:
            click.echo("not closed in order; that does no harm")
        for error in inspector.check_rows():
            damaged += 1
            click.echo(str(error))
        for topic in inspector.topics.values():
            records, size, found = inspector.check(topic)
            damaged += len(found)
            click.echo(f"{topic.name}: {records} messages, {size} bytes, {'damaged' if found else 'well'}")
            for error in found:
                click.echo(f"  {error}")
    sys.exit(1 if damaged else 0)


@store.command()
@DIRECTORY
@click.option("--topic", "name", help="Only this topic.")
@click.option("--start", type=click.IntRange(0), default=0, help="The first id.")
@click.option("--stop", type=click.IntRange(0), default=0, help="The id before which to end.")
def dump(directory: Path, name: str | None, start: int, stop: int) -> None:
    """Write messages as lines of JSON; bytes are text where they are UTF-8, else base64."""
    with open_inspector(directory) as inspector:
        try:
            topics = [inspector.find(name)] if name is not None else list(inspector.topics.values())
        except StoreError as error:
            raise click.ClickException(str(error)) from None
        damaged = False
        for topic in topics:
            for message in inspector.messages(topic, start, stop):
                if isinstance(message, DamagedError):
                    click.echo(f"omq: {message}", err=True)
                    damaged = True
                else:
                    click.echo(json.dumps(message_row(message), ensure_ascii=False))
    sys.exit(1 if damaged else 0)


def message_row(message: Message) -> dict[str, Any]:
    """A message as JSON has it."""
    row: dict[str, Any] = {"topic": message.topic, "id": message.id, "timestamp": message.timestamp}
    row.update(as_text("body", message.body))
    if message.key is not None:
        row.update(as_text("key", message.key))
    if message.headers:
        row["headers"] = dict(part for name, value in message.headers.items() for part in as_text(name, value))
    return row


def as_text(name: str, value: bytes) -> Iterator[tuple[str, str]]:
    """Returns bytes under a name for their form."""
    try:
        yield name, value.decode()
    except UnicodeDecodeError:
        yield f"{name}_base64", base64.b64encode(value).decode()


@store.command()
@DIRECTORY
@click.option("--json", "as_json", is_flag=True, help="One object of JSON.")
def stats(directory: Path, as_json: bool) -> None:
    """Topics, and the sizes of files."""
    with open_inspector(directory) as inspector:
        topics = [
            {
                "id": topic.id,
                "name": topic.name,
                "delivery": topic.delivery,
                "persistence": topic.persistence,
                "settings": topic.settings,
                "first": topic.first,
                "last": topic.last,
                "bytes": topic.bytes,
            }
            for topic in inspector.topics.values()
        ]
        sizes = {name: {"file_bytes": size, "used_bytes": used} for name, (size, used) in inspector.sizes().items()}
        row = {"id": inspector.id, "orderly": inspector.orderly, "topics": topics, "files": sizes}
    if as_json:
        click.echo(json.dumps(row))
        return
    for name, size in sizes.items():
        click.echo(f"{name}: {size['file_bytes']} bytes, {size['used_bytes']} of them once used")
    for topic in topics:
        click.echo("{id} {name}: {delivery}, {persistence}, ids {first} to {last}, {bytes} bytes".format(**topic))
