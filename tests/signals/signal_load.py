"""Streams under a load of signals, whose handlers raise, or call the library: `python -m` this with a name and seconds.

The moments are the system's. Each program ends by counting what arrived, and prints what went wrong, if anything did.
What is taken goes into a list by C code alone, so that no bytecode of the program's own can lose it.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import itertools
import logging
import operator
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import omq
import omq.asyncio

STALL_TIMEOUT_S = 5.0  # seconds without anything new, after which a stream has stalled
MIN_RAISED = 20  # exceptions of the handler, for a run to count as one under load


class Tick(Exception):
    """The exception of a handler."""


class BaseTick(BaseException):
    """The same, where `except Exception` does not see it."""


class SignalLoad:
    """Signals at random moments; while it is armed the handler raises.

    Attributes:
        raised: How often the handler has raised.
        caught: How often that arrived in the code that was interrupted.
        noise: What the library logged, and what was raised where no caller could catch it.
    """

    def __init__(self, period: float = 0.0005, act: Callable[[], None] | None = None) -> None:
        self.raised = self.caught = 0
        self.noise: list[str] = []
        self._armed = False
        self._act = act
        self._chance = random.Random(1)
        self._period = period
        sys.unraisablehook = lambda lost: self.noise.append(f"unraisable: {lost.exc_value!r} in {lost.object!r}")
        threading.excepthook = lambda lost: self.noise.append(f"in {lost.thread}: {lost.exc_value!r}")
        for name in ("omq", "asyncio"):
            log = logging.getLogger(name)
            log.addHandler(_Listener(self.noise))
            log.propagate = False

    def __enter__(self) -> SignalLoad:
        signal.signal(signal.SIGALRM, self._handle)
        signal.setitimer(signal.ITIMER_REAL, self._period, self._period)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, *_: object) -> None:
        if not self._armed:
            return
        self._armed = False
        if self._act is not None:
            self._act()
            self._armed = True
            return
        self.raised += 1
        raise (Tick if self._chance.random() < 0.5 else BaseTick)

    def gather(self, out: list[Any], results: Iterable[Any]) -> bool:
        """Puts results into a list until the handler raises; false if it did."""
        take = out.extend
        gc.disable()  # what is raised in the code that runs at an object's end vanishes, in every object
        try:
            self._armed = True
            take(results)
            self._armed = False
        except (Tick, BaseTick):
            self.caught += 1
            return False
        finally:
            self._armed = False
            gc.enable()
        return True

    def continues(self, end: float) -> bool:
        """Returns whether the load continues: until *end*, or on a busy machine until enough signals have raised."""
        now = time.monotonic()
        return now < end or (self._act is None and self.raised <= MIN_RAISED and now < end + 20)

    def check(self) -> None:
        """Every exception has arrived where it belongs, and nothing else went wrong."""
        lost = self.raised - self.caught
        assert self.caught == self.raised, f"{lost} of {self.raised} exceptions vanished: {self.noise[:3]}"
        assert not self.noise, self.noise[:3]
        assert self.raised > MIN_RAISED or self._act, f"{self.raised} signals are not a load"


class _Listener(logging.Handler):
    """Collects what the library complains of, without a lock."""

    def __init__(self, noise: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._noise = noise

    def createLock(self) -> None:  # noqa: N802
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        error = record.exc_info and record.exc_info[1]
        if "has dropped" not in record.getMessage():  # an interrupted end logs what it drops
            self._noise.append(f"logged: {record.getMessage()} {error!r}")
        return True


def _in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


class _StallCheck:
    """Ends a loop that makes no headway."""

    def __init__(self, what: list[Any]) -> None:
        self._what = what
        self._last = (-1, time.monotonic())

    def check(self) -> None:
        if len(self._what) != self._last[0]:
            self._last = (len(self._what), time.monotonic())
        assert time.monotonic() - self._last[1] < STALL_TIMEOUT_S, f"stalled at {len(self._what)}"


def _whole(found: list[bytes], sent: int) -> None:
    """0, 1, 2, ... without a gap, and nothing twice."""
    for number, message in enumerate(found):
        assert int(message) == number, f"{message!r} where {number} should be, of {len(found)} of {sent}"
    assert len(found) == sent, f"{len(found)} of {sent}"


# ---------------------------------------------------------------------- receiving


def _received(out: list[Any]) -> list[bytes]:
    return [message for one in out for message in (one if isinstance(one, list) else [one])]


def _receive(seconds: float, endpoint: str, how: str, beats: bool, hwm: int) -> None:
    """A stream from another thread's socket into the main thread."""
    context = omq.Context()
    pull = omq.PULL(context, bind=endpoint, recv_hwm=hwm, linger=0, recv_timeout=STALL_TIMEOUT_S)
    heart = {"heartbeat_interval": 0.01, "heartbeat_timeout": 30} if beats else {}
    sent = 0
    over = threading.Event()

    def send() -> None:
        nonlocal sent
        with omq.PUSH(context, connect=pull.endpoints[0], linger=STALL_TIMEOUT_S, **heart) as push:
            while not over.is_set():
                push.send_many([b"%d" % n for n in range(sent, sent + 50)])
                sent += 50
                if sent % 1000 == 0:
                    time.sleep(0.0007)

    sender = _in_thread(send)
    pull.wait_connected(timeout=STALL_TIMEOUT_S)
    calls: dict[str, Callable[[], Iterator[Any]]] = {
        "iteration": lambda: islice(pull, 100),
        "recv_many": lambda: map(pull.recv_many, [30] * 5),
        "recv_multipart": lambda: map(operator.call, [pull.recv_multipart] * 50),
    }
    out: list[Any] = []
    end = time.monotonic() + seconds
    stall_check = _StallCheck(out)
    with SignalLoad() as load:
        while load.continues(end):
            load.gather(out, calls[how]())
            stall_check.check()
    over.set()
    while sender.is_alive() or pull.poll(0.2):
        if pull.poll(0.05):
            out.extend(pull.recv_many())
    _whole(_received(out), sent)
    load.check()
    context.term(0)


