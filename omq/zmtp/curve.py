"""The CURVE mechanism: both sides verify each other's keys; no other party reads or alters the traffic (RFC 25, 26).

    client                                     server
    HELLO     C', and a box for S         ->
                                          <-   WELCOME   S' and the cookie, in a box
    INITIATE  the cookie, C and a vouch   ->
                                          <-   READY     metadata, in a box

C and S are the permanent public keys, C' and S' those of this connection alone. The server forgets s', the secret half
of S', as soon as it has sent WELCOME: it comes back in the cookie, which only the server can open.
"""

from collections.abc import Mapping
from enum import Enum
from hmac import compare_digest
from typing import ClassVar, Final

from omq._core.wire.crypto import CurveCipher, Secret, random_bytes
from omq.errors import LocalProtocolError, RemoteProtocolError
from omq.types import IdentityEnum
from omq.zmtp.command import encode_command, encode_properties, parse_properties
from omq.zmtp.mechanism import Mechanism, Question, Step

KEY_BYTES: Final = 32  # public or secret
KEY_CHARACTERS: Final = 40  # of a key in Z85

_LONG_NONCE: Final = 16  # bytes on the wire; 8 of prefix come before them
_SHORT_NONCE: Final = 8  # bytes on the wire; 16 of prefix come before them
_MAC_BYTES: Final = 16
_VERSION: Final = b"\x01\x00"
_PADDING: Final = bytes(72)
_SIGNED: Final = bytes(64)
_COOKIE: Final = _LONG_NONCE + _MAC_BYTES + 2 * KEY_BYTES
_VOUCH: Final = _LONG_NONCE + _MAC_BYTES + 2 * KEY_BYTES
_HELLO: Final = len(_VERSION) + len(_PADDING) + KEY_BYTES + _SHORT_NONCE + _MAC_BYTES + len(_SIGNED)
_WELCOME: Final = _LONG_NONCE + _MAC_BYTES + KEY_BYTES + _COOKIE
_INITIATE: Final = _COOKIE + _SHORT_NONCE + _MAC_BYTES + KEY_BYTES + _VOUCH  # and the metadata


class CurvePhase(IdentityEnum):
    """The phase of a CURVE handshake."""

    START = "the greetings are not complete"
    HELLO_SENT = "client: HELLO is sent, WELCOME is awaited"
    INITIATE_SENT = "client: INITIATE is sent, READY is awaited"
    HELLO_AWAITED = "server: HELLO is awaited"
    INITIATE_AWAITED = "server: WELCOME is sent, INITIATE is awaited"
    ASKING = "server: the engine must decide whether to admit the client"
    AGREED = "READY is sent, and received"
    REFUSED = "the server has sent ERROR"


class CookieKeys:
    """The keys of a server's cookies. The engine, which has a clock, calls `rotate` while they are `in_use`."""

    #: Seconds between two rotations. A cookie can be opened until the second one after it was made (RFC 26, The WELCOME
    #: Command: "discard the cookie key after a short interval, for example 60 seconds").
    LIFETIME: ClassVar[float] = 30.0

    def __init__(self) -> None:
        self._keys = [Secret(), Secret()]  # the newest first
        self._used = [False, False]

    @property
    def in_use(self) -> bool:
        """Returns whether a cookie was sent that one of the keys can open."""
        return any(self._used)

    def rotate(self) -> None:
        """Drops the older key, and seals with a new one from now on."""
        self._keys = [Secret(), self._keys[0]]
        self._used = [False, self._used[0]]

    def make(self, client: bytes, secret: Secret) -> bytes:
        """Returns a cookie: C' and s' in a box (RFC 26, The WELCOME Command)."""
        nonce = random_bytes(_LONG_NONCE)
        self._used[0] = True
        return nonce + self._keys[0].seal(b"COOKIE--" + nonce, client, secret)

    def open(self, cookie: bytes) -> tuple[bytes, Secret] | None:
        """Returns C' and s'; `None` if the cookie was not made by this socket, or is too old."""
        nonce, box = cookie[:_LONG_NONCE], cookie[_LONG_NONCE:]
        for key in self._keys:
            if found := key.open_pair(b"COOKIE--" + nonce, box):
                return found
        return None


