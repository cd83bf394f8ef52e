"""Listening: stale files, names in use, too many descriptors, and its end."""

import errno
import socket
import stat
from typing import Any

import pytest

import omq.asyncio as omq
from omq._core.link import handshake_io
from omq.engine import listener
from tests.support.raw_peer import RawPeer
from tests.unit.conftest import on_both_loops, until


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


async def test_a_path_whose_file_was_deleted_is_bound_again_and_the_old_listener_ends(make, tmp_path):
    pull = make(omq.PULL)
    monitor = pull.monitor()
    first = pull.bind(f"ipc://{tmp_path}/s")
    await make(omq.PUSH, connect=first).send(b"early")
    assert await pull.recv(timeout=5) == b"early"
    (old,) = pull._engine.endpoints.listeners.values()
    (tmp_path / "s").unlink()
    assert pull.bind(first) == first
    assert pull.endpoints == [first]
    assert [sock.fileno() for sock in old._sockets] == [-1]
    assert (tmp_path / "s").exists()
    late = make(omq.PUSH, connect=first)
    await late.send(b"late")
    assert await pull.recv(timeout=5) == b"late"
    await pull.close()
    assert list(tmp_path.iterdir()) == []
    events = [(event.kind, event.reason) async for event in monitor if event.kind in ("listening", "closed")]
    reason = "bound again: its file was deleted"
    assert events == [("listening", ""), ("closed", reason), ("listening", ""), ("closed", "the socket is closed")]


@on_both_loops
async def test_an_endpoint_that_the_loop_cannot_watch_is_not_bound(make, monkeypatch, tmp_path):
    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    bound, monitor = pull.endpoints, pull.monitor()
    monkeypatch.setattr(listener.Listener, "start", full)
    with pytest.raises(omq.BindError, match=f"{tmp_path}/s: no space left") as raised:
        pull.bind(f"ipc://{tmp_path}/s")
    assert raised.value.errno == errno.ENOSPC
    assert pull.endpoints == bound
    assert list(tmp_path.iterdir()) == []
    kinds = [(await monitor.recv(timeout=5)).kind for _ in range(3)]
    assert kinds == ["listening", "closed", "bind_failed"]


async def test_names_in_use_are_refused(make, inproc):
    pull = make(omq.PULL, bind=["tcp://127.0.0.1:*", inproc])
    for endpoint in pull.endpoints:
        with pytest.raises(omq.BindError) as raised:
            omq.PULL(bind=endpoint)
        assert endpoint in str(raised.value)


@on_both_loops
async def test_running_out_of_descriptors_pauses_and_goes_on(make, monkeypatch, reports):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    (inner,) = pull._engine.endpoints.listeners.values()
    calls = 0
    monkeypatch.setattr(listener, "_RETRY_DELAY_S", 0.02)

    def scarce(fd: int) -> Any:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise OSError(errno.EMFILE, "Too many open files")
        return handshake_io.accept(fd)

    monkeypatch.setattr(listener, "accept", scarce)
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
