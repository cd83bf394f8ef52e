"""`recv_columns`: messages behind one another in one buffer."""

import random
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

import omq
from omq.routing import PATTERNS


@pytest.fixture
def pair() -> Iterator[tuple[omq.PUSH, omq.PULL]]:
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0], linger=0) as push:
        yield push, pull


def taken(pull: omq.PULL, data: bytearray, ends: Any, count: int) -> None:
    """Takes *count* messages, however many calls that needs."""
    got = 0
    while got < count:
        start = ends[got - 1] if got else 0
        got += pull.recv_columns(data, memoryview(ends)[got:], start, timeout=5)
    assert got == count


def test_bodies_stand_behind_one_another(pair: tuple[omq.PUSH, omq.PULL]) -> None:
    push, pull = pair
    bodies = [b"a" * size for size in (3, 0, 255, 256, 40_000, 1)]
    push.send_many(bodies)
    data, ends = bytearray(50_000), array("i", [0] * 6)
    taken(pull, data, ends, 6)
    assert list(ends) == [3, 3, 258, 514, 40_514, 40_515]
    assert data[:40_515] == b"".join(bodies)
    assert not any(data[40_515:])


def test_no_more_are_taken_than_there_are_ends_for(pair: tuple[omq.PUSH, omq.PULL]) -> None:
    push, pull = pair
    push.send_many([b"%d" % n for n in range(10)])
    data, ends = bytearray(100), array("i", [-1] * 4)
    taken(pull, data, ends, 4)
    assert data[:4] == b"0123"
    assert [pull.recv(timeout=5) for _ in range(6)] == [b"%d" % n for n in range(4, 10)]


def test_what_does_not_fit_stays_first_in_line(pair: tuple[omq.PUSH, omq.PULL]) -> None:
    push, pull = pair
    push.send_many([b"12345", b"678901"])
    data, ends = bytearray(10), array("i", [0] * 4)
    taken(pull, data, ends[:1], 1)
    with pytest.raises(omq.MessageTooLarge, match="of 6 bytes, is larger than the 5 bytes left") as caught:
        pull.recv_columns(data, ends, 5, timeout=5)
    assert caught.value.size == 6
    assert pull.recv(timeout=5) == b"678901"


def test_several_parts_stay_first_in_line(pair: tuple[omq.PUSH, omq.PULL]) -> None:
    push, pull = pair
    push.send(b"1")
    push.send_multipart([b"2", b"3"])
    data, ends = bytearray(10), array("i", [0] * 4)
    assert pull.recv_columns(data, ends, timeout=5) == 1
    with pytest.raises(omq.MultipartError):
        pull.recv_columns(data, ends, timeout=5)
    assert pull.recv_multipart(timeout=5) == [b"2", b"3"]


def test_what_no_subscription_covers_is_left_out() -> None:
    with (
        omq.PUB(bind="tcp://127.0.0.1:*", linger=0) as pub,
        omq.SUB(connect=pub.endpoints[0], subscribe=b"a") as sub,
    ):
        pub.wait_subscribed(b"a", timeout=5)
        pub.send_many([b"a1", b"b1", b"a2"])
        data, ends = bytearray(10), array("i", [0] * 4)
        got = sub.recv_columns(data, ends, timeout=5)
        if got == 1:
            got += sub.recv_columns(data, memoryview(ends)[1:], 2, timeout=5)
        assert got == 2
        assert data[:4] == b"a1a2"


