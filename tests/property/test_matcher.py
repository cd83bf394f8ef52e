"""The subscription matcher against a model that is a dictionary."""

import random
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from omq._core.queues.matcher import Matcher
from tests.support.hypothesis_profiles import examples

COUNTED, FOR_EVERYONE, FOR_SLOT, NOT_HELD = 0, 1, 2, -2


class Model:
    """The promise of the matcher, without its structure: how often each pair of prefix and slot is held."""

    def __init__(self):
        self.held = Counter()

    def slots(self, prefix):
        return {slot for held, slot in self.held if held == prefix}

    def add(self, prefix, slot):
        known, others = self.held[prefix, slot], self.slots(prefix) - {slot}
        self.held[prefix, slot] += 1
        return COUNTED if known else FOR_SLOT if others else FOR_EVERYONE

    def remove(self, prefix, slot, every=False):
        if (prefix, slot) not in self.held:
            return NOT_HELD
        self.held[prefix, slot] -= self.held[prefix, slot] if every else 1
        if self.held[prefix, slot]:
            return COUNTED
        del self.held[prefix, slot]
        return FOR_SLOT if self.slots(prefix) else FOR_EVERYONE

    def remove_slot(self, slot):
        mine = {prefix for prefix, holder in self.held if holder == slot}
        for prefix in mine:
            del self.held[prefix, slot]
        return sorted(prefix for prefix in mine if not self.slots(prefix))

    def match(self, topic):
        return sorted({slot for prefix, slot in self.held if topic.startswith(prefix)})

    def prefixes(self):
        return sorted(Counter(prefix for prefix, _ in self.held).items())


# Few letters, so that prefixes overlap; the stretches are as long as where the trie changes its form.
# Topics are drawn by letter, so that a failure can be read.
STRETCHES = {
    "a": b"a",
    "b": b"b",
    "0": b"\0",
    "1": b"\xff",
    "c": b"c" * 15,
    "d": b"d" * 17,
    "e": b"e" * 4095,
    "E": b"e" * 4097,
}
TOPICS = st.text("".join(STRETCHES), max_size=5)
SLOTS = st.integers(0, 9)


def spell(letters):
    return b"".join(STRETCHES[letter] for letter in letters)


def mismatch(found, expected):
    """Returns the differences between two lists of prefixes, shortened: the prefixes may be long."""
    odd = sorted(set(found) ^ set(expected))
    return [(prefix[:9], len(prefix), slots) for prefix, slots in odd]


class MatcherMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.matcher, self.model = Matcher(), Model()

    @rule(prefix=TOPICS, slot=SLOTS)
    def add(self, prefix, slot):
        prefix = spell(prefix)
        assert self.matcher.add(prefix, slot) == self.model.add(prefix, slot)

    @rule(prefix=TOPICS, slot=SLOTS)
    def remove(self, prefix, slot):
        prefix = spell(prefix)
        assert self.matcher.remove(prefix, slot) == self.model.remove(prefix, slot)

    @rule(pick=st.randoms(use_true_random=False), every=st.booleans())
    def remove_what_is_held(self, pick, every):
        if self.model.held:
            prefix, slot = pick.choice(list(self.model.held))
            call = self.matcher.drop if every else self.matcher.remove
            assert call(prefix, slot) == self.model.remove(prefix, slot, every)

    @rule(slot=SLOTS)
    def remove_slot(self, slot):
        assert sorted(self.matcher.remove_slot(slot)) == self.model.remove_slot(slot)

    @rule(topic=TOPICS)
    def match(self, topic):
        topic = spell(topic)
        assert sorted(self.matcher.match(topic)) == self.model.match(topic)
        assert self.matcher.matches_any(topic) == bool(self.model.match(topic))
        assert self.matcher.count(topic) == len(self.model.slots(topic))

    @invariant()
    def agrees(self):
        self.matcher.check()
        assert len(self.matcher) == len(self.model.held)
        assert mismatch(self.matcher.prefixes(), self.model.prefixes()) == []
        assert len(self.matcher.prefixes()) == len(self.model.prefixes())


MatcherMachine.TestCase.settings = examples(50, stateful_step_count=40)
TestMatcher = MatcherMachine.TestCase


@pytest.mark.parametrize("alphabet", [b"ab", b"\0\xff", bytes(range(48)), bytes(range(256))])
def test_thousands_of_random_operations(alphabet):
    random_source = random.Random(alphabet)  # the same run every time
    matcher, model = Matcher(), Model()

    def topic():
        return bytes(random_source.choices(alphabet, k=random_source.randrange(5)))

    for step in range(3_000):
        growing = step % 1_000 < 600
        prefix, slot = topic(), random_source.randrange(6)
        if random_source.random() < (0.8 if growing else 0.2):
            assert matcher.add(prefix, slot) == model.add(prefix, slot)
        elif model.held and random_source.random() < 0.9:
            prefix, slot = random_source.choice(list(model.held))
            assert matcher.remove(prefix, slot) == model.remove(prefix, slot)
        elif random_source.random() < 0.02:
            assert sorted(matcher.remove_slot(slot)) == model.remove_slot(slot)
        else:
            assert matcher.drop(prefix, slot) == model.remove(prefix, slot, every=True)
        probe = topic()
        assert sorted(matcher.match(probe)) == model.match(probe)
        if step % 100 == 0:
            matcher.check()
    for slot in range(6):
        assert sorted(matcher.remove_slot(slot)) == model.remove_slot(slot)
    matcher.check()
    assert matcher.nodes == 0
    assert len(matcher) == 0
