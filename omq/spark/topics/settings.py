"""The options of topics: which there are, and what they come to together."""

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
    MOST_BYTES,
    MOST_PARTITIONS,
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

#: Where reads of topics begin or end: one of the two words, or an id of each topic, by name.
Offsets = str | tuple[tuple[str, int], ...]

#: What the client of a broker says of its socket, or what no socket of it needs.
_OF_THE_CLIENT: Final = (
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


def _named(text: str) -> tuple[str, ...]:
    """Names of topics, separated by commas; a name may have blanks."""
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


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON whose names are different: of two ids of a topic one would be passed over."""
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
        found = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError from None
    if not isinstance(found, dict) or not found:
        raise ValueError
    for id in found.values():
        if isinstance(id, bool) or not isinstance(id, int) or id < 1:
            raise ValueError
    return tuple(sorted(found.items()))


def _moment(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _duration(text: str) -> float:
    """Seconds: `90`, `500ms`, `30s`, `15m`, `1h`."""
    found = re.fullmatch(r"([0-9.]+)(ms|s|m|h)?", text.strip().lower())
    if found is None:
        raise ValueError
    return seconds(found[1]) * _UNITS[found[2] or "s"]


def _delivery(text: str) -> str:
    return {one: one for one in (EXACTLY_ONCE, AT_LEAST_ONCE)}[text.strip().lower()]


_OFFSETS: Final = 'or an id of each topic, once: {"topic": 17}'
_SOME: Final = 'or an id of each topic or of some, once: {"topic": 17}'
_STREAM: Final = frozenset({STREAM_READ})
_OWN: Final = (
    Option("connect", ALL, _text, "the endpoint of a broker"),
    Option("topic", ALL, _text, "the name of a topic"),
    Option("topics", READS, _named, "names of topics, separated by commas, each once"),
    Option("topicPattern", READS, _pattern, "a regular expression"),
    Option("startingOffsets", READS, _starting, f"earliest, latest (for a stream), {_SOME}"),
    Option("endingOffsets", frozenset({READ}), _ending, f"latest, {_OFFSETS}, which is excluded"),
    Option("startingTimestamp", READS, _moment, "milliseconds since 1970, a whole number"),
    Option("endingTimestamp", frozenset({READ}), _moment, "milliseconds since 1970, a whole number"),
    Option("minPartitions", READS, at_most(MOST_PARTITIONS, count), "a whole number above 0, 1000000 at most"),
    Option("failOnDataLoss", READS, *FLAG),
    *SHARED_OPTIONS,
    Option("subscription", _STREAM, _text, "a name for the position that the broker keeps"),
    Option("maxRowsPerTrigger", _STREAM, *WHOLE_NUMBER),
    Option("minRowsPerTrigger", _STREAM, *WHOLE_NUMBER),
    Option("maxBytesPerTrigger", _STREAM, at_most(MOST_BYTES, size), "bytes above 0 (16m is 16 MiB), 2^62 at most"),
    Option("maxTriggerDelay", _STREAM, _duration, "seconds above 0, or with a unit: 500ms, 30s, 15m, 1h"),
    Option("delivery", WRITES, _delivery, f"{EXACTLY_ONCE} or {AT_LEAST_ONCE}"),
    Option("timeout", ALL, seconds, "seconds above 0"),
    Option("username", ALL, _text, "text"),
    Option("passwordFile", ALL, Path, "the path of a file with the password"),
    Option("curveServerKeyFile", ALL, Path, "the path of a file with the broker's public key"),
    Option("curveSecretKeyFile", ALL, Path, "the path of a file with our secret key"),
)
_SECRETS: Final = ("passwordFile", "curveServerKeyFile", "curveSecretKeyFile")


@dataclass(frozen=True, kw_only=True)
class TopicSettings(BaseSettings):
    """The options of one read or write of topics.

    Attributes:
        endpoint: The broker's.
        topics: Names of topics; of a write one, or none where a column has it.
        pattern: What the whole name of a topic matches; `None` where topics are named.
        starting_offsets: Where a read begins; ids are included.
        ending_offsets: Where a batch ends; ids are excluded.
        starting_timestamp: It begins with the first message of this time: milliseconds since 1970; `None` for offsets.
        ending_timestamp: It ends before the first message of this time; `None` for offsets.
        min_partitions: Partitions at least, as far as there are messages; `None` for one a topic.
        subscription: The name under which the broker keeps where a stream is; `None` for none.
        min_rows: Rows for which a microbatch waits; `None` for one.
        max_trigger_delay: Seconds for which it waits for *min_rows* at most.
        delivery: `exactly-once` or `at-least-once`.
        timeout: Seconds that the broker may be away, or take for an answer.
        username: The user that PLAIN says; `None` without PLAIN.
        secrets: The paths of keys and of a password, by option.
    """

    OPTIONS = OptionSet(_OWN, dict.fromkeys(ALL, ("DEALER",)), dict.fromkeys(_OF_THE_CLIENT, frozenset()))
    COLUMNS: ClassVar = {
        "topic": "string",
        "id": "bigint",
        "timestamp": "timestamp",
        "key": "binary",
        "value": "binary",
        "headers": "map<string,binary>",
    }
    NULLABLE: ClassVar = ", all of which may be null"
    endpoint: str
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
    def chosen(self) -> str:
        """The option that says which topics, for messages."""
        if self.pattern is not None:
            return f"topicPattern={self.pattern!r}"
        return f"topic={self.topics[0]!r}" if len(self.topics) == 1 else f"topics={','.join(self.topics)!r}"

    def chooses(self, topic: str) -> bool:
        """Returns whether a topic of this name is among those that are read."""
        return topic in self.topics if self.pattern is None else re.fullmatch(self.pattern, topic) is not None

    def security(self) -> Any:
        """PLAIN or CURVE, with what the files hold in this process; `None` without."""
        found: Any = None
        held: dict[str, str] = {}
        for name, path in self.secrets:
            held[name] = read_secret(name, path)
            try:
                # One after the other, so that it is known which one does not fit.
                if name == "passwordFile":
                    found = omq.PlainClient(self.username or "", held[name])
                else:
                    found = omq.CurveClient(held["curveServerKeyFile"], secret_key=held.get("curveSecretKeyFile"))
            except (omq.OmqError, ValueError) as error:
                with_user = "" if self.username is None else f" with username={self.username!r}"
                raise omq.OptionError(f"option {name}={path!r}{with_user}: {error}") from None
        return found

    def client(self) -> Client:
        """A client of the broker; it connects in the background."""
        return Client(self.endpoint, timeout=self.timeout, security=self.security(), **dict(self.options))

    @classmethod
    def _check_together(cls, use: str, own: dict[str, Any], options: dict[str, Any], bounded: bool) -> None:
        """Raises for options that are missing, or exclude or need one another."""
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
                raise omq.OptionError(f"options {one!r} and {other!r} exclude each other: both say the same bound")
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
            raise omq.OptionError("option 'maxTriggerDelay' is how long a microbatch waits for 'minRowsPerTrigger'")
        if "curveSecretKeyFile" in own and "curveServerKeyFile" not in own:
            raise omq.OptionError("option 'curveServerKeyFile' is missing: curveSecretKeyFile goes with it")
        if ("username" in own) != ("passwordFile" in own):
            raise omq.OptionError("options 'username' and 'passwordFile' go together")
        if "username" in own and "curveServerKeyFile" in own:
            raise omq.OptionError("options 'username' and 'curveServerKeyFile' exclude each other")

    @classmethod
    def streams(cls, given: Mapping[str, str]) -> bool:
        """Returns whether there are options, or a value of one, that only a streaming read has."""
        return super().streams(given) or given.get("startingOffsets", "").strip().lower() == LATEST

    @classmethod
    def _fields(cls, use: str, own: dict[str, Any]) -> dict[str, Any]:
        secrets = tuple((name, str(own.pop(name))) for name in _SECRETS if name in own)
        topics = own.pop("topics", ()) + ((own.pop("topic"),) if "topic" in own else ())
        chosen = {"endpoint": own.pop("connect"), "topics": topics, "pattern": own.pop("topicPattern", None)}
        start = {"starting_offsets": LATEST} if use == STREAM_READ else {}
        return {**start, **super()._fields(use, own), **chosen, "secrets": secrets}

    def check(self) -> None:
        """Raises if options do not go together."""
        super().check()
        check_endpoint("connect", self.endpoint, omq.SocketType.DEALER)
        for name in self.topics:
            try:
                check_name(name)
            except omq.OmqError as error:
                raise omq.OptionError(f"option topic={name!r}: {error}") from None
        if self.subscription is not None:
            try:
                check_name(self.subscription, "a subscription's name")
            except omq.OmqError as error:
                raise omq.OptionError(f"option subscription={self.subscription!r}: {error}") from None

    def _fits(self, field: StructField) -> bool:
        # Spark compares also what may be null in a column.
        return field.nullable and getattr(field.dataType, "valueContainsNull", True) and super()._fits(field)
