"""REQ, REP, PAIR and devices by hand, as libzmq's own tests ask of them; both twins, every transport."""

from __future__ import annotations

import threading

import pytest

import omq
from tests.support.waits import BOUND, until


def test_pair_and_reqrep_bounce_messages_of_one_and_two_parts(twin, endpoint):
    for kinds in (("PAIR", "PAIR"), ("REP", "REQ"), ("DEALER", "DEALER")):
        where = "tcp://127.0.0.1:*" if endpoint.startswith("tcp") else f"{endpoint}-{kinds[0]}"
        one, other = twin.linked(*kinds, where)
        for parts in (
            [b"hello"],
            [b"", b"world"],
            [b"a" * 300, b""],
            [b"", b""],
            [b"%d" % number for number in range(40)],
        ):
            other.send_multipart(parts)
            assert one.recv_multipart(timeout=BOUND) == parts
            one.send_multipart(parts)
            assert other.recv_multipart(timeout=BOUND) == parts


def test_pair_by_a_host_name(twin):
    one, other = twin.linked("PAIR", "PAIR", "tcp://localhost:*")
    other.send(b"x")
    assert one.recv(timeout=BOUND) == b"x"


def test_pair_ipc_a_path_of_108_characters_is_too_long(twin, tmp_path):
    base = str(tmp_path)
    longest = f"ipc://{base}/{'x' * (107 - len(base) - 1)}"
    twin.linked("PAIR", "PAIR", longest)
    for call in ("bind", "connect"):
        with pytest.raises(omq.EndpointError, match="at most 107"):
            getattr(twin("PAIR"), call)(longest + "x")


def test_spec_rep_keeps_the_whole_envelope(twin, endpoint):
    rep, dealer = twin.linked("REP", "DEALER", endpoint)
    dealer.send_multipart([b"X", b"Y", b"", b"body", b"more"])
    assert rep.recv_multipart(timeout=BOUND) == [b"body", b"more"]
    rep.send(b"answer")
    assert dealer.recv_multipart(timeout=BOUND) == [b"X", b"Y", b"", b"answer"]


def test_spec_rep_takes_requests_of_all_in_turn(twin, endpoint):
    rep = twin("REP", bind=endpoint)
    clients = [twin("DEALER", connect=rep.endpoints[0], identity=b"%d" % n) for n in range(3)]
    rep.wait_connected(3, timeout=BOUND)
    for number in range(5):
        for client in clients:
            client.send_multipart([b"", b"%d" % number])
    for _ in range(15):
        question = rep.recv(timeout=BOUND)
        rep.send(question)
    for client in clients:
        assert [client.recv_multipart(timeout=BOUND)[1] for _ in range(5)] == [b"%d" % n for n in range(5)]


def test_spec_req_rotates_and_takes_the_answer_of_whom_it_asked(twin, endpoint):
    servers = []
    req = twin("REQ")
    for number in range(3):
        where = "tcp://127.0.0.1:*" if endpoint.startswith("tcp") else f"{endpoint}-{number}"
        servers.append(twin("ROUTER", bind=where))
        req.connect(servers[-1].endpoints[0])
    req.wait_connected(3, timeout=BOUND)
    asked = []
    identities = {}
    for turn in range(6):
        req.send(b"%d" % turn)
        until(lambda: any(server.poll(0) for server in servers))
        (number,) = [n for n, server in enumerate(servers) if server.poll(0)]
        identity, empty, body = servers[number].recv_multipart(timeout=BOUND)
        assert (empty, body) == (b"", b"%d" % turn)
        asked.append(number)
        for other, name in identities.items():
            if other != number:
                servers[other].send_multipart([name, b"", b"unsolicited"])
        identities[number] = identity
        servers[number].send_multipart([identity, b"", b"answer %d" % turn])
        assert req.recv(timeout=BOUND) == b"answer %d" % turn
        assert not req.poll(0.01)
    assert sorted(asked) == [0, 0, 1, 1, 2, 2]


def test_spec_req_without_a_peer_waits_for_room(twin, inproc):
    req = twin("REQ", connect=inproc, immediate=True)
    with pytest.raises(omq.SendTimeout):
        req.send(b"x", timeout=0)
    with pytest.raises(omq.StateError):
        req.recv(timeout=0)


@pytest.mark.parametrize("garbage", [[b"no delimiter"], [b"", b"", b"x"][:1], [b"bottom", b""]])
def test_invalid_rep_a_malformed_reply_is_ignored(twin, endpoint, garbage):
    router, req = twin.linked("ROUTER", "REQ", endpoint)
    req.send(b"hi")
    identity, _empty, _body = router.recv_multipart(timeout=BOUND)
    router.send_multipart([identity, *garbage])
    router.send_multipart([identity, b"", b"valid"])
    assert req.recv(timeout=BOUND) == b"valid"


