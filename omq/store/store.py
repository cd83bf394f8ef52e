"""The store on disk: `DIR/strong` and `DIR/weak` in LMDB, transient topics in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from omq.store.interface import Appended, Notify, Reader, Stats, TopicState, Write
from omq.store.settled import Settled


class Store:
    """A store in a directory, which is made where it is missing. See `Log`, which it is.

    Args:
        directory: Where.
        notify: Gets the writes that are done.
        appended: Gets the topics that have grown.
        flush_interval: Seconds between two syncs of weak and async topics.
        max_memory: Bytes that a transient topic keeps if its settings do not say.

    Raises:
        StoreLocked: It is open elsewhere.
        DamagedError: It cannot be opened: the text says what is wrong, and what to do.
    """

    id: str
    findings: list[str]

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        notify: Notify,
        appended: Appended = lambda grown: None,
        flush_interval: float = 1.0,
        max_memory: int = 64 * 1024 * 1024,
    ) -> None:
        raise NotImplementedError

    @property
    def broken(self) -> BaseException | None:
        raise NotImplementedError

    def submit(self, write: Write) -> None:
        raise NotImplementedError

    def submit_many(self, writes: Iterable[Write]) -> None:
        raise NotImplementedError

    def topics(self) -> list[TopicState]:
        raise NotImplementedError

    def topic(self, topic_id: int) -> TopicState:
        raise NotImplementedError

    def read(self, topic_id: int) -> AbstractContextManager[Reader]:
        raise NotImplementedError

    def positions(self, topic_id: int) -> dict[str, int]:
        raise NotImplementedError

    def settled(self, topic_id: int) -> Settled:
        raise NotImplementedError

    def stats(self) -> Stats:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
