"""Authentication and encryption of connections (RFC 24, PLAIN; RFC 25 and 26, CURVE).

    public, secret = omq.curve_keypair()

    rep = omq.REP(bind="tcp://*:5555", security=omq.CurveServer(secret, authorize={client_key}))
    req = omq.REQ(connect="tcp://host:5555", security=omq.CurveClient(server_key, my_public, my_secret))

One of these objects is the option `security`; several sockets may share it. PLAIN sends user name and password
unencrypted: it distinguishes users on a trusted network. CURVE authenticates and encrypts all traffic; clients must
know the server's public key. inproc never leaves the process, and uses neither.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any, ClassVar

from omq._core.wire.crypto import Secret
from omq.errors import UsageError
from omq.types import Security
from omq.zmtp import curve, plain, z85

#: Decides about a user name and a password; may be a coroutine function.
Authenticate = Callable[[bytes, bytes], bool | Awaitable[bool]]
#: Decides about a client's public key, given as 40 characters of Z85; may be a coroutine function.
Authorize = Callable[[bytes], bool | Awaitable[bool]]

__all__ = [
    "Certificate",
    "CurveClient",
    "CurveServer",
    "PlainClient",
    "PlainServer",
    "curve_keypair",
    "curve_public",
    "load_certificate",
    "save_certificate",
    "z85_decode",
    "z85_encode",
]


class PlainServer(Security):
    """Admits clients with a valid user name and password.

    Args:
        authenticate: A function, or coroutine function, that takes user name and password (bytes) and returns whether
            they are valid; or a mapping of passwords by user name (bytes or str), which may change while in use; `None`
            leaves the decision to the ZAP handler at `inproc://zeromq.zap.01` (RFC 27). To refuse a client that may try
            again later, the function raises `omq.errors.HandshakeError`; the client gets its text, with `_` for blanks.
    """

    name: ClassVar[str] = "PLAIN"
    as_server: ClassVar[bool] = True

    def __init__(self, authenticate: Authenticate | Mapping[Any, Any] | None) -> None:
        if authenticate is not None and not callable(authenticate) and not isinstance(authenticate, Mapping):
            raise UsageError(
                f"authenticate: must be a function, a mapping of passwords by user name, or None, not"
                f" {type(authenticate).__name__}"
            )
        self._authenticate = authenticate

    def begin(self, cookies: Any) -> plain.PlainServer:
        return plain.PlainServer()

    def judge(self, credentials: tuple[bytes, ...]) -> Any:
        username, password = credentials
        if self._authenticate is None:
            return None
        if callable(self._authenticate):
            return self._authenticate(username, password)
        return _password_matches(self._authenticate, username, password)

    def user_of(self, credentials: tuple[bytes, ...]) -> str | None:
        return credentials[0].decode("utf-8", "backslashreplace")

    def __repr__(self) -> str:
        return "PlainServer(...)"


class PlainClient(Security):
    """Authenticates to a server with a user name and a password, sent unencrypted.

    Args:
        username: At most 255 bytes; a `str` is sent as UTF-8.
        password: At most 255 bytes; a `str` is sent as UTF-8.
    """

    name: ClassVar[str] = "PLAIN"
    as_server: ClassVar[bool] = False

    def __init__(self, username: bytes | str, password: bytes | str) -> None:
        self._username = _credential("username", username)
        self._password = _credential("password", password)

    def begin(self, cookies: Any) -> plain.PlainClient:
        return plain.PlainClient(self._username, self._password)

    def __repr__(self) -> str:
        return f"PlainClient({self._username!r}, ...)"


class CurveServer(Security):
    """Admits clients that know the server's public key and have the secret key of an authorized public key.

    Args:
        secret_key: The server's permanent secret key: 32 bytes, or 40 characters of Z85.
        authorize: The public keys to admit: a set or another container, which may change while in use; or a function,
            or coroutine function, that takes a key as 40 characters of Z85 (bytes) and returns whether to admit it, or
            raises `HandshakeError` as `authenticate` of `PlainServer` may. `None` admits every key, unless a ZAP
            handler at `inproc://zeromq.zap.01` refuses it (RFC 27).

    Attributes:
        public_key: The server's public key as Z85, which clients need as their `server_key`.
    """

    name: ClassVar[str] = "CURVE"
    as_server: ClassVar[bool] = True

    def __init__(self, secret_key: bytes | str, authorize: Authorize | Container[Any] | None = None) -> None:
        if isinstance(authorize, bytes | str):
            raise UsageError("authorize: must be a set of keys, or a function: put a single key into a set")
        if authorize is not None and not callable(authorize) and not hasattr(authorize, "__contains__"):
            raise UsageError(f"authorize: must be a set of keys, a function, or None, not {type(authorize).__name__}")
        self._secret = _own(secret_key)
        self._public = self._secret.public()
        self._authorize = authorize
        self.public_key = z85.encode(self._public)

    def begin(self, cookies: Any) -> curve.CurveServer:
        return curve.CurveServer(self._public, self._secret, cookies)

    def judge(self, credentials: tuple[bytes, ...]) -> Any:
        if self._authorize is None:
            return None
        text = z85.encode(credentials[0])
        if callable(self._authorize):
            return self._authorize(text)
        # Hashes of bytes are seeded by the interpreter, so the time of a look-up reveals nothing about the keys.
        forms = (credentials[0], text, text.decode("ascii"))
        return any(form in self._authorize for form in forms)

    def user_of(self, credentials: tuple[bytes, ...]) -> str | None:
        return z85.encode(credentials[0]).decode("ascii")

    def __repr__(self) -> str:
        return f"CurveServer(public_key={self.public_key!r})"


class CurveClient(Security):
    """Proves to a server that the client has a secret key, and verifies that the server is the expected one.

    Args:
        server_key: The server's permanent public key.
        public_key: The client's permanent public key; `None` derives it from `secret_key`.
        secret_key: The client's permanent secret key; `None` generates a key pair, for servers that admit every key.

    Attributes:
        public_key: The client's public key as Z85.
    """

    name: ClassVar[str] = "CURVE"
    as_server: ClassVar[bool] = False

    def __init__(
        self,
        server_key: bytes | str,
        public_key: bytes | str | None = None,
        secret_key: bytes | str | None = None,
    ) -> None:
        if public_key is not None and secret_key is None:
            raise UsageError("public_key: needs its secret_key")
        self._server = _public(server_key, "server_key")
        self._secret = Secret() if secret_key is None else _own(secret_key)
        self._public = self._secret.public()
        if public_key is not None and not compare_digest(_public(public_key, "public_key"), self._public):
            raise UsageError("public_key: is not the public half of secret_key")
        if self._secret.shared(self._server) is None:
            raise UsageError("server_key: is not a valid public key: it has a low order")
        self.public_key = z85.encode(self._public)

    def begin(self, cookies: Any) -> curve.CurveClient:
        return curve.CurveClient(self._server, self._public, self._secret)

    def __repr__(self) -> str:
        return f"CurveClient(server_key={z85.encode(self._server)!r}, public_key={self.public_key!r})"


def curve_keypair() -> tuple[bytes, bytes]:
    """Makes a key pair for CURVE (`zmq_curve_keypair(3)`).

    Returns:
        The public and the secret key, 40 characters of Z85 each.
    """
    secret = Secret()
    return z85.encode(secret.public()), z85.encode(secret.reveal())


def curve_public(secret_key: bytes | str) -> bytes:
    """Returns the public key of a secret key (`zmq_curve_public(3)`), as 40 characters of Z85.

    Raises:
        UsageError: The key is neither 32 bytes nor 40 characters of Z85.
    """
    return z85.encode(_own(secret_key).public())


def z85_encode(data: bytes) -> bytes:
    """Encodes bytes, a multiple of 4, as printable text (RFC 32; `zmq_z85_encode(3)`).

    Raises:
        UsageError: The length is not a multiple of 4.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UsageError(f"data: must be bytes, not {type(data).__name__}")
    return z85.encode(bytes(data))


