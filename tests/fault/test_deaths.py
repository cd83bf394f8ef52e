"""A peer dies, and then something is sent: what the peer cannot have seen is the next one's, once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import omq
import omq.asyncio
from tests.fault.crashing_peer import OTHER
from tests.support.fork_server import SOCKETS, ForkedProcess
from tests.support.parameters import each_value_once
from tests.support.ports import held
from tests.support.socket_types import ONE_PART

SEEDS = int(os.environ.get("OMQ_FAULT_SEEDS", "200"))
BOUND = 10.0  # seconds for whatever must come
#: A SERVER and a PEER send by a number that is gone with its peer, and PUB and RADIO drop.
KINDS = ("PUSH", "DEALER", "REQ", "SCATTER", "CLIENT", "CHANNEL")
WAYS = ("kill", "close", "reset", "half")
TWINS = ("blocking", "free", "busy")
SCHEMES = ("tcp", "ipc")


class Mortal:
    """A peer in a process of its own."""

    def __init__(self, kind: str, endpoint: str, way: str, secret: str) -> None:
        self._way = way
        self._process = ForkedProcess(
            "-m",
            *("tests.fault.crashing_peer", kind, endpoint, way, secret),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            template=SOCKETS,
        )
        self.wait_for("at")

    def wait_for(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise AssertionError(f"the peer has ended and has not printed {word!r}")

    def die(self) -> None:
        """Has it die; when this returns, the kernel knows."""
        if self._way == "kill":
            self._process.kill()
            self._process.wait()
        else:
            assert self._process.stdin is not None
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            self.wait_for("gone")

    def rest(self) -> list[str]:
        """Ends the process, if it has not; gives what it has got after its death."""
        if self._way == "half":
            self.wait_for_end()
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        return [line.split()[1] for line in self._process.stdout if line.startswith("got")]

    def wait_for_end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(BOUND)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextlib.contextmanager
def place(scheme: str, folder: Path) -> Iterator[str]:
    if scheme == "ipc":
        yield f"ipc://{folder}/mortal"
    else:
        with held() as port:
            yield f"tcp://127.0.0.1:{port}"


def succeed(kind: str, endpoint: str, secret: str) -> Any:
    """The next peer at the same endpoint: libzmq, or omq where pyzmq lacks the type."""
    if kind in ONE_PART:
        return succeed_ours(kind, endpoint, secret)
    peer = zmq.Context.instance().socket(getattr(zmq, OTHER[kind]))
    peer.linger = 0
    if secret:
        peer.curve_server = True
        peer.curve_secretkey = secret.encode()
    if endpoint.startswith("ipc"):
        Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
    deadline = time.monotonic() + BOUND
    while True:
        try:
            peer.bind(endpoint)
        except zmq.ZMQError:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        else:
            return peer


def succeed_ours(kind: str, endpoint: str, secret: str) -> omq.Socket:
    more = {"security": omq.CurveServer(secret.encode())} if secret else {}
    if endpoint.startswith("ipc"):
        Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
    peer: omq.Socket = getattr(omq, OTHER[kind])(linger=0, **more)
    deadline = time.monotonic() + BOUND
    while True:
        try:
            peer.bind(endpoint)
        except omq.BindError:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        else:
            return peer


def collect(kind: str, peer: Any, count: int) -> list[str]:
    """The next peer's messages, and those that come in the moment after them."""
    got = []
    unit = 1 if kind in ONE_PART else 1000  # of a second: libzmq counts milliseconds
    while peer.poll(unit * (BOUND if len(got) < count else 0.1)):
        body = peer.recv_multipart()[-1]
        got.append(body.decode())
        if kind == "REQ":
            peer.send(body)
    return got


