"""The file of a recorded feed."""

from __future__ import annotations

from pathlib import Path

import pytest

from omq.cli.record.feed_file import MAGIC, FeedFileError, FeedReader, FeedWriter

MESSAGES = [(0, [b"a"]), (1_500_000, [b"", b"b" * 300]), (2**40, [b"c"])]


def written(path: Path) -> bytes:
    with FeedWriter(path, "SUB", ["tcp://127.0.0.1:5555"], 1_700_000_000_000_000_000) as writer:
        writer.write(MESSAGES[:2])
        writer.write(MESSAGES[2:])
    return path.read_bytes()


def test_messages_are_the_same_after_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    written(path)
    with FeedReader(path) as reader:
        assert (reader.start_ns, reader.socket_type) == (1_700_000_000_000_000_000, "SUB")
        assert reader.endpoints == ["tcp://127.0.0.1:5555"]
        assert list(reader) == MESSAGES
        assert reader.incomplete_bytes == 0


def test_a_record_is_in_the_file_when_write_returns(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    writer = FeedWriter(path, "SUB", [], 0)
    for number, message in enumerate(MESSAGES, 1):
        writer.write([message])
        with FeedReader(path) as reader:
            assert list(reader) == MESSAGES[:number]
    writer.close()


def test_complete_messages_of_a_file_that_ends_anywhere_are_read(tmp_path: Path) -> None:
    data = written(tmp_path / "feed")
    path = tmp_path / "cut"
    path.write_bytes(data)
    with FeedReader(path) as reader:
        start = reader.position
        ends = [reader.position for _ in reader]
    for size in range(start, len(data)):
        path.write_bytes(data[:size])
        with FeedReader(path) as reader:
            complete = sum(end <= size for end in ends)
            assert list(reader) == MESSAGES[:complete]
            assert reader.incomplete_bytes == size - (ends[complete - 1] if complete else start)


def test_a_damaged_record_ends_the_feed(tmp_path: Path) -> None:
    data = bytearray(written(tmp_path / "feed"))
    data[-1] ^= 1
    path = tmp_path / "damaged"
    path.write_bytes(data)
    with FeedReader(path) as reader:
        assert list(reader) == MESSAGES[:2]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is not a recording"),
        (b"something else", "is not a recording"),
        (MAGIC[:-1] + b"\x02" + bytes(20), "has version 2"),
        (MAGIC + bytes(5), "head is damaged"),
        (MAGIC + bytes(12), "head is damaged"),
        (MAGIC + bytes(8) + b"\x02\0\0\0[]", "head is damaged"),
    ],
)
def test_another_file_is_refused(data: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    with pytest.raises(FeedFileError, match=text):
        FeedReader(path)


def test_an_existing_file_is_kept_unless_it_shall_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    written(path)
    with pytest.raises(FileExistsError):
        FeedWriter(path, "SUB", [], 0)
    FeedWriter(path, "PULL", [], 0, replace=True).close()
    with FeedReader(path) as reader:
        assert (reader.socket_type, list(reader)) == ("PULL", [])
