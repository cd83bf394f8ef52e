"""TCP sockets: that listeners are reached, that options arrive in the kernel, and in which order to dial."""

import errno
import selectors
import socket

import pytest

from omq.errors import BindError, ConnectError
from omq.options import Options
from omq.transport import parse_endpoint, tcp
from omq.transport.tcp import TcpEndpoint
from tests.support.machine import needs_ipv6
from tests.support.ports import held

STREAM = socket.SOCK_STREAM


@pytest.fixture
def listen():
    opened = []

    def bound(text, **options):
        sockets, resolved = tcp.listen(parse_endpoint(text, bind=True), Options(**options))
        opened.extend(sockets)
        return sockets, resolved

    yield bound
    for sock in opened:
        sock.close()


def greet(listener, address):
    """Connects a plain socket to an address and passes a byte each way; the listener's side is given back."""
    with socket.create_connection(address, timeout=5) as client:
        with selectors.DefaultSelector() as ready:
            ready.register(listener, selectors.EVENT_READ)
            assert ready.select(5)
        accepted, _ = listener.accept()
        accepted.setblocking(True)
        client.sendall(b"?")
        assert accepted.recv(1) == b"?"
        accepted.sendall(b"!")
        assert client.recv(1) == b"!"
        return accepted


def port_of(sock):
    return sock.getsockname()[1]


# Listening


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:*", "tcp://127.0.0.1:0", "tcp://localhost:*", "tcp://lo:*"])
def test_a_listener_on_loopback_is_reached_at_its_resolved_endpoint(listen, text):
    (sock,), resolved = listen(text)
    assert resolved == f"tcp://127.0.0.1:{port_of(sock)}"
    assert port_of(sock) > 0
    assert not sock.getblocking()
    greet(sock, ("127.0.0.1", port_of(sock))).close()


def test_the_wildcard_is_every_ipv4_address(listen):
    (sock,), resolved = listen("tcp://*:*")
    assert resolved == f"tcp://0.0.0.0:{port_of(sock)}"
    greet(sock, ("127.0.0.1", port_of(sock))).close()


@needs_ipv6
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_wildcard_is_both_families_with_ipv6(listen, address):
    (sock,), resolved = listen("tcp://*:*", ipv6=True)
    assert resolved == f"tcp://[::]:{port_of(sock)}"
    greet(sock, (address, port_of(sock))).close()


def test_the_wildcard_falls_back_to_ipv4_where_there_is_no_ipv6(listen, monkeypatch):
    real = socket.socket

    def without_ipv6(family=-1, *args, **kwargs):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no such family")
        return real(family, *args, **kwargs)

    monkeypatch.setattr(tcp.socket, "socket", without_ipv6)
    _, resolved = listen("tcp://*:*", ipv6=True)
    assert resolved.startswith("tcp://0.0.0.0:")


@needs_ipv6
def test_an_ipv6_address_needs_no_option(listen):
    (sock,), resolved = listen("tcp://[::1]:*")
    assert resolved == f"tcp://[::1]:{port_of(sock)}"
    greet(sock, ("::1", port_of(sock))).close()


