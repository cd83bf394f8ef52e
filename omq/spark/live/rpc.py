"""Remote calls between the processes of one stream. Both sides prove that they know the stream's secret.

Messages are JSON, with bytes and descriptors attached. Tasks get the secret from the driver with their partitions. A
peer without it gets only a nonce, and is disconnected.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import os
import secrets
import struct
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import omq
from omq.unpatched import socket, threading

NONCE_BYTES: Final = 32
HANDSHAKE_TIMEOUT_S: Final = 5.0  # for a connect, and for the authentication
IDLE_TIMEOUT_S: Final = 15.0  # without data, after which a connection counts as broken
FROZEN_TIMEOUT_S: Final = 45.0  # without a report, after which a receiver counts as dead
SEND_TIMEOUT_S: Final = 600.0  # after which a task that does not read counts as dead
BACKLOG: Final = 128
MAX_UNAUTHENTICATED: Final = 64  # connections of a listener; the oldest is closed for a new one
MAX_MESSAGE_BYTES: Final = 64 << 20  # without attachments
_LENGTH: Final = struct.Struct(">I")


class Unreachable(omq.OmqError):
    """Raised when no process with the secret can be reached.

    Attributes:
        refused: Whether each address refused the connection: the host is up, and the process has ended.
    """

    def __init__(self, text: str, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class ProcessAddress(NamedTuple):
    """The address of a process. In JSON it is a list.

    Attributes:
        host: The unique name of a network namespace of a machine.
        name: The name of its abstract Unix socket, for processes with the same *host*.
        addresses: The IP addresses for other hosts.
        port: The TCP port.
    """

    host: str
    name: str
    addresses: Sequence[str] = ()
    port: int = 0


def this_host() -> str:
    """Returns `ProcessAddress.host` of this process: the machine's boot id, and the network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"


