"""Spark's options: strings by name, in any case, checked and made into values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import omq

MIB: Final = 1 << 20

#: The uses of an option.
READ, STREAM_READ, WRITE, STREAM_WRITE = "read", "readStream", "write", "writeStream"
_READS: Final = frozenset({READ, STREAM_READ})
_WRITES: Final = frozenset({WRITE, STREAM_WRITE})
_ALL: Final = _READS | _WRITES
#: The socket types of each side.
_TYPES: Final = dict.fromkeys(_READS, ("PULL", "SUB")) | dict.fromkeys(_WRITES, ("PUSH", "PUB"))
#: Columns of a read, in the order of the default schema.
COLUMNS: Final = {
    "value": "binary",
    "parts": "array<binary>",
    "topic": "binary",
    "endpoint": "string",
    "timestamp": "timestamp",
    "sequence": "bigint",
}
#: Spark hands its own options of a streaming write to the sink, too.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
#: What Spark says of a table in its catalog.
_TABLE: Final = "provider"
#: Options of a socket that mean nothing on one side.
_ELSEWHERE: Final = {
    # A read ends at its bounds, not at a timeout, and it sends nothing.
    "recv_timeout": _WRITES,
    "send_hwm": _WRITES,
    "send_timeout": _WRITES,
    "linger": _WRITES,
    "recv_hwm": _READS,
}


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _bytes(text: str) -> int:
    """Bytes: `1048576`, `64k`, `16m`, `2g`."""
    scale = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(text.strip().lower()[-1:], 1)
    return _count(text.strip()[:-1] if scale > 1 else text) * scale


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _list(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.replace(",", " ").split() if word)


def _endpoints(text: str) -> tuple[str, ...]:
    found = _list(text)
    if not found:
        raise ValueError
    return found


def _prefixes(text: str) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in text.split(","))


def _names(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.split(",") if word.strip())


def _octets(text: str) -> bytes:
    return text.encode()


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def _pair(text: str) -> Any:
    first, _, second = text.partition(",")
    return (float(first), float(second)) if second else float(first)


def _spin(text: str) -> Any:
    return text if text == "adaptive" else float(text)


#: How the text of a socket's option becomes a value, by the option's type.
_BY_TYPE: Final[dict[str, Callable[[str], Any]]] = {
    "int": int,
    "float": float,
    "bool": _flag,
    "bytes": _octets,
    "str": str,
    "tuple[bytes, ...]": _prefixes,
    "frozenset[str]": _names,
    "float | tuple[float, float]": _pair,
    "float | str": _spin,
}


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    uses: frozenset[str]
    parse: Callable[[str], Any]
    wanted: str


_OWN: Final = (
    _Option("socket", _ALL, str.upper, "a socket type"),
    _Option("bind", _ALL, _endpoints, "an endpoint, or several, separated by commas"),
    _Option("connect", _ALL, _endpoints, "an endpoint, or several, separated by commas"),
    _Option("partitions", _READS, _count, "a whole number above 0"),
    _Option("columns", _READS, _list, "names of columns, separated by commas"),
    _Option("batchBytes", _READS, _bytes, "bytes above 0 (16m is 16 MiB)"),
    _Option("maxRows", frozenset({READ}), _count, "a whole number above 0"),
    _Option("maxBytes", frozenset({READ}), _bytes, "bytes above 0 (16m is 16 MiB)"),
    _Option("maxSeconds", frozenset({READ}), _seconds, "seconds above 0"),
    _Option("maxRowsPerTrigger", frozenset({STREAM_READ}), _count, "a whole number above 0"),
    _Option("maxBytesPerTrigger", frozenset({STREAM_READ}), _bytes, "bytes above 0 (16m is 16 MiB)"),
    _Option("triggerSeconds", frozenset({STREAM_READ}), _seconds, "seconds above 0"),
    _Option("quietSeconds", frozenset({STREAM_READ}), _seconds, "seconds above 0"),
    _Option("keepSeconds", frozenset({STREAM_READ, STREAM_WRITE}), _seconds, "seconds above 0"),
    _Option("connectTimeout", _ALL, lambda text: _nullable(_seconds)(text), "seconds above 0, or none"),
    _Option("failOnConnectTimeout", _ALL, _flag, "true or false"),
    _Option("failOnDataLoss", frozenset({STREAM_READ}), _flag, "true or false"),
    _Option("topic", _WRITES, _octets, "text"),
    _Option("subscribers", _WRITES, _count, "a whole number above 0"),
    _Option("curveServerKeyFile", _ALL, Path, "the path of a file with the server's public key"),
    _Option("curveSecretKeyFile", _ALL, Path, "the path of a file with our secret key"),
    _Option("curveAuthorizedKeysFile", _ALL, Path, "the path of a file with a public key a line"),
)


def _socket_options() -> dict[str, _Option]:
    found = {}
    for one in dataclasses.fields(omq.Options):
        kind = str(one.type).removesuffix(" | None")
        if kind in _BY_TYPE:
            uses = _ELSEWHERE.get(one.name, _ALL)
            found[one.name] = _Option(one.name, uses, _nullable(_BY_TYPE[kind]), f"a value of type {one.type}")
    return found


def _nullable(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parsed(text: str) -> Any:
        return None if text.strip().lower() == "none" else parse(text)

    return parsed


_SOCKETS: Final = _socket_options()
_KNOWN: Final = {option.name.lower(): option for option in (*_OWN, *_SOCKETS.values())}


@dataclass(frozen=True)
class Settings:
    """The options of one read or write.

    Attributes:
        use: `read`, `readStream`, `write` or `writeStream`.
        socket: The type's name.
        bind: Endpoints to listen on.
        connect: Endpoints to dial.
        partitions: Connections to the only endpoint; `None` for one connection per endpoint.
        columns: Names of the columns; empty for the default ones.
        batch_bytes: Bytes of a record batch, about.
        max_rows: Rows that a partition gives in a read or a microbatch at most; `None` for no bound.
        max_bytes: Bytes that it gives at most; the first message is taken whatever its size.
        max_seconds: Seconds that it reads at most; `None` for what is usual (`reading.limits`).
        quiet_seconds: Seconds without a message after which `availableNow` has drained a source.
        keep_seconds: Seconds that a connection is kept without being used.
        meeting_seconds: Seconds that nobody may be connected at the beginning; `None` for any time.
        meeting_fails: Whether the query fails then; else that is logged.
        fail_on_data_loss: Whether the query fails when an owner has died with messages; else that is logged.
        topic: The topic of every message that a PUB sends; `None` for the column `topic`, or for no topic.
        subscribers: Subscriptions that a PUB waits for before it sends.
        keys: The paths of CURVE keys by option.
        options: The options of the socket itself.
    """

    use: str
    socket: str
    bind: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    partitions: int | None = None
    columns: tuple[str, ...] = ()
    batch_bytes: int = 16 * MIB
    max_rows: int | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None
    quiet_seconds: float = 1.0
    keep_seconds: float = 60.0
    meeting_seconds: float | None = 30.0
    meeting_fails: bool = True
    fail_on_data_loss: bool = False
    topic: bytes | None = None
    subscribers: int = 0
    keys: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints of the partitions of a read, each as often as it is opened."""
        both = self.bind + self.connect
        return both * self.partitions if self.partitions else both

    def security(self) -> Any:
        """The socket's CURVE keys, read in the process that opens the socket; `None` without CURVE."""
        keys = {name: Path(path).read_text(encoding="ascii") for name, path in self.keys}
        secret = keys["curveSecretKeyFile"].strip() if "curveSecretKeyFile" in keys else None
        if "curveServerKeyFile" in keys:
            return omq.CurveClient(keys["curveServerKeyFile"].strip(), secret_key=secret)
        if secret is None:
            return None
        allowed = keys.get("curveAuthorizedKeysFile")
        return omq.CurveServer(secret, None if allowed is None else set(allowed.split()))

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


