# Threads of our own that never take the GIL.

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    int pthread_create(pthread_t *, void *, void *(*)(void *) noexcept nogil, void *)
    int pthread_join(pthread_t, void **)
    int pthread_sigmask(int, const sigset_t *, sigset_t *)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t *)
    int SIG_SETMASK


cdef inline bint start_thread(pthread_t *thread, void *(*work)(void *) noexcept nogil, void *argument) noexcept:
    """Starts a thread that takes no signals, which are the main thread's; False: the system gives no thread."""
    cdef sigset_t every, before
    cdef int failure
    sigfillset(&every)
    pthread_sigmask(SIG_SETMASK, &every, &before)
    failure = pthread_create(thread, NULL, work, argument)
    pthread_sigmask(SIG_SETMASK, &before, NULL)
    return failure == 0
