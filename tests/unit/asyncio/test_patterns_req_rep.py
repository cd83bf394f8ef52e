"""REQ and REP: a request, then its reply; and what breaks that rhythm (RFC 28)."""

import asyncio

import pytest

import omq.asyncio as omq
from tests.unit.conftest import until


@pytest.mark.parametrize("parts", [[b"one"], [b"two", b"parts"], [b""], [b"", b""], [b"a", b"", b"b"]])
async def test_a_bounce(make, endpoint, parts):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint)
    for _ in range(3):
        await req.send_multipart(parts)
        assert await rep.recv_multipart() == parts
        await rep.send_multipart(parts)
        assert await req.recv_multipart() == parts


async def test_a_request_of_many_parts_bounces(make, endpoint):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint)
    parts = [b"%d" % number for number in range(40)]
    await req.send_multipart(parts)
    assert await rep.recv_multipart() == parts
    await rep.send_multipart(parts)
    assert await req.recv_multipart() == parts


async def test_req_sends_then_receives(make, endpoint):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint)
    with pytest.raises(omq.StateError, match="sends a request"):
        await req.recv()
    assert await req.poll(0, omq.POLL_IN | omq.POLL_OUT) == omq.POLL_OUT
    await req.send(b"1")
    with pytest.raises(omq.StateError, match="takes the reply"):
        await req.send(b"2")
    assert await req.poll(0, omq.POLL_IN | omq.POLL_OUT) == 0
    await rep.send(await rep.recv())
    assert await req.recv() == b"1"


async def test_rep_receives_then_sends(make, endpoint):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint)
    with pytest.raises(omq.StateError, match="takes a request"):
        await rep.send(b"x")
    assert await rep.poll(0, omq.POLL_OUT) == 0
    await req.send(b"1")
    assert await rep.recv() == b"1"
    with pytest.raises(omq.StateError, match="replies to a request"):
        await rep.recv()
    assert await rep.poll(0, omq.POLL_IN | omq.POLL_OUT) == omq.POLL_OUT
    await rep.send(b"2")
    assert await req.recv() == b"2"


async def test_a_failed_call_does_not_change_the_state(make, inproc):
    rep, req = await make.linked(omq.REP, omq.REQ, inproc)
    with pytest.raises(TypeError):
        await req.send("text")
    await req.send(b"1")
    with pytest.raises(omq.MessageTooLarge):
        await rep.recv_into(bytearray(0))
    assert await rep.recv() == b"1"
    with pytest.raises(TypeError):
        await rep.send("text")
    await rep.send(b"2")
    assert await req.recv() == b"2"


async def test_requests_rotate_over_the_servers(make, inproc):
    reps = [make(omq.REP, bind=f"{inproc}-{number}") for number in range(3)]
    req = make(omq.REQ, connect=[rep.endpoints[0] for rep in reps])
    await req.wait_connected(3, timeout=5)

    async def serving(rep, name):
        while True:
            await rep.recv()
            await rep.send(name)

    tasks = [asyncio.create_task(serving(rep, b"%d" % number)) for number, rep in enumerate(reps)]
    answers = []
    for _ in range(9):
        await req.send(b"?")
        answers.append(await req.recv())
    assert {name: answers.count(name) for name in answers} == {b"0": 3, b"1": 3, b"2": 3}
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_rep_takes_from_each_client_in_turn(make, endpoint):
    rep = make(omq.REP, bind=endpoint)
    reqs = [make(omq.REQ, connect=rep.endpoints[0]) for _ in range(3)]
    await rep.wait_connected(3, timeout=5)
    for number, req in enumerate(reqs):
        await req.send(b"%d" % number)
    for _ in range(3):
        request = await rep.recv()
        await rep.send(b"for " + request)
    for number, req in enumerate(reqs):
        assert await req.recv() == b"for %d" % number


async def test_rep_keeps_the_whole_envelope(make, endpoint):
    rep, dealer = await make.linked(omq.REP, omq.DEALER, endpoint)
    await dealer.send_multipart([b"X", b"Y", b"", b"body", b"", b"more"])
    assert await rep.recv_multipart() == [b"body", b"", b"more"]
    await rep.send(b"reply")
    assert await dealer.recv_multipart() == [b"X", b"Y", b"", b"reply"]


async def test_rep_ignores_requests_without_delimiter_or_body(make, endpoint):
    rep, dealer = await make.linked(omq.REP, omq.DEALER, endpoint)
    for malformed in ([b"no delimiter"], [b"a", b"b"], [b""], [b"a", b""]):
        await dealer.send_multipart(malformed)
    await dealer.send_multipart([b"", b"good"])
    assert await rep.recv() == b"good"
    await rep.send(b"reply")
    assert await dealer.recv_multipart() == [b"", b"reply"]


async def test_req_ignores_malformed_replies(make, endpoint):
    router, req = await make.linked(omq.ROUTER, omq.REQ, endpoint)
    await req.send(b"ask")
    name, empty, body = await router.recv_multipart()
    assert (empty, body) == (b"", b"ask")
    for malformed in ([b"no delimiter"], [b"a", b"b"], [b""], [b"", b""][:1]):
        await router.send_multipart([name, *malformed])
    await router.send_multipart([name, b"", b"good"])
    assert await req.recv(timeout=5) == b"good"


