"""Listening: stale files, names in use, too many descriptors, and its end."""

import errno
import socket
import stat

import pytest

import omq.asyncio as omq
from omq.engine import listener
from tests.unit.conftest import on_both_loops, until
from tests.unit.engine.wire import RawPeer


async def test_a_stale_ipc_file_is_taken_over(make, tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert stat.S_ISSOCK(path.stat().st_mode)
    pull = make(omq.PULL, bind=f"ipc://{path}")
    push = make(omq.PUSH, connect=f"ipc://{path}")
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"


async def test_an_ipc_path_in_use_is_not_taken(make, tmp_path):
    make(omq.PULL, bind=f"ipc://{tmp_path}/s")
    with pytest.raises(omq.BindError, match=f"{tmp_path}/s"):
        omq.PULL(bind=f"ipc://{tmp_path}/s")


async def test_an_ipc_file_goes_with_its_socket(make, tmp_path):
    pull = make(omq.PULL, bind=f"ipc://{tmp_path}/s")
    assert (tmp_path / "s").exists()
    await pull.close()
    assert list(tmp_path.iterdir()) == []


async def test_names_in_use_are_refused(make, inproc):
    pull = make(omq.PULL, bind=["tcp://127.0.0.1:*", inproc])
    for endpoint in pull.endpoints:
        with pytest.raises(omq.BindError) as raised:
            omq.PULL(bind=endpoint)
        assert endpoint in str(raised.value)


@on_both_loops
async def test_running_out_of_descriptors_pauses_and_goes_on(make, monkeypatch, reports):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    (inner,) = pull._engine._listeners.values()
    calls = 0
    monkeypatch.setattr(listener, "_BREATH", 0.02)
    (real,) = inner._sockets

    class Scarce:
        def fileno(self):
            return real.fileno()

        def close(self):
            real.close()

        def accept(self):
            nonlocal calls
            calls += 1
            if calls < 4:
                raise OSError(errno.EMFILE, "Too many open files")
            return real.accept()

    inner._sockets = [Scarce()]
    inner._pause()
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
    assert [event[0] for event in reports if event[0] == "accept_failed"] == ["accept_failed"] * 3
    # It breathed between the attempts instead of spinning on the descriptor.
    assert calls < 8


async def test_unbinding_keeps_connections_and_frees_the_name(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    where = pull.endpoints[0]
    pull.unbind(where)
    assert pull.endpoints == []
    await push.send(b"still connected")
    assert await pull.recv(timeout=5) == b"still connected"
    with pytest.raises(omq.EndpointError, match="not bound"):
        pull.unbind(where)
    other = make(omq.PULL, bind=where)
    late = make(omq.PUSH, connect=where)
    await late.send(b"to the new one")
    assert await other.recv(timeout=5) == b"to the new one"


async def test_unbind_wants_the_resolved_endpoint(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    with pytest.raises(omq.EndpointError, match="bound is tcp://127"):
        pull.unbind("tcp://127.0.0.1:*")
    pull.unbind(pull.endpoints[0])


@on_both_loops
@pytest.mark.parametrize("endpoint", ["tcp", "ipc"], indirect=True)
@pytest.mark.parametrize("bad", [b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100, b"\0" * 64, b"\1\0"])
async def test_strangers_do_no_harm(make, endpoint, bad):
    pull = make(omq.PULL, bind=endpoint)
    strangers = [await RawPeer.dial(pull.endpoints[0]) for _ in range(5)]
    for stranger in strangers:
        if bad:
            await stranger.send(bad)
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
    for stranger in strangers:
        stranger.close()
    await push.send(b"y")
    assert await pull.recv(timeout=5) == b"y"
    await until(lambda: len(pull._engine._sessions) == 1)


async def test_a_hundred_connections_at_once(make, endpoint):
    pull = make(omq.PULL, bind=endpoint, backlog=200)
    pushes = [make(omq.PUSH, connect=pull.endpoints[0], reconnect_interval=0.01) for _ in range(100)]
    await pull.wait_connected(100, timeout=10)
    for number, push in enumerate(pushes):
        await push.send(b"%d" % number)
    got = []
    while len(got) < 100:
        got += await pull.recv_many(timeout=5)
    assert sorted(got, key=int) == [b"%d" % number for number in range(100)]
