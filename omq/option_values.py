"""Validators of option values, one function for each kind.

Each returns the value to store, and raises `ValueError` with a description of the valid values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from ssl import SSLContext
from typing import Any, Final

from omq.errors import UsageError
from omq.types import Security, group_of

_APPLICATION: Final = re.compile(rb"[Xx]-[A-Za-z0-9_.+-]{1,253}")
_HOST_AND_PORT: Final = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|[A-Za-z0-9._-]{1,255}):(?P<port>[0-9]{1,5})")
_MAPPED_BITS: Final = 96  # of an IPv4-mapped address, before the IPv4 address (RFC 4291, section 2.5.5.2)
_MAX_SECONDS: Final = 1e9  # seconds: some thirty years, which every timer of the system can count

#: The values of `reconnect_stop`.
RECONNECT_STOPS: Final = ("refused", "rejected", "handshake failed", "after disconnect")
#: The values of `router_notify`: a peer has connected, or has disconnected.
PEER_NOTICES: Final = ("connect", "disconnect")


def whole(low: int, high: int, *, none: bool = False) -> Callable[[Any], Any]:
    def check(value: Any) -> int | None:
        if value is None and none:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            wanted = f"a whole number from {low} to {high}" + (", or None" if none else "")
            raise ValueError(wanted)
        return value

    return check


def seconds(*, none: bool, positive: bool = False, most: float = _MAX_SECONDS) -> Callable[[Any], Any]:
    def check(value: Any) -> float | None:
        if value is None and none:
            return None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # Neither infinity nor "not a number" is within the bounds.
        if not number or not 0 <= value <= most or (positive and value == 0):
            wanted = f"seconds {'above' if positive else 'from'} 0{' and' if positive else ''} up to {most:.15g}"
            raise ValueError(wanted + (", or None" if none else ""))
        return float(value)

    return check


def ttl(value: Any) -> float | None:
    if value is None:
        return None
    wanted = "seconds, 0 or from 0.1 to 6553.5 (tenths, rounded down), or None"
    try:
        asked: float = seconds(none=False, most=6553.5)(value)
    except ValueError:
        raise ValueError(wanted) from None
    # RFC 37, Connection Heartbeating: 16 bits of tenths of a second.
    tenths = math.floor(asked * 10 + 1e-6)
    if asked > 0 and tenths == 0:
        raise ValueError(wanted)
    return tenths / 10


def system_or(low: int, high: int) -> Callable[[Any], Any]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not (value == -1 or low <= value <= high):
            raise ValueError(f"a whole number from {low} to {high}, or -1")
        return value

    return check


def words(known: tuple[str, ...]) -> Callable[[Any], Any]:
    def check(value: Any) -> frozenset[str]:
        values = (value,) if isinstance(value, str) else value
        wanted = "any of " + ", ".join(repr(one) for one in known)
        if not isinstance(values, Iterable):
            raise ValueError(wanted)
        words = tuple(values)
        if not all(isinstance(one, str) and one in known for one in words):
            raise ValueError(wanted)
        return frozenset(words)

    return check


def notices(value: Any) -> frozenset[str]:
    if isinstance(value, bool):
        return frozenset(PEER_NOTICES if value else ())
    try:
        found: frozenset[str] = words(PEER_NOTICES)(value)
    except ValueError as wanted:
        raise ValueError(f"{wanted}, or True for both") from None
    return found


def message(value: Any) -> tuple[bytes, ...] | None:
    if value is None:
        return None
    wanted = "bytes, or a list of them, the parts of a message, or None"
    if not isinstance(value, bytes | list | tuple) or (not value and not isinstance(value, bytes)):
        raise ValueError(wanted)
    parts = (value,) if isinstance(value, bytes) else tuple(value)
    if not all(isinstance(part, bytes) for part in parts):
        raise ValueError(wanted)
    return parts


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def identity(value: Any) -> bytes:
    # RFC 23: an identity is 0 to 255 bytes.
    if not isinstance(value, bytes) or len(value) > 255:
        raise ValueError("at most 255 bytes")
    return value


def raw_bytes(value: Any) -> bytes | None:
    if value is not None and not isinstance(value, bytes):
        raise ValueError("bytes, or None")
    return value


def device(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not 0 < len(value.encode()) < 16):
        raise ValueError("the name of a network device (at most 15 bytes), or None")
    return value


def proxy(value: Any) -> str | None:
    if value is None:
        return None
    match = _HOST_AND_PORT.fullmatch(value) if isinstance(value, str) else None
    port = int(match["port"]) if match is not None else 0
    try:
        if not 0 < port < 65536:
            raise ValueError
        if match is not None and match["ipv6"] is not None:
            IPv6Address(match["ipv6"])
    except ValueError:
        raise ValueError('"host:port", with an IPv6 address in brackets, or None') from None
    return str(value)


def socks_text(low: int) -> Callable[[Any], Any]:
    def check(value: Any) -> str | None:
        # RFC 1929, section 2: at most 255 bytes.
        if value is not None:
            wanted = f"text of {low} to 255 bytes in UTF-8, or None"
            if not isinstance(value, str):
                raise ValueError(wanted)
            try:
                size = len(value.encode())
            except UnicodeError:
                raise ValueError(wanted) from None
            if not low <= size <= 255:
                raise ValueError(wanted)
        return None if value is None else str(value)

    return check


def tls(value: Any) -> SSLContext | None:
    if value is not None and not isinstance(value, SSLContext):
        raise ValueError("an ssl.SSLContext or None")
    return value


def networks(value: Any) -> tuple[IPv4Network | IPv6Network, ...] | None:
    if value is None:
        return None
    kinds = str | IPv4Address | IPv4Network | IPv6Address | IPv6Network
    one = isinstance(value, kinds)
    wanted = 'a network or an address such as "10.0.0.0/8" or "::1", or several of them, or None'
    if not one and not isinstance(value, Iterable):
        raise ValueError(wanted)
    found: list[IPv4Network | IPv6Network] = []
    for network in (value,) if one else value:
        if not isinstance(network, kinds):
            raise ValueError(wanted)
        try:
            found.append(_unmapped(ip_network(network, strict=False)))
        except ValueError:
            raise ValueError(wanted) from None
    if not found:
        raise ValueError(wanted)
    return tuple(dict.fromkeys(found))


def _unmapped(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """Returns the IPv4 network that an IPv4-mapped one stands for (RFC 4291, section 2.5.5.2); others as they are."""
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))


def numbers(low: int, high: int, what: str) -> Callable[[Any], Any]:
    def check(value: Any) -> frozenset[int] | None:
        if value is None:
            return None
        wanted = f"{what} from {low} to {high}, or several of them, or None"
        several = value if isinstance(value, Iterable) else (value,)
        if isinstance(value, str | bytes | Mapping):
            raise ValueError(wanted)
        found = []
        for number in several:
            if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
                raise ValueError(wanted)
            found.append(number)
        if not found:
            raise ValueError(wanted)
        return frozenset(found)

    return check


def spin(value: Any) -> float | str:
    if value == "adaptive":
        return "adaptive"
    try:
        return float(seconds(none=False)(value))
    except ValueError:
        raise ValueError(f'seconds from 0 up to {_MAX_SECONDS:.15g}, or "adaptive"') from None


def reconnect(value: Any) -> float | tuple[float, float] | None:
    wanted = f"seconds above 0 and up to {_MAX_SECONDS:.15g}, a pair (first, ceiling) of them, or None for never"
    if value is None:
        return None
    steps = value if isinstance(value, tuple) else (value, value)
    try:
        first, ceiling = (seconds(none=False, positive=True)(step) for step in steps)
    except ValueError:
        raise ValueError(wanted) from None
    if ceiling < first:
        raise ValueError(wanted)
    return (first, ceiling) if isinstance(value, tuple) else first


def security(value: Any) -> Security | None:
    if value is not None and not isinstance(value, Security):
        raise ValueError("a PlainServer, PlainClient, CurveServer or CurveClient, or None")
    return value


def domain(value: Any) -> str:
    # RFC 27, Message Format: string fields are at most 255 characters and are ASCII only.
    if not isinstance(value, str) or len(value) > 255 or not value.isascii():
        raise ValueError("at most 255 characters of ASCII")
    return value


def metadata(value: Any) -> tuple[tuple[bytes, bytes], ...]:
    # RFC 23, The READY Command: names are 1 to 255 bytes; those that begin with "X-" are for applications.
    wanted = 'a mapping, or pairs, of text or bytes: names from "X-" on, of at most 255 letters, digits and -_.+'
    try:
        given = tuple((name, content) for name, content in (value.items() if isinstance(value, Mapping) else value))
        pairs = tuple((_encoded(name), _encoded(content)) for name, content in given)
    except (TypeError, ValueError):
        raise ValueError(wanted) from None
    for name, content in pairs:
        if not isinstance(name, bytes) or not isinstance(content, bytes) or not _APPLICATION.fullmatch(name):
            raise ValueError(wanted)
    if len({name.lower() for name, _ in pairs}) < len(pairs) or sum(len(n) + len(c) for n, c in pairs) > 4096:
        raise ValueError(wanted + ", each name once, 4096 bytes in all")
    return pairs


def _encoded(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def prefixes(value: Any) -> tuple[bytes, ...]:
    values = (value,) if isinstance(value, bytes | str) else value
    if not isinstance(values, Iterable):
        raise ValueError("bytes, or several of them")
    several = tuple(values)
    if not all(isinstance(one, bytes) for one in several):
        raise ValueError("bytes, or several of them")
    return several


def groups(value: Any) -> tuple[bytes, ...]:
    values = (value,) if isinstance(value, bytes | str) else value
    wanted = "text or bytes, of at most 255 bytes without a zero byte, or several of them, each once"
    if not isinstance(values, Iterable):
        raise ValueError(wanted)
    try:
        groups = tuple(group_of(one) for one in values)
    except (TypeError, UsageError):
        raise ValueError(wanted) from None
    if len(set(groups)) < len(groups):
        raise ValueError(wanted)
    return groups
