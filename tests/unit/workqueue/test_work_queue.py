"""Work queues: acks from elsewhere, consumers without room, several queues, and consumers that hang."""

from __future__ import annotations

import asyncio
import random

import pytest

from omq.workqueue.queue import WorkQueue
from tests.support.async_waits import until
from tests.unit.workqueue.memory_queues import RecordingConsumer, work_queues


async def settled(queue: WorkQueue, store: object) -> list[tuple[int, int]]:
    return list(store.store.ack_set(queue.id).missing(1, queue.readable))  # type: ignore[attr-defined]


async def test_messages_finished_elsewhere_are_not_delivered():
    async with work_queues() as here:
        owner, queue = here.owners[0], here.queue
        await owner.publish(*[b"x"] * 6)
        queue.finish_elsewhere(2, 3)
        one = RecordingConsumer(here.dispatcher)
        here.pump()
        assert one.ids == [1, 4, 5, 6]
        assert owner.finished_ids == [2, 3]
        queue.finish_elsewhere(5, 5)  # in flight
        one.nack([(4, 5)])
        here.pump()
        assert one.ids == [1, 4, 5, 6, 4], "5 is not delivered again"
        one.end()
        queue.finish_elsewhere(4, 4)  # waiting for redelivery
        two = RecordingConsumer(here.dispatcher)
        here.pump()
        assert two.got == [(0, 1, 2), (0, 6, 2)]
        two.ack([(1, 6)])
        await owner.save()
        assert await settled(queue, here.store) == []
        assert not queue._finished_in_flight


@pytest.mark.parametrize("seed", range(20))
async def test_every_message_is_finished_once_here_or_elsewhere(seed):
    chance = random.Random(seed)
    async with work_queues() as here:
        owner, queue = here.owners[0], here.queue
        consumers = [RecordingConsumer(here.dispatcher, 8, in_order=chance.random() < 0.5) for _ in range(3)]
        open_ids: set[int] = set()
        for _ in range(60):
            if chance.random() < 0.5:
                before = queue.readable
                await owner.publish(*[b"x"] * chance.randrange(1, 5))
                open_ids.update(range(before + 1, queue.readable + 1))
            here.pump()
            consumer = chance.choice(consumers)
            mine = [id for piece in consumer.in_flight for id in range(piece.first, piece.last + 1)]
            if mine and chance.random() < 0.7:
                id = chance.choice(mine)
                if chance.random() < 0.6:
                    assert consumer.ack([(id, id)]) == 1
                    open_ids.discard(id)
                else:
                    assert consumer.nack([(id, id)]) == 1
            elif open_ids:
                id = chance.choice(sorted(open_ids))
                queue.finish_elsewhere(id, id)
                open_ids.discard(id)
            assert not (open_ids & set(owner.finished_ids))
        for consumer in consumers:
            consumer.end()
        last = RecordingConsumer(here.dispatcher, 1000)
        here.pump()
        assert set(last.ids) == open_ids
        last.ack([(1, queue.readable)])
        await owner.save()
        assert await settled(queue, here.store) == []


async def test_messages_finished_elsewhere_before_they_can_be_read_are_not_delivered():
    async with work_queues() as here:
        here.queue.finish_elsewhere(1, 2)
        one = RecordingConsumer(here.dispatcher)
        await here.owners[0].publish(*[b"x"] * 3)
        here.pump()
        assert one.ids == [3]
        one.ack([(3, 3)])
        await here.owners[0].save()
        assert await settled(here.queue, here.store) == []


async def test_messages_that_do_not_fit_are_delivered_next_in_order():
    async with work_queues() as here:
        await here.owners[0].publish(*[b"x"] * 5)
        one = RecordingConsumer(here.dispatcher)
        one.limit = 2
        assert not here.pump()
        assert one.ids == [1, 2]
        one.limit = 0
        assert not here.pump()
        assert one.in_flight.count == 2
        one.limit = 10
        here.pump()
        assert one.got == [(0, id, 1) for id in range(1, 6)]


