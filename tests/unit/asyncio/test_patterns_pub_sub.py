"""PUB, SUB, XPUB and XSUB: to everyone who asked for the beginning of it (RFC 29)."""

import asyncio

import pytest

import omq.asyncio as omq
from tests.unit.conftest import until


async def linked(make, endpoint, *prefixes, **options):
    pub, sub = await make.linked(omq.PUB, omq.SUB, endpoint, subscribe=prefixes, **options)
    await pub.wait_subscribed(n=len(set(prefixes)), timeout=5)
    return pub, sub


async def received(sub):
    got = []
    while await sub.poll(0.03):
        got += await sub.recv_many()
    return got


async def test_unsubscribing_takes_one_subscription_back(make, endpoint):
    pub, sub = await linked(make, endpoint, b"a", b"a", b"b")
    sub.unsubscribe(b"a")
    await pub.send(b"a1")
    assert await sub.recv(timeout=5) == b"a1"
    sub.unsubscribe(b"a")
    sub.unsubscribe(b"never")
    await until(lambda: pub._engine.pattern.subscriptions(b"a") == 0)
    await pub.send(b"a2")
    await pub.send(b"b1")
    assert await received(sub) == [b"b1"]


async def test_what_was_on_its_way_is_dropped_after_unsubscribing(make, endpoint):
    pub, sub = await linked(make, endpoint, b"a", b"b")
    await pub.send(b"a")
    await pub.send(b"b")
    await until(lambda: sub.peers[0].messages_in == 2)
    sub.unsubscribe(b"a")
    assert await received(sub) == [b"b"]


async def test_a_reconnected_subscriber_subscribes_again(make, endpoint):
    pub, sub = await linked(make, endpoint, b"a", b"b", reconnect_interval=0.01)
    where = pub.endpoints[0]
    sub.unsubscribe(b"b")
    pub.stop()
    again = make(omq.PUB, bind=where)
    await again.wait_subscribed(timeout=5)
    assert again._engine.pattern.subscriptions(None) == 1
    await again.send(b"a")
    assert await sub.recv(timeout=5) == b"a"


# High-water marks


async def test_nodrop_goes_on_when_the_slow_one_leaves(make, endpoint):
    xpub = make(omq.XPUB, bind=endpoint, xpub_nodrop=True, send_hwm=10)
    slow = make(omq.SUB, connect=xpub.endpoints[0], subscribe=b"", recv_hwm=1, reconnect_interval=None)
    await xpub.wait_subscribed(timeout=5)
    sending = asyncio.create_task(xpub.send_many([bytes(100_000)] * 1000))
    (session,) = xpub._engine.sessions
    await until(lambda: not session.peer.is_writable)
    assert not sending.done()
    slow.stop()
    assert await asyncio.wait_for(sending, 5) == 1000


async def test_a_subscriber_may_be_reset_while_others_are_served(make):
    """A slot is free again only when the matcher has forgotten it; the next peer gets nothing that it did not ask."""
    import socket
    import struct

    from tests.support.raw_peer import RawPeer

    pub = make(omq.PUB, bind="tcp://127.0.0.1:*", send_hwm=5)
    good = make(omq.SUB, connect=pub.endpoints[0], subscribe=b"good")
    await pub.wait_subscribed(timeout=5)
    for _ in range(10):
        raw = await RawPeer.dial(pub.endpoints[0])
        await raw.handshake(b"SUB")
        await raw.subscribe(b"bad")
        await pub.wait_subscribed(b"bad", timeout=5)
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
        fresh = make(omq.SUB, connect=pub.endpoints[0], subscribe=b"fresh")
        for _ in range(30):
            await pub.send(b"bad" + bytes(100_000))
            await asyncio.sleep(0)
        await pub.wait_subscribed(b"fresh", timeout=5)
        await pub.send(b"good")
        await pub.send(b"fresh")
        assert await good.recv(timeout=5) == b"good"
        assert await fresh.recv(timeout=5) == b"fresh"
        await fresh.close()
        await until(lambda: pub._engine.pattern.subscriptions(None) == 1)


# XPUB and XSUB


# behaviour.md, "xpub_manual"


