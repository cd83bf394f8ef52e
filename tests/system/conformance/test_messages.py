"""Every message call of a socket: what it takes, what it gives, what it refuses; in both twins."""

from __future__ import annotations

import array
import ctypes
import mmap
from functools import partial

import pytest

import omq
from tests.support.waits import BOUND, until
from tests.system.conformance.conftest import Waiting, on_every_loop

LARGE = bytes(range(256)) * 400  # 102,400 bytes: beyond every inline and slab limit


# What can be sent


@on_every_loop
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
        memoryview(LARGE)[1000:90000],
        memoryview(bytearray(LARGE))[7:],
        array.array("i", range(10000)),
        (ctypes.c_uint16 * 4)(1, 2, 3, 4),
    ],
    ids=lambda data: f"{type(data).__name__}-{memoryview(data).nbytes}",
)
def test_every_contiguous_buffer_in_every_way(twin, endpoint, data):
    pull, push = twin.linked("PULL", "PUSH", endpoint)
    body = memoryview(data).tobytes()
    assert push.send(data) is None
    received = pull.recv(timeout=BOUND)
    assert type(received) is bytes
    assert received == body
    push.send_multipart([data])
    assert pull.recv_multipart(timeout=BOUND) == [body]
    assert push.send_many([data, data]) == 2
    assert pull.recv(timeout=BOUND) == body
    buffer = bytearray(b"-" * (len(body) + 3))
    assert pull.recv_into(buffer, timeout=BOUND) == len(body)
    assert buffer == body + b"---"
    push.send_multipart([b"", data, b"end"])
    message = pull.recv_message(timeout=BOUND)
    assert message.parts == [b"", body, b"end"]
    assert message.peer.endpoint


@pytest.mark.parametrize(
    "data", ["text", 7, None, object(), ["a"], memoryview(b"abcdef")[::2]], ids=lambda data: type(data).__name__
)
def test_what_has_no_contiguous_buffer_is_a_type_error_and_nothing_is_sent(twin, endpoint, data):
    pull, push = twin.linked("PULL", "PUSH", endpoint)
    with pytest.raises(TypeError, match=type(data).__name__):
        push.send(data)
    with pytest.raises(TypeError, match=type(data).__name__):
        push.send_multipart([b"good", data])
    with pytest.raises(TypeError, match="str" if type(data) is list else type(data).__name__):
        push.send_many([data])  # a list is a message of several parts
    push.send(b"next")
    assert pull.recv() == b"next"


@pytest.mark.parametrize("size", [10, 4096, 5000, 300_000])
@pytest.mark.parametrize("kind", [bytearray, lambda data: memoryview(bytearray(data))])
def test_a_foreign_buffer_may_change_once_send_has_returned(twin, endpoint, size, kind):
    pull, push = twin.linked("PULL", "PUSH", endpoint)
    for _ in range(30):
        data = kind(b"a" * size)
        push.send(data)
        data[:] = b"z" * size
        push.send_multipart([b"head", data])
        data[:] = b"a" * size
    for _ in range(30):
        assert pull.recv() == b"a" * size
        assert pull.recv_multipart() == [b"head", b"z" * size]


@on_every_loop
def test_many_messages_of_one_part_or_of_several(twin, endpoint):
    pull, push = twin.linked("PULL", "PUSH", endpoint, recv_hwm=8, send_hwm=8)
    given = [b"one", [b"a", b""], (b"b", bytearray(b"c"), LARGE), bytearray(b"two"), [b"alone"], *[(b"x", b"y")] * 300]
    expected = [b"one", [b"a", b""], [b"b", b"c", LARGE], b"two", b"alone", *[[b"x", b"y"]] * 300]
    for messages in (given, expected):  # what was received is sent as it is
        sending = twin.spawn(push, "send_many", messages)
        got: list = []
        while len(got) < len(expected):
            got += pull.recv_many(timeout=BOUND)
        assert got == expected
        assert sending.result() == len(expected)
    for wrong, kind in ((["str"], TypeError), ([[]], ValueError), ([["str"]], TypeError), ([{b"a": 1}], TypeError)):
        with pytest.raises(kind):
            push.send_many([b"before", *wrong])
        assert pull.recv(timeout=BOUND) == b"before"


@on_every_loop
@pytest.mark.parametrize("count", [0, 1, 5, 300, 3000])
def test_many_at_a_time(twin, endpoint, count):
    pull, push = twin.linked("PULL", "PUSH", endpoint)
    messages = [b"%d" % number for number in range(count)]
    sending = twin.spawn(push, "send_many", iter(messages))
    got: list = []
    while len(got) < count:
        some = pull.recv_many(10, timeout=BOUND)
        assert 0 < len(some) <= 10
        got += some
    assert got == messages
    assert sending.result() == count
    for limit in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            pull.recv_many(limit)


