"""Messages of `omq.zmq`: parts, flags, frames, trackers, errors."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Any

import pytest

import omq.zmq as zmq

PairOf = Callable[[int, int], tuple[Any, Any]]


def errno_of(call: Callable[[], Any]) -> int | None:
    with pytest.raises(zmq.ZMQError) as caught:
        call()
    return caught.value.errno


def test_parts_are_received_one_by_one(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    push.send(b"a", zmq.SNDMORE)
    push.send(b"b", zmq.SNDMORE)
    push.send(b"c")
    push.send(b"d")
    assert [(pull.recv(), pull.rcvmore) for _ in range(4)] == [(b"a", 1), (b"b", 1), (b"c", 0), (b"d", 0)]


def test_the_rest_of_a_message_is_received_whole(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    push.send_multipart([b"a", bytearray(b"b"), zmq.Frame(b"c")])
    push.send(b"d")
    assert pull.recv() == b"a"
    assert pull.recv_multipart() == [b"b", b"c"]
    assert pull.recv_multipart() == [b"d"]


def test_parts_that_were_begun_leave_with_send_multipart(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    push.send(b"a", zmq.SNDMORE)
    push.send_multipart([b"b", b"c"])
    assert pull.recv_multipart() == [b"a", b"b", b"c"]


def test_a_socket_without_a_peer_has_no_room(context: zmq.Context[Any]) -> None:
    push = context.socket(zmq.PUSH)
    assert errno_of(lambda: push.send(b"x", zmq.DONTWAIT)) == zmq.EAGAIN
    assert push.events == 0
    push.bind("tcp://127.0.0.1:*")
    assert errno_of(lambda: push.send(b"x", zmq.DONTWAIT)) == zmq.EAGAIN
    push.sndtimeo = 20
    assert errno_of(lambda: push.send_multipart([b"x", b"y"])) == zmq.EAGAIN


def test_connect_makes_room(context: zmq.Context[Any], free_place: str) -> None:
    push = context.socket(zmq.PUSH)
    push.sndhwm = 3
    push.connect(free_place)
    for _ in range(3):
        push.send(b"x", zmq.DONTWAIT)
    assert errno_of(lambda: push.send(b"x", zmq.DONTWAIT)) == zmq.EAGAIN


def test_numbers_of_errors(context: zmq.Context[Any]) -> None:
    pull, push, rep, req = (context.socket(kind) for kind in (zmq.PULL, zmq.PUSH, zmq.REP, zmq.REQ))
    assert errno_of(lambda: pull.send(b"x")) == zmq.ENOTSUP
    assert errno_of(lambda: push.recv()) == zmq.ENOTSUP
    assert errno_of(lambda: rep.send(b"x")) == zmq.EFSM
    assert errno_of(lambda: req.recv()) == zmq.EFSM
    assert errno_of(lambda: pull.recv(zmq.DONTWAIT)) == zmq.EAGAIN
    assert errno_of(lambda: pull.bind("tcp://nonsense")) == zmq.EINVAL
    assert errno_of(lambda: pull.bind("pgm://x:1")) == zmq.EPROTONOSUPPORT
    assert errno_of(lambda: pull.bind("udp://127.0.0.1:5555")) == zmq.ENOCOMPATPROTO
    assert errno_of(lambda: pull.unbind("tcp://127.0.0.1:9")) == errno.ENOENT
    pull.bind("inproc://numbers")
    assert errno_of(lambda: push.bind("inproc://numbers")) == zmq.EADDRINUSE
    pull.close()
    assert errno_of(lambda: pull.recv()) == zmq.ENOTSOCK
    assert errno_of(lambda: pull.get(zmq.LINGER)) == zmq.ENOTSOCK
    assert errno_of(lambda: pull.poll(0)) == zmq.ENOTSUP


def test_a_router_reports_an_unknown_peer_only_if_asked(context: zmq.Context[Any]) -> None:
    router = context.socket(zmq.ROUTER)
    router.send(b"alone")
    router.send_multipart([b"absent", b"x"])
    router.router_mandatory = 1
    assert errno_of(lambda: router.send_multipart([b"absent", b"x"])) == zmq.EHOSTUNREACH


@pytest.mark.parametrize("data", [5, None, "text", object()])
def test_other_objects_are_not_sent(context: zmq.Context[Any], data: Any) -> None:
    push = context.socket(zmq.PUSH)
    for copy in (True, False):
        with pytest.raises(TypeError):
            push.send(data, copy=copy)
    with pytest.raises(TypeError):
        push.send_multipart([b"a", data])


#: Ways to make a part of some bytes.
PARTS: dict[str, Callable[[bytes], Any]] = {
    "bytes": lambda data: data,
    "bytearray": bytearray,
    "view": lambda data: memoryview(bytearray(data)),
    "view of numbers": lambda data: memoryview(bytearray(data)).cast("B", (2, len(data) // 2)),
    "frame": zmq.Frame,
    "lent frame": lambda data: zmq.Frame(bytearray(data), copy=False),
}
SIZES = (4, 2 * zmq.COPY_THRESHOLD)


def _send_all(sock: Any, parts: list[Any], how: str, **kwargs: Any) -> Any:
    if how != "send":
        return sock.send_multipart(parts if how == "list" else tuple(parts), **kwargs)
    for part in parts[:-1]:
        sock.send(part, zmq.SNDMORE, **kwargs)
    return sock.send(parts[-1], **kwargs)


def _send_until_full(sock: Any, data: Any, how: str) -> None:
    for _ in range(10_000):
        if how == "send":
            sock.send(data, zmq.DONTWAIT)
        else:
            sock.send_multipart([data, data], zmq.DONTWAIT)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("how", ["send", "list", "tuple"])
@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize(
    "types", [(zmq.PULL, zmq.PUSH), (zmq.ROUTER, zmq.DEALER), (zmq.REP, zmq.REQ)], ids=["push", "dealer", "req"]
)
def test_parts_of_every_kind_arrive_whole(
    pair_of: PairOf, types: tuple[int, int], kind: str, how: str, copy: bool, size: int
) -> None:
    receiver, sender = pair_of(*types)
    content = bytes(range(4)) * (size // 4)
    skipped = types[0] == zmq.ROUTER
    for _ in range(1 if types[0] == zmq.REP else 2):
        _send_all(sender, [PARTS[kind](content), b"between", PARTS[kind](content)], how, copy=copy)
        assert receiver.recv_multipart()[skipped:] == [content, b"between", content]
    if types[0] == zmq.ROUTER:
        identity = b"x" * 5
        other = sender.context.socket(zmq.DEALER)
        other.identity, other.rcvtimeo = identity, 10_000
        other.connect(receiver.last_endpoint.decode())
        other.send(b"here")
        assert receiver.recv_multipart() == [identity, b"here"]
        _send_all(receiver, [PARTS["bytes"](identity), PARTS[kind](content)], how, copy=copy)
        frames = other.recv_multipart(copy=False)
        assert [(frame.bytes, frame.more) for frame in frames] == [(content, False)]


@pytest.mark.parametrize("how", ["send", "list"])
def test_memory_that_is_copied_may_change_after_the_call(pair_of: PairOf, how: str) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    first, second = bytearray(b"first"), memoryview(bytearray(b"second"))
    for _ in range(3):
        _send_all(push, [first, second], how)
        first[:], second[:] = b"FIRST", b"SECOND"
        assert [part.lower() for part in pull.recv_multipart()] == [b"first", b"second"]


def test_memory_of_a_first_part_is_copied_before_the_last_part(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    first = bytearray(b"first")
    push.send(first, zmq.SNDMORE)
    first[:] = b"later"
    push.send(b"last")
    assert pull.recv_multipart() == [b"first", b"last"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", ["send", "list"])
def test_a_tracker_of_several_parts_is_that_of_the_last(pair_of: PairOf, how: str, size: int) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    tracker = _send_all(push, [bytearray(size), bytearray(size)], how, copy=False, track=True)
    assert isinstance(tracker, zmq.MessageTracker)
    assert [len(part) for part in pull.recv_multipart()] == [size, size]
    tracker.wait(10)
    assert tracker.done


@pytest.mark.parametrize("how", ["send", "list"])
def test_frames_without_a_tracker_are_not_tracked(pair_of: PairOf, how: str) -> None:
    _, push = pair_of(zmq.PULL, zmq.PUSH)
    with pytest.raises(ValueError, match="Not a tracked message"):
        _send_all(push, [zmq.Frame(b"x")] * 2, how, track=True)


def test_the_rest_of_a_message_arrives_as_frames(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    push.send_multipart([b"a", b"b", b"c"])
    push.send(b"next")
    assert pull.recv() == b"a"
    frames = pull.recv_multipart(copy=False)
    assert [(frame.bytes, frame.more) for frame in frames] == [(b"b", True), (b"c", False)]
    (frame,) = pull.recv_multipart(copy=False, track=True)
    assert (frame.bytes, frame.more, frame.tracker.done) == (b"next", False, True)
    assert frame.get("Socket-Type") == "PUSH"


@pytest.mark.parametrize("mandatory", [False, True])
def test_a_router_without_the_receiver_drops_or_refuses_parts(context: zmq.Context[Any], mandatory: bool) -> None:
    router = context.socket(zmq.ROUTER)
    router.bind("tcp://127.0.0.1:*")
    router.router_mandatory = mandatory
    for how in ("send", "list"):
        for kind in ("bytes", "bytearray"):
            parts = [PARTS[kind](b"absent"), PARTS[kind](b"content")]
            if mandatory:
                with pytest.raises(zmq.ZMQError) as caught:
                    _send_all(router, parts, how)
                assert caught.value.errno == zmq.EHOSTUNREACH
            else:
                _send_all(router, parts, how)


@pytest.mark.parametrize("data", [b"x", bytearray(b"x"), zmq.Frame(b"x")], ids=["bytes", "bytearray", "frame"])
@pytest.mark.parametrize("how", ["send", "list"])
def test_a_full_socket_takes_no_part(context: zmq.Context[Any], how: str, data: Any) -> None:
    push = context.socket(zmq.PUSH)
    push.sndhwm = 2
    push.connect("inproc://absent")
    with pytest.raises(zmq.Again):
        _send_until_full(push, data, how)
    with pytest.raises(zmq.Again):
        push.send(data, zmq.DONTWAIT | zmq.SNDMORE)
    push.sndtimeo = 10
    with pytest.raises(zmq.Again):
        push.send(data, zmq.SNDMORE)


def test_a_received_frame_may_be_changed(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    push.send_multipart([b"hello", b"x"])
    frame = pull.recv(copy=False)
    assert frame.more
    assert frame.get("Socket-Type") == "PUSH"
    assert frame.get("Peer-Address") == "127.0.0.1"
    with pytest.raises(zmq.ZMQError):
        frame.get("User-Id")
    frame.buffer[0] = ord("J")
    assert frame.bytes == b"Jello"


def test_one_byte_that_the_interpreter_shares_is_read_only(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    push.send(b"x")
    assert pull.recv(copy=False).buffer.readonly


def test_the_senders_constant_is_read_only_over_inproc(context: zmq.Context[Any]) -> None:
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.bind("inproc://constant")
    push.connect("inproc://constant")
    content = b"constant"
    push.send(content)
    frame = pull.recv(copy=False)
    if not frame.buffer.readonly:
        frame.buffer[0] = 0
    assert content == b"constant"


def test_recv_into_truncates(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    push.send(b"0123456789")
    buffer = bytearray(4)
    assert pull.recv_into(buffer) == 10
    assert buffer == b"0123"


def test_close_does_not_wait(context: zmq.Context[Any], free_place: str) -> None:
    push = context.socket(zmq.PUSH)
    push.linger = 3000
    push.connect(free_place)
    push.send(b"unsent")
    begun = time.monotonic()
    push.close()
    assert time.monotonic() - begun < 2
    assert push.closed


def test_messages_of_a_closed_socket_leave(context: zmq.Context[Any], free_place: str) -> None:
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    push.connect(free_place)
    push.send(b"late")
    push.close()
    pull.rcvtimeo = 10_000
    pull.bind(free_place)
    assert pull.recv() == b"late"


def test_a_derived_class_has_attributes_and_overrides_calls(context: zmq.Context[Any]) -> None:
    class Counting(zmq.Socket[bytes]):
        sent = 0

        def send(self, data: Any, flags: int = 0, **rest: Any) -> Any:
            self.sent += 1
            return super().send(data, flags, **rest)

    push = context.socket(zmq.PUSH, socket_class=Counting)
    pull = context.socket(zmq.PULL)
    pull.bind("inproc://derived")
    push.connect("inproc://derived")
    push.send_string("text")
    push.send_json({"a": 1})
    assert push.sent == 2
    assert pull.recv_string() == "text"
    assert pull.recv_json() == {"a": 1}
    with pytest.raises(AttributeError):
        push.apple = 1


def test_a_shadow_shares_the_message_that_is_being_received(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    push.send_multipart([b"a", b"b"])
    assert pull.recv() == b"a"
    shadow = zmq.Socket.shadow(pull.underlying)
    assert shadow.rcvmore
    assert shadow.recv() == b"b"
    pull.close()
    assert shadow.closed


def test_peers_by_number_and_by_group(context: zmq.Context[Any]) -> None:
    server, client = context.socket(zmq.SERVER), context.socket(zmq.CLIENT)
    server.bind("inproc://server")
    client.connect("inproc://server")
    client.send(b"request")
    request = server.recv(copy=False)
    server.send(b"reply", routing_id=request.routing_id)
    assert client.recv() == b"reply"
    dish, radio = context.socket(zmq.DISH), context.socket(zmq.RADIO)
    dish.rcvtimeo = 10_000
    dish.join("news")
    dish.bind("inproc://dish")
    radio.connect("inproc://dish")
    radio._handle.omq.wait_subscribed(timeout=10)
    radio.send(b"x", group="news")
    assert dish.recv(copy=False).group == "news"


@pytest.mark.parametrize("count", [1, 20_000])
def test_arrays_of_times_have_no_format_and_are_sent(pair_of: PairOf, count: int) -> None:
    times = pytest.importorskip("numpy").zeros(count, "M8[s]")
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    push.send(times)
    push.send(times, zmq.SNDMORE)
    push.send(zmq.Frame(times, copy=False))
    assert pull.recv() == bytes(8 * count)
    assert pull.recv_multipart() == [bytes(8 * count)] * 2


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("receiver", [{"routing_id": 1}, {"group": "news"}])
def test_memory_for_a_peer_or_group_may_change_after_send(
    context: zmq.Context[Any], free_place: str, receiver: dict[str, Any], size: int
) -> None:
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    pull.rcvtimeo = 10_000
    push.connect(free_place)  # nothing listens yet: the messages wait
    memory = bytearray(size)
    assert push.send(memory, **receiver) is None
    assert push.send(memory, track=True, **receiver).done
    assert push.send(memory, copy=False, track=True, **receiver).done is (size < zmq.COPY_THRESHOLD)
    memory[:] = b"x" * size
    pull.bind(free_place)
    assert [pull.recv() for _ in range(2)] == [bytes(size)] * 2


def test_multicast_options_reach_the_endpoint(context: zmq.Context[Any]) -> None:
    radio = context.socket(zmq.RADIO)
    radio.multicast_hops = 1000
    radio.multicast_loop = 0
    given = radio._handle.state.for_endpoint("connect", "udp://239.0.0.1:5555")
    assert (given["multicast_hops"], given["multicast_loop"]) == (255, False)
    assert "multicast_hops" not in radio._handle.state.for_endpoint("connect", "tcp://127.0.0.1:5555")
