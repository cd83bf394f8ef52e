from typing import final

@final
class Matcher:
    """Which slots subscribed to a prefix of a topic.

    A slot is a small number, 0 or more, that stands for a peer; its owner hands it out and reuses it after
    `remove_slot`. Equal subscriptions of one slot are counted, not stored again. Nothing here locks: the
    owner serialises the calls. Methods that change a subscription return the effect:

    - 0: only how often the slot holds the prefix;
    - 1: the slot is the first that holds the prefix, or was the last one;
    - 2: the prefix is new for, or gone from, this slot, and others hold it as well;
    - -2: nothing, because the slot does not hold the prefix.
    """

    def __len__(self) -> int:
        """Distinct pairs of slot and prefix."""

    @property
    def prefix_count(self) -> int:
        """Distinct prefixes that are held."""

    def add(self, prefix: bytes, slot: int) -> int:
        """Subscribes a slot once more.

        Returns:
            0, 1 or 2 (see the class).

        Raises:
            ValueError: The slot is below 0, or 2**24 or more.
        """

    def remove(self, prefix: bytes, slot: int) -> int:
        """Takes one subscription back: for the subscriber's own side, where each call counts.

        Returns:
            0, 1, 2 or -2 (see the class).
        """

    def drop(self, prefix: bytes, slot: int) -> int:
        """Takes all equal subscriptions of a slot back: for a publisher that is told to cancel.

        libzmq's XSUB sends every subscription but only the last cancellation: a publisher that counted would
        never see the peer go.

        Returns:
            1, 2 or -2 (see the class).
        """

    def remove_slot(self, slot: int) -> list[bytes]:
        """Takes back all prefixes of a slot, at a cost that grows with their number.

        Returns:
            The prefixes that nobody holds any more, oldest first.
        """

    def match(self, topic: bytes) -> list[int]:
        """Returns the slots that hold a prefix of the topic, each once, in no particular order."""

    def matches_any(self, topic: bytes) -> bool:
        """Tells whether any slot holds a prefix of the topic."""

    def holds(self, prefix: bytes, slot: int) -> bool:
        """Tells whether a slot holds exactly this prefix."""

    def count(self, prefix: bytes) -> int:
        """Returns how many slots hold exactly this prefix."""

    def prefixes(self) -> list[tuple[bytes, int]]:
        """Returns each prefix that is held and how many slots hold it, in no particular order."""

    def prefixes_of(self, slot: int) -> list[bytes]:
        """Returns the prefixes of one slot, oldest first."""

    @property
    def nodes(self) -> int:
        """The nodes that are allocated; 0 when nothing, or only the empty prefix, is held. For tests."""

    def steps(self, topic: bytes) -> int:
        """Returns the number of nodes that a match of the topic may visit below the root. For tests."""

    def check(self) -> None:
        """Asserts every invariant of the trie and its lists; visits all of it. For tests."""
