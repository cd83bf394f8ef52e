"""`omq durable`: administers the durable subscriptions of a running broker."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import click

from omq.broker import Client
from omq.broker.errors import Overrun, TopicError
from omq.broker.types import DurableInfo
from omq.cli.client_options import NAME, START_METAVAR, TOPIC, client_of, client_options, read_start
from omq.cli.examples import ExampleGroup
from omq.cli.report import confirm, json_option, print_fields, print_result, print_table, yes_option

EXAMPLE: Final = """\
omq broker data --bind tcp://127.0.0.1:5555 --topic prices:broadcast:weak &
broker=$!
export OMQ_BROKER=tcp://127.0.0.1:5555
omq durable ls prices
kill $broker"""


@click.group(cls=ExampleGroup, example=EXAMPLE)
def durable() -> None:
    """Administer the durable subscriptions of a running broker."""


@durable.command("ls")
@TOPIC
@json_option
@client_options
def list_durables(topic: str, as_json: bool, **options: Any) -> None:
    """List the durable subscriptions of a topic."""
    with client_of(options) as client:
        print_table(DurableInfo, client.durables(topic), as_json)


@durable.command()
@TOPIC
@NAME
@yes_option
@json_option
@client_options
def delete(topic: str, name: str, yes: bool, as_json: bool, **options: Any) -> None:
    """Delete a durable subscription that no client has open."""
    confirm(f"Delete the durable subscription {name!r} of topic {topic!r}?", yes)
    with client_of(options) as client:
        client.delete_durable(topic, name)
        print_result(f"{topic}, {name}: deleted", as_json, topic=topic, name=name, deleted=True)


@durable.command()
@TOPIC
@NAME
@click.argument("position", metavar=START_METAVAR, callback=read_start)
@click.option("--take-over", is_flag=True, help="Also if a client has it open: the calls of that client then fail.")
@json_option
@client_options
def seek(topic: str, name: str, position: str | int | datetime, take_over: bool, as_json: bool, **options: Any) -> None:
    """Move the cursor of a durable subscription: the next message is the one after the position.

    The position is `latest` (after the newest message), `earliest` (before the oldest one), an id (after this message),
    or a time (before the first message that was stored since then).
    """
    with client_of(options) as client:
        find(client, topic, name)  # a subscription with another name would create it
        cursor = cursor_of(client, topic, position)
        # The start applies if the messages after the present cursor are no longer kept.
        with client.subscribe(topic, name=name, replay="earliest", take_over=take_over, credit=1) as subscription:
            subscription.ack(cursor)
            client.flush()
            at = find(client, topic, name).position
        if at != cursor:
            why = "a topic with retention or retain_for does not move it back" if at > cursor else "it was taken over"
            raise TopicError(f"the cursor of {name!r} in topic {topic!r} is at {at}, not at {cursor}: {why}")
        print_fields(find(client, topic, name), as_json)


def find(client: Client, topic: str, name: str) -> DurableInfo:
    """Returns a durable subscription.

    Raises:
        TopicError: It does not exist.
    """
    for one in client.durables(topic):
        if one.name == name:
            return one
    raise TopicError(f"topic {topic!r} has no durable subscription {name!r}")


def cursor_of(client: Client, topic: str, position: str | int | datetime) -> int:
    """Returns the id of the message before a position.

    Raises:
        TopicError: The position is above the newest id, or in the future.
        Overrun: The messages after the position are no longer kept.
    """
    if isinstance(position, datetime):
        client.subscribe(topic, replay=position, credit=1).close()  # fails if messages since then were dropped
        return client.offset_at(topic, position) - 1
    info = client.topics(topic)[0]
    if isinstance(position, str):
        return info.last if position == "latest" else info.first - 1
    if position > info.last:
        raise TopicError(f"position {position} is above the newest id of topic {topic!r}, {info.last}")
    if position < info.first - 1:
        raise Overrun(
            f"messages after {position} of topic {topic!r} are no longer kept; the oldest is {info.first}", info.first
        )
    return position
