"""A WebSocket peer made by hand, and what TLS needs, for the tests of ws:// and wss://."""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
import subprocess
from pathlib import Path

from tests.support.waits import BOUND

KEY = base64.b64encode(bytes(range(16))).decode()
HEADERS = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "ZWS2.0/NULL",
}


def request(headers: dict[str, str], more: str = "", line: str = "GET /at HTTP/1.1") -> bytes:
    """A request for an upgrade; *more*: further header lines, each with its end."""
    return "\r\n".join([line, *(f"{name}: {value}" for name, value in headers.items()), more + "\r\n"]).encode()


def frame(payload: bytes, first: int = 0x82, *, masked: bool = True) -> bytes:
    """A frame, *first*: its first octet."""
    size = bytes((len(payload),)) if len(payload) < 126 else b"\x7e" + len(payload).to_bytes(2, "big")
    if not masked:
        return bytes((first,)) + size + payload
    key = b"\x11\x22\x33\x44"
    body = bytes(octet ^ key[place % 4] for place, octet in enumerate(payload))
    return bytes((first, size[0] | 0x80)) + size[1:] + key + body


def ready(kind: str) -> bytes:
    """The payload of a frame with a READY of NULL."""
    return b"\x02\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind.encode()


def place(endpoint: str) -> tuple[str, int]:
    """Host and port of an endpoint."""
    host, _, port = endpoint.partition("://")[2].partition("/")[0].rpartition(":")
    return host, int(port)


class Client:
    """A client; it ends with its `with` block.

    Args:
        endpoint: Where the server is.
        protocols: The sub-protocols that it offers.
    """

    def __init__(self, endpoint: str, protocols: str = "ZWS2.0/NULL", *, recv_buffer: int = 0) -> None:
        self.sock = socket.socket()
        if recv_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, recv_buffer)
        self.sock.settimeout(BOUND)
        self.sock.connect(place(endpoint))
        line = f"GET /{endpoint.partition('://')[2].partition('/')[2]} HTTP/1.1"
        self.sock.sendall(request({**HEADERS, "Sec-WebSocket-Protocol": protocols}, line=line))
        self.answer = b""
        while not self.answer.endswith(b"\r\n\r\n"):
            more = self.sock.recv(1)
            if not more:
                break
            self.answer += more

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, payload: bytes, first: int = 0x82) -> None:
        self.sock.sendall(frame(payload, first))

    def recv(self) -> tuple[int, bytes]:
        """The first octet and the payload of the next frame."""
        first, size = read(self.sock, 2)
        assert size < 128, "a server masks nothing"
        if size > 125:
            size = int.from_bytes(read(self.sock, 2 if size == 126 else 8), "big")
        return first, read(self.sock, size)


class Server:
    """A server of one client; it ends with its `with` block.

    Args:
        listening: A listening socket.
        chosen: The sub-protocol that it chooses.
        headers: Headers of the answer that are to be others; `None` for one that is left out.

    Attributes:
        line: The first line of the request.
        headers: Its headers, by lower-case name.
        mask: That of the last frame.
    """

    def __init__(self, listening: socket.socket, chosen: str, headers: dict[str, str | None] | None = None) -> None:
        listening.settimeout(BOUND)
        self.sock, _ = listening.accept()
        self.sock.settimeout(BOUND)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += read(self.sock, 1)
        self.line, *lines = head.decode().split("\r\n")[:-2]
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.mask = b""
        key = self.headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        answer: dict[str, str | None] = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Accept": base64.b64encode(hashlib.sha1(key).digest()).decode(),
            "Sec-WebSocket-Protocol": chosen,
            **(headers or {}),
        }
        lines = [f"{name}: {value}" for name, value in answer.items() if value is not None]
        self.sock.sendall("\r\n".join(["HTTP/1.1 101 Switching Protocols", *lines, "\r\n"]).encode())

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, payload: bytes, first: int = 0x82) -> None:
        size = len(payload)
        long = size > 65535
        head = bytes((size,)) if size < 126 else bytes((127 if long else 126,)) + size.to_bytes(8 if long else 2, "big")
        self.sock.sendall(bytes((first,)) + head + payload)

    def recv(self) -> tuple[int, bytes]:
        """The first octet and the payload of the next frame."""
        first, size = read(self.sock, 2)
        assert size & 128, "a client masks everything"
        size &= 127
        if size > 125:
            size = int.from_bytes(read(self.sock, 2 if size == 126 else 8), "big")
        self.mask = read(self.sock, 4)
        wide = (self.mask * (size // 4 + 1))[:size]
        masked = int.from_bytes(read(self.sock, size), "big")
        return first, (masked ^ int.from_bytes(wide, "big")).to_bytes(size, "big")


def read(sock: socket.socket, size: int) -> bytes:
    """A number of bytes from a peer.

    Raises:
        EOFError: It has ended before.
    """
    found = b""
    while len(found) < size:
        more = sock.recv(size - len(found))
        if not more:
            raise EOFError(f"{len(found)} of {size} bytes")
        found += more
    return found


def make_certificate(where: Path) -> Path:
    """A certificate of 127.0.0.1, with its key in the same file."""
    key, found, both = where / "key.pem", where / "cert.pem", where / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=omq"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(found)]
    subprocess.run(command, check=True, capture_output=True, timeout=BOUND)
    both.write_bytes(key.read_bytes() + found.read_bytes())
    return both


def contexts(certificate: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a server and of a client that trusts it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    return server, ssl.create_default_context(cafile=str(certificate))
