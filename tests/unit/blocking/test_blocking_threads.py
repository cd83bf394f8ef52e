"""Threads that share blocking sockets: every message once, in its sender's order, and no thread left asleep."""

from __future__ import annotations

import contextlib
import itertools
import random
import struct
import threading
import time
from collections import Counter, defaultdict

import pytest

import omq
from tests.support.waits import stable, until
from tests.unit.blocking.conftest import BOUND, asleep

PAIR = struct.Struct("<II")


def _send(socket, sender, count, size=0, pauses=None):
    for number in range(count):
        socket.send(PAIR.pack(sender, number) + b"x" * size, timeout=BOUND)
        if pauses is not None and pauses.random() < 0.01:
            time.sleep(pauses.random() * 0.002)


def _fill(socket, payload, send_timeout=0.3):
    """Sends until there is no room; how many messages went."""
    sent = 0
    with contextlib.suppress(omq.SendTimeout):
        while True:
            socket.send(payload, timeout=send_timeout)
            sent += 1
    return sent


def _check_exactly_once(received, senders, count):
    """Every receiver saw each sender's messages in order; together they saw each of them once."""
    seen = Counter()
    for messages in received:
        last = defaultdict(lambda: -1)
        for message in messages:
            sender, number = PAIR.unpack(message[: PAIR.size])
            assert number > last[sender], f"sender {sender}: {number} after {last[sender]}"
            last[sender] = number
            seen[sender, number] += 1
    assert set(seen.values()) == {1}
    assert len(seen) == senders * count


def _receive_until_closed(socket, remaining):
    messages = []
    while True:
        try:
            messages.append(socket.recv(timeout=BOUND))
        except omq.ClosedError:
            return messages
        if next(remaining) == 0:
            socket.stop()


@pytest.mark.parametrize(("senders", "receivers"), [(4, 4), (7, 1), (1, 7)])
def test_threads_hammer_one_pair(make, crew, endpoint, senders, receivers):
    count = 6000 // senders
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint, send_hwm=100, recv_hwm=100)
    remaining = itertools.count(senders * count - 1, -1)
    for _ in range(receivers):
        crew(_receive_until_closed, pull, remaining)
    for sender in range(senders):
        crew(_send, push, sender, count, 0, random.Random(sender))
    results = crew.join(40)
    _check_exactly_once(results[:receivers], senders, count)


@pytest.mark.parametrize("size", [0, 5000, 200_000])
def test_threads_hammer_one_pair_with_messages_of_every_kind(make, crew, endpoint, size):
    count = 400 if size < 100_000 else 60
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint, send_hwm=50, recv_hwm=50)
    remaining = itertools.count(4 * count - 1, -1)
    for _ in range(4):
        crew(_receive_until_closed, pull, remaining)
    for sender in range(4):
        crew(_send, push, sender, count, size)
    _check_exactly_once(crew.join(40)[:4], 4, count)


def test_dealers_of_several_threads_and_a_router(make, crew, endpoint):
    router, dealer = make.linked(omq.ROUTER, omq.DEALER, endpoint)
    router.set_options(router_mandatory=True)  # otherwise it drops for a peer that is full (RFC 28)
    count = 2000

    def echo():
        with contextlib.suppress(omq.ClosedError):
            while True:
                router.send_multipart(router.recv_multipart(timeout=BOUND), timeout=BOUND)

    remaining = itertools.count(3 * count - 1, -1)
    for _ in range(3):
        crew(_receive_until_closed, dealer, remaining)
    for sender in range(3):
        crew(_send, dealer, sender, count)
    echoes = [threading.Thread(target=echo, daemon=True) for _ in range(2)]
    for thread in echoes:
        thread.start()
    received = crew.join(40)[:3]
    router.close(0)
    for thread in echoes:
        thread.join(BOUND)
        assert not thread.is_alive()
    # Two echoing threads may swap what they pass on, so only the sum counts here.
    assert Counter(itertools.chain(*received)) == Counter(PAIR.pack(s, n) for s in range(3) for n in range(count))


def test_one_thread_sends_while_another_receives_on_a_dealer(make, crew, endpoint):
    one, other = make.linked(omq.DEALER, omq.DEALER, endpoint, send_hwm=64, recv_hwm=64)
    count = 5000
    for socket in (one, other):
        crew(_send, socket, 1, count)
        crew(lambda socket=socket: [PAIR.unpack(socket.recv(timeout=BOUND))[1] for _ in range(count)])
    results = crew.join(40)
    assert results[1] == results[3] == list(range(count))


def test_two_receivers_blocked_on_one_socket_get_one_message_each(make, crew, endpoint):
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint)
    for _ in range(50):
        crew(pull.recv)
        crew(pull.recv)
        asleep(pull, 2)
        push.send(b"1")
        push.send(b"2")
        results = crew.join()
    assert sorted(results) == [b"1"] * 50 + [b"2"] * 50


