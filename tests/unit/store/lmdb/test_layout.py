"""Errors describe rows by the topic and the id, not by their keys."""

import pytest

from omq.store.errors import DamagedError
from omq.store.lmdb.layout import (
    PIECE,
    TOPIC,
    TOPIC_NUMBER,
    block_header,
    block_key,
    description,
    producer_key,
    topic_key,
    without_checksum,
)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (block_key(3, 5), "block 5 of topic 3"),
        (topic_key(b"n", 3), "the state row of topic 3"),
        (producer_key(b"d", 3, b"x"), "an answer to a producer of topic 3"),
        (TOPIC_NUMBER.pack(b"s", 3, 2), "acks page 2 of topic 3"),
        (TOPIC_NUMBER.pack(b"r", 3, 7), "the delivery count of id 7 of topic 3"),
        (TOPIC.pack(b"o", 3) + b"name", "a cursor 'name' of topic 3"),
        (PIECE.pack(b"g", 1, 2, 0, 3), "the staged piece with the sequence 2 of the stage with the number 1"),
        (b"G\xffname", "stage '\\\\xffname'"),
        (b"cname", "commit 'name'"),
        (b"i", "the id of the next topic"),
        (b"g", "the staged piece with the sequence"),
        (b"x", "a row of an unknown kind"),
    ],
)
def test_descriptions(key: bytes, text: str) -> None:
    assert description(key) == text
    with pytest.raises(DamagedError, match="is damaged: its checksum is wrong") as caught:
        without_checksum(key, b"value")
    assert str(caught.value).startswith(text)


def test_a_damaged_header_of_a_block() -> None:
    with pytest.raises(DamagedError, match=r"^the header of block 5 of topic 3 is damaged: its checksum is wrong$"):
        block_header(block_key(3, 5), bytes(100))
