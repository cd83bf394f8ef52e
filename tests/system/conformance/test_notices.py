"""`hello_message`, `disconnect_message`, `hiccup_message`, `router_notify`: messages about peers that come and go."""

from __future__ import annotations

import socket
from typing import Any

import pytest

import omq
from omq.routing import base
from tests.support.raw_peer import GREETING, frames, ready
from tests.support.waits import BOUND, until
from tests.system.conformance.test_endpoint_options import free_port, shake

FAST: dict[str, Any] = {"reconnect_interval": 0.01}


@pytest.fixture(params=["tcp", "ipc", "inproc"])
def place(request, tmp_path) -> str:
    return {
        "tcp": f"tcp://127.0.0.1:{free_port()}",
        "ipc": f"ipc://{tmp_path}/s",
        "inproc": "inproc://notices",
    }[request.param]


def dial(endpoint: str) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2])), BOUND)
    line.settimeout(BOUND)
    return line


# hello_message


@pytest.mark.parametrize("hello", [b"hi", b"", [b"h", b"", b"i" * 5000]], ids=len)
def test_each_new_peer_gets_the_hello_first(twin, place, hello):
    parts = [hello] if isinstance(hello, bytes) else hello
    router = twin("ROUTER", bind=place, hello_message=hello, probe_router=True)
    for name in (b"a", b"b"):
        dealer = twin("DEALER", connect=place, identity=name)
        assert dealer.recv_multipart(timeout=BOUND) == parts
        assert dealer.recv_multipart(timeout=BOUND) == [b""]
    router.send_multipart([b"a", b"later"], timeout=BOUND)


def test_a_dealer_greets_before_all_that_waits_and_again_after_a_loss(twin, place):
    dealer = twin("DEALER", hello_message=[b"h", b"i"], identity=b"d", linger=0, **FAST)
    dealer.connect(place)
    dealer.send(b"waits")
    router = twin("ROUTER", bind=place)
    assert router.recv_multipart(timeout=BOUND) == [b"d", b"h", b"i"]
    assert router.recv_multipart(timeout=BOUND) == [b"d", b"waits"]
    router.close()
    router = twin("ROUTER", bind=place)
    assert router.recv_multipart(timeout=BOUND) == [b"d", b"h", b"i"]


def test_a_full_peer_gets_its_hello_all_the_same(twin, place):
    router = twin("ROUTER", bind=place, hello_message=b"hi", send_hwm=1)
    dealer = twin("DEALER", connect=place, recv_hwm=1)
    assert dealer.recv(timeout=BOUND) == b"hi"
    assert len(router.peers) == 1


def test_both_sides_may_greet(twin, place):
    twin("DEALER", connect=place, hello_message=b"from the dealer", identity=b"d")
    router = twin("ROUTER", bind=place, hello_message=b"from the router")
    assert router.recv_multipart(timeout=BOUND) == [b"d", b"from the dealer"]


def test_a_hello_is_encrypted_like_all_messages(twin):
    public, secret = omq.curve_keypair()
    router = twin("ROUTER", hello_message=[b"h", b"i" * 5000], security=omq.CurveServer(secret, authorize=None))
    endpoint = router.bind("tcp://127.0.0.1:*")
    dealer = twin("DEALER", connect=endpoint, security=omq.CurveClient(public), hello_message=b"yes", identity=b"d")
    assert dealer.recv_multipart(timeout=BOUND) == [b"h", b"i" * 5000]
    assert router.recv_multipart(timeout=BOUND) == [b"d", b"yes"]


# disconnect_message


@pytest.mark.parametrize("farewell", [b"bye", [b"b", b"ye"]], ids=len)
def test_a_router_receives_the_farewell_of_a_peer_that_closes_after_its_last_message(twin, place, farewell):
    parts = [farewell] if isinstance(farewell, bytes) else farewell
    router = twin("ROUTER", bind=place, disconnect_message=farewell)
    dealer = twin("DEALER", connect=place, identity=b"d")
    dealer.send_many([b"1", b"2"], timeout=BOUND)
    dealer.close()
    found = [router.recv_multipart(timeout=BOUND) for _ in range(3)]
    assert found == [[b"d", b"1"], [b"d", b"2"], [b"d", *parts]]
    with pytest.raises(omq.Timeout):
        router.recv_multipart(timeout=0.05)


