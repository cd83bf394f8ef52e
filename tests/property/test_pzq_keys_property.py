"""Keys that are kept as ranges, compared with a dict that has them one by one."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from omq.pzq.cluster.keys import KeyMap, Keys, KeysById, PositionMap, RecentKeys, StoredAt, split
from tests.support.hypothesis_profiles import examples

HEADS = [f"{when}|0123abcd-4567-8007-{number:04x}-" for when, number in ((17, 0x8000), (170, 0xBFFF))]
RANGES = st.builds(
    lambda head, first, count: [f"{head}{number:012x}" for number in range(first, min(first + count, 1 << 48))],
    st.sampled_from(HEADS),
    st.one_of(st.integers(0, 20), st.integers((1 << 48) - 8, (1 << 48) - 1)),
    st.integers(1, 8),
)
KEYS = st.lists(RANGES, min_size=1, max_size=4).map(
    lambda groups: list(dict.fromkeys(key for group in groups for key in group))
)


def ranges_of(keys: set[str]) -> list[list[str]]:
    """The keys, those of the lowest ids first; keys that count up are one."""

    def id_of(key: str) -> int:
        head, number = split(key)
        return StoredAt.of(head).base + number

    ranges: list[list[str]] = []
    for key in sorted(keys, key=id_of):
        if ranges and key[:-12] == ranges[-1][-1][:-12] and id_of(key) == id_of(ranges[-1][-1]) + 1:
            ranges[-1].append(key)
        else:
            ranges.append([key])
    return ranges


class KeysComparison(RuleBasedStateMachine):
    """Both have the same entries after any calls."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.expected = PositionMap(), dict[str, int]()
        self.owners, self.owned = KeyMap[object](), dict[str, object]()
        self.numbered, self.named, self.next = KeysById(), dict[int, str](), 1
        self.recent, self.last = RecentKeys(6), set[str]()

    @rule(keys=KEYS, place=st.integers(0, 40))
    def add(self, keys: list[str], place: int) -> None:
        self.places.add(keys, place)
        self.expected.update(zip(keys, range(place, place + len(keys)), strict=True))

    @rule(keys=KEYS)
    def take_positions(self, keys: list[str]) -> None:
        found = {key: self.expected.pop(key) for key in keys if key in self.expected}
        assert self.places.positions(keys) == list(found.values())
        assert self.places.take_positions(keys) == found

    @rule(keys=KEYS)
    def put(self, keys: list[str]) -> None:
        owner = object()
        self.owners.put(keys, owner)
        self.owned.update(dict.fromkeys(keys, owner))

    @rule(keys=KEYS)
    def take(self, keys: list[str]) -> None:
        found = [(key, self.owned.pop(key)) for key in keys if key in self.owned]
        assert [(key, owner) for range_, owner in self.owners.find(keys) for key in range_.texts()] == found
        assert [(key, owner) for range_, owner in self.owners.take(keys) for key in range_.texts()] == found

    @rule(keys=KEYS)
    def count(self, keys: list[str]) -> None:
        self.numbered.add(self.next, keys)
        self.named.update(enumerate(keys, self.next))
        self.next += len(keys)

    @rule(number=st.integers(1, 60))
    def leave(self, number: int) -> None:
        assert self.numbered.get(number) == self.named.get(number)
        assert self.numbered.take(number) == self.named.pop(number, None)

    @rule(keys=KEYS)
    def come(self, keys: list[str]) -> None:
        self.recent.add(keys)
        self.last.update(keys)
        while (over := len(ranges := ranges_of(self.last)) - 6) > 0:
            for range_ in ranges[:over]:
                self.last -= set(range_)

    @invariant()
    def both_have_the_same(self) -> None:
        assert len(self.places) == len(self.expected)
        assert sorted(self.places) == sorted(self.expected)
        assert all(key in self.places for key in self.expected)
        assert {key: self.owners.get(key) for key in self.owned} == self.owned
        assert len(self.owners) == len(self.owned)
        assert sorted(self.recent) == sorted(self.last)


KeysComparison.TestCase.settings = examples(40)
TestKeysComparison = pytest.mark.timeout(120)(KeysComparison.TestCase)


@pytest.mark.parametrize(
    "keys", [[f"{HEADS[0]}{number:012x}" for number in some] for some in ([9], [], [10, 11, 3, 3])]
)
def test_keys_are_a_sequence_of_texts(keys: list[str]) -> None:
    found = Keys.of(iter(keys))
    assert found == keys
    assert list(found) == keys
    assert len(found) == len(keys)
    assert [found[at] for at in range(-len(keys), len(keys))] == keys * 2
    assert found[1:] == keys[1:]
    assert Keys.of(found) is found
    with pytest.raises(IndexError):
        found[len(keys)]


@pytest.mark.parametrize(
    "key",
    [
        *("", "x", HEADS[0], HEADS[0] + "1", HEADS[0] + "00000000000A", "\u0661" + HEADS[0][1:] + 12 * "0"),
        "17|0123abcd-4567-4007-8000-000000000001",
    ],
)
def test_what_is_not_a_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is not the key of a message"):
        Keys.of([key])


def test_keys_that_count_up_are_one_range_and_cost_as_one() -> None:
    keys = [f"{HEADS[0]}{number:012x}" for number in range(10_000)]
    places = PositionMap()
    places.add(keys[:5_000], 7)
    places.add(keys[5_000:], 5_007)
    assert len(list(places.ranges())) == 1
    places.take(keys[1:9_999])
    assert places.take_positions(keys) == {keys[0]: 7, keys[9_999]: 10_006}


def test_the_same_keys_again_and_again_do_not_gather() -> None:
    recent = RecentKeys(4)
    for number in range(100):
        recent.add([f"{HEADS[0]}{number % 2:012x}", f"{HEADS[0]}{number % 3:012x}"])
    assert sorted(recent) == [f"{HEADS[0]}{number:012x}" for number in range(3)]
    assert len(recent) == 1


def test_who_asks_for_all_in_their_order_is_given_again_only_what_is_beyond_the_bound() -> None:
    """Consumers leave every other message, so that each of these is a range."""
    keys = [f"{1700 + number // 256}|0123abcd-4567-8007-8000-{number:012x}" for number in range(40_000)]
    reported = [key for number, key in enumerate(keys) if number % 2]
    recent = RecentKeys(16_384)
    for key in reported:
        recent.add([key])
    again = 0
    for begin in range(0, len(reported), 256):
        unknown = [key for key in reported[begin : begin + 256] if not recent.find([key])]
        again += len(unknown)
        recent.add(unknown)
    assert len(reported) - 16_384 <= again <= len(reported) - 16_384 + 2 * 16_384 // 64


def test_a_store_whose_clock_is_behind_keeps_its_share() -> None:
    recent = RecentKeys(640)
    for number in range(0, 10_000, 2):
        recent.add([f"1700|0123abcd-4567-8007-8000-{number:012x}"])
        recent.add([f"42|ffffabcd-4567-8007-8000-{number:012x}"])
    assert 300 < sum(key.startswith("42|") for key in recent) < 340
    assert len(recent) <= 640


def test_ranges_are_remembered_however_long_they_are() -> None:
    recent = RecentKeys(100)
    for number in range(10_000):
        if number % 200:
            recent.add([f"{HEADS[0]}{number:012x}"])
    assert len(list(recent)) == 9_950
