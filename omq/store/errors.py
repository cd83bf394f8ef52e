"""The errors of a store."""

from typing import TypeVar

from omq.errors import OmqError


class StoreError(OmqError):
    """The base class of the errors of a store; raised itself for errors without a class of their own."""


class StoreClosed(StoreError):
    """Raised when the store is closed."""


class OutOfSpace(StoreError):
    """Raised when the disk has no space. Nothing of the write was stored; it can be repeated. Reads continue."""


class StagesFull(OutOfSpace):
    """Raised when the stages of a topic in memory have reached its bound. Commit or abort some of them first."""


class TopicFull(StoreError):
    """Raised when a bounded topic has no room for an append, and its settings do not let it drop messages.

    Args:
        topic_id: The id of the topic.
        count: The number of messages of the append.
        size: The bytes of the append.
    """

    def __init__(self, topic_id: int, count: int, size: int) -> None:
        super().__init__(f"topic {topic_id} has no room for {count} messages of {size} bytes")
        self.topic_id = topic_id
        self.count = count
        self.size = size


class StoreFailed(StoreError):
    """Raised when a write or a sync has failed. The store rejects writes until it is reopened; reads continue."""


class StoreLocked(StoreError):
    """Raised when another process, or another store in this process, has the directory open."""


class NotLeader(StoreError):
    """Raised for a write to a replicated topic on a node that does not lead. Nothing of it was stored; repeat it there.

    Args:
        node: The id of the leader; empty if it is not known.
        endpoints: The endpoints of the leader.
    """

    def __init__(self, node: str = "", endpoints: tuple[str, ...] = ()) -> None:
        where = f"{node!r} does, at {', '.join(endpoints)}" if node else "it is not known which node does"
        super().__init__(f"this node does not lead the cluster: {where}")
        self.node = node
        self.endpoints = endpoints


class InDoubt(StoreError):
    """Raised for a write to a replicated topic whose outcome is unknown, since this node has stopped or lost its lease.

    Repeat it at the leader: with a producer and a sequence it is not stored twice.
    """


class UnknownTopic(StoreError):
    """Raised when no topic has the id."""


class UnknownGroup(StoreError):
    """Raised when a topic has no such consumer group.

    Args:
        topic_id: The id of the topic.
        group: The name of the group.
    """

    def __init__(self, topic_id: int, group: str) -> None:
        super().__init__(f"topic {topic_id} has no consumer group {group!r}; create it with SetGroup")


class NotAllowed(StoreError):
    """Raised when a commit includes a topic to which its client may not publish.

    Args:
        topic_id: The id of the topic.
    """

    def __init__(self, topic_id: int) -> None:
        super().__init__(f"publishing to the topic {topic_id} is not allowed")
        self.topic_id = topic_id


class StageError(StoreError):
    """Raised when a stage does not exist, belongs to another topic, or is already published.

    Args:
        text: The error; `{}` in it stands for the stage.
        stage: The name of the stage.
    """

    def __init__(self, text: str, stage: bytes = b"") -> None:
        super().__init__(text.replace("{}", _shown(stage)))
        self.text = text
        self.stage = stage

    def text_without(self, prefix: bytes) -> str:
        """Returns the text with the name that the client gave the stage, which is without a prefix."""
        return self.text.replace("{}", _shown(self.stage.removeprefix(prefix)))


def _shown(stage: bytes) -> str:
    return repr(stage.decode(errors="backslashreplace"))


class Gone(StoreError):
    """Raised when requested ids are no longer kept.

    Attributes:
        first: The oldest id that is kept.
    """

    def __init__(self, text: str, first: int) -> None:
        super().__init__(text)
        self.first = first


class DamagedError(StoreError):
    """Raised when stored data differs from the data that was written.

    Attributes:
        topic_id: The id of the topic; 0 if the damage is not in one topic.
        first: The first damaged id; 0 if it is not known.
        last: The last damaged id. Reading can continue at `last + 1`.
    """

    def __init__(self, text: str, topic_id: int = 0, first: int = 0, last: int = 0) -> None:
        super().__init__(text)
        self.topic_id = topic_id
        self.first = first
        self.last = last


_Error = TypeVar("_Error", bound=BaseException)


def without_traceback(error: _Error) -> _Error:
    """Returns an error without its tracebacks and those of its causes and contexts.

    Tracebacks refer to frames, whose read transactions a kept error would keep open.
    """
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        one = chain.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            chain += one.__cause__, one.__context__
    return error
