"""Measurements of a build with OMQ_DEBUG=1: the number of the interpreter's allocations.

Python's allocators belong to the process, and so do the counters: C statics, changed under the GIL, which every caller
of an allocator of these two domains holds.
"""

# stub: DEBUG: bool

cimport cython

from omq.errors import StateError

# The raw domain is left out: a large object would count twice, because the object allocator takes its memory from
# there.
cdef extern from *:
    """
    #ifndef OMQ_DEBUG
    #define OMQ_DEBUG 0
    #endif

    #if OMQ_DEBUG
    static const PyMemAllocatorDomain omq_domains[2] = {PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ};
    static PyMemAllocatorEx omq_below[2];
    static long long omq_calls;
    static int omq_hooked;

    static void *omq_malloc(void *below, size_t size) {
        PyMemAllocatorEx *real = (PyMemAllocatorEx *)below;
        omq_calls++;
        return real->malloc(real->ctx, size);
    }
    static void *omq_calloc(void *below, size_t count, size_t size) {
        PyMemAllocatorEx *real = (PyMemAllocatorEx *)below;
        omq_calls++;
        return real->calloc(real->ctx, count, size);
    }
    static void *omq_realloc(void *below, void *memory, size_t size) {
        PyMemAllocatorEx *real = (PyMemAllocatorEx *)below;
        omq_calls++;
        return real->realloc(real->ctx, memory, size);
    }
    static void omq_free(void *below, void *memory) {
        PyMemAllocatorEx *real = (PyMemAllocatorEx *)below;
        real->free(real->ctx, memory);
    }
    static int omq_hook(void) {
        int i;
        if (omq_hooked)
            return 0;
        omq_hooked = 1;
        for (i = 0; i < 2; i++) {
            PyMemAllocatorEx counting = {&omq_below[i], omq_malloc, omq_calloc, omq_realloc, omq_free};
            PyMem_GetAllocator(omq_domains[i], &omq_below[i]);
            PyMem_SetAllocator(omq_domains[i], &counting);
        }
        omq_calls = 0;
        return 1;
    }
    static long long omq_unhook(void) {
        int i;
        for (i = 0; i < 2; i++)
            PyMem_SetAllocator(omq_domains[i], &omq_below[i]);
        omq_hooked = 0;
        return omq_calls;
    }
    #else
    static int omq_hook(void) { return 0; }
    static long long omq_unhook(void) { return 0; }
    #endif
    """
    int OMQ_DEBUG
    int omq_hook()
    long long omq_unhook()

DEBUG = bool(OMQ_DEBUG)


@cython.final
cdef class Allocations:
    """Counts the interpreter's allocations in the whole process while it is entered; one object at a time.

    Attributes:
        calls: Calls of malloc, calloc and realloc of Python's allocators for objects and for memory.
    """

    def start(self) -> None:
        """Starts counting, from zero.

        Raises:
            StateError: The build has no `OMQ_DEBUG`, or another object counts already.
        """
        if not OMQ_DEBUG:
            raise StateError("allocations are counted in a build with OMQ_DEBUG=1")
        if not omq_hook():
            raise StateError("another object counts allocations already")
        self._counting = True
        self.calls = 0

    def stop(self) -> int:
        """Stops counting; returns `calls`.

        Raises:
            StateError: The count was not started.
        """
        if not self._counting:
            raise StateError("allocations are not being counted")
        self._counting = False
        self.calls = omq_unhook()
        return self.calls

    def __dealloc__(self):
        if self._counting:
            omq_unhook()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
