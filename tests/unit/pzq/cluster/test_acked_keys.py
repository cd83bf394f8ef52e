"""The keys of acknowledged messages that a node knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omq.pzq.cluster.acked_keys import (
    MAX_CHECKPOINTS,
    MAX_RANGES,
    AckCheckpoint,
    AckedKeys,
    parse_checkpoints,
)
from omq.pzq.cluster.keys import Keys
from omq.pzq.wire import stem_of
from tests.unit.pzq.cluster.sample_keys import STEM, STORE, keys

HIGH = (5 << 48) - 2  # numbers on both sides of a key's two parts


def knows(done: AckedKeys, owner: str, key: str) -> bool:
    return bool(done.find(owner, [key]))


def found(done: AckedKeys, some: Keys) -> list[str]:
    return [key for range_ in done.find("a", some) for key in range_.texts()]


def test_received_keys_are_forgotten_after_a_while_and_stated_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omq.pzq.cluster.acked_keys.MAX_RECENT_RANGES", limit := 1000)
    done = AckedKeys()
    done.add(keys(1, 10))
    done.add_checkpoint("a", STEM, AckCheckpoint(200, [(1, 5)]))
    done.add(keys(100 + 2 * number, 1)[0] for number in range(limit))  # a range each
    assert [number for number in range(1, 11) if knows(done, "a", keys(number, 1)[0])] == [1, 2, 3, 4, 5]
    assert found(done, keys(1, 10)) == list(keys(1, 5))


@pytest.mark.parametrize("first", [10, HIGH])
def test_ranges_are_of_the_numbers_that_messages_have_in_their_topic(first: int) -> None:
    done = AckedKeys()
    done.add_checkpoint("a", STEM, AckCheckpoint(200, [(1, 2), (first + 1, first + 2), (first + 5, first + 90)]))
    assert found(done, keys(first, 8)) == [*keys(first + 1, 2), *keys(first + 5, 3)]
    assert not found(done, keys(first, 8, topic=8))
    assert knows(done, "a", keys(first + 1, 1)[0])
    assert not knows(done, "a", keys(first, 1)[0])


def test_a_statement_does_not_cover_what_was_stored_after_it() -> None:
    done = AckedKeys()
    done.add_checkpoint("a", STEM, AckCheckpoint(200, [(1, 5)]))
    assert knows(done, "a", keys(1, 1, when=200)[0])
    assert not knows(done, "a", keys(1, 1, when=201)[0])


def test_the_newest_statement_counts_whichever_node_repeats_an_older_one() -> None:
    done = AckedKeys()
    done.add_checkpoint("a", STEM, AckCheckpoint(200, [(1, 5)]))
    done.add_checkpoint("a", STEM, AckCheckpoint(300, [(1, 3)]))
    assert not done.merge(parse_checkpoints({"a": {STEM: [250, [[1, 9]]]}}))
    assert found(done, keys(1, 10)) == list(keys(1, 3))
    assert done.next_time("a", STEM, 299) == 301


def test_a_key_of_another_store_is_in_no_statement() -> None:
    done, key = AckedKeys(), "17|11234567-89ab-8007-8000-000000000001"
    done.add_checkpoint("a", STEM, AckCheckpoint(200, [(0, 1 << 61)]))
    assert not knows(done, "a", key)
    done.add([key])
    assert knows(done, "a", key)


def test_what_is_sent_is_received() -> None:
    done, other = AckedKeys(), AckedKeys()
    done.add_checkpoint("a", STEM, AckCheckpoint(200, [(1, 5), (7, 7)]))
    sent = json.loads(json.dumps(done.to_json()))
    assert other.merge(parse_checkpoints(sent)) == ["a"]
    assert other.merge(parse_checkpoints(sent)) == []
    assert other.to_json() == done.to_json()


def test_of_many_topics_of_one_owner_those_are_kept_that_were_stated_last() -> None:
    done = AckedKeys()
    stems = [stem_of(STORE, topic) for topic in range(MAX_CHECKPOINTS + 1)]
    for at, stem in enumerate(stems, 1):
        done.merge(parse_checkpoints({"a": {stem: [at, [[1, 1]]]}}))
    assert list(done.to_json()["a"]) == stems[1:]
    assert done.merge(parse_checkpoints({"a": {stems[0]: [1, [[1, 1]]]}})) == []


def test_others_send_an_owner_what_its_store_has_lost() -> None:
    done = AckedKeys()
    done.add_checkpoint("a", STEM, AckCheckpoint(60, [(1, 2)]))
    assert done.merge(parse_checkpoints({"a": {STEM: [50, [[1, 3]]]}}), own="a") == []
    assert done.merge(parse_checkpoints({"a": {STEM: [70, [[1, 3]]]}}), own="b") == []
    assert done.merge(parse_checkpoints({"a": {STEM: [80, [[1, 4]]]}}), own="a") == ["a"]
    assert done.next_time("a", STEM, 75) == 81


def test_a_statement_is_of_its_owners_messages_alone() -> None:
    """A directory that was copied has another node's store, and numbers of its own."""
    done = AckedKeys()
    done.add_checkpoint("a", STEM, AckCheckpoint(200, [(1, 5)]))
    assert not knows(done, "b", keys(1, 1)[0])
    assert not done.find("b", keys(1, 5))


@pytest.mark.parametrize(
    "sent",
    [
        [],
        7,
        {"a": 7},
        {"a": {STEM: 7}},
        {"a": {STEM: [1]}},
        {"a": {STEM: [1, 7]}},
        {"a": {STEM: [1, [7]]}},
        {"a": {STEM: [1, [[1, 2, 3]]]}},
        {"a": {STEM: [-1, []]}},
        {"a": {STEM: ["1", []]}},
        {"a": {STEM: [1, [[1, 1 << 62]]]}},
        {"a": {STEM: [1, [[1.5, 2]]]}},
        {"a": {STEM: [1, [[n, n] for n in range(MAX_RANGES + 1)]]}},
        {"a": {"x": [1, []]}},
        {"a": {STEM: [1, [], 7]}},
        {"a": {stem_of(STORE, topic): [1, []] for topic in range(MAX_CHECKPOINTS + 1)}},
    ],
)
def test_invalid_checkpoints_are_rejected(sent: Any) -> None:
    with pytest.raises(ValueError, match="ack checkpoints"):
        parse_checkpoints(sent)
