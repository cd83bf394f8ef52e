"""CLIENT and SERVER (RFC 41): clients are known by numbers, messages have one part."""

from __future__ import annotations

import contextlib

import pytest

import omq
from tests.support.waits import BOUND, until
from tests.system.conformance.conftest import drain


def test_a_reply_goes_to_the_client_that_asked(twin, endpoint):
    server = twin("SERVER", bind=endpoint)
    clients = [twin("CLIENT", connect=server.endpoints[0]) for _ in range(3)]
    for number, client in enumerate(clients):
        client.send(b"from %d" % number, timeout=BOUND)
    asked = [server.recv_message(timeout=BOUND) for _ in clients]
    routes = {message.routing_id for message in asked}
    assert len(routes) == len(clients)
    assert all(0 < route < 1 << 32 for route in routes)
    for message in reversed(asked):
        server.send(b"to " + message.body, routing_id=message.routing_id, timeout=BOUND)
    assert [client.recv(timeout=BOUND) for client in clients] == [b"to from %d" % number for number in range(3)]


def test_a_client_takes_from_its_servers_in_turn(twin, endpoint):
    client = twin("CLIENT", bind=endpoint, recv_timeout=BOUND)
    servers = [twin("SERVER", connect=client.endpoints[0]) for _ in range(2)]
    client.wait_connected(2, timeout=BOUND)
    for number in range(2):
        client.send(b"%d" % number, timeout=BOUND)
    for name, server in zip((b"a", b"b"), servers, strict=True):
        route = server.recv_message(timeout=BOUND).routing_id
        for _ in range(600):
            server.send(name, routing_id=route, timeout=BOUND)
    # A turn is 256 messages at most: each server is served before the other one is through.
    found = [client.recv() for _ in range(1200)]
    assert found.count(b"a") == 600
    assert {b"a", b"b"} == set(found[:700])


def test_content_passes_unchanged_both_ways(twin, endpoint):
    server = twin("SERVER", bind=endpoint, recv_timeout=BOUND)
    client = twin("CLIENT", connect=server.endpoints[0], recv_timeout=BOUND)
    for body in (b"", b"\0", bytes(300), b"\xff" * 100_000):
        client.send(body, timeout=BOUND)
        message = server.recv_message()
        assert (message.body, message.group) == (body, None)
        server.send(message.body, routing_id=message.routing_id, timeout=BOUND)
        assert client.recv() == body


def test_a_server_may_speak_first_to_a_client_that_it_knows_from_a_message(twin, endpoint):
    server = twin("SERVER", bind=endpoint)
    client = twin("CLIENT", connect=server.endpoints[0])
    client.send(b"here I am", timeout=BOUND)
    route = server.recv_message(timeout=BOUND).routing_id
    for number in range(3):
        server.send(b"%d" % number, routing_id=route, timeout=BOUND)
    assert drain(client, 3) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", ["SERVER", "PEER"])
@pytest.mark.parametrize("route", [0, 7, -1, 1 << 32, 1 << 200])
def test_a_number_that_is_no_peers_is_an_error_with_the_number(twin, kind, route):
    one = twin(kind, bind="inproc://numbers")
    for call in (one.send, lambda *_, **given: one.send_multipart([b"x"], **given)):
        with pytest.raises(omq.UnroutableError, match=f"no connected peer has the routing id {route}$"):
            call(b"x", routing_id=route, timeout=0)


@pytest.mark.parametrize("kind", ["SERVER", "PEER"])
@pytest.mark.parametrize("route", ["7", b"7", 7.0, True, [7], object])
def test_what_is_not_a_number_is_an_error_with_the_value(twin, kind, route):
    one = twin(kind)
    with pytest.raises(TypeError, match="must be a whole number, not") as caught:
        one.send(b"x", routing_id=route)
    assert repr(route) in str(caught.value)
    with pytest.raises(omq.StateError, match="routing_id= is missing"):
        one.send(b"x", routing_id=None)


def test_a_client_that_has_gone_is_an_error(twin, endpoint):
    server = twin("SERVER", bind=endpoint)
    client = twin("CLIENT", connect=server.endpoints[0])
    client.send(b"x", timeout=BOUND)
    route = server.recv_message(timeout=BOUND).routing_id
    client.stop()
    until(lambda: not server.peers)
    with pytest.raises(omq.UnroutableError, match=str(route)):
        server.send(b"x", routing_id=route, timeout=BOUND)


