"""The store as the broker's loop sees it: what the store says goes on as the broker's own errors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from omq.broker.errors import (
    BrokerError,
    BrokerFailed,
    Damaged,
    Overrun,
    StoreFull,
    TopicError,
    WrongState,
)
from omq.store import errors as store_errors
from omq.store.interface import Write
from omq.store.journal import Journal as StoreJournal
from omq.store.memory import MemoryStore

log = logging.getLogger("omq.broker")

_Write = TypeVar("_Write", bound=Write)

#: What the store says, and what the broker says then; the first that fits.
_ERRORS: tuple[tuple[type[store_errors.StoreError], type[BrokerError]], ...] = (
    (store_errors.StoreFull, StoreFull),
    (store_errors.TopicFull, StoreFull),
    (store_errors.UnknownTopic, TopicError),
    (store_errors.StageError, WrongState),
    (store_errors.Gone, Overrun),
    (store_errors.DamagedError, Damaged),
)


def broker_error(error: BaseException) -> BrokerError:
    """What the broker answers where the store has failed with *error*."""
    if isinstance(error, BrokerError):
        return error
    for kind, answer in _ERRORS:
        if isinstance(error, kind):
            return answer(str(error), getattr(error, "first", 0), getattr(error, "last", 0))
    return BrokerFailed(str(error) or type(error).__name__)


class Journal(StoreJournal):
    """See `omq.store.journal.Journal`.

    Args:
        grown: Told which topics can be read further than before, by id, with their last ids.
    """

    def __init__(self, grown: Callable[[dict[int, int]], None]) -> None:
        super().__init__(grown, log, "broker")

    def in_memory(self, persistence: str) -> bool:
        """Returns whether topics of this persistence are kept in memory."""
        return persistence == "transient" or isinstance(self.store, MemoryStore)

    async def do(self, write: _Write) -> _Write:
        """Submits a write and waits for it.

        Raises:
            BrokerError: It was not done.
        """
        try:
            return await super().do(write)
        except store_errors.StoreError as error:
            raise broker_error(error) from None
