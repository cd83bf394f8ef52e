"""`omq broker`: named queues, served until a signal ends it."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from omq._version import __version__
from omq.broker.config import Config, ConfigError, TopicSpec, parse_topic, read_config
from omq.broker.errors import TopicError
from omq.broker.server import AsyncServer
from omq.cli.errors import error_text, errors_of_command
from omq.cli.parameters import FILE, LEVELS, NonEmptyPath, read_http, read_ready_file
from omq.errors import UsageError
from omq.keyfiles import MECHANISMS, Admission, SecurityFiles
from omq.serving.address import parse_http_address
from omq.serving.descriptors import raise_descriptor_limit
from omq.serving.log import log_to_stderr
from omq.serving.run import run_server

LOG: Final = logging.getLogger("omq.broker")
DEFAULT_BIND: Final = "tcp://127.0.0.1:*"
LOOPBACK: Final = ("127.", "::1", "localhost")


def read_topics(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[TopicSpec, ...]:
    """Reads the values of `--topic`."""
    topics: dict[str, TopicSpec] = {}
    for value in values:
        try:
            topic = parse_topic(value)
        except ConfigError as fault:
            raise click.BadParameter(f"{value!r}: {fault}", ctx, param) from None
        if topic.name in topics:
            raise click.BadParameter(f"{value!r}: topic {topic.name!r} is there twice", ctx, param)
        topics[topic.name] = topic
    return tuple(topics.values())


def security_of(mechanism: str | None, files: dict[str, Path | None], config: Path | None) -> SecurityFiles | None:
    """Returns what holds instead of the file's `[security]`: `None` where the command line has nothing about it.

    Files that belong to the mechanism of the command line and that it does not name are those of the file.

    Args:
        mechanism: The mechanism on the command line; `None` for none.
        files: The files on it, by their names in `[security]`.
        config: The `broker.toml`.

    Raises:
        UsageError: It does not fit.
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
    **options: Any,
) -> Config:
    """Puts file and command line together; what is on the command line wins.

    Raises:
        UsageError: They do not fit.
    """
    config = Config() if path is None else read_config(path, security=override)
    if override is not None:
        config = replace(config, security=override)
    if directory is not None and options["memory"]:
        raise ConfigError(f"--memory keeps everything in memory: it does not go with the directory {directory}")
    memory = directory is None and (config.memory or options["memory"])
    if directory is None and not memory:
        raise ConfigError("DIR is missing: where the topics are kept; or --memory")
    given = {topic.name for topic in topics}
    all_topics = (*(topic for topic in config.topics if topic.name not in given), *topics)
    if memory:
        check_memory(all_topics)
    sexp = options["sexp"] or config.sexp
    return replace(
        config,
        bind=bind or config.bind or (() if sexp else (DEFAULT_BIND,)),
        sexp=sexp,
        http=options["http"] or config.http,
        memory=memory,
        topics=all_topics,
    )


def check_memory(topics: Iterable[TopicSpec]) -> None:
    """Refuses what memory cannot hold.

    Raises:
        ConfigError: A topic is strong.
    """
    for topic in topics:
        if topic.persistence == "strong":
            raise ConfigError(f"topic {topic.name}: memory keeps no strong topics; it needs DIR instead of --memory")


def load_security(config: Config, path: Path | None, on_command_line: bool) -> Admission:
    """Reads keys and users.

    Raises:
        UsageError: A file cannot be read, or holds something else.
    """
    try:
        return config.security.load()
    except UsageError as fault:
        if on_command_line:
            raise
        raise ConfigError(f"{path}: [security]: {fault}") from None


def reload(server: AsyncServer, admission: Admission, read: Callable[[], tuple[Config, Admission]]) -> None:
    """Reads users, keys and permissions again; where anything does not fit, everything stays."""
    try:
        config, now = read()
        if server.broker.permissions and not config.permissions:
            raise ConfigError("the last permission is gone, so that every client could do everything")
        admission.become(now)
    except UsageError as fault:
        LOG.error("SIGHUP: %s; what was read before stays", error_text(fault))
        return
    server.broker.set_permissions(config.permissions)
    LOG.info("SIGHUP: users, keys and permissions are read again")