def known(*uses: str) -> list[str]:
    """The names of the options for any of some uses, for messages."""
    own = [option.name for option in _OWN if not option.uses.isdisjoint(uses)]
    kinds = [omq.SocketType(name) for use in uses for name in _TYPES[use]]
    fitting = [
        name
        for name, option in _SOCKETS.items()
        if not option.uses.isdisjoint(uses) and any(_fits(kind, name) for kind in kinds)
    ]
    return [*own, *sorted(fitting)]


def _listed(*uses: str) -> str:
    return f"known are: {', '.join(known(*uses))}"


def _unknown(name: str, uses: Iterable[str]) -> omq.OptionError:
    """What is said of an option that is none of these uses."""
    names = {one.lower(): one for one in known(*uses)}
    option = _KNOWN.get(name.lower())
    if option is None:
        what = f"unknown option {name!r}"
        close = get_close_matches(name.lower(), names, 1)
    else:
        what = f"not an option of {' or '.join(uses)}: {option.name!r}"
        # A stream says `maxRowsPerTrigger` where a batch says `maxRows`.
        close = [one for one in names if one.startswith(name.lower()) or name.lower().startswith(one)][:1]
    meant = f"did you mean {names[close[0]]!r}? " if close else ""
    return omq.OptionError(f"{what}; {meant}{_listed(*uses)}")


