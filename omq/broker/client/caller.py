"""How the threads that call share a client's one socket: the thread that calls does the work.

One thread at a time reads the socket, whoever waits for something; the others sleep until theirs has come, or until
they are to read. Nothing runs in the background but the socket's own heartbeats, and, while acknowledgements come one
close upon the other, a thread that says the last of them where no call follows.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar
from weakref import WeakSet

import omq
from omq.broker import protocol
from omq.broker.client.checks import patience
from omq.broker.client.client_core import ClientCore, State
from omq.broker.client.connection import SESSION_OPTIONS, Pause, Watch
from omq.broker.client.feeds import Feed, ShareFeed
from omq.broker.client.request import Request
from omq.broker.errors import BrokerTimeout, SyntaxFault
from omq.errors import ClosedError, ContextTerminated, OmqError, ReceiveTimeout, SendTimeout, StateError, Timeout
from omq.unpatched import sleep, threading

log = logging.getLogger("omq")

_Asked = TypeVar("_Asked")

_FIRST_NAP: Final = 0.02  # seconds of a first look at the socket; a lost connection is noticed in between
_LAST_NAP: Final = 0.25  # seconds of the longest
_FULL_NAP: Final = 0.005  # seconds, while the socket takes nothing
_DENSE: Final = 0.001  # seconds between acknowledgements that are said together
_LATE: Final = 0.02  # seconds after which they are said in any case
_IDLE: Final = 25  # times that the thread which says them finds none before it ends
_FAREWELL: Final = 1.0  # seconds that a program's end waits for what was acknowledged, at most
_AT_ONCE: Final = 64  # messages that are taken from the socket in one turn


class _Waiter:
    """A call that waits; it sleeps while another one reads the socket."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self.ready = ready
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wake(self) -> None:
        """Ends its sleep, or the next one. Under the client's lock."""
        with contextlib.suppress(RuntimeError):  # it was woken already
            self._asleep.release()

    def sleep(self, seconds: float | None) -> None:
        """Sleeps until it is woken."""
        self._asleep.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))


