"""`omq topic`: administers the topics of a running broker, publishes to them and reads them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any, BinaryIO, Final

import click

from omq.broker import Client
from omq.broker.config import ConfigError, TopicSpec, parse_settings
from omq.broker.errors import BrokerError
from omq.broker.protocol import MAX_BODY_BYTES, MAX_MESSAGE_ID_BYTES
from omq.broker.settings import DELIVERIES, PERSISTENCES, SETTINGS, InvalidSetting, suggestion
from omq.broker.types import Record, TopicInfo
from omq.cli.client_options import (
    BOUND_METAVAR,
    MAX_ID_DIGITS,
    START_METAVAR,
    TOPIC,
    client_of,
    client_options,
    read_bound,
    read_name,
    read_start,
)
from omq.cli.examples import ExampleGroup
from omq.cli.lines import lines_of
from omq.cli.parameters import sigterm_interrupts
from omq.cli.report import confirm, json_option, print_fields, print_message, print_result, print_table, yes_option

DEFAULT_PEEK_MESSAGES: Final = 10
MAX_HEADER_NAME_BYTES: Final = 65_535
NO_VALUE: Final = "none"  # removes a setting
ID: Final = click.IntRange(1, 10**MAX_ID_DIGITS - 1)

EXAMPLE: Final = """\
omq broker data --bind tcp://127.0.0.1:5555 --topic prices:broadcast:weak &
broker=$!
export OMQ_BROKER=tcp://127.0.0.1:5555
omq topic create news max_age=86400 --persistence weak
omq topic publish news hello
omq topic tail news --from earliest --limit 1
kill $broker"""


@click.group(cls=ExampleGroup, example=EXAMPLE)
def topic() -> None:
    """Administer the topics of a running broker, publish to them and read them."""


def read_settings(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> dict[str, Any]:
    """Parses settings as `--topic` of `omq broker` does; `none` is the value of a setting without one."""
    try:
        settings = {key: None if value == NO_VALUE else value for key, value in parse_settings(words).items()}
        for key, value in settings.items():
            check_setting(key, value)
    except (ConfigError, InvalidSetting) as fault:
        raise click.BadParameter(str(fault), ctx, param) from None
    return settings


def check_setting(key: str, value: object) -> None:
    """Checks one setting; the broker checks it together with the others.

    Raises:
        InvalidSetting: The setting is unknown, or its value is not valid.
    """
    if key in ("delivery", "persistence"):
        return  # the broker explains what to do
    if key not in SETTINGS:
        raise InvalidSetting(key, value, f"unknown setting{suggestion(key, SETTINGS)}")
    try:
        if value is not None:
            SETTINGS[key](value)
    except ValueError as reason:
        raise InvalidSetting(key, value, str(reason)) from None


def read_headers(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> dict[str, bytes]:
    """Parses the values of `--header`."""
    headers = {}
    for word in words:
        name, mark, value = word.partition("=")
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            raise click.BadParameter(f"{word!r}: the name must be UTF-8", ctx, param) from None
        if not mark or size > MAX_HEADER_NAME_BYTES:
            raise click.BadParameter(f"{word[:80]!r}: must be NAME=VALUE, such as source=demo", ctx, param)
        if name in headers:
            raise click.BadParameter(f"{word[:80]!r}: {name[:80]!r} is given twice", ctx, param)
        headers[name] = os.fsencode(value)
    return headers


def read_bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> bytes | None:
    """Returns an argument as the bytes that the shell has passed."""
    return None if value is None else os.fsencode(value)


def read_message_id(ctx: click.Context, param: click.Parameter, value: str | None) -> bytes | None:
    """Checks the value of `--message-id`."""
    found = read_bytes(ctx, param, value)
    if found is not None and not 1 <= len(found) <= MAX_MESSAGE_ID_BYTES:
        raise click.BadParameter(f"must have 1 to {MAX_MESSAGE_ID_BYTES} bytes, not {len(found)}", ctx, param)
    return found


# ---------------------------------------------------------------------- topics


@topic.command("ls")
@json_option
@client_options
def list_topics(as_json: bool, **options: Any) -> None:
    """List the topics that this client may use."""
    with client_of(options) as client:
        print_table(TopicInfo, client.topics(), as_json)


@topic.command()
@TOPIC
@json_option
@client_options
def info(topic: str, as_json: bool, **options: Any) -> None:
    """Print a topic: its settings, ids and size."""
    with client_of(options) as client:
        print_fields(client.topics(topic)[0], as_json)


@topic.command()
@TOPIC
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1, callback=read_settings)
@click.option("--delivery", type=click.Choice(DELIVERIES), default="broadcast", show_default=True)
@click.option("--persistence", type=click.Choice(PERSISTENCES), default="strong", show_default=True)
@json_option
@client_options
def create(
    topic: str, settings: dict[str, Any], delivery: str, persistence: str, as_json: bool, **options: Any
) -> None:
    """Create a topic, with settings such as max_age=86400. Do nothing if it exists with the same settings."""
    with client_of(options) as client:
        given = {key: value for key, value in settings.items() if value is not None}
        spec = TopicSpec(topic, delivery, persistence, given)
        created = client.create(spec.name, delivery=spec.delivery, persistence=spec.persistence, **dict(spec.settings))
        print_fields(created, as_json)


@topic.command()
@TOPIC
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True, callback=read_settings)
@click.option("--force", is_flag=True, help="Also if the change drops messages.")
@json_option
@client_options
def alter(topic: str, settings: dict[str, Any], force: bool, as_json: bool, **options: Any) -> None:
    """Change settings of a topic. KEY=none removes a setting; settings that are not given stay."""
    with client_of(options) as client:
        print_fields(client.alter(topic, force=force, **settings), as_json)


@topic.command()
@TOPIC
@yes_option
@json_option
@client_options
def delete(topic: str, yes: bool, as_json: bool, **options: Any) -> None:
    """Delete a topic with all its messages."""
    confirm(f"Delete topic {topic!r} with all its messages?", yes)
    with client_of(options) as client:
        client.delete(topic)
        print_result(f"{topic}: deleted", as_json, topic=topic, deleted=True)


# ---------------------------------------------------------------------- messages


@topic.command()
@TOPIC
@click.argument("body", required=False, callback=read_bytes)
@click.option("--file", type=click.File("rb"), help="The file with the body. Default: standard input.")
@click.option("--lines", is_flag=True, help="Publish each line of the file or of standard input as a message.")
@click.option("--key", callback=read_bytes, help="The key of the message.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    callback=read_headers,
    help="A header of the message; may be repeated.",
)
@click.option(
    "--message-id",
    metavar="ID",
    callback=read_message_id,
    help="An idempotency key: a second publish with it stores nothing, and prints the id of the first.",
)
@json_option
@client_options
def publish(
    topic: str,
    body: bytes | None,
    file: BinaryIO | None,
    lines: bool,
    key: bytes | None,
    headers: dict[str, bytes],
    message_id: bytes | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Publish BODY, the content of a file or standard input, or each line of it."""
    if body is not None and (file is not None or lines):
        raise click.UsageError(f"BODY does not go with {'--lines' if file is None else '--file'}")
    if lines and message_id is not None:
        raise click.UsageError("--message-id does not go with --lines: it identifies one message")
    source = file or (standard_input() if body is None else None)
    if source is not None and not lines:
        body = read_body(source)
    with client_of(options) as client:
        if body is None:
            assert source is not None
            count, first, last = publish_lines(client, topic, source, key, headers)
        else:
            count = 1
            first = last = client.publish(topic, body, key=key, headers=headers, message_id=message_id)
        ids = "" if first is None else f", id {first}" if count == 1 else f", ids {first} to {last}"
        text = f"{topic}: {count} {'message' if count == 1 else 'messages'} published{ids}"
        print_result(text, as_json, topic=topic, count=count, first=first, last=last)


