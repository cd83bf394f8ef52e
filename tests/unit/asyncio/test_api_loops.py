"""A socket belongs to the loop of its first bind, connect or await."""

import asyncio
import threading

import pytest
import uvloop

import omq.asyncio as omq
from tests.unit.conftest import LOOPS, on_both_loops, until


def run(main, factory):
    async def bounded():
        async with asyncio.timeout(20):
            return await main

    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(bounded())


@pytest.fixture(params=list(LOOPS))
def factory(request):
    return LOOPS[request.param]


@pytest.mark.parametrize("endpoint", ["tcp", "ipc", "inproc"], indirect=True)
@pytest.mark.parametrize("who", ["bound", "dialled", "both"])
def test_a_socket_may_be_made_and_bound_before_any_loop_runs(endpoint, factory, who):
    pull = omq.PULL(bind=endpoint)
    where = pull.endpoints[0]
    early = omq.PUSH(connect=where) if who in ("dialled", "both") else None

    async def main():
        push = early or omq.PUSH(connect=where)
        # The loop takes part in the socket's life at the first await.
        sending = asyncio.ensure_future(push.send(b"x"))
        assert await pull.recv() == b"x"
        await sending
        await push.close()
        await pull.close()

    run(main(), factory)


@pytest.mark.parametrize("endpoint", ["tcp", "ipc", "inproc"], indirect=True)
def test_a_peer_may_come_before_the_listener_has_a_loop(endpoint, factory):
    """Connecting to a name that is bound in a socket without a loop waits; it does not fail."""
    pull = omq.PULL(bind=endpoint)

    async def main():
        push = omq.PUSH(connect=pull.endpoints[0])
        await push.send(b"early")
        await asyncio.sleep(0)
        assert await pull.recv() == b"early"
        await push.close()
        await pull.close()

    run(main(), factory)


@pytest.mark.parametrize(
    "use",
    [
        lambda socket: socket.recv(),
        lambda socket: socket.recv(timeout=0),
        lambda socket: socket.poll(0),
        lambda socket: socket.wait_connected(timeout=0),
    ],
    ids=["recv", "recv-0", "poll", "wait_connected"],
)
def test_another_loop_is_refused(factory, use):
    async def first():
        return omq.PULL(bind="tcp://127.0.0.1:*")

    async def second():
        with pytest.raises(omq.StateError, match="another event loop"):
            await use(socket)
        with pytest.raises(omq.StateError, match="another event loop"):
            socket.bind("tcp://127.0.0.1:*")
        with pytest.raises(omq.StateError, match="another event loop"):
            socket.connect("tcp://127.0.0.1:9")

    socket = run(first(), factory)
    run(second(), factory)
    socket.stop()


@on_both_loops
async def test_another_threads_loop_is_refused(make, inproc):
    pull = make(omq.PULL, bind=inproc)
    raised = []

    async def use():
        try:
            await pull.recv(timeout=0)
        except omq.OmqError as error:
            raised.append(error)

    thread = threading.Thread(target=run, args=(use(), uvloop.new_event_loop))
    thread.start()
    await asyncio.to_thread(thread.join, 10)
    assert [type(error) for error in raised] == [omq.StateError]


