"""Connections between the processes of one stream: each side proves that it knows the stream's secret.

Messages are JSON, with bytes and descriptors beside them. The secret comes from the driver with each partition; a
stranger who finds a port or a name learns nothing, and is heard no further than his first line.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import omq
from omq.unpatched import socket, threading

NONCE: Final = 32  # bytes
PATIENCE: Final = 5.0  # seconds that a stranger has to prove himself, and that reaching a place may take
SILENCE: Final = 15.0  # seconds after which a line on which nothing comes is taken for broken
FROZEN: Final = 45.0  # seconds after which a process that says nothing is taken for dead
BACKLOG: Final = 128
STRANGERS: Final = 64  # that may be proving themselves at once; of more the oldest is sent away
MOST: Final = 64 << 20  # bytes of a message without what stands beside it; only who has proved himself sends any
VANISHED: Final = 600.0  # seconds after which one that takes nothing of what is sent is taken for dead
_LENGTH: Final = struct.Struct(">I")


class Unreachable(omq.OmqError):
    """Nobody who knows the secret is there."""


@dataclass(frozen=True)
class Place:
    """Where a process can be reached.

    Attributes:
        host: What this and no other network namespace of this and no other machine is called.
        name: Its name among the abstract Unix sockets there.
        addresses: The addresses that other hosts may know it by.
        port: Its port there.
    """

    host: str
    name: str
    addresses: tuple[str, ...] = ()
    port: int = 0

    def told(self) -> dict[str, Any]:
        """For a message."""
        return {"host": self.host, "name": self.name, "addresses": list(self.addresses), "port": self.port}

    @classmethod
    def heard(cls, told: dict[str, Any]) -> Place:
        """From a message."""
        return cls(told["host"], told["name"], tuple(told["addresses"]), told["port"])


def this_host() -> str:
    """What `Place.host` is here: the boot of the machine, and the network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"


def addresses() -> tuple[str, ...]:
    """The addresses of this host that others may know: `SPARK_LOCAL_IP`, if it is set, or all but loopback's."""
    chosen = os.environ.get("SPARK_LOCAL_IP")
    if chosen:
        with contextlib.suppress(OSError):
            return (str(socket.getaddrinfo(chosen, None)[0][4][0]),)
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                found.append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, _, _, scope, *_ = line.split()
            if scope == "00":  # global
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return tuple(one for one in found if not one.startswith("127.")) or ("127.0.0.1",)


class Channel:
    """A connection to somebody who has proved himself, or is about to.

    Sending is for any thread, receiving for one.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._sending = threading.Lock()
        self._local = sock.family == socket.AF_UNIX
        if not self._local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A host that has gone without a word is noticed.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3)):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    @property
    def local(self) -> bool:
        """Whether descriptors can be sent."""
        return self._local

    def watch(self, seconds: float = SILENCE) -> None:
        """Ends a connection whose other side has not taken what was sent.

        Args:
            seconds: For how long; `SILENCE` is for one that always reads.
        """
        if not self._local:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))

    def prove(self, secret: bytes, serves: bool) -> None:
        """Proves to the other side that we know the secret, and has it do the same.

        Raises:
            Unreachable: It does not know the secret, or says nothing.
        """
        ours = secrets.token_bytes(NONCE)
        self.sock.settimeout(PATIENCE)
        try:
            self.sock.sendall(ours)
            theirs = self._exactly(NONCE)
            both = ours + theirs if serves else theirs + ours
            if serves:
                # Who comes speaks first: nothing is said to a stranger.
                if not hmac.compare_digest(self._exactly(NONCE), _proof(secret, b"comes", both)):
                    raise Unreachable("a stranger")
                self.sock.sendall(_proof(secret, b"serves", both))
            else:
                self.sock.sendall(_proof(secret, b"comes", both))
                if not hmac.compare_digest(self._exactly(NONCE), _proof(secret, b"serves", both)):
                    raise Unreachable("a stranger")
        except (OSError, EOFError) as error:
            raise Unreachable(f"no answer: {error}") from error
        self.sock.settimeout(None)

    def send(self, message: dict[str, Any], beside: Sequence[Any] = (), descriptors: Sequence[int] = ()) -> None:
        """Sends a message, with bytes and, on the same host, descriptors beside it.

        Raises:
            StateError: It has more bytes than the other side would take.
        """
        views = [memoryview(one).cast("B") for one in beside]
        if views:
            message = {**message, "beside": [len(view) for view in views]}
        body = json.dumps(message).encode()
        if len(body) > MOST:
            raise omq.StateError(f"{len(body)} bytes of options or partitions, where a stream can have {MOST}")
        head = _LENGTH.pack(len(body)) + body
        with self._sending:
            if descriptors:
                # They come with the first octet.
                sent = socket.send_fds(self.sock, [head], list(descriptors))
                head = head[sent:]
            self.sock.sendall(head)
            for view in views:
                self.sock.sendall(view)

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message, without what stands beside it, and the descriptors that came with it.

        Raises:
            EOFError: The other side has gone.
        """
        descriptors: list[int] = []
        if self._local:
            first, descriptors, _, _ = socket.recv_fds(self.sock, 1, 8, socket.MSG_CMSG_CLOEXEC)
            if not first:
                raise EOFError("the other side has gone")
            first += self._exactly(_LENGTH.size - 1)
        else:
            first = self._exactly(_LENGTH.size)
        (length,) = _LENGTH.unpack(first)
        if length > MOST:
            raise omq.RemoteProtocolError(f"a message of {length} bytes, where {MOST} are the most")
        found = json.loads(self._exactly(length))
        assert isinstance(found, dict)
        return found, list(descriptors)

    def hear(self) -> dict[str, Any]:
        """The next message, with which no descriptors come."""
        return self.receive()[0]

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a message and gives the next one that comes."""
        self.send(message)
        return self.hear()

    def beside(self, size: int) -> bytearray:
        """Bytes that stand beside the message that was received."""
        found = bytearray(size)
        with memoryview(found) as view:
            self._fill(view)
        return found

    def close(self) -> None:
        """Closes the connection, and wakes who waits for it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _exactly(self, size: int) -> bytes:
        return bytes(self.beside(size))

    def _fill(self, view: memoryview) -> None:
        at = 0
        while at < len(view):
            got = self.sock.recv_into(view[at:], 0, socket.MSG_WAITALL)
            if not got:
                raise EOFError("the other side has gone")
            at += got