async def test_req_takes_replies_only_of_the_peer_that_it_asked(make, inproc):
    one, other = make(omq.ROUTER, bind=f"{inproc}-1"), make(omq.ROUTER, bind=f"{inproc}-2")
    req = make(omq.REQ, connect=[f"{inproc}-1", f"{inproc}-2"], identity=b"me")
    await req.wait_connected(2, timeout=5)
    await req.send(b"ask")
    asked, stranger = (one, other) if await one.poll(0.05) else (other, one)
    await asked.recv_multipart()
    await stranger.send_multipart([b"me", b"", b"forged"])
    assert await req.poll(0.02) == 0
    await asked.send_multipart([b"me", b"", b"true"])
    assert await req.recv(timeout=5) == b"true"


async def test_a_reply_that_nobody_asked_for_is_dropped(make, endpoint):
    router, req = await make.linked(omq.ROUTER, omq.REQ, endpoint, identity=b"me")
    await router.send_multipart([b"me", b"", b"early"])
    await until(lambda: req.peers[0].messages_in == 1)
    await req.send(b"ask")
    await router.recv_multipart()
    await router.send_multipart([b"me", b"", b"asked for"])
    got = await req.recv(timeout=5)
    assert got == b"asked for"


# Relaxed and correlated


async def test_relaxed_may_send_again_and_the_stale_reply_is_dropped(make, endpoint):
    router, req = await make.linked(omq.ROUTER, omq.REQ, endpoint, identity=b"me", req_relaxed=True, req_correlate=True)
    await req.send(b"1")
    first = await router.recv_multipart()
    await req.send(b"2")
    second = await router.recv_multipart()
    assert first[1] != second[1]
    assert [len(first[1]), first[2:], second[2:]] == [4, [b"", b"1"], [b"", b"2"]]
    await router.send_multipart([*first[:3], b"stale"])
    await router.send_multipart([*second[:3], b"fresh"])
    assert await req.recv(timeout=5) == b"fresh"
    with pytest.raises(omq.StateError):
        await req.recv(timeout=0)


async def test_relaxed_drops_a_stale_reply_that_has_arrived_already(make, endpoint):
    router, req = await make.linked(omq.ROUTER, omq.REQ, endpoint, identity=b"me", req_relaxed=True, req_correlate=True)
    await req.send(b"1")
    first = await router.recv_multipart()
    await router.send_multipart([*first[:3], b"stale"])
    assert await req.poll(5) == omq.POLL_IN
    await req.send(b"2")
    second = await router.recv_multipart()
    await router.send_multipart([*second[:3], b"fresh"])
    assert await req.recv(timeout=5) == b"fresh"


async def test_relaxed_keeps_its_connection(make, endpoint):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint, req_relaxed=True, req_correlate=True)
    since = rep.peers[0].since
    for number in range(5):
        await req.send(b"%d" % number)
    for number in range(5):
        assert await rep.recv(timeout=5) == b"%d" % number
        await rep.send(b"re %d" % number)
    assert await req.recv(timeout=5) == b"re 4"
    assert [peer.since for peer in rep.peers] == [since]


async def test_of_requests_queued_while_the_server_is_away_the_last_counts(make, inproc):
    req = make(omq.REQ, connect=inproc, req_relaxed=True, req_correlate=True)
    for number in range(5):
        await req.send(b"%d" % number, timeout=0)
    rep = make(omq.REP, bind=inproc)
    assert await rep.recv(timeout=5) == b"4"
    await rep.send(b"last")
    assert await req.recv(timeout=5) == b"last"
    assert await rep.poll(0.01) == 0


async def test_a_relaxed_send_that_times_out_leaves_the_older_request_in_force(make, inproc):
    rep, req = await make.linked(
        omq.REP, omq.REQ, inproc, req_relaxed=True, req_correlate=True, send_hwm=1, immediate=True
    )
    await req.send(b"1")
    assert await rep.recv() == b"1"
    other = make(omq.REQ, connect=f"{inproc}-nobody", req_relaxed=True, immediate=True)
    with pytest.raises(omq.SendTimeout):
        await other.send(b"x", timeout=0)
    await rep.send(b"reply")
    assert await req.recv(timeout=5) == b"reply"


async def test_correlated_replies_come_back_through_a_rep(make, endpoint):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint, req_correlate=True)
    for number in range(3):
        await req.send(b"%d" % number)
        await rep.send(await rep.recv())
        assert await req.recv() == b"%d" % number


async def test_a_reply_with_the_wrong_id_is_dropped(make, endpoint):
    router, req = await make.linked(omq.ROUTER, omq.REQ, endpoint, req_correlate=True)
    await req.send(b"ask")
    name, number, empty, _ = await router.recv_multipart()
    for wrong in (b"\xff" * 4, b"", number + b"x"):
        await router.send_multipart([name, wrong, empty, b"wrong"])
    await router.send_multipart([name, number, empty, b"right"])
    assert await req.recv(timeout=5) == b"right"