class Caller:
    """A client's connection, and the calls that wait for something of it.

    Args:
        endpoint: The broker's.
        timeout: Seconds that a call waits; `None` for ever.
        context: For the sockets.
        options: Of the sockets.

    Attributes:
        core: What is known; under the lock.
        lock: Held for moments only, never while anything waits.
        closed: Whether `close` was called.
    """

    def __init__(
        self, endpoint: str, timeout: float | None, context: omq.Context | None, options: dict[str, Any]
    ) -> None:
        self.endpoint = endpoint
        self.timeout = patience(timeout)
        self.core = ClientCore(os.urandom(16))
        self.lock = threading.RLock()  # nobody takes it twice: it tells a signal handler that its thread has it
        self.closed = False
        self._context = context
        self._options = {**SESSION_OPTIONS, **options}
        self._pid = os.getpid()
        self._waiting: set[int] = set()  # threads in which a call waits
        self._to_close = False  # a signal handler has asked the call that it interrupts to close this
        self._closing = False
        self._leader: _Waiter | None = None  # whose thread reads the socket
        self._waiters: list[_Waiter] = []
        self._dropped: deque[Feed | Request] = deque()  # whose holders are gone
        self._minded = False  # whether a thread says what was acknowledged
        self._said = 0.0  # when an acknowledgement left, by the monotonic clock
        self._pause = Pause()
        self._again: float | None = None  # when what a busy broker refused is asked for again
        self._greeted = False  # in this connection
        self._socket: omq.DEALER | None = None
        self._watch: Watch
        self._open()
        _callers.add(self)

    # ------------------------------------------------------------------ life

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child, where the lock may be held for ever."""
        return os.getpid() != self._pid

    def close(self) -> None:
        """Flushes what was acknowledged, gives back what is held, and ends.

        Raises:
            BrokerTimeout: The broker has not said that what was acknowledged is durable.
        """
        if self.nested:
            self._to_close = not self._closing
            self.wake_all()
            return
        if self.amid:
            # The call that was interrupted ends first; the program's end waits for the thread.
            threading.Thread(target=self._close_later, name="omq-broker-close").start()
            return
        self._to_close, self._closing = False, True
        try:
            self.flush(self.until())
            self._say_goodbye()
        finally:
            with self.lock:
                self.closed = True
                self.core.close()
                socket, self._socket = self._socket, None
                self.wake_all()
            if socket is not None:
                socket.stop()

    def _close_later(self) -> None:
        if not self.closed:
            try:
                self.close()
            except OmqError as error:
                log.warning("%s", error)

    def _say_goodbye(self) -> None:
        with self.lock:
            if self.core.state is not State.UP:
                return
            self.core.give_back()
            bye = self.core.request(protocol.BYE)
            self.send_out()
        with contextlib.suppress(BrokerTimeout):
            self.finish(bye, self.until())

    @property
    def nested(self) -> bool:
        """Whether this is in a signal handler that has interrupted a call which waits: nothing can be waited for."""
        return threading.get_ident() in self._waiting

    @property
    def amid(self) -> bool:
        """Whether this is in a signal handler that has interrupted its thread while that has the lock."""
        return self.lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def leave(self, until: float) -> None:
        """The program ends without `close`: flushes what was acknowledged, where the broker is there."""
        if not self.closed and not self.inherited and self.core.state is State.UP:
            with contextlib.suppress(OmqError):
                self.flush(until)

    def drop(self, one: Feed | Request) -> None:
        """A feed or a request has lost its holder. Locks nothing: who reads the socket sees to it, or the next call.

        Any thread, in the midst of anything, may be the one that finds so: the garbage collector comes when it likes.
        """
        self._dropped.append(one)

    def wake_all(self) -> None:
        """Has every call that waits look again. Under the lock."""
        for waiter in self._waiters:
            waiter.wake()

    def wake_ready(self) -> None:
        """Wakes the calls for which something is there. Under the lock."""
        for waiter in self._waiters:
            if waiter.ready():
                waiter.wake()

    # ------------------------------------------------------------------ requests

    def refuse(self) -> None:
        """Raises where no call can be made: in a forked child, and once the client is closed."""
        # Each acknowledgement comes through here, so the usual case has one test.
        if os.getpid() == self._pid and not self.lock._is_owned() and not self.closed:  # type: ignore[attr-defined]
            return
        if self.inherited:
            raise StateError("this client belongs to the parent process: make a new one after fork()")
        if self.amid:
            raise StateError("a signal handler cannot use the client amid a call of its thread, but for close()")
        self._refuse_closed()

    def _refuse_closed(self) -> None:
        if self.closed:
            raise ClosedError(f"the client of {self.endpoint} is closed")

    def _refuse_nested(self) -> None:
        if self.nested:
            raise StateError("a signal handler cannot wait for the broker amid a call of its thread that does")

    def until(self) -> float | None:
        """When the time of a call is up."""
        return None if self.timeout is None else time.monotonic() + self.timeout

    def ask(self, command: bytes, *parts: bytes) -> list[bytes]:
        """Makes a request, and waits for its answer."""
        (request,) = self.answered(lambda: [self.core.request(command, *parts)], self.until())
        return request.result()

    def make(self, ask: Callable[[], _Asked]) -> _Asked:
        """Calls what makes requests, under the lock; they leave. What has raised has made none.

        No context manager does: a signal handler may raise on the way into its end, which is then not reached.
        """
        self.refuse()
        self.settle_dropped()
        with self.lock:
            self._refuse_closed()
            mark = self.core.mark()
            try:
                asked = ask()
                self.send_out()
                return asked
            except BaseException:
                self.core.give_up_since(mark)
                raise

    def answered(self, ask: Callable[[], list[Request]], until: float | None) -> list[Request]:
        """Calls what makes requests, and waits for an answer to the first of them.

        Where anything raises, also a signal handler, they are given up: else they would be made in the next connection,
        behind what was asked for later.
        """
        self._refuse_nested()
        asked: list[Request] = []
        try:
            self.make(lambda: asked.extend(ask()))
            self.finish(asked[0], until)
        except BaseException:
            with self.lock:
                for request in asked:
                    self.core.give_up(request)
                self.send_out()
            raise
        return asked

    def finish(self, request: Request, until: float | None) -> list[bytes]:
        """Waits for an answer."""
        try:
            if not request.done:
                self.wait_for(lambda: request.done, until, f"an answer to {request.command.decode()}")
        except BaseException:
            with self.lock:
                self.core.give_up(request)
                self.send_out()
            raise
        return request.result()

    def wait_for(self, ready: Callable[[], bool], until: float | None, what: str) -> None:
        if self.wait(ready, until):
            return
        if self.core.is_busy:
            raise BrokerTimeout(f"{self.endpoint}: the broker is busy: {what} has not come in time")
        if self.core.state is State.UP:
            raise BrokerTimeout(f"{self.endpoint}: the broker gave no sign in time: {what} has not come")
        raise BrokerTimeout(self._watch.failure(self.endpoint, self.timeout))

    def flush(self, until: float | None, flush: Request | None = None) -> None:
        """Waits until what was acknowledged is durable.

        Args:
            until: When the time of the call is up.
            flush: A flush that was asked for already.
        """
        while flush is not None or self.core.dirty:
            if flush is None:
                (flush,) = self.answered(lambda: [self.core.flush()], until)
            else:
                self.finish(flush, until)
            # What goes on after a lost connection is settled again, and may say a position again.
            self.wait_for(lambda: not self.core.resuming, until, "an answer to what went on")
            if flush.session == self.core.session:
                return
            flush = None
        other = self.core.flushing
        if other is not None and not other.done:  # another thread's covers what was acknowledged before
            self.wait_for(lambda: other.done, until, "an answer to FLUSH")
            self.flush(until)  # it may have come to nothing

    def settle_dropped(self) -> None:
        """Ends what has no holder any more."""
        while self._dropped:
            with self.lock, contextlib.suppress(IndexError):  # another thread was faster
                one = self._dropped.popleft()
                if isinstance(one, Request):
                    self.core.give_up(one)
                elif not one.ended:
                    self.core.cancel(one)
                    self.wake_ready()

    # ------------------------------------------------------------------ acknowledgements

    def acknowledge(self, feed: ShareFeed, session: int, number: int) -> None:
        """Acknowledges a message: at once where such calls are sparse, else with those that follow. Under the lock."""
        enough = self.core.gather(feed, session, number)
        if not self.core.gathering:
            self.send_out()
            return
        if enough or time.monotonic() - self._said > _DENSE:
            self.say_gathered()
        elif not self._minded:
            self._minded = True
            threading.Thread(target=self._mind, name="omq-broker-acks", daemon=True).start()

    def say_gathered(self) -> None:
        """Says what was acknowledged. Under the lock."""
        self.core.say_gathered()
        self._said = time.monotonic()
        self.send_out()

    def _mind(self) -> None:
        """Says what was acknowledged where no call follows; a thread of its own, for as long as there is any."""
        idle = 0
        while idle < _IDLE:
            sleep(_LATE)
            self.settle_dropped()
            with self.lock:
                idle = 0 if self.core.gathering else idle + 1
                if self.closed:
                    idle = _IDLE
                elif self.core.gathering:
                    with contextlib.suppress(OmqError):  # who reads finds out
                        self.say_gathered()
                self._minded = idle < _IDLE

    # ------------------------------------------------------------------ the socket

    def wait(self, ready: Callable[[], bool], until: float | None) -> bool:
        """Waits until something has come; reads the socket if no other thread does. Gives whether it has come."""
        self._refuse_nested()
        thread = threading.get_ident()
        try:
            self._waiting.add(thread)
            come = self._wait(ready, until)
        finally:
            self._waiting.discard(thread)
        if self._to_close:
            self.close()
            self._refuse_closed()
        return come

    def _wait(self, ready: Callable[[], bool], until: float | None) -> bool:
        me = _Waiter(ready)
        nap = _FIRST_NAP
        try:
            while True:
                with self.lock:
                    self._refuse_closed()
                    if ready():
                        return True
                    if self._to_close:
                        return False
                    if self._leader is None:
                        self._leader = me
                    elif self._leader is not me and me not in self._waiters:
                        self._waiters.append(me)
                left = None if until is None else max(until - time.monotonic(), 0)
                if self._leader is me:
                    moved = self._turn(nap if left is None else min(nap, left))
                    nap = _FIRST_NAP if moved else min(2 * nap, _LAST_NAP)
                else:
                    me.sleep(left)
                if left == 0:
                    with self.lock:
                        return ready()
        finally:
            with self.lock:
                if me in self._waiters:
                    self._waiters.remove(me)
                if self._leader is me:
                    self._leader = None
                # Also where another one's turn ended: who was woken to read, and leaves, passes the turn on.
                if self._leader is None:
                    for waiter in self._waiters[:1]:
                        waiter.wake()

    def _turn(self, nap: float) -> bool:
        """Looks at the socket for some time, and takes in what has come. Gives whether something has happened."""
        if self._dropped:
            self.settle_dropped()
        try:
            if self._socket is None and not self._reopen(nap):
                return False
            socket = self._socket
            if socket is None:
                return False
            if not self._greeted:
                try:
                    socket.wait_connected(timeout=nap)
                except Timeout:
                    return self._look_after()
                with self.lock:
                    self._greeted = True
                    self.core.connected()
                    self.send_out()
            if self.core.is_busy:
                nap = self._repeat(nap)
            if self.core.out:
                nap = min(nap, _FULL_NAP)
            try:
                messages = socket.recv_many(_AT_ONCE, timeout=nap)
            except ReceiveTimeout:
                with self.lock:
                    self.send_out()
                return self._look_after()
            with self.lock:
                for message in messages:
                    self.core.receive(message)
                self.send_out()
                self.wake_ready()
            return True
        except ContextTerminated:
            raise
        except ClosedError:
            self._lose()  # unless the client is closed
            return True
        except SyntaxFault as error:
            log.warning("%s: %s", self.endpoint, error)
            self._lose()
            return True
        except BaseException:
            # Interrupted, perhaps with messages in hand: the next connection brings them again.
            self._lose()
            raise

    def _repeat(self, nap: float) -> float:
        """Asks again for what a busy broker refused, if it is time. Gives for how long to look at the socket."""
        now = time.monotonic()
        with self.lock:
            if self._again is None:
                self._again = now + self.core.retreat.next()
            if now < self._again:
                return min(nap, self._again - now)
            self._again = None
            self.core.repeat()
            self.send_out()
        return nap

    def send_out(self) -> None:
        """Sends what is to be sent, as far as the socket takes it. Under the lock."""
        out, socket = self.core.out, self._socket
        if socket is None:
            return
        try:
            while out:
                socket.send_multipart(out[0], timeout=0)
                out.popleft()
        except (SendTimeout, ClosedError):
            pass  # who reads sends it, or finds out

    def _look_after(self) -> bool:
        """Nothing has come: is the connection lost?"""
        if self._watch.is_over():
            self._lose()
            return True
        if (refusal := self._watch.refusal(self.endpoint)) is not None and self.core.fault is None:
            with self.lock:
                self.core.fail(refusal)
                self.wake_ready()
            return True
        return False

    def _open(self) -> None:
        self._greeted = False
        socket = omq.DEALER(self._context, **self._options)
        self._watch = Watch(socket.monitor())
        try:
            socket.connect(self.endpoint)
        except BaseException:
            socket.stop()
            raise
        self._socket = socket

    def _reopen(self, nap: float) -> bool:
        """Dials again, if it is time. Gives whether there is a socket."""
        pause = self._pause.left(time.monotonic())
        if pause > 0:
            sleep(min(pause, nap))
            if pause > nap:
                return False
        with self.lock:
            if not self.closed:
                self._open()
        return not self.closed

    def _lose(self) -> None:
        """Gives the connection up."""
        with self.lock:
            if self.closed:
                return
            self._pause.lost(time.monotonic(), self.core.state is State.UP)
            self.core.lost()
            socket, self._socket = self._socket, None
            self.wake_ready()
        if socket is not None:
            socket.stop()


_callers: WeakSet[Caller] = WeakSet()


def _leave_all() -> None:
    until = time.monotonic() + _FAREWELL
    for caller in list(_callers):
        caller.leave(until)


# The contexts end after this, for theirs was registered before.
atexit.register(_leave_all)