def _receive_from_loop(seconds: float, how: str) -> None:
    """Inproc: an asyncio PUSH in a thread, and a PULL in the main thread."""
    context = omq.Context()
    pull = omq.PULL(context, bind="inproc://x", recv_hwm=10, linger=0, recv_timeout=STALL_TIMEOUT_S)
    sent = 0
    over = threading.Event()

    async def send() -> None:
        nonlocal sent
        push = omq.asyncio.PUSH(context, connect="inproc://x", send_hwm=10)
        while not over.is_set():
            await push.send(b"%d" % sent)
            sent += 1
        await push.close()

    sender = _in_thread(lambda: asyncio.run(send()))
    out: list[Any] = []
    end = time.monotonic() + seconds
    stall_check = _StallCheck(out)
    with SignalLoad() as load:
        while load.continues(end):
            load.gather(out, map(pull.recv_many, [50] * 5) if how == "recv_many" else islice(pull, 50))
            stall_check.check()
    over.set()
    while sender.is_alive() or pull.poll(0.2):
        if pull.poll(0.05):
            out.extend(pull.recv_many())
    _whole(_received(out), sent)
    load.check()
    context.term(0)


# ---------------------------------------------------------------------- sending


def _send_to_loop(seconds: float) -> None:
    """Inproc: the main thread sends to an asyncio PULL; what `send` took arrives without a further call."""
    context = omq.Context()
    got: list[bytes] = []
    ready = threading.Event()

    async def receive() -> None:
        pull = omq.asyncio.PULL(context, bind="inproc://x", recv_hwm=0)
        ready.set()
        async for message in pull:
            got.append(message)
            if message == b"-1":
                break
        pull.stop()

    receiver = _in_thread(lambda: asyncio.run(receive()))
    ready.wait()
    push = omq.PUSH(context, connect="inproc://x", send_hwm=0, linger=0)
    push.wait_connected(timeout=STALL_TIMEOUT_S)
    tries = 0
    end = time.monotonic() + seconds
    with SignalLoad(0.0003) as load:
        while load.continues(end):
            batch = [b"%d" % n for n in range(tries, tries + 20)]
            if not load.gather([], map(push.send, batch)):
                accepted = push.peers[0].messages_out
                limit = time.monotonic() + STALL_TIMEOUT_S
                while len(got) < accepted:
                    assert time.monotonic() < limit, f"{accepted} were accepted, {len(got)} arrive"
                    time.sleep(0.0002)
            tries += 20
    push.send(b"-1")
    receiver.join(STALL_TIMEOUT_S)
    numbers = [int(message) for message in got[:-1]]
    assert numbers == sorted(set(numbers)), "a message arrived twice, or too late"
    assert len(got) == push.peers[0].messages_out if push.peers else True
    load.check()
    push.stop()
    context.term(0)


