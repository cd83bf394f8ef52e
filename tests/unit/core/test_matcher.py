"""The subscription matcher: what it finds, what it reports, and that memory comes back."""

import ctypes
import gc
import timeit

import pytest

from omq._core.queues.matcher import Matcher

COUNTED, FOR_EVERYONE, FOR_SLOT, NOT_HELD = 0, 1, 2, -2

MEBIBYTE = 1 << 20


@pytest.fixture
def matcher():
    made = Matcher()
    yield made
    made.check()


def test_finds_every_slot_that_holds_a_prefix(matcher):
    matcher.add(b"AAPL", 0)
    matcher.add(b"AA", 1)
    matcher.add(b"AAPL.bid", 2)
    matcher.add(b"MSFT", 3)
    assert sorted(matcher.match(b"AAPL.ask")) == [0, 1]
    assert sorted(matcher.match(b"AAPL.bid")) == [0, 1, 2]
    assert sorted(matcher.match(b"AAPL")) == [0, 1]
    assert matcher.match(b"A") == []
    assert matcher.match(b"MSF") == []
    assert matcher.match(b"") == []


def test_a_slot_is_found_once_however_many_of_its_prefixes_match(matcher):
    for size in range(6):
        matcher.add(b"abcde"[:size], 7)
    matcher.add(b"abc", 2)
    assert sorted(matcher.match(b"abcdef")) == [2, 7]
    assert matcher.match(b"x") == [7]


def test_the_empty_prefix_matches_everything(matcher):
    assert matcher.add(b"", 4) == FOR_EVERYONE
    assert matcher.match(b"") == [4]
    assert matcher.match(b"\0anything") == [4]
    assert matcher.matches_any(b"")
    assert matcher.nodes == 0
    assert matcher.remove(b"", 4) == FOR_EVERYONE
    assert matcher.match(b"") == []
    assert not matcher.matches_any(b"x")


def test_additions_and_removals_return_what_changed(matcher):
    assert matcher.add(b"t", 0) == FOR_EVERYONE
    assert matcher.add(b"t", 0) == COUNTED
    assert matcher.add(b"t", 1) == FOR_SLOT
    assert matcher.remove(b"t", 0) == COUNTED
    assert matcher.remove(b"t", 0) == FOR_SLOT
    assert matcher.remove(b"t", 0) == NOT_HELD
    assert matcher.remove(b"t", 1) == FOR_EVERYONE
    assert matcher.remove(b"t", 1) == NOT_HELD


@pytest.mark.parametrize("prefix", [b"", b"a", b"ab", b"abcd", b"abd", b"b"])
def test_removing_what_is_not_held_changes_nothing(matcher, prefix):
    matcher.add(b"abc", 0)
    assert matcher.remove(prefix, 0) == NOT_HELD
    assert matcher.drop(prefix, 0) == NOT_HELD
    assert matcher.remove(b"abc", 1) == NOT_HELD
    assert matcher.match(b"abc") == [0]


def test_drop_forgets_equal_subscriptions_at_once(matcher):
    for _ in range(3):
        matcher.add(b"t", 0)
    matcher.add(b"t", 1)
    assert matcher.drop(b"t", 0) == FOR_SLOT
    assert matcher.match(b"t") == [1]
    assert matcher.drop(b"t", 1) == FOR_EVERYONE
    assert len(matcher) == 0


def test_count_and_prefixes_name_exact_subscriptions(matcher):
    matcher.add(b"a", 0)
    matcher.add(b"a", 5)
    matcher.add(b"a", 5)
    matcher.add(b"abc", 5)
    assert matcher.count(b"a") == 2
    assert matcher.count(b"ab") == 0
    assert matcher.count(b"abc") == 1
    assert matcher.count(b"abcd") == 0
    assert sorted(matcher.prefixes()) == [(b"a", 2), (b"abc", 1)]
    assert matcher.prefixes_of(5) == [b"a", b"abc"]
    assert matcher.prefixes_of(9) == []
    assert len(matcher) == 3


def test_removing_a_slot_names_the_prefixes_without_a_holder(matcher):
    for prefix in (b"z", b"shared", b"", b"a"):
        matcher.add(prefix, 1)
        matcher.add(prefix, 1)
    matcher.add(b"shared", 0)
    assert matcher.remove_slot(1) == [b"z", b"", b"a"]
    assert matcher.remove_slot(1) == []
    assert matcher.remove_slot(-1) == []
    assert matcher.remove_slot(1000) == []
    assert matcher.match(b"shared") == [0]
    assert matcher.add(b"a", 1) == FOR_EVERYONE  # the slot is free to be used again


def test_removing_a_slot_costs_what_the_slot_holds(matcher):
    for n in range(20_000):
        matcher.add(b"%d" % n, 0)
    matcher.add(b"mine", 1)
    few = min(timeit.repeat(lambda: (matcher.add(b"mine", 1), matcher.remove_slot(1)), number=100, repeat=5))
    everything = timeit.timeit(lambda: matcher.remove_slot(0), number=1)
    assert few / 100 < everything / 20


@pytest.mark.parametrize("key", [0x00, 0x41, 0x7F, 0x80, 0xFF])
def test_every_byte_value_is_an_ordinary_byte(matcher, key):
    others = [bytes([other]) for other in range(256) if other != key]
    for other in others:
        matcher.add(other, 0)
    assert not matcher.matches_any(bytes([key]))
    matcher.add(bytes([key]), 1)
    assert matcher.match(bytes([key, key])) == [1]
    matcher.check()
    for other in others:
        assert matcher.match(other) == [0]
        assert matcher.remove(other, 0) == FOR_EVERYONE
    assert matcher.match(bytes([key])) == [1]


