# The asyncio proxy, in the turns of a loop.

from omq._core.calls.proxy cimport ProxyCore


cdef class AsyncProxy(ProxyCore):
    cdef list _cores                 # AsyncCore of each socket, all distinct
    cdef bint _begun                 # it serves the sockets
    cdef object _future              # what the task waits for; None: it does not wait
