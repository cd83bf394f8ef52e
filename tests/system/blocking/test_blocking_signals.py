"""Ctrl-C interrupts every call that waits, at once; nothing is lost by it."""

from __future__ import annotations

import signal
import time

import pytest

PRELUDE = """
import signal, sys, threading, time
import omq

def full():
    '''A DEALER that cannot send, and its peer, which holds what it sent.'''
    peer = omq.DEALER(bind="tcp://127.0.0.1:*", recv_hwm=5)
    one = omq.DEALER(connect=peer.endpoints[0], send_hwm=5, linger=0, **options)
    one.wait_connected(timeout=5)
    sent = 0
    try:
        while True:
            one.send(payload, timeout=0.2)
            sent += 1
    except omq.SendTimeout:
        return peer, one, sent

payload = b"x" * 200_000
options = eval(sys.argv[1])
"""

INTERRUPTED = """
try:
    print("ready", flush=True)
    CALL
except KeyboardInterrupt:
    print("interrupted", flush=True)
else:
    print("it returned", flush=True)
"""

RECEIVING = {
    "recv": "one.recv()",
    "recv with a timeout": "one.recv(timeout=60)",
    "recv_multipart": "one.recv_multipart()",
    "recv_many": "one.recv_many()",
    "recv_into": "one.recv_into(bytearray(9))",
    "recv_message": "one.recv_message()",
    "iteration": "for message in one: pass",
    "poll": "one.poll()",
    "wait": "omq.wait([one])",
    "poll for both": "one.poll(None, omq.POLL_IN | omq.POLL_OUT)",
    "wait_connected": "one.wait_connected(2)",
}
SENDING = {
    "send": "one.send(payload)",
    "send_multipart": "one.send_multipart([payload])",
    "send_many": "one.send_many([payload])",
    "poll for room": "one.poll(60, omq.POLL_OUT)",
    "close": "one.close(None)",
    "term": "omq.Context.default().term(60)",
    "recv": "one.recv()",
}


def _interrupt(program, source, *arguments, silent=True):
    running = program(source, *arguments)
    assert running.line() == "ready"
    running.asleep()
    before = time.monotonic()
    running.process.send_signal(signal.SIGINT)
    assert running.line() == "interrupted"
    assert time.monotonic() - before < 5
    return running.end(silent=silent)


#: These wait in the same place as `recv`, or as `send`.
LIKE_RECV = ("recv with a timeout", "recv_multipart", "recv_into", "recv_message")
LIKE_SEND = ("send_multipart", "recv")
CALLS = [
    *(pytest.param(call, "{}", marks=pytest.mark.slow if call in LIKE_RECV else ()) for call in RECEIVING),
    ("recv", "{'busy_poll': 30}"),
    ("recv", "{'busy_poll': 'adaptive'}"),
]


@pytest.mark.parametrize(("call", "options"), CALLS)
def test_ctrl_c_interrupts_a_call_that_receives(program, call, options):
    source = PRELUDE + (
        """
if "POLL_OUT" in sys.argv[2]:
    peer, one, _ = full()
else:
    peer = omq.DEALER(bind="tcp://127.0.0.1:*")
    one = omq.DEALER(connect=peer.endpoints[0], send_hwm=2, **options)
    one.wait_connected(timeout=5)
"""
        + INTERRUPTED.replace("CALL", RECEIVING[call])
        + """
peer.send(b"later")
assert one.recv(timeout=5) == b"later"
peer.close()
"""
    )
    _interrupt(program, source, options, RECEIVING[call])


#: `term` closes the peer as well, and may find nothing left to wait for: its interruption is a matter of timing.
SLOW = (*LIKE_SEND, "term")


@pytest.mark.parametrize(
    "call", [pytest.param(call, marks=pytest.mark.slow if call in SLOW else ()) for call in SENDING]
)
def test_ctrl_c_interrupts_a_call_that_waits_for_room(program, call):
    lasts = call not in ("close", "term")
    source = (
        PRELUDE
        + "peer, one, sent = full()\n"
        + ("one.set_options(linger=None)\n" if call == "term" else "")
        + INTERRUPTED.replace("CALL", SENDING[call])
    )
    if lasts:
        source += """
for _ in range(sent):
    assert peer.recv(timeout=5) == payload
assert not peer.poll(0.1), "the interrupted call has sent"
one.send(b"next", timeout=5)
assert peer.recv(timeout=5) == b"next"
"""
    _interrupt(program, source, "{}", silent=lasts)  # else it logs what was dropped


