"""Both ends of a bus, played by pyzmq and by bytes: what Goby's own processes do, frame by frame."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import zmq

REQUESTS = b"/goby::zeromq::_internal_manager_request/PROTOBUF/goby.zeromq.protobuf.ManagerRequest/"
RESPONSES = b"/goby::zeromq::_internal_manager_response/PROTOBUF/goby.zeromq.protobuf.ManagerResponse/"


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def request(kind: int, name: str, pid: int, ready: bool | None = None) -> bytes:
    """A ManagerRequest."""
    out = b"\x08" + varint(kind) + b"\x12" + varint(len(name)) + name.encode() + b"\x18" + varint(pid)
    return out if ready is None else out + b"\x20" + bytes([ready])


def response(kind: int, name: str, pid: int, *sockets: bytes, hold: bool | None = None) -> bytes:
    """A ManagerResponse; the sockets are those to publish and to subscribe."""
    out = request(kind, name, pid)
    for number, socket in enumerate(sockets, 4):
        out += bytes([number << 3 | 2]) + varint(len(socket)) + socket
    return out if hold is None else out + b"\x30" + bytes([hold])


def socket(kind: int, endpoint: str, hwm: int = 1000) -> bytes:
    """A Socket."""
    scheme, _, rest = endpoint.partition("://")
    out = bytes([8, kind])
    if scheme == "ipc":
        out += b"\x18\x02\x20\x01\x42" + varint(len(rest)) + rest.encode()
    else:
        out += b"\x18\x03\x20\x01\x38" + varint(int(rest.rpartition(":")[2]))
    return out + b"\x50" + varint(hwm) + b"\x58" + varint(hwm)


def fields(message: bytes) -> dict[int, list[Any]]:
    """The fields of a protobuf message that has numbers and bytes only."""
    found: dict[int, list[Any]] = {}
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            value |= (message[place] & 127) << shift
            place += 1
            shift += 7
            if not message[place - 1] & 128:
                return value

    while place < len(message):
        key = number()
        if key & 7 == 0:
            found.setdefault(key >> 3, []).append(number())
        else:
            assert key & 7 == 2
            size = number()
            found.setdefault(key >> 3, []).append(message[place : place + size])
            place += size
    return found


class Raw:
    """A pyzmq context that ends with its sockets."""

    def __init__(self) -> None:
        self.context = zmq.Context()

    def open(self, kind: int, endpoint: str | None = None, *, bind: str | None = None, **options: Any) -> Any:
        found = self.context.socket(kind)
        found.linger = 0
        found.rcvtimeo = 10_000
        for name, value in options.items():
            setattr(found, name, value)
        if bind is not None:
            found.bind(bind)
        if endpoint is not None:
            found.connect(endpoint)
        return found

    def close(self) -> None:
        self.context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RawClient(Raw):
    """A client as Goby's own: it asks, subscribes, and reports itself ready.

    Args:
        name: Its name.
        manager: Where the manager is.
        pid: The process id that it reports.
    """

    def __init__(self, name: str, manager: str, pid: int | None = None) -> None:
        super().__init__()
        self.name, self.pid = name, os.getpid() if pid is None else pid
        self.manager = self.open(zmq.REQ, manager)
        self.reply = fields(self.ask(request(1, name, self.pid)))
        host = manager.rpartition(":")[0]
        publish, subscribe = (self._endpoint(fields(self.reply[number][0]), host) for number in (4, 5))
        self.pub = self.open(zmq.PUB, publish)
        self.sub = self.open(zmq.SUB, subscribe)
        self.sub.subscribe(RESPONSES)

    @staticmethod
    def _endpoint(about: dict[int, list[Any]], host: str) -> str:
        return f"ipc://{about[8][0].decode()}" if about[3] == [2] else f"{host}:{about[7][0]}"

    def ask(self, frame: bytes) -> bytes:
        self.manager.send(frame)
        return bytes(self.manager.recv())

    def report_ready(self, ready: bool) -> None:
        """Asks for the hold's state, as a publication."""
        head = REQUESTS + b"%d/abc/\0" % self.pid
        self.pub.send(head + request(2, self.name, self.pid, ready))

    def held(self, ready: bool, timeout: float = 10.0) -> bool:
        """Asks every 100 ms until it is answered."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            self.report_ready(ready)
            while self.sub.poll(100):
                frame = self.sub.recv()
                if frame.startswith(RESPONSES):
                    found = fields(frame.partition(b"\0")[2])
                    if found[2] == [self.name.encode()] and found[3] == [self.pid]:
                        return found.get(6, [1]) == [1]
        raise AssertionError(f"{self.name} was not answered")

    def until_released(self, ready: bool = True, timeout: float = 10.0) -> None:
        end = time.monotonic() + timeout
        while self.held(ready):
            assert time.monotonic() < end, "the hold was not released"


class RawManager(Raw):
    """A manager and a router, as Goby's own: REP, PUB and SUB through a proxy of libzmq.

    Args:
        base: What the paths begin with; `None` for tcp.
        required: The required clients.
        port: tcp: the manager's port; `None` for any.

    Attributes:
        endpoint: Where the manager is.
        requests: What it was asked.
    """

    def __init__(self, base: str | None, required: tuple[str, ...] = (), port: int | None = None) -> None:
        super().__init__()
        tcp = base is None
        xpub, xsub = self.open(zmq.XPUB), self.open(zmq.XSUB)
        places = []
        for one, name in ((xsub, "xsub"), (xpub, "xpub")):
            one.bind("tcp://127.0.0.1:*" if tcp else f"ipc://{base}.{name}")
            places.append(one.last_endpoint.decode().rstrip("\0"))
        self._sockets = socket(1, places[0]), socket(2, places[1])
        rep = self.open(zmq.REP, bind=f"tcp://127.0.0.1:{port or '*'}" if tcp else f"ipc://{base}.manager")
        self.endpoint = rep.last_endpoint.decode().rstrip("\0")
        pub, sub = self.open(zmq.PUB, places[0]), self.open(zmq.SUB, places[1])
        sub.subscribe(REQUESTS)
        rep.rcvtimeo = sub.rcvtimeo = -1
        self.required, self.ready = set(required), set()
        self.requests: list[bytes] = []
        self.answering = True
        self._threads = [
            self._begin(lambda: zmq.proxy(xpub, xsub), xpub, xsub),
            self._begin(lambda: self._serve(rep, rep, lambda frame: frame, b""), rep),
            self._begin(
                lambda: self._serve(sub, pub, lambda frame: frame.partition(b"\0")[2], RESPONSES + b"1/0/\0"), sub, pub
            ),
        ]

    def _begin(self, run: Callable[[], Any], *sockets: Any) -> threading.Thread:
        def quiet() -> None:
            try:
                run()
            except zmq.ZMQError:
                pass  # the context has ended
            finally:
                for one in sockets:
                    one.close(linger=0)

        thread = threading.Thread(target=quiet, daemon=True)
        thread.start()
        return thread

    def _serve(self, source: Any, target: Any, payload: Callable[[bytes], bytes], head: bytes) -> None:
        while True:
            asked = fields(payload(source.recv()))
            self.requests.append(b"%d %s" % (asked[1][0], asked[2][0]))
            kind, name, pid = asked[1][0], asked[2][0].decode(), asked[3][0]
            if not self.answering:
                continue
            if kind == 2:
                if asked.get(4) == [1] and name in self.required:
                    self.ready.add(name)
                target.send(head + response(2, name, pid, hold=self.ready != self.required))
            else:
                target.send(head + response(1, name, pid, *self._sockets))

    def close(self) -> None:
        self.context.term()  # each thread closes what it uses
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
