"""Parses and validates the options of reads and writes of topics."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from pyspark.sql.types import StructField

import omq
from omq.broker import Client
from omq.broker.protocol import check_name
from omq.spark.options import (
    ALL,
    MAX_BROKER_BYTES,
    MAX_PARTITIONS,
    READ,
    READS,
    STREAM_READ,
    WRITES,
    Option,
    OptionSet,
    at_most,
    count,
    seconds,
    size,
)
from omq.spark.settings import FLAG, SHARED_OPTIONS, WHOLE_NUMBER, check_endpoint, read_secret
from omq.spark.settings import Settings as BaseSettings

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"

#: The start or end of a read: `earliest`, `latest`, or an id of each topic, by name.
Offsets = str | tuple[tuple[str, int], ...]

#: Socket options that the broker's client sets itself, or does not need.
_CLIENT_OPTIONS: Final = (
    "conflate",
    "hello_message",
    "hiccup_message",
    "identity",
    "linger",
    "max_message_size",
    "max_parts",
    "probe_router",
    "reconnect_interval",
    "reconnect_stop",
    "recv_hwm",
    "recv_timeout",
    "send_hwm",
    "send_timeout",
)
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _text(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _names(text: str) -> tuple[str, ...]:
    """Parses names of topics, or endpoints, separated by commas; a name may have blanks."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found or len(set(found)) < len(found):
        raise ValueError
    return found


def _pattern(text: str) -> str:
    try:
        re.compile(_text(text))
    except re.error:
        raise ValueError from None
    return text


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object; rejects duplicate names, of which the parser would drop all but the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _starting(text: str) -> Offsets:
    return text.strip().lower() if text.strip().lower() == EARLIEST else _ending(text)


