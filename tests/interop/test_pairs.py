"""Every compatible pair of types, omq on the one side and libzmq on the other, byte for byte."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from tests.interop.conftest import Fresh
from tests.interop.libzmq import Libzmq
from tests.interop.payloads import MIB, SHAPES, octets
from tests.interop.run_coroutine import on_uvloop
from tests.interop.socket_pairs import ONE_WAY, by_side, conversing, joined
from tests.support.parameters import each_value_once

PAIRS = [pytest.param(pair, id=f"omq-{pair[0]}-zmq-{pair[1]}") for pair in by_side()]
BINDS = pytest.mark.parametrize("binds", [pytest.param(side, id=f"{side}-binds") for side in ("omq", "zmq")])
TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "ipc"])


async def there(sender: Any, receiver: Any, sent: list[bytes], expected: list[bytes], what: str) -> None:
    """Sends one message and compares what arrives, without printing a megabyte when they differ."""
    await sender.send_multipart(sent)
    got = await receiver.recv_multipart()
    assert [len(part) for part in got] == [len(part) for part in expected], what
    assert got == expected, f"{what}: the sizes agree, the contents do not"


@pytest.mark.parametrize("pair", PAIRS)
@BINDS
@TRANSPORTS
@on_uvloop
async def test_every_shape_of_message(
    libzmq: Libzmq, fresh: Fresh, pair: tuple[str, str], binds: str, transport: str
) -> None:
    talk = conversing(libzmq, fresh, pair, binds=binds, transport=transport)
    async with talk as (first, second, before_first, before_second):
        answers = not set(pair) & set(ONE_WAY)
        for shape, message in SHAPES.items():
            here, away = [*before_first, *message], [*before_second, *message]
            await there(first, second, here, away, shape)
            if answers:
                here, away = [*before_first, *message[::-1]], [*before_second, *message[::-1]]
                await there(second, first, away, here, f"{shape}, back")


@each_value_once(transport=["tcp", "ipc"], binds=["omq", "zmq"], first__second=[("PULL", "PUSH"), ("PUSH", "PULL")])
@on_uvloop
async def test_64_mib(libzmq: Libzmq, fresh: Fresh, first: str, second: str, binds: str, transport: str) -> None:
    talk = conversing(libzmq, fresh, (first, second), binds=binds, transport=transport)
    async with talk as (sender, receiver, _, _):
        message = [octets(64 * MIB)]
        await there(sender, receiver, message, message, "64 MiB")


@pytest.mark.slow
@on_uvloop
async def test_64_mib_through_router_and_back(libzmq: Libzmq, fresh: Fresh) -> None:
    talk = conversing(libzmq, fresh, ("ROUTER", "DEALER"), binds="omq", transport="tcp")
    async with talk as (dealer, router, before_dealer, before_router):
        body = octets(64 * MIB)
        here, away = [*before_dealer, body, b"tail"], [*before_router, body, b"tail"]
        await there(dealer, router, here, away, "64 MiB")
        await there(router, dealer, away, here, "64 MiB, back")


def mixed(count: int) -> list[bytes]:
    """Messages of all sizes, each with its number, large ones among runs of small ones."""
    random = Random(count)
    sizes = random.choices([0, 8, 100, 300, 5000, 70_000], weights=[20, 40, 20, 10, 9, 1], k=count)
    return [b"%d:" % number + octets(size) for number, size in enumerate(sizes)]


@pytest.mark.slow
@pytest.mark.parametrize("sender", ["omq", "zmq"])
@BINDS
@TRANSPORTS
@on_uvloop
async def test_a_stream_of_mixed_sizes_keeps_its_order(
    libzmq: Libzmq, fresh: Fresh, sender: str, binds: str, transport: str
) -> None:
    kinds = ("PUSH", "PULL") if sender == "omq" else ("PULL", "PUSH")
    async with joined(libzmq, fresh(transport), *kinds, binds=binds) as (ours, theirs):
        push, pull = (ours, theirs) if sender == "omq" else (theirs, ours)
        messages = mixed(10_000)

        async def feed() -> None:
            for message in messages:
                await push.send(message)

        async with asyncio.TaskGroup() as group:
            group.create_task(feed())
            for number, message in enumerate(messages):
                got = await pull.recv()
                assert got == message, f"message {number} of {len(message)} bytes: got {got[:20]!r}"


@on_uvloop
async def test_many_libzmq_workers_share_what_omq_pushes(libzmq: Libzmq, fresh: Fresh) -> None:
    async with joined(libzmq, fresh("tcp"), "PUSH", "PULL", binds="omq") as (push, worker):
        workers = [worker, *(libzmq.open("PULL", connect=push.endpoints[0]) for _ in range(3))]
        await push.wait_connected(4, timeout=5)
        messages = [b"%d" % number for number in range(400)]
        for message in messages:
            await push.send(message)
        got: list[bytes] = []
        busy = set()
        complete = asyncio.Event()

        async def work(number: int) -> None:
            while True:
                got.append(await workers[number].recv())
                busy.add(number)
                if len(got) == len(messages):
                    complete.set()

        tasks = [asyncio.create_task(work(number)) for number in range(4)]
        try:
            await complete.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert sorted(got, key=int) == messages
        assert busy == {0, 1, 2, 3}, "a burst to idle workers is shared among them"


@on_uvloop
async def test_omq_takes_from_many_libzmq_peers_fairly(libzmq: Libzmq, fresh: Fresh) -> None:
    async with joined(libzmq, fresh("tcp"), "PULL", "PUSH", binds="omq") as (pull, pusher):
        pushers = [pusher, *(libzmq.open("PUSH", connect=pull.endpoints[0]) for _ in range(3))]
        for number, push in enumerate(pushers):
            for turn in range(100):
                await push.send(b"%d %d" % (number, turn))
        turns: dict[int, list[int]] = {number: [] for number in range(4)}
        for _ in range(400):
            number, turn = map(int, (await pull.recv(timeout=5)).split())
            turns[number].append(turn)
        assert all(seen == list(range(100)) for seen in turns.values()), "each peer's messages keep their order"
