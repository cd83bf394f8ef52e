"""Commands to a blocking proxy, its end, back-pressure and fairness."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import threading
import time
from collections import Counter

import pytest

import omq
from tests.support.fork_server import SOCKETS, ForkedProcess
from tests.support.parameters import each_value_once
from tests.support.waits import BOUND, descriptors, stable, until
from tests.unit.blocking.conftest import asleep
from tests.unit.proxy.conftest import MAKERS, TCP, in_both_twins

CONTROLS = [(omq.PAIR, omq.PAIR), (omq.PULL, omq.PUSH), (omq.SUB, omq.PUB), (omq.REP, omq.REQ)]
steered_by_each = pytest.mark.parametrize("kinds", CONTROLS, ids=lambda kinds: kinds[0].__name__)
steered_by_each_in_both_twins = each_value_once("make", make=MAKERS, kinds=CONTROLS)


class Flood:
    """A thread that sends numbered messages until a call of stop."""

    def __init__(self, crew, socket, size=100, at=0):
        self.sent = at
        self._over = threading.Event()
        self._socket, self._size = socket, size
        self.thread = crew(self._run)

    def _run(self):
        while not self._over.is_set():
            try:
                self._socket.send(b"%010d" % self.sent + bytes(self._size), timeout=0.05)
                self.sent += 1
            except omq.SendTimeout:
                continue

    def stop(self):
        self._over.set()
        self.thread.join(BOUND)
        return self.sent


class Sink:
    """A thread that receives numbered messages, in order, until its socket falls silent after a call of stop."""

    def __init__(self, crew, socket, at=0):
        self.got = at
        self._socket, self._over = socket, threading.Event()
        self.thread = crew(self._run)

    def _run(self):
        while True:
            try:
                message = self._socket.recv(timeout=0.05)
            except omq.ReceiveTimeout:
                if self._over.is_set():
                    return
                continue
            assert int(message[:10]) == self.got
            self.got += 1

    def stop(self):
        self._over.set()
        self.thread.join(BOUND)
        return self.got


@steered_by_each_in_both_twins
def test_pause_holds_and_resume_loses_nothing(make, crew, proxied, kinds):
    proxy = proxied(omq.PULL, omq.PUSH, kinds=kinds)
    sink = Sink(crew, make(omq.PULL, connect=proxy.back_end))
    flood = Flood(crew, make(omq.PUSH, connect=proxy.front_end))
    until(lambda: sink.got > 1000, "messages")
    proxy.command_proxy(b"PAUSE")
    held = stable(lambda: sink.got)  # what had been forwarded arrives
    assert flood.sent > held
    sent = flood.stop()
    assert sink.got == held < sent
    proxy.command_proxy(b"RESUME")
    until(lambda: sink.got == sent, "the rest")
    assert sink.stop() == sent


def test_statistics_under_a_flood(make, crew, proxied):
    proxy = proxied(omq.PULL, omq.PUSH)
    sink = Sink(crew, make(omq.PULL, connect=proxy.back_end))
    flood = Flood(crew, make(omq.PUSH, connect=proxy.front_end), size=90)
    until(lambda: sink.got > 100, "messages")
    before = proxy.figures()
    for _ in range(20):
        found = proxy.figures()
        assert found.front_in == found.back_out >= before.front_in
        assert found.front_bytes_in == found.back_bytes_out == 100 * found.front_in
        assert found.front_out == found.back_in == 0
        before = found
    sent = flood.stop()
    until(lambda: sink.got == sent, "the rest")
    assert proxy.figures().front_in == sink.stop() == sent


def test_statistics_count_whole_messages_and_all_their_parts(make, proxied):
    proxy = proxied(omq.ROUTER, omq.DEALER, kinds=(omq.REP, omq.REQ))
    client = make(omq.DEALER, connect=proxy.front_end, identity=b"name")
    worker = make(omq.DEALER, connect=proxy.back_end)
    client.send_multipart([b"12345", b"67890"])
    worker.send_multipart([*worker.recv_multipart(timeout=BOUND)[:2], b""])
    client.recv_multipart(timeout=BOUND)
    assert proxy.figures() == (1, 14, 1, 9, 1, 9, 1, 14)
    proxy.command_proxy(b"no command")
    assert proxy.figures() == (1, 14, 1, 9, 1, 9, 1, 14)


def test_a_control_socket_that_takes_no_answer_gets_none(make, proxied):
    proxy = proxied(omq.PULL, omq.PUSH, kinds=(omq.PULL, omq.PUSH))
    for _ in range(10):
        proxy.command_proxy(b"STATISTICS")
    proxy.steer.send_multipart([b"TERMINATE", b"in two parts"])
    proxy.command_proxy(b"no command")
    sender, receiver = make(omq.PUSH, connect=proxy.front_end), make(omq.PULL, connect=proxy.back_end)
    sender.send(b"on it goes")
    assert receiver.recv(timeout=BOUND) == b"on it goes"
    proxy.command_proxy(b"TERMINATE")
    proxy.ends()


@pytest.mark.slow
@in_both_twins
@pytest.mark.parametrize("paused", [False, True], ids=["", "paused"])
@pytest.mark.parametrize(
    ("own", "others"), [(omq.PAIR, omq.PAIR), (omq.PULL, omq.PUSH), (omq.SUB, omq.PUB), (omq.REP, omq.DEALER)], ids=str
)
def test_messages_pass_next_to_commands_that_never_cease(make, own, others, paused):
    """All of them wait when the proxy begins, the last one ends it, and the messages were not kept till after that."""
    front, back = make(omq.PULL, bind="inproc://front"), make(omq.PUSH, bind="inproc://back")
    control = make(own, bind="inproc://control", recv_hwm=0, **({"subscribe": b""} if own is omq.SUB else {}))
    steer = make(others, connect="inproc://control", send_hwm=0)
    sender, receiver = make(omq.PUSH, connect="inproc://front"), make(omq.PULL, connect="inproc://back")
    for one in (front, back, control, sender, receiver, steer):
        one.wait_connected(timeout=BOUND)
    if others is omq.PUB:
        steer.wait_subscribed(timeout=BOUND)
    for number in range(10):
        sender.send(b"%d" % number)
    commands = [b"PAUSE" if paused else b"RESUME", *[b"no command"] * 500, b"KILL"]
    for command in commands:
        steer.send_multipart([b"", command] if own is omq.REP else [command], timeout=BOUND)
    make.proxy(front, back, control=control)
    if paused:
        receiver = front
    assert [receiver.recv(timeout=BOUND) for _ in range(10)] == [b"%d" % number for number in range(10)]


@steered_by_each_in_both_twins
def test_what_was_received_before_terminate_is_forwarded(make, proxied, kinds):
    proxy = proxied(omq.PULL, make(omq.PUSH, bind=TCP, send_hwm=100_000), kinds=kinds)
    proxy.command_proxy(b"PAUSE")
    senders = [make(omq.PUSH, connect=proxy.front_end) for _ in range(3)]
    for sender in senders:
        sender.send_many([b"%d" % number for number in range(500)])
        sender.flush(BOUND)
    receiver = make(omq.PULL, connect=proxy.back_end)
    receiver.wait_connected(timeout=BOUND)
    proxy.command_proxy(b"TERMINATE")
    proxy.ends()
    found = Counter(receiver.recv(timeout=BOUND) for _ in range(1500))
    assert set(found.values()) == {3}


def test_terminate_ends_a_flood_and_keeps_what_is_not_forwarded(make, crew, proxied):
    proxy = proxied(omq.PULL, omq.PUSH)
    sink = Sink(crew, make(omq.PULL, connect=proxy.back_end))
    flood = Flood(crew, make(omq.PUSH, connect=proxy.front_end))
    until(lambda: sink.got > 1000, "messages")
    proxy.command_proxy(b"TERMINATE")
    proxy.ends()
    sent, got = flood.stop(), sink.stop()
    while got < sent:  # the rest is still the frontend's
        assert int(proxy.front.recv(timeout=BOUND)[:10]) == got
        got += 1


@in_both_twins
def test_terminate_waits_for_room_and_not_for_ever(make, proxied):
    proxy = proxied(omq.PULL, make(omq.PUSH, bind=TCP, send_hwm=10))
    sender = make(omq.PUSH, connect=proxy.front_end)
    for number in range(50):
        sender.send(b"%d" % number)
    until(lambda: proxy.figures().front_in == 10, "as many as there is room for")
    proxy.command_proxy(b"TERMINATE")
    proxy.ends()
    assert [proxy.front.recv(timeout=BOUND) for _ in range(40)] == [b"%d" % number for number in range(10, 50)]


def test_terminate_is_not_kept_up_by_a_flood_next_to_a_stalled_direction(make, crew, proxied):
    proxy = proxied(omq.PAIR, make(omq.PAIR, bind=TCP, recv_hwm=10))
    left = make(omq.PAIR, connect=proxy.front_end, recv_hwm=10)
    right = make(omq.PAIR, connect=proxy.back_end, recv_hwm=100_000)
    stalled = Flood(crew, right, size=5000)  # no socket takes what comes at the left
    stable(lambda: stalled.sent)
    flood = Flood(crew, left)
    until(lambda: proxy.figures().front_in > 1000, "a flood the other way")
    crew(lambda: [right.recv(timeout=BOUND) for _ in range(1000)])
    proxy.command_proxy(b"TERMINATE")
    proxy.ends()
    for one in (flood, stalled):
        assert one.stop() > 0


def test_kill_ends_at_once_and_what_waits_stays(make, proxied):
    proxy = proxied(omq.PULL, omq.PUSH)
    receiver = make(omq.PULL, connect=proxy.back_end)
    receiver.wait_connected(timeout=BOUND)
    proxy.command_proxy(b"PAUSE")
    proxy.figures()
    sender = make(omq.PUSH, connect=proxy.front_end)
    for number in range(50):
        sender.send(b"%d" % number)
    sender.flush(BOUND)
    proxy.command_proxy(b"KILL")
    proxy.ends()
    assert [proxy.front.recv(timeout=BOUND) for _ in range(50)] == [b"%d" % number for number in range(50)]


def test_a_proxy_can_follow_a_proxy(make, proxied):
    proxy = proxied(omq.PULL, omq.PUSH)
    proxy.command_proxy(b"TERMINATE")
    proxy.ends()
    again = proxied(proxy.front, proxy.back)
    sender, receiver = make(omq.PUSH, connect=again.front_end), make(omq.PULL, connect=again.back_end)
    sender.send(b"x")
    assert receiver.recv(timeout=BOUND) == b"x"


# ---------------------------------------------------------------------- back-pressure, fairness


def test_a_stalled_receiver_holds_the_sender_up_and_memory_stays_bounded(make, crew, proxied):
    proxy = proxied(omq.PULL, omq.PUSH)
    receiver = make(omq.PULL, connect=proxy.back_end)
    flood = Flood(crew, make(omq.PUSH, connect=proxy.front_end), size=4000)
    held = stable(lambda: flood.sent, quiet=0.5)  # every buffer is full, and nothing more is taken
    assert held < 20_000
    sink = Sink(crew, receiver)
    until(lambda: flood.sent > held, "room")
    sent = flood.stop()
    until(lambda: sink.got == sent, "the rest")
    assert sink.stop() == sent


def test_a_proxy_without_receivers_blocks_and_loses_nothing(make, proxied):
    proxy = proxied(omq.PULL, make(omq.PUSH, bind=TCP, send_hwm=10))
    sender = make(omq.PUSH, connect=proxy.front_end)
    for number in range(500):
        sender.send(b"%d" % number)
    sender.flush(BOUND)
    assert proxy.figures().back_out <= 10
    receiver = make(omq.PULL, connect=proxy.back_end)
    assert [receiver.recv(timeout=BOUND) for _ in range(500)] == [b"%d" % number for number in range(500)]


def test_a_slow_subscriber_stalls_a_publisher_that_drops_nothing_and_figures_still_come(make, crew, proxied):
    """libzmq's test_proxy_hwm."""
    low = {"send_hwm": 10, "recv_hwm": 10}
    back = make(omq.XPUB, bind="inproc://back", xpub_nodrop=True, **low)
    proxy = proxied(make(omq.XSUB, bind="inproc://front", **low), back)
    publisher = make(omq.XPUB, connect="inproc://front", xpub_nodrop=True, **low)
    subscriber = make(omq.SUB, connect="inproc://back", subscribe=b"", recv_hwm=10)
    assert publisher.recv(timeout=BOUND) == b"\1"
    flood = Flood(crew, publisher, size=50_000)
    until(lambda: proxy.figures().front_in >= 10, "messages")
    held = stable(lambda: flood.sent)
    found = proxy.figures()
    assert 20 <= held <= 60
    assert found.back_out <= found.front_in <= held
    sink = Sink(crew, subscriber)
    until(lambda: flood.sent > held + 100, "room")
    sent = flood.stop()
    until(lambda: sink.got == sent, "the rest")
    assert sink.stop() == sent


