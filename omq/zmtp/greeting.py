"""The greeting: the 64 bytes that each side of a connection sends first (RFC 23, Greeting).

    signature  version  mechanism  as-server  filler
       10         2         20         1        31     bytes

`GreetingParser` checks every byte when it arrives: a peer that does not speak ZMTP 3 is refused at its first wrong
byte, and an incomplete greeting does not delay that.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NoReturn

from omq.errors import LocalProtocolError, RemoteProtocolError

SIGNATURE_BYTES: Final = 10  # bytes
GREETING_BYTES: Final = 64  # bytes
MECHANISM_BYTES: Final = 20  # bytes

#: The version that this side announces (RFC 37, Formal Grammar: version-major %x03, version-minor %x01).
VERSION: Final = (3, 1)

_MECHANISM_AT: Final = 12  # offset of the mechanism, in bytes
_AS_SERVER_AT: Final = _MECHANISM_AT + MECHANISM_BYTES
# RFC 23, Formal Grammar: mechanism-char; the zero byte is padding, and not part of the name.
_MECHANISM_CHARS: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.+")
_MECHANISM: Final = re.compile(rb"[A-Z0-9_.+-]{1,%d}" % MECHANISM_BYTES)


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
        """Returns the 64 bytes to send.

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
        name = self.mechanism.ljust(MECHANISM_BYTES, b"\0")
        return (signature + bytes((major, minor)) + name + bytes((self.as_server,))).ljust(GREETING_BYTES, b"\0")


class GreetingParser:
    """Reads a peer's greeting, in any portions; holds at most 64 bytes of it."""

    __slots__ = ("_checked", "_received", "_unread")

    def __init__(self) -> None:
        self._received = b""
        self._checked = 0  # bytes that were checked and are valid
        self._unread = b""

    @property
    def unread(self) -> bytes:
        """Returns the bytes that arrived after the greeting."""
        return self._unread

    @property
    def begun(self) -> bool:
        """Returns whether the beginning of a greeting has arrived."""
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
        if self._checked == GREETING_BYTES:
            raise LocalProtocolError("the greeting is complete; what follows belongs to the handshake")
        wanted = GREETING_BYTES - len(self._received)
        self._received += data[:wanted]
        greeting = None
        if len(self._received) == GREETING_BYTES:
            greeting = _read(self._received)
        else:
            _check(self._received, self._checked)
        self._checked = len(self._received)
        self._unread = data[wanted:]
        return greeting


@lru_cache(maxsize=32)  # most peers send the same
def _read(data: bytes) -> Greeting:
    """Reads all 64 bytes."""
    _check(data, 0)
    return Greeting(
        version=(data[SIGNATURE_BYTES], data[SIGNATURE_BYTES + 1]),
        mechanism=data[_MECHANISM_AT:_AS_SERVER_AT].rstrip(b"\0"),
        as_server=data[_AS_SERVER_AT] == 1,
    )


def _check(data: bytes, checked: int) -> None:
    """Checks the bytes that have come, except those that were checked before."""
    for at in range(checked, len(data)):
        _CHECKS[at](data, at)


def _refuse(data: bytes, at: int, why: str) -> NoReturn:
    raise RemoteProtocolError(f"{why}; its greeting up to byte {at}: {data[: at + 1].hex(' ')}")


def _any(data: bytes, at: int) -> None:
    # RFC 23, Version Negotiation: the padding MUST NOT be validated. Minor version, filler and as-server may have any
    # value, so that later versions can use them.
    pass


def _first(data: bytes, at: int) -> None:
    # RFC 23, Detecting ZMTP 1.0 and 2.0 Peers: anything but FF here is the length of a 1.0 identity frame.
    if data[at] != 0xFF:
        _refuse(data, at, "a ZMTP 1.0 peer, or one that does not speak ZMTP, is not supported")


def _signature_end(data: bytes, at: int) -> None:
    # RFC 23, Detecting ZMTP 1.0 and 2.0 Peers: an even byte ends the long length of a 1.0 identity frame.
    if not data[at] & 1:
        _refuse(data, at, "a ZMTP 1.0 peer is not supported")
    if data[at] != 0x7F:
        _refuse(data, at, "not a ZMTP signature (RFC 23, Greeting)")


def _major(data: bytes, at: int) -> None:
    # RFC 23, Version Negotiation: MUST close if it cannot downgrade, MUST accept higher versions.
    if data[at] == 0:
        _refuse(data, at, "a ZMTP 1.0 peer is not supported")
    if data[at] < 3:
        _refuse(data, at, f"a ZMTP 2.0 peer (revision {data[at]}) is not supported")


def _mechanism(data: bytes, at: int) -> None:
    # RFC 23, Formal Grammar: "the mechanism is a null padded string".
    if data[at] and data[at] not in _MECHANISM_CHARS:
        _refuse(data, at, "a mechanism's name cannot have this character (RFC 23, Formal Grammar)")
    if at == _MECHANISM_AT and not data[at]:
        _refuse(data, at, "the peer names no mechanism (RFC 23, Formal Grammar)")
    if at > _MECHANISM_AT and data[at] and not data[at - 1]:
        _refuse(data, at, "a mechanism's name continues after its padding (RFC 23, Formal Grammar)")


#: The check of each of the 64 bytes, given that all before it are valid.
_CHECKS: Final[tuple[Callable[[bytes, int], None], ...]] = (
    _first,
    *(_any,) * 8,
    _signature_end,
    _major,
    _any,
    *(_mechanism,) * MECHANISM_BYTES,
    *(_any,) * (GREETING_BYTES - _AS_SERVER_AT),
)
