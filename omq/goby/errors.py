"""The errors of a Goby bus."""

from omq.errors import OmqError


class GobyError(OmqError):
    """The base class of the errors of a bus."""


class Malformed(GobyError, ValueError):
    """Raised when a message of a peer is not valid; the text has the reason."""


class BufferFull(GobyError):
    """Raised when a publication is rejected: the hold is not released, and the buffer is full."""
