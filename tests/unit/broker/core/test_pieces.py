"""Ranges of ids that remember something, against a dictionary of single ids."""

from hypothesis import given, settings
from hypothesis import strategies as st

from omq.broker.core.pieces import Pieces

RANGES = st.tuples(st.integers(1, 60), st.integers(0, 12)).map(lambda two: (two[0], two[0] + two[1]))
STEPS = st.lists(st.tuples(st.booleans(), RANGES, st.integers(0, 2), st.sampled_from([0.0, 1.5])), max_size=40)


def flat(pieces):
    return {id: (piece.tries, piece.deadline) for piece in pieces for id in range(piece.first, piece.last + 1)}


@settings(deadline=None)
@given(STEPS)
def test_pieces_are_what_a_dictionary_of_ids_would_be(steps):
    pieces, model = Pieces(), {}
    for adds, (first, last), tries, deadline in steps:
        ids = range(first, last + 1)
        if adds and not any(id in model for id in ids):
            pieces.add(first, last, tries, deadline)
            model.update(dict.fromkeys(ids, (tries, deadline)))
        else:
            taken = flat(pieces.take(first, last))
            assert taken == {id: model.pop(id) for id in ids if id in model}
        assert flat(pieces) == model
        assert pieces.count == len(model)
        assert [piece.first for piece in pieces] == sorted(piece.first for piece in pieces)
        assert pieces.holds(first, last) == any(id in model for id in ids)


def test_neighbours_with_the_same_history_are_one_piece():
    pieces = Pieces()
    pieces.add(1, 5, 1)
    pieces.add(11, 15, 1)
    pieces.add(6, 10, 1)
    assert len(pieces) == 1
    pieces.add(16, 20, 2)
    assert len(pieces) == 2
    assert pieces.head.last == 15


def test_everything_can_be_taken_at_once():
    pieces = Pieces()
    pieces.add(1, 5, 1)
    pieces.add(7, 9, 2)
    assert [(piece.first, piece.last, piece.tries) for piece in pieces.take_all()] == [(1, 5, 1), (7, 9, 2)]
    assert pieces.count == 0
    assert not pieces.holds(1, 9)
