"""ROUTER and its options, as libzmq's own tests ask of them; both twins, every transport."""

from __future__ import annotations

import pytest
import zmq

import omq
from tests.support.waits import BOUND, until


def test_issue_566_a_hundred_dealers_of_another_context_are_all_reachable(twin, tmp_path):
    router = twin("ROUTER", bind=f"ipc://{tmp_path}/s", router_mandatory=True)
    with omq.Context() as other:
        dealers = [omq.DEALER(other, connect=router.endpoints[0], identity=b"%03d" % n) for n in range(100)]
        router.wait_connected(100, timeout=BOUND)
        for number in range(100):
            router.send_multipart([b"%03d" % number, b"HELLO %d" % number])
        for number, dealer in enumerate(dealers):
            assert dealer.recv(timeout=BOUND) == b"HELLO %d" % number
            dealer.close()


def test_router_mandatory_an_unknown_name_is_dropped_or_raised(twin, endpoint):
    router = twin("ROUTER", bind=endpoint)
    router.send_multipart([b"absent", b"x"])
    router.set_options(router_mandatory=True)
    with pytest.raises(omq.UnroutableError, match="absent"):
        router.send_multipart([b"absent", b"x"])
    dealer = twin("DEALER", connect=router.endpoints[0], identity=b"X")
    router.wait_connected(timeout=BOUND)
    router.send_multipart([b"X", b"hello"])
    assert dealer.recv(timeout=BOUND) == b"hello"
    dealer.close()
    until(lambda: not router.peers)
    with pytest.raises(omq.UnroutableError):
        router.send_multipart([b"X", b"too late"])


def test_router_needs_a_name_and_a_body(twin, endpoint):
    router = twin("ROUTER", bind=endpoint)
    with pytest.raises(omq.StateError, match="at least two parts"):
        router.send(b"x")
    with pytest.raises(omq.StateError, match="at least two parts"):
        router.send_multipart([b"x"])


def test_msg_flags_the_parts_of_a_message_stay_together(twin, endpoint):
    router = twin("ROUTER", bind=endpoint)
    dealer = twin("DEALER", connect=router.endpoints[0])
    dealer.send_multipart([b"A", b"B"])
    identity, *body = router.recv_multipart(timeout=BOUND)
    assert len(identity) == 5
    assert identity[0] == 0
    assert body == [b"A", b"B"]
    dealer.send(b"x")
    with pytest.raises(omq.MultipartError):
        router.recv(timeout=BOUND)


