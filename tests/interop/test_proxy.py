"""omq's proxy between libzmq's sockets: what passes through libzmq's own passes through ours."""

from __future__ import annotations

import contextlib
import functools
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

import omq
from tests.support.waits import BOUND, until

TCP = "tcp://127.0.0.1:*"


class Around:
    """A proxy that runs in a thread, and libzmq's sockets around it."""

    def __init__(self, front: type[omq.Socket], back: type[omq.Socket], **options: Any) -> None:
        self._context, self._theirs = omq.Context(), zmq.Context()
        self.front, self.back = (kind(self._context, bind=TCP, **options) for kind in (front, back))
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._sockets: list[zmq.Socket[bytes]] = []
        self._control = omq.REP(self._context, bind=TCP)
        self.steer = self.open("REQ", self._control.endpoints[0])
        self._proxy = self.start(lambda: omq.proxy(self.front, self.back, control=self._control))

    def open(self, kind: str, endpoint: str, **options: Any) -> zmq.Socket[bytes]:
        """A socket of libzmq's that connects."""
        socket: zmq.Socket[bytes] = self._theirs.socket(getattr(zmq, kind))
        socket.linger, socket.rcvtimeo, socket.sndtimeo = 0, int(BOUND * 1000), int(BOUND * 1000)
        for name, value in options.items():
            socket.setsockopt(getattr(zmq, name.upper()), value)
        socket.connect(endpoint)
        self._sockets.append(socket)
        return socket

    def client(self, kind: str, **options: Any) -> zmq.Socket[bytes]:
        """A peer of the frontend."""
        return self.open(kind, self.front.endpoints[0], **options)

    def server(self, kind: str, **options: Any) -> zmq.Socket[bytes]:
        """A peer of the backend."""
        return self.open(kind, self.back.endpoints[0], **options)

    def start(self, work: Callable[[], object], *sockets: zmq.Socket[bytes]) -> threading.Thread:
        """Does something in a thread, with sockets that are its own from now on; its failure is the test's."""

        def run() -> None:
            try:
                work()
            except zmq.ContextTerminated:
                pass
            except BaseException as error:
                self._failures.append(error)
            for socket in sockets:
                socket.close()

        for socket in sockets:
            self._sockets.remove(socket)
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def figures(self) -> tuple[int, ...]:
        """The answer to STATISTICS."""
        self.steer.send(b"STATISTICS")
        return tuple(struct.unpack("=Q", part)[0] for part in self.steer.recv_multipart())

    def end(self) -> None:
        """Ends everything."""
        self.steer.send(b"TERMINATE")
        assert self.steer.recv() == b""
        self._proxy.join(BOUND)
        for socket in self._sockets:
            socket.close()
        self._theirs.term()
        self._context.term(linger=0)
        for thread in self._threads:
            thread.join(BOUND)
            assert not thread.is_alive()
        assert not self._failures, self._failures


@contextlib.contextmanager
def around(front: type[omq.Socket], back: type[omq.Socket], **options: Any) -> Iterator[Around]:
    """A proxy between sockets of libzmq's."""
    proxy = Around(front, back, **options)
    try:
        yield proxy
    finally:
        proxy.end()


def test_requests_of_many_to_several_workers() -> None:
    """REQ, ROUTER, DEALER, REP: each client gets the answers to its own questions, and all workers work."""
    with around(omq.ROUTER, omq.DEALER) as proxy:
        worked: Counter[int] = Counter()

        def work(number: int, worker: zmq.Socket[bytes]) -> None:
            while True:
                worker.send(b"to " + worker.recv())
                worked[number] += 1

        for number in range(3):
            worker = proxy.server("REP")
            proxy.start(functools.partial(work, number, worker), worker)
        proxy.back.wait_connected(3, timeout=BOUND)
        clients = [proxy.client("REQ") for _ in range(5)]
        for turn in range(100):
            for number, client in enumerate(clients):
                client.send(b"%d of %d" % (turn, number))
            for number, client in enumerate(clients):
                assert client.recv() == b"to %d of %d" % (turn, number)
        assert set(worked) == {0, 1, 2}
        assert proxy.figures()[0::2] == (500, 500, 500, 500)


def test_identities_are_those_of_libzmq() -> None:
    with around(omq.ROUTER, omq.DEALER) as proxy:
        client = proxy.client("DEALER", routing_id=b"my name")
        worker = proxy.server("ROUTER", routing_id=b"worker")
        client.send_multipart([b"a", b"", b"b"])
        _, *message = worker.recv_multipart()
        assert message == [b"my name", b"a", b"", b"b"]


