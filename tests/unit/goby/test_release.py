"""Publications that portals keep until the hold is released, and then until their subscriptions are in force."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import omq
from omq.goby import BufferFull, Daemon, Portal
from tests.support.fork_server import run
from tests.support.waits import until
from tests.unit.goby.conftest import Make, Twin

pytestmark = pytest.mark.timeout(60)


def test_an_answer_that_was_subscribed_to_late_comes(portal: Twin, bus: Make) -> None:
    """Subscribed to, then asked for: on the one hand the portal's own word, on the other hand another portal's."""
    bus_options = bus().bus_options
    with portal("asks", **bus_options) as asks, portal("answers", **bus_options) as answers:
        answers.subscribe("ask", str, lambda text: answers.publish(f"answer{text}", text))
        answers.ready()
        asks.ready()
        answers.wait_released(10)
        asks.wait_released(10)
        for number in range(100):
            text = str(number)
            answer, mine = asks.subscribe(f"answer{text}", str), asks.subscribe(f"mine{text}", str)
            assert asks.released, "it is not a hold"
            asks.publish(f"mine{text}", text)
            asks.publish("ask", text)
            assert mine.recv(timeout=5) == text
            assert answer.recv(timeout=5) == text
            answer.close()


def test_an_answer_comes_from_a_portal_whose_publisher_learns_late_of_subscribers(
    bus_options: dict[str, Any],
) -> None:
    """The question comes by one connection, and that the answer is wanted by another one, which is not read."""
    own = omq.Context()
    with own, Portal("asks", **bus_options) as asks, Portal("answers", context=own, **bus_options) as answers:
        answers.subscribe("ask", str, lambda text: answers.publish(f"answer{text}", text))
        asks.wait_released(10)
        answers.wait_released(10)
        for number in range(20):
            rest, woken = threading.Event(), threading.Event()
            sleeper = threading.Thread(target=own.io_thread.run, args=(lambda: (woken.set(), rest.wait(10)),))  # noqa: B023
            sleeper.start()
            try:
                assert woken.wait(10)
                answer = asks.subscribe(f"answer{number}", str)
                asks.publish("ask", str(number))
                assert answer.recv(timeout=5) == str(number)
            finally:
                rest.set()
                sleeper.join()


@pytest.mark.slow
def test_late_subscriptions_next_to_a_stream_cost_nothing_of_it(bus_options: dict[str, Any]) -> None:
    count = 5000
    with Portal("a", buffer=50, **bus_options) as a, Portal("b", **bus_options) as b:
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


def test_the_buffer_is_bounded(portal: Twin, bus: Make) -> None:
    made = bus(required_clients=["a"])
    with portal("a", buffer=100, **made.bus_options) as a:
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


def test_the_hold_names_the_missing_clients(portal: Twin, bus: Make) -> None:
    made = bus(required_clients=["a", "b"])
    with portal("a", **made.bus_options) as a:
        a.ready()
        until(lambda: a.missing() == ["b"])
        with pytest.raises(omq.Timeout, match="it waits for b"):
            a.wait_released(0.05)
        assert not a.released
        with portal("b", **made.bus_options) as b:
            b.ready()
            a.wait_released(10)
            b.wait_released(10)
        assert a.released
        assert a.missing() == []


def test_a_gobyd_may_be_started_again_during_the_hold(portal: Twin, bus: Make) -> None:
    made = bus(required_clients=["a", "b"])
    with portal("a", **made.bus_options) as a:
        texts = a.subscribe("g", str)
        a.publish("g", "kept")
        a.ready()
        until(lambda: made.daemon.missing == ["b"])
        made.daemon.close()
        made = bus(required_clients=["a", "b"])
        until(lambda: made.daemon.missing == ["b"])
        with portal("b", **made.bus_options) as b:
            b.ready()
            assert texts.recv(timeout=10) == "kept"


def test_a_portal_that_publishes_all_the_time_is_released(bus: Make) -> None:
    bus_options = bus(required_clients=["a"]).bus_options
    done, received, sent = threading.Event(), [], 0
    with Portal("b", **bus_options) as b, Portal("a", **bus_options) as a:
        b.subscribe("n", dict, lambda message: received.append(message["n"]))

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
        until(lambda: len(received) == sent)
        assert received == list(range(sent))


def test_a_passing_process_of_the_same_name_does_not_keep_the_hold(tmp_path: Path) -> None:
    bus_options = {"socket_name": tmp_path / "g"}
    passing = f"import omq.goby; omq.goby.Portal('nav', socket_name={str(tmp_path / 'g')!r}).close()"
    with (
        Daemon(**bus_options, required_clients=["nav", "logger"]) as daemon,  # type: ignore[arg-type]
        Portal("nav", **bus_options) as nav,  # type: ignore[arg-type]
    ):
        nav.ready()
        until(lambda: daemon.missing == ["logger"])
        run("-c", passing).check_returncode()
        with Portal("logger", **bus_options) as logger:  # type: ignore[arg-type]
            logger.ready()
            nav.wait_released(10)
