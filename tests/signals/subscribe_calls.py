"""Subscriptions, interrupted on either side."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import omq
from tests.signals.interrupted_call import InterruptedCall, repeat
from tests.signals.remote_peers import BOUND


def in_force(socket: Any) -> Counter[bytes]:
    return Counter({bytes(prefix): 1 for prefix, _ in socket._engine.pattern.matcher.prefixes()})


class Subscribe(InterruptedCall):
    """A prefix that is new; then once more where it was interrupted."""

    kind, peer_kind = "SUB", "PUB"
    mine: ClassVar[list[bytes]] = [b"new"]

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.subscribe, self.mine

    def use(self) -> None:
        self.one.subscribe(b"handler")

    def again(self) -> None:
        for prefix in self.mine:
            self.one.subscribe(prefix)

    def agree(self) -> None:
        """Checks that both sides agree about the subscriptions, once the last one has arrived."""
        self.one.subscribe(b"end")
        self.peer("wait_subscribed", b"end", timeout=BOUND)
        assert in_force(self.one) == in_force(self.peer.socket)

    def check_after(self) -> None:
        self.agree()
        self.again()
        self.one.subscribe(b"last")
        self.peer("wait_subscribed", b"last", timeout=BOUND)
        assert in_force(self.one) == in_force(self.peer.socket)
        for prefix in [*self.mine, b"last"]:
            self.peer("send", prefix)
        assert self.one.recv(timeout=BOUND) == self.mine[0], "what was subscribed to does not come"
        found = [self.mine[0]]
        while b"last" not in found:
            found.append(self.one.recv(timeout=BOUND))
        assert found == [*self.mine, b"last"], found


class Unsubscribe(Subscribe):
    """A prefix that was subscribed to once."""

    def prepare(self) -> None:
        self.one.subscribe(b"old")
        self.peer("wait_subscribed", b"old", timeout=BOUND)

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.unsubscribe, [b"old"]

    def use(self) -> None:
        self.one.subscribe(b"handler")
        self.one.unsubscribe(b"handler")

    def check_after(self) -> None:
        self.agree()
        self.one.unsubscribe(b"old")
        self.one.subscribe(b"last")
        self.peer("wait_subscribed", b"last", timeout=BOUND)
        assert in_force(self.one) == in_force(self.peer.socket)
        self.peer("send", b"old")
        self.peer("send", b"last")
        assert self.one.recv(timeout=BOUND) == b"last", "what was taken back still comes"


class XSubscribe(InterruptedCall):
    """An XSUB that sends its subscriptions, as messages."""

    kind, peer_kind = "XSUB", "PUB"

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.send, [b"\1new"]

    def check_after(self) -> None:
        self.one.send(b"\1end")
        self.peer("wait_subscribed", b"end", timeout=BOUND)
        assert in_force(self.one) == in_force(self.peer.socket)
        self.one.send(b"\1new")
        self.one.send(b"\1last")
        self.peer("wait_subscribed", b"last", timeout=BOUND)
        assert in_force(self.one) == in_force(self.peer.socket)
        assert in_force(self.one)[b"new"]


class HearSubscriptions(InterruptedCall):
    """An XPUB whose user receives each subscription."""

    kind, peer_kind = "XPUB", "SUB"
    options: ClassVar[dict[str, Any]] = {"recv_hwm": 0}
    count: ClassVar[int] = 30

    def prepare(self) -> None:
        self.meanwhile(self._subscribe)

    def _subscribe(self) -> None:
        try:
            for n in range(self.count):
                self.peer("subscribe", b"%d" % n)
        except (omq.OmqError, TimeoutError):
            pass

    def results(self) -> Iterator[Any]:
        return map(self.one.recv_many, [5] * 3)

    def check_after(self) -> None:
        self.threads[0].join(BOUND)
        self.peer("subscribe", b"end")
        received = [message for some in self.out for message in some]
        while b"\1end" not in received:
            received += self.one.recv_many(timeout=BOUND)
        want = [b"\1%d" % n for n in range(self.count)] + [b"\1end"]
        assert Counter(received) == Counter(want), Counter(want) - Counter(received)
        assert len(in_force(self.one)) == self.count + 1


class WaitSubscribed(InterruptedCall):
    """Until a subscription is in force."""

    kind, peer_kind = "PUB", "SUB"

    def prepare(self) -> None:
        self.meanwhile(self._subscribe)

    def _subscribe(self) -> None:
        self.peer("subscribe", b"a")

    def results(self) -> Iterator[Any]:
        return repeat(self.one.wait_subscribed, 1)

    def check_after(self) -> None:
        self.one.wait_subscribed(b"a", timeout=BOUND)
        self.one.send(b"abc")
        assert self.peer("recv", timeout=BOUND) == b"abc"


class Join(InterruptedCall):
    """A group that is new; then once more where it was interrupted."""

    kind, peer_kind = "DISH", "RADIO"

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.join, ["new"]

    def use(self) -> None:
        self.one.join("handler")

    def check_after(self) -> None:
        self.agree("end")
        if self.raised:
            self.make_sure()
        self.agree("last")
        self.check()

    def agree(self, last: str) -> None:
        """Checks that both sides have the same groups, once a last one has arrived."""
        self.one.join(last)
        self.peer("wait_subscribed", last, timeout=BOUND)
        assert in_force(self.one) == in_force(self.peer.socket)

    def make_sure(self) -> None:
        """Makes the call again; it has happened, or not."""
        with contextlib.suppress(omq.UsageError):
            self.one.join("new")

    def check(self) -> None:
        for group in ("new", "last"):
            self.peer("send", group.encode(), group=group)
        found = [self.one.recv_message(timeout=BOUND) for _ in range(2)]
        assert [(one.group, one.body) for one in found] == [("new", b"new"), ("last", b"last")], found


class Leave(Join):
    """A group that was joined is left."""

    def prepare(self) -> None:
        self.one.join("new")
        self.peer("wait_subscribed", "new", timeout=BOUND)

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        return self.one.leave, ["new"]

    def use(self) -> None:
        self.one.join("handler")
        self.one.leave("handler")

    def make_sure(self) -> None:
        with contextlib.suppress(omq.UsageError):
            self.one.leave("new")

    def check(self) -> None:
        for group in ("new", "last"):
            self.peer("send", group.encode(), group=group)
        assert self.one.recv_message(timeout=BOUND).group == "last", "a group that was left still comes"
