"""`drain`: a receiver takes leave, and nothing is lost that peers have sent."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import omq
import omq.asyncio
from tests.support.fork_server import SOCKETS, ForkedProcess
from tests.support.raw_peer import GREETING, command, frames, ready
from tests.support.waits import until

MESSAGES = 10_000


@pytest.fixture(params=["tcp", "ipc"])
def push(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[omq.PUSH]:
    with omq.PUSH(bind="tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path}/s", linger=0) as sock:
        yield sock


def flooded(push: omq.PUSH, size: int, count: int = MESSAGES) -> threading.Thread:
    """Has numbered messages sent as fast as they go."""

    def flood() -> None:
        try:
            for number in range(count):
                push.send(b"%d" % number + b" " * size)
        except omq.ClosedError:
            pass

    thread = threading.Thread(target=flood)
    thread.start()
    return thread


def blocked(push: omq.PUSH) -> None:
    """Waits until the kernels take nothing more, and a batch is under way."""
    while push.poll(0.05, omq.POLL_OUT):
        pass


def rest(pull: omq.PULL) -> list[int]:
    """Returns the messages that come until every peer has ended its side."""
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
    monkeypatch.setattr("omq.engine.wire_session._SETTLE_TIMEOUT_S", 0.2)
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


def test_what_comes_is_taken_in_although_the_user_takes_nothing(push: omq.PUSH) -> None:
    with omq.PULL(connect=push.endpoints[0], recv_hwm=1) as pull:
        pull.wait_connected(timeout=20)
        thread = flooded(push, 5000)
        blocked(push)
        pull.drain()
        until(lambda: not pull.peers, "the end of the sender's side")
        got = rest(pull)
        assert len(got) > 1
        assert got == list(range(len(got)))
        push.stop()
        thread.join(20)


PUBLIC, SECRET = omq.curve_keypair()
SECURITY = {
    "plain": (omq.PlainServer(lambda name, password: True), omq.PlainClient("u", "p")),
    "curve": (omq.CurveServer(SECRET), omq.CurveClient(PUBLIC)),
}


@pytest.mark.parametrize("mechanism", SECURITY)
def test_under_a_security_mechanism(mechanism: str) -> None:
    server, client = SECURITY[mechanism]
    with omq.PUSH(bind="tcp://127.0.0.1:*", security=server, linger=0) as push:
        thread = flooded(push, 3000, count=4000)
        got: list[int] = []
        while len(got) < 4000:
            with omq.PULL(connect=push.endpoints[0], security=client, recv_hwm=10) as pull:
                got += [int(pull.recv(timeout=20)) for _ in range(min(1000, 4000 - len(got)))]
                pull.drain()
                got += rest(pull)
        thread.join(20)
        assert got == list(range(4000))


@pytest.mark.alone
def test_heartbeats_end_nothing_before_its_end(push: omq.PUSH) -> None:
    """The sender cannot be read any more once it has our end, and neither can we."""
    # On a machine that is busy neither side is to miss the other's beat before the end.
    beat = {"heartbeat_interval": 0.1, "heartbeat_timeout": 0.4, "heartbeat_ttl": 0.4}
    with omq.PUSH(
        bind=push.endpoints[0].replace("/s", "/t") if "ipc" in push.endpoints[0] else "tcp://127.0.0.1:*",
        linger=0,
        **beat,
    ) as beating:
        thread = flooded(beating, 5000, count=5_000)
        got: list[int] = []
        while len(got) < 5_000:
            with omq.PULL(connect=beating.endpoints[0], recv_hwm=5, **beat) as pull:
                got += [int(pull.recv(timeout=20)) for _ in range(min(2500, 5_000 - len(got)))]
                time.sleep(0.5)  # more than a heartbeat timeout without a call
                pull.drain()
                got += rest(pull)
        thread.join(20)
        assert got == list(range(5_000))


def test_a_message_larger_than_what_the_kernels_hold() -> None:
    large = bytes(64 << 20)
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push, omq.PULL(connect=push.endpoints[0]) as pull:
        pull.wait_connected(timeout=20)
        thread = threading.Thread(target=push.send_many, args=([b"1", large, b"2"],))
        thread.start()
        assert pull.recv(timeout=20) == b"1"
        until(lambda: pull.peers[0].bytes_in > 1 << 20, "the large message's beginning")
        pull.drain()
        assert pull.recv(timeout=20) == large
        thread.join(20)
        assert rest(pull) in ([], [2])


def test_twice_and_then_close(push: omq.PUSH) -> None:
    with omq.PULL(connect=push.endpoints[0]) as pull:
        pull.wait_connected(timeout=20)
        push.send_many([b"%d" % number for number in range(100)])
        push.flush(20)
        pull.drain()
        pull.drain()
        assert rest(pull) == list(range(100))
        pull.drain()
    with pytest.raises(omq.ClosedError):
        pull.drain()


def test_next_to_a_thread_that_receives(push: omq.PUSH) -> None:
    got: list[int] = []

    def receive() -> None:
        with contextlib.suppress(omq.ClosedError):
            while True:
                got.append(int(pull.recv()))

    with omq.PULL(connect=push.endpoints[0], recv_hwm=5) as pull:
        pull.wait_connected(timeout=20)
        thread, sending = threading.Thread(target=receive), flooded(push, 100, count=10**8)
        thread.start()
        until(lambda: len(got) > 1000, "a thousand messages")
        pull.drain()
        until(lambda: not pull.peers, "the end of the sender's side")
        with omq.PULL(connect=push.endpoints[0]) as other:
            first = int(other.recv(timeout=20))
            until(lambda: len(got) == first, lambda: f"{len(got)} messages, and then {first}")
            assert got == list(range(first))
            push.stop()
            sending.join(20)
    thread.join(20)


class Raw:
    """A sender made by hand, connected to a PULL."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("tcp://").split(":")
        self.sock = socket.create_connection((host, int(port)))
        self.sock.settimeout(20)
        self.sock.sendall(GREETING)
        assert len(self.sock.recv(64, socket.MSG_WAITALL)) == 64

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def read_all(self) -> bytes:
        data = b""
        while more := self.sock.recv(65536):
            data += more
        return data


