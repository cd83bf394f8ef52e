"""Subscriptions under whatever credit and publishers do: each gets everything behind its place, once, in order."""

import asyncio

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.core.cores import Taker, append, core, quiet

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
                    taker = Taker(left=0)
                    one = broker.subscribe(topic, replay, taker, name=name)
                    if name is not None:
                        replay = positions.setdefault(name, replay)
                    readers[number] = one, taker, replay
            elif arguments[0] in readers:
                one, taker, replay = readers[arguments[0]]
                if what == "credit":
                    taker.left += arguments[1]
                    one.more()
                else:
                    if one.name is not None:
                        one.move(one.position)
                        positions[one.name] = one.position
                    one.end()
                    del readers[arguments[0]]
            await quiet(broker)
            for one, taker, replay in readers.values():
                assert taker.ids == list(range(replay + 1, one.position + 1))
                assert one.position == topic.readable or not taker.left
        for one, taker, replay in readers.values():
            taker.left = 1 << 30
            one.more()
            await quiet(broker)
            assert taker.ids == list(range(replay + 1, topic.last + 1))
            assert taker.errors == []


@settings(max_examples=100, deadline=None)
@given(st.lists(STEP, min_size=5, max_size=40))
def test_everybody_gets_everything_behind_its_place_as_far_as_it_has_credit(steps):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play(steps))
