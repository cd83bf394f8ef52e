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
from omq.goby.dispatch import Handler, Inbox, Item, parse_error_text
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
        self._blocked = False  # whether the portal waits for room
        self._woken = False

    def put(self, items: list[Item]) -> None:
        """Adds publications, as soon as there is room for them; drops them if the reader has stalled."""
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
        """Waits for the next publication; returns `None` after the timeout or `wake`, and if the inbox has ended."""
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
        """Ends a call of `get` that waits, or else the next one."""
        with self._lock:
            self._woken = True
            self._filled.notify()

    def end(self) -> None:
        """Accepts nothing more, and ends all waits."""
        with self._lock:
            self.ended = True
            self._filled.notify_all()
            self._emptied.notify_all()


class Subscription(PortalSubscriptionBase):
    """A subscription of a portal: an iterator of messages, unless it has a callback. Threads may share it.

    The iteration ends when the subscription or its portal is closed.

    Attributes:
        dropped: The number of messages that were dropped, because they were not read in time. 0 with a callback.
    """

    def recv(self, *, timeout: float | None = None) -> Any:
        """Waits for a message. A payload that does not parse is logged, counted and skipped.

        Args:
            timeout: In seconds; `None` waits for ever, 0 does not wait.

        Returns:
            The message, of the type of the subscription; `Received` for `subscribe_regex`.

        Raises:
            ReceiveTimeout: No message has arrived in time.
            ClosedError: The subscription, or its portal, is closed.
            UsageError: The subscription has a callback.
            StateError: The portal belongs to a parent process.
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
                self._portal._dispatcher.parse_errors.note(parse_error_text(identifier, fault))

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

    Publications before the release of the hold are kept, and then sent in order. So are publications while no gobyd
    runs: the portal reconnects to a restarted one. Callbacks run in one thread of the portal: a slow callback delays
    the other callbacks, and nothing else. In a forked child its calls raise `StateError`.

    Args:
        name: The client's name, by which a gobyd can require it; not empty.
        platform: The platform's name, without `/`; `default_goby_platform` by default. It is in the sockets' paths.
        transport: `ipc` or `tcp`; `ipc` by default.
        socket_name: ipc: the prefix of the sockets' paths; `None`: `/tmp/goby_PLATFORM`.
        address: tcp: the manager's IPv4 or IPv6 address, or its host name; `127.0.0.1` by default.
        port: tcp: the manager's port, from 1 to 65535; 11144 by default.
        manager_timeout: The seconds for the manager to answer, above 0; 5 by default.
        buffer: The number of publications that may wait for the release, 1 or more; `None`: 10,000. They have at most
            64 MiB together.
        schemes: Custom marshalling schemes.
        context: The context of the sockets; `None`: the default context.

    Raises:
        UsageError: An argument is not valid; the text names it.
        TypeError: *schemes* is not iterable, or an item is not a `Scheme`.
        ConnectError: No manager has answered in time, or the process that has answered is not a manager.
    """

    _socket_module: ClassVar[Any] = omq
    _inbox_type = BlockingInbox
    _subscription_type: ClassVar[Any] = Subscription
    _callback_inbox: BlockingInbox
    _runs_callbacks = True  # if not, the owner of the portal calls them

    def _set_up(self) -> None:
        self._changed = threading.Condition()  # for `_wait_until`
        # For a thread that starts with the portal, as Python 3.12 cannot start one at exit.
        self._reader_jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reader_ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._callback_thread: threading.Thread | None = None
        try:
            run_blocking(self._find_manager)
        except BaseException:
            self.close()
            raise
        for run in (
            self._run_answer_readers,
            lambda: run_blocking(self._read_publications),
            lambda: run_blocking(self._run),
        ):
            self._threads.append(self._thread(run))
        _portals.add(self)

    def _thread(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name=f"omq goby {self._name}", daemon=True)
        thread.start()
        return thread

    # ------------------------------------------------------------------ calls

    def publish(
        self, group: str | int, message: Any, *, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> None:
        """Publishes a message, or keeps it until the hold is released.

        Args:
            group: The group: a `str`, not empty, without `/` and NUL; a number; or a `Group`, which may have both.
            message: A protobuf message, `str` (CSTR), `dict` (JSON, as BSON), `bytes`, or a message of a type that a
                custom scheme handles.
            scheme: The name or number of a marshalling scheme; `None`: the scheme that handles the message's type.
                Required for `bytes`.
            type_name: The name of the type on the wire; `None`: the name that the scheme uses. Required for `bytes`.

        Raises:
            UsageError: The group, *scheme* or *type_name* is not valid, no scheme handles the message, or a protobuf
                or JSON message cannot be encoded.
            UnicodeEncodeError: A `str` cannot be encoded in UTF-8.
            TypeError: The group is neither a `str` nor an `int`, or *type_name* is not a `str`.
            ImportError: The scheme is JSON, and pymongo is not installed.
            BufferFull: The hold is not released, and `buffer` publications already wait, or more than 64 MiB would.
            StateError: The portal belongs to a parent process.
            ClosedError: The portal is closed.
        """
        self._send(self._compose(group, message, scheme, type_name))

    def _send(self, frame: bytes) -> None:
        if self._outbox.open:
            self._pub.send(frame)
        else:
            run_blocking(lambda: self._keep(frame))

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all earlier publications are sent. Before the first release, it does not wait for the kept ones.

        Args:
            timeout: In seconds; `None` waits for ever.

        Raises:
            SendTimeout: Some publications were not sent in time. No publication is lost.
            ClosedError: The portal is closed.
        """
        run_blocking(lambda: self._flush(timeout))

    def wait_released(self, timeout: float | None = None) -> None:
        """Waits until the hold is released, and the kept publications are sent.

        Args:
            timeout: In seconds; `None` waits for ever.

        Raises:
            Timeout: The hold was not released in time. With omq's gobyd the text names the required clients that are
                not ready.
            ClosedError: The portal is closed.
        """
        run_blocking(lambda: self._wait_released(timeout))

    def missing(self, *, timeout: float = 1.0) -> list[str]:
        """Returns the names of the required clients that are not ready. Only omq's gobyd reports them.

        Args:
            timeout: The seconds for the manager to answer.

        Returns:
            The names. The list is empty after the release, without an answer in time, and with Goby's own gobyd.

        Raises:
            ClosedError: The portal is closed.
        """
        return run_blocking(lambda: self._missing(timeout))

    def close(self) -> None:
        """Closes the portal. Kept publications are sent first, if the hold is released within a second. Idempotent.

        A portal that is open at the interpreter's exit gets that second, too. In a forked child this does nothing.
        """
        if os.getpid() != self._pid:
            return
        self._is_closing = True
        if self._threads and not self._closed and threading.current_thread() is not self._threads[-1]:
            run_blocking(lambda: self._drain(LINGER_S))
        if self._end():
            for socket in self._open_sockets():
                socket.close()
            self._reader_jobs.put(None)
            for thread in (*self._threads, self._callback_thread):
                if thread is not None and thread is not threading.current_thread():
                    thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ waiting

    def _check_usable(self) -> None:
        self._check_process()

    async def _ensure_started(self) -> None:
        self._check_process()

    async def _result(self, call: Any) -> Any:
        return call

    async def _wait_until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or condition(), timeout)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # ------------------------------------------------------------------ threads

    def _start_answer_reader(self, socket: Any, number: int) -> None:
        self._reader_ended.clear()
        self._reader_jobs.put(lambda: run_blocking(lambda: self._read_answers(socket, number)))

    async def _join_answer_reader(self) -> None:
        self._reader_ended.wait()

    def _run_answer_readers(self) -> None:
        while (read := self._reader_jobs.get()) is not None:
            read()
            self._reader_ended.set()

    def _start_background(self, handler: Handler | None = None) -> None:
        if handler is not None and handler.inbox is self._callback_inbox and self._runs_callbacks:
            with self._socket_lock:
                if self._callback_thread is None:
                    self._callback_thread = self._thread(self._run_callbacks)

    def _run_callbacks(self) -> None:
        """Calls the callbacks with their publications."""
        inbox = self._callback_inbox
        while not inbox.ended:
            if (item := inbox.get(None)) is not None and not (self._closed or item[0].ended):
                handler, identifier, payload = item
                handler.call(identifier, payload, self._dispatcher.parse_errors)


_portals: WeakSet[Portal] = WeakSet()


def _drain_at_exit() -> None:
    """Waits until publications are sent, as `close` does; the sockets end with their contexts."""
    end = time.monotonic() + LINGER_S
    for portal in list(_portals):
        if not portal._closed and portal._outbox:
            run_blocking(lambda: portal._drain(max(end - time.monotonic(), 0)))  # noqa: B023 - called at once
            portal._warn_dropped()


os.register_at_fork(after_in_child=_portals.clear)
# The contexts end after this, as their function was registered before.
atexit.register(_drain_at_exit)
