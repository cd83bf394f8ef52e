"""The base of every security mechanism (RFC 23, Authentication and Confidentiality).

A mechanism is the middle of a handshake: it exchanges commands until both sides have agreed and have each other's
metadata. A new one is a subclass in a module of its own: it defines its name, whether it has client and server roles,
its phases, and a table of the commands that each phase allows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final

from omq._core.wire.codec import Codec
from omq.errors import AuthenticationError, HandshakeError, LocalProtocolError, MechanismError, RemoteProtocolError
from omq.zmtp.command import Command, error, parse_error, quoted

#: The handler of a command's body, and the phase that follows if it does not raise.
Step = tuple[Callable[[Any, bytes], None], Enum]

# RFC 27, Status Codes: the answers of a ZAP handler that refuses a peer; libzmq sends them as the reason.
_ZAP_REFUSALS: Final = frozenset({b"300", b"400", b"500"})


@dataclass(frozen=True, slots=True)
class Question:
    """Asks the engine whether to admit a peer; the answer may take time (RFC 27, ZAP).

    Attributes:
        mechanism: The mechanism's name, as for ZAP.
        credentials: NULL: none. PLAIN: user name and password. CURVE: the peer's public key.
    """

    mechanism: bytes
    credentials: tuple[bytes, ...]

    def __repr__(self) -> str:
        # Credentials do not belong into logs.
        return f"Question({self.mechanism!r}, {len(self.credentials)} credentials)"


class Mechanism(ABC):
    """One side of one security handshake.

    Args:
        as_server: Whether this side has the server's role; only for mechanisms with roles.

    Attributes:
        phase: The phase of the handshake: a member of the mechanism's own enumeration.
        question: The question that the engine must answer before the handshake continues, or `None`.
        peer_properties: The peer's metadata by lower-case name, once it has sent them.
        peer_error: The reason of the peer's ERROR command, unescaped, once it has sent one.
        codec: The codec of the traffic, once both sides have agreed; `None` for plain frames.
    """

    #: The name in the greeting: 1 to 20 of A-Z, digits and "-_.+".
    name: ClassVar[bytes]
    #: Whether client and server differ (RFC 23, Topology). If not, the greeting's as-server has no significance.
    has_roles: ClassVar[bool]
    #: The phase in which both sides have agreed.
    agreed: ClassVar[Enum]
    #: The phases in which the peer has, or is about to get, our last command. It may send messages from then on.
    answered: ClassVar[frozenset[Enum]]
    #: The commands that the peer may send in each phase. Every phase is a key.
    steps: ClassVar[Mapping[Enum, Mapping[bytes, Step]]]
    #: For a phase: the most likely reason for its end without an answer.
    hints: ClassVar[Mapping[Enum, str]] = {}
    #: Whether our ERROR may follow the last command of the peer.
    reports: ClassVar[bool] = True

    def __init__(self, first: Enum, *, as_server: bool = False) -> None:
        if as_server and not self.has_roles:
            raise LocalProtocolError(f"{self.name.decode()} has no server role (RFC 23, Topology)")
        self.as_server: Final = as_server
        self.phase = first
        self.question: Question | None = None
        self.peer_properties: dict[bytes, bytes] | None = None
        self.peer_error: bytes | None = None
        self.codec: Codec | None = None
        self._frames: list[bytes] = []  # to be written, in this order
        self._failure = b""

    @abstractmethod
    def start(self, properties: Mapping[bytes, bytes]) -> None:
        """Starts, once the greetings fit together.

        Args:
            properties: Our metadata, which the mechanism sends when its protocol allows.
        """

    @abstractmethod
    def _admitted(self) -> None:
        """Continues after the peer was admitted: queues the next frames and sets the phase."""

    @property
    def done(self) -> bool:
        """Returns whether both sides have agreed and have each other's metadata."""
        return self.phase is self.agreed

    @property
    def peer_may_send(self) -> bool:
        """Returns whether the peer may have finished the handshake once it has all that we have sent."""
        return self.phase in self.answered

    @property
    def hint(self) -> str:
        """The most likely reason for the peer's silence, or its end, in this phase; empty if unknown."""
        return self.hints.get(self.phase, "")

    def outgoing(self) -> bytes:
        """Returns the frames to send now, and removes them from the queue."""
        frames = b"".join(self._frames)
        self._frames.clear()
        return frames

    def receive(self, command: Command) -> None:
        """Handles the peer's next command. Not called while `question` waits for `answer`.

        Raises:
            RemoteProtocolError: The command is not allowed here, or is malformed.
            HandshakeError: The peer has sent ERROR. It is an `AuthenticationError` for a reason of 300, 400 or 500.
            MechanismError: Both sides are clients.
        """
        step = self.steps[self.phase].get(command.name)
        if step is None:
            raise RemoteProtocolError(
                f"the peer sent {quoted(command.name)} where {self.name.decode()} does not allow it"
                f" (phase {self.phase.name})"
            )
        handle, following = step
        handle(self, command.body)
        self.phase = following
        if self.peer_error is not None:
            raise _refused(f"the peer refused the handshake: {quoted(self.peer_error, 255)}", self.peer_error)

    def answer(self, refusal: bytes | None, why: str = "") -> None:
        """Answers `question`.

        Args:
            refusal: `None` admits the peer. Otherwise the reason for its ERROR command, such as `b"400"`, or `b""` to
                close the connection without ERROR, as for ZAP's status 300.
            why: Details of a refusal, for the log of this side alone.

        Raises:
            LocalProtocolError: `question` is `None`.
            HandshakeError: The answer was a refusal; of the peer's credentials it is an `AuthenticationError`.
        """
        if self.question is None:
            raise LocalProtocolError("answer: there is no question to answer")
        # The frame comes first: a reason without an encoding leaves the question open and the peer outside.
        self._failure = error(refusal) if refusal else b""
        self.question = None
        if refusal is not None:
            raise _refused(f"the peer was refused: {quoted(refusal)}" + (why and f", {why}"), refusal or b"300")
        self._admitted()

    def failure(self) -> bytes:
        """Returns the bytes to send before the connection is closed: an ERROR frame, or nothing."""
        return self._failure

    def _on_error(self, body: bytes) -> None:
        """Handles ERROR; each mechanism puts this step into its table (RFC 23, Error Handling)."""
        self.peer_error = parse_error(body).reason

    def _on_rival(self, body: bytes) -> None:
        """Refuses a HELLO to a client: greetings do not distinguish two clients (RFC 23, Topology)."""
        raise MechanismError(f"both sides are clients of {self.name.decode()}: one has to be its server")


def _refused(text: str, reason: bytes) -> HandshakeError:
    """Returns the error of a refusal: an `AuthenticationError` if its reason is a status of ZAP."""
    return AuthenticationError(text, int(reason)) if reason in _ZAP_REFUSALS else HandshakeError(text)