def _ending(text: str) -> Offsets:
    if text.strip().lower() == LATEST:
        return LATEST
    try:
        found = json.loads(text, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise ValueError from None
    if not isinstance(found, dict) or not found:
        raise ValueError
    for id in found.values():
        if isinstance(id, bool) or not isinstance(id, int) or id < 1:
            raise ValueError
    return tuple(sorted(found.items()))


def _timestamp(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _duration(text: str) -> float:
    """Parses a duration into seconds: `90`, `500ms`, `30s`, `15m`, `1h`."""
    found = re.fullmatch(r"([0-9.]+)(ms|s|m|h)?", text.strip().lower())
    if found is None:
        raise ValueError
    return seconds(found[1]) * _UNITS[found[2] or "s"]


def _delivery(text: str) -> str:
    return {one: one for one in (EXACTLY_ONCE, AT_LEAST_ONCE)}[text.strip().lower()]


_ALL_OFFSETS: Final = 'or an id of each topic, once: {"topic": 17}'
_SOME_OFFSETS: Final = 'or an id of each topic or of some, once: {"topic": 17}'
_STREAM: Final = frozenset({STREAM_READ})
_OWN: Final = (
    Option("connect", ALL, _names, "the endpoint of a broker, or several of a cluster, separated by commas, each once"),
    Option("topic", ALL, _text, "the name of a topic"),
    Option("topics", READS, _names, "names of topics, separated by commas, each once"),
    Option("topicPattern", READS, _pattern, "a regular expression"),
    Option("startingOffsets", READS, _starting, f"earliest, latest (for a stream), {_SOME_OFFSETS}"),
    Option("endingOffsets", frozenset({READ}), _ending, f"latest, {_ALL_OFFSETS}, which is excluded"),
    Option("startingTimestamp", READS, _timestamp, "milliseconds since 1970, a whole number"),
    Option("endingTimestamp", frozenset({READ}), _timestamp, "milliseconds since 1970, a whole number"),
    Option("minPartitions", READS, at_most(MAX_PARTITIONS, count), "a whole number above 0, 1000000 at most"),
    Option("failOnDataLoss", READS, *FLAG),
    *SHARED_OPTIONS,
    Option("subscription", _STREAM, _text, "the name of a durable subscription"),
    Option("maxRowsPerTrigger", _STREAM, *WHOLE_NUMBER),
    Option("minRowsPerTrigger", _STREAM, *WHOLE_NUMBER),
    Option(
        "maxBytesPerTrigger", _STREAM, at_most(MAX_BROKER_BYTES, size), "bytes above 0 (16m is 16 MiB), 2^62 at most"
    ),
    Option("maxTriggerDelay", _STREAM, _duration, "seconds above 0, or with a unit: 500ms, 30s, 15m, 1h"),
    Option("delivery", WRITES, _delivery, f"{EXACTLY_ONCE} or {AT_LEAST_ONCE}"),
    Option("timeout", ALL, seconds, "seconds above 0"),
    Option("username", ALL, _text, "text"),
    Option("passwordFile", ALL, Path, "the path of a file with the password"),
    Option("curveServerKeyFile", ALL, Path, "the path of a file with the broker's public key"),
    Option("curveSecretKeyFile", ALL, Path, "the path of a file with the client's secret key"),
)
_SECRETS: Final = ("passwordFile", "curveServerKeyFile", "curveSecretKeyFile")


@dataclass(frozen=True, kw_only=True)
class TopicSettings(BaseSettings):
    """The options of one read or write of topics.

    Attributes:
        endpoints: The broker's endpoint, or several of a cluster.
        chosen: The option that chooses the topics and its text, for error messages; empty for a column.
        topics: Names of topics. A write has one, or none if a column has the topic.
        pattern: A regular expression for the whole name of a topic; `None` if topics are named.
        starting_offsets: The start of a read; ids are inclusive.
        ending_offsets: The end of a batch; ids are exclusive.
        starting_timestamp: The time of the first message to read, in milliseconds since 1970; `None` for offsets.
        ending_timestamp: The time of the first message not to read; `None` for offsets.
        min_partitions: The minimum number of partitions, if there are as many messages; `None` for one per topic.
        subscription: The name of the durable subscription; `None` for none.
        min_rows: The rows that a microbatch waits for; `None` for one.
        max_trigger_delay: The maximum time that it waits for *min_rows*, in seconds.
        delivery: `exactly-once` or `at-least-once`.
        timeout: Seconds for an answer of the broker, reconnects included.
        username: The user of PLAIN; `None` without PLAIN.
        secrets: The paths of keys and of a password, by option.
    """

    OPTIONS = OptionSet(_OWN, dict.fromkeys(ALL, ("DEALER",)), dict.fromkeys(_CLIENT_OPTIONS, frozenset()))
    COLUMNS: ClassVar = {
        "topic": "string",
        "id": "bigint",
        "timestamp": "timestamp",
        "key": "binary",
        "value": "binary",
        "headers": "map<string,binary>",
    }
    NULLABLE: ClassVar = ", all of which may be null"
    endpoints: tuple[str, ...]
    chosen: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    starting_offsets: Offsets = EARLIEST
    ending_offsets: Offsets = LATEST
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    min_partitions: int | None = None
    subscription: str | None = None
    min_rows: int | None = None
    max_trigger_delay: float = 900.0
    delivery: str = EXACTLY_ONCE
    timeout: float = 30.0
    username: str | None = None
    secrets: tuple[tuple[str, str], ...] = ()

    @property
    def endpoint(self) -> str:
        """The endpoints as one text."""
        return ",".join(self.endpoints)

    def chooses(self, topic: str) -> bool:
        """Returns whether the options choose a topic of this name."""
        return topic in self.topics if self.pattern is None else re.fullmatch(self.pattern, topic) is not None

    def security(self) -> Any:
        """Returns the PLAIN or CURVE client, from the files on this host; `None` without security."""
        found: Any = None
        held: dict[str, str] = {}
        for name, path in self.secrets:
            held[name] = read_secret(name, path)
            try:
                # One after the other, to name the wrong one in the error.
                if name == "passwordFile":
                    found = omq.PlainClient(self.username or "", held[name])
                else:
                    found = omq.CurveClient(held["curveServerKeyFile"], secret_key=held.get("curveSecretKeyFile"))
            except (omq.OmqError, ValueError) as error:
                with_user = "" if self.username is None else f" with username={self.username!r}"
                raise omq.OptionError(f"option {name}={path!r}{with_user}: {error}") from None
        return found

    def client(self) -> Client:
        """Returns a client of the broker, which connects in the background."""
        return Client(self.endpoints, timeout=self.timeout, security=self.security(), **dict(self.options))

    @classmethod
    def _check_together(cls, use: str, own: dict[str, Any], options: dict[str, Any], limit_required: bool) -> None:
        """Raises an `OptionError` for options that are missing, or exclude or need each other."""
        if "connect" not in own:
            raise omq.OptionError(f"option 'connect' is missing: the endpoint of a broker; {cls.OPTIONS.listed(use)}")
        omq.Options.parse(omq.SocketType("DEALER"), options)
        if use in READS and len(own.keys() & {"topic", "topics", "topicPattern"}) != 1:
            raise omq.OptionError(f"{use} takes one of the options 'topic', 'topics' and 'topicPattern'")
        for one, other in (
            ("startingOffsets", "startingTimestamp"),
            ("endingOffsets", "endingTimestamp"),
        ):
            if one in own and other in own:
                raise omq.OptionError(
                    f"options {one!r} and {other!r} exclude each other: both set the same bound; set one of them"
                )
        if use == READ and own.get("startingOffsets") == LATEST:
            raise omq.OptionError("option startingOffsets='latest': a batch would be empty; it is for a stream")
        if own.get("startingTimestamp", 0) > own.get("endingTimestamp", float("inf")):
            raise omq.OptionError(
                f"option startingTimestamp='{own['startingTimestamp']}' is after"
                f" endingTimestamp='{own['endingTimestamp']}'"
            )
        if own.get("minRowsPerTrigger", 0) > own.get("maxRowsPerTrigger", float("inf")):
            raise omq.OptionError(
                f"option minRowsPerTrigger='{own['minRowsPerTrigger']}' is above"
                f" maxRowsPerTrigger='{own['maxRowsPerTrigger']}'"
            )
        if "maxTriggerDelay" in own and "minRowsPerTrigger" not in own:
            raise omq.OptionError(
                "option 'maxTriggerDelay' needs 'minRowsPerTrigger', the rows that a microbatch waits for"
            )
        for one, other in (
            ("curveSecretKeyFile", "curveServerKeyFile"),
            ("username", "passwordFile"),
            ("passwordFile", "username"),
        ):
            if one in own and other not in own:
                raise omq.OptionError(f"option {other!r} is missing: {one} needs it")
        if "username" in own and "curveServerKeyFile" in own:
            raise omq.OptionError(
                "options 'username' and 'curveServerKeyFile' select different security mechanisms; set one of them"
            )

    @classmethod
    def streams(cls, given: Mapping[str, str]) -> bool:
        """Returns whether an option, or the value of one, is for a streaming read only."""
        return super().streams(given) or given.get("startingOffsets", "").strip().lower() == LATEST

    @classmethod
    def _fields(cls, use: str, own: dict[str, Any]) -> dict[str, Any]:
        secrets = tuple((name, str(own.pop(name))) for name in _SECRETS if name in own)
        found: dict[str, Any] = {"starting_offsets": LATEST} if use == STREAM_READ else {}
        for option in own.keys() & {"topic", "topics", "topicPattern"}:
            value = own.pop(option)
            names = value if option == "topics" else (value,)
            found["chosen"] = f"{option}={','.join(names)!r}"
            found |= {"pattern": value} if option == "topicPattern" else {"topics": names}
        return {**found, "endpoints": own.pop("connect"), **super()._fields(use, own), "secrets": secrets}

    def check(self) -> None:
        """Raises an `OptionError` for values that are not valid, or that cannot be combined."""
        super().check()
        for endpoint in self.endpoints:
            check_endpoint("connect", endpoint, omq.SocketType.DEALER)
        for name in self.topics:
            try:
                check_name(name)
            except omq.OmqError as error:
                raise omq.OptionError(f"option {self.chosen}: {error}") from None
        if self.subscription is not None:
            try:
                check_name(self.subscription, "a subscription's name")
            except omq.OmqError as error:
                raise omq.OptionError(f"option subscription={self.subscription!r}: {error}") from None

    def _fits(self, field: StructField) -> bool:
        # Spark also compares the nullability of a column.
        return field.nullable and getattr(field.dataType, "valueContainsNull", True) and super()._fits(field)
