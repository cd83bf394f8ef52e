"""A refusal by the system or the user's own code leaves nothing half done, and no call waiting."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time

import pytest

import omq
import omq.asyncio
from omq._core.queues.peer import RecvQueue
from omq._core.queues.pipe import Pipe
from omq._core.queues.send_queue import Distributor
from omq._core.queues.wait_queue import WaitQueue
from omq.engine.lifecycle import ListenerState
from tests.support.waits import until
from tests.unit.conftest import BOUND, needs_address_space
from tests.unit.conftest import until as awaited


class FullLoop(asyncio.SelectorEventLoop):
    """A loop that can watch no more descriptors for a while (epoll_ctl(2), fs.epoll.max_user_watches)."""

    refusals = 0

    def add_reader(self, *arguments):
        if self.refusals > 0:
            self.refusals -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().add_reader(*arguments)


def test_a_listener_that_the_loop_cannot_watch_for_a_while_accepts_afterwards():
    async def main():
        async with omq.asyncio.PULL(bind="tcp://127.0.0.1:*") as pull:
            monitor = pull.monitor()
            await pull.poll(0)
            (listener,) = pull._engine.endpoints.listeners.values()
            listener._pause()  # as it does where descriptors are short
            asyncio.get_running_loop().refusals = 3
            for _ in range(3):
                event = await monitor.recv(timeout=BOUND)
                assert (event.kind, event.error.errno) == (omq.EventKind.ACCEPT_FAILED, errno.ENOSPC)
            async with omq.asyncio.PUSH(connect=pull.endpoints[0]) as push:
                await push.send(b"x")
                assert await pull.recv(timeout=BOUND) == b"x"
            assert listener.state is ListenerState.ACCEPTING

    with asyncio.Runner(loop_factory=FullLoop) as runner:
        runner.run(main())


def deaf(begun):
    """A judge that does not heed its cancellation; who asks it puts a future into *begun*, which ends it."""

    async def judge(*_):
        begun.append(asyncio.get_running_loop().create_future())
        end = time.monotonic() + BOUND
        while not begun[0].done() and time.monotonic() < end:
            try:
                await asyncio.wait(begun, timeout=BOUND)
            except asyncio.CancelledError:
                pass
        return True

    return judge


@contextlib.contextmanager
def knock(endpoint):
    """A peer that asks to be let in, of a context of its own: the default one's thread would outlive the test."""
    client = omq.PlainClient("user", "secret")
    with omq.Context() as context, omq.PUSH(context, connect=endpoint, security=client, linger=0):
        yield


def test_closing_does_not_wait_for_a_judge_that_does_not_heed_it(caplog):
    begun = []
    context = omq.Context()
    pull = omq.PULL(context, bind="tcp://127.0.0.1:*", security=omq.PlainServer(deaf(begun)))
    with knock(pull.endpoints[0]):
        until(lambda: begun, "the question")
        before = time.monotonic()
        pull.close()
        context.term()
        assert time.monotonic() - before < BOUND / 2
    assert "still runs, although it was cancelled" in caplog.text


async def test_nor_does_it_in_the_asyncio_twin(caplog):
    begun = []
    pull = omq.asyncio.PULL(bind="tcp://127.0.0.1:*", security=omq.PlainServer(deaf(begun)))
    others = asyncio.all_tasks()
    with knock(pull.endpoints[0]):
        await pull.poll(0)
        await awaited(lambda: begun)
        (judging,) = (task for task in asyncio.all_tasks() - others if task.get_name() == "omq admission")
        before = time.monotonic()
        await pull.close()
        assert time.monotonic() - before < BOUND / 2
        assert "still runs, although it was cancelled" in caplog.text
        begun[0].set_result(None)
        await asyncio.wait([judging], timeout=BOUND)
        assert judging.done()


@pytest.mark.slow
async def test_dialers_that_have_given_up_do_not_gather():
    with socket.socket() as unlistened:
        unlistened.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{unlistened.getsockname()[1]}"
        push = omq.asyncio.PUSH(reconnect_interval=None, linger=0)
        most = 0
        for _ in range(2500):
            push.connect(endpoint)
            await asyncio.sleep(0)
            most = max(most, sum(map(len, push._engine.endpoints.dialers.values())))
        assert most <= 1200
        push.disconnect(endpoint)
        push.stop()


# Memory


def pipe():
    one, other = Pipe(None, RecvQueue(WaitQueue()), 0, None), Pipe(None, RecvQueue(WaitQueue()), 0, None)
    one.join(other)
    return one


def test_a_peer_that_memory_is_short_for_takes_no_place_of_a_publisher():
    _testcapi = pytest.importorskip("_testcapi")
    send_queue = Distributor(WaitQueue(), 0, None)
    joined = []
    refused = 0
    while refused < 10:  # a list asks for memory only now and then
        peer = pipe()
        before = len(joined)
        joined.append(peer)
        _testcapi.set_nomemory(0, 1)
        try:
            send_queue.add(peer)
        except MemoryError:
            refused += 1
            del joined[before:]
        finally:
            _testcapi.remove_mem_hooks()
        if before == len(joined):
            send_queue.remove(peer)  # as the end of its session does
            joined.append(pipe())
            send_queue.add(joined[-1])
        assert len(joined) < 5000
    assert sorted(peer.slot for peer in joined) == list(range(len(joined)))


@pytest.mark.slow
@needs_address_space
def test_a_message_that_memory_is_short_for_when_its_peer_comes_goes_to_the_next(little_memory):
    """The message was accepted before. Sealing it needs memory of its own."""
    public, secret = omq.curve_keypair()
    with omq.Context() as context:
        push = omq.PUSH(context, bind="tcp://127.0.0.1:*", security=omq.CurveServer(secret), linger=0)
        push.send(bytes(256 << 20))
        monitor = push.monitor()
        little_memory(64 << 20)
        pull = omq.PULL(context, connect=push.endpoints[0], security=omq.CurveClient(public), linger=0)
        while (event := monitor.recv(timeout=BOUND)).kind is not omq.EventKind.DISCONNECTED:
            pass
        little_memory(None)
        assert isinstance(event.error, MemoryError)
        assert len(pull.recv(timeout=BOUND)) == 256 << 20
