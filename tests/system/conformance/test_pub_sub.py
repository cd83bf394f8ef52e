"""XPUB, XSUB, SUB and PUB, as libzmq's own tests ask of them; both twins, every transport."""

from __future__ import annotations

import pytest

import omq
from tests.support.waits import BOUND, until


def xpub_of(twin, endpoint, **options):
    xpub = twin("XPUB", bind=endpoint, **options)
    return xpub, lambda kind="SUB", **more: twin(kind, connect=xpub.endpoints[0], **more)


def received(xpub, count):
    return [xpub.recv(timeout=BOUND) for _ in range(count)]


def nothing(socket):
    return not socket.poll(0.03)


TOPICS = [b"", b"a", b"ab", b"abc", b"b", b"x", b"xab", b"\0", b"a" * 5000, b"ab" * 25_000]


@pytest.mark.parametrize("prefixes", [[b"ab", b"x"], [b""], [b"", b"a", b"ab"], [b"a", b"a"], [b"b"]], ids=str)
def test_a_subscriber_gets_once_each_message_whose_first_part_begins_with_a_prefix(twin, endpoint, prefixes):
    pub = twin("PUB", bind=endpoint)
    other = twin("SUB", connect=pub.endpoints[0], subscribe=b"end")
    sub = twin("SUB", connect=pub.endpoints[0], subscribe=[*prefixes, b"end"])
    pub.wait_subscribed(n=len({*prefixes, b"end"}) + 1, timeout=BOUND)
    for topic in [*TOPICS, b"end"]:
        pub.send_multipart([topic, *prefixes])
    expected = [topic for topic in TOPICS if topic.startswith(tuple(prefixes))]
    for one, topics in ((sub, [*expected, b"end"]), (other, [b"end"])):
        assert [one.recv_multipart(timeout=BOUND) for _ in topics] == [[topic, *prefixes] for topic in topics]
        assert nothing(one)


@pytest.mark.parametrize("option", [None, "xpub_verbose", "xpub_verboser"])
def test_xpub_verbose_and_verboser(twin, endpoint, option):
    xpub, join = xpub_of(twin, endpoint, **({option: True} if option else {}))
    one, two = join(), join()
    one.subscribe(b"topic")
    assert received(xpub, 1) == [b"\1topic"]
    two.subscribe(b"topic")
    assert received(xpub, 1) == [b"\1topic"] if option else nothing(xpub)
    two.unsubscribe(b"topic")
    assert received(xpub, 1) == [b"\0topic"] if option == "xpub_verboser" else nothing(xpub)
    one.unsubscribe(b"topic")
    assert received(xpub, 1) == [b"\0topic"]
    one.unsubscribe(b"topic")
    two.unsubscribe(b"never")
    assert nothing(xpub)


def test_xsub_sends_every_subscription_and_only_the_last_end(twin, endpoint):
    xpub, join = xpub_of(twin, endpoint, xpub_verboser=True)
    xsub = join("XSUB")
    xsub.wait_connected(timeout=BOUND)
    for _ in range(3):
        xsub.send(b"\1A")
    assert received(xpub, 3) == [b"\1A"] * 3
    xsub.send(b"\0A")
    xsub.send(b"\0A")
    xsub.send(b"\0never")
    assert nothing(xpub)
    xsub.send(b"\0A")
    assert received(xpub, 1) == [b"\0A"]


@pytest.mark.parametrize("size", [0, 1, 244, 245, 246, 255, 256, 1 << 20])
def test_xpub_topic_at_the_edges_of_short_and_long_frames(twin, endpoint, size):
    xpub, join = xpub_of(twin, endpoint)
    topic = b"t" * size
    sub = join(subscribe=topic)
    assert received(xpub, 1) == [b"\1" + topic]
    xpub.send_multipart([topic, b"body"])
    assert sub.recv_multipart(timeout=BOUND) == [topic, b"body"]
    sub.unsubscribe(topic)
    assert received(xpub, 1) == [b"\0" + topic]
    xpub.send_multipart([topic, b"absent"])
    assert nothing(sub)


