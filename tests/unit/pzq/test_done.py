"""What a node knows of messages that are done with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omq.pzq.cluster.beginnings import KEPT, Beginnings
from omq.pzq.cluster.done import LATEST, MAX_FORMER, MAX_RANGES, MAX_STATED, REMEMBERED, Done, statements_of
from omq.pzq.keys import Keys
from omq.pzq.run import run_of
from omq.pzq.wire import key_format, stem_of

STORE = "0123456789abcdef0123456789abcdef"
STEM = stem_of(STORE, 7)
HIGH = (5 << 48) - 2  # numbers on both sides of a key's two parts


def keys(first: int, count: int, when: int = 100, topic: int = 7) -> Keys:
    return run_of(key_format(STORE, topic), when, first, count)


def knows(done: Done, owner: str, key: str) -> bool:
    return bool(done.find(owner, [key]))


def found(done: Done, some: Keys) -> list[str]:
    return [key for run in done.find("a", some) for key in run.texts()]


def test_what_it_was_told_of_is_forgotten_after_a_while_and_what_was_stated_is_not() -> None:
    done = Done()
    done.add(keys(1, 10))
    done.state("a", STEM, 200, [(1, 5)])
    done.add(keys(100 + 2 * number, 1)[0] for number in range(REMEMBERED))  # a run each
    assert [number for number in range(1, 11) if knows(done, "a", keys(number, 1)[0])] == [1, 2, 3, 4, 5]
    assert found(done, keys(1, 10)) == list(keys(1, 5))


@pytest.mark.parametrize("first", [10, HIGH])
def test_ranges_are_of_the_numbers_that_messages_have_in_their_topic(first: int) -> None:
    done = Done()
    done.state("a", STEM, 200, [(1, 2), (first + 1, first + 2), (first + 5, first + 90)])
    assert found(done, keys(first, 8)) == [*keys(first + 1, 2), *keys(first + 5, 3)]
    assert not found(done, keys(first, 8, topic=8))
    assert knows(done, "a", keys(first + 1, 1)[0])
    assert not knows(done, "a", keys(first, 1)[0])


def test_a_statement_says_nothing_of_what_was_stored_after_it() -> None:
    done = Done()
    done.state("a", STEM, 200, [(1, 5)])
    assert knows(done, "a", keys(1, 1, when=200)[0])
    assert not knows(done, "a", keys(1, 1, when=201)[0])


def test_the_newest_statement_counts_whoever_repeats_an_older_one() -> None:
    done = Done()
    done.state("a", STEM, 200, [(1, 5)])
    done.state("a", STEM, 300, [(1, 3)])
    assert not done.hear(statements_of({"a": {STEM: [250, [[1, 9]]]}}))
    assert found(done, keys(1, 10)) == list(keys(1, 3))
    assert done.next("a", STEM, 299) == 301


def test_a_message_whose_number_was_given_again_is_in_the_statement_of_the_run_that_has_stored_it() -> None:
    """A store with numbers up to 5 was put back at 100, and gave them again; before, it had come to 9."""
    done, later = Done(), Beginnings.of([(0, 10), (5, 100)])
    done.state("a", STEM, 60, [(1, 3), (6, 7)], Beginnings.of([(0, 10)]))
    done.state("a", STEM, 200, [(1, 2), (6, 6), (8, 8)], later)
    assert found(done, keys(1, 9, when=50)) == [*keys(1, 2, when=50), *keys(1, 3, when=50), *keys(6, 2, when=50)]
    assert found(done, keys(6, 9, when=150)) == [*keys(6, 1, when=150), *keys(8, 1, when=150)]
    # What the former run has stated holds for all who hear of it, and until a statement says it, too.
    told = json.loads(json.dumps(done.told()))
    other = Done()
    assert other.hear(statements_of(told)) == ["a"]
    assert other.told() == done.told()
    done.state("a", STEM, 300, [(1, 3), (6, 6), (8, 8)], later)
    assert len(done.told()["a"][STEM]) == 4, "6 and 7 are others"
    assert not done.hear(statements_of(told)), "it is known"


def test_what_a_run_has_stated_is_in_the_statements_of_the_next_one() -> None:
    done = Done()
    first, second = Beginnings.of([(0, 10)]), Beginnings.of([(0, 10), (9, 100)])
    done.state("a", STEM, 60, [(1, 3), (6, 7)], first)
    done.state("a", STEM, 200, [(1, 3)], second)  # power was lost, and what was noted last
    assert found(done, keys(1, 9, when=50)) == [*keys(1, 3, when=50), *keys(1, 3, when=50), *keys(6, 2, when=50)]
    done.state("a", STEM, 300, [(1, 12)], second)
    assert done.told() == {"a": {STEM: [300, [(1, 12)], second]}}


def test_of_the_store_that_is_here_others_tell_former_runs_alone_and_of_a_copy_of_it_its_owner_tells_all() -> None:
    done, former, own = Done(), Beginnings.of([(0, 10)]), {("a", STEM)}
    done.state("a", STEM, 60, [(1, 2)], Beginnings.of([(0, 10), (9, 50)]))
    for owner in "ab":
        done.hear(statements_of({owner: {STEM: [70, [[1, 3]], former]}}), "b", own)
        done.hear(statements_of({owner: {STEM: [80, [[1, 4]], former]}}), "b", own)
    at, _, _, before = done.told()["a"][STEM]
    assert (at, before) == (60, [[80, [(1, 4)], former]])
    assert done.told()["b"] == {STEM: [80, [(1, 4)], former]}


def test_of_many_runs_the_last_are_kept() -> None:
    done = Done()
    for run in range(1, 9):
        done.state("a", STEM, run, [(run, run)], Beginnings.of([(0, run)]))
    _, _, _, former = json.loads(json.dumps(done.told()["a"][STEM]))
    assert [at for at, *_ in former] == [7, 6, 5, 4]
    assert len(former) == MAX_FORMER


@pytest.mark.parametrize("key", ["", "x", "1|2", "1|not-of-any-store", "17|01234567-89ab-4007-8000-000000000001"])
def test_keys_of_others_are_in_no_statement(key: str) -> None:
    done = Done()
    done.state("a", STEM, 200, [(0, 1 << 61)])
    assert not knows(done, "a", key)
    done.add([key])
    assert knows(done, "a", key)


def test_what_is_told_is_heard() -> None:
    done, other = Done(), Done()
    done.state("a", STEM, 200, [(1, 5), (7, 7)])
    told = json.loads(json.dumps(done.told()))
    assert other.hear(statements_of(told)) == ["a"]
    assert other.hear(statements_of(told)) == []
    assert other.told() == done.told()


def test_what_others_repeat_takes_no_place_of_what_an_owner_states() -> None:
    done = Done()
    invented = {stem_of(STORE, topic): [1 << 60, [[1, 1]]] for topic in range(100, 100 + MAX_STATED)}
    assert done.hear(statements_of({"a": invented}), sender="b") == ["a"]
    assert done.hear(statements_of({"a": {STEM: [5, [[1, 1]]]}}), sender="b") == [], "there is no room"
    stems = [stem_of(STORE, topic) for topic in range(MAX_STATED)]
    for _ in range(2):
        for at, stem in enumerate(stems, 1):
            done.hear(statements_of({"a": {stem: [at, [[1, 1]]]}}), sender="a")
    assert list(done.told()["a"]) == stems
    done.state("a", stem_of(STORE, 99), 1, [(1, 1)])
    assert list(done.told()["a"])[:-1] == stems[1:]
    assert done.hear(statements_of({"a": {stems[0]: [1, [[1, 1]]]}})) == []


def test_an_owner_states_something_newer_whatever_others_repeat() -> None:
    done, other = Done(), Done()
    for at in (LATEST, LATEST + 1):
        done.repeated(STEM, at)
        other.hear(statements_of({"a": {STEM: [at, [[1, 9]]]}}), sender="b")
    assert other.told() == {"a": {STEM: [LATEST, [(1, 9)]]}}
    at = done.next("a", STEM, 200)
    done.state("a", STEM, at, [(1, 3)])
    other.hear(statements_of(done.told()), sender="a")
    assert other.told() == {"a": {STEM: [LATEST + 1, [(1, 3)]]}}


def test_a_statement_is_of_its_owners_messages_alone() -> None:
    """A directory that was copied has another node's store, and numbers of its own."""
    done = Done()
    done.state("a", STEM, 200, [(1, 5)])
    assert not knows(done, "b", keys(1, 1)[0])
    assert not done.find("b", keys(1, 5))


@pytest.mark.parametrize(
    "told",
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
        {"a": {STEM: [1, [], [[1]]]}},
        {"a": {STEM: [1, [], [[1, -1]]]}},
        {"a": {STEM: [1, [], [[1, 1]] * (KEPT + 1)]}},
        {"a": {STEM: [1, [], [], 7]}},
        {"a": {STEM: [1, [], [], [[1, []]] * (MAX_FORMER + 1)]}},
        {"a": {STEM: [1, [], [], [[1, [], [], [[1, []]]]]]}},
        {"a": {STEM: [1, [], [], [], []]}},
        {"a": {stem_of(STORE, topic): [1, []] for topic in range(MAX_STATED + 1)}},
    ],
)
def test_what_is_no_statement_is_refused(told: Any) -> None:
    with pytest.raises(ValueError, match="done with"):
        statements_of(told)
