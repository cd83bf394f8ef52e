"""`omq pzq`: the store-and-forward device, served until a signal ends it. Its options are those of the original."""

import logging
import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from omq.cli.errors import errors_of_command
from omq.cli.parameters import LEVELS, NonEmptyPath, read_http, read_ready_file
from omq.keyfiles import SecurityFiles, read_secret_key
from omq.pzq.cluster.settings import NODE_TIMEOUT_US, REPLICATION_TIMEOUT_US
from omq.pzq.device.device import ACK_TIMEOUT_US, MAX_IN_FLIGHT_BYTES, REAPER_INTERVAL_US, AsyncDevice
from omq.security import CurveClient, curve_public
from omq.serving.descriptors import raise_descriptor_limit
from omq.serving.log import log_to_stderr
from omq.serving.run import run_server
from omq.types import Security

LOG: Final = logging.getLogger("omq.pzq")
OPTIONS: Final = {
    "receive": "--receive-dsn",
    "send": "--send-dsn",
    "monitor": "--monitor-dsn",
    "dead_letter": "--dead-letter-dsn",
    "broadcast": "--broadcast-dsn",
    "secret_key_file": "--curve-secret-key-file",
    "authorized_keys_file": "--curve-authorized-keys-file",
}
COUNT: Final = click.IntRange(1, 2**53 - 1)


def read_user(ctx: click.Context, param: click.Parameter, value: str | None) -> pwd.struct_passwd | None:
    """Reads `--user`; an empty one changes nothing, as in the original."""
    try:
        return pwd.getpwnam(value) if value else None
    except KeyError:
        raise click.BadParameter(f"there is no user {value!r}", ctx, param) from None


def switch_user(user: pwd.struct_passwd) -> None:
    """Goes on as another user.

    Raises:
        ClickException: The system does not let us.
    """
    if os.geteuid() == user.pw_uid:
        return
    try:
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    except OSError as fault:
        raise click.ClickException(f"cannot become the user {user.pw_name}: {fault.strerror}") from None


def daemonize() -> Callable[[], None]:
    """Leaves the terminal; standard error stays, for the log.

    Returns:
        The call that reports to the process that waits for this one that it serves: that one ends with status 0. If
        this one ends before, with 1.
    """
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        os._exit(0 if os.read(read_end, 1) else 1)
    os.close(read_end)
    os.setsid()
    if os.fork():
        os._exit(0)
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(devnull, descriptor)
    os.close(devnull)
    if os.isatty(2):
        os.dup2(0, 2)

    def report_ready() -> None:
        with suppress(BrokenPipeError):  # no process waits any more
            os.write(write_end, b"1")
        os.close(write_end)

    return report_ready


def security_of(secret_key: Path | None, authorized_keys: Path | None) -> Security | None:
    """Reads the files of `--curve-*`.

    Raises:
        UsageError: A file does not hold what it should, or the secret key is missing.
    """
    if secret_key is None and authorized_keys is None:
        return None
    return SecurityFiles("curve", secret_key, authorized_keys).load().security


def peer_security_of(secret_key: Path | None) -> CurveClient | None:
    """Returns the security with which a node connects to the others: all of a cluster have the same key."""
    if secret_key is None:
        return None
    secret = read_secret_key(secret_key)
    return CurveClient(curve_public(secret), secret_key=secret)


