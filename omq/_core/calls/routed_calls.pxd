# The calls of the types whose messages say, beside their content, whom they are for.

from omq._core.calls.call cimport AsyncCore
from omq._core.calls.sync cimport SyncCore


cdef class RoutedSyncCore(SyncCore):
    cdef object _route               # omq.types.Route: how the type is told whom a message is for


cdef class RoutedAsyncCore(AsyncCore):
    cdef object _route               # as in RoutedSyncCore
