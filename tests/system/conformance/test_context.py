"""Contexts: what ends with them, and what a forked child finds."""

from __future__ import annotations

import os
import select
import textwrap

import pytest

import omq
import omq.asyncio as twin_of_asyncio
from tests.support.fork_server import SOCKETS, run
from tests.support.waits import BOUND, until
from tests.system.conformance.conftest import Waiting

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("call", ["recv", "recv_many", "poll", "wait_connected"])
def test_ctx_destroy_term_wakes_calls_that_wait(twin, endpoint, call):
    pull = twin("PULL", bind=endpoint)
    calls = [twin.spawn(pull, call) for _ in range(2)]
    assert not calls[0].done(0.05)
    twin.context.term()
    for waiting in calls:
        with pytest.raises((omq.ClosedError, omq.ContextTerminated)):
            waiting.result()


def test_ctx_destroy_term_wakes_a_sender_that_waits(twin, inproc):
    push = twin("PUSH", connect=inproc, linger=0)
    waiting = twin.spawn(push, "send", b"x" * 10)
    until(waiting.done)
    waiting = twin.spawn(push, "send_many", [b"x"] * 5000)
    assert not waiting.done(0.05)
    twin.context.term()
    with pytest.raises((omq.ClosedError, omq.ContextTerminated)):
        waiting.result()


def test_ctx_destroy_no_socket_after_term(twin, endpoint):
    pull = twin("PULL", bind=endpoint)
    twin.context.term()
    until(lambda: pull.closed)
    with pytest.raises(omq.ContextTerminated):
        twin("PULL")
    with pytest.raises((omq.ClosedError, omq.ContextTerminated)):
        pull.bind(endpoint)
    twin.context.term()  # again


def test_ctx_destroy_term_lets_what_was_accepted_leave(twin, tmp_path):
    """The sockets of the two ends are of different contexts."""
    with omq.Context() as other:
        pull = omq.PULL(other, bind=f"ipc://{tmp_path}/s")
        push = twin("PUSH", connect=pull.endpoints[0], linger=BOUND)
        push.wait_connected(timeout=BOUND)
        big = bytes(1 << 20)
        assert push.send_many([big] * 50) == 50
        ending = twin.spawn(twin.context, "term")
        for _ in range(50):
            assert pull.recv(timeout=BOUND) == big
        ending.result()
        pull.stop()


CALLS = {
    "bind": lambda sub: sub.bind("inproc://other"),
    "disconnect": lambda sub: sub.disconnect("inproc://other"),
    "subscribe": lambda sub: sub.subscribe(b"x"),
    "set_options": lambda sub: sub.set_options(linger=0),
    "monitor": lambda sub: sub.monitor(),
    "wait_connected": lambda sub: sub.wait_connected(),
}


@pytest.mark.parametrize("call", CALLS)
def test_ctx_destroy_a_call_names_the_context_as_the_reason(twin, inproc, call):
    sub = twin("SUB", bind=inproc)
    waiting = twin.spawn(sub, "wait_connected")
    assert not waiting.done(0.05)
    twin.context.term()
    until(lambda: sub.closed)
    for refused in (waiting.result, lambda: CALLS[call](sub)):
        with pytest.raises(omq.ContextTerminated, match="context has been terminated") as caught:
            refused()
        assert isinstance(caught.value, omq.ClosedError)


@pytest.mark.parametrize("kind", ["ROUTER", "DEALER", "PAIR", "SUB", "REQ"])
def test_inproc_connect_only_then_term(twin, inproc, kind):
    """libzmq's `test_connect_only` ends with the context; nothing waits for a listener."""
    socket = twin(kind, connect=inproc)
    ending = twin.spawn(twin.context, "term")
    assert ending.done(BOUND), "nothing is pending, and term waits"
    until(lambda: socket.closed)


def test_ctx_destroy_term_wakes_a_poller(twin, endpoint):
    """One that watches the descriptor, among others."""
    pull = twin("PULL", bind=endpoint)
    poller = select.poll()
    poller.register(pull.fileno(), select.POLLIN)
    ours, theirs = os.pipe()
    poller.register(ours, select.POLLIN)
    waiting = Waiting(lambda: poller.poll(BOUND * 1000))
    assert not waiting.done(0.05)
    fd = pull.fileno()
    twin.context.term()
    assert [found for found, _ in waiting.result()] == [fd]
    os.close(ours), os.close(theirs)


def test_ctx_options_term_without_linger_waits_for_nothing(twin, inproc):
    """libzmq's BLOCKY=0, at the end instead of the beginning."""
    push = twin("PUSH", connect=inproc)
    push.send(b"no peer will ever come")
    ending = twin.spawn(twin.context, "term", linger=0)
    assert ending.done(BOUND), "it waits for ever, by the socket's own linger"
    until(lambda: push.closed)


