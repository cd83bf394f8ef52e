"""Batches of waiting messages against the plain book that notes each message by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omq.pzq.cluster.pending_replication import PendingReplication

KEYS = [f"17|0123abcd-4567-8007-8000-{number:012x}" for number in range(12)]
PEERS = "bc"
REPLICAS = 2

some_keys = st.lists(st.sampled_from(KEYS), min_size=1, unique=True)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), some_keys),
        st.tuples(st.sampled_from(PEERS), some_keys),
        st.tuples(st.just("drop"), some_keys),
        st.tuples(st.just("enough"), st.just([])),
        st.tuples(st.just("expire"), st.just([])),
    ),
    max_size=40,
)


@given(steps)
def test_batches_report_what_single_messages_would(steps: list[tuple[str, list[str]]]) -> None:
    waiting = PendingReplication()
    book: dict[str, tuple[set[str], float]] = {}
    for now, (what, keys) in enumerate(steps):
        if what == "add":
            new = [key for key in keys if key not in book]
            if new:
                waiting.add(new, now + 5.0)
                book.update({key: (set(), now + 5.0) for key in new})
        elif what == "drop":
            assert sorted(waiting.drop(keys)) == sorted(key for key in keys if book.pop(key, None) is not None)
        elif what == "enough":
            answered = list(waiting.enough(REPLICAS))
            assert sorted(answered) == sorted(key for key, (having, _) in book.items() if len(having) >= REPLICAS)
            for key in answered:
                del book[key]
        elif what == "expire":
            answered = list(waiting.expired(now))
            assert sorted(answered) == sorted(key for key, (_, until) in book.items() if until <= now)
            for key in answered:
                del book[key]
        else:
            fresh = [key for key in keys if key in book and what not in book[key][0]]
            assert waiting.has(what, keys) == bool(fresh)
            for key in fresh:
                book[key][0].add(what)
        assert {key: (set(it[0]), it[1]) for range_, it in waiting._messages.ranges() for key in range_.texts()} == book
        assert waiting.until() == min((until for _, until in book.values()), default=None)
        assert all((key in waiting) == (key in book) for key in KEYS)
