"""Parses the options of a read or write: texts by case-insensitive name, for every kind of endpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import omq

MIB: Final = 1 << 20
MAX_ARROW_BYTES: Final = 1 << 30  # Arrow counts the bytes of a column with 31 bits
MAX_BROKER_BYTES: Final = 1 << 62  # the broker counts with 64 bits
MAX_PARTITIONS: Final = 1_000_000  # each is an object in the driver

#: The uses of an option.
READ, STREAM_READ, WRITE, STREAM_WRITE = "read", "readStream", "write", "writeStream"
READS: Final = frozenset({READ, STREAM_READ})
WRITES: Final = frozenset({WRITE, STREAM_WRITE})
ALL: Final = READS | WRITES
#: Spark's own options of a streaming write, which it also passes to the sink.
SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname"})
#: The option that Spark passes for a table of its catalog.
_TABLE: Final = "provider"


# ---------------------------------------------------------------------- from text to value


def count(text: str) -> int:
    """Parses a whole number above 0."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def size(text: str) -> int:
    """Parses a number of bytes: `1048576`, `64k`, `16m`, `2g`."""
    scale = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(text.strip().lower()[-1:], 1)
    return count(text.strip()[:-1] if scale > 1 else text) * scale


def at_most(limit: int, parse: Callable[[str], int]) -> Callable[[str], int]:
    """Returns a parser that also rejects values above a limit."""

    def bounded(text: str) -> int:
        value = parse(text)
        if value > limit:
            raise ValueError
        return value

    return bounded


def seconds(text: str) -> float:
    """Parses a number of seconds above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def words(text: str) -> tuple[str, ...]:
    """Parses words, separated by commas or blanks; there may be no words."""
    return tuple(word for word in text.replace(",", " ").split() if word)


def some_words(text: str) -> tuple[str, ...]:
    """Parses one or more words."""
    found = words(text)
    if not found:
        raise ValueError
    return found


def utf8(text: str) -> bytes:
    """Encodes the text in UTF-8."""
    return text.encode()


def flag(text: str) -> bool:
    """Parses `true` or `false`."""
    return {"true": True, "false": False}[text.strip().lower()]


def nullable(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a parser that also accepts `none` for `None`."""

    def parsed(text: str) -> Any:
        return None if text.strip().lower() == "none" else parse(text)

    return parsed


def _prefixes(text: str) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in text.split(","))


def _names(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.split(",") if word.strip())


def _pair(text: str) -> Any:
    first, _, second = text.partition(",")
    return (float(first), float(second)) if second else float(first)


def _spin(text: str) -> Any:
    return text if text == "adaptive" else float(text)


#: The parsers of a socket's options, by the option's type.
_BY_TYPE: Final[dict[str, Callable[[str], Any]]] = {
    "int": int,
    "float": float,
    "bool": flag,
    "bytes": utf8,
    "str": str,
    "tuple[bytes, ...]": _prefixes,
    "frozenset[str]": _names,
    "float | tuple[float, float]": _pair,
    "float | str": _spin,
}


#: Socket options that are not available in Spark: a descriptor belongs to one process, and passwords are in files.
_NOT_FOR_SPARK: Final = frozenset({"use_fd", "socks_proxy", "socks_username", "socks_password"})


