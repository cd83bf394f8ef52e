"""The libraries behind one face: no call waits, and what it raises has one of a few names."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import zmq

import omq
import omq.asyncio
from omq.types import POLL_IN, POLL_OUT
from tests.support.socket_types import NUMBERED

SECONDS_TO_REDIAL = 0.02
BOUND = 10.0  # seconds that a call that does not wait may take in a loop

#: What a call that failed is called: `errno(3)` as libzmq uses it, in classes.
_ERRNOS = {
    errno.EAGAIN: "again",
    errno.EHOSTUNREACH: "unroutable",
    zmq.EFSM: "state",
    errno.ENOTSUP: "state",
    errno.EINVAL: "invalid",
    errno.ENOENT: "invalid",
    errno.EADDRINUSE: "address",
    errno.ECONNREFUSED: "refused",
}
_ERRORS: tuple[tuple[type[Exception], str], ...] = (
    (omq.Timeout, "again"),
    (omq.UnroutableError, "unroutable"),
    (omq.StateError, "state"),
    (omq.BindError, "address"),
    (omq.UsageError, "invalid"),
)


class Held(Protocol):
    """A socket of some library."""

    def bind(self, endpoint: str) -> None: ...
    def unbind(self, endpoint: str) -> None: ...
    def connect(self, endpoint: str) -> None: ...
    def disconnect(self, endpoint: str) -> None: ...
    def send(self, *parts: bytes) -> None: ...
    def recv(self) -> list[bytes]: ...
    def subscribe(self, prefix: bytes) -> None: ...
    def unsubscribe(self, prefix: bytes) -> None: ...
    def set(self, option: str, value: Any) -> None: ...
    def close(self, linger: float) -> None: ...
    def events(self) -> int:
        """`POLL_IN` and `POLL_OUT`, as they are now."""


class Library(Protocol):
    """Opens sockets that meet each other over inproc.

    Attributes:
        attendants: The native ids of the threads that run because a call is made, and not because something goes on.
    """

    attendants: frozenset[int]

    def open(self, kind: str, options: dict[str, Any], redials: bool) -> Held: ...
    def close(self) -> None: ...


def judge(error: Exception) -> str:
    """The class of what a call raised.

    Raises:
        Exception: It has no class: it is a fault, not an answer of a library.
    """
    if isinstance(error, zmq.ZMQError) and error.errno in _ERRNOS:
        return _ERRNOS[error.errno]
    for kind, name in _ERRORS:
        if isinstance(error, kind):
            return name
    raise error


# ---------------------------------------------------------------------- libzmq


class Libzmq:
    """Real libzmq, through pyzmq."""

    attendants: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket] = []

    def open(self, kind: str, options: dict[str, Any], redials: bool) -> Held:
        socket = self._context.socket(getattr(zmq, kind))
        self._sockets.append(socket)
        socket.linger = 0
        socket.reconnect_ivl = int(SECONDS_TO_REDIAL * 1000) if redials else -1
        held = LibzmqSocket(socket)
        for name, value in options.items():
            held.set(name, value)
        return held

    def close(self) -> None:
        for socket in self._sockets:
            if not socket.closed:
                socket.close(linger=0)
        self._context.term()


#: Where libzmq's name is another than the option's own in capitals (docs/reference/options.md).
_OPTIONS = {
    "send_hwm": "SNDHWM",
    "recv_hwm": "RCVHWM",
    "identity": "ROUTING_ID",
    "xpub_welcome_message": "XPUB_WELCOME_MSG",
}


class LibzmqSocket:
    """One socket of libzmq."""

    def __init__(self, socket: zmq.Socket) -> None:
        self._socket = socket

    def bind(self, endpoint: str) -> None:
        self._socket.bind(endpoint)

    def unbind(self, endpoint: str) -> None:
        self._socket.unbind(endpoint)

    def connect(self, endpoint: str) -> None:
        self._socket.connect(endpoint)

    def disconnect(self, endpoint: str) -> None:
        self._socket.disconnect(endpoint)

    def send(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts, zmq.DONTWAIT)

    def recv(self) -> list[bytes]:
        return self._socket.recv_multipart(zmq.DONTWAIT)

    def subscribe(self, prefix: bytes) -> None:
        self._socket.setsockopt(zmq.SUBSCRIBE, prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        self._socket.setsockopt(zmq.UNSUBSCRIBE, prefix)

    def set(self, option: str, value: Any) -> None:
        number = getattr(zmq, _OPTIONS.get(option, option.upper()))
        if option == "linger":
            value *= 1000  # seconds are omq's
        self._socket.setsockopt(number, value if isinstance(value, bytes) else int(value))

    def close(self, linger: float) -> None:
        self._socket.close(linger=int(linger * 1000))

    def events(self) -> int:
        ready = self._socket.getsockopt(zmq.EVENTS)
        return (POLL_IN if ready & zmq.POLLIN else 0) | (POLL_OUT if ready & zmq.POLLOUT else 0)


# ---------------------------------------------------------------------- omq


def _usual(redials: bool) -> dict[str, Any]:
    return {"linger": 0, "reconnect_interval": SECONDS_TO_REDIAL if redials else None}


_NUMBER = 4  # octets of a peer's number as a part


def _to_send(kind: str, parts: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], dict[str, Any]]:
    """The parts, and the keyword that stands before them as a part."""
    if kind in NUMBERED:
        return parts[1:], {"routing_id": int.from_bytes(parts[0], "big")}
    return (parts[1:], {"group": parts[0]}) if kind == "RADIO" else (parts, {})


def _to_recv(kind: str) -> str:
    """The call that receives a whole message, with its route where there is one."""
    return "recv_message" if kind in NUMBERED or kind == "DISH" else "recv_multipart"


def _received(message: Any) -> list[bytes]:
    """The parts, after the route."""
    if not isinstance(message, omq.Message):
        return list(message)
    if message.routing_id is None:
        return [message.group.encode(), *message.parts]
    return [message.routing_id.to_bytes(_NUMBER, "big"), *message.parts]


class Omq:
    """The blocking twin."""

    attendants: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self._context = omq.Context()
        self._leaving: list[threading.Thread] = []

    def open(self, kind: str, options: dict[str, Any], redials: bool) -> Held:
        socket = getattr(omq, kind)(self._context, **_usual(redials) | options)
        return OmqSocket(kind, socket, self._leaving)

    def close(self) -> None:
        self._context.term(linger=0)
        for thread in self._leaving:
            thread.join()


class OmqSocket:
    """One socket of the blocking twin."""

    def __init__(self, kind: str, socket: Any, leaving: list[threading.Thread]) -> None:
        self._kind = kind
        self._socket = socket
        self._leaving = leaving

    def bind(self, endpoint: str) -> None:
        self._socket.bind(endpoint)

    def unbind(self, endpoint: str) -> None:
        self._socket.unbind(endpoint)

    def connect(self, endpoint: str) -> None:
        self._socket.connect(endpoint)

    def disconnect(self, endpoint: str) -> None:
        self._socket.disconnect(endpoint)

    def send(self, *parts: bytes) -> None:
        rest, route = _to_send(self._kind, parts)
        self._socket.send_multipart(rest, timeout=0, **route)

    def recv(self) -> list[bytes]:
        return _received(getattr(self._socket, _to_recv(self._kind))(timeout=0))

    def subscribe(self, prefix: bytes) -> None:
        (self._socket.join if self._kind == "DISH" else self._socket.subscribe)(prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        (self._socket.leave if self._kind == "DISH" else self._socket.unsubscribe)(prefix)

    def set(self, option: str, value: Any) -> None:
        self._socket.set_options(**{option: value})

    def close(self, linger: float) -> None:
        # libzmq lingers in the background, omq in the call.
        if linger:
            self._leaving.append(threading.Thread(target=self._socket.close, args=[linger]))
            self._leaving[-1].start()
        else:
            self._socket.close(0)

    def events(self) -> int:
        return int(self._socket.poll(0, POLL_IN | POLL_OUT))


# ---------------------------------------------------------------------- omq.asyncio


class OmqAsyncio:
    """The asyncio twin, in a loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self._context = omq.Context()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.attendants = frozenset([self.run(threading.get_native_id)])
        self._sockets: list[OmqAsyncioSocket] = []

    def run(self, call: Callable[[], Any]) -> Any:
        """Makes a call in the loop, and awaits what it gives if that has to be awaited."""

        async def within() -> Any:
            given = call()
            return await given if isinstance(given, Awaitable) else given

        return asyncio.run_coroutine_threadsafe(within(), self._loop).result(BOUND)

    def begin(self, call: Callable[[], Any]) -> None:
        """Has the loop make a call that may take its time."""
        self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(call(), loop=self._loop))

    def open(self, kind: str, options: dict[str, Any], redials: bool) -> Held:
        make = getattr(omq.asyncio, kind)
        socket = self.run(lambda: make(self._context, **_usual(redials) | options))
        self._sockets.append(OmqAsyncioSocket(kind, self, socket))
        return self._sockets[-1]

    def close(self) -> None:
        for socket in self._sockets:
            socket.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._context.term(linger=0)