def _fits(kind: omq.SocketType, name: str) -> bool:
    try:
        omq.Options.parse(kind, {name: getattr(omq.Options(), name)})
    except omq.OptionError:
        return False
    return True


def parse(use: str, given: Mapping[str, str], *, bounded: bool = True) -> Settings:
    """Checks Spark's options.

    Args:
        use: `read`, `readStream`, `write` or `writeStream`.
        given: Texts by name; upper and lower case are the same.
        bounded: Whether a batch must have the bound that it needs.

    Raises:
        OptionError: An option is unknown, not for this use, or missing, or a value does not fit.
    """
    own: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, text in given.items():
        option = _KNOWN.get(name.lower())
        if name.lower() in _SPARKS_OWN and use == STREAM_WRITE:
            continue
        if option is None or use not in option.uses:
            raise _unknown(name, (use,))
        try:
            value = option.parse(text)
        except (ValueError, KeyError):
            raise omq.OptionError(f"option {option.name}={text!r}: must be {option.wanted}") from None
        (options if option.name in _SOCKETS else own)[option.name] = value
    _require(use, own, options)
    if bounded and use == READ and not own.keys() & {"maxRows", "maxBytes", "maxSeconds"}:
        raise omq.OptionError("a batch needs a bound: option 'maxRows', 'maxBytes' or 'maxSeconds' is missing")
    keys = tuple((name, str(own.pop(name))) for name in list(own) if name.startswith("curve"))
    settings = Settings(use=use, keys=keys, options=tuple(sorted(options.items())), **_renamed(own))
    check(settings)
    return settings


def streams(given: Mapping[str, str]) -> bool:
    """Whether there are options of a streaming read that a batch read does not have.

    Raises:
        OptionError: There is one that no read has.
    """
    found: list[frozenset[str]] = []
    for name in given:
        if name.lower() == _TABLE:
            raise omq.OptionError(
                "a table of Spark's catalog (CREATE TABLE ... USING omq) cannot be made: Spark hands a Python data"
                " source no options of a table. Make a view:"
                " spark.read.format('omq')....load().createOrReplaceTempView(name)"
            )
        option = _KNOWN.get(name.lower())
        if option is None or option.uses.isdisjoint(_READS):
            raise _unknown(name, (READ, STREAM_READ))
        found.append(option.uses)
    return any(STREAM_READ in uses and READ not in uses for uses in found)


_FIELDS: Final = {
    "batchBytes": "batch_bytes",
    "maxRows": "max_rows",
    "maxBytes": "max_bytes",
    "maxSeconds": "max_seconds",
    "maxRowsPerTrigger": "max_rows",
    "maxBytesPerTrigger": "max_bytes",
    "triggerSeconds": "max_seconds",
    "quietSeconds": "quiet_seconds",
    "keepSeconds": "keep_seconds",
    "connectTimeout": "meeting_seconds",
    "failOnConnectTimeout": "meeting_fails",
    "failOnDataLoss": "fail_on_data_loss",
}