def test_a_quiet_peer_is_read_next_to_a_busy_one(make, crew, proxied):
    small = {"recv_buffer": 16384, "send_buffer": 16384}  # what is on its way stands in front of every message
    proxy = proxied(make(omq.ROUTER, bind=TCP, **small), make(omq.DEALER, bind=TCP, send_hwm=100, **small))
    worker = make(omq.DEALER, connect=proxy.back_end, recv_hwm=100, **small)
    quiet = make(omq.DEALER, connect=proxy.front_end, identity=b"quiet")
    busy = make(omq.DEALER, connect=proxy.front_end, identity=b"busy")
    flood = Flood(crew, busy)
    until(lambda: flood.sent > 1000, "a flood")
    for number in range(20):
        quiet.send(b"%d" % number)
        others = 0
        while worker.recv_multipart(timeout=BOUND) != [b"quiet", b"%d" % number]:
            others += 1
        assert others < 3000
        worker.send_multipart([b"quiet", b"back"])  # and the other direction is not silenced
        assert quiet.recv(timeout=BOUND) == b"back"
    flood.stop()
    busy.close(linger=0)


def test_several_workers_share(make, proxied):
    proxy = proxied(omq.PULL, omq.PUSH)
    workers = [make(omq.PULL, connect=proxy.back_end) for _ in range(4)]
    proxy.back.wait_connected(4, timeout=BOUND)
    sender = make(omq.PUSH, connect=proxy.front_end)
    for number in range(4000):
        sender.send(b"%d" % number)
    taken = [[worker.recv(timeout=BOUND) for _ in range(900)] for worker in workers]
    assert len({message for messages in taken for message in messages}) == 3600