def test_a_blocked_sender_and_a_blocked_receiver_on_one_socket(make, crew, endpoint):
    one, other = make.linked(omq.DEALER, omq.DEALER, endpoint, send_hwm=10, recv_hwm=10)
    payload = b"x" * 100_000
    for first in ("sender", "receiver"):
        sent = _fill(one, payload)
        if first == "sender":
            crew(one.send, payload)
            asleep(one, 1)
            crew(one.recv)
        else:
            crew(one.recv)
            asleep(one, 1)
            crew(one.send, payload)
        asleep(one, 2)
        other.send(b"wakes the receiver only")
        for _ in range(sent + 1):
            assert other.recv(timeout=BOUND) == payload
        results = crew.join()
    assert results == [None, b"wakes the receiver only", b"wakes the receiver only", None]


@pytest.mark.parametrize("times", [0, 1, *(pytest.param(times, marks=pytest.mark.slow) for times in range(2, 10))])
def test_close_wakes_all_that_sleep(make, crew, endpoint, times):
    one, _ = make.linked(omq.DEALER, omq.DEALER, endpoint, send_hwm=10, recv_hwm=10, linger=0)
    payload = b"x" * 100_000
    _fill(one, payload, 0.2)

    def closed(call, *arguments):
        with pytest.raises(omq.ClosedError):
            call(*arguments)
        return time.monotonic()

    crew(closed, one.recv)
    crew(closed, one.send, payload)
    crew(closed, one.recv_many)
    crew(closed, one.send_multipart, [payload])
    crew(closed, one.poll)
    asleep(one, 5)
    before = time.monotonic()
    (one.close if times % 2 else one.stop)()
    assert max(crew.join()) - before < 5
    with pytest.raises(omq.ClosedError):
        one.recv(timeout=0)


def test_a_close_that_gives_up_ends_one_that_waits_for_ever(make, crew):
    push = make(omq.PUSH, connect="inproc://absent")
    push.send(b"x")
    crew(push.close)
    until(lambda: push.closed)
    push.close(linger=0.01)
    crew.join()


def test_poll_next_to_recv(make, crew, endpoint):
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint)
    done = threading.Event()

    def poll():
        seen = 0
        while not done.is_set():
            seen += bool(pull.poll(0.5))
        return seen

    crew(poll)
    crew(poll)
    crew(lambda: [PAIR.unpack(pull.recv(timeout=BOUND))[1] for _ in range(3000)])
    _send(push, 0, 3000, 0, random.Random(1))
    until(lambda: pull.peers[0].messages_in >= 3000, "all messages")
    push.send(b"wakes both pollers")
    assert pull.poll(BOUND) == omq.POLL_IN
    done.set()
    assert crew.join()[2] == list(range(3000))


def test_poll_for_both_passes_a_sender_s_wake_up_on(make, crew):
    """A poll for both directions stands before a blocked sender; what wakes it must wake the sender, too."""
    one, other = make.linked(omq.DEALER, omq.DEALER, "tcp://127.0.0.1:*", send_hwm=10, recv_hwm=10)
    payload = b"x" * 100_000
    sent = _fill(one, payload)
    crew(one.recv)
    asleep(one, 1)
    crew(one.poll, None, omq.POLL_IN | omq.POLL_OUT)
    asleep(one, 3)
    crew(one.send, payload)
    asleep(one, 4)
    for _ in range(sent + 1):
        assert other.recv(timeout=BOUND) == payload
    other.send(b"end")
    crew.join()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_random_calls_from_many_threads_leave_no_thread_asleep(make, crew, endpoint, seed):
    stress(make, crew, endpoint, seed, 0.6 if seed < 2 else 2.0)


