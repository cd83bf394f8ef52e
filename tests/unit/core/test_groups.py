"""Groups without an engine: what peers may ask a RADIO for, and what a DISH keeps of what they send."""

import asyncio
import random
import socket

import pytest

from omq._core.link.connection import Connection
from omq._core.link.datagram import MAX_MESSAGE_BYTES, DatagramSender
from omq._core.link.poller import Poller
from omq._core.queues.groups import OwnGroups, RadioSendQueue
from omq._core.queues.wait_queue import WaitQueue
from omq._core.wire.framing import encode_frame
from omq._core.wire.pool import Pool
from omq.errors import RemoteProtocolError, UsageError
from omq.zmtp.command import encode_command
from tests.support.bare_connection import Driven, Session
from tests.unit.conftest import until

LONGEST = b"g" * 255


@pytest.fixture
def radio():
    """Makes a peer of a RADIO from the bytes that it has sent; gives its session."""
    queue = RadioSendQueue(WaitQueue(), 0, limit=5)
    poller, pool = Poller(), Pool()
    sessions, others = [], []

    def make(sent):
        near, far = socket.socketpair()
        near.setblocking(False)
        others.append(far)
        session = Session()
        sessions.append(session)
        session.peer = Connection(session, near.detach(), poller, pool, None, 0)
        queue.add(session.peer)
        session.peer.start(sent)
        return session

    yield queue, make
    for session in sessions:
        session.peer.close()
    for other in others:
        other.close()
    poller.close()


def join(group):
    return encode_command(b"JOIN", group)


def leave(group):
    return encode_command(b"LEAVE", group)


@pytest.mark.parametrize("group", [b"", b"g", b"JOIN", b"\xff", LONGEST], ids=["empty", "g", "JOIN", "high", "longest"])
def test_a_group_is_joined_once_and_left_at_once(radio, group):
    queue, make = radio
    session = make(join(group) * 3)
    assert (queue.subscriptions(group), queue.subscriptions()) == (1, 1)
    other = make(join(group) + join(b"another") + leave(group))
    assert (queue.subscriptions(group), queue.subscriptions()) == (1, 2)
    assert session.lost == other.lost == []
    for one in (session, other):
        queue.remove(one.peer)
        queue.leave(one.peer)
    assert queue.subscriptions() == 0


@pytest.mark.parametrize(
    "group",
    [b"\0", b"a\0", b"\0" * 255, LONGEST + b"g", LONGEST * 300],
    ids=["zero", "zero last", "zeros", "one more", "many more"],
)
@pytest.mark.parametrize("ask", [join, leave])
def test_what_no_group_is_called_ends_the_peer(radio, group, ask):
    queue, make = radio
    session = make(join(b"good") + ask(group) + join(b"late"))
    (error,) = session.lost
    assert isinstance(error, RemoteProtocolError)
    assert "RFC 48" in str(error)
    assert queue.subscriptions(b"late") == 0
    assert make(join(b"good")).lost == []


@pytest.mark.parametrize("body", [b"\5JOINS", b"\4JOI", b"\4join", b"\5LEAV", b"\6LEAVES", b"\x09SUBSCRIBEx"])
def test_only_these_two_commands_are_about_groups(radio, body):
    queue, make = radio
    session = make(encode_frame(body, command=True))
    assert session.commands == [body]  # it is the engine that knows, or refuses, it
    assert queue.subscriptions() == 0


@pytest.mark.parametrize("seed", range(8))
def test_whatever_peers_ask_for_is_in_force(radio, seed):
    queue, make = radio
    source = random.Random(seed)
    names = [b"", b"a", b"aa", b"ab", LONGEST, LONGEST[:-1]]
    wanted = {}
    for number in range(30):
        sent, mine = b"", set()
        for _ in range(source.randrange(40)):
            group = source.choice(names)
            if source.random() < 0.5 and len(mine | {group}) <= 5:
                mine.add(group)
                sent += join(group)
            else:
                mine.discard(group)
                sent += leave(group)
        session = make(sent)
        assert session.lost == []
        wanted[number] = session, mine
        if source.random() < 0.3:
            gone, _ = wanted.pop(source.choice(list(wanted)))
            queue.remove(gone.peer)
            queue.leave(gone.peer)
        for name in names:
            assert queue.subscriptions(name) == sum(name in groups for _, groups in wanted.values())