async def test_xpub_manual_puts_in_force_what_the_application_chooses(make, endpoint):
    """The peer asks for A and gets B, and the cancellation is mapped likewise."""
    xpub = make(omq.XPUB, bind=endpoint, xpub_manual=True)
    sub = make(omq.SUB, connect=xpub.endpoints[0], subscribe=[b"A", b"B"])
    assert sorted([await xpub.recv(timeout=5), await xpub.recv(timeout=5)]) == [b"\1A", b"\1B"]
    xpub.subscribe(b"B")
    await xpub.wait_subscribed(b"B", timeout=5)
    await xpub.send(b"A no")
    await xpub.send(b"B yes")
    assert await sub.recv(timeout=5) == b"B yes"
    sub.unsubscribe(b"A")
    assert await xpub.recv(timeout=5) == b"\0A"
    xpub.unsubscribe(b"B")
    await xpub.send(b"B no more")
    assert await sub.poll(0.05) == 0


async def test_xpub_manual_passes_every_peers_subscription_and_serves_each_alone(make, endpoint):
    xpub = make(omq.XPUB, bind=endpoint, xpub_manual=True)
    first = make(omq.XSUB, connect=xpub.endpoints[0])
    await first.send(b"\1A")
    assert await xpub.recv(timeout=5) == b"\1A"
    xpub.subscribe(b"XA")
    second = make(omq.XSUB, connect=xpub.endpoints[0])
    await second.send(b"\1A")
    assert await xpub.recv(timeout=5) == b"\1A"
    xpub.subscribe(b"XB")
    await xpub.send(b"XA")
    await xpub.send(b"XB")
    assert await first.recv(timeout=5) == b"XA"
    assert await second.recv(timeout=5) == b"XB"
    assert await first.poll(0.02) == await second.poll(0.02) == 0


async def test_xpub_manual_reports_each_end_of_a_subscription_when_a_peer_goes(make, endpoint):
    """Also where another peer has the same one; and what was put in force for the peer goes with it."""
    xpub = make(omq.XPUB, bind=endpoint, xpub_manual=True)
    stays = make(omq.SUB, connect=xpub.endpoints[0], subscribe=b"A")
    assert await xpub.recv(timeout=5) == b"\1A"
    xpub.subscribe(b"Q")
    goes = make(omq.SUB, connect=xpub.endpoints[0], subscribe=[b"A", b"B"])
    assert sorted([await xpub.recv(timeout=5), await xpub.recv(timeout=5)]) == [b"\1A", b"\1B"]
    xpub.subscribe(b"Q")
    xpub.subscribe(b"R")
    await xpub.wait_subscribed(n=3, timeout=5)
    goes.stop()
    assert sorted([await xpub.recv(timeout=5), await xpub.recv(timeout=5)]) == [b"\0A", b"\0B"]
    assert xpub._engine.pattern.subscriptions(None) == 1
    # The peer that these words came from has gone: nothing is left to map.
    xpub.subscribe(b"Z")
    assert xpub._engine.pattern.subscriptions(None) == 1
    assert len(stays.peers) == 1


async def test_xpub_manual_lets_user_messages_through(make, endpoint):
    xpub, xsub = await make.linked(omq.XPUB, omq.XSUB, endpoint, xpub_manual=True)
    await xsub.send(b"\2hello")
    assert await xpub.recv(timeout=5) == b"\2hello"
    xpub.subscribe(b"T")
    await xpub.send(b"T1")
    assert await xsub.recv(timeout=5) == b"T1"


async def test_xpub_manual_keeps_the_changes_that_a_slow_application_has_not_read(make, endpoint):
    """No more of them than recv_hwm and what differs; and those of two peers are not mixed up."""
    xpub = make(omq.XPUB, bind=endpoint, xpub_manual=True, recv_hwm=1)
    subs = [make(omq.SUB, connect=xpub.endpoints[0]) for _ in range(2)]
    await xpub.wait_connected(2, timeout=5)
    for sub in subs:
        for letter in (b"A", b"B", b"C"):
            sub.subscribe(letter)
        sub.unsubscribe(b"C")
    seen = [await xpub.recv(timeout=5) for _ in range(4)]
    while await xpub.poll(0.05):
        seen.append(await xpub.recv(timeout=5))
    assert seen.count(b"\1A") == seen.count(b"\1B") == 2
    assert seen.count(b"\1C") == seen.count(b"\0C")


async def test_an_xpub_subscribes_only_by_hand_and_to_something(make, endpoint):
    with pytest.raises(omq.StateError, match="SUB, XSUB"):
        make(omq.XPUB, bind=endpoint).subscribe(b"A")
    with pytest.raises(omq.StateError, match="no subscription to confirm has been received"):
        make(omq.XPUB, xpub_manual=True).subscribe(b"A")


