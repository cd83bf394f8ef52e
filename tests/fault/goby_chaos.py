"""A bus whose required clients come in any order, crash, return and are late: a history, and what is true of it."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, Self

import omq.asyncio.goby as twin
from omq.goby import Daemon, Portal
from tests.support.waits import until

ROOT = Path(__file__).parents[2]
GROUP = "hold"
REQUIRED = ("a", "b", "c")
TURNS = 24  # threads that wake up one after the other between "ready" and a delivery


class Client:
    """A client in this process, which publishes to a group and keeps all that comes there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.got: list[str] = []
        self.first: float | None = None  # when the first publication came
        self.published = 0

    def received(self, text: str) -> None:
        """The callback of its subscription."""
        if self.first is None:
            self.first = time.monotonic()
        self.got.append(text)

    def next(self) -> str:
        """The next line that it prints."""
        self.published += 1
        return f"{self.name} {self.published}"

    def publish(self, count: int) -> None:
        raise NotImplementedError

    def ready(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingClient(Client):
    """Of the blocking twin."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__(name)
        self.portal = Portal(name, **options)
        self.portal.subscribe(GROUP, str, self.received)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.portal.publish(GROUP, self.next())

    def ready(self) -> None:
        self.portal.ready()

    def close(self) -> None:
        self.portal.close()


class AsyncClient(Client):
    """Of the asyncio twin, in a loop of its own."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__(name)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.portal = twin.Portal(name, **options)
        self._run(self._begin())

    async def _begin(self) -> None:
        await self.portal.start()
        self.portal.subscribe(GROUP, str, self.received)

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _publish(self, count: int) -> None:
        for _ in range(count):
            await self.portal.publish(GROUP, self.next())

    def publish(self, count: int) -> None:
        self._run(self._publish(count))

    def ready(self) -> None:
        self._loop.call_soon_threadsafe(self.portal.ready)

    def close(self) -> None:
        self._run(self.portal.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def crash(name: str, options: dict[str, Any], daemon: Daemon) -> None:
    """A client that reports itself ready, and is killed then."""
    process = Popen(
        [sys.executable, __file__, name, json.dumps(options)], stdin=PIPE, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    )
    try:
        until(lambda: name not in daemon.missing)
    finally:
        process.kill()
        process.communicate()
    until(lambda: name in daemon.missing)


class Lateness:
    """The delays of this machine's threads during a measurement: a busy machine adds them to each of some turns."""

    def __init__(self) -> None:
        self.worst = 0.0  # seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(0.001):
            now = time.monotonic()
            self.worst, before = max(self.worst, now - before - 0.001), now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.stop()


def play(folder: Path, seed: int) -> float:
    """Plays a history.

    Returns:
        Seconds from the last "ready" to the first delivery, without what the machine was late by.
    """
    draw = random.Random(seed)
    tcp = draw.random() < 0.5
    at: dict[str, Any] = (
        {"transport": "tcp", "port": 0, "host": "127.0.0.1"} if tcp else {"socket_name": str(folder / "g")}
    )
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(required_clients=REQUIRED, **at))
        options: dict[str, Any] = {"socket_name": str(folder / "g")}
        if tcp:
            options = {"transport": "tcp", "port": int(daemon.endpoints["manager"].rpartition(":")[2])}

        def come(name: str) -> Client:
            return stack.enter_context(draw.choice([BlockingClient, AsyncClient])(name, options))

        order = draw.sample(REQUIRED, 3)
        late = order[-1] if draw.random() < 0.5 else None
        crashing = draw.choice(REQUIRED) if draw.random() < 0.5 else None
        names = ["view", *REQUIRED]
        draw.shuffle(names)
        clients = {name: come(name) for name in names if name not in (late, crashing)}
        for client in draw.sample(list(clients.values()), len(clients)):
            client.publish(draw.choice([0, 1, 10, 300]))
        if crashing is not None:
            crash(crashing, options, daemon)
        for name in order:
            if name not in clients:
                clients[name] = come(name)
                clients[name].publish(draw.choice([0, 1, 10, 300]))
            draw.choice(list(clients.values())).publish(draw.choice([0, 1, 10]))
            time.sleep(draw.choice([0, 0, 0.001, 0.01, 0.05]))
            assert all(client.got == [] for client in clients.values()), "nothing leaves while it is held"
            if name == order[-1]:
                clients[name].publish(1)  # there is something to be delivered
                delay = stack.enter_context(Lateness())
                last = time.monotonic()
            clients[name].ready()
        sent = {name: client.published for name, client in clients.items()}
        until(lambda: any(client.got for client in clients.values()), lambda: (seed, sent), 15)
        delay.stop()

        def complete(name: str) -> bool:
            return len(clients[name].got) >= sum(sent.values())

        until(lambda: all(complete(name) for name in REQUIRED), lambda: (seed, sent, counts(clients)), 15)
        for name in REQUIRED:
            for other, count in sent.items():
                received_from = [text for text in clients[name].got if text.startswith(f"{other} ")]
                assert received_from == [f"{other} {number}" for number in range(1, count + 1)], (seed, name, other)
        # What is published from now on is in force everywhere, too.
        until(lambda: all(client.portal.released for client in clients.values()))  # type: ignore[attr-defined]
        for client in clients.values():
            client.publish(5)
        total = sum(client.published for client in clients.values())
        until(lambda: all(len(clients[name].got) == total for name in REQUIRED), lambda: (seed, counts(clients)), 15)
        return min(client.first for client in clients.values() if client.first is not None) - last - TURNS * delay.worst


def counts(clients: dict[str, Client]) -> dict[str, int]:
    """Returns the number of publications that each client has received."""
    return {name: len(client.got) for name, client in clients.items()}


def main() -> None:
    """The client that is killed."""
    client = BlockingClient(sys.argv[1], json.loads(sys.argv[2]))
    client.publish(3)
    client.ready()
    sys.stdin.read()


if __name__ == "__main__":
    main()
