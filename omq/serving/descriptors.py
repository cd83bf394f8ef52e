"""The descriptors of a server process: the limit, and the number that connections may use."""

import logging
import resource
from typing import Final

#: Descriptors kept for the store, a status page and other uses.
_MIN_RESERVE: Final = 64
_MAX_RESERVE: Final = 512
_MAX_CONNECTIONS: Final = 1 << 20
_RESERVE_DIVISOR: Final = 8  # the reserve is the process's limit divided by this


def raise_descriptor_limit(log: logging.Logger) -> None:
    """Raises the soft limit of descriptors to the hard one (`getrlimit(2)`), which connections need; logs it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        log.info("descriptors: at most %s", _shown(hard))
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # a sandbox
        log.warning("descriptors: at most %s; the limit cannot be raised to %s: %s", _shown(soft), _shown(hard), error)
    else:
        log.info("descriptors: at most %s, raised from %s", _shown(hard), _shown(soft))


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def room_for_connections() -> int:
    """Returns the number of connections that the process has descriptors for, with a reserve for other uses."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    reserve = min(max(limit // _RESERVE_DIVISOR, _MIN_RESERVE), _MAX_RESERVE)
    return min(max(limit - reserve, 1), _MAX_CONNECTIONS)
