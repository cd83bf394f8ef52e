"""Random changes of a work queue or a group on a disk that is full at times: no message is lost, and none is stuck."""

from __future__ import annotations

import asyncio
import random

import pytest

from omq._core import blocks
from omq.broker.errors import BrokerError
from omq.store.errors import OutOfSpace
from tests.support.broker_core import FailingStore, RecordingSink, core
from tests.support.optional_packages import require

STEPS = 100


class UnreliableStore(FailingStore):
    """A store that refuses a part of the writes, chosen at random."""

    def __init__(self, broker, chance):
        super().__init__(broker.store.store, None)
        self.refusing = 0.0
        self._chance = chance
        self._notify = broker.store._notify

    def submit_many(self, writes):
        refused = [write for write in writes if self._chance.random() < self.refusing]
        for write in refused:
            write.error, write.done = OutOfSpace("no space"), True
        if refused:
            self._notify(refused)
        if rest := [write for write in writes if write not in refused]:
            self.store.submit_many(rest)

    def write_at_once(self, writes, *, allow_wal=False):
        return not self.refusing and self.store.write_at_once(writes, allow_wal=allow_wal)


class Load:
    """Publishers and consumers of a topic, what the topic has accepted, and what is acknowledged."""

    def __init__(self, broker, topic, group, chance):
        self.published = {}  # bodies by id
        self.acked = set()
        self.consumers = []
        self.unanswered = 0
        self._broker, self._topic, self._group, self._chance = broker, topic, group, chance
        self._bodies = 0

    def publish(self):
        self._bodies += 1
        body = b"%d" % self._bodies
        self.unanswered += 1

        def done(first, error):
            self.unanswered -= 1
            if error is None:
                self.published[first] = body

        self._topic.append(blocks.encode([body]), 1, done)

    def join(self, credit):
        sink = RecordingSink()
        try:
            consumer = self._broker.consume(self._topic, sink, credit=credit, group=self._group)
        except BrokerError:
            return  # the topic or the group is being changed
        self.consumers.append((consumer, sink))

    def work(self, all_acked=False):
        """Acknowledges, returns or keeps what the consumers have."""
        for consumer, sink in list(self.consumers):
            while sink.got and consumer.active:
                id, _ = sink.got.pop(0)
                fate = 0 if all_acked else self._chance.random()
                if fate < 0.6:
                    consumer.ack([(id, id)])
                    self.acked.add(id)
                elif fate < 0.9:
                    consumer.nack([(id, id)], 0.0)
            if not consumer.active or (not all_acked and self._chance.random() < 0.1):
                consumer.end()
                self.consumers.remove((consumer, sink))


def dead_letters(broker):
    with broker.store.store.read(broker.topic("t.dead").id) as reader:
        return {one.body for block in reader.blocks(reader.first) for one in blocks.decode(*block, "t")}


SETTINGS = [
    {"max_deliveries": 2},
    {"max_deliveries": 3, "max_messages": 6, "overflow": "block"},
    {"max_messages": 6, "overflow": "reject"},
    {"max_messages": 6, "overflow": "drop-oldest"},
]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("on_disk", [False, True])
async def test_every_accepted_message_is_acknowledged_or_a_dead_letter(tmp_path, monkeypatch, on_disk, seed):
    if on_disk:
        require("lmdb")
    chance = random.Random(seed)
    group = None if seed % 3 else "g"
    settings = {"max_deliveries": 2} if group else SETTINGS[seed % 4]
    persistence = chance.choice(["weak", "async", "transient", "strong" if on_disk else "weak"])
    async with core(tmp_path if on_disk else None) as broker:
        monkeypatch.setattr(broker, "later", lambda seconds, call: broker.loop.call_later(min(seconds, 0.002), call))
        topic = await broker.create(
            "t",
            delivery="broadcast" if group else "round-robin",
            persistence=persistence,
            settings={"retry_delay": 0, **settings},
        )
        await broker.create("t.dead", persistence=chance.choice(["weak", "transient"]))
        if group:
            await topic.make_group(group, "earliest")
        store = broker.store.store = UnreliableStore(broker, chance)
        load = Load(broker, topic, group, chance)
        changes = []

        async def change():
            store.refusing = 1.0
            with pytest.raises(BrokerError, match="no space"):
                await (topic.seek_group(group, "earliest") if group else broker.delete("t"))

        for _ in range(STEPS):
            store.refusing = chance.choice([0.0, 0.0, 0.3, 1.0])
            step = chance.random()
            if step < 0.45:
                load.publish()
            elif step < 0.6:
                load.join(chance.choice([1, 5, 20]))
            elif step < 0.85:
                load.work()
            elif step < 0.9:
                changes.append(asyncio.ensure_future(topic.flushed()))
            elif not (group and topic.readers):
                await change()
            for _ in range(chance.randrange(5)):
                await asyncio.sleep(0)
        store.refusing = 0.0
        for consumer, _ in load.consumers:
            consumer.end()
        load.consumers.clear()
        queue = topic.groups[group] if group else topic.work
        while load.unanswered or queue.unfinished(topic.last) or not all(one.done() for one in changes):
            if not load.consumers:
                load.join(1000)
            load.work(all_acked=True)
            await asyncio.sleep(0.001)
        await asyncio.gather(*changes, return_exceptions=True)
        last = topic.state().last
        while store.ack_set(topic.id, group or "").floor < last:
            await topic.flushed()
            await asyncio.sleep(0.001)
        left = {body for id, body in load.published.items() if id not in load.acked}
        assert left <= dead_letters(broker)
        assert broker.store.waiting == broker.held.used == 0
