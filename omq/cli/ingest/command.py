"""`omq ingest`: copies messages from ordinary ZeroMQ sockets to a topic of the broker, until a signal stops it."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import omq
from omq.asyncio.broker import Client
from omq.broker.errors import BrokerError
from omq.broker.ingest import DEFAULT_IN_FLIGHT_BYTES, Ingest
from omq.broker.protocol import MAX_BODY_BYTES
from omq.cli.client_options import broker_options, broker_security, read_name
from omq.cli.errors import errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.key_options import key_option, socket_security
from omq.cli.parameters import LEVELS, NonEmptyPath, log_format_option, read_http, read_ready_file
from omq.errors import UsageError
from omq.keyfiles import read_keys, read_public_key, read_secret_key
from omq.serving.descriptors import raise_descriptor_limit
from omq.serving.log import log_to_stderr
from omq.serving.run import run_server

if TYPE_CHECKING:
    from omq.serving.http import HttpListener

LOG: Final = logging.getLogger("omq.ingest")
TYPES: Final[dict[str, Callable[..., omq.Socket]]] = {
    "PULL": omq.PULL,
    "SUB": omq.SUB,
    "GATHER": omq.GATHER,
    "DISH": omq.DISH,
}
MIN_IN_FLIGHT_BYTES: Final = 64 << 10

EXAMPLE: Final = """\
omq broker data --bind tcp://127.0.0.1:5555 --topic prices:broadcast:weak &
broker=$!
export OMQ_BROKER=tcp://127.0.0.1:5555
omq ingest --socket PULL --bind tcp://127.0.0.1:5556 --topic prices &
ingest=$!
omq push -c tcp://127.0.0.1:5556 -D 'AAPL 189.95'
omq topic tail prices --from earliest --limit 1
kill $ingest
wait $ingest
kill $broker"""


def open_socket(name: str, subscribe: tuple[str, ...], join: tuple[str, ...], **options: Any) -> omq.Socket:
    """Creates the socket, without endpoints.

    Raises:
        UsageError: An option is not valid for its type.
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
    return TYPES[name](max_message_size=MAX_BODY_BYTES, max_parts=2, **options)