# ---------------------------------------------------------------------- ends


@in_both_twins
@pytest.mark.parametrize("which", ["front", "back", "capture", "control"])
def test_closing_a_socket_ends_it(make, crew, which):
    sockets = {"front": make(omq.PULL, bind=TCP), "back": make(omq.PUSH, bind=TCP)}
    sockets |= {"capture": make(omq.PUB, bind=TCP), "control": make(omq.PULL, bind=TCP)}
    ended = []

    def run():
        with pytest.raises(omq.ClosedError, match=f"{sockets[which].socket_type.value} socket was closed"):
            make.proxy(sockets["front"], sockets["back"], capture=sockets["capture"], control=sockets["control"])
        ended.append(which)

    crew(run)
    sender = make(omq.PUSH, connect=sockets["front"].endpoints[0])
    receiver = make(omq.PULL, connect=sockets["back"].endpoints[0])
    sender.send(b"it runs")
    assert receiver.recv(timeout=BOUND) == b"it runs"
    sockets[which].close()
    crew.join()
    assert ended == [which]


def test_the_context_ends_it_and_nothing_is_left(crew):
    gc.collect()
    before, threads = descriptors(), set(threading.enumerate())
    context = omq.Context()
    front, back = omq.XSUB(context, bind=TCP), omq.XPUB(context, bind=TCP)
    subscriber = omq.SUB(context, connect=back.endpoints[0], subscribe=b"")
    publisher = omq.PUB(context, connect=front.endpoints[0])

    def run():
        with pytest.raises(omq.ContextTerminated):
            omq.proxy(front, back)
        return True

    thread = crew(run)
    publisher.wait_subscribed(timeout=BOUND)
    publisher.send(b"x")
    assert subscriber.recv(timeout=BOUND) == b"x"
    context.term(linger=0)
    assert crew.join() == [True]
    assert set(threading.enumerate()) - {thread} <= threads
    assert descriptors() <= before


