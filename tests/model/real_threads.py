"""The real thing, step by step: callers in threads of their own, and an I/O thread that does what the test commands.

What a caller does between two of the test's steps is up to the scheduler. So the model is asked for every state that
may have come about meanwhile, and what can be seen of the real socket must be what can be seen of one of them.
"""

from __future__ import annotations

import queue
import random
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from omq._core.bell import Bell
from omq._core.calls.leader import ForkGuard
from omq._core.calls.sync import SyncCore
from omq._core.link.connection import Connection
from omq._core.link.flusher import Flusher
from omq._core.queues.peer import RecvQueue
from omq._core.wire.pool import Pool
from omq.engine.driver import CallerDriver
from omq.errors import ClosedError, ReceiveTimeout
from tests.model.epoll_model import Serving
from tests.model.explorer import State
from tests.model.serving_state import OUT, SHOWS, Case, ModelState

BOUND = 10.0  # seconds in which callers must have come to rest
PAUSES = {0.01: "soon", 0.02: "twice"}
ORDERS = ("io: bell", "io: time", "io: alarm", "io: the set")


class Core(SyncCore):
    """A blocking socket without an engine."""


class Session:
    """The engine's callbacks."""

    def on_command(self, body: bytes) -> None:
        raise AssertionError("no peer sends commands")

    def on_lost(self, reason: Exception | None) -> None:
        raise AssertionError(f"a connection has ended: {reason}")


class Timer:
    """The result of `call_later`."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """The I/O thread's loop, which does nothing by itself."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], None]] = {}
        self.timer: Timer | None = None

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        self.readers[fd] = call

    def remove_reader(self, fd: int) -> None:
        self.readers.pop(fd, None)

    def call_later(self, pause: float, call: Callable[[], None]) -> Timer:
        assert self.timer is None or self.timer.call is None, "two timers"
        self.timer = Timer(call)
        return self.timer


class DeferredCalls:
    """An alarm that rings when the test calls for it."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def set(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def cancel(self, call: Callable[[], None]) -> None:
        if call in self.calls:
            self.calls.remove(call)


class BlockingConnection(threading.Thread):
    """One thread that calls."""

    def __init__(self, core: Core, got: list[bytes]) -> None:
        super().__init__(daemon=True)
        self.core = core
        self.got = got
        self.orders: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.busy = False
        self.fd = -1  # what `fileno` has given
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        while (op := self.orders.get()) is not None:
            try:
                if op in ("recv", "recv0"):
                    self.got.append(self.core.recv(timeout=None if op == "recv" else 0))
                elif op in ("poll", "poll0"):
                    self.core.poll(timeout=None if op == "poll" else 0)
                elif op == "fileno":
                    self.fd = self.core.fileno()
                else:
                    self.core.release_fileno()
            except (ReceiveTimeout, ClosedError):
                pass
            except Exception as error:
                self.failure = error
            self.busy = False

    def call(self, op: str) -> None:
        self.busy = True
        self.orders.put(op)


class Unhurried(RecvQueue):
    """The model knows no time, and so no thread that works for long: turns stay as long as they are."""

    def hurry(self) -> int:
        return 0


class Real:
    """The real parts of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.core = Core()
        self.recv_queue = Unhurried(self.core.readable)
        self.core._assemble(self.recv_queue, None, ForkGuard())
        self.core._set_long_sleep(0 if case.sleeps_long else 1 << 62)
        self.loop = Loop()
        self.alarm = DeferredCalls()
        self.bell = Bell()
        self.bell.open()
        self.bell.answer()
        self.driver = CallerDriver(self.core, Flusher(), cast(Any, self.alarm), self.bell)
        self.peers: list[Connection] = []
        self.others: list[socket.socket] = []
        self.sent = [0] * len(case.peers)
        pool = Pool()
        for _ in case.peers:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            peer = Connection(Session(), ours.detach(), self.core.poller, pool, self.recv_queue, case.hwm)
            peer.start(b"")
            self.peers.append(peer)
            self.others.append(theirs)
        self.driver.start(cast(Any, self.loop))
        self.got: list[bytes] = []
        self.callers = [BlockingConnection(self.core, self.got) for _ in case.calls]

    def end(self) -> None:
        self.core._mark_closed()
        self.driver.stop()
        for caller in self.callers:
            caller.orders.put(None)
            caller.join(BOUND)
            assert not caller.is_alive(), "a caller never comes back"
            assert caller.failure is None, repr(caller.failure)
        assert self.core.poller.fd < 0
        for peer in self.peers:
            peer.close()
        for other in self.others:
            other.close()
        self.bell.close()

    def do(self, label: str) -> None:
        """Makes a step of the model."""
        words = label.split()
        if label.startswith("caller"):
            self.callers[int(words[1])].call(words[3])
        elif label.startswith("peer"):
            p = int(words[1])
            body = b"%d %d" % (p, self.sent[p])
            self.sent[p] += 1
            self.others[p].sendall(b"\0%c%s" % (len(body), body))
        elif label == "a caller closes":
            self.core._mark_closed()
            self.bell.call(self.driver.take_over)
            self.bell.call(self.driver.stop)
        elif label.startswith("io: the set"):
            self.loop.readers[self.core.poller.fd]()
        elif label.startswith("io: bell"):
            self.bell.answer()
        elif label.startswith("io: time"):
            assert self.loop.timer is not None
            call, self.loop.timer.call = self.loop.timer.call, None
            assert call is not None, "the I/O thread does not look again"
            call()
        else:
            calls, self.alarm.calls = self.alarm.calls, []
            for call in calls:
                call()

    def seen(self) -> dict[str, Any]:
        """Returns the state that can be seen from outside."""
        core, driver = self.core, self.driver
        fd = max(caller.fd for caller in self.callers)
        timer = self.loop.timer is not None and self.loop.timer.call is not None
        with core.lock:
            pass  # its holder has let it go
        return {
            "watched": core.watched,
            "attended": core.attended,
            "looked since": core.looks != driver._looks,
            "waiting": core.readable.waiting,
            "has messages": [peer.has_messages for peer in self.peers],
            "busy": [caller.busy for caller in self.callers],
            "taken": [sum(body.startswith(b"%d " % p) for body in self.got) for p in range(len(self.peers))],
            "ready": core.poller.fd >= 0 and readable(core.poller.fd),
            "open": core.poller.fd >= 0,
            "closed": core.closed,
            "reader": bool(self.loop.readers),
            "timer": PAUSES.get(driver._pause, "late") if timer else "none",
            "alarm": bool(self.alarm.calls) and not driver._stopped,
            "bell": readable(self.bell.fd),
            "published": core.published,
            "is_readable": fd >= 0 and not core.closed and readable(fd),
        }


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def projected(model: Serving, w: ModelState) -> dict[str, Any]:
    """Returns the visible part of a state of the model."""
    return {
        "watched": w.watched,
        "attended": w.leader >= 0,
        "looked since": w.fresh,
        "waiting": len(w.readable),
        "has messages": [complete > 0 for complete in w.complete],
        "busy": [at != OUT for at in w.at],
        "taken": list(w.taken),
        "ready": w.open and bool(model._ready(w)),
        "open": w.open,
        "closed": w.closed,
        "reader": w.reader,
        "timer": w.timer,
        "alarm": w.alarm,
        "bell": bool(w.bell),
        "published": w.readable_event in SHOWS,
        "is_readable": w.readable_event in ("readable", "released") and not w.closed,
    }


