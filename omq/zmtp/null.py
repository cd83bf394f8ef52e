"""The NULL mechanism: no authentication, no secrecy, one READY each (RFC 23, The NULL Security Mechanism)."""

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

from omq.types import IdentityEnum
from omq.zmtp.command import parse_properties, ready
from omq.zmtp.mechanism import Mechanism, Question, Step


class NullPhase(IdentityEnum):
    """The phase of a NULL handshake."""

    START = "the greetings are not complete"
    ASKING = "the engine must decide whether to admit the peer; READY is not sent"
    READY_SENT = "our READY is sent, the peer's is awaited"
    AGREED = "both have sent READY"
    REFUSED = "the peer has sent ERROR"


class Null(Mechanism):
    """One side of a NULL handshake.

    READY is sent as soon as the peer's greeting is known, on both sides: RFC 23 demands it ("each peer MUST send its
    READY command before attempting to receive a READY"), libzmq does it, and it saves half a round trip. RFC 37 lets
    the side that binds wait for the other's READY; a peer that does so works as well.

    Args:
        ask: Whether to ask a `Question` before READY is sent, for a ZAP handler (RFC 27).
    """

    name = b"NULL"
    has_roles = False
    agreed = NullPhase.AGREED
    answered = frozenset({NullPhase.READY_SENT, NullPhase.AGREED})

    def __init__(self, *, ask: bool = False) -> None:
        super().__init__(NullPhase.START)
        self._ask = ask
        self._ready = b""

    def start(self, properties: Mapping[bytes, bytes]) -> None:
        self._ready = ready(properties)
        self.phase = NullPhase.ASKING
        if self._ask:
            self.question = Question(self.name, ())
        else:
            self._admitted()

    def _admitted(self) -> None:
        self._frames.append(self._ready)
        self.phase = NullPhase.READY_SENT

    def _on_ready(self, body: bytes) -> None:
        self.peer_properties = parse_properties(body)

    steps: ClassVar[Mapping[Enum, Mapping[bytes, Step]]] = {
        NullPhase.START: {},
        NullPhase.ASKING: {},
        NullPhase.READY_SENT: {
            b"READY": (_on_ready, NullPhase.AGREED),
            b"ERROR": (Mechanism._on_error, NullPhase.REFUSED),
        },
        NullPhase.AGREED: {},
        NullPhase.REFUSED: {},
    }