@on_both_loops
async def test_closing_in_another_threads_loop_is_refused(make):
    """Closing would close descriptors that this loop waits for."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")

    def close():
        with pytest.raises(omq.StateError, match="another thread"):
            run(pull.close(), uvloop.new_event_loop)

    await asyncio.to_thread(close)
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.send(b"it goes on")
    assert await pull.recv(timeout=5) == b"it goes on"


@on_both_loops
async def test_outside_of_any_loop_is_refused(make, inproc):
    pull = make(omq.PULL, bind=inproc)

    def use():
        with pytest.raises(omq.StateError, match="event loop"):
            pull.recv(timeout=0).send(None)

    await asyncio.to_thread(use)


def test_a_call_outside_of_any_loop_is_refused():
    pull = omq.PULL()
    with pytest.raises(omq.StateError, match="running event loop"):
        pull.recv().send(None)
    pull.stop()


def test_stop_after_the_loop_is_gone(factory, tmp_path):
    """A socket that outlives its loop can still be stopped, and gives everything back."""
    names = iter(range(100))

    async def main():
        name = f"inproc://gone-{factory.__name__}-{next(names)}"
        pull = omq.PULL(bind=["tcp://127.0.0.1:*", f"ipc://{tmp_path}/x", name])
        push = omq.PUSH(connect=[*pull.endpoints, "tcp://127.0.0.1:9"])
        await push.wait_connected(3)
        return pull, push

    pull, push = run(main(), factory)
    push.stop()
    pull.stop()
    push.stop()
    assert not list(tmp_path.iterdir())
    assert repr(push) == "<omq.asyncio.PUSH closed>"


@pytest.mark.parametrize("endpoint", ["tcp", "inproc"], indirect=True)
def test_stop_after_the_loop_of_another_thread_is_gone(factory, endpoint):
    """Its connections end, too: the peers see it."""
    ends = []

    async def using():
        push = omq.PUSH(connect=endpoint)
        ends.append((push, push.monitor()))
        await push.wait_connected(timeout=5)

    async def main():
        nonlocal endpoint
        pull = omq.PULL(bind=endpoint)
        (endpoint,) = pull.endpoints
        thread = threading.Thread(target=run, args=(using(), factory))
        thread.start()
        await asyncio.to_thread(thread.join, 10)
        ((push, monitor),) = ends
        push.stop()
        await until(lambda: not pull.peers)
        assert [event.kind async for event in monitor][-2:] == ["disconnected", "monitor_stopped"]
        pull.stop()

    run(main(), factory)


def test_the_end_after_a_loop_that_was_closed_with_calls_in_it(factory):
    """The context ends all of its sockets: one whose tasks can never go on does not keep the others from it."""
    context = omq.Context()
    loop = factory()

    async def main():
        pull = omq.PULL(context, bind="tcp://127.0.0.1:*")
        push = omq.PUSH(context, connect=pull.endpoints[0])
        calls = [pull.recv(), pull.wait_connected(2), push.wait_connected(2)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await push.wait_connected()
        await pull.wait_connected()
        return pull, push, tasks

    pull, push, tasks = loop.run_until_complete(main())
    loop.close()
    context.term()
    for socket in (pull, push):
        assert socket.closed
        assert not socket._engine._sessions
    assert not any(task.done() for task in tasks)


def test_close_in_a_later_loop_of_a_socket_without_one(factory):
    pull = omq.PULL(bind="tcp://127.0.0.1:*")

    async def main():
        await pull.close()
        with pytest.raises(omq.ClosedError):
            await pull.recv()

    run(main(), factory)


def test_sockets_of_one_context_meet_across_loops_in_threads(factory, inproc):
    """Order and count hold over hundreds of thousands of messages between two threads."""
    total = 200_000
    context = omq.Context()
    got = []

    async def receiving(bound):
        async with omq.PULL(context, bind=inproc) as pull:
            bound.set()
            while len(got) < total:
                got.extend(await pull.recv_many())

    async def sending():
        async with omq.PUSH(context, connect=inproc) as push:
            for number in range(total):
                await push.send(b"%d" % number)

    bound = threading.Event()
    thread = threading.Thread(target=run, args=(receiving(bound), factory))
    thread.start()
    assert bound.wait(10)
    run(sending(), factory)
    thread.join(20)
    assert len(got) == total
    assert all(int(message) == number for number, message in enumerate(got))


def test_request_and_reply_across_threads(factory, inproc):
    context = omq.Context()

    async def serving():
        async with omq.REP(context, bind=inproc) as rep:
            for _ in range(2000):
                await rep.send(await rep.recv())

    async def asking():
        async with omq.REQ(context, connect=inproc) as req:
            for number in range(2000):
                await req.send(b"%d" % number)
                assert await req.recv() == b"%d" % number

    thread = threading.Thread(target=run, args=(serving(), factory))
    thread.start()
    run(asking(), factory)
    thread.join(20)
    assert not thread.is_alive()
