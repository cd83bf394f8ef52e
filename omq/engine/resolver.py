"""Name resolution and connecting, without libuv's thread pool.

libuv resolves names in that pool, and uvloop uses it even for the address of a `sock_connect`. Its threads outlive
every loop, and a forked process crashes at its exit, where libuv waits for threads that it does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import os
import signal
import weakref
from functools import partial
from typing import Any, Final, TypeAlias

from omq._core.link.handshake_io import progress
from omq.engine.weak_callback import weak_callback
from omq.transport import AddrInfo, Lookup
from omq.unpatched import socket, threading

Question: TypeAlias = tuple[Any, ...]
Answer: TypeAlias = list[AddrInfo] | BaseException

ANSWER_TTL_S = 1.0  # many dialers may resolve the same name, each ten times a second
_MAX_ANSWERS = 64  # about the number of answers that are kept

_RETRY_DELAY_S = 0.01  # before another attempt at a Unix socket whose backlog is full


async def reach(loop: asyncio.AbstractEventLoop, sock: socket.socket, address: Any) -> None:
    """Connects a non-blocking socket.

    Raises:
        OSError: The system, or the other side, refuses the connection.
    """
    while True:
        try:
            sock.connect(address)
            return
        except BlockingIOError as error:
            # unix(7): nothing is in progress, because the listener's backlog is full.
            if error.errno != errno.EAGAIN:
                break
            await asyncio.sleep(_RETRY_DELAY_S)
        except InterruptedError:
            break  # connect(2): it continues in the background
    await connected(loop, sock)


async def connected(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    """Waits until a socket is connected.

    Raises:
        OSError: The system, or the other side, refuses the connection.
    """
    fd = sock.fileno()
    code = progress(fd)  # usually done already, on the same machine
    if code != errno.EINPROGRESS:
        if code:
            raise OSError(code, os.strerror(code))
        return
    done = loop.create_future()
    loop.add_writer(fd, _connected, sock, done)
    try:
        await done
    finally:
        loop.remove_writer(fd)
        del done  # it keeps the exception, which keeps this frame


def _connected(sock: socket.socket, done: asyncio.Future[None]) -> None:
    if done.done():
        return
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        done.set_exception(OSError(code, os.strerror(code)))
    else:
        done.set_result(None)


class Resolver:
    """Resolves names for one loop, each in a thread of its own, so that a slow answer delays nothing else.

    A question that is asked again waits for the answer in progress. An answer is kept for a moment, also a failure.
    """

    def __init__(self) -> None:
        # Weak: a look-up that outlives its loop never completes, and would keep the loop.
        self._asked: weakref.WeakValueDictionary[Question, asyncio.Future[Answer]] = weakref.WeakValueDictionary()
        self._known: dict[Question, tuple[float, Answer]] = {}  # with the time until which each is valid

    async def resolve(self, loop: asyncio.AbstractEventLoop, lookup: Lookup) -> list[AddrInfo]:
        """Resolves a name with the system's resolver.

        Args:
            loop: The loop that awaits the answer.
            lookup: The name, and the hints for `getaddrinfo`.

        Raises:
            OSError: The name has no address, or the resolver failed.
        """
        question = (lookup.host, lookup.port, *lookup.hints.items())
        until, known = self._known.get(question, (0.0, []))
        if loop.time() < until:
            return _given(known)
        answer = self._asked.get(question)
        if answer is None:
            answer = loop.create_future()
            work = threading.Thread(target=_look_up, args=(loop, answer, lookup), name="omq-resolve", daemon=True)
            try:
                work.start()
            except RuntimeError as error:
                if not str(error).endswith("at interpreter shutdown"):
                    raise
                # No threads can be started any more, and nothing but the last sockets waits for this one.
                _look_up(loop, answer, lookup, alone=False)
            # After the start: if the system provides no thread, no caller may wait for its answer.
            self._asked[question] = answer
            answer.add_done_callback(partial(weak_callback(self._note), question))
        # A caller that gives up does not end the look-up for others.
        return _given(await asyncio.shield(answer))

    def _note(self, question: Question, answer: asyncio.Future[Answer]) -> None:
        self._asked.pop(question, None)
        if answer.cancelled():
            return
        now = answer.get_loop().time()
        if len(self._known) >= _MAX_ANSWERS:
            self._known = {one: known for one, known in self._known.items() if known[0] > now}
        self._known[question] = now + ANSWER_TTL_S, answer.result()


_resolver_of: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Resolver]] = weakref.WeakKeyDictionary()


def resolver_of(loop: asyncio.AbstractEventLoop) -> Resolver:
    """Returns the resolver of a loop, which runs in this thread; it does not keep the loop alive."""
    found = _resolver_of.get(loop)
    if found is None:
        found = _resolver_of[loop] = Resolver()
    return found


def _given(answer: Answer) -> list[AddrInfo]:
    """Returns the addresses, or raises the failure; each caller gets its own copy of the error."""
    if isinstance(answer, BaseException):
        raise copy.copy(answer)
    return answer


def _look_up(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Answer], lookup: Lookup, *, alone: bool = True
) -> None:
    """Resolves a name, in a thread of its own or else (not *alone*) in the loop's."""
    if alone:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    found: Answer
    try:
        found = list(socket.getaddrinfo(lookup.host, lookup.port, **lookup.hints))
    except BaseException as error:  # a name that no codec takes raises a UnicodeError
        found = error.with_traceback(None)
    with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits the answer
        loop.call_soon_threadsafe(_settle, answer, found)


def _settle(answer: asyncio.Future[Answer], found: Answer) -> None:
    if not answer.done():
        answer.set_result(found)
