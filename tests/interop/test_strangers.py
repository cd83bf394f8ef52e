"""Peers that do not speak ZMTP: scanners that probe a port, and connections that end before they are accepted.

libzmq's #769, #868, #147 and #87 (telnet, nmap) and #2334 (a peer that resets before `getpeername` and the TCP options)
ended the process by an assertion; a peer that goes while it is written to sends SIGPIPE to who does not ask for none.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import omq.asyncio as omq
from omq.event import EventKind, HandshakeFailure
from omq.transport import ipc, tcp
from tests.interop.conftest import Fresh
from tests.interop.disconnect_reasons import verdicts
from tests.interop.run_coroutine import on_uvloop
from tests.support.raw_zmtp import dialled, greeting

SERVER_PUBLIC, SERVER_SECRET = omq.curve_keypair()
SERVERS: dict[str, dict[str, Any]] = {
    "NULL": {},
    "PLAIN": {"security": omq.PlainServer({"user": "word"})},
    "CURVE": {"security": omq.CurveServer(SERVER_SECRET)},
}
CLIENTS: dict[str, dict[str, Any]] = {
    "NULL": {},
    "PLAIN": {"security": omq.PlainClient("user", "word")},
    "CURVE": {"security": omq.CurveClient(SERVER_PUBLIC)},
}
MECHANISMS = pytest.mark.parametrize("mechanism", SERVERS)

#: What nmap's service probes send first, one connection each (its file nmap-service-probes has them by these names).
PROBES: dict[str, bytes] = {
    "NULL": b"",
    "GenericLines": b"\r\n\r\n",
    "GetRequest": b"GET / HTTP/1.0\r\n\r\n",
    "HTTPOptions": b"OPTIONS / HTTP/1.0\r\n\r\n",
    "RTSPRequest": b"OPTIONS / RTSP/1.0\r\n\r\n",
    "RPCCheck": bytes.fromhex("80000028 72fe1d13 00000000 00000002 000186a0 00019765 00000000") + bytes(16),
    "DNSVersionBindReqTCP": bytes.fromhex("001e 0006 0100 0001 0000 0000 0000") + b"\x07version\x04bind\0\0\x10\0\x03",
    "Help": b"HELP\r\n",
    "SSLSessionReq": bytes.fromhex("16030000530100004f0300") + bytes(76),
    "Kerberos": bytes.fromhex("00000071 6a81 6e30 816b a103 0201 05a2 0302 010a") + bytes(97),
    "SMBProgNeg": bytes.fromhex("000000a4 ff534d42 72000000 000801 40") + bytes(148),
    "X11Probe": b"\x6c\0\x0b\0\0\0\0\0\0\0\0\0",
    "FourOhFourRequest": b"GET /nice%20ports%2C/Tri%6Eity.txt%2ebak HTTP/1.0\r\n\r\n",
    "LPDString": b"\x01default\n",
    "LDAPBindReq": bytes.fromhex("300c 0201 0160 0702 0102 0400 8000"),
    "SIPOptions": b"OPTIONS sip:nm SIP/2.0\r\nVia: SIP/2.0/TCP nm;branch=foo\r\n\r\n",
    "TerminalServer": bytes.fromhex("0300000b 06e00000 000000"),
    "JavaRMI": b"JRMI\0\x02\x4b",
    "NotesRPC": bytes.fromhex("3a000000 2f000000 02000040 020f0001") + bytes(42),
    "ZMTP-greeting-alone": greeting(),
}


@asynccontextmanager
async def serving(fresh: Fresh, mechanism: str = "NULL", transport: str = "tcp") -> AsyncIterator[Any]:
    """A server, which serves a good client afterwards and has nothing of anybody else."""
    async with omq.PULL(bind=fresh(transport), linger=0, **SERVERS[mechanism]) as pull:
        yield pull
        async with omq.PUSH(connect=pull.endpoints[0], **CLIENTS[mechanism]) as push:
            await push.send(b"good", timeout=5)
            assert await pull.recv(timeout=5) == b"good"
        assert not await pull.poll(timeout=0)


def plain_connection(where: str) -> socket.socket:
    """A connection that is made without a turn of the event loop: the listener has not accepted it."""
    scheme, address = where.split("://")
    if scheme == "ipc":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address)
        return sock
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)))


def reset(sock: socket.socket) -> None:
    """Ends a connection with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


