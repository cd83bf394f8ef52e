from collections.abc import Iterator

class WaitingMessages:
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes | tuple[bytes, ...]]: ...
    def take_all(self) -> list[bytes | tuple[bytes, ...]]:
        """Takes all messages, the oldest first: all or, where it raises, none."""
