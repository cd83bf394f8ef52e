"""WebSockets with the options and the calls of an endpoint, in processes that fork, and under owners that are busy."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import omq
from omq.event import EventKind
from tests.support.fork_server import SOCKETS, ForkedProcess, run
from tests.support.waits import BOUND, until
from tests.support.websocket_peer import Client, contexts, make_certificate, ready


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


class Joining:
    """Binds one socket and connects another, over ws or wss."""

    def __init__(self, scheme: str, certificate: Path) -> None:
        self.scheme = scheme
        server, client = contexts(certificate)
        self.binding, self.connecting = ({"tls": server}, {"tls": client}) if scheme == "wss" else ({}, {})

    def __call__(self, binds: Any, connects: Any, **more: Any) -> str:
        found = str(binds.bind(f"{self.scheme}://127.0.0.1:*/at", **more, **self.binding))
        self.connect(connects, found)
        return found

    def connect(self, connects: Any, endpoint: str) -> None:
        connects.connect(endpoint, **self.connecting)


@pytest.fixture(params=["ws", "wss"])
def join(request: pytest.FixtureRequest, certificate: Path) -> Joining:
    return Joining(request.param, certificate)


def event(twin: Any, monitor: Any, kind: EventKind) -> Any:
    while (found := twin.event(monitor)).kind is not kind:
        pass
    return found


def test_an_address_that_may_not_come_in(twin: Any, join: Any) -> None:
    pull, push = twin("PULL"), twin("PUSH")
    monitor = pull.monitor()
    join(pull, push, accept_filter="10.0.0.0/8")
    assert "accept_filter" in str(event(twin, monitor, EventKind.ACCEPT_FAILED).reason)


def test_one_connection_and_no_more(twin: Any, join: Any) -> None:
    pull, push = twin("PULL"), twin("PUSH")
    monitor = pull.monitor()
    endpoint = join(pull, push, max_connections=1)
    push.send(b"first", timeout=BOUND)
    assert pull.recv(timeout=BOUND) == b"first"
    join.connect(twin("PUSH"), endpoint)
    assert "max_connections" in str(event(twin, monitor, EventKind.ACCEPT_FAILED).reason)


def test_handshakes_that_do_not_go_on_make_room(twin: Any) -> None:
    pull = twin("PULL", max_handshakes=2, handshake_timeout=0.3)
    endpoint = pull.bind("ws://127.0.0.1:*/at")
    place = endpoint.partition("://")[2].partition("/")[0].split(":")
    silent = [socket.create_connection((place[0], int(place[1]))) for _ in range(2)]
    try:
        push = twin("PUSH", connect=endpoint)
        push.send(b"through", timeout=BOUND)
        assert pull.recv(timeout=BOUND) == b"through"
    finally:
        for sock in silent:
            sock.close()


def test_an_endpoint_is_left_and_unbound_by_its_text(twin: Any, join: Any) -> None:
    pull, push = twin("PULL"), twin("PUSH")
    endpoint = join(pull, push)
    push.send(b"one", timeout=BOUND)
    assert pull.recv(timeout=BOUND) == b"one"
    push.disconnect(endpoint)
    until(lambda: not pull.peers)
    pull.unbind(endpoint)
    assert pull.endpoints == push.endpoints == []
    with pytest.raises(omq.EndpointError):
        pull.unbind(endpoint)


def test_what_a_peer_may_send(twin: Any, join: Any) -> None:
    pull, push = twin("PULL", max_message_size=1000), twin("PUSH")
    monitor = pull.monitor()
    join(pull, push)
    push.send(bytes(1000), timeout=BOUND)
    assert pull.recv(timeout=BOUND) == bytes(1000)
    push.send(bytes(1001), timeout=BOUND)
    assert "1000" in str(event(twin, monitor, EventKind.DISCONNECTED).reason)


FORKED = """
import os, ssl, sys
import omq
endpoint, certificate = sys.argv[1:]
tls = {"tls": ssl.create_default_context(cafile=certificate)} if endpoint.startswith("wss") else {}
push = omq.PUSH()
push.connect(endpoint, **tls)
push.send(b"before")
push.flush()
child = os.fork()
if child == 0:
    with omq.Context() as context, omq.PUSH(context) as own:
        own.connect(endpoint, **tls)
        own.send(b"child")
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
push.send(b"parent")
"""


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_fork(certificate: Path, scheme: str) -> None:
    with omq.PULL() as pull:
        tls = {"tls": contexts(certificate)[0]} if scheme == "wss" else {}
        endpoint = pull.bind(f"{scheme}://127.0.0.1:*", **tls)
        done = run("-c", FORKED, endpoint, certificate, template=SOCKETS)
        assert done.returncode == 0, done.stderr
        assert [pull.recv(timeout=BOUND) for _ in range(3)] == [b"before", b"child", b"parent"]


BUSY = """
import sys, time
import omq
with omq.SUB(subscribe=b"", recv_hwm=1000) as sub:
    print(sub.bind("ws://127.0.0.1:*"), flush=True)
    assert sub.recv() == b"begin"
    print("busy", flush=True)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        sum(range(10_000))
    got = [sub.recv(timeout=5) for _ in range(1900)]
    print(got == [b"%08d" % number + bytes(192) for number in range(1900)], flush=True)
"""


def test_a_busy_owner_loses_nothing() -> None:
    """Both marks hold 2,000 messages: what is sent meanwhile is read ahead, and the publisher drops nothing."""
    with (
        ForkedProcess("-c", BUSY, stdout=subprocess.PIPE, text=True, template=SOCKETS) as owner,
        omq.PUB(send_hwm=1000) as pub,
    ):
        assert owner.stdout is not None
        pub.connect(owner.stdout.readline().strip())
        pub.wait_subscribed(timeout=BOUND)
        pub.send(b"begin")
        assert owner.stdout.readline() == "busy\n"
        for number in range(1900):
            pub.send(b"%08d" % number + bytes(192))
            if number % 40 == 0:
                time.sleep(0.018)  # all is sent within the time, and never faster than a thread reads
        assert owner.stdout.readline() == "True\n"
        assert owner.wait(BOUND) == 0


def test_an_owner_that_is_busy_answers_a_heartbeat() -> None:
    with (
        ForkedProcess("-c", BUSY, stdout=subprocess.PIPE, text=True, template=SOCKETS) as owner,
        omq.PUB(heartbeat_interval=0.1, heartbeat_timeout=0.8) as pub,
    ):
        assert owner.stdout is not None
        monitor = pub.monitor()
        pub.connect(owner.stdout.readline().strip())
        pub.wait_subscribed(timeout=BOUND)
        pub.send(b"begin")
        assert owner.stdout.readline() == "busy\n"
        seen = []
        try:
            while True:
                seen.append(monitor.recv(timeout=1.3).kind)  # longer than it is busy
        except omq.Timeout:
            pass
        owner.kill()
        assert EventKind.DISCONNECTED not in seen


def test_a_control_frame_between_parts_and_bytes(twin: Any) -> None:
    pull = twin("PULL", bind="ws://127.0.0.1:*")
    with Client(pull.endpoints[0]) as peer:
        peer.send(ready("PUSH"))
        peer.recv()
        for number in range(50):
            peer.send(b"\1%d" % number)
            peer.send(b"%d" % number, 0x8A)
            peer.send(b"\0" + bytes(40_000))
        for number in range(50):
            assert pull.recv_multipart(timeout=BOUND) == [b"%d" % number, bytes(40_000)]
