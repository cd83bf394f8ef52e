"""The sockets of `omq.zmq.asyncio`: Futures, their order, timeouts, cancellation, and loops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

import omq.zmq as zmq
import omq.zmq.asyncio as zmq_asyncio

TIMEOUT_S = 20
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a coroutine on a loop of asyncio, and on one of uvloop."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield lambda coroutine: runner.run(asyncio.wait_for(coroutine, TIMEOUT_S))


@pytest.fixture
def context() -> Iterator[zmq_asyncio.Context]:
    """A context that is destroyed after the test, and keeps its sockets until then from the garbage collector."""
    kept = []

    class Keeping(zmq_asyncio.Context):
        def socket(self, *args: Any, **kwargs: Any) -> Any:
            kept.append(super().socket(*args, **kwargs))
            return kept[-1]

    made = Keeping()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def pair(context: zmq_asyncio.Context) -> tuple[Any, Any]:
    """A PULL, and a PUSH that is connected to it."""
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.bind("tcp://127.0.0.1:*")
    push.connect(pull.last_endpoint.decode())
    return pull, push


def test_calls_return_futures_that_are_done_when_the_result_is_there(run: Run, pair: tuple[Any, Any]) -> None:
    pull, push = pair

    async def main() -> None:
        waiting = pull.recv()
        assert isinstance(waiting, asyncio.Future)
        assert not waiting.done()
        await push.send(b"first")
        assert await waiting == b"first"
        for parts in ([b"a"], [b"b", b"c"], [b"", b"d", b"e"]):
            sent = push.send_multipart(parts)
            assert isinstance(sent, asyncio.Future)
            assert sent.result() is None
        assert await pull.poll(10_000) == zmq.POLLIN
        received = pull.recv_multipart()
        assert isinstance(received, asyncio.Future)
        assert received.result() == [b"a"]
        assert await pull.recv() == b"b"
        assert pull.rcvmore
        assert await pull.recv() == b"c"
        assert (await pull.recv_multipart(copy=False))[2].bytes == b"e"

    run(main())


def test_calls_that_wait_keep_their_order(run: Run, pair: tuple[Any, Any]) -> None:
    pull, push = pair

    async def main() -> None:
        waiting = [pull.recv() for _ in range(20)]
        for number in range(20):
            await push.send(b"%d" % number)
        assert await asyncio.gather(*waiting) == [b"%d" % number for number in range(20)]

    run(main())


def test_sends_that_wait_for_room_keep_their_order(run: Run, context: zmq_asyncio.Context) -> None:
    async def main() -> None:
        push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        push.bind("tcp://127.0.0.1:*")
        waiting = [push.send(b"0"), push.send_multipart([b"1", b"2"]), push.send(b"3")]
        assert not any(one.done() for one in waiting)
        pull.connect(push.last_endpoint.decode())
        assert [await pull.recv_multipart() for _ in waiting] == [[b"0"], [b"1", b"2"], [b"3"]]
        await asyncio.gather(*waiting)

    run(main())


def test_a_message_in_parts_waits_for_the_peer(run: Run, context: zmq_asyncio.Context) -> None:
    async def main() -> None:
        request, reply = context.socket(zmq.REQ), context.socket(zmq.REP)
        request.bind("tcp://127.0.0.1:*")
        waiting = [request.send(b"a", zmq.SNDMORE), request.send(b"b")]
        assert not any(one.done() for one in waiting)
        reply.connect(request.last_endpoint.decode())
        assert await reply.recv_multipart() == [b"a", b"b"]
        await asyncio.gather(*waiting)

    run(main())


def test_a_cancelled_call_takes_nothing(run: Run, pair: tuple[Any, Any]) -> None:
    pull, push = pair

    async def main() -> None:
        cancelled, kept = pull.recv(), pull.recv_string()
        cancelled.cancel()
        dropped = pull.recv_json()
        dropped.cancel()
        await push.send(b"kept")
        await push.send(b"last")
        assert await kept == "kept"
        assert await pull.recv() == b"last"
        assert not pull._recv_futures

    run(main())


def test_timeouts_and_dontwait(run: Run, context: zmq_asyncio.Context) -> None:
    async def main() -> None:
        pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        pull.rcvtimeo = push.sndtimeo = 20
        pull.bind("tcp://127.0.0.1:*")
        for call in (
            lambda: pull.recv(zmq.DONTWAIT),
            pull.recv,
            lambda: push.send(b"x", zmq.DONTWAIT),
            lambda: push.send(b"x"),
        ):
            with pytest.raises(zmq.Again):
                await call()
        assert await pull.poll(10) == 0
        assert not pull._recv_futures
        assert not push._send_futures

    run(main())


def test_faces_of_one_socket(run: Run, pair: tuple[Any, Any]) -> None:
    pull, push = pair
    blocking = zmq.Socket.shadow(push)

    async def main() -> None:
        waiting = pull.recv()
        blocking.send(b"sent by the blocking face")
        assert await waiting == b"sent by the blocking face"
        other = zmq_asyncio.Socket(zmq.Socket.shadow(pull))
        waiting = other.recv()
        thread = threading.Thread(target=blocking.send, args=(b"from a thread",))
        thread.start()
        assert await waiting == b"from a thread"
        thread.join()
        other.close()

    run(main())


def test_a_poller_of_sockets_of_both_kinds(run: Run, pair: tuple[Any, Any]) -> None:
    pull, push = pair
    blocking = zmq.Socket.shadow(pull)

    async def main() -> None:
        poller = zmq_asyncio.Poller()
        poller.register(blocking, zmq.POLLIN)
        assert await poller.poll(10) == []
        waiting = poller.poll(10_000)
        await push.send(b"x")
        assert await waiting == [(blocking, zmq.POLLIN)]
        poller.register(push, zmq.POLLOUT)
        assert await poller.poll() == [(blocking, zmq.POLLIN), (push, zmq.POLLOUT)]

    run(main())


def test_close_and_term_end_the_calls_that_wait(run: Run, context: zmq_asyncio.Context) -> None:
    async def main() -> None:
        pull = context.socket(zmq.PULL)
        waiting = pull.recv()
        pull.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        pull = context.socket(zmq.PULL)
        waiting = pull.recv()
        thread = threading.Thread(target=context.term)
        thread.start()
        with pytest.raises(zmq.ContextTerminated):
            await waiting
        pull.close()
        await asyncio.to_thread(thread.join)

    run(main())


def test_one_loop_after_another(pair: tuple[Any, Any]) -> None:
    pull, push = pair

    async def main() -> None:
        waiting = pull.recv()
        await push.send(b"x")
        assert await waiting == b"x"

    for make in (asyncio.new_event_loop, uvloop.new_event_loop) * 2:
        with asyncio.Runner(loop_factory=make) as runner:
            runner.run(asyncio.wait_for(main(), TIMEOUT_S))


@pytest.mark.parametrize("call", ["recv", "poll", "cancelled"])
def test_a_subscription_counts_that_comes_while_the_loop_computes(
    run: Run, context: zmq_asyncio.Context, call: str
) -> None:
    xpub = context.socket(zmq.XPUB)
    xpub.bind("tcp://127.0.0.1:*")
    blocking: Any = zmq.Context()

    async def main() -> None:
        waiting = xpub.poll() if call == "poll" else xpub.recv()
        await asyncio.sleep(0.05)
        if call == "cancelled":
            waiting.cancel()
        with blocking.socket(zmq.SUB) as sub:
            sub.subscribe(b"a")
            sub.connect(xpub.last_endpoint.decode())
            time.sleep(0.7)  # noqa: ASYNC251 - a computation
            await xpub.send(b"a1")
            sub.rcvtimeo = 2000
            assert sub.recv() == b"a1"
        waiting.cancel()

    try:
        run(main())
    finally:
        blocking.term()


def test_a_last_value_cache_makes_its_subscriptions(run: Run, context: zmq_asyncio.Context) -> None:
    async def main() -> None:
        xpub, sub = context.socket(zmq.XPUB), context.socket(zmq.SUB)
        xpub.xpub_manual_last_value = 1
        xpub.bind("tcp://127.0.0.1:*")
        sub.subscribe(b"a")
        sub.connect(xpub.last_endpoint.decode())
        assert await xpub.recv() == b"\1a"
        xpub.setsockopt(zmq.SUBSCRIBE, b"a")
        await xpub.send(b"a1")
        assert await sub.recv() == b"a1"

    run(main())


def test_parts_that_share_memory_are_sent_at_once_or_wait_for_room(
    run: Run, context: zmq_asyncio.Context, tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    push.sndhwm = 2
    parts = [zmq.Frame(b"frame", track=True), bytearray(b"array"), memoryview(b"view" * 50_000)]

    async def main() -> None:
        push.connect(endpoint)
        sent = [push.send_multipart(parts, copy=False, track=True) for _ in range(3)]
        assert [one.done() for one in sent] == [True, True, False]
        pull.bind(endpoint)
        for one in sent:
            tracker = await one
            assert [bytes(part) for part in await pull.recv_multipart()] == [bytes(part) for part in parts]
            assert await asyncio.to_thread(tracker.wait, TIMEOUT_S) is None

    run(main())