class CurveClient(Mechanism):
    """The client's side.

    Args:
        server_key: The server's permanent public key, S.
        public_key: The client's permanent public key, C.
        secret_key: The client's permanent secret key.
    """

    name = b"CURVE"
    has_roles = True
    agreed = CurvePhase.AGREED
    answered = frozenset({CurvePhase.INITIATE_SENT, CurvePhase.AGREED})
    # RFC 26, CurveZMQ: "A client peer SHALL NOT send ERROR to the server".
    reports = False

    def __init__(self, server_key: bytes, public_key: bytes, secret_key: Secret) -> None:
        super().__init__(CurvePhase.START)
        self._server_key = server_key
        self._public_key = public_key
        self._secret_key = secret_key
        self._transient = Secret()
        self._key: Secret | None = None
        self._metadata = b""

    def start(self, properties: Mapping[bytes, bytes]) -> None:
        self._metadata = encode_properties(properties)
        key = self._transient.shared(self._server_key)
        if key is None:
            raise LocalProtocolError("server_key is not a valid public key: it has a low order")
        nonce = _counter(1)
        box = key.seal(b"CurveZMQHELLO---" + nonce, _SIGNED)
        self._frames.append(encode_command(b"HELLO", _VERSION + _PADDING + self._transient.public() + nonce + box))
        self.phase = CurvePhase.HELLO_SENT

    def _admitted(self) -> None:
        raise LocalProtocolError("a CURVE client has no question")

    def _on_welcome(self, body: bytes) -> None:
        _expect(len(body) == _WELCOME, f"a WELCOME of CURVE with {len(body)} bytes instead of {_WELCOME}")
        outer = self._transient.shared(self._server_key)
        assert outer is not None
        opened = outer.open(b"WELCOME-" + body[:_LONG_NONCE], body[_LONG_NONCE:])
        if opened is None:
            raise RemoteProtocolError("a WELCOME that does not open: the peer does not have the key server_key")
        server, cookie = opened[:KEY_BYTES], opened[KEY_BYTES:]
        key = self._key = self._transient.shared(server)
        vouching = self._secret_key.shared(server)
        if key is None or vouching is None:
            raise RemoteProtocolError("the server's transient key has a low order")
        # RFC 26, The INITIATE Command: the vouch binds C' to C, and both to this server.
        nonce = random_bytes(_LONG_NONCE)
        vouch = nonce + vouching.seal(b"VOUCH---" + nonce, self._transient.public() + self._server_key)
        short = _counter(2)
        box = key.seal(b"CurveZMQINITIATE" + short, self._public_key + vouch + self._metadata)
        self._frames.append(encode_command(b"INITIATE", cookie + short + box))

    def _on_ready(self, body: bytes) -> None:
        assert self._key is not None
        _expect(len(body) >= _SHORT_NONCE + _MAC_BYTES, f"a READY of CURVE with {len(body)} bytes")
        nonce = body[:_SHORT_NONCE]
        metadata = self._key.open(b"CurveZMQREADY---" + nonce, body[_SHORT_NONCE:])
        if metadata is None:
            raise RemoteProtocolError("a READY that does not open: altered on its way, or not the server's (RFC 26)")
        self.peer_properties = parse_properties(metadata)
        self.codec = CurveCipher(self._key, False, 2, int.from_bytes(nonce, "big"))
        del self._transient, self._key

    steps: ClassVar[Mapping[Enum, Mapping[bytes, Step]]] = {
        CurvePhase.START: {},
        CurvePhase.HELLO_SENT: {
            b"WELCOME": (_on_welcome, CurvePhase.INITIATE_SENT),
            b"ERROR": (Mechanism._on_error, CurvePhase.REFUSED),
            b"HELLO": (Mechanism._on_rival, CurvePhase.REFUSED),
        },
        CurvePhase.INITIATE_SENT: {
            b"READY": (_on_ready, CurvePhase.AGREED),
            b"ERROR": (Mechanism._on_error, CurvePhase.REFUSED),
        },
        CurvePhase.AGREED: {},
        CurvePhase.REFUSED: {},
    }
    hints: ClassVar[Mapping[Enum, str]] = {
        CurvePhase.HELLO_SENT: "it did not answer HELLO: server_key is most likely not its public key",
        CurvePhase.INITIATE_SENT: "it has the expected key, but did not admit this client",
    }


