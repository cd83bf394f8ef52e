"""The errors of a broker, as exceptions; each has the code of its `ERROR` message.

The broker's core raises them, the ZMTP server sends code and text, and the client raises the same exception.
"""

from __future__ import annotations

from typing import ClassVar

from omq.errors import MessageTooLarge, OmqError, Timeout
from omq.store import errors as store_errors

__all__ = [
    "Busy",
    "BrokerError",
    "BrokerFailed",
    "BrokerTimeout",
    "Damaged",
    "DuplicateSequence",
    "MessageTooLarge",
    "NotLeader",
    "Overrun",
    "PermissionDenied",
    "StoreFull",
    "SyntaxFault",
    "TakenOver",
    "TooLarge",
    "TopicError",
    "VersionFault",
    "WrongState",
    "broker_error",
    "error_for",
]


class BrokerError(OmqError):
    """The base class of the errors of a broker, which are raised when it rejects a request or cannot execute it.

    Attributes:
        code: The code in `ERROR`; see docs/reference/broker-protocol.md.
        first: Of an `Overrun` the oldest id that is kept; of `Damaged` the first damaged id; else 0.
        last: Of `Damaged` the last damaged id; else 0.
    """

    code: ClassVar[str] = "failed"

    def __init__(self, text: str = "", first: int = 0, last: int = 0) -> None:
        super().__init__(text)
        self.first = first
        self.last = last


class SyntaxFault(BrokerError):
    """Raised for a message that does not follow the protocol."""

    code = "syntax"


class VersionFault(BrokerError):
    """Raised when the client and the broker have different versions of the protocol."""

    code = "version"


class WrongState(BrokerError):
    """Raised for a request that is not valid in the state of its session or stage.

    For instance a request before `HELLO`, with a tag that is in use, or with a stage that does not exist.
    """

    code = "state"


class TopicError(BrokerError):
    """Raised when a topic does not exist or has the wrong `delivery`, or a name, id or setting is not valid."""

    code = "topic"


class TakenOver(BrokerError):
    """Raised when another client has taken over the durable subscription.

    It did so by `subscribe(take_over=True)`, or has opened it while this client was not connected. The broker ignores
    cursors that this client sends for it from then on.
    """

    code = "taken-over"


class PermissionDenied(BrokerError):
    """Raised when the client's key or user is rejected, or does not have the permission for the request."""

    code = "permission"


class StoreFull(BrokerError):
    """Raised when the topic or the disk is full, or a user has reached a limit: nothing was stored.

    Reads continue; writes once there is room.
    """

    code = "full"


class BrokerFailed(BrokerError):
    """Raised when the broker cannot execute a request, usually because a write or an fsync of its store failed."""

    code = "failed"


class TooLarge(BrokerError, MessageTooLarge):
    """Raised when a body or a request is larger than the broker accepts."""

    code = "too-large"


class Damaged(BrokerError):
    """Raised when the messages with the ids `first` to `last` are damaged; reads can continue after them."""

    code = "damaged"


class Overrun(BrokerError):
    """Raised when requested messages are no longer kept."""

    code = "overrun"


class Busy(BrokerError):
    """Raised when the broker has no room for a request now; it had no effect.

    `Client` repeats every request but `subscribe` and `consume`.
    """

    code = "busy"


class NotLeader(BrokerError):
    """Raised for a request that only the leader of a cluster executes, if this broker does not lead it.

    If it has led before, it may have executed the request. A `Client` with `role="leader"` repeats the request
    at the leader.
    """

    code = "not-leader"


class DuplicateSequence(BrokerError):
    """Raised for a sequence below the first outstanding one of its producer: nothing was stored.

    The broker no longer has the answer that the producer has confirmed. A `Client` never confirms an answer of a
    request that it may repeat.
    """

    code = "duplicate-sequence"


class BrokerTimeout(BrokerError, Timeout):
    """Raised when the broker cannot be reached, or has not answered in time. It may still execute the request."""


_BY_CODE = {kind.code: kind for kind in BrokerError.__subclasses__() if "code" in vars(kind)}


def error_for(code: str, text: str, first: int = 0, last: int = 0) -> BrokerError:
    """Returns the exception for an `ERROR` with this code, text and ids."""
    kind = _BY_CODE.get(code)
    return kind(text, first, last) if kind is not None else BrokerFailed(f"{code}: {text}")


#: The errors of the broker by those of the store; the first match applies.
_BY_STORE_ERROR: tuple[tuple[type[store_errors.StoreError], type[BrokerError]], ...] = (
    (store_errors.NotLeader, NotLeader),
    (store_errors.InDoubt, NotLeader),
    (store_errors.StoreClosed, Busy),  # for a moment, in a follower of a cluster that loads a snapshot
    (store_errors.OutOfSpace, StoreFull),
    (store_errors.TopicFull, StoreFull),
    (store_errors.UnknownTopic, TopicError),
    (store_errors.StageError, WrongState),
    (store_errors.Gone, Overrun),
    (store_errors.DamagedError, Damaged),
)


def broker_error(error: BaseException) -> BrokerError:
    """Returns the broker's error for an error of the store."""
    if isinstance(error, BrokerError):
        return error
    for kind, answer in _BY_STORE_ERROR:
        if isinstance(error, kind):
            return answer(str(error), getattr(error, "first", 0), getattr(error, "last", 0))
    return BrokerFailed(str(error) or type(error).__name__)
