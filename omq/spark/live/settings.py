"""The options of live sockets: which there are, and what they come to together."""

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
    octets,
    seconds,
    some_words,
)
from omq.spark.settings import BYTES, FLAG, SHARED_OPTIONS, WHOLE_NUMBER, check_endpoint, read_secret
from omq.spark.settings import Settings as BaseSettings

#: The socket types of each side.
_TYPES: Final = dict.fromkeys(READS, ("PULL", "SUB")) | dict.fromkeys(WRITES, ("PUSH", "PUB"))
#: Options of a socket that mean nothing on one side.
_ELSEWHERE: Final = {
    # A read ends at its bounds, not at a timeout, and it sends nothing.
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
    Option("topic", WRITES, octets, "text"),
    Option("subscribers", WRITES, *WHOLE_NUMBER),
    Option("curveServerKeyFile", ALL, Path, "the path of a file with the server's public key"),
    Option("curveSecretKeyFile", ALL, Path, "the path of a file with our secret key"),
    Option("curveAuthorizedKeysFile", ALL, Path, "the path of a file with a public key a line"),
)


@dataclass(frozen=True, kw_only=True)
class SocketSettings(BaseSettings):
    """The options of one read or write of a live socket, whose bounds are for each partition.

    Attributes:
        socket: The type's name.
        bind: Endpoints to listen on.
        connect: Endpoints to dial.
        partitions: Connections to the only endpoint; `None` for one connection per endpoint.
        max_seconds: Seconds that it reads at most; `None` for the default of a microbatch.
        quiet_seconds: Seconds without a message after which `availableNow` has drained a source.
        keep_seconds: Seconds that a sink keeps a connection without using it.
        connect_timeout: Seconds for the first peer to connect; `None` for any time.
        fail_on_connect_timeout: Whether the query fails after that; else that is logged.
        topic: The topic of every message that a PUB sends; `None` for the column `topic`, or for no topic.
        subscribers: Subscriptions that a PUB waits for before it sends.
        keys: The paths of CURVE keys by option.
    """

    OPTIONS = OptionSet(_OWN, _TYPES, _ELSEWHERE)
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
        """The endpoints of the partitions of a read, each as often as it is opened."""
        both = self.bind + self.connect
        return both * self.partitions if self.partitions else both

    def security(self) -> Any:
        """The socket's CURVE keys, read in the process that opens the socket; `None` without CURVE.

        Raises:
            OptionError: A file cannot be read, or has no key.
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
            endpoint: The only endpoint of the socket; `None` for all.
            **options: More of the socket's options.
        """
        kind: type[omq.Socket] = getattr(omq, self.socket)
        bind = [one for one in self.bind if endpoint in (None, one)]
        connect = [one for one in self.connect if endpoint in (None, one)]
        return kind(bind=bind, connect=connect, **{"security": self.security(), **dict(self.options), **options})

    @classmethod
    def _check_together(cls, use: str, own: dict[str, Any], options: dict[str, Any], bounded: bool) -> None:
        """Raises for options that are missing, or exclude or need one another."""
        types = _TYPES[use]
        if own.get("socket") not in types:
            fault = f"socket={own['socket']!r} does not fit" if "socket" in own else "option 'socket' is missing"
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
        if bounded and use == READ and not own.keys() & {"maxRows", "maxBytes", "maxSeconds"}:
            raise omq.OptionError("a batch needs a bound: option 'maxRows', 'maxBytes' or 'maxSeconds' is missing")

    @classmethod
    def _fields(cls, use: str, own: dict[str, Any]) -> dict[str, Any]:
        keys = tuple((name, str(own.pop(name))) for name in list(own) if name.startswith("curve"))
        seconds = {"max_seconds": own.pop("triggerSeconds")} if "triggerSeconds" in own else {}
        return {**super()._fields(use, own), **seconds, "keys": keys}

    def check(self) -> None:
        """Raises if options do not go together."""
        super().check()
        omq.Options.parse(omq.SocketType(self.socket), dict(self.options))
        for option, endpoints in (("bind", self.bind), ("connect", self.connect)):
            for endpoint, times in Counter(endpoints).items():
                check_endpoint(option, endpoint, omq.SocketType(self.socket))
                if times > 1 and option == "bind":
                    raise omq.OptionError(f"option bind: {endpoint!r} stands there twice, and can be bound only once")
                if times > 1 and self.socket == "SUB":
                    raise omq.OptionError(
                        f"option connect: {endpoint!r} stands there twice: every message would come twice"
                    )
        if self.partitions and self.partitions > 1 and self.socket == "SUB":
            raise omq.OptionError(
                f"partitions={self.partitions}: each connection of a SUB gets every message; it has one partition"
            )
        if self.partitions and len(self.bind + self.connect) != 1:
            raise omq.OptionError("option 'partitions' is for a single endpoint: several have a partition each")
        if self.partitions and self.partitions > 1 and self.bind:
            raise omq.OptionError(f"partitions={self.partitions}: an endpoint can be bound only once; connect to it")
        if (self.topic is not None or self.subscribers) and self.socket != "PUB":
            raise omq.OptionError(f"options 'topic' and 'subscribers' are for a PUB, not for a {self.socket}")

    def _known_columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.COLUMNS if name != "topic" or self.socket == "SUB")

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns of a read."""
        return self.columns or tuple(name for name in self._known_columns() if name != "parts")