def test_xpub_welcome_message(twin, endpoint):
    """Each subscriber that wants it gets it, once."""
    _xpub, join = xpub_of(twin, endpoint, xpub_welcome_message=b"W hello")
    for _ in range(2):
        sub = join(subscribe=[b"W", b"X", b"Y"])
        assert sub.recv(timeout=BOUND) == b"W hello"
        assert nothing(sub)
    silent = join(subscribe=b"X")
    silent.wait_connected(timeout=BOUND)
    assert nothing(silent)


@pytest.mark.parametrize("kind", ["SUB", "XSUB"])
def test_a_subscriber_at_its_mark_is_read(twin, endpoint, kind):
    """Messages that wait for the publisher's user do not delay its subscriptions: libzmq applies them at once."""
    xpub, join = xpub_of(twin, endpoint, xpub_welcome_message=b"W")
    sub = join(kind, recv_hwm=1)
    change = {"SUB": (sub.subscribe, sub.unsubscribe)} if kind == "SUB" else {}
    ask, end = change.get(kind, (lambda prefix: sub.send(b"\1" + prefix), lambda prefix: sub.send(b"\0" + prefix)))
    ask(b"W")
    assert received(xpub, 1) == [b"\1W"]
    until(lambda: sub.poll(0))  # the welcome: one message is its mark
    xpub.send(b"W: one more")
    for number in range(3):
        ask(b"%d" % number)
        assert received(xpub, 1) == [b"\1%d" % number]
    end(b"1")
    assert received(xpub, 1) == [b"\0" + b"1"]


def test_pub_invert_matching(twin, endpoint):
    pub = twin("PUB", bind=endpoint, invert_matching=True)
    sub = twin("SUB", connect=pub.endpoints[0], invert_matching=True, subscribe=b"X")
    pub.wait_subscribed(b"X", timeout=BOUND)
    pub.send_many([b"XYZ", b"ABC", b"X", b"Y"])
    assert [sub.recv(timeout=BOUND) for _ in range(2)] == [b"ABC", b"Y"]
    assert nothing(sub)


def test_sub_forward_a_relay_by_hand(twin, endpoint):
    xpub = twin("XPUB", bind=endpoint)
    xsub = twin("XSUB", bind="tcp://127.0.0.1:*" if endpoint.startswith("tcp") else f"{endpoint}-back")
    pub = twin("PUB", connect=xsub.endpoints[0])
    sub = twin("SUB", connect=xpub.endpoints[0], subscribe=b"")
    pub.wait_connected(timeout=BOUND)
    xsub.send(xpub.recv(timeout=BOUND))
    pub.wait_subscribed(timeout=BOUND)
    pub.send(b"")
    xpub.send(xsub.recv(timeout=BOUND))
    assert sub.recv(timeout=BOUND) == b""
    sub.close()
    xsub.send(xpub.recv(timeout=BOUND))
    until(lambda: not _subscribed(pub))


def _subscribed(pub):
    try:
        pub.wait_subscribed(timeout=0)
    except omq.Timeout:
        return False
    return True


def test_xpub_manual_maps_subscriptions_and_cleans_up(twin, endpoint):
    xpub, join = xpub_of(twin, endpoint, xpub_manual=True)
    sub = join(subscribe=b"A")
    assert received(xpub, 1) == [b"\1A"]
    xpub.subscribe(b"XA")
    xpub.send(b"A")
    xpub.send(b"XA")
    other = join("XSUB")
    other.send(b"\1B")
    assert received(xpub, 1) == [b"\1B"]
    xpub.subscribe(b"XB")
    xpub.send_many([b"XB", b"A", b"B", b"XA"])
    assert other.recv(timeout=BOUND) == b"XB"
    assert nothing(other)
    assert nothing(sub), "XA is not what the subscriber itself asked for"
    sub.close()
    assert received(xpub, 1) == [b"\0A"]
    other.close()
    assert received(xpub, 1) == [b"\0B"]


def test_xpub_user_messages_come_through(twin, endpoint):
    xpub, join = xpub_of(twin, endpoint)
    xsub = join("XSUB")
    xsub.wait_connected(timeout=BOUND)
    xsub.send(b"\2hello")
    xsub.send_multipart([b"\1a subscription", b"and a message"])
    xsub.send_multipart([b"a message", b"of several parts"])
    xsub.send(b"")
    assert xpub.recv(timeout=BOUND) == b"\2hello"
    assert xpub.recv_multipart(timeout=BOUND) == [b"\1a subscription"]
    assert xpub.recv_multipart(timeout=BOUND) == [b"and a message"]
    assert xpub.recv_multipart(timeout=BOUND) == [b"a message", b"of several parts"]
    assert xpub.recv(timeout=BOUND) == b""


