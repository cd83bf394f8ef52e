"""The calls that are interrupted, with their sockets, and the checks after them.

Each interruption has a new case. `call` is the library call that is under way when the signal comes. `check_after`
follows where the handler has left the socket open, and checks that nothing was lost, doubled or half done. Results go
from the library into a list by C code alone: if a call has returned and its result is not assigned yet, the interpreter
looks for signals, and a result that is lost there is the program's loss.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import omq
from tests.signals.remote_peers import BOUND, Peer

NUMBERS = itertools.count()


class InterruptedCall:
    """A socket in the main thread, its peer, and a call.

    Attributes:
        one: The socket that the call is made on.
        out: What the call has given.
        context: The context of the socket, which both sides use over inproc.
    """

    kind: ClassVar[str]
    peer_kind: ClassVar[str] = ""
    options: ClassVar[dict[str, Any]] = {}
    peer_options: ClassVar[dict[str, Any]] = {}
    transports: ClassVar[tuple[str, ...]] = ("tcp", "ipc", "inproc", "aio")

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self.context = omq.Context()
        self.out: list[Any] = []
        self.raised = False
        self.threads: list[threading.Thread] = []
        inside = transport in ("inproc", "aio")
        self.peer_context = self.context if inside else omq.Context()
        self.one: Any = getattr(omq, self.kind)(self.context, **{"linger": 0, **self.options})
        self.peer: Any = None
        if self.peer_kind:
            self.peer = Peer(self.peer_kind, self.peer_context, transport == "aio", **self.peer_options)
            self.endpoint = self.peer.bind(transport, f"w{next(NUMBERS)}")
            self.one.connect(self.endpoint)
            self.one.wait_connected(timeout=BOUND)
            self.peer("wait_connected", timeout=BOUND)
            self.since = self.one.peers[0].since
        self.prepare()

    def prepare(self) -> None:
        """Makes the objects that are there before the call."""

    def call(self) -> tuple[Callable[..., Any], list[Any]]:
        """The function, and the arguments that it is called with, one after the other."""
        raise NotImplementedError

    def results(self) -> Iterator[Any]:
        """Makes the calls, one after the other."""
        return map(*self.call())

    def use(self) -> None:
        """Uses the socket as a handler may."""

    def check_after(self) -> None:
        """Checks what has to hold afterwards; the socket is open."""

    def check_connection(self) -> None:
        """Checks that the handler has cost no connection."""
        if self.peer is not None:
            peers = self.one.peers
            assert len(peers) == 1, f"{len(peers)} connections"
            assert peers[0].since == self.since, "the connection was lost, and made again"

    def meanwhile(self, work: Callable[[], None]) -> None:
        """Runs a function in another thread."""
        self.threads.append(threading.Thread(target=work, daemon=True))
        self.threads[-1].start()

    def end(self) -> None:
        """Ends the sockets; nothing stays, and nothing hangs."""
        if self.peer is not None:
            self.peer.stop()
        for thread in self.threads:
            thread.join(BOUND)
            assert not thread.is_alive(), "the thread of the peer hangs"
        self.one.stop()
        self.context.term(0)
        self.peer_context.term(0)


def repeat(function: Callable[..., Any], times: int) -> Iterator[Any]:
    """An iterator that calls a function without arguments, by C code alone."""
    return map(operator.call, [function] * times)