class CurveServer(Mechanism):
    """The server's side. Its question is whether to admit the client's permanent public key.

    Args:
        public_key: The server's permanent public key, S.
        secret_key: The server's permanent secret key.
        cookies: The cookie keys of all connections of this socket.
    """

    name = b"CURVE"
    has_roles = True
    agreed = CurvePhase.AGREED
    answered = frozenset({CurvePhase.AGREED})

    def __init__(self, public_key: bytes, secret_key: Secret, cookies: CookieKeys) -> None:
        super().__init__(CurvePhase.START, as_server=True)
        self._public_key = public_key
        self._secret_key = secret_key
        self._cookies = cookies
        self._properties: Mapping[bytes, bytes] = {}
        # The only state kept for a client between WELCOME and INITIATE: its cookie's nonce. It proves that INITIATE
        # belongs to this connection, so that one recorded from another is refused.
        self._baked = b""
        self._nonce = 0  # the client's last short nonce
        self._key: Secret | None = None

    def start(self, properties: Mapping[bytes, bytes]) -> None:
        self._properties = properties
        self.phase = CurvePhase.HELLO_AWAITED

    def _on_hello(self, body: bytes) -> None:
        _expect(len(body) == _HELLO, f"a HELLO of CURVE with {len(body)} bytes instead of {_HELLO}")
        version, padding, rest = body[:2], body[2:74], body[74:]
        _expect(version == _VERSION, f"a HELLO of CurveZMQ {version[0]}.{version[1]}, which is not known")
        _expect(padding == _PADDING, "a HELLO of CURVE whose padding is not zero")
        client, nonce, box = (
            rest[:KEY_BYTES],
            rest[KEY_BYTES : KEY_BYTES + _SHORT_NONCE],
            rest[KEY_BYTES + _SHORT_NONCE :],
        )
        key = self._secret_key.shared(client)
        if key is None:
            raise RemoteProtocolError("the client's transient key has a low order")
        signed = key.open(b"CurveZMQHELLO---" + nonce, box)
        if signed is None:
            raise RemoteProtocolError(
                "a HELLO that does not open: the client's server_key is not the public key of this server"
            )
        _expect(signed == _SIGNED, "a HELLO of CURVE whose signature is not 64 zero bytes")
        self._nonce = int.from_bytes(nonce, "big")
        # RFC 26, The HELLO Command: "The server SHALL not keep this transient key pair".
        transient = Secret()
        cookie = self._cookies.make(client, transient)
        self._baked = cookie[:_LONG_NONCE]
        welcome = random_bytes(_LONG_NONCE)
        sealed = key.seal(b"WELCOME-" + welcome, transient.public() + cookie)
        self._frames.append(encode_command(b"WELCOME", welcome + sealed))

    def _on_initiate(self, body: bytes) -> None:
        _expect(len(body) >= _INITIATE, f"an INITIATE of CURVE with {len(body)} bytes, at least {_INITIATE} are needed")
        cookie, rest = body[:_COOKIE], body[_COOKIE:]
        if not compare_digest(cookie[:_LONG_NONCE], self._baked):
            raise RemoteProtocolError("an INITIATE with the cookie of another connection: replayed (RFC 26)")
        found = self._cookies.open(cookie)
        if found is None:
            raise RemoteProtocolError("an INITIATE whose cookie does not open: altered, or too old (RFC 26)")
        client, transient = found
        nonce = int.from_bytes(rest[:_SHORT_NONCE], "big")
        _expect(nonce > self._nonce, "an INITIATE whose nonce is not above that of HELLO")
        key = transient.shared(client)
        if key is None:  # only with a forged cookie: HELLO has passed the same check
            raise RemoteProtocolError("the client's transient key has a low order")
        opened = key.open(b"CurveZMQINITIATE" + rest[:_SHORT_NONCE], rest[_SHORT_NONCE:])
        if opened is None:
            raise RemoteProtocolError("an INITIATE that does not open: altered on its way (RFC 26)")
        permanent, vouch = opened[:KEY_BYTES], opened[KEY_BYTES : KEY_BYTES + _VOUCH]
        self._check_vouch(transient, client, permanent, vouch)
        self.peer_properties = parse_properties(opened[KEY_BYTES + _VOUCH :])
        self._nonce, self._key = nonce, key
        self.question = Question(self.name, (permanent,))

    def _check_vouch(self, transient: Secret, client: bytes, permanent: bytes, vouch: bytes) -> None:
        """Checks that the holder of the permanent key made the transient key for this server (RFC 26, INITIATE)."""
        key = transient.shared(permanent)
        if key is None:
            raise RemoteProtocolError("the client's permanent key has a low order")
        vouched = key.open(b"VOUCH---" + vouch[:_LONG_NONCE], vouch[_LONG_NONCE:])
        if vouched is None:
            raise RemoteProtocolError(
                "a vouch that does not open: the client does not have the secret half of its public key"
            )
        if not compare_digest(vouched, client + self._public_key):
            raise RemoteProtocolError("a vouch for another connection, or for another server (RFC 26)")

    def _admitted(self) -> None:
        assert self._key is not None
        nonce = _counter(1)
        box = self._key.seal(b"CurveZMQREADY---" + nonce, encode_properties(self._properties))
        self._frames.append(encode_command(b"READY", nonce + box))
        self.codec = CurveCipher(self._key, True, 1, self._nonce)
        self._key = None
        self.phase = CurvePhase.AGREED

    steps: ClassVar[Mapping[Enum, Mapping[bytes, Step]]] = {
        CurvePhase.START: {},
        CurvePhase.HELLO_AWAITED: {b"HELLO": (_on_hello, CurvePhase.INITIATE_AWAITED)},
        CurvePhase.INITIATE_AWAITED: {b"INITIATE": (_on_initiate, CurvePhase.ASKING)},
        CurvePhase.ASKING: {},
        CurvePhase.AGREED: {},
        CurvePhase.REFUSED: {},
    }
    hints: ClassVar[Mapping[Enum, str]] = {
        CurvePhase.HELLO_AWAITED: "it sent no HELLO: is it a CURVE server, too?",
        CurvePhase.INITIATE_AWAITED: "it did not accept WELCOME",
    }


def _counter(number: int) -> bytes:
    return number.to_bytes(_SHORT_NONCE, "big")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RemoteProtocolError(f"{otherwise} (RFC 26)")
