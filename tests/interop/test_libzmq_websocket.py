"""WebSockets with a libzmq that has them. pyzmq's wheels bring one without: OMQ_LIBZMQ names another shared library.

It is built in two minutes: `cmake -DENABLE_WS=ON -DENABLE_DRAFTS=ON -DWITH_TLS=OFF ..` in a checkout of libzmq.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

import pytest

import omq
from tests.support.waits import BOUND, until

LIBRARY = os.environ.get("OMQ_LIBZMQ")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LIBRARY, reason="OMQ_LIBZMQ names no libzmq with WebSockets"),
]

TYPES = {"PAIR": 0, "PUB": 1, "SUB": 2, "REQ": 3, "REP": 4, "DEALER": 5, "ROUTER": 6, "PULL": 7, "PUSH": 8}
TYPES |= {"XPUB": 9, "XSUB": 10, "SERVER": 12, "CLIENT": 13, "RADIO": 14, "DISH": 15, "GATHER": 16, "SCATTER": 17}
SUBSCRIBE, LINGER, RCVTIMEO, SNDTIMEO, LAST_ENDPOINT, SNDMORE = 6, 17, 27, 28, 32, 2
PLAIN_USERNAME, PLAIN_PASSWORD, HEARTBEAT_IVL, HEARTBEAT_TIMEOUT = 45, 46, 75, 77
SIZES = [0, 1, 124, 125, 126, 255, 256, 65534, 65535, 65536, 1 << 20]
WS = "ws://127.0.0.1:*/at"


class Library:
    """A libzmq, by ctypes."""

    def __init__(self) -> None:
        self.calls: Any = ctypes.CDLL(str(LIBRARY), use_errno=True)
        for name in ("zmq_ctx_new", "zmq_socket"):
            getattr(self.calls, name).restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.calls.zmq_ctx_new())
        self.made: list[Other] = []

    def __call__(self, kind: str) -> Other:
        self.made.append(Other(self, kind))
        return self.made[-1]

    def close(self) -> None:
        for socket in self.made:
            self.calls.zmq_close(socket.handle)
        self.calls.zmq_ctx_term(self.context)


class Other:
    """One of its sockets."""

    def __init__(self, library: Library, kind: str) -> None:
        self.calls = library.calls
        self.handle = ctypes.c_void_p(self.calls.zmq_socket(library.context, TYPES[kind]))
        self.set(LINGER, 0)
        self.set(RCVTIMEO, int(BOUND * 1000))
        self.set(SNDTIMEO, int(BOUND * 1000))

    def check(self, result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    def set(self, option: int, value: int | bytes) -> None:
        data = value if isinstance(value, bytes) else value.to_bytes(4, "little", signed=True)
        self.check(self.calls.zmq_setsockopt(self.handle, option, data, len(data)))

    def bind(self, endpoint: str) -> str:
        self.check(self.calls.zmq_bind(self.handle, endpoint.encode()))
        text = ctypes.create_string_buffer(256)
        self.check(self.calls.zmq_getsockopt(self.handle, LAST_ENDPOINT, text, ctypes.byref(ctypes.c_size_t(256))))
        return text.value.decode()

    def connect(self, endpoint: str) -> None:
        self.check(self.calls.zmq_connect(self.handle, endpoint.encode()))

    def send(self, *parts: bytes) -> None:
        for place, part in enumerate(parts, 1):
            self.check(self.calls.zmq_send(self.handle, part, len(part), SNDMORE if place < len(parts) else 0))

    def recv(self, size: int = 2 << 20) -> bytes:
        data = ctypes.create_string_buffer(size)
        got = self.check(self.calls.zmq_recv(self.handle, data, size, 0))
        return data.raw[:got]


@pytest.fixture
def libzmq() -> Iterator[Library]:
    library = Library()
    try:
        yield library
    finally:
        library.close()


def join(ours: Any, theirs: Other, binder: str) -> None:
    if binder == "ours":
        ours.bind(WS)
        theirs.connect(ours.endpoints[0])
    else:
        ours.connect(theirs.bind(WS))


binder = pytest.mark.parametrize("binder", ["ours", "theirs"])


@binder
def test_messages_of_every_size_both_ways(libzmq: Library, binder: str) -> None:
    with omq.PAIR() as ours:
        theirs = libzmq("PAIR")
        join(ours, theirs, binder)
        for size in SIZES:
            body = os.urandom(size)
            ours.send_multipart([b"first", body], timeout=BOUND)
            assert (theirs.recv(), theirs.recv()) == (b"first", body)
            theirs.send(b"first", body)
            assert ours.recv_multipart(timeout=BOUND) == [b"first", body]


@binder
@pytest.mark.parametrize(("our_kind", "their_kind"), [("REP", "REQ"), ("REQ", "REP"), ("CLIENT", "SERVER")])
def test_requests(libzmq: Library, our_kind: str, their_kind: str, binder: str) -> None:
    with getattr(omq, our_kind)() as ours:
        theirs = libzmq(their_kind)
        join(ours, theirs, binder)
        if our_kind == "REP":
            theirs.send(b"question")
            assert ours.recv(timeout=BOUND) == b"question"
            ours.send(b"answer")
            assert theirs.recv() == b"answer"
        else:
            ours.send(b"question", timeout=BOUND)
            assert theirs.recv() == b"question"


@binder
@pytest.mark.parametrize(("our_kind", "their_kind"), [("PUSH", "PULL"), ("DEALER", "DEALER"), ("SCATTER", "GATHER")])
def test_a_stream_of_messages(libzmq: Library, our_kind: str, their_kind: str, binder: str) -> None:
    with getattr(omq, our_kind)(linger=BOUND) as ours:
        theirs = libzmq(their_kind)
        join(ours, theirs, binder)
        for number in range(900):
            ours.send(b"%d" % number, timeout=BOUND)
        assert [theirs.recv(64) for _ in range(900)] == [b"%d" % number for number in range(900)]


@pytest.mark.parametrize("our_kind", ["PUB", "XPUB"])
@pytest.mark.parametrize("their_kind", ["SUB", "XSUB"])
def test_subscriptions_of_libzmq(libzmq: Library, our_kind: str, their_kind: str) -> None:
    with getattr(omq, our_kind)() as ours:
        theirs = libzmq(their_kind)
        join(ours, theirs, "ours")
        if their_kind == "SUB":
            theirs.set(SUBSCRIBE, b"top")
        else:
            theirs.send(b"\1top")
        ours.wait_subscribed(b"top", timeout=BOUND)
        ours.send(b"other")
        ours.send(b"topic")
        assert theirs.recv() == b"topic"


@pytest.mark.parametrize("our_kind", ["SUB", "XSUB"])
def test_our_subscriptions(libzmq: Library, our_kind: str) -> None:
    with getattr(omq, our_kind)() as ours:
        theirs = libzmq("XPUB")
        join(ours, theirs, "theirs")
        ours.subscribe(b"top")
        assert theirs.recv() == b"\1top"
        theirs.send(b"topic")
        assert ours.recv(timeout=BOUND) == b"topic"
        ours.unsubscribe(b"top")
        assert theirs.recv() == b"\0top"


def test_heartbeats_of_libzmq_and_omq(libzmq: Library) -> None:
    with omq.PULL(heartbeat_interval=0.05, heartbeat_timeout=BOUND) as ours:
        theirs = libzmq("PUSH")
        theirs.set(HEARTBEAT_IVL, 50)
        theirs.set(HEARTBEAT_TIMEOUT, 500)
        join(ours, theirs, "ours")
        until(lambda: len(ours.peers) == 1)
        since, before = ours.peers[0].since, ours.peers[0].bytes_in
        until(lambda: ours.peers[0].bytes_in > before + 200)
        theirs.send(b"alive")
        assert ours.recv(timeout=BOUND) == b"alive"
        assert ours.peers[0].since == since


def test_plain(libzmq: Library) -> None:
    with omq.PULL(security=omq.PlainServer({"ada": "pw"})) as ours:
        theirs = libzmq("PUSH")
        theirs.set(PLAIN_USERNAME, b"ada")
        theirs.set(PLAIN_PASSWORD, b"pw")
        join(ours, theirs, "ours")
        theirs.send(b"let in")
        assert ours.recv(timeout=BOUND) == b"let in"


def test_each_side_closes_and_loses_nothing(libzmq: Library) -> None:
    theirs = libzmq("PULL")
    endpoint = theirs.bind(WS)
    for _ in range(20):
        with omq.PUSH(connect=endpoint, linger=BOUND) as ours:
            ours.send(bytes(100_000), timeout=BOUND)
        assert theirs.recv() == bytes(100_000)
    with omq.PULL(bind=WS) as ours:
        for _ in range(20):
            sender = libzmq("PUSH")
            sender.set(LINGER, int(BOUND * 1000))
            sender.connect(ours.endpoints[0])
            sender.send(bytes(100_000))
            libzmq.made.remove(sender)
            sender.check(sender.calls.zmq_close(sender.handle))
            assert ours.recv(timeout=BOUND) == bytes(100_000)


def test_groups(libzmq: Library) -> None:
    with omq.RADIO() as ours:
        theirs = libzmq("DISH")
        join(ours, theirs, "ours")
        theirs.check(theirs.calls.zmq_join(theirs.handle, b"news"))
        ours.wait_subscribed("news", timeout=BOUND)
        ours.send(b"headlines", group="news")
        assert theirs.recv() == b"headlines"
