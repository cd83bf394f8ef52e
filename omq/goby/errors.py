"""The errors of a bus."""

from omq.errors import OmqError


class GobyError(OmqError):
    """Base of all of them."""


class Malformed(GobyError, ValueError):
    """An error of a peer that does not follow the protocol; the text has the reason."""


class BufferFull(GobyError):
    """A publication was refused: as many as may wait do so already, because the hold is not released."""
