"""`omq ingest`: carries messages from ordinary ZeroMQ sockets into a topic of the broker, until a signal ends it."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import uvloop

import omq
from omq.asyncio.broker import Client
from omq.broker.config import http_address
from omq.broker.errors import BrokerError, TopicError
from omq.broker.ingest import DEFAULT_IN_FLIGHT_BYTES, Ingest
from omq.broker.keys import read_keys, read_public_key, read_secret_key, read_users
from omq.broker.protocol import MAX_BODY, check_name
from omq.cli.broker import LEVELS, PathGiven, explain, read_http
from omq.cli.descriptors import raise_descriptor_limit
from omq.cli.garbage import collector_spared
from omq.cli.ready import ReadyFile, read_ready_file
from omq.errors import OmqError, UsageError

LOG: Final = logging.getLogger("omq.ingest")
TYPES: Final[dict[str, Callable[..., omq.Socket]]] = {
    "PULL": omq.PULL,
    "SUB": omq.SUB,
    "GATHER": omq.GATHER,
    "DISH": omq.DISH,
}
MIN_IN_FLIGHT_BYTES: Final = 64 << 10
FILE: Final = PathGiven(exists=True, dir_okay=False, path_type=Path)


def key_file(read: Callable[[Path], Any]) -> Callable[[click.Context, click.Parameter, Path | None], Any]:
    """Makes a callback that gives what a file holds in place of its path."""

    def callback(ctx: click.Context, param: click.Parameter, value: Path | None) -> Any:
        try:
            return None if value is None else read(value)
        except UsageError as fault:
            raise click.BadParameter(str(fault).partition(" = ")[2], ctx, param) from None

    return callback


def read_topic(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Checks the value of `--topic`."""
    try:
        return check_name(value)
    except TopicError as fault:
        raise click.BadParameter(str(fault), ctx, param) from None


def read_user(path: Path) -> omq.PlainClient:
    """Returns what a file with one `name:password` makes of a client.

    Raises:
        UsageError: It holds something else.
    """
    users = read_users(path)
    if len(users) != 1:
        raise UsageError(f"broker_user_file = {path}: must hold one line name:password, not {len(users)}")
    return omq.PlainClient(*next(iter(users.items())))


def socket_security(
    secret_key: bytes | None, authorized_keys: frozenset[bytes] | None, server_key: bytes | None
) -> omq.CurveServer | omq.CurveClient | None:
    """Returns how the peers of the socket prove who they are.

    Raises:
        UsageError: The options do not go together.
    """
    if server_key is not None:
        if authorized_keys is not None:
            raise UsageError(
                "--curve-authorized-keys-file does not go with --curve-server-key-file: one side is the server"
            )
        return omq.CurveClient(server_key, secret_key=secret_key)
    if authorized_keys is not None and secret_key is None:
        raise UsageError("--curve-authorized-keys-file needs --curve-secret-key-file")
    return None if secret_key is None else omq.CurveServer(secret_key, authorized_keys)


def broker_security(
    broker_key: bytes | None, secret_key: bytes | None, user: omq.PlainClient | None
) -> omq.CurveClient | omq.PlainClient | None:
    """Returns how this process proves to the broker who it is.

    Raises:
        UsageError: The options do not go together.
    """
    if broker_key is None:
        if secret_key is not None:
            raise UsageError("--broker-secret-key-file needs --broker-key-file")
        return user
    if user is not None:
        raise UsageError("--broker-user-file does not go with --broker-key-file: the broker has one mechanism")
    return omq.CurveClient(broker_key, secret_key=secret_key)


def open_socket(name: str, subscribe: tuple[str, ...], join: tuple[str, ...], **options: Any) -> omq.Socket:
    """Makes the socket; it has no endpoint yet.

    Raises:
        UsageError: An option does not fit its type.
    """
    if subscribe and name != "SUB":
        raise UsageError(f"--subscribe is for SUB, not for {name}")
    if join and name != "DISH":
        raise UsageError(f"--join is for DISH, not for {name}")
    if name == "SUB":
        options["subscribe"] = [prefix.encode(errors="surrogateescape") for prefix in subscribe] or [b""]
    elif name == "DISH":
        if not join:
            raise UsageError("--join GROUP is missing: a DISH receives from no group without it")
        options["join"] = list(join)
    return TYPES[name](max_message_size=MAX_BODY, max_parts=2, **options)