def z85_decode(text: bytes | str) -> bytes:
    """Decodes the output of `z85_encode` (`zmq_z85_decode(3)`).

    Raises:
        UsageError: The text is not Z85.
    """
    if not isinstance(text, bytes | str):
        raise UsageError(f"text: must be bytes or str, not {type(text).__name__}")
    return z85.decode(text)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The content of a certificate file.

    Attributes:
        public_key: The public key, as Z85.
        secret_key: The secret key, as Z85; `None` in a public file.
        metadata: The properties of the holder in the file.
    """

    public_key: bytes
    secret_key: bytes | None = field(default=None, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)


def save_certificate(
    path: str | os.PathLike[str],
    secret_key: bytes | str,
    metadata: Mapping[str, str] | None = None,
) -> tuple[str, str]:
    """Writes a key pair into two files, as CZMQ and pyzmq do: one to publish, and one to keep secret.

    Args:
        path: The path of the public file, such as `client.key`; that of the secret file has `_secret` appended.
        secret_key: The secret key, from which the public key is computed.
        metadata: Properties of the holder; names and values without quotes and line ends.

    Returns:
        The paths of the public and of the secret file. Only the owner may read the secret one (mode 0600).

    Raises:
        UsageError: The key is not valid, the metadata cannot be written to such a file, or the path cannot be encoded.
        TypeError: The path is not a path, or the metadata are not str.
    """
    open_path = file_path(path)
    secret = _own(secret_key)
    public = z85.encode(secret.public()).decode("ascii")
    head = ["metadata"]
    for name, value in (metadata or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"metadata: must be a mapping of str to str, not {name!r} = {value!r}")
        if not _NAME.fullmatch(name) or set(value) & set('"\r\n') or not _encodes(value):
            raise UsageError(
                f"metadata: {name!r} = {value!r} cannot be in a certificate: use UTF-8 without quotes and line ends"
            )
        head.append(f'    {name} = "{value}"')
    keys = ["curve", f'    public-key = "{public}"']
    hidden = [f'    secret-key = "{z85.encode(secret.reveal()).decode("ascii")}"']
    _write(open_path, 0o644, ["#   ZeroMQ CURVE Public Certificate", *head, *keys])
    _write(f"{open_path}_secret", 0o600, ["#   ZeroMQ CURVE **Secret** Certificate", *head, *keys, *hidden])
    return open_path, f"{open_path}_secret"


def load_certificate(path: str | os.PathLike[str]) -> Certificate:
    """Reads a certificate file: public or secret, written by `save_certificate`, CZMQ or pyzmq.

    Raises:
        UsageError: The file has no public key, or the path cannot be encoded.
        TypeError: The path is not a path; a descriptor is not accepted.
        OSError: The file cannot be read.
    """
    section = ""
    found: dict[str, dict[str, str]] = {"curve": {}, "metadata": {}}
    path = file_path(path)
    with open(path, encoding="utf-8") as file:
        for line in file:
            text = line.partition("#")[0] if '"' not in line else line
            if not text.strip() or text.lstrip().startswith("#"):
                continue
            if not text[0].isspace():
                section = text.strip()
            elif match := _ENTRY.fullmatch(text.strip()):
                found.setdefault(section, {})[match[1]] = match[2] if match[2] is not None else match[3]
    public, secret = found["curve"].get("public-key"), found["curve"].get("secret-key")
    if public is None:
        raise UsageError(f"{path} is not a valid certificate: it has no public-key under curve")
    _public(public, "public-key")
    # pyzmq writes an empty secret key, and CZMQ forty zeros, into files that have none.
    if not secret or secret == "0" * curve.KEY_CHARACTERS:
        return Certificate(public.encode("ascii"), None, found["metadata"])
    Secret(secret)
    return Certificate(public.encode("ascii"), secret.encode("ascii"), found["metadata"])


_NAME = re.compile(r"[A-Za-z0-9/._-]{1,255}")
_ENTRY = re.compile(r"""([^\s=]+)\s*=\s*(?:"([^"]*)"|([^"]\S*))""")


def _write(path: str, mode: int, lines: list[str]) -> None:
    """Writes a file that has this mode from its first byte on; replaces an existing one."""
    temporary = f"{path}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def file_path(path: Any) -> str:
    """Returns a path as `str`; `open` would take a number for a descriptor, and close it."""
    if not isinstance(path, str | bytes | os.PathLike):
        raise TypeError(f"path: must be a str or an os.PathLike, not {type(path).__name__}: {path!r}")
    found = os.fsdecode(path)
    try:
        os.fsencode(found)
    except UnicodeEncodeError:
        raise UsageError(f"path: {found!r} cannot be encoded for the file system") from None
    return found


def _encodes(text: str) -> bool:
    """Returns whether a text can be encoded in UTF-8; half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _own(key: bytes | str) -> Secret:
    """Returns a secret key; rejects `None`, such as an unset variable, instead of generating a key."""
    if key is None:
        raise UsageError("secret_key: must be bytes or str, not NoneType")
    try:
        return Secret(key)
    except UnicodeError:
        raise UsageError("secret_key: must be 32 bytes, or 40 characters of Z85, which are ASCII") from None