def test_the_context_ends_it_although_its_backend_has_no_peer(crew):
    """libzmq's test_proxy_terminate."""
    context = omq.Context()
    front, back = omq.SUB(context, bind=TCP, subscribe=b""), omq.PUSH(context, bind=TCP, send_hwm=1)

    def run():
        with pytest.raises(omq.ContextTerminated):
            omq.proxy(front, back)
        return True

    crew(run)
    with omq.PUB(connect=front.endpoints[0]) as publisher:
        publisher.wait_subscribed(timeout=BOUND)
        for _ in range(3):
            publisher.send(b"This is a test")
        publisher.flush(BOUND)
    until(lambda: front.readable.waiting, "the proxy")
    context.term(linger=0)
    assert crew.join() == [True]


def test_an_idle_proxy_costs_nothing(make, proxied):
    proxy = proxied(omq.ROUTER, omq.DEALER)
    proxy.sleeps()
    time.sleep(0.2)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.2


PROGRAM = """
import omq, sys
with omq.PULL(bind="tcp://127.0.0.1:*") as front, omq.PUSH(bind="tcp://127.0.0.1:*") as back:
    print(front.endpoints[0], back.endpoints[0], flush=True)
    try:
        omq.proxy(front, back)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "flooded"])
def test_ctrl_c(make, crew, busy):
    with ForkedProcess("-c", PROGRAM, stdout=subprocess.PIPE, text=True, template=SOCKETS) as process:
        try:
            front, back = process.stdout.readline().split()
            sender, receiver = make(omq.PUSH, connect=front), make(omq.PULL, connect=back)
            sender.send(b"%010d" % 0, timeout=BOUND)
            assert receiver.recv(timeout=BOUND)
            if busy:
                sink = Sink(crew, receiver, at=1)
                flood = Flood(crew, sender, at=1)
                until(lambda: sink.got > 2000, "a flood")
                for _ in range(5):  # the main thread lets the I/O thread in
                    with omq.PUSH(make.context, connect=front) as newcomer:
                        newcomer.wait_connected(timeout=BOUND)
            else:
                time.sleep(0.05)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert time.monotonic() - began < 5
            if busy:
                flood.stop()
                sink.stop()
        finally:
            process.kill()


COMPUTES = """
import threading
threading.Thread(target=lambda: [sum(range(20_000)) for _ in iter(int, 1)], daemon=True).start()
"""


BEFORE = {"alone": "", "next to a thread that computes": COMPUTES}


@each_value_once(before=BEFORE, rate=[500, 3000])
def test_ctrl_c_next_to_a_stream_that_leaves_time_to_sleep(make, crew, rate, before):
    """A signal that comes while the proxy works, or waits for the GIL, interrupts no sleep: there comes a message."""
    over = threading.Event()
    with ForkedProcess("-c", BEFORE[before] + PROGRAM, stdout=subprocess.PIPE, text=True, template=SOCKETS) as process:
        try:
            front, back = process.stdout.readline().split()
            sender, receiver = make(omq.PUSH, connect=front), make(omq.PULL, connect=back)
            sink = Sink(crew, receiver)

            def stream():
                number = 0
                while not over.wait(1 / rate):
                    with contextlib.suppress(omq.SendTimeout):
                        sender.send(b"%010d" % number, timeout=0.05)
                        number += 1

            crew(stream)
            until(lambda: sink.got > rate // 10, "a stream")
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert time.monotonic() - began < 1
        finally:
            over.set()
            process.kill()
        sink.stop()


def test_signal_handlers_run_meanwhile_and_may_use_other_sockets(make, proxied):
    """In the main thread: the handler ends the proxy through its control socket."""
    control = make(omq.PAIR, bind=TCP)
    steer = make(omq.PAIR, connect=control.endpoints[0])
    steer.wait_connected(timeout=BOUND)
    before = signal.signal(signal.SIGUSR1, lambda *_: steer.send(b"TERMINATE", timeout=BOUND))
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        assert omq.proxy(make(omq.PULL, bind=TCP), make(omq.PUSH, bind=TCP), control=control) is None
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)


def test_a_call_that_waits_when_the_proxy_begins_keeps_neither_from_its_messages(make, crew, proxied):
    """The call led, and follows from now on. It is a mistake in the program, and no message is lost by it."""
    front, taken = make(omq.PULL, bind=TCP), []

    def receive():
        with contextlib.suppress(omq.ClosedError):
            while True:
                taken.append(front.recv())

    crew(receive)
    asleep(front)
    proxy = proxied(front, omq.PUSH)
    sender, receiver = make(omq.PUSH, connect=proxy.front_end), make(omq.PULL, connect=proxy.back_end)
    for number in range(2000):
        sender.send(b"%d" % number)
    passed = []
    while len(passed) + len(taken) < 2000:
        with contextlib.suppress(omq.ReceiveTimeout):
            passed.append(receiver.recv(timeout=0.05))
    assert {*passed, *taken} == {b"%d" % number for number in range(2000)}
    proxy.command_proxy(b"KILL")
    proxy.ends()
    front.close()


def test_other_threads_run_next_to_a_flooded_proxy(make, crew, proxied):
    """New peers shake hands in the I/O thread, and this thread goes on, while the proxy never waits."""
    proxy = proxied(omq.PULL, omq.PUSH)
    sink = Sink(crew, make(omq.PULL, connect=proxy.back_end))
    flood = Flood(crew, make(omq.PUSH, connect=proxy.front_end))
    until(lambda: sink.got > 1000, "messages")
    for _ in range(10):
        with omq.PUSH(connect=proxy.front_end) as newcomer:
            newcomer.wait_connected(timeout=BOUND)
    sent = flood.stop()
    until(lambda: sink.got == sent, "the rest")
    assert sink.stop() == sent
