"""The two ends of a stream through the proxy, each in a thread of its own: a twin of omq, or libzmq."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import uvloop
import zmq

import omq
from tests.fault.message_history import History, compose, runs_of
from tests.fault.twin_adapters import AsyncioTwin, BlockingTwin, drive
from tests.support.chaos_proxy import Link
from tests.support.socket_types import GROUP, ONE_PART

CALL_TIMEOUT_S = 25.0  # seconds for one call
SIZES = (0, 1, 20, 300, 5000, 70000)


class LibzmqTwin:
    """libzmq behind the calls that the ends make of omq."""

    name = "libzmq"

    def __init__(self) -> None:
        self._context = zmq.Context()

    async def make(self, kind: str, _: omq.Context, owned: bool, options: dict[str, Any]) -> Any:
        socket = self._context.socket(getattr(zmq, kind))
        socket.linger = 0
        names = {"reconnect_interval": "RECONNECT_IVL", "recv_hwm": "RCVHWM", "send_hwm": "SNDHWM"}
        for name, value in options.items():
            if name == "subscribe":
                socket.subscribe(value)
            elif name in names:
                socket.setsockopt(
                    getattr(zmq, names[name]), int(value * 1000) if name == "reconnect_interval" else value
                )
        return socket

    async def do(self, socket: Any, call: str, *arguments: Any, **named: Any) -> Any:
        if call in ("bind", "connect"):
            getattr(socket, call)(*arguments)
            return socket.getsockopt_string(zmq.LAST_ENDPOINT)
        if call in ("close", "stop"):
            socket.close()
            return self._context.term()
        timeout = int(named.pop("timeout") * 1000)
        socket.sndtimeo = socket.rcvtimeo = timeout
        try:
            return getattr(socket, call)(*arguments)
        except zmq.Again:
            raise (omq.ReceiveTimeout if call.startswith("recv") else omq.SendTimeout)(
                f"libzmq: {timeout} ms"
            ) from None

    async def sleep(self, seconds: float) -> None:
        await BlockingTwin().sleep(seconds)


TWINS: dict[str, Callable[[], Any]] = {"asyncio": AsyncioTwin, "blocking": BlockingTwin, "libzmq": LibzmqTwin}


_living: list[End] = []
Role: TypeAlias = "Callable[[End], Awaitable[None]]"


class End:
    """One socket and the thread that uses it.

    A test that fails leaves its ends behind; `end_all` sees to them, so that they disturb no other.

    Args:
        kind: The type of its socket.
        role: What it does; gets this object, whose `socket` is bound or connected by then.
        where: The endpoint; `bind` listens there.
    """

    def __init__(
        self, twin: str, kind: str, role: Callable[[End], Awaitable[None]], where: str, **options: Any
    ) -> None:
        self.twin = TWINS[twin]()
        self.over = threading.Event()
        self.endpoint = ""
        self.socket: Any
        self.kind = kind
        self._role = role
        self._where = where
        self._options = options
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        _living.append(self)
        self._thread = threading.Thread(target=self._run, name=f"{twin} {kind}", daemon=True)
        self._thread.start()
        assert self._ready.wait(CALL_TIMEOUT_S)

    def _run(self) -> None:
        try:
            if self.twin.name == "asyncio":
                uvloop.run(self._live())
            else:
                drive(self._live())
        except BaseException as error:
            self._failure = error
            self._ready.set()

    async def _live(self) -> None:
        context = omq.Context()
        binds = "bind" in self._options
        options = {name: value for name, value in self._options.items() if name != "bind"}
        self.socket = await self.twin.make(self.kind, context, False, options)
        try:
            self.endpoint = await self.twin.do(self.socket, "bind" if binds else "connect", self._where)
            self._ready.set()
            await self._role(self)
        finally:
            await self.twin.do(self.socket, "stop")
            context.term()

    async def do(self, call: str, *arguments: Any, **named: Any) -> Any:
        return await self.twin.do(self.socket, call, *arguments, **named)

    def join(self, bound: float = 3 * CALL_TIMEOUT_S) -> None:
        """Waits for the end of the role; raises what it raised."""
        self._thread.join(bound)
        if self._failure is not None:
            raise self._failure
        assert not self._thread.is_alive(), f"the {self.kind} hangs"


def end_all() -> None:
    """Ends what a test has left; one that sends gives up when the bound of its call is over."""
    left = [end for end in _living if end._thread.is_alive()]
    _living.clear()
    for end in left:
        end.over.set()
    for end in left:
        end._thread.join(2 * CALL_TIMEOUT_S)


# Roles


def streaming(
    history: History, sender: int, count: int, pace: int = 0, largest: int = SIZES[-1], rest: float = 0.002
) -> Role:
    """Sends messages of all sizes until it is over: *count* with a pause after each *pace*, then one each *rest*."""

    async def role(end: End) -> None:
        number = 0
        while not end.over.is_set():
            body = b"x" * min(SIZES[number % len(SIZES)], largest)
            # libzmq aborts the process when a connection dies between two parts of what it sends.
            single = end.twin.name == "libzmq" or end.kind in ONE_PART
            message = compose(sender, number, topic=body) if single else compose(sender, number, [body] * (number % 3))
            route = {"group": GROUP} if end.kind == "RADIO" else {}
            history.doubt(sender, [number])  # it may arrive before the call returns
            await end.do("send_multipart", message, timeout=CALL_TIMEOUT_S, **route)
            history.accept(sender, number)
            if number > count:
                await end.twin.sleep(rest)
            elif pace and number % pace == 0:
                await end.twin.sleep(0.002)
            number += 1

    return role


def collecting(history: History, name: str) -> Role:
    """Takes messages until it is over."""

    async def role(end: End) -> None:
        while not end.over.is_set():
            try:
                history.receive(name, await end.do("recv_multipart", timeout=0.02))
            except omq.Timeout:
                continue

    return role


def echoing(history: History, sender: int, name: str) -> Role:
    """A ROUTER, REP or SERVER that answers each message with one of its own."""

    async def role(end: End) -> None:
        number = 0
        while not end.over.is_set():
            route: dict[str, Any] = {}
            try:
                if end.kind == "SERVER":
                    message = await end.do("recv_message", timeout=0.02)
                    parts, route = message.parts, {"routing_id": message.routing_id}
                else:
                    parts = await end.do("recv_multipart", timeout=0.02)
            except omq.Timeout:
                continue
            envelope = [parts[0]] if end.kind == "ROUTER" else []
            _, asked = history.receive(name, parts[len(envelope) :])
            number += 1
            answer = compose(sender, number, topic=b"%d" % asked) if route else compose(sender, number, [b"%d" % asked])
            history.doubt(sender, [number])
            try:
                await end.do("send_multipart", envelope + answer, timeout=CALL_TIMEOUT_S, **route)
            except (zmq.ZMQError, omq.UnroutableError):
                continue
            history.accept(sender, number)

    return role


def runs(history: History, sender: int) -> int:
    """Returns the number of unbroken stretches that are missing before the last message that arrived."""
    last = max(tuple(history.got(sender)))
    return runs_of([number for number in history.missing(sender) if number < last])


def outlives(history: History, sender: int, link: Link, faulty: int) -> Callable[[], bool]:
    """Returns whether a message has arrived that was sent after the last of the faulty connections had ended."""
    mark: list[int] = []

    def outlived() -> bool:
        if not mark and link.accepted > faulty and history.accepted[sender]:
            mark.append(history.accepted[sender][-1])
        return bool(mark) and max(tuple(history.got(sender)), default=0) > mark[0]

    return outlived
