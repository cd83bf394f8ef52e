"""What can go wrong on a bus."""

from omq.errors import OmqError


class GobyError(OmqError):
    """Base of all of them."""


class Malformed(GobyError, ValueError):
    """What came does not follow the protocol; the text says what is wrong."""


class BufferFull(GobyError):
    """A publication was refused: as many as may wait do so already, because the hold is not released."""