@needs_ipv6
def test_a_name_with_several_addresses_is_bound_at_each_on_one_port(listen, monkeypatch):
    def both(host, port, **hints):
        if hints.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "a name")
        assert host == "both.test"
        return [
            (socket.AF_INET6, STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, STREAM, 6, "", ("127.0.0.1", port)),
            (socket.AF_INET, STREAM, 6, "", ("192.0.2.1", port)),  # not an address of this machine
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    (six, four), resolved = listen("tcp://both.test:*", ipv6=True)
    monkeypatch.undo()
    assert port_of(six) == port_of(four)
    assert resolved == f"tcp://[::1]:{port_of(six)}"
    greet(six, ("::1", port_of(six))).close()
    greet(four, ("127.0.0.1", port_of(four))).close()


def resolves_to(monkeypatch, *addresses):
    """Lets every name stand for these IPv4 addresses."""

    def found(host, port, **hints):
        if hints.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "a name")
        return [(socket.AF_INET, STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)


def test_a_port_that_is_not_free_on_every_address_is_given_up(listen, monkeypatch):
    with held("127.0.0.1", "127.0.0.2") as port:
        listen(f"tcp://127.0.0.2:{port}")
        with monkeypatch.context() as patch:
            resolves_to(patch, "127.0.0.1", "127.0.0.2")
            with pytest.raises(BindError) as caught:
                listen(f"tcp://both.test:{port}")
        assert caught.value.errno == errno.EADDRINUSE
        assert listen(f"tcp://127.0.0.1:{port}")  # nothing was left open there


def test_another_port_is_looked_for_until_one_is_free_on_every_address(listen, monkeypatch):
    resolves_to(monkeypatch, "127.0.0.1", "127.0.0.2")
    real, asked = tcp._listener, []

    def taken_at_first(info, port, options):
        asked.append(port)
        if len(asked) == 2:
            raise OSError(errno.EADDRINUSE, "taken")
        return real(info, port, options)

    monkeypatch.setattr(tcp, "_listener", taken_at_first)
    one, other = listen("tcp://both.test:*")[0]
    assert port_of(one) == port_of(other) == asked[-1]  # others may have taken some meanwhile
    assert asked[0] == asked[2] == 0


@needs_ipv6
def test_an_interface_is_bound_at_its_ipv6_addresses_too_with_ipv6(listen):
    sockets, _ = listen("tcp://lo:*", ipv6=True)
    assert {sock.family for sock in sockets} == {socket.AF_INET, socket.AF_INET6}
    assert len({port_of(sock) for sock in sockets}) == 1


def test_a_port_in_use_is_a_bind_error_that_names_it(listen):
    _, resolved = listen("tcp://127.0.0.1:*")
    with pytest.raises(BindError) as caught:
        listen(resolved)
    assert caught.value.errno == errno.EADDRINUSE
    assert f"{resolved}: address already in use" in str(caught.value)


def test_a_port_is_free_again_right_after_its_connections_have_closed(listen, free_place):
    (sock,), resolved = listen(free_place)
    greet(sock, sock.getsockname()).close()  # this side closes first and keeps the port in TIME_WAIT
    sock.close()
    assert listen(resolved)[1] == resolved


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://192.0.2.1:*", errno.EADDRNOTAVAIL),  # RFC 5737: no host's address
        ("tcp://name.invalid:*", None),  # RFC 6761: no host's name
    ],
)
def test_an_address_that_is_not_ours_is_a_bind_error(listen, text, expected):
    with pytest.raises(BindError) as caught:
        listen(text)
    assert text in str(caught.value)
    assert caught.value.errno == expected if expected else caught.value.errno < 0


def test_an_unknown_device_is_a_bind_error(listen):
    with pytest.raises(BindError) as caught:
        listen("tcp://127.0.0.1:*", bind_device="nosuchdevice0")
    assert caught.value.errno in (errno.ENODEV, errno.EPERM)


def test_the_options_of_a_listener_are_in_force_and_inherited(listen):
    (sock,), _ = listen("tcp://127.0.0.1:*", tos=0x20, send_buffer=70_000, recv_buffer=90_000, backlog=7)
    accepted = greet(sock, sock.getsockname())
    for each in (sock, accepted):
        assert each.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0x20
        assert each.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 140_000  # socket(7): doubled
        assert each.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 180_000
    accepted.close()


@needs_ipv6
def test_the_type_of_service_is_set_for_both_families(listen):
    (sock,), _ = listen("tcp://*:*", ipv6=True, tos=0x20)
    assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) == 0x20
    assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0x20


# Connecting


@pytest.fixture
def listener(listen):
    (sock,), _ = listen("tcp://127.0.0.1:*")
    return sock


def dial(listener, source=None, addresses=(), **options):
    """Prepares a socket and connects it; gives it and the address that the listener sees."""
    endpoint = TcpEndpoint("127.0.0.1", port_of(listener), source)
    sock = tcp.prepare(socket.AF_INET, endpoint, Options(**options), addresses)
    assert not sock.getblocking()
    assert sock.connect_ex(listener.getsockname()) in (0, errno.EINPROGRESS)
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        assert ready.select(5)
    accepted, address = listener.accept()
    accepted.close()
    return sock, address


def test_a_prepared_socket_only_has_to_be_connected(listener):
    sock, address = dial(listener)
    with sock:
        assert sock.getsockname() == address
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "lo", "*"])
def test_a_connection_comes_from_its_source(listener, host):
    found = tcp.known(host, 0, interfaces=True)
    sock, address = dial(listener, (host, 0), found)
    with sock:
        assert address[0] == {"lo": "127.0.0.1", "*": "127.0.0.1"}.get(host, host)


def test_a_connection_comes_from_its_source_port_again_and_again(listener, listen, free_port):
    found = tcp.known("127.0.0.1", free_port)
    for _ in range(2):
        sock, address = dial(listener, ("127.0.0.1", free_port), found)
        sock.close()
        assert address == ("127.0.0.1", free_port)
        (other,), _ = listen("tcp://127.0.0.1:*")  # the same pair of addresses would have to wait
        listener = other


@pytest.mark.parametrize(
    ("source", "found"),
    [(("192.0.2.1", 0), None), (("::1", 0), None), (("name.invalid", 0), [])],
)
def test_a_source_that_cannot_be_had_is_a_connect_error(source, found):
    endpoint = TcpEndpoint("127.0.0.1", 1, source)
    with pytest.raises(ConnectError) as caught:
        tcp.prepare(socket.AF_INET, endpoint, Options(), tcp.known(*source) if found is None else found)
    assert caught.value.errno == errno.EADDRNOTAVAIL
    assert str(endpoint) in str(caught.value)


