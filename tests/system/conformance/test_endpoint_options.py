"""Options that hold for one endpoint: each for that one, and for no other of the same socket."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import select
import socket
import stat
import struct
import threading
import time
from typing import Any

import pytest

import omq
from omq.options import Options
from omq.transport import TRANSPORTS, tcp
from omq.transport.tcp import TcpTransport
from tests.support.raw_peer import GREETING, frames, ready
from tests.support.waits import BOUND, until

TCP = "tcp://127.0.0.1:*"
ALL = [field.name for field in dataclasses.fields(Options)]
CALLS = ["bind", "connect"]
FAST: dict[str, Any] = {"reconnect_interval": 0.01}

on_both_calls = pytest.mark.parametrize("call", CALLS)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def listen(stack):
    """Makes a listening socket that speaks no ZMTP; gives it with its endpoint."""

    def make(backlog: int = 10) -> tuple[socket.socket, str]:
        made = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=backlog))
        made.settimeout(BOUND)
        return made, f"tcp://127.0.0.1:{made.getsockname()[1]}"

    return make


@pytest.fixture
def dial(stack):
    """Connects to an endpoint by hand."""

    def make(endpoint: str) -> socket.socket:
        return stack.enter_context(socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2])), BOUND))

    return make


@pytest.fixture
def lines(stack, listen, dial):
    """Two connections of a socket to peers made by hand, the first over an endpoint with options of its own."""

    def make(one: Any, call: str, **given: Any) -> list[socket.socket]:
        if call == "bind":
            return [dial(one.bind(TCP, **given)), dial(one.bind(TCP))]
        found = []
        for options in (given, {}):
            listening, endpoint = listen()
            one.connect(endpoint, **options)
            found.append(stack.enter_context(listening.accept()[0]))
            found[-1].settimeout(BOUND)
        return found

    return make


def shake(*lines: socket.socket, kind: bytes = b"PUSH", **properties: bytes) -> None:
    """Goes through the handshake of NULL."""
    for line in lines:
        line.sendall(GREETING + ready(kind, **properties))
        received = b""
        while b"Socket-Type" not in received:
            got = line.recv(1000)
            assert got, "the other side has hung up"
            received += got


def hung_up(line: socket.socket, within: float = BOUND) -> bool:
    """Returns whether the other side ends a connection in time."""
    end = time.monotonic() + within
    while select.select([line], [], [], max(0, end - time.monotonic()))[0]:
        try:
            if not line.recv(65536):
                return True
        except ConnectionResetError:
            return True
    return False


def ours(line: socket.socket) -> socket.socket:
    """Our end of a connection within this process, as a descriptor of the test's own."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            found = socket.socket(fileno=os.dup(number))
            with contextlib.suppress(OSError):
                if found.getpeername() == line.getsockname() and found.getsockname() == line.getpeername():
                    return found
            found.close()
    raise AssertionError("no socket has the other end")


