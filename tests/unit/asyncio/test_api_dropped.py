"""Sockets that are not closed: when the last reference goes they close in their loop, with their linger, and warn."""

import asyncio
import gc

import pytest

import omq.asyncio as omq
from omq.errors import StateError
from tests.support.waits import descriptors
from tests.unit.conftest import LOOPS, on_both_loops, until

dropping = pytest.warns(ResourceWarning, match="unclosed <omq.asyncio.P")


@on_both_loops
async def test_a_dropped_socket_is_closed_and_its_descriptors_too(make, endpoint, tmp_path):
    before = descriptors()
    pull = omq.PULL(bind=endpoint)
    push = omq.PUSH(connect=pull.endpoints[0])
    await push.wait_connected(timeout=5)
    await pull.wait_connected(timeout=5)
    where = pull.endpoints[0]
    with dropping:
        del pull
    with dropping:
        del push
    await until(lambda: not descriptors() - before)
    await omq.PULL(bind=where).close()  # the name is free
    assert list(tmp_path.iterdir()) == []


@on_both_loops
async def test_what_a_dropped_socket_has_accepted_leaves(make, inproc):
    push = omq.PUSH(connect=inproc)
    await push.send_many([b"%d" % number for number in range(100)])
    with dropping:
        del push
        await asyncio.sleep(0)  # where that took long the loop has a mark of it until its next turn
    await asyncio.sleep(0.02)  # turns in which it could end
    gc.collect()
    pull = make(omq.PULL, bind=inproc)
    assert [await pull.recv(timeout=5) for _ in range(100)] == [b"%d" % number for number in range(100)]
    await until(lambda: not pull.peers)


@on_both_loops
async def test_a_socket_in_a_cycle_goes_with_the_cycle(make, endpoint):
    before = descriptors()
    pull = omq.PULL(bind=endpoint)
    cycle = {"socket": pull}
    cycle["self"] = cycle
    with dropping:
        del pull, cycle
        gc.collect()
    await until(lambda: not descriptors() - before)


@on_both_loops
async def test_a_call_that_waits_holds_its_socket(make, endpoint):
    pull = omq.PULL(bind=endpoint)
    push = make(omq.PUSH, connect=pull.endpoints[0])
    waiting = asyncio.create_task(pull.recv())
    await asyncio.sleep(0)
    with dropping:
        del pull
        gc.collect()
        await push.send(b"x")
        assert await asyncio.wait_for(waiting, 5) == b"x"
        del waiting
        await asyncio.sleep(0)  # from Python 3.13 on the task is held until the loop's next turn


async def test_a_socket_that_was_never_used_goes_silently():
    before = descriptors()
    for _ in range(20):
        omq.PULL()
    assert not descriptors() - before


async def test_a_parent_sees_the_end_of_a_dropped_socket(endpoint):
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        pull = omq.PULL(bind=endpoint, parent=group)
        with dropping:
            del pull


def test_a_socket_whose_loop_is_closed_leaves_nothing(tmp_path):
    before = descriptors()

    async def use():
        return omq.PULL(bind=f"ipc://{tmp_path}/s")

    pull = asyncio.run(use())
    with dropping:
        del pull
    assert not descriptors() - before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("factory", list(LOOPS.values()), ids=list(LOOPS))
def test_a_socket_that_the_last_step_of_a_loop_drops_leaves_nothing(factory, inproc, tmp_path):
    before = descriptors()

    async def use():
        pull = omq.PULL(bind=[inproc, f"ipc://{tmp_path}/s"])
        await asyncio.sleep(0)
        assert len(pull.endpoints) == 2

    with dropping, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(use())
    assert not descriptors() - before
    assert list(tmp_path.iterdir()) == []
    omq.PULL(bind=inproc).stop()  # the name is free


@pytest.mark.parametrize("moment", ["before the last turn", "in the last turn", "after the last turn"])
@pytest.mark.parametrize("new_loop", LOOPS.values(), ids=LOOPS)
def test_a_loop_that_is_run_by_hand_ends_what_was_dropped_in_it(new_loop, moment, endpoint, caplog):
    """A program that runs and closes a loop gives it no further turn: its end has to be found."""
    before = descriptors()
    kept, where = [], []

    async def use():
        pair = omq.PAIR(bind=endpoint)
        peer = omq.PAIR(connect=pair.endpoints[0])
        where.extend(pair.endpoints)
        await pair.send(b"x")
        assert await peer.recv(timeout=5) == b"x"
        if moment != "in the last turn":
            kept.extend([pair, peer])

    with dropping:
        loop = new_loop()
        loop.run_until_complete(use())
        kept.clear()
        if moment == "before the last turn":
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    assert not descriptors() - before
    omq.PULL(bind=where[0]).stop()  # the name is free
    del loop
    gc.collect()
    assert caplog.messages == []


@pytest.mark.parametrize("new_loop", LOOPS.values(), ids=LOOPS)
def test_a_socket_that_stops_in_the_last_turn_leaves_no_task(new_loop, caplog):
    async def use():
        push = omq.PUSH(connect="tcp://127.0.0.1:1", linger=0)
        await asyncio.sleep(0)
        push.stop()

    loop = new_loop()
    loop.run_until_complete(use())
    loop.close()
    del loop
    gc.collect()
    assert caplog.messages == []


def test_a_socket_bound_outside_of_any_loop_leaves_nothing(tmp_path):
    before = descriptors()
    pull = omq.PULL(bind=f"ipc://{tmp_path}/s")
    with dropping:
        del pull
    assert not descriptors() - before
    assert list(tmp_path.iterdir()) == []


def test_a_socket_is_made_once(tmp_path):
    pull = omq.PULL(bind=f"ipc://{tmp_path}/s")
    with pytest.raises(StateError, match="__init__ runs once"):
        pull.__init__(bind="tcp://127.0.0.1:*")
    assert len(pull.endpoints) == 1
    pull.stop()


@pytest.mark.parametrize("new_loop", LOOPS.values(), ids=LOOPS)
def test_a_loop_that_is_closed_first_logs_nothing_of_tasks(new_loop, caplog):
    loop = new_loop()

    async def dial():
        return omq.PUSH(connect="tcp://127.0.0.1:1", linger=0)

    push = loop.run_until_complete(dial())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    with dropping:
        del push
    gc.collect()
    assert caplog.messages == []