def stress(make, crew, endpoint, seed, seconds):
    """Every kind of call from many threads: all that was sent arrives once, and the last call of each ends."""
    chance = random.Random(seed)
    options = {"send_hwm": chance.choice([1, 10, 1000]), "recv_hwm": chance.choice([1, 10, 1000])}
    if chance.random() < 0.3:
        options["busy_poll"] = chance.choice([0.0001, "adaptive"])
    one, other = make.linked(omq.DEALER, omq.DEALER, endpoint, **options)
    if chance.random() < 0.3:
        one.fileno()
    end = time.monotonic() + seconds
    numbers = itertools.count()
    sent, received = [], []

    def send(socket, seed):
        mine = random.Random(seed)
        while time.monotonic() < end:
            message = b"%d|" % next(numbers) + b"x" * mine.choice([0, 10, 3000, 5000, 70_000])
            how = mine.random()
            try:
                if how < 0.5:
                    socket.send(message, timeout=mine.choice([0, 0.001, 0.1, BOUND]))
                elif how < 0.7:
                    socket.send_multipart([message], timeout=mine.choice([0, 0.001, 0.1]))
                elif how < 0.9:
                    more = [b"%d|" % next(numbers) for _ in range(mine.randrange(300))]
                    sent.extend(more[: socket.send_many(more, timeout=mine.choice([0, 0.01]))])
                    continue
                else:
                    socket.poll(mine.choice([0, 0.001]), mine.choice([1, 4, 5]))
                    continue
            except omq.SendTimeout:
                continue
            sent.append(message)
            if mine.random() < 0.02:
                time.sleep(mine.random() * 0.03)

    def receive(socket, seed):
        mine = random.Random(seed)
        buffer = bytearray(100_000)
        while True:
            how = mine.random()
            timeout = mine.choice([0, 0.0005, 0.02, 0.5])
            try:
                if how < 0.4:
                    got = [socket.recv(timeout=timeout)]
                elif how < 0.6:
                    got = socket.recv_many(mine.randrange(1, 100), timeout=timeout)
                elif how < 0.8:
                    got = [b"".join(socket.recv_multipart(timeout=timeout))]
                elif how < 0.9:
                    got = [bytes(buffer[: socket.recv_into(buffer, timeout=timeout)])]
                else:
                    socket.poll(timeout, mine.choice([1, 4, 5]))
                    continue
            except omq.ReceiveTimeout:
                continue
            except omq.ClosedError:
                return
            received.extend(got)
            if mine.random() < 0.02:
                time.sleep(mine.random() * 0.03)

    receivers = [crew(receive, socket, seed * 100 + n) for n in range(3) for socket in (one, other)]
    senders = [crew(send, socket, seed * 100 + 50 + n) for n in range(2) for socket in (one, other)]
    for thread in senders:
        thread.join(seconds + BOUND)
        assert not thread.is_alive(), "a sender hangs"
    limit = time.monotonic() + BOUND
    while len(received) < len(sent) and time.monotonic() < limit:
        time.sleep(0.01)
    one.stop()
    other.stop()
    for thread in receivers:
        thread.join(BOUND)
        assert not thread.is_alive(), "a receiver hangs"
    crew.join()
    assert len(received) == len(sent), f"{len(sent)} sent, {len(received)} received, seed {seed}, {options}"
    assert Counter(received) == Counter(sent)


@pytest.mark.parametrize("size", [2000, 5000, 9000])
def test_a_sender_goes_on_when_there_is_room(make, crew, size):
    """The kernel may take more before an event shows it: the background thread writes, and wakes the sender."""
    push = make(omq.PUSH, bind="tcp://127.0.0.1:*", linger=0)
    pull = make(omq.PULL, connect=push.endpoints[0], recv_hwm=1)

    def flood():
        with contextlib.suppress(omq.ClosedError):
            while True:
                push.send(bytes(size))

    crew(flood)
    pull.recv(timeout=BOUND)
    stable(lambda: push.poll(0, omq.POLL_OUT) and push.stats.messages_sent)
    until(lambda: not push.poll(0, omq.POLL_OUT), "a full queue", bound=5)
    push.close()
    crew.join()


def test_a_list_that_shrinks_while_send_many_waits_ends_it(make, crew):
    push = make(omq.PUSH, bind="tcp://127.0.0.1:*", send_hwm=5)
    messages = [b"%d" % number for number in range(20)]
    crew(push.send_many, messages)
    asleep(push)
    del messages[3:]
    pull = make(omq.PULL, connect=push.endpoints[0])
    assert [pull.recv(timeout=BOUND) for _ in range(6)] == [b"%d" % number for number in range(6)]
    assert crew.join() == [6]


@pytest.mark.parametrize("end", ["close", "term"])
def test_a_socket_without_an_endpoint_is_closed_by_two_threads_at_once(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    context = omq.Context()
    socket = omq.PULL(context=context)
    engine = socket._engine
    stops, begun, go_on = [], threading.Event(), threading.Event()
    refresh, last_steps = engine._refresh_references, engine._last_steps

    def refresh_slowly() -> None:
        begun.set()
        assert go_on.wait(BOUND)
        refresh()

    def counted() -> object:
        stops.append(threading.get_ident())
        return last_steps()

    monkeypatch.setattr(engine, "_refresh_references", refresh_slowly)
    monkeypatch.setattr(engine, "_last_steps", counted)
    first = threading.Thread(target=socket.close)
    first.start()
    assert begun.wait(BOUND)
    second = threading.Thread(target=getattr(socket if end == "close" else context, end))
    second.start()
    second.join(0.1)  # it may return before the first, or wait for it
    go_on.set()
    first.join(BOUND)
    second.join(BOUND)
    assert socket.closed
    assert len(stops) == 1
    context.term()
