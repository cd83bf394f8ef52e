# The peers that subscribed to a prefix of a topic: a compressed radix trie over bytes, in C structs.
#
# Peers are "slots": small numbers that the owner assigns and reuses. The owner also serialises the calls: nothing
# here locks. Only adding a subscription allocates; matching only reads.

cimport cython
from libc.stdint cimport uint64_t

from omq._core.queues.trie cimport Entry, Node

cdef enum:
    # The effect of an addition or a removal. -1 stays free for `except -1`.
    COUNTED = 0       # only the slot's count of this prefix changes
    FOR_EVERYONE = 1  # this is the first slot that holds the prefix, or was the last one
    FOR_SLOT = 2      # it is new for, or gone from, this slot; others hold it as well
    NOT_HELD = -2     # nothing: the slot does not hold the prefix

cdef enum:
    MAX_SLOTS = 1 << 24  # slots: bounds the tables that are indexed by slot

cdef struct Slot:
    Entry *first         # borrowed: the oldest entry of the slot, or NULL
    Entry *last          # borrowed: the newest


@cython.final
cdef class Matcher:
    cdef Node _root                  # the empty prefix; its parts are owned, and it is a part of this object
    cdef Slot *_slots                # owned; `_room` of them
    cdef uint64_t *_stamps           # owned; `_room` of them: the match that last hit the slot
    cdef int *_hits                  # owned; `_room` of them: the slots of the last match
    cdef uint64_t _generation        # the number of the last match; 64 bits do not wrap
    cdef Py_ssize_t _room            # slots that the three tables have room for
    cdef Py_ssize_t _pairs           # entries: distinct pairs of slot and prefix
    cdef Py_ssize_t _prefixes        # distinct prefixes that are held
    cdef Py_ssize_t _nodes           # nodes allocated, without the root
    cdef int _active                 # slots with at least one entry

    # The core's own interface. Slots are 0 or more.
    cdef int c_add(self, const char *prefix, Py_ssize_t size, int slot) except -1
    cdef int c_remove(self, const char *prefix, Py_ssize_t size, int slot) noexcept
    cdef int c_drop(self, const char *prefix, Py_ssize_t size, int slot) noexcept
    cdef int c_match(self, const char *topic, Py_ssize_t size) noexcept nogil
    cdef int c_match_exactly(self, const char *topic, Py_ssize_t size) noexcept nogil
    cdef const int *c_matched(self) noexcept nogil
    cdef bint c_matches_any(self, const char *topic, Py_ssize_t size) noexcept nogil
    cdef bint c_holds(self, const char *prefix, Py_ssize_t size, int slot) noexcept
    cdef bytes c_oldest(self, int slot)
    cdef int c_shed(self, int slot) noexcept

    cpdef list remove_slot(self, int slot)

    cdef int _grow(self, int slot) except -1
    cdef Node *_node(self, const unsigned char *label, Py_ssize_t size) noexcept
    cdef void _release(self, Node *node) noexcept
    cdef Node *_place(self, const unsigned char *prefix, Py_ssize_t size) noexcept
    cdef Node *_split(self, Node *node, int size) noexcept
    cdef void _tidy(self, Node *node) noexcept
    cdef void _join(self, Node *node) noexcept
    cdef Entry *_add_entry(self, Node *node, int slot) noexcept
    cdef void _leave(self, Entry *entry) noexcept
    cdef Entry *_find(self, const char *prefix, Py_ssize_t size, int slot) noexcept
    cdef const Node *_exact(self, const unsigned char *rest, Py_ssize_t size) noexcept nogil
    cdef int _lower(self, Entry *entry, uint64_t by) noexcept
