# Two locks: one among threads that hold the GIL, one with a thread that never does. And the switch that keeps the
# garbage collector, which runs any code, out of the sections that they guard.

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from posix.time cimport timespec

cdef extern from "Python.h":
    Py_ssize_t Py_SIZE(object)       # the length of a deque, without a call

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


cdef extern from *:
    """
    #include <semaphore.h>
    #include <time.h>
    /* Waits for a semaphore until a time of the monotonic clock. glibc has a call for it since 2.30, which a wheel for
       manylinux_2_28 finds where the system has it. An older glibc measures by the system's clock. */
    extern int sem_clockwait(sem_t *, clockid_t, const struct timespec *) __attribute__((weak));

    static inline int sem_wait_until(sem_t *semaphore, const struct timespec *until) {
        struct timespec now, end;
        if (sem_clockwait)
            return sem_clockwait(semaphore, CLOCK_MONOTONIC, until);
        clock_gettime(CLOCK_MONOTONIC, &now);
        clock_gettime(CLOCK_REALTIME, &end);
        end.tv_sec += until->tv_sec - now.tv_sec;
        end.tv_nsec += until->tv_nsec - now.tv_nsec;
        if (end.tv_nsec < 0) {
            end.tv_nsec += 1000000000;
            end.tv_sec--;
        } else if (end.tv_nsec >= 1000000000) {
            end.tv_nsec -= 1000000000;
            end.tv_sec++;
        }
        return sem_timedwait(semaphore, &end);
    }
    """
    int sem_wait_until(sem_t *, const timespec *) nogil


cdef extern from *:
    """
    /* From Python 3.12 on the collector runs between bytecodes, and there are no bytecodes here; before, anywhere. */
    #if PY_VERSION_HEX < 0x030C0000
    #define COLLECTS_ANYWHERE 1
    #else
    #define COLLECTS_ANYWHERE 0
    #endif
    """
    const bint COLLECTS_ANYWHERE
    int PyGC_Disable() noexcept
    int PyGC_Enable() noexcept

cdef int gc_pauses                   # sections from which the garbage collector is kept out at the moment
cdef bint collects                   # whether it was on before the first of them


cdef inline void pause_gc() noexcept:
    """Keeps the garbage collector out until `resume_gc`: a finalizer would find queues in the middle of a step."""
    global gc_pauses, collects
    if COLLECTS_ANYWHERE:
        if gc_pauses == 0:
            collects = PyGC_Disable()
        gc_pauses += 1


cdef inline void resume_gc() noexcept:
    global gc_pauses
    if COLLECTS_ANYWHERE:
        gc_pauses -= 1
        if gc_pauses == 0 and collects:
            PyGC_Enable()


@cython.final
cdef class SocketLock:
    cdef unsigned long _owner        # ident of the thread that holds it; 0 none
    cdef int _depth                  # how often that thread has taken it
    cdef int _waiters                # threads that wait for it
    cdef sem_t _free                 # posted by a release while a thread waits
    cdef bint _posted                # posted, and no thread has woken up yet: a holder in a loop would pile up posts
    cdef object deferred             # deque: functions to call under the lock, by the thread that holds it
    cdef int _refuse(self) except -1
    cdef int _run_deferred(self) except -1
    cdef int _wait(self, unsigned long me) except -1

    cdef inline int acquire(self) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        if self._owner == 0:
            pause_gc()
            self._owner = me
            self._depth = 1
        elif self._owner == me:
            self._depth += 1
        else:
            self._wait(me)
        return 0

    cdef inline int enter(self) except -1:
        """Works like `acquire`, for the user's calls: a nested call would find the socket in the middle of a step."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if self._owner == 0:
            pause_gc()
            self._owner = me
            self._depth = 1
        elif self._owner == me:
            self._refuse()
        else:
            self._wait(me)
        return 0

    cdef inline bint try_acquire(self) noexcept:
        cdef unsigned long me = PyThread_get_thread_ident()
        if self._owner == 0:
            pause_gc()
            self._owner = me
            self._depth = 1
        elif self._owner == me:
            self._depth += 1
        else:
            return False
        return True

    cdef inline int release(self) except -1:
        # The lock is free afterwards, also where this raises.
        if self._depth == 1 and Py_SIZE(self.deferred):
            return self._run_deferred()
        self._let_go()
        return 0

    cdef inline void _let_go(self) noexcept:
        self._depth -= 1
        if self._depth == 0:
            self._owner = 0
            resume_gc()
            if self._waiters and not self._posted:
                self._posted = True
                sem_post(&self._free)


cdef extern from *:
    """
    /* A lock for sections that are short, or that the other side need not wait for: taking it is one instruction. */
    static inline int take_flag(int *flag) { return !__atomic_exchange_n(flag, 1, __ATOMIC_ACQUIRE); }
    static inline void drop_flag(int *flag) { __atomic_store_n(flag, 0, __ATOMIC_RELEASE); }

    /* Counters that a thread without the lock reads, or changes. */
    static inline long long load(const long long *from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
    static inline void store(long long *to, long long value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
    static inline void add_to(long long *to, long long value) { __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
    """
    bint take_flag(int *flag) noexcept nogil
    void drop_flag(int *flag) noexcept nogil
    long long load(const long long *) noexcept nogil
    void store(long long *, long long) noexcept nogil
    void add_to(long long *, long long) noexcept nogil


cdef inline void hold_mutex(pthread_mutex_t *mutex) noexcept:
    # With the GIL held: try, else release the GIL first, for the holder may be in a system call.
    if pthread_mutex_trylock(mutex) != 0:
        with nogil:
            pthread_mutex_lock(mutex)