def test_disconnecting_gives_one_too(twin, place):
    router = twin("ROUTER", bind=place, disconnect_message=b"bye")
    dealer = twin("DEALER", connect=place, identity=b"d")
    dealer.send(b"1", timeout=BOUND)
    assert router.recv_multipart(timeout=BOUND) == [b"d", b"1"]
    dealer.disconnect(place)
    assert router.recv_multipart(timeout=BOUND) == [b"d", b"bye"]


def test_a_notice_wakes_a_call_that_waits_and_is_seen_by_poll(twin, place):
    router = twin("ROUTER", bind=place, disconnect_message=b"bye")
    dealer = twin("DEALER", connect=place, identity=b"d")
    router.wait_connected(timeout=BOUND)
    waiting = twin.spawn(router, "recv_multipart", timeout=BOUND)
    dealer.stop()
    assert waiting.result() == [b"d", b"bye"]
    dealer = twin("DEALER", connect=place, identity=b"e")
    router.wait_connected(timeout=BOUND)
    dealer.stop()
    assert router.poll(BOUND)
    message = router.recv_message(timeout=BOUND)
    assert message.parts == [b"e", b"bye"]
    assert message.peer.identity == b"e"


def test_a_peer_that_the_router_dialled_gives_none(twin, place):
    dealer = twin("DEALER", bind=place)
    router = twin("ROUTER", disconnect_message=b"bye", reconnect_interval=None)
    router.connect(place)
    router.wait_connected(timeout=BOUND)
    dealer.close()
    until(lambda: not router.peers)
    with pytest.raises(omq.Timeout):
        router.recv_multipart(timeout=0.05)


@pytest.mark.parametrize("end", ["heartbeat", "protocol", "reset"])
def test_whatever_ends_the_connection(twin, end):
    router = twin("ROUTER", disconnect_message=b"bye", heartbeat_interval=0.05, max_message_size=10)
    with dial(router.bind("tcp://127.0.0.1:*")) as line:
        shake(line, kind=b"DEALER")
        line.sendall(frames(b"1"))
        assert router.recv_multipart(timeout=BOUND)[1:] == [b"1"]
        if end == "protocol":
            line.sendall(frames(b"x" * 100))
        elif end == "reset":
            line.close()
        assert router.recv_multipart(timeout=BOUND)[1:] == [b"bye"]


def test_a_message_that_is_not_whole_is_dropped(twin):
    router = twin("ROUTER", disconnect_message=b"bye", router_notify="disconnect")
    with dial(router.bind("tcp://127.0.0.1:*")) as line:
        shake(line, kind=b"DEALER")
        line.sendall(frames(b"whole", b"message") + frames(b"half", b"a message")[:6])
    found = [router.recv_multipart(timeout=BOUND)[1:] for _ in range(3)]
    assert found == [[b"whole", b"message"], [b""], [b"bye"]]


# hiccup_message


@pytest.mark.parametrize("hiccup", [b"lost", [b"lo", b"st"]], ids=len)
def test_a_dealer_learns_that_its_connection_was_lost_before_anything_of_the_next_one(twin, place, hiccup):
    parts = [hiccup] if isinstance(hiccup, bytes) else hiccup
    dealer = twin("DEALER", connect=place, hiccup_message=hiccup, identity=b"d", **FAST)
    for _ in range(2):
        router = twin("ROUTER", bind=place, router_mandatory=True)
        router.wait_connected(timeout=BOUND)
        router.send_multipart([b"d", b"1"], timeout=BOUND)
        router.close()
        assert [dealer.recv_multipart(timeout=BOUND) for _ in range(2)] == [[b"1"], parts]


def test_what_waits_of_a_lost_connection_comes_before_the_hiccup_and_the_next_connection_after_it(twin, place):
    dealer = twin("DEALER", connect=place, hiccup_message=b"lost", identity=b"d", **FAST)
    for number in range(3):
        router = twin("ROUTER", bind=place, router_mandatory=True)
        router.wait_connected(timeout=BOUND)
        dealer.wait_connected(timeout=BOUND)
        for part in (b"a", b"b"):
            router.send_multipart([b"d", b"%d" % number + part], timeout=BOUND)
        router.close()
        until(lambda: not dealer.peers)
    found = [dealer.recv(timeout=BOUND) for _ in range(9)]
    assert found == [b"0a", b"0b", b"lost", b"1a", b"1b", b"lost", b"2a", b"2b", b"lost"]


