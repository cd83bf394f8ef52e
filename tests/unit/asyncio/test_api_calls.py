"""Every message call of an asyncio socket: what it takes, what it gives, what it refuses."""

import array
import asyncio
import contextlib
import ctypes
import inspect
import mmap
import socket
import struct
from collections.abc import Coroutine

import pytest

import omq.asyncio as omq
from tests.unit.conftest import on_both_loops
from tests.unit.engine.wire import RawPeer

LARGE = bytes(range(256)) * 400  # 102,400 bytes: beyond every inline and slab limit


# What can be sent


@on_both_loops
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"x" * 255,
        b"x" * 256,
        b"x" * 4096,
        b"x" * 4097,
        LARGE,
        bytearray(b"mutable"),
        bytearray(LARGE),
        memoryview(b"view"),
        memoryview(LARGE),
        memoryview(LARGE)[1000:90000],
        memoryview(bytearray(LARGE))[7:],
        array.array("i", range(10000)),
        (ctypes.c_uint16 * 4)(1, 2, 3, 4),
    ],
    ids=lambda data: f"{type(data).__name__}-{memoryview(data).nbytes}",
)
async def test_send_takes_every_contiguous_buffer(make, endpoint, data):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    assert await push.send(data) is None
    received = await pull.recv()
    assert type(received) is bytes
    assert received == memoryview(data).tobytes()


@pytest.mark.parametrize(
    "data", ["text", 7, None, object(), ["a"], memoryview(b"abcdef")[::2]], ids=lambda data: type(data).__name__
)
async def test_what_has_no_contiguous_buffer_is_a_type_error_and_nothing_is_sent(make, endpoint, data):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    with pytest.raises(TypeError, match=type(data).__name__):
        await push.send(data)
    with pytest.raises(TypeError, match=type(data).__name__):
        await push.send_multipart([b"good", data])
    with pytest.raises(TypeError, match="str" if type(data) is list else type(data).__name__):
        await push.send_many([data])  # a list is a message of several parts
    await push.send(b"next")
    assert await pull.recv() == b"next"


@on_both_loops
async def test_send_many_takes_messages_of_several_parts(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint, recv_hwm=8, send_hwm=8)
    given = [b"one", [b"a", b""], (b"b", bytearray(b"c"), LARGE), bytearray(b"two"), [b"alone"], *[(b"x", b"y")] * 300]
    expected = [b"one", [b"a", b""], [b"b", b"c", LARGE], b"two", b"alone", *[[b"x", b"y"]] * 300]
    sending = asyncio.ensure_future(push.send_many(given))
    got: list = []
    while len(got) < len(given):
        got += await pull.recv_many()
    assert got == expected
    assert await sending == len(given)
    with pytest.raises(ValueError, match="at least one part"):
        await push.send_many([b"before", []])
    assert await pull.recv() == b"before"


