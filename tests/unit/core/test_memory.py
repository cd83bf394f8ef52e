"""The cost of a connection while nothing happens on it."""

import asyncio
import gc
import resource
import socket
from pathlib import Path

import pytest

import omq.asyncio as omq
from tests.support.raw_peer import GREETING, command, frames, ready
from tests.unit.conftest import until

CONNECTIONS = 1000
LIMIT = 32  # KiB for each
#: AddressSanitizer keeps what was freed for a while.
SANITIZED = "libasan" in Path("/proc/self/maps").read_text()


@pytest.fixture
def descriptors():
    """Room for both ends of a thousand connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + 200
    if before[1] != resource.RLIM_INFINITY and before[1] < wanted:
        pytest.skip(f"the process may open {before[1]} descriptors, {wanted} are needed")
    if before[0] < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def held():
    """KiB that the process holds in memory, and that it has asked the system for."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(status[name].split()[0]) for name in ("VmRSS", "VmData"))


@pytest.mark.parametrize("kind", [omq.PULL, omq.ROUTER, omq.PUB], ids=lambda kind: kind.__name__)
async def test_idle_connections_cost_little(make, tmp_path, descriptors, kind):
    """After a message and a command each the slabs are back in the pool."""
    theirs = {omq.PULL: b"PUSH", omq.ROUTER: b"DEALER", omq.PUB: b"SUB"}[kind]
    hub = make(kind, bind=f"ipc://{tmp_path}/hub", backlog=1000)
    loop = asyncio.get_running_loop()
    others: list[socket.socket] = []
    gc.collect()
    before = held()
    try:
        for number in range(CONNECTIONS):
            other = socket.socket(socket.AF_UNIX)
            other.setblocking(False)
            others.append(other)
            await loop.sock_connect(other, f"{tmp_path}/hub")
            await loop.sock_sendall(other, GREETING + ready(theirs))
            if number % 50 == 0:
                await hub.wait_connected(max(1, number - 50), timeout=10)
        await hub.wait_connected(CONNECTIONS, timeout=10)
        for number, other in enumerate(others):
            if kind is omq.PUB:
                await loop.sock_sendall(other, command(b"SUBSCRIBE", b"%d" % number))
            else:
                # The message and the command behind it come in one read.
                await loop.sock_sendall(other, frames(bytes(1000)) + command(b"PING", b"\0\0"))
                await hub.recv_multipart(timeout=5)
        if kind is omq.PUB:
            await hub.wait_subscribed(n=CONNECTIONS, timeout=10)
        assert sum(session.peer.slabs for session in hub._engine.sessions) == 0
        gc.collect()
        if SANITIZED:
            return
        # A slab that is kept counts with all its pages, also with those that were never touched.
        for now, then in zip(held(), before, strict=True):
            assert (now - then) / CONNECTIONS < LIMIT
    finally:
        for other in others:
            other.close()
        await until(lambda: not hub.peers)
