"""The errors of `bind`, `connect`, `unbind` and `disconnect`, with libzmq's numbers and pyzmq's texts."""

from __future__ import annotations

import errno
from typing import Any, Final

from omq import errors
from omq._core.zmq.calls import Handle
from omq.types import MAX_PATH_BYTES
from omq.zmq.constants import ENOCOMPATPROTO, Errno
from omq.zmq.error import ZMQError, error_of, translate

#: The limit of an ipc path in bytes.
IPC_PATH_MAX_LEN: Final = MAX_PATH_BYTES

#: Schemes that the face speaks: what follows them may be wrong. Other schemes are not supported.
_SPOKEN: Final = frozenset({"tcp", "ipc", "inproc", "udp", "ws", "wss"})


def endpoint_error(
    error: errors.OmqError | ZMQError, handle: Handle, call: str, endpoint: str, addr: Any
) -> BaseException:
    """Returns the error of a `bind` or `connect`."""
    made = error if isinstance(error, ZMQError) else _error(error, handle, call, endpoint)
    if isinstance(made, ZMQError):
        made.strerror += f" (addr={addr!r})"
    return made


def _error(error: errors.OmqError, handle: Handle, call: str, endpoint: str) -> BaseException:
    scheme, separator, rest = endpoint.partition("://")
    if isinstance(error, errors.EndpointError):
        if scheme and separator and scheme not in _SPOKEN:
            return error_of(Errno.EPROTONOSUPPORT)
        if scheme == "ipc" and len(rest.encode(errors="surrogateescape")) > IPC_PATH_MAX_LEN:
            if call == "connect":
                return error_of(errno.ENAMETOOLONG)
            text = (
                f'ipc path "{rest}" is longer than {IPC_PATH_MAX_LEN} characters (sizeof(sockaddr_un.sun_path)).'
                " zmq.IPC_PATH_MAX_LEN constant can be used to check addr length (if it is defined)."
            )
            return ZMQError(errno.ENAMETOOLONG, text)
        if "does not fit" in str(error) or "cannot " + call in str(error):
            return error_of(ENOCOMPATPROTO)
        return error_of(Errno.EINVAL)
    if isinstance(error, errors.TransportError):
        if error.errno == errno.ENOENT and scheme == "ipc":
            return ZMQError(errno.ENOENT, f'No such file or directory for ipc path "{rest}".')
        if call == "bind" and (error.errno is None or error.errno < 0):
            # The name or the interface is not known.
            return error_of(errno.ENODEV if scheme != "inproc" else Errno.EADDRINUSE)
    return translate(error, handle)


def missing_error(error: errors.OmqError, handle: Handle, endpoint: str) -> BaseException:
    """Returns the error of an `unbind` or `disconnect`."""
    if isinstance(error, errors.EndpointError):
        scheme, separator, rest = endpoint.partition("://")
        if not separator or not rest:
            return error_of(Errno.EINVAL)
        return error_of(errno.ENOENT if scheme in _SPOKEN else Errno.EPROTONOSUPPORT)
    return translate(error, handle)
