"""The bell: how any thread has something called in an event loop."""

import select

import pytest

from omq._core.bell import Bell


@pytest.fixture
def bell():
    made = Bell()
    made.open()
    yield made
    made.close()


def rings(bell):
    return bool(select.select([bell.fd], [], [], 0)[0])


def test_functions_are_called_in_their_order_with_one_argument_or_none(bell):
    called = []
    bell.call(called.append, 1)
    bell.call(called.append, None)
    bell.call(lambda: called.append("none"))
    assert rings(bell)
    bell.answer()
    assert called == [1, None, "none"]
    assert not rings(bell)


def test_what_is_asked_for_before_it_is_opened_is_not_forgotten():
    bell, called = Bell(), []
    bell.call(called.append, 1)
    bell.open()
    assert rings(bell)
    bell.answer()
    assert called == [1]
    bell.close()


def test_what_is_asked_for_meanwhile_waits_for_the_next_time(bell):
    called = []
    bell.call(lambda: bell.call(called.append, "later"))
    bell.answer()
    assert called == []
    assert rings(bell)
    bell.answer()
    assert called == ["later"]


@pytest.mark.parametrize("failure", [ValueError, SystemExit])
def test_what_fails_takes_nothing_along(bell, failure, caplog):
    called = []

    def fail():
        raise failure

    bell.call(fail)
    bell.call(called.append, 1)
    try:
        bell.answer()
    except SystemExit:
        assert failure is SystemExit
    while rings(bell):
        bell.answer()
    assert called == [1]


def test_a_closed_one_is_silent(bell):
    bell.close()
    bell.call(lambda: None)
    bell.answer()
    assert bell.fd == -1


def test_a_bell_that_is_opened_again_rings(bell):
    """A thread that did not come up has closed it; the next one has the same."""
    called = []
    bell.close()
    bell.open()
    bell.call(called.append, 1)
    assert rings(bell)
    bell.answer()
    assert called == [1]


def test_a_loop_has_its_turn_between_many(bell):
    called = []
    for number in range(1000):
        bell.call(called.append, number)
    bell.answer()
    assert 0 < len(called) < 1000
    while rings(bell):
        bell.answer()
    assert called == list(range(1000))
