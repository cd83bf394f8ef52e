"""Entries in chunks, as readers put them together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omq.store.replication.nats_journal import _Head, _Run

NUMBERS = ["0", "1", "2"]
#: An append with an entry in some chunks, or the rest of it from one chunk on, or its beginning up to one.
appends = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 4))


def chunk(number: str, index: int, count: int) -> bytes:
    return f"{number}-{index}/{count}.".encode()


def add(run: _Run, number: str, index: int, count: int, no_entry: bool = False) -> bytes | None:
    return run.add(_Head(index < count - 1, no_entry, index, number), chunk(number, index, count))


def entry_of(number: str, count: int) -> bytes:
    return b"".join(chunk(number, index, count) for index in range(count))


@given(st.lists(appends, max_size=8))
def test_only_whole_entries_are_read(parts: list[tuple[int, int, int]]) -> None:
    run = _Run()
    for turn, (count, first, last) in enumerate(parts):
        number = str(turn)
        results = [add(run, number, index, count) for index in range(first, min(last, count))]
        whole = first == 0 and last >= count
        assert [result for result in results if result] == ([entry_of(number, count)] if whole else [])
        if results and not whole:
            assert all(result == b"" for result in results if first)  # a rest has no entry


def test_a_message_without_an_entry_interrupts() -> None:
    run = _Run()
    assert add(run, NUMBERS[0], 0, 3) is None
    assert add(run, NUMBERS[1], 0, 1, no_entry=True) == b""
    assert add(run, NUMBERS[0], 1, 3) == b""
    assert add(run, NUMBERS[0], 2, 3) == b""
    assert run.add(None, b"foreign") == b""
    assert add(run, NUMBERS[2], 0, 1) == entry_of(NUMBERS[2], 1)


def test_a_repeated_or_missing_chunk_ends_an_entry() -> None:
    for second in (0, 2):
        run = _Run()
        assert add(run, NUMBERS[0], 0, 3) is None
        assert add(run, NUMBERS[0], second, 3) == (None if second == 0 else b"")
        assert add(run, NUMBERS[0], 2, 3) == b""
