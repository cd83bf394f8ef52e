"""PEER (RFC 51): peers are known by numbers, and `connect_peer` gives the number of the one that it dials."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from functools import partial

import pytest

import omq
from tests.support.waits import BOUND, until
from tests.system.conformance.socks_server import SocksServer

FAST = {"reconnect_interval": 0.01}


def fill_peer(peer, routing_id):
    """Sends numbered messages to one peer until there is no room; how many were accepted."""
    sent = 0
    with contextlib.suppress(omq.SendTimeout):
        while True:
            peer.send(b"%d" % sent, routing_id=routing_id, timeout=0)
            sent += 1
    return sent


def test_both_sides_send_by_number(twin, endpoint):
    one = twin("PEER", bind=endpoint, recv_timeout=BOUND)
    other = twin("PEER", recv_timeout=BOUND)
    route = other.connect_peer(one.endpoints[0], timeout=BOUND)
    assert 0 < route < 1 << 32
    assert len(other.peers) == 1
    other.send(b"question", routing_id=route, timeout=BOUND)
    asked = one.recv_message()
    assert (asked.body, asked.parts, asked.group) == (b"question", [b"question"], None)
    one.send(b"answer", routing_id=asked.routing_id, timeout=BOUND)
    answer = other.recv_message()
    assert (answer.body, answer.routing_id) == (b"answer", route)


def test_the_one_that_is_dialled_is_the_one_that_is_sent_to(twin, tmp_path):
    places = [f"ipc://{tmp_path}/{number}" for number in range(5)]
    far = [twin("PEER", bind=place) for place in places]
    near = twin("PEER", bind="tcp://127.0.0.1:*")
    routes = [near.connect_peer(place, timeout=BOUND) for place in places]
    assert len(set(routes)) == 5
    for number, route in reversed(list(enumerate(routes))):
        near.send(b"%d" % number, routing_id=route, timeout=BOUND)
    assert [one.recv(timeout=BOUND) for one in far] == [b"%d" % number for number in range(5)]


def test_calls_at_once_give_each_its_own_number(twin, endpoint):
    one = twin("PEER", bind=endpoint)
    near = twin("PEER")
    calls = [twin.spawn(near, "connect_peer", one.endpoints[0], timeout=BOUND) for _ in range(4)]
    routes = {call.result() for call in calls}
    assert len(routes) == len(near.peers) == 4
    for route in routes:
        near.send(b"%d" % route, routing_id=route, timeout=BOUND)
    assert {int(one.recv(timeout=BOUND)) for _ in routes} == routes


def test_connect_peer_waits_for_an_endpoint_that_is_bound_later(twin, endpoint):
    near = twin("PEER", **FAST)
    call = twin.spawn(near, "connect_peer", endpoint, timeout=BOUND)
    assert not call.done(0.05)
    far = twin("PEER", bind=endpoint)
    near.send(b"x", routing_id=call.result(), timeout=BOUND)
    assert far.recv(timeout=BOUND) == b"x"


def test_without_a_peer_in_time_the_endpoint_is_not_connected(twin, endpoint):
    near = twin("PEER", **FAST)
    begun = time.monotonic()
    with pytest.raises(omq.Timeout, match=r"no peer at .* within 0.2 s"):
        near.connect_peer(endpoint, timeout=0.2)
    assert 0.19 < time.monotonic() - begun < BOUND  # clocks of loops count milliseconds
    with pytest.raises(omq.EndpointError, match="is not connected"):
        near.disconnect(endpoint)
    far = twin("PEER", bind=endpoint)
    with pytest.raises(omq.Timeout):
        far.wait_connected(timeout=0.1)
    assert near.connect_peer(endpoint, timeout=BOUND)


@pytest.mark.parametrize("other", ["earlier", "meanwhile"])
def test_the_last_failure_is_that_of_the_endpoint(twin, free_place, tmp_path, other):
    near = twin("PEER", **FAST)
    if other == "earlier":
        with pytest.raises(omq.Timeout, match=f"no peer at {free_place} .*last failure: .*refused"):
            near.connect_peer(free_place, timeout=0.2)
    else:
        near.connect(free_place)
    with pytest.raises(omq.Timeout, match=r"within 0\.2 s$"):
        near.connect_peer("inproc://nothing-is-bound-here", timeout=0.2)
    missing = f"ipc://{tmp_path}/missing"
    with pytest.raises(omq.Timeout, match="last failure: ") as caught:
        near.connect_peer(missing, timeout=0.2)
    assert free_place not in str(caught.value)
    assert "no such file" in str(caught.value)


@pytest.mark.parametrize("scheme", ["tcp", "ipc", "socks"])
@pytest.mark.parametrize("call", ["timeout", "given up", "wait"])
def test_a_failure_names_the_endpoint_once(twin, free_place, tmp_path, caplog, scheme, call):
    options = {"reconnect_interval": None} if call == "given up" else FAST
    place = f"ipc://{tmp_path}/missing" if scheme == "ipc" else free_place
    with SocksServer() as proxy, caplog.at_level(logging.DEBUG, "omq"):
        near = twin("PEER", **options, **({"socks_proxy": proxy.address} if scheme == "socks" else {}))
        monitor = near.monitor()
        if call == "wait":
            near.connect(place)
        wait = near.wait_connected if call == "wait" else partial(near.connect_peer, place)
        with pytest.raises(omq.ConnectError if call == "given up" else omq.Timeout) as caught:
            wait(timeout=BOUND if call == "given up" else 0.2)
        while (event := twin.event(monitor)).kind != "connect_failed":
            pass
    why = "no such file" if scheme == "ipc" else "refused"
    lines = [line for line in caplog.messages if "connect_failed" in line]
    for text in (str(caught.value), event.reason, lines[0]):
        assert text.count(place) == 1, text
        assert why in text
    assert event.detail == event.reason.replace(f"{place}: ", "")


def test_the_end_of_the_call_is_not_the_failure(twin, free_place):
    host, port = free_place.removeprefix("tcp://").split(":")
    near = twin("PEER")
    accepts_only = socket.create_server((host, int(port)))
    with accepts_only, pytest.raises(omq.Timeout, match=r"within 0\.2 s$"):
        near.connect_peer(free_place, timeout=0.2)


def test_a_failure_leaves_the_other_connections_of_the_endpoint(twin, endpoint):
    near = twin("PEER", **FAST)
    near.connect(endpoint)
    with pytest.raises(omq.Timeout):
        near.connect_peer(endpoint, timeout=0.05)
    twin("PEER", bind=endpoint)
    near.wait_connected(timeout=BOUND)
    near.disconnect(endpoint)


def test_a_peer_of_another_type_is_no_peer(twin, endpoint):
    other = twin("PAIR", bind=endpoint)
    near = twin("PEER", **FAST)
    with pytest.raises(omq.Timeout):
        near.connect_peer(other.endpoints[0], timeout=0.2)
    assert not near.peers


@pytest.mark.parametrize("given", [{"reconnect_interval": None}, {"reconnect_stop": "refused"}], ids=["never", "stop"])
def test_a_dialler_that_has_given_up_is_an_error_at_once(twin, free_place, given):
    near = twin("PEER", **given)
    with pytest.raises(omq.ConnectError, match="has no peer, and dialling has stopped") as caught:
        near.connect_peer(free_place, timeout=BOUND)
    assert free_place in str(caught.value)
    assert "; last failure: " in str(caught.value)


def test_a_disconnect_ends_the_call(twin, endpoint):
    near = twin("PEER", **FAST)
    call = twin.spawn(near, "connect_peer", endpoint, timeout=BOUND)

    def disconnected():
        try:
            near.disconnect(endpoint)
        except omq.EndpointError:
            return False
        return True

    until(disconnected)
    with pytest.raises(omq.ConnectError, match="dialling has stopped"):
        call.result()


def test_closing_ends_the_call(twin, endpoint):
    near = twin("PEER", **FAST)
    call = twin.spawn(near, "connect_peer", endpoint)
    assert not call.done(0.05)
    near.stop()
    with pytest.raises(omq.ClosedError):
        call.result()


@pytest.mark.parametrize("wrong", ["tcp://", "nonsense", "tcp://127.0.0.1:*"])
def test_an_endpoint_that_cannot_be_dialled_is_named(twin, wrong):
    with pytest.raises(omq.EndpointError):
        twin("PEER").connect_peer(wrong, timeout=BOUND)


def test_options_hold_for_the_endpoint(twin, free_place):
    near = twin("PEER")
    with pytest.raises(omq.OptionError, match="send_hwm"):
        near.connect_peer(free_place, timeout=0, send_hwm=3)
    with pytest.raises(ValueError, match="-1"):
        near.connect_peer(free_place, timeout=-1)


@pytest.mark.parametrize("kind", ["CLIENT", "SERVER", "CHANNEL", "ROUTER"])
def test_connect_peer_is_for_peer_alone(twin, kind):
    with pytest.raises(AttributeError, match="connect_peer"):
        twin(kind).connect_peer("inproc://x")


def test_after_a_loss_the_peer_has_another_number(twin, endpoint):
    far = twin("PEER", bind=endpoint)
    near = twin("PEER", hello_message=b"hello", hiccup_message=b"lost", **FAST)
    route = near.connect_peer(far.endpoints[0], timeout=BOUND)
    far.close()
    lost = near.recv_message(timeout=BOUND)
    assert (lost.body, lost.routing_id) == (b"lost", route)
    with pytest.raises(omq.UnroutableError, match=f"no connected peer has the routing id {route}"):
        near.send(b"x", routing_id=route)
    far = twin("PEER", bind=endpoint)
    hello = far.recv_message(timeout=BOUND)
    assert hello.body == b"hello"
    far.send(b"back", routing_id=hello.routing_id, timeout=BOUND)
    back = near.recv_message(timeout=BOUND)
    assert back.body == b"back"
    assert back.routing_id != route
    near.send(b"again", routing_id=back.routing_id, timeout=BOUND)
    assert far.recv(timeout=BOUND) == b"again"


def test_the_farewell_of_a_peer_that_was_accepted(twin, endpoint):
    far = twin("PEER", bind=endpoint, disconnect_message=b"bye")
    near = twin("PEER")
    near.send(b"1", routing_id=near.connect_peer(far.endpoints[0], timeout=BOUND), timeout=BOUND)
    near.close()
    first, last = (far.recv_message(timeout=BOUND) for _ in range(2))
    assert (first.body, last.body) == (b"1", b"bye")
    assert first.routing_id == last.routing_id


def test_a_full_peer_keeps_no_other_waiting(twin, inproc):
    near = twin("PEER", bind=inproc, send_hwm=1)
    far = [twin("PEER", recv_hwm=1) for _ in range(2)]
    for one in far:
        one.send(b"x", routing_id=one.connect_peer(inproc, timeout=BOUND), timeout=BOUND)
    full, other = (near.recv_message(timeout=BOUND).routing_id for _ in range(2))
    sent = fill_peer(near, full)
    assert sent >= 1
    near.send(b"at once", routing_id=other, timeout=BOUND)
    assert far[1].recv(timeout=BOUND) == b"at once"
    assert [far[0].recv(timeout=BOUND) for _ in range(sent)] == [b"%d" % number for number in range(sent)]


def test_disconnect_ends_the_newest_connection_of_an_endpoint(twin, endpoint):
    far = twin("PEER", bind=endpoint)
    near = twin("PEER")
    routes = [near.connect_peer(far.endpoints[0], timeout=BOUND) for _ in range(3)]
    while routes:
        for route in routes:
            near.send(b"x", routing_id=route, timeout=BOUND)
        near.disconnect(far.endpoints[0])
        gone = routes.pop()
        until(lambda: len(near.peers) == len(routes))
        with pytest.raises(omq.UnroutableError):
            near.send(b"x", routing_id=gone)
    with pytest.raises(omq.EndpointError):
        near.disconnect(far.endpoints[0])
