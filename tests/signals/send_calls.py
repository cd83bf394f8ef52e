"""Calls that send, interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import omq
from tests.signals.interrupted_call import InterruptedCall, repeat
from tests.signals.remote_peers import BOUND
from tests.support.waits import until


class Send(InterruptedCall):
    """One message; there is room."""

    kind, peer_kind = "PUSH", "PULL"
    may: ClassVar[list[bytes]] = [b"0"]
    sent_by_handler = 0

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.send, [b"0"]

    def use(self) -> None:
        self.one.send(b"handler", timeout=BOUND)
        self.sent_by_handler += 1

    def end_of_all(self) -> None:
        """Sends the last message."""
        self.one.send(b"end", timeout=BOUND)

    def check_after(self) -> None:
        self.end_of_all()
        arrived = self.peer.until(b"end")
        assert arrived.count(b"handler") == self.sent_by_handler, arrived
        mine = [message for message in arrived if message not in (b"handler", b"end")]
        if self.raised:
            assert mine == self.may[: len(mine)], mine  # it has happened or not; of many the first ones have
        else:
            assert mine == self.may, mine


class SendMultipart(Send):
    """One message of a part, in a list."""

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.send_multipart, [[b"0"]]


class SendMany(Send):
    """Several messages; there is room."""

    may: ClassVar[list[bytes]] = [b"%d" % n for n in range(20)]

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.send_many, [list(self.may)]


class SendFull(SendMany):
    """More messages than there is room for; the peer takes them meanwhile."""

    options: ClassVar[dict[str, Any]] = {"send_hwm": 3}
    peer_options: ClassVar[dict[str, Any]] = {"recv_hwm": 3}
    may: ClassVar[list[bytes]] = [b"%d" % n + b"x" * 100_000 for n in range(30)]

    def prepare(self) -> None:
        self.arrived: list[bytes] = []
        self.meanwhile(self._take)

    def _take(self) -> None:
        try:
            while b"end" not in self.arrived:
                self.arrived += self.peer("recv_many", timeout=BOUND)
        except (omq.OmqError, TimeoutError):
            pass

    def check_after(self) -> None:
        self.end_of_all()
        until(lambda: b"end" in self.arrived, lambda: self.arrived, BOUND)
        mine = [message for message in self.arrived if message not in (b"handler", b"end")]
        assert self.arrived.count(b"handler") == self.sent_by_handler
        assert mine == self.may[: len(mine)], [message[:9] for message in mine]
        assert self.raised or mine == self.may


class SendFullOne(SendFull):
    """A message at a time, until one has to wait."""

    may: ClassVar[list[bytes]] = [b"%d" % n + b"x" * 200_000 for n in range(12)]

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.send, list(self.may)


class SendScatter(Send):
    """One message of one part; there is room."""

    kind, peer_kind = "SCATTER", "GATHER"


class SendClientFull(SendFullOne):
    """A message at a time to a server, until one has to wait."""

    kind, peer_kind = "CLIENT", "SERVER"


class SendNumbered(Send):
    """One message to a client that its number names."""

    kind, peer_kind = "SERVER", "CLIENT"
    peer_options: ClassVar[dict[str, Any]] = {"hello_message": b"hello"}

    def prepare(self) -> None:
        self.route: dict[str, Any] = {"routing_id": self.one.recv_message(timeout=BOUND).routing_id}

    def results(self) -> Iterator[Any]:
        return repeat(partial(self.one.send, b"0", **self.route), 1)

    def use(self) -> None:
        self.one.send(b"handler", timeout=BOUND, **self.route)
        self.sent_by_handler += 1

    def end_of_all(self) -> None:
        self.one.send(b"end", timeout=BOUND, **self.route)


class SendNumberedFull(SendNumbered):
    """Messages to a peer, until one has to wait for its room; the peer takes them meanwhile."""

    kind, peer_kind = "PEER", "PEER"
    options: ClassVar[dict[str, Any]] = {"send_hwm": 3}
    peer_options: ClassVar[dict[str, Any]] = {"recv_hwm": 3, "hello_message": b"hello"}
    may: ClassVar[list[bytes]] = SendFullOne.may
    _take, check_after = SendFull._take, SendFull.check_after

    def prepare(self) -> None:
        super().prepare()
        SendFull.prepare(self)  # type: ignore[arg-type]

    def results(self) -> Iterator[Any]:
        return map(partial(self.one.send, **self.route), self.may)


class SendGroup(SendNumbered):
    """A message for the group that a DISH has joined."""

    kind, peer_kind = "RADIO", "DISH"
    peer_options: ClassVar[dict[str, Any]] = {"join": "g"}

    def prepare(self) -> None:
        self.one.wait_subscribed("g", timeout=BOUND)
        self.route = {"group": "g"}


class Request(InterruptedCall):
    """A request."""

    kind, peer_kind = "REQ", "REP"
    options: ClassVar[dict[str, Any]] = {"req_relaxed": True, "req_correlate": True}

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.send, [b"question"]

    def check_after(self) -> None:
        self.one.send(b"again", timeout=BOUND)
        while True:
            asked = self.peer("recv", timeout=BOUND)
            self.peer("send", b"to " + asked)
            if asked == b"again":
                break
        assert self.one.recv(timeout=BOUND) == b"to again"


class Publish(InterruptedCall):
    """A message for a subscriber."""

    kind, peer_kind = "PUB", "SUB"
    peer_options: ClassVar[dict[str, Any]] = {"subscribe": b""}
    sent_by_handler = 0

    def prepare(self) -> None:
        self.one.wait_subscribed(timeout=BOUND)

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.send, [b"0"]

    use = Send.use
    may: ClassVar[list[bytes]] = [b"0"]
    end_of_all = Send.end_of_all
    check_after = Send.check_after
