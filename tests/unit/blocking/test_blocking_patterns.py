"""Blocking sockets in patterns: how they wait, leave and run short of memory; what both twins do is asked elsewhere."""

from __future__ import annotations

import contextlib
import time

import pytest

import omq
from tests.support.waits import until
from tests.unit.blocking.conftest import BOUND, asleep
from tests.unit.conftest import needs_address_space


def test_a_peer_that_comes_back_is_found_again(make, endpoint):
    push = make(omq.PUSH, reconnect_interval=0.01)
    pull = make(omq.PULL, bind=endpoint)
    name = pull.endpoints[0]
    push.connect(name)
    for n in range(4):
        push.send(b"%d" % n)
        assert pull.recv(timeout=BOUND) == b"%d" % n
        pull.stop()
        until(lambda: not push.peers)
        pull = make(omq.PULL, bind=name)


@pytest.mark.parametrize("busy_poll", [0, 0.002, "adaptive"])
def test_a_round_trip_whatever_the_wait_is_like(make, crew, endpoint, busy_poll):
    rep, req = make.linked(omq.REP, omq.REQ, endpoint, busy_poll=busy_poll)
    crew(lambda: [rep.send(rep.recv(timeout=BOUND)) for _ in range(500)])
    for n in range(500):
        req.send(b"%d" % n)
        assert req.recv(timeout=BOUND) == b"%d" % n
        if n % 100 == 0:
            time.sleep(0.03)  # the I/O thread takes over
    crew.join()


def test_a_receiver_that_disconnects_gets_no_more_than_it_held(make):
    """The receiver has nothing to send: its side ends within the call, however busy the I/O thread is."""
    push = make(omq.PUSH, bind="tcp://127.0.0.1:*")
    pull = make(omq.PULL, connect=push.endpoints[0], recv_hwm=10)
    push.wait_connected(timeout=BOUND)
    sent = 0
    with contextlib.suppress(omq.SendTimeout):
        while True:
            push.send(b"x" * 1000, timeout=0.2)
            sent += 1
    loop = pull._io.loop

    def keep_busy(turns):
        time.sleep(0.01)
        if turns:
            loop.call_soon(keep_busy, turns - 1)

    loop.call_soon_threadsafe(keep_busy, 10)
    pull.disconnect(push.endpoints[0])
    got = 0
    with contextlib.suppress(omq.ReceiveTimeout):
        while True:
            got += len(pull.recv_many(timeout=0))
    assert 10 <= got < 1000 < sent


@pytest.mark.parametrize("call", ["recv", "recv_multipart", "poll"])
def test_calls_that_do_no_work_do_not_keep_the_io_thread_away(make, crew, call):
    """A REQ that has asked nothing refuses to receive, without a look at its connections: another one must look."""
    rep, req = make.linked(omq.REP, omq.REQ, "tcp://127.0.0.1:*", reconnect_interval=None)
    # While a caller sleeps in the socket, the I/O thread hands the connections over to it.
    req.send(b"x")
    crew(lambda: req.recv(timeout=BOUND))
    asleep(req)
    rep.send(rep.recv(timeout=BOUND))
    crew.join()
    rep.close()

    def seen():
        with contextlib.suppress(omq.StateError):
            assert not getattr(req, call)(timeout=0)
        return not req.peers

    until(seen, "the end of the peer")


@needs_address_space
def test_a_shorter_reply_may_be_sent_where_memory_was_short(make, little_memory):
    """A sealed reply needs memory of its own."""
    public, secret = omq.curve_keypair()
    rep = make(omq.REP, bind="tcp://127.0.0.1:*", security=omq.CurveServer(secret))
    req = make(omq.REQ, connect=rep.endpoints[0], security=omq.CurveClient(public))
    req.send(b"much, please", timeout=BOUND)
    assert rep.recv(timeout=BOUND) == b"much, please"
    reply = bytes(256 << 20)
    little_memory(64 << 20)
    with pytest.raises(MemoryError):
        rep.send(reply)
    little_memory(None)
    rep.send(b"sorry")
    assert req.recv(timeout=BOUND) == b"sorry"


@needs_address_space
def test_a_request_that_memory_is_short_for_leaves_the_one_before_as_it_was(make, little_memory):
    public, secret = omq.curve_keypair()
    rep = make(omq.REP, bind="tcp://127.0.0.1:*", security=omq.CurveServer(secret))
    req = make(omq.REQ, connect=rep.endpoints[0], security=omq.CurveClient(public), req_relaxed=True)
    req.send(b"first", timeout=BOUND)
    assert rep.recv(timeout=BOUND) == b"first"
    second = bytes(256 << 20)
    little_memory(64 << 20)
    with pytest.raises(MemoryError):
        req.send(second)
    little_memory(None)
    rep.send(b"answer")
    assert req.recv(timeout=BOUND) == b"answer"
