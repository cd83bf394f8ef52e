"""Work queues: what is finished elsewhere, what does not fit, several queues, and consumers that hang."""

from __future__ import annotations

import asyncio
import random

import pytest

from omq.workqueue.queue import WorkQueue
from tests.unit.workqueue.memory_queues import Taker, world


async def settled(queue: WorkQueue, store: object) -> list[tuple[int, int]]:
    return list(store.store.settled(queue.id).missing(1, queue.readable))  # type: ignore[attr-defined]


async def test_messages_finished_elsewhere_are_not_delivered():
    async with world() as here:
        owner, queue = here.owners[0], here.queue
        await owner.publish(*[b"x"] * 6)
        queue.finish_elsewhere(2, 3)
        one = Taker(here.dispatcher)
        here.pump()
        assert one.ids == [1, 4, 5, 6]
        assert owner.finished_ids == [2, 3]
        queue.finish_elsewhere(5, 5)  # in flight
        one.nack([(4, 5)])
        here.pump()
        assert one.ids == [1, 4, 5, 6, 4], "5 is not delivered again"
        one.end()
        queue.finish_elsewhere(4, 4)  # it came back
        two = Taker(here.dispatcher)
        here.pump()
        assert two.got == [(0, 1, 2), (0, 6, 2)]
        two.ack([(1, 6)])
        await owner.save()
        assert await settled(queue, here.store) == []
        assert not queue._finished_in_flight


@pytest.mark.parametrize("seed", range(20))
async def test_every_message_is_finished_once_wherever_it_is_finished(seed):
    chance = random.Random(seed)
    async with world() as here:
        owner, queue = here.owners[0], here.queue
        takers = [Taker(here.dispatcher, 8, in_order=chance.random() < 0.5) for _ in range(3)]
        open_ids: set[int] = set()
        for _ in range(60):
            if chance.random() < 0.5:
                before = queue.readable
                await owner.publish(*[b"x"] * chance.randrange(1, 5))
                open_ids.update(range(before + 1, queue.readable + 1))
            here.pump()
            taker = chance.choice(takers)
            mine = [id for piece in taker.in_flight for id in range(piece.first, piece.last + 1)]
            if mine and chance.random() < 0.7:
                id = chance.choice(mine)
                if chance.random() < 0.6:
                    assert taker.ack([(id, id)]) == 1
                    open_ids.discard(id)
                else:
                    assert taker.nack([(id, id)]) == 1
            elif open_ids:
                id = chance.choice(sorted(open_ids))
                queue.finish_elsewhere(id, id)
                open_ids.discard(id)
            assert not (open_ids & set(owner.finished_ids))
        for taker in takers:
            taker.end()
        last = Taker(here.dispatcher, 1000)
        here.pump()
        assert set(last.ids) == open_ids
        last.ack([(1, queue.readable)])
        await owner.save()
        assert await settled(queue, here.store) == []


async def test_messages_finished_elsewhere_before_they_can_be_read_are_not_delivered():
    async with world() as here:
        here.queue.finish_elsewhere(1, 2)
        one = Taker(here.dispatcher)
        await here.owners[0].publish(*[b"x"] * 3)
        here.pump()
        assert one.ids == [3]
        one.ack([(3, 3)])
        await here.owners[0].save()
        assert await settled(here.queue, here.store) == []


async def test_what_does_not_fit_is_delivered_next_in_its_order():
    async with world() as here:
        await here.owners[0].publish(*[b"x"] * 5)
        one = Taker(here.dispatcher)
        one.limit = 2
        assert not here.pump()
        assert one.ids == [1, 2]
        one.limit = 0
        assert not here.pump()
        assert one.in_flight.count == 2
        one.limit = 10
        here.pump()
        assert one.got == [(0, id, 1) for id in range(1, 6)]


async def test_a_consumer_that_fails_gives_back_what_it_had_and_others_get_it():
    async with world() as here:
        await here.owners[0].publish(b"a", b"poison")
        one, two = Taker(here.dispatcher), Taker(here.dispatcher)
        here.pump()
        assert [type(error) for taker in (one, two) for error in taker.errors] == [RuntimeError, RuntimeError]
        assert (here.queue.waiting, here.dispatcher.in_flight) == (2, 0)