def test_a_sender_that_goes_on_and_sends_pings_is_read_to_its_end() -> None:
    with omq.PULL(bind="tcp://127.0.0.1:*", heartbeat_interval=0.02) as pull, Raw(pull.endpoints[0]) as raw:
        raw.sock.sendall(ready(b"PUSH"))
        pull.wait_connected(timeout=20)
        pull.drain()
        raw.read_all()
        for number in range(50):
            raw.sock.sendall(frames(b"%d" % number) + command(b"PING", b"\0\1"))
            time.sleep(0.004)
        time.sleep(0.15)  # more than the TTL of its last PING
        raw.sock.sendall(frames(b"50"))
        assert [int(pull.recv(timeout=20)) for _ in range(51)] == list(range(51))
        assert pull.peers  # until it ends its side
        raw.sock.close()
        until(lambda: not pull.peers, "the sender's end")


def test_a_sender_that_never_ends_its_side_is_left_by_close() -> None:
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull, Raw(pull.endpoints[0]) as raw:
        raw.sock.sendall(ready(b"PUSH"))
        pull.wait_connected(timeout=20)
        pull.drain()
        raw.read_all()
        begun = time.monotonic()
        pull.close()
        assert time.monotonic() - begun < 5


def test_a_sender_amid_the_handshake_may_have_sent_something() -> None:
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull, Raw(pull.endpoints[0]) as raw:
        # Our READY has come, by which it is connected; its own, and a message, are on their way.
        assert b"READY" in raw.sock.recv(1000)
        pull.drain()
        raw.sock.sendall(ready(b"PUSH") + frames(b"1"))
        assert pull.recv(timeout=20) == b"1"
        assert raw.read_all() == b""


