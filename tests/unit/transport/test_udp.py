"""UDP endpoints: what is read, what is refused, and which sockets come of them."""

import socket

import pytest

from omq.errors import BindError, ConnectError, EndpointError
from omq.options import Options
from omq.transport import TRANSPORTS, parse_endpoint, transport_of
from omq.transport.udp import UdpEndpoint, UdpTransport

UDP = TRANSPORTS["udp"]


def resolved(text, **options):
    """Opens a receiver; gives it and the host and port of its endpoint."""
    return UDP.listen(parse_endpoint(text, bind=True), Options(**options))


def sender(text, **options):
    endpoint = parse_endpoint(text, bind=False)
    return UDP.connect(endpoint, Options(**options), UDP.lookup(endpoint, Options()).known)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("udp://127.0.0.1:5555", UdpEndpoint("127.0.0.1", 5555)),
        ("udp://host.example:1", UdpEndpoint("host.example", 1)),
        ("udp://[::1]:65535", UdpEndpoint("::1", 65535)),
        ("udp://239.0.0.1:5555", UdpEndpoint("239.0.0.1", 5555)),
        ("udp://127.0.0.1;239.0.0.1:5555", UdpEndpoint("239.0.0.1", 5555, "127.0.0.1")),
        ("udp://eth0;[ff02::7]:5555", UdpEndpoint("ff02::7", 5555, "eth0")),
        ("udp://*;239.0.0.1:5555", UdpEndpoint("239.0.0.1", 5555)),
    ],
    ids=["address", "name", "ipv6", "multicast", "interface", "ipv6 interface", "any interface"],
)
@pytest.mark.parametrize("bind", [True, False], ids=["bind", "connect"])
def test_endpoints(text, endpoint, bind):
    found = parse_endpoint(text, bind=bind)
    assert found == endpoint
    assert parse_endpoint(str(found), bind=bind) == found
    assert isinstance(transport_of(found), UdpTransport)
    assert found.is_multicast == ("239." in text or "ff02" in text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("udp://127.0.0.1", "the port is missing"),
        ("udp://:5555", "the host is missing"),
        ("udp://127.0.0.1:65536", "not a number from 1 to 65535"),
        ("udp://127.0.0.1:*", "only for binding"),
        ("udp://*:5555", "only for binding"),
        (
            "udp://127.0.0.1;127.0.0.2:5555",
            "an interface .* is for multicast only: '127.0.0.2' is not a multicast address",
        ),
        ("udp://;239.0.0.1:5555", "the host is missing"),
        ("udp://a b;239.0.0.1:5555", "'a b'"),
    ],
    ids=["no port", "no host", "large port", "any port", "any host", "unicast", "no interface", "blank"],
)
def test_endpoints_that_mean_nothing(text, why):
    with pytest.raises(EndpointError, match=f"endpoint .*: .*{why}"):
        parse_endpoint(text, bind=False)


@pytest.mark.parametrize("text", ["udp://127.0.0.1:*", "udp://localhost:0", "udp://lo:*"])
def test_a_receiver_is_reached_at_its_resolved_endpoint(text):
    receiver, endpoint = resolved(text)
    with receiver, sender(endpoint) as sending:
        assert endpoint == f"udp://127.0.0.1:{receiver.getsockname()[1]}"
        assert not receiver.getblocking()
        assert sending.send(b"x") == 1
        receiver.settimeout(10)
        assert receiver.recv(10) == b"x"


def test_any_address():
    receiver, endpoint = resolved("udp://*:*")
    with receiver:
        assert endpoint == f"udp://0.0.0.0:{receiver.getsockname()[1]}"


def test_any_address_of_both_families():
    try:
        receiver, endpoint = resolved("udp://*:*", ipv6=True)
    except BindError as error:
        pytest.skip(f"the machine has no IPv6: {error}")
    with receiver, sender(f"udp://127.0.0.1:{receiver.getsockname()[1]}") as sending:
        assert endpoint.startswith("udp://[::]:")
        sending.send(b"x")
        receiver.settimeout(10)
        assert receiver.recv(10) == b"x"


def test_what_the_system_refuses():
    receiver, endpoint = resolved("udp://127.0.0.1:*")
    with receiver, pytest.raises(BindError, match=f"{endpoint}: address already in use"):
        resolved(endpoint)
    with pytest.raises(BindError, match=r"there is no interface nosuch|the interface nosuch has no IPv4 address"):
        resolved("udp://nosuch;239.0.0.1:*")
    with pytest.raises(ConnectError, match="has no IPv4 address"):
        sender("udp://nosuch;239.0.0.1:5555")
    with pytest.raises(ConnectError, match="the host has no address"):
        UDP.connect(parse_endpoint("udp://name:1", bind=False), Options(), [])
    with pytest.raises(BindError, match="nosuch"):
        resolved("udp://nosuch;[ff02::7]:*")


def test_multicast_of_ipv6_leaves_by_the_interface():
    try:
        receiver, endpoint = resolved("udp://lo;[ff01::7]:*")
    except BindError as error:
        pytest.skip(f"the machine has no multicast of IPv6: {error}")
    try:
        sending = sender(endpoint, multicast_hops=3, multicast_loop=False)
    except ConnectError as error:
        receiver.close()
        pytest.skip(f"the loopback has no route for multicast of IPv6: {error}")
    with receiver, sending:
        found = [
            sending.getsockopt(socket.IPPROTO_IPV6, one)
            for one in (socket.IPV6_MULTICAST_HOPS, socket.IPV6_MULTICAST_LOOP, socket.IPV6_MULTICAST_IF)
        ]
        assert found == [3, 0, socket.if_nametoindex("lo")]
        assert endpoint == f"udp://lo;[ff01::7]:{receiver.getsockname()[1]}"
        sending.send(b"x")
        receiver.settimeout(10)
        assert receiver.recv(10) == b"x"