def test_calls_that_cannot_be_served_are_refused(pair: tuple[omq.PUSH, omq.PULL]) -> None:
    push, pull = pair
    data, ends = bytearray(10), array("i", [0] * 4)
    with pytest.raises(omq.ReceiveTimeout):
        pull.recv_columns(data, ends, timeout=0.05)
    push.send(b"x")
    pull.poll(5)
    with pytest.raises(TypeError, match="writable contiguous buffer"):
        pull.recv_columns(b"fixed", ends, timeout=5)
    with pytest.raises(ValueError, match="no room for a single offset"):
        pull.recv_columns(data, bytearray(3), timeout=5)
    with pytest.raises(ValueError, match="start=11"):
        pull.recv_columns(data, ends, 11, timeout=5)
    with pytest.raises(omq.StateError):
        push.recv_columns(data, ends)
    with omq.REP(bind="tcp://127.0.0.1:*") as rep, omq.REQ(connect=rep.endpoints[0], linger=0) as req:
        req.send(b"x")
        with pytest.raises(omq.StateError, match="PULL, SUB"):
            rep.recv_columns(data, ends, timeout=5)
    assert pull.recv(timeout=5) == b"x"


@pytest.mark.parametrize("kind", list(PATTERNS), ids=lambda kind: kind.value)
def test_the_error_names_each_type_that_gives_columns_and_no_other(kind: omq.SocketType) -> None:
    with getattr(omq, kind.value)(bind="tcp://127.0.0.1:*") as one:
        with pytest.raises((omq.ReceiveTimeout, omq.StateError)) as caught:
            one.recv_columns(bytearray(10), array("i", [0] * 4), timeout=0)
        given = caught.type is omq.ReceiveTimeout
    with omq.DISH() as dish, pytest.raises(omq.StateError) as refused:
        dish.recv_columns(bytearray(10), array("i", [0] * 4), timeout=0)
    assert given == (kind.value in str(refused.value).partition(": ")[2].split(", "))


@pytest.mark.parametrize("secure", [False, True], ids=["null", "curve"])
@pytest.mark.parametrize("seed", range(4))
def test_any_messages_of_several_peers_come_whole_and_in_order(seed: int, secure: bool) -> None:
    """Of one part and of several, small and large, into buffers of any size, among other calls."""
    chance = random.Random(seed)
    sizes = (0, 1, 64, 64, 64, 254, 255, 256, 257, 2000, 70_000)

    def message(sender: int, number: int) -> list[bytes]:
        first = b"%d %d " % (sender, number)
        parts = 1 if chance.random() < 0.95 else chance.randrange(2, 4)
        return [first + bytes(chance.choice(sizes)), *(bytes(chance.choice(sizes)) for _ in range(parts - 1))]

    sent = [[message(sender, number) for number in range(700)] for sender in range(2)]
    public, secret = omq.curve_keypair()
    offered: dict[str, Any] = {"security": omq.CurveServer(secret)} if secure else {}
    asked: dict[str, Any] = {"security": omq.CurveClient(public)} if secure else {}
    with (
        omq.PULL(bind="tcp://127.0.0.1:*", **offered) as pull,
        omq.PUSH(connect=pull.endpoints[0], **asked) as a,
        omq.PUSH(connect=pull.endpoints[0], **asked) as b,
    ):
        for start in range(0, 700, 50):
            for push, messages in zip((a, b), sent, strict=True):
                push.send_many(messages[start : start + 50])
        found: list[list[bytes]] = []
        while len(found) < 1400:
            room = chance.choice((80, 500, 5000, 200_000))
            data, ends = bytearray(room), array("i", [-1] * chance.choice((1, 3, 100, 1000)))
            start = chance.randrange(20)
            try:
                got = pull.recv_columns(data, ends, start, timeout=10)
            except (omq.MultipartError, omq.MessageTooLarge):
                found.append(list(pull.recv_multipart(timeout=10)))
                continue
            assert 0 < got <= len(ends)
            assert list(ends[got:]) == [-1] * (len(ends) - got), "nothing is written behind them"
            assert not any(data[ends[got - 1] :])
            found += [[bytes(data[x:y])] for x, y in zip([start, *ends], ends[:got], strict=False)]
        for sender in range(2):
            mine = [one for one in found if one[0].startswith(b"%d " % sender)]
            assert mine == sent[sender]
