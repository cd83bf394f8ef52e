"""The greeting: the 64 octets that each side of a connection sends first (RFC 23, Greeting).

    signature  version  mechanism  as-server  filler
       10         2         20         1        31     octets

`GreetingParser` checks every octet when it arrives: a peer that does not speak ZMTP 3 is refused at its first wrong
octet, and an incomplete greeting does not delay that.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NoReturn

from omq.errors import LocalProtocolError, RemoteProtocolError

SIGNATURE_SIZE: Final = 10  # octets
GREETING_SIZE: Final = 64  # octets
MECHANISM_SIZE: Final = 20  # octets

#: The version that this side announces (RFC 37, Formal Grammar: version-major %x03, version-minor %x01).
VERSION: Final = (3, 1)

_MECHANISM_AT: Final = 12  # offset of the mechanism, in octets
_AS_SERVER_AT: Final = _MECHANISM_AT + MECHANISM_SIZE
# RFC 23, Formal Grammar: mechanism-char; the zero octet is padding, and not part of the name.
_MECHANISM_CHARS: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.+")
_MECHANISM: Final = re.compile(rb"[A-Z0-9_.+-]{1,%d}" % MECHANISM_SIZE)


@dataclass(frozen=True, slots=True)
class Greeting:
    """The content of a greeting.

    Attributes:
        version: The major and the minor version of ZMTP.
        mechanism: The security mechanism's name, without its padding.
        as_server: Whether the sender has the server's role in the mechanism. libzmq always sends 0 here, also for its
            PLAIN and CURVE servers, so `False` proves nothing.
    """

    version: tuple[int, int]
    mechanism: bytes
    as_server: bool

    def encode(self) -> bytes:
        """Returns the 64 octets to send.

        Raises:
            LocalProtocolError: The mechanism or the version has no encoding.
        """
        if not _MECHANISM.fullmatch(self.mechanism):
            raise LocalProtocolError(f"{self.mechanism!r} cannot be a mechanism's name (RFC 23, Formal Grammar)")
        major, minor = self.version
        if not (3 <= major <= 255 and 0 <= minor <= 255):
            raise LocalProtocolError(f"ZMTP {major}.{minor} has no greeting of this form (RFC 23, Greeting)")
        # RFC 23, Version Negotiation: a peer that does not downgrade sends zeros as padding.
        signature = b"\xff" + bytes(8) + b"\x7f"
        name = self.mechanism.ljust(MECHANISM_SIZE, b"\0")
        return (signature + bytes((major, minor)) + name + bytes((self.as_server,))).ljust(GREETING_SIZE, b"\0")


class GreetingParser:
    """Reads a peer's greeting, in any portions; holds at most 64 octets of it."""

    __slots__ = ("_checked", "_octets", "_unread")

    def __init__(self) -> None:
        self._octets = b""
        self._checked = 0  # octets that were checked and are valid
        self._unread = b""

    @property
    def unread(self) -> bytes:
        """The bytes that were fed after the greeting."""
        return self._unread

    @property
    def begun(self) -> bool:
        """Returns whether the beginning of a greeting was fed."""
        return self._checked > 0

    def feed(self, data: bytes) -> Greeting | None:
        """Takes bytes from the peer.

        Args:
            data: The next bytes, in any portion.

        Returns:
            The greeting once it is complete; `None` before.

        Raises:
            RemoteProtocolError: No ZMTP 3 greeting starts like this. Further calls raise it again.
            LocalProtocolError: The greeting was returned already.
        """
        if self._checked == GREETING_SIZE:
            raise LocalProtocolError("the greeting is complete; what follows belongs to the handshake")
        wanted = GREETING_SIZE - len(self._octets)
        self._octets += data[:wanted]
        greeting = None
        if len(self._octets) == GREETING_SIZE:
            greeting = _read(self._octets)
        else:
            _check(self._octets, self._checked)
        self._checked = len(self._octets)
        self._unread = data[wanted:]
        return greeting


@lru_cache(maxsize=32)  # most peers send the same
def _read(octets: bytes) -> Greeting:
    """Reads all 64 octets."""
    _check(octets, 0)
    return Greeting(
        version=(octets[SIGNATURE_SIZE], octets[SIGNATURE_SIZE + 1]),
        mechanism=octets[_MECHANISM_AT:_AS_SERVER_AT].rstrip(b"\0"),
        as_server=octets[_AS_SERVER_AT] == 1,
    )


def _check(octets: bytes, checked: int) -> None:
    """Checks the octets that have come, except those that were checked before."""
    for at in range(checked, len(octets)):
        _CHECKS[at](octets, at)


def _refuse(octets: bytes, at: int, why: str) -> NoReturn:
    raise RemoteProtocolError(f"{why}; its greeting up to octet {at}: {octets[: at + 1].hex(' ')}")


def _any(octets: bytes, at: int) -> None:
    # RFC 23, Version Negotiation: the padding MUST NOT be validated. Minor version, filler and as-server may have any
    # value, so that later versions can use them.
    pass


def _first(octets: bytes, at: int) -> None:
    # RFC 23, Detecting ZMTP 1.0 and 2.0 Peers: anything but FF here is the length of a 1.0 identity frame.
    if octets[at] != 0xFF:
        _refuse(octets, at, "a ZMTP 1.0 peer, or one that does not speak ZMTP, is not supported")


def _signature_end(octets: bytes, at: int) -> None:
    # RFC 23, Detecting ZMTP 1.0 and 2.0 Peers: an even octet ends the long length of a 1.0 identity frame.
    if not octets[at] & 1:
        _refuse(octets, at, "a ZMTP 1.0 peer is not supported")
    if octets[at] != 0x7F:
        _refuse(octets, at, "not a ZMTP signature (RFC 23, Greeting)")


def _major(octets: bytes, at: int) -> None:
    # RFC 23, Version Negotiation: MUST close if it cannot downgrade, MUST accept higher versions.
    if octets[at] == 0:
        _refuse(octets, at, "a ZMTP 1.0 peer is not supported")
    if octets[at] < 3:
        _refuse(octets, at, f"a ZMTP 2.0 peer (revision {octets[at]}) is not supported")


def _mechanism(octets: bytes, at: int) -> None:
    # RFC 23, Formal Grammar: "the mechanism is a null padded string".
    if octets[at] and octets[at] not in _MECHANISM_CHARS:
        _refuse(octets, at, "a mechanism's name cannot have this character (RFC 23, Formal Grammar)")
    if at == _MECHANISM_AT and not octets[at]:
        _refuse(octets, at, "the peer names no mechanism (RFC 23, Formal Grammar)")
    if at > _MECHANISM_AT and octets[at] and not octets[at - 1]:
        _refuse(octets, at, "a mechanism's name goes on after its padding (RFC 23, Formal Grammar)")


#: The check of each of the 64 octets, given that all before it are valid.
_CHECKS: Final[tuple[Callable[[bytes, int], None], ...]] = (
    _first,
    *(_any,) * 8,
    _signature_end,
    _major,
    _any,
    *(_mechanism,) * MECHANISM_SIZE,
    *(_any,) * (GREETING_SIZE - _AS_SERVER_AT),
)
