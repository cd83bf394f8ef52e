"""Backpressure: stuck consumers, fairness both ways, too many parts, and memory that stays bounded."""

from __future__ import annotations

import signal
import subprocess
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import omq
from tests.support.fork_server import ForkedProcess
from tests.support.parameters import each_value_once
from tests.support.waits import BOUND, until

BODY = bytes(20_000)


class Consumer:
    """A PULL in a process of its own; it prints how many messages it has taken when nothing has come for a second."""

    SOURCE = textwrap.dedent(
        """
        import sys, omq
        pull = omq.PULL(connect=sys.argv[1], recv_hwm=100)
        count = 0
        print("up", flush=True)
        if sys.argv[2] == "held":
            sys.stdin.read(1)
        try:
            while True:
                pull.recv(timeout=1 if count else 10)
                count += 1
        except omq.ReceiveTimeout:
            print(count, flush=True)
        """
    )

    def __init__(self, endpoint: str, manner: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = ForkedProcess("-c", self.SOURCE, endpoint, manner, text=True, **pipes)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"

    def count(self) -> int:
        out, _ = self.process.communicate(timeout=BOUND)  # and ends its input
        return int(out)


@pytest.fixture
def consumer() -> Iterator[Callable[..., Consumer]]:
    started: list[Consumer] = []

    def start(endpoint: str, manner: str) -> Consumer:
        started.append(Consumer(endpoint, manner))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.mark.slow
@each_value_once("twin", twin=["blocking", "asyncio"], how=["stopped", "never receives"])
def test_a_stuck_consumer_among_four_parks_only_what_it_has_pulled(twin, consumer, how):
    """The other three take all the rest, the sender never waits for the stuck one, and nothing is lost."""
    push = twin("PUSH", bind="tcp://127.0.0.1:*", send_hwm=100)
    endpoint = push.endpoints[0]
    stuck = consumer(endpoint, "busy" if how == "stopped" else "held")
    push.wait_connected(timeout=BOUND)
    if how == "stopped":
        stuck.process.send_signal(signal.SIGSTOP)
    busy = [consumer(endpoint, "busy") for _ in range(3)]
    push.wait_connected(4, timeout=BOUND)
    total = 3000
    assert push.send_many([BODY] * total, timeout=BOUND) == total, "a stuck consumer blocks the sender"
    taken = [one.count() for one in busy]
    if how == "stopped":
        stuck.process.send_signal(signal.SIGCONT)
    parked = stuck.count()
    # What two kernel buffers, a batch and recv_hwm hold (8 MiB would be 420 messages), and nothing besides.
    assert parked < 1000
    assert sum(taken) + parked == total
    # Not an even share: who gets how much time is the system's affair.
    assert min(taken) > total / 100, "the three share the rest"


def test_a_busy_peer_leaves_the_others_their_turn(twin, endpoint):
    """A flood next to a trickle: the trickle's messages wait for one turn (256 messages), not for the flood's end."""
    pull = twin("PULL", bind=endpoint, recv_hwm=0)
    flood = twin("PUSH", connect=pull.endpoints[0], send_hwm=0)
    trickle = twin("PUSH", connect=pull.endpoints[0])
    pull.wait_connected(2, timeout=BOUND)
    flood.send_many([b"flood"] * 20_000)
    until(lambda: max(peer.messages_in for peer in pull.peers) == 20_000)
    trickle.send_many([b"trickle"] * 10)
    until(lambda: sum(peer.messages_in for peer in pull.peers) == 20_010)
    got = pull.recv_many(1000, timeout=BOUND)
    first = got.index(b"trickle")
    assert first <= 256
    assert Counter(got)[b"trickle"] == 10


def test_large_messages_count_by_their_bytes(twin, endpoint):
    """A turn has 512 KiB as well: a peer with messages of 100 kB has some five of them a turn."""
    pull = twin("PULL", bind=endpoint, recv_hwm=0)
    heavy = twin("PUSH", connect=pull.endpoints[0], send_hwm=0)
    light = twin("PUSH", connect=pull.endpoints[0])
    pull.wait_connected(2, timeout=BOUND)
    heavy.send_many([bytes(100_000)] * 100)
    until(lambda: max(peer.messages_in for peer in pull.peers) == 100)
    light.send(b"light")
    until(lambda: sum(peer.messages_in for peer in pull.peers) == 101)
    got = [len(pull.recv(timeout=BOUND)) for _ in range(101)]
    assert got.index(5) <= 7


STREAM = textwrap.dedent(
    """
    import sys, time, omq
    push = omq.PUSH(connect=sys.argv[1], linger=0)
    messages = [bytes(int(sys.argv[2]))] * 100
    end = time.monotonic() + 4
    while time.monotonic() < end:
        push.send_many(messages)
    """
)


@pytest.mark.parametrize("size", [10, 100_000])
def test_taking_all_that_is_there_ends_next_to_a_peer_that_never_does(twin, size):
    """More comes while the first messages are taken; a call takes what it finds in some 20 ms of work."""
    pull = twin("PULL", bind="tcp://127.0.0.1:*")
    with ForkedProcess("-c", STREAM, pull.endpoints[0], str(size)) as stream:
        try:
            pull.recv(timeout=BOUND)
            taken = []
            for _ in range(5):
                start = time.monotonic()
                taken.append(len(pull.recv_many(10**9, timeout=BOUND)))
                assert time.monotonic() - start < 1
            assert stream.poll() is None, "the stream was to go on"
            assert sum(taken) >= 5
        finally:
            stream.kill()


def test_taking_all_that_is_there_ends_where_that_is_much(twin, inproc):
    """Three million messages take three times as long as a call may work."""
    count = 3_000_000
    pull = twin("PULL", bind=inproc, recv_hwm=0)
    push = twin("PUSH", connect=inproc, send_hwm=0)
    message = b"x"
    for _ in range(300):
        push.send_many([message] * (count // 300))
    begun = time.process_time()
    assert 256 < len(pull.recv_many(10**9, timeout=BOUND)) < count
    assert time.process_time() - begun < 0.5


def test_a_peer_with_a_backlog_does_not_delay_another_one(twin):
    """Output is fair, too: one peer's backlog does not delay the others."""
    router = twin("ROUTER", bind="tcp://127.0.0.1:*", send_hwm=0)
    heavy = twin("DEALER", connect=router.endpoints[0], identity=b"heavy", recv_hwm=2)
    light = twin("DEALER", connect=router.endpoints[0], identity=b"light")
    router.wait_connected(2, timeout=BOUND)
    for number in range(300):
        router.send_multipart([b"heavy", b"%d" % number, bytes(500_000)])
    start = time.monotonic()
    for number in range(50):
        router.send_multipart([b"light", b"%d" % number])
        assert light.recv(timeout=BOUND) == b"%d" % number
    assert time.monotonic() - start < 5
    assert [int(heavy.recv_multipart(timeout=BOUND)[0]) for _ in range(300)] == list(range(300))


# Messages of several parts where one was expected


@pytest.mark.parametrize("kinds", [("PUSH", "PULL"), ("DEALER", "DEALER"), ("PUB", "SUB")], ids="-".join)
def test_two_parts_at_a_recv_loop_stay_first_in_line(twin, endpoint, kinds):
    options = {"subscribe": b""} if kinds[1] == "SUB" else {}
    receiver = twin(kinds[1], bind=endpoint, **options)
    sender = twin(kinds[0], connect=receiver.endpoints[0])
    sender.wait_connected(timeout=BOUND)
    if kinds[0] == "PUB":
        sender.wait_subscribed(timeout=BOUND)
    sender.send(b"one")
    sender.send_multipart([b"two", b"parts"])
    sender.send(b"three")
    assert receiver.recv(timeout=BOUND) == b"one"
    for _ in range(3):
        with pytest.raises(omq.MultipartError, match="recv_multipart"):
            receiver.recv(timeout=BOUND)
    with pytest.raises(omq.MultipartError):
        receiver.recv_into(bytearray(100), timeout=BOUND)
    assert receiver.poll(0)
    assert receiver.recv_multipart(timeout=BOUND) == [b"two", b"parts"]
    assert receiver.recv(timeout=BOUND) == b"three"


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_max_parts_of_one_costs_who_sends_two_its_connection(twin, tmp_path, transport):
    """No other peer notices it: a loop of `recv` never sees a MultipartError."""
    endpoint = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/s"
    pull = twin("PULL", bind=endpoint, max_parts=1)
    good = twin("PUSH", connect=pull.endpoints[0])
    bad = twin("PUSH", connect=pull.endpoints[0], reconnect_interval=None)
    pull.wait_connected(2, timeout=BOUND)
    monitor = pull.monitor()
    bad.send(b"still fine")
    assert pull.recv(timeout=BOUND) == b"still fine"
    bad.send_multipart([b"one", b"too many"])
    until(lambda: len(pull.peers) == 1)
    good.send(b"unharmed")
    assert pull.recv(timeout=BOUND) == b"unharmed"
    until(lambda: not bad.peers)
    event = twin.wait(lambda: monitor.recv(timeout=BOUND))
    assert (event.kind, event.reason) == ("disconnected", "a message has more than max_parts=1 parts")


def test_a_conflating_end_keeps_one_message_however_far_its_partner_is_ahead(inproc):
    """Over inproc between threads: what its owner has not learnt of yet must not pile up either."""
    import asyncio
    import tracemalloc

    import omq.asyncio

    context = omq.Context()
    blocked, go_on = threading.Event(), threading.Event()
    got: list[bytes] = []

    async def owner() -> None:
        async with omq.asyncio.PULL(context, bind=inproc, conflate=True) as pull:
            await pull.wait_connected(timeout=BOUND)
            blocked.set()
            go_on.wait(BOUND)  # the loop does not run: its owner does not learn of arrivals
            got.append(await pull.recv(timeout=BOUND))
            got.append(b"%d more" % bool(await pull.poll(0.05)))

    thread = threading.Thread(target=lambda: asyncio.run(owner()), daemon=True)
    thread.start()
    with omq.PUSH(context, connect=inproc) as push:
        assert blocked.wait(BOUND)
        tracemalloc.start()
        for number in range(20_000):
            push.send(b"%10d" % number + bytes(1000))
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert grown < 1_000_000, "twenty thousand messages wait where one is kept"
        go_on.set()
        thread.join(BOUND)
    assert [got[0][:10], got[1]] == [b"     19999", b"0 more"]
    context.term()
