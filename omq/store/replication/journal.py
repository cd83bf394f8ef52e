"""The journal that the brokers of a cluster share, and its errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

from omq.store.errors import StoreError

#: What to do about a journal that does not answer. Servers with full disks do not report these.
SERVERS_NEEDED: Final = (
    "a majority of its servers must run, and have space (max_file_store); restart those whose file system was full"
)
#: What to do about a journal that has lost entries. Each broker has all of them that it has applied.
RESTORE: Final = (
    "keep the directories of all brokers, stop them, and begin a new journal: `omq broker restore` with the directory "
    "that has the highest position by `omq store stats`"
)


class Fenced(StoreError):
    """Raised when another entry has the sequence that an append expected. Readers never get the entry of the append.

    Attributes:
        last: The last sequence of the journal; 0 if it is not known.
    """

    def __init__(self, text: str, last: int = 0) -> None:
        super().__init__(text)
        self.last = last


class Truncated(StoreError):
    """Raised when the journal no longer has the entries that a reader needs. The newest snapshot replaces them.

    Attributes:
        first: The first sequence that the journal has.
    """

    def __init__(self, text: str, first: int) -> None:
        super().__init__(text)
        self.first = first


class JournalUnavailable(StoreError):
    """Raised when the journal does not answer. The outcome of an append that raises it is unknown."""


class JournalUnusable(StoreError):
    """Raised when the journal is not the one that the cluster has used, or cannot be used with its settings.

    An operator must mend it; waiting does not help.
    """


class JournalEntry(NamedTuple):
    """An entry of the journal, or a chunk of one, as a reader gets it.

    Attributes:
        sequence: The sequence of its last chunk.
        payload: The bytes that were appended. `None` for a chunk after which the entry continues: a reader that begins
            after it does not get the entry. Empty for a sequence that has no entry, where a reader only moves on:
            `last` leaves one, and so do chunks of an interrupted entry.
    """

    sequence: int
    payload: bytes | None


#: Called before a chunk is sent. The result is called once a majority of the servers has the chunk, with nothing but
#: chunks of this append, and sequences without an entry, between it and the sequence that the append has expected.
Sending: TypeAlias = Callable[[], Callable[[], None]]


class Journal(Protocol):
    """A log of entries in one order for all brokers of a cluster, kept by a majority of its servers.

    An entry has one sequence, or several if it is stored in chunks. Sequences only grow. Each call raises
    JournalUnusable when the journal needs an operator.

    Attributes:
        lease: The duration of the lease in seconds, which the cluster has had since its journal was created. A node
            with another one would claim the lease while the leader still has it.
        failure: The reason for which calls have no result lately, as far as it is known; empty after a success.
    """

    lease: float
    failure: str

    async def append(self, payload: bytes | bytearray, expected: int, sending: Sending | None = None) -> int:
        """Appends an entry, and waits until a majority of the servers has it.

        An entry in chunks that `last` interrupts is repeated.

        Args:
            payload: The entry, which is not empty.
            expected: The last sequence of the journal as the caller knows it, 0 if the journal is empty. Chunks of
                interrupted entries count.
            sending: Follows the progress of the entry, which takes long if it has many chunks.

        Returns:
            The sequence of the entry's last chunk: the new last sequence of the journal. No other entry is between
            `expected` and it, but there may be sequences without an entry.

        Raises:
            Fenced: The journal has another last sequence, and readers never get this entry.
            JournalUnavailable: The outcome is unknown.
        """
        ...

    def read(self, after: int) -> AsyncIterator[JournalEntry]:
        """Yields all entries after a sequence in their order, and waits for more at the end.

        It reaches each sequence: with an entry, a chunk or an empty entry.

        Args:
            after: The sequence of the last entry that the caller has, 0 for none.

        Raises:
            Truncated: Entries after this sequence are gone.
            JournalUnavailable: The servers do not answer.
        """
        ...

    async def last(self) -> int:
        """Returns the last sequence of the journal, 0 if nothing was ever appended.

        Each append that was acknowledged before the call is at or below it. An entry may be unfinished there.

        Raises:
            JournalUnavailable: The servers do not answer.
        """
        ...

    async def entry(self, sequence: int) -> bytes | None:
        """Returns the entry whose last chunk has a sequence, which is above 0.

        Returns:
            The entry; empty bytes if no entry ends there. None if the sequence was truncated, or the server that
            answers does not have it yet.

        Raises:
            JournalUnavailable: The servers do not answer.
        """
        ...

    async def size(self) -> int:
        """Returns the bytes that the journal keeps, with those that the servers add to each entry.

        The number may be that of a moment ago.

        Raises:
            JournalUnavailable: The servers do not answer.
        """
        ...

    async def is_complete(self) -> bool:
        """Returns whether a new node can come to the state of the others.

        It cannot if entries are gone that no snapshot contains.

        Raises:
            JournalUnavailable: The servers do not answer.
        """
        ...

    async def truncate(self, below: int) -> None:
        """Drops the entries with sequences below this one.

        Raises:
            JournalUnavailable: The servers do not answer; the entries may be gone.
        """
        ...

    async def put_snapshot(self, position: int, directory: Path) -> int:
        """Stores the files of a directory as the newest snapshot, and deletes older ones after that.

        Args:
            position: The sequence of the last entry that the snapshot contains.
            directory: The snapshot.

        Returns:
            The position of the snapshot that it replaces. Zero if there was none, or if there is a newer one and
            nothing is stored.

        Raises:
            JournalUnavailable: The servers do not answer; the older snapshot is still there.
        """
        ...

    async def get_snapshot(self, target: Path) -> int | None:
        """Copies the newest snapshot to a directory.

        Args:
            target: The directory, which is created.

        Returns:
            The position of the snapshot; None if there is no snapshot.

        Raises:
            JournalUnavailable: The servers do not answer; the directory is not created.
        """
        ...

    async def announce(self, payload: bytes) -> None:
        """Sends a message to all nodes that are connected now. It may be lost: without a connection it is."""
        ...

    def announcements(self) -> AsyncGenerator[bytes, None]:
        """Yields what nodes announce, this one included, until the journal is closed."""
        ...

    async def close(self) -> None:
        """Ends the connection. Calls that wait raise JournalUnavailable."""
        ...
