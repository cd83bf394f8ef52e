"""The ways to take messages: each gives what one call gave, and nothing when it was in vain."""

from __future__ import annotations

import array
import itertools
import selectors
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import zmq

import omq
from tests.liveness.scenarios import SUBSCRIPTIONS
from tests.support.socket_types import SENDER, options_of

CALL_TIMEOUT_S = 0.25  # seconds that one call waits: after that its owner looks whether all is over
ROOM = 256  # bytes of a message, at most
SEVERAL = ("ROUTER",)  # kinds whose messages have several parts


def taker(sock: Any) -> Callable[..., Any]:
    """`recv`, or what stands for it where messages have several parts."""
    return sock.recv_multipart if type(sock).__name__ in SEVERAL else sock.recv  # type: ignore[no-any-return]


def _one(call: Callable[..., Any], **timeout: float) -> Sequence[Any]:
    try:
        return (call(**timeout),)
    except omq.ReceiveTimeout:
        return ()


def recv(sock: Any, _: int) -> Iterator[Sequence[Any]]:
    while True:
        yield _one(sock.recv)


def recv_multipart(sock: Any, _: int) -> Iterator[Sequence[Any]]:
    while True:
        yield _one(sock.recv_multipart)


def recv_many(sock: Any, limit: int) -> Iterator[Sequence[Any]]:
    while True:
        try:
            yield sock.recv_many(limit)
        except omq.ReceiveTimeout:
            yield ()


def recv_into(sock: Any, _: int) -> Iterator[Sequence[Any]]:
    buffer = bytearray(ROOM)
    while True:
        yield [bytes(buffer[:size]) for size in _one(lambda: sock.recv_into(buffer))]


def recv_columns(sock: Any, limit: int) -> Iterator[Sequence[Any]]:
    data, ends = bytearray(ROOM * limit), array.array("i", bytes(4 * limit))
    while True:
        count = sum(_one(lambda: sock.recv_columns(data, ends)))
        borders = [0, *ends[:count]]
        yield [bytes(data[a:b]) for a, b in itertools.pairwise(borders)]


def iteration(sock: Any, _: int) -> Iterator[Sequence[Any]]:
    while True:
        try:
            for message in sock:
                yield (message,)
        except omq.ReceiveTimeout:
            yield ()


def poll(sock: Any, _: int) -> Iterator[Sequence[Any]]:
    take = taker(sock)
    while True:
        yield _one(take, timeout=0) if sock.poll(CALL_TIMEOUT_S) else ()


def wait(sock: Any, _: int) -> Iterator[Sequence[Any]]:
    take = taker(sock)
    while True:
        yield _one(take, timeout=0) if omq.wait([sock], CALL_TIMEOUT_S) else ()


def fileno(sock: Any, _: int) -> Iterator[Sequence[Any]]:
    take = taker(sock)
    with selectors.DefaultSelector() as selector:
        selector.register(sock.fileno(), selectors.EVENT_READ)
        while True:
            yield _one(take, timeout=0) if selector.select(CALL_TIMEOUT_S) else ()


BLOCKING: dict[str, Callable[[Any, int], Iterator[Sequence[Any]]]] = {
    "recv": recv,
    "recv_multipart": recv_multipart,
    "recv_many": recv_many,
    "recv_into": recv_into,
    "recv_columns": recv_columns,
    "for": iteration,
    "poll": poll,
    "wait": wait,
    "fileno": fileno,
}


async def await_recv(sock: Any, _: int) -> AsyncIterator[Sequence[Any]]:
    while True:
        try:
            yield (await sock.recv(),)
        except omq.ReceiveTimeout:
            yield ()


async def await_recv_multipart(sock: Any, _: int) -> AsyncIterator[Sequence[Any]]:
    while True:
        try:
            yield (await sock.recv_multipart(),)
        except omq.ReceiveTimeout:
            yield ()


async def await_recv_many(sock: Any, limit: int) -> AsyncIterator[Sequence[Any]]:
    while True:
        try:
            yield await sock.recv_many(limit)
        except omq.ReceiveTimeout:
            yield ()


async def async_for(sock: Any, _: int) -> AsyncIterator[Sequence[Any]]:
    while True:
        try:
            async for message in sock:
                yield (message,)
        except omq.ReceiveTimeout:
            yield ()


async def await_poll(sock: Any, _: int) -> AsyncIterator[Sequence[Any]]:
    take = taker(sock)
    while True:
        try:
            yield (await take(timeout=0),) if await sock.poll(CALL_TIMEOUT_S) else ()
        except omq.ReceiveTimeout:
            yield ()


ASYNCIO: dict[str, Callable[[Any, int], AsyncIterator[Sequence[Any]]]] = {
    "await recv": await_recv,
    "await recv_multipart": await_recv_multipart,
    "await recv_many": await_recv_many,
    "async for": async_for,
    "await poll": await_poll,
}


def libzmq(sock: Any, _: int) -> Iterator[Sequence[Any]]:
    """libzmq's one way, for comparison."""
    while True:
        try:
            yield (sock.recv_multipart(),)
        except zmq.Again:
            yield ()


def socket_of(library: Any, kind: str, hwm: int, **options: Any) -> Any:
    """A socket of either twin, bound."""
    name = "XPUB" if kind == SUBSCRIPTIONS else kind
    if name == "SUB":
        options["subscribe"] = b""
    options.update(options_of(name, SENDER.get(name, "")))
    sock = getattr(library, name)(recv_hwm=hwm, recv_timeout=CALL_TIMEOUT_S, linger=0, **options)
    sock.bind("tcp://127.0.0.1:*")
    if name == "XSUB":
        sock.subscribe(b"")
    return sock


def libzmq_socket(context: Any, kind: str, hwm: int) -> Any:
    """libzmq's socket, bound."""
    name = "XPUB" if kind == SUBSCRIPTIONS else kind
    sock = context.socket(getattr(zmq, name))
    sock.rcvhwm, sock.linger, sock.rcvtimeo = hwm, 0, int(CALL_TIMEOUT_S * 1000)
    if name == "SUB":
        sock.subscribe(b"")
    sock.bind("tcp://127.0.0.1:*")
    if name == "XSUB":
        sock.send(b"\1")
    return sock