def test_spec_router_takes_from_all_in_turn_and_puts_the_name_first(twin, endpoint):
    router = twin("ROUTER", bind=endpoint)
    dealers = [twin("DEALER", connect=router.endpoints[0], identity=b"%c" % (65 + n)) for n in range(5)]
    router.wait_connected(5, timeout=BOUND)
    for turn in range(3):
        for dealer in dealers:
            dealer.send(b"%d" % turn)
    got = [router.recv_multipart(timeout=BOUND) for _ in range(15)]
    for number in range(5):
        assert [body for name, body in got if name == b"%c" % (65 + number)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("handover", [True, False])
def test_router_handover(twin, endpoint, handover):
    router = twin("ROUTER", bind=endpoint, router_handover=handover, router_mandatory=True)
    first = twin("DEALER", connect=router.endpoints[0], identity=b"X", reconnect_interval=None)
    router.wait_connected(timeout=BOUND)
    first.send(b"first")
    assert router.recv_multipart(timeout=BOUND) == [b"X", b"first"]
    second = twin("DEALER", connect=router.endpoints[0], identity=b"X", reconnect_interval=None)
    second.wait_connected(timeout=BOUND)
    second.send(b"second")
    if handover:
        assert router.recv_multipart(timeout=BOUND) == [b"X", b"second"]
        router.send_multipart([b"X", b"to the new one"])
        assert second.recv(timeout=BOUND) == b"to the new one"
        until(lambda: not first.peers)
        return
    assert not router.poll(0.05)
    router.send_multipart([b"X", b"to the old one"])
    assert first.recv(timeout=BOUND) == b"to the old one"
    # When the old one goes, the one that waited has the name, and its messages are received.
    first.close()
    assert router.recv_multipart(timeout=BOUND) == [b"X", b"second"]
    router.send_multipart([b"X", b"heir"])
    assert second.recv(timeout=BOUND) == b"heir"


@pytest.mark.parametrize("kind", ["DEALER", "REQ", "ROUTER"])
def test_probe_router_an_empty_message_with_the_name(twin, endpoint, kind):
    server = twin("ROUTER", bind=endpoint)
    client = twin(kind, connect=server.endpoints[0], identity=b"X", probe_router=True)
    assert server.recv_multipart(timeout=BOUND) == [b"X", b""]
    if kind != "REQ":
        server.send_multipart([b"X", b"Hello"])
        assert client.recv_multipart(timeout=BOUND)[-1] == b"Hello"


def test_a_router_talks_to_a_router(twin, endpoint):
    one = twin("ROUTER", bind=endpoint, identity=b"one", router_mandatory=True)
    two = twin("ROUTER", connect=one.endpoints[0], identity=b"two", router_mandatory=True)
    one.wait_connected(timeout=BOUND)
    two.wait_connected(timeout=BOUND)
    one.send_multipart([b"two", b"a", b"b"])
    assert two.recv_multipart(timeout=BOUND) == [b"one", b"a", b"b"]
    two.send_multipart([b"one", b"c"])
    assert one.recv_multipart(timeout=BOUND) == [b"two", b"c"]


@pytest.mark.parametrize(("kind", "sender"), [("ROUTER", "DEALER"), ("PULL", "PUSH")], ids="-".join)
def test_what_has_arrived_from_a_peer_that_goes_stays_readable(twin, endpoint, kind, sender):
    """libzmq destroys it; omq does not."""
    receiver = twin(kind, bind=endpoint)
    name = [b"X"] if kind == "ROUTER" else []
    gone = twin(sender, connect=receiver.endpoints[0], identity=b"X")
    for number in range(100):
        gone.send_multipart([b"%d" % number, b"x"])
    gone.close()
    until(lambda: not receiver.peers)
    assert [receiver.recv_multipart(timeout=0) for _ in range(100)] == [[*name, b"%d" % n, b"x"] for n in range(100)]
    assert not receiver.poll(0.01)


def test_a_late_answer_through_a_restarted_router_reaches_no_stranger(twin, endpoint):
    router = twin("ROUTER", bind=endpoint)
    place = router.endpoints[0]
    asker = twin("REQ", connect=place)
    asker.send(b"balance of X?")
    held = router.recv_multipart(timeout=BOUND)
    asker.stop()
    until(lambda: not router.peers)
    router.stop()
    router = twin("ROUTER", bind=place, router_mandatory=True)
    stranger = twin("REQ", connect=place)
    stranger.send(b"balance of Y?")
    asked = router.recv_multipart(timeout=BOUND)
    with pytest.raises(omq.UnroutableError):
        router.send_multipart([*held[:2], b"X has a million"])
    router.send_multipart([*asked[:2], b"Y has nothing"])
    assert stranger.recv(timeout=BOUND) == b"Y has nothing"


# A name that this side chooses (ZMQ_CONNECT_ROUTING_ID)


@pytest.mark.parametrize("own", [b"", b"its own"], ids=["nameless", "named"])
def test_connect_names_the_peer(twin, endpoint, own):
    dealer = twin("DEALER", bind=endpoint, identity=own, recv_timeout=BOUND)
    router = twin("ROUTER", router_mandatory=True, recv_timeout=BOUND)
    router.connect(dealer.endpoints[0], peer_identity=b"chosen")
    router.wait_connected(timeout=BOUND)
    router.send_multipart([b"chosen", b"to it"])
    assert dealer.recv() == b"to it"
    dealer.send(b"from it")
    assert router.recv_multipart() == [b"chosen", b"from it"]
    assert [one.identity for one in router.peers] == [b"chosen"]
    if own:
        with pytest.raises(omq.UnroutableError):
            router.send_multipart([own, b"x"])


def test_a_chosen_name_holds_after_a_reconnect_and_whatever_is_renamed(twin):
    dealer = twin("DEALER", bind="tcp://127.0.0.1:*")
    endpoint = dealer.endpoints[0]
    router = twin("ROUTER", router_rename=True, router_mandatory=True, reconnect_interval=0.01)
    router.connect(endpoint, peer_identity=b"chosen")
    router.wait_connected(timeout=BOUND)
    dealer.stop()
    until(lambda: not router.peers)
    again = twin("DEALER", bind=endpoint, identity=b"other", recv_timeout=BOUND)
    router.wait_connected(timeout=BOUND)
    router.send_multipart([b"chosen", b"x"])
    assert again.recv() == b"x"


def test_peers_that_are_accepted_keep_their_own_name(twin, endpoint):
    router = twin("ROUTER", bind=endpoint, peer_identity=b"chosen", recv_timeout=BOUND)
    dealer = twin("DEALER", connect=router.endpoints[0], identity=b"own")
    dealer.send(b"x")
    assert router.recv_multipart() == [b"own", b"x"]


def test_libzmq_is_named_as_well(twin):
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.rcvtimeo = int(1000 * BOUND)
        port = dealer.bind_to_random_port("tcp://127.0.0.1")
        router = twin("ROUTER", router_mandatory=True)
        router.connect(f"tcp://127.0.0.1:{port}", peer_identity=b"chosen")
        router.wait_connected(timeout=BOUND)
        router.send_multipart([b"chosen", b"x"])
        assert dealer.recv() == b"x"


def test_a_stream_takes_a_name_once(twin):
    server = twin("STREAM", bind="tcp://127.0.0.1:*", stream_notify=False, recv_timeout=BOUND)
    client = twin("STREAM", recv_timeout=BOUND)
    for _ in range(2):
        client.connect(server.endpoints[0], peer_identity=b"chosen")
    names = [client.recv_multipart()[0] for _ in range(2)]
    assert names[0] == b"chosen"
    assert len(names[1]) == 5
    client.send_multipart([b"chosen", b"to it"])
    assert server.recv_multipart()[1] == b"to it"