def test_req_correlate_an_answer_to_another_question_is_dropped(twin, endpoint):
    router, req = twin.linked("ROUTER", "REQ", endpoint, req_correlate=True)
    req.send_multipart([b"A", b"B"])
    identity, number, empty, *body = router.recv_multipart(timeout=BOUND)
    assert (len(number), empty, body) == (4, b"", [b"A", b"B"])
    router.send_multipart([identity, bytes(4) if any(number) else b"\1\2\3\4", b"", b"wrong"])
    router.send_multipart([identity, b"", b"none"])
    router.send_multipart([identity, number + b"x", b"", b"longer"])
    router.send_multipart([identity, number, b"", b"right"])
    assert req.recv(timeout=BOUND) == b"right"


def test_req_relaxed_a_late_answer_is_never_taken(twin, endpoint):
    options = {"req_correlate": True, "req_relaxed": True}
    router, req = twin.linked("ROUTER", "REQ", endpoint, **options)
    req.send(b"first")
    first = router.recv_multipart(timeout=BOUND)
    req.send(b"second")
    second = router.recv_multipart(timeout=BOUND)
    assert first[1] != second[1]
    router.send_multipart([*first[:3], b"late"])
    router.send_multipart([*second[:3], b"good"])
    assert req.recv(timeout=BOUND) == b"good"
    # An answer that waits already when the next question goes out.
    req.send(b"third")
    third = router.recv_multipart(timeout=BOUND)
    router.send_multipart([*third[:3], b"stale"])
    assert req.poll(BOUND)
    req.send(b"fourth")
    fourth = router.recv_multipart(timeout=BOUND)
    assert not req.poll(0.02)
    router.send_multipart([*fourth[:3], b"fresh"])
    assert req.recv(timeout=BOUND) == b"fresh"
    assert len(router.peers) == len(req.peers) == 1, "a question more does not cost the connection"


def test_req_relaxed_while_the_server_is_away_only_the_last_question_counts(twin, tmp_path):
    where = f"ipc://{tmp_path}/s"
    req = twin("REQ", connect=where, req_relaxed=True, req_correlate=True, reconnect_interval=0.01)
    for number in range(5):
        req.send(b"%d" % number)
    rep = twin("REP", bind=where)
    assert rep.recv(timeout=BOUND) == b"4"
    rep.send(b"answer")
    assert req.recv(timeout=BOUND) == b"answer"
    assert not rep.poll(0.02)


def test_a_req_is_strict_about_its_turns(twin, endpoint):
    rep, req = twin.linked("REP", "REQ", endpoint)
    both = omq.POLL_IN | omq.POLL_OUT
    with pytest.raises(omq.StateError, match="sends a request"):
        req.recv()
    with pytest.raises(omq.StateError, match="takes a request"):
        rep.send(b"x")
    assert (req.poll(0, both), rep.poll(0, both)) == (omq.POLL_OUT, 0)
    req.send(b"x")
    with pytest.raises(omq.StateError, match="takes the reply"):
        req.send(b"y")
    assert req.poll(0, both) == 0
    assert rep.recv(timeout=BOUND) == b"x"
    with pytest.raises(omq.StateError, match="replies to a request"):
        rep.recv()
    assert rep.poll(0, both) == omq.POLL_OUT
    rep.send(b"z")
    assert req.recv(timeout=BOUND) == b"z"


def test_a_req_whose_server_dies_may_ask_the_next_one(twin, endpoint):
    """The reply can never come: no other peer may give it, so the socket is not stuck for ever."""
    rep = twin("REP", bind=endpoint)
    where = rep.endpoints[0]
    req = twin("REQ", connect=where, reconnect_interval=0.01)
    req.send(b"lost")
    assert rep.recv(timeout=BOUND) == b"lost"
    rep.stop()
    until(lambda: not req.peers)
    with pytest.raises(omq.ReceiveTimeout):
        req.recv(timeout=0)
    rep = twin("REP", bind=where)
    req.send(b"again", timeout=BOUND)
    assert rep.recv(timeout=BOUND) == b"again"
    rep.send(b"answer")
    assert req.recv(timeout=BOUND) == b"answer"


def test_reqrep_device_by_hand(twin, endpoint):
    front = twin("ROUTER", bind=endpoint)
    back = twin("DEALER", bind="tcp://127.0.0.1:*" if endpoint.startswith("tcp") else f"{endpoint}-back")
    rep = twin("REP", connect=back.endpoints[0])
    req = twin("REQ", connect=front.endpoints[0])
    req.send_multipart([b"ABC", b"DEF"])
    back.send_multipart(front.recv_multipart(timeout=BOUND))
    assert rep.recv_multipart(timeout=BOUND) == [b"ABC", b"DEF"]
    rep.send_multipart([b"GHI", b"JKL"])
    front.send_multipart(back.recv_multipart(timeout=BOUND))
    assert req.recv_multipart(timeout=BOUND) == [b"GHI", b"JKL"]


def test_thread_safe_two_threads_at_one_socket(twin, endpoint):
    pull, push = twin.linked("PULL", "PUSH", endpoint)
    count = 1500
    senders = [
        threading.Thread(target=lambda name=name: [push.send(b"%d %d" % (name, n)) for n in range(count)])
        for name in range(2)
    ]
    for sender in senders:
        sender.start()
    got = [pull.recv(timeout=BOUND).split() for _ in range(2 * count)]
    for sender in senders:
        sender.join()
    for name in (b"0", b"1"):
        assert [int(number) for whose, number in got if whose == name] == list(range(count))
