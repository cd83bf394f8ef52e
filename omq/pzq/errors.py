"""The errors between a device and its clients."""

from omq.errors import OmqError, Timeout


class PzqError(OmqError):
    """The base class of the errors of `omq.pzq`."""


class Malformed(PzqError, ValueError):
    """Raised for frames that do not follow the protocol."""


class Refused(PzqError):
    """Raised when the device has refused a message. It is not stored, except for the subclass `NotReplicated`.

    Args:
        text: The device's text.
        indexes: The indexes of the refused messages, counted from 0.
    """

    def __init__(self, text: str, indexes: tuple[int, ...] = (0,)) -> None:
        super().__init__(text)
        self.indexes = indexes


class NotReplicated(Refused):
    """Raised when a message is stored, but on fewer nodes than the device's `replicas` option requires.

    Do not send it again: the device replicates it later.
    """


class ProduceTimeout(PzqError, Timeout):
    """Raised when the device has not answered in time: the message may be stored, or not."""