def test_a_dealer_that_disconnects_or_was_dialled_has_no_hiccup(twin, place):
    router = twin("ROUTER", bind=place)
    dealer = twin("DEALER", connect=place, hiccup_message=b"lost")
    dealer.wait_connected(timeout=BOUND)
    dealer.disconnect(place)
    until(lambda: not router.peers)
    router.close()
    bound = twin("DEALER", bind=place, hiccup_message=b"lost")
    other = twin("DEALER", connect=place)
    bound.wait_connected(timeout=BOUND)
    other.close()
    until(lambda: not bound.peers)
    for one in (dealer, bound):
        with pytest.raises(omq.Timeout):
            one.recv(timeout=0.05)


# router_notify


@pytest.mark.parametrize("notify", ["connect", "disconnect", True], ids=str)
def test_a_router_is_notified_of_peers_that_come_and_go(twin, place, notify):
    router = twin("ROUTER", bind=place, router_notify=notify)
    dealer = twin("DEALER", connect=place, identity=b"X")
    dealer.send(b"Hello", timeout=BOUND)
    if notify != "disconnect":
        assert router.recv_multipart(timeout=BOUND) == [b"X", b""]
    assert router.recv_multipart(timeout=BOUND) == [b"X", b"Hello"]
    dealer.disconnect(place)
    if notify != "connect":
        assert router.recv_multipart(timeout=BOUND) == [b"X", b""]
    with pytest.raises(omq.Timeout):
        router.recv_multipart(timeout=0.05)


def test_the_arrival_comes_before_all_that_a_peer_sends_however_early(twin):
    router = twin("ROUTER", router_notify="connect")
    lines = []
    endpoint = router.bind("tcp://127.0.0.1:*")
    for number in range(8):
        line = dial(endpoint)
        lines.append(line)
        line.sendall(GREETING + ready(b"DEALER", Identity=b"%d" % number) + frames(b"1") + frames(b"2"))
    found: dict[bytes, list[bytes]] = {}
    for _ in range(24):
        name, body = router.recv_multipart(timeout=BOUND)
        found.setdefault(name, []).append(body)
    assert found == {b"%d" % number: [b"", b"1", b"2"] for number in range(8)}
    for line in lines:
        line.close()


def test_a_handshake_that_fails_gives_none(twin):
    router = twin("ROUTER", router_notify=True, disconnect_message=b"bye")
    endpoint = router.bind("tcp://127.0.0.1:*")
    monitor = router.monitor()
    with dial(endpoint) as line:
        line.sendall(b"not a handshake".ljust(64))
        assert b"not" not in line.recv(1000)
    while twin.event(monitor).kind != "disconnected":
        pass
    with pytest.raises(omq.Timeout):
        router.recv_multipart(timeout=0.05)


def test_a_peer_that_takes_an_identity_over_is_reported_after_the_one_that_goes(twin, place):
    router = twin("ROUTER", bind=place, router_notify=True, disconnect_message=b"bye", router_handover=True)
    found = []
    for _ in range(2):
        dealer = twin("DEALER", identity=b"X", reconnect_interval=None)
        dealer.connect(place)
        found.append(router.recv_multipart(timeout=BOUND))
    found += [router.recv_multipart(timeout=BOUND) for _ in range(2)]
    assert found == [[b"X", b""], [b"X", b""], [b"X", b"bye"], [b"X", b""]]


def test_a_peer_that_waits_for_its_identity_comes_after_the_one_that_has_it_goes(twin, place):
    router = twin("ROUTER", bind=place, router_notify=True, disconnect_message=b"bye")
    first = twin("DEALER", connect=place, identity=b"X")
    assert router.recv_multipart(timeout=BOUND) == [b"X", b""]
    second = twin("DEALER", connect=place, identity=b"X")
    second.wait_connected(timeout=BOUND)
    second.send(b"2", timeout=BOUND)
    with pytest.raises(omq.Timeout):
        router.recv_multipart(timeout=0.05)
    first.close()
    found = [router.recv_multipart(timeout=BOUND)[1] for _ in range(4)]
    assert found == [b"", b"bye", b"", b"2"]


