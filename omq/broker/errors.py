"""The refusals of a broker, as exceptions; each has the code by which it travels.

The broker's core raises them, the ZMTP server sends code and text, and a client makes the same exception of them again.
"""

from __future__ import annotations

from typing import ClassVar

from omq.errors import MessageTooLarge, OmqError, Timeout
from omq.store import errors as store_errors

__all__ = [
    "AlreadySettled",
    "Busy",
    "BrokerError",
    "BrokerFailed",
    "BrokerTimeout",
    "Damaged",
    "MessageTooLarge",
    "Overrun",
    "PermissionDenied",
    "StoreFull",
    "SyntaxFault",
    "TooLarge",
    "TopicError",
    "VersionFault",
    "WrongState",
    "broker_error",
    "error_for",
]


class BrokerError(OmqError):
    """The broker refuses, or cannot do, what was asked.

    Attributes:
        code: Its word in `ERROR`; see docs/reference/broker-protocol.md.
        first: `Overrun`: the oldest id that is kept; `Damaged`: the first id that is; else 0.
        last: `Damaged`: the last id that is; else 0.
    """

    code: ClassVar[str] = "failed"

    def __init__(self, text: str = "", first: int = 0, last: int = 0) -> None:
        super().__init__(text)
        self.first = first
        self.last = last


class SyntaxFault(BrokerError):
    """A message that does not follow the protocol."""

    code = "syntax"


class VersionFault(BrokerError):
    """The two sides do not speak the same version of the protocol."""

    code = "version"


class WrongState(BrokerError):
    """The request does not fit the state of its session: no `HELLO`, or a tag that is in use."""

    code = "state"


class TopicError(BrokerError):
    """The topic does not exist, or is not of the kind that the call needs, or its name or a setting does not fit."""

    code = "topic"


class PermissionDenied(BrokerError):
    """The client's key or user may not do that with this topic."""

    code = "permission"


class StoreFull(BrokerError):
    """The topic or the disk is full: nothing was stored. Reading goes on, and so does writing once there is room."""

    code = "full"


class BrokerFailed(BrokerError):
    """The broker cannot do it, most likely because its store has failed: a failed write or fsync is never repeated."""

    code = "failed"


class TooLarge(BrokerError, MessageTooLarge):
    """A body, or a request, is larger than the broker takes; it is a `MessageTooLarge`."""

    code = "too-large"


class Damaged(BrokerError):
    """The records of these ids are damaged; reading can go on after them."""

    code = "damaged"


class Overrun(BrokerError):
    """The messages that were asked for are no longer kept."""

    code = "overrun"


class Busy(BrokerError):
    """More of this connection's messages wait for their answers than the broker keeps."""

    code = "busy"


class AlreadySettled(BrokerError):
    """The producer has confirmed before that it has the answer of this sequence: nothing was stored now.

    Whether it was stored then, and under which id, is forgotten. A `Client` never settles what it may yet repeat.
    """

    code = "settled"


class BrokerTimeout(BrokerError, Timeout):
    """The broker is not there, or has not answered in time; it is an `omq.Timeout`.

    What the call asked for may have been done, or may yet be done.
    """


_BY_CODE = {kind.code: kind for kind in BrokerError.__subclasses__() if "code" in vars(kind)}


def error_for(code: str, text: str, first: int = 0, last: int = 0) -> BrokerError:
    """The exception for an `ERROR` with this code, text and ids."""
    kind = _BY_CODE.get(code)
    return kind(text, first, last) if kind is not None else BrokerFailed(f"{code}: {text}")


#: The error that the broker answers with, by the store's; the first that fits.
_BY_STORE_ERROR: tuple[tuple[type[store_errors.StoreError], type[BrokerError]], ...] = (
    (store_errors.OutOfSpace, StoreFull),
    (store_errors.TopicFull, StoreFull),
    (store_errors.UnknownTopic, TopicError),
    (store_errors.StageError, WrongState),
    (store_errors.Gone, Overrun),
    (store_errors.DamagedError, Damaged),
)


def broker_error(error: BaseException) -> BrokerError:
    """Returns the error that the broker answers with where the store has failed with *error*."""
    if isinstance(error, BrokerError):
        return error
    for kind, answer in _BY_STORE_ERROR:
        if isinstance(error, kind):
            return answer(str(error), getattr(error, "first", 0), getattr(error, "last", 0))
    return BrokerFailed(str(error) or type(error).__name__)
