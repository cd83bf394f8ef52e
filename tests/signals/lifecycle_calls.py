"""Endpoints, options, monitors and the end of things, interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import omq
from tests.signals.interrupted_call import NUMBERS, InterruptedCall, repeat
from tests.signals.remote_peers import BOUND, Peer
from tests.signals.subscribe_calls import in_force
from tests.support.waits import until


class Bind(InterruptedCall):
    """An endpoint; and once more where it was interrupted."""

    kind = "PULL"
    transports: ClassVar[tuple[str, ...]] = ("tcp", "ipc", "inproc")

    def prepare(self) -> None:
        self.name = f"inproc://b{next(NUMBERS)}"
        self.where = {"tcp": "tcp://127.0.0.1:*", "ipc": "ipc://*"}.get(self.transport, self.name)

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.bind, [self.where]

    def use(self) -> None:
        self.one.bind("tcp://127.0.0.1:*")

    def check_out(self) -> None:
        assert self.raised or self.out
        assert all(endpoint in self.one.endpoints for endpoint in self.out)

    def check_after(self) -> None:
        self.check_out()
        try:
            self.one.bind(self.where)
        except omq.BindError:
            assert self.name in self.one.endpoints, "the name is not taken"
        for n, endpoint in enumerate(self.one.endpoints):
            with omq.PUSH(self.peer_context, connect=endpoint, linger=0) as push:
                push.send(b"%d" % n, timeout=BOUND)
                assert self.one.recv(timeout=BOUND) == b"%d" % n


class First(Bind):
    """The first endpoint of a context: its thread starts."""


class Unbind(Bind):
    """An endpoint is given up."""

    def prepare(self) -> None:
        super().prepare()
        self.one.bind("tcp://127.0.0.1:*")
        self.bound = self.one.bind(self.where)

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.unbind, [self.bound]

    def check_after(self) -> None:
        if self.bound in self.one.endpoints:
            assert self.raised, "it did nothing"
            self.one.unbind(self.bound)
        if self.transport != "ipc":  # whose folder went with the file
            self.one.bind(self.bound)  # it is free
        super().check_after()

    def check_out(self) -> None:
        pass


class Connect(InterruptedCall):
    """A dialler; and once more where it was interrupted."""

    kind = "PUSH"
    transports: ClassVar[tuple[str, ...]] = ("tcp", "ipc", "inproc", "aio")

    def prepare(self) -> None:
        self.far = Peer("PULL", self.peer_context, self.transport == "aio")
        self.endpoint = self.far.bind(self.transport, f"c{next(NUMBERS)}")

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.connect, [self.endpoint]

    def use(self) -> None:
        self.one.connect(self.endpoint)

    def check_after(self) -> None:
        if self.raised:
            self.one.connect(self.endpoint)
        self.one.wait_connected(timeout=BOUND)
        for n in range(4):
            self.one.send(b"%d" % n, timeout=BOUND)
        found: list[bytes] = []
        while len(found) < 4:
            found += self.far("recv_many", timeout=BOUND)
        assert sorted(found) == [b"0", b"1", b"2", b"3"]

    def end(self) -> None:
        self.far.stop()
        super().end()


class Disconnect(Connect):
    """A dialler that has a connection ends."""

    def prepare(self) -> None:
        super().prepare()
        self.one.connect(self.endpoint)
        self.one.wait_connected(timeout=BOUND)

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.disconnect, [self.endpoint]

    def use(self) -> None:
        self.one.poll(0, omq.POLL_OUT)

    def check_after(self) -> None:
        try:
            self.one.disconnect(self.endpoint)
            assert self.raised, "it did nothing"
        except omq.EndpointError:
            pass
        until(lambda: not self.one.peers, "the end of the connection", BOUND)
        self.one.connect(self.endpoint)
        super().check_after()


class WaitConnected(Connect):
    """Until a peer is there."""

    def prepare(self) -> None:
        super().prepare()
        self.one.connect(self.endpoint)

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.wait_connected, [1]

    def use(self) -> None:
        self.one.wait_connected(timeout=BOUND)


class ConnectPeer(Connect):
    """Until the peer that is dialled is there; its number is given."""

    kind = "PEER"

    def prepare(self) -> None:
        self.far = Peer("PEER", self.peer_context, self.transport == "aio")
        self.endpoint = self.far.bind(self.transport, f"p{next(NUMBERS)}")

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.connect_peer, [self.endpoint]

    def use(self) -> None:
        self.out.append(self.one.connect_peer(self.endpoint, timeout=BOUND))

    def check_after(self) -> None:
        if self.raised:
            self.out.append(self.one.connect_peer(self.endpoint, timeout=BOUND))
        for number in self.out:
            self.one.send(b"%d" % number, routing_id=number, timeout=BOUND)
            assert self.far("recv", timeout=BOUND) == b"%d" % number
        assert len(self.one.peers) <= len(self.out) + self.raised, "a call that was interrupted leaves a connection"


class SetOptions(InterruptedCall):
    """Options that can change in use."""

    kind, peer_kind = "PULL", "PUSH"
    transports: ClassVar[tuple[str, ...]] = ("tcp", "inproc")

    def results(self) -> Iterator[Any]:
        return repeat(partial(self.one.set_options, recv_hwm=7, recv_timeout=3), 1)

    def check_after(self) -> None:
        self.one.set_options(recv_hwm=5, recv_timeout=4)
        assert (self.one.options.recv_hwm, self.one.recv_timeout) == (5, 4)
        self.peer("send", b"x", timeout=BOUND)
        assert self.one.recv() == b"x"


class SetShape(InterruptedCall):
    """Options of a socket that is not in use yet."""

    kind = "SUB"
    transports: ClassVar[tuple[str, ...]] = ("tcp",)

    def prepare(self) -> None:
        self.one.subscribe(b"a")

    def results(self) -> Iterator[Any]:
        return repeat(partial(self.one.set_options, conflate=False, subscribe=b"b"), 1)

    def check_after(self) -> None:
        self.one.set_options(subscribe=b"b")
        assert sorted(in_force(self.one)) == [b"a", b"b"]
        with omq.PUB(self.peer_context, bind="tcp://127.0.0.1:*", linger=0) as pub:
            self.one.connect(pub.endpoints[0])
            pub.wait_subscribed(n=2, timeout=BOUND)
            pub.send(b"b1")
            pub.send(b"a1")
            assert [self.one.recv(timeout=BOUND) for _ in range(2)] == [b"b1", b"a1"]


class Peers(InterruptedCall):
    """A socket with peers."""

    kind, peer_kind = "PULL", "PUSH"
    transports: ClassVar[tuple[str, ...]] = ("tcp", "inproc")

    def results(self) -> Iterator[Any]:
        return map(type(self.one).peers.fget, [self.one])

    def check_after(self) -> None:
        assert len(self.one.peers) == 1


class Listen(InterruptedCall):
    """A monitor's next events; each is reported once, in its order."""

    kind = "PULL"
    transports: ClassVar[tuple[str, ...]] = ("inproc",)
    count: ClassVar[int] = 12

    def prepare(self) -> None:
        self.monitor = self.one.monitor()
        self.names = [f"inproc://m{next(NUMBERS)}" for _ in range(self.count)]
        for name in self.names[: self.count // 2]:
            self.one.bind(name)
        self.meanwhile(self._bind)

    def _bind(self) -> None:
        try:
            for name in self.names[self.count // 2 :]:
                self.one.bind(name)
        except omq.OmqError:
            pass

    def results(self) -> Iterator[Any]:
        return islice(self.monitor, 9)

    def use(self) -> None:
        self.out.append(self.monitor.recv(timeout=BOUND))

    def check_after(self) -> None:
        while len(self.out) < self.count:
            self.out.append(self.monitor.recv(timeout=BOUND))
        assert Counter(event.endpoint for event in self.out) == Counter(self.names)


class ListenBehind(Listen):
    """A monitor that is read too slowly: every event is reported, or counted as missed."""

    def prepare(self) -> None:
        self.monitor = self.one.monitor(limit=3)
        self.names = [f"inproc://m{next(NUMBERS)}" for _ in range(self.count)]
        self._bind_all()

    def _bind_all(self) -> None:
        for name in self.names:
            self.one.bind(name)

    def results(self) -> Iterator[Any]:
        return islice(self.monitor, 2)

    def use(self) -> None:
        self.out.append(self.monitor.recv(timeout=BOUND))

    def check_after(self) -> None:
        while not any(event.endpoint == self.names[-1] for event in self.out):
            self.out.append(self.monitor.recv(timeout=BOUND))
        missed = sum(event.count for event in self.out if event.kind == "missed")
        assert missed + sum(event.kind == "listening" for event in self.out) == self.count, self.out


class Monitored(InterruptedCall):
    """A monitor is opened."""

    kind = "PULL"
    transports: ClassVar[tuple[str, ...]] = ("inproc",)

    def results(self) -> Iterator[Any]:
        return repeat(self.one.monitor, 1)

    def check_after(self) -> None:
        name = f"inproc://o{next(NUMBERS)}"
        self.one.bind(name)
        for monitor in self.out:
            assert monitor.recv(timeout=BOUND).endpoint == name


class Close(InterruptedCall):
    """The end, with something that may still leave."""

    kind, peer_kind = "PUSH", "PULL"
    linger: ClassVar[Any] = BOUND

    def prepare(self) -> None:
        for n in range(3):
            self.one.send(b"%d" % n)

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.close, [self.linger]

    def check_after(self) -> None:
        self.one.close(self.linger)
        assert self.one.closed
        until(lambda: not self.peer.socket.peers, "the end of the connection", BOUND)
        found: list[bytes] = []
        while self.peer("poll", 0):
            found += self.peer("recv_many", timeout=0)
        assert found == [b"%d" % n for n in range(len(found))]
        assert self.raised or len(found) == 3, found

    def check_connection(self) -> None:
        pass


class CloseAtOnce(Close):
    """The end, at once."""

    linger: ClassVar[Any] = 0

    def check_after(self) -> None:
        self.one.close(0)
        assert self.one.closed
        until(lambda: not self.peer.socket.peers, "the end of the connection", BOUND)


class Stop(CloseAtOnce):
    """The end, without a look back."""

    def results(self) -> Iterator[Any]:
        return repeat(self.one.stop, 1)


class CloseUnused(InterruptedCall):
    """The end of a socket that was never bound or connected."""

    kind = "PUSH"
    transports: ClassVar[tuple[str, ...]] = ("inproc",)

    def prepare(self) -> None:
        self.monitor = self.one.monitor()

    def results(self) -> Iterator[Any]:
        return repeat(self.one.close, 1)

    def check_after(self) -> None:
        self.one.close()
        assert self.one.closed
        assert [event.kind for event in self.monitor] == ["monitor_stopped"]


class Term(InterruptedCall):
    """The end of a context, with its sockets."""

    kind, peer_kind = "PUSH", "PULL"

    def prepare(self) -> None:
        self.more = [omq.PULL(self.context, bind="tcp://127.0.0.1:*", linger=0) for _ in range(2)]

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.context.term, [0]

    def check_after(self) -> None:
        self.context.term(0)
        assert all(one.closed for one in [self.one, *self.more])
        if self.peer_context is not self.context:
            until(lambda: not self.peer.socket.peers, "the end of the connection", BOUND)

    def check_connection(self) -> None:
        pass


class Construct(InterruptedCall):
    """A socket is made, with an endpoint; what is left of one that was interrupted goes."""

    kind = "PULL"
    transports: ClassVar[tuple[str, ...]] = ("tcp",)

    def results(self) -> Iterator[Any]:
        return repeat(partial(omq.PULL, self.context, bind="tcp://127.0.0.1:*", linger=0), 1)

    def check_after(self) -> None:
        for one in self.out or [omq.PULL(self.context, bind="tcp://127.0.0.1:*", linger=0)]:
            with omq.PUSH(self.peer_context, connect=one.endpoints[0], linger=0) as push:
                push.send(b"x")
                assert one.recv(timeout=BOUND) == b"x"
            one.close()


class Default(InterruptedCall):
    """The default context; there is one."""

    kind = "PULL"
    transports: ClassVar[tuple[str, ...]] = ("inproc",)

    def prepare(self) -> None:
        omq.Context.default().term(0)
        self.found: list[Any] = []

    def results(self) -> Iterator[Any]:
        return repeat(omq.Context.default, 1)

    def use(self) -> None:
        self.found.append(omq.Context.default())

    def check_after(self) -> None:
        found = {*self.out, *self.found, omq.Context.default()}
        assert len(found) == 1, found
