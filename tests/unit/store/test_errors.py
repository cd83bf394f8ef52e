"""Errors without frames, which can be kept."""

from omq.store.errors import without_traceback


def test_a_bare_error_keeps_no_frames() -> None:
    def fail() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise LookupError("second") from ValueError("never raised")
        except LookupError as second:
            second.__traceback__ = None
            raise OSError("third") from second

    try:
        fail()
    except OSError as error:
        third = without_traceback(error)
    second = third.__cause__
    assert second is not None
    assert second.__context__ is not None
    assert [one.__traceback__ for one in (third, second, second.__context__)] == [None, None, None]


def test_cyclic_errors_are_bared() -> None:
    one, two = OSError("one"), OSError("two")
    one.__context__, two.__context__ = two, one
    assert without_traceback(one) is one