def test_a_foreign_buffer_is_not_held_after_send(twin, endpoint):
    _, push = twin.linked("PULL", "PUSH", endpoint)
    data = bytearray(100_000)
    push.send(data)
    data.extend(b"x")  # BufferError while anybody holds it
    with mmap.mmap(-1, 65536) as memory:
        push.send(memory)
    assert memory.closed


# Whole messages


@on_every_loop
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
def test_a_whole_message_arrives_whole(twin, endpoint, parts):
    pull, push = twin.linked("PULL", "PUSH", endpoint)
    push.send_multipart(parts)
    assert pull.recv_multipart() == [bytes(part) for part in parts]


def test_send_multipart_takes_an_iterator_once(twin, endpoint):
    pull, push = twin.linked("PULL", "PUSH", endpoint)
    push.send_multipart(str(number).encode() for number in range(20))
    assert pull.recv_multipart() == [str(number).encode() for number in range(20)]


def test_a_generator_of_parts_survives_a_wait_for_room(twin, inproc):
    pull, push = twin("PULL", recv_hwm=1), twin("PUSH", send_hwm=1)
    pull.bind(inproc)
    push.connect(inproc)
    push.send(b"1")
    push.send(b"2")
    waiting = twin.spawn(push, "send_multipart", (part for part in (b"3", b"4")))
    assert not waiting.done(0.02)
    assert pull.recv() == b"1"
    assert pull.recv() == b"2"
    waiting.result()
    assert pull.recv_multipart() == [b"3", b"4"]


@pytest.mark.parametrize("parts", [[], (), iter(())], ids=["list", "tuple", "iterator"])
def test_a_message_without_parts_is_a_value_error(twin, inproc, parts):
    push = twin("PUSH", bind=inproc)
    with pytest.raises(ValueError, match="at least one part"):
        push.send_multipart(parts)


@pytest.mark.parametrize("parts", [b"bytes", bytearray(b"x"), memoryview(b"x"), "text"])
def test_a_single_buffer_is_not_taken_for_a_sequence_of_parts(twin, inproc, parts):
    push = twin("PUSH", bind=inproc)
    with pytest.raises(TypeError, match="sequence of parts"):
        push.send_multipart(parts)


# Several parts where one is wanted


def filled(twin, receiver, endpoint):
    """A socket of each receiving type with a message of several parts first in line, then one of one part."""
    sender = {"PULL": "PUSH", "SUB": "PUB", "XSUB": "XPUB"}.get(receiver, receiver)
    sender = {"REP": "DEALER", "REQ": "REP", "ROUTER": "DEALER"}.get(receiver, sender)
    got, gave = twin.linked(receiver, sender, endpoint, subscribe=b"", identity=b"me")
    if receiver == "SUB":
        gave.wait_subscribed(timeout=BOUND)
    if receiver == "XSUB":
        got.subscribe(b"")
        gave.wait_subscribed(timeout=BOUND)
    message = [b"a", b"b"]
    if receiver == "REQ":
        got.send(b"ask")
        gave.recv()
    elif receiver == "REP":
        message = [b"", b"a", b"b"]
    gave.send_multipart(message)
    return got, [b"me", b"a", b"b"] if receiver == "ROUTER" else [b"a", b"b"]


@pytest.mark.parametrize("receiver", ["PULL", "SUB", "XSUB", "REP", "REQ", "DEALER", "ROUTER", "PAIR"])
def test_a_message_of_several_parts_stays_first_in_line(twin, endpoint, receiver):
    socket, message = filled(twin, receiver, endpoint)
    buffer = bytearray(100)
    assert socket.poll(5) == omq.POLL_IN
    for _ in range(2):
        with pytest.raises(omq.MultipartError):
            socket.recv()
        with pytest.raises(omq.MultipartError):
            socket.recv_into(buffer)
        with pytest.raises(omq.MultipartError):
            next(socket)
    assert socket.recv_multipart() == message


# Into the caller's memory


SENT_TO = {
    "PULL": "PUSH",
    "ROUTER": "DEALER",
    "REP": "REQ",
    "GATHER": "SCATTER",
    "SERVER": "CLIENT",
    "CHANNEL": "CHANNEL",
}


