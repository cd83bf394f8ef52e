"""Dialling absent peers: a system call or two for an attempt, and no Python code of the dialer's."""

import asyncio
import errno
import socket
import subprocess
import sys
import threading

import pytest

import omq as blocking
import omq.asyncio as omq
from omq.engine import dialer, reconnect_scheduler
from omq.engine.lifecycle import DialerState
from tests.support.ports import held
from tests.unit.conftest import on_both_loops, until
from tests.unit.engine.raw_listeners import FAST, accept, listening


@pytest.fixture
def attempts(monkeypatch):
    """Counts attempts: by the loop's scheduler, and by dialers themselves."""
    made = {"quick": 0, "own": 0}
    real_dial, real_connect = reconnect_scheduler.dial, dialer.Dialer._connect

    def dial(*arguments):
        made["quick"] += 1
        return real_dial(*arguments)

    async def connect(self, *begun):
        made["own"] += 1
        return await real_connect(self, *begun)

    monkeypatch.setattr(reconnect_scheduler, "dial", dial)
    monkeypatch.setattr(dialer.Dialer, "_connect", connect)
    return made


def only_dialer(push, where):
    (found,) = push._engine.endpoints.dialers[where]
    return found


@on_both_loops
async def test_only_what_is_different_reaches_the_dialer(make, attempts, free_place):
    push = make(omq.PUSH, connect=free_place, **FAST)
    await until(lambda: attempts["quick"] >= 10)
    assert attempts["own"] == 1
    pull = make(omq.PULL, bind=free_place)
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
    assert attempts["own"] == 2  # the second one was handed over


async def test_over_ipc_too(make, attempts, tmp_path):
    where = f"ipc://{tmp_path}/later"
    push = make(omq.PUSH, connect=where, **FAST)
    await until(lambda: attempts["quick"] >= 10)
    assert attempts["own"] == 1
    pull = make(omq.PULL, bind=where)
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"


def test_blocking_sockets_too(attempts, free_place):
    with blocking.Context() as context, blocking.PUSH(context, connect=free_place, **FAST) as push:
        pull = None
        for _ in range(500):
            if attempts["quick"] >= 10:
                assert attempts["own"] == 1  # before there is a listener: the attempt that reaches it is handed over
                pull = blocking.PULL(context, bind=free_place)
                break
            threading.Event().wait(0.01)
        assert pull is not None
        push.send(b"x")
        assert pull.recv(timeout=5) == b"x"
        pull.close()


async def test_a_new_monitor_reports_each_attempt(make, attempts, free_place):
    push = make(omq.PUSH, connect=free_place, **FAST)
    await until(lambda: attempts["quick"] >= 3)
    monitor = push.monitor()
    kinds = [(await monitor.recv(timeout=5)).kind for _ in range(6)]
    assert kinds == ["connect_delayed", "connect_failed", "connect_retried"] * 2
    monitor.close()
    quick = attempts["quick"]
    await until(lambda: attempts["quick"] > quick + 3)


async def test_a_name_is_looked_up_after_a_moment(make, attempts, monkeypatch):
    monkeypatch.setattr(dialer, "ANSWER_TTL_S", 0.1)
    moved = []

    async def resolve(self, lookup):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2" if moved else "127.0.0.1", lookup.port))]

    monkeypatch.setattr(dialer.Dialer, "_resolve", resolve)
    with held("127.0.0.1", "127.0.0.2") as port:
        pull = make(omq.PULL, bind=f"tcp://127.0.0.2:{port}")
        push = make(omq.PUSH, connect=f"tcp://moving.example:{port}", **FAST)
        await until(lambda: attempts["own"] >= 2)
        assert attempts["quick"] > attempts["own"]
        moved.append(True)
        await push.send(b"x")
        assert await pull.recv(timeout=5) == b"x"