def _send(seconds: float, endpoint: str) -> None:
    """The main thread sends to a thread that takes a little slowly: `send` often waits for room."""
    context = omq.Context()
    pull = omq.PULL(context, bind=endpoint, recv_hwm=20, linger=0, recv_timeout=STALL_TIMEOUT_S)
    push = omq.PUSH(context, connect=pull.endpoints[0], send_hwm=20, linger=0)
    push.wait_connected(timeout=STALL_TIMEOUT_S)
    got: list[bytes] = []

    def receive() -> None:
        while b"-1" not in got[-40:]:
            got.extend(pull.recv_many(40))
            if time.monotonic() < end:
                time.sleep(0.0003)

    end = time.monotonic() + seconds
    receiver = _in_thread(receive)
    tries = 0
    notes: list[tuple[int, int]] = []
    done: list[None] = []
    with SignalLoad() as load:
        while load.continues(end):
            del done[:]
            batch = [b"%d" % n for n in range(tries, tries + 200)]
            load.gather(done, map(push.send, batch))
            notes.append((tries, len(done)))
            tries += 200
    push.send(b"-1", timeout=STALL_TIMEOUT_S)
    receiver.join(STALL_TIMEOUT_S * 2)
    assert not receiver.is_alive(), f"the last message does not arrive; {len(got)} did"
    numbers = [int(message) for message in got[:-1]]
    assert numbers == sorted(set(numbers)), "a message arrived twice, or too late"
    arrived = set(numbers)
    for start, certain in notes:
        missing = [n for n in range(start, start + certain) if n not in arrived]
        assert not missing, f"{missing[:3]} were sent and do not arrive"
        # One more than those that returned may have been taken: the call that was interrupted.
        more = [n for n in range(start + certain, start + 200) if n in arrived]
        assert more in ([], [start + certain]), f"{more[:3]} arrive, whose send did not return"
    load.check()
    push.stop()
    pull.stop()
    context.term(0)


# ---------------------------------------------------------------------- subscriptions


def _in_force(socket: Any) -> set[bytes]:
    return {bytes(prefix) for prefix, _ in socket._engine.pattern.matcher.prefixes()}


def _subscribe(seconds: float, endpoint: str) -> None:
    """`subscribe` and `unsubscribe` in the main thread; what is interrupted is done again."""
    context = omq.Context()
    pub = omq.PUB(context, bind=endpoint, linger=0, max_subscriptions=None)
    sub = omq.SUB(context, connect=pub.endpoints[0], linger=0)
    sub.wait_connected(timeout=STALL_TIMEOUT_S)
    want: set[bytes] = set()
    end = time.monotonic() + seconds
    with SignalLoad() as load:
        for number in itertools.count():
            if not load.continues(end):
                break
            prefix = b"%08d" % number
            while not load.gather([], map(sub.subscribe, [prefix])):
                pass
            if number % 3:
                want.add(prefix)
            else:
                while not load.gather([], map(sub.unsubscribe, [prefix])):
                    pass
    sub.subscribe(b"end")
    pub.wait_subscribed(b"end", timeout=STALL_TIMEOUT_S)
    mine, theirs = _in_force(sub), _in_force(pub)
    assert want <= theirs, f"the publisher misses {len(want - theirs)} of {len(want)}: {sorted(want - theirs)[:3]}"
    assert mine == theirs, f"{len(mine ^ theirs)} differ: {sorted(mine ^ theirs)[:3]}"
    load.check()
    context.term(0)


