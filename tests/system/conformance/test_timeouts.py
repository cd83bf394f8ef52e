"""Time, in both twins: what a call does when its time is up, what it has done then, and what is a time at all."""

from __future__ import annotations

import math
import time
from functools import partial

import pytest

import omq
from tests.support.waits import BOUND, until
from tests.system.conformance.conftest import Waiting, on_every_loop

pytestmark = on_every_loop

RECEIVING = {
    "recv": lambda socket, **timeout: socket.recv(**timeout),
    "recv_multipart": lambda socket, **timeout: socket.recv_multipart(**timeout),
    "recv_many": lambda socket, **timeout: socket.recv_many(**timeout),
    "recv_into": lambda socket, **timeout: socket.recv_into(bytearray(10), **timeout),
    "recv_message": lambda socket, **timeout: socket.recv_message(**timeout),
}
SENDING = {
    "send": lambda socket, **timeout: socket.send(b"x", **timeout),
    "send_multipart": lambda socket, **timeout: socket.send_multipart([b"x", b"y"], **timeout),
    "send_many": lambda socket, **timeout: socket.send_many([b"x", b"y"], **timeout),
}


def took(call, timeout):
    """Returns whether a call has taken as long as it should; loops count in milliseconds."""
    begun = time.monotonic()
    call()
    return 0.8 * timeout <= time.monotonic() - begun < timeout + 2


def gives_up(error, call, *arguments, **options):
    with pytest.raises(error) as raised:
        call(*arguments, **options)
    assert isinstance(raised.value, TimeoutError)
    return str(raised.value)


@pytest.mark.parametrize("call", RECEIVING)
@pytest.mark.parametrize("timeout", [0, 0.01, 0.1])
def test_a_receiving_call_gives_up(twin, inproc, call, timeout):
    pull = twin("PULL", bind=inproc)
    assert took(lambda: gives_up(omq.ReceiveTimeout, RECEIVING[call], pull, timeout=timeout), timeout)
    pull.set_options(recv_timeout=timeout)
    assert took(lambda: gives_up(omq.ReceiveTimeout, RECEIVING[call], pull), timeout)
    assert "no message" in gives_up(omq.ReceiveTimeout, RECEIVING[call], pull, timeout=0)


@pytest.mark.parametrize("call", SENDING)
@pytest.mark.parametrize("timeout", [0, 0.01, 0.1])
def test_a_sending_call_gives_up_and_has_sent_nothing(twin, inproc, call, timeout):
    push = twin("PUSH", bind=inproc, send_hwm=1)
    push.send(b"1")
    assert took(lambda: gives_up(omq.SendTimeout, SENDING[call], push, timeout=timeout), timeout)
    push.set_options(send_timeout=timeout)
    assert took(lambda: gives_up(omq.SendTimeout, SENDING[call], push), timeout)
    assert "no room" in gives_up(omq.SendTimeout, SENDING[call], push, timeout=0)
    pull = twin("PULL", connect=inproc)
    push.wait_connected(timeout=BOUND)
    push.send(b"2", timeout=BOUND)
    assert [pull.recv(timeout=BOUND) for _ in range(2)] == [b"1", b"2"]


def test_none_outdoes_the_socket_and_waits(twin, inproc):
    pull = twin("PULL", bind=inproc, recv_timeout=0)
    waiting = twin.spawn(pull, "recv", timeout=None)
    assert not waiting.done(0.02)
    twin("PUSH", connect=inproc).send(b"x")
    assert waiting.result() == b"x"


def test_a_message_that_is_there_is_taken_without_time(twin, endpoint):
    pull, push = twin.linked("PULL", "PUSH", endpoint)
    push.send_many([b"1", b"2", b"3", b"4", b"5"])
    until(lambda: pull.peers[0].messages_in == 5)
    assert pull.recv(timeout=0) == b"1"
    assert pull.recv_multipart(timeout=0) == [b"2"]
    assert pull.recv_into(bytearray(5), timeout=0) == 1
    assert pull.recv_message(timeout=0).body == b"4"
    assert pull.recv_many(timeout=0) == [b"5"]


def test_send_many_reports_how_far_it_came(twin, inproc):
    push = twin("PUSH", bind=inproc, send_hwm=3)
    assert push.send_many([b"1", b"2", b"3", b"4", b"5"], timeout=0.01) == 3
    gives_up(omq.SendTimeout, push.send_many, [b"4"], timeout=0)
    pull = twin("PULL", connect=inproc)
    assert [pull.recv(timeout=BOUND) for _ in range(3)] == [b"1", b"2", b"3"]
    assert pull.poll(0) == 0


def test_poll_gives_nothing_when_its_time_is_up(twin, inproc):
    pull = twin("PULL", bind=inproc, recv_timeout=0)
    assert took(lambda: pull.poll(0.02), 0.02)
    assert pull.poll(0.01) == pull.poll(0) == 0


def test_wait_connected_and_wait_subscribed_give_up(twin, inproc):
    pub = twin("PUB", bind=inproc)
    for timeout in (0, 0.01):
        assert "connected" in gives_up(omq.Timeout, pub.wait_connected, timeout=timeout)
        assert "subscriptions" in gives_up(omq.Timeout, pub.wait_subscribed, timeout=timeout)
    sub = twin("SUB", connect=inproc, subscribe=[b"a", b"b"])
    pub.wait_subscribed(n=2, timeout=BOUND)
    pub.wait_connected(timeout=0)
    assert "2 connected" in gives_up(omq.Timeout, pub.wait_connected, 2, timeout=0.01)
    assert len(sub.peers) == 1
    with pytest.raises(omq.StateError):
        sub.wait_subscribed()


