"""An owner that is busy: asleep, at work in Python, or in a C function that keeps the GIL. The socket goes on."""

from __future__ import annotations

import contextlib
import select
import socket as stream
import subprocess
import time
from collections.abc import Iterator
from typing import IO, Any

import pytest
import zmq

import omq
from tests.support.fork_server import SOCKETS, ForkedProcess
from tests.support.parameters import each_value_once
from tests.support.socket_types import GROUP, PAIRS, options_of

BUSY = """
import asyncio, ctypes, os, sys, threading

def busy(how):  # until the test calls `resume`
    if how == "asleep":
        os.read(0, 1)
    elif how == "with the GIL":
        ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)  # unlike CDLL, PyDLL keeps the GIL
    else:
        resumed = []
        threading.Thread(target=lambda: resumed.append(os.read(0, 1)), daemon=True).start()
        while not resumed:
            pass
"""

RECEIVER = (
    BUSY
    + """
twin, kind, endpoint, how, hwm, count = sys.argv[1:]
options = dict(connect=endpoint, conflate=True) if hwm == "newest" else dict(connect=endpoint, recv_hwm=int(hwm))
if kind == "SUB":
    options["subscribe"] = b""
elif kind == "DISH":
    options["join"] = "g"

def judge(numbers):
    print(len(numbers), numbers == sorted(set(numbers)), *numbers[-1:] if hwm == "newest" else (), flush=True)

if twin == "blocking":
    import omq
    with getattr(omq, kind)(**options) as socket:
        socket.recv(timeout=20)
        print("busy", flush=True)
        busy(how)
        numbers = []
        try:
            while len(numbers) < int(count):
                numbers.append(int(socket.recv(timeout=10)[:8]))
        except omq.ReceiveTimeout:
            pass
        judge(numbers)
else:
    import omq.asyncio as omq
    async def main():
        async with getattr(omq, kind)(**options) as socket:
            await socket.recv(timeout=20)
            print("busy", flush=True)
            busy(how)
            numbers = []
            try:
                while len(numbers) < int(count):
                    numbers.append(int((await socket.recv(timeout=10))[:8]))
            except TimeoutError:
                pass
            judge(numbers)
    asyncio.run(main())
"""
)

SENDER = (
    BUSY
    + """
twin, endpoints, how, messages, public_key, when, kind = sys.argv[1:]
messages = eval(messages)
endpoints = endpoints.split(",")
options = {"conflate": True} if kind.startswith("newest") else {}
kind = kind.removeprefix("newest ")
if when == "before there is a peer":
    options["send_hwm"] = 0
if public_key:
    import omq
    options["security"] = omq.CurveClient(server_key=public_key.encode())

def connect(socket):
    for endpoint in endpoints:
        socket.connect(endpoint)

if twin == "blocking":
    import omq
    with getattr(omq, kind)(**options) as socket:
        if when == "connected":
            connect(socket)
            getattr(socket, "wait_subscribed" if kind == "PUB" else "wait_connected")(n=len(endpoints), timeout=20)
        for message in messages:
            socket.send_multipart(message)
        if when != "connected":
            connect(socket)
            socket.wait_connected(len(endpoints), timeout=20)
        print("busy", flush=True)
        busy(how)
else:
    import omq.asyncio as omq
    async def main():
        async with getattr(omq, kind)(**options) as socket:
            if when == "connected":
                connect(socket)
                await getattr(socket, "wait_subscribed" if kind == "PUB" else "wait_connected")(
                    n=len(endpoints), timeout=20
                )
            for message in messages:
                await socket.send_multipart(message)
            if when != "connected":
                connect(socket)
                await socket.wait_connected(len(endpoints), timeout=20)
            print("busy", flush=True)
            busy(how)
    asyncio.run(main())
"""
)

HOW = ["asleep", "in Python", "with the GIL"]
TWINS = ["blocking", "asyncio"]


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context = zmq.Context()
    context.linger = 0
    yield context
    context.destroy(linger=0)