@click.command()
@click.option(
    "--database",
    type=NonEmptyPath(file_okay=False, path_type=Path),
    default="/tmp/sink.kch",
    show_default=True,
    help="The directory of the messages; made if it is not there.",
)
@click.option(
    "--ack-timeout",
    type=COUNT,
    default=ACK_TIMEOUT_US,
    show_default=True,
    help="How long a consumer may take to acknowledge a message before it is delivered again (microseconds).",
)
@click.option(
    "--reaper-frequency",
    type=COUNT,
    default=REAPER_INTERVAL_US,
    show_default=True,
    help="How often to look for messages that were not acknowledged in time (microseconds).",
)
@click.option(
    "--hard-sync", is_flag=True, help="Acknowledge a message once it is on the disk; else it is there within a second."
)
@click.option(
    "--inflight-size",
    type=COUNT,
    default=MAX_IN_FLIGHT_BYTES,
    show_default=True,
    help="The most bytes of bodies that consumers may have; a larger body is delivered alone.",
)
@click.option("--receive-dsn", default="tcp://*:11131", show_default=True, help="Where producers connect.")
@click.option("--send-dsn", default="tcp://*:11132", show_default=True, help="Where consumers connect.")
@click.option(
    "--monitor-dsn", default="ipc:///tmp/pzq-monitor", show_default=True, help="Where it answers with its statistics."
)
@click.option(
    "--max-deliveries",
    type=COUNT,
    help="After how many deliveries in vain a message becomes a dead letter; never if left out.",
)
@click.option(
    "--replicas",
    type=click.IntRange(0, 2**53 - 1),
    default=0,
    show_default=True,
    help="How many other nodes must have a message before its producer gets a positive answer.",
)
@click.option("--nodes", default="", help="The receive endpoints of the other nodes, separated by commas.")
@click.option(
    "--broadcast-dsn",
    help="Where this node receives from the others, and its name among them; they have the same port at their hosts.",
)
@click.option(
    "--timeout-nodes",
    type=COUNT,
    default=NODE_TIMEOUT_US,
    show_default=True,
    help="After how long a node is silent, and others deliver its messages (microseconds).",
)
@click.option(
    "--timeout-replication",
    "--timeout_replication",
    type=COUNT,
    default=REPLICATION_TIMEOUT_US,
    show_default=True,
    help="How long a producer's answer waits for the replicas (microseconds).",
)
@click.option(
    "--allow-replicas-from",
    multiple=True,
    metavar="ADDRESS",
    help="An address or a network that nodes may speak from besides the hosts of --nodes; may be repeated.",
)
@click.option("--dead-letter-dsn", help="Where consumers of dead letters connect.")
@click.option(
    "--http", metavar="HOST:PORT", callback=read_http, help="Where /metrics (Prometheus) and /healthz are served."
)
@click.option(
    "--curve-secret-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CURVE on all sockets: the device's key.",
)
@click.option(
    "--curve-authorized-keys-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CURVE: the public keys that are let in, one a line; every key if left out.",
)
@click.option("--user", callback=read_user, help="The user to go on as, before anything is opened.")
@click.option("--background", is_flag=True, help="Go to the background once it serves.")
@click.option(
    "--ready-file",
    type=NonEmptyPath(dir_okay=False, path_type=Path),
    callback=read_ready_file,
    help="Written when everything serves: the endpoints (receive, send, monitor, dead_letter, http) as JSON.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
def pzq(
    database: Path,
    ack_timeout: int,
    reaper_frequency: int,
    hard_sync: bool,
    inflight_size: int,
    receive_dsn: str,
    send_dsn: str,
    monitor_dsn: str,
    max_deliveries: int | None,
    replicas: int,
    nodes: str,
    broadcast_dsn: str | None,
    timeout_nodes: int,
    timeout_replication: int,
    allow_replicas_from: tuple[str, ...],
    dead_letter_dsn: str | None,
    http: str | None,
    curve_secret_key_file: Path | None,
    curve_authorized_keys_file: Path | None,
    user: pwd.struct_passwd | None,
    background: bool,
    ready_file: Path | None,
    log_level: str,
) -> None:
    """Store and forward: keep messages of producers until a consumer has finished them.

    The options are those of pzq, whose clients work with it. It logs to standard error, and ends in an orderly way
    with SIGTERM or SIGINT.
    """
    log_to_stderr(log_level)
    raise_descriptor_limit(LOG)
    with errors_of_command("the device", "broker", OPTIONS):
        device = AsyncDevice(
            database.absolute(),
            receive=receive_dsn,
            send=send_dsn,
            monitor=monitor_dsn,
            dead_letter=dead_letter_dsn,
            http=http,
            hard_sync=hard_sync,
            ack_timeout=ack_timeout,
            reaper_frequency=reaper_frequency,
            inflight_size=inflight_size,
            max_deliveries=max_deliveries,
            security=security_of(curve_secret_key_file, curve_authorized_keys_file),
            nodes=[node.strip() for node in nodes.split(",")] if nodes else (),
            broadcast=broadcast_dsn,
            replicas=replicas,
            timeout_nodes=timeout_nodes,
            timeout_replication=timeout_replication,
            allow_replicas_from=allow_replicas_from,
            peer_security=peer_security_of(curve_secret_key_file),
        )
        report_ready = daemonize() if background else None
        if user is not None:
            switch_user(user)
        run_server(device, LOG, ready_file=ready_file, on_start=report_ready)
