"""`drain`: a receiver takes leave, and nothing is lost that peers have sent."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

import omq
import omq.asyncio

MESSAGES = 20_000


@pytest.fixture(params=["tcp", "ipc"])
def push(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[omq.PUSH]:
    with omq.PUSH(bind="tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path}/s", linger=0) as sock:
        yield sock


def flooded(push: omq.PUSH, size: int) -> threading.Thread:
    """Has numbered messages sent as fast as they go."""

    def flood() -> None:
        try:
            for number in range(MESSAGES):
                push.send(b"%d" % number + b" " * size)
        except omq.ClosedError:
            pass

    thread = threading.Thread(target=flood)
    thread.start()
    return thread


def rest(pull: omq.PULL) -> list[int]:
    """What comes until every peer has ended its side."""
    got: list[int] = []
    while True:
        alone = not pull.peers
        try:
            got += map(int, pull.recv_many(timeout=0.05))
        except omq.ReceiveTimeout:
            if alone:
                return got


@pytest.mark.parametrize("size", [10, 5000])
@pytest.mark.parametrize("stands_still", [False, True], ids=["at speed", "blocked"])
def test_a_flood_goes_on_with_the_next_receiver_and_nothing_is_lost(
    push: omq.PUSH, size: int, stands_still: bool
) -> None:
    thread = flooded(push, size)
    got: list[int] = []
    while len(got) < MESSAGES // 2:
        with omq.PULL(connect=push.endpoints[0], recv_hwm=10) as pull:
            got += [int(pull.recv(timeout=20)) for _ in range(500)]
            if stands_still:
                # The kernel's buffers are full, and a batch is under way.
                while thread.is_alive() and push.poll(0.05, omq.POLL_OUT):
                    pass
            pull.drain()
            assert not pull.endpoints
            got += rest(pull)
    with omq.PULL(connect=push.endpoints[0]) as pull:
        while len(got) < MESSAGES:
            got.append(int(pull.recv(timeout=20)))
    thread.join(20)
    assert got == list(range(MESSAGES))


def test_a_bound_receiver_drains_all_its_senders() -> None:
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull:
        url = pull.endpoints[0]
        with omq.PUSH(connect=url, linger=0) as one, omq.PUSH(connect=url, linger=0) as two:
            pull.wait_connected(2, timeout=20)
            for sock in (one, two):
                sock.send_many([b"%d" % n for n in range(100)])
                sock.flush(20)
            pull.drain()
            assert sorted(rest(pull)) == sorted([*range(100)] * 2)
            one.send(b"later")
        with pytest.raises(omq.ReceiveTimeout):
            pull.recv(timeout=0.1)


def test_a_receiver_may_connect_again() -> None:
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push, omq.PULL(connect=push.endpoints[0]) as pull:
        pull.wait_connected(timeout=20)
        pull.drain()
        assert rest(pull) == []
        push.send(b"1")
        pull.connect(push.endpoints[0])
        assert pull.recv(timeout=20) == b"1"


def test_a_subscriber_gets_what_was_published_before() -> None:
    with omq.PUB(bind="tcp://127.0.0.1:*", linger=0) as pub:
        with omq.SUB(connect=pub.endpoints[0], subscribe=b"") as sub:
            pub.wait_subscribed(timeout=20)
            pub.send_many([b"%d" % n for n in range(500)])
            pub.flush(20)
            sub.drain()
            got = [int(sub.recv(timeout=20)) for _ in range(500)]
        assert got == list(range(500))


def test_the_peer_is_libzmq() -> None:
    zmq = pytest.importorskip("zmq")
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.linger = 0
        port = push.bind_to_random_port("tcp://127.0.0.1")
        with omq.PULL(connect=f"tcp://127.0.0.1:{port}") as pull:
            for number in range(100):
                push.send(b"%d" % number)
            first = int(pull.recv(timeout=20))
            pull.drain()
            # What libzmq has in its pipe goes with the connection; what it has written comes.
            got = [first, *rest(pull)]
            assert got == list(range(len(got)))


def test_over_inproc_what_was_sent_is_here() -> None:
    with omq.PULL(bind="inproc://drained") as pull, omq.PUSH(connect="inproc://drained", linger=0) as push:
        push.send_many([b"%d" % n for n in range(50)])
        pull.drain()
        assert rest(pull) == list(range(50))


def test_a_peer_that_ends_its_side_and_takes_nothing_more_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omq.engine.wire_session._SETTLING", 0.2)
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push:
        with omq.PULL(connect=push.endpoints[0], recv_hwm=1) as pull, push.monitor() as monitor:
            thread = flooded(push, 5000)
            pull.wait_connected(timeout=20)
            while push.poll(0.1, omq.POLL_OUT):
                pass
            pull.drain()
            while monitor.recv(timeout=20).kind is not omq.EventKind.DISCONNECTED:
                pass
            assert pull.recv(timeout=20)
        push.stop()
        thread.join(20)


def test_those_that_send_do_not_drain() -> None:
    for kind in (omq.PUSH, omq.DEALER, omq.PAIR, omq.XSUB):
        with kind() as sock, pytest.raises(omq.StateError, match="sends"):
            sock.drain()
    pull = omq.PULL()
    pull.close()
    with pytest.raises(omq.ClosedError):
        pull.drain()


async def test_in_the_twin() -> None:
    async with omq.asyncio.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push:
        got: list[int] = []

        async def flood() -> None:
            for number in range(5000):
                await push.send(b"%d" % number)

        task = asyncio.create_task(flood())
        while len(got) < 5000:
            async with omq.asyncio.PULL(connect=push.endpoints[0]) as pull:
                got.append(int(await pull.recv(timeout=20)))
                pull.drain()
                while True:
                    alone = not pull.peers
                    try:
                        got += map(int, await pull.recv_many(timeout=0.05))
                    except omq.ReceiveTimeout:
                        if alone:
                            break
        await task
        assert got == list(range(5000))
