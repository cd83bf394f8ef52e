"""The inproc names of one context, which are whole endpoints, and the diallers that wait for a name.

All threads, signal handlers and the garbage collector call these methods, and none of them may wait: each method is one
step, for it runs no bytecode (names are exactly `str`, and listeners and diallers have no `__eq__`).
"""

cimport cython

from omq.errors import BindError


@cython.final
cdef class Names:
    def __cinit__(self):
        self._bound = {}
        self._open = {}
        self._waiting = {}

    def bind(self, str name not None, listener):
        if name in self._bound:
            raise BindError(f"{name}: the name is bound by another socket of this context")
        self._bound[name] = listener

    def open(self, str name not None):
        if name in self._bound:
            self._open[name] = self._bound[name]
        return self._waiting.pop(name, [])

    @property
    def bound(self):
        return list(self._bound)

    @property
    def waited_for(self):
        return list(self._waiting)

    def is_open(self, str name not None):
        return name in self._open

    def unbind(self, str name not None):
        self._open.pop(name, None)
        self._bound.pop(name, None)

    def find(self, str name not None, dialer):
        if name in self._open:
            return self._open[name]
        if name in self._waiting:
            (<list>self._waiting[name]).append(dialer)
        else:
            self._waiting[name] = [dialer]
        return None

    def forget(self, str name not None, dialer):
        waiting = self._waiting.get(name)
        if waiting is not None and dialer in <list>waiting:
            (<list>waiting).remove(dialer)
            if not waiting:
                del self._waiting[name]
