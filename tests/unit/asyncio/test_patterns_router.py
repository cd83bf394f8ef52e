"""ROUTER and DEALER: messages with the name of their sender, and to the peer that is named (RFC 28)."""

import asyncio
import contextlib

import pytest

import omq.asyncio as omq
from tests.unit.conftest import until


async def test_the_identity_comes_first_and_names_the_receiver(make, endpoint):
    router, dealer = await make.linked(omq.ROUTER, omq.DEALER, endpoint, identity=b"d")
    await dealer.send_multipart([b"A", b"B"])
    assert await router.recv_multipart() == [b"d", b"A", b"B"]
    await router.send_multipart([b"d", b"C", b"D"])
    assert await dealer.recv_multipart() == [b"C", b"D"]
    assert [peer.identity for peer in router.peers] == [b"d"]


async def test_a_peer_without_identity_gets_one_that_nobody_can_choose(make, endpoint):
    router = make(omq.ROUTER, bind=endpoint)
    dealers = [make(omq.DEALER, connect=router.endpoints[0]) for _ in range(3)]
    await router.wait_connected(3, timeout=5)
    names = {}
    for number, dealer in enumerate(dealers):
        await dealer.send(b"%d" % number)
    for _ in dealers:
        name, body = await router.recv_multipart()
        names[body] = name
    assert len(set(names.values())) == 3
    assert all(len(name) == 5 and name[:1] == b"\0" for name in names.values())
    for number, dealer in enumerate(dealers):
        await router.send_multipart([names[b"%d" % number], b"for %d" % number])
        assert await dealer.recv(timeout=5) == b"for %d" % number


async def test_a_late_answer_through_a_restarted_router_reaches_no_stranger(make, endpoint):
    router = make(omq.ROUTER, bind=endpoint)
    place = router.endpoints[0]
    asker = make(omq.REQ, connect=place)
    await asker.send(b"balance of X?")
    held = await router.recv_multipart(timeout=5)
    asker.stop()
    await until(lambda: not router.peers)
    router.stop()
    router = make(omq.ROUTER, bind=place, router_mandatory=True)
    stranger = make(omq.REQ, connect=place)
    await stranger.send(b"balance of Y?")
    asked = await router.recv_multipart(timeout=5)
    with pytest.raises(omq.UnroutableError):
        await router.send_multipart([*held[:2], b"X has a million"])
    await router.send_multipart([*asked[:2], b"Y has nothing"])
    assert await stranger.recv(timeout=5) == b"Y has nothing"


async def test_a_router_needs_a_name_and_a_message(make, inproc):
    router = make(omq.ROUTER, bind=inproc)
    for call in (router.send(b"x"), router.send_multipart([b"x"])):
        with pytest.raises(omq.StateError, match="at least two parts"):
            await call


async def test_a_message_for_nobody_is_dropped(make, endpoint):
    router, dealer = await make.linked(omq.ROUTER, omq.DEALER, endpoint, identity=b"d")
    await router.send_multipart([b"nobody", b"x"])
    await router.send_multipart([b"d", b"y"])
    assert await dealer.recv() == b"y"


async def test_mandatory_says_that_nobody_has_the_name(make, endpoint):
    router, dealer = await make.linked(omq.ROUTER, omq.DEALER, endpoint, identity=b"d", router_mandatory=True)
    with pytest.raises(omq.UnroutableError, match="nobody"):
        await router.send_multipart([b"nobody", b"x"])
    await router.send_multipart([b"d", b"y"])
    assert await dealer.recv() == b"y"
    dealer.stop()
    await until(lambda: not router.peers)
    with pytest.raises(omq.UnroutableError):
        await router.send_multipart([b"d", b"z"])
    router.set_options(router_mandatory=False)
    await router.send_multipart([b"d", b"z"])


async def test_mandatory_waits_for_a_full_peer(make, inproc):
    router, dealer = await make.linked(
        omq.ROUTER, omq.DEALER, inproc, identity=b"d", router_mandatory=True, send_hwm=1, recv_hwm=1
    )
    sent = 0
    while True:
        try:
            await router.send_multipart([b"d", b"%d" % sent], timeout=0)
        except omq.SendTimeout:
            break
        sent += 1
        assert sent <= 2
    waiting = asyncio.create_task(router.send_multipart([b"d", b"%d" % sent]))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert [await dealer.recv(timeout=5) for _ in range(sent)] == [b"%d" % number for number in range(sent)]
    await asyncio.wait_for(waiting, 5)
    assert await dealer.recv(timeout=5) == b"%d" % sent