# --- nmap -------------------------------------------------------------------------------------------


@MECHANISMS
@pytest.mark.parametrize("end", ["FIN", "RST"])
@on_uvloop
async def test_a_port_scan_868_147_87(fresh: Fresh, mechanism: str, end: str) -> None:
    """Connects, all at once, that end before a byte was sent: `nmap -sT`."""
    async with serving(fresh, mechanism) as pull:
        for _ in range(5):
            for scanner in [plain_connection(pull.endpoints[0]) for _ in range(50)]:
                reset(scanner) if end == "RST" else scanner.close()
            await asyncio.sleep(0)


@MECHANISMS
@pytest.mark.parametrize("probe", PROBES)
@on_uvloop
async def test_a_service_probe_769_868(fresh: Fresh, mechanism: str, probe: str) -> None:
    """`nmap -sV`: sends something, waits for an answer for a moment, and goes."""
    async with serving(fresh, mechanism) as pull, verdicts(pull) as reported:
        async with dialled(pull.endpoints[0]) as scanner:
            assert (await scanner.read(64))[12:32].rstrip(b"\0").decode() == mechanism
            await scanner.send(PROBES[probe])
            if probe not in ("NULL", "ZMTP-greeting-alone"):
                await scanner.ended()
        if probe == "NULL":
            await reported.failed(HandshakeFailure.HUNG_UP)
        elif probe != "ZMTP-greeting-alone":
            await reported.failed(
                HandshakeFailure.PROTOCOL,
                "a ZMTP 1.0 peer, or one that does not speak ZMTP, is not supported; its greet",
            )
        elif mechanism == "NULL":
            await reported.failed(HandshakeFailure.HUNG_UP)
        else:
            await reported.failed(HandshakeFailure.MECHANISM, f"the peer's mechanism is NULL, ours is {mechanism}")


@on_uvloop
async def test_every_probe_at_once(fresh: Fresh) -> None:
    async with serving(fresh) as pull, contextlib.AsyncExitStack() as scan, verdicts(pull) as reported:
        for probe in list(PROBES.values()) * 5:
            scanner = await scan.enter_async_context(dialled(pull.endpoints[0]))
            await scanner.send(probe)
        for _ in range(5 * (len(PROBES) - 2)):
            await reported.failed(HandshakeFailure.PROTOCOL, "a ZMTP 1.0 peer, or one that does not speak ZMTP")


