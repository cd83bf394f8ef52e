# The calls of pyzmq's asyncio sockets that run for every message.

from omq._core.zmq.calls cimport SocketCalls


cdef class FutureCalls(SocketCalls):
    cdef public object _recv_futures  # waiting receiving calls, in order
    cdef public object _send_futures  # waiting sending calls, in order
    cdef dict _of_loop                # the arguments of a Future of the loop that ran last
    cdef object _is_running           # that loop's own method; None: no loop has run yet
    cdef unsigned long _thread        # ident of the thread where that loop runs
    cdef object _finished(self, object result)
