"""How long a commit that costs a sync waits for writes that are about to come."""

from __future__ import annotations

from typing import Final

#: The part of a commit's time that is waited at most, and seconds. Two commits in place of one cost its whole.
SHARE: Final = 1.0
LONGEST: Final = 0.005
#: Commits that wait for nothing after waiting has not paid; twice as many each time.
MOST_SKIPPED: Final = 64


class Patience:
    """Knows who is about to write again: whoever had waited for the last commit.

    A producer that has 64 messages on their way sends as many anew as it was answered for. While a commit has the first
    16 of them the other 48 arrive; without patience the next commit has those 48, the one behind it the 16 that have
    come meanwhile, and each costs a sync. So a commit waits until as many records are there as the last one had, and as
    had come during it; where they do not come in time, the next commits do not wait.
    """

    def __init__(self) -> None:
        self._records = 0
        self._until = 0.0
        self._skips = 0
        self._skipped = 0

    def committed(self, records: int, seconds: float, now: float) -> None:
        """A commit of so many records has ended.

        Args:
            records: How many.
            seconds: What it took.
            now: The time.
        """
        self._records = records
        self._until = now + min(SHARE * seconds, LONGEST)

    def waits_for(self, came: int, now: float) -> tuple[int, float]:
        """For how many records the next commit waits, and for how many seconds at most.

        Args:
            came: How many had come when the last one ended.
            now: The time.
        """
        if now >= self._until or not self._records:
            return came, 0.0
        if self._skipped < self._skips:
            self._skipped += 1
            return came, 0.0
        self._skipped = 0
        return self._records + came, self._until - now

    def waited(self, paid: bool) -> None:
        """A commit has waited; whether as many came as it had waited for."""
        self._skips = 0 if paid else min(2 * self._skips + 1, MOST_SKIPPED)
