"""`omq broker`: serves a broker until a signal stops it."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from omq._version import __version__
from omq.broker.config import (
    Config,
    ConfigError,
    TopicSpec,
    check_strong,
    cluster_of,
    parse_topic,
    read_config,
)
from omq.broker.errors import BrokerError, TopicError
from omq.broker.server import AsyncServer
from omq.cli.errors import echo, error_text, errors_of_command
from omq.cli.parameters import (
    FILE,
    LEVELS,
    CommandWithSubcommands,
    NonEmptyPath,
    cluster_options,
    is_loopback,
    is_reachable,
    journal_options,
    log_format_option,
    progress_bar,
    read_http,
    read_ready_file,
)
from omq.errors import UsageError
from omq.keyfiles import MECHANISMS, Admission, SecurityFiles
from omq.serving.address import parse_http_address
from omq.serving.cluster import Cluster
from omq.serving.descriptors import raise_descriptor_limit
from omq.serving.log import log_to_stderr
from omq.serving.ready import ReadyFile
from omq.serving.run import run_server

if TYPE_CHECKING:
    from omq.store.lmdb.snapshot import StoreCopy

LOG: Final = logging.getLogger("omq.broker")
DEFAULT_BIND: Final = "tcp://127.0.0.1:*"
DIRECTORY: Final = NonEmptyPath(file_okay=False, path_type=Path)

#: The options of arguments of `Cluster` that have other names.
CLUSTER_OPTIONS: Final = {"name": "--cluster", "servers": "--replicated"}
#: The settings that SIGHUP does not change, by their names in the file.
FIXED_SETTINGS: Final[dict[str, Callable[[Config], object]]] = {
    "bind": lambda config: config.bind,
    "sexp": lambda config: config.sexp,
    "http": lambda config: config.http,
    "memory": lambda config: config.memory,
    "[security] secret_key_file": lambda config: config.security.secret_key_file,
    "[limits] connections": lambda config: config.max_connections,
    "[heartbeat] interval": lambda config: config.heartbeat_interval,
    "[heartbeat] timeout": lambda config: config.heartbeat_timeout,
    "[cluster]": lambda config: config.cluster,
}

EXAMPLE: Final = """\
omq broker data --bind tcp://127.0.0.1:5555 --topic prices:broadcast:weak &
broker=$!
export OMQ_BROKER=tcp://127.0.0.1:5555
omq topic publish prices 'AAPL 189.95'
omq topic peek prices
kill $broker"""


def read_topics(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[TopicSpec, ...]:
    """Parses the values of `--topic`."""
    topics: dict[str, TopicSpec] = {}
    for value in values:
        try:
            topic = parse_topic(value)
        except ConfigError as fault:
            raise click.BadParameter(f"{value!r}: {fault}", ctx, param) from None
        if topic.name in topics:
            raise click.BadParameter(f"{value!r}: topic {topic.name!r} is given twice", ctx, param)
        topics[topic.name] = topic
    return tuple(topics.values())


def security_of(mechanism: str | None, files: dict[str, Path | None], config: Path | None) -> SecurityFiles | None:
    """Returns the security files of the command line, which replace `[security]`; `None` without such options.

    If the file has the same mechanism, it provides the files that are not on the command line.

    Args:
        mechanism: The mechanism on the command line; `None` without one.
        files: The files on the command line, by their names in `[security]`.
        config: The `broker.toml`; `None` without one.

    Raises:
        UsageError: The options are not valid together.
    """
    if mechanism is None and any(files.values()):
        mechanism = "plain" if files["users_file"] else "curve"
    if mechanism is None:
        return None
    from_file = SecurityFiles() if config is None else read_config(config).security
    if from_file.mechanism == mechanism:
        files = {key: path or getattr(from_file, key) for key, path in files.items()}
    return SecurityFiles(mechanism, **files)


def merge_config(
    directory: Path | None,
    path: Path | None,
    override: SecurityFiles | None,
    *,
    bind: tuple[str, ...],
    topics: tuple[TopicSpec, ...],
    cluster: dict[str, Any],
    **options: Any,
) -> Config:
    """Merges `broker.toml` and the command line; options override the file.

    Args:
        directory: The directory of the store; `None` without one.
        path: The `broker.toml`; `None` without one.
        override: Replaces the `[security]` of the file.
        bind: The values of `--bind`.
        topics: The topics of `--topic`.
        cluster: The arguments of `Cluster` on the command line.
        options: The values of `sexp`, `http` and `memory`.

    Raises:
        UsageError: A value is not valid, or two do not go together.
    """
    config = Config() if path is None else read_config(path, security=override)
    if override is not None:
        config = replace(config, security=override)
    if directory is not None and options["memory"]:
        raise ConfigError(f"--memory keeps everything in memory: it does not go with the directory {directory}")
    memory = directory is None and (config.memory or options["memory"])
    if directory is None and not memory:
        raise ConfigError("DIR is missing: give the directory of the topics, or --memory")
    given = {topic.name for topic in topics}
    all_topics = (*(topic for topic in config.topics if topic.name not in given), *topics)
    if memory:
        check_memory(all_topics)
    settings = {**config.cluster, **cluster}
    try:
        member = cluster_of(settings)
    except UsageError as fault:
        if fault.argument in config.cluster and fault.argument not in cluster:
            raise ConfigError(f"{path}: [cluster]: {fault}") from None
        raise
    if member is not None and memory:
        raise ConfigError("--memory keeps everything in memory: it does not go with a cluster, which needs DIR")
    if member is not None:
        check_strong(all_topics, member)
    sexp = options["sexp"] or config.sexp
    return replace(
        config,
        bind=bind or config.bind or (() if sexp else (DEFAULT_BIND,)),
        sexp=sexp,
        http=options["http"] or config.http,
        memory=memory,
        topics=all_topics,
        cluster=settings,
    )


def check_memory(topics: Iterable[TopicSpec]) -> None:
    """Checks that a broker in memory has no strong topic.

    Raises:
        ConfigError: A topic is strong.
    """
    for topic in topics:
        if topic.persistence == "strong":
            raise ConfigError(f"topic {topic.name}: a strong topic needs DIR instead of --memory")


def load_security(config: Config, path: Path | None, on_command_line: bool) -> Admission:
    """Reads the files with keys and users.

    Raises:
        UsageError: A file cannot be read, or its content is not valid.
    """
    try:
        return config.security.load()
    except UsageError as fault:
        if on_command_line:
            raise
        raise ConfigError(f"{path}: [security]: {fault}") from None


async def reload(
    server: AsyncServer, start: Config, admission: Admission, read: Callable[[], tuple[Config, Admission]]
) -> None:
    """Reads users, keys, permissions, limits of users, and topics again.

    All are checked first: after an error nothing is changed. Reloads run one after the other.

    Args:
        server: The server.
        start: The configuration of its start, whose other settings stay in force.
        admission: The clients to admit, which change.
        read: Reads the configuration and the files of users and keys.
    """
    async with server.configuring:
        if server.broker.ended:
            return
        try:
            config, now = read()
            if server.broker.permissions and not config.permissions:
                raise ConfigError("the file no longer has permissions, which would allow every client everything")
            # A follower has not the last word about the topics of its cluster: the leader checks and makes them.
            plan = server.plan(config.topics) if server.broker.leads else None
            admission.become(now)
        except (UsageError, BrokerError) as fault:
            LOG.error(
                "SIGHUP: %s; the previous users, keys, permissions, limits and topics stay in force",
                error_text(fault),
                extra={"event": "reload_failed", "reason": error_text(fault)},
            )
            return
        server.broker.set_permissions(config.permissions)
        server.broker.set_user_limits(config.user_limits)
        server.topics = config.topics
        try:
            if plan is not None:
                await plan.apply()
        except BrokerError as fault:
            LOG.error(
                "SIGHUP: %s; users, keys, permissions and limits are read again, but not all topics",
                error_text(fault),
                extra={"event": "reload_failed", "reason": error_text(fault)},
            )
            return
        LOG.info("SIGHUP: users, keys, permissions, limits and topics are read again", extra={"event": "reloaded"})
        if changed := [name for name, value in FIXED_SETTINGS.items() if value(config) != value(start)]:
            LOG.warning(
                "SIGHUP: changes of these settings need a restart: %s",
                ", ".join(changed),
                extra={"event": "restart_needed", "settings": changed},
            )


def log_start(server: AsyncServer) -> None:
    """Logs the version, the store, the number of its topics, and the limits."""
    broker = server.broker
    summary = broker.summary()
    directory, findings = summary["store"]["directory"], summary["store"]["findings"]
    topics = len(broker.topics)
    LOG.info(
        "omq %s, store %s: %d %s in %s%s",
        __version__,
        broker.id,
        topics,
        "topic" if topics == 1 else "topics",
        directory or "memory",
        f"; {len(findings)} of the warnings above are about it" if findings else "",
        extra={
            "event": "started",
            "version": __version__,
            "store": broker.id,
            "directory": directory,
            "topics": topics,
            "findings": len(findings),
        },
    )
    limits = summary["max_connections"]
    LOG.info(
        "connections: at most %s",
        ", ".join(f"{number} ({name})" for name, number in limits.items()) or "0",
        extra={"event": "limits", "max_connections": limits},
    )


def log_warnings(config: Config) -> None:
    """Logs warnings about an open configuration."""
    if config.security.mechanism == "null":
        for endpoint in filter(is_reachable, config.bind):
            LOG.warning(
                "%s: every client %s, unauthenticated and unencrypted; [security] in broker.toml changes that",
                endpoint,
                'is "*"' if config.permissions else "may do everything",
                extra={"event": "open_listener", "listener": "zmtp", "endpoint": endpoint},
            )
    if config.sexp and (config.permissions or config.security.mechanism != "null" or is_reachable(config.sexp)):
        LOG.warning(
            '--sexp has no mechanism: every client there is "*"',
            extra={"event": "open_listener", "listener": "sexp", "endpoint": config.sexp},
        )
    if config.http and not is_loopback(parse_http_address(config.http)[0]):
        LOG.warning(
            "the status page shows every topic's name to every client that reaches %s",
            config.http,
            extra={"event": "open_listener", "listener": "http", "endpoint": config.http},
        )


@click.command(cls=CommandWithSubcommands, example=EXAMPLE)
@click.argument("directory", metavar="[DIR]", required=False, type=DIRECTORY)
@click.option("--bind", multiple=True, metavar="ENDPOINT", help="Endpoint for ZeroMQ clients; may be repeated.")
@click.option("--sexp", metavar="tcp://HOST:PORT", help="Endpoint for S-expression clients.")
@click.option("--http", metavar="HOST:PORT", callback=read_http, help="Address of the status page.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME:DELIVERY:PERSISTENCE",
    callback=read_topics,
    help="A topic to create, or to alter to these settings. DELIVERY is broadcast or round-robin, PERSISTENCE "
    "transient, strong, weak or async. Settings may follow, as in jobs:round-robin:weak:max_deliveries=5. May be "
    "repeated.",
)
@click.option("--config", "path", type=FILE, help="A broker.toml; options on the command line override it.")
@click.option("--memory", is_flag=True, help="Keep everything in memory instead of in DIR.")
@click.option("--mechanism", type=click.Choice(MECHANISMS), help="The security mechanism of ZeroMQ clients.")
@click.option("--secret-key-file", type=FILE, help="CURVE: the broker's secret key.")
@click.option(
    "--authorized-keys-file",
    type=FILE,
    help="CURVE: the public keys of admitted clients, one a line. Default: every key.",
)
@click.option("--users-file", type=FILE, help="PLAIN: name:password, one a line.")
@cluster_options("broker", "DIR", "strong topics")
@click.option(
    "--advertise",
    multiple=True,
    metavar="ENDPOINT",
    help="The endpoint at which clients of the cluster find this broker; may be repeated. Default: those of --bind.",
)
@click.option(
    "--ready-file",
    type=NonEmptyPath(dir_okay=False, path_type=Path),
    callback=read_ready_file,
    help="Written once the broker serves: its endpoints (zmtp, sexp, http) as JSON; in a cluster also leader, true "
    "while the broker is the leader.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@log_format_option
def broker(
    directory: Path | None,
    bind: tuple[str, ...],
    sexp: str | None,
    http: str | None,
    topics: tuple[TopicSpec, ...],
    path: Path | None,
    memory: bool,
    mechanism: str | None,
    secret_key_file: Path | None,
    authorized_keys_file: Path | None,
    users_file: Path | None,
    replicated: tuple[str, ...] | None,
    cluster: str | None,
    node: str | None,
    advertise: tuple[str, ...],
    servers_sync: bool,
    ready_file: Path | None,
    log_level: str,
    log_format: str,
) -> None:
    """Serve topics that persist, replay, and lose nothing that was acknowledged.

    DIR is the directory of the topics; it is created if it does not exist. The broker runs in the foreground and logs
    to standard error. SIGTERM or SIGINT stops it in an orderly way; SIGHUP makes it read users, authorized keys,
    permissions, limits of users, and topics again.
    """
    log_to_stderr(log_level, log_format)
    raise_descriptor_limit(LOG)
    files = {
        "secret_key_file": secret_key_file,
        "authorized_keys_file": authorized_keys_file,
        "users_file": users_file,
    }

    def read() -> tuple[Config, Admission]:
        override = security_of(mechanism, files, path)
        given = {
            "name": cluster,
            "servers": replicated,
            "node": node,
            "advertise": advertise,
            "servers_sync": servers_sync,
        }
        config = merge_config(
            directory,
            path,
            override,
            bind=bind,
            topics=topics,
            cluster={key: value for key, value in given.items() if value},
            sexp=sexp,
            http=http,
            memory=memory,
        )
        return config, load_security(config, path, override is not None)

    with errors_of_command("the broker", "broker", CLUSTER_OPTIONS):
        config, admission = read()
        server = AsyncServer(
            directory,
            bind=config.bind,
            sexp=config.sexp,
            http=config.http,
            topics=config.topics,
            security=admission.security,
            permissions=config.permissions,
            user_limits=config.user_limits,
            memory=config.memory,
            max_connections=config.max_connections,
            heartbeat_interval=config.heartbeat_interval,
            heartbeat_timeout=config.heartbeat_timeout,
            cluster=cluster_of(config.cluster),
        )
        ready = ReadyFile(ready_file)
        if config.cluster:
            ready.set(LOG, leader=False)
            server.on_role = lambda leads: ready.set(LOG, leader=leads)
        log_warnings(config)
        from_files = path is not None or config.security.mechanism != "null"
        hang_up = partial(reload, server, config, admission, read) if from_files else None
        try:
            run_server(server, LOG, ready_file=ready, on_start=partial(log_start, server), on_hang_up=hang_up)
        except TopicError as fault:
            raise click.UsageError(str(fault)) from None


@click.command()
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.argument("target", type=DIRECTORY)
def snapshot(directory: Path, target: Path) -> None:
    """Copy the topics in DIR, whose broker may run, to TARGET.

    TARGET must not exist, or be an empty directory. It appears once the snapshot is complete, synced and checked.
    `omq broker restore` makes a directory for a broker of it.
    """
    with errors_of_command("the broker", "broker"):
        from omq.store.lmdb.snapshot import take_snapshot

        began = time.monotonic()
        with progress_bar("snapshot") as progress:
            copy = take_snapshot(directory, target, kind="broker", progress=progress)
        report_copy(f"{target}: snapshot of store {copy.format.id}", copy, began)


@click.command()
@click.argument("source", metavar="SOURCE", type=DIRECTORY)
@click.argument("directory", metavar="[DIR]", required=False, type=DIRECTORY)
@journal_options("broker")
@click.option("--config", "path", type=FILE, help="A broker.toml with the section [cluster].")
def restore(
    source: Path, directory: Path | None, replicated: tuple[str, ...] | None, cluster: str | None, path: Path | None
) -> None:
    """Make a new directory of topics, DIR, from the snapshot SOURCE; or begin a cluster with it.

    DIR must not exist, or be an empty directory. It appears once it is complete. Its store has a new id: clients notice
    that it is not the store they know.

    With the options of a cluster instead of DIR, a new journal begins with the state of SOURCE: the directory of a
    broker of a cluster that does not run, or a snapshot of it. The servers must not have a journal of the cluster.
    """
    with errors_of_command("the broker", "broker", CLUSTER_OPTIONS):
        given = {"name": cluster, "servers": replicated}
        settings = {
            **({} if path is None else read_config(path).cluster),
            **{key: value for key, value in given.items() if value},
        }
        if directory is None:
            if (member := cluster_of(settings)) is None:
                raise click.UsageError("Missing argument 'DIR', or the options --cluster and --replicated.")
            restore_journal(source, member)
            return
        if settings:
            raise click.UsageError(f"{directory}: give a directory, or the options of a cluster, and not both.")
        from omq.store.lmdb.snapshot import restore_snapshot

        began = time.monotonic()
        with progress_bar("restore") as progress:
            copy = restore_snapshot(source, directory, kind="broker", progress=progress)
        origin = copy.format.origin
        report_copy(
            f"{directory}: store {copy.format.id}, as store {origin['store']} was at {origin['time']}", copy, began
        )


def restore_journal(source: Path, cluster: Cluster) -> None:
    """Begins a cluster with the state of a directory."""
    from omq.serving.cluster_restore import restore_cluster

    began = time.monotonic()
    copy, position = restore_cluster(cluster, source, progress_bar)
    report_copy(
        f"the cluster {cluster.name!r} begins with {source}, after the entry {position}; start its brokers", copy, began
    )
    echo(
        f"those with an empty directory, or with a position below {position}, load this state; one with a higher "
        "position is refused: move its directory away"
    )


def report_copy(text: str, copy: "StoreCopy", began: float) -> None:
    """Prints the result of a snapshot or a restore."""
    for finding in copy.findings:
        click.echo(f"omq: {finding}", err=True)
    echo(f"{text}: {copy.topics} topics, {copy.size} bytes in {time.monotonic() - began:.1f} s")


broker.subcommands.update(snapshot=snapshot, restore=restore)
