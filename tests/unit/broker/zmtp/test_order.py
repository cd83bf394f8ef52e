"""What a busy broker refuses is not overtaken by what the same producer sent behind it."""

from __future__ import annotations

import pytest

from omq.broker.errors import Busy
from omq.broker.zmtp.session import BusyRetryOrder


def full(size: int) -> None:
    raise Busy("no room")


def room(size: int) -> None:
    pass


def refuse(order: BusyRetryOrder, *sequences: int, producer: bytes = b"p") -> None:
    for sequence in sequences:
        with pytest.raises(Busy):
            order.admit(full, 1, producer, sequence, 1)


def test_what_was_sent_behind_a_refused_one_is_refused_until_that_comes_again():
    order = BusyRetryOrder()
    order.admit(room, 1, b"p", 1, 1)
    refuse(order, 2)
    for sequence in (3, 4):
        with pytest.raises(Busy, match="earlier"):
            order.admit(room, 1, b"p", sequence, 1)
    for late in (2, 3, 4, 5):
        with pytest.raises(Busy, match="earlier"):
            order.admit(room, 1, b"p", late + 1, 1)
        order.admit(room, 1, b"p", late, 1)


def test_one_that_is_refused_again_is_still_waited_for():
    order = BusyRetryOrder()
    refuse(order, 1, 2, 1)
    with pytest.raises(Busy, match="earlier"):
        order.admit(room, 1, b"p", 2, 1)
    order.admit(room, 1, b"p", 1, 1)
    order.admit(room, 1, b"p", 2, 1)


def test_what_is_settled_is_not_waited_for():
    order = BusyRetryOrder()
    refuse(order, 1, 2)
    order.admit(room, 1, b"p", 3, 3)
    order.admit(room, 1, b"p", 4, 3)


def test_other_producers_are_not_held_up():
    order = BusyRetryOrder()
    refuse(order, 1)
    order.admit(room, 1, b"q", 2, 1)


def test_what_is_kept_in_mind_is_bounded():
    order = BusyRetryOrder()
    for number in range(200):
        refuse(order, 1, producer=b"%d" % number)
    refuse(order, *range(1, 3000))
    assert sum(map(len, order._refused.values())) <= 64 * 1024
    assert len(order._refused) <= 64