def test_a_sub_that_sends_to_a_pub_is_harmless(twin, endpoint):
    pub = twin("PUB", bind=endpoint)
    xsub = twin("XSUB", connect=pub.endpoints[0])
    xsub.wait_connected(timeout=BOUND)
    for _ in range(100):
        xsub.send(b"what a publisher never reads")
    xsub.send(b"\1")
    pub.wait_subscribed(timeout=BOUND)
    pub.send(b"x")
    assert xsub.recv(timeout=BOUND) == b"x"
    with pytest.raises(omq.StateError):
        pub.recv(timeout=0)


def test_a_verboser_xpub_gets_all_that_ends_with_a_peer(twin, endpoint):
    xpub, join = xpub_of(twin, endpoint, xpub_verboser=True)
    one, two = join(subscribe=[b"a", b"b"]), join(subscribe=b"b")
    assert sorted(received(xpub, 3)) == [b"\1a", b"\1b", b"\1b"]
    one.close()
    assert sorted(received(xpub, 2)) == [b"\0a", b"\0b"]
    two.close()
    assert received(xpub, 1) == [b"\0b"]
    assert nothing(xpub)


def test_a_peer_that_goes_with_many_prefixes_is_reported_with_all_of_them(twin, endpoint):
    xpub, join = xpub_of(twin, endpoint, recv_hwm=0)
    prefixes = {b"%d" % number for number in range(2000)}
    goes, stays = join(subscribe=sorted(prefixes)), join(subscribe=b"stays")
    assert {word[1:] for word in received(xpub, 2001)} == {b"stays", *prefixes}
    goes.close()
    assert {word[1:] for word in received(xpub, 2000)} == prefixes
    xpub.send(b"stays")
    assert stays.recv(timeout=BOUND) == b"stays"
    assert nothing(xpub)


def test_a_peer_that_goes_takes_its_subscriptions_along(twin, endpoint):
    xpub, join = xpub_of(twin, endpoint)
    one, two = join(subscribe=[b"a", b"b"]), join(subscribe=[b"b", b"c"])
    assert sorted(received(xpub, 3)) == [b"\1a", b"\1b", b"\1c"]
    xpub.wait_subscribed(n=4, timeout=BOUND)
    one.close()
    assert received(xpub, 1) == [b"\0a"]
    xpub.wait_subscribed(n=3 - 1, timeout=BOUND)
    xpub.send(b"b")
    assert two.recv(timeout=BOUND) == b"b"
    two.close()
    assert sorted(received(xpub, 2)) == [b"\0b", b"\0c"]


def test_wait_subscribed_counts_pairs_of_peer_and_prefix(twin, endpoint):
    pub = twin("PUB", bind=endpoint)
    one = twin("SUB", connect=pub.endpoints[0], subscribe=[b"a", b"b"])
    one.subscribe(b"a")
    two = twin("SUB", connect=pub.endpoints[0], subscribe=b"a")
    pub.wait_subscribed(n=3, timeout=BOUND)
    pub.wait_subscribed(b"a", 2, timeout=BOUND)
    pub.wait_subscribed(b"b", timeout=BOUND)
    for prefix, count in ((None, 4), (b"a", 3), (b"b", 2), (b"c", 1)):
        with pytest.raises(omq.Timeout):
            pub.wait_subscribed(prefix, count, timeout=0.02)
    two.close()
    one.close()


def test_subscriptions_come_back_after_a_reconnection(twin, tmp_path):
    where = f"ipc://{tmp_path}/s"
    sub = twin("SUB", connect=where, subscribe=[b"a", b"b"], reconnect_interval=0.01)
    for turn in range(5):
        pub = twin("PUB", bind=where)
        pub.wait_subscribed(n=2 + turn, timeout=BOUND)
        pub.send(b"a%d" % turn)
        assert sub.recv(timeout=BOUND) == b"a%d" % turn
        pub.stop()
        sub.subscribe(b"x%d" % turn)
