"""Parses and validates the options of live sockets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import omq
from omq.spark.options import (
    ALL,
    MAX_PARTITIONS,
    READ,
    READS,
    STREAM_READ,
    STREAM_WRITE,
    WRITES,
    Option,
    OptionSet,
    at_most,
    count,
    nullable,
    seconds,
    some_words,
    utf8,
)
from omq.spark.settings import BYTES, FLAG, SHARED_OPTIONS, WHOLE_NUMBER, check_endpoint, read_secret
from omq.spark.settings import Settings as BaseSettings

#: The socket types of each side.
_TYPES: Final = dict.fromkeys(READS, ("PULL", "SUB")) | dict.fromkeys(WRITES, ("PUSH", "PUB"))
#: Socket options that only reads or only writes take.
_RESTRICTED: Final = {
    # A read ends at its limits, not at a timeout, and does not send.
    "recv_timeout": WRITES,
    "send_hwm": WRITES,
    "send_timeout": WRITES,
    "linger": WRITES,
    "error_linger": WRITES,
    "recv_hwm": READS,
}

_OWN: Final = (
    Option("socket", ALL, str.upper, "a socket type"),
    Option("bind", ALL, some_words, "an endpoint, or several, separated by commas"),
    Option("connect", ALL, some_words, "an endpoint, or several, separated by commas"),
    Option("partitions", READS, at_most(MAX_PARTITIONS, count), "a whole number above 0, 1000000 at most"),
    *SHARED_OPTIONS,
    Option("maxRows", frozenset({READ}), *WHOLE_NUMBER),
    Option("maxBytes", frozenset({READ}), *BYTES),
    Option("maxSeconds", frozenset({READ}), seconds, "seconds above 0"),
    Option("maxRowsPerTrigger", frozenset({STREAM_READ}), *WHOLE_NUMBER),
    Option("maxBytesPerTrigger", frozenset({STREAM_READ}), *BYTES),
    Option("triggerSeconds", frozenset({STREAM_READ}), seconds, "seconds above 0"),
    Option("quietSeconds", frozenset({STREAM_READ}), seconds, "seconds above 0"),
    Option("keepSeconds", frozenset({STREAM_WRITE}), seconds, "seconds above 0"),
    Option("connectTimeout", ALL, nullable(seconds), "seconds above 0, or none"),
    Option("failOnConnectTimeout", ALL, *FLAG),
    Option("failOnDataLoss", frozenset({STREAM_READ}), *FLAG),
    Option("topic", WRITES, utf8, "text"),
    Option("subscribers", WRITES, *WHOLE_NUMBER),
    Option("curveServerKeyFile", ALL, Path, "the path of a file with the server's public key"),
    Option("curveSecretKeyFile", ALL, Path, "the path of a file with the secret key of this side"),
    Option("curveAuthorizedKeysFile", ALL, Path, "the path of a file with one public key per line"),
)


@dataclass(frozen=True, kw_only=True)
class SocketSettings(BaseSettings):
    """The options of one read or write of a live socket. Limits apply to each partition.

    Attributes:
        socket: The name of the socket type.
        bind: Endpoints to listen on.
        connect: Endpoints to connect to.
        partitions: Connections to the only endpoint; `None` for one connection per endpoint.
        max_seconds: The maximum duration of a read or a microbatch, in seconds; `None` for the default.
        quiet_seconds: Seconds without a message after which `availableNow` has drained a source.
        keep_seconds: Seconds that a sink keeps an unused connection.
        connect_timeout: Seconds for the first peer to connect; `None` for no limit.
        fail_on_connect_timeout: Whether the query fails after that; otherwise it is logged.
        topic: The topic of every message that a PUB sends; `None` for the column `topic`, or for no topic.
        subscribers: Subscriptions that a PUB waits for before it sends.
        keys: The paths of CURVE keys, by option.
    """

    OPTIONS = OptionSet(_OWN, _TYPES, _RESTRICTED)
    COLUMNS: ClassVar = {
        "value": "binary",
        "parts": "array<binary>",
        "topic": "binary",
        "endpoint": "string",
        "timestamp": "timestamp",
        "sequence": "bigint",
    }
    socket: str
    bind: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    partitions: int | None = None
    max_seconds: float | None = None
    quiet_seconds: float = 1.0
    keep_seconds: float = 60.0
    connect_timeout: float | None = 30.0
    fail_on_connect_timeout: bool = True
    fail_on_data_loss: bool = False
    topic: bytes | None = None
    subscribers: int = 0
    keys: tuple[tuple[str, str], ...] = ()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoint of each partition of a read."""
        both = self.bind + self.connect
        return both * self.partitions if self.partitions else both

    def security(self) -> Any:
        """Returns the CURVE client or server, from the files on this host; `None` without CURVE.

        Raises:
            OptionError: A file cannot be read, or does not have a key.
        """
        keys = {name: read_secret(name, path) for name, path in self.keys}
        secret = keys.get("curveSecretKeyFile")
        try:
            if "curveServerKeyFile" in keys:
                return omq.CurveClient(keys["curveServerKeyFile"], secret_key=secret)
            if secret is None:
                return None
            allowed = keys.get("curveAuthorizedKeysFile")
            return omq.CurveServer(secret, None if allowed is None else set(allowed.split()))
        except (ValueError, omq.OptionError) as error:
            files = ", ".join(f"{name}={path!r}" for name, path in self.keys)
            raise omq.OptionError(f"{error} ({files})") from None

    def open(self, endpoint: str | None = None, **options: Any) -> omq.Socket:
        """Opens a socket.

        Args:
            endpoint: The endpoint of the socket; `None` for all endpoints of the settings.
            **options: Socket options that override those of the settings.
        """
        kind: type[omq.Socket] = getattr(omq, self.socket)
        bind = [one for one in self.bind if endpoint in (None, one)]
        connect = [one for one in self.connect if endpoint in (None, one)]
        return kind(bind=bind, connect=connect, **{"security": self.security(), **dict(self.options), **options})

    @classmethod
    def _check_together(cls, use: str, own: dict[str, Any], options: dict[str, Any], limit_required: bool) -> None:
        """Raises an `OptionError` for options that are missing, or exclude or need each other."""
        types = _TYPES[use]
        if own.get("socket") not in types:
            fault = f"option socket={own['socket']!r}" if "socket" in own else "option 'socket' is missing"
            raise omq.OptionError(f"{fault}: {use} takes {' or '.join(types)}; {cls.OPTIONS.listed(use)}")
        if "bind" not in own and "connect" not in own:
            raise omq.OptionError(f"option 'connect' or 'bind' is missing: an endpoint; {cls.OPTIONS.listed(use)}")
        if own["socket"] == "SUB" and "subscribe" not in options:
            raise omq.OptionError(
                "option 'subscribe' is missing: give a SUB socket prefixes separated by commas, or '' for all messages"
            )
        if "curveAuthorizedKeysFile" in own and "curveServerKeyFile" in own:
            raise omq.OptionError(
                "options 'curveAuthorizedKeysFile' and 'curveServerKeyFile' exclude each other: "
                "a socket is server or client"
            )
        if "curveAuthorizedKeysFile" in own and "curveSecretKeyFile" not in own:
            raise omq.OptionError("option 'curveSecretKeyFile' is missing: curveAuthorizedKeysFile makes a server")
        if limit_required and use == READ and not own.keys() & {"maxRows", "maxBytes", "maxSeconds"}:
            raise omq.OptionError("a batch needs a limit: option 'maxRows', 'maxBytes' or 'maxSeconds' is missing")

    @classmethod
    def _fields(cls, use: str, own: dict[str, Any]) -> dict[str, Any]:
        keys = tuple((name, str(own.pop(name))) for name in list(own) if name.startswith("curve"))
        seconds = {"max_seconds": own.pop("triggerSeconds")} if "triggerSeconds" in own else {}
        return {**super()._fields(use, own), **seconds, "keys": keys}

    def check(self) -> None:
        """Raises an `OptionError` for values that are not valid, or that cannot be combined."""
        super().check()
        omq.Options.parse(omq.SocketType(self.socket), dict(self.options))
        for option, endpoints in (("bind", self.bind), ("connect", self.connect)):
            for endpoint, times in Counter(endpoints).items():
                check_endpoint(option, endpoint, omq.SocketType(self.socket))
                if times > 1 and option == "bind":
                    raise omq.OptionError(f"option bind: {endpoint!r} is given twice, and can be bound only once")
                if times > 1 and self.socket == "SUB":
                    raise omq.OptionError(
                        f"option connect: {endpoint!r} is given twice; every message would arrive twice"
                    )
        if self.partitions and self.partitions > 1 and self.socket == "SUB":
            raise omq.OptionError(
                f"option partitions={self.partitions}: each connection of a SUB gets every message; use 1"
            )
        if self.partitions and len(self.bind + self.connect) != 1:
            raise omq.OptionError(
                f"option partitions={self.partitions}: it is for a single endpoint; each of several has one partition"
            )
        if self.partitions and self.partitions > 1 and self.bind:
            raise omq.OptionError(
                f"option partitions={self.partitions}: an endpoint can be bound only once; use 'connect', or 1"
            )
        if (self.topic is not None or self.subscribers) and self.socket != "PUB":
            raise omq.OptionError(f"options 'topic' and 'subscribers' are for a PUB, not for a {self.socket}")

    def _known_columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.COLUMNS if name != "topic" or self.socket == "SUB")

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns of a read."""
        return self.columns or tuple(name for name in self._known_columns() if name != "parts")
