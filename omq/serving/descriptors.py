"""The descriptors of a server process: the limit, and the number that connections may use."""

import errno
import logging
import resource
from typing import Final

#: Descriptors kept for the store, a status page and other uses.
_MIN_RESERVE: Final = 64
_MAX_RESERVE: Final = 2048
_MAX_CONNECTIONS: Final = 1 << 20
_RESERVE_DIVISOR: Final = 8  # the reserve is the process's limit divided by this
_HANDSHAKE_DIVISOR: Final = 4  # handshakes in progress may use the reserve divided by this
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})


def raise_descriptor_limit(log: logging.Logger) -> None:
    """Raises the soft limit of descriptors to the hard one (`getrlimit(2)`), which connections need; logs it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        log.info("descriptors: at most %s", _shown(hard), extra={"event": "descriptors", "limit": _shown(hard)})
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # a sandbox
        log.warning(
            "descriptors: at most %s; the limit cannot be raised to %s: %s",
            _shown(soft),
            _shown(hard),
            error,
            extra={"event": "descriptors", "limit": _shown(soft)},
        )
    else:
        log.info(
            "descriptors: at most %s, raised from %s",
            _shown(hard),
            _shown(soft),
            extra={"event": "descriptors", "limit": _shown(hard)},
        )


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def room_for_connections() -> int:
    """Returns the number of connections that the process has descriptors for, with a reserve for other uses."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return min(max(limit - _reserve(limit), 1), _MAX_CONNECTIONS)


def room_for_handshakes(endpoints: int) -> int:
    """Returns the number of handshakes that each of some endpoints may have in progress.

    They use a part of the reserve: clients that connect and send nothing must not keep the status page out.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_reserve(limit) // _HANDSHAKE_DIVISOR // endpoints, 1)


def _reserve(limit: int) -> int:
    if limit == resource.RLIM_INFINITY:
        return _MAX_RESERVE
    return min(max(limit // _RESERVE_DIVISOR, _MIN_RESERVE), _MAX_RESERVE)


def connection_limit(wanted: int | None, endpoints: int, log: logging.Logger) -> int:
    """Returns the number of connections that each of some endpoints may accept; logs it if that is less than wanted.

    Args:
        wanted: The configured number; `None` for as many as there are descriptors.
        endpoints: The number of endpoints.
        log: The log.
    """
    room = max(room_for_connections() // endpoints, 1)
    if wanted is None or wanted <= room:
        return wanted or room
    log.warning(
        "max_connections=%d: the process has descriptors for %d; raise its limit (ulimit -n)",
        wanted,
        room,
        extra={"event": "limits", "max_connections": room, "wanted": wanted},
    )
    return room


def is_shortage(error: BaseException | None) -> bool:
    """Returns whether an error means that the process or the system has no descriptor left."""
    return isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR
