"""Peers that flood others with unwanted data: they delay no other, fill no memory, and silence no other peer."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import omq
import omq.asyncio
from omq._core.bell import Bell
from omq._core.link.background import Background
from omq._core.link.connection import Connection
from omq._core.link.poller import Poller
from omq._core.queues.peer import RecvQueue
from omq._core.queues.wait_queue import WaitQueue
from omq._core.wire.framing import encode_frame
from omq._core.wire.pool import Pool
from tests.support.waits import until

# The tests set SIGALRM, with which timeouts are made otherwise.
pytestmark = pytest.mark.timeout(method="thread")

GREETING = b"\xff" + bytes(8) + b"\x7f\3\1NULL" + bytes(48)
BOUND = 0.3  # seconds that the calls here may wait
MAX_LATENESS_S = 4.0  # seconds by which one of them may be late on a busy machine; a flood takes twenty


def flood(endpoint: str, kind: bytes, what: bytes, seconds: float) -> int:
    """A process that shakes hands and then sends the same all the time."""
    child = os.fork()
    if child:
        return child
    try:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        peer = socket.create_connection((host, int(port)))
        ready = b"\5READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
        peer.sendall(GREETING + bytes([4, len(ready)]) + ready)
        seen = b""
        while b"READY" not in seen:  # behind ours nothing may follow before theirs
            seen += peer.recv(4096)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            peer.sendall(what)
    except OSError:
        pass
    finally:
        os._exit(0)


@pytest.fixture
def flooded() -> Iterator[Callable[..., None]]:
    """Has a socket flooded until the test ends."""
    children: list[int] = []

    def begin(endpoint: str, kind: bytes, what: bytes) -> None:
        children.append(flood(endpoint, kind, what, 20.0))

    yield begin
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


UNWANTED = b"\0\2Bx" * 100_000


def rises(one: omq.Socket) -> None:
    """Waits until the flood is there."""
    until(lambda: max((peer.bytes_in for peer in one.peers), default=0) > 1000, "the flood", 10)


CASES = [
    pytest.param(omq.SUB, b"PUB", id="SUB"),
    pytest.param(omq.REP, b"REQ", id="REP"),
]


@pytest.mark.parametrize(("kind", "theirs"), CASES)
@pytest.mark.parametrize("way", ["recv", "poll", "fileno"])
def test_a_call_keeps_its_time_while_a_peer_sends_what_is_dropped(
    kind: Any, theirs: bytes, way: str, flooded: Callable[..., None]
) -> None:
    options = {"subscribe": b"A"} if kind is omq.SUB else {}
    rang: list[float] = []
    with kind(bind="tcp://127.0.0.1:*", linger=0, **options) as one:
        flooded(one.endpoints[0], theirs, UNWANTED)
        one.wait_connected(timeout=10)
        rises(one)
        before = signal.signal(signal.SIGALRM, lambda *_: rang.append(time.monotonic()))
        try:
            begun = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            if way == "recv":
                with pytest.raises(omq.ReceiveTimeout):
                    one.recv_multipart(timeout=BOUND)
            elif way == "poll":
                assert not one.poll(BOUND)
            else:
                assert not omq.wait([one], BOUND)
            assert time.monotonic() - begun < BOUND + MAX_LATENESS_S
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert rang, "no signal handler ran"
        assert rang[0] - begun < 0.1 + MAX_LATENESS_S


@pytest.mark.alone
def test_another_publisher_is_received_meanwhile(flooded: Callable[..., None]) -> None:
    with (
        omq.SUB(bind="tcp://127.0.0.1:*", subscribe=b"A", linger=0) as sub,
        omq.PUB(connect=sub.endpoints[0], linger=0) as pub,
    ):
        pub.wait_subscribed(b"A", timeout=10)
        flooded(sub.endpoints[0], b"PUB", UNWANTED)
        sub.wait_connected(2, timeout=10)
        rises(sub)
        late = []
        for _ in range(5):
            begun = time.monotonic()
            pub.send(b"A news")
            assert sub.recv(timeout=10) == b"A news"
            late.append(time.monotonic() - begun)
        assert sorted(late)[2] < 0.1


@pytest.mark.alone
def test_other_threads_go_on_meanwhile(flooded: Callable[..., None]) -> None:
    with omq.SUB(bind="tcp://127.0.0.1:*", subscribe=b"A", linger=0) as sub:
        flooded(sub.endpoints[0], b"PUB", UNWANTED)
        sub.wait_connected(timeout=10)
        rises(sub)
        beats: list[float] = []
        over = threading.Event()

        def beat() -> None:
            while not over.wait(0.01):
                beats.append(time.monotonic())

        thread = threading.Thread(target=beat)
        thread.start()
        with pytest.raises(omq.ReceiveTimeout):
            sub.recv(timeout=1.0)
        over.set()
        thread.join()
        assert max((b - a for a, b in itertools.pairwise(beats)), default=9.0) < 0.5


class Owner:
    """The engine's callbacks, if its thread had the time for them."""

    def on_command(self, body: bytes) -> None:
        raise AssertionError("the bell was not answered")


