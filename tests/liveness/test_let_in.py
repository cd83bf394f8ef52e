"""The I/O thread has its turn next to a busy main thread, which releases the GIL for a microsecond at a time."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

import omq
from omq._core.link.convoy_breaker import handovers
from tests.support.fork_server import SOCKETS, ForkedProcess, run
from tests.support.waits import least, until

pytestmark = pytest.mark.alone

WORK = 1e-3  # seconds of pure Python between two system calls: the GIL is never asked for in vain for 5 ms
PROCESS_TIMEOUT_S = 20.0  # seconds for a peer's process
TIMES = 12

GREETERS = """
import sys, time, zmq
for _ in range(int(sys.argv[2])):
    sock = zmq.Context.instance().socket(zmq.PUSH)
    monitor = sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    begun = time.monotonic()
    sock.connect(sys.argv[1])
    assert monitor.poll(10_000)
    print(time.monotonic() - begun, flush=True)
    sock.disable_monitor()
    sock.close(0)
"""
SENDER = """
import sys, time, zmq
sock = zmq.Context.instance().socket(zmq.PUSH)
monitor = sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
sock.connect(sys.argv[1])
assert monitor.poll(10_000)
for _ in range(int(sys.argv[2])):
    time.sleep(0.05)
    sock.send(b"%d" % time.monotonic_ns())
sys.stdin.read()
"""


@pytest.fixture
def peer() -> Iterator[Callable[[str, str], ForkedProcess]]:
    """Starts a libzmq peer of its own process, of the code and the endpoint given."""
    peers = []

    def start(code: str, endpoint: str) -> ForkedProcess:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        peers.append(ForkedProcess("-c", code, endpoint, str(TIMES), template=SOCKETS, **pipes))
        return peers[-1]

    yield start
    for each in peers:
        each.kill()
        each.communicate()


def _work(near: int, far: int) -> None:
    os.write(far, b"x")
    os.read(near, 1)
    until = time.perf_counter() + WORK
    while time.perf_counter() < until:
        pass


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_peers_are_greeted(peer: Callable[..., ForkedProcess], pipe: tuple[int, int]) -> None:
    def greet() -> float:
        with omq.PULL(bind="tcp://127.0.0.1:*") as sock:
            greeted = peer(GREETERS, sock.endpoints[0])
            end = time.monotonic() + PROCESS_TIMEOUT_S
            while greeted.poll() is None:
                assert time.monotonic() < end, "they were not"
                _work(*pipe)
            assert greeted.stdout is not None
            took = [float(line) for line in greeted.stdout]
        assert len(took) == TIMES
        return median(took)

    # Without help the half of them takes 150 to 600 ms, and some take seconds.
    assert least(greet, 0.05) < 0.05


def test_the_descriptor_shows_what_arrives(peer: Callable[..., ForkedProcess], pipe: tuple[int, int]) -> None:
    def receive() -> float:
        ages: list[float] = []
        with omq.PULL(bind="tcp://127.0.0.1:*") as sock, selectors.DefaultSelector() as selector:
            selector.register(sock.fileno(), selectors.EVENT_READ)
            peer(SENDER, sock.endpoints[0])
            end = time.monotonic() + PROCESS_TIMEOUT_S
            while len(ages) < TIMES:
                assert time.monotonic() < end, f"{len(ages)} messages"
                if selector.select(0):
                    ages.append((time.monotonic_ns() - int(sock.recv(timeout=0))) / 1e9)
                _work(*pipe)
        return max(median(ages), sorted(ages)[-2] / 5)

    # Without help the half of them are 30 to 60 ms old, and some half a second.
    assert least(receive, 0.02) < 0.02


def test_an_idle_io_thread_causes_no_handovers(pipe: tuple[int, int]) -> None:
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
        push.send(b"first")
        assert pull.recv(timeout=5) == b"first"
        time.sleep(0.1)  # it looks after the socket once more, and then no more
        before = handovers()
        for _ in range(100):
            _work(*pipe)
        assert handovers() - before < 5


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_the_watching_thread_ends_with_its_context() -> None:
    before = _threads()
    for _ in range(3):
        with (
            omq.Context() as context,
            omq.PULL(context, bind="tcp://127.0.0.1:*") as pull,
            omq.PUSH(context, connect=pull.endpoints[0]) as push,
        ):
            push.send(b"body")
            assert pull.recv(timeout=5) == b"body"
            assert _threads() > before
    until(lambda: _threads() <= before, lambda: f"{_threads()} threads of {before}", 5)


INHERITED = """
import os, select, socket, time
import omq
others = select.epoll()
pairs = [socket.socketpair() for _ in range(30)]
for one, _ in pairs:
    others.register(one, select.EPOLLIN)
child = os.fork()
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for pair in pairs:
    for end in pair:
        end.close()  # whose numbers the child's own descriptors get, and the set still has
def watching():
    sets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if "eventpoll" in os.readlink("/proc/self/fd/" + name):
                with open("/proc/self/fdinfo/" + name) as file:
                    sets.append([int(line.split()[1]) for line in file if line.startswith("tfd:")])
        except OSError:
            pass
    return sets
with omq.PULL(bind="tcp://127.0.0.1:*"):
    time.sleep(0.2)
    os._exit(any(others.fileno() in of for of in watching()))
"""


def test_a_forked_child_watches_its_own_event_loop() -> None:
    """An epoll set that it has inherited may hold the number of its bell, and another descriptor by it."""
    done = run("-c", INHERITED, timeout=PROCESS_TIMEOUT_S, template=SOCKETS)
    assert (done.returncode, done.stderr) == (0, "")