# ---------------------------------------------------------------------- options


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: The name in its usual spelling.
        uses: The uses that it is for.
        parse: Parses its text, or raises a `ValueError` or `KeyError`.
        expected: The expected value, for error messages.
    """

    name: str
    uses: frozenset[str]
    parse: Callable[[str], Any]
    expected: str


def has_option(kind: omq.SocketType, name: str) -> bool:
    """Returns whether a type of socket has an option."""
    try:
        omq.Options.parse(kind, {name: getattr(omq.Options(), name)})
    except omq.OptionError:
        return False
    return True


class OptionSet:
    """The options of a kind of endpoint: its own, and those of its sockets.

    Args:
        own: The options of the endpoint itself.
        types: The socket types of the endpoint, by use.
        restricted: Socket options that are for some uses only; an empty set excludes an option.
    """

    def __init__(
        self,
        own: tuple[Option, ...],
        types: Mapping[str, tuple[str, ...]],
        restricted: Mapping[str, frozenset[str]],
    ) -> None:
        self._own = own
        self._types = types
        self._sockets: dict[str, Option] = {}
        for one in dataclasses.fields(omq.Options):
            kind = str(one.type).removesuffix(" | None")
            if kind in _BY_TYPE and one.name not in _NOT_FOR_SPARK:
                uses = restricted.get(one.name, ALL)
                self._sockets[one.name] = Option(
                    one.name, uses, nullable(_BY_TYPE[kind]), f"a value of type {one.type}"
                )
        self._known = {option.name.lower(): option for option in (*own, *self._sockets.values())}

    def known(self, *uses: str) -> list[str]:
        """Returns the names of the options for at least one of the uses, for error messages."""
        own = [option.name for option in self._own if not option.uses.isdisjoint(uses)]
        kinds = [omq.SocketType(name) for use in uses for name in self._types[use]]
        available = [
            name
            for name, option in self._sockets.items()
            if not option.uses.isdisjoint(uses) and any(has_option(kind, name) for kind in kinds)
        ]
        return [*own, *sorted(available)]

    def listed(self, *uses: str) -> str:
        """Returns the names of the options as a clause of an error message."""
        return f"known options: {', '.join(self.known(*uses))}"

    def _unknown(self, name: str, uses: Iterable[str]) -> omq.OptionError:
        """Returns the error for an option that is for none of these uses."""
        names = {one.lower(): one for one in self.known(*uses)}
        option = self._known.get(name.lower())
        if option is None:
            what = f"unknown option {name!r}"
            close = get_close_matches(name.lower(), names, 1)
        else:
            what = f"not an option of {' or '.join(uses)}: {option.name!r}"
            # The options `maxRows` of a batch and `maxRowsPerTrigger` of a stream correspond.
            close = [one for one in names if one.startswith(name.lower()) or name.lower().startswith(one)][:1]
        meant = f"did you mean {names[close[0]]!r}? " if close else ""
        return omq.OptionError(f"{what}; {meant}{self.listed(*uses)}")

    def parse(self, use: str, given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parses the texts of options.

        Args:
            use: `read`, `readStream`, `write` or `writeStream`.
            given: Texts by name; upper and lower case are the same.

        Returns:
            The values of the endpoint's own options and of the socket's options, by name.

        Raises:
            OptionError: An option is unknown or not for this use, or a value is not valid.
        """
        own: dict[str, Any] = {}
        sockets: dict[str, Any] = {}
        for name, text in given.items():
            option = self._known.get(name.lower())
            if name.lower() in SPARK_OPTIONS and use == STREAM_WRITE:
                continue
            if option is None or use not in option.uses:
                raise self._unknown(name, (use,))
            try:
                value = option.parse(text)
            except (ValueError, KeyError):
                raise omq.OptionError(f"option {option.name}={text!r}: must be {option.expected}") from None
            (sockets if option.name in self._sockets else own)[option.name] = value
        return own, sockets

    def streams(self, given: Mapping[str, str]) -> bool:
        """Returns whether there are options of a streaming read that a batch read does not have.

        Raises:
            OptionError: An option is unknown, or not for reads.
        """
        found: list[frozenset[str]] = []
        for name in given:
            if name.lower() == _TABLE:
                raise omq.OptionError(
                    "CREATE TABLE ... USING omq is not supported: Spark passes no table options to a Python data"
                    " source. Create a view instead:"
                    " spark.read.format('omq')....load().createOrReplaceTempView(name)"
                )
            option = self._known.get(name.lower())
            if option is None or option.uses.isdisjoint(READS):
                raise self._unknown(name, (READ, STREAM_READ))
            found.append(option.uses)
        return any(STREAM_READ in uses and READ not in uses for uses in found)