def _renamed(own: dict[str, Any]) -> dict[str, Any]:
    return {_FIELDS.get(name, name): value for name, value in own.items()}


def _require(use: str, own: dict[str, Any], options: dict[str, Any]) -> None:
    """Raises if a required option is missing."""
    types = _TYPES[use]
    if own.get("socket") not in types:
        said = f"socket={own['socket']!r} does not fit" if "socket" in own else "option 'socket' is missing"
        raise omq.OptionError(f"{said}: {use} takes {' or '.join(types)}; {_listed(use)}")
    if "bind" not in own and "connect" not in own:
        raise omq.OptionError(f"option 'connect' or 'bind' is missing: an endpoint; {_listed(use)}")
    if own["socket"] == "SUB" and "subscribe" not in options:
        raise omq.OptionError("option 'subscribe' is missing: prefixes, separated by commas; empty for everything")
    if "curveAuthorizedKeysFile" in own and "curveServerKeyFile" in own:
        raise omq.OptionError(
            "options 'curveAuthorizedKeysFile' and 'curveServerKeyFile' exclude each other: "
            "a socket is server or client"
        )
    if "curveAuthorizedKeysFile" in own and "curveSecretKeyFile" not in own:
        raise omq.OptionError("option 'curveSecretKeyFile' is missing: curveAuthorizedKeysFile makes a server")


def check(settings: Settings) -> None:
    """Raises if options do not go together."""
    kind = omq.SocketType(settings.socket)
    omq.Options.parse(kind, dict(settings.options))
    _check_endpoints(settings)
    if settings.partitions and len(settings.bind + settings.connect) != 1:
        raise omq.OptionError("option 'partitions' is for a single endpoint: several have a partition each")
    if settings.partitions and settings.partitions > 1 and settings.bind:
        raise omq.OptionError(f"partitions={settings.partitions}: an endpoint can be bound only once; connect to it")
    if (settings.topic is not None or settings.subscribers) and settings.socket != "PUB":
        raise omq.OptionError(f"options 'topic' and 'subscribers' are for a PUB, not for a {settings.socket}")
    for name in settings.columns:
        if name not in COLUMNS or (name == "topic" and settings.socket != "SUB"):
            raise omq.OptionError(f"columns={name!r}: known are {', '.join(COLUMNS)} (topic: for a SUB only)")
    if len(set(settings.columns)) < len(settings.columns):
        raise omq.OptionError("columns: a name stands there twice")


def _check_endpoints(settings: Settings) -> None:
    for option, endpoints in (("bind", settings.bind), ("connect", settings.connect)):
        for endpoint in endpoints:
            try:
                omq.check_endpoint(endpoint, bind=option == "bind")
            except omq.EndpointError as error:
                raise omq.OptionError(f"option {option!r}: {error}") from None
            if endpoint.startswith("inproc:"):
                raise omq.OptionError(
                    f"option {option}={endpoint!r}: inproc stays within a process, and Spark's tasks have several"
                )
            if endpoints.count(endpoint) > 1 and option == "bind":
                raise omq.OptionError(f"option bind: {endpoint!r} stands there twice, and can be bound only once")
            if endpoints.count(endpoint) > 1 and settings.socket == "SUB":
                raise omq.OptionError(
                    f"option connect: {endpoint!r} stands there twice: every message would come twice"
                )
    if settings.partitions and settings.partitions > 1 and settings.socket == "SUB":
        raise omq.OptionError(
            f"partitions={settings.partitions}: each connection of a SUB gets every message; it has one partition"
        )


def columns(settings: Settings) -> tuple[str, ...]:
    """The columns of a read."""
    usual = ("value", "topic", "endpoint", "timestamp", "sequence")
    return settings.columns or tuple(name for name in usual if name != "topic" or settings.socket == "SUB")


def schema(settings: Settings) -> str:
    """The schema of a read, as Spark writes it."""
    return ", ".join(f"{name} {COLUMNS[name]}" for name in columns(settings))
