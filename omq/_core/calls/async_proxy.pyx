"""The asyncio proxy: the task that awaits it works in the turns of its sockets' loop."""

cimport cython

from omq._core.calls.call cimport AsyncCore
from omq._core.calls.proxy cimport PROXY_ENDS, ProxyCore
from omq._core.clock cimport now_ns
from omq._core.queues.peer cimport TURN_NS

from omq.errors import ClosedError, StateError


@cython.final
cdef class AsyncProxy(ProxyCore):
    """The asyncio proxy: works in the turns of its sockets' loop.

    Args:
        frontend: The core of the one socket.
        backend: The core of the other socket.
        capture: The core of a socket that gets a copy of each message, or `None`.
        control: The core of a socket that receives commands, or `None`.
    """

    def __init__(self, frontend, backend, capture, control):
        ProxyCore.__init__(self, frontend, backend, capture, control)
        self._cores = list(dict.fromkeys([one for one in (frontend, backend, capture, control) if one is not None]))
        self._pollers = [(<AsyncCore?>one)._poller for one in self._sources]

    def begin(self) -> None:
        """Begins to serve the sockets.

        Raises:
            StateError: Another proxy serves one of them.
        """
        cdef AsyncCore core
        for core in self._cores:
            if core.readable.proxied:
                raise StateError(f"another proxy serves the {core._name()} socket")
        self._begun = True
        for core in self._cores:
            core.readable.proxied = True
            core.readable.follower = core.writable.follower = self._rouse
        self._begin_turns(True)

    def end(self) -> None:
        """Stops serving the sockets; gathered messages leave."""
        cdef AsyncCore core
        if self._begun:
            self._begun = False
            self._begin_turns(False)
            for core in self._cores:
                core.readable.proxied = False
                core.readable.follower = core.writable.follower = None
            self._flush()

    def turn(self) -> bool:
        """Works for one turn of the loop.

        Returns:
            Whether there is more to do.

        Raises:
            ClosedError: One of the sockets was closed.
        """
        cdef AsyncCore core
        cdef long long begun = now_ns()
        cdef bint more = True
        while more and self._state != PROXY_ENDS and now_ns() - begun < TURN_NS:
            for core in self._cores:
                if core.closed:
                    raise ClosedError(f"the {core._name()} socket was closed while a proxy served it")
            more = self._round()
        self._flush()
        return more

    def rest(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Returns a Future that is done at the next event of a socket; for when `turn` has nothing more to do."""
        self._future = loop.create_future()
        return self._future

    def _rouse(self):
        future, self._future = self._future, None
        if future is not None and not future.done() and not future.get_loop().is_closed():
            future.set_result(None)
