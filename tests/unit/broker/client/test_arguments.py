"""Every numeric argument of both clients is checked; the error has its name, value and type."""

import asyncio
import inspect
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest

import omq.asyncio.broker
import omq.broker
from omq.broker.client.stream_state import ConsumerState, SubscriptionState

TWINS = {"blocking": omq.broker, "asyncio": omq.asyncio.broker}


class Callee:
    """A client that is not connected, with streams that no broker has confirmed."""

    def __init__(self, twin: Any) -> None:
        self.client = twin.Client("tcp://127.0.0.1:9", timeout=0)
        connection = self.client._connection
        self.subscription = twin.Subscription(connection, SubscriptionState(b"1", "t", None, "name", 8))
        self.consumer = twin.Consumer(connection, ConsumerState(b"2", "t", 30.0, 8))


#: Calls by the name of the checked argument, with the smallest valid value.
CALLS: list[tuple[str, int, Callable[[Callee, Any], Any]]] = [
    ("in_flight", 1, lambda on, value: on.client.publish_many("t", [b"x"], in_flight=value)),
    ("sequence", 1, lambda on, value: on.client.stage("t", [b"x"], "s", sequence=value)),
    ("credit", 1, lambda on, value: on.client.subscribe("t", credit=value)),
    ("credit", 1, lambda on, value: on.client.consume("t", credit=value)),
    ("limit", 0, lambda on, value: on.client.read("t", limit=value)),
    ("batch_bytes", 1, lambda on, value: on.client.read_columns("t", batch_bytes=value)),
    ("start", 0, lambda on, value: on.client.offset_after("t", value, 2, 3)),
    ("stop", 0, lambda on, value: on.client.offset_after("t", 1, value, 3)),
    ("size", 0, lambda on, value: on.client.offset_after("t", 1, 2, value)),
    ("up_to", 1, lambda on, value: on.client.purge("t", up_to=value)),
    ("limit", 0, lambda on, value: on.client.requeue("t", limit=value)),
    ("limit", 1, lambda on, value: on.subscription.recv_many(value, timeout=0)),
    ("limit", 1, lambda on, value: on.consumer.recv_many(value, timeout=0)),
    ("message", 0, lambda on, value: on.subscription.ack(value)),
]
#: Bounds of reads, which are ids or times.
BOUNDS: list[tuple[str, Callable[[Callee, Any], Any]]] = [
    ("start", lambda on, value: on.client.read("t", start=value)),
    ("stop", lambda on, value: on.client.read("t", stop=value)),
    ("start", lambda on, value: on.client.read_columns("t", start=value)),
    ("stop", lambda on, value: on.client.read_columns("t", stop=value)),
]
#: Times, by the name of the argument.
TIMES: list[tuple[str, Callable[[Callee, Any], Any]]] = [
    *BOUNDS,
    ("replay", lambda on, value: on.client.subscribe("t", replay=value)),
    ("time", lambda on, value: on.client.offset_at("t", value)),
]
SECONDS: list[tuple[str, Callable[[Callee, Any], Any]]] = [
    ("ack_timeout", lambda on, value: on.client.consume("t", ack_timeout=value)),
    ("timeout", lambda on, value: on.client.flush(timeout=value)),
    ("timeout", lambda on, value: type(on.client)("tcp://127.0.0.1:9", timeout=value)),
    ("timeout", lambda on, value: on.subscription.recv(timeout=value)),
    ("timeout", lambda on, value: on.subscription.recv_many(timeout=value)),
    ("delay", lambda on, value: on.consumer.nack([], delay=value)),
]


def check(twin: Any, call: Callable[[Callee, Any], Any], value: Any, kind: type[Exception], text: str) -> None:
    """Makes a call, and expects an error."""

    async def run() -> None:
        callee = Callee(twin)
        try:
            await finish(call(callee, value))
        finally:
            await finish(callee.client.close())

    async def finish(result: Any) -> None:
        if inspect.isawaitable(result):
            await result

    with pytest.raises(kind, match=text):
        asyncio.run(run())


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize(("name", "least", "call"), CALLS)
def test_numbers(twin: Any, name: str, least: int, call: Callable[[Callee, Any], Any]) -> None:
    for wrong in (1.5, "9", True, b"1", [2]):
        shown = re.escape(f"{name}={wrong!r}: must be ")
        check(twin, call, wrong, TypeError, f"^{shown}.*, not {type(wrong).__name__}$")
    for wrong in (least - 1, -(2**70), 2**70):
        check(twin, call, wrong, ValueError, f"^{name}={wrong}: must be ")


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize(("name", "call"), BOUNDS)
def test_bounds(twin: Any, name: str, call: Callable[[Callee, Any], Any]) -> None:
    for wrong in ("9", True, b"1", [2], date(2026, 1, 1)):
        shown = re.escape(f"{name}={wrong!r}: must be ")
        check(twin, call, wrong, TypeError, f"^{shown}.*, not {type(wrong).__name__}$")
    for wrong in (-1, -(2**70), 2**70):
        check(twin, call, wrong, ValueError, f"^{name}={wrong}: must be ")


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize(("name", "call"), TIMES)
def test_times(twin: Any, name: str, call: Callable[[Callee, Any], Any]) -> None:
    naive, early = datetime(2026, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    check(twin, call, naive, ValueError, re.escape(f"{name}={naive!r}: must have a time zone, such as tzinfo=UTC"))
    check(twin, call, early, ValueError, re.escape(f"{name}={early!r}: must be 1970 or later"))
    for wrong in (-0.5, float("nan"), float("inf"), 1e12):
        text = re.escape(f"{name}={wrong!r}: must be 0 to 253402300800 seconds since 1970")
        check(twin, call, wrong, ValueError, f"^{text}$")


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_a_replay_that_is_not_a_time(twin: Any) -> None:
    for wrong in ("yesterday", b"latest", True, -1, [2], date(2026, 1, 1)):
        text = re.escape(f'replay={wrong!r}: must be "latest", "earliest", an id, 0 or more, or a time')
        check(twin, lambda on, value: on.client.subscribe("t", replay=value), wrong, ValueError, f"^{text}$")


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_a_time_that_is_not_a_number(twin: Any) -> None:
    for wrong in ("9", True, b"1", [2], None, date(2026, 1, 1)):
        text = re.escape(f"time={wrong!r}: must be a datetime with a time zone, or seconds since 1970, not ")
        check(twin, lambda on, value: on.client.offset_at("t", value), wrong, TypeError, f"^{text}")


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize(("name", "call"), SECONDS)
def test_seconds(twin: Any, name: str, call: Callable[[Callee, Any], Any]) -> None:
    for wrong in ("9", True, b"1", [2]):
        shown = re.escape(f"{name}={wrong!r}: must be ")
        check(twin, call, wrong, TypeError, f"^{shown}.*, not {type(wrong).__name__}$")
    for wrong in (-1, float("nan"), float("-inf")):
        check(twin, call, wrong, ValueError, f"^{name}={wrong}: must be ")


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize("name", ["start", "stop", "size"])
def test_bounds_of_offset_after_are_required(twin: Any, name: str) -> None:
    bounds = {"start": 1, "stop": 2, "size": 3, name: None}
    text = f"^{name}=None: must be a whole number, at least 0, not NoneType$"
    check(twin, lambda on, value: on.client.offset_after("t", **bounds), None, TypeError, text)
