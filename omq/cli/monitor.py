"""`omq monitor`: prints the events of a socket's connections as they happen."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import click

from omq.cli.errors import echo, errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.parameters import FiniteFloat, sigterm_interrupts
from omq.cli.sockets.options import attach, new_socket, read_bytes, socket_options
from omq.cli.sockets.output import is_terminal
from omq.event import Event, EventKind
from omq.types import SocketType

EXAMPLE: Final = """\
omq monitor pull -b tcp://127.0.0.1:5555 -n 4 &
omq push -c tcp://127.0.0.1:5555 -D hello"""
COLORS: Final = {
    **dict.fromkeys((EventKind.LISTENING, EventKind.HANDSHAKE_SUCCEEDED, EventKind.SUBSCRIBED), "green"),
    **dict.fromkeys((EventKind.CONNECTED, EventKind.ACCEPTED), "cyan"),
    **dict.fromkeys((EventKind.BIND_FAILED, EventKind.ACCEPT_FAILED, EventKind.HANDSHAKE_FAILED), "red"),
    **dict.fromkeys((EventKind.CONNECT_FAILED, EventKind.DROPPED, EventKind.MISSED), "red"),
    **dict.fromkeys((EventKind.DISCONNECTED, EventKind.CONNECT_RETRIED), "yellow"),
}
WIDTH: Final = max(map(len, EventKind))


def fields_of(event: Event) -> dict[str, Any]:
    """Returns the attributes that an event uses; bytes that are not UTF-8 are escaped."""
    found: dict[str, Any] = {"time": event.time, "kind": str(event.kind)}
    values: dict[str, Any] = {
        "endpoint": event.endpoint,
        "remote_address": event.remote_address,
        "mechanism": event.mechanism,
        "category": event.category and str(event.category),
        "reason": event.detail,
        "delay": event.delay,
        "prefix": None if event.prefix is None else event.prefix.decode(errors="backslashreplace"),
        "count": event.count or None,
    }
    if event.peer is not None:
        kind = event.peer.properties.get(b"socket-type", b"").decode(errors="replace")
        values |= {"socket_type": kind, "user_id": event.peer.user_id}
    return found | {name: value for name, value in values.items() if value not in (None, "")}


def line_of(event: Event) -> str:
    """Returns an event as a line: the time, the kind, the address of the peer or the endpoint, and what is new."""
    fields = fields_of(event)
    time = datetime.fromtimestamp(fields.pop("time")).astimezone()
    kind = f"{fields.pop('kind'):{WIDTH}}"
    if is_terminal():
        kind = click.style(kind, COLORS.get(event.kind))
    endpoint = fields.pop("endpoint", "")
    address = fields.pop("remote_address", endpoint)
    if event.kind is not EventKind.HANDSHAKE_SUCCEEDED:
        for name in ("mechanism", "socket_type", "user_id"):
            fields.pop(name, None)
    words = [f"{name}={_word(value)}" for name, value in fields.items()]
    return " ".join((time.strftime("%H:%M:%S.%f"), kind, address, *words)).rstrip()


def _word(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return json.dumps(text, ensure_ascii=False) if not text.isprintable() or " " in text else text


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.argument(
    "socket_type", metavar="TYPE", type=click.Choice([kind.value for kind in SocketType], case_sensitive=False)
)
@click.option(
    "-s", "--subscribe", multiple=True, metavar="PREFIX", callback=read_bytes, help="SUB: a prefix to subscribe to."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Events after which to end.")
@click.option(
    "-t",
    "--timeout",
    type=FiniteFloat(0),
    metavar="SECONDS",
    help="Seconds that each event may take. Default: for ever.",
)
@socket_options
def monitor(
    socket_type: str,
    subscribe: tuple[bytes, ...],
    as_json: bool,
    count: int | None,
    timeout: float | None,
    **options: Any,
) -> None:
    """Open a socket of a TYPE, such as pull, and print the events of its connections until SIGINT or SIGTERM.

    The socket is a peer like others: a PULL gets messages that other consumers then do not get. It reads none of them,
    and --recv-hwm limits how many arrive.
    """
    kind = SocketType(socket_type.upper())
    given = {"subscribe": list(subscribe)} if subscribe else {}
    with (
        suppress(KeyboardInterrupt),
        errors_of_command("the command", "cli"),
        sigterm_interrupts(),
        new_socket(kind, {**options, "linger": 0}, **given) as socket,
        socket.monitor() as events,
    ):
        attach(socket, {**options, "quiet": True})
        for _ in range(count) if count is not None else iter(int, 1):
            event = events.recv(timeout=timeout)
            echo(json.dumps(fields_of(event), ensure_ascii=False) if as_json else line_of(event))