async def test_send_many_has_sent_what_came_before_the_part_that_is_none(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    with pytest.raises(TypeError):
        await push.send_many([b"one", "two"])
    assert await pull.recv_many() == [b"one"]


@pytest.mark.parametrize("size", [10, 4096, 5000, 300_000])
@pytest.mark.parametrize("kind", [bytearray, lambda data: memoryview(bytearray(data))])
async def test_a_foreign_buffer_may_change_once_send_has_returned(make, endpoint, size, kind):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    for _ in range(30):
        data = kind(b"a" * size)
        await push.send(data)
        data[:] = b"z" * size
        await push.send_multipart([b"head", data])
        data[:] = b"a" * size
    for _ in range(30):
        assert await pull.recv() == b"a" * size
        assert await pull.recv_multipart() == [b"head", b"z" * size]


async def test_a_foreign_buffer_is_not_held_after_send(make, endpoint):
    _, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    data = bytearray(100_000)
    await push.send(data)
    data.extend(b"x")  # BufferError while anybody holds it
    with mmap.mmap(-1, 65536) as memory:
        await push.send(memory)
    assert memory.closed


async def test_bytes_are_released_when_they_have_left(make):
    import sys

    pull, push = await make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    data = bytes(200_000)
    before = sys.getrefcount(data)
    for _ in range(20):
        await push.send(data)
    for _ in range(20):
        await pull.recv()
    await push.send(b"end")
    assert await pull.recv() == b"end"
    assert sys.getrefcount(data) == before


# Whole messages


@on_both_loops
@pytest.mark.parametrize(
    "parts",
    [
        [b"one"],
        [b"", b""],
        [b"a", b"b" * 300, b"c" * 5000, LARGE],
        [LARGE, LARGE, b""],
        [b"p"] * 40,
        (b"tuple", b"of", b"three"),
        [bytearray(b"x" * 9000), memoryview(b"y" * 9000), b"z"],
    ],
    ids=lambda parts: f"{type(parts).__name__}-{len(parts)}",
)
async def test_a_whole_message_arrives_whole(make, endpoint, parts):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    await push.send_multipart(parts)
    assert await pull.recv_multipart() == [bytes(part) for part in parts]


async def test_send_multipart_takes_an_iterator_once(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    await push.send_multipart(str(number).encode() for number in range(20))
    assert await pull.recv_multipart() == [str(number).encode() for number in range(20)]


async def test_a_generator_of_parts_survives_a_wait_for_room(make, inproc):
    pull, push = make(omq.PULL, recv_hwm=1), make(omq.PUSH, send_hwm=1)
    pull.bind(inproc)
    push.connect(inproc)
    await push.send(b"1")
    await push.send(b"2")
    waiting = asyncio.ensure_future(push.send_multipart(part for part in (b"3", b"4")))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await pull.recv() == b"1"
    assert await pull.recv() == b"2"
    await waiting
    assert await pull.recv_multipart() == [b"3", b"4"]


@pytest.mark.parametrize("parts", [[], (), iter(())], ids=["list", "tuple", "iterator"])
async def test_a_message_without_parts_is_a_value_error(make, inproc, parts):
    push = make(omq.PUSH, bind=inproc)
    with pytest.raises(ValueError, match="at least one part"):
        await push.send_multipart(parts)


@pytest.mark.parametrize("parts", [b"bytes", bytearray(b"x"), memoryview(b"x"), "text"])
async def test_a_single_buffer_is_not_taken_for_a_sequence_of_parts(make, inproc, parts):
    push = make(omq.PUSH, bind=inproc)
    with pytest.raises(TypeError, match="sequence of parts"):
        await push.send_multipart(parts)


@on_both_loops
@pytest.mark.parametrize("count", [0, 1, 5, 300, 3000])
async def test_send_many_says_how_many_were_accepted(make, endpoint, count):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)

    async def taking():
        return [await pull.recv() for _ in range(count)]

    reader = asyncio.create_task(taking())
    messages = [str(number).encode() for number in range(count)]
    assert await push.send_many(iter(messages)) == count
    assert await reader == messages


def segments(sock):
    """How many segments with data have come in (`tcpi_data_segs_in`)."""
    (found,) = struct.unpack_from("I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 152)
    return found


#: What a raw peer is to each type that sends many messages in one call.
MANY = {
    omq.PUSH: b"PULL",
    omq.PAIR: b"PAIR",
    omq.DEALER: b"ROUTER",
    omq.ROUTER: b"DEALER",
    omq.PUB: b"SUB",
    omq.SCATTER: b"GATHER",
    omq.CLIENT: b"SERVER",
    omq.CHANNEL: b"CHANNEL",
}


@on_both_loops
@pytest.mark.parametrize("kind", MANY, ids=lambda kind: kind.__name__)
async def test_what_one_call_sends_leaves_with_it_in_one_piece(make, kind):
    server = make(kind, bind="tcp://127.0.0.1:*")
    raw = await RawPeer.dial(server.endpoints[0])
    with contextlib.closing(raw):
        await raw.handshake(MANY[kind], Identity=b"me")
        if kind is omq.PUB:
            await raw.subscribe(b"")
            await server.wait_subscribed(timeout=5)
        await server.wait_connected(timeout=5)
        given = [(b"me", b"%02d" % number) if kind is omq.ROUTER else b"%02d" % number for number in range(20)]
        before = segments(raw.sock)
        assert await server.send_many(given) == 20
        # The loop had no turn in between.
        assert raw.sock.recv(1000) == b"".join(b"\0\x02%02d" % number for number in range(20))
        assert segments(raw.sock) == before + 1


@on_both_loops
async def test_a_flood_of_small_calls_gathers_however_many_there_are_to_write_to(make):
    """To write to each of them takes longer than a pause does that shows that there is no flood."""
    pub = make(omq.PUB, bind="tcp://127.0.0.1:*")
    taken = {}
    with contextlib.ExitStack() as kept:
        for _ in range(200):
            peer = kept.enter_context(contextlib.closing(await RawPeer.dial(pub.endpoints[0])))
            await peer.handshake(b"SUB")
            await peer.subscribe(b"")
        await pub.wait_subscribed(n=200, timeout=5)
        for _ in range(5):  # where a round was held up, calls in it were not a flood
            for name, call in (("send", pub.send), ("send_many", lambda message: pub.send_many([message]))):
                before = segments(peer.sock)
                for number in range(1000):
                    await call(b"%04d" % number)
                await asyncio.sleep(0)
                assert await peer.read_exactly(6000) == b"".join(b"\0\x04%04d" % number for number in range(1000))
                taken[name] = min(taken.get(name, 1000), segments(peer.sock) - before)
    assert taken["send_many"] < 3 * taken["send"] + 40, taken


# Several parts where one is wanted


async def filled(make, receiver, endpoint):
    """A socket of each receiving type with a message of several parts first in line, then one of one part."""
    sender = {omq.PULL: omq.PUSH, omq.SUB: omq.PUB, omq.XSUB: omq.XPUB}.get(receiver, receiver)
    sender = {omq.REP: omq.DEALER, omq.REQ: omq.REP, omq.ROUTER: omq.DEALER}.get(receiver, sender)
    got, gave = await make.linked(receiver, sender, endpoint, subscribe=b"", identity=b"me")
    if receiver is omq.SUB:
        await gave.wait_subscribed(timeout=5)
    if receiver is omq.XSUB:
        got.subscribe(b"")
        await gave.wait_subscribed(timeout=5)
    message = [b"a", b"b"]
    if receiver is omq.REQ:
        await got.send(b"ask")
        await gave.recv()
    elif receiver is omq.REP:
        message = [b"", b"a", b"b"]
    await gave.send_multipart(message)
    return got, [b"me", b"a", b"b"] if receiver is omq.ROUTER else [b"a", b"b"]


@pytest.mark.parametrize("receiver", [omq.PULL, omq.SUB, omq.XSUB, omq.REP, omq.REQ, omq.DEALER, omq.ROUTER, omq.PAIR])
async def test_a_message_of_several_parts_stays_first_in_line(make, endpoint, receiver):
    socket, message = await filled(make, receiver, endpoint)
    buffer = bytearray(100)
    assert await socket.poll(5) == omq.POLL_IN
    for _ in range(2):
        with pytest.raises(omq.MultipartError):
            await socket.recv()
        with pytest.raises(omq.MultipartError):
            await socket.recv_into(buffer)
        with pytest.raises(omq.MultipartError):
            async for _ in socket:
                pass
    assert await socket.recv_multipart() == message


async def test_recv_many_gives_a_list_where_a_message_has_several_parts(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    await push.send_many([b"1", b"2"])
    await push.send_multipart([b"3", b"4"])
    await push.send(b"5")
    got = []
    while len(got) < 4:
        got += await pull.recv_many()
    assert got == [b"1", b"2", [b"3", b"4"], b"5"]


@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_recv_many_keeps_its_limit(make, inproc, limit):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    await push.send_many([b"x"] * 7)
    assert await pull.recv_many(limit) == [b"x"] * limit
    if limit < 7:
        assert len(await pull.recv_many()) == 7 - limit


@pytest.mark.parametrize("limit", [0, -1])
async def test_recv_many_wants_a_limit_above_zero(make, inproc, limit):
    pull = make(omq.PULL, bind=inproc)
    with pytest.raises(ValueError, match="at least 1"):
        await pull.recv_many(limit)


async def test_recv_many_of_types_that_take_one_at_a_time(make, endpoint):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint)
    await req.send(b"question")
    assert await rep.recv_many() == [b"question"]
    await rep.send(b"answer")
    assert await req.recv_many() == [b"answer"]


# Into the caller's memory


@pytest.mark.parametrize("size", [0, 1, 300, 5000, 102_400])
async def test_recv_into_fills_the_buffer_and_says_how_much(make, endpoint, size):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    await push.send(LARGE[:size])
    buffer = bytearray(b"-" * (size + 3))
    assert await pull.recv_into(buffer) == size
    assert buffer == LARGE[:size] + b"---"


SENT_TO = {
    omq.PULL: omq.PUSH,
    omq.ROUTER: omq.DEALER,
    omq.REP: omq.REQ,
    omq.GATHER: omq.SCATTER,
    omq.SERVER: omq.CLIENT,
    omq.CHANNEL: omq.CHANNEL,
}


@pytest.mark.parametrize("kind", SENT_TO, ids=lambda kind: kind.__name__)
async def test_a_message_too_large_for_the_buffer_stays(make, endpoint, kind):
    peer = SENT_TO[kind]
    socket, other = await make.linked(kind, peer, endpoint)
    await other.send(b"12345")
    if kind is omq.ROUTER:
        with pytest.raises(omq.MultipartError):
            await socket.recv_into(bytearray(100))
        assert (await socket.recv_multipart())[1] == b"12345"
        return
    for _ in range(2):
        with pytest.raises(omq.MessageTooLarge, match="4 bytes"):
            await socket.recv_into(bytearray(4))
    exact = bytearray(5)
    assert await socket.recv_into(memoryview(exact)) == 5
    assert exact == b"12345"


@pytest.mark.parametrize("buffer", [b"read only", "text", 5, memoryview(bytearray(9))[::2]])
async def test_recv_into_refuses_what_cannot_be_written(make, inproc, buffer):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    await push.send(b"stays")
    with pytest.raises(TypeError, match="writable"):
        await pull.recv_into(buffer)
    assert await pull.recv() == b"stays"


# With the sender


async def test_recv_message_tells_who_sent_it(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    await push.send_multipart([b"a", b"b"])
    message = await pull.recv_message()
    assert message.parts == [b"a", b"b"]
    with pytest.raises(omq.MultipartError):
        _ = message.body
    await push.send(b"one")
    message = await pull.recv_message()
    assert message.body == b"one"
    assert message.group is None
    assert message.routing_id is None
    assert message.peer.endpoint == pull.endpoints[0]
    assert message.peer.messages_in == 2


async def test_recv_message_on_router_names_the_identity(make, endpoint):
    router, dealer = await make.linked(omq.ROUTER, omq.DEALER, endpoint, identity=b"d")
    await dealer.send(b"x")
    message = await router.recv_message()
    assert message.parts == [b"d", b"x"]
    assert message.peer.identity == b"d"


async def test_recv_message_on_xpub_names_the_subscriber(make, endpoint):
    xpub, _sub = await make.linked(omq.XPUB, omq.SUB, endpoint, subscribe=b"topic")
    message = await xpub.recv_message()
    assert message.body == b"\1topic"
    assert message.peer.endpoint == xpub.endpoints[0]


# Iteration and poll


@on_both_loops
async def test_iteration_ends_when_the_socket_closes(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    seen = []
    third = asyncio.Event()

    async def reading():
        async for message in pull:
            seen.append(message)
            if len(seen) == 3:
                third.set()

    task = asyncio.create_task(reading())
    await push.send_many([b"1", b"2", b"3"])
    await third.wait()
    await pull.close()
    await task
    assert seen == [b"1", b"2", b"3"]
    assert [message async for message in pull] == []


async def test_iteration_obeys_the_receive_timeout(make, inproc):
    pull = make(omq.PULL, bind=inproc, recv_timeout=0)
    with pytest.raises(omq.ReceiveTimeout):
        async for _ in pull:
            pass


@on_both_loops
async def test_poll_tells_what_is_ready(make, endpoint):
    one, other = await make.linked(omq.PAIR, omq.PAIR, endpoint)
    both = omq.POLL_IN | omq.POLL_OUT
    assert await one.poll(0) == 0
    assert await one.poll(0, omq.POLL_OUT) == omq.POLL_OUT
    assert await one.poll(0, both) == omq.POLL_OUT
    await other.send(b"x")
    assert await one.poll(5) == omq.POLL_IN
    assert await one.poll(0, both) == both
    assert await one.poll() == omq.POLL_IN
    assert await one.recv() == b"x"
    assert await one.poll(0.01) == 0


async def test_poll_waits_for_a_message(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    polling = asyncio.ensure_future(pull.poll())
    await asyncio.sleep(0)
    assert not polling.done()
    await push.send(b"x")
    assert await polling == omq.POLL_IN
    assert await pull.recv() == b"x"


async def test_poll_out_does_not_stand_behind_a_receiver(make, inproc):
    one, other = await make.linked(omq.PAIR, omq.PAIR, inproc)
    receiving = asyncio.ensure_future(one.recv())
    await asyncio.sleep(0)
    assert await one.poll(1, omq.POLL_OUT) == omq.POLL_OUT
    assert await one.poll(0, omq.POLL_IN | omq.POLL_OUT) == omq.POLL_OUT
    await other.send(b"x")
    assert await receiving == b"x"


async def test_poll_out_waits_for_room(make, inproc):
    pull, push = make(omq.PULL, recv_hwm=1), make(omq.PUSH, send_hwm=1)
    push.connect(inproc)
    await push.send(b"1")
    assert await push.poll(0, omq.POLL_OUT) == 0
    polling = asyncio.ensure_future(push.poll(5, omq.POLL_OUT))
    await asyncio.sleep(0)
    pull.bind(inproc)
    assert await polling == omq.POLL_OUT


@pytest.mark.parametrize("events", [0, 2, 8, 5 | 2])
async def test_poll_refuses_events_that_it_does_not_know(make, inproc, events):
    pull = make(omq.PULL, bind=inproc)
    with pytest.raises(ValueError, match="POLL_IN"):
        await pull.poll(0, events)


async def test_poll_of_a_direction_that_the_type_lacks_is_never_ready(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    assert await pull.poll(0, omq.POLL_OUT) == 0
    assert await push.poll(0, omq.POLL_IN) == 0


# Types that lack a direction


@pytest.mark.parametrize("kind", [omq.PULL, omq.SUB, omq.GATHER, omq.DISH])
async def test_a_type_that_does_not_send_says_so(make, inproc, kind):
    socket = make(kind, bind=inproc)
    for call in (socket.send(b"x"), socket.send_multipart([b"x"]), socket.send_many([b"x"])):
        with pytest.raises(omq.StateError, match="does not send"):
            await call


@pytest.mark.parametrize("kind", [omq.PUSH, omq.PUB, omq.SCATTER, omq.RADIO])
async def test_a_type_that_does_not_receive_says_so(make, inproc, kind):
    socket = make(kind, bind=inproc)
    calls = (
        socket.recv(),
        socket.recv_multipart(),
        socket.recv_many(),
        socket.recv_into(bytearray(1)),
        socket.recv_message(),
        anext(socket),
    )
    for call in calls:
        with pytest.raises(omq.StateError, match="does not receive"):
            await call


async def test_calls_that_are_for_other_types_say_so(make, inproc):
    push = make(omq.PUSH, bind=inproc)
    with pytest.raises(omq.StateError, match="SUB"):
        push.subscribe(b"x")
    with pytest.raises(omq.StateError, match="SUB"):
        push.unsubscribe(b"x")
    with pytest.raises(omq.StateError, match="PUB"):
        await push.wait_subscribed()


@pytest.mark.parametrize("prefix", ["text", 5, None, bytearray(b"x")])
async def test_a_prefix_is_bytes(make, inproc, prefix):
    sub = make(omq.SUB, bind=inproc)
    with pytest.raises(TypeError, match="prefix"):
        sub.subscribe(prefix)


# Options, endpoints, peers, repr


async def test_options_are_shown_and_changed(make, inproc):
    push = make(omq.PUSH, send_hwm=5)
    assert push.options.send_hwm == 5
    assert push.options.linger is None
    push.set_options(identity=b"before use", send_hwm=6)
    push.bind(inproc)
    push.set_options(send_hwm=7, send_timeout=0)
    assert push.options.send_hwm == 7
    with pytest.raises(omq.StateError, match="backlog"):
        push.set_options(backlog=5)
    with pytest.raises(omq.OptionError):
        push.set_options(nonsense=1)
    assert push.options.send_hwm == 7
    for _ in range(7):
        await push.send(b"x")
    with pytest.raises(omq.SendTimeout):
        await push.send(b"x")


async def test_a_send_that_waits_hears_of_a_higher_mark(make, inproc):
    push = make(omq.PUSH, bind=inproc, send_hwm=1)
    await push.send(b"1")
    waiting = asyncio.ensure_future(push.send(b"2"))
    await asyncio.sleep(0)
    assert not waiting.done()
    push.set_options(send_hwm=3)
    await asyncio.wait_for(waiting, 2)


def test_an_unknown_option_spawns_nothing():
    with pytest.raises(omq.OptionError, match="send_hwm"):
        omq.PUSH(bind="tcp://127.0.0.1:*", send_hmw=1)


async def test_endpoints_are_resolved_and_several(make, tmp_path, inproc):
    push = make(omq.PUSH, bind=["tcp://127.0.0.1:*", f"ipc://{tmp_path}/a", inproc])
    tcp, ipc, name = push.endpoints
    assert tcp.startswith("tcp://127.0.0.1:")
    assert int(tcp.rpartition(":")[2]) > 0
    assert ipc == f"ipc://{tmp_path}/a"
    assert name == inproc
    pull = make(omq.PULL, connect=push.endpoints)
    await push.wait_connected(3, timeout=5)
    assert len(pull.peers) == 3


async def test_an_endpoint_that_fails_takes_the_whole_socket_back(inproc):
    with pytest.raises(omq.EndpointError):
        omq.PUSH(bind=[inproc, "tcp://127.0.0.1:*", "nonsense"])
    omq.PUSH(bind=inproc).stop()


async def test_peers_count_what_passed(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    for _ in range(10):
        await push.send(b"12345")
    for _ in range(10):
        await pull.recv()
    (there,), (here,) = push.peers, pull.peers
    assert there.messages_out == here.messages_in == 10
    assert there.messages_in == here.messages_out == 0
    assert here.bytes_in >= 50
    assert here.dropped == 0
    assert 0 < here.since < there.since + 60
    assert here.user_id is None
    assert here.mechanism in ("NULL", "")


async def test_the_repr_says_what_it_is_and_where(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    assert repr(pull) == f"<omq.asyncio.PULL {inproc} 1 peers>"
    assert repr(push) == "<omq.asyncio.PUSH 1 peers>"
    await push.close()
    assert repr(push) == "<omq.asyncio.PUSH closed>"


# What a call is


async def test_a_call_is_a_coroutine_and_does_nothing_before_the_await(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    call = push.send(b"later")
    assert isinstance(call, Coroutine)
    assert asyncio.iscoroutine(call)
    assert inspect.isawaitable(call)
    assert await pull.poll(0) == 0
    await call
    assert await pull.recv() == b"later"


async def test_a_task_of_a_call_has_a_repr(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    task = asyncio.create_task(pull.recv(), name="reader")
    await asyncio.sleep(0)
    assert "reader" in repr(task)
    assert task.get_stack() == []
    await push.send(b"x")
    assert await task == b"x"