def test_ctrl_c_interrupts_wait_subscribed(program):
    source = (
        PRELUDE + "pub = omq.PUB(bind='tcp://127.0.0.1:*')\n" + INTERRUPTED.replace("CALL", "pub.wait_subscribed()")
    )
    _interrupt(program, source, "{}")


def test_ctrl_c_interrupts_a_call_that_follows(program):
    """The main thread does not lead: another thread sleeps in the epoll set."""
    source = (
        PRELUDE
        + """
pull = omq.PULL(bind="tcp://127.0.0.1:*")
other = threading.Thread(target=pull.recv, daemon=True)
other.start()
while pull.readable.waiting == 0:
    time.sleep(0.001)
"""
        + INTERRUPTED.replace("CALL", "pull.recv()")
        + """
with omq.PUSH(connect=pull.endpoints[0]) as push:
    push.send(b"for the other one")
    other.join(5)
    assert not other.is_alive()
"""
    )
    _interrupt(program, source, "{}")


def test_a_handler_may_use_the_socket_that_is_waited_on(program):
    source = (
        PRELUDE
        + """
pull = omq.PULL(bind="tcp://127.0.0.1:*")
push = omq.PUSH(connect=pull.endpoints[0])
signal.signal(signal.SIGUSR1, lambda *_: push.send(b"from the handler"))
signal.signal(signal.SIGUSR2, lambda *_: pull.close())
threading.Timer(0.2, signal.raise_signal, [signal.SIGUSR1]).start()
assert pull.recv(timeout=10) == b"from the handler"
threading.Timer(0.2, signal.raise_signal, [signal.SIGUSR2]).start()
try:
    pull.recv(timeout=10)
except omq.ClosedError:
    print("closed")
"""
    )
    assert program(source, "{}").end() == "closed\n"


def test_signals_that_come_at_any_moment_are_handled_soon(program):
    """A storm of signals while messages flow and stop: each is handled, each message arrives."""
    source = (
        PRELUDE
        + """
import os, random
pull = omq.PULL(bind="tcp://127.0.0.1:*")
over, handled, late = threading.Event(), threading.Event(), []

def send():
    chance = random.Random(1)
    with omq.PUSH(connect=pull.endpoints[0]) as push:
        for n in range(2000):
            push.send(b"%d" % n)
            if chance.random() < 0.5:
                time.sleep(chance.random() * 0.0005)

def pester():
    chance = random.Random(2)
    while not over.is_set():
        handled.clear()
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
        if not handled.wait(5) or time.monotonic() - began > 1:
            late.append(time.monotonic() - began)
        time.sleep(chance.random() * 0.0003)

signal.signal(signal.SIGINT, lambda *_: handled.set())
threads = [threading.Thread(target=send), threading.Thread(target=pester)]
for thread in threads:
    thread.start()
assert [pull.recv(timeout=10) for _ in range(2000)] == [b"%d" % n for n in range(2000)]
assert not pull.poll(1)  # asleep while they come
over.set()
for thread in threads:
    thread.join()
print(late)
"""
    )
    assert program(source, "{}").end() == "[]\n"


@pytest.mark.parametrize(
    ("handle", "outcome"),
    [("context.term()", "ContextTerminated"), ("made.append(omq.PULL(context, bind=BIND))", "bound")],
)
def test_a_handler_may_call_while_the_context_begins(program, handle, outcome):
    """The handler runs in the main thread, which may be the one that starts the I/O thread at that moment."""
    source = f"""
import faulthandler, os, signal, threading
import omq
from omq.engine import iothread

faulthandler.dump_traceback_later(10, exit=True)
BIND = "tcp://127.0.0.1:*"
context = omq.Context()
made = []
began = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: (began.set(), {handle}))
see = iothread._reserve_descriptors

def interrupted():
    # On the thread that begins; the main thread waits for that, and its handler waits within.
    iothread._reserve_descriptors = see
    os.kill(os.getpid(), signal.SIGUSR1)
    assert began.wait(5)
    return see()

iothread._reserve_descriptors = interrupted
try:
    made.append(omq.PULL(context, bind=BIND))
    print("bound")
except omq.ContextTerminated:
    print("ContextTerminated")
assert sum(thread.name == "omq-io" for thread in threading.enumerate()) == bool(made)
for one in made:
    with omq.PUSH(context, connect=one.endpoints[0]) as push:
        push.send(b"x")
        assert one.recv(timeout=5) == b"x"
    one.close()
context.term()
assert not any(thread.name == "omq-io" for thread in threading.enumerate())
"""
    running = program(source)
    assert running.line() == outcome
    running.end()