def test_what_a_client_has_sent_is_taken_after_it_has_gone(twin, endpoint):
    server = twin("SERVER", bind=endpoint)
    client = twin("CLIENT", connect=server.endpoints[0])
    client.send_many([b"1", b"2"], timeout=BOUND)
    client.close()
    until(lambda: not server.peers and server.poll(0))
    messages = [server.recv_message(timeout=BOUND) for _ in range(2)]
    assert [message.body for message in messages] == [b"1", b"2"]
    with pytest.raises(omq.UnroutableError):
        server.send(b"x", routing_id=messages[0].routing_id)


def test_a_client_that_comes_back_has_another_number(twin, endpoint):
    server = twin("SERVER", bind=endpoint)
    numbers = []
    for _ in range(3):
        client = twin("CLIENT", connect=server.endpoints[0])
        client.send(b"x", timeout=BOUND)
        numbers.append(server.recv_message(timeout=BOUND).routing_id)
        client.stop()
        until(lambda: not server.peers)
    assert len(set(numbers)) == 3


def test_a_peers_identity_is_not_its_number(twin):
    server = twin("SERVER", bind="inproc://identity")
    client = twin("CLIENT", connect="inproc://identity", identity=b"\0\0\0\x07")
    client.send(b"x", timeout=BOUND)
    assert server.recv_message(timeout=BOUND).routing_id != 7


def fill(server, route):
    """Sends to one client until there is no room; the number of messages that were accepted."""
    sent = 0
    with contextlib.suppress(omq.SendTimeout):
        while True:
            server.send(bytes(10_000), routing_id=route, timeout=0.2)
            sent += 1
    return sent


@pytest.mark.parametrize("place", ["tcp://127.0.0.1:*", "inproc://full"], ids=["tcp", "inproc"])
def test_a_full_client_keeps_no_other_waiting_and_loses_nothing(twin, place):
    server = twin("SERVER", bind=place, send_hwm=2, send_buffer=4096)
    full, other = (twin("CLIENT", connect=server.endpoints[0], recv_hwm=1, recv_buffer=4096) for _ in range(2))
    routes = []
    for client in (full, other):
        client.send(b"who am I", timeout=BOUND)
        routes.append(server.recv_message(timeout=BOUND).routing_id)
    accepted = fill(server, routes[0])
    assert accepted >= 2
    waiting = twin.spawn(server, "send", b"last", routing_id=routes[0], timeout=BOUND)
    assert not waiting.done(0.05)
    for _ in range(3):
        server.send(b"at once", routing_id=routes[1], timeout=BOUND)
        assert other.recv(timeout=BOUND) == b"at once"
    found = [full.recv(timeout=BOUND) for _ in range(accepted)]
    assert found == [bytes(10_000)] * accepted
    assert full.recv(timeout=BOUND) == b"last"
    waiting.result()


def test_a_call_that_waits_for_a_client_ends_with_the_client(twin, inproc):
    server = twin("SERVER", bind=inproc, send_hwm=1)
    client = twin("CLIENT", connect=inproc, recv_hwm=1)
    client.send(b"x", timeout=BOUND)
    route = server.recv_message(timeout=BOUND).routing_id
    fill(server, route)
    waiting = twin.spawn(server, "send", b"late", routing_id=route)
    assert not waiting.done(0.05)
    client.stop()
    with pytest.raises(omq.UnroutableError, match=str(route)):
        waiting.result()


def test_the_server_receives_the_farewell_of_a_client_with_its_number(twin, endpoint):
    server = twin("SERVER", bind=endpoint, disconnect_message=b"bye", hello_message=b"hi")
    client = twin("CLIENT", connect=server.endpoints[0])
    assert client.recv(timeout=BOUND) == b"hi"
    client.send(b"1", timeout=BOUND)
    client.close()
    first, last = (server.recv_message(timeout=BOUND) for _ in range(2))
    assert (first.body, last.body) == (b"1", b"bye")
    assert first.routing_id == last.routing_id


def test_a_client_greets_and_receives_a_hiccup_when_its_server_is_lost(twin, endpoint):
    client = twin("CLIENT", hello_message=b"me", hiccup_message=b"lost", reconnect_interval=0.01)
    client.connect(endpoint)
    for _ in range(2):
        server = twin("SERVER", bind=endpoint)
        message = server.recv_message(timeout=BOUND)
        assert message.body == b"me"
        server.send(b"x", routing_id=message.routing_id, timeout=BOUND)
        assert client.recv(timeout=BOUND) == b"x"
        server.close()
        assert client.recv(timeout=BOUND) == b"lost"