async def test_an_xsub_that_connects_later_sends_what_it_wants(make, inproc):
    xsub = make(omq.XSUB, connect=inproc, subscribe=b"opt")
    await xsub.send(b"\1early")
    xpub = make(omq.XPUB, bind=inproc)
    assert {await xpub.recv(timeout=5), await xpub.recv(timeout=5)} == {b"\1early", b"\1opt"}


async def test_a_subscription_may_begin_a_message_of_several_parts(make, endpoint):
    """libzmq takes it so: each part may then be a subscription, and the others are a message."""
    xpub, xsub = await make.linked(omq.XPUB, omq.XSUB, endpoint)
    await xsub.send_multipart([b"\1A", b"two", b"parts"])
    assert await xpub.recv_multipart(timeout=5) == [b"\1A"]
    assert await xpub.recv_multipart(timeout=5) == [b"two", b"parts"]
    await xsub.send_multipart([b"\1B", b"\1C", b"\0B"])
    assert [await xpub.recv(timeout=5) for _ in range(3)] == [b"\1B", b"\1C", b"\0B"]
    await xpub.send(b"A1")
    assert await xsub.recv(timeout=5) == b"A1"
    assert sorted(xsub._engine.pattern.matcher.prefixes()) == [(b"A", 1), (b"C", 1)]
    assert await xpub.poll(0.02) == 0


async def test_ten_thousand_subscriptions_arrive(make, endpoint):
    prefixes = [b"%d/" % number for number in range(10_000)]
    pub, sub = await linked(make, endpoint, *prefixes)
    for prefix in prefixes[::2]:
        sub.unsubscribe(prefix)
    await until(lambda: pub._engine.pattern.subscriptions(None) == 5000)
    await pub.send(b"0/x")
    await pub.send(b"9999/x")
    assert await received(sub) == [b"9999/x"]


def test_a_peer_with_many_prefixes_goes_with_a_loop_that_is_closed():
    """No turn comes any more in which the rest of them could be forgotten."""

    async def begin():
        pub = omq.PUB(bind="tcp://127.0.0.1:*", linger=0)
        sub = omq.SUB(connect=pub.endpoints[0], subscribe=[b"%d" % number for number in range(10_000)], linger=0)
        await pub.wait_subscribed(n=10_000, timeout=5)
        return pub, sub

    loop = asyncio.new_event_loop()
    pub, sub = loop.run_until_complete(begin())
    loop.close()
    pub.stop()
    sub.stop()
    assert pub._engine.closed
    assert sub._engine.closed


# An XPUB's user who does not read


async def test_what_an_xpub_keeps_for_a_lagging_user_is_bounded(make, endpoint):
    xpub, sub = await make.linked(omq.XPUB, omq.SUB, endpoint, recv_hwm=10)
    for turn in range(300):
        for number in range(20):
            sub.subscribe(b"%d-%d" % (turn, number))
        for number in range(20):
            sub.unsubscribe(b"%d-%d" % (turn, number))
        await asyncio.sleep(0)
    sub.subscribe(b"kept")
    await xpub.wait_subscribed(b"kept", timeout=10)
    pattern = xpub._engine.pattern
    await until(lambda: pattern.subscriptions(None) == 1)
    assert pattern.send_queue.mailbox.unread <= 10
    assert len(pattern.send_queue.mailbox.late) <= 40
    # What the user reads in the end is true all the same.
    known = set()
    while await xpub.poll(0.02):
        news = await xpub.recv()
        (known.add if news[0] else known.discard)(news[1:])
    assert known == {b"kept"}


async def test_a_lagging_user_gets_every_prefix_once(make, endpoint):
    prefixes = [b"%d" % number for number in range(500)]
    xpub, sub = await make.linked(omq.XPUB, omq.SUB, endpoint, subscribe=prefixes, recv_hwm=3)
    await xpub.wait_subscribed(n=500, timeout=5)
    got = [await xpub.recv(timeout=5) for _ in range(500)]
    assert sorted(got) == sorted(b"\1" + prefix for prefix in prefixes)
    assert await xpub.poll(0.01) == 0
    await sub.close()
    assert sorted([await xpub.recv(timeout=5) for _ in range(500)]) == sorted(b"\0" + prefix for prefix in prefixes)
    assert await xpub.poll(0.01) == 0


async def test_users_messages_to_an_xpub_that_does_not_read_are_bounded(make, endpoint):
    xpub, xsub = await make.linked(omq.XPUB, omq.XSUB, endpoint, recv_hwm=10)
    for _ in range(1000):
        await xsub.send(b"x")
    await xsub.send(b"\1end")
    await xpub.wait_subscribed(b"end", timeout=5)
    assert xpub._engine.pattern.send_queue.mailbox.unread <= 10