def test_one_that_is_slow_one_that_is_stopped_and_one_that_is_killed() -> None:
    script = (
        "import sys, omq\n"
        "with omq.PUSH(connect=sys.argv[1]) as push:\n"
        "    for number in range(1000): push.send(sys.argv[2].encode() + b' %d ' % number + bytes(20_000))\n"
        "    sys.stdin.read()\n"
    )
    with omq.PULL(bind="tcp://127.0.0.1:*", recv_hwm=10) as pull, contextlib.ExitStack() as stack:
        crew = {
            name: stack.enter_context(
                ForkedProcess("-c", script, pull.endpoints[0], name, stdin=subprocess.PIPE, template=SOCKETS)
            )
            for name in ("slow", "stopped", "killed")
        }
        pull.wait_connected(3, timeout=30)
        last = dict.fromkeys(crew, -1)

        def take(timeout: float) -> None:
            name, number, _ = pull.recv(timeout=timeout).split(b" ", 2)
            assert int(number) == last[name.decode()] + 1
            last[name.decode()] += 1

        while min(last.values()) < 10:
            take(20)
        crew["stopped"].send_signal(signal.SIGSTOP)
        crew["killed"].kill()
        crew["killed"].wait(20)
        pull.drain()
        # The slow one's user keeps it waiting for us; it goes on by itself, and is done first.
        until(lambda: len(pull.peers) == 1, "the end of two")
        while pull.poll(0.2, omq.POLL_IN):
            take(0)
        assert len(pull.peers) == 1
        crew["stopped"].send_signal(signal.SIGCONT)
        until(lambda: not pull.peers, "the end of the one that was stopped")
        while pull.poll(0.1, omq.POLL_IN):
            take(0)
        for process in crew.values():
            process.kill()


def test_a_sender_that_dials_goes_on_with_who_binds_the_name_next(tmp_path: Path) -> None:
    url = f"ipc://{tmp_path}/s"
    got: list[int] = []
    with omq.PULL(bind=url, recv_hwm=10) as pull, omq.PUSH(connect=url, reconnect_interval=0.01, linger=0) as push:
        push.wait_connected(timeout=20)
        thread = flooded(push, 1000)
        got += [int(pull.recv(timeout=20)) for _ in range(1000)]
        pull.drain()
        with omq.PULL(bind=url) as other:
            got += rest(pull)
            while len(got) < MESSAGES:
                got.append(int(other.recv(timeout=20)))
        thread.join(20)
    assert got == list(range(MESSAGES))


def test_a_subscriber_comes_back_and_receives_what_is_new() -> None:
    with omq.PUB(bind="tcp://127.0.0.1:*", linger=0) as pub, omq.SUB(subscribe=b"") as sub:
        for turn in (b"one", b"two"):
            sub.connect(pub.endpoints[0])
            pub.wait_subscribed(timeout=20)
            pub.send(turn)
            assert sub.recv(timeout=20) == turn
            sub.drain()
            until(lambda: not pub.peers, "the publisher's news of it")


@pytest.mark.parametrize("kind", ["PUB", "XPUB"])
def test_a_publisher_of_libzmq(kind: str) -> None:
    zmq = pytest.importorskip("zmq")
    with zmq.Context() as context, context.socket(getattr(zmq, kind)) as pub:
        pub.linger = 0
        port = pub.bind_to_random_port("tcp://127.0.0.1")
        with omq.SUB(connect=f"tcp://127.0.0.1:{port}", subscribe=b"") as sub:
            sub.wait_connected(timeout=20)
            until(lambda: pub.send(b"0") or sub.poll(0.01, omq.POLL_IN), "the first message")
            sub.drain()
            until(lambda: not sub.peers, "the publisher's end")
            while sub.poll(0.1, omq.POLL_IN):
                assert sub.recv() == b"0"