async def test_messages_of_a_failed_consumer_go_to_others():
    async with work_queues() as here:
        await here.owners[0].publish(b"a", b"poison")
        one, two = RecordingConsumer(here.dispatcher), RecordingConsumer(here.dispatcher)
        here.pump()
        assert [type(error) for consumer in (one, two) for error in consumer.errors] == [RuntimeError, RuntimeError]
        assert (here.queue.waiting, here.dispatcher.in_flight) == (2, 0)


async def test_consumers_get_messages_of_several_queues():
    async with work_queues(2) as here:
        for owner in here.owners:
            await owner.publish(b"a", b"b")
        one = RecordingConsumer(here.dispatcher, 3)
        here.pump()
        assert one.got == [(0, 1, 1), (0, 2, 1), (1, 1, 1)]
        second = here.owners[1].queue.base
        assert one.ack([(2, 2), (second + 1, second + 1)]) == 2
        assert [owner.finished_ids for owner in here.owners] == [[2], [1]]
        one.end()
        two = RecordingConsumer(here.dispatcher)
        here.pump()
        assert two.got == [(0, 1, 2), (1, 2, 1)]


@pytest.mark.parametrize(("in_order", "tries"), [(True, [2, 1, 1]), (False, [2, 2, 2])])
async def test_returned_messages_count_as_attempted_unless_the_consumer_works_in_order(in_order, tries):
    async with work_queues() as here:
        await here.owners[0].publish(b"a", b"b", b"c")
        one = RecordingConsumer(here.dispatcher, in_order=in_order)
        here.pump()
        one.end()
        two = RecordingConsumer(here.dispatcher)
        here.pump()
        assert [one[2] for one in two.got] == tries


async def test_messages_out_of_order_have_their_own_deadline():
    async with work_queues() as here:
        await here.owners[0].publish(b"a", b"b")
        one = RecordingConsumer(here.dispatcher, timeout=0.2, in_order=False)
        here.pump()
        while 1 not in here.owners[0].finished_ids:
            await asyncio.sleep(0.1)
            one.ack([(1, 1)])  # progress, which does not extend the deadline of the other one
        await until(lambda: here.queue.waiting)
        assert one.ack([(2, 2)]) == 1, "late, and no other consumer has it"
        assert here.queue.waiting == 0


async def test_a_consumer_that_hangs_is_tried_with_one_message():
    async with work_queues() as here:
        await here.owners[0].publish(b"a")
        one = RecordingConsumer(here.dispatcher, timeout=0.05)
        here.pump()
        await until(lambda: one.hangs)
        one.backoff_until = 0.0  # its backoff is over
        two = RecordingConsumer(here.dispatcher, 0)
        await here.owners[0].publish(*[b"x"] * 9)
        here.pump()
        assert one.in_flight.count == 1
        two.more(100)
        here.pump()
        assert (one.in_flight.count, two.in_flight.count) == (1, 9)


async def test_a_consumer_without_room_keeps_its_turn():
    async with work_queues() as here:
        consumers = [RecordingConsumer(here.dispatcher) for _ in range(2)]
        for _ in range(6):
            await here.owners[0].publish(b"x")  # in a separate block

        def share_room() -> None:
            for consumer in consumers:
                consumer.limit = 0 if any(one.in_flight for one in consumers) else 1

        for consumer in consumers:
            send = consumer.send
            consumer.send = lambda *block, send=send: (send(*block), share_room())  # type: ignore[method-assign]
        for _ in range(6):
            share_room()
            assert not here.pump() or here.queue.ready
            holder = next(one for one in consumers if one.in_flight)
            holder.ack([(holder.last, holder.last)])
        assert [consumer.ids for consumer in consumers] == [[1, 3, 5], [2, 4, 6]]