class IngestServer:
    """The server of `run_server`: an ingest and its HTTP listener.

    Args:
        ingest: The ingest.
        http: The address of the listener; `None` for none.

    Attributes:
        endpoints: The endpoints of the socket and the listener, by name.
    """

    def __init__(self, ingest: Ingest, http: str | None) -> None:
        self.endpoints: dict[str, str] = {}
        self._ingest = ingest
        self._http = http
        self._listener: HttpListener | None = None
        self._ingesting: asyncio.Task[None] | None = None
        self._server_task: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        """Waits for the broker, opens the endpoints and starts to copy messages."""
        listening = {}
        if self._http is not None:
            from omq.cli.ingest.http import http_listener  # needs aiohttp, which is only required with --http

            self._listener = http_listener(self._ingest)
            listening["http"] = await self._listener.start(self._http)
        await self._ingest.start()
        self.endpoints = {**self._ingest.endpoints, **listening}
        self._server_task = asyncio.current_task()
        self._ingesting = asyncio.create_task(self._ingest.run())
        self._ingesting.add_done_callback(self._fail)

    def _fail(self, ingesting: asyncio.Task[None]) -> None:
        """Stops the server, whose `close` then raises the error of the ingest."""
        if self._server_task is not None:
            self._server_task.cancel()

    async def close(self) -> None:
        """Stops receiving, waits until all received messages are acknowledged, and closes."""
        try:
            if self._ingesting is not None:
                LOG.info("%d messages wait to be acknowledged", self._ingest.in_flight)
                self._ingesting.remove_done_callback(self._fail)
                self._ingest.stop()
                await self._ingesting
                LOG.info("%d messages are published", self._ingest.stats.published)
        finally:
            await self._ingest.close()
            if self._listener is not None:
                await self._listener.close()


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.option(
    "--socket", "name", type=click.Choice(list(TYPES), case_sensitive=False), required=True, help="The socket's type."
)
@click.option("--bind", multiple=True, metavar="ENDPOINT", help="An endpoint to bind; may be repeated.")
@click.option("--connect", multiple=True, metavar="ENDPOINT", help="An endpoint to connect to; may be repeated.")
@click.option(
    "--subscribe",
    multiple=True,
    metavar="PREFIX",
    help="SUB: a prefix to subscribe to; may be repeated. Default: all messages.",
)
@click.option("--join", multiple=True, metavar="GROUP", help="DISH: a group to join; may be repeated.")
@broker_options
@click.option(
    "--topic",
    required=True,
    metavar="NAME",
    callback=read_name,
    help="A topic of the broker, which must exist.",
)
@click.option(
    "--in-flight-bytes",
    type=click.IntRange(MIN_IN_FLIGHT_BYTES, 1 << 30),
    default=DEFAULT_IN_FLIGHT_BYTES,
    show_default=True,
    help="The approximate bytes of messages that may be received and not acknowledged.",
)
@click.option(
    "--recv-hwm",
    type=click.IntRange(1, 2**31 - 1),
    default=1000,
    show_default=True,
    help="The messages of each peer that may wait in the socket.",
)
@click.option("--http", metavar="HOST:PORT", callback=read_http, help="Address of /metrics (Prometheus) and /healthz.")
@key_option(
    "--curve-secret-key-file", "secret_key", read_secret_key, "CURVE on the socket: the secret key of this process."
)
@key_option(
    "--curve-authorized-keys-file",
    "authorized_keys",
    read_keys,
    "CURVE: the public keys of admitted peers, one a line. Default: every key.",
)
@key_option(
    "--curve-server-key-file",
    "server_key",
    read_public_key,
    "CURVE: the public key of the peers, if they are the servers.",
)
@click.option(
    "--ready-file",
    type=NonEmptyPath(dir_okay=False, path_type=Path),
    callback=read_ready_file,
    help="Written once messages are received: the endpoints (pull, sub, gather or dish; http) as JSON.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@log_format_option
def ingest(
    name: str,
    bind: tuple[str, ...],
    connect: tuple[str, ...],
    subscribe: tuple[str, ...],
    join: tuple[str, ...],
    broker: tuple[str, ...],
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
    log_format: str,
) -> None:
    """Publish the messages of ordinary ZeroMQ peers to a topic of omq broker.

    It receives only as fast as the broker acknowledges: its peers wait while the topic is full or the broker is down.
    After SIGTERM or SIGINT it stops receiving, waits until everything is acknowledged, and ends with status 0.
    """
    log_to_stderr(log_level, log_format)
    raise_descriptor_limit(LOG)
    with errors_of_command("--http", "broker"):
        if not bind and not connect:
            raise UsageError("--bind or --connect is missing: give at least one endpoint to receive from")
        kind = omq.SocketType[name.upper()]
        for endpoint in bind:
            omq.check_endpoint(endpoint, bind=True, socket_type=kind)
        for endpoint in connect:
            omq.check_endpoint(endpoint, socket_type=kind)
        security = socket_security(secret_key, authorized_keys, server_key)
        to_broker = broker_security(broker_key, broker_secret_key, broker_user)
        socket = open_socket(name.upper(), subscribe, join, recv_hwm=recv_hwm, security=security)
        client = Client(broker, timeout=None, security=to_broker)
        ingest_ = Ingest(socket, client, topic, bind=bind, connect=connect, in_flight_bytes=in_flight_bytes)
        try:
            run_server(IngestServer(ingest_, http), LOG, ready_file=ready_file)
        except BrokerError as refusal:
            raise click.ClickException(f"--broker {','.join(broker)}, --topic {topic}: {refusal}") from None
