"""One error where the system gives no descriptor, whatever needed it. A closed socket gives back all of its own."""

from __future__ import annotations

import asyncio
import errno
import os
import textwrap
from pathlib import Path

import pytest

import omq
import omq.asyncio
from tests.support.fork_server import SOCKETS, run
from tests.support.websocket_peer import make_certificate

ROOT = Path(__file__).parents[3]

PROGRAM = """
    import asyncio, os, resource, sys, warnings
    import omq, omq.asyncio

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    loop = asyncio.new_event_loop()

    def in_loop(kind, **endpoints):
        async def make():
            return kind(omq.Context(), **endpoints)
        return loop.run_until_complete(make())

    def wait(kind, events):
        return omq.wait([kind(omq.Context(), bind="inproc://here")], 0, events)

    ways = [
        lambda: omq.PULL(omq.Context()),
        lambda: omq.PULL(omq.Context(), bind="tcp://127.0.0.1:*"),
        lambda: omq.PULL(omq.Context(), bind="ipc://*"),
        lambda: omq.PULL(omq.Context(), bind="inproc://here"),
        lambda: omq.PUSH(omq.Context(), connect="tcp://127.0.0.1:1", linger=0),
        lambda: omq.PULL(omq.Context()).monitor(),
        lambda: omq.PULL(omq.Context(), bind="inproc://here").fileno(),
        lambda: wait(omq.PULL, omq.POLL_IN),
        lambda: wait(omq.PUSH, omq.POLL_OUT),
        lambda: in_loop(omq.asyncio.PULL),
        lambda: in_loop(omq.asyncio.PULL, bind="tcp://127.0.0.1:*"),
        lambda: in_loop(omq.asyncio.PULL, bind="ipc://*"),
    ]
    for number, way in enumerate(ways):
        refused = 0
        for room in range(22):
            kept = []
            try:
                while True:
                    kept.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                pass
            for _ in range(room):
                os.close(kept.pop())
            try:
                way()
            except omq.TransportError as error:
                refused += 1
                assert isinstance(error, OSError), error
                assert error.errno is not None, (number, room, error)
                print(error.errno)
            finally:
                for fd in kept:
                    os.close(fd)
        assert refused, number
    sys.stdout.flush()
    os._exit(0)
"""


def test_every_call_reports_that_there_is_no_descriptor():
    done = run("-c", textwrap.dedent(PROGRAM), template=SOCKETS)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {str(errno.EMFILE)}


WEBSOCKETS = """
    import os, resource, ssl, sys, time
    import omq

    scheme, certificate, first = sys.argv[1:]
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    binds = {"tls": server} if scheme == "wss" else {}
    connects = {"tls": ssl.create_default_context(cafile=certificate)} if scheme == "wss" else {}

    def join(count):
        pushes = [omq.PUSH(linger=0) for _ in range(count)]
        for push in pushes:
            push.connect(pull.endpoints[0], **connects)
        return pushes

    def limit(more):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + more, hard))

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    pull = omq.PULL()
    monitor = pull.monitor()
    pull.bind(f"{scheme}://127.0.0.1:*", **binds)
    if first == "warm":
        (push,) = join(1)
        push.wait_connected(timeout=20)
    made = [omq.PUSH(linger=0) for _ in range(12)]
    limit(int(first) if first != "warm" else 10)
    for push in made:
        push.connect(pull.endpoints[0], **connects)
    time.sleep(0.5)
    missing = sum(not push.peers for push in made)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for push in made:
        push.wait_connected(timeout=30)
        push.send(b"x")
    assert all(pull.recv(timeout=20) == b"x" for _ in made)
    print(missing)
    sys.stdout.flush()
    os._exit(0)
"""


FIRST = [("ws", "warm"), ("wss", "1"), ("ws", "3"), ("wss", "6")]
ALL = [(scheme, first) for scheme in ("ws", "wss") for first in ("warm", *"123456")]


@pytest.mark.parametrize(
    ("scheme", "first"), [pytest.param(*one, marks=() if one in FIRST else pytest.mark.slow) for one in ALL]
)
def test_websockets_come_again_once_there_are_descriptors(scheme, first, tmp_path):
    """A connection needs more than its descriptor, and the first one of a process a thread, or a library, besides."""
    program = textwrap.dedent(WEBSOCKETS)
    done = run("-c", program, scheme, make_certificate(tmp_path), first, timeout=90, template=SOCKETS)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 0  # so few descriptors were not enough
    assert "Traceback" not in done.stderr


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def settle() -> None:
    """Lets the context's threads open what they need: they do so in the background."""
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
        push.send(b"x")
        assert pull.recv(timeout=20) == b"x"


def test_a_closed_socket_keeps_no_descriptor_of_a_wait():
    with omq.PULL(bind="inproc://first"):
        settle()
        before = open_descriptors()
        pulls = [omq.PULL(bind=f"inproc://{number}") for number in range(20)]
        assert omq.wait(pulls, 0) == []
        for pull in pulls:
            pull.close()
        assert open_descriptors() == before


def test_a_released_descriptor_is_closed_with_its_socket():
    with omq.PULL(bind="inproc://first"):
        settle()
        before = open_descriptors()
        pull = omq.PULL(bind="inproc://second")
        pull.fileno()
        pull.release_fileno()
        pull.close()
        assert open_descriptors() == before


def test_a_descriptor_that_may_be_selected_on_outlives_its_socket_until_it_is_released():
    with omq.PULL(bind="inproc://first"):
        settle()
        before = open_descriptors()
        pull = omq.PULL(bind="inproc://second")
        fd = pull.fileno()
        pull.close()
        assert os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventfd]"
        pull.release_fileno()
        assert open_descriptors() == before
        pull.release_fileno()


@pytest.mark.parametrize("first", ["close", "release"])
def test_the_twin_gives_its_descriptor_back(first):
    async def main() -> None:
        before = open_descriptors()
        pull = omq.asyncio.PULL()
        pull.fileno()
        if first == "release":
            pull.release_fileno()
        await pull.close()
        left = open_descriptors() - before
        pull.release_fileno()
        assert (left, open_descriptors()) == (1 if first == "close" else 0, before)

    asyncio.run(main())