def settled(model: Serving, states: set[State], label: str) -> set[State]:
    """Returns the states that a step may lead to, with the steps that callers and the I/O thread then make."""
    work: list[tuple[State, int]] = []
    for state in states:
        seen = model.view(state)
        orders = len(seen.bell) - 1 if label.startswith("io: bell") else 0
        work += [(step.state, orders) for step in model.steps(state, seen) if step.label == label]
    found: set[State] = set()
    known = set(work)
    while work:
        state, orders = work.pop()
        seen = model.view(state)
        steps = list(model.steps(state, seen))
        nexts = [(step.state, orders) for step in steps if step.actor and not step.label.startswith(ORDERS)]
        if orders and seen.io == "idle":
            nexts += [(step.state, orders - 1) for step in steps if step.actor == "io bell"]
        elif not nexts:
            found.add(state)
        for following in nexts:
            if following not in known:
                known.add(following)
                work.append(following)
    return found


class Deviation(AssertionError):
    """The real thing is in no state that the model can be in."""


def follow(case: Case, seed: int, steps: int, *, mutation: str = "", bound: float = BOUND) -> list[str]:
    """Takes steps of the model at random, and has the real thing take them, too.

    Args:
        case: Who is there.
        seed: Of what is chosen.
        steps: How many are taken at most.
        mutation: What the model has otherwise than the code.
        bound: Seconds that the real thing may take for a step.

    Returns:
        Their labels.

    Raises:
        Deviation: It does something else.
    """
    chance = random.Random(seed)
    model = Serving(replace(case, mutation=mutation))
    real = Real(case)
    states: set[State] = {model.initial()}
    labels: list[str] = []
    try:
        for _ in range(steps):
            choices = [
                {step.label for step in model.steps(state, model.view(state)) if _chosen(step.label, step.actor)}
                for state in states
            ]
            offered = sorted(set.intersection(*choices))
            if not offered:
                break
            label = chance.choice(offered)
            labels.append(label)
            states = settled(model, states, label)
            real.do(label)
            states = _matching(model, real, states, labels, bound)
    finally:
        real.end()
    for p in range(len(case.peers)):
        bodies = [body for body in real.got if body.startswith(b"%d " % p)]
        assert len(case.calls) > 1 or bodies == sorted(bodies), "out of order"
        assert len(set(bodies)) == len(bodies), "taken twice"
    return labels


def _chosen(label: str, actor: str) -> bool:
    return not actor or label.startswith(ORDERS)


def _matching(model: Serving, real: Real, states: set[State], labels: list[str], bound: float) -> set[State]:
    """Waits until what is seen is what one of the states would show."""
    end = time.monotonic() + bound
    shown = [(state, projected(model, model.view(state))) for state in states]
    while True:
        seen = real.seen()
        if any(expected == seen for _, expected in shown):
            return {state for state, expected in shown if expected == seen}
        if time.monotonic() > end:
            lines = [f"  {label}" for label in labels]
            for _, expected in shown:
                lines.append(
                    "  expected " + str({name: value for name, value in expected.items() if seen[name] != value})
                )
                lines.append(
                    "  seen     " + str({name: seen[name] for name, value in expected.items() if seen[name] != value})
                )
            raise Deviation("\n".join(["the socket does not do what the model predicts:", *lines]))
        time.sleep(0.0005)