def child(program: str, *arguments: object) -> ForkedProcess:
    return ForkedProcess(
        "-c",
        program,
        *map(str, arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        template=SOCKETS,
    )


def resume(process: ForkedProcess) -> None:
    """Ends what keeps a child process busy."""
    assert process.stdin is not None
    process.stdin.write("x")
    process.stdin.flush()


def sender(
    twin: str,
    endpoints: list[str],
    how: str,
    messages: str,
    *,
    public_key: str = "",
    when: str = "connected",
    kind: str = "PUSH",
) -> ForkedProcess:
    """Starts a process that sends *messages*, a Python expression, and is busy from then on."""
    return child(SENDER, twin, ",".join(endpoints), how, messages, public_key, when, kind)


@contextlib.contextmanager
def killed(process: ForkedProcess) -> Iterator[IO[str]]:
    """Yields what a process prints, and kills it at the end."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@contextlib.contextmanager
def watched(context: zmq.Context[Any], timeout_ms: int) -> Iterator[tuple[zmq.Socket[Any], zmq.Socket[Any]]]:
    """Yields a PUSH that expects signs of life from its peers, and a monitor of lost connections."""
    with context.socket(zmq.PUSH) as push:
        push.heartbeat_ivl, push.heartbeat_timeout = 100, timeout_ms
        monitor = push.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            yield push, monitor
        finally:
            push.disable_monitor()
            monitor.close()


def bound(socket: zmq.Socket[Any], transport: str) -> str:
    socket.bind("tcp://127.0.0.1:*" if transport == "tcp" else "ipc://*")
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


@pytest.mark.timeout(90)
@each_value_once(
    transport__size__hwm=[("tcp", 200, 1000), ("tcp", 20_000, 1000), ("ipc", 20_000, 1000), ("tcp", 1 << 18, 50)],
    twin=TWINS,
    how=HOW,
)
def test_what_both_marks_hold_is_not_lost(
    context: zmq.Context[Any], transport: str, size: int, hwm: int, twin: str, how: str
) -> None:
    """A publisher drops what has no room: the subscriber's share of it must not depend on what its owner does."""
    count = 2 * hwm - hwm // 10
    with context.socket(zmq.XPUB) as pub:
        pub.sndhwm = hwm
        endpoint = bound(pub, transport)
        with killed(receiver := child(RECEIVER, twin, "SUB", endpoint, how, hwm, count)) as output:
            assert pub.poll(20_000)
            assert pub.recv() == b"\1"
            pub.send(b"begin")
            assert output.readline() == "busy\n"
            time.sleep(0.02)
            for i in range(count):
                pub.send(b"%08d" % i + bytes(size - 8))
                if i % (hwm // 25) == 0:
                    time.sleep(0.018)  # never faster than a thread reads
            resume(receiver)
            assert output.readline().split() == [str(count), "True"]


@pytest.mark.timeout(90)
@each_value_once(twin=TWINS, how=["asleep", "with the GIL"])
def test_what_both_marks_of_a_radio_and_a_dish_hold_is_not_lost(twin: str, how: str) -> None:
    hwm, count, size = 1000, 1900, 20_000
    with (
        omq.RADIO(bind="tcp://127.0.0.1:*", send_hwm=hwm, linger=0) as radio,
        killed(receiver := child(RECEIVER, twin, "DISH", radio.endpoints[0], how, hwm, count)) as output,
    ):
        radio.wait_subscribed(GROUP, timeout=20)
        radio.send(b"begin", group=GROUP)
        assert output.readline() == "busy\n"
        time.sleep(0.02)
        for number in range(count):
            radio.send(b"%08d" % number + bytes(size - 8), group=GROUP)
            if number % (hwm // 25) == 0:
                time.sleep(0.018)  # as above
        assert radio.peers[0].dropped == 0
        resume(receiver)
        assert output.readline().split() == [str(count), "True"]


@pytest.mark.timeout(60)
@each_value_once(twin=TWINS, how=HOW)
def test_the_mark_still_holds(context: zmq.Context[Any], twin: str, how: str) -> None:
    """Reading ahead is bounded: a sender that is not read any more stops."""
    with context.socket(zmq.PUSH) as push:
        push.sndhwm = 1
        endpoint = bound(push, "ipc")
        with killed(child(RECEIVER, twin, "PULL", endpoint, how, 10, 0)) as output:
            push.send(b"begin")
            assert output.readline() == "busy\n"
            sent = 0
            while sent < 40 and push.poll(500, zmq.POLLOUT):
                push.send(b"%08d" % sent + bytes(50_000))
                sent += 1
            assert 10 <= sent < 40


@pytest.mark.timeout(60)
@each_value_once(twin=TWINS, how=HOW)
def test_pings_are_answered(context: zmq.Context[Any], twin: str, how: str) -> None:
    """A peer that expects signs of life keeps the connection, and what it sends meanwhile arrives."""
    with watched(context, 600) as (push, monitor):
        endpoint = bound(push, "tcp")
        with killed(receiver := child(RECEIVER, twin, "PULL", endpoint, how, 1000, 1)) as output:
            push.send(b"begin")
            assert output.readline() == "busy\n"
            push.send(b"%08d" % 1)
            assert not monitor.poll(1100)
            resume(receiver)
            assert output.readline() == "1 True\n"


@pytest.mark.slow
@pytest.mark.timeout(60)
@each_value_once(quiet=[False, True], twin=TWINS, how=["with the GIL", "in Python"])
def test_pings_are_answered_after_a_burst(context: zmq.Context[Any], quiet: bool, twin: str, how: str) -> None:
    """A burst that our kernel has no room for holds answers back for a moment only: the peer could have closed."""
    with watched(context, 1500) as (push, monitor):
        endpoint = bound(push, "tcp")
        with killed(receiver := child(RECEIVER, twin, "PULL", endpoint, how, 1000, 60)) as output:
            push.send(b"begin")
            assert output.readline() == "busy\n"
            for number in range(20):
                push.send(b"%08d" % number + bytes(300_000))
            for number in range(20, 60):
                push.send(b"%08d" % number)
                assert not monitor.poll(0 if quiet else 50)
            assert not monitor.poll(2500 if quiet else 500)
            resume(receiver)
            assert output.readline() == "60 True\n"


@pytest.mark.timeout(60)
@each_value_once(size=[100, 20_000, 200_000], twin=TWINS, how=HOW)
def test_the_newest_message_counts(context: zmq.Context[Any], size: int, twin: str, how: str) -> None:
    """The first message after the work is the newest one with `conflate`, as if the owner had not been away."""
    with context.socket(zmq.XPUB) as pub:
        endpoint = bound(pub, "tcp")
        with killed(receiver := child(RECEIVER, twin, "SUB", endpoint, how, "newest", 1)) as output:
            assert pub.poll(20_000)
            assert pub.recv() == b"\1"
            pub.send(b"begin")
            assert output.readline() == "busy\n"
            for number in range(200):
                pub.send(b"%08d" % number + bytes(size))
                time.sleep(0.003)
            time.sleep(0.5)  # for the last one to arrive
            resume(receiver)
            assert output.readline().split() == ["1", "True", "199"]


@pytest.mark.timeout(60)
@each_value_once(kind=["PUSH", "PUB"], twin=TWINS, how=HOW)
def test_the_newest_message_leaves(context: zmq.Context[Any], kind: str, twin: str, how: str) -> None:
    """A message that waits for room leaves while its sender works, with `conflate`, too."""
    with context.socket(zmq.PULL if kind == "PUSH" else zmq.SUB) as receiver:
        receiver.rcvhwm = 1
        if kind == "PUB":
            receiver.subscribe(b"")
        endpoint = bound(receiver, "tcp")
        messages = "[[b'%08d' % number + bytes(200_000)] for number in range(300)]"
        with killed(sender(twin, [endpoint], how, messages, kind=f"newest {kind}")) as output:
            while not select.select([output], [], [], 0.05)[0]:
                receiver.poll(0)  # libzmq subscribes to a new peer within a call
            newest = -1
            while newest < 299:
                assert receiver.poll(20_000), f"{newest} is the newest"
                newest = int(receiver.recv()[:8])


@pytest.mark.timeout(90)
@each_value_once(
    count__size__peers=[
        (5, 100, 1),
        (900, 50_000, 1),
        (60, 1 << 20, 1),
        (900, 50_000, 3),
        (900, 3000, 2),
        (90, 1 << 20, 3),
    ],
    twin=TWINS,
    how=HOW,
)
def test_what_was_accepted_leaves(
    context: zmq.Context[Any], count: int, size: int, peers: int, twin: str, how: str
) -> None:
    """Accepted messages wait for the kernel's room alone, and never for their sender.

    Where several peers are full they go to whichever has room first, each to one, and in order.
    """
    pulls = [context.socket(zmq.PULL) for _ in range(peers)]
    endpoints = [bound(pull, "tcp") for pull in pulls]
    poller = zmq.Poller()
    for pull in pulls:
        poller.register(pull, zmq.POLLIN)
    try:
        with killed(sender(twin, endpoints, how, f"[[b'%08d' % i + bytes({size - 8})] for i in range({count})]")):
            got: dict[zmq.Socket[Any], list[int]] = {pull: [] for pull in pulls}
            while sum(map(len, got.values())) < count:
                ready = poller.poll(20_000)
                assert ready, {pull: len(numbers) for pull, numbers in got.items()}
                for pull, _ in ready:
                    while True:
                        try:
                            got[pull].append(int(pull.recv(zmq.DONTWAIT)[:8]))
                        except zmq.Again:
                            break
            assert sorted(number for numbers in got.values() for number in numbers) == [*range(count)]
            assert all(numbers == sorted(numbers) for numbers in got.values())
    finally:
        for pull in pulls:
            pull.close()


@pytest.mark.timeout(60)
@each_value_once(twin=TWINS, how=HOW)
def test_what_waited_for_a_peer_leaves(context: zmq.Context[Any], twin: str, how: str) -> None:
    """More than one turn gives to a new connection: the next turn does not come."""
    count = 3000
    with context.socket(zmq.PULL) as pull:
        endpoint = bound(pull, "tcp")
        messages = f"[[b'%08d' % i] for i in range({count})]"
        with killed(sender(twin, [endpoint], how, messages, when="before there is a peer")):
            for number in range(count):
                assert pull.poll(20_000)
                assert pull.recv() == b"%08d" % number


CONNECTING = (
    BUSY
    + """
import omq
kind, first, second = sys.argv[1:]
with getattr(omq, kind)() as socket:
    socket.connect(first)
    if second:
        socket.connect(second)
    busy("with the GIL")
"""
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["PUSH", "PAIR", "CHANNEL"])
def test_connect_greets_the_first_peer_itself(kind: str) -> None:
    """The I/O thread needs the GIL once, to take the answer. A type with one peer greets no second one meanwhile."""
    with stream.socket() as first, stream.socket() as second:
        for server in (first, second):
            server.bind(("127.0.0.1", 0))
            server.listen()
            server.settimeout(20)
        endpoints = [f"tcp://127.0.0.1:{server.getsockname()[1]}" for server in (first, second)]
        with killed(child(CONNECTING, kind, *endpoints)):
            peer, _ = first.accept()
            with peer:
                peer.settimeout(20)
                greeting = peer.recv(64)  # the owner keeps the GIL
                assert greeting[:1] == b"\xff"
                if kind != "PUSH":
                    second.settimeout(0.5)
                    with pytest.raises(TimeoutError):
                        second.accept()


ONE_PART = (
    BUSY
    + """
import inspect
import omq, omq.asyncio
from tests.support.socket_types import GROUP
twin, kind, endpoint, how, count, size = sys.argv[1:]

async def done(result):
    return await result if inspect.isawaitable(result) else result

async def main():
    socket = getattr(omq if twin == "blocking" else omq.asyncio, kind)()
    route = {}
    if kind == "PEER":
        route["routing_id"] = await done(socket.connect_peer(endpoint, timeout=20))
    else:
        socket.connect(endpoint)
    if kind == "RADIO":
        await done(socket.wait_subscribed(GROUP, timeout=20))
        route["group"] = GROUP
    elif kind == "SERVER":
        route["routing_id"] = (await done(socket.recv_message(timeout=20))).routing_id
    for number in range(int(count)):
        await done(socket.send(b"%08d" % number + bytes(int(size)), **route))
    await done(socket.wait_connected(timeout=20))  # a handshake needs the GIL
    busy(how)
asyncio.run(main())
"""
)


@pytest.mark.timeout(60)
@each_value_once(kind__other=PAIRS, twin=TWINS)
def test_what_a_type_of_one_part_has_accepted_leaves(kind: str, other: str, twin: str) -> None:
    """The thread without the GIL, or the loop's end, needs neither the owner nor the route that it has named."""
    count, size = 600, 50_000
    with (
        getattr(omq, other)(bind="tcp://127.0.0.1:*", linger=0, **options_of(other, kind)) as receiver,
        killed(child(ONE_PART, twin, kind, receiver.endpoints[0], "with the GIL", count, size)),
    ):
        got = [receiver.recv(timeout=20) for _ in range(count)]
        assert [int(body[:8]) for body in got] == [*range(count)]


SIZES = [0, 100, 4097, 70_000, 300_000]
PARTS = f"[[b'%08d' % i, *(bytes([i % 256]) * {SIZES}[(i + k) % 5] for k in range(i % 4))] for i in range({{}})]"


@pytest.mark.timeout(90)
@each_value_once(peers__security=[(1, "plain"), (2, "CURVE")], twin=TWINS)
def test_parts_of_all_sizes_leave_whole(context: zmq.Context[Any], peers: int, security: str, twin: str) -> None:
    """The thread without the GIL makes the same frames as the owner."""
    count, public = 500, ""
    pulls = [context.socket(zmq.PULL) for _ in range(peers)]
    if security == "CURVE":
        key, secret = zmq.curve_keypair()
        public = key.decode()
        for pull in pulls:
            pull.curve_server, pull.curve_secretkey = True, secret
    for pull in pulls:
        pull.rcvhwm = 1
    endpoints = [bound(pull, "tcp") for pull in pulls]
    poller = zmq.Poller()
    for pull in pulls:
        poller.register(pull, zmq.POLLIN)
    try:
        with killed(sender(twin, endpoints, "with the GIL", PARTS.format(count), public_key=public)):
            got = []
            while len(got) < count:
                ready = poller.poll(20_000)
                assert ready, len(got)
                got += [pull.recv_multipart() for pull, _ in ready]
            for message in got:
                i = int(message[0])
                assert message[1:] == [bytes([i % 256]) * SIZES[(i + k) % 5] for k in range(i % 4)]
            assert sorted(int(message[0]) for message in got) == [*range(count)]
    finally:
        for pull in pulls:
            pull.close()