@pytest.mark.parametrize("option", ["io_threads", "max_sockets", "ipv6", "blocky"])
def test_ctx_options_do_not_exist(option):
    """One I/O thread, no bound of our own, and what sockets inherit is given to each: none is accepted and ignored."""
    with pytest.raises(TypeError, match=option):
        omq.Context(**{option: 1})


def test_ctx_contexts_do_not_meet(twin, inproc):
    twin("PULL", bind=inproc)
    with omq.Context() as other:
        pull = omq.PULL(other, bind=inproc)
        push = omq.PUSH(other, connect=inproc)
        push.send(b"x")
        assert pull.recv(timeout=BOUND) == b"x"


FORKING = """
    import asyncio, os, sys
    import omq, omq.asyncio, uvloop

    async def main():
        pull = omq.asyncio.PULL(bind=sys.argv[1])
        push = omq.asyncio.PUSH(connect=pull.endpoints[0])
        idle = omq.asyncio.PULL()
        await push.wait_connected(timeout=10)
        await push.send(b"before")
        await pull.poll(10)
        open_before = len(os.listdir("/proc/self/fd"))
        child = os.fork()
        if child == 0:
            try:
                held = len(os.listdir("/proc/self/fd"))
                refused = 0
                for call in (
                    lambda: push.send(b"x", timeout=0),
                    lambda: push.send_multipart([b"x"]),
                    lambda: push.send_many([b"x"]),
                    lambda: pull.recv(timeout=0),
                    lambda: pull.recv_many(timeout=0),
                    lambda: pull.poll(0),
                    lambda: pull.wait_connected(),
                    lambda: pull.fileno(),
                    lambda: pull.monitor(),
                    lambda: idle.recv(timeout=0),
                    lambda: pull.bind("inproc://x"),
                    lambda: pull.connect("inproc://x"),
                    lambda: pull.set_options(linger=0),
                ):
                    try:
                        result = call()
                        if hasattr(result, "__await__"):
                            await result
                    except omq.StateError:
                        refused += 1
                await push.close()
                pull.stop()
                own = omq.asyncio.PUSH(connect="inproc://y")
                own.stop()
                os._exit(0 if refused == 13 and held < open_before else 100 + refused)
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert await pull.recv(timeout=10) == b"before"
        for n in range(1000):
            await push.send(b"%d" % n)
            assert await pull.recv(timeout=10) == b"%d" % n
        await push.close()
        await pull.close()

    (uvloop.run if sys.argv[2] == "uvloop" else asyncio.run)(main())
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_fork_the_child_is_refused_and_the_parent_goes_on(tmp_path, loop):
    """The blocking twin's part stands in tests/system/blocking/test_blocking_fork.py."""
    done = run("-c", textwrap.dedent(FORKING), f"ipc://{tmp_path}/s", loop, template=SOCKETS)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


EXITING = """
    import os, sys, warnings
    import omq

    # From Python 3.12 on Python warns about any fork in a process with threads.
    warnings.simplefilter("ignore", DeprecationWarning)
    pull = omq.PULL(bind="tcp://127.0.0.1:*")
    push = omq.PUSH(connect=pull.endpoints[0].replace("127.0.0.1", sys.argv[1]))
    push.send(b"x")
    assert pull.recv(timeout=10) == b"x"
    child = os.fork()
    if child == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    push.send(b"y")
    assert pull.recv(timeout=10) == b"y"
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_fork_a_child_that_ends_as_programs_do_ends_well(host):
    """A library that has threads of its own must not wait for them in a process that does not have them."""
    done = run("-c", textwrap.dedent(EXITING), host, template=SOCKETS)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


on_both_twins = pytest.mark.parametrize("module", [omq, twin_of_asyncio])


@on_both_twins
@pytest.mark.parametrize("given", ["tcp://127.0.0.1:5555", 5, b"inproc://x"])
def test_an_endpoint_in_place_of_the_context_is_refused_with_its_place(module, given):
    with pytest.raises(
        TypeError, match=r"context=.*: must be a Context, not (str|int|bytes); give an endpoint as bind= or connect="
    ):
        module.PUSH(given)


@on_both_twins
def test_a_socket_without_a_type_is_refused(module):
    with pytest.raises(TypeError, match=r"Socket has no socket type: make one of its types, such as omq\.PUSH"):
        module.Socket()


@on_both_twins
def test_a_subclass_goes_by_its_own_name(module):
    class Feed(module.PUSH):
        pass

    feed = Feed()
    assert repr(feed) == f"<{__name__}.Feed 0 peers>"
    feed.stop()
