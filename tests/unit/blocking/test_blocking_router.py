"""The times at which a ROUTER can send: libzmq's rule, on blocking sockets."""

from __future__ import annotations

import contextlib
import time

import pytest
import zmq
import zmq.utils.monitor

import omq
from tests.unit.blocking.conftest import BOUND, asleep

LARGE = bytes(100_000)
HWM = {"send_hwm": 10, "recv_hwm": 10}


def fill(router, name):
    """Sends until the peer takes no more, and its kernel neither; gives the number of messages."""
    for sent in range(10_000):
        try:
            router.send_multipart([name, LARGE], timeout=0.2)
        except omq.SendTimeout:
            return sent
    raise AssertionError("it takes everything")


def fill_again(router, names):
    """Sends until nothing more is taken: the room in a kernel grows for a while."""
    for name in names * 20:
        if not router.poll(0.05, omq.POLL_OUT):
            return
        fill(router, name)
    raise AssertionError("a peer takes on and on")


def drain(dealer):
    """Takes what is there and what follows."""
    with contextlib.suppress(omq.ReceiveTimeout):
        while True:
            dealer.recv(timeout=0.2)


def writable(router):
    return router.poll(0, omq.POLL_OUT) == omq.POLL_OUT


def test_a_mandatory_router_can_send_while_any_peer_has_room(make, endpoint):
    router = make(omq.ROUTER, bind=endpoint, router_mandatory=True, **HWM)
    assert not writable(router), "there is no peer"
    names = [b"one", b"two", b"three"]
    dealers = {name: make(omq.DEALER, connect=router.endpoints[0], identity=name, **HWM) for name in names}
    router.wait_connected(3, timeout=BOUND)
    for name in names:
        assert writable(router)
        assert fill(router, name) >= 10
    fill_again(router, names)
    assert router.poll(0.05, omq.POLL_OUT) == 0
    drain(dealers[b"two"])
    assert writable(router)
    assert fill(router, b"two") > 0
    fill_again(router, names)


def test_a_loop_that_polls_a_full_router_sleeps(make, endpoint):
    router, _ = make.linked(omq.ROUTER, omq.DEALER, endpoint, identity=b"d", router_mandatory=True, **HWM)
    fill(router, b"d")
    turns = 0
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        if router.poll(0.1, omq.POLL_OUT):
            turns += 1
            with contextlib.suppress(omq.SendTimeout):
                router.send_multipart([b"d", LARGE], timeout=0)
    assert turns <= 5


def test_a_caller_that_waits_for_room_wakes_up(make, crew, endpoint):
    router, dealer = make.linked(omq.ROUTER, omq.DEALER, endpoint, identity=b"d", router_mandatory=True, **HWM)
    fill(router, b"d")
    crew(router.poll, BOUND, omq.POLL_OUT)
    asleep(router)
    drain(dealer)
    assert crew.join() == [omq.POLL_OUT]
    router.send_multipart([b"d", b"room"], timeout=0)


def test_another_peer_a_higher_mark_and_another_rule_make_room(make, endpoint):
    router, dealer = make.linked(omq.ROUTER, omq.DEALER, endpoint, identity=b"d", router_mandatory=True, **HWM)
    fill(router, b"d")
    other = make(omq.DEALER, connect=router.endpoints[0], identity=b"other")
    router.wait_connected(2, timeout=BOUND)
    assert writable(router)
    router.send_multipart([b"other", b"x"], timeout=0)
    with router.monitor() as monitor:
        other.stop()
        assert monitor.recv(timeout=BOUND).kind == omq.EventKind.DISCONNECTED
    assert not writable(router)
    router.set_options(send_hwm=1000)
    assert writable(router)
    router.set_options(send_hwm=10)
    assert not writable(router)
    router.set_options(router_mandatory=False)
    assert writable(router), "it drops"
    assert len(dealer.recv(timeout=BOUND)) == len(LARGE)


@pytest.mark.parametrize("mandatory", [False, True])
def test_poll_agrees_with_libzmq(make, mandatory):
    router, dealer = make.linked(
        omq.ROUTER, omq.DEALER, "tcp://127.0.0.1:*", identity=b"d", router_mandatory=mandatory, **HWM
    )
    context = zmq.Context()
    try:
        theirs, peer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        theirs.router_mandatory = mandatory
        theirs.sndhwm = peer.rcvhwm = 10
        theirs.sndtimeo = 200
        peer.identity = b"d"
        with theirs.get_monitor_socket() as monitor:
            peer.connect(f"tcp://127.0.0.1:{theirs.bind_to_random_port('tcp://127.0.0.1')}")
            while zmq.utils.monitor.recv_monitor_message(monitor)["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED:
                pass
            theirs.disable_monitor()
        ready = []
        for full in (False, True):
            if full and mandatory:
                fill(router, b"d")
                with contextlib.suppress(zmq.Again):
                    for _ in range(10_000):
                        theirs.send_multipart([b"d", LARGE])
            elif full:
                for _ in range(300):
                    router.send_multipart([b"d", LARGE])
                    theirs.send_multipart([b"d", LARGE])
            ready.append((router.poll(0, omq.POLL_OUT), theirs.poll(0, zmq.POLLOUT)))
        assert ready == ([(omq.POLL_OUT, zmq.POLLOUT), (0, 0)] if mandatory else [(omq.POLL_OUT, zmq.POLLOUT)] * 2)
        assert dealer.poll(BOUND)
    finally:
        context.destroy(0)


@pytest.mark.parametrize("binder", [True, False], ids=["binds", "connects"])
def test_an_identity_may_be_that_of_one_endpoint(make, endpoint, binder):
    """Over each transport; other endpoints have the socket's."""
    router, dealer = make(omq.ROUTER), make(omq.DEALER, identity=b"whole")
    if binder:
        router.connect(dealer.bind(endpoint, identity=b"here"))
    else:
        dealer.connect(router.bind(endpoint), identity=b"here")
    other = make(omq.ROUTER, bind="tcp://127.0.0.1:*")
    dealer.connect(other.endpoints[0])
    dealer.wait_connected(2, timeout=BOUND)
    dealer.send(b"1", timeout=BOUND)
    dealer.send(b"2", timeout=BOUND)
    assert router.recv_multipart(timeout=BOUND)[0] == b"here"
    assert other.recv_multipart(timeout=BOUND)[0] == b"whole"


def test_udp_has_no_identity(make):
    with pytest.raises(omq.OptionError, match="identity"):
        make(omq.DISH).bind("udp://127.0.0.1:*", identity=b"x")
