"""Dialling: what refuses, what resets, which address, and again until it works."""

import asyncio
import errno
import socket
import time

import pytest

import omq.asyncio as omq
from omq.engine import dialer
from omq.engine.lifecycle import DialerState
from omq.transport import tcp
from tests.support.machine import needs_ipv6
from tests.support.ports import held
from tests.support.raw_peer import GREETING
from tests.unit.conftest import on_both_loops, until
from tests.unit.engine.raw_listeners import FAST, accept, listening, mute, port_of, reset


@on_both_loops
async def test_what_is_refused_is_dialled_again(make, reports, free_place):
    push = make(omq.PUSH, connect=free_place, **FAST)
    await push.send(b"x")
    await until(lambda: sum(event[0] == "connect_failed" for event in reports) >= 3)
    pull = make(omq.PULL, bind=free_place)
    assert await pull.recv(timeout=5) == b"x"


@on_both_loops
async def test_an_ipc_path_that_is_not_there_yet(make, tmp_path, reports):
    push = make(omq.PUSH, connect=f"ipc://{tmp_path}/later", **FAST)
    await push.send(b"x")
    await until(lambda: any(event[0] == "connect_failed" for event in reports))
    pull = make(omq.PULL, bind=f"ipc://{tmp_path}/later")
    assert await pull.recv(timeout=5) == b"x"


async def read_up_to(push, when):
    """Waits until a dialling socket has read what it was sent of the greeting."""
    size = 64 if when.startswith("after") else 20
    await until(lambda: any(len(one._handshake._received) == size for one in push._engine._sessions))


@on_both_loops
@pytest.mark.parametrize(
    "when", ["at once", "after the greeting", "in the middle of the greeting", "with the first bytes of the greeting"]
)
async def test_a_reset_during_the_handshake_is_survived(make, when, reports):
    with listening() as server:
        push = make(omq.PUSH, connect=f"tcp://127.0.0.1:{port_of(server)}", **FAST)
        await push.send(b"kept")
        for _ in range(3):
            connected = await accept(server)
            if when.startswith("with"):
                connected.send(GREETING[:20])  # both have come when the dialling side looks
            elif when != "at once":
                await asyncio.get_running_loop().sock_sendall(
                    connected, GREETING if when.startswith("after") else GREETING[:20]
                )
                await read_up_to(push, when)
            reset(connected)
        port = port_of(server)
    pull = make(omq.PULL, bind=f"tcp://127.0.0.1:{port}")
    assert await pull.recv(timeout=5) == b"kept"
    assert any(event[0] == "handshake_failed" for event in reports)


@on_both_loops
async def test_a_peer_that_hangs_up_during_the_handshake_is_dialled_again(make):
    with listening() as server:
        push = make(omq.PUSH, connect=f"tcp://127.0.0.1:{port_of(server)}", **FAST)
        await push.send(b"kept")
        for _ in range(3):
            (await accept(server)).close()
        port = port_of(server)
    pull = make(omq.PULL, bind=f"tcp://127.0.0.1:{port}")
    assert await pull.recv(timeout=5) == b"kept"


@on_both_loops
async def test_without_an_interval_nothing_is_dialled_twice(make, reports):
    with listening() as server:
        push = make(omq.PUSH, connect=f"tcp://127.0.0.1:{port_of(server)}", reconnect_interval=None)
        (await accept(server)).close()
        await until(lambda: any(event[0] == "handshake_failed" for event in reports))
        for _ in range(20):
            await asyncio.sleep(0.002)
        with pytest.raises(BlockingIOError):
            server.accept()
        push.connect(f"tcp://127.0.0.1:{port_of(server)}")
        (await accept(server)).close()


@pytest.fixture
def names(monkeypatch):
    """A resolver of the test's own: names, and the addresses that each has now. Port 0 stands for the endpoint's."""
    known = {}

    async def resolve(self, lookup):
        found = known[lookup.host]
        if isinstance(found, Exception):
            raise found
        return [
            (socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port or lookup.port))
            for host, port in found
        ]

    monkeypatch.setattr(dialer.Dialer, "_resolve", resolve)
    return known


async def test_every_address_of_a_name_is_tried(make, names):
    """The first two have no listener; the third one answers."""
    with held("127.0.0.1", "127.0.0.2", "127.0.0.3") as port:
        pull = make(omq.PULL, bind=f"tcp://127.0.0.3:{port}")
        names["several.example"] = [("127.0.0.1", 0), ("127.0.0.2", 0), ("127.0.0.3", 0)]
        push = make(omq.PUSH, connect=f"tcp://several.example:{port}", **FAST)
        await push.send(b"x")
        assert await pull.recv(timeout=5) == b"x"


@on_both_loops
async def test_an_address_that_does_not_answer_costs_a_quarter_of_a_second(make, names, reports):
    """RFC 8305, section 5: the next address is tried at the same time, and the first that connects wins."""
    pull = make(omq.PULL, bind="tcp://127.0.0.3:*")
    port = int(pull.endpoints[0].rpartition(":")[2])
    with mute() as silent:
        names["eyeballs.example"] = [("127.0.0.1", silent), ("127.0.0.3", port)]
        begun = time.monotonic()
        push = make(omq.PUSH, connect=f"tcp://eyeballs.example:{port}")
        await push.wait_connected(timeout=5)
        assert time.monotonic() - begun > 0.2
    assert not any(event[0] == "connect_failed" for event in reports)