async def test_consumers_have_messages_of_several_queues():
    async with world(2) as here:
        for owner in here.owners:
            await owner.publish(b"a", b"b")
        one = Taker(here.dispatcher, 3)
        here.pump()
        assert one.got == [(0, 1, 1), (0, 2, 1), (1, 1, 1)]
        second = here.owners[1].queue.base
        assert one.ack([(2, 2), (second + 1, second + 1)]) == 2
        assert [owner.finished_ids for owner in here.owners] == [[2], [1]]
        one.end()
        two = Taker(here.dispatcher)
        here.pump()
        assert two.got == [(0, 1, 2), (1, 2, 1)]


@pytest.mark.parametrize(("in_order", "tries"), [(True, [2, 1, 1]), (False, [2, 2, 2])])
async def test_what_comes_back_counts_as_attempted_where_order_says_nothing(in_order, tries):
    async with world() as here:
        await here.owners[0].publish(b"a", b"b", b"c")
        one = Taker(here.dispatcher, in_order=in_order)
        here.pump()
        one.end()
        two = Taker(here.dispatcher)
        here.pump()
        assert [one[2] for one in two.got] == tries


async def test_messages_out_of_order_have_their_own_deadline():
    async with world() as here:
        await here.owners[0].publish(b"a", b"b")
        one = Taker(here.dispatcher, timeout=0.2, in_order=False)
        here.pump()
        while 1 not in here.owners[0].finished_ids:
            await asyncio.sleep(0.1)
            one.ack([(1, 1)])  # a sign of life, which does not help the other one
        async with asyncio.timeout(10):
            while here.queue.waiting == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert one.ack([(2, 2)]) == 1, "late, and no other consumer has it"
        assert here.queue.waiting == 0


async def test_a_consumer_that_hangs_is_tried_with_one_message():
    async with world() as here:
        await here.owners[0].publish(b"a")
        one = Taker(here.dispatcher, timeout=0.05)
        here.pump()
        async with asyncio.timeout(10):
            while not one.hangs:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        one.backoff_until = 0.0  # its backoff is over
        two = Taker(here.dispatcher, 0)
        await here.owners[0].publish(*[b"x"] * 9)
        here.pump()
        assert one.in_flight.count == 1
        two.more(100)
        here.pump()
        assert (one.in_flight.count, two.in_flight.count) == (1, 9)


async def test_who_finds_no_room_keeps_its_turn():
    async with world() as here:
        takers = [Taker(here.dispatcher) for _ in range(2)]
        for _ in range(6):
            await here.owners[0].publish(b"x")  # a block of its own

        def share_room() -> None:
            for taker in takers:
                taker.limit = 0 if any(one.in_flight for one in takers) else 1

        for taker in takers:
            send = taker.send
            taker.send = lambda *block, send=send: (send(*block), share_room())  # type: ignore[method-assign]
        for _ in range(6):
            share_room()
            assert not here.pump() or here.queue.ready
            holder = next(one for one in takers if one.in_flight)
            holder.ack([(holder.last, holder.last)])
        assert [taker.ids for taker in takers] == [[1, 3, 5], [2, 4, 6]]


async def test_no_room_spends_no_trial():
    async with world() as here:
        one, two = Taker(here.dispatcher, timeout=0.05), Taker(here.dispatcher, 0)
        await here.owners[0].publish(b"a")
        here.pump()
        async with asyncio.timeout(10):
            while not one.hangs:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        one.backoff_until = 0.0  # its backoff is over
        two.more(100)
        one.limit = two.limit = 0
        here.pump()
        assert (one.backoff_until, one.in_flight.count, two.in_flight.count) == (0.0, 0, 0)


async def test_a_deadline_soon_after_a_sign_withholds_no_credit_for_ever():
    async with world() as here:
        await here.owners[0].publish(b"a")
        one = Taker(here.dispatcher, 1, timeout=0.2)
        here.pump()
        await asyncio.sleep(0.1)
        one.ack([(9, 9)])  # what it does not have: it lives
        async with asyncio.timeout(10):
            while one.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            here.pump()
            assert not one.in_flight
            while not one.in_flight:
                await asyncio.sleep(0.01)
                here.pump()
        assert one.got == [(0, 1, 1), (0, 1, 2)]


async def test_dead_letters_are_limited_for_what_waits_already():
    async with world() as here:
        owner = here.owners[0]
        await owner.publish(b"a", b"b")
        one = Taker(here.dispatcher)
        here.pump()
        one.nack([(1, 1)])
        here.queue.limit_tries(1)
        async with asyncio.timeout(10):
            while owner.dead != [1]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert owner.finished_ids == [1]
