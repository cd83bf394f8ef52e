"""The descriptors of a broker's process: how many of them its clients may have."""

from __future__ import annotations

import resource
from typing import Final

#: Descriptors that clients do not get: the store's, the status page's, and some to spare.
_LEAST_RESERVE: Final = 64
_MOST_RESERVE: Final = 512
_MOST_CONNECTIONS: Final = 1 << 20
_PARTS_OF_LIMIT: Final = 8  # the reserve is this part of the limit of the process


def room_for_connections() -> int:
    """Returns how many connections the process has descriptors for, with a reserve for everything else."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    reserve = min(max(limit // _PARTS_OF_LIMIT, _LEAST_RESERVE), _MOST_RESERVE)
    return min(max(limit - reserve, 1), _MOST_CONNECTIONS)
