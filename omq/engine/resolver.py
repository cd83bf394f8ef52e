"""Looking names up and reaching addresses, without the loop's pool of threads.

libuv has such a pool for names, and uvloop asks it even for the address of a `sock_connect`. Its threads outlive every
loop, and a process that has forked since crashes at its exit, where libuv waits for threads that it does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from typing import Any

from omq.transport import AddrInfo, Lookup
from omq.unpatched import socket, threading

_FULL = 0.01  # seconds before a Unix socket whose queue is full is tried again


async def reach(loop: asyncio.AbstractEventLoop, sock: socket.socket, address: Any) -> None:
    """Connects a socket that does not block.

    Raises:
        OSError: The system, or the other side, refuses.
    """
    while True:
        try:
            sock.connect(address)
            return
        except BlockingIOError as error:
            # unix(7): nothing is under way, the listener's queue is full.
            if error.errno != errno.EAGAIN:
                break
            await asyncio.sleep(_FULL)
        except InterruptedError:
            break  # connect(2): it goes on by itself
    done = loop.create_future()
    fd = sock.fileno()
    loop.add_writer(fd, _connected, sock, done)
    try:
        await done
    finally:
        loop.remove_writer(fd)
        del done  # which keeps the exception, and that this frame


def _connected(sock: socket.socket, done: asyncio.Future[None]) -> None:
    if done.done():
        return
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        done.set_exception(OSError(code, os.strerror(code)))
    else:
        done.set_result(None)


class Resolver:
    """Looks names up, each in a thread of its own, so that nothing else waits for a resolver that hangs.

    A question that is asked again while it has no answer yet waits for the one that is under way.
    """

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], asyncio.Future[list[AddrInfo]]] = {}

    async def resolve(self, loop: asyncio.AbstractEventLoop, lookup: Lookup) -> list[AddrInfo]:
        """Asks the system's resolver.

        Args:
            loop: Where the answer is awaited.
            lookup: The name, and what `getaddrinfo` is to be told with it.

        Raises:
            OSError: The name has no address, or nobody could be asked.
        """
        question = (lookup.host, lookup.port)
        answer = self._asked.get(question)
        if answer is None:
            answer = loop.create_future()
            work = threading.Thread(target=_look_up, args=(loop, answer, lookup), name="omq-resolve", daemon=True)
            try:
                work.start()
            except RuntimeError as error:
                if not str(error).endswith("at interpreter shutdown"):
                    raise
                # There are no threads any more, and nothing but the last sockets waits for this one.
                _look_up(loop, answer, lookup, alone=False)
            # Only now: if the system gives no thread, nobody is to wait for its answer.
            self._asked[question] = answer
            answer.add_done_callback(lambda _: self._asked.pop(question, None))
        # A caller that gives up does not end the look-up for the others.
        try:
            return await asyncio.shield(answer)
        finally:
            del answer  # which keeps the exception, and that this frame


def _look_up(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[list[AddrInfo]], lookup: Lookup, *, alone: bool = True
) -> None:
    """Asks, in a thread of its own or else (not *alone*) in the loop's."""
    if alone:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    found: list[AddrInfo] = []
    failure: BaseException | None = None
    try:
        found = list(socket.getaddrinfo(lookup.host, lookup.port, **lookup.hints))
    except BaseException as error:  # a name that no codec takes raises a UnicodeError
        failure = error
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_settle, answer, found, failure)
    del answer, failure  # the one keeps the other, which keeps this frame


def _settle(answer: asyncio.Future[list[AddrInfo]], found: list[AddrInfo], failure: BaseException | None) -> None:
    if answer.done():
        return
    if failure is None:
        answer.set_result(found)
    else:
        answer.set_exception(failure)
        answer.exception()  # so that asyncio does not complain where nobody waits