async def serve(ingest: Ingest, http: str | None, ready: ReadyFile) -> None:
    """Carries messages until a signal comes, and publishes what was taken; a second signal does not wait for that."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    carries = False

    def end(number: signal.Signals) -> None:
        LOG.info("%s: ending, once %d messages are acknowledged", number.name, ingest.in_flight)
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        ready.remove()
        ingest.stop()
        if not carries:  # the broker is not there yet, and nothing was taken
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    listener = None
    try:
        with ready.cleared(), collector_spared():
            endpoints = {}
            if http is not None:
                from omq.cli.ingest_http import IngestHttp  # needs aiohttp, which ingest without it need not have

                listener = IngestHttp(ingest)
                endpoints["http"] = await listener.start(*http_address(http))
            await ingest.start()
        carries = True
        endpoints = {**ingest.endpoints, **endpoints}
        ready.write_if_possible(endpoints, LOG)
        for name, endpoint in endpoints.items():
            LOG.info("%s: %s", name, endpoint)
        await ingest.run()
    except asyncio.CancelledError:
        pass
    finally:
        ready.remove()
        await ingest.close()
        if listener is not None:
            await listener.close()
    LOG.info("ended: %d messages are published", ingest.stats.published)


@click.command()
@click.option(
    "--socket", "name", type=click.Choice(list(TYPES), case_sensitive=False), required=True, help="The socket's type."
)
@click.option("--bind", multiple=True, metavar="ENDPOINT", help="Where peers connect; may be repeated.")
@click.option("--connect", multiple=True, metavar="ENDPOINT", help="A peer that binds; may be repeated.")
@click.option(
    "--subscribe", multiple=True, metavar="PREFIX", help="SUB: the messages wanted; all if left out. May be repeated."
)
@click.option("--join", multiple=True, metavar="GROUP", help="DISH: a group; may be repeated.")
@click.option("--broker", required=True, metavar="ENDPOINT", help="Where the broker's ZeroMQ clients connect.")
@click.option(
    "--topic",
    required=True,
    metavar="NAME",
    callback=read_topic,
    help="A topic of the broker; it has to be there.",
)
@click.option(
    "--in-flight-bytes",
    type=click.IntRange(MIN_IN_FLIGHT_BYTES, 1 << 30),
    default=DEFAULT_IN_FLIGHT_BYTES,
    show_default=True,
    help="Bytes of messages that are taken and not acknowledged, about.",
)
@click.option(
    "--recv-hwm",
    type=click.IntRange(1, 2**31 - 1),
    default=1000,
    show_default=True,
    help="Messages of each peer that the socket holds besides, at most.",
)
@click.option("--http", metavar="HOST:PORT", callback=read_http, help="Where /metrics (Prometheus) and /healthz are.")
@click.option(
    "--curve-secret-key-file",
    "secret_key",
    type=FILE,
    callback=key_file(read_secret_key),
    help="CURVE on the socket: the key of this process.",
)
@click.option(
    "--curve-authorized-keys-file",
    "authorized_keys",
    type=FILE,
    callback=key_file(read_keys),
    help="CURVE: the public keys of the peers that are let in, one a line; every key if left out.",
)
@click.option(
    "--curve-server-key-file",
    "server_key",
    type=FILE,
    callback=key_file(read_public_key),
    help="CURVE: the public key of the peers, where they are the servers.",
)
@click.option(
    "--broker-key-file",
    "broker_key",
    type=FILE,
    callback=key_file(read_public_key),
    help="CURVE: the broker's public key.",
)
@click.option(
    "--broker-secret-key-file",
    "broker_secret_key",
    type=FILE,
    callback=key_file(read_secret_key),
    help="CURVE: the key that the broker knows this process by; a new one if left out.",
)
@click.option(
    "--broker-user-file",
    "broker_user",
    type=FILE,
    callback=key_file(read_user),
    help="PLAIN: name:password for the broker.",
)
@click.option(
    "--ready-file",
    type=PathGiven(dir_okay=False, path_type=Path),
    callback=read_ready_file,
    help="Written when messages are taken: the endpoints (pull, sub, gather or dish; http) as JSON.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
def ingest(
    name: str,
    bind: tuple[str, ...],
    connect: tuple[str, ...],
    subscribe: tuple[str, ...],
    join: tuple[str, ...],
    broker: str,
    topic: str,
    in_flight_bytes: int,
    recv_hwm: int,
    http: str | None,
    secret_key: bytes | None,
    authorized_keys: frozenset[bytes] | None,
    server_key: bytes | None,
    broker_key: bytes | None,
    broker_secret_key: bytes | None,
    broker_user: omq.PlainClient | None,
    ready_file: Path | None,
    log_level: str,
) -> None:
    """Publish what ordinary ZeroMQ peers send to a topic of omq broker.

    It takes no more than the broker acknowledges, so that its peers wait while the topic is full or the broker is away.
    With SIGTERM or SIGINT it takes nothing new, waits until everything is acknowledged, and ends with status 0.
    """
    logging.basicConfig(
        stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    raise_descriptor_limit(LOG)
    try:
        if not bind and not connect:
            raise UsageError("--bind or --connect is missing: where the messages come from")
        kind = omq.SocketType[name.upper()]
        for endpoint in bind:
            omq.check_endpoint(endpoint, bind=True, socket_type=kind)
        for endpoint in connect:
            omq.check_endpoint(endpoint, socket_type=kind)
        security = socket_security(secret_key, authorized_keys, server_key)
        to_broker = broker_security(broker_key, broker_secret_key, broker_user)
        socket = open_socket(name.upper(), subscribe, join, recv_hwm=recv_hwm, security=security)
        client = Client(broker, timeout=None, security=to_broker)
        carrier = Ingest(socket, client, topic, bind=bind, connect=connect, in_flight_bytes=in_flight_bytes)
        uvloop.run(serve(carrier, http, ReadyFile(ready_file)))
    except UsageError as fault:
        raise click.UsageError(str(fault)) from None
    except ImportError as missing:
        package = (missing.name or str(missing)).partition(".")[0]
        raise click.ClickException(f"--http needs {package}: pip install 'omq-zmtp[broker]'") from None
    except BrokerError as refusal:
        raise click.ClickException(f"--broker {broker}, --topic {topic}: {refusal}") from None
    except (OmqError, OSError) as fault:
        raise click.ClickException(explain(fault)) from None
