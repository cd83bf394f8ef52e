"""Measures how much other work slows a publisher and a replay: `python -m bench.broker.neighbors`.

A client publishes one message at a time to a broker with many topics, alone and next to a scrape of `/metrics` each
second. Another replays a topic alone, next to a consumer group of the same topic, and, to separate the group from the
load on the cores, next to a work queue of another topic. The phases of each comparison take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median

import omq.asyncio.broker
from bench.broker.servers import serving
from bench.processes import ROOT, RunError
from omq.broker import Client

CREATED_AT_ONCE = 1000  # topics
PUBLISH_PAUSE_S = 0.002  # between two publications that are timed
CLIENT_TIMEOUT_S = 120.0
MESSAGE_BYTES = 1024
BATCH = 10_000  # messages published at once


@contextmanager
def _next_to(*words: str) -> Iterator[None]:
    """Runs this program in a role, in a process of its own, and waits for its first line."""
    command = [sys.executable, "-m", "bench.broker.neighbors", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise RunError(f"{' '.join(words)}: ended with status {process.wait()}")
        yield
    finally:
        process.kill()
        process.communicate()


def _scrape(url: str) -> None:
    while True:
        began = time.monotonic()
        with urllib.request.urlopen(url, timeout=60) as answer:
            answer.read()
        print(time.monotonic() - began, flush=True)
        time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))


def _consume(endpoint: str, topic: str, group: str) -> None:
    with Client(endpoint, timeout=CLIENT_TIMEOUT_S) as client:
        consumer = client.consume(topic, group=group, replay="earliest") if group else client.consume(topic)
        done = 0
        while True:
            deliveries = consumer.recv_many()
            consumer.ack(deliveries)
            if not done:
                print("begun", flush=True)
            done += len(deliveries)


async def _create(endpoint: str, topics: int) -> None:
    async with omq.asyncio.broker.Client(endpoint, timeout=CLIENT_TIMEOUT_S) as client:
        for first in range(0, topics, CREATED_AT_ONCE):
            numbers = range(first, min(first + CREATED_AT_ONCE, topics))
            await asyncio.gather(*(client.create(f"topic{number}", persistence="weak") for number in numbers))


def scrapes(place: Path, topics: int, rounds: int, seconds: float) -> dict[str, list[list[float]]]:
    """Returns the seconds of publications by phase, one list each round."""
    took = defaultdict[str, list[list[float]]](list)
    with serving("omq", {"http": "127.0.0.1:0"}, place) as server, Client(server.endpoint, timeout=60) as client:
        asyncio.run(_create(server.endpoint, topics))
        url = json.loads((server.directory / "ready").read_text())["http"] + "/metrics"
        for _ in range(rounds):
            for phase in ("alone", "next to a scrape each second"):
                with nullcontext() if phase == "alone" else _next_to("--role", "scrape", url):
                    times: list[float] = []
                    end = time.monotonic() + seconds
                    while (began := time.monotonic()) < end:
                        client.publish("topic5", b"x")
                        times.append(time.monotonic() - began)
                        time.sleep(PUBLISH_PAUSE_S)
                took[phase].append(times)
    return took


def replays(place: Path, messages: int, rounds: int) -> dict[str, list[float]]:
    """Returns the messages a second of replays, by phase."""
    rates = defaultdict[str, list[float]](list)
    with serving("omq", {}, place) as server, Client(server.endpoint, timeout=CLIENT_TIMEOUT_S) as client:
        client.create("log")
        _fill(client, "log", messages)
        _replay(client, messages)
        for number in range(rounds):
            client.create(f"queue{number}", delivery="round-robin")
            _fill(client, f"queue{number}", messages)
            rates["alone"].append(_replay(client, messages))
            for phase, topic, group in (
                ("next to a work queue of another topic", f"queue{number}", ""),
                ("next to a group of the same topic", "log", f"group{number}"),
            ):
                with _next_to("--role", "consume", server.endpoint, topic, group):
                    rates[phase].append(_replay(client, messages))
    return rates


def _fill(client: Client, topic: str, messages: int) -> None:
    body = bytes(MESSAGE_BYTES)
    for _ in range(0, messages, BATCH):
        client.publish_many(topic, [body] * BATCH)


def _replay(client: Client, messages: int) -> float:
    done = 0
    began = time.monotonic()
    with client.subscribe("log", replay="earliest") as subscription:
        while done < messages:
            done += len(subscription.recv_many())
    return done / (time.monotonic() - began)


def _quantile(times: Sequence[float], part: float) -> float:
    return sorted(times)[int(len(times) * part)] * 1000


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser("python -m bench.broker.neighbors", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--topics", type=int, default=10_000, help="topics of the broker that is scraped")
    parser.add_argument("--messages", type=int, default=500_000, help="messages that are replayed")
    parser.add_argument("--rounds", type=int, default=4, help="of each phase")
    parser.add_argument("--seconds", type=float, default=5.0, help="of publications, in each phase")
    parser.add_argument("--role", choices=("scrape", "consume"), help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    found = parser.parse_args(argv)
    if found.role == "scrape":
        _scrape(*found.words)
    if found.role == "consume":
        _consume(*found.words)
    place = Path(tempfile.gettempdir())
    print(f"one publication at a time, {found.topics:,} topics{'':12}p50 ms  p99 ms  p99 of each round")
    for phase, times in scrapes(place, found.topics, found.rounds, found.seconds).items():
        every = [one for part in times for one in part]
        each = " ".join(f"{_quantile(part, 0.99):.2f}" for part in times)
        print(f"{phase:50}{_quantile(every, 0.5):8.2f}{_quantile(every, 0.99):8.2f}  {each}")
    print(f"\nreplay of {found.messages:,} messages{'':22}messages/s  spread")
    for phase, rates in replays(place, found.messages, found.rounds).items():
        print(f"{phase:48}{median(rates):12,.0f}  {min(rates):,.0f} - {max(rates):,.0f}")


if __name__ == "__main__":
    main()
