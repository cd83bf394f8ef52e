"""Names and addresses: no pool of threads, and a resolver that hangs delays no other socket."""

import asyncio
import os
import socket
import threading

import pytest

import omq.asyncio as omq
from omq.engine import resolver as resolver_module
from omq.engine.resolver import Resolver, reach
from omq.transport import Lookup
from tests.unit.conftest import on_both_loops, until


def lookup(host):
    """Returns the lookup of a host, for port 80."""
    return Lookup(host, 80, {"type": socket.SOCK_STREAM}, ())


@pytest.fixture
def hanging(monkeypatch):
    """A resolver that knows no answer for `hangs` until the test ends, and counts how often it was asked."""
    over = threading.Event()
    real = socket.getaddrinfo
    asked = []

    def look_up(host, *arguments, **named):
        if host == "hangs" and not named.get("flags"):
            asked.append(host)
            over.wait(20)
        return real(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield asked
    over.set()


@on_both_loops
async def test_a_resolver_that_hangs_is_asked_once_and_delays_no_other(make, hanging, reports):
    lost = make(omq.PUSH, connect="tcp://hangs:5", connect_timeout=0.02, reconnect_interval=0.01)
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    port = pull.endpoints[0].rpartition(":")[2]
    push = make(omq.PUSH, connect=f"tcp://localhost:{port}")
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
    await until(lambda: sum(kind == "connect_failed" for kind, _, _ in reports) >= 3)
    assert hanging == ["hangs"]
    async with asyncio.timeout(5):
        await lost.close(linger=0)


@on_both_loops
async def test_answers_and_failures():
    loop = asyncio.get_running_loop()
    resolver = Resolver()
    both = await asyncio.gather(*(resolver.resolve(loop, lookup("127.0.0.1")) for _ in range(2)))
    assert both[0][0][4] == ("127.0.0.1", 80)
    assert both[0] is both[1]
    for _ in range(2):
        with pytest.raises(OSError, match="nown"):
            await resolver.resolve(loop, lookup("no such host"))
    with pytest.raises(UnicodeError):
        await resolver.resolve(loop, lookup("a" * 70 + ".example"))


@on_both_loops
async def test_a_thread_that_the_system_does_not_give_is_asked_for_again(monkeypatch):
    loop = asyncio.get_running_loop()
    resolver = Resolver()

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="thread"):
            await resolver.resolve(loop, lookup("127.0.0.1"))
    async with asyncio.timeout(5):
        assert (await resolver.resolve(loop, lookup("127.0.0.1")))[0][4] == ("127.0.0.1", 80)


@on_both_loops
async def test_a_unix_socket_whose_queue_is_full_is_waited_for(tmp_path):
    loop = asyncio.get_running_loop()
    path = f"{tmp_path}/s"
    made = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(0)
        tasks = []
        for _ in range(5):
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            made.append(sock)
            tasks.append(asyncio.create_task(reach(loop, sock, path)))
        await asyncio.sleep(0.05)
        assert not all(task.done() for task in tasks)
        listening.setblocking(False)
        async with asyncio.timeout(5):
            made += [(await loop.sock_accept(listening))[0] for _ in range(5)]
            await asyncio.gather(*tasks)
    for sock in made:
        sock.close()


@on_both_loops
async def test_refusals():
    loop = asyncio.get_running_loop()
    with socket.socket() as free, socket.socket() as sock:
        free.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        with pytest.raises(ConnectionRefusedError):
            await reach(loop, sock, free.getsockname())
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        with pytest.raises(FileNotFoundError):
            await reach(loop, sock, f"/nonexistent/{os.getpid()}")


@on_both_loops
async def test_an_answer_holds_for_a_moment(monkeypatch):
    """Many dialers ask for the name of one absent peer, each ten times a second."""
    asked = []

    def look_up(host, port, **hints):
        asked.append(host)
        if host == "absent":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{len(asked)}", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(resolver_module, "ANSWER_TTL_S", 0.2)
    loop = asyncio.get_running_loop()
    resolver = Resolver()
    first = await resolver.resolve(loop, lookup("peer"))
    assert await resolver.resolve(loop, lookup("peer")) == first
    errors = []
    for _ in range(2):
        with pytest.raises(socket.gaierror, match="unknown") as caught:
            await resolver.resolve(loop, lookup("absent"))
        errors.append(caught.value)
    assert errors[0] is not errors[1]  # each has a traceback of its own
    assert asked == ["peer", "absent"]
    await until(lambda: loop.time() > resolver._known[("absent", 80, *lookup("absent").hints.items())][0])
    assert await resolver.resolve(loop, lookup("peer")) != first  # the peer has moved