async def test_mandatory_over_the_wire_bounds_what_waits(make):
    router, dealer = await make.linked(
        omq.ROUTER, omq.DEALER, "tcp://127.0.0.1:*", identity=b"d", router_mandatory=True, send_hwm=5, recv_hwm=1
    )
    body = bytes(1_000_000)
    sent = 0
    while sent < 200:
        try:
            await router.send_multipart([b"d", body], timeout=0.05)
        except omq.SendTimeout:
            break
        sent += 1
    assert 5 <= sent < 100
    waiting = asyncio.create_task(router.send_multipart([b"d", b"last"]))
    for _ in range(sent):
        assert len(await dealer.recv(timeout=5)) == len(body)
    await asyncio.wait_for(waiting, 5)
    assert await dealer.recv(timeout=5) == b"last"


async def test_a_mandatory_router_can_send_while_any_peer_has_room(make, endpoint):
    router = make(omq.ROUTER, bind=endpoint, router_mandatory=True, send_hwm=5)
    assert await router.poll(0, omq.POLL_OUT) == 0, "nobody is there"
    names = [b"one", b"two"]
    dealers = [make(omq.DEALER, connect=router.endpoints[0], identity=name, recv_hwm=1) for name in names]
    await router.wait_connected(2, timeout=5)
    assert await router.poll(0, omq.POLL_OUT) == omq.POLL_OUT
    # What the kernel takes grows for a while.
    for name in names * 20:
        with contextlib.suppress(omq.SendTimeout):
            for _ in range(1000):
                await router.send_multipart([name, bytes(1_000_000)], timeout=0.02)
        if await router.poll(0.05, omq.POLL_OUT) == 0:
            break
    assert await router.poll(0, omq.POLL_OUT) == 0
    waiting = asyncio.create_task(router.poll(None, omq.POLL_OUT))
    await asyncio.sleep(0)
    assert not waiting.done()
    while not waiting.done():
        assert len(await dealers[1].recv(timeout=5)) == 1_000_000
        await asyncio.sleep(0)
    assert await waiting == omq.POLL_OUT
    await router.send_multipart([b"two", b"room"], timeout=0)


async def test_a_sender_that_waits_for_a_peer_that_leaves_hears_of_it(make, inproc):
    router, dealer = await make.linked(
        omq.ROUTER, omq.DEALER, inproc, identity=b"d", router_mandatory=True, send_hwm=1, recv_hwm=1
    )
    waiting = asyncio.create_task(router.send_many([]))
    await waiting
    tasks = [asyncio.create_task(router.send_multipart([b"d", b"x"])) for _ in range(5)]
    await until(lambda: any(task.done() for task in tasks))
    assert not all(task.done() for task in tasks)
    dealer.stop()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    assert any(isinstance(result, omq.UnroutableError) for result in results)


async def test_a_full_peer_loses_messages_and_the_others_none(make, inproc):
    router = make(omq.ROUTER, bind=inproc, send_hwm=10)
    stuck = make(omq.DEALER, connect=inproc, identity=b"stuck", recv_hwm=10)
    good = make(omq.DEALER, connect=inproc, identity=b"good", recv_hwm=10)
    await router.wait_connected(2, timeout=5)
    for number in range(500):
        await router.send_multipart([b"stuck", b"%d" % number])
        await router.send_multipart([b"good", b"%d" % number])
        assert await good.recv(timeout=5) == b"%d" % number
    dropped = {peer.identity: peer.dropped for peer in router.peers}
    assert dropped[b"good"] == 0
    assert dropped[b"stuck"] == 500 - len(await stuck.recv_many())


# Two peers of one name


