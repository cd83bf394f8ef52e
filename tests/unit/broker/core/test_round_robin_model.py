"""A round-robin topic under random actions of consumers, compared with a model of single messages."""

import asyncio
from collections import Counter

import uvloop
from hypothesis import given
from hypothesis import strategies as st

from omq.broker.core.round_robin import RoundRobinTopic
from tests.support.broker_core import RecordingSink, append, core, run_pending
from tests.support.hypothesis_profiles import examples

MAX_DELIVERIES = 4
SHARE = st.integers(0, 2)
RANGE = st.tuples(st.integers(1, 40), st.integers(0, 10)).map(lambda two: (two[0], two[0] + two[1]))
STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 8)),
    st.tuples(st.just("consume"), SHARE, st.integers(0, 6)),
    st.tuples(st.just("leave"), SHARE),
    st.tuples(st.just("ack"), SHARE, st.lists(RANGE, min_size=1, max_size=3)),
    st.tuples(st.just("nack"), SHARE, st.lists(RANGE, min_size=1, max_size=3)),
    st.tuples(st.just("progress"), SHARE, st.lists(RANGE, min_size=1, max_size=3)),
    st.tuples(st.just("give_back"), SHARE, st.lists(RANGE, min_size=1, max_size=3)),
    st.tuples(st.just("more"), SHARE, st.integers(1, 5)),
    st.tuples(st.just("full"), SHARE),
    st.tuples(st.just("overdue"), SHARE),
    st.tuples(st.just("settle_again"), RANGE),
    st.tuples(st.just("restart")),
)


