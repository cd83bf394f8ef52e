"""Signal handlers that raise, or close the socket, in the middle of subscriptions: each is made whole or not at all."""

from __future__ import annotations

import pytest

from tests.support.parameters import each_value_once

PRELUDE = """
import signal, sys, threading, time
from itertools import islice
import omq

class Tick(BaseException):
    pass

armed, raised = False, 0

def raising(*_):
    global raised
    if armed:
        raised += 1
        raise Tick

def ticking(seconds):
    signal.signal(signal.SIGALRM, raising)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
"""

SUBSCRIBING = """
pub = omq.XPUB(bind=sys.argv[1], linger=0, recv_hwm=0, max_subscriptions=None)
sub = getattr(omq, sys.argv[2])(connect=pub.endpoints[0], linger=0)
sub.wait_connected(timeout=10)
ticking(0.0005)
wanted = 0
end = time.monotonic() + 20
while raised < 300 and time.monotonic() < end:
    while True:
        try:
            armed = True
            sub.subscribe(b"%08d" % wanted)
            armed = False
            break
        except Tick:
            armed = False  # ask again
    wanted += 1
signal.setitimer(signal.ITIMER_REAL, 0)
pub.wait_subscribed(n=wanted, timeout=20)
received = [pub.recv(timeout=10) for _ in range(wanted)]
print(raised >= 300, received == [b"\\1%08d" % number for number in range(wanted)], pub.poll(0.05))
"""

HEARING = """
pub = omq.XPUB(bind=sys.argv[1], linger=0, recv_hwm=int(sys.argv[2]), recv_timeout=10)
count = 40_000

def subscribe():
    with omq.Context() as context, omq.SUB(context, connect=pub.endpoints[0], linger=0) as sub:
        sub.wait_connected(timeout=10)
        for number in range(count):
            sub.subscribe(b"%d" % number)
            if number % 100 == 0:
                time.sleep(0.001)
        over.wait(60)

over = threading.Event()
thread = threading.Thread(target=subscribe)
thread.start()
pub.wait_connected(timeout=10)
ticking(0.001)
received = []
while len(received) < count:
    try:
        armed = True
        # No Python code runs between a message and its place in the list, where a handler would lose it.
        received.extend(islice(pub, min(20, count - len(received))))
        armed = False
    except Tick:
        armed = False
signal.setitimer(signal.ITIMER_REAL, 0)
print(raised > 20, sorted(received) == sorted(b"\\1%d" % number for number in range(count)), len(pub.peers))
over.set()
thread.join()
"""

CLOSING = """
def close(*_):
    begun = time.monotonic()
    one.close(0)
    closed.append(time.monotonic() - begun)

closed = []
signal.signal(signal.SIGALRM, close)
if sys.argv[2] == "subscribe":
    pub = omq.PUB(bind=sys.argv[1], linger=0)
    one = omq.SUB(connect=pub.endpoints[0])
    one.wait_connected(timeout=10)
else:
    one = omq.XPUB(bind=sys.argv[1], recv_hwm=0)

def subscribe(sub):
    try:
        while True:
            for number in range(100_000):
                sub.subscribe(b"%d" % number)
    except omq.ClosedError:
        pass

signal.setitimer(signal.ITIMER_REAL, float(sys.argv[3]))
if sys.argv[2] == "subscribe":
    subscribe(one)
else:
    context = omq.Context()
    sub = omq.SUB(context, connect=one.endpoints[0], linger=0)
    thread = threading.Thread(target=subscribe, args=(sub,))
    thread.start()
    try:
        while True:
            one.recv()
    except omq.ClosedError:
        sub.close(0)
        thread.join()
print(closed[0] < 5)
"""


@each_value_once(transport=["tcp", "inproc"], kind=["SUB", "XSUB"])
def test_an_interrupted_subscription_is_made_or_not(program, transport, kind):
    """The caller cannot know, and asks again: then it is in force, and every listener has received it."""
    endpoint = "tcp://127.0.0.1:*" if transport == "tcp" else "inproc://here"
    assert program(PRELUDE + SUBSCRIBING, endpoint, kind).end() == "True True 0\n"


@pytest.mark.parametrize("recv_hwm", [0, 50])
def test_an_xpub_interrupted_while_it_reads_gets_every_subscription_once(program, recv_hwm):
    assert program(PRELUDE + HEARING, "tcp://127.0.0.1:*", str(recv_hwm)).end() == "True True 1\n"


@each_value_once(call=["subscribe", "recv"], at=["0.11", "0.2", "0.33"])
def test_a_handler_may_close_a_socket_that_is_busy_with_subscriptions(program, call, at):
    assert program(PRELUDE + CLOSING, "tcp://127.0.0.1:*", call, at).end() == "True\n"
