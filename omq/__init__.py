"""omq: ZeroMQ for Python without libzmq."""

from omq._version import __version__

__all__ = ["__version__"]
