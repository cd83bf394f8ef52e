"""The errors of pyzmq, and the function that makes them from omq's."""

from __future__ import annotations

import errno as _errno
import os
from typing import TYPE_CHECKING, Any, Final, Literal

from omq import errors
from omq.unpatched import threading
from omq.zmq.constants import EFSM, EMTHREAD, ENOCOMPATPROTO, ETERM, Errno

if TYPE_CHECKING:
    from omq._core.zmq.calls import Handle

_TEXTS: Final = {
    EFSM: "Operation cannot be accomplished in current state",
    ENOCOMPATPROTO: "The protocol is not compatible with the socket type",
    ETERM: "Context was terminated",
    EMTHREAD: "No thread available",
    Errno.EHOSTUNREACH: "Host unreachable",
}
#: The number of the last error, of any thread.
_last = 0
#: Set when the program ends.
_exiting = threading.Event()


def strerror(errno: int) -> str:
    """Returns the text of an error number."""
    return _TEXTS.get(errno) or os.strerror(errno)  # type: ignore[call-overload]


def zmq_errno() -> int:
    """Returns the number of the last error."""
    return _last


class DraftFDWarning(RuntimeWarning):
    """Warns of the option `FD` of the newer socket types, which libzmq lacks. omq never warns."""

    def __init__(self, msg: str = "") -> None:
        super().__init__(msg or "FD of a thread-safe socket is not part of libzmq")


class ZMQBaseError(Exception):
    """Base class of the errors of the face."""


class ZMQError(ZMQBaseError):
    """Raised with the number of an error of libzmq.

    Args:
        errno: The number; `None` for that of the last error.
        msg: The text; `None` for that of the number.

    Attributes:
        errno: The number; `None` without one.
        strerror: The text.
    """

    errno: int | None = None
    strerror: str

    def __init__(self, errno: int | None = None, msg: str | None = None) -> None:
        if errno is None:
            errno = zmq_errno()
        if isinstance(errno, int):
            self.errno = errno
            self.strerror = strerror(errno) if msg is None else msg
        else:
            self.strerror = str(errno) if msg is None else msg

    def __str__(self) -> str:
        return self.strerror

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self}')"


class ZMQBindError(ZMQBaseError):
    """Raised when `bind_to_random_port` has found no free port."""


class NotDone(ZMQBaseError):
    """Raised when memory that was sent is still in use after the timeout of `MessageTracker.wait`."""


class ContextTerminated(ZMQError):
    """Raised when the context of the socket was terminated."""

    def __init__(self, errno: int | Literal["ignored"] = "ignored", msg: str = "ignored") -> None:
        super().__init__(ETERM)


class Again(ZMQError):
    """Raised when the call would have to wait, or has waited for too long."""

    def __init__(self, errno: int | Literal["ignored"] = "ignored", msg: str = "ignored") -> None:
        super().__init__(Errno.EAGAIN)


class InterruptedSystemCall(ZMQError, InterruptedError):
    """Raised never: omq repeats calls that a signal has interrupted."""

    errno = _errno.EINTR
    strerror: str

    def __init__(self, errno: int | Literal["ignored"] = "ignored", msg: str = "ignored") -> None:
        super().__init__(_errno.EINTR)

    def __str__(self) -> str:
        return f"{super().__str__()}: the call should have been repeated"


class ZMQVersionError(NotImplementedError):
    """Raised when libzmq lacks a feature.

    Args:
        min_version: The first version that has it.
        msg: The feature.
    """

    msg: str
    min_version: str
    version: str

    def __init__(self, min_version: str, msg: str = "Feature") -> None:
        from omq.zmq.version import zmq_version

        self.msg = msg
        self.min_version = min_version
        self.version = zmq_version()

    def __repr__(self) -> str:
        return f"ZMQVersionError('{self}')"

    def __str__(self) -> str:
        return f"{self.msg} requires libzmq >= {self.min_version}, have {self.version}"


def _check_rc(rc: int, errno: int | None = None, error_without_errno: bool = True) -> None:
    """Raises the error of a number if *rc* is -1."""
    if rc != -1:
        return
    number = zmq_errno() if errno is None else errno
    if number or error_without_errno:
        raise error_of(number)


def _check_version(min_version_info: tuple[int] | tuple[int, int] | tuple[int, int, int], msg: str = "Feature") -> None:
    """Raises unless the version of libzmq that the face stands for is at least the given one."""
    from omq.zmq.version import zmq_version_info

    if zmq_version_info() < min_version_info:
        raise ZMQVersionError(".".join(str(number) for number in min_version_info), msg)


def note_exit() -> None:
    """Lets calls of daemon threads wait from now on, instead of raising errors of contexts that end."""
    _exiting.set()


def error_of(number: int) -> ZMQError:
    """Returns the error of a number."""
    global _last
    _last = int(number)
    if number == Errno.EAGAIN:
        return Again()
    if number == ETERM:
        if _exiting.is_set() and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()  # a daemon thread: with libzmq its call ends with the process
        return ContextTerminated()
    if number == _errno.EINTR:
        return InterruptedSystemCall()
    return ZMQError(number)


#: The number of each kind of omq's errors; the first that fits counts.
_NUMBERS: Final[tuple[tuple[type[errors.OmqError], int], ...]] = (
    (errors.Timeout, Errno.EAGAIN),
    (errors.UnroutableError, Errno.EHOSTUNREACH),
    (errors.MultipartError, Errno.EINVAL),
    (errors.MessageTooLarge, Errno.EMSGSIZE),
    (errors.StateError, EFSM),
    (errors.UsageError, Errno.EINVAL),
)


def translate(error: Exception | None, handle: Handle | None = None) -> BaseException:
    """Returns the error to raise instead of one of omq.

    Args:
        error: The error; `None` for that of a closed socket.
        handle: The socket of the call; `None` for a context's.
    """
    if handle is not None and (error is None or isinstance(error, errors.ClosedError)):
        terminated = handle.context.terminating and not handle.closed
        return error_of(ETERM if terminated else Errno.ENOTSOCK)
    if isinstance(error, errors.ContextTerminated):
        return error_of(ETERM)
    if isinstance(error, errors.TransportError):
        return error_of(error.errno or Errno.EADDRINUSE)
    if isinstance(error, errors.StateError) and handle is not None and handle.context.forked:
        return error_of(Errno.ENOTSOCK)
    if isinstance(error, errors.StateError) and handle is not None and not (handle.sends and handle.receives):
        return error_of(Errno.ENOTSUP)
    for kind, number in _NUMBERS:
        if isinstance(error, kind):
            return error_of(number)
    return error_of(Errno.EINVAL) if error is None else error


def handle_error(call: Any) -> Any:
    """Makes a method of `Socket` raise the face's errors instead of omq's."""
    import functools

    @functools.wraps(call)
    def wrapped(self: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return call(self, *arguments, **keywords)
        except errors.OmqError as error:
            raise translate(error, self._handle) from None

    return wrapped


__all__ = [
    "Again",
    "ContextTerminated",
    "DraftFDWarning",
    "InterruptedSystemCall",
    "NotDone",
    "ZMQBaseError",
    "ZMQBindError",
    "ZMQError",
    "ZMQVersionError",
]