async def test_a_duplicate_waits_unread_until_the_name_is_free(make, endpoint):
    router, first = await make.linked(omq.ROUTER, omq.DEALER, endpoint, identity=b"same")
    second = make(omq.DEALER, connect=router.endpoints[0], identity=b"same", recv_hwm=5)
    await second.send_many([b"%d" % number for number in range(8)])
    await second.wait_connected(timeout=5)
    assert await router.poll(0.02) == 0
    assert [len(router.peers), router._engine.peer_count] == [1, 1], "who is not heard is no peer"
    await first.send(b"from the first")
    assert await router.recv_multipart() == [b"same", b"from the first"]
    await router.send_multipart([b"same", b"to the first"])
    assert await first.recv(timeout=5) == b"to the first"
    assert await second.poll(0.02) == 0
    await first.close()
    for number in range(8):
        assert await router.recv_multipart(timeout=5) == [b"same", b"%d" % number]
    await router.send_multipart([b"same", b"to the second"])
    assert await second.recv(timeout=5) == b"to the second"


async def test_a_duplicate_that_leaves_changes_nothing(make, endpoint):
    router, first = await make.linked(omq.ROUTER, omq.DEALER, endpoint, identity=b"same")
    second = make(omq.DEALER, connect=router.endpoints[0], identity=b"same")
    await second.send(b"unheard")
    await second.wait_connected(timeout=5)
    second.stop()
    await until(lambda: len(router._engine._sessions) == 1)
    await router.send_multipart([b"same", b"x"])
    assert await first.recv(timeout=5) == b"x"
    await first.send(b"y")
    assert await router.recv_multipart(timeout=5) == [b"same", b"y"]
    assert await router.poll(0.02) == 0


async def test_handover_gives_the_name_to_the_new_peer(make, endpoint):
    router, first = await make.linked(
        omq.ROUTER, omq.DEALER, endpoint, identity=b"same", router_handover=True, reconnect_interval=None
    )
    await first.send(b"before")
    await until(lambda: router.peers[0].messages_in == 1)
    second = make(omq.DEALER, connect=router.endpoints[0], identity=b"same")
    await until(lambda: not first.peers)
    await router.send_multipart([b"same", b"x"])
    assert await second.recv(timeout=5) == b"x"
    await second.send(b"after")
    assert [await router.recv_multipart(timeout=5) for _ in range(2)] == [[b"same", b"before"], [b"same", b"after"]]
    assert len(router.peers) == 1


@pytest.mark.parametrize("kind", [omq.DEALER, omq.REQ])
async def test_probe_router_sends_an_empty_message(make, endpoint, kind):
    router, probing = await make.linked(omq.ROUTER, kind, endpoint, identity=b"p")
    assert await router.poll(0.01) == 0
    probing.stop()
    await until(lambda: not router.peers)
    probing = make(kind, connect=router.endpoints[0], identity=b"p", probe_router=True)
    assert await router.recv_multipart(timeout=5) == [b"p", b""]


async def test_a_router_probes_a_router(make, endpoint):
    one = make(omq.ROUTER, bind=endpoint, identity=b"one", router_mandatory=True)
    other = make(omq.ROUTER, connect=one.endpoints[0], identity=b"other", probe_router=True)
    assert await one.recv_multipart(timeout=5) == [b"other", b""]
    await one.send_multipart([b"other", b"hello"])
    assert await other.recv_multipart(timeout=5) == [b"one", b"hello"]


async def test_a_hundred_dealers_are_all_reachable(make, tmp_path):
    context = omq.Context()
    router = make(omq.ROUTER, bind=f"ipc://{tmp_path}/r", router_mandatory=True)
    dealers = [make(omq.DEALER, context, connect=router.endpoints[0], identity=b"%d" % i) for i in range(100)]
    await router.wait_connected(100, timeout=15)
    for number in range(100):
        await router.send_multipart([b"%d" % number, b"for %d" % number])
    for number, dealer in enumerate(dealers):
        assert await dealer.recv(timeout=5) == b"for %d" % number


async def test_messages_of_a_dealer_that_left_keep_its_name(make, endpoint):
    router, dealer = await make.linked(omq.ROUTER, omq.DEALER, endpoint, identity=b"gone")
    await dealer.send_many([b"1", b"2"])
    await until(lambda: router.peers[0].messages_in == 2)
    await dealer.close()
    await until(lambda: not router.peers)
    assert [await router.recv_multipart(timeout=0) for _ in range(2)] == [[b"gone", b"1"], [b"gone", b"2"]]


async def test_dealers_talk_to_dealers(make, endpoint):
    one, other = await make.linked(omq.DEALER, omq.DEALER, endpoint)
    await one.send_multipart([b"a", b"b"])
    assert await other.recv_multipart() == [b"a", b"b"]
    await other.send(b"c")
    assert await one.recv() == b"c"
