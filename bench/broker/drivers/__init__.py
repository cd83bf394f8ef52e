"""The clients: a module each, with a class `Client` that plays producer and consumer of one server."""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

TOPIC = "bench"
PATIENCE = 60.0  # seconds for any one answer


@dataclass(frozen=True)
class Job:
    """What a client is to do.

    Attributes:
        endpoint: Where the server is.
        size: Bytes of a message.
        depth: Messages that may wait for their acknowledgements; consumers: that may wait for theirs.
        directory: The server's directory: where floors write.
        options: What the peer's row asks of its client.
    """

    endpoint: str
    size: int
    depth: int
    directory: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def host(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.endpoint.rpartition(":")
        return host, int(port)

    def body(self) -> bytes:
        """The body of every message: small letters, so that no protocol's mark can be in it."""
        return bytes(random.Random(self.size).choices(b"abcdefghijklmnopqrstuvwxyz", k=self.size))


class Client(Protocol):
    """What a module's `Client` has; what a server cannot do, it leaves out."""

    def __init__(self, job: Job) -> None: ...

    def create(self) -> None:
        """Makes the topic, and whatever consumers share."""

    def publish(self, count: int) -> None:
        """Publishes; returns when all is acknowledged."""

    def trip(self) -> None:
        """Publishes one message and waits for its acknowledgement."""

    def arm(self) -> None:
        """Does what comes before `consume`: once, and not on the clock."""

    def consume(self, count: int) -> None:
        """Takes so many messages and acknowledges them; returns when the server has the acknowledgements."""

    def replay(self, count: int) -> None:
        """Takes so many messages from the beginning."""


def client(name: str, job: Job) -> Client:
    """A client of the module `name`."""
    found: Client = importlib.import_module(f"bench.broker.drivers.{name}").Client(job)
    return found


def trips(driver: Client, count: int) -> list[int]:
    """Times single publishes, in nanoseconds."""
    found = []
    for _ in range(count):
        started = time.perf_counter_ns()
        driver.trip()
        found.append(time.perf_counter_ns() - started)
    return found