def addresses() -> tuple[str, ...]:
    """Returns the IP addresses for other hosts.

    These are `SPARK_LOCAL_IP` if it is set, otherwise all but loopback addresses; 127.0.0.1 if there are no others.
    """
    chosen = os.environ.get("SPARK_LOCAL_IP")
    if chosen:
        with contextlib.suppress(OSError):
            return (str(socket.getaddrinfo(chosen, None)[0][4][0]),)
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(query, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                found.append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, _, _, scope, *_ = line.split()
            if scope == "00":  # global
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return tuple(one for one in found if not one.startswith("127.")) or ("127.0.0.1",)


class Channel:
    """A connection to a peer. Any thread may send, only one may receive.

    Attributes:
        local: Whether descriptors can be sent: the peer is on this host.
        authenticated: Whether the peer has proved that it knows the secret.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._sending = threading.Lock()
        self.authenticated = False
        self.local = sock.family == socket.AF_UNIX
        if not self.local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Keepalive detects the loss of a host.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3)):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def set_send_timeout(self, seconds: float) -> None:
        """Sets the time without an acknowledgement of data after which the kernel ends a TCP connection."""
        if not self.local:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))

    def authenticate(self, secret: bytes, serves: bool) -> None:
        """Proves to the peer that this process knows the secret, and requires the same proof.

        Raises:
            Unreachable: The peer does not know the secret, or does not answer.
        """
        ours = secrets.token_bytes(NONCE_BYTES)
        self.sock.settimeout(HANDSHAKE_TIMEOUT_S)
        try:
            self.sock.sendall(ours)
            theirs = bytes(self._recv_exactly(NONCE_BYTES))
            both = ours + theirs if serves else theirs + ours
            own, peers = (b"server", b"client") if serves else (b"client", b"server")
            # The client's proof is first, so a server sends none to an unknown peer.
            if not serves:
                self.sock.sendall(_proof(secret, own, both))
            if not hmac.compare_digest(self._recv_exactly(NONCE_BYTES), _proof(secret, peers, both)):
                raise Unreachable("the peer does not know the secret")
            if serves:
                self.sock.sendall(_proof(secret, own, both))
        except (OSError, EOFError) as error:
            raise Unreachable(f"no answer: {error}") from error
        self.sock.settimeout(None)
        self.authenticated = True

    def send(self, message: dict[str, Any], attached: Sequence[Any] = (), descriptors: Sequence[int] = ()) -> None:
        """Sends a message, with bytes and, on the same host, descriptors attached.

        Raises:
            StateError: The message has more than `MAX_MESSAGE_BYTES`.
        """
        views = [memoryview(one).cast("B") for one in attached]
        if views:
            message = {**message, "attached": [len(view) for view in views]}
        body = json.dumps(message).encode()
        if len(body) > MAX_MESSAGE_BYTES:
            raise omq.StateError(f"a message has {len(body)} bytes; the maximum is {MAX_MESSAGE_BYTES}")
        head = _LENGTH.pack(len(body)) + body
        with self._sending:
            if descriptors:
                # The kernel attaches them to the first byte.
                sent = socket.send_fds(self.sock, [head], list(descriptors))
                head = head[sent:]
            self.sock.sendall(head)
            for view in views:
                self.sock.sendall(view)

    def receive(self) -> tuple[dict[str, Any], list[bytearray], list[int]]:
        """Returns the next message, and its attached bytes and descriptors.

        Raises:
            EOFError: The peer has closed the connection.
            RemoteProtocolError: The message has more than `MAX_MESSAGE_BYTES`.
        """
        descriptors: list[int] = []
        first = b""
        if self.local:
            first, descriptors, _, _ = socket.recv_fds(self.sock, 1, 8, socket.MSG_CMSG_CLOEXEC)
            if not first:
                raise EOFError("the peer has closed the connection")
        (length,) = _LENGTH.unpack(first + self._recv_exactly(_LENGTH.size - len(first)))
        if length > MAX_MESSAGE_BYTES:
            raise omq.RemoteProtocolError(f"a message has {length} bytes; the maximum is {MAX_MESSAGE_BYTES}")
        message: dict[str, Any] = json.loads(self._recv_exactly(length))
        return message, [self._recv_exactly(size) for size in message.pop("attached", ())], list(descriptors)

    def recv(self) -> dict[str, Any]:
        """Returns the next message, without attachments."""
        return self.receive()[0]

    def call(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the next message, its response."""
        self.send(message)
        return self.recv()

    def _recv_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        filled = 0
        with memoryview(data) as view:
            while filled < size:
                received = self.sock.recv_into(view[filled:], 0, socket.MSG_WAITALL)
                if not received:
                    raise EOFError("the peer has closed the connection")
                filled += received
        return data

    def close(self) -> None:
        """Closes the connection, and wakes a thread that receives."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def _proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, role + nonces, "sha256")


class RpcServer:
    """Listens, and calls *serve* for each authenticated peer in a thread. The channel is closed when it returns."""

    def __init__(self, role: str, secret: bytes, serve: Callable[[Channel], None]) -> None:
        self._secret = secret
        self._serve = serve
        self._listeners = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)]
        name = f"omq-spark/{role}/{os.getpid()}/{secrets.token_hex(8)}"
        found = addresses()
        try:
            self._listeners[0].bind(f"\0{name}")
            self.address = ProcessAddress(this_host(), name, found, self._listen(found))
        except OSError:
            self.close()
            raise
        for listener in self._listeners:
            listener.listen(BACKLOG)
            threading.Thread(target=self._accept, args=(listener,), name="omq-spark-accept", daemon=True).start()

    def _listen(self, found: tuple[str, ...]) -> int:
        """Binds a TCP listener, to the only address or to all; returns its port."""
        host = found[0] if os.environ.get("SPARK_LOCAL_IP") or found[0].startswith("127.") else ""
        family = socket.AF_INET6 if any(":" in one for one in found) else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, dualstack_ipv6=family == socket.AF_INET6)
        self._listeners.append(listener)
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket) -> None:
        newest: deque[Channel] = deque(maxlen=MAX_UNAUTHENTICATED)
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                if listener.fileno() < 0:
                    return
                threading.Event().wait(0.1)  # no descriptor is left; peers wait in the backlog
                continue
            if len(newest) == MAX_UNAUTHENTICATED and not newest[0].authenticated:
                newest[0].close()  # a peer with the secret authenticates quickly
            channel = Channel(sock)
            newest.append(channel)
            try:
                threading.Thread(target=self._admit, args=(channel,), name="omq-spark-serve", daemon=True).start()
            except RuntimeError:
                channel.close()  # no thread can be started; the peer retries

    def _admit(self, channel: Channel) -> None:
        try:
            channel.authenticate(self._secret, serves=True)
            self._serve(channel)
        except (OSError, EOFError, Unreachable):
            pass
        finally:
            channel.close()

    def close(self) -> None:
        """Stops listening."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in `_accept`
            listener.close()


def is_same_user(sock: socket.socket) -> bool:
    """Returns whether the peer of a Unix socket runs as this user: any user may bind an abstract name."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def connect(to: ProcessAddress, secret: bytes) -> Channel:
    """Returns a channel to a process.

    Raises:
        Unreachable: No process with the secret can be reached there.
    """
    targets: list[tuple[int, Any]] = [(socket.AF_UNIX, f"\0{to.name}")] if to.host == this_host() else []
    targets += [(socket.AF_INET6 if ":" in one else socket.AF_INET, (one, to.port)) for one in to.addresses]
    reasons = []
    refused = True
    for family, address in targets:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(HANDSHAKE_TIMEOUT_S)
        try:
            sock.connect(address)
            channel = Channel(sock)
            channel.authenticate(secret, serves=False)
        except (OSError, Unreachable) as error:
            sock.close()
            refused = refused and isinstance(error, ConnectionRefusedError)
            where = to.name if isinstance(address, str) else f"{address[0]}:{address[1]}"
            reasons.append(f"{where}: {error}")
            continue
        return channel
    raise Unreachable("; ".join(reasons), refused)
