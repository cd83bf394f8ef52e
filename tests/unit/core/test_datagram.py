"""Datagrams without an engine: the parser, what the kernel refuses, and memory."""

import fcntl
import os
import random
import socket

import pytest

from omq._core.link.datagram import MAX_DATAGRAM_BYTES, DatagramReceiver, DatagramSender, parse_datagram
from omq._core.link.poller import Poller
from omq._core.queues.groups import GroupRecvQueue, OwnGroups
from omq._core.queues.wait_queue import WaitQueue


@pytest.fixture
def pair():
    receiving, sending = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    with receiving, sending:
        receiving.bind(("127.0.0.1", 0))
        receiving.setblocking(False)
        sending.connect(receiving.getsockname())
        yield receiving, sending


@pytest.fixture
def receive(pair):
    """Makes a receiver of the group `g`; gives it, and what makes it read."""
    receiving, _ = pair
    poller = Poller()

    def make(hwm=0, max_size=None):
        wait_queue = WaitQueue()
        groups = OwnGroups(wait_queue)
        groups.join(b"g")
        queue = GroupRecvQueue(wait_queue, groups.matcher)
        receiver = DatagramReceiver(None, receiving.detach(), poller, queue, hwm, max_size)
        receiver.start()
        return receiver

    yield make, poller.dispatch
    poller.close()


@pytest.mark.parametrize(
    ("data", "parsed"),
    [
        (b"", None),
        (b"\0", (b"", b"")),
        (b"\0body", (b"", b"body")),
        (b"\1", None),
        (b"\1g", (b"g", b"")),
        (b"\2g", None),
        (b"\5groupbody", (b"group", b"body")),
        (b"\xff" + b"g" * 254, None),
        (b"\xff" + b"g" * 255, (b"g" * 255, b"")),
        (b"\x80" + b"g" * 128 + b"x", (b"g" * 128, b"x")),
    ],
    ids=["empty", "bare", "no group", "truncated", "no body", "short", "both", "one less", "longest", "above 127"],
)
def test_the_layout(data, parsed):
    assert parse_datagram(data) == parsed


@pytest.mark.parametrize("size", [8, 4096, MAX_DATAGRAM_BYTES])
def test_a_sender_writes_that_layout(pair, size):
    receiving, sending = pair
    sender = DatagramSender(None, sending.detach())
    body = random.Random(size).randbytes(size - 2)
    sender.send_parts([b"g", body])
    assert receiving.recv(1 << 16) == b"\1g" + body
    assert (sender.messages_out, sender.bytes_out, sender.dropped, sender.unsent) == (1, size, 0, 0)
    sender.close()
    sender.close()
    sender.send_parts([b"g", b"late"])
    assert sender.messages_out == 1


def test_what_the_kernel_does_not_take_is_counted(pair):
    _, sending = pair
    sender = DatagramSender(None, os.dup(sending.fileno()))
    sender.send_parts([b"g", b"x"])
    sending.shutdown(socket.SHUT_WR)  # from here on every datagram is refused
    sender.send_parts([b"g", bytes(60_000)])
    sender.send_parts([b"g", b"x"])
    assert (sender.messages_out, sender.dropped, sender.bytes_out, sender.unsent) == (3, 2, 3, 0)
    sender.close()


