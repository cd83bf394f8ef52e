# The calls of the types whose messages name a receiver next to their content.

from omq._core.calls.call cimport AsyncCore
from omq._core.calls.sync cimport SyncCore


cdef class RoutedSyncCore(SyncCore):
    cdef object _route               # omq.types.Route: how the type learns a message's receiver


cdef class RoutedAsyncCore(AsyncCore):
    cdef object _route               # as in RoutedSyncCore
