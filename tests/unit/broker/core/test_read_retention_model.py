"""`retention="read"` under random readers, acks, deletions and moves: nothing that a reader needs is dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from omq.broker.core.broadcast import BroadcastTopic
from tests.support.broker_core import RecordingSink, append, core, run_pending

NAME = st.sampled_from("abc")
REPLAY = st.sampled_from(["earliest", "latest"]) | st.integers(0, 30)
STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("subscribe"), NAME, REPLAY),
    st.tuples(st.just("move"), NAME, st.integers(0, 60)),
    st.tuples(st.just("close"), NAME),
    st.tuples(st.just("delete"), NAME),
    st.tuples(st.just("join"), NAME, REPLAY),
    st.tuples(st.just("ack"), NAME, st.integers(1, 60), st.integers(0, 9)),
    st.tuples(st.just("leave"), NAME),
    st.tuples(st.just("seek"), NAME, REPLAY),
    st.tuples(st.just("delete group"), NAME),
    st.tuples(st.just("toggle")),
)


class Play:
    """A topic with its readers, and what they have acknowledged.

    Attributes:
        cursors: The cursor of each durable subscription.
        acked: The acknowledged ids of each group.
        first: The oldest id that the topic may not drop.
    """

    def __init__(self, broker: Any, topic: BroadcastTopic) -> None:
        self.broker, self.topic = broker, topic
        self.sinks: list[RecordingSink] = []
        self.open: dict[str, Any] = {}
        self.members: dict[str, Any] = {}
        self.cursors: dict[str, int] = {}
        self.acked: dict[str, set[int]] = {}
        self.first = 1
        self.on = True

    def floor(self) -> int:
        """Returns the lowest cursor or ack floor; -1 without readers."""
        floors = [next(id for id in range(1, 10_000) if id not in acked) - 1 for acked in self.acked.values()]
        return min([*self.cursors.values(), *floors], default=-1)

    def start(self, replay: str | int) -> str | int:
        """Returns a replay that the topic still has."""
        return max(min(replay, self.topic.last), self.first - 1) if isinstance(replay, int) else replay

    def position(self, replay: str | int) -> int:
        """Returns the position of a replay."""
        if isinstance(replay, int):
            return replay
        return self.topic.last if replay == "latest" else self.first - 1

    def sink(self) -> RecordingSink:
        self.sinks.append(RecordingSink())
        return self.sinks[-1]

    async def step(self, what: str, name: str = "", *arguments: Any) -> None:
        topic, last = self.topic, self.topic.last
        if what == "append":
            await append(self.broker, topic, [b"x"] * int(name))
        elif what == "toggle":
            self.on = not self.on
            await self.broker.alter("t", {"retention": "read" if self.on else None}, force=True)
        elif what == "subscribe" and name not in self.open:
            replay = self.start(arguments[0])
            self.cursors.setdefault(name, self.position(replay))
            self.open[name] = self.broker.subscribe(topic, replay, self.sink(), name=name)
        elif what == "move" and name in self.open:
            position = min(arguments[0], last)
            if self.on:
                position = max(position, self.cursors[name])
            self.open[name].move(max(position, self.first - 1))
            self.cursors[name] = max(position, self.first - 1)
        elif what == "close" and name in self.open:
            self.open.pop(name).end()
        elif what == "delete" and name in self.cursors and name not in self.open:
            await topic.delete_durable(name)
            del self.cursors[name]
        elif what == "join" and name not in self.members:
            replay = self.start(arguments[0])
            if name not in self.acked:
                self.acked[name] = set(range(1, self.position(replay) + 1))
            await topic.make_group(name, replay)
            self.members[name] = self.broker.consume(topic, self.sink(), group=name, credit=10_000)
        elif what == "ack" and name in self.members:
            await run_pending(self.broker)
            first, more = arguments
            self.members[name].ack([(first, first + more)])
            self.acked[name] |= set(range(first, min(first + more, last) + 1))
        elif what == "leave" and name in self.members:
            self.members.pop(name).end()
        elif what == "seek" and name in self.acked and name not in self.members:
            replay = self.start(arguments[0])
            self.acked[name] = set(range(1, self.position(replay) + 1))
            await topic.seek_group(name, replay)
        elif what == "delete group" and name in self.acked and name not in self.members:
            await topic.delete_group(name)
            del self.acked[name]

    async def check(self) -> None:
        await run_pending(self.broker)
        if self.on:
            self.first = max(self.first, self.floor() + 1)
        assert self.topic.state().first == self.first
        assert {one["name"]: one["position"] for one in self.topic.durables()} == self.cursors
        lags = {
            name: sum(id not in acked for id in range(self.first, self.topic.last + 1))
            for name, acked in self.acked.items()
        }
        assert {one["name"]: one["lag"] for one in self.topic.group_stats()} == lags
        assert not any(sink.errors for sink in self.sinks)

    async def finish(self) -> None:
        """Lets all readers get what they have not acknowledged."""
        for member in self.members.values():
            member.end()
        for one in self.open.values():
            one.end()
        for name, acked in self.acked.items():
            sink = self.sink()
            self.broker.consume(self.topic, sink, group=name, credit=10_000)
            await run_pending(self.broker)
            assert sink.ids == [id for id in range(1, self.topic.last + 1) if id not in acked], name
        for name, cursor in self.cursors.items():
            sink = self.sink()
            self.broker.subscribe(self.topic, "latest", sink, name=name)
            await run_pending(self.broker)
            assert sink.ids == list(range(cursor + 1, self.topic.last + 1)), name


async def play(steps: list[tuple[Any, ...]], persistence: str) -> None:
    async with core() as broker:
        topic = await broker.create("t", persistence=persistence, settings={"retention": "read"})
        assert isinstance(topic, BroadcastTopic)
        one = Play(broker, topic)
        for step in [("append", 5), *steps]:
            await one.step(*step)
            await one.check()
        await one.finish()


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=5, max_size=40), st.sampled_from(["transient", "weak"]))
def test_messages_are_dropped_when_all_readers_have_them_and_not_before(
    steps: list[tuple[Any, ...]], persistence: str
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play(steps, persistence))