# What is a time


AGES = [2**31 / 1000, 1e8, 1e9, 9.3e9, 1e10, 1e20, 1e300, math.inf, 10**30, 10**400]
NO_TIME = [-1, -0.001, -math.inf, math.nan, -(10**400)]
NO_OPTION = [*NO_TIME, math.inf, 1e10, 10**400, "1", True]


def as_seconds(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)[:8]


@pytest.mark.parametrize("ages", AGES, ids=as_seconds)
def test_a_timeout_of_ages_is_for_ever(twin, inproc, ages):
    pull = twin("PULL", bind=[inproc, "tcp://127.0.0.1:*"])
    push = twin("PUSH", bind=f"{inproc}-full", send_hwm=1)
    pub = twin("PUB", bind=f"{inproc}-pub")
    push.send(b"0")
    monitor = pull.monitor()
    waits = {
        "poll": twin.spawn(pull, "poll", ages),
        "recv": twin.spawn(pull, "recv", timeout=ages),
        "monitor": Waiting(partial(twin.event, monitor, ages)),
        "send": twin.spawn(push, "send", b"1", timeout=ages),
        "connected": twin.spawn(pub, "wait_connected", timeout=ages),
        "subscribed": twin.spawn(pub, "wait_subscribed", timeout=ages),
    }
    if twin.name == "blocking":
        waits["wait"] = Waiting(partial(omq.wait, [pull], ages))
    assert not any(wait.done(0.01) for wait in waits.values()), "they wait"
    twin("SUB", connect=f"{inproc}-pub", subscribe=b"")
    twin("PULL", connect=f"{inproc}-full")
    feeder = twin("PUSH", connect=pull.endpoints[1])
    for _ in range(3):
        feeder.send(b"x")  # for the call that polls, and the one that takes
    results = {name: wait.result() for name, wait in waits.items()}
    assert results["poll"] == omq.POLL_IN
    assert results["recv"] == b"x"
    assert results["monitor"].kind == omq.EventKind.ACCEPTED
    assert results.get("wait", [pull]) == [pull]


@pytest.mark.parametrize("bad", NO_TIME, ids=as_seconds)
def test_what_is_no_time_is_refused_whether_or_not_the_call_would_wait(twin, inproc, bad):
    pub, sub = twin.linked("PUB", "SUB", inproc, subscribe=b"")
    pub.wait_subscribed(timeout=BOUND)
    pub.send(b"there")
    assert sub.poll(BOUND) == omq.POLL_IN
    monitor = pub.monitor()
    calls = [
        *(partial(call, sub, timeout=bad) for call in RECEIVING.values()),
        *(partial(call, pub, timeout=bad) for call in SENDING.values()),
        *(partial(call, timeout=bad) for call in (pub.wait_connected, pub.wait_subscribed)),
        *(partial(socket.poll, bad) for socket in (sub, pub)),
        partial(pub.send, bytearray(b"y"), timeout=bad),
        partial(twin.event, monitor, bad),
    ]
    if twin.name == "blocking":
        calls += [partial(omq.wait, [sub], bad), partial(sub.recv_columns, bytearray(10), bytearray(80), timeout=bad)]
    for call in calls:
        with pytest.raises(ValueError, match=r"timeout=.*: must be seconds, 0 or more, or None"):
            call()
    assert sub.recv_many(timeout=BOUND) == [b"there"]
    assert not sub.poll(0), "nothing was sent"


@pytest.mark.parametrize("bad", NO_OPTION, ids=as_seconds)
def test_an_option_that_is_no_time_is_refused_by_name_wherever_it_is_given(twin, inproc, bad):
    pull = twin("PULL", bind=inproc, recv_timeout=0.25, send_timeout=0.75)
    context = omq.Context()
    calls = {
        "recv_timeout": [partial(setattr, pull, "recv_timeout", bad), partial(pull.set_options, recv_timeout=bad)],
        "send_timeout": [partial(setattr, pull, "send_timeout", bad), partial(pull.set_options, send_timeout=bad)],
        "linger": [partial(pull.close, bad), partial(context.term, bad), partial(pull.set_options, linger=bad)],
    }
    for name, some in calls.items():
        for call in some:
            with pytest.raises(omq.OptionError, match=f"option {name}=.*: must be seconds from 0 up to 1000000000"):
                call()
    assert not pull.closed
    assert not context.closed
    assert (pull.recv_timeout, pull.send_timeout) == (0.25, 0.75)


def test_the_timeouts_of_a_socket_are_its_options(twin, inproc):
    pull = twin("PULL", bind=inproc)
    pull.recv_timeout = 0
    assert pull.options.recv_timeout == 0
    gives_up(omq.ReceiveTimeout, pull.recv)
    pull.set_options(recv_timeout=1e9, send_timeout=2)
    assert (pull.recv_timeout, pull.send_timeout) == (1e9, 2)
    waiting = twin.spawn(pull, "recv")
    assert not waiting.done(0.02)
    twin("PUSH", connect=inproc).send(b"x")
    assert waiting.result() == b"x"
