"""The versions of pyzmq and libzmq whose interface and behaviour the face has."""

from __future__ import annotations

from typing import Final

__version__: str = "27.3.0"
__revision__: str = ""
VERSION_MAJOR: Final = 27
VERSION_MINOR: Final = 3
VERSION_PATCH: Final = 0
VERSION_EXTRA: Final = ""
version_info: tuple[int, int, int] | tuple[int, int, int, float] = (VERSION_MAJOR, VERSION_MINOR, VERSION_PATCH)

_LIBZMQ: Final = (4, 3, 5)


def pyzmq_version() -> str:
    """Returns the version of pyzmq as text."""
    return __version__


def pyzmq_version_info() -> tuple[int, int, int] | tuple[int, int, int, float]:
    """Returns the version of pyzmq as numbers."""
    return version_info


def zmq_version_info() -> tuple[int, int, int]:
    """Returns the version of libzmq as numbers."""
    return _LIBZMQ


def zmq_version() -> str:
    """Returns the version of libzmq as text."""
    return "{}.{}.{}".format(*_LIBZMQ)


__all__ = [
    "__revision__",
    "__version__",
    "pyzmq_version",
    "pyzmq_version_info",
    "zmq_version",
    "zmq_version_info",
]
