"""The types of one part against pyomq, in a process and an interpreter of its own: a stock libzmq has none of them.

The environment variable OMQ_PYOMQ names an interpreter that has pyomq. Without it one is made, of a Python that pyomq
takes, if there is one and the package index answers.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import omq
from tests.support.waits import BOUND

TREE = Path(__file__).parents[2]
VERSION = "0.27.3"
BODIES = [b"one", b"\0", b"x" * 255, b"y" * 256, bytes(range(256)) * 400, b"last"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _has_pyomq(python: str) -> bool:
    return not subprocess.run([python, "-c", "import pyomq"], capture_output=True, check=False).returncode


@pytest.fixture(scope="session")
def python() -> str:
    """An interpreter that has pyomq."""
    named = os.environ.get("OMQ_PYOMQ")
    if named:
        assert _has_pyomq(named), f"OMQ_PYOMQ={named}: cannot import pyomq"
        return named
    made = TREE / "build" / "pyomq"
    made.parent.mkdir(exist_ok=True)
    with open(f"{made}.lock", "w") as lock:  # pytest-xdist has several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _made(made)


def _made(made: Path) -> str:
    """An interpreter in a folder that stays for the next time."""
    ours = str(made / "bin" / "python")
    if shutil.which(ours) and _has_pyomq(ours):
        return ours
    found = subprocess.run(["sh", ".ci/find-python", "all"], cwd=TREE, capture_output=True, text=True, check=False)
    probe = "import sys; sys.exit(sys.version_info < (3, 12))"
    for one in found.stdout.split():
        if subprocess.run([one, "-c", probe], check=False).returncode:
            continue
        subprocess.run([one, "-m", "venv", str(made)], check=True)
        install = [ours, "-m", "pip", "install", "--quiet", "--retries", "0", f"pyomq=={VERSION}"]
        result = subprocess.run(install, capture_output=True, text=True, check=False)
        if result.returncode:
            pytest.skip(f"pyomq {VERSION} cannot be installed: {result.stderr.strip()[-200:]}")
        return ours
    pytest.skip("no Python 3.12 or newer, which pyomq needs; OMQ_PYOMQ names an interpreter that has it")


class Pyomq:
    """A socket of pyomq's in a process of its own."""

    def __init__(self, python: str, kind: str, call: str, endpoint: str, role: str) -> None:
        script = str(Path(__file__).with_name("pyomq_peer.py"))
        self._process = subprocess.Popen(
            [python, script, kind, call, endpoint, role], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._timer = threading.Timer(2 * BOUND, self._process.kill)  # a peer that hangs ends what waits for it
        self._timer.start()
        self.endpoint = self.line()

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def received(self, count: int) -> list[bytes]:
        return [bytes.fromhex(self.line()) for _ in range(count)]

    def send(self, bodies: list[bytes]) -> None:
        assert self._process.stdin is not None
        for body in bodies:
            self._process.stdin.write(body.hex() + "\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()


#: A socket of ours, the kind of pyomq's, and what the latter does.
Scene = Callable[[str, str, str], tuple[Any, Pyomq]]


@pytest.fixture(params=["tcp", "ipc"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["pyomq binds", "pyomq connects"])
def scene(request: pytest.FixtureRequest, python: str, transport: str, fresh: Callable[[str], str]) -> Iterator[Scene]:
    """Connects one socket of each library: which one binds is the test's parameter."""
    made: list[Any] = []

    def join(ours: str, theirs: str, role: str, **options: Any) -> tuple[Any, Pyomq]:
        socket = getattr(omq, ours)(recv_timeout=BOUND, send_timeout=BOUND, **options)
        made.append(socket)
        if request.param == "pyomq binds":
            peer = Pyomq(python, theirs, "bind", fresh(transport), role)
            if ours != "PEER":
                socket.connect(peer.endpoint)
        else:
            peer = Pyomq(python, theirs, "connect", socket.bind(fresh(transport)), role)
        made.append(peer)
        return socket, peer

    yield join
    for one in made:
        one.stop()


@pytest.mark.parametrize("kind", ["CLIENT", "CHANNEL"])
def test_what_is_sent_to_pyomq_comes_back(scene, kind):
    socket, _ = scene(kind, {"CLIENT": "SERVER"}.get(kind, kind), "echo")
    for body in BODIES:
        socket.send(body)
        assert socket.recv() == body
    assert socket.send_many(BODIES * 50) == len(BODIES) * 50
    assert [socket.recv() for _ in range(len(BODIES) * 50)] == BODIES * 50


def test_a_server_answers_a_client_of_pyomq(scene):
    server, _ = scene("SERVER", "CLIENT", "echo", hello_message=b"hello")
    # The client gives back the greeting, and so names itself.
    message = server.recv_message()
    assert message.body == b"hello"
    for body in BODIES:
        server.send(body, routing_id=message.routing_id)
        back = server.recv_message()
        assert (back.body, back.routing_id) == (body, message.routing_id)


def test_peers_exchange_by_number(scene, request):
    socket, peer = scene("PEER", "PEER", "echo", hello_message=b"hello")
    if "binds" in request.node.name:
        route = socket.connect_peer(peer.endpoint, timeout=BOUND)
        greeting = socket.recv_message()
        assert greeting.routing_id == route
    else:
        greeting = socket.recv_message()
        route = greeting.routing_id
    assert greeting.body == b"hello"
    for body in BODIES:
        socket.send(body, routing_id=route)
        back = socket.recv_message()
        assert (back.body, back.routing_id) == (body, route)


def test_a_gather_of_pyomq_takes_what_a_scatter_sends(scene):
    scatter, peer = scene("SCATTER", "GATHER", "receive")
    scatter.send_many(BODIES * 20)
    assert peer.received(len(BODIES) * 20) == BODIES * 20


@pytest.mark.parametrize(("ours", "theirs"), [("GATHER", "SCATTER"), ("SERVER", "CLIENT"), ("CHANNEL", "CHANNEL")])
def test_what_pyomq_sends_is_received(scene, ours, theirs):
    socket, peer = scene(ours, theirs, "send")
    peer.send(BODIES * 20)
    assert [socket.recv() for _ in range(len(BODIES) * 20)] == BODIES * 20


def test_a_dish_of_pyomq_takes_its_group(scene):
    radio, peer = scene("RADIO", "DISH", "receive", send_hwm=0)
    radio.wait_subscribed("g", timeout=BOUND)
    for body in BODIES * 20:
        radio.send(b"not " + body, group="other")
        radio.send(body, group="g")
    assert peer.received(len(BODIES) * 20) == BODIES * 20


def test_a_dish_takes_its_group_from_a_radio_of_pyomq(scene):
    dish, peer = scene("DISH", "RADIO", "send", join="g", recv_hwm=0)
    while not dish.poll(0.05):
        peer.send([b"does it arrive"])  # what a RADIO sends before it knows of the group is lost
    peer.send(BODIES * 20)
    taken = []
    while len(taken) < len(BODIES) * 20:
        message = dish.recv_message()
        assert message.group == "g"
        if message.body != b"does it arrive":
            taken.append(message.body)
    assert taken == BODIES * 20
