"""The calls of a blocking socket: what they take, give and refuse, and how long they wait."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref

import pytest

import omq
import omq.asyncio
from omq.engine.endpoints import Endpoints
from tests.support.waits import until
from tests.unit.blocking.conftest import BOUND, Crew, Sockets, asleep


@pytest.fixture(params=[0, 0.001, "adaptive"], ids=lambda spin: f"busy_poll={spin}")
def spin(request):
    return request.param


# What can be sent and received


def test_many_at_a_time(make, endpoint, spin):
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint, busy_poll=spin)
    messages = [b"%d" % n for n in range(900)]
    assert push.send_many(iter(messages)) == 900
    assert push.send_many([]) == 0
    got = pull.recv_many(10, timeout=BOUND)
    assert 0 < len(got) <= 10
    while len(got) < 900:
        got += pull.recv_many(timeout=BOUND)
    assert got == messages
    with pytest.raises(ValueError, match="limit"):
        pull.recv_many(0)


@pytest.mark.parametrize("endpoint", ["tcp", "ipc"], indirect=True)
def test_a_caller_that_spins_on_one_connection_sees_the_others_too(make, crew, endpoint):
    """Its messages, its end, another connection's messages, and the socket's end."""
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint, busy_poll=30)
    found = []
    spinning = crew(lambda: [found.append(pull.recv()) for _ in range(3)])
    push.send(b"one")
    until(lambda: found == [b"one"])
    push.close()
    until(lambda: not pull.peers)
    other, third = (make(omq.PUSH, connect=pull.endpoints[0]) for _ in range(2))
    other.send(b"two")
    until(lambda: found == [b"one", b"two"])
    third.send(b"three")
    crew.join()
    assert found == [b"one", b"two", b"three"]
    assert not spinning.is_alive()
    crew(pytest.raises, omq.ClosedError, pull.recv)
    asleep(pull)
    pull.close()
    crew.join()


# Time


def test_no_time_is_no_wait_and_still_looks_into_the_kernel(make, tmp_path):
    pull, push = make.linked(omq.PULL, omq.PUSH, f"ipc://{tmp_path}/s")
    with pytest.raises(omq.ReceiveTimeout):
        pull.recv(timeout=0)
    with pytest.raises(omq.ReceiveTimeout):
        pull.recv(timeout=0.05)  # from here on the I/O thread is not reading
    for n in range(200):
        push.send(b"%d" % n)
        push.poll(0, omq.POLL_OUT)  # what was gathered leaves
        assert pull.recv(timeout=0) == b"%d" % n
    before = time.monotonic()
    for _ in range(1000):
        with pytest.raises(omq.ReceiveTimeout):
            pull.recv(timeout=0)
    assert time.monotonic() - before < 1


# Inproc between the twins


@pytest.mark.parametrize("who_binds", ["blocking", "asyncio"])
def test_the_twins_meet_over_inproc(make, crew, inproc, who_binds):
    count = 3000

    async def echo(socket):
        for _ in range(count):
            await socket.send(await socket.recv())

    async def bind_and_echo():
        async with omq.asyncio.DEALER(make.context, bind=inproc, recv_hwm=10) as socket:
            await echo(socket)

    async def connect_and_echo():
        async with omq.asyncio.DEALER(make.context, connect=inproc, recv_hwm=10) as socket:
            await echo(socket)

    if who_binds == "blocking":
        one = make(omq.DEALER, bind=inproc, recv_hwm=10)
        crew(asyncio.run, connect_and_echo())
    else:
        crew(asyncio.run, bind_and_echo())
        one = make(omq.DEALER, connect=inproc, recv_hwm=10)
    crew(lambda: [one.send(b"%d" % n, timeout=BOUND) for n in range(count)])
    assert [one.recv(timeout=BOUND) for _ in range(count)] == [b"%d" % n for n in range(count)]
    crew.join()


# Contexts


def test_the_default_context_is_made_when_it_is_needed_and_after_its_end():
    first = omq.Context.default()
    assert omq.Context.default() is first
    with omq.PULL() as pull:
        assert pull._context is first
    first.term()
    assert omq.Context.default() is not first
    with pytest.raises(omq.ContextTerminated):
        omq.PULL(first)
    omq.Context.default().term()


def test_a_terminated_context_has_closed_everything(crew):
    context = omq.Context()
    pull = omq.PULL(context, bind="tcp://127.0.0.1:*")
    push = omq.PUSH(context, connect="tcp://127.0.0.1:9")
    unused = omq.PULL(context)

    def receive():
        with pytest.raises(omq.ClosedError):
            pull.recv()

    def wait():
        with pytest.raises(omq.OmqError):
            push.wait_connected()

    crew(receive)
    crew(wait)
    asleep(pull)
    threads = threading.active_count()
    context.term()
    crew.join()
    context.term()
    assert context.closed
    assert threading.active_count() < threads
    for socket in (pull, push, unused):
        assert socket.closed
        socket.close()
        socket.stop()
        with pytest.raises(omq.ClosedError):
            socket.poll(0)
        with pytest.raises(omq.OmqError):
            socket.bind("tcp://127.0.0.1:*")
        with pytest.raises(omq.OmqError):
            socket.wait_connected()
        repr(socket), socket.peers, socket.endpoints, socket.options
    repr(context)


def test_term_while_others_make_and_use_sockets(crew):
    for _ in range(10):
        context = omq.Context()
        started = threading.Event()

        def work(context=context, started=started):
            try:
                while True:
                    with omq.PULL(context, linger=0) as pull, omq.PUSH(context, linger=0) as push:
                        push.connect(pull.bind("tcp://127.0.0.1:*"))
                        push.send(b"x")
                        pull.recv(timeout=BOUND)
                        started.set()
            except (omq.ClosedError, omq.ContextTerminated):
                pass

        for _ in range(3):
            crew(work)
        assert started.wait(BOUND)
        context.term()
    crew.join()


def test_a_connect_that_is_overtaken_by_the_end_leaves_nothing(make, monkeypatch):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    push = make(omq.PUSH)
    engine, queue = push._engine, Endpoints.queue_connect
    head_starts = []

    def overtaken(endpoints, route):
        make.context.io_thread.run(engine.stop)
        queued = queue(endpoints, route)
        head_starts.extend(head_start for _, head_start in endpoints._queued.values())
        return queued

    with monkeypatch.context() as patched:
        patched.setattr(Endpoints, "queue_connect", overtaken)
        assert push.connect(pull.endpoints[0]) == pull.endpoints[0]
    make.context.io_thread.run(int)  # what `connect` has posted is done
    (head_start,) = head_starts
    assert head_start.fd == -1
    assert not engine.endpoints._queued


# The end of a socket


def test_several_threads_may_close_one_socket(make):
    for _ in range(20):
        crew = Crew()
        pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
        for socket in (pull, push, pull, push):
            crew(socket.close)
        crew(push.stop)
        crew.join()


def test_a_constructor_that_fails_leaves_nothing(make, tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(omq.OptionError):
        make(omq.PULL, no_such_option=1)
    with pytest.raises(omq.OptionError):
        make(omq.PULL, recv_hwm=-1)
    assert make.context._io.value is None
    taken = make(omq.PULL, bind=f"ipc://{tmp_path}/s")
    gc.collect()
    loop = set(os.listdir("/proc/self/fd")) - before
    for wrong in (f"ipc://{tmp_path}/s", "nonsense", "tcp://127.0.0.1:*:*"):
        with pytest.raises(omq.OmqError):
            make(omq.PULL, bind=["tcp://127.0.0.1:*", wrong])
    gc.collect()
    # What the first endpoint had bound is closed by the thread of the context.
    until(lambda: set(os.listdir("/proc/self/fd")) - before == loop, "the descriptors of before")
    taken.close()


def test_sockets_leave_no_descriptors_and_no_objects(make, endpoint):
    make.linked(omq.PULL, omq.PUSH, endpoint)
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    gone = []
    for n in range(5):
        name = "tcp://127.0.0.1:*" if endpoint.startswith("tcp") else f"{endpoint}{n}"
        pull, push = omq.PULL(make.context, bind=name), omq.PUSH(make.context)
        push.connect(pull.endpoints[0])
        if n % 2:
            pull.fileno()
        push.send(b"x" * 100_000)
        pull.recv(timeout=BOUND)
        gone += [weakref.ref(pull), weakref.ref(push)]
        if n % 3:
            pull.close()
            push.close()
        else:
            push.stop()
            pull.stop()
    del pull, push
    until(lambda: gc.collect() >= 0 and not any(one() for one in gone), lambda: [one() for one in gone if one()])
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_socket_that_was_never_used_and_never_closed_is_freed(make):
    gc.collect()  # what earlier tests have left
    before = sorted(os.listdir("/proc/self/fd"))
    gone = []
    for kind in (omq.PULL, omq.PUSH, omq.SUB, omq.XPUB, omq.REP, omq.ROUTER):
        socket = kind(make.context)
        if kind is omq.PUSH:
            socket.send(b"x")
        gone.append(weakref.ref(socket))
    del socket
    gc.collect()
    assert [one() for one in gone] == [None] * 6
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_wait_for_peers_reports_what_went_wrong(make: Sockets) -> None:
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    wrong = make(omq.SUB, connect=pull.endpoints[0])
    with pytest.raises(omq.Timeout, match=r"within 0.5 s; last failure: tcp://127.*PULL"):
        wrong.wait_connected(timeout=0.5)
    unconnected = make(omq.PUSH, connect="ipc:///nonexistent/omq")
    with pytest.raises(omq.Timeout, match=r"last failure: ipc:///nonexistent/omq: \[Errno 2\] no such file"):
        unconnected.wait_connected(timeout=0.5)
    push = make(omq.PUSH, connect=pull.endpoints[0])
    push.wait_connected(timeout=BOUND)
    with pytest.raises(omq.Timeout, match=r"within 0 s$"):
        push.wait_connected(2, timeout=0)
