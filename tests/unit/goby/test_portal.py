"""Portals as a program uses them: what they publish, keep and pass over, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import omq
import omq.asyncio.goby as twin
from omq.goby import Daemon, Group, Portal, Scheme
from omq.goby.protobuf import ManagerRequest, TerminateRequest, TerminateResult
from tests.support.fork_server import SOCKETS, run
from tests.support.waits import until
from tests.unit.goby.conftest import Make, Twin

# The tests set SIGALRM, with which timeouts are made otherwise.
pytestmark = pytest.mark.timeout(method="thread")

ROOT = Path(__file__).parents[3]
#: Messages of each kind that has a scheme.
MESSAGES: list[Any] = ["text", "", "ü", {"a": [1, None, {"b": 1.5}]}, {}, TerminateRequest(target_pid=7)]


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_what_is_published_arrives(portal: Twin, bus_options: dict[str, Any], message: Any) -> None:
    with portal("a", **bus_options) as a, portal("b", **bus_options) as b:
        here, there = a.subscribe("g", type(message)), b.subscribe("g", type(message))
        a.ready()
        a.publish("g", message)
        assert there.recv(timeout=10) == message
        assert here.recv(timeout=10) == message, "it receives its own, too"
        with pytest.raises(omq.ReceiveTimeout):
            there.recv(timeout=0)


def test_bytes_and_schemes_of_ones_own(portal: Twin, bus_options: dict[str, Any]) -> None:
    own = Scheme(
        450,
        "LIST",
        lambda kind: kind is list,
        lambda value: json.dumps(value).encode(),
        lambda _, data: json.loads(data),
    )
    with portal("a", schemes=[own], **bus_options) as a, portal("b", **bus_options) as b:
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


def test_groups_with_numbers_and_expressions(portal: Twin, bus_options: dict[str, Any]) -> None:
    with portal("a", **bus_options) as a:
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
        for wrong in (b"CSTR", 1.5, object()):
            with pytest.raises(ValueError, match=f"scheme={re.escape(repr(wrong))}"):
                a.subscribe_regex(schemes=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [Scheme(77, "OWN", bool, bytes, bytes), 7, "JSON", b"JSON"], ids=repr)
def test_custom_schemes_are_a_list(portal: Twin, bus_options: dict[str, Any], wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^schemes=.*: must be a list of omq.goby.Scheme, not \w+$"):
        portal("a", schemes=wrong, **bus_options)


def test_callbacks_and_iterators_side_by_side(portal: Twin, bus_options: dict[str, Any]) -> None:
    with portal("a", **bus_options) as a:
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
        a.unsubscribe("absent", str)
        assert list(texts) == [], "its iteration ends"
        with pytest.raises(omq.ClosedError):
            texts.recv(timeout=0)


@pytest.mark.parametrize("group", ["", "a/b", "a\0b"])
def test_a_group_that_does_not_fit_is_a_value_error(bus_options: dict[str, Any], group: str) -> None:
    with Portal("a", **bus_options) as a:
        for call in (a.publish, lambda group, _: a.subscribe(group, str), lambda group, _: a.unsubscribe(group, str)):
            with pytest.raises(ValueError, match="group"):
                call(group, "x")
        a.wait_released(10)
        a.publish("g", "it lives on")


def test_a_message_that_does_not_fit_is_named(bus_options: dict[str, Any]) -> None:
    with Portal("a", **bus_options) as a:
        for message, given in ((1, {}), (b"x", {}), (b"x", {"scheme": "DCCL"}), ("x", {"scheme": "JSON"})):
            with pytest.raises(ValueError):
                a.publish("g", message, **given)
        with pytest.raises(ValueError, match="client_name"):
            a.publish("g", ManagerRequest(request=1))
        holds_itself: dict[str, Any] = {}
        holds_itself["x"] = holds_itself
        with pytest.raises(omq.UsageError, match="contains itself"):
            a.publish("g", holds_itself)
        a.publish(1, "x")
        for group in (None, True, 1.0):  # the latter equal one that fits
            with pytest.raises(TypeError):
                a.publish(group, "x")  # type: ignore[arg-type]


def test_what_cannot_be_read_is_passed_over(
    portal: Twin, bus_options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with portal("a", **bus_options) as a, omq.PUB(connect=f"ipc://{bus_options['socket_name']}.xsub") as pub:
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
        # Four that are not publications, one text, and two messages for each of the two that wanted them.
        assert a.malformed == 4 + 1 + 2 * 2
        assert "skipped" in caplog.text
        a.publish("g", "it lives on")
        assert texts.recv(timeout=10) == "it lives on"


def test_threads_share_a_portal(bus_options: dict[str, Any]) -> None:
    with Portal("a", **bus_options) as a, Portal("b", **bus_options) as b:
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


def test_a_portal_that_takes_nothing_delays_no_other(
    bus_options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with Portal("a", **bus_options) as a, Portal("b", **bus_options) as b:
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


def test_closing_a_portal_ends_every_waiting_call(portal: Twin, bus_options: dict[str, Any]) -> None:
    a = portal("a", **bus_options)
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
    with Portal("a", **made.bus_options) as a:
        texts = a.subscribe("g", str)
        a.ready()
        with Portal("b", **made.bus_options) as b:
            b.publish("g", "x")
            b.ready()
        assert texts.recv(timeout=10) == "x"

    async def main() -> None:
        async with twin.Portal("c", **made.bus_options) as c:
            await c.publish("g", "y")

    with Portal("a", **made.bus_options) as a:
        texts = a.subscribe("g", str)
        a.wait_released(10)
        asyncio.run(main())
        assert texts.recv(timeout=10) == "y"


def test_a_portal_closes_in_its_own_callback(bus_options: dict[str, Any]) -> None:
    with Portal("a", **bus_options) as a:
        a.subscribe("g", str, lambda _: a.close())
        a.ready()
        a.publish("g", "x")
        until(lambda: a.closed)


def test_what_was_published_leaves_before_the_end(portal: Twin, bus_options: dict[str, Any]) -> None:
    with portal("b", **bus_options) as b:
        texts = b.subscribe("g", str)
        b.wait_released(10)
        with portal("a", **bus_options) as a:
            a.wait_released(10)
            for number in range(500):
                a.publish("g", f"{number}")
        assert [texts.recv(timeout=10) for _ in range(500)] == [f"{number}" for number in range(500)]


def test_a_gobyd_that_is_started_again_is_found(portal: Twin, bus: Make) -> None:
    made = bus(required_clients=["a", "b"])
    with portal("a", **made.bus_options) as a, portal("b", **made.bus_options) as b:
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


def test_a_portal_closes_without_a_gobyd(portal: Twin, bus: Make, caplog: pytest.LogCaptureFixture) -> None:
    made = bus()
    with portal("a", **made.bus_options) as a:
        a.wait_released(10)
        made.daemon.close()
        until(lambda: not a.released)
        a.publish("g", "kept in vain")
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert "1 publications that were held are dropped" in caplog.text


def test_nothing_is_kept_for_the_end_any_more(portal: Twin, bus: Make, caplog: pytest.LogCaptureFixture) -> None:
    made = bus()
    with portal("a", **made.bus_options) as a:
        a.wait_released(10)
        made.daemon.close()
        until(lambda: not a.released)
        a.publish("g", "kept")
        closing = threading.Thread(target=a.close)
        closing.start()
        until(lambda: a._is_closing)
        with pytest.raises(omq.ClosedError):
            a.publish("g", "too late")
        closing.join(20)
    assert "1 publications that were held are dropped" in caplog.text


def test_a_second_gobyd_of_the_same_bus_is_refused(bus: Make) -> None:
    made = bus()
    with pytest.raises(omq.BindError):
        bus()
    with Portal("a", **made.bus_options) as a:
        a.wait_released(10)


def test_a_gobyd_is_started_once(tmp_path: Path) -> None:
    for not_started in (Daemon(socket_name=tmp_path / "g"), twin.Daemon(socket_name=tmp_path / "g")):
        with pytest.raises(omq.StateError, match="was not started: call start first"):
            not_started.ready()
    with Daemon(socket_name=tmp_path / "g") as daemon:
        with pytest.raises(omq.UsageError, match="already"):
            daemon.start()
        assert list(daemon.endpoints) == ["manager", "publish", "subscribe"]
    daemon.close()
    assert list(tmp_path.iterdir()) == []
    for given in ({"required_clients": [""]}, {"health_interval": 0}, {"port": 70000}):
        with pytest.raises(omq.UsageError, match=next(iter(given))):
            Daemon(**given)  # type: ignore[arg-type]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("count", [250, pytest.param(10_000, marks=pytest.mark.slow)])
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

            def received(text: str) -> None:
                got[me] += 1
                if text != f"{other} {next(nexts)}":
                    wrong.append((me, other, text))

            portals[me].subscribe(f"g{other}", str, received)

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
def test_a_callback_that_would_end_the_program_ends_no_subscription(
    bus_options: dict[str, Any], fault: BaseException
) -> None:
    def leave(text: str) -> None:
        raise fault

    with Portal("a", **bus_options) as a:
        a.subscribe("stop", str, leave)
        texts = a.subscribe("x", str)
        a.wait_released(10)
        a.publish("stop", "now")
        a.publish("x", "after")
        assert texts.recv(timeout=10) == "after"


def test_a_callback_that_is_not_subscribed_any_more_is_not_called(portal: Twin, bus_options: dict[str, Any]) -> None:
    with portal("a", **bus_options) as a:
        received: list[str] = []

        def receive(text: str) -> None:
            received.append(text)
            a.unsubscribe("x", str)

        a.subscribe("x", str, receive)
        a.subscribe("y", str, received.append)
        a.wait_released(10)
        for text in "123":
            a.publish("x", text)
        a.publish("y", "the last")
        until(lambda: "the last" in received)
        assert received == ["1", "the last"]


def test_close_waits_for_one_callback_and_not_for_those_behind_it(bus_options: dict[str, Any]) -> None:
    begun, go_on, called = threading.Event(), threading.Event(), []

    def slow(text: str) -> None:
        called.append(text)
        begun.set()
        go_on.wait(20)

    with Portal("b", **bus_options) as b:
        a = Portal("a", **bus_options)
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


def test_what_is_published_before_close_in_a_callback_leaves(bus_options: dict[str, Any]) -> None:
    with Portal("w", **bus_options) as w:
        got = w.subscribe("out", str)
        c = Portal("c", **bus_options)

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


def test_flush_raises_while_the_router_is_lost(portal: Twin, bus: Make) -> None:
    first = bus()
    with portal("a", **first.bus_options) as a:
        a.wait_released(10)
        first.daemon.close()
        until(lambda: not a.released)
        a.publish("x", "waits")
        with pytest.raises(omq.SendTimeout, match=r"1 publications.*router is found again"):
            a.flush(0.2)
        bus()
        a.flush(20)
        assert a.waiting == 0


class Awaited:
    async def __call__(self, text: str) -> None: ...


async def received(text: str) -> None: ...


async def shown(prefix: str, text: str) -> None: ...


def iterated(text: str) -> Iterator[str]:
    yield text


@pytest.mark.parametrize(
    ("callback", "text"),
    [
        (received, "callback=received: is a coroutine function"),
        (partial(shown, "x"), "callback=functools.partial.*: is a coroutine function"),
        (Awaited(), "callback=<.*Awaited.*>: is a coroutine function"),
        (iterated, "callback=iterated: is a generator function"),
        (5, "callback=5: cannot be called"),
    ],
    ids=["coroutine", "partial", "object", "generator", "number"],
)
def test_a_callback_of_which_a_call_does_nothing_is_refused(
    bus_options: dict[str, Any], callback: Any, text: str
) -> None:
    async def run() -> None:
        async with twin.Portal("a", **bus_options) as a:
            with pytest.raises(omq.UsageError, match=text):
                a.subscribe("x", str, callback)
            with pytest.raises(omq.UsageError, match=text):
                a.subscribe_regex(callback=callback)

    asyncio.run(run())
    with Portal("a", **bus_options) as a:
        with pytest.raises(omq.UsageError, match=text):
            a.subscribe("x", str, callback)
        with pytest.raises(omq.UsageError, match=text):
            a.subscribe_regex(callback=callback)


def test_a_signals_handler_may_publish_while_the_hold_lasts(bus: Make) -> None:
    made = bus(required_clients=["a", "b"])
    with Portal("a", **made.bus_options) as a, Portal("b", **made.bus_options) as b:
        texts = b.subscribe("x", str)
        a.ready()
        fired = 0

        def handler(number: int, frame: object) -> None:
            nonlocal fired
            fired += 1
            a.publish("x", f"signal {fired}")

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        try:
            for number in range(4000):
                a.publish("x", f"{number}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert fired
        b.ready()
        a.wait_released(10)
        got = [texts.recv(timeout=10) for _ in range(4000 + fired)]
        assert [text for text in got if text[0] != "s"] == [f"{number}" for number in range(4000)]


CALLS: dict[str, Callable[[Portal, Any], object]] = {
    "recv": lambda portal, texts: texts.recv(),
    "iterate": lambda portal, texts: next(texts),
    "publish": lambda portal, texts: portal.publish("x", "text"),
    "flush": lambda portal, texts: portal.flush(),
    "ready": lambda portal, texts: portal.ready(),
    "wait": lambda portal, texts: portal.wait_released(),
    "missing": lambda portal, texts: portal.missing(),
    "subscribe": lambda portal, texts: portal.subscribe("y", str),
    "unsubscribe": lambda portal, texts: portal.unsubscribe("x", str),
}


@pytest.mark.parametrize("held", [False, True])
def test_a_forked_child_gets_an_error(tmp_path: Path, held: bool) -> None:
    where = tmp_path / "g"
    with Daemon(socket_name=where, required_clients=["missing"] * held), Portal("a", socket_name=where) as a:
        texts = a.subscribe("x", str)
        if not held:
            a.wait_released(10)
        for name, call in CALLS.items():
            child = os.fork()
            if not child:
                signal.alarm(10)
                try:
                    call(a, texts)
                except omq.StateError:
                    a.close()  # as at the end of a `with`
                    os._exit(0)
                except BaseException:
                    os._exit(2)
                os._exit(3)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, name
        assert not a.closed


@pytest.mark.slow
def test_what_was_held_arrives_at_slow_callbacks_and_late_iterators(portal: Twin, bus: Make) -> None:
    made = bus(required_clients=["a", "b"])
    count, received = 2500, []

    def receive(text: str) -> None:
        received.append(int(text))
        time.sleep(0.0002)

    with portal("a", **made.bus_options) as a, portal("b", **made.bus_options) as b:
        b.subscribe("g", str, receive)
        late, unread = b.subscribe("g", str), b.subscribe("g", str)
        for number in range(count):
            a.publish("g", str(number))
        a.ready()
        b.ready()
        until(lambda: len(received) == count, lambda: f"{len(received)} of {count}")
        assert received == [int(late.recv(timeout=0)) for _ in range(count)] == list(range(count))
        assert late.dropped == unread.dropped == 0


def test_a_callback_that_takes_long_holds_up_no_iterator(bus_options: dict[str, Any]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(text: str) -> None:
        begun.set()
        go_on.wait(20)

    with Portal("a", **bus_options) as a:
        a.subscribe("x", str, slow)
        texts = a.subscribe("x", str)
        a.wait_released(10)
        a.publish("x", "1")
        assert begun.wait(10)
        a.publish("x", "2")
        assert [texts.recv(timeout=10) for _ in range(2)] == ["1", "2"]
        go_on.set()


def at_the_end(bus_options: dict[str, Any], count: int) -> str:
    """Publishes *count* texts from a process that ends without closing its portal; returns its standard error."""
    program = (
        "import json, sys, omq.goby\n"
        "portal = omq.goby.Portal('b', **json.loads(sys.argv[1]))\n"
        f"for number in range({count}): portal.publish('x', str(number))\n"
    )
    done = run("-c", program, json.dumps(bus_options, default=str), template=SOCKETS)
    done.check_returncode()
    return done.stderr


def test_what_was_published_leaves_at_the_end_of_the_interpreter(bus_options: dict[str, Any]) -> None:
    with Portal("a", **bus_options) as a:
        texts = a.subscribe("x", str)
        a.wait_released(10)
        assert at_the_end(bus_options, 500) == ""
        assert [texts.recv(timeout=5) for _ in range(500)] == [str(number) for number in range(500)]


def test_what_is_held_at_the_end_of_the_interpreter_is_logged(bus: Make) -> None:
    made = bus(required_clients=["missing"])
    assert "b: 2 publications that were held are dropped" in at_the_end(made.bus_options, 2)
