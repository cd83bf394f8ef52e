"""Calls that receive, or look whether they could, interrupted."""

from __future__ import annotations

import operator
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, ClassVar

import omq
from tests.signals.interrupted_call import InterruptedCall, repeat
from tests.signals.remote_peers import BOUND
from tests.support.waits import until


class Receive(InterruptedCall):
    """A message, of several that are there."""

    kind, peer_kind = "PULL", "PUSH"
    count: ClassVar[int] = 12

    def prepare(self) -> None:
        self.peer("send_many", [b"%d" % n for n in range(self.count)])
        until(lambda: self.one.poll(0), "the messages", BOUND)

    def results(self) -> Iterator[Any]:
        return islice(self.one, 5)

    def use(self) -> None:
        if self.one.poll(0):
            self.out.append(self.one.recv(timeout=BOUND))

    def taken(self) -> list[bytes]:
        return [part for one in self.out for part in (one if isinstance(one, list) else [one])]

    def check_after(self) -> None:
        self.peer("send", b"end", timeout=BOUND)
        found = self.taken()
        while b"end" not in found:
            found.append(self.one.recv(timeout=BOUND))
        # The handler's own come into the list before those of the call that it has interrupted.
        assert Counter(found[:-1]) == Counter(b"%d" % n for n in range(self.count)), found


class ReceiveMany(Receive):
    """A socket with messages."""

    def results(self) -> Iterator[Any]:
        return map(self.one.recv_many, [3, 3])


class ReceiveMultipart(Receive):
    """Whole messages."""

    def results(self) -> Iterator[Any]:
        return repeat(self.one.recv_multipart, 3)


class ReceiveMessage(Receive):
    """Messages with their peers."""

    def results(self) -> Iterator[Any]:
        return repeat(self.one.recv_message, 3)

    def taken(self) -> list[bytes]:
        return [one if isinstance(one, bytes) else one.body for one in self.out]


class ReceiveNumbered(ReceiveMessage):
    """Messages with the number of the client that has sent them; what it names is answered."""

    kind, peer_kind = "SERVER", "CLIENT"

    def check_after(self) -> None:
        super().check_after()
        numbers = {one.routing_id for one in self.out if not isinstance(one, bytes)}
        for number in numbers:
            self.one.send(b"answer", routing_id=number, timeout=BOUND)
            assert self.peer("recv", timeout=BOUND) == b"answer"
        assert len(numbers) <= 1, numbers


class ReceiveGather(ReceiveMany):
    """Gives what is there, of one part."""

    kind, peer_kind = "GATHER", "SCATTER"


class ReceiveInto(Receive):
    """Into the caller's memory."""

    def prepare(self) -> None:
        super().prepare()
        self.memory = [bytearray(64) for _ in range(3)]

    def results(self) -> Iterator[Any]:
        return map(self.one.recv_into, self.memory)

    def taken(self) -> list[bytes]:
        into = iter(self.memory)
        return [one if isinstance(one, bytes) else bytes(next(into)[:one]) for one in self.out]


class ReceiveLate(Receive):
    """Messages that come while the call waits."""

    def prepare(self) -> None:
        self.meanwhile(self._send)

    def _send(self) -> None:
        end = threading.Event()
        try:
            for n in range(self.count):
                for _ in range(100):
                    if self.one.readable.waiting:
                        break
                    end.wait(0.0002)
                self.peer("send", b"%d" % n, timeout=BOUND)
        except (omq.OmqError, TimeoutError):
            pass

    def results(self) -> Iterator[Any]:
        return islice(self.one, 6)

    def check_after(self) -> None:
        for thread in self.threads:
            thread.join(BOUND)
        super().check_after()


class ReceiveLateMany(ReceiveLate):
    """The same with `recv_many`."""

    def results(self) -> Iterator[Any]:
        return map(self.one.recv_many, [2] * 3)


class ReceiveBehindMark(Receive):
    """More than the mark lets in: taking one has reading go on."""

    options: ClassVar[dict[str, Any]] = {"recv_hwm": 2}
    peer_options: ClassVar[dict[str, Any]] = {"send_hwm": 0}
    count: ClassVar[int] = 40

    def results(self) -> Iterator[Any]:
        return islice(self.one, 20)


class Poll(Receive):
    """A poll of one socket."""

    def results(self) -> Iterator[Any]:
        return map(self.one.poll, [BOUND])

    def taken(self) -> list[bytes]:
        return [one for one in self.out if isinstance(one, bytes)]


class Wait(Poll):
    """A wait for one of several sockets."""

    def results(self) -> Iterator[Any]:
        return map(omq.wait, [[self.one]])


class Fileno(Poll):
    """The descriptor."""

    def results(self) -> Iterator[Any]:
        return repeat(self.one.fileno, 1)


class ReleaseFileno(Poll):
    """The descriptor, given back."""

    def results(self) -> Iterator[Any]:
        return map(operator.call, [self.one.fileno, self.one.release_fileno])


class Routed(InterruptedCall):
    """Messages of a ROUTER, to a peer that it names."""

    kind, peer_kind = "ROUTER", "DEALER"

    def prepare(self) -> None:
        self.peer("send", b"hello")
        self.name = self.one.recv_multipart(timeout=BOUND)[0]

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.send_multipart, [[self.name, b"%d" % n] for n in range(3)]

    def check_after(self) -> None:
        self.one.send_multipart([self.name, b"end"])
        arrived = self.peer.until(b"end")[:-1]
        assert arrived == [b"%d" % n for n in range(len(arrived))], arrived
        assert self.raised or len(arrived) == 3


class Streamed(InterruptedCall):
    """Bytes of a STREAM, for the connection that it names."""

    kind, peer_kind = "STREAM", "STREAM"
    transports: ClassVar[tuple[str, ...]] = ("tcp", "ipc")

    def prepare(self) -> None:
        self.name = self.one.recv_multipart(timeout=BOUND)[0]
        assert self.peer("recv_multipart", timeout=BOUND)[1] == b"", "it has come"

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.send_multipart, [[self.name, b"%d" % n] for n in range(3)]

    def check_after(self) -> None:
        self.one.send_multipart([self.name, b"|"])
        arrived = b""
        while not arrived.endswith(b"|"):
            arrived += self.peer("recv_multipart", timeout=BOUND)[1]
        assert b"012".startswith(arrived[:-1]), arrived
        assert self.raised or arrived == b"012|"


class StreamCloses(Streamed):
    """The end of a connection of a STREAM."""

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.send_multipart, [[self.name, b""]]

    def check_after(self) -> None:
        try:
            self.one.send_multipart([self.name, b""])
        except omq.UnroutableError:
            pass  # the call has closed it
        else:
            assert self.raised
        assert self.peer("recv_multipart", timeout=BOUND)[1] == b"", "it has gone"
        until(lambda: not self.one.peers)

    def check_connection(self) -> None:
        """Checks that the connection ends."""
