"""A round-robin topic under whatever consumers do, against a model of single messages."""

import asyncio
from collections import Counter

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from omq.broker.core.round_robin import RoundRobinTopic
from tests.unit.broker.core.cores import Taker, append, core, quiet

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


class World:
    """The topic, its consumers, and what each message must be."""

    def __init__(self, broker, topic):
        self.broker = broker
        self.topic = topic
        self.shares = {}
        self.held = {}  # what each consumer has, by share
        self.order = {}  # ids in the order of their delivery to it
        self.reached = {}  # how many of these it had begun with at least
        self.late = {}  # what it had until it was overdue, and did not acknowledge
        self.deliveries = Counter()
        self.done = set()
        self.looked = {}

    async def step(self, what, *arguments):
        await getattr(self, what)(*arguments)
        await quiet(self.broker)
        self.look()

    async def append(self, count):
        await append(self.broker, self.topic, [b"x"] * count)

    async def consume(self, number, credit):
        if number not in self.shares:
            taker = Taker()
            self.shares[number] = self.broker.consume(self.topic, taker, ack_timeout=1000, credit=credit), taker
            self.held[number], self.late[number], self.looked[number] = set(), set(), 0
            self.order[number], self.reached[number] = [], 0

    async def leave(self, number):
        if number in self.shares:
            self.shares.pop(number)[0].end()
            self.lose(number)
            self.held.pop(number)

    def lose(self, number):
        """Messages of a consumer come back: it had begun with all that it has reached, and the next one."""
        latest = {id: place for place, id in enumerate(self.order[number])}
        places = sorted(latest[id] for id in self.held[number])
        unseen = [place for place in places if place >= self.reached[number]][1:]
        self.deliveries.subtract(self.order[number][place] for place in unseen)

    def reach(self, number, ids):
        latest = {id: place for place, id in enumerate(self.order[number])}
        self.reached[number] = max([self.reached[number], *(latest[id] + 1 for id in ids)])

    async def ack(self, number, ranges):
        if number in self.shares:
            mine = {id for id in self.held[number] if any(first <= id <= last for first, last in ranges)}
            late = {id for id in self.late[number] if any(first <= id <= last for first, last in ranges)}
            self.late[number] -= late
            mine_late = {id for id in late if self.waits(id)}
            self.shares[number][0].ack(ranges)
            self.reach(number, mine)
            self.done |= mine | mine_late
            self.held[number] -= mine

    async def settle_again(self, ids):
        self.topic.ack_late(*ids)
        self.done |= {id for id in range(ids[0], ids[1] + 1) if self.waits(id)}

    def waits(self, id):
        """Whether a message waits to be delivered, for the first time or again."""
        if id > self.topic.last or id in self.done or any(id in held for held in self.held.values()):
            return False
        return self.deliveries[id] < MAX_DELIVERIES

    async def nack(self, number, ranges):
        if number in self.shares:
            mine = {id for id in self.held[number] if any(first <= id <= last for first, last in ranges)}
            self.reach(number, mine)
            self.held[number] -= mine
            self.shares[number][0].nack(ranges)

    async def progress(self, number, ranges):
        if number in self.shares:
            mine = {id for id in self.held[number] if any(first <= id <= last for first, last in ranges)}
            self.reach(number, mine)
            self.shares[number][0].progress(ranges)

    async def give_back(self, number, ranges):
        if number in self.shares:
            mine = {id for id in self.held[number] if any(first <= id <= last for first, last in ranges)}
            self.held[number] -= mine
            self.deliveries.subtract(mine)
            self.shares[number][0].give_back(ranges)

    async def more(self, number, messages):
        if number in self.shares:
            share, taker = self.shares[number]
            taker.room_left = 1 << 30
            share.more(messages)

    async def full(self, number):
        if number in self.shares:
            self.shares[number][1].room_left = 0

    async def overdue(self, number):
        if number in self.shares:
            share = self.shares[number][0]
            share._deadlines.timeout = -1e9
            for piece in share.flight:
                piece.value = piece.value._replace(deadline=0.0)
            share._deadlines.rebuild(share.flight)
            if share._timer is not None:
                share._timer.cancel()
            share._expire()
            share._deadlines.timeout = 1000
            self.lose(number)
            self.late[number] |= self.held[number]
            self.held[number] = set()

    async def restart(self):
        told = []
        self.topic.flush(told.append)
        await quiet(self.broker)
        assert told == [None]
        for number in tuple(self.shares):
            await self.leave(number)
        await quiet(self.broker)
        self.topic.flush(lambda error: None)
        await self.broker.store.drained()
        self.topic = RoundRobinTopic(self.topic.state(), self.broker.store, self.broker, self.broker)
        self.broker.topics["j"] = self.broker._by_id[self.topic.id] = self.topic

    def look(self):
        """Takes down what has come, and holds it against the model."""
        for number, (share, taker) in self.shares.items():
            new = list(zip(taker.ids, taker.counts, strict=True))[self.looked[number] :]
            self.looked[number] = len(taker.ids)
            for id, count in new:
                self.deliveries[id] += 1
                assert count == self.deliveries[id] <= MAX_DELIVERIES
                assert id not in self.done
                self.held[number].add(id)
                self.order[number].append(id)
            assert share.flight.count == len(self.held[number])
        everything = [id for held in self.held.values() for id in held]
        assert len(everything) == len(set(everything)), "a message is with two consumers"
        dead = {id for id, count in self.deliveries.items() if count == MAX_DELIVERIES and id not in everything}
        waiting = self.topic.last - len(self.done | dead) - len(everything)
        assert self.topic.backlog == waiting
        assert self.topic.unfinished == waiting + len(everything)
        if waiting:
            assert not any(share.credit > 0 and taker.room_left for share, taker in self.shares.values())


async def play(steps):
    async with core() as broker:
        topic = await broker.create(
            "j",
            delivery="round-robin",
            persistence="weak",
            settings={"max_deliveries": MAX_DELIVERIES, "retry_delay": 0},
        )
        world = World(broker, topic)
        for step in steps:
            await world.step(*step)
        # Whatever has happened: a consumer that does its work comes to the end.
        for number in tuple(world.shares):
            await world.step("leave", number)
        await world.step("consume", 0, 1000)
        await world.step("ack", 0, [(1, 2**62)])
        told = []
        world.topic.flush(told.append)
        await quiet(broker)
        await broker.store.drained()
        assert broker.store.store.settled(topic.id).watermark == world.topic.last
        assert world.topic.backlog == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(STEP, min_size=5, max_size=40))
def test_every_message_is_with_one_consumer_until_it_is_done_or_dead(steps):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play(steps))