@pytest.mark.parametrize("handover", [False, True])
def test_what_waits_of_a_name_comes_before_all_of_the_next_peer_that_has_it(twin, place, handover):
    router = twin("ROUTER", bind=place, router_notify=True, disconnect_message=b"bye", router_handover=handover)
    for number in range(3):
        dealer = twin("DEALER", connect=place, identity=b"X")
        for part in (b"a", b"b"):
            dealer.send(b"%d" % number + part, timeout=BOUND)
        router.wait_connected(timeout=BOUND)
        dealer.close()
        until(lambda: not router.peers)
    quiet = twin("DEALER", connect=place, identity=b"Y")
    quiet.send(b"y", timeout=BOUND)
    found: dict[bytes, list[bytes]] = {b"X": [], b"Y": []}
    for _ in range(17):
        name, body = router.recv_multipart(timeout=BOUND)
        found[name].append(body)
    assert found[b"X"] == [part for n in (b"0", b"1", b"2") for part in (b"", n + b"a", n + b"b", b"", b"bye")]
    assert found[b"Y"] == [b"", b"y"]


def test_a_name_that_is_free_before_its_connection_has_ended_has_its_end_first(twin):
    router = twin("ROUTER", router_notify=True, disconnect_message=b"bye", send_buffer=5000, router_mandatory=True)
    endpoint = router.bind("tcp://127.0.0.1:*")
    with dial(endpoint) as line, dial(endpoint) as other:
        shake(line, kind=b"DEALER", Identity=b"X")
        line.sendall(frames(b"1"))
        assert router.recv_multipart(timeout=BOUND) == [b"X", b""]
        for _ in range(8):
            router.send_multipart([b"X", bytes(10**6)], timeout=BOUND)  # more than leaves
        line.shutdown(socket.SHUT_WR)
        until(lambda: not router.peers)
        shake(other, kind=b"DEALER", Identity=b"X")
        other.sendall(frames(b"2"))
        found = [router.recv_multipart(timeout=BOUND)[1] for _ in range(5)]
    assert found == [b"1", b"", b"bye", b"", b"2"]


def test_a_reply_to_an_arrival_reaches_the_peer(twin, place):
    router = twin("ROUTER", bind=place, router_notify="connect", router_mandatory=True)
    dealer = twin("DEALER", connect=place)
    name, _ = router.recv_multipart(timeout=BOUND)
    router.send_multipart([name, b"welcome"], timeout=BOUND)
    assert dealer.recv(timeout=BOUND) == b"welcome"


def test_no_new_peer_is_let_in_while_too_many_messages_about_peers_wait(twin, monkeypatch):
    monkeypatch.setattr(base, "MAX_NOTICES", 4)
    router = twin("ROUTER", router_notify=True)
    endpoint = router.bind("tcp://127.0.0.1:*")
    monitor = router.monitor()
    for _ in range(2):
        with dial(endpoint) as line:
            shake(line, kind=b"DEALER")
        while twin.event(monitor).kind != "disconnected":
            pass
    with dial(endpoint) as line:
        while (event := twin.event(monitor)).kind != "handshake_failed":
            pass
        assert "4 messages about peers" in event.reason
        assert line.recv(1) == b""
    for _ in range(4):
        router.recv_multipart(timeout=BOUND)
    with dial(endpoint) as line:
        shake(line, kind=b"DEALER")
        assert router.recv_multipart(timeout=BOUND)[1:] == [b""]


def test_a_socket_that_closes_with_peers_and_messages_about_them(twin, place):
    router = twin("ROUTER", bind=place, router_notify=True, disconnect_message=b"bye", hello_message=b"hi")
    dealers = [twin("DEALER", connect=place, hiccup_message=b"lost", **FAST) for _ in range(3)]
    router.wait_connected(3, timeout=BOUND)
    router.close()
    for dealer in dealers:
        assert dealer.recv(timeout=BOUND) == b"hi"
        assert dealer.recv(timeout=BOUND) == b"lost"
        dealer.stop()
