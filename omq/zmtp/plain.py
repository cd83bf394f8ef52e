"""The PLAIN mechanism: a user name and a password, in the clear (RFC 24; RFC 23, The PLAIN Security Mechanism)."""

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar, Final

from omq.errors import LocalProtocolError, RemoteProtocolError
from omq.types import IdentityEnum
from omq.zmtp.command import encode_command, encode_properties, parse_properties, ready
from omq.zmtp.mechanism import Mechanism, Question, Step

MAX_CREDENTIAL_BYTES: Final = 255  # of a user name, and of a password (RFC 24, The HELLO Command)


class PlainPhase(IdentityEnum):
    """The phase of a PLAIN handshake."""

    START = "the greetings are not complete"
    HELLO_SENT = "client: HELLO is sent, WELCOME is awaited"
    INITIATE_SENT = "client: INITIATE is sent, READY is awaited"
    HELLO_AWAITED = "server: HELLO is awaited"
    ASKING = "server: the engine must decide whether to admit the client"
    INITIATE_AWAITED = "server: WELCOME is sent, INITIATE is awaited"
    AGREED = "READY is sent, and received"
    REFUSED = "the server has sent ERROR"


class PlainClient(Mechanism):
    """The client's side.

    Args:
        username: At most 255 bytes.
        password: At most 255 bytes.
    """

    name = b"PLAIN"
    has_roles = True
    agreed = PlainPhase.AGREED
    answered = frozenset({PlainPhase.INITIATE_SENT, PlainPhase.AGREED})

    def __init__(self, username: bytes, password: bytes) -> None:
        super().__init__(PlainPhase.START)
        if max(len(username), len(password)) > MAX_CREDENTIAL_BYTES:
            raise LocalProtocolError("a user name or a password has more than 255 bytes (RFC 24, The HELLO Command)")
        self._hello = encode_command(b"HELLO", _counted(username) + _counted(password))
        self._metadata = b""

    def start(self, properties: Mapping[bytes, bytes]) -> None:
        self._metadata = encode_properties(properties)
        self._frames.append(self._hello)
        self._hello = b""
        self.phase = PlainPhase.HELLO_SENT

    def _admitted(self) -> None:
        raise LocalProtocolError("a PLAIN client has no question")

    def _on_welcome(self, body: bytes) -> None:
        if body:
            raise RemoteProtocolError(f"a WELCOME of PLAIN with {len(body)} surplus bytes (RFC 24)")
        self._frames.append(encode_command(b"INITIATE", self._metadata))

    def _on_ready(self, body: bytes) -> None:
        self.peer_properties = parse_properties(body)

    steps: ClassVar[Mapping[Enum, Mapping[bytes, Step]]] = {
        PlainPhase.START: {},
        PlainPhase.HELLO_SENT: {
            b"WELCOME": (_on_welcome, PlainPhase.INITIATE_SENT),
            b"ERROR": (Mechanism._on_error, PlainPhase.REFUSED),
            b"HELLO": (Mechanism._on_rival, PlainPhase.REFUSED),
        },
        PlainPhase.INITIATE_SENT: {
            b"READY": (_on_ready, PlainPhase.AGREED),
            b"ERROR": (Mechanism._on_error, PlainPhase.REFUSED),
        },
        PlainPhase.AGREED: {},
        PlainPhase.REFUSED: {},
    }
    hints: ClassVar[Mapping[Enum, str]] = {
        PlainPhase.HELLO_SENT: "it did not answer the user name and password",
        PlainPhase.INITIATE_SENT: "it admitted this client, but did not accept its metadata",
    }


class PlainServer(Mechanism):
    """The server's side. Its question is whether the user name and password are valid (`Question.credentials`)."""

    name = b"PLAIN"
    has_roles = True
    agreed = PlainPhase.AGREED
    answered = frozenset({PlainPhase.AGREED})

    def __init__(self) -> None:
        super().__init__(PlainPhase.START, as_server=True)
        self._properties: Mapping[bytes, bytes] = {}

    def start(self, properties: Mapping[bytes, bytes]) -> None:
        self._properties = properties
        self.phase = PlainPhase.HELLO_AWAITED

    def _on_hello(self, body: bytes) -> None:
        username, rest = _take(body)
        password, rest = _take(rest)
        if rest:
            raise RemoteProtocolError(f"a HELLO of PLAIN with {len(rest)} surplus bytes (RFC 24, The HELLO Command)")
        self.question = Question(self.name, (username, password))

    def _admitted(self) -> None:
        self._frames.append(encode_command(b"WELCOME"))
        self.phase = PlainPhase.INITIATE_AWAITED

    def _on_initiate(self, body: bytes) -> None:
        self.peer_properties = parse_properties(body)
        self._frames.append(ready(self._properties))

    steps: ClassVar[Mapping[Enum, Mapping[bytes, Step]]] = {
        PlainPhase.START: {},
        PlainPhase.HELLO_AWAITED: {b"HELLO": (_on_hello, PlainPhase.ASKING)},
        PlainPhase.ASKING: {},
        PlainPhase.INITIATE_AWAITED: {b"INITIATE": (_on_initiate, PlainPhase.AGREED)},
        PlainPhase.AGREED: {},
        PlainPhase.REFUSED: {},
    }
    hints: ClassVar[Mapping[Enum, str]] = {
        PlainPhase.HELLO_AWAITED: "it sent no HELLO: is it a PLAIN server, too?",
        PlainPhase.INITIATE_AWAITED: "it was admitted, but did not continue",
    }


def _counted(field: bytes) -> bytes:
    return bytes((len(field),)) + field


def _take(body: bytes) -> tuple[bytes, bytes]:
    """Splits off a counted field; errors show no content, because it is secret."""
    if not body or len(body) <= body[0]:
        raise RemoteProtocolError("a HELLO of PLAIN that ends inside a field (RFC 24, The HELLO Command)")
    return body[1 : 1 + body[0]], body[1 + body[0] :]
