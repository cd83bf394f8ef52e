"""Arguments of a wrong type, or beyond any sense: each call names the argument and its value, and does nothing else."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import omq
import omq.asyncio

TWINS = [pytest.param(omq, id="blocking"), pytest.param(omq.asyncio, id="asyncio")]
LIMIT = 20  # seconds for a case, none of which waits

THING = object()
STRIDED = np.arange(20, dtype=np.uint8)[::2]
NUMBERS = [None, 0, -1, 1.5, "x", b"x", True, [], THING, 1 << 70, -(1 << 70), math.nan]
SECONDS = [-1, -0.001, -math.inf, math.nan, "x", "1", b"1", [], {}, THING, True, 1j]
TEXTS = [
    None,
    0,
    1.5,
    b"x",
    True,
    [],
    {},
    THING,
    "",
    "x",
    "tcp://",
    "tcp://127.0.0.1",
    "tcp://127.0.0.1:99999",
    "x://y",
]
TEXTS += ["tcp://\ud800:1", "tcp://a b:1", "ipc://", "inproc://"]
PREFIXES = [0, 1.5, "x", True, [], {}, THING, bytearray(b"x"), np.str_("x")]
PARTS = [None, 0, 1.5, "x", np.str_("x"), True, [], {}, THING, STRIDED, memoryview(STRIDED)]
MESSAGES = [None, 0, 1.5, "x", b"x", bytearray(b"x"), True, THING, [b"x", None], ["x"], [STRIDED]]
TARGETS = [None, 0, "x", b"x", [], THING, STRIDED, np.str_("x"), memoryview(b"x")]
EVENTS = [None, 0, -1, 1.5, "x", True, 1 << 70, 2, [], THING]
SOCKETS = [None, 0, "x", THING, omq.PULL]

#: Call, type of the socket, argument, values that do not fit, further arguments.
CALLS: list[tuple[str, str, str, list[Any], dict[str, Any]]] = [
    ("bind", "PULL", "endpoint", TEXTS, {}),
    ("connect", "PULL", "endpoint", TEXTS, {}),
    ("unbind", "PULL", "endpoint", TEXTS, {}),
    ("disconnect", "PULL", "endpoint", TEXTS, {}),
    ("connect_peer", "PEER", "endpoint", TEXTS, {"timeout": 0}),
    ("send", "PUSH", "data", PARTS, {}),
    ("send", "SERVER", "data", PARTS, {"routing_id": 1}),
    ("send_multipart", "PUSH", "parts", [*MESSAGES, ()], {}),
    ("send_many", "PUSH", "messages", MESSAGES, {}),
    ("recv_many", "PULL", "limit", NUMBERS, {}),
    ("recv_into", "PULL", "buffer", TARGETS, {}),
    ("subscribe", "SUB", "prefix", [None, *PREFIXES], {}),
    ("unsubscribe", "SUB", "prefix", [None, *PREFIXES], {}),
    ("wait_connected", "PULL", "n", [one for one in NUMBERS if one not in (0,) or one is False], {}),
    ("wait_subscribed", "PUB", "n", [one for one in NUMBERS if one not in (0,)], {}),
    ("wait_subscribed", "PUB", "prefix", PREFIXES, {}),
    ("monitor", "PULL", "limit", NUMBERS, {}),
    ("poll", "PULL", "events", EVENTS, {}),
    ("close", "PULL", "linger", [*SECONDS, 1 << 70], {}),
]
TIMED: list[tuple[str, str, dict[str, Any]]] = [
    ("send", "PUSH", {"data": b"x"}),
    ("send_multipart", "PUSH", {"parts": [b"x"]}),
    ("send_many", "PUSH", {"messages": [b"x"]}),
    ("recv", "PULL", {}),
    ("recv_multipart", "PULL", {}),
    ("recv_many", "PULL", {}),
    ("recv_into", "PULL", {"buffer": bytearray(1)}),
    ("recv_message", "PULL", {}),
    ("send", "SERVER", {"data": b"x", "routing_id": 1}),
    ("connect_peer", "PEER", {"endpoint": "inproc://x"}),
    ("wait_connected", "PULL", {}),
    ("wait_subscribed", "PUB", {}),
    ("flush", "PUSH", {}),
    ("poll", "PULL", {}),
]
CALLS += [(name, kind, "timeout", SECONDS, more) for name, kind, more in TIMED]
ONLY_BLOCKING: list[tuple[str, str, str, list[Any], dict[str, Any]]] = [
    ("recv_columns", "PULL", "data", TARGETS, {"ends": bytearray(4)}),
    ("recv_columns", "PULL", "ends", TARGETS, {"data": bytearray(4)}),
    (
        "recv_columns",
        "PULL",
        "start",
        [None, -1, 5, 1.5, "x", 1 << 70, True],
        {"data": bytearray(4), "ends": bytearray(4)},
    ),
]
#: Other words for an argument, where the text has the field's.
ALSO_CALLED = {"data": ["part"], "parts": ["part", "message"], "messages": ["part", "message"]}

COUNTS = [-1, 1.5, "x", b"x", True, [], THING, 1 << 70, math.nan]
OPTIONS: dict[str, list[Any]] = {
    "send_hwm": COUNTS,
    "recv_hwm": COUNTS,
    "linger": [*SECONDS, 1 << 70, math.inf],
    "send_timeout": [*SECONDS, 1 << 70, math.inf],
    "recv_timeout": [*SECONDS, 1 << 70, math.inf],
    "connect_timeout": [*SECONDS, 1 << 70],
    "handshake_timeout": [*SECONDS, 1 << 70],
    "heartbeat_interval": [*SECONDS, 1 << 70],
    "heartbeat_timeout": [*SECONDS, 1 << 70],
    "heartbeat_ttl": [*SECONDS, 1 << 70],
    "reconnect_interval": [*SECONDS, 1 << 70, (1,), (2, 1), (1, "x")],
    "busy_poll": [-1, "x", b"x", [], THING, True, 1 << 70, math.nan, None],
    "max_message_size": [-1, 1.5, "x", True, [], THING, 1 << 70],
    "backlog": [-1, 1.5, "x", True, None, 1 << 70],
    "tos": [-1, 256, 1.5, "x", True, None, 1 << 70],
    "send_buffer": [-2, 1.5, "x", True, 1 << 70],
    "recv_buffer": [-2, 1.5, "x", True, 1 << 70],
    "conflate": [None, 0, 1, "x", [], THING],
    "immediate": [None, 0, 1, "x", [], THING],
    "ipv6": [None, 0, 1, "x", [], THING],
    "security": [0, "x", b"x", THING, omq.CurveServer],
    "metadata": [None, 0, "x", THING, {"x": 1}, {1: "x"}, {"x": "1"}, {"X-a": 1}],
    "bind_device": [0, b"x", "x" * 16, THING],
    "max_parts": [0, -1, 1.5, "x", True, 1 << 70],
    "accept_filter": [0, "x", b"x", True, [], [0], THING, "10.0.0.0/33"],
    "accept_uids": [-1, "x", b"x", True, [], ["x"], THING, 1 << 70, 1.5],
    "accept_gids": [-1, "x", b"x", True, [], ["x"], THING, 1 << 70, 1.5],
    "accept_pids": [0, "x", b"x", True, [], ["x"], THING, 1 << 70, 1.5],
    "priority": [-1, "x", b"x", True, None, [], THING, 1 << 70, 1.5],
    "tls": [0, "x", True, [], THING],
    "socks_proxy": [0, "x", b"x:1", True, [], THING, "x:0"],
    "socks_username": [0, "", b"x", True, [], THING, "x" * 256],
    "socks_password": [0, b"x", True, [], THING],
    "use_fd": [-1, 1.5, "x", b"x", True, [], THING, 1 << 70],
}


def refusals(make: Callable[[], Any], name: str, value: Any) -> Iterator[str]:
    """Returns the errors in how a call refuses *value* as argument *name*; what *make* returns may be awaited."""
    try:
        result = make()
    except (omq.OmqError, TypeError, ValueError) as error:
        text = str(error)
        names = [name, *ALSO_CALLED.get(name, [])]
        if not any(one in text for one in names):
            yield f"{name}={value!r}: does not name the argument: {text}"
        shown = (
            repr(value)[:20] if not isinstance(value, list | tuple | memoryview | np.ndarray) else type(value).__name__
        )
        kinds = [word for one in value for word in (type(one).__name__, repr(one))] if isinstance(value, list) else []
        if not any(one in text for one in (shown, str(value)[:20], type(value).__name__, *kinds)):
            yield f"{name}={value!r}: does not name the value: {text}"
        if isinstance(error, OverflowError) or (
            type(error) not in (TypeError, ValueError) and isinstance(error, omq.Timeout)
        ):
            yield f"{name}={value!r}: {type(error).__name__}: {text}"
    except BaseException as error:
        yield f"{name}={value!r}: raised {type(error).__name__}: {error}"
    else:
        yield f"{name}={value!r}: was accepted, and gave {result!r}"


def called(twin: Any, kind: str, call: str, arguments: dict[str, Any]) -> Any:
    """Makes a call of a socket of either twin, and closes the socket."""
    if twin is omq:
        with omq_socket(omq, kind) as socket:
            return positional(getattr(socket, call), arguments)

    async def main() -> Any:
        socket = omq_socket(omq.asyncio, kind)
        try:
            result = positional(getattr(socket, call), arguments)
            return await asyncio.wait_for(result, LIMIT) if inspect.isawaitable(result) else result
        finally:
            socket.stop()

    return asyncio.run(main())


def omq_socket(twin: Any, kind: str) -> Any:
    given = {} if kind in ("PUSH", "PUB") else {"recv_timeout": 0}
    return getattr(twin, kind)(linger=0, **given)


def positional(function: Any, arguments: dict[str, Any]) -> Any:
    return function(**arguments)


@pytest.mark.parametrize("case", CALLS + ONLY_BLOCKING, ids=lambda case: f"{case[0]}-{case[2]}")
@pytest.mark.parametrize("twin", TWINS)
def test_calls(twin, case):
    if twin is omq.asyncio and case in ONLY_BLOCKING:
        pytest.skip("for blocking sockets")
    call, kind, name, values, more = case
    found = [
        wrong
        for value in values
        for wrong in refusals(lambda value=value: called(twin, kind, call, {**more, name: value}), name, value)
    ]
    assert found == []


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("twin", TWINS)
def test_options(twin, name):
    if twin is omq.asyncio and name == "busy_poll":
        pytest.skip("for blocking sockets")
    found = []
    for value in OPTIONS[name]:
        for make in (
            lambda value=value: omq.Options(**{name: value}),
            lambda value=value: twin.PULL(**{name: value}) if name in RECEIVER else twin.PUSH(**{name: value}),
            lambda value=value: changed(twin, name, value),
        ):
            found += refusals(make, name, value)
    assert found == []


RECEIVER = {"recv_hwm", "recv_timeout", "max_message_size", "max_parts"}


def changed(twin: Any, name: str, value: Any) -> None:
    socket = (twin.PULL if name in RECEIVER else twin.PUSH)(linger=0)
    try:
        socket.set_options(**{name: value})
    finally:
        socket.stop()


def test_wait():
    with omq.PULL() as pull:
        found = [
            one for value in SECONDS for one in refusals(lambda value=value: omq.wait([pull], value), "timeout", value)
        ]
        for value in EVENTS:
            found += refusals(lambda value=value: omq.wait([pull], 0, value), "events", value)
        for value in [None, 0, "x", THING, pull, *([one] for one in SOCKETS)]:
            found += refusals(lambda value=value: omq.wait(value, 0), "sockets", value)
    assert found == []


@pytest.mark.parametrize("twin", TWINS)
def test_proxy(twin):
    def served(**given: Any) -> Any:
        async def main() -> Any:
            pull, push = twin.PULL(), twin.PUSH(linger=0)
            try:
                result = twin.proxy(**{"frontend": pull, "backend": push, **given})
                return await asyncio.wait_for(result, LIMIT) if inspect.isawaitable(result) else result
            finally:
                pull.stop()
                push.stop()

        return asyncio.run(main())

    found = []
    for name in ("frontend", "backend", "capture", "control"):
        for value in SOCKETS if name in ("frontend", "backend") else SOCKETS[1:]:
            found += refusals(lambda name=name, value=value: served(**{name: value}), name, value)
    assert found == []


@pytest.mark.parametrize("twin", TWINS)
def test_monitors(twin):
    async def received(value: Any) -> Any:
        socket = twin.PULL()
        try:
            result = socket.monitor().recv(timeout=value)
            return await asyncio.wait_for(result, LIMIT) if inspect.isawaitable(result) else result
        finally:
            socket.stop()

    assert [
        one for value in SECONDS for one in refusals(lambda value=value: asyncio.run(received(value)), "timeout", value)
    ] == []


def test_contexts():
    found = []
    for value in [*SECONDS, 1 << 70, math.inf]:
        with omq.Context() as context:
            found += refusals(lambda value=value, context=context: context.term(value), "linger", value)
    for value in [0, "tcp://127.0.0.1:1", b"x", THING, omq.Context]:
        for twin in (omq, omq.asyncio):
            found += refusals(lambda value=value, twin=twin: twin.PULL(value), "context", value)
    assert found == []


KEYS = [0, 1.5, True, [], THING, b"", "", b"x" * 31, "x" * 39, "\ud800" * 40, b"\0" * 40]


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (lambda value: omq.CurveServer(value), "secret", [None, *KEYS]),
        (lambda value: omq.CurveServer(b"x" * 32, value), "authorize", [0, 1.5, "x", b"x", True, THING]),
        (lambda value: omq.CurveClient(value), "server_key", [None, *KEYS]),
        (lambda value: omq.CurveClient(b"x" * 32, public_key=value, secret_key=b"x" * 32), "public_key", KEYS),
        (lambda value: omq.CurveClient(b"x" * 32, public_key=b"x" * 32, secret_key=value), "secret", KEYS),
        (lambda value: omq.PlainClient(value, b"x"), "username", [None, 0, 1.5, True, [], THING, b"x" * 256]),
        (lambda value: omq.PlainClient(b"x", value), "password", [None, 0, 1.5, True, [], THING, b"x" * 256]),
        (lambda value: omq.PlainServer(value), "authenticate", [0, 1.5, "x", b"x", True, [], THING]),
        (lambda value: omq.curve_public(value), "secret", [None, *KEYS]),
        (lambda value: omq.z85_encode(value), "data", [None, 0, 1.5, "x", [], THING, b"x"]),
        (lambda value: omq.z85_decode(value), "text", [None, 0, 1.5, [], THING, b"x", "x", "\ud800" * 5]),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_security(make, name, values):
    # A key is never shown: its type or its size stands for it.
    found = []
    for value in values:
        try:
            result = make(value)
        except (omq.OmqError, TypeError, ValueError) as error:
            if name not in str(error) or isinstance(error, UnicodeError):
                found.append(f"{value!r}: {error!r}")
        except BaseException as error:
            found.append(f"{value!r}: raised {error!r}")
        else:
            found.append(f"{value!r}: gave {result!r}")
    assert found == []