def test_subscriptions_come_and_go() -> None:
    with around(omq.XSUB, omq.XPUB) as proxy:
        publisher = proxy.client("XPUB")
        one, other = proxy.server("SUB"), proxy.server("SUB")
        one.subscribe(b"a")
        assert publisher.recv() == b"\1a"
        other.subscribe(b"a")
        other.subscribe(b"b")
        assert publisher.recv() == b"\1b"
        for number in range(500):
            publisher.send_multipart([b"a", b"%d" % number])
            publisher.send(b"b %d" % number)
            publisher.send(b"c")
        for number in range(500):
            assert one.recv_multipart() == [b"a", b"%d" % number]
            assert other.recv_multipart() == [b"a", b"%d" % number]
            assert other.recv() == b"b %d" % number
        other.unsubscribe(b"b")
        assert publisher.recv() == b"\0b"
        one.close()
        other.close()
        assert publisher.recv() == b"\0a"


def test_what_subscribers_send_upstream_arrives() -> None:
    with around(omq.XSUB, omq.XPUB) as proxy:
        publisher, subscriber = proxy.client("XPUB"), proxy.server("XSUB")
        subscriber.send(b"\1topic")
        assert publisher.recv() == b"\1topic"
        subscriber.send(b"hello, publisher")
        assert publisher.recv() == b"hello, publisher"


def test_a_pipeline_of_several_loses_and_doubles_nothing() -> None:
    with around(omq.PULL, omq.PUSH) as proxy:
        senders = [proxy.client("PUSH") for _ in range(3)]
        sinks = [proxy.server("PULL") for _ in range(3)]
        proxy.back.wait_connected(3, timeout=BOUND)
        shares: list[Counter[bytes]] = [Counter() for _ in sinks]

        def push(number: int) -> None:
            for at in range(5000):
                senders[number].send(b"%d %d" % (number, at))

        def pull(sink: zmq.Socket[bytes], share: Counter[bytes]) -> None:
            while True:
                share[sink.recv()] += 1

        for number in range(3):
            proxy.start(functools.partial(push, number))
        for sink, share in zip(sinks, shares, strict=True):
            proxy.start(functools.partial(pull, sink, share), sink)
        until(lambda: sum(map(Counter.total, shares)) >= 15_000, "all messages")
        assert len(functools.reduce(Counter.__add__, shares)) == 15_000
        assert min(map(Counter.total, shares)) > 500


@pytest.mark.parametrize("size", [10, 5000, 100_000, 16 << 20])
def test_sizes(size: int) -> None:
    with around(omq.ROUTER, omq.DEALER) as proxy:
        client, worker = proxy.client("REQ"), proxy.server("REP")
        for _ in range(2):
            client.send(b"x" * size)
            assert worker.recv() == b"x" * size
            worker.send_multipart([b"y", b"z" * size])
            assert client.recv_multipart() == [b"y", b"z" * size]


def test_curve_outside_and_none_inside() -> None:
    public, secret = zmq.curve_keypair()
    own_public, own_secret = zmq.curve_keypair()
    with around(omq.ROUTER, omq.DEALER) as proxy:
        endpoint = proxy.front.bind(TCP, security=omq.CurveServer(secret))
        keys = {"curve_serverkey": public, "curve_publickey": own_public, "curve_secretkey": own_secret}
        client = proxy.open("REQ", endpoint, **keys)
        worker = proxy.server("REP")
        for number in range(100):
            client.send(b"%d" % number)
            assert worker.recv() == b"%d" % number
            worker.send(b"sealed again")
            assert client.recv() == b"sealed again"


def test_a_slow_subscriber_loses_messages_and_delays_no_other() -> None:
    """XPUB drops for it, as libzmq's does: the mark is its own, and others get everything."""
    with around(omq.XSUB, omq.XPUB) as proxy:
        proxy.back.set_options(send_hwm=10)
        publisher = proxy.client("XPUB", sndhwm=0)
        slow = proxy.server("SUB", rcvhwm=1, rcvbuf=4096)
        slow.subscribe(b"")
        assert publisher.recv() == b"\1"
        quick = proxy.server("SUB", rcvhwm=0)
        quick.subscribe(b"quick")
        assert publisher.recv() == b"\1quick"
        block = b"quick" + bytes(50_000)
        for _ in range(300):
            publisher.send(block)
            assert quick.recv() == block
        assert sum(peer.dropped for peer in proxy.back.peers) > 0