def test_commands_that_the_engine_has_no_time_for_fill_no_memory() -> None:
    near, far = socket.socketpair()
    near.setblocking(False)
    poller, bell = Poller(None), Bell()
    poller.set_bell(bell)
    peer = Connection(Owner(), near.detach(), poller, Pool(), RecvQueue(WaitQueue()), 0)
    peer.start(b"")
    command = encode_frame(b"\7UNKNOWN" + bytes(100), command=True)
    for _ in range(100):
        far.sendall(command * 100)
        poller.dispatch()
    assert peer.bytes_in == 100 * 100 * len(command)
    assert peer.untold == 64
    far.close()
    peer.close()
    poller.close()


def test_a_flusher_that_has_been_stopped_stays_so() -> None:
    """An asyncio socket may outlive its context, and receive its first PING then."""
    background = Background()
    background.stop()
    threads = len(os.listdir("/proc/self/task"))
    near, far = socket.socketpair()
    near.setblocking(False)
    poller = Poller(None)
    peer = Connection(Owner(), near.detach(), poller, Pool(), RecvQueue(WaitQueue()), 0, background=background)
    peer.start(b"")
    far.sendall(encode_frame(b"\4PING\0\0", command=True))
    until(lambda: poller.dispatch() or peer.pings)
    assert len(os.listdir("/proc/self/task")) <= threads  # one that another test has left may end meanwhile
    background.stop()
    far.close()
    peer.close()
    poller.close()


SUBSCRIPTIONS = (b"\4\x0b\x09SUBSCRIBEa" + b"\4\x08\6CANCELa") * 20_000
COMMANDS = {"unknown": b"\4\2\1X" * 100_000, "PING": (b"\4\7\4PING\0\1" + b"\4\7\4PING\0\2") * 20_000}


@pytest.mark.alone
def test_no_thread_of_the_process_waits_for_a_flood_of_subscriptions(flooded: Callable[..., None]) -> None:
    """A thread that wants the interpreter's lock needs a moment to wake up, and gets it."""
    with omq.PUB(bind="tcp://127.0.0.1:*", linger=0) as pub:
        flooded(pub.endpoints[0], b"SUB", SUBSCRIPTIONS)
        pub.wait_connected(timeout=10)
        longest, before = 0.0, time.monotonic()
        end = before + 2
        while before < end:
            time.sleep(0.002)
            now = time.monotonic()
            longest, before = max(longest, now - before), now
        assert longest < 0.7  # it was seconds


@pytest.mark.alone
@pytest.mark.parametrize("what", COMMANDS)
def test_a_flood_of_commands_does_not_hold_up_a_loop(what: str, flooded: Callable[..., None]) -> None:
    asyncio.run(_ages(COMMANDS[what], flooded))


async def _ages(flood: bytes, flooded: Callable[..., None]) -> None:
    async with (
        omq.asyncio.ROUTER(bind="tcp://127.0.0.1:*", linger=0) as router,
        omq.asyncio.DEALER(connect=router.endpoints[0], linger=0) as quiet,
    ):
        await quiet.wait_connected(timeout=10)
        flooded(router.endpoints[0], b"DEALER", flood)
        await router.wait_connected(2, timeout=10)
        ages = []
        for _ in range(30):
            begun = time.monotonic()
            await quiet.send(b"x")
            await router.recv_multipart(timeout=10)
            ages.append(time.monotonic() - begun)
        assert sorted(ages)[15] < 0.1  # it was half a second
