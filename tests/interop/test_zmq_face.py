"""omq.zmq against pyzmq in another process: each pair of types, security, monitors, pollers, proxies and asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import omq.zmq as zmq
import omq.zmq.asyncio
import omq.zmq.auth
from omq.zmq.utils.monitor import recv_monitor_message
from tests.interop.zmq_peer import authenticator, digest, message

pytest.importorskip("zmq")
TREE = Path(__file__).parents[2]
COUNT = 8
TIMEOUT_MS = 20_000
ONE_WAY = [("PUSH", "PULL"), ("XPUB", "SUB"), ("XPUB", "XSUB"), ("DEALER", "DEALER"), ("PAIR", "PAIR")]
TWO_WAYS = [("REQ", "REP"), ("REQ", "ROUTER"), ("DEALER", "ROUTER"), ("DEALER", "REP"), ("ROUTER", "ROUTER")]


class Peer:
    """A process with one socket of pyzmq, or of another *module*.

    Attributes:
        endpoint: The endpoint of its socket.
    """

    def __init__(self, kind: str, call: str, endpoint: str, module: str = "zmq", **options: Any) -> None:
        command = [sys.executable, "-m", "tests.interop.zmq_peer", module, kind, call, endpoint, json.dumps(options)]
        self.process = subprocess.Popen(command, cwd=TREE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, command: str, count: int = COUNT) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command} {count}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self.process.communicate(timeout=10)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    """Starts processes, which end with the test."""
    peers: list[Peer] = []

    def start(*arguments: Any, **options: Any) -> Peer:
        peers.append(Peer(*arguments, **options))
        return peers[-1]

    yield start
    for one in peers:
        one.end()


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """Makes sockets of the face."""
    context, made = zmq.Context(), []

    def socket(kind: str, **options: Any) -> Any:
        made.append(context.socket(getattr(zmq, kind)))
        for name, value in {"linger": 0, "rcvtimeo": TIMEOUT_MS, "sndtimeo": TIMEOUT_MS, **options}.items():
            setattr(made[-1], name, value)
        if kind == "SUB":
            made[-1].subscribe(b"")
        return made[-1]

    yield socket
    for one in made:
        one.close(0)
    context.term()


def meet(make: Any, peer: Any, own: str, other: str, binds: str, options: Any = None, **theirs: Any) -> tuple[Any, Any]:
    """Returns a socket of the face and a process, which have met; *binds*: `omq` or `pyzmq`."""
    socket = make(own, **(options or {}))
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    if binds == "omq":
        socket.bind("tcp://127.0.0.1:*")
        process = peer(other, "connect", socket.last_endpoint.decode(), **theirs)
    else:
        process = peer(other, "bind", "tcp://127.0.0.1:*", **theirs)
        socket.connect(process.endpoint)
    assert monitor.poll(TIMEOUT_MS)
    socket.disable_monitor()
    monitor.close(0)
    return socket, process


def publish_until_heard(socket: Any, process: Peer) -> None:
    """Sends until the process has received something, so that the subscription is in force."""
    assert process.process.stdout is not None
    while not select.select([process.process.stdout], [], [], 0.02)[0]:
        socket.send(b"early")
    assert process.line() == "synced"
    socket.send(b"start")


@pytest.mark.parametrize("binds", ["omq", "pyzmq"])
@pytest.mark.parametrize(("sender", "receiver"), [*ONE_WAY, ("PUB", "SUB"), ("PUB", "XSUB")])
def test_the_face_sends(make: Any, peer: Any, sender: str, receiver: str, binds: str) -> None:
    socket, process = meet(make, peer, sender, receiver, binds)
    if receiver == "XSUB":
        process.ask("subscribe", 0)
    if sender == "PUB":
        process.ask("sync", 0)
        publish_until_heard(socket, process)
    process.ask("recv")  # libzmq subscribes with new peers while its user calls it
    if sender == "XPUB":
        assert socket.recv() == b"\1"
    for number in range(COUNT):
        socket.send_multipart(message(number), copy=number % 2 == 0)
    assert json.loads(process.line()) == [digest(message(number)) for number in range(COUNT)]


@pytest.mark.parametrize("binds", ["omq", "pyzmq"])
@pytest.mark.parametrize(("sender", "receiver"), ONE_WAY)
def test_the_face_receives(make: Any, peer: Any, sender: str, receiver: str, binds: str) -> None:
    socket, process = meet(make, peer, receiver, sender, binds)
    if receiver == "XSUB":
        socket.send(b"\1")
    if sender == "XPUB":
        process.ask("recv", 1)
        process.line()
    process.ask("send")
    for number in range(COUNT):
        frames = socket.recv_multipart(copy=number % 2 == 0)
        assert [bytes(frame) for frame in frames] == message(number)


@pytest.mark.parametrize("answers", ["omq", "pyzmq"])
@pytest.mark.parametrize(("asker", "answerer"), TWO_WAYS)
def test_requests_and_replies(make: Any, peer: Any, asker: str, answerer: str, answers: str) -> None:
    head = {"ROUTER": [b"answerer"]}.get(asker, []) + ([b""] if (asker, answerer) == ("DEALER", "REP") else [])
    if answers == "pyzmq":
        socket, process = meet(make, peer, asker, answerer, "omq", {"identity": b"asker"}, identity="answerer")
        process.ask("echo")
        for number in range(COUNT):
            socket.send_multipart([*head, *message(number)])
            assert socket.recv_multipart() == [*head, *message(number)]
        return
    socket, process = meet(make, peer, answerer, asker, "pyzmq", {"identity": b"answerer"}, identity="asker")
    process.ask(" ".join(["ask", *(part.decode() or "-" for part in head)]))
    for _ in range(COUNT):
        socket.send_multipart(socket.recv_multipart())
    assert json.loads(process.line()) == [digest([*head, *message(number)]) for number in range(COUNT)]


@pytest.mark.parametrize("secret", [True, False], ids=["right", "wrong"])
@pytest.mark.parametrize("server", ["omq", "pyzmq"])
@pytest.mark.parametrize("mechanism", ["plain", "curve"])
def test_authenticators(make: Any, peer: Any, tmp_path: Path, mechanism: str, server: str, secret: bool) -> None:
    keys = {}
    for name in ("server", "client", "stranger"):
        files = omq.zmq.auth.create_certificates(tmp_path, name)
        keys[name] = [key.decode() for key in omq.zmq.auth.load_certificate(files[1]) if key is not None]
    admitted = tmp_path / "admitted"
    admitted.mkdir()
    (tmp_path / "client.key").rename(admitted / "client.key")
    auth: dict[str, Any] = {"passwords": {"alice": "secret"}} if mechanism == "plain" else {"location": str(admitted)}
    who = keys["client" if secret else "stranger"]
    of_server: dict[str, Any] = {"plain_server": 1}
    of_client: dict[str, Any] = {"plain_username": "alice", "plain_password": "secret" if secret else "wrong"}
    if mechanism == "curve":
        of_server = {"curve_server": 1, "curve_publickey": keys["server"][0], "curve_secretkey": keys["server"][1]}
        of_client = {"curve_publickey": who[0], "curve_secretkey": who[1], "curve_serverkey": keys["server"][0]}
    own, theirs = (of_server, of_client) if server == "omq" else (of_client, of_server)
    own = {name: value.encode() if isinstance(value, str) else value for name, value in own.items()}
    socket = make("PULL" if server == "omq" else "PUSH", **own)
    running = authenticator(zmq, socket.context, auth) if server == "omq" else None
    try:
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        monitor.rcvtimeo = TIMEOUT_MS
        if server == "omq":
            socket.bind("tcp://127.0.0.1:*")
            process = peer("PUSH", "connect", socket.last_endpoint.decode(), **theirs)
        else:
            process = peer("PULL", "bind", "tcp://127.0.0.1:*", auth=auth, **theirs)
            socket.connect(process.endpoint)
        event = recv_monitor_message(monitor)["event"]
        assert event == (zmq.EVENT_HANDSHAKE_SUCCEEDED if secret else zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        if secret and server == "omq":
            process.ask("send")
            assert [socket.recv_multipart() for _ in range(COUNT)] == [message(number) for number in range(COUNT)]
        elif secret:
            process.ask("recv")
            for number in range(COUNT):
                socket.send_multipart(message(number))
            assert json.loads(process.line()) == [digest(message(number)) for number in range(COUNT)]
        monitor.close(0)
    finally:
        if running is not None:
            socket.close(0)
            running.stop()


def test_monitors_see_the_peer_come_and_go(make: Any, peer: Any) -> None:
    socket = make("PULL")
    monitor = socket.get_monitor_socket()
    monitor.rcvtimeo = TIMEOUT_MS
    socket.bind("tcp://127.0.0.1:*")
    process = peer("PUSH", "connect", socket.last_endpoint.decode())
    wanted = ("LISTENING", "ACCEPTED", "HANDSHAKE_SUCCEEDED")
    assert [recv_monitor_message(monitor)["event"].name for _ in wanted] == list(wanted)
    process.end()
    assert recv_monitor_message(monitor)["event"] is zmq.Event.DISCONNECTED
    monitor.close(0)


@pytest.mark.parametrize("asks", ["HEARTBEAT_TIMEOUT of the watcher", "HEARTBEAT_TTL of the stopped one"])
@pytest.mark.parametrize("watcher", ["omq.zmq", "zmq"])
def test_a_stopped_peer_is_lost_and_comes_back(peer: Any, watcher: str, asks: str) -> None:
    module = importlib.import_module(watcher)
    context = module.Context()
    socket = context.socket(module.PULL)
    socket.rcvtimeo = TIMEOUT_MS
    own = {"heartbeat_ivl": 50, "heartbeat_timeout": 1000}
    other = {"heartbeat_ivl": 50, "heartbeat_ttl": 1000, "heartbeat_timeout": TIMEOUT_MS}
    watches = "watcher" in asks
    for name, value in (own if watches else {}).items():
        setattr(socket, name, value)
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    monitor.rcvtimeo = TIMEOUT_MS
    events = iter(lambda: zmq.Event(recv_monitor_message(monitor)["event"]), None)
    try:
        socket.bind("tcp://127.0.0.1:*")
        options = {} if watches else other
        process = peer(
            "PUSH", "connect", socket.last_endpoint.decode(), "omq.zmq" if watcher == "zmq" else "zmq", **options
        )
        assert next(events) is zmq.Event.HANDSHAKE_SUCCEEDED
        for _ in range(1 if watches else 10):
            assert not monitor.poll(300)  # with a TTL, it must not be stopped before its first PING
            process.process.send_signal(signal.SIGSTOP)
            lost = monitor.poll(3000)
            process.process.send_signal(signal.SIGCONT)
            if lost:
                break
        assert [next(events), next(events)] == [zmq.Event.DISCONNECTED, zmq.Event.HANDSHAKE_SUCCEEDED]
        process.ask("send", 1)
        assert socket.recv_multipart() == message(0)
    finally:
        context.destroy(0)


def test_a_poller_finds_the_socket_that_has_a_message(make: Any, peer: Any) -> None:
    pairs = [meet(make, peer, "PULL", "PUSH", binds) for binds in ("omq", "pyzmq")]
    poller = zmq.Poller()
    for socket, _ in pairs:
        poller.register(socket, zmq.POLLIN)
    assert poller.poll(0) == []
    for socket, process in pairs:
        process.ask("send", 1)
        assert poller.poll(TIMEOUT_MS) == [(socket, zmq.POLLIN)]
        assert socket.recv_multipart() == message(0)


def test_a_proxy_connects_clients_and_workers(make: Any, peer: Any) -> None:
    front, back = make("ROUTER", rcvtimeo=-1), make("DEALER", rcvtimeo=-1)
    front.bind("tcp://127.0.0.1:*")
    back.bind("tcp://127.0.0.1:*")
    peer("REP", "connect", back.last_endpoint.decode()).ask("echo", 2 * COUNT)
    clients = [peer("REQ", "connect", front.last_endpoint.decode()) for _ in range(2)]
    with make("PAIR") as control, make("PAIR") as stop:
        control.bind("inproc://control")
        stop.connect("inproc://control")
        thread = threading.Thread(target=zmq.proxy_steerable, args=[front, back, None, control])
        thread.start()
        for client in clients:
            client.ask("ask")
        for client in clients:
            assert json.loads(client.line()) == [digest(message(number)) for number in range(COUNT)]
        stop.send(b"TERMINATE")
        thread.join(TIMEOUT_MS / 1000)
        assert not thread.is_alive()


def test_asyncio(peer: Any) -> None:
    async def main() -> None:
        context = omq.zmq.asyncio.Context()
        with context, context.socket(zmq.REQ) as request, context.socket(zmq.PULL) as pull:
            request.linger = pull.linger = 0
            request.bind("tcp://127.0.0.1:*")
            pull.bind("tcp://127.0.0.1:*")
            peer("REP", "connect", request.last_endpoint.decode()).ask("echo")
            peer("PUSH", "connect", pull.last_endpoint.decode()).ask("send")
            for number in range(COUNT):
                await request.send_multipart(message(number))
                assert await pull.poll(TIMEOUT_MS)
                assert await request.recv_multipart() == await pull.recv_multipart() == message(number)

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_MS / 1000))
