"""Subscriptions under random credit and publishing: each gets all messages after its position, once, in order."""

import asyncio

import uvloop
from hypothesis import given
from hypothesis import strategies as st

from tests.support.broker_core import RecordingSink, append, core, run_pending
from tests.support.hypothesis_profiles import examples

READER = st.integers(0, 3)
STEP = st.one_of(
    st.tuples(st.just("append"), st.lists(st.integers(0, 3000), min_size=1, max_size=4)),
    st.tuples(st.just("subscribe"), READER, st.integers(0, 60), st.booleans()),
    st.tuples(st.just("credit"), READER, st.integers(1, 4000)),
    st.tuples(st.just("end"), READER),
)


async def play(steps):
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        readers = {}
        positions = {}
        for what, *arguments in steps:
            if what == "append":
                await append(broker, topic, [b"x" * size for size in arguments[0]])
            elif what == "subscribe":
                number, replay, named = arguments
                if number not in readers:
                    replay = min(replay, topic.last)
                    name = f"n{number}" if named else None
                    sink = RecordingSink(room_left=0)
                    one = broker.subscribe(topic, replay, sink, name=name)
                    if name is not None:
                        replay = positions.setdefault(name, replay)
                    readers[number] = one, sink, replay
            elif arguments[0] in readers:
                one, sink, replay = readers[arguments[0]]
                if what == "credit":
                    sink.room_left += arguments[1]
                    one.resume()
                else:
                    if one.name is not None:
                        one.move(one.position)
                        positions[one.name] = one.position
                    one.end()
                    del readers[arguments[0]]
            await run_pending(broker)
            for one, sink, replay in readers.values():
                assert sink.ids == list(range(replay + 1, one.position + 1))
                assert one.position == topic.readable or not sink.room_left
        for one, sink, replay in readers.values():
            sink.room_left = 1 << 30
            one.resume()
            await run_pending(broker)
            assert sink.ids == list(range(replay + 1, topic.last + 1))
            assert sink.errors == []


RETAINED_STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 7)),
    st.tuples(st.just("ack"), st.integers(0, 40)),
    st.tuples(st.just("again"), st.just(0)),
)


async def play_retained(steps, max_messages, persistence):
    """Publishers wait for one durable subscription, which acknowledges any position, and is closed and reopened."""
    async with core() as broker:
        bounds = {"retain_for": "n", "max_messages": max_messages, "overflow": "block"}
        topic = await broker.create("t", persistence=persistence, settings=bounds)
        sink = RecordingSink()
        reader = broker.subscribe(topic, "latest", sink, name="n")
        publishing = []
        acked = seen = published = 0
        for what, number in [*steps, ("append", 1), ("again", 0)]:
            if what == "append":
                bodies = [b"%d" % one for one in range(published, published + number)]
                publishing.append(asyncio.ensure_future(append(broker, topic, bodies)))
                published += number
            elif what == "ack":
                position = min(number, reader.position)
                reader.move(position)
                acked = max(acked, position)
            else:
                reader.end()
                sink = RecordingSink()
                reader = broker.subscribe(topic, "latest", sink, name="n")
                seen = acked
            await run_pending(broker)
            state = topic.state()
            assert state.first == acked + 1
            assert state.last - acked <= max(max_messages, 7)  # one that is larger than the topic had it for itself
            assert sink.ids == list(range(seen + 1, topic.last + 1))
            assert sink.errors == []
        while not all(one.done() for one in publishing):
            reader.move(reader.position)
            await run_pending(broker)
        await run_pending(broker)
        firsts = [await one for one in publishing]
        assert firsts == sorted(set(firsts))
        assert sink.got == [(id, b"%d" % (id - 1)) for id in range(seen + 1, published + 1)]


@examples(30)
@given(st.lists(RETAINED_STEP, min_size=5, max_size=40), st.integers(1, 9), st.sampled_from(["transient", "weak"]))
def test_retain_for_keeps_messages_until_they_are_acknowledged(steps, max_messages, persistence):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play_retained(steps, max_messages, persistence))


@examples(50)
@given(st.lists(STEP, min_size=5, max_size=40))
def test_each_subscription_gets_all_messages_after_its_position_within_credit(steps):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play(steps))
