"""The blocking portal."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakSet

import omq
from omq.errors import ClosedError
from omq.executor import run_blocking
from omq.goby.dispatch import Handler, Inbox, Item, does_not_parse
from omq.goby.portal_base import LINGER_S, PortalBase, PortalSubscriptionBase
from omq.goby.scheme import SchemeId
from omq.unpatched import queue, threading

__all__ = ["Portal", "Subscription"]

log = logging.getLogger("omq.goby")

_T = TypeVar("_T")


class BlockingInbox(Inbox):
    """Publications that wait for threads; see `Inbox`."""

    def __init__(self, limit: int, *, shared: bool = False) -> None:
        super().__init__(limit, shared=shared)
        self._lock = threading.RLock()  # a signal's handler may wait, too
        self._filled = threading.Condition(self._lock)
        self._emptied = threading.Condition(self._lock)
        self._blocked = False  # the portal waits for room
        self._woken = False

    def put(self, items: list[Item]) -> None:
        """Takes publications, as soon as there is room for them."""
        with self._lock:
            start = self.accept(items, 0)
            self._filled.notify(start)
            while start < len(items):
                self._blocked = True
                if (wait_time := self.wait_time()) <= 0 or not self._emptied.wait(wait_time):
                    self._blocked = False
                    self.drop(len(items) - start)
                    return
                before, start = start, self.accept(items, start)
                self._filled.notify(start - before)
            self._blocked = False

    def get(self, timeout: float | None) -> Item | None:
        """Waits for the next one; returns `None` if none comes in time, or it has ended, or was woken."""
        with self._lock:
            while not self.items:
                if self._woken or self.ended or not self._filled.wait(timeout):
                    self._woken = False
                    return None
            item = self.take()
            if self._blocked:
                self._emptied.notify()
            return item

    def wake(self) -> None:
        """Ends a call that waits, or else the next one."""
        with self._lock:
            self._woken = True
            self._filled.notify()

    def end(self) -> None:
        """Takes nothing more, and ends all waits."""
        with self._lock:
            self.ended = True
            self._filled.notify_all()
            self._emptied.notify_all()


class Subscription(PortalSubscriptionBase):
    """A subscription of a portal: an iterator of messages, which ends with it. Threads may share it.

    With a callback there is nothing to iterate over.

    Attributes:
        dropped: Messages that were not taken in time, so that they were dropped.
    """

    def recv(self, *, timeout: float | None = None) -> Any:
        """Waits for a message. A payload that does not parse is logged, counted, and passed over.

        Args:
            timeout: Seconds; `None` for ever, 0 never.

        Raises:
            ReceiveTimeout: None came in time.
            ClosedError: The subscription, or its portal, is closed.
            UsageError: It has a callback.
        """
        if (inbox := self._inbox) is None:
            raise self._no_message(timeout)
        self._portal._check_process()
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            item = inbox.get(None if end is None else max(end - time.monotonic(), 0))
            if item is None:
                raise self._no_message(timeout)
            handler, identifier, payload = item
            try:
                return handler.decode(identifier, payload)
            except Exception as fault:
                self._portal._dispatcher.malformations.note(does_not_parse(identifier, fault))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.recv()
        except ClosedError:
            raise StopIteration from None


class Portal(PortalBase[Subscription]):
    """A client of a Goby bus (`goby::zeromq::InterProcessPortal`). Threads may share it.

    with omq.goby.Portal("nav", platform="auv") as portal:
        fixes = portal.subscribe("gps", Fix)
        portal.ready()
        portal.publish("nav", Position(x=1.0, y=2.0))
        for fix in fixes:
            ...

    What is published before the manager has released the hold is kept, and leaves in its order then. So is what is
    published while no gobyd runs: the portal finds one that is started again. Callbacks run in a thread of the portal:
    what takes long there holds up all callbacks, and nothing else.

    Args:
        name: The client's name: what a gobyd knows it by that requires it.
        platform: The platform's name, which the sockets' paths have in them.
        transport: `ipc` or `tcp`.
        socket_name: ipc: what the paths of the sockets begin with; `None`: `/tmp/goby_` and the platform.
        address: tcp: where the manager is, an IPv4 or IPv6 address or a host's name.
        port: tcp: the manager's port.
        manager_timeout: Seconds that the manager has to answer.
        buffer: Publications that may wait for the release; `None`: 10,000. They have 64 MiB at most.
        schemes: Marshalling schemes of one's own.
        context: Whose sockets they are; `None` for the default context.

    Raises:
        UsageError: Something does not fit; the text names it.
        ConnectError: No manager has answered in time.
    """

    _sockets: ClassVar[Any] = omq
    _inbox_type = BlockingInbox
    _subscription_type: ClassVar[Any] = Subscription
    _calls: BlockingInbox
    _calls_by_thread = True  # else the owner of the portal calls callbacks

    def _set_up(self) -> None:
        self._changed = threading.Condition()  # for `_await`
        #: Sockets for answers, for a thread that starts with the portal: Python 3.12 starts none at exit.
        self._readings: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._read_to_end = threading.Event()
        self._threads: list[threading.Thread] = []
        self._caller: threading.Thread | None = None
        try:
            run_blocking(self._find)
        except BaseException:
            self.close()
            raise
        for run in (
            self._run_readings,
            lambda: run_blocking(self._read_publications),
            lambda: run_blocking(self._run),
        ):
            self._threads.append(self._thread(run))
        _portals.add(self)

    def _thread(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name=f"omq goby {self._name}", daemon=True)
        thread.start()
        return thread

    # ------------------------------------------------------------------ its calls

    def publish(
        self, group: str | int, message: Any, *, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> None:
        """Publishes a message, or keeps it until the hold is released.

        Args:
            group: The group, not empty, without `/` and NUL; see `Group` for those with a number.
            message: A protobuf message, `str` (CSTR), `dict` (JSON, as BSON), `bytes`, or what a scheme of one's own
                handles.
            scheme: A marshalling scheme's name or number; `None`: what fits the message. `bytes` need it.
            type_name: What the message's type is called; `None`: as its scheme names it. `bytes` need it.

        Raises:
            UsageError: The group does not fit, or no scheme handles the message.
            BufferFull: The hold is not released, and as many publications as may wait do so.
            ClosedError: The portal is closed.
        """
        self._send(self._compose(group, message, scheme, type_name))

    def _send(self, frame: bytes) -> None:
        if self._outbox.open:
            self._pub.send(frame)
        else:
            run_blocking(lambda: self._keep(frame))

    def flush(self, timeout: float | None = None) -> None:
        """Waits until what was published after the release has left this process.

        Args:
            timeout: Seconds; `None` for ever.

        Raises:
            SendTimeout: Something has not left in time; nothing is lost.
            ClosedError: The portal is closed.
        """
        run_blocking(lambda: self._flush(timeout))

    def wait_released(self, timeout: float | None = None) -> None:
        """Waits until the hold is released, and what was kept has left.

        Args:
            timeout: Seconds; `None` for ever.

        Raises:
            Timeout: It was not released in time; with omq's gobyd the text names the missing clients.
            ClosedError: The portal is closed.
        """
        run_blocking(lambda: self._wait_released(timeout))

    def missing(self, *, timeout: float = 1.0) -> list[str]:
        """The required clients that the hold waits for, as reported by omq's gobyd; other managers do not report them.

        Args:
            timeout: Seconds that the manager has to answer; without an answer the list is empty.
        """
        return run_blocking(lambda: self._missing(timeout))

    def close(self) -> None:
        """Ends; what was published leaves first, if the hold is released within a second. Idempotent.

        A portal that is open when the interpreter ends is given that second, too. In a forked child nothing happens.
        """
        if os.getpid() != self._pid:
            return
        self._ends = True
        if self._threads and not self._closed and threading.current_thread() is not self._threads[-1]:
            run_blocking(lambda: self._drain(LINGER_S))
        if self._end():
            for socket in self._open_sockets():
                socket.close()
            self._readings.put(None)
            for thread in (*self._threads, self._caller):
                if thread is not None and thread is not threading.current_thread():
                    thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ what waits

    def _check_usable(self) -> None:
        self._check_process()

    async def _begin(self) -> None:
        self._check_process()

    async def _got(self, found: Any) -> Any:
        return found

    async def _await(self, true: Callable[[], bool], timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or true(), timeout)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # ------------------------------------------------------------------ its threads

    def _begin_reading(self, answers: Any, number: int) -> None:
        self._read_to_end.clear()
        self._readings.put(lambda: run_blocking(lambda: self._read_answers(answers, number)))

    async def _end_reading(self) -> None:
        self._read_to_end.wait()

    def _run_readings(self) -> None:
        while (reading := self._readings.get()) is not None:
            reading()
            self._read_to_end.set()

    def _was_called(self, handler: Handler | None = None) -> None:
        if handler is not None and handler.inbox is self._calls and self._calls_by_thread:
            with self._changing:
                if self._caller is None:
                    self._caller = self._thread(self._call)

    def _call(self) -> None:
        """Calls callbacks with what has come for them."""
        calls = self._calls
        while not calls.ended:
            if (item := calls.get(None)) is not None and not (self._closed or item[0].ended):
                handler, identifier, payload = item
                handler.call(identifier, payload, self._dispatcher.malformations)


_portals: WeakSet[Portal] = WeakSet()


def _farewell() -> None:
    """Gives what was published a moment to leave, as `close` does; the sockets end with their contexts."""
    until = time.monotonic() + LINGER_S
    for portal in list(_portals):
        if not portal._closed and portal._outbox:
            run_blocking(lambda: portal._drain(max(until - time.monotonic(), 0)))  # noqa: B023 - called at once
            portal._warn_dropped()


os.register_at_fork(after_in_child=_portals.clear)
# The contexts end after this, for theirs was registered before.
atexit.register(_farewell)
