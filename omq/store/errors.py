"""The errors of a store."""

from typing import TypeVar

from omq.errors import OmqError


class StoreError(OmqError):
    """Base of all of them; by itself: the store cannot do what was asked."""


class StoreClosed(StoreError):
    """The store is closed."""


class OutOfSpace(StoreError):
    """The disk has no space: nothing of this write was stored. It can be tried again; reads go on."""


class StagesFull(OutOfSpace):
    """The stages of a topic in memory take as much memory as the topic may. Commit or abort some of them first."""


class TopicFull(StoreError):
    """A bounded topic has no room for what was to be published, and does not drop anything.

    Args:
        topic_id: The topic.
        count: Messages that it has no room for.
        size: Their bytes.
    """

    def __init__(self, topic_id: int, count: int, size: int) -> None:
        super().__init__(f"topic {topic_id} has no room for {count} messages of {size} bytes")
        self.topic_id = topic_id
        self.count = count
        self.size = size


class StoreFailed(StoreError):
    """A write or a sync failed: this store takes nothing more until it is opened again. Reads go on."""


class StoreLocked(StoreError):
    """Another process, or another store of this one, has the directory open."""


class UnknownTopic(StoreError):
    """No topic has this id."""


class NotAllowed(StoreError):
    """The committer may not publish to a topic.

    Args:
        topic_id: The topic.
    """

    def __init__(self, topic_id: int) -> None:
        super().__init__(f"publishing to the topic {topic_id} is not allowed")
        self.topic_id = topic_id


class StageError(StoreError):
    """A stage that does not exist, belongs elsewhere, or is published already.

    Args:
        text: What is wrong; `{}` in it stands for the stage.
        stage: Its name.
    """

    def __init__(self, text: str, stage: bytes = b"") -> None:
        super().__init__(text.replace("{}", _shown(stage)))
        self.text = text
        self.stage = stage

    def without(self, prefix: bytes) -> str:
        """Returns the text with the stage's name without a prefix, as the client named it."""
        return self.text.replace("{}", _shown(self.stage.removeprefix(prefix)))


def _shown(stage: bytes) -> str:
    return repr(stage.decode(errors="backslashreplace"))


class Gone(StoreError):
    """The ids asked for are no longer kept.

    Attributes:
        first: The oldest id that is.
    """

    def __init__(self, text: str, first: int) -> None:
        super().__init__(text)
        self.first = first


class DamagedError(StoreError):
    """Stored data differs from the data that was written.

    Attributes:
        topic_id: The topic; 0: not of one topic.
        first: The first damaged id; 0: not known.
        last: The last one, included. Reading can go on at `last + 1`.
    """

    def __init__(self, text: str, topic_id: int = 0, first: int = 0, last: int = 0) -> None:
        super().__init__(text)
        self.topic_id = topic_id
        self.first = first
        self.last = last


_Error = TypeVar("_Error", bound=BaseException)


def bare(error: _Error) -> _Error:
    """Returns an error without its tracebacks and those of its causes and contexts.

    A kept error would otherwise keep what its frames have read, and their read transactions.
    """
    behind: list[BaseException | None] = [error]
    seen: set[int] = set()
    while behind:
        one = behind.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            behind += one.__cause__, one.__context__
    return error
