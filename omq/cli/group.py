"""`omq group`: administers the consumer groups of a running broker."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import click

from omq.broker.errors import TopicError
from omq.broker.types import GroupInfo
from omq.cli.client_options import NAME, START_METAVAR, TOPIC, client_of, client_options, read_start
from omq.cli.examples import ExampleGroup
from omq.cli.report import confirm, json_option, print_fields, print_result, print_table, yes_option

EXAMPLE: Final = """\
omq broker data --bind tcp://127.0.0.1:5555 --topic prices:broadcast:weak &
broker=$!
export OMQ_BROKER=tcp://127.0.0.1:5555
omq group ls prices
kill $broker"""


@click.group(cls=ExampleGroup, example=EXAMPLE)
def group() -> None:
    """Administer the consumer groups of a running broker."""


@group.command("ls")
@TOPIC
@json_option
@client_options
def list_groups(topic: str, as_json: bool, **options: Any) -> None:
    """List the consumer groups of a topic."""
    with client_of(options) as client:
        print_table(GroupInfo, client.groups(topic), as_json)


@group.command()
@TOPIC
@NAME
@yes_option
@json_option
@client_options
def delete(topic: str, name: str, yes: bool, as_json: bool, **options: Any) -> None:
    """Delete a consumer group that has no consumers."""
    confirm(f"Delete the group {name!r} of topic {topic!r}?", yes)
    with client_of(options) as client:
        client.delete_group(topic, name)
        print_result(f"{topic}, {name}: deleted", as_json, topic=topic, name=name, deleted=True)


@group.command()
@TOPIC
@NAME
@click.argument("position", metavar=START_METAVAR, callback=read_start)
@json_option
@client_options
def seek(topic: str, name: str, position: str | int | datetime, as_json: bool, **options: Any) -> None:
    """Move a consumer group without consumers: later messages are delivered again, earlier ones are not.

    The position is `latest` (after the newest message), `earliest` (before the oldest one), an id (after this message),
    or a time (before the first message that was stored since then).
    """
    with client_of(options) as client:
        client.seek_group(topic, name, position)
        moved = next((one for one in client.groups(topic) if one.name == name), None)
        if moved is None:
            raise TopicError(f"topic {topic!r} has no consumer group {name!r}: it was deleted after its move")
        print_fields(moved, as_json)