# --- gone before anybody looked ---------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@pytest.mark.parametrize("sent", [b"", greeting()[:20], b"\0" * 200], ids=["nothing", "a-beginning", "garbage"])
@on_uvloop
async def test_a_reset_before_the_connection_is_accepted_2334(fresh: Fresh, transport: str, sent: bytes) -> None:
    """No turn of the loop stands between connect and reset: `getpeername` and the TCP options fail."""
    async with serving(fresh, transport=transport) as pull, pull.monitor(limit=10_000) as monitor:
        for _ in range(50):
            sock = plain_connection(pull.endpoints[0])
            sock.sendall(sent)
            reset(sock)
        ends = 0
        while ends < 50:
            event = await monitor.recv(timeout=5)
            # One that cannot even be set up is reported, too; each of the others ends like any connection.
            ends += event.kind in (EventKind.DISCONNECTED, EventKind.ACCEPT_FAILED)
            if event.kind is EventKind.HANDSHAKE_FAILED:
                assert event.category in (HandshakeFailure.HUNG_UP, HandshakeFailure.PROTOCOL)
        assert pull.peers == []


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@on_uvloop
async def test_options_that_a_gone_connection_refuses_2334(
    fresh: Fresh, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some systems answer a TCP option with EINVAL once the peer is gone: the next one is accepted."""
    refuses = False

    def refusing(real: Any) -> Any:
        def tune(*given: Any) -> None:
            if refuses:
                raise OSError(errno.EINVAL, "Invalid argument")
            real(*given)

        return tune

    for module in (tcp, ipc):
        monkeypatch.setattr(module, "tune", refusing(module.tune))
    async with serving(fresh, transport=transport) as pull, pull.monitor() as monitor:
        refuses = True
        for _ in range(3):
            async with dialled(pull.endpoints[0]) as peer:
                assert await peer.ended() == b""
            event = await monitor.recv(timeout=5)
            assert event.kind is EventKind.ACCEPT_FAILED
            assert isinstance(event.error, OSError)
            assert event.error.errno == errno.EINVAL
        refuses = False


@on_uvloop
async def test_reconnect_storms_leave_nothing(fresh: Fresh) -> None:
    """libzmq's `pipe_t::process_pipe_term_ack` of 2026-04 freed twice when connections came and went fast enough."""
    async with serving(fresh) as pull, pull.monitor(limit=100_000) as monitor:
        pushes = [omq.PUSH(linger=0, reconnect_interval=0.001) for _ in range(10)]
        for turn in range(20):
            for push in pushes:
                push.connect(pull.endpoints[0])
            if turn % 2:
                await asyncio.gather(*(push.wait_connected(timeout=5) for push in pushes))
            for push in pushes:
                push.disconnect(pull.endpoints[0])
        for push in pushes:
            push.stop()
        accepted = ended = 0
        while accepted < 100 or accepted != ended:
            event = await monitor.recv(timeout=5)
            accepted += event.kind is EventKind.ACCEPTED
            ended += event.kind is EventKind.DISCONNECTED
        assert pull.peers == []


# --- SIGPIPE ----------------------------------------------------------------------------------------

DEADLY = """
    import asyncio, signal, socket, struct, sys
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    import omq, omq.asyncio

    greeting = b"\\xff" + bytes(8) + b"\\x7f\\3\\1" + b"NULL".ljust(52, b"\\0")
    ready = b"\\4\\x1a\\5READY\\x0bSocket-Type\\0\\0\\0\\4PULL"

    def dial(endpoint):
        scheme, address = endpoint.split("://", 1)
        if scheme == "ipc":
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(address)
            return sock
        return socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])))
"""

#: The peer is gone when the greeting, or READY, is written: no turn of the loop lets it be accepted before.
IN_THE_HANDSHAKE = """
    async def main():
        push = omq.asyncio.PUSH(bind=sys.argv[1], linger=0)
        monitor = push.monitor()
        for sent in [b"", greeting, greeting + ready[:5], greeting + ready] * 10:
            sock = dial(push.endpoints[0])
            sock.sendall(sent)
            sock.close()
            while (await monitor.recv(timeout=10)).kind != "disconnected":
                pass
        push.stop()

    asyncio.run(main())
    print("alive")
"""

IN_THE_TRAFFIC = """
    push = omq.PUSH(bind=sys.argv[1], linger=0, send_hwm=10)
    monitor = push.monitor()
    for _ in range(10):
        sock = dial(push.endpoints[0])
        sock.sendall(greeting + ready)
        push.wait_connected(timeout=10)
        try:
            push.send_many([bytes(100_000)] * 20, timeout=0.01)
        except omq.Timeout:
            pass
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        while monitor.recv(timeout=10).kind != "disconnected":
            try:
                push.send(bytes(100), timeout=0)
            except omq.Timeout:
                pass
    push.stop()
    print("alive")
"""


@pytest.mark.parametrize("part", [IN_THE_HANDSHAKE, IN_THE_TRAFFIC], ids=["handshake", "traffic"])
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_peers_that_go_while_they_are_written_to_send_no_sigpipe(fresh: Fresh, transport: str, part: str) -> None:
    """To a program that does not ignore the signal as Python does."""
    program = [sys.executable, "-c", textwrap.dedent(DEADLY + part), fresh(transport)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