# Peers that leave


async def test_a_reply_to_a_client_that_left_is_dropped(make, endpoint):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint)
    await req.send(b"and gone")
    assert await rep.recv() == b"and gone"
    req.stop()
    await until(lambda: not rep.peers)
    await rep.send(b"nobody hears it")
    other = make(omq.REQ, connect=rep.endpoints[0])
    await other.send(b"next")
    assert await rep.recv(timeout=5) == b"next"
    await rep.send(b"heard")
    assert await other.recv(timeout=5) == b"heard"


async def test_a_request_of_a_client_that_left_can_still_be_taken(make, endpoint):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint)
    await req.send(b"last words")
    await until(lambda: rep.peers[0].messages_in == 1)
    req.stop()
    await until(lambda: not rep.peers)
    assert await rep.recv(timeout=0) == b"last words"
    await rep.send(b"into the void")


async def test_req_may_ask_again_when_the_server_has_gone(make, endpoint, tmp_path):
    """The reply can never come: no other peer may give it, so the socket is not stuck for ever."""
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint, reconnect_interval=0.01)
    where = rep.endpoints[0]
    await req.send(b"1")
    assert await rep.recv() == b"1"
    waiting = asyncio.create_task(req.recv(timeout=0.05))
    await asyncio.sleep(0)
    rep.stop()
    with pytest.raises(omq.ReceiveTimeout):
        await waiting
    again = make(omq.REP, bind=where)
    await req.wait_connected(timeout=5)
    assert await req.poll(1, omq.POLL_OUT) == omq.POLL_OUT
    await req.send(b"2", timeout=5)
    assert await again.recv(timeout=5) == b"2"
    with pytest.raises(omq.StateError):
        await req.send(b"3")
    await again.send(b"reply")
    assert await req.recv(timeout=5) == b"reply"


async def test_a_reply_that_came_before_the_server_went_is_taken(make, endpoint):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint, reconnect_interval=None)
    await req.send(b"1")
    await rep.recv()
    await rep.send(b"just in time")
    await until(lambda: req.peers[0].messages_in == 1)
    await rep.close()
    await until(lambda: not req.peers)
    with pytest.raises(omq.StateError):
        await req.send(b"2", timeout=0)
    assert await req.recv(timeout=0) == b"just in time"


async def test_a_broker_of_router_and_dealer_carries_both_ways(make, inproc):
    router, dealer = make(omq.ROUTER, bind=f"{inproc}-front"), make(omq.DEALER, bind=f"{inproc}-back")
    req, rep = make(omq.REQ, connect=f"{inproc}-front"), make(omq.REP, connect=f"{inproc}-back")
    await req.send_multipart([b"A", b"B"])
    await dealer.send_multipart(await router.recv_multipart())
    assert await rep.recv_multipart() == [b"A", b"B"]
    await rep.send_multipart([b"C", b"D"])
    await router.send_multipart(await dealer.recv_multipart())
    assert await req.recv_multipart() == [b"C", b"D"]


async def test_what_nobody_asked_for_does_not_hide_the_end_of_a_peer(make):
    """A REQ whose queue is full of strays would not read, and so send its next request to a server that is gone."""
    router = make(omq.ROUTER, bind="tcp://127.0.0.1:*")
    req = make(omq.REQ, connect=router.endpoints[0], recv_hwm=2, reconnect_interval=None)
    await req.send(b"name")
    name, *_ = await router.recv_multipart()
    for _ in range(10):
        await router.send_multipart([name, b"", b"again"])
    assert await req.recv() == b"again"
    await router.close()
    await until(lambda: not req.peers)


async def test_strays_do_not_answer_the_next_request(make, endpoint):
    router, req = await make.linked(omq.ROUTER, omq.REQ, endpoint)
    await req.send(b"1")
    name, *_ = await router.recv_multipart()
    for _ in range(10):
        await router.send_multipart([name, b"", b"first"])
    assert await req.recv() == b"first"
    await until(lambda: req.peers[0].messages_in == 10)
    await req.send(b"2")
    await router.recv_multipart()
    await router.send_multipart([name, b"", b"second"])
    assert await req.recv() == b"second"


async def test_a_late_reply_to_an_earlier_socket_of_the_same_name_is_dropped(make, endpoint):
    router, before = await make.linked(omq.ROUTER, omq.REQ, endpoint, identity=b"me", req_correlate=True)
    await before.send(b"balance of X?")
    held = await router.recv_multipart(timeout=5)
    before.stop()
    await until(lambda: not router.peers)
    after = make(omq.REQ, connect=router.endpoints[0], identity=b"me", req_correlate=True)
    await after.send(b"balance of Y?")
    asked = await router.recv_multipart(timeout=5)
    await router.send_multipart([*held[:3], b"X has a million"])
    await router.send_multipart([*asked[:3], b"Y has nothing"])
    assert await after.recv(timeout=5) == b"Y has nothing"
