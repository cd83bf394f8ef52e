"""The blocking portal."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

import omq
from omq.errors import ClosedError, ReceiveTimeout, SendTimeout, Timeout, UsageError
from omq.event import Event
from omq.goby.dispatch import Dispatcher, Handler, Inbox, Item, does_not_parse
from omq.goby.errors import BufferFull
from omq.goby.outbox import Closing
from omq.goby.portal_base import BATCH, LIMIT, LINGER, LOOK, LOSSES, NAMING, NEWS, PortalBase
from omq.goby.scheme import SchemeId
from omq.goby.session import (
    Ask,
    AwaitLoss,
    AwaitNews,
    AwaitSubscribed,
    Connect,
    Hear,
    Pause,
    Send,
    Step,
    Subscribe,
    Tell,
    Where,
)
from omq.monitor import Monitor
from omq.unpatched import queue, threading

__all__ = ["Portal", "Subscription"]

log = logging.getLogger("omq.goby")


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
        """Takes publications, as soon as there is room for them."""
        with self._lock:
            start = self.accept(items, 0)
            self._filled.notify(start)
            while start < len(items):
                self._blocked = True
                if (patience := self.patience()) <= 0 or not self._emptied.wait(patience):
                    self._blocked = False
                    self.drop(len(items) - start)
                    return
                before, start = start, self.accept(items, start)
                self._filled.notify(start - before)
            self._blocked = False

    def get(self, timeout: float | None) -> Item | None:
        """Waits for the next one; `None` if none comes in time, or it has ended."""
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
        """Has a call that waits, or else the next one, give up."""
        with self._lock:
            self._woken = True
            self._filled.notify()

    def end(self) -> None:
        """Nothing comes any more."""
        with self._lock:
            self.ended = True
            self._filled.notify_all()
            self._emptied.notify_all()


class Losses(Monitor):
    """Tells when a connection of either socket is over."""

    def __init__(self, pub: omq.Socket, sub: omq.Socket) -> None:
        super().__init__(sub._may_monitor(), LIMIT)
        pub._may_monitor().reporter.add(self)

    def put(self, event: Event) -> None:
        """Takes an event in, if it is a loss, or news."""
        if event.kind in LOSSES:
            super().put(event)


class Subscription:
    """What a portal has subscribed to: an iterator of messages, which ends with it. Threads may share it.

    With a callback there is nothing to iterate over.

    Attributes:
        dropped: Messages that nobody has taken in time, so that they were dropped.
    """

    def __init__(self, portal: Portal, handler: Handler) -> None:
        self._portal = portal
        self._handler = handler
        inbox = handler.inbox if handler.callback is None else None
        self._inbox = inbox if isinstance(inbox, BlockingInbox) else None

    @property
    def dropped(self) -> int:
        return 0 if self._inbox is None else self._inbox.dropped

    def recv(self, *, timeout: float | None = None) -> Any:
        """Waits for a message. A payload that does not parse is logged, counted, and passed over.

        Args:
            timeout: Seconds; `None` for ever, 0 never.

        Raises:
            ReceiveTimeout: None came in time.
            ClosedError: The subscription, or its portal, is closed.
            UsageError: It has a callback.
        """
        inbox = self._inbox
        if inbox is None:
            raise UsageError("this subscription has a callback: there is nothing to wait for")
        self._portal._session.check_process()
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            item = inbox.get(None if end is None else max(end - time.monotonic(), 0))
            if item is None:
                if inbox.ended:
                    raise ClosedError("the subscription is closed")
                raise ReceiveTimeout(f"no message within {timeout} s")
            handler, identifier, payload = item
            try:
                return handler.decode(identifier, payload)
            except Exception as fault:  # whatever it is, the payload does not parse
                self._portal._session.dispatcher.malformations.note(does_not_parse(identifier, fault))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.recv()
        except ClosedError:
            raise StopIteration from None

    def close(self) -> None:
        """Ends it. Idempotent."""
        self._portal._remove(self._handler)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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

    def _set_up(self) -> None:
        self._session.wake = self._wake
        self._pub: omq.Socket
        self._sub: omq.Socket
        self._at: tuple[str, str] | None = None
        self._asking: omq.Socket | None = None
        self._answers: omq.Socket | None = None
        #: Sockets for answers, for a thread that starts with the portal: Python 3.12 starts none at exit.
        self._hearing: queue.SimpleQueue[tuple[omq.Socket, Dispatcher, threading.Event] | None] = queue.SimpleQueue()
        self._heard = threading.Event()  # it has read the last of them to its end
        self._caller: threading.Thread | None = None
        self._news = threading.Event()
        self._ending = threading.Event()
        self._changed = threading.Condition()  # whether it is released, or closed
        self._threads: list[threading.Thread] = []
        try:
            self._do_all(self._session.connect())
        except BaseException:
            self.close()
            raise
        for run in (self._hear_all, lambda: self._read(self._sub, self._session.dispatcher), self._live):
            self._threads.append(self._thread(run))
        _portals.add(self)

    def _thread(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name=f"omq goby {self.name}", daemon=True)
        thread.start()
        return thread

    # ------------------------------------------------------------------ publications

    def publish(
        self, group: str | int, message: Any, *, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> None:
        """Publishes a message, or keeps it until the hold is released.

        Args:
            group: The group, not empty, without `/` and NUL; see `Group` for those with a number.
            message: A protobuf message, `str` (CSTR), `dict` (JSON, as BSON), `bytes`, or what a scheme of one's own
                handles.
            scheme: A marshalling scheme's name or number; `None`: what fits the message. `bytes` need it.
            type_name: What the message's type is called; `None`: as its scheme says. `bytes` need it.

        Raises:
            UsageError: The group does not fit, or no scheme handles the message.
            BufferFull: The hold is not released, and as many publications as may wait do so.
            ClosedError: The portal is closed.
        """
        self._send(self._session.compose(group, message, scheme, type_name))

    def _send(self, frame: bytes) -> None:
        if self._outbox.open:
            self._pub.send(frame)
        else:
            self._keep(frame)

    def _keep(self, frame: bytes) -> None:
        self._session.check_process()
        while True:
            if self._closed or self._ends:
                raise self._closed_error()
            rounds = self._session.rounds
            try:
                if not self._outbox.put(frame):
                    self._pub.send(frame)
                return
            except Closing:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or not self._outbox.closing)
            except BufferFull:
                if not self._session.released:
                    raise
                # What waits does so for a moment, since something was subscribed to.
                self._await(self._session.behind(rounds), None)

    def _await(self, true: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until something is true, or the portal is closed; gives whether that is so in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or true(), timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until what was published after the release has left this process.

        Args:
            timeout: Seconds; `None` for ever.

        Raises:
            SendTimeout: Something has not left in time; nothing is lost.
            ClosedError: The portal is closed.
        """
        self._session.check_process()
        end = None if timeout is None else time.monotonic() + timeout
        mark = self._outbox.kept
        if not self._await(lambda: self._outbox.left >= mark or not self._session.rounds, timeout):
            raise SendTimeout(self._session.not_left(timeout))
        self._pub.flush(end and max(end - time.monotonic(), 0))

    # ------------------------------------------------------------------ subscriptions

    def _new_inbox(self, limit: int, *, shared: bool = False) -> BlockingInbox:
        return BlockingInbox(limit, shared=shared)

    def _add(self, handler: Handler) -> Subscription:
        self._session.check_process()
        with self._changing:
            if self._closed:
                raise self._closed_error()
            if handler.inbox is self._calls and self._caller is None:
                self._caller = self._thread(self._call)
            prefix = self._session.dispatcher.add(handler)
            if prefix is not None:
                self._sub.subscribe(prefix)
                self._session.subscribed()
        return Subscription(self, handler)

    def _remove(self, handler: Handler) -> None:
        self._session.check_process()
        handler.ended = True
        with self._changing:
            prefix = self._session.dispatcher.remove(handler)
            if prefix is not None and not self._closed:
                with suppress(ClosedError):
                    self._sub.unsubscribe(prefix)
        if isinstance(handler.inbox, BlockingInbox) and not handler.inbox.shared:
            handler.inbox.end()

    # ------------------------------------------------------------------ the hold

    def ready(self) -> None:
        """Tells the manager that this client is ready, once all that it has subscribed to is in force.

        A gobyd that requires it holds all publications until then.
        """
        self._session.ready()

    def wait_released(self, timeout: float | None = None) -> None:
        """Waits until the hold is released, and what was kept has left.

        Args:
            timeout: Seconds; `None` for ever.

        Raises:
            Timeout: It was not released in time; the text says who is missing, where omq's gobyd holds.
            ClosedError: The portal is closed.
        """
        self._session.check_process()
        if self._await(lambda: self._session.released, timeout):
            if self._closed:
                raise self._closed_error()
            return
        raise Timeout(self._session.not_released(timeout, self.missing(timeout=NAMING)))

    def missing(self, *, timeout: float = 1.0) -> list[str]:
        """The required clients that the hold waits for, as omq's gobyd tells them; other managers do not.

        Args:
            timeout: Seconds that the manager has to answer; without an answer there are none.
        """
        return self._session.missing_of(self._ask(self._session.missing_request(timeout)))

    # ------------------------------------------------------------------ life

    def close(self) -> None:
        """Ends; what was published leaves first, if the hold is released within a second. Idempotent.

        A portal that is open when the interpreter ends is given that second, too. In a forked child nothing happens.
        """
        if self._session.is_forked():
            return
        self._ends = True
        if self._threads and not self._closed and threading.current_thread() is not self._threads[-1]:
            mark = self._outbox.kept
            self._await(lambda: self._outbox.left >= mark, LINGER)
        with self._changing:
            if self._closed:
                return
            self._closed = self._session.dispatcher.ended = True
        if self._outbox and self._threads:
            log.warning("%s: %d publications that were held are dropped", self.name, len(self._outbox))
        self._outbox.hold()
        self._ending.set()
        self._news.set()
        for socket in (self._asking, self._answers, getattr(self, "_sub", None), getattr(self, "_pub", None)):
            if socket is not None:
                socket.close()
        with self._changed:
            self._changed.notify_all()
        for inbox in self._inboxes():
            assert isinstance(inbox, BlockingInbox)
            inbox.end()
        self._hearing.put(None)
        for thread in (*self._threads, self._caller):
            if thread is not None and thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ its threads

    def _wake(self) -> None:
        self._news.set()
        self._losses.put(NEWS)

    def _read(self, sub: omq.Socket, dispatcher: Dispatcher) -> None:
        sort = dispatcher.sort
        while not self._closed:
            try:
                publications = sub.recv_many(BATCH)
                self._pub._look()  # see `Session`: who asks has subscribed to the answer before
                for inbox, items in sort(publications).items():
                    assert isinstance(inbox, BlockingInbox)
                    inbox.put(items)
            except ClosedError:
                return
            except Exception:
                log.exception("%s: reading goes on", self.name)

    def _call(self) -> None:
        """Calls callbacks with what has come for them."""
        dispatcher, calls = self._session.dispatcher, self._calls
        assert isinstance(calls, BlockingInbox)
        while not calls.ended:
            if (item := calls.get(None)) is not None and not (dispatcher.ended or item[0].ended):
                handler, identifier, payload = item
                handler.call(identifier, payload, dispatcher.malformations)

    def _live(self) -> None:
        try:
            self._do_all(self._session.live())
        except ClosedError:
            pass
        except Exception:
            log.exception("%s: the portal has failed", self.name)
            self.close()

    def _do_all(self, life: Generator[Step, Any, None]) -> None:
        """Does the steps of a life until it ends, or the portal is closed."""
        try:
            step = next(life)
            while True:
                try:
                    found = self._do(step)
                    if self._closed:
                        raise self._closed_error()
                except BaseException:
                    life.close()
                    raise
                step = life.send(found)
        except StopIteration:
            pass

    def _do(self, step: Step) -> Any:
        match step:
            case Ask():
                return self._ask(step)
            case Connect(sockets):
                self._connect(sockets.publish, sockets.subscribe, sockets.send_hwm, sockets.recv_hwm)
            case Hear(answers):
                self._hear(answers)
            case Subscribe(prefix, wanted, hearing):
                sub = self._sub if not hearing or self._answers is None else self._answers
                (sub.subscribe if wanted else sub.unsubscribe)(prefix)
            case AwaitSubscribed(prefix, timeout):
                try:
                    self._pub.wait_subscribed(prefix, timeout=timeout)
                except Timeout:
                    return False
                return True
            case AwaitNews(timeout):
                self._news.wait(timeout)
                self._news.clear()
            case Where():
                return self._where()
            case AwaitLoss(at):
                return self._await_loss(at)
            case Send(frames):
                for frame in frames:
                    self._pub.send(frame)
                try:
                    self._pub.flush(LINGER)
                except Timeout:
                    return False
                return True
            case Pause(seconds):
                self._ending.wait(seconds)
            case Tell():
                with self._changed:
                    self._changed.notify_all()
        return None

    def _ask(self, step: Ask) -> bytes | None:
        with omq.REQ(self._context, connect=step.endpoint, linger=0, **self._options) as asking:
            self._asking = asking
            try:
                asking.send(step.request, timeout=step.timeout)
                return asking.recv_multipart(timeout=step.timeout)[0]
            except Timeout:
                return None
            finally:
                self._asking = None

    def _connect(self, publish: str, subscribe: str, send_hwm: int, recv_hwm: int) -> None:
        with self._changing:
            if self._closed:
                raise self._closed_error()
            if not hasattr(self, "_pub"):
                self._pub = omq.PUB(self._context, linger=LINGER, send_hwm=send_hwm, **self._options)
                self._sub = omq.SUB(self._context, linger=0, recv_hwm=recv_hwm, **self._options)
                self._losses = Losses(self._pub, self._sub)
            else:
                self._pub.set_options(send_hwm=send_hwm)
                self._sub.set_options(recv_hwm=recv_hwm)
            at, self._at = self._at, (publish, subscribe)
            for number, socket in enumerate((self._pub, self._sub)):
                if at is not None:
                    socket.disconnect(at[number])
                socket.connect(self._at[number])

    def _hear(self, answers: Dispatcher | None) -> None:
        if self._answers is not None:
            self._answers.close()
            self._heard.wait()
            self._answers = None
        if answers is None:
            return
        with self._changing:
            if self._closed or self._at is None:
                raise self._closed_error()
            self._answers = sub = omq.SUB(
                self._context, connect=self._at[1], subscribe=answers.wanted, linger=0, **self._options
            )
            self._heard = threading.Event()
            self._hearing.put((sub, answers, self._heard))

    def _hear_all(self) -> None:
        """Reads the sockets for answers, one after the other."""
        while (task := self._hearing.get()) is not None:
            sub, answers, heard = task
            self._read(sub, answers)
            heard.set()

    def _where(self) -> object:
        """By which connections the router is reached; see `Where`."""
        found = self._pub.peers, self._sub.peers
        return tuple(peer.since for peers in found for peer in peers) if all(found) else None

    def _await_loss(self, at: object) -> bool:
        """Waits until the router is lost, or publications are held; see `AwaitLoss`."""
        while self._where() == at:
            if not self._outbox.open:
                return False
            with suppress(ReceiveTimeout):
                self._losses.recv(timeout=LOOK)
        return True


_portals: WeakSet[Portal] = WeakSet()


def _farewell() -> None:
    """Gives what was published a moment to leave, as `close` does; the sockets end with their contexts."""
    until = time.monotonic() + LINGER
    for portal in list(_portals):
        if portal._closed or not portal._outbox:
            continue
        portal._ends = True
        mark = portal._outbox.kept
        portal._await(lambda portal=portal, mark=mark: portal._outbox.left >= mark, max(until - time.monotonic(), 0))  # type: ignore[misc]
        if portal._outbox:
            log.warning("%s: %d publications that were held are dropped", portal.name, len(portal._outbox))


os.register_at_fork(after_in_child=_portals.clear)
# The contexts end after this, for theirs was registered before.
atexit.register(_farewell)