def test_a_closed_port_costs_no_later_datagram(pair):
    receiving, sending = pair
    place = receiving.getsockname()
    receiving.close()
    sender = DatagramSender(None, sending.detach())
    for _ in range(10):
        sender.send_parts([b"g", b"lost"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as late:
        late.bind(place)
        late.settimeout(10)
        sender.send_parts([b"g", b"x"])
        assert late.recv(10) == b"\1gx"
    assert sender.dropped == 0
    sender.close()


def test_only_joined_groups_are_kept(pair, receive):
    _, sending = pair
    make, read = receive
    receiver = make()
    for datagram in (b"\1gyes", b"\1hno", b"\0no", b"\2ggno", b"\2g", b""):
        sending.send(datagram)
    read()
    assert (receiver.messages_in, receiver.dropped, receiver.bytes_in) == (1, 2, 19)
    receiver.close()
    receiver.close()


@pytest.mark.parametrize("max_size", [None, 10, MAX_DATAGRAM_BYTES, 1 << 40])
def test_the_largest_message(pair, receive, max_size):
    _, sending = pair
    make, read = receive
    receiver = make(max_size=max_size)
    bound = MAX_DATAGRAM_BYTES - 1 if max_size is None else min(max_size, MAX_DATAGRAM_BYTES - 1)
    sending.send(b"\1g" + bytes(bound - 1))
    read()
    assert (receiver.messages_in, receiver.dropped) == (1, 0)
    if max_size == 10:
        for more in (1, 2, 3, 1000, 60_000):
            sending.send(b"\1g" + bytes(bound - 1 + more))
        read()
        assert (receiver.messages_in, receiver.dropped) == (1, 5)
    receiver.close()


def test_reading_stops_at_the_mark_and_goes_on(pair, receive):
    _, sending = pair
    make, read = receive
    receiver = make(hwm=3)
    for _ in range(10):
        sending.send(b"\1gx")
    read()
    read()
    assert receiver.messages_in == 3
    receiver.set_recv_hwm(7)
    assert receiver.messages_in == 7
    receiver.set_recv_hwm(0)
    read()
    assert receiver.messages_in == 10
    receiver.close()


def test_whatever_comes_is_parsed_or_counted(pair, receive):
    _, sending = pair
    make, read = receive
    receiver = make(max_size=300)
    source, good = random.Random(48), 0
    for _ in range(2000):
        data = source.randbytes(source.choice((0, 1, 2, 3, 50, 300, 301, 302, 400)))
        if source.random() < 0.5:
            data = b"\1g" + data
        sending.send(data)
        good += parse_datagram(data) is not None and len(data) <= 301
        read()
    assert receiver.dropped == 2000 - good
    assert 500 < receiver.messages_in <= good
    receiver.close()


def test_a_closed_receiver_reads_nothing_more(pair, receive):
    _, sending = pair
    make, read = receive
    receiver = make(hwm=1)
    sending.send(b"\1gx")
    sending.send(b"\1gx")
    read()
    assert receiver.messages_in == 1
    receiver.close()
    receiver.set_recv_hwm(0)  # that it has been read up to its mark is not to wake it
    read()
    assert (receiver.messages_in, receiver.fd) == (1, -1)


@pytest.mark.parametrize("hwm", [0, 1, 63, 64, 65, 200])
def test_more_than_one_system_call_brings_comes_up_to_the_mark(pair, receive, hwm):
    _, sending = pair
    make, read = receive
    receiver = make(hwm=hwm)
    for _ in range(100):
        sending.send(b"\1gx")
        sending.send(b"\1hx")  # of another group: takes no room
    for _ in range(10):
        read()
    most = min(hwm or 100, 100)
    assert receiver.messages_in == most
    assert receiver.dropped == 0
    receiver.close()


@pytest.mark.parametrize("which", ["sender", "receiver"])
def test_a_descriptor_that_a_fork_has_copied_is_closed_once(pair, receive, which):
    make, _ = receive
    one = make() if which == "receiver" else DatagramSender(None, pair[1].detach())
    number = one.fd
    one.close_after_fork()
    assert one.fd == -1
    again = fcntl.fcntl(0, fcntl.F_DUPFD, number)
    one.close_after_fork()
    one.close()
    del one
    os.close(again)  # the number belongs to another file now: it is still open


def test_a_datagram_that_memory_is_short_for_is_counted_and_costs_no_other(pair, receive):
    testing = pytest.importorskip("_testcapi")
    _, sending = pair
    make, read = receive
    receiver = make()
    count = 12
    for number in range(count):
        sending.send(b"\1g" + b"%d" % number * 600)  # larger than what Python keeps memory for
        testing.set_nomemory(number, number + 1)
        try:
            read()
        finally:
            testing.remove_mem_hooks()
    read()
    assert receiver.messages_in + receiver.dropped == count
    assert receiver.dropped >= 1
    sending.send(b"\1gx")
    read()
    assert receiver.messages_in + receiver.dropped == count + 1
    receiver.close()