async def test_an_address_that_refuses_costs_nothing(make, names, monkeypatch):
    """The next one is tried at once, and not after its delay."""
    monkeypatch.setattr(dialer, "_ATTEMPT_DELAY_S", 60)
    pull = make(omq.PULL, bind="tcp://127.0.0.3:*")
    port = int(pull.endpoints[0].rpartition(":")[2])
    with held("127.0.0.1", "127.0.0.2") as refusing_port:
        names["refusing.example"] = [("127.0.0.1", refusing_port), ("127.0.0.2", refusing_port), ("127.0.0.3", port)]
        push = make(omq.PUSH, connect=f"tcp://refusing.example:{port}")
        await push.wait_connected(timeout=5)
        assert len(push.peers) == 1


@needs_ipv6
async def test_the_family_that_is_broken_does_not_keep_the_other_waiting(make, names, monkeypatch):
    """All IPv6 addresses first, as resolvers sort them: IPv4 has its turn as the second and not as the last."""
    tried, reach = [], dialer.reach

    def attempt(loop, sock, address):
        tried.append(sock.family)
        return reach(loop, sock, address)

    monkeypatch.setattr(dialer, "reach", attempt)
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    port = int(pull.endpoints[0].rpartition(":")[2])
    with mute("::1") as one, mute("::1") as other:
        names["dual.example"] = [("::1", one), ("::1", other), ("127.0.0.1", port)]
        push = make(omq.PUSH, connect=f"tcp://dual.example:{port}", ipv6=True)
        await push.wait_connected(timeout=5)
    assert tried[:2] == [socket.AF_INET6, socket.AF_INET]


@on_both_loops
async def test_of_two_that_connect_at_once_one_is_closed(make, names, monkeypatch):
    """The loser of the race sees a connection that closes, and no descriptor is left (the fixture checks)."""
    monkeypatch.setattr(dialer, "_ATTEMPT_DELAY_S", 0)
    with listening() as one, listening() as other:
        names["both.example"] = [("127.0.0.1", port_of(one)), ("127.0.0.1", port_of(other))]
        for _ in range(20):
            push = make(omq.PUSH, connect="tcp://both.example:1", reconnect_interval=None)
            won = await asyncio.wait_for(first_greeted(one, other), 5)
            assert won
            await push.close(linger=0)


async def first_greeted(*servers):
    """Accepts at every listener until a connection greets; the others must end without a byte."""
    loop = asyncio.get_running_loop()

    async def take(server):
        connected, _ = await loop.sock_accept(server)
        with connected:
            connected.setblocking(False)
            try:
                return await loop.sock_recv(connected, 64)
            except ConnectionResetError:
                return b""

    tasks = [asyncio.ensure_future(take(server)) for server in servers]
    while tasks:
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks = list(waiting)
        if any(task.result() for task in done):
            break
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return True


@on_both_loops
async def test_stop_ends_a_race_and_leaves_nothing(make, names, monkeypatch):
    tried, real = [], dialer.Dialer._try

    def attempt(self, route):
        tried.append(route)
        return real(self, route)

    monkeypatch.setattr(dialer.Dialer, "_try", attempt)
    with mute() as one, mute() as other:
        names["silent.example"] = [("127.0.0.1", one), ("127.0.0.1", other)] * 3
        push = make(omq.PUSH, connect="tcp://silent.example:1")
        await until(lambda: len(tried) == 2)
        await asyncio.wait_for(push.close(linger=0), 10)


async def test_when_every_address_fails_the_report_has_the_most_useful_reason(make, names, reports):
    with held("127.0.0.1", "127.0.0.2") as refusing_port:
        names["lost.example"] = [
            ("127.0.0.1", refusing_port),
            ("255.255.255.255", refusing_port),
            ("127.0.0.2", refusing_port),
        ]
        make(omq.PUSH, connect=f"tcp://lost.example:{refusing_port}", reconnect_interval=None)
        await until(lambda: any(event[0] == "connect_failed" for event in reports))
    (failure,) = [event[2] for event in reports if event[0] == "connect_failed"]
    assert "refused" not in failure.lower()


async def test_a_name_is_resolved_for_each_attempt(make, monkeypatch):
    """A service that moves is found at its new address."""
    with held("127.0.0.1", "127.0.0.2") as port:
        await _moves(make, monkeypatch, port)


async def _moves(make, monkeypatch, port):
    addresses, unknown = ["127.0.0.1"], 0
    pull = make(omq.PULL, bind=f"tcp://127.0.0.2:{port}")

    async def resolve(self, lookup):
        nonlocal unknown
        if not addresses:
            unknown += 1
            raise socket.gaierror(socket.EAI_AGAIN, "not now")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses.pop(0), lookup.port))]

    monkeypatch.setattr(dialer.Dialer, "_resolve", resolve)
    push = make(omq.PUSH, connect=f"tcp://moving.example:{port}", **FAST)
    await push.send(b"x")
    await until(lambda: unknown >= 2)
    addresses.append("127.0.0.2")
    assert await pull.recv(timeout=5) == b"x"