def _public(key: bytes | str, name: str) -> bytes:
    """Returns a public key as 32 bytes."""
    if isinstance(key, bytes) and len(key) == curve.KEY_BYTES:
        return key
    if not isinstance(key, bytes | str) or len(key) != curve.KEY_CHARACTERS:
        # The key is not shown: it may be a secret one in the wrong place.
        given = f"{type(key).__name__} of length {len(key)}" if isinstance(key, bytes | str) else type(key).__name__
        raise UsageError(f"{name}: must be 32 bytes, or 40 characters of Z85, not {given}")
    try:
        return z85.decode(key)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def _credential(name: str, value: bytes | str) -> bytes:
    if isinstance(value, str) and not _encodes(value):
        raise UsageError(f"{name}: cannot be encoded as UTF-8: it has half of a surrogate pair; give bytes instead")
    data = value.encode() if isinstance(value, str) else value
    if not isinstance(data, bytes):
        raise UsageError(f"{name}: must be bytes or str, not {type(value).__name__}")
    if len(data) > plain.MAX_CREDENTIAL_BYTES:
        raise UsageError(f"{name}: has {len(data)} bytes; at most {plain.MAX_CREDENTIAL_BYTES} are allowed (RFC 24)")
    return data


def _password_matches(passwords: Mapping[Any, Any], username: bytes, password: bytes) -> bool:
    """Returns whether the password is the user's; takes equally long for an unknown user."""
    known = passwords.get(username)
    if known is None:
        try:
            known = passwords.get(username.decode())
        except UnicodeDecodeError:
            known = None
    expected = known.encode() if isinstance(known, str) else known
    right = compare_digest(password, expected if expected is not None else bytes(len(password)))
    return right and expected is not None
