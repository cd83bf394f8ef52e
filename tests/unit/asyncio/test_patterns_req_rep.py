"""REQ and REP: a request, then its reply; and what breaks that rhythm (RFC 28)."""

import pytest

import omq.asyncio as omq
from tests.unit.conftest import until


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


async def test_rep_ignores_requests_without_delimiter_or_body(make, endpoint):
    rep, dealer = await make.linked(omq.REP, omq.DEALER, endpoint)
    for malformed in ([b"no delimiter"], [b"a", b"b"], [b""], [b"a", b""]):
        await dealer.send_multipart(malformed)
    await dealer.send_multipart([b"", b"good"])
    assert await rep.recv() == b"good"
    await rep.send(b"reply")
    assert await dealer.recv_multipart() == [b"", b"reply"]


async def test_a_reply_without_a_request_is_dropped(make, endpoint):
    router, req = await make.linked(omq.ROUTER, omq.REQ, endpoint, identity=b"me")
    await router.send_multipart([b"me", b"", b"early"])
    await until(lambda: req.peers[0].messages_in == 1)
    await req.send(b"ask")
    await router.recv_multipart()
    await router.send_multipart([b"me", b"", b"asked for"])
    got = await req.recv(timeout=5)
    assert got == b"asked for"


# Relaxed and correlated


async def test_a_relaxed_send_that_times_out_leaves_the_older_request_in_force(make, inproc):
    rep, req = await make.linked(
        omq.REP, omq.REQ, inproc, req_relaxed=True, req_correlate=True, send_hwm=1, immediate=True
    )
    await req.send(b"1")
    assert await rep.recv() == b"1"
    other = make(omq.REQ, connect=f"{inproc}-absent", req_relaxed=True, immediate=True)
    with pytest.raises(omq.SendTimeout):
        await other.send(b"x", timeout=0)
    await rep.send(b"reply")
    assert await req.recv(timeout=5) == b"reply"


# Peers that leave


async def test_a_reply_to_a_client_that_left_is_dropped(make, endpoint):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint)
    await req.send(b"and gone")
    assert await rep.recv() == b"and gone"
    req.stop()
    await until(lambda: not rep.peers)
    await rep.send(b"not received")
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


async def test_an_unsolicited_message_does_not_hide_the_end_of_a_peer(make):
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
