"""The configuration of a broker: the file `broker.toml` and the topics on the command line.

    bind = "tcp://0.0.0.0:5555"
    http = "127.0.0.1:8222"

    [[topic]]
    name = "prices"
    delivery = "broadcast"
    persistence = "strong"
    max_age = 604800

    [security]
    mechanism = "curve"
    secret_key_file = "broker.key_secret"
    authorized_keys_file = "authorized_keys"

    [[permission]]
    who = "*"
    topics = "prices*"
    may = ["subscribe"]

    [[user_limit]]
    who = "*"
    connections = 100

A value that is not valid raises `ConfigError`, which names the file, the table, the key and the value.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from omq.broker.core.permissions import ANY_CLIENT, Permission
from omq.broker.core.user_limits import LIMITS, UserLimit
from omq.broker.errors import TopicError
from omq.broker.protocol import HEARTBEAT_INTERVAL_S, HEARTBEAT_TIMEOUT_S, check_name
from omq.broker.settings import (
    DELIVERIES,
    PERSISTENCES,
    SETTINGS,
    InvalidSetting,
    check_topic,
    dead_letter_cycle,
    dead_letter_of,
    describe_cycle,
    suggestion,
)
from omq.errors import UsageError
from omq.keyfiles import KEY_CHARACTERS, MECHANISMS, SecurityFiles
from omq.security import file_path
from omq.serving.address import parse_http_address
from omq.serving.cluster import Cluster

Settings = Mapping[str, int | float | str | list[int | float | str]]
_TEXTS: Final = frozenset({"dead_letter", "overflow", "retain_for", "retention"})


class ConfigError(UsageError):
    """A setting of a broker is not valid; the text names its place."""


class _InvalidValue(ConfigError):
    """The value of a key is not valid."""

    def __init__(self, key: str, value: object, reason: str) -> None:
        super().__init__(f"{key} = {shown(value)}: {reason}")


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic that the broker creates, or alters to these settings: a row of `[[topic]]`, or a `--topic`.

    Attributes:
        name: Its name.
        delivery: `broadcast` or `round-robin`.
        persistence: `transient`, `strong`, `weak` or `async`.
        settings: `max_messages`, `max_bytes`, `max_age`, `overflow`, `retention`, `retain_for`, `inactive_threshold`,
            `max_deliveries`, `dead_letter`, `retry_delay`.
        place: Where it is declared, for error texts; empty if it is not known.

    Raises:
        ConfigError: A value is not valid.
    """

    name: str
    delivery: str = "broadcast"
    persistence: str = "strong"
    settings: Settings = field(default_factory=dict)
    place: str = field(default="", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        try:
            check_name(self.name)
        except (TopicError, TypeError) as error:
            raise _InvalidValue("name", self.name, str(error)) from None
        try:
            check_topic(self.delivery, self.persistence, self.settings)
        except InvalidSetting as fault:
            raise _InvalidValue(fault.key, fault.value, fault.reason) from None
        if self.settings.get("dead_letter") == self.name:
            raise _InvalidValue("dead_letter", self.name, "must not be the topic itself")


def shown(value: object) -> str:
    """Formats a value for an error text: as in TOML, with a bounded length."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = '"' + value.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'
    else:
        text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def parse_topic(text: str) -> TopicSpec:
    """Parses `NAME:DELIVERY:PERSISTENCE[:SETTING=VALUE...]`; the name may contain colons.

    Raises:
        ConfigError: The text does not have this form, or a value is not valid.
    """
    words = text.split(":")
    pairs = (at for at in range(len(words) - 2, 0, -1) if words[at] in DELIVERIES and words[at + 1] in PERSISTENCES)
    # Without such a pair, the words after the first colon are checked, so that the error names them.
    at = next(pairs, 1)
    if at + 1 >= len(words):
        raise ConfigError("must be NAME:DELIVERY:PERSISTENCE, such as prices:broadcast:strong")
    settings = parse_settings(words[at + 2 :])
    return TopicSpec(":".join(words[:at]), words[at], words[at + 1], settings, place=f"topic {shown(text)}")


def parse_settings(words: Iterable[str]) -> dict[str, int | float | str | list[int | float | str]]:
    """Parses settings of a topic, `SETTING=VALUE` each.

    Raises:
        ConfigError: A word does not have this form, or a setting is given twice.
    """
    settings: dict[str, int | float | str | list[int | float | str]] = {}
    for word in words:
        key, mark, value = word.partition("=")
        if not mark:
            raise ConfigError(f"{shown(word)} is not a valid setting; expected SETTING=VALUE, such as max_age=3600")
        if key in settings:
            raise ConfigError(f"{key}={shown(value)}: duplicate; give it once")
        settings[key] = value if key in _TEXTS else _numbers(value) if "," in value else _number(value)
    return settings


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _numbers(text: str) -> list[int | float | str]:
    return [_number(word) for word in text.split(",")]


def topic_spec(topic: TopicSpec | str | Mapping[str, Any]) -> TopicSpec:
    """Converts a `--topic` text or a row of `[[topic]]` to a `TopicSpec`; a `TopicSpec` is returned as it is.

    Raises:
        ConfigError: A value is not valid.
    """
    if isinstance(topic, TopicSpec):
        return topic
    if isinstance(topic, str):
        try:
            return parse_topic(topic)
        except ConfigError as fault:
            raise ConfigError(f"topic {shown(topic)}: {fault}") from None
    if not isinstance(topic, Mapping):
        raise ConfigError(f"a topic must be a string, a mapping or a TopicSpec, not a {type(topic).__name__}")
    row = dict(topic)
    settings = {key: row.pop(key) for key in list(row) if key in SETTINGS}
    settings |= row.pop("settings", {})
    _check_keys(row, _TOPIC_KEYS, "a topic")
    if "name" not in row:
        raise ConfigError("name is missing")
    return TopicSpec(**row, settings=settings)


def check_dead_letters(topics: Iterable[TopicSpec]) -> None:
    """Checks that the dead-letter topics form no cycle.

    Raises:
        ConfigError: The dead letters of a topic would return to it.
    """
    targets = {topic.name: dead_letter_of(topic.name, topic.delivery, topic.settings) for topic in topics}
    for name in targets:
        cycle = dead_letter_cycle(name, targets.get)
        if cycle is not None:
            raise ConfigError(f"topic {shown(name)}: {describe_cycle(cycle)}")


def check_strong(topics: Iterable[TopicSpec], cluster: Cluster) -> None:
    """Checks that the members of a cluster can have strong topics, if there are any.

    Raises:
        ConfigError: They cannot.
    """
    for topic in topics:
        if topic.persistence == "strong" and not cluster.servers_sync:
            raise ConfigError(
                f"topic {topic.name}: a strong topic needs NATS servers with `sync_interval: always`; state that all "
                "have it by --servers-sync (servers_sync = true in [cluster]), or make the topic weak"
            )


_TOPIC_KEYS: Final = ("name", "delivery", "persistence", *SETTINGS)


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration of a broker.

    Attributes:
        bind: Endpoints of the ZMTP server.
        sexp: The endpoint of the S-expression server.
        http: The address of the status page.
        memory: Everything is kept in memory.
        topics: Topics that are created, or altered to these settings.
        security: The files with keys and users of the ZMTP server.
        permissions: The permissions; empty allows everything.
        user_limits: The limits of users.
        max_connections: The clients that each endpoint of ZMTP and of S-expressions admits; `None` derives it from the
            descriptor limit of the process.
        heartbeat_interval: Seconds between two PINGs to a client.
        heartbeat_timeout: Seconds without an answer to a PING after which a client is dead.
        cluster: The arguments of `Cluster`; empty: the broker is in none.
    """

    bind: tuple[str, ...] = ()
    sexp: str | None = None
    http: str | None = None
    memory: bool = False
    topics: tuple[TopicSpec, ...] = ()
    security: SecurityFiles = field(default_factory=SecurityFiles)
    permissions: tuple[Permission, ...] = ()
    user_limits: tuple[UserLimit, ...] = ()
    max_connections: int | None = None
    heartbeat_interval: float = HEARTBEAT_INTERVAL_S
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT_S
    cluster: Mapping[str, Any] = field(default_factory=dict)


def read_config(path: str | os.PathLike[str], *, security: SecurityFiles | None = None) -> Config:
    """Reads a `broker.toml`. Paths in it are relative to its directory.

    Args:
        path: The file.
        security: Replaces the `[security]` of the file.

    Raises:
        ConfigError: The file cannot be read, or a value in it is not valid.
    """
    try:
        with open(file_path(path), "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    try:
        config = _config(content, Path(path).parent, security)
        return replace(config, topics=tuple(replace(topic, place=f"{path}: {topic.place}") for topic in config.topics))
    except ConfigError as fault:
        raise ConfigError(f"{path}: {fault}") from None


_TOP: Final = (
    *("bind", "sexp", "http", "memory", "topic", "security", "permission", "limits", "user_limit", "heartbeat"),
    "cluster",
)


def _config(content: dict[str, Any], folder: Path, override: SecurityFiles | None) -> Config:
    _check_keys(content, _TOP, "the file")
    memory = content.get("memory", False)
    if not isinstance(memory, bool):
        raise _InvalidValue("memory", memory, "must be true or false")
    http = _text(content, "http")
    if http is not None:
        try:
            parse_http_address(http)
        except UsageError as fault:
            raise ConfigError(f"http = {fault}") from None
    security = override or _security(content.get("security"), folder)
    permissions = tuple(_permission(row, security, at) for at, row in _rows(content, "permission"))
    limits = _table(content, "limits", ("connections",))
    heartbeat = _table(content, "heartbeat", ("interval", "timeout"))
    connections = limits.get("connections")
    if connections is not None and (type(connections) is not int or not 1 <= connections < 2**31):
        raise ConfigError(f"[limits]: connections = {shown(connections)}: must be a whole number of 1 or more")
    for key, value in heartbeat.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not _MIN_HEARTBEAT_S <= value < 1e6:
            raise ConfigError(f"[heartbeat]: {key} = {shown(value)}: must be seconds, {_MIN_HEARTBEAT_S} or more")
    return Config(
        bind=_endpoints(content),
        sexp=_text(content, "sexp"),
        http=http,
        memory=memory,
        topics=tuple(_topics(content)),
        security=security,
        permissions=permissions,
        user_limits=tuple(_user_limits(content, security)),
        max_connections=connections,
        heartbeat_interval=float(heartbeat.get("interval", HEARTBEAT_INTERVAL_S)),
        heartbeat_timeout=float(heartbeat.get("timeout", HEARTBEAT_TIMEOUT_S)),
        cluster=_cluster(content, folder),
    )


_CLUSTER: Final = (
    *("name", "servers", "node", "advertise", "servers_sync", "lease", "replicas", "snapshot_bytes"),
    *("user", "password", "token", "credentials", "ca", "domain"),
)


def _cluster(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    table = dict(_table(content, "cluster", _CLUSTER))
    try:
        for key in ("user", "password", "token", "credentials", "ca", "domain"):
            _text(table, key)
    except ConfigError as fault:
        raise ConfigError(f"[cluster]: {fault}") from None
    for key in {"credentials", "ca"} & table.keys():
        table[key] = folder / table[key]
    return table


def cluster_of(settings: Mapping[str, Any]) -> Cluster | None:
    """Returns the cluster of a broker; `None` without settings.

    Args:
        settings: The arguments of `Cluster`.

    Raises:
        UsageError: One is missing or not valid.
    """
    if not settings:
        return None
    for key, text in (("name", "the name of the cluster"), ("servers", "the NATS servers, as nats://HOST:PORT")):
        if key not in settings:
            raise UsageError(f"{key}: is missing; give {text}").about(key)
    return Cluster(**settings)


_MIN_HEARTBEAT_S: Final = 0.1


def _table(content: dict[str, Any], name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """Returns a table of the file after a check of its keys; an empty one if it is missing."""
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise _InvalidValue(name, table, f"must be a table: [{name}]")
    _check_keys(table, keys, f"[{name}]")
    return table


def _check_keys(table: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    """Raises `ConfigError` for an unknown key."""
    for key, value in table.items():
        if key not in known:
            raise _InvalidValue(key, value, f"is not a key of {what}{suggestion(key, known)}")


def _text(table: dict[str, Any], key: str) -> str | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise _InvalidValue(key, value, "must be a string that is not empty")
    return value


def _endpoints(content: dict[str, Any]) -> tuple[str, ...]:
    value = content.get("bind", [])
    endpoints = [value] if isinstance(value, str) else value
    if not isinstance(endpoints, list) or not all(isinstance(endpoint, str) for endpoint in endpoints):
        raise _InvalidValue("bind", value, "must be an endpoint or a list of endpoints")
    return tuple(endpoints)


def _rows(content: dict[str, Any], name: str) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yields the rows of an array of tables, each after its place for error texts."""
    rows = content.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{name} must be an array of tables: [[{name}]]")
    for number, row in enumerate(rows, 1):
        yield f"[[{name}]] number {number}", row


def _topics(content: dict[str, Any]) -> Iterable[TopicSpec]:
    seen: set[str] = set()
    for place, row in _rows(content, "topic"):
        at = f"{place} ({shown(row['name'])})" if isinstance(row.get("name"), str) else place
        if "settings" in row:
            raise ConfigError(
                f"{at}: settings = {shown(row['settings'])}: put the settings in the topic's table itself"
            )
        try:
            spec = topic_spec(row)
        except ConfigError as fault:
            raise ConfigError(f"{at}: {fault}") from None
        if spec.name in seen:
            raise ConfigError(f"{at}: name = {shown(spec.name)}: duplicate; give it once")
        seen.add(spec.name)
        yield replace(spec, place=at)


_SECURITY: Final = ("mechanism", "secret_key_file", "authorized_keys_file", "users_file")


def _security(table: object, folder: Path) -> SecurityFiles:
    if table is None:
        return SecurityFiles()
    if not isinstance(table, dict):
        raise _InvalidValue("security", table, "must be a table: [security]")
    try:
        _check_keys(table, _SECURITY, "[security]")
        for key in table:
            _text(table, key)
        if "mechanism" not in table:
            raise ConfigError(f"mechanism is missing; expected one of {', '.join(MECHANISMS)}")
        paths = {key: folder / table[key] for key in _SECURITY[1:] if key in table}
        return SecurityFiles(table["mechanism"], **paths)
    except UsageError as fault:
        raise ConfigError(f"[security]: {fault}") from None


def _permission(row: dict[str, Any], security: SecurityFiles, at: str) -> Permission:
    names = ("who", "topics", "may")
    try:
        _check_keys(row, names, "a permission")
        for key in names:
            if key not in row:
                raise ConfigError(f"{key} is missing")
        permission = Permission(**row)
        _check_who(permission.who, security.mechanism)
    except UsageError as fault:
        raise ConfigError(f"{at}: {fault}") from None
    return permission


def _user_limits(content: dict[str, Any], security: SecurityFiles) -> Iterable[UserLimit]:
    seen: set[str] = set()
    for at, row in _rows(content, "user_limit"):
        try:
            _check_keys(row, ("who", *LIMITS), "a user limit")
            if "who" not in row:
                raise ConfigError("who is missing")
            limit = UserLimit(**row)
            _check_who(limit.who, security.mechanism)
            if limit.who in seen:
                raise _InvalidValue("who", limit.who, "duplicate; give it once")
            if limit.connections is not None and security.mechanism == "null":
                raise _InvalidValue(
                    "connections", limit.connections, "without [security] clients have no users: use [limits]"
                )
        except UsageError as fault:
            raise ConfigError(f"{at}: {fault}") from None
        seen.add(limit.who)
        yield limit


def _check_who(who: str, mechanism: str) -> None:
    """Rejects a permission or limit whose `who` matches no client under this mechanism."""
    if who == ANY_CLIENT:
        return
    if mechanism == "null":
        raise _InvalidValue("who", who, 'without [security] clients have no users: use "*"')
    if mechanism == "curve" and len(who) != KEY_CHARACTERS:
        raise _InvalidValue(
            "who", who, 'mechanism "curve" identifies clients by their public keys, 40 characters of Z85'
        )
