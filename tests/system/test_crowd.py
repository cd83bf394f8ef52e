"""A server that stands still while peers finish their handshake, and others come: no peer's first message is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.fork_server import SOCKETS, ForkedProcess
from tests.support.raw_peer import GREETING, frames, ready

PEERS, MORE = 20, 30

SERVER = """
import resource, sys
import omq

options = {"max_handshakes": int(sys.argv[2])} if sys.argv[1] == "handshakes" else {}
with omq.PULL(bind="tcp://127.0.0.1:*", **options) as pull:
    if sys.argv[1] == "descriptors":
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]) + 25, hard))
    print(pull.endpoints[0], flush=True)
    sys.stdin.readline()
    got = set()
    while len(got) < int(sys.argv[2]):
        try:
            got.add(pull.recv(timeout=5))
        except omq.Timeout:
            break
    print(len(got), flush=True)
"""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[ForkedProcess]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    running = ForkedProcess("-c", SERVER, request.param, str(PEERS), text=True, template=SOCKETS, **pipes)
    yield running
    running.kill()
    running.wait(10)
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.close()
    running.stdout.close()


def take(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        assert more, "the server has ended the connection"
        data += more
    return data


@pytest.mark.parametrize("server", ["handshakes", "descriptors"], indirect=True)
def test_peers_that_finish_while_the_server_stands_still_lose_nothing(server):
    port = int(server.stdout.readline().rpartition(":")[2])
    with contextlib.ExitStack() as stack:

        def dial() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))

        peers = [dial() for _ in range(PEERS)]
        for peer in peers:
            peer.sendall(GREETING)
            take(peer, 64)
            take(peer, take(peer, 2)[1])  # its READY: from now on this peer may send
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(1.1)  # every handshake is more than a second old then
        for _ in range(MORE):
            dial()  # first: what comes first is what the server looks at first
        for number, peer in enumerate(peers):
            peer.sendall(ready(b"PUSH") + frames(b"%d" % number))
        os.kill(server.pid, signal.SIGCONT)
        server.stdin.write("\n")
        server.stdin.flush()
        assert server.stdout.readline() == f"{PEERS}\n"
