"""The errors between a device and its clients."""

from omq.errors import OmqError, Timeout


class PzqError(OmqError):
    """Base of all of them."""


class Malformed(PzqError, ValueError):
    """Frames that do not follow the protocol; the text has what is wrong."""


class Refused(PzqError):
    """The device has refused a message: it is not stored.

    Args:
        text: The device's text.
        indexes: Which of several messages were refused, counted from 0.
    """

    def __init__(self, text: str, indexes: tuple[int, ...] = (0,)) -> None:
        super().__init__(text)
        self.indexes = indexes


class NotReplicated(Refused):
    """The device has stored a message, but not on as many nodes as it is asked to."""


class ProduceTimeout(PzqError, Timeout):
    """The device has not answered in time: the message may be stored, or not."""