class OmqAsyncioSocket:
    """One socket of the asyncio twin."""

    def __init__(self, kind: str, library: OmqAsyncio, socket: Any) -> None:
        self._kind = kind
        self._run, self._begin = library.run, library.begin
        self._socket = socket

    def bind(self, endpoint: str) -> None:
        self._run(lambda: self._socket.bind(endpoint))

    def unbind(self, endpoint: str) -> None:
        self._run(lambda: self._socket.unbind(endpoint))

    def connect(self, endpoint: str) -> None:
        self._run(lambda: self._socket.connect(endpoint))

    def disconnect(self, endpoint: str) -> None:
        self._run(lambda: self._socket.disconnect(endpoint))

    def send(self, *parts: bytes) -> None:
        rest, route = _to_send(self._kind, parts)
        self._run(lambda: self._socket.send_multipart(rest, timeout=0, **route))

    def recv(self) -> list[bytes]:
        return _received(self._run(lambda: getattr(self._socket, _to_recv(self._kind))(timeout=0)))

    def subscribe(self, prefix: bytes) -> None:
        self._run(lambda: (self._socket.join if self._kind == "DISH" else self._socket.subscribe)(prefix))

    def unsubscribe(self, prefix: bytes) -> None:
        self._run(lambda: (self._socket.leave if self._kind == "DISH" else self._socket.unsubscribe)(prefix))

    def set(self, option: str, value: Any) -> None:
        self._run(lambda: self._socket.set_options(**{option: value}))

    def close(self, linger: float) -> None:
        if linger:
            self._begin(lambda: self._socket.close(linger))
        else:
            self._run(lambda: self._socket.close(0))

    def stop(self) -> None:
        self._run(self._socket.stop)

    def events(self) -> int:
        return int(self._run(lambda: self._socket.poll(0, POLL_IN | POLL_OUT)))


LIBRARIES: dict[str, Callable[[], Library]] = {"libzmq": Libzmq, "omq": Omq, "omq.asyncio": OmqAsyncio}