def _proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, role + nonces, "sha256")


class Server:
    """Listens, and has those served who know the secret, each in a thread.

    Args:
        name: The name among this host's abstract Unix sockets.
        secret: The secret.
        serve: Serves one; the channel is closed behind it.
        port: The port, if others are to find it at one that they know; 0 for any.

    Raises:
        OSError: Another process has the name.
    """

    def __init__(self, name: str, secret: bytes, serve: Callable[[Channel], None], port: int = 0) -> None:
        self._secret = secret
        self._serve = serve
        self._strangers: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        self._listeners = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)]
        found = addresses()
        try:
            self._listeners[0].bind(f"\0{name}")
            port = self._listen(found, port)
        except OSError:
            self.close()
            raise
        self.place = Place(this_host(), name, found, port)
        for listener in self._listeners:
            listener.listen(BACKLOG)
            threading.Thread(target=self._accept, args=(listener,), name="omq-spark-accept", daemon=True).start()

    def _listen(self, found: tuple[str, ...], port: int) -> int:
        """Listens on addresses of this host; gives the port."""
        where = found[0] if os.environ.get("SPARK_LOCAL_IP") or found[0].startswith("127.") else ""
        family = socket.AF_INET6 if any(":" in one for one in found) else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        self._listeners.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not where:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((where, port))
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket) -> None:
        for sock in accepted(listener):
            with self._lock:
                self._strangers[sock] = None
                # Who knows the secret has long proved it: the oldest of too many strangers goes.
                oldest = next(iter(self._strangers)) if len(self._strangers) > STRANGERS else None
            if oldest is not None:
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            if not in_a_thread(self._admit, sock):
                with self._lock:
                    self._strangers.pop(sock, None)

    def _admit(self, sock: socket.socket) -> None:
        channel = Channel(sock)
        try:
            try:
                if channel.local and not is_ours(sock):
                    return
                channel.prove(self._secret, serves=True)
            except Unreachable:
                return
            finally:
                with self._lock:
                    self._strangers.pop(sock, None)
            with contextlib.suppress(OSError, EOFError):
                self._serve(channel)
        finally:
            channel.close()

    def close(self) -> None:
        """Stops listening."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
            listener.close()


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Those who come, until the listener is closed."""
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            if listener.fileno() < 0:
                return
            threading.Event().wait(0.1)  # no descriptor is left; those who come wait until one is
            continue
        yield sock


def in_a_thread(serve: Callable[[socket.socket], None], sock: socket.socket) -> bool:
    """Has one who came served in a thread; one for whom no thread can be had is sent away, and comes again."""
    try:
        threading.Thread(target=serve, args=(sock,), name="omq-spark-serve", daemon=True).start()
    except RuntimeError:
        sock.close()
        return False
    return True


def is_ours(sock: socket.socket) -> bool:
    """Whether the process on the other side of a Unix socket runs as our user: anybody may use an abstract name."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def reach(place: Place, secret: bytes) -> Channel:
    """A channel to a place.

    Raises:
        Unreachable: Nobody is there who knows the secret.
    """
    reasons = []
    for family, address in _ways(place):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(PATIENCE)
        try:
            sock.connect(address)
            channel = Channel(sock)
            channel.prove(secret, serves=False)
        except (OSError, Unreachable) as error:
            sock.close()
            reasons.append(f"{_shown(address)}: {error}")
            continue
        return channel
    raise Unreachable("; ".join(reasons))


def _ways(place: Place) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    if place.host == this_host():
        found.append((socket.AF_UNIX, f"\0{place.name}"))
    found += [(socket.AF_INET6 if ":" in one else socket.AF_INET, (one, place.port)) for one in place.addresses]
    return found


def _shown(address: Any) -> str:
    return str(address[1:]) if isinstance(address, str) else f"{address[0]}:{address[1]}"
