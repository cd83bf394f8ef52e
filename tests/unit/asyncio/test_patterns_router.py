"""ROUTER and DEALER: messages with the name of their sender, and to the peer that is named (RFC 28)."""

import asyncio

import omq.asyncio as omq
from tests.unit.conftest import until


async def test_a_peer_without_identity_gets_one_that_no_peer_can_choose(make, endpoint):
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


async def test_a_sender_that_waits_for_a_peer_that_leaves_gets_an_error(make, inproc):
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
