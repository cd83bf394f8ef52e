# Two locks: one among threads that hold the GIL, one with a thread that never does.

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_destroy(pthread_mutex_t *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_trylock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t *, int, unsigned int)
    int sem_destroy(sem_t *)
    int sem_wait(sem_t *)
    int sem_post(sem_t *)


cdef class SocketLock:
    cdef unsigned long _owner        # ident of the thread that has it; 0 nobody
    cdef int _depth                  # how often that thread has taken it
    cdef int _waiters                # threads that wait for it
    cdef sem_t _free                 # posted by a release while somebody waits
    cdef bint _posted                # it is, and nobody has woken up yet: a holder in a loop would pile them up
    cdef list deferred               # functions that others want called under the lock, by whoever has it
    cdef int acquire(self) except -1
    cdef bint try_acquire(self) noexcept
    cdef int release(self) except -1
    cdef int _run_deferred(self) except -1
    cdef int _wait(self, unsigned long me) except -1


cdef inline void hold_mutex(pthread_mutex_t *mutex) noexcept:
    # With the GIL held: try, else let go of the GIL first, for the holder may be in a system call.
    if pthread_mutex_trylock(mutex) != 0:
        with nogil:
            pthread_mutex_lock(mutex)
