"""The upgrade of an HTTP connection to a WebSocket (RFC 6455, section 4) on wsproto, without I/O."""

from __future__ import annotations

import base64
import binascii
import importlib
import importlib.util
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from wsproto import events

from omq.errors import HandshakeError
from omq.transport.base import shown

MAX_HEAD_BYTES: Final = 8192  # a request or a response, with its headers
_SINGLE_HEADERS: Final = (b"host", b"upgrade", b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-accept")
_STATUS: Final = {400: "Bad Request", 404: "Not Found", 426: "Upgrade Required", 431: "Request Header Fields Too Large"}
_KEY_BYTES: Final = 16
_INTERIM: Final = re.compile(rb"HTTP/1\.1 1(?!01)[0-9]{2}[ \r]")  # the beginning of an interim response
#: An Upgrade header that lists WebSockets among other protocols (RFC 9110, 7.8); wsproto accepts the one word only.
_UPGRADES: Final = re.compile(rb"(\r\nupgrade:[ \t]*)(?:[^\r\n]*,)?[ \t]*websocket[ \t]*(?:,[^\r\n]*)?(?=\r\n)", re.I)
_HOST: Final = re.compile(r"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]+")  # RFC 9112, 3.2
_ANSWER: Final = b"HTTP/1."  # the beginning of a response
#: Other protocols of a peer by its first byte: a record of TLS (RFC 8446, 5.1), a greeting (RFC 23).
_OTHER_PROTOCOLS: Final = {
    0x15: "the peer speaks TLS",
    0x16: "the peer speaks TLS",
    0xFF: "the peer speaks ZMTP over tcp",
}


def is_available() -> bool:
    """Returns whether wsproto, an optional dependency, is installed."""
    return importlib.util.find_spec("wsproto") is not None


@cache
def _library() -> Any:
    """Imports wsproto, which programs without WebSockets do not load."""
    try:
        importlib.import_module("wsproto.events")
        importlib.import_module("wsproto.utilities")
        return importlib.import_module("wsproto")
    except ImportError:
        importlib.invalidate_caches()  # if descriptors run out, the import system caches a folder as empty
        raise


class WebSocketUpgrade:
    """One side of one upgrade.

    Args:
        host: The server's host and port, as the client names them.
        path: The resource; begins with a slash. A server without one (`/`) accepts any.
        as_client: Whether this side has dialled.

    Attributes:
        as_client: Whether this side has dialled.
        protocol: The sub-protocol that both sides agreed on; empty until they have.
        unread: The bytes that came after the upgrade.
    """

    def __init__(self, host: str, path: str, *, as_client: bool) -> None:
        self.as_client = as_client
        self.protocol = ""
        self.unread = b""
        self._host = host
        self._path = path
        self._protocols: Sequence[str] = ()
        self._head = b""
        self._refusal = b""
        self._wsproto = _library()
        kinds = self._wsproto.ConnectionType
        self._side = self._wsproto.WSConnection(kinds.CLIENT if as_client else kinds.SERVER)

    def start(self, protocols: Sequence[str]) -> bytes:
        self._protocols = protocols
        if not self.as_client:
            return b""
        request = self._wsproto.events.Request(host=self._host, target=self._path, subprotocols=list(protocols))
        return bytes(self._side.send(request))

    def receive(self, data: bytes) -> bytes:
        begin = max(0, len(self._head) - 3)
        self._head += data
        while self.as_client and _INTERIM.match(self._head) and (end := self._head.find(b"\r\n\r\n")) >= 0:
            # RFC 9110, 15.2: any number of interim responses may come before the final one.
            self._head, begin = self._head[end + 4 :], 0
        if not self._head:
            return b""
        start = self._head[: len(_ANSWER)]
        if not (_ANSWER.startswith(start) if self.as_client else start[:1].isupper()):
            # The end of a header may never come.
            what = _OTHER_PROTOCOLS.get(start[0], f"it begins with {shown(start)}")
            self._refuse(400, f"this is not an HTTP {'response' if self.as_client else 'request'}: {what}")
        end = self._head.find(b"\r\n\r\n", begin)
        if end + 4 > MAX_HEAD_BYTES or (end < 0 and len(self._head) > MAX_HEAD_BYTES):
            self._refuse(431, f"the headers have more than {MAX_HEAD_BYTES} bytes")
        if end < 0:
            return b""
        head, self.unread = self._head[: end + 4], self._head[end + 4 :]
        self._head = b""
        names = [line.partition(b":")[0].strip().lower() for line in head.split(b"\r\n")[1:]]
        for name in _SINGLE_HEADERS:
            if names.count(name) > 1:
                self._refuse(400, f"the header {name.decode()} comes twice")
        return self._finish(head) if self.as_client else self._accept(_UPGRADES.sub(rb"\1websocket", head, count=1))

    def failure(self) -> bytes:
        return self._refusal

    def _finish(self, head: bytes) -> bytes:
        events = self._wsproto.events
        answer = self._read(head)
        if isinstance(answer, events.RejectConnection):
            self._refuse(0, f"the peer answers with status {answer.status_code}")
        if not isinstance(answer, events.AcceptConnection):
            self._refuse(0, "the peer gives no answer of a WebSocket server")
        if answer.extensions:
            self._refuse(0, f"the peer chooses extensions, {answer.extensions}, and none were offered")
        if answer.subprotocol not in self._protocols:
            self._refuse(0, f"the peer chooses the sub-protocol {answer.subprotocol!r}, not {self._offer()}")
        self.protocol = answer.subprotocol
        return b""

    def _accept(self, head: bytes) -> bytes:
        events = self._wsproto.events
        request = self._read(head)
        if not isinstance(request, events.Request):
            self._refuse(400, "this is not an upgrade to a WebSocket")
        if b" HTTP/1.0\r\n" in head:
            self._refuse(400, "a request of HTTP/1.0: it has to be 1.1 or higher (RFC 6455, 4.2.1)")
        if not _HOST.fullmatch(request.host):
            self._refuse(400, f"the header Host is not a host and a port: {shown(request.host)}")
        key = next((value for name, value in request.extra_headers if name == b"sec-websocket-key"), b"")
        if not _is_key(key):
            self._refuse(400, f"Sec-WebSocket-Key is not {_KEY_BYTES} bytes in base64: {shown(key)}")
        # RFC 9112, 3.2.2: a server accepts the absolute form of a target, too.
        target = urlsplit(request.target).path or "/" if "://" in request.target else request.target
        if self._path not in ("/", target.partition("?")[0]):
            self._refuse(404, f"nothing is bound at the path {shown(request.target)}")
        chosen = next((name for name in self._protocols if name in request.subprotocols), None)
        if chosen is None:
            # RFC 45, Handshake: BAD REQUEST where no sub-protocol is supported.
            self._refuse(400, f"the sub-protocols are {self._offer()}, not {shown(', '.join(request.subprotocols))}")
        self.protocol = chosen
        return bytes(self._side.send(events.AcceptConnection(subprotocol=chosen)))

    def _read(self, head: bytes) -> events.Event | None:
        try:
            self._side.receive_data(head)
            return next(iter(self._side.events()), None)
        except self._wsproto.utilities.RemoteProtocolError as error:
            if getattr(error.event_hint, "status_code", 400) == 426:
                self._refuse(426, "the header Sec-WebSocket-Version is not 13")
            self._refuse(400, shown(str(error) or "a bad request"))
        except ValueError as error:  # a host or a target that no codec takes
            self._refuse(400, f"a header or the target cannot be decoded: {shown(str(error))}")

    def _offer(self) -> str:
        return " or ".join(self._protocols)

    def _refuse(self, status: int, why: str) -> NoReturn:
        if not self.as_client:
            more = "Sec-WebSocket-Version: 13\r\nUpgrade: websocket\r\n" if status == 426 else ""
            body = why.encode("ascii", "replace") + b"\n"
            self._refusal = (
                f"HTTP/1.1 {status} {_STATUS[status]}\r\n{more}Connection: close\r\nContent-Type: text/plain\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            ).encode() + body
        raise HandshakeError(f"the upgrade to a WebSocket has failed: {why}")


def _is_key(text: bytes) -> bool:
    """Returns whether a text is the base64 of 16 bytes (RFC 6455, 4.2.1)."""
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        return False
