"""One attempt of a call, without waiting: the same in both twins."""

from omq._core.calls.part cimport short
from omq._core.queues.peer cimport RecvQueue, SendQueue

import operator

from omq.errors import MessageTooLarge
from omq.types import POLL_IN, POLL_OUT


cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX


cdef object count_of(str name, object value, int least):
    """Checks a number, the argument *name*."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        try:
            number = operator.index(value) if not isinstance(value, bool) else None
        except TypeError:
            number = None
        if number is None:
            raise TypeError(f"{name}={short(value)}: must be a whole number, at least {least}, not {type(value).__name__}")
    if number < least:
        raise ValueError(f"{name}={short(value)}: must be a whole number, at least {least}")
    if number > PY_SSIZE_T_MAX:
        raise ValueError(f"{name}={short(value)}: must be a whole number, at most {PY_SSIZE_T_MAX}")
    return number


def checked_count(str name, value: int, int least=1) -> int:
    """Checks a number.

    Args:
        name: The name of the argument.
        value: The number.
        least: The smallest number allowed.

    Returns:
        The number as an `int`.

    Raises:
        ValueError: The number is below `least`, or more than memory could hold.
        TypeError: The value is not a whole number.
    """
    return count_of(name, value, least)


cdef int events_of(object events) except -1:
    """Checks the events that `poll` is asked for."""
    if not isinstance(events, int) or isinstance(events, bool) or not events or events & ~(POLL_IN | POLL_OUT):
        raise ValueError(f"events={short(events)}: must be POLL_IN ({POLL_IN}), POLL_OUT ({POLL_OUT}) or both")
    return events


def checked_events(events: int) -> int:
    """Checks the events that a call waits for.

    Args:
        events: `POLL_IN`, `POLL_OUT` or both.

    Raises:
        ValueError: The value is something else.
    """
    return events_of(events)


cdef int ready_of(int wanted, RecvQueue recv_queue, SendQueue send_queue) except -1:
    """Returns the events that hold now, or 0."""
    cdef int ready = 0
    if wanted & READY_IN and recv_queue is not None and recv_queue.has_message():
        ready |= READY_IN
    if wanted & READY_OUT and send_queue is not None and send_queue.can_put():
        ready |= READY_OUT
    return ready


cdef int refuse_large(Py_ssize_t room) except -1:
    """Raises MessageTooLarge: a message does not fit into the caller's buffer."""
    raise MessageTooLarge(f"the next message is larger than the buffer of {room} bytes; it stays first in line")
