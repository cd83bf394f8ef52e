"""Portals as a program uses them: what they publish, keep and pass over, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import omq
import omq.asyncio.goby as twin
from omq.goby import BufferFull, Daemon, Group, Portal, Scheme
from omq.goby.protobuf import ManagerRequest, TerminateRequest, TerminateResult
from tests.unit.goby.conftest import Make
from tests.waits import until

pytestmark = pytest.mark.timeout(60)

MESSAGES: list[Any] = ["text", "", "ü", {"a": [1, None, {"b": 1.5}]}, {}, TerminateRequest(target_pid=7)]


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_what_is_published_arrives(told: dict[str, Any], message: Any) -> None:
    with Portal("a", **told) as a, Portal("b", **told) as b:
        here, there = a.subscribe("g", type(message)), b.subscribe("g", type(message))
        a.ready()
        a.publish("g", message)
        assert there.recv(timeout=10) == message
        assert here.recv(timeout=10) == message, "it hears itself, too"
        with pytest.raises(omq.ReceiveTimeout):
            there.recv(timeout=0)


def test_bytes_and_schemes_of_ones_own(told: dict[str, Any]) -> None:
    own = Scheme(
        450,
        "LIST",
        lambda kind: kind is list,
        lambda value: json.dumps(value).encode(),
        lambda _, data: json.loads(data),
    )
    with Portal("a", schemes=[own], **told) as a, Portal("b", **told) as b:
        b.register(own)
        reports = b.subscribe("g", bytes, scheme="DCCL", type_name="Report")
        lists = b.subscribe("g", list)
        raw = b.subscribe("g", bytes, scheme=450, type_name="list")
        b.wait_released(10)
        a.publish("g", b"\0\1\0", scheme=2, type_name="Report")
        a.publish("g", [1, 2])
        assert reports.recv(timeout=10) == b"\0\1\0"
        assert lists.recv(timeout=10) == [1, 2]
        assert raw.recv(timeout=10) == b"[1, 2]"


def test_an_answer_that_was_subscribed_to_late_comes(bus: Make) -> None:
    """Subscribed to, then asked for: on the one hand the portal's own word, on the other hand another portal's."""
    told = bus().told
    with Portal("asks", **told) as asks, Portal("answers", **told) as answers:
        answers.subscribe("ask", str, lambda text: answers.publish(f"answer{text}", text))
        answers.ready()
        asks.ready()
        answers.wait_released(10)
        asks.wait_released(10)
        for number in range(200):
            text = str(number)
            heard, mine = asks.subscribe(f"answer{text}", str), asks.subscribe(f"mine{text}", str)
            assert asks.released, "it is no hold"
            asks.publish(f"mine{text}", text)
            asks.publish("ask", text)
            assert mine.recv(timeout=5) == text
            assert heard.recv(timeout=5) == text
            heard.close()


def test_an_answer_comes_from_a_portal_whose_publisher_is_slow_to_hear_who_wants_it(told: dict[str, Any]) -> None:
    """The question comes by one connection, and that the answer is wanted by another one, which nobody reads."""
    own = omq.Context()
    with own, Portal("asks", **told) as asks, Portal("answers", context=own, **told) as answers:
        answers.subscribe("ask", str, lambda text: answers.publish(f"answer{text}", text))
        asks.wait_released(10)
        answers.wait_released(10)
        for number in range(20):
            rest, woken = threading.Event(), threading.Event()
            sleeper = threading.Thread(target=own.io_thread.run, args=(lambda: (woken.set(), rest.wait(10)),))  # noqa: B023
            sleeper.start()
            try:
                assert woken.wait(10)
                heard = asks.subscribe(f"answer{number}", str)
                asks.publish("ask", str(number))
                assert heard.recv(timeout=5) == str(number)
            finally:
                rest.set()
                sleeper.join()


def test_and_from_a_twin_whose_loop_was_busy(told: dict[str, Any]) -> None:
    async def run() -> None:
        async with twin.Portal("answers", **told) as answers:
            questions = answers.subscribe("ask", str)
            await answers.wait_released(10)
            with await asyncio.to_thread(lambda: Portal("asks", **told)) as asks:
                await asyncio.to_thread(asks.wait_released, 10)

                async def answer() -> None:
                    async for text in questions:
                        await answers.publish(f"answer{text}", text)

                answering = asyncio.create_task(answer())
                for number in range(20):
                    heard = asks.subscribe(f"answer{number}", str)
                    asks.publish("ask", str(number))
                    asks.flush(10)  # the loop stands still meanwhile
                    assert await asyncio.to_thread(heard.recv, timeout=5) == str(number)
                answering.cancel()

    asyncio.run(run())


def test_late_subscriptions_beside_a_stream_cost_nothing_of_it(told: dict[str, Any]) -> None:
    count = 5000
    with Portal("a", buffer=50, **told) as a, Portal("b", **told) as b:
        stream: list[int] = []
        b.subscribe("n", dict, lambda message: stream.append(message["n"]))
        a.wait_released(10)
        b.wait_released(10)
        done = threading.Event()

        def subscribe() -> None:
            number = 0
            while not done.wait(0.001):
                number += 1
                a.subscribe(f"late{number}", str).close()

        other = threading.Thread(target=subscribe)
        other.start()
        try:
            for start in range(0, count, 500):
                for number in range(start, start + 500):
                    a.publish("n", {"n": number})
                a.flush(10)
                assert a.waiting == 0
                until(lambda start=start: len(stream) >= start + 500)  # type: ignore[misc]
        finally:
            done.set()
            other.join()
        assert stream == list(range(count))


def test_groups_with_numbers_and_expressions(told: dict[str, Any]) -> None:
    with Portal("a", **told) as a:
        one, seven = a.subscribe(Group("nav", 1), str), a.subscribe(7, str)
        some = a.subscribe_regex(r"nav(;\d)?", "CS.*", schemes=["CSTR", 7])
        none = a.subscribe_regex("na", schemes="JSON")
        a.ready()
        for group in ("nav", Group("nav", 1), 7, "navy", "other"):
            a.publish(group, f"to {group}")
        a.publish("nav", {"x": 1})
        assert one.recv(timeout=10) == "to nav;1"
        assert seven.recv(timeout=10) == "to 7"
        assert [next(some).group for _ in range(2)] == ["nav", "nav;1"]
        for subscription in (some, none):
            with pytest.raises(omq.ReceiveTimeout):
                subscription.recv(timeout=0.05)
        with pytest.raises(ValueError, match="scheme="):
            a.subscribe_regex(schemes=["NONE"])


def test_callbacks_and_iterators_side_by_side(told: dict[str, Any]) -> None:
    with Portal("a", **told) as a:
        got: list[str] = []
        handle = a.subscribe("g", str, got.append)
        every: list[Any] = []
        a.subscribe_regex(callback=every.append)
        texts = a.subscribe("g", str)
        a.ready()
        a.publish("g", "x")
        assert next(texts) == "x"
        until(lambda: got == ["x"] and len(every) == 1)
        with pytest.raises(omq.UsageError, match="callback"):
            handle.recv(timeout=0)
        handle.close()
        handle.close()
        a.publish("g", "y")
        assert next(texts) == "y"
        assert got == ["x"]
        a.unsubscribe("g", str)
        a.unsubscribe("nobody", str)
        assert list(texts) == [], "its iteration ends"
        with pytest.raises(omq.ClosedError):
            texts.recv(timeout=0)


@pytest.mark.parametrize("group", ["", "a/b", "a\0b"])
def test_a_group_that_does_not_fit_is_a_value_error(told: dict[str, Any], group: str) -> None:
    with Portal("a", **told) as a:
        for call in (a.publish, lambda group, _: a.subscribe(group, str), lambda group, _: a.unsubscribe(group, str)):
            with pytest.raises(ValueError, match="group"):
                call(group, "x")
        a.wait_released(10)
        a.publish("g", "it lives on")


def test_a_message_that_does_not_fit_is_named(told: dict[str, Any]) -> None:
    with Portal("a", **told) as a:
        for message, given in ((1, {}), (b"x", {}), (b"x", {"scheme": "DCCL"}), ("x", {"scheme": "JSON"})):
            with pytest.raises(ValueError):
                a.publish("g", message, **given)
        with pytest.raises(ValueError, match="client_name"):
            a.publish("g", ManagerRequest(request=1))
        with pytest.raises(TypeError):
            a.publish(None, "x")  # type: ignore[arg-type]


def test_what_cannot_be_read_is_passed_over(told: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with Portal("a", **told) as a, omq.PUB(connect=f"ipc://{told['socket_name']}.xsub") as pub:
        texts, results = a.subscribe("g", str), a.subscribe("g", TerminateResult)
        every, called = a.subscribe_regex("g"), []
        a.subscribe("g", TerminateResult, called.append)
        a.wait_released(10)
        pub.wait_subscribed(b"/", timeout=10)
        kind = b"/g/PROTOBUF/goby.middleware.protobuf.TerminateResult"
        pub.send(b"/g/CSTR/CSTR/")
        pub.send(b"/g/CSTR/CSTR/1/\0x\0")
        pub.send(b"/g/CSTR/CSTR/1/a/\0\xff\0")
        pub.send(kind + b"/1/a/\0garbage")
        pub.send(kind + b"/1/a/\0")
        pub.send_multipart([kind + b"/1/a/\0", b"more"])
        pub.send(b"/")
        pub.send(kind + b"/1/a/\0" + TerminateResult(result=TerminateResult.TIMEOUT_RUNNING).SerializeToString())
        pub.send(b"/g/CSTR/CSTR/1/a/\0good\0")
        assert texts.recv(timeout=10) == "good"
        assert results.recv(timeout=10).result == 4
        assert [next(every).data for _ in range(5)][-1] == b"good\0"
        until(lambda: len(called) == 1)
        # Four that are no publications, one text, and two messages for each of the two that wanted them.
        assert a.malformed == 4 + 1 + 2 * 2
        assert "passed over" in caplog.text
        a.publish("g", "it lives on")
        assert texts.recv(timeout=10) == "it lives on"


def test_the_buffer_is_bounded(bus: Make) -> None:
    made = bus(required_clients=["a"])
    with Portal("a", buffer=100, **made.told) as a:
        texts = a.subscribe("g", str)
        for number in range(100):
            a.publish("g", f"{number}")
        with pytest.raises(BufferFull, match="buffer=100"):
            a.publish("g", "more")
        assert a.waiting == 100
        a.ready()
        assert [texts.recv(timeout=10) for _ in range(100)] == [f"{number}" for number in range(100)]
        a.wait_released(10)
        a.publish("g", "more")
        assert texts.recv(timeout=10) == "more"


def test_the_hold_says_who_is_missing(bus: Make) -> None:
    made = bus(required_clients=["a", "b"])
    with Portal("a", **made.told) as a:
        a.ready()
        until(lambda: a.missing() == ["b"])
        with pytest.raises(omq.Timeout, match="it waits for b"):
            a.wait_released(0.05)
        assert not a.released
        with Portal("b", **made.told) as b:
            b.ready()
            a.wait_released(10)
            b.wait_released(10)
        assert a.released
        assert a.missing() == []


def test_threads_share_a_portal(told: dict[str, Any]) -> None:
    with Portal("a", **told) as a, Portal("b", **told) as b:
        every = b.subscribe_regex("g")
        a.wait_released(10)
        b.wait_released(10)
        step = threading.Barrier(4)

        def publish(name: str) -> None:
            for number in range(100):
                step.wait(20)
                a.publish("g", f"{name} {number}")

        threads = [threading.Thread(target=publish, args=[name]) for name in "wxyz"]
        for thread in threads:
            thread.start()
        got = [every.recv(timeout=10) for _ in range(400)]
        for thread in threads:
            thread.join(10)
        for name in "wxyz":
            mine = [publication for publication in got if publication.data.startswith(name.encode())]
            assert [publication.data for publication in mine] == [b"%s %d\0" % (name.encode(), n) for n in range(100)]
            assert len({publication.thread for publication in mine}) == 1
        assert len({publication.thread for publication in got}) == 4, "the identifier names the thread"


def test_who_takes_nothing_holds_up_nobody(told: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with Portal("a", **told) as a, Portal("b", **told) as b:
        lazy, busy = b.subscribe("g", str), b.subscribe("g", str)
        a.wait_released(10)
        b.wait_released(10)
        count = 0
        while lazy.dropped == 0:
            a.publish("g", f"{count}")
            assert busy.recv(timeout=10) == f"{count}"
            count += 1
        assert count > 1000
        assert "is not read" in caplog.text
        assert busy.dropped == 0
        assert [lazy.recv(timeout=0) for _ in range(3)] == ["0", "1", "2"], "what waited is there"


def test_it_ends_whatever_waits(told: dict[str, Any]) -> None:
    a = Portal("a", **told)
    texts = a.subscribe("g", str)
    ended = threading.Event()

    def wait() -> None:
        assert list(texts) == []
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    a.close()
    a.close()
    assert ended.wait(10)
    thread.join(10)
    for call in (
        lambda: a.publish("g", "x"),
        lambda: a.subscribe("g", str),
        lambda: a.wait_released(1),
        lambda: texts.recv(timeout=1),
    ):
        with pytest.raises(omq.ClosedError):
            call()
    assert a.closed


def test_what_is_kept_leaves_before_the_end_if_it_may(bus: Make) -> None:
    made = bus(required_clients=["a", "b"])
    with Portal("a", **made.told) as a:
        texts = a.subscribe("g", str)
        a.ready()
        with Portal("b", **made.told) as b:
            b.publish("g", "x")
            b.ready()
        assert texts.recv(timeout=10) == "x"

    async def main() -> None:
        async with twin.Portal("c", **made.told) as c:
            await c.publish("g", "y")

    with Portal("a", **made.told) as a:
        texts = a.subscribe("g", str)
        a.wait_released(10)
        asyncio.run(main())
        assert texts.recv(timeout=10) == "y"


def test_a_portal_closes_in_its_own_callback(told: dict[str, Any]) -> None:
    with Portal("a", **told) as a:
        a.subscribe("g", str, lambda _: a.close())
        a.ready()
        a.publish("g", "x")
        until(lambda: a.closed)


def test_what_was_published_leaves_before_the_end(told: dict[str, Any]) -> None:
    with Portal("b", **told) as b:
        texts = b.subscribe("g", str)
        b.wait_released(10)
        with Portal("a", **told) as a:
            a.wait_released(10)
            for number in range(500):
                a.publish("g", f"{number}")
        assert [texts.recv(timeout=10) for _ in range(500)] == [f"{number}" for number in range(500)]


def test_a_gobyd_that_is_started_again_is_found(bus: Make) -> None:
    made = bus(required_clients=["a", "b"])
    with Portal("a", **made.told) as a, Portal("b", **made.told) as b:
        texts, numbers = b.subscribe("g", str), a.subscribe("h", dict)
        for portal in (a, b):
            portal.ready()
        for portal in (a, b):
            portal.wait_released(10)
        for _ in range(2):
            made.daemon.close()
            until(lambda: not a.released and not b.released)
            for number in range(200):
                a.publish("g", f"{number}")
                b.publish("h", {"n": number})
            made = bus(required_clients=["a", "b"])
            assert [texts.recv(timeout=10) for _ in range(200)] == [f"{number}" for number in range(200)]
            assert [numbers.recv(timeout=10) for _ in range(200)] == [{"n": number} for number in range(200)]
        assert made.daemon.missing == []
        texts.close()
        a.publish("g", "unheard")


def test_a_gobyd_may_be_started_again_during_the_hold(bus: Make) -> None:
    made = bus(required_clients=["a", "b"])
    with Portal("a", **made.told) as a:
        texts = a.subscribe("g", str)
        a.publish("g", "kept")
        a.ready()
        until(lambda: made.daemon.missing == ["b"])
        made.daemon.close()
        made = bus(required_clients=["a", "b"])
        until(lambda: made.daemon.missing == ["b"])
        with Portal("b", **made.told) as b:
            b.ready()
            assert texts.recv(timeout=10) == "kept"


def test_it_closes_while_no_gobyd_is_there(bus: Make, caplog: pytest.LogCaptureFixture) -> None:
    made = bus()
    with Portal("a", **made.told) as a:
        a.wait_released(10)
        made.daemon.close()
        until(lambda: not a.released)
        a.publish("g", "kept for nobody")
        began = time.monotonic()
    assert time.monotonic() - began < 3
    assert "1 publications that were held are dropped" in caplog.text


def test_a_second_gobyd_of_the_same_bus_is_refused(bus: Make) -> None:
    made = bus()
    with pytest.raises(omq.BindError):
        bus()
    with Portal("a", **made.told) as a:
        a.wait_released(10)


def test_a_gobyd_is_started_once(tmp_path: Path) -> None:
    with Daemon(socket_name=tmp_path / "g") as daemon:
        with pytest.raises(omq.UsageError, match="already"):
            daemon.start()
        assert list(daemon.endpoints) == ["manager", "publish", "subscribe"]
    daemon.close()
    assert list(tmp_path.iterdir()) == []
    for given in ({"required_clients": [""]}, {"health_interval": 0}, {"port": 70000}):
        with pytest.raises(omq.UsageError, match=next(iter(given))):
            Daemon(**given)  # type: ignore[arg-type]


def test_the_twin_does_the_same(bus: Make) -> None:
    async def main() -> None:
        made = await asyncio.to_thread(bus, required_clients=["a", "b"])
        b = twin.Portal("b", **made.told)
        texts = b.subscribe("g", str)  # before it is connected
        called: list[Any] = []
        b.subscribe("g", dict, called.append)
        async with twin.Portal("a", **made.told) as a, b:
            every = await a.subscribe_regex("g")
            for message in MESSAGES:
                await a.publish("g", message)
            a.ready()
            with pytest.raises(omq.Timeout, match="it waits for b"):
                await b.wait_released(0.2)
            await b.ready()
            assert [await texts.recv(timeout=10) for _ in range(3)] == MESSAGES[:3]
            await a.wait_released(10)
            assert [(await anext(every)).type for _ in MESSAGES][-1] == "goby.middleware.protobuf.TerminateRequest"
            assert called == MESSAGES[3:5]
            with pytest.raises(omq.ReceiveTimeout):
                await texts.recv(timeout=0)
            with pytest.raises(ValueError, match="group"):
                await a.publish("a/b", "x")
            waiting = asyncio.create_task(texts.recv())
            await asyncio.sleep(0)
            waiting.cancel()
            await a.publish("g", "after a call that was cancelled")
            assert await texts.recv(timeout=10) == "after a call that was cancelled"
            await b.unsubscribe("g", str)
            assert [text async for text in texts] == []
            assert await a.missing() == []
        with pytest.raises(omq.ClosedError):
            await a.publish("g", "x")
        with pytest.raises(omq.ClosedError):
            a.subscribe("g", str)

    asyncio.run(main())


def test_an_answer_that_was_subscribed_to_late_comes_to_the_twin(told: dict[str, Any]) -> None:
    async def run() -> None:
        async with twin.Portal("asks", **told) as asks, twin.Portal("answers", **told) as answers:
            questions = answers.subscribe("ask", str)
            answers.ready()
            asks.ready()
            await asks.wait_released(10)
            await answers.wait_released(10)

            async def answer() -> None:
                async for text in questions:
                    await answers.publish(f"answer{text}", text)

            answering = asyncio.create_task(answer())
            for number in range(200):
                text = str(number)
                heard, mine = asks.subscribe(f"answer{text}", str), asks.subscribe(f"mine{text}", str)
                assert asks.released
                await asks.publish(f"mine{text}", text)
                await asks.publish("ask", text)
                await asks.flush(10)
                assert asks.waiting == 0
                assert await mine.recv(timeout=5) == text
                assert await heard.recv(timeout=5) == text
            answering.cancel()

    asyncio.run(run())


def test_the_twin_connects_with_its_first_call(told: dict[str, Any]) -> None:
    async def main() -> None:
        portal = twin.Portal("a", **told)
        texts = portal.subscribe("g", str)
        await portal.publish("g", "before it was connected")
        assert await texts.recv(timeout=10) == "before it was connected"
        await portal.flush(5)
        await portal.close()
        await portal.close()

    asyncio.run(main())


def test_the_twin_finds_a_gobyd_that_is_started_again(bus: Make) -> None:
    async def main() -> None:
        made = await asyncio.to_thread(bus)
        async with twin.Portal("a", **made.told) as a, twin.Portal("b", **made.told) as b:
            texts = b.subscribe("g", str)
            await a.wait_released(10)
            await b.wait_released(10)
            await asyncio.to_thread(made.daemon.close)
            await asyncio.to_thread(until, lambda: not a.released and not b.released)
            for number in range(100):
                await a.publish("g", f"{number}")
            await asyncio.to_thread(bus)
            assert [await texts.recv(timeout=10) for _ in range(100)] == [f"{number}" for number in range(100)]

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


@pytest.mark.timeout(240)
@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_to_many_below_the_mark(tmp_path: Path, count: int) -> None:
    """All of 20 publishers together have fewer on their way than the marks have room for: nothing is lost."""
    window = 500
    with ExitStack() as stack:
        stack.enter_context(Daemon(socket_name=tmp_path / "g"))
        portals = [stack.enter_context(Portal(f"p{n}", socket_name=tmp_path / "g")) for n in range(20)]
        got = [0] * 20
        wrong: list[object] = []

        def listen(me: int, other: int) -> None:
            nexts = iter(range(count))

            def heard(text: str) -> None:
                got[me] += 1
                if text != f"{other} {next(nexts)}":
                    wrong.append((me, other, text))

            portals[me].subscribe(f"g{other}", str, heard)

        for me in range(20):
            for other in range(20):
                listen(me, other)
        for portal in portals:
            portal.ready()
        for portal in portals:
            portal.wait_released(20)
        sent = 0
        while sent < count:
            for other, portal in enumerate(portals):
                for number in range(sent, sent + window // 20):
                    portal.publish(f"g{other}", f"{other} {number}")
            sent += window // 20
            until(lambda: all(each == 20 * sent for each in got), lambda: got, 40)  # noqa: B023
        assert wrong == []


@pytest.mark.parametrize("fault", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_a_callback_that_would_end_the_program_ends_no_subscription(told: dict[str, Any], fault: BaseException) -> None:
    def leave(text: str) -> None:
        raise fault

    with Portal("a", **told) as a:
        a.subscribe("stop", str, leave)
        texts = a.subscribe("x", str)
        a.wait_released(10)
        a.publish("stop", "now")
        a.publish("x", "after")
        assert texts.recv(timeout=10) == "after"


def test_close_waits_for_one_callback_and_not_for_those_behind_it(told: dict[str, Any]) -> None:
    begun, go_on, called = threading.Event(), threading.Event(), []

    def slow(text: str) -> None:
        called.append(text)
        begun.set()
        go_on.wait(20)

    with Portal("b", **told) as b:
        a = Portal("a", **told)
        a.subscribe("x", str, slow)
        b.wait_released(10)
        a.wait_released(10)
        for number in range(100):
            b.publish("x", str(number))
        assert begun.wait(10)
        closing = threading.Thread(target=a.close)
        closing.start()
        until(lambda: a.closed)
        go_on.set()
        closing.join(10)
        assert not closing.is_alive()
        assert called == ["0"]


def test_who_publishes_all_the_time_is_released(bus: Make) -> None:
    told = bus(required_clients=["a"]).told
    done, heard, sent = threading.Event(), [], 0
    with Portal("b", **told) as b, Portal("a", **told) as a:
        b.subscribe("n", dict, lambda message: heard.append(message["n"]))

        def publish() -> None:
            nonlocal sent
            while not done.wait(0.0002):
                a.publish("n", {"n": sent})
                sent += 1

        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            until(lambda: sent > 100)
            b.ready()
            a.ready()
            a.wait_released(5)
            for number in range(5):
                a.subscribe(f"late{number}", str)
                a.flush(5)
                until(lambda: a.waiting == 0, bound=5)
        finally:
            done.set()
            publishing.join()
        until(lambda: len(heard) == sent)
        assert heard == list(range(sent))


def test_who_publishes_all_the_time_is_released_in_the_twin(told: dict[str, Any]) -> None:
    async def run() -> None:
        async with twin.Portal("a", **told) as a:
            heard = a.subscribe("n", dict)

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
            assert (await heard.recv(timeout=5)) == {"n": 0}

    asyncio.run(run())


def test_what_is_published_before_close_in_a_callback_leaves(told: dict[str, Any]) -> None:
    with Portal("w", **told) as w:
        got = w.subscribe("out", str)
        c = Portal("c", **told)

        def leave(text: str) -> None:
            c.subscribe("later", str)
            c.publish("out", "last words")
            c.close()

        c.subscribe("go", str, leave)
        w.wait_released(10)
        c.wait_released(10)
        w.publish("go", "x")
        assert got.recv(timeout=5) == "last words"
        until(lambda: c.closed)
        c.close()


def test_flush_says_so_while_the_router_is_lost(bus: Make) -> None:
    first = bus()
    with Portal("a", **first.told) as a:
        a.wait_released(10)
        first.daemon.close()
        until(lambda: not a.released)
        a.publish("x", "waits")
        with pytest.raises(omq.SendTimeout, match="1 publications"):
            a.flush(0.2)
        bus()
        a.flush(20)
        assert a.waiting == 0


@pytest.mark.parametrize("fault", [asyncio.CancelledError, GeneratorExit, ValueError])
def test_what_a_callback_of_the_twin_raises_harms_nobody(told: dict[str, Any], fault: type[BaseException]) -> None:
    async def run() -> None:
        async with twin.Portal("a", **told) as a:

            def fail(text: str) -> None:
                raise fault

            a.subscribe("x", str, fail)
            texts = a.subscribe("x", str)
            await a.wait_released(10)
            for text in ("one", "two"):
                await a.publish("x", text)
                assert await texts.recv(timeout=5) == text

    asyncio.run(run())


@pytest.mark.parametrize("module", [None, twin], ids=["blocking", "asyncio"])
def test_a_callback_that_would_have_to_be_awaited_is_refused(told: dict[str, Any], module: Any) -> None:
    async def heard(text: str) -> None: ...

    async def run() -> None:
        async with twin.Portal("a", **told) as a:
            with pytest.raises(omq.UsageError, match="callback=heard: is a coroutine function"):
                a.subscribe("x", str, heard)
            with pytest.raises(omq.UsageError, match="callback=heard"):
                a.subscribe_regex(callback=heard)

    if module is twin:
        asyncio.run(run())
    else:
        with Portal("a", **told) as a, pytest.raises(omq.UsageError, match="callback=heard"):
            a.subscribe("x", str, heard)


def test_a_forked_child_is_told(told: dict[str, Any]) -> None:
    with Portal("a", **told) as a:
        texts = a.subscribe("x", str)
        a.wait_released(10)
        child = os.fork()
        if not child:
            try:
                texts.recv(timeout=0.1)
            except omq.StateError as error:
                os._exit(0 if "behind a fork" in str(error) else 1)
            except BaseException:
                os._exit(2)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_passing_process_of_the_same_name_does_not_keep_the_hold(tmp_path: Path) -> None:
    told = {"socket_name": tmp_path / "g"}
    passing = f"import omq.goby; omq.goby.Portal('nav', socket_name={str(tmp_path / 'g')!r}).close()"
    with (
        Daemon(**told, required_clients=["nav", "logger"]) as daemon,  # type: ignore[arg-type]
        Portal("nav", **told) as nav,  # type: ignore[arg-type]
    ):
        nav.ready()
        until(lambda: daemon.missing == ["logger"])
        subprocess.run([sys.executable, "-c", passing], check=True, timeout=20)
        with Portal("logger", **told) as logger:  # type: ignore[arg-type]
            logger.ready()
            nav.wait_released(10)


def test_a_twin_that_is_cancelled_leaves_nothing_behind(told: dict[str, Any]) -> None:
    async def life(number: int) -> None:
        async with twin.Portal(f"p{number}", **told) as portal:
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


def test_a_twins_close_that_is_cancelled_is_waited_for_by_the_next(told: dict[str, Any]) -> None:
    async def run() -> None:
        for number in range(20):
            portal = twin.Portal(f"p{number}", **told)
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
