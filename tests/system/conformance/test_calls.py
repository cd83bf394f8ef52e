"""The checks of the calls' arguments that the API page promises, for both twins alike."""

from __future__ import annotations

import math
import os
import select
import threading

import pytest

import omq
from tests.support.parameters import each_value_once
from tests.support.waits import BOUND, until


@pytest.fixture
def linked(twin, endpoint):
    pull, push = twin.linked("PULL", "PUSH", endpoint)
    return push, pull


@pytest.mark.parametrize("linger", [-1, math.nan, math.inf, "x"])
def test_an_invalid_linger_is_refused_and_closes_nothing(twin, linked, linger):
    push, pull = linked
    with pytest.raises(omq.OptionError, match="linger="):
        push.close(linger=linger)
    assert not push.closed
    with pytest.raises(omq.OptionError, match="linger="):
        twin.context.term(linger=linger)
    push.send(b"still here")
    assert pull.recv(timeout=BOUND) == b"still here"


@pytest.mark.parametrize("call", ["recv", "poll"])
def test_a_caller_that_polls_without_waiting_sees_what_comes(linked, call):
    """Also in an event loop that gets no turn of its own meanwhile."""
    push, pull = linked
    push.send(b"x")
    for _ in range(200_000):
        if call == "poll":
            if pull.poll(0):
                break
        else:
            try:
                assert pull.recv(timeout=0) == b"x"
                return
            except omq.ReceiveTimeout:
                pass
    assert pull.recv(timeout=0) == b"x"


def test_endpoints_of_a_closed_socket(twin, linked):
    push, pull = linked
    where = pull.endpoints[0]
    push.close()
    pull.close()
    for call in (pull.bind, pull.unbind, push.connect, push.disconnect):
        with pytest.raises(omq.ClosedError):
            call(where)
    for wrong in (b"tcp://127.0.0.1:*", 5, ["tcp://127.0.0.1:*", 5]):
        with pytest.raises(omq.EndpointError):
            twin("PULL", bind=wrong)


def _readable(fd, seconds=0.0):
    return bool(select.select([fd], [], [], seconds)[0])


def test_the_descriptor_is_readable_exactly_while_a_message_waits(linked):
    push, pull = linked
    fd = pull.fileno()
    assert fd == pull.fileno()
    for take in (
        lambda: pull.recv(timeout=0),
        lambda: pull.recv_multipart(timeout=0),
        lambda: pull.recv_many(1, timeout=0),
        lambda: pull.recv_into(bytearray(9), timeout=0),
        lambda: pull.recv_message(timeout=0),
    ):
        assert not _readable(fd)
        push.send_many([b"a", b"b"])
        assert _readable(fd, BOUND)
        take()
        until(lambda: _readable(fd))
        assert _readable(fd), "level-triggered: it stays so"
        take()
    assert not _readable(fd)
    push.send(b"x")
    assert _readable(fd, BOUND)
    with pytest.raises(omq.StateError, match="does not receive"):
        push.fileno()


def test_the_descriptor_of_a_large_burst_never_lies(linked):
    push, pull = linked
    fd = pull.fileno()
    count = 20_000
    sender = threading.Thread(target=push.send_many, args=([b"%d" % n for n in range(count)],))
    sender.start()
    got = []
    while len(got) < count:
        assert _readable(fd, BOUND), f"{count - len(got)} messages are missing"
        got += pull.recv_many(300, timeout=0)
    sender.join()
    assert got == [b"%d" % n for n in range(count)]
    assert not _readable(fd)


def test_the_descriptor_shows_what_is_wanted_only(twin, endpoint):
    pub = twin("PUB", bind=endpoint)
    sub = twin("SUB", connect=pub.endpoints[0], subscribe=[b"a", b"c"])
    pub.wait_subscribed(b"a", timeout=BOUND)
    pub.wait_subscribed(b"c", timeout=BOUND)
    fd = sub.fileno()
    pub.send_many([b"b", b"a", b"b", b"c"])
    assert _readable(fd, BOUND)
    assert sub.recv(timeout=BOUND) == b"a"
    assert _readable(fd, BOUND)
    sub.unsubscribe(b"c")
    assert not _readable(fd)
    assert not sub.poll(0)


def test_the_descriptor_shows_what_stands_behind_much_that_is_no_longer_wanted(twin, endpoint):
    """Each look drops a part of it and no more; the next one comes by itself."""
    pub = twin("PUB", bind=endpoint, send_hwm=0)
    sub = twin("SUB", connect=pub.endpoints[0], subscribe=[b"a", b"k"], recv_hwm=0)
    pub.wait_subscribed(b"a", timeout=BOUND)
    pub.wait_subscribed(b"k", timeout=BOUND)
    pub.send_many([b"a"] * 2000 + [b"k"])
    until(lambda: sub.peers[0].messages_in == 2001)
    fd = sub.fileno()
    sub.unsubscribe(b"a")
    assert _readable(fd, BOUND)
    assert sub.recv(timeout=BOUND) == b"k"
    assert not _readable(fd)