def test_zero_bytes_do_not_end_a_prefix(matcher):
    matcher.add(b"\0\0", 0)
    matcher.add(b"a\0b", 1)
    assert matcher.match(b"\0") == []
    assert matcher.match(b"\0\0x") == [0]
    assert matcher.match(b"a\0c") == []
    assert matcher.match(b"a\0b") == [1]


def test_a_topic_of_a_mebibyte_is_held_and_cancelled(matcher):
    topic = bytes(range(256)) * (MEBIBYTE // 256)
    assert matcher.add(topic, 0) == FOR_EVERYONE
    assert matcher.match(topic + b"x") == [0]
    assert matcher.match(topic[:-1]) == []
    assert matcher.prefixes() == [(topic, 1)]
    matcher.add(topic[:-1] + b"!", 1)
    matcher.add(topic[: MEBIBYTE // 2], 2)
    assert sorted(matcher.match(topic)) == [0, 2]
    assert matcher.remove(topic, 0) == FOR_EVERYONE
    assert matcher.remove_slot(1) == [topic[:-1] + b"!"]
    matcher.check()
    assert matcher.remove_slot(2) == [topic[: MEBIBYTE // 2]]
    assert matcher.nodes == 0


def test_a_matcher_that_holds_a_mebibyte_is_torn_down():
    matcher = Matcher()
    for size in range(0, MEBIBYTE, 4099):
        matcher.add(b"x" * size + b"y", size % 5)
    matcher.check()
    del matcher
    gc.collect()


def test_toggling_a_short_prefix_of_a_long_topic_stays_cheap(matcher):
    def toggle():
        matcher.add(b"x", 1)
        matcher.remove(b"x", 1)

    matcher.add(b"x" * 4000, 0)
    short = min(timeit.repeat(toggle, number=200, repeat=5))
    matcher.add(b"x" * MEBIBYTE, 0)
    long = min(timeit.repeat(toggle, number=200, repeat=5))
    assert long < 20 * short  # the label is kept in pieces; moving all of it would cost 250 times as much


def test_equal_subscriptions_of_a_slot_are_one_entry(matcher):
    for _ in range(10_000):
        matcher.add(b"topic", 3)
    assert len(matcher) == 1
    assert matcher.nodes == 1
    assert matcher.match(b"topic") == [3]
    assert [matcher.remove(b"topic", 3) for _ in range(10_000)] == [COUNTED] * 9_999 + [FOR_EVERYONE]
    assert matcher.nodes == 0


def test_thousands_of_slots_hold_one_prefix(matcher):
    slots = [slot * 7919 % 5003 for slot in range(5003)]
    for slot in slots:
        matcher.add(b"topic", slot)
    assert matcher.count(b"topic") == 5003
    assert sorted(matcher.match(b"topic")) == list(range(5003))
    for slot in slots[1:]:
        assert matcher.remove_slot(slot) == []
    assert matcher.match(b"topic") == [slots[0]]


def test_matching_costs_the_same_among_a_hundred_thousand_subscriptions(matcher):
    def time():
        return min(timeit.repeat(lambda: matcher.match(b"feed.00042.bid"), number=2_000, repeat=7))

    for n in range(100):
        matcher.add(b"feed.%05d." % n, n % 3)
    matcher.add(b"never", 3)  # keeps every match from stopping early
    among_few, steps = time(), matcher.steps(b"feed.00042.bid")
    for n in range(100, 100_000):
        matcher.add(b"feed.%05d." % n, n % 3)
    assert len(matcher) == 100_001
    assert matcher.match(b"feed.00042.bid") == [42 % 3]
    assert matcher.steps(b"feed.00042.bid") <= steps + 3 <= 8
    assert time() < 10 * among_few
    assert len(matcher.remove_slot(0)) == 33_334
    matcher.check()
    assert matcher.nodes > 0
    for slot in (1, 2, 3):
        matcher.remove_slot(slot)
    assert matcher.nodes == 0


def test_memory_comes_back_as_prefixes_go(matcher):
    matcher.add(b"stock.AAPL", 0)
    matcher.add(b"stock.MSFT", 0)
    assert matcher.nodes == 3  # "stock." and the two that part there
    matcher.remove(b"stock.MSFT", 0)
    assert matcher.nodes == 1
    assert matcher.match(b"stock.AAPL") == [0]
    matcher.add(b"stock", 1)
    matcher.remove(b"stock", 1)
    assert matcher.nodes == 1


@pytest.mark.parametrize("slot", [-1, 1 << 24])
def test_a_slot_outside_its_range_is_refused(matcher, slot):
    with pytest.raises(ValueError, match=str(slot)):
        matcher.add(b"t", slot)
    assert matcher.remove(b"t", slot) == NOT_HELD
    assert matcher.prefixes() == []


def test_prefixes_are_bytes(matcher):
    with pytest.raises(TypeError):
        matcher.add("text", 0)
    with pytest.raises(TypeError):
        matcher.match(None)


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc (`mallinfo(3)`)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _allocated() -> int:
    """Returns the bytes that malloc has given out on its main heap, with their headers."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return int(info.uordblks) + int(info.hblkhd)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc 2.33 counts what malloc has given out")
@pytest.mark.parametrize("form", ["%07d", "market.NASDAQ.sym%d.price", "%016x"])
def test_a_subscription_costs_no_more_memory_than_one_of_libzmqs(form):
    # libzmq's tree takes 180 bytes of digits alone, and 450 to 860 of longer topics.
    matcher = Matcher()
    prefixes = [(form % number).encode() for number in range(100_000)]
    before = _allocated()
    for prefix in prefixes:
        matcher.add(prefix, 3)
    assert (_allocated() - before) / len(prefixes) < 160
    assert all(matcher.match(prefix) == [3] for prefix in prefixes)
