"""The inproc names of one context, which are whole endpoints, and the diallers that wait for a name.

All threads, signal handlers and the garbage collector call these methods, and must not wait: each method is one
step, because it runs no bytecode (names are exactly `str`, and listeners and diallers have no `__eq__`).
"""

cimport cython

from omq.errors import BindError


@cython.final
cdef class Names:
    """The inproc names of one context; safe in every thread, also in a signal handler inside one of these calls."""

    def __cinit__(self):
        self._bound = {}
        self._open = {}
        self._waiting = {}

    def bind(self, str name not None, listener: Any) -> None:
        """Takes a name; diallers wait until it is open.

        Raises:
            BindError: The name is taken.
        """
        if name in self._bound:
            raise BindError(f"{name}: the name is bound by another socket of this context")
        self._bound[name] = listener

    def open(self, str name not None) -> list[Any]:
        """Marks a name's listener as ready to accept; returns the diallers that waited for it."""
        if name in self._bound:
            self._open[name] = self._bound[name]
        return self._waiting.pop(name, [])

    @property
    def bound(self) -> list[str]:
        """The names that are taken."""
        return list(self._bound)

    @property
    def waited_for(self) -> list[str]:
        """The names that diallers wait for."""
        return list(self._waiting)

    def is_open(self, str name not None) -> bool:
        """Returns whether a listener accepts under this name now."""
        return name in self._open

    def unbind(self, str name not None) -> None:
        """Releases a name. Idempotent."""
        self._open.pop(name, None)
        self._bound.pop(name, None)

    def find(self, str name not None, dialer: Any) -> Any:
        """Returns the listener of a name that is open; `None` without such a name: then the dialler waits for it."""
        if name in self._open:
            return self._open[name]
        if name in self._waiting:
            (<list>self._waiting[name]).append(dialer)
        else:
            self._waiting[name] = [dialer]
        return None

    def forget(self, str name not None, dialer: Any) -> None:
        """Removes a dialler that no longer waits. Idempotent."""
        waiting = self._waiting.get(name)
        if waiting is not None and dialer in <list>waiting:
            (<list>waiting).remove(dialer)
            if not waiting:
                del self._waiting[name]