def test_a_descriptor_that_was_given_back(linked):
    push, pull = linked
    pull.release_fileno()  # no caller has it
    push.release_fileno()
    fd = pull.fileno()
    for _ in range(3):
        assert not _readable(fd)
        pull.release_fileno()
        pull.release_fileno()
        assert _readable(fd), "who still selects on it is to wake up"
        push.send(b"x")
        assert pull.recv(timeout=BOUND) == b"x"
        assert _readable(fd)
        assert pull.fileno() == fd
        assert not _readable(fd)
        push.send(b"y")
        assert _readable(fd, BOUND)
        assert pull.recv(timeout=0) == b"y"


def test_a_message_that_waits_when_the_descriptor_is_given_back_and_asked_for_again(linked):
    push, pull = linked
    fd = pull.fileno()
    push.send(b"a")
    assert _readable(fd, BOUND)
    pull.release_fileno()
    push.send(b"b")
    assert pull.fileno() == fd
    for body in (b"a", b"b"):
        assert _readable(fd, BOUND)
        assert pull.recv(timeout=0) == body
    assert not _readable(fd)


def test_the_descriptor_of_a_closed_socket_stays_until_it_is_given_back(twin, endpoint):
    pull = twin("PULL", bind=endpoint)
    fd = pull.fileno()
    pull.close()
    assert _readable(fd)
    pull.release_fileno()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_the_descriptor_of_a_socket_that_closes_wakes_who_waits_for_it(twin, endpoint):
    pull = twin("PULL", bind=endpoint)
    fd = pull.fileno()
    assert not _readable(fd)
    pull.close()
    assert _readable(fd, BOUND)
    with pytest.raises(omq.ClosedError):
        pull.fileno()


def test_options_set_before_the_first_use_hold_like_those_given_at_once(twin, inproc):
    pull = twin("PULL")
    pull.set_options(conflate=True)
    pull.bind(inproc)
    push = twin("PUSH", connect=inproc)
    push.wait_connected(timeout=BOUND)
    for number in range(20):
        push.send(b"%d" % number)
    assert pull.recv(timeout=BOUND) == b"19"
    assert not pull.poll(0.02)

    waits = twin("PUSH")
    waits.set_options(immediate=True, send_hwm=5)
    with pytest.raises(omq.SendTimeout):
        waits.send(b"x", timeout=0)

    req = twin("REQ")
    req.set_options(req_relaxed=True)
    req.connect(f"{inproc}-absent")
    req.send(b"first")
    req.send(b"second")


def test_subscriptions_outlive_options_that_are_set_before_the_first_use(twin, endpoint):
    pub = twin("PUB", bind=endpoint)
    sub = twin("SUB", subscribe=[b"a", b"b"])
    sub.subscribe(b"c")
    sub.subscribe(b"d")
    sub.subscribe(b"d")
    sub.subscribe(b"b")
    sub.set_options(identity=b"me", subscribe=b"b")
    sub.unsubscribe(b"b")
    sub.unsubscribe(b"d")
    sub.connect(pub.endpoints[0])
    for prefix in (b"b", b"c", b"d"):
        pub.wait_subscribed(prefix, timeout=BOUND)
    pub.send_many([b"a", b"b", b"c", b"d"])
    assert [sub.recv(timeout=BOUND) for _ in range(3)] == [b"b", b"c", b"d"]
    sub.unsubscribe(b"d")
    until(lambda: _subscriptions(pub) == 2)


def _subscriptions(pub):
    try:
        pub.wait_subscribed(n=3, timeout=0)
    except omq.Timeout:
        return 2
    return 3


def test_options_of_a_socket_in_use_that_are_not_live_are_refused(twin, endpoint):
    bound = twin("PULL", bind=endpoint)
    given = twin("PUSH")
    given.send(b"x")
    for socket in (bound, given):
        with pytest.raises(omq.StateError):
            socket.set_options(conflate=True)
        socket.set_options(recv_hwm=5, send_hwm=5)
    given.connect(bound.endpoints[0])
    assert bound.recv(timeout=BOUND) == b"x"


def test_options_made_by_hand_are_checked():
    with pytest.raises(omq.OptionError, match="send_hwm=-5"):
        omq.Options(send_hwm=-5)
    assert omq.Options(linger=1).linger == 1.0


@each_value_once(kinds=[("ROUTER", "DEALER"), ("REP", "DEALER"), ("PULL", "PUSH")], mark=[1, 5])
def test_a_descriptor_that_is_watched_costs_no_message(twin, endpoint, kinds, mark):
    """Taking a message has its peer read on, which wakes the descriptor, which asks for the next message."""
    taker = twin(kinds[0], bind=endpoint, recv_hwm=mark)
    fd = taker.fileno()
    givers = [twin(kinds[1], connect=taker.endpoints[0], send_hwm=0) for _ in range(2)]
    taker.wait_connected(2, timeout=BOUND)
    count = 300
    for number in range(count):
        for giver in givers:
            giver.send_multipart([b"", b"%d" % number] if kinds[0] == "REP" else [b"%d" % number])
    got = []
    while len(got) < 2 * count:
        assert _readable(fd, BOUND), f"{2 * count - len(got)} messages are missing"
        got.append(int(taker.recv_multipart(timeout=0)[-1]))
        if kinds[0] == "REP":
            taker.send(b"answer")
    assert sorted(got) == sorted([*range(count), *range(count)])
    assert not _readable(fd)