def play(kind: str, twin: str, scheme: str, way: str, pause: float, count: int, folder: Path, **more: Any) -> None:
    """One death: *count* messages are sent *pause* seconds after it."""
    options: dict[str, Any] = {"linger": 0, "reconnect_interval": 0.01, **more}
    secret = ""
    if scheme == "curve":
        public, private = omq.curve_keypair()
        secret = private.decode()
        options["security"] = omq.CurveClient(public)
    if kind == "REQ":
        count = 1
    bodies = [f"{number}" for number in range(count)]
    with place(scheme, folder) as endpoint, contextlib.closing(Mortal(kind, endpoint, way, secret)) as mortal:
        run = live if twin == "blocking" else lambda *given: asyncio.run(alive(twin == "busy", *given))
        got = run(kind, endpoint, options, mortal, pause, bodies, secret)
        after = mortal.rest()
    assert sorted([*got, *after], key=int) == bodies, (after, got)
    assert got == sorted(got, key=int)


def live(
    kind: str, endpoint: str, options: dict[str, Any], mortal: Mortal, pause: float, bodies: list[str], secret: str
) -> list[str]:
    with getattr(omq, kind)(connect=endpoint, **options) as sock:
        sock.send(b"warm")
        assert mortal.wait_for("got") == "warm"
        if kind == "REQ":
            assert sock.recv(timeout=BOUND) == b"warm"
        mortal.die()
        time.sleep(pause)
        for body in bodies:
            sock.send(body.encode(), timeout=BOUND)
        with succeed(kind, endpoint, secret) as peer:
            got = collect(kind, peer, len(bodies))
            if kind == "REQ":
                assert sock.recv(timeout=BOUND) == bodies[0].encode()
    return got


async def alive(
    busy: bool,
    kind: str,
    endpoint: str,
    options: dict[str, Any],
    mortal: Mortal,
    pause: float,
    bodies: list[str],
    secret: str,
) -> list[str]:
    async with getattr(omq.asyncio, kind)(connect=endpoint, **options) as sock:
        await sock.send(b"warm")
        assert await asyncio.to_thread(mortal.wait_for, "got") == "warm"
        if kind == "REQ":
            assert await sock.recv(timeout=BOUND) == b"warm"
        if busy:
            mortal.die()
            time.sleep(pause)  # noqa: ASYNC251 - the loop is busy
        else:
            await asyncio.to_thread(mortal.die)
            await asyncio.sleep(pause)
        for body in bodies:
            await sock.send(body.encode(), timeout=BOUND)
        with await asyncio.to_thread(succeed, kind, endpoint, secret) as peer:
            got = await asyncio.to_thread(collect, kind, peer, len(bodies))
            if kind == "REQ":
                assert await sock.recv(timeout=BOUND) == bodies[0].encode()
    return got


def drawn(seed: int) -> tuple[str, str, str, str, float, int]:
    chance = random.Random(seed)
    scheme = chance.choice(("tcp", "ipc", "curve"))
    way = chance.choice(WAYS if scheme != "curve" else ("kill", "close"))
    if scheme == "ipc" and way == "reset":
        way = "close"  # there is no such thing
    pause = chance.choice((0.0, 0.0005, 0.003, 0.02, 0.05))
    return chance.choice(KINDS), chance.choice(TWINS), scheme, way, pause, chance.randint(1, 30)


@each_value_once(scheme=SCHEMES, twin=TWINS, way=WAYS)
def test_what_is_sent_after_a_death_is_the_next_peers(scheme, twin, way, tmp_path):
    if scheme == "ipc" and way == "reset":
        pytest.skip("ipc knows no reset")
    chance = random.Random(f"{scheme}{twin}{way}")
    play(chance.choice(KINDS), twin, scheme, way, chance.choice((0.0, 0.001, 0.003)), chance.randint(1, 30), tmp_path)


@pytest.mark.slow
@each_value_once(twin=TWINS, kind=KINDS)
def test_so_are_messages_that_were_sealed_for_the_dead_peer(twin, kind, tmp_path):
    play(kind, twin, "curve", "kill", 0.001, 20, tmp_path)


@each_value_once(twin=TWINS, scheme=SCHEMES)
def test_a_request_that_names_its_reply_is_the_next_peers_too(twin, scheme, tmp_path):
    play("REQ", twin, scheme, "kill", 0.001, 1, tmp_path, req_relaxed=True, req_correlate=True)


@pytest.mark.fault
@pytest.mark.parametrize("seed", range(SEEDS))
def test_deaths(seed, tmp_path):
    play(*drawn(seed), tmp_path)