async def test_a_consumer_without_room_keeps_its_trial():
    async with work_queues() as here:
        one, two = RecordingConsumer(here.dispatcher, timeout=0.05), RecordingConsumer(here.dispatcher, 0)
        await here.owners[0].publish(b"a")
        here.pump()
        await until(lambda: one.hangs)
        one.backoff_until = 0.0  # its backoff is over
        two.more(100)
        one.limit = two.limit = 0
        here.pump()
        assert (one.backoff_until, one.in_flight.count, two.in_flight.count) == (0.0, 0, 0)


async def test_a_deadline_soon_after_progress_does_not_withhold_credit_forever():
    async with work_queues() as here:
        await here.owners[0].publish(b"a")
        one = RecordingConsumer(here.dispatcher, 1, timeout=0.2)
        here.pump()
        await asyncio.sleep(0.1)
        one.ack([(9, 9)])  # not in flight, but a sign of progress
        async with asyncio.timeout(10):
            while one.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            here.pump()
            assert not one.in_flight
            while not one.in_flight:
                await asyncio.sleep(0.01)
                here.pump()
        assert one.got == [(0, 1, 1), (0, 1, 2)]


async def test_max_tries_applies_to_waiting_messages():
    async with work_queues() as here:
        owner = here.owners[0]
        await owner.publish(b"a", b"b")
        one = RecordingConsumer(here.dispatcher)
        here.pump()
        one.nack([(1, 1)])
        here.queue.limit_tries(1)
        await until(lambda: owner.dead == [1])
        assert owner.finished_ids == [1]
        assert owner.letters == [(1, "max-deliveries")]


async def test_max_tries_applies_to_messages_that_wait_for_their_retry_delay():
    async with work_queues() as here:
        owner = here.owners[0]
        await owner.publish(b"a", b"b", b"c")
        one = RecordingConsumer(here.dispatcher)
        here.pump()
        one.nack([(1, 2)], 3600.0)
        here.queue.limit_tries(2)
        assert here.queue.waiting == 2
        here.queue.limit_tries(1)
        assert here.queue.waiting == 0
        await until(lambda: owner.dead == [1, 2])


async def test_a_dead_letter_keeps_its_reason_when_its_move_fails():
    async with work_queues() as here:
        owner = here.owners[0]
        await owner.publish(b"a", b"b", b"c")
        one = RecordingConsumer(here.dispatcher, 1)
        here.pump()
        one.nack([(1, 1)])
        target, owner.dead_letters = owner.dead_letters, 10**6
        assert here.queue.drop_oldest(2) == 2
        await until(lambda: len(owner.letters) == 2 and here.queue._dead_letter_task is None)
        owner.dead_letters = target
        here.queue._start_dead_letter_task()
        await until(lambda: sorted(owner.dead) == [1, 2])
        assert owner.letters == [(1, "overflow"), (0, "overflow")] * 2


async def test_a_purge_finishes_what_waits():
    async with work_queues() as here:
        owner = here.owners[0]
        await owner.publish(*(b"%d" % number for number in range(1, 9)))
        one = RecordingConsumer(here.dispatcher, 4)
        here.pump()
        one.ack([(3, 3)])
        one.nack([(2, 2)])
        here.queue.finish_ahead(6, 6)
        assert here.queue.purge(0) == 0
        assert here.queue.purge(1) == 0, "it is in flight"
        assert here.queue.purge(7) == 3  # 2, 5 and 7
        assert here.queue.waiting == 1
        assert here.queue.purge(10**9) == 1
        assert here.queue.waiting == 0
        assert sorted(owner.finished_ids) == [2, 3, 5, 6, 7, 8]
        await owner.save()
        acks = here.store.store.ack_set(here.queue.id)
        assert [id for id in range(1, 9) if id not in acks] == [1, 4]
        here.pump()
        assert one.ids == [1, 2, 3, 4]
