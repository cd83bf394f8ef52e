"""Devices of `omq.zmq`."""

from __future__ import annotations

from typing import Any

import pytest

import omq.zmq as zmq
from omq.zmq import devices

ADDRESS = "tcp://127.0.0.1"
TIMEOUT_MS = 10_000


class Ends:
    """Sockets at the ends of a device."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._context = context

    def connect(self, kind: int, port: int) -> Any:
        socket = self._context.socket(kind)
        socket.rcvtimeo = socket.sndtimeo = TIMEOUT_MS
        if kind == zmq.SUB:
            socket.subscribe("")
        socket.connect(f"{ADDRESS}:{port}")
        return socket


@pytest.fixture
def ends(context: zmq.Context[Any]) -> Ends:
    return Ends(context)


def own_context(device: Any) -> zmq.Context[Any]:
    """Gives a device a context of its own, so that it can be ended."""
    made = zmq.Context[Any]()
    device.context_factory = lambda: made
    return made


def test_a_device_in_a_thread_ends_with_its_context(ends: Ends) -> None:
    device = devices.ThreadDevice(zmq.QUEUE, zmq.ROUTER, zmq.DEALER)
    context = own_context(device)
    near, far = device.bind_in_to_random_port(ADDRESS), device.bind_out_to_random_port(ADDRESS)
    device.setsockopt_in(zmq.ROUTING_ID, b"front")
    device.start()
    request, reply = ends.connect(zmq.REQ, near), ends.connect(zmq.REP, far)
    request.send(b"question")
    assert reply.recv() == b"question"
    reply.send(b"answer")
    assert request.recv() == b"answer"
    context.destroy()
    device.join(10)
    assert device.done


def test_a_device_in_a_process(ends: Ends) -> None:
    device = devices.ProcessDevice(zmq.QUEUE, zmq.PULL, zmq.PUSH)
    near, far = device.bind_in_to_random_port(ADDRESS), device.bind_out_to_random_port(ADDRESS)
    device.start()
    try:
        push, pull = ends.connect(zmq.PUSH, near), ends.connect(zmq.PULL, far)
        push.send_multipart([b"a", b"b"])
        assert pull.recv_multipart() == [b"a", b"b"]
    finally:
        device.launcher.kill()  # it may have inherited a handler of SIGTERM from the tests
        device.launcher.join(10)
    assert not device.launcher.is_alive()


def test_one_socket_that_answers_itself(ends: Ends) -> None:
    device = devices.ThreadDevice(zmq.QUEUE, zmq.REP, -1)
    context = own_context(device)
    request = ends.connect(zmq.REQ, device.bind_in_to_random_port(ADDRESS))
    device.start()
    request.send(b"echo")
    assert request.recv() == b"echo"
    context.destroy()
    device.join(10)


def test_the_copies_of_a_proxy(ends: Ends) -> None:
    device = devices.ThreadProxy(zmq.PULL, zmq.PUSH, zmq.PUSH)
    context = own_context(device)
    ports = (
        device.bind_in_to_random_port(ADDRESS),
        device.bind_out_to_random_port(ADDRESS),
        device.bind_mon_to_random_port(ADDRESS),
    )
    assert len(set(ports)) == 3
    device.start()
    push, pull, monitor = map(ends.connect, (zmq.PUSH, zmq.PULL, zmq.PULL), ports)
    push.send(b"message")
    assert (pull.recv(), monitor.recv()) == (b"message", b"message")
    context.destroy()
    device.join(10)


def test_commands_of_a_steerable_proxy(ends: Ends) -> None:
    device = devices.ThreadProxySteerable(zmq.PULL, zmq.PUSH, zmq.PUB, zmq.PAIR)
    context = own_context(device)
    near, far = device.bind_in_to_random_port(ADDRESS), device.bind_out_to_random_port(ADDRESS)
    control = ends.connect(zmq.PAIR, device.bind_ctrl_to_random_port(ADDRESS))
    device.start()
    push, pull = ends.connect(zmq.PUSH, near), ends.connect(zmq.PULL, far)
    push.send(b"before")
    assert pull.recv() == b"before"
    control.send(b"TERMINATE")
    device.join(10)
    assert device.done
    context.destroy()


def test_the_marks_of_a_monitored_queue(ends: Ends) -> None:
    device = devices.ThreadMonitoredQueue(zmq.ROUTER, zmq.DEALER, zmq.PUSH, b"request", b"reply")
    context = own_context(device)
    near, far = device.bind_in_to_random_port(ADDRESS), device.bind_out_to_random_port(ADDRESS)
    monitor = ends.connect(zmq.PULL, device.bind_mon_to_random_port(ADDRESS))
    device.start()
    request, reply = ends.connect(zmq.REQ, near), ends.connect(zmq.REP, far)
    request.send(b"question")
    assert reply.recv() == b"question"
    reply.send(b"answer")
    assert request.recv() == b"answer"
    first, second = monitor.recv_multipart(), monitor.recv_multipart()
    assert (first[0], *first[-2:]) == (b"request", b"", b"question")
    assert (second[0], *second[-2:]) == (b"reply", b"", b"answer")
    context.destroy()
    device.join(10)
    assert device.done


def test_a_queue_between_two_routers(context: zmq.Context[Any], ends: Ends) -> None:
    device = devices.ThreadMonitoredQueue(zmq.ROUTER, zmq.ROUTER, zmq.PUSH)
    own = own_context(device)
    near, far = device.bind_in_to_random_port(ADDRESS), device.bind_out_to_random_port(ADDRESS)
    monitor = ends.connect(zmq.PULL, device.bind_mon_to_random_port(ADDRESS))
    left, right = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    for socket, name, port in ((left, b"left", near), (right, b"right", far)):
        socket.rcvtimeo = TIMEOUT_MS
        socket.routing_id = name
        socket.connect(f"{ADDRESS}:{port}")
    device.start()
    # The ROUTER drops what it has no route for yet: the sender repeats.
    right.rcvtimeo = 100
    for _ in range(100):
        left.send_multipart([b"right", b"", b"hello"])
        try:
            received = right.recv_multipart()
            break
        except zmq.Again:
            pass
    assert received == [b"left", b"", b"hello"]
    assert monitor.recv_multipart() == [b"in", b"right", b"left", b"", b"hello"]
    own.destroy()
    device.join(10)


def test_types_are_required() -> None:
    with pytest.raises(TypeError):
        devices.Device(zmq.QUEUE, zmq.PULL)
    with pytest.raises(TypeError):
        devices.Device(zmq.QUEUE, out_type=zmq.PUSH)


def test_no_free_port() -> None:
    device = devices.Device(zmq.QUEUE, zmq.PULL, zmq.PUSH)
    first = device.bind_in_to_random_port(ADDRESS)
    with pytest.raises(zmq.ZMQBindError):
        device.bind_out_to_random_port(ADDRESS, min_port=first, max_port=first + 1)
