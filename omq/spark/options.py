"""Spark's options, whatever kind of endpoint they are for: texts by name, in any case, made into values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import omq

MIB: Final = 1 << 20
MOST_OF_A_BATCH: Final = 1 << 30  # bytes: Arrow counts those of a column with 31 bits
MOST_BYTES: Final = 1 << 62  # the broker counts with 64 bits
MOST_PARTITIONS: Final = 1_000_000  # each is an object in the driver

#: The uses of an option.
READ, STREAM_READ, WRITE, STREAM_WRITE = "read", "readStream", "write", "writeStream"
READS: Final = frozenset({READ, STREAM_READ})
WRITES: Final = frozenset({WRITE, STREAM_WRITE})
ALL: Final = READS | WRITES
#: Spark hands its own options of a streaming write to the sink, too.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
#: What Spark says of a table in its catalog.
_TABLE: Final = "provider"


# ---------------------------------------------------------------------- from text to value


def count(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def size(text: str) -> int:
    """Bytes: `1048576`, `64k`, `16m`, `2g`."""
    scale = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(text.strip().lower()[-1:], 1)
    return count(text.strip()[:-1] if scale > 1 else text) * scale


def at_most(most: int, parse: Callable[[str], int]) -> Callable[[str], int]:
    """The same with a bound."""

    def bounded(text: str) -> int:
        value = parse(text)
        if value > most:
            raise ValueError
        return value

    return bounded


def seconds(text: str) -> float:
    """Seconds above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def words(text: str) -> tuple[str, ...]:
    """Words, separated by commas or blanks; none at all is well."""
    return tuple(word for word in text.replace(",", " ").split() if word)


def some_words(text: str) -> tuple[str, ...]:
    """The same, one at least."""
    found = words(text)
    if not found:
        raise ValueError
    return found


def octets(text: str) -> bytes:
    """The text in UTF-8."""
    return text.encode()


def flag(text: str) -> bool:
    """`true` or `false`."""
    return {"true": True, "false": False}[text.strip().lower()]


def nullable(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same, with `none` for `None`."""

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


#: How the text of a socket's option becomes a value, by the option's type.
_BY_TYPE: Final[dict[str, Callable[[str], Any]]] = {
    "int": int,
    "float": float,
    "bool": flag,
    "bytes": octets,
    "str": str,
    "tuple[bytes, ...]": _prefixes,
    "frozenset[str]": _names,
    "float | tuple[float, float]": _pair,
    "float | str": _spin,
}


#: Options of a socket that Spark has not: descriptors are those of one process, passwords are read from files.
_NOT_FOR_SPARK: Final = frozenset({"use_fd", "socks_proxy", "socks_username", "socks_password"})


# ---------------------------------------------------------------------- options


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: As it is written.
        uses: What it is for.
        parse: Makes a value of its text, or raises a `ValueError` or `KeyError`.
        wanted: What it must be, for messages.
    """

    name: str
    uses: frozenset[str]
    parse: Callable[[str], Any]
    wanted: str


def fits(kind: omq.SocketType, name: str) -> bool:
    """Returns whether a type of socket has an option."""
    try:
        omq.Options.parse(kind, {name: getattr(omq.Options(), name)})
    except omq.OptionError:
        return False
    return True


class OptionSet:
    """The options of a kind of endpoint: its own, and those of its sockets.

    Args:
        own: Its own.
        types: The names of the types of its sockets, by use.
        elsewhere: Options of a socket that are for some uses only; no use at all takes one out.
    """

    def __init__(
        self,
        own: tuple[Option, ...],
        types: Mapping[str, tuple[str, ...]],
        elsewhere: Mapping[str, frozenset[str]],
    ) -> None:
        self._own = own
        self._types = types
        self._sockets: dict[str, Option] = {}
        for one in dataclasses.fields(omq.Options):
            kind = str(one.type).removesuffix(" | None")
            if kind in _BY_TYPE and one.name not in _NOT_FOR_SPARK:
                uses = elsewhere.get(one.name, ALL)
                self._sockets[one.name] = Option(
                    one.name, uses, nullable(_BY_TYPE[kind]), f"a value of type {one.type}"
                )
        self._known = {option.name.lower(): option for option in (*own, *self._sockets.values())}

    def known(self, *uses: str) -> list[str]:
        """The names of the options for any of some uses, for messages."""
        own = [option.name for option in self._own if not option.uses.isdisjoint(uses)]
        kinds = [omq.SocketType(name) for use in uses for name in self._types[use]]
        fitting = [
            name
            for name, option in self._sockets.items()
            if not option.uses.isdisjoint(uses) and any(fits(kind, name) for kind in kinds)
        ]
        return [*own, *sorted(fitting)]

    def listed(self, *uses: str) -> str:
        """The same as a clause."""
        return f"known are: {', '.join(self.known(*uses))}"

    def _unknown(self, name: str, uses: Iterable[str]) -> omq.OptionError:
        """Returns the error for an option that is for none of these uses."""
        names = {one.lower(): one for one in self.known(*uses)}
        option = self._known.get(name.lower())
        if option is None:
            what = f"unknown option {name!r}"
            close = get_close_matches(name.lower(), names, 1)
        else:
            what = f"not an option of {' or '.join(uses)}: {option.name!r}"
            # A stream says `maxRowsPerTrigger` where a batch says `maxRows`.
            close = [one for one in names if one.startswith(name.lower()) or name.lower().startswith(one)][:1]
        meant = f"did you mean {names[close[0]]!r}? " if close else ""
        return omq.OptionError(f"{what}; {meant}{self.listed(*uses)}")

    def parse(self, use: str, given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Makes values of texts.

        Args:
            use: What they are for.
            given: Texts by name; upper and lower case are the same.

        Returns:
            The values of the options of its own, and of those of the socket, by name.

        Raises:
            OptionError: An option is unknown or not for this use, or a value does not fit.
        """
        own: dict[str, Any] = {}
        sockets: dict[str, Any] = {}
        for name, text in given.items():
            option = self._known.get(name.lower())
            if name.lower() in SPARKS_OWN and use == STREAM_WRITE:
                continue
            if option is None or use not in option.uses:
                raise self._unknown(name, (use,))
            try:
                value = option.parse(text)
            except (ValueError, KeyError):
                raise omq.OptionError(f"option {option.name}={text!r}: must be {option.wanted}") from None
            (sockets if option.name in self._sockets else own)[option.name] = value
        return own, sockets

    def streams(self, given: Mapping[str, str]) -> bool:
        """Returns whether there are options of a streaming read that a batch read does not have.

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
            option = self._known.get(name.lower())
            if option is None or option.uses.isdisjoint(READS):
                raise self._unknown(name, (READ, STREAM_READ))
            found.append(option.uses)
        return any(STREAM_READ in uses and READ not in uses for uses in found)
