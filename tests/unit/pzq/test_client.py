"""What a producer keeps of what was not answered, without a socket."""

from __future__ import annotations

import pytest

from omq.errors import UsageError
from omq.pzq import Refused
from omq.pzq.client import Unanswered, parts_of


def test_what_is_not_answered_is_sent_again_as_it_was() -> None:
    unanswered = Unanswered(b"me")
    first = unanswered.compose(0, b"a")
    second = unanswered.compose(1, [b"b", b""], [b"header"])
    assert first == [b"1", b"DEDUP:me:1", b"", b"a"]
    assert second == [b"2", b"DEDUP:me:2", b"header", b"", b"b", b""]
    unanswered.answered([b"1", b"1", b""])
    unanswered.answered([b"1", b"1", b""])  # of the repetition
    assert unanswered.again() == [second]
    unanswered.answered([b"2", b"0", b"", b"no"])
    assert len(unanswered) == 0
    with pytest.raises(Refused, match="no") as caught:
        unanswered.result()
    assert caught.value.indexes == (1,)
    unanswered.result()


def test_whoever_numbers_by_himself_gets_no_number() -> None:
    assert Unanswered(None).compose(0, b"a", [b"DEDUP:x:1"], b"id") == [b"id", b"DEDUP:x:1", b"", b"a"]


def test_producers_have_names_of_their_own() -> None:
    assert Unanswered(None).compose(0, b"a")[1] != Unanswered(None).compose(0, b"a")[1]
    for name in (b"", b"\0a", b"a" * 97):
        with pytest.raises(UsageError):
            Unanswered(name)


def test_bodies() -> None:
    assert parts_of(bytearray(b"a")) == [b"a"]
    assert parts_of((b"a", memoryview(b"b"))) == [b"a", b"b"]
    with pytest.raises(UsageError):
        parts_of([])
    with pytest.raises(TypeError):
        parts_of("text")  # type: ignore[arg-type]
