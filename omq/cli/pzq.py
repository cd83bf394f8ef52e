"""`omq pzq`: serves a store-and-forward device until a signal stops it. It has the options of the original pzq."""

import logging
import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from omq.cli.errors import errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.parameters import (
    LEVELS,
    NonEmptyPath,
    cluster_options,
    is_reachable,
    log_format_option,
    read_http,
    read_ready_file,
)
from omq.errors import UsageError
from omq.keyfiles import SecurityFiles, read_secret_key
from omq.pzq.cluster.settings import NODE_TIMEOUT_US, REPLICATION_TIMEOUT_US
from omq.pzq.device.device import ACK_TIMEOUT_US, MAX_IN_FLIGHT_BYTES, REAPER_INTERVAL_US, AsyncDevice
from omq.security import CurveClient, curve_public
from omq.serving.cluster import Cluster
from omq.serving.descriptors import raise_descriptor_limit
from omq.serving.log import log_to_stderr
from omq.serving.ready import ReadyFile
from omq.serving.run import run_server
from omq.types import Security

LOG: Final = logging.getLogger("omq.pzq")
OPTIONS: Final = {
    "receive": "--receive-dsn",
    "send": "--send-dsn",
    "monitor": "--monitor-dsn",
    "dead_letter": "--dead-letter-dsn",
    "broadcast": "--broadcast-dsn",
    "name": "--cluster",
    "servers": "--replicated",
    "secret_key_file": "--curve-secret-key-file",
    "authorized_keys_file": "--curve-authorized-keys-file",
}
COUNT: Final = click.IntRange(1, 2**53 - 1)

EXAMPLE: Final = """\
omq pzq --database queue --receive-dsn tcp://127.0.0.1:5555 --send-dsn tcp://127.0.0.1:5556 \\
  --monitor-dsn tcp://127.0.0.1:5557 &
pzq=$!
omq dealer -c tcp://127.0.0.1:5555 --delimiter , -D '1,type: job,,hello' -n 1
omq req -c tcp://127.0.0.1:5557 -D MONITOR
kill $pzq"""


def read_user(ctx: click.Context, param: click.Parameter, value: str | None) -> pwd.struct_passwd | None:
    """Parses `--user`; an empty value changes nothing, as in the original."""
    try:
        return pwd.getpwnam(value) if value else None
    except KeyError:
        raise click.BadParameter(f"there is no user {value!r}", ctx, param) from None


def switch_user(user: pwd.struct_passwd) -> None:
    """Changes the user of the process.

    Raises:
        ClickException: The process lacks the permission.
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
    """Moves the process to the background, detached from its terminal. Standard error stays open for the log.

    The original process waits. It exits with status 0 once the returned function is called, or with status 1 if the
    background process ends before.

    Returns:
        The function to call once the device serves.
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
        with suppress(BrokenPipeError):  # the original process has ended
            os.write(write_end, b"1")
        os.close(write_end)

    return report_ready


def security_of(secret_key: Path | None, authorized_keys: Path | None) -> Security | None:
    """Reads the files of `--curve-*`; returns `None` without them.

    Raises:
        UsageError: The content of a file is not valid, or the secret key is missing.
    """
    if secret_key is None and authorized_keys is None:
        return None
    return SecurityFiles("curve", secret_key, authorized_keys).load().security


def peer_security_of(secret_key: Path | None) -> CurveClient | None:
    """Returns the security of connections to other nodes; all nodes of a cluster have the same key."""
    if secret_key is None:
        return None
    secret = read_secret_key(secret_key)
    return CurveClient(curve_public(secret), secret_key=secret)