async def test_many_dialers_of_one_name_ask_once_in_a_while(make, attempts, monkeypatch, free_port):
    asked, real = [], socket.getaddrinfo

    def look_up(host, *arguments, **named):
        if not named.get("flags"):
            asked.append(host)
        return real(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for _ in range(20):
        make(omq.DEALER, connect=f"tcp://localhost:{free_port}", **FAST)
    await until(lambda: attempts["quick"] >= 400)
    assert len(asked) <= 3


@on_both_loops
async def test_closing_ends_it(make, attempts, free_place):
    push = make(omq.PUSH, connect=free_place, **FAST)
    await until(lambda: attempts["quick"] >= 3)
    found = only_dialer(push, free_place)
    await push.close(linger=0)
    assert found.state is DialerState.CLOSED
    quick = attempts["quick"]
    await asyncio.sleep(0.05)
    assert attempts["quick"] == quick


async def test_closing_during_an_attempt_closes_its_connection(make, attempts, free_port):
    """The attempt has succeeded, and the dialer's turn has not come yet."""
    where = f"tcp://127.0.0.1:{free_port}"
    push = make(omq.PUSH, connect=where, **FAST)
    await until(lambda: attempts["quick"] >= 3)
    found = only_dialer(push, where)
    with listening(address=("127.0.0.1", free_port)) as server:
        real, handed = found.resume, asyncio.get_running_loop().create_future()

        def resume(fd, code):
            real(fd, code)
            found._task.cancel()
            handed.set_result(fd)

        found.__dict__["resume"] = resume
        assert await asyncio.wait_for(handed, 5) >= 0
        with await accept(server) as connected:
            connected.setblocking(False)
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connected, 1), 5) == b""


@on_both_loops
async def test_an_answer_that_takes_a_while_is_waited_for(make, attempts, monkeypatch, free_port):
    """The kernel of a peer farther away: the attempt is handed over before it has come to its end."""
    push = make(omq.PUSH, connect=f"tcp://127.0.0.1:{free_port}", **FAST)
    await until(lambda: attempts["quick"] >= 3)
    real = reconnect_scheduler.dial

    def slow(*arguments):
        fd, code = real(*arguments)
        return fd, errno.EINPROGRESS if fd >= 0 else code

    monkeypatch.setattr(reconnect_scheduler, "dial", slow)
    pull = make(omq.PULL, bind=f"tcp://127.0.0.1:{free_port}")
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"


async def test_what_is_set_on_a_socket_is_set_here_too(make, attempts, free_port):
    push = make(omq.PUSH, connect=f"tcp://127.0.0.1:{free_port}", tcp_keepalive=1, recv_buffer=65536, **FAST)
    await until(lambda: attempts["quick"] >= 3)
    seen = asyncio.get_running_loop().create_future()
    real = only_dialer(push, f"tcp://127.0.0.1:{free_port}").resume

    def resume(fd, code):
        sock = socket.socket(fileno=fd)
        names = [(socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE)]
        values = [sock.getsockopt(*name) for name in [*names, (socket.SOL_SOCKET, socket.SO_RCVBUF)]]
        real(sock.detach(), code)
        seen.set_result(values)

    only_dialer(push, f"tcp://127.0.0.1:{free_port}").__dict__["resume"] = resume
    with listening(address=("127.0.0.1", free_port)):
        assert await asyncio.wait_for(seen, 5) == [1, 1, 131072]


async def test_a_dropped_socket_leaves_nothing(make, attempts, free_place):
    push = omq.PUSH(connect=free_place, linger=0, **FAST)
    await until(lambda: attempts["quick"] >= 3)
    scheduler = reconnect_scheduler.reconnect_scheduler_of(asyncio.get_running_loop())
    with pytest.warns(ResourceWarning):
        del push
    await until(lambda: not scheduler._heap)


USED = """
import sys, time
lib, n, where = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if lib == "omq":
    import omq
    sockets = [omq.DEALER(connect=where, linger=0) for _ in range(n)]
else:
    import zmq
    context = zmq.Context()
    sockets = [context.socket(zmq.DEALER) for _ in range(n)]
    for one in sockets:
        one.linger = 0
        one.connect(where)
time.sleep(0.5)
before = time.process_time()
time.sleep(2)
print(time.process_time() - before, flush=True)
import os
os._exit(0)
"""


@pytest.mark.alone
@pytest.mark.parametrize(("count", "host"), [(200, "127.0.0.1"), pytest.param(50, "localhost", marks=pytest.mark.slow)])
def test_absent_peers_cost_about_what_they_cost_libzmq(count, host):
    with held("127.0.0.1") as port:
        where = f"tcp://{host}:{port}"
        command = [sys.executable, "-c", USED]
        running = [
            (library, subprocess.Popen([*command, library, str(count), where], stdout=subprocess.PIPE))
            for library in ("zmq", "omq", "zmq", "omq")
        ]
        found = [(library, float(process.communicate(timeout=30)[0])) for library, process in running]
    used = {library: min(seconds for name, seconds in found if name == library) for library in ("zmq", "omq")}
    assert used["omq"] < 3 * used["zmq"], used