def listening(endpoint: str) -> socket.socket:
    """Returns the listening socket at an endpoint within this process, as a descriptor of the test's own."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            found = socket.socket(fileno=os.dup(number))
            port = int(endpoint.rpartition(":")[2])
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and found.getsockname()[1] == port:
                return found
            found.close()
    raise AssertionError("there is no listener")


# What the system knows of a connection

SYSTEM = {
    "tcp_keepalive": (1, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    "tcp_keepalive_count": (3, socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    "tcp_keepalive_idle": (30, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    "tcp_keepalive_interval": (5, socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    "tcp_user_timeout": (1.5, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1500),
    "send_buffer": (70_000, socket.SOL_SOCKET, socket.SO_SNDBUF, 140_000),  # socket(7): doubled
    "recv_buffer": (90_000, socket.SOL_SOCKET, socket.SO_RCVBUF, 180_000),
    "tos": (0x20, socket.IPPROTO_IP, socket.IP_TOS, 0x20),
    "priority": (5, socket.SOL_SOCKET, socket.SO_PRIORITY, 5),
}


@on_both_calls
@pytest.mark.parametrize("name", SYSTEM)
def test_what_the_system_does_with_a_connection(twin, lines, call, name):
    value, level, option, expected = SYSTEM[name]
    one = twin("PULL")
    found = lines(one, call, **{name: value})
    shake(*found)
    with ours(found[0]) as first, ours(found[1]) as second:
        assert first.getsockopt(level, option) == expected
        assert second.getsockopt(level, option) != expected


@on_both_calls
def test_a_priority_next_to_a_type_of_service(twin, lines, call):
    found = lines(twin("PULL"), call, tos=0x20, priority=5)
    shake(*found)
    with ours(found[0]) as end:
        assert end.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0x20
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 5


def test_a_priority_that_the_system_refuses_is_an_error_of_the_call(twin, monkeypatch):
    def refuse(self, level, option, value):
        if option == socket.SO_PRIORITY:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        socket.socket.setsockopt(self, level, option, value)

    one = twin("PULL")
    monkeypatch.setattr(tcp.socket, "socket", type("Unprivileged", (socket.socket,), {"setsockopt": refuse}))
    with pytest.raises(omq.BindError, match="not permitted"):
        one.bind(TCP, priority=7)
    assert one.endpoints == []


@on_both_calls
def test_a_device(twin, lines, call):
    found = lines(twin("PULL"), call, bind_device="lo")
    shake(*found)
    names = []
    for line in found:
        with ours(line) as end:
            names.append(end.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0"))
    assert names == [b"lo", b""]


def test_a_backlog(twin):
    one = twin("PULL", backlog=20)
    found = []
    for endpoint in (one.bind(TCP, backlog=7), one.bind(TCP)):
        with listening(endpoint) as end:
            # tcp(7), TCP_INFO: of a listening socket tcpi_sacked is its backlog.
            found.append(struct.unpack_from("=I", end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)[0])
    assert found == [7, 20]


def test_addresses_of_both_kinds_to_listen_on(twin):
    one = twin("PULL")
    families = []
    for endpoint in (one.bind("tcp://*:*", ipv6=True), one.bind("tcp://*:*")):
        with listening(endpoint) as end:
            families.append(end.family)
    if not socket.has_ipv6 or families[0] == socket.AF_INET:
        pytest.skip("this machine has no IPv6")
    assert families == [socket.AF_INET6, socket.AF_INET]


def test_addresses_of_both_kinds_to_dial(twin, monkeypatch):
    asked = {}
    usual = TcpTransport.lookups

    def lookups(self, endpoint, options):
        found = usual(self, endpoint, options)
        asked[str(endpoint)] = found[0].hints["family"]
        return found

    monkeypatch.setattr(TcpTransport, "lookups", lookups)
    one = twin("PULL")
    both, old = (one.connect(f"tcp://localhost:{free_port()}", **given) for given in ({"ipv6": True}, {}))
    until(lambda: len(asked) == 2)
    assert asked == {both: socket.AF_UNSPEC, old: socket.AF_INET}


# Dialling


@pytest.mark.parametrize("given", [{"reconnect_interval": None}, {"reconnect_stop": "handshake failed"}], ids=str)
def test_how_often_it_is_dialled(twin, listen, given):
    one = twin("PUSH", **FAST)
    (once, first), (often, second) = listen(), listen()
    one.connect(first, **given)
    one.connect(second)
    for listener in (once, often):
        listener.accept()[0].close()
    for _ in range(3):
        often.accept()[0].close()
    assert not select.select([once], [], [], 0.1)[0]


def test_how_often_an_inproc_name_is_dialled(twin):
    one = twin("PUSH", linger=0, **FAST)
    names = ["inproc://once", "inproc://often"]
    binders = [twin("PULL", bind=name) for name in names]
    one.connect(names[0], reconnect_interval=None)
    one.connect(names[1])
    one.wait_connected(2, timeout=BOUND)
    for binder in binders:
        binder.close()
    again = [twin("PULL", bind=name) for name in names]
    again[1].wait_connected(timeout=BOUND)
    with pytest.raises(omq.Timeout):
        again[0].wait_connected(timeout=0.1)


def test_how_long_an_attempt_may_take(twin, listen, stack):
    full = []
    for _ in range(2):
        listener, endpoint = listen(0)
        for each in [stack.enter_context(socket.socket()) for _ in range(4)]:  # until the kernel answers no more
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        full.append(endpoint)
    one = twin("PUSH", reconnect_interval=None)
    one.connect(full[0], connect_timeout=0.05)
    one.connect(full[1])
    with pytest.raises(omq.Timeout, match=rf"{full[0]}: no connection within connect_timeout=0\.05"):
        one.wait_connected(timeout=0.5)


# Handshakes


@on_both_calls
def test_how_long_a_handshake_may_take(twin, lines, call):
    found = lines(twin("PULL", reconnect_interval=None), call, handshake_timeout=0.1)
    assert hung_up(found[0])
    assert not hung_up(found[1], 0.1)


def test_how_many_handshakes(twin, dial):
    one = twin("PULL")
    few, many = one.bind(TCP, max_handshakes=1), one.bind(TCP)
    first, second, other, another = dial(few), dial(few), dial(many), dial(many)
    assert hung_up(first)
    shake(second, other, another)


def test_how_many_connections(twin, dial):
    one = twin("PULL")
    few, many = one.bind(TCP, max_connections=1), one.bind(TCP)
    first, other, another = dial(few), dial(many), dial(many)
    shake(first, other, another)
    assert hung_up(dial(few))


@on_both_calls
def test_the_identity(twin, call):
    dealer, routers = twin("DEALER"), [twin("ROUTER"), twin("ROUTER")]
    for router, given in zip(routers, ({"identity": b"me"}, {}), strict=True):
        if call == "connect":
            dealer.connect(router.bind(TCP), **given)
        else:
            router.connect(dealer.bind(TCP, **given))
    dealer.wait_connected(2, timeout=BOUND)
    dealer.send_many([b"x", b"x"])
    first, other = (router.recv_multipart(timeout=BOUND)[0] for router in routers)
    assert first == b"me"
    assert other != b"me"


def test_the_permitted_peers(twin):
    pull = twin("PULL")
    closed, free = pull.bind(TCP, security=omq.PlainServer({"user": "word"})), pull.bind(TCP)
    push = twin("PUSH")
    push.connect(closed, security=omq.PlainClient("user", "word"))
    push.connect(free)
    push.wait_connected(2, timeout=BOUND)
    assert sorted(peer.mechanism for peer in pull.peers) == ["NULL", "PLAIN"]
    stranger = twin("PUSH", connect=closed)
    with pytest.raises(omq.Timeout, match="last failure"):
        stranger.wait_connected(timeout=0.2)


def test_curve_at_one_endpoint(twin):
    public, secret = omq.curve_keypair()
    pull = twin("PULL")
    closed, free = pull.bind(TCP, security=omq.CurveServer(secret, authorize=None)), pull.bind(TCP)
    push = twin("PUSH")
    push.connect(closed, security=omq.CurveClient(public))
    push.connect(free)
    push.wait_connected(2, timeout=BOUND)
    push.send_many([b"a", b"b"])
    assert sorted(pull.recv(timeout=BOUND) for _ in range(2)) == [b"a", b"b"]
    assert sorted(peer.mechanism for peer in pull.peers) == ["CURVE", "NULL"]


@on_both_calls
def test_the_domain_that_a_handler_is_asked_about(twin, lines, call):
    handler = twin("REP", bind="inproc://zeromq.zap.01")
    asked = []

    def answer():
        with contextlib.suppress(omq.ClosedError):
            while True:
                request = handler.recv_multipart()
                asked.append(request[2])
                handler.send_multipart([b"1.0", request[1], b"200", b"OK", b"", b""])

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    found = lines(twin("PULL"), call, zap_domain="far")
    shake(*found)
    assert asked == [b"far"]
    handler.close()
    thread.join(BOUND)


@on_both_calls
def test_a_domain_that_is_enforced(twin, lines, call):
    one = twin("PULL", zap_domain="far", reconnect_interval=None)
    found = lines(one, call, zap_enforce_domain=True)
    for line in found:
        line.sendall(GREETING + ready(b"PUSH"))
    assert hung_up(found[0])  # there is no peer to ask
    one.wait_connected(timeout=BOUND)


# Traffic


def pings(line: socket.socket, within: float = BOUND) -> bytes:
    """Returns the bytes up to the first PING and its two bytes of time; less if none comes."""
    received = b""
    end = time.monotonic() + within
    while not received.partition(b"\4PING")[2][1:] and select.select([line], [], [], max(0, end - time.monotonic()))[0]:
        received += line.recv(1000)
    return received.partition(b"\4PING")[2][:2]


@on_both_calls
def test_how_often_signs_of_life_are_asked_for(twin, lines, call):
    found = lines(twin("PULL", heartbeat_timeout=BOUND), call, heartbeat_interval=0.05, heartbeat_ttl=3)
    shake(*found)
    assert pings(found[0]) == b"\0\x1e"
    assert pings(found[1], 0.2) == b""


@on_both_calls
def test_how_long_signs_of_life_are_waited_for(twin, lines, call):
    one = twin("PULL", heartbeat_interval=0.05, heartbeat_timeout=BOUND, heartbeat_ttl=1, reconnect_interval=None)
    found = lines(one, call, heartbeat_timeout=0.1, heartbeat_ttl=2)
    shake(*found)
    assert [pings(line) for line in found] == [b"\0\x14", b"\0\x0a"]
    assert hung_up(found[0])
    assert not hung_up(found[1], 0.2)


@on_both_calls
@pytest.mark.parametrize(
    ("given", "message"), [({"max_message_size": 3}, frames(b"four")), ({"max_parts": 1}, frames(b"a", b"b"))], ids=str
)
def test_how_much_a_message_may_be(twin, lines, call, given, message):
    one = twin("PULL", reconnect_interval=None)
    found = lines(one, call, **given)
    shake(*found)
    for line in found:
        line.sendall(message)
    assert hung_up(found[0])
    assert b"".join(one.recv_multipart(timeout=BOUND)) in (b"four", b"ab")
    assert not hung_up(found[1], 0.05)


# What is refused


def test_every_option_has_a_test_here():
    mine = {"bind_device", "backlog", "ipv6", "connect_timeout", "reconnect_interval", "reconnect_stop"}
    mine |= {"handshake_timeout", "max_handshakes", "max_connections", "max_message_size", "max_parts", "security"}
    mine |= {"identity"}
    mine |= {"use_fd", "peer_identity", "stream_notify"}  # test_use_fd.py, test_router.py, test_live_options.py
    mine |= {"immediate"}  # test_connect.py
    of_udp = {"multicast_hops", "multicast_loop"}  # test_udp.py
    of_ipc = {"accept_uids", "accept_gids", "accept_pids"}  # test_accept_filters.py, as the next
    mine |= {"accept_filter"}
    mine |= {"socks_proxy", "socks_username", "socks_password"}  # test_socks.py
    mine |= {"zap_domain", "zap_enforce_domain", "heartbeat_interval", "heartbeat_timeout", "heartbeat_ttl"}
    of_wss = {"tls"}  # test_websocket.py
    assert mine | of_ipc | of_udp | of_wss | set(SYSTEM) == {name for name in ALL if Options.endpoint_calls(name)}
    assert mine | set(SYSTEM) == TRANSPORTS["tcp"].options
    assert of_ipc == TRANSPORTS["ipc"].options - TRANSPORTS["tcp"].options
    assert of_wss == TRANSPORTS["wss"].options - TRANSPORTS["ws"].options
    assert TRANSPORTS["ws"].options == TRANSPORTS["tcp"].options


@on_both_calls
def test_what_is_the_whole_sockets(twin, call):
    one = twin("ROUTER")
    for name in ALL:
        if not Options.endpoint_calls(name):
            with pytest.raises(omq.OptionError, match=f"option '{name}' applies to the whole socket"):
                getattr(one, call)("tcp://127.0.0.1:9", **{name: 1})
    assert one.endpoints == []


def test_what_is_for_the_other_call(twin):
    one = twin("PULL")
    with pytest.raises(omq.OptionError, match="'backlog' is for bind, not for connect"):
        one.connect("tcp://127.0.0.1:9", backlog=1)
    with pytest.raises(omq.OptionError, match="'reconnect_interval' is for connect, not for bind"):
        one.bind(TCP, reconnect_interval=1)
    assert one.endpoints == []


@on_both_calls
def test_what_the_transport_has_no_use_for(twin, call, tmp_path):
    one = twin("PULL")
    for name in sorted(TRANSPORTS["tcp"].options):
        if call in Options.endpoint_calls(name):
            for scheme, endpoint in (("inproc", "inproc://x"), ("ipc", f"ipc://{tmp_path}/s")):
                if name not in TRANSPORTS[scheme].options:
                    with pytest.raises(omq.OptionError, match=f"'{name}' does not apply to {scheme}:"):
                        getattr(one, call)(endpoint, **{name: getattr(Options(), name)})
    assert one.endpoints == []


@on_both_calls
def test_unknown_options_and_invalid_values(twin, call):
    one = twin("PULL")
    with pytest.raises(omq.OptionError, match="did you mean 'max_parts'"):
        getattr(one, call)("tcp://127.0.0.1:9", max_part=1)
    with pytest.raises(omq.OptionError, match="max_parts=0: must be"):
        getattr(one, call)("tcp://127.0.0.1:9", max_parts=0)
    with pytest.raises(omq.EndpointError):
        getattr(one, call)("nonsense", no_such=1)


def test_an_endpoint_that_is_connected_once_keeps_its_options(twin, listen):
    _, endpoint = listen()
    one = twin("SUB")
    one.connect(endpoint, max_parts=3)
    one.connect(endpoint, max_parts=3)
    one.connect(endpoint)
    with pytest.raises(omq.AlreadyConnected, match="already connected with another 'max_parts'"):
        one.connect(endpoint, max_parts=4)
    one.disconnect(endpoint)
    one.connect(endpoint, max_parts=4)


def test_what_may_change_in_use_changes_for_endpoints_with_options_too(twin):
    pull = twin("PULL", recv_hwm=1)
    endpoint = pull.bind(TCP, max_parts=5)
    pull.set_options(recv_hwm=0)
    push = twin("PUSH", connect=endpoint)
    push.send_many([b"x"] * 500, timeout=BOUND)
    until(lambda: sum(peer.messages_in for peer in pull.peers) == 500)