@on_both_loops
async def test_an_unknown_name_is_resolved_again(make, reports):
    push = make(omq.PUSH, connect="tcp://no-such-host.invalid:1", **FAST)
    await until(lambda: sum(event[0] == "connect_failed" for event in reports) >= 2)
    assert push.peers == []


async def test_a_failure_of_any_kind_does_not_end_dialling(make, monkeypatch, reports):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    port = int(pull.endpoints[0].rpartition(":")[2])
    failures = [UnicodeError("label too long"), socket.gaierror("try again"), OverflowError("port")]

    async def resolve(self, lookup):
        if failures:
            raise failures.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(dialer.Dialer, "_resolve", resolve)
    push = make(omq.PUSH, connect=f"tcp://odd.example:{port}", **FAST)
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
    assert sum(event[0] == "connect_failed" for event in reports) == 3


@on_both_loops
async def test_the_source_address_is_where_the_peer_sees_it_come_from(make):
    with listening() as server:
        make(omq.PUSH, connect=f"tcp://127.0.0.5:0;127.0.0.1:{port_of(server)}")
        with await accept(server) as connected:
            assert connected.getpeername()[0] == "127.0.0.5"


@on_both_loops
async def test_an_attempt_that_takes_too_long_is_given_up(make, reports):
    """A listener whose backlog is full answers nothing."""
    with mute() as port:
        make(omq.PUSH, connect=f"tcp://127.0.0.1:{port}", connect_timeout=0.05, **FAST)
        await until(lambda: sum("connect_timeout" in event[2] for event in reports if len(event) > 2) >= 2)


@on_both_loops
async def test_stop_ends_an_attempt_under_way(make):
    with mute() as port:
        push = make(omq.PUSH, connect=(where := f"tcp://127.0.0.1:{port}"))
        (found,) = push._engine.endpoints.dialers[where]
        await until(lambda: found.state is DialerState.CONNECTING)
        await asyncio.wait_for(push.close(linger=0), 10)


async def test_a_full_ipc_backlog_is_waited_out(make, tmp_path):
    """A unix socket refuses with EAGAIN when its queue is full: everybody gets through in the end."""
    pull = make(omq.PULL, bind=f"ipc://{tmp_path}/s", backlog=1)
    pushes = [make(omq.PUSH, connect=pull.endpoints[0], **FAST) for _ in range(30)]
    for number, push in enumerate(pushes):
        await push.send(b"%d" % number)
    got = [await pull.recv(timeout=10) for _ in pushes]
    assert sorted(got, key=int) == [b"%d" % number for number in range(30)]


async def test_running_out_of_descriptors_is_survived(make, monkeypatch, reports):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    real, failures = tcp.prepare, [OSError(errno.EMFILE, "Too many open files")] * 3

    def prepare(*arguments):
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(tcp, "prepare", prepare)
    push = make(omq.PUSH, connect=pull.endpoints[0], **FAST)
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
    assert sum(event[0] == "connect_failed" for event in reports) == 3


# Without a listener


@on_both_loops
async def test_a_connection_that_leads_to_itself_is_dropped(make, reports, free_port):
    """A client may be given the very port that it dials (RFC 9293, 3.5): it would shake hands with itself."""
    dealer = make(omq.DEALER, connect=f"tcp://127.0.0.1:{free_port};127.0.0.1:{free_port}", **FAST)
    await until(lambda: sum("led to itself" in event[2] for event in reports if event[0] == "connect_failed") >= 3)
    assert not any(event[0] == "connected" for event in reports)
    # It does not keep the server out of its port either.
    server = listening(address=("127.0.0.1", free_port))
    server.close()
    dealer.stop()


@needs_ipv6
@on_both_loops
async def test_an_ipv6_address_is_dialled(make):
    pull = make(omq.PULL, bind="tcp://[::1]:*")
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.send(b"six")
    assert await pull.recv(timeout=5) == b"six"
    assert push.peers[0].endpoint.startswith("tcp://[::1]:")


@needs_ipv6
async def test_a_name_stands_for_ipv6_only_with_the_option(make, reports):
    """localhost has both families here or only one: what listens at ::1 alone is found with ipv6=True."""
    families = {info[0] for info in socket.getaddrinfo("localhost", 1, type=socket.SOCK_STREAM)}
    if socket.AF_INET6 not in families:
        pytest.skip("localhost has no IPv6 address on this machine")
    pull = make(omq.PULL, bind="tcp://[::1]:*")
    port = int(pull.endpoints[0].rpartition(":")[2])
    push = make(omq.PUSH, connect=f"tcp://localhost:{port}", ipv6=True, **FAST)
    await push.wait_connected(timeout=5)
    make(omq.PUSH, connect=f"tcp://localhost:{port}", reconnect_interval=None)
    await until(lambda: any(event[0] == "connect_failed" for event in reports))
