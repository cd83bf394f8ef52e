"""The errors of a Goby bus."""

from omq.errors import OmqError


class GobyError(OmqError):
    """The base class of the errors of a bus."""


class Malformed(GobyError, ValueError):
    """A message of a peer is not valid; the text has the reason."""


class BufferFull(GobyError):
    """A publication was rejected: the buffer is full, because the hold is not released."""