def standard_input() -> BinaryIO:
    """Returns standard input.

    Raises:
        UsageError: It is closed.
    """
    if sys.stdin is None:
        raise click.UsageError("BODY is missing, and standard input is closed")
    return sys.stdin.buffer


def read_body(source: BinaryIO) -> bytes:
    """Returns the whole content of a file.

    Raises:
        UsageError: It is too large for a body.
    """
    body = source.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise click.UsageError(f"the body has more than {MAX_BODY_BYTES} bytes; --lines publishes each line")
    return body


def publish_lines(
    client: Client, topic: str, source: BinaryIO, key: bytes | None, headers: dict[str, bytes]
) -> tuple[int, int | None, int | None]:
    """Publishes each line of a file as a message, as soon as it can be read.

    Returns:
        The number of messages, and the first and the last id; `None` without messages.

    Raises:
        BrokerError: The text has the number of messages that were published before.
    """
    count = 0
    first: int | None = None
    last: int | None = None
    for lines in lines_of(source):
        try:
            ids = client.publish_many(topic, (Record(line, key, headers) for line in lines))
        except BrokerError as error:
            raise type(error)(f"{error}; before that, {count} messages were published") from error
        count, first, last = count + len(ids), first or ids[0], ids[-1]
    return count, first, last


@topic.command()
@TOPIC
@click.option(
    "--from",
    "start",
    callback=read_start,
    metavar=START_METAVAR,
    default="latest",
    show_default=True,
    help="The start: new messages, all messages, those after an id, or those since a time.",
)
@click.option("--limit", type=click.IntRange(1), help="The number of messages after which to end.")
@json_option
@client_options
def tail(topic: str, start: str | int | datetime, limit: int | None, as_json: bool, **options: Any) -> None:
    """Subscribe to a broadcast topic, and print its messages until SIGINT or SIGTERM.

    With --json each message is one line with the fields of `omq store dump`.
    """
    with suppress(KeyboardInterrupt), sigterm_interrupts(), client_of(options) as client:
        for count, message in enumerate(client.subscribe(topic, replay=start), 1):
            print_message(message, as_json)
            if count == limit:
                break


