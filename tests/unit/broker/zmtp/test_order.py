"""A producer's later appends do not overtake one that was refused as busy."""

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


def test_appends_after_a_refused_one_are_refused_until_it_is_repeated():
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


def test_an_append_that_is_refused_again_still_blocks_later_ones():
    order = BusyRetryOrder()
    refuse(order, 1, 2, 1)
    with pytest.raises(Busy, match="earlier"):
        order.admit(room, 1, b"p", 2, 1)
    order.admit(room, 1, b"p", 1, 1)
    order.admit(room, 1, b"p", 2, 1)


def test_appends_that_were_given_up_do_not_block_later_ones():
    order = BusyRetryOrder()
    refuse(order, 1, 2)
    order.admit(room, 1, b"p", 3, 3)
    order.admit(room, 1, b"p", 4, 3)


def test_other_producers_are_not_blocked():
    order = BusyRetryOrder()
    refuse(order, 1)
    order.admit(room, 1, b"q", 2, 1)


def test_refused_sequences_are_bounded():
    order = BusyRetryOrder()
    for number in range(200):
        refuse(order, 1, producer=b"%d" % number)
    refuse(order, *range(1, 3000))
    assert sum(map(len, order._refused.values())) <= 64 * 1024
    assert len(order._refused) <= 64