class TopicModel:
    """The topic, its consumers, and the expected state of each message."""

    def __init__(self, broker, topic):
        self.broker = broker
        self.topic = topic
        self.consumers = {}
        self.held = {}  # what each consumer has, by consumer
        self.order = {}  # ids in the order of their delivery to it
        self.reached = {}  # how many of these it had begun with at least
        self.late = {}  # what it had until it was overdue, and did not acknowledge
        self.deliveries = Counter()
        self.done = set()
        self.looked = {}

    async def step(self, what, *arguments):
        await getattr(self, what)(*arguments)
        await run_pending(self.broker)
        self.look()

    async def append(self, count):
        await append(self.broker, self.topic, [b"x"] * count)

    async def consume(self, number, credit):
        if number not in self.consumers:
            sink = RecordingSink()
            self.consumers[number] = self.broker.consume(self.topic, sink, ack_timeout=1000, credit=credit), sink
            self.held[number], self.late[number], self.looked[number] = set(), set(), 0
            self.order[number], self.reached[number] = [], 0

    async def leave(self, number):
        if number in self.consumers:
            self.consumers.pop(number)[0].end()
            self.lose(number)
            self.held.pop(number)

    def lose(self, number):
        """Requeues the messages of a consumer. Those that it has reached, and the next one, count a delivery."""
        latest = {id: place for place, id in enumerate(self.order[number])}
        latest_ids = sorted(latest[id] for id in self.held[number])
        unseen = [place for place in latest_ids if place >= self.reached[number]][1:]
        self.deliveries.subtract(self.order[number][place] for place in unseen)

    def reach(self, number, ids):
        latest = {id: place for place, id in enumerate(self.order[number])}
        self.reached[number] = max([self.reached[number], *(latest[id] + 1 for id in ids)])

    async def ack(self, number, ranges):
        if number in self.consumers:
            mine = {id for id in self.held[number] if any(first <= id <= last for first, last in ranges)}
            late = {id for id in self.late[number] if any(first <= id <= last for first, last in ranges)}
            self.late[number] -= late
            mine_late = {id for id in late if self.waits(id)}
            self.consumers[number][0].ack(ranges)
            self.reach(number, mine)
            self.done |= mine | mine_late
            self.held[number] -= mine

    async def settle_again(self, ids):
        self.topic.work.ack_late(*ids)
        self.done |= {id for id in range(ids[0], ids[1] + 1) if self.waits(id)}

    def waits(self, id):
        """Returns whether a message waits to be delivered."""
        if id > self.topic.last or id in self.done or any(id in held for held in self.held.values()):
            return False
        return self.deliveries[id] < MAX_DELIVERIES

    async def nack(self, number, ranges):
        if number in self.consumers:
            mine = {id for id in self.held[number] if any(first <= id <= last for first, last in ranges)}
            self.reach(number, mine)
            self.held[number] -= mine
            self.consumers[number][0].nack(ranges)

    async def progress(self, number, ranges):
        if number in self.consumers:
            mine = {id for id in self.held[number] if any(first <= id <= last for first, last in ranges)}
            self.reach(number, mine)
            self.consumers[number][0].progress(ranges)

    async def give_back(self, number, ranges):
        if number in self.consumers:
            mine = {id for id in self.held[number] if any(first <= id <= last for first, last in ranges)}
            self.held[number] -= mine
            self.deliveries.subtract(mine)
            self.consumers[number][0].give_back(ranges)

    async def more(self, number, messages):
        if number in self.consumers:
            consumer, sink = self.consumers[number]
            sink.room_left = 1 << 30
            consumer.more(messages)

    async def full(self, number):
        if number in self.consumers:
            self.consumers[number][1].room_left = 0

    async def overdue(self, number):
        if number in self.consumers:
            consumer = self.consumers[number][0]
            consumer._deadlines.timeout = -1e9
            for piece in consumer.in_flight:
                piece.value = piece.value._replace(deadline=0.0)
            consumer._deadlines.rebuild(consumer.in_flight)
            if consumer._timer is not None:
                consumer._timer.cancel()
            consumer._expire()
            consumer._deadlines.timeout = 1000
            self.lose(number)
            self.late[number] |= self.held[number]
            self.held[number] = set()

    async def restart(self):
        flushed = []
        self.topic.flush(flushed.append)
        await run_pending(self.broker)
        assert flushed == [None]
        for number in tuple(self.consumers):
            await self.leave(number)
        await run_pending(self.broker)
        self.topic.flush(lambda error: None)
        await self.broker.store.drained()
        self.topic = RoundRobinTopic(self.topic.state(), self.broker.store, self.broker, self.broker)
        self.broker.topics["j"] = self.broker._by_id[self.topic.id] = self.topic

    def look(self):
        """Compares the new deliveries with the model."""
        for number, (consumer, sink) in self.consumers.items():
            new = list(zip(sink.ids, sink.counts, strict=True))[self.looked[number] :]
            self.looked[number] = len(sink.ids)
            for id, count in new:
                self.deliveries[id] += 1
                assert count == self.deliveries[id] <= MAX_DELIVERIES
                assert id not in self.done
                self.held[number].add(id)
                self.order[number].append(id)
            assert consumer.in_flight.count == len(self.held[number])
        everything = [id for held in self.held.values() for id in held]
        assert len(everything) == len(set(everything)), "a message is with two consumers"
        dead = {id for id, count in self.deliveries.items() if count == MAX_DELIVERIES and id not in everything}
        waiting = self.topic.last - len(self.done | dead) - len(everything)
        assert self.topic.backlog == waiting
        assert self.topic.unfinished == waiting + len(everything)
        if waiting:
            # Next to one that works, a consumer that hangs gets one message on trial, whatever credit it has.
            working = [pair for pair in self.consumers.values() if not pair[0].hangs] or self.consumers.values()
            assert not any(consumer.credit > 0 and sink.room_left for consumer, sink in working)


async def play(steps):
    async with core() as broker:
        topic = await broker.create(
            "j",
            delivery="round-robin",
            persistence="weak",
            settings={"max_deliveries": MAX_DELIVERIES, "retry_delay": 0},
        )
        model = TopicModel(broker, topic)
        for step in steps:
            await model.step(*step)
        # Whatever has happened: a consumer that does its work comes to the end.
        for number in tuple(model.consumers):
            await model.step("leave", number)
        await model.step("consume", 0, 1000)
        await model.step("ack", 0, [(1, 2**62)])
        flushed = []
        model.topic.flush(flushed.append)
        await run_pending(broker)
        await broker.store.drained()
        assert broker.store.store.ack_set(topic.id).floor == model.topic.last
        assert model.topic.backlog == 0


@examples(50)
@given(st.lists(STEP, min_size=5, max_size=40))
def test_every_message_is_with_one_consumer_until_it_is_done_or_dead(steps):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play(steps))