@topic.command()
@TOPIC
@click.option("--start", callback=read_bound, metavar=BOUND_METAVAR, help="The first message. Default: the oldest one.")
@click.option("--stop", callback=read_bound, metavar=BOUND_METAVAR, help="The message before which to end.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=DEFAULT_PEEK_MESSAGES,
    show_default=True,
    help="The largest number of messages.",
)
@json_option
@client_options
def peek(
    topic: str, start: int | datetime | None, stop: int | datetime | None, limit: int, as_json: bool, **options: Any
) -> None:
    """Print messages that a topic keeps now, without consuming them.

    With --json each message is one line with the fields of `omq store dump`.
    """
    with client_of(options) as client:
        for message in client.read(topic, start, stop, limit=limit):
            print_message(message, as_json)


@topic.command()
@TOPIC
@click.option("--up-to", type=ID, metavar="ID", help="The last message to drop. Default: the newest one.")
@yes_option
@json_option
@client_options
def purge(topic: str, up_to: int | None, yes: bool, as_json: bool, **options: Any) -> None:
    """Drop the messages of a topic; of a round-robin topic those that wait."""
    confirm(f"Drop {'all messages' if up_to is None else f'the messages up to {up_to}'} of topic {topic!r}?", yes)
    with client_of(options) as client:
        count = client.purge(topic, up_to=up_to)
        print_result(f"{topic}: {count} messages dropped", as_json, topic=topic, dropped=count)


@topic.command()
@TOPIC
@click.option(
    "--to",
    metavar="TOPIC",
    callback=read_name,
    help="The topic to which the dead letters go. Default: the one that each came from.",
)
@click.option("--limit", type=click.IntRange(1), help="The largest number of dead letters. Default: all.")
@yes_option
@json_option
@client_options
def requeue(topic: str, to: str | None, limit: int | None, yes: bool, as_json: bool, **options: Any) -> None:
    """Move the dead letters in TOPIC back to the topics that they came from."""
    number = "all" if limit is None else f"at most {limit}"
    target = "the topics that they came from" if to is None else f"topic {to!r}"
    confirm(f"Move {number} dead letters in topic {topic!r} to {target}?", yes)
    with client_of(options) as client:
        count = client.requeue(topic, to=to, limit=limit)
        print_result(f"{topic}: {count} dead letters moved", as_json, topic=topic, moved=count)
