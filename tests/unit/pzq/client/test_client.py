"""Unanswered messages in a producer, without a socket."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from omq.errors import UsageError
from omq.pzq import Refused
from omq.pzq.client.client import MAX_SEEN_IDS, PendingSends, SeenIds, parts_of
from omq.pzq.wire import read_produced


def test_what_is_not_answered_is_sent_again_as_it_was() -> None:
    unanswered = PendingSends(b"me")
    first = unanswered.compose(0, b"a")
    second = unanswered.compose(1, [b"b", b""], [b"header"])
    name = first[1].removesuffix(b":1")
    assert name.startswith(b"DEDUP:me.")
    assert first == [b"1", name + b":1", b"", b"a"]
    assert second == [b"2", name + b":2", b"header", b"", b"b", b""]
    unanswered.answered([b"1", b"1", b""])
    unanswered.answered([b"1", b"1", b""])  # of the repetition
    assert unanswered.to_resend() == [second]
    unanswered.answered([b"2", b"0", b"", b"no"])
    assert len(unanswered) == 0
    with pytest.raises(Refused, match="no") as caught:
        unanswered.result()
    assert caught.value.indexes == (1,)
    unanswered.result()


def test_a_message_with_an_id_is_given_no_number() -> None:
    assert PendingSends(None).compose(0, b"a", [b"DEDUP:x:1"], b"id") == [b"id", b"DEDUP:x:1", b"", b"a"]


def test_producers_have_names_of_their_own() -> None:
    assert PendingSends(None).compose(0, b"a")[1] != PendingSends(None).compose(0, b"a")[1]
    assert PendingSends(b"me").compose(0, b"a")[1] != PendingSends(b"me").compose(0, b"a")[1]
    for name in (b"", b"\0a", b"a" * 80):
        with pytest.raises(UsageError):
            PendingSends(name)
    with pytest.raises(TypeError):
        PendingSends("me")  # type: ignore[arg-type]
    longest = PendingSends(b"a" * 79).compose(0, b"a")
    assert len(read_produced([b"peer", *longest])[1]) == 96


@pytest.mark.parametrize("id", [b"x", b"", b"2"])
def test_the_late_answer_to_an_id_is_not_taken_for_that_of_its_next_message(id: bytes) -> None:
    unanswered = PendingSends(None)
    assert unanswered.compose(0, b"a", id=id)[0] == id
    for _ in range(3):
        unanswered.reset()
        assert unanswered.compose(0, b"b", id=id if id != b"2" else None)[0] != id
        for _ in range(2):
            unanswered.answered([id, b"1", b""])
        assert len(unanswered) == 1


@pytest.mark.parametrize("headers", [b"abc", "abc", [5], ["s"], [b"a", None], 5])
def test_headers_that_are_no_frames_are_refused(headers: Any) -> None:
    with pytest.raises(TypeError):
        PendingSends(None).compose(0, b"a", headers)


def test_the_number_of_remembered_ids_is_bounded() -> None:
    remembered = SeenIds()
    for number in range(MAX_SEEN_IDS + 1):
        remembered.add(b"%d" % number)
    assert b"0" not in remembered
    assert b"1" in remembered
    assert b"%d" % MAX_SEEN_IDS in remembered


def test_bodies() -> None:
    assert parts_of(bytearray(b"a")) == [b"a"]
    assert parts_of((b"a", memoryview(b"b"))) == [b"a", b"b"]
    with pytest.raises(UsageError):
        parts_of([])
    with pytest.raises(TypeError):
        parts_of("text")  # type: ignore[arg-type]


def test_threads_may_note_names_at_once() -> None:
    remembered = SeenIds()
    for number in range(MAX_SEEN_IDS):
        remembered.add(b"%d" % number)

    def add(thread: int) -> None:
        for number in range(3000):
            remembered.add(b"%d.%d" % (thread, number))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(add, range(4))) == [None] * 4
    finally:
        sys.setswitchinterval(before)
    assert b"0" not in remembered