def log_store(server: AsyncServer) -> None:
    """Logs the version, and the store with the number of its topics."""
    broker = server.broker
    place = broker.summary()["store"]["directory"] or "memory"
    LOG.info("omq %s, store %s: %d topics in %s", __version__, broker.id, len(broker.topics), place)


def log_warnings(config: Config) -> None:
    """Logs what is easily overlooked."""
    if config.security.mechanism == "null":
        for endpoint in config.bind:
            host = endpoint.removeprefix("tcp://").rpartition(":")[0]
            if endpoint.startswith("tcp://") and not host.startswith(LOOPBACK) and host != "[::1]":
                LOG.warning("%s: every client may do everything; [security] in broker.toml changes that", endpoint)
    if config.sexp and (config.permissions or config.security.mechanism != "null"):
        LOG.warning('--sexp has no mechanism: every client there is "*"')
    if config.http and not parse_http_address(config.http)[0].startswith(LOOPBACK):
        LOG.warning("the status page shows every topic's name to every client that reaches %s", config.http)


@click.command()
@click.argument("directory", metavar="[DIR]", required=False, type=NonEmptyPath(file_okay=False, path_type=Path))
@click.option("--bind", multiple=True, metavar="ENDPOINT", help="Where ZeroMQ clients connect; may be repeated.")
@click.option("--sexp", metavar="tcp://HOST:PORT", help="Where clients that speak S-expressions connect.")
@click.option("--http", metavar="HOST:PORT", callback=read_http, help="Where the status page is.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME:DELIVERY:PERSISTENCE",
    callback=read_topics,
    help="A topic that is to be there: broadcast or round-robin; transient, strong, weak or async; "
    "settings may follow, as in jobs:round-robin:weak:max_deliveries=5. May be repeated.",
)
@click.option("--config", "path", type=FILE, help="A broker.toml; what is on the command line wins.")
@click.option("--memory", is_flag=True, help="Keep everything in memory, instead of DIR.")
@click.option("--mechanism", type=click.Choice(MECHANISMS), help="How clients show who they are.")
@click.option("--secret-key-file", type=FILE, help="CURVE: the broker's key.")
@click.option(
    "--authorized-keys-file",
    type=FILE,
    help="CURVE: the public keys that are let in, one a line; every key if left out.",
)
@click.option("--users-file", type=FILE, help="PLAIN: name:password, one a line.")
@click.option(
    "--ready-file",
    type=NonEmptyPath(dir_okay=False, path_type=Path),
    callback=read_ready_file,
    help="Written when everything serves: the endpoints (zmtp, sexp, http) as JSON.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
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
    ready_file: Path | None,
    log_level: str,
) -> None:
    """Serve named queues: topics that persist, replay and lose nothing that was acknowledged.

    They are kept in DIR, which is made if it is not there. The broker stays in the foreground, logs to standard
    error, and ends in an orderly way with SIGTERM or SIGINT. With SIGHUP it reads users, authorized keys and
    permissions again.
    """
    log_to_stderr(log_level)
    raise_descriptor_limit(LOG)
    files = {
        "secret_key_file": secret_key_file,
        "authorized_keys_file": authorized_keys_file,
        "users_file": users_file,
    }

    def read() -> tuple[Config, Admission]:
        override = security_of(mechanism, files, path)
        config = merge_config(directory, path, override, bind=bind, topics=topics, sexp=sexp, http=http, memory=memory)
        return config, load_security(config, path, override is not None)

    with errors_of_command("the broker", "broker"):
        config, admission = read()
        server = AsyncServer(
            directory,
            bind=config.bind,
            sexp=config.sexp,
            http=config.http,
            topics=config.topics,
            security=admission.security,
            permissions=config.permissions,
            memory=config.memory,
            max_connections=config.max_connections,
            heartbeat_interval=config.heartbeat_interval,
            heartbeat_timeout=config.heartbeat_timeout,
        )
        log_warnings(config)
        from_files = path is not None or config.security.mechanism != "null"
        hang_up = partial(reload, server, admission, read) if from_files else None
        try:
            run_server(server, LOG, ready_file=ready_file, on_start=partial(log_store, server), on_hang_up=hang_up)
        except TopicError as fault:
            raise click.UsageError(str(fault)) from None