def test_the_options_of_a_connection_are_in_force_before_it_connects():
    options = Options(
        tos=0x20,
        send_buffer=70_000,
        recv_buffer=90_000,
        tcp_keepalive=1,
        tcp_keepalive_count=3,
        tcp_keepalive_idle=30,
        tcp_keepalive_interval=5,
        tcp_user_timeout=1.5,
    )
    with tcp.prepare(socket.AF_INET, TcpEndpoint("127.0.0.1", 1), options) as sock:
        assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0x20
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 140_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 180_000
        assert_keepalive(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1500


def assert_keepalive(sock):
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5


def test_tuning_an_accepted_socket_turns_nagle_off_and_keepalive_on(listener):
    options = Options(
        tcp_keepalive=1, tcp_keepalive_count=3, tcp_keepalive_idle=30, tcp_keepalive_interval=5, tcp_user_timeout=0.0001
    )
    with greet(listener, listener.getsockname()) as accepted:
        tcp.tune(accepted, options)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert_keepalive(accepted)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1
        tcp.tune(accepted, Options(tcp_keepalive=0))
        assert not accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_defaults_leave_the_systems_settings(listener):
    with socket.socket() as untouched, tcp.prepare(socket.AF_INET, TcpEndpoint("h", 1), Options()) as sock:
        for name in (socket.SO_SNDBUF, socket.SO_RCVBUF, socket.SO_KEEPALIVE):
            assert sock.getsockopt(socket.SOL_SOCKET, name) == untouched.getsockopt(socket.SOL_SOCKET, name)


@needs_ipv6
def test_an_ipv6_connection_is_prepared(listen):
    (listener,), resolved = listen("tcp://[::1]:*")
    endpoint = TcpEndpoint("::1", port_of(listener), ("::1", 0))
    options = Options(tos=0x20)
    with tcp.prepare(socket.AF_INET6, endpoint, options, tcp.known("::1", 0)) as sock:
        sock.setblocking(True)
        sock.settimeout(5)
        sock.connect(listener.getsockname())
        assert tcp.endpoint_of(sock.getpeername()) == resolved


# Addresses


def four(last, kind=STREAM):
    return (socket.AF_INET, kind, 6, "", (f"192.0.2.{last}", 80))


def six(last, kind=STREAM):
    return (socket.AF_INET6, kind, 6, "", (f"2001:db8::{last}", 80, 0, 0))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], []),
        ([four(1)], [four(1)]),
        ([six(1), six(2), six(3), four(1), four(2)], [six(1), four(1), six(2), four(2), six(3)]),
        ([four(1), four(2), six(1)], [four(1), six(1), four(2)]),
        ([six(1), six(1), four(1), four(1)], [six(1), four(1)]),
        ([four(1, socket.SOCK_DGRAM), four(1), (socket.AF_UNIX, STREAM, 0, "", ("x", 0))], [four(1)]),
    ],
)
def test_candidates_alternate_between_the_families(found, expected):
    assert tcp.candidates(found) == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "*"])
def test_what_is_no_name_is_known_without_a_resolver(host):
    infos = tcp.known(host, 5555)
    assert infos
    assert all(info[1] == STREAM and info[4][1] == 5555 for info in infos)


def test_names_have_to_be_looked_up():
    assert tcp.known("localhost", 1) == []
    assert tcp.known("lo", 1) == []
    assert tcp.known("lo", 1, interfaces=True)[0][4] == ("127.0.0.1", 1)


@pytest.mark.parametrize(
    ("host", "ipv6", "family"),
    [
        ("localhost", False, socket.AF_INET),
        ("localhost", True, socket.AF_UNSPEC),
        ("::1", False, socket.AF_UNSPEC),
    ],
)
def test_the_hints_follow_the_ipv6_option(host, ipv6, family):
    hints = tcp.hints(host, Options(ipv6=ipv6))
    assert hints["family"] == family
    assert all(info[1] == STREAM for info in socket.getaddrinfo(host, 1, **hints))


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (("192.0.2.1", 80), "tcp://192.0.2.1:80"),
        (("2001:db8::1", 80, 0, 0), "tcp://[2001:db8::1]:80"),
        (("::ffff:192.0.2.1", 80, 0, 0), "tcp://192.0.2.1:80"),
        (("fe80::1%eth0", 80, 0, 2), "tcp://[fe80::1%eth0]:80"),
    ],
)
def test_an_address_has_an_endpoint(address, text):
    assert tcp.endpoint_of(address) == text
    assert str(parse_endpoint(text, bind=False)) == text
