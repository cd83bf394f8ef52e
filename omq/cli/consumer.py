"""`omq consumer`: lists and deletes what keeps a position in a topic: durable subscriptions and consumer groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from omq.broker import Client
from omq.broker.errors import TopicError
from omq.cli.client_options import NAME, TOPIC, client_of, client_options
from omq.cli.examples import ExampleGroup
from omq.cli.report import ConsumerRow, confirm, json_option, print_fields, print_result, print_table, yes_option

_F = TypeVar("_F", bound=Callable[..., Any])

EXAMPLE: Final = """\
omq broker data --bind tcp://127.0.0.1:5555 --topic prices:broadcast:weak &
broker=$!
export OMQ_BROKER=tcp://127.0.0.1:5555
omq consumer ls prices
kill $broker"""
DURABLE: Final = "durable"
GROUP: Final = "group"


def kind_option(function: _F) -> _F:
    """Adds `--kind` to a command."""
    return click.option(
        "--kind",
        type=click.Choice((DURABLE, GROUP)),
        help="Needed if a durable subscription and a group have the name.",
    )(function)


@click.group(cls=ExampleGroup, example=EXAMPLE)
def consumer() -> None:
    """Administer the durable subscriptions and consumer groups of a running broker."""


@consumer.command("ls")
@TOPIC
@json_option
@client_options
def list_consumers(topic: str, as_json: bool, **options: Any) -> None:
    """List the durable subscriptions and consumer groups of a topic."""
    with client_of(options) as client:
        print_table(ConsumerRow, rows_of(client, topic), as_json)


@consumer.command()
@TOPIC
@NAME
@kind_option
@json_option
@client_options
def info(topic: str, name: str, kind: str | None, as_json: bool, **options: Any) -> None:
    """Print a durable subscription or a consumer group."""
    with client_of(options) as client:
        print_fields(find(client, topic, name, kind), as_json)


@consumer.command()
@TOPIC
@NAME
@kind_option
@yes_option
@json_option
@client_options
def delete(topic: str, name: str, kind: str | None, yes: bool, as_json: bool, **options: Any) -> None:
    """Delete a durable subscription that no client has open, or a consumer group that has no consumers."""
    confirm(f"Delete {name!r} of topic {topic!r}?", yes)
    with client_of(options) as client:
        found = find(client, topic, name, kind)
        if found.kind == GROUP:
            client.delete_group(topic, name)
        else:
            client.delete_durable(topic, name)
        print_result(f"{topic}, {name}: deleted", as_json, topic=topic, name=name, kind=found.kind, deleted=True)


def rows_of(client: Client, topic: str) -> list[ConsumerRow]:
    """Returns the durable subscriptions and the consumer groups of a topic."""
    durables = [
        ConsumerRow(one.name, DURABLE, one.position, one.lag, None, int(one.held), one.active)
        for one in client.durables(topic)
    ]
    groups = [
        ConsumerRow(one.name, GROUP, None, one.lag, one.in_flight, one.consumers, one.active)
        for one in client.groups(topic)
    ]
    return durables + groups


def find(client: Client, topic: str, name: str, kind: str | None) -> ConsumerRow:
    """Returns a durable subscription or a consumer group.

    Raises:
        TopicError: It does not exist.
        UsageError: Both have the name, and *kind* is missing.
    """
    found = [row for row in rows_of(client, topic) if row.name == name and kind in (None, row.kind)]
    if not found:
        what = {DURABLE: "durable subscription", GROUP: "consumer group"}.get(
            kind or "", "durable subscription or group"
        )
        raise TopicError(f"topic {topic!r} has no {what} {name!r}")
    if len(found) > 1:
        raise click.UsageError(f"topic {topic!r} has a durable subscription and a group {name!r}: --kind is missing")
    return found[0]
