"""Entries in chunks, as readers put them together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omq.store.replication.nats_journal import _ChunkAssembler, _Head

NONCES = ["0", "1", "2"]
#: An append with an entry in some chunks, or the rest of it from one chunk on, or its beginning up to one.
appends = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 4))


def chunk(nonce: str, index: int, count: int) -> bytes:
    return f"{nonce}-{index}/{count}.".encode()


def add(assembler: _ChunkAssembler, nonce: str, index: int, count: int, no_entry: bool = False) -> bytes | None:
    return assembler.add(_Head(index < count - 1, no_entry, index, nonce), chunk(nonce, index, count))


def entry_of(nonce: str, count: int) -> bytes:
    return b"".join(chunk(nonce, index, count) for index in range(count))


@given(st.lists(appends, max_size=8))
def test_only_whole_entries_are_read(parts: list[tuple[int, int, int]]) -> None:
    assembler = _ChunkAssembler()
    for turn, (count, first, last) in enumerate(parts):
        nonce = str(turn)
        results = [add(assembler, nonce, index, count) for index in range(first, min(last, count))]
        whole = first == 0 and last >= count
        assert [result for result in results if result] == ([entry_of(nonce, count)] if whole else [])
        if results and not whole:
            assert all(result == b"" for result in results if first)  # a rest has no entry


def test_a_message_without_an_entry_interrupts() -> None:
    assembler = _ChunkAssembler()
    assert add(assembler, NONCES[0], 0, 3) is None
    assert add(assembler, NONCES[1], 0, 1, no_entry=True) == b""
    assert add(assembler, NONCES[0], 1, 3) == b""
    assert add(assembler, NONCES[0], 2, 3) == b""
    assert assembler.add(None, b"foreign") == b""
    assert add(assembler, NONCES[2], 0, 1) == entry_of(NONCES[2], 1)


def test_a_repeated_or_missing_chunk_ends_an_entry() -> None:
    for second in (0, 2):
        assembler = _ChunkAssembler()
        assert add(assembler, NONCES[0], 0, 3) is None
        assert add(assembler, NONCES[0], second, 3) == (None if second == 0 else b"")
        assert add(assembler, NONCES[0], 2, 3) == b""
