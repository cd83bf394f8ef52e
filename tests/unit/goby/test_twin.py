"""The asyncio twin of portals and of the daemon."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import omq
import omq.asyncio.goby as twin
from omq.goby import Daemon, Portal
from tests.support.waits import until
from tests.unit.goby.conftest import Make

pytestmark = pytest.mark.timeout(60)


def test_and_from_a_twin_whose_loop_was_busy(bus_options: dict[str, Any]) -> None:
    async def run() -> None:
        async with twin.Portal("answers", **bus_options) as answers:
            questions = answers.subscribe("ask", str)
            await answers.wait_released(10)
            with await asyncio.to_thread(lambda: Portal("asks", **bus_options)) as asks:
                await asyncio.to_thread(asks.wait_released, 10)

                async def answer() -> None:
                    async for text in questions:
                        await answers.publish(f"answer{text}", text)

                answering = asyncio.create_task(answer())
                for number in range(20):
                    subscription = asks.subscribe(f"answer{number}", str)
                    asks.publish("ask", str(number))
                    asks.flush(10)  # the loop stands still meanwhile
                    assert await asyncio.to_thread(subscription.recv, timeout=5) == str(number)
                answering.cancel()

    asyncio.run(run())


def test_calls_that_never_wait_may_be_awaited_and_calls_that_wait_cancelled(bus: Make) -> None:
    async def main() -> None:
        made = await asyncio.to_thread(bus, required_clients=["a", "b"])
        b = twin.Portal("b", **made.bus_options)
        texts = b.subscribe("g", str)  # before it is connected
        async with twin.Portal("a", **made.bus_options) as a, b:
            every = await a.subscribe_regex("g")
            a.ready()
            with pytest.raises(omq.Timeout, match="it waits for b"):
                await b.wait_released(0.2)
            await b.ready()
            await a.wait_released(10)
            waiting = asyncio.create_task(texts.recv())
            await asyncio.sleep(0)
            waiting.cancel()
            await a.publish("g", "after a call that was cancelled")
            assert await texts.recv(timeout=10) == "after a call that was cancelled"
            assert (await anext(every)).type == "CSTR"
            await b.unsubscribe("g", str)
            assert [text async for text in texts] == []

    asyncio.run(main())


def test_the_twin_connects_with_its_first_call(bus_options: dict[str, Any]) -> None:
    async def main() -> None:
        portal = twin.Portal("a", **bus_options)
        texts = portal.subscribe("g", str)
        await portal.publish("g", "before it was connected")
        assert await texts.recv(timeout=10) == "before it was connected"
        await portal.flush(5)
        await portal.close()
        await portal.close()

    asyncio.run(main())


#: Calls that a program may make first, and that do not wait.
FIRST_CALLS: dict[str, Callable[[twin.Portal, list[Any]], object]] = {
    "subscribe": lambda portal, got: portal.subscribe("g", str, got.append),
    "subscribe_regex": lambda portal, got: portal.subscribe_regex("g", callback=lambda one: got.append(one.data)),
    "ready": lambda portal, got: portal.ready(),
}


@pytest.mark.parametrize("first", FIRST_CALLS)
def test_the_twin_connects_with_its_first_call_that_does_not_wait(bus: Make, first: str) -> None:
    async def main() -> None:
        made = await asyncio.to_thread(bus, required_clients=["b"])
        got: list[Any] = []
        b = twin.Portal("b", **made.bus_options)
        FIRST_CALLS[first](b, got)
        if first != "ready":
            b.ready()
        await asyncio.to_thread(until, lambda: made.daemon.missing == [])
        async with twin.Portal("a", **made.bus_options) as a:
            await a.wait_released(10)
            await a.publish("g", "text")
            if first != "ready":
                await asyncio.to_thread(until, lambda: got)
        await b.close()

    asyncio.run(main())


def test_a_twin_that_connects_in_the_background_logs_why_it_could_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        portal = twin.Portal("b", socket_name=tmp_path / "g", manager_timeout=0.1)
        got: list[str] = []
        portal.subscribe("g", str, got.append)
        await asyncio.to_thread(until, lambda: "no manager (gobyd) has answered" in caplog.text)
        with Daemon(socket_name=tmp_path / "g", required_clients=["b"]) as daemon:
            portal.ready()
            await asyncio.to_thread(until, lambda: daemon.missing == [])
            await portal.publish("g", "text")
            await asyncio.to_thread(until, lambda: got)
            await portal.close()

    asyncio.run(main())


def test_the_twin_has_a_daemon(tmp_path: Path) -> None:
    async def main() -> None:
        async with twin.Daemon(socket_name=tmp_path / "g", required_clients=["a"]) as daemon:
            assert daemon.missing == ["a"]
            async with twin.Portal("a", socket_name=tmp_path / "g") as a:
                a.ready()
                await a.wait_released(10)
            assert daemon.missing == []

    asyncio.run(main())


def test_a_portal_that_publishes_all_the_time_is_released_in_the_twin(bus_options: dict[str, Any]) -> None:
    async def run() -> None:
        async with twin.Portal("a", **bus_options) as a:
            subscription = a.subscribe("n", dict)

            async def publish(pause: float) -> None:
                for number in range(1_000_000):
                    await a.publish("n", {"n": number})
                    await asyncio.sleep(pause)

            publishing = [asyncio.create_task(publish(pause)) for pause in (0, 0.0003, 0.001)]
            await a.wait_released(5)
            for number in range(5):
                a.subscribe(f"late{number}", str)
                await a.flush(5)
            for task in publishing:
                task.cancel()
            await asyncio.wait(publishing)
            assert (await subscription.recv(timeout=5)) == {"n": 0}

    asyncio.run(run())


@pytest.mark.parametrize("fault", [asyncio.CancelledError, GeneratorExit, ValueError, BaseException])
def test_what_a_callback_of_the_twin_raises_harms_no_other(
    bus_options: dict[str, Any], fault: type[BaseException]
) -> None:
    async def run() -> None:
        async with twin.Portal("a", **bus_options) as a:

            def fail(text: str) -> None:
                raise fault

            a.subscribe("x", str, fail)
            texts = a.subscribe("x", str)
            await a.wait_released(10)
            for text in ("one", "two"):
                await a.publish("x", text)
                assert await texts.recv(timeout=5) == text

    asyncio.run(run())


def test_a_twin_that_is_cancelled_leaves_nothing_behind(bus_options: dict[str, Any]) -> None:
    async def life(number: int) -> None:
        async with twin.Portal(f"p{number}", **bus_options) as portal:
            portal.ready()
            await portal.wait_released(5)

    async def run() -> None:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(60):
            task = asyncio.create_task(life(number))
            await asyncio.sleep(number % 20 * 0.0005)
            task.cancel()
            await asyncio.wait([task])
        loop = asyncio.get_running_loop()

        def is_over() -> bool:
            return len(asyncio.all_tasks(loop)) == 1 and len(os.listdir("/proc/self/fd")) <= before + 4

        await asyncio.to_thread(until, is_over)

    asyncio.run(run())


def test_a_twins_close_that_is_cancelled_is_waited_for_by_the_next(bus_options: dict[str, Any]) -> None:
    async def run() -> None:
        for number in range(20):
            portal = twin.Portal(f"p{number}", **bus_options)
            await portal.start()
            closing = asyncio.create_task(portal.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            await portal.close()
            assert portal.closed
            assert portal._pub.closed
            assert portal._sub.closed
            assert all(task.done() for task in portal._tasks)

    asyncio.run(run())


def test_a_twin_in_another_loop_is_refused_and_closes_there_once_its_own_has_ended(bus_options: dict[str, Any]) -> None:
    async def begin() -> twin.Portal:
        portal = twin.Portal("a", **bus_options)
        await portal.wait_released(10)
        return portal

    async def elsewhere(portal: twin.Portal, text: str, *, closes: bool) -> None:
        calls = [
            portal.start,
            portal.wait_released,
            portal.flush,
            lambda: asyncio.to_thread(portal.subscribe, "g", str),
        ]
        for call in calls if closes else [*calls, portal.close]:
            with pytest.raises(omq.StateError, match=text):
                await call()
        if closes:
            await portal.close()
            assert portal.closed
            assert portal._pub.closed
            assert portal._sub.closed

    async def live() -> None:
        portal = await begin()
        await asyncio.to_thread(lambda: asyncio.run(elsewhere(portal, "another event loop", closes=False)))
        await portal.close()

    asyncio.run(live())
    portal = asyncio.run(begin())
    asyncio.run(elsewhere(portal, "event loop that is closed", closes=True))
    asyncio.run(portal.close())


def test_a_twin_that_found_no_manager_may_look_in_another_loop(tmp_path: Path) -> None:
    portal = twin.Portal("a", socket_name=tmp_path / "g", manager_timeout=0.1)

    async def look() -> None:
        subscription = portal.subscribe("g", str)
        await portal.wait_released(10)
        await portal.publish("g", "text")
        assert await subscription.recv(timeout=10) == "text"
        await portal.close()

    with pytest.raises(omq.ConnectError):
        asyncio.run(look())
    with Daemon(socket_name=tmp_path / "g"):
        asyncio.run(look())


def test_a_twins_daemon_that_is_cancelled_serves_no_more(tmp_path: Path) -> None:
    async def life() -> None:
        async with twin.Daemon(socket_name=tmp_path / "g"):
            await asyncio.sleep(60)

    async def run() -> None:
        for number in range(10):
            task = asyncio.create_task(life())
            await asyncio.sleep(number * 0.002)
            task.cancel()
            await asyncio.wait([task])
            # What is cancelled in its own beginning ends behind it.
            async with asyncio.timeout(20):
                while True:
                    try:
                        async with twin.Daemon(socket_name=tmp_path / "g"):
                            break
                    except omq.BindError:
                        await asyncio.sleep(0.01)

    asyncio.run(run())