def _receive_subscriptions(seconds: float, endpoint: str) -> None:
    """An XPUB in the main thread receives every subscription that is in force."""
    context = omq.Context()
    # Sooner or later there are more than the million that one peer may have.
    xpub = omq.XPUB(context, bind=endpoint, recv_hwm=0, linger=0, recv_timeout=STALL_TIMEOUT_S, max_subscriptions=None)
    over = threading.Event()

    def subscribe() -> None:
        with omq.SUB(context, connect=xpub.endpoints[0], linger=STALL_TIMEOUT_S) as sub:
            for number in itertools.count():
                sub.subscribe(b"%07d" % number)
                if over.is_set():
                    break
                if number % 100 == 0:
                    time.sleep(0.001)
            sub.subscribe(b"end")
            done.wait(STALL_TIMEOUT_S)

    done = threading.Event()
    subscriber = _in_thread(subscribe)
    xpub.wait_connected(timeout=STALL_TIMEOUT_S)
    since = xpub.peers[0].since
    out: list[Any] = []
    end = time.monotonic() + seconds
    stall_check = _StallCheck(out)
    with SignalLoad() as load:
        while load.continues(end):
            load.gather(out, islice(xpub, 20))
            stall_check.check()
    over.set()
    while b"\1end" not in out[-1000:]:
        out.extend(xpub.recv_many())
    assert xpub.peers[0].since == since, "the connection was lost"
    counts = Counter(out)
    assert set(counts.values()) == {1}, "received twice"
    silent = _in_force(xpub) - {message[1:] for message in counts}
    assert not silent, f"{len(silent)} are in force, and were not received: {sorted(silent)[:3]}"
    done.set()
    subscriber.join(STALL_TIMEOUT_S)
    load.check()
    context.term(0)


# ---------------------------------------------------------------------- life


def _live(seconds: float) -> None:
    """Sockets come and go in the main thread: bind, connect, wait, options, monitors, close; nothing stays behind."""
    context = omq.Context()
    sockets: list[Any] = []

    def life() -> None:
        pull = omq.PULL(context, linger=0)
        sockets.append(pull)
        monitor = pull.monitor()
        pull.bind("tcp://127.0.0.1:*")
        push = omq.PUSH(context, linger=0)
        sockets.append(push)
        push.connect(pull.endpoints[0])
        push.wait_connected(timeout=STALL_TIMEOUT_S)
        push.send(b"x", timeout=STALL_TIMEOUT_S)
        pull.set_options(recv_hwm=5)
        assert pull.recv(timeout=STALL_TIMEOUT_S) == b"x"
        assert monitor.recv(timeout=STALL_TIMEOUT_S).kind == "listening"
        push.disconnect(pull.endpoints[0])
        pull.unbind(pull.endpoints[0])
        push.close()
        pull.close()

    end = time.monotonic() + seconds
    with SignalLoad(0.002) as load:
        while load.continues(end):
            load.gather([], map(operator.call, [life]))
            while sockets:
                sockets.pop().close(0)
    load.check()
    for _ in range(10):  # a busy machine lets few of them come to their end between two signals
        life()
    context.term(0)
    assert not any(thread.name == "omq-io" for thread in threading.enumerate())


def _terminate(seconds: float) -> None:
    """Contexts end in the main thread, and end for good when asked once more."""
    end = time.monotonic() + seconds
    with SignalLoad(0.001) as load:
        while load.continues(end):
            context = omq.Context()
            pull = omq.PULL(context, bind="tcp://127.0.0.1:*")
            push = omq.PUSH(context, connect=pull.endpoints[0], linger=1)
            push.send(b"x")
            while not load.gather([], map(operator.call, [context.term])):
                pass
            assert pull.closed
            assert push.closed
            assert not any(thread.name == "omq-io" for thread in threading.enumerate())
    load.check()


