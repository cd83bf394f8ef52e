"""`only_first_subscribe`: parts after the first are a message, whatever they begin with."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
import zmq

import omq
from tests.support.raw_peer import frames
from tests.support.waits import BOUND
from tests.system.conformance.test_endpoint_options import shake

MIXED = [[b"\1B", b"y", b"\1C"], [b"\1B", b"\1C"], [b"x", b"\1C"], [b"\1B"], [b"\1B", b"y"]]


def dial(endpoint: str) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2])), BOUND)
    line.settimeout(BOUND)
    shake(line, kind=b"XSUB")
    return line


def taken(one: Any, count: int) -> list[list[bytes]]:
    return [one.recv_multipart(timeout=BOUND) for _ in range(count)]


def test_without_it_each_part_behind_a_subscription_may_be_one(twin):
    xpub = twin("XPUB")
    with dial(xpub.bind("tcp://127.0.0.1:*")) as line:
        line.sendall(frames(b"\1B", b"y", b"\1C"))
        assert sorted(taken(xpub, 3)) == [[b"\1B"], [b"\1C"], [b"y"]]
        xpub.wait_subscribed(b"C", timeout=BOUND)


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ([b"\1B", b"y", b"\1C"], [[b"\1B"], [b"y", b"\1C"]]),
        ([b"\1B", b"\1C"], [[b"\1B"], [b"\1C"]]),
        ([b"x", b"\1C"], [[b"x", b"\1C"]]),
    ],
    ids=repr,
)
def test_an_xpub_takes_only_the_first_part_for_a_subscription(twin, parts, found):
    xpub = twin("XPUB", only_first_subscribe=True)
    with dial(xpub.bind("tcp://127.0.0.1:*")) as line:
        line.sendall(frames(*parts) + frames(b"\1end"))
        assert taken(xpub, len(found) + 1) == [*found, [b"\1end"]]
        for prefix in (b"B", b"C", b"end"):
            xpub.send(prefix + b"!", timeout=BOUND)
        expected = ([b"B!"] if [b"\1B"] in found else []) + [b"end!"]
        wanted = b"".join(frames(one) for one in expected)
        got = b""
        while len(got) < len(wanted):
            got += line.recv(1000)
        assert got == wanted


@pytest.mark.parametrize("place", ["tcp://127.0.0.1:*", "inproc://first"])
@pytest.mark.parametrize("parts", MIXED, ids=repr)
def test_what_an_xsub_sends_is_what_an_xpub_takes(twin, place, parts):
    xpub = twin("XPUB", bind=place, only_first_subscribe=True)
    xsub = twin("XSUB", connect=xpub.endpoints[0], only_first_subscribe=True)
    xsub.wait_connected(timeout=BOUND)
    xsub.send_multipart(parts, timeout=BOUND)
    xsub.send(b"\1end", timeout=BOUND)
    subscribes = parts[0][:1] == b"\1"
    rest = parts[1:] if subscribes else parts
    found = [*([parts[:1]] if subscribes else []), *([rest] if rest else []), [b"\1end"]]
    assert taken(xpub, len(found)) == found


@pytest.mark.parametrize("place", ["tcp://127.0.0.1:*", "inproc://first"])
def test_the_end_of_a_subscription_leads_a_message_too(twin, place):
    xpub = twin("XPUB", bind=place, only_first_subscribe=True)
    xsub = twin("XSUB", connect=xpub.endpoints[0], only_first_subscribe=True, subscribe=b"B")
    assert taken(xpub, 1) == [[b"\1B"]]
    xsub.send_multipart([b"\0B", b"\0C", b"y"], timeout=BOUND)
    assert taken(xpub, 2) == [[b"\0B"], [b"\0C", b"y"]]


def test_a_later_publisher_gets_the_subscriptions_of_first_parts_alone(twin):
    xsub = twin("XSUB", only_first_subscribe=True)
    first = twin("XPUB", bind="tcp://127.0.0.1:*", only_first_subscribe=True)
    xsub.connect(first.endpoints[0])
    xsub.wait_connected(timeout=BOUND)
    xsub.send_multipart([b"\1B", b"\1C"], timeout=BOUND)
    assert taken(first, 2) == [[b"\1B"], [b"\1C"]]
    later = twin("XPUB", bind="tcp://127.0.0.1:*")
    xsub.connect(later.endpoints[0])
    assert taken(later, 1) == [[b"\1B"]]
    with pytest.raises(omq.Timeout):
        later.recv(timeout=0.05)


@pytest.mark.parametrize("parts", [[b"\1B", b"y", b"\1C"], [b"\1B", b"\1C"], [b"x", b"\1C"], [b"\1B"]], ids=repr)
def test_the_user_of_libzmqs_xpub_receives_the_same(twin, parts):
    context = zmq.Context()
    theirs = context.socket(zmq.XPUB)
    theirs.setsockopt(108, 1)  # ZMQ_ONLY_FIRST_SUBSCRIBE
    theirs.rcvtimeo = 1
    theirs.bind("tcp://127.0.0.1:*")
    ours = twin("XPUB", only_first_subscribe=True)
    endpoint = ours.bind("tcp://127.0.0.1:*")
    found: list[list[list[bytes]]] = [[], []]
    with dial(endpoint) as one, dial(theirs.getsockopt_string(zmq.LAST_ENDPOINT)) as other:
        for line in (one, other):
            line.sendall(frames(*parts) + frames(b"\1end"))
        end = time.monotonic() + BOUND
        while [b"\1end"] not in found[0]:
            found[0].append(ours.recv_multipart(timeout=BOUND))
        while [b"\1end"] not in found[1]:
            assert time.monotonic() < end
            try:
                found[1].append(theirs.recv_multipart())
            except zmq.Again:
                continue
    theirs.close(linger=0)
    context.term()
    assert found[0] == found[1]
