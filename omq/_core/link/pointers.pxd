# Lists of objects for a thread without the GIL.

from libc.stdlib cimport realloc
from posix.time cimport nanosleep, timespec

from omq._core.lock cimport hold_mutex, pthread_mutex_t, pthread_mutex_unlock


cdef struct PointerArray:
    void **entries           # objects that the thread works on; borrowed, each is removed before it is freed
    int count                # number of entries
    int room                 # entries that the memory holds
    void *current            # the entry under work


cdef inline bint append_entry(PointerArray *pointers, void *entry) noexcept nogil:
    """Appends an entry, under the mutex; False: no memory."""
    cdef void *memory
    if pointers.count == pointers.room:
        memory = realloc(pointers.entries, (2 * pointers.room + 16) * sizeof(void *))
        if memory == NULL:
            return False
        pointers.entries = <void **>memory
        pointers.room = 2 * pointers.room + 16
    pointers.entries[pointers.count] = entry
    pointers.count += 1
    return True


cdef inline void wait_while(pthread_mutex_t *mutex, void **current, void *entry) noexcept:
    """Waits, with the GIL and *mutex* held, until the thread no longer works on *entry*; releases both meanwhile."""
    cdef timespec moment
    moment.tv_sec = 0
    moment.tv_nsec = 1000
    while current[0] == entry:
        pthread_mutex_unlock(mutex)
        with nogil:
            nanosleep(&moment, NULL)
        hold_mutex(mutex)


cdef inline void remove_entry(pthread_mutex_t *mutex, PointerArray *pointers, void *entry) noexcept:
    """Removes an entry once the thread does not work on it; with the GIL."""
    cdef int i
    hold_mutex(mutex)
    wait_while(mutex, &pointers.current, entry)
    for i in range(pointers.count - 1, -1, -1):
        if pointers.entries[i] == entry:
            pointers.count -= 1
            pointers.entries[i] = pointers.entries[pointers.count]
    pthread_mutex_unlock(mutex)