def cluster_of(
    replicated: tuple[str, ...] | None, name: str | None, node: str | None, *, servers_sync: bool
) -> Cluster | None:
    """Returns the cluster of `--replicated`; `None` without it.

    Raises:
        UsageError: An option is missing or not valid.
    """
    if replicated is None:
        if name is not None or node is not None or servers_sync:
            raise UsageError("servers: is missing; --cluster, --node and --servers-sync need it").about("servers")
        return None
    if name is None:
        raise UsageError("name: is missing; give the name of the cluster").about("name")
    return Cluster(name=name, servers=replicated, node=node, servers_sync=servers_sync)


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.option(
    "--database",
    type=NonEmptyPath(file_okay=False, path_type=Path),
    default="/tmp/sink.kch",
    show_default=True,
    help="The directory of the messages; created if it does not exist.",
)
@click.option(
    "--ack-timeout",
    type=COUNT,
    default=ACK_TIMEOUT_US,
    show_default=True,
    help="Microseconds until an unacknowledged message is delivered again.",
)
@click.option(
    "--reaper-frequency",
    type=COUNT,
    default=REAPER_INTERVAL_US,
    show_default=True,
    help="Microseconds between two checks for messages that were not acknowledged in time.",
)
@click.option(
    "--hard-sync",
    is_flag=True,
    help="Acknowledge a message once it is on disk; otherwise it is on disk within a second.",
)
@click.option(
    "--inflight-size",
    type=COUNT,
    default=MAX_IN_FLIGHT_BYTES,
    show_default=True,
    help="The maximum number of bytes of bodies in flight; a larger body is delivered alone.",
)
@click.option("--receive-dsn", default="tcp://*:11131", show_default=True, help="Endpoint for producers.")
@click.option("--send-dsn", default="tcp://*:11132", show_default=True, help="Endpoint for consumers.")
@click.option("--monitor-dsn", default="ipc:///tmp/pzq-monitor", show_default=True, help="Endpoint for statistics.")
@click.option(
    "--max-deliveries",
    type=COUNT,
    help="The number of failed deliveries after which a message becomes a dead letter. Default: never.",
)
@click.option(
    "--replicas",
    type=click.IntRange(0, 2**53 - 1),
    default=0,
    show_default=True,
    help="The number of other nodes that must have a message before its producer gets a positive answer.",
)
@click.option("--nodes", default="", help="The receive endpoints of the other nodes, separated by commas.")
@click.option(
    "--broadcast-dsn",
    help="Endpoint for cluster traffic, and the name of this node. All nodes must use the same port.",
)
@click.option(
    "--timeout-nodes",
    type=COUNT,
    default=NODE_TIMEOUT_US,
    show_default=True,
    help="Microseconds without a message from a node after which its messages are delivered by others.",
)
@click.option(
    "--timeout-replication",
    "--timeout_replication",
    type=COUNT,
    default=REPLICATION_TIMEOUT_US,
    show_default=True,
    help="Microseconds that a producer's answer waits for the replicas.",
)
@click.option(
    "--allow-replicas-from",
    multiple=True,
    metavar="ADDRESS",
    help="An additional address or network that replicas are accepted from, next to the hosts of --nodes; may be "
    "repeated.",
)
@cluster_options("device", "--database", "devices with --hard-sync")
@click.option("--dead-letter-dsn", help="Endpoint for consumers of dead letters.")
@click.option("--http", metavar="HOST:PORT", callback=read_http, help="Address of /metrics (Prometheus) and /healthz.")
@click.option(
    "--curve-secret-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CURVE on all sockets: the device's secret key.",
)
@click.option(
    "--curve-authorized-keys-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CURVE: the public keys of admitted peers, one a line. Default: every key.",
)
@click.option("--user", callback=read_user, help="Change to this user before opening anything.")
@click.option("--background", is_flag=True, help="Run in the background; return once the device serves.")
@click.option(
    "--ready-file",
    type=NonEmptyPath(dir_okay=False, path_type=Path),
    callback=read_ready_file,
    help="Written once the device serves: its endpoints (receive, send, monitor, dead_letter, http) as JSON; with "
    "--replicated also leader, true while the device leads and serves.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@log_format_option
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
    replicated: tuple[str, ...] | None,
    cluster: str | None,
    node: str | None,
    servers_sync: bool,
    dead_letter_dsn: str | None,
    http: str | None,
    curve_secret_key_file: Path | None,
    curve_authorized_keys_file: Path | None,
    user: pwd.struct_passwd | None,
    background: bool,
    ready_file: Path | None,
    log_level: str,
    log_format: str,
) -> None:
    """Store messages of producers until a consumer has acknowledged them.

    It has the options of the original pzq, and works with its clients. It logs to standard error. SIGTERM or SIGINT
    stops it in an orderly way.
    """
    log_to_stderr(log_level, log_format)
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
            cluster=cluster_of(replicated, cluster, node, servers_sync=servers_sync),
        )
        if curve_secret_key_file is None:
            for endpoint in filter(is_reachable, (receive_dsn, send_dsn)):
                LOG.warning(
                    "%s: every client may produce and consume, unauthenticated and unencrypted; "
                    "--curve-secret-key-file changes that",
                    endpoint,
                )
        report_ready = daemonize() if background else None
        if user is not None:
            switch_user(user)
        ready = ReadyFile(ready_file)
        if replicated is not None:
            served = {"receive": receive_dsn, "send": send_dsn}
            if dead_letter_dsn is not None:
                served["dead_letter"] = dead_letter_dsn
            ready.set(LOG, leader=False, **served)
            device.on_role = lambda leads: ready.set(LOG, leader=leads)
        run_server(device, LOG, ready_file=ready, on_start=report_ready)