def test_one_group_more_than_is_allowed_ends_the_peer(radio):
    _, make = radio
    session = make(b"".join(join(b"%d" % number) for number in range(6)))
    (error,) = session.lost
    assert "max_subscriptions=5" in str(error)
    assert make(b"".join(join(b"%d" % number) for number in range(5)) + join(b"0")).lost == []


def test_peers_that_are_not_asked_get_every_group_until_they_leave():
    queue = RadioSendQueue(WaitQueue(), 0)
    lines, senders = [], []
    for _ in range(3):
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        far.settimeout(10)
        lines.append(far)
        senders.append(DatagramSender(None, near.detach()))
        queue.add(senders[-1])
    assert queue.subscriptions() == 0
    for sender, line in zip(senders, lines, strict=True):
        sender.send_parts([LONGEST, b"body"])
        assert line.recv(MAX_MESSAGE_BYTES) == b"\xff" + LONGEST + b"body"
        queue.remove(sender)
        queue.leave(sender)
        sender.close()
        line.close()


def test_own_groups_are_joined_once():
    groups = OwnGroups(WaitQueue())
    groups.join(b"g")
    with pytest.raises(UsageError, match="b'g' is joined already"):
        groups.join(b"g")
    with pytest.raises(UsageError, match="b'' is not joined"):
        groups.leave(b"")
    groups.leave(b"g")
    with pytest.raises(UsageError, match="b'g' is not joined"):
        groups.leave(b"g")
    assert len(groups.matcher) == 0


def message(*parts):
    return b"".join(encode_frame(part, more=number < len(parts)) for number, part in enumerate(parts, 1))


@pytest.mark.parametrize("seed", range(4))
async def test_a_dish_keeps_the_messages_of_its_groups(seed):
    source = random.Random(seed)
    groups = OwnGroups(WaitQueue())
    names = [b"", b"a", b"aa", LONGEST, b"b", b"\0"]
    for name in names[:4]:
        groups.join(name)
    sent = []
    for number in range(500):
        size = source.choice((0, 0, 9, 300, 5000))
        sent.append((source.choice(names), b"%d:" % number + bytes(size)))
    kept = [body for group, body in sent if group in names[:4]]
    with Driven(groups=groups) as core:
        other = core.link()
        feeding = asyncio.create_task(core.feed(other, b"".join(message(*one) for one in sent)))
        assert [await core.recv(timeout=10) for _ in kept] == kept
        await feeding
        assert core.session.lost == []


async def test_a_group_that_is_left_drops_what_waits_and_what_a_call_was_shown():
    groups = OwnGroups(WaitQueue())
    groups.join(b"a")
    groups.join(b"b")
    with Driven(groups=groups) as core:
        other = core.link()
        await core.feed(other, message(b"a", b"1") + message(b"a", b"2") + message(b"b", b"3"))
        await until(lambda: core.session.peer.messages_in == 3)
        assert await core.poll(0)  # the first is looked at, and stays
        groups.leave(b"a")
        assert await core.recv(timeout=10) == b"3"


@pytest.mark.parametrize(
    "sent",
    [message(b"a"), message(b"a", b"b", b"c"), message(LONGEST + b"g", b"b"), message(*[b""] * 5)],
    ids=["no body", "three parts", "long group", "five empty parts"],
)
async def test_what_is_not_a_group_and_a_body_ends_the_peer(sent):
    groups = OwnGroups(WaitQueue())
    groups.join(b"a")
    with Driven(groups=groups) as core:
        other = core.link()
        await core.feed(other, message(b"a", b"good") + sent)
        assert await core.recv(timeout=10) == b"good"
        assert not await core.poll(0)
        await until(lambda: core.session.lost)
        (error,) = core.session.lost
        assert isinstance(error, RemoteProtocolError)
