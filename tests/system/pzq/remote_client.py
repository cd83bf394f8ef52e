"""A client on a host of its own: it reads commands and prints their results, each as one line of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from omq.errors import ReceiveTimeout
from omq.pzq import Consumer, NotReplicated, Producer, ProduceTimeout
from tests.support.libzmq_pzq_clients import figures
from tests.support.waits import until


def produce(endpoint: str, bodies: list[str], timeout: float) -> str:
    """Sends messages; whether they are `stored`, `not replicated`, or `late`."""
    with Producer(endpoint, timeout=timeout) as producer:
        try:
            producer.send_many([body.encode() for body in bodies])
        except NotReplicated:
            return "not replicated"
        except ProduceTimeout:
            return "late"
    return "stored"


def consume(endpoint: str, count: int, timeout: float) -> list[str]:
    """Takes and acknowledges *count* messages, or those that come in time."""
    found = []
    with Consumer(endpoint) as consumer:
        try:
            for _ in range(count):
                delivery = consumer.recv(timeout=timeout)
                found.append(delivery.body.decode())
                delivery.ack()
        except ReceiveTimeout:
            pass
    return found


def wait(endpoint: str, name: str, value: int) -> None:
    """Waits until a counter of a node has a value."""
    until(lambda: figures(endpoint)[name] == value, lambda: figures(endpoint))


def main() -> None:
    """Runs the commands."""
    does: dict[str, Callable[..., Any]] = {"produce": produce, "consume": consume, "wait": wait}
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(does[name](*arguments)), flush=True)


if __name__ == "__main__":
    main()
