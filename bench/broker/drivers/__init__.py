"""The clients: a module each, with a class `Client` that is producer and consumer of one server."""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

TOPIC = "bench"
ANSWER_TIMEOUT_S = 60.0  # for any one answer


@dataclass(frozen=True)
class ClientJob:
    """The job of a client.

    Attributes:
        endpoint: The endpoint of the server.
        size: Bytes of a message.
        depth: Messages in flight at most, of a producer and of a consumer.
        directory: The directory of the server, to which floors write.
        options: The client options of the row.
    """

    endpoint: str
    size: int
    depth: int
    directory: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def host(self) -> tuple[str, int]:
        """The host and the port."""
        host, _, port = self.endpoint.rpartition(":")
        return host, int(port)

    def body(self) -> bytes:
        """Returns the body of every message: small letters, so that it contains no delimiter of a protocol."""
        return bytes(random.Random(self.size).choices(b"abcdefghijklmnopqrstuvwxyz", k=self.size))


class Client(Protocol):
    """The methods of the `Client` of each module; without those that a server does not support."""

    def __init__(self, job: ClientJob) -> None: ...

    def create(self) -> None:
        """Makes the topic, and the consumer group if there is one."""

    def publish(self, count: int) -> None:
        """Publishes; returns when all is acknowledged."""

    def trip(self) -> None:
        """Publishes one message and waits for its acknowledgement; in a driver of reads: reads one message."""

    def arm(self) -> None:
        """Prepares `consume`, once; its time does not count."""

    def consume(self, count: int) -> None:
        """Receives *count* messages and acknowledges them; returns when the server has the acknowledgements."""

    def replay(self, count: int) -> None:
        """Receives *count* messages from the beginning."""


def client(name: str, job: ClientJob) -> Client:
    """Returns a client of the module *name*."""
    found: Client = importlib.import_module(f"bench.broker.drivers.{name}").Client(job)
    return found


def trips(driver: Client, count: int) -> list[int]:
    """Times single calls, in nanoseconds."""
    found = []
    for _ in range(count):
        started = time.perf_counter_ns()
        driver.trip()
        found.append(time.perf_counter_ns() - started)
    return found