@pytest.mark.parametrize("kind", SENT_TO)
def test_a_message_too_large_for_the_buffer_stays(twin, endpoint, kind):
    peer = SENT_TO[kind]
    socket, other = twin.linked(kind, peer, endpoint)
    other.send(b"12345")
    if kind == "ROUTER":
        with pytest.raises(omq.MultipartError):
            socket.recv_into(bytearray(100))
        assert (socket.recv_multipart())[1] == b"12345"
        return
    for _ in range(2):
        with pytest.raises(omq.MessageTooLarge, match="4 bytes"):
            socket.recv_into(bytearray(4))
    exact = bytearray(5)
    assert socket.recv_into(memoryview(exact)) == 5
    assert exact == b"12345"


@pytest.mark.parametrize("buffer", [b"read only", "text", 5, memoryview(bytearray(9))[::2]])
def test_recv_into_refuses_what_cannot_be_written(twin, inproc, buffer):
    pull, push = twin.linked("PULL", "PUSH", inproc)
    push.send(b"stays")
    with pytest.raises(TypeError, match="writable"):
        pull.recv_into(buffer)
    assert pull.recv() == b"stays"


def test_one_at_a_time_where_the_type_demands_it(twin, endpoint):
    rep = twin("REP", bind=endpoint)
    clients = [twin("REQ", connect=rep.endpoints[0]) for _ in range(2)]
    for client in clients:
        client.send(b"question")
        client.wait_connected(timeout=BOUND)
    until(lambda: sum(peer.messages_in for peer in rep.peers) == 2, "both requests")
    for _ in clients:
        assert rep.recv_many(timeout=BOUND) == [b"question"]
        assert rep.send_many([b"answer"]) == 1
    for client in clients:
        assert client.recv_many(timeout=BOUND) == [b"answer"]


# With the sender


def test_recv_message_has_its_sender(twin, endpoint):
    pull, push = twin.linked("PULL", "PUSH", endpoint)
    push.send_multipart([b"a", b"b"])
    message = pull.recv_message()
    assert message.parts == [b"a", b"b"]
    with pytest.raises(omq.MultipartError):
        _ = message.body
    push.send(b"one")
    message = pull.recv_message()
    assert message.body == b"one"
    assert message.group is None
    assert message.routing_id is None
    assert message.peer.endpoint == pull.endpoints[0]
    assert message.peer.messages_in == 2


def test_recv_message_on_router_names_the_identity(twin, endpoint):
    router, dealer = twin.linked("ROUTER", "DEALER", endpoint, identity=b"d")
    dealer.send(b"x")
    message = router.recv_message()
    assert message.parts == [b"d", b"x"]
    assert message.peer.identity == b"d"


def test_recv_message_on_xpub_names_the_subscriber(twin, endpoint):
    xpub, _sub = twin.linked("XPUB", "SUB", endpoint, subscribe=b"topic")
    message = xpub.recv_message()
    assert message.body == b"\1topic"
    assert message.peer.endpoint == xpub.endpoints[0]


# Iteration and poll


@on_every_loop
def test_iteration_ends_when_the_socket_closes(twin, endpoint):
    pull, push = twin.linked("PULL", "PUSH", endpoint)
    reading = Waiting(partial(list, pull))
    push.send_many([b"1", b"2", b"3"])
    until(lambda: pull.peers[0].messages_in == 3 and not pull.poll(0))
    pull.close()
    assert reading.result() == [b"1", b"2", b"3"]
    assert list(pull) == []


def test_iteration_obeys_the_receive_timeout(twin, inproc):
    pull = twin("PULL", bind=inproc, recv_timeout=0)
    with pytest.raises(omq.ReceiveTimeout):
        next(pull)


@on_every_loop
def test_poll_returns_what_is_ready(twin, endpoint):
    one, other = twin.linked("PAIR", "PAIR", endpoint)
    both = omq.POLL_IN | omq.POLL_OUT
    assert one.poll(0) == 0
    assert one.poll(0, omq.POLL_OUT) == omq.POLL_OUT
    assert one.poll(0, both) == omq.POLL_OUT
    other.send(b"x")
    assert one.poll(5) == omq.POLL_IN
    assert one.poll(0, both) == both
    assert one.poll() == omq.POLL_IN
    assert one.recv() == b"x"
    assert one.poll(0.01) == 0


def test_poll_out_does_not_stand_behind_a_receiver(twin, inproc):
    one, other = twin.linked("PAIR", "PAIR", inproc)
    receiving = twin.spawn(one, "recv")
    assert not receiving.done(0.02)
    assert one.poll(1, omq.POLL_OUT) == omq.POLL_OUT
    assert one.poll(0, omq.POLL_IN | omq.POLL_OUT) == omq.POLL_OUT
    other.send(b"x")
    assert receiving.result() == b"x"