def _other_calls(seconds: float, endpoint: str) -> None:
    """The handler sends and receives on the very sockets that the main thread is using."""
    context = omq.Context()
    pull = omq.PULL(context, bind=endpoint, linger=0, recv_timeout=STALL_TIMEOUT_S, recv_hwm=0)
    push = omq.PUSH(context, connect=pull.endpoints[0], linger=0, send_hwm=0)
    push.wait_connected(timeout=STALL_TIMEOUT_S)
    numbers = itertools.count()
    by_handler: list[bytes] = []
    refused = 0

    def act() -> None:
        nonlocal refused
        try:
            push.send(b"%d" % next(numbers))
            if pull.poll(0):
                by_handler.extend(pull.recv_many(3, timeout=0))
        except omq.StateError:  # a call of this very socket was at work; nothing was sent
            refused += 1

    out: list[Any] = []
    end = time.monotonic() + seconds
    with SignalLoad(0.0005, act) as load:
        while load.continues(end) or (not by_handler and time.monotonic() < end + 20):
            load.gather([], map(push.send, [b"%d" % n for n in islice(numbers, 30)]))
            load.gather(out, map(pull.recv_many, [20]))
    while pull.poll(0.3):
        out.extend([pull.recv_many()])
    found = sorted(int(message) for message in _received(out) + by_handler)
    last = next(numbers)
    assert len(found) == len(set(found)), "a message arrived twice"
    assert last - len(found) <= refused, f"{last - len(found)} of {last} are lost; {refused} calls were refused"
    assert by_handler
    load.check()
    context.term(0)


def _close_anywhere(seconds: float, kind: str) -> None:
    """A handler closes the socket at some moment of a stream; the main thread finds it closed."""
    chance = random.Random(kind)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        context = omq.Context()
        pull = omq.PULL(context, bind="tcp://127.0.0.1:*", linger=0, recv_timeout=0.2)
        push = omq.PUSH(context, connect=pull.endpoints[0], linger=0, send_timeout=STALL_TIMEOUT_S)
        push.wait_connected(timeout=STALL_TIMEOUT_S)
        one = chance.choice([pull, push])
        ended: dict[str, Callable[[], Any]] = {
            "close": lambda one=one: one.close(0),
            "stop": one.stop,
            "term": lambda context=context: context.term(0),
        }
        signal.signal(signal.SIGALRM, lambda *_, end=ended[kind]: end())
        signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.01 + 0.0001)
        with contextlib.suppress(omq.ClosedError, omq.ContextTerminated, omq.ReceiveTimeout):
            while True:
                push.send_many([b"x"] * 20)
                pull.recv_many()
        assert one.closed
        context.term(0)


LOADS: dict[str, Callable[[float], None]] = {
    "tcp-iteration": lambda s: _receive(s, "tcp://127.0.0.1:*", "iteration", True, 5),
    "tcp-recv-many": lambda s: _receive(s, "tcp://127.0.0.1:*", "recv_many", True, 1000),
    "ipc-recv-multipart": lambda s: _receive(s, "ipc://*", "recv_multipart", False, 50),
    "inproc-recv-many": lambda s: _receive(s, "inproc://x", "recv_many", False, 50),
    "loop-recv-many": lambda s: _receive_from_loop(s, "recv_many"),
    "loop-iteration": lambda s: _receive_from_loop(s, "iteration"),
    "send-to-loop": _send_to_loop,
    "send-tcp": lambda s: _send(s, "tcp://127.0.0.1:*"),
    "send-inproc": lambda s: _send(s, "inproc://x"),
    "subscribe-tcp": lambda s: _subscribe(s, "tcp://127.0.0.1:*"),
    "subscribe-inproc": lambda s: _subscribe(s, "inproc://x"),
    "hear-tcp": lambda s: _receive_subscriptions(s, "tcp://127.0.0.1:*"),
    "hear-inproc": lambda s: _receive_subscriptions(s, "inproc://x"),
    "live": _live,
    "terminate": _terminate,
    "calls-tcp": lambda s: _other_calls(s, "tcp://127.0.0.1:*"),
    "calls-inproc": lambda s: _other_calls(s, "inproc://x"),
    "close": lambda s: _close_anywhere(s, "close"),
    "stop": lambda s: _close_anywhere(s, "stop"),
    "term": lambda s: _close_anywhere(s, "term"),
}


def main() -> None:
    name, seconds = sys.argv[1], float(sys.argv[2])
    faulthandler.dump_traceback_later(seconds + 25, exit=True)
    LOADS[name](seconds)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
