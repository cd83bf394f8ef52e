"""Threads that share blocking sockets and use them at random: nothing is lost, and no thread hangs."""

from __future__ import annotations

import contextlib
import gc
import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import omq
from tests.support.socket_types import GROUP, NUMBERED, ONE_PART, ONE_PEER, PAIRS, options_of

TIMEOUT_S = 30.0  # seconds for what remains to arrive, and for a thread to end
KINDS = [("PUSH", "PULL"), ("DEALER", "DEALER"), ("PAIR", "PAIR"), ("XPUB", "XSUB"), *PAIRS]
TALKATIVE = {"PUSH", "DEALER", "PAIR", "XPUB", "SCATTER", "CLIENT", "CHANNEL", "RADIO"}
#: They send by number: the first socket to those that have dialled, which only listen.
TALKATIVE_FIRST = TALKATIVE | NUMBERED
LISTENING = {"PULL", "DEALER", "PAIR", "XSUB", "GATHER", "CLIENT", "SERVER", "CHANNEL", "PEER", "DISH"}
SIZES = (0, 0, 10, 5000, 100_000)
MARKS = (0, 1, 2, 10, 1000)


class Party:
    """Some sockets and the threads that share them.

    Attributes:
        sent: How many messages each sending thread has had accepted.
        ending: The sockets are being closed, and so a number may be of no peer any more.
        got: What each socket has received of each sending thread, in the order in which it came.
    """

    def __init__(self, context: omq.Context, chance: random.Random, endpoint: str) -> None:
        self.chance = chance
        self.over = threading.Event()
        self.sent: list[int] = []
        self.got: list[dict[int, list[int]]] = []
        self.failures: list[BaseException] = []
        self.ending = False
        self._threads: list[threading.Thread] = []
        kind, other = chance.choice(KINDS)
        count = 1 if kind in ONE_PEER else chance.randint(1, 3)
        more: dict[str, Any] = {"xpub_nodrop": True} if kind == "XPUB" else {}
        first = getattr(omq, kind)(context, bind=endpoint, **self._marks(kind), **more)
        more = {"subscribe": b""} if other == "XSUB" else options_of(other, kind)
        connect = first.endpoints[0]
        self.sockets = [
            first,
            *(getattr(omq, other)(context, connect=connect, **self._marks(other), **more) for _ in range(count)),
        ]
        first.wait_connected(count, timeout=TIMEOUT_S)
        self.copies = count if kind in ("XPUB", "RADIO") else 1
        if kind in ("XPUB", "RADIO"):
            first.wait_subscribed(n=count, timeout=TIMEOUT_S)
        #: The keywords that `send` may get.
        self.routes: list[dict[str, Any]] = [{"group": GROUP} if kind == "RADIO" else {}]
        if kind in NUMBERED:
            greeted = [first.recv_message(timeout=TIMEOUT_S) for _ in range(count)]
            self.routes = [{"routing_id": one.routing_id} for one in greeted]
        self.what = f"{kind} to {count} {other} over {endpoint}, {[s.options.recv_hwm for s in self.sockets]}"

    def _marks(self, kind: str) -> dict[str, int]:
        # A RADIO drops what has no room.
        marks = {"send_hwm": self.chance.choice(MARKS) if kind != "RADIO" else 0} if kind != "PULL" else {}
        return marks | ({"recv_hwm": self.chance.choice(MARKS)} if kind != "PUSH" else {})

    def begin(self) -> None:
        """Starts the threads."""
        watched = self.chance.random() < 0.4
        for socket in self.sockets:
            self._start(self._meddle, socket)
            if socket.socket_type.value in (TALKATIVE_FIRST if socket is self.sockets[0] else TALKATIVE):
                for _ in range(self.chance.randint(1, 3)):
                    self.sent.append(0)
                    self._start(self._send, socket, len(self.sent) - 1)
            if socket.socket_type.value in LISTENING:
                self.got.append({})
                self._start(self._receive, socket, self.got[-1], watched)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        def run() -> None:
            try:
                work(random.Random(seed), *arguments)
            except omq.ClosedError:
                pass
            except omq.UnroutableError as error:
                if not self.ending:
                    self.failures.append(error)
            except BaseException as error:
                self.failures.append(error)

        seed = self.chance.random()
        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def join(self) -> None:
        """Waits for the threads; raises what one of them raised."""
        self.over.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive(), f"a thread hangs: {self.what}"
        if self.failures:
            raise self.failures[0]

    def _send(self, chance: random.Random, socket: Any, me: int) -> None:
        while not self.over.is_set():
            number = self.sent[me]
            body = b"%d:%d:" % (me, number) + b"x" * chance.choice(SIZES)
            timeout = chance.choice([0, 0.001, 0.1])
            route = chance.choice(self.routes) if socket is self.sockets[0] else {}
            with contextlib.suppress(omq.SendTimeout):
                match chance.randrange(4):
                    case 0:
                        parts = [body] if socket.socket_type.value in ONE_PART else [body, b"", body]
                        socket.send_multipart(parts, timeout=timeout, **route)
                        self.sent[me] += 1
                    case 1 if not route:
                        run = [b"%d:%d:" % (me, number + step) for step in range(50)]
                        self.sent[me] += socket.send_many(run, timeout=timeout)
                    case _:
                        socket.send(body, timeout=timeout, **route)
                        self.sent[me] += 1
            if chance.random() < 0.02:
                time.sleep(chance.random() * 0.02)

    def _receive(self, chance: random.Random, socket: Any, got: dict[int, list[int]], watched: bool) -> None:
        buffer = bytearray(200_000)
        while not self.over.is_set():
            timeout = chance.choice([0, 0.001, 0.05])
            with contextlib.suppress(omq.ReceiveTimeout, omq.MultipartError):
                match chance.randrange(7):
                    case 0 | 1:
                        note(got, socket.recv_multipart(timeout=timeout))
                    case 2:
                        for message in socket.recv_many(chance.randint(1, 300), timeout=timeout):
                            note(got, message)
                    case 3:
                        note(got, socket.recv(timeout=timeout))
                    case 4:
                        note(got, bytes(buffer[: socket.recv_into(buffer, timeout=timeout)]))
                    case 5:
                        note(got, socket.recv_message(timeout=timeout).parts)
                    case _:
                        if watched:
                            select.select([socket.fileno()], [], [], timeout)
                        else:
                            socket.poll(timeout)
            if chance.random() < 0.05:
                time.sleep(chance.random() * 0.03)

    def _meddle(self, chance: random.Random, socket: Any) -> None:
        while not self.over.is_set():
            match chance.randrange(5):
                case 0:
                    repr(socket), socket.peers, gc.collect(0)
                case 1:
                    socket.set_options(**self._marks(socket.socket_type.value))
                case 2:
                    socket.monitor().close()
                case 3:
                    with contextlib.suppress(omq.Timeout):
                        socket.wait_connected(5, timeout=0.001)
                case _:
                    socket.unbind(socket.bind(f"inproc://aside-{id(socket)}"))
            time.sleep(chance.random() * 0.01)

    def drain(self) -> None:
        """Receives what is left."""
        listeners = [socket for socket in self.sockets if socket.socket_type.value in LISTENING]
        end = time.monotonic() + TIMEOUT_S
        while self.received < self.accepted and time.monotonic() < end:
            for socket, got in zip(listeners, self.got, strict=True):
                with contextlib.suppress(omq.ReceiveTimeout):
                    for message in socket.recv_many(timeout=0.01):
                        note(got, message)

    @property
    def received(self) -> int:
        return sum(len(numbers) for got in self.got for numbers in got.values())

    @property
    def accepted(self) -> int:
        return self.copies * sum(self.sent)

    def check(self) -> None:
        """Checks that the messages of a sender have arrived in their order and once."""
        for got in self.got:
            for me, numbers in got.items():
                assert numbers == sorted(set(numbers)), f"of thread {me}: out of order, or twice: {self.what}"


def note(got: dict[int, list[int]], message: Any) -> None:
    """Takes a message down."""
    first, last = (message, message) if isinstance(message, bytes) else (message[0], message[-1])
    assert first == last, "two messages have been mixed"
    me, number, _ = first.split(b":")
    got.setdefault(int(me), []).append(int(number))


@pytest.fixture
def context() -> Iterator[omq.Context]:
    with omq.Context() as context:
        yield context


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 40))])
def test_threads_that_share_sockets(context: omq.Context, seed: int, tmp_path: Any) -> None:
    chance = random.Random(seed)
    for turn in range(3):
        endpoint = chance.choice(["tcp://127.0.0.1:*", f"ipc://{tmp_path}/{turn}", f"inproc://{seed}-{turn}"])
        party = Party(context, chance, endpoint)
        party.begin()
        time.sleep(chance.random() + 0.1)
        if chance.random() < 0.6:
            party.join()
            party.drain()
            assert party.received == party.accepted, f"lost: {party.what}"
            for socket in party.sockets:
                socket.stop()
        else:
            party.ending = True
            for socket in chance.sample(party.sockets, len(party.sockets)):
                chance.choice([socket.stop, lambda one=socket: one.close(linger=0)])()
            party.join()
        party.check()