def test_poll_out_waits_for_room(twin, inproc):
    pull, push = twin("PULL", recv_hwm=1), twin("PUSH", send_hwm=1)
    push.connect(inproc)
    push.send(b"1")
    assert push.poll(0, omq.POLL_OUT) == 0
    polling = twin.spawn(push, "poll", 5, omq.POLL_OUT)
    assert not polling.done(0.02)
    pull.bind(inproc)
    assert polling.result() == omq.POLL_OUT


@pytest.mark.parametrize("events", [0, 2, 8, 5 | 2])
def test_poll_refuses_events_that_it_does_not_know(twin, inproc, events):
    pull = twin("PULL", bind=inproc)
    with pytest.raises(ValueError, match="POLL_IN"):
        pull.poll(0, events)


def test_poll_of_a_direction_that_the_type_lacks_is_never_ready(twin, inproc):
    pull, push = twin.linked("PULL", "PUSH", inproc)
    assert pull.poll(0, omq.POLL_OUT) == 0
    assert push.poll(0, omq.POLL_IN) == 0


# Types that lack a direction


@pytest.mark.parametrize("kind", ["PULL", "SUB", "GATHER", "DISH"])
def test_a_type_that_does_not_send_refuses_to(twin, inproc, kind):
    socket = twin(kind, bind=inproc)
    for call, argument in ((socket.send, b"x"), (socket.send_multipart, [b"x"]), (socket.send_many, [b"x"])):
        with pytest.raises(omq.StateError, match="does not send"):
            call(argument)


@pytest.mark.parametrize("kind", ["PUSH", "PUB", "SCATTER", "RADIO"])
def test_a_type_that_does_not_receive_refuses_to(twin, inproc, kind):
    socket = twin(kind, bind=inproc)
    calls = (socket.recv, socket.recv_multipart, socket.recv_many, socket.recv_message)
    for call in (*calls, partial(socket.recv_into, bytearray(1)), partial(next, socket)):
        with pytest.raises(omq.StateError, match="does not receive"):
            call()


def test_calls_that_are_for_other_types_are_refused(twin, inproc):
    push = twin("PUSH", bind=inproc)
    with pytest.raises(omq.StateError, match="SUB"):
        push.subscribe(b"x")
    with pytest.raises(omq.StateError, match="SUB"):
        push.unsubscribe(b"x")
    with pytest.raises(omq.StateError, match="PUB"):
        push.wait_subscribed()


@pytest.mark.parametrize("prefix", ["text", 5, None, bytearray(b"x")])
def test_a_prefix_is_bytes(twin, inproc, prefix):
    sub = twin("SUB", bind=inproc)
    with pytest.raises(TypeError, match="prefix"):
        sub.subscribe(prefix)


# Options, endpoints, peers, repr


def test_options_are_shown_and_changed(twin, inproc):
    push = twin("PUSH", send_hwm=5)
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
        push.send(b"x")
    with pytest.raises(omq.SendTimeout):
        push.send(b"x")


def test_endpoints_are_resolved_and_several(twin, tmp_path, inproc):
    push = twin("PUSH", bind=["tcp://127.0.0.1:*", f"ipc://{tmp_path}/a", inproc])
    tcp, ipc, name = push.endpoints
    assert tcp.startswith("tcp://127.0.0.1:")
    assert int(tcp.rpartition(":")[2]) > 0
    assert ipc == f"ipc://{tmp_path}/a"
    assert name == inproc
    pull = twin("PULL", connect=push.endpoints)
    push.wait_connected(3, timeout=BOUND)
    assert len(pull.peers) == 3


def test_an_endpoint_that_fails_takes_the_whole_socket_back(twin, inproc):
    with pytest.raises(omq.EndpointError):
        twin("PUSH", bind=[inproc, "tcp://127.0.0.1:*", "nonsense"])
    twin("PUSH", bind=inproc)


def test_peers_count_what_passed(twin, endpoint):
    pull, push = twin.linked("PULL", "PUSH", endpoint)
    for _ in range(10):
        push.send(b"12345")
    for _ in range(10):
        pull.recv()
    (there,), (here,) = push.peers, pull.peers
    assert there.messages_out == here.messages_in == 10
    assert there.messages_in == here.messages_out == 0
    assert here.bytes_in >= 50
    assert here.dropped == 0
    assert 0 < here.since < there.since + 60
    assert here.user_id is None
    assert here.mechanism in ("NULL", "")


def test_the_repr_has_type_and_endpoints(twin, inproc):
    pull, push = twin.linked("PULL", "PUSH", inproc)
    module = "omq" if twin.name == "blocking" else "omq.asyncio"
    assert repr(pull) == f"<{module}.PULL {inproc} 1 peers>"
    assert repr(push) == f"<{module}.PUSH 1 peers>"
    push.close()
    assert repr(push) == f"<{module}.PUSH closed>"
