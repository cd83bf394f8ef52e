"""RADIO and DISH over UDP: datagrams to one receiver or to a multicast group, without a connection (RFC 48)."""

from __future__ import annotations

import itertools
import os
import select
import socket
import time

import pytest

import omq
from omq._core.link.datagram import MAX_DATAGRAM_BYTES, MAX_MESSAGE_BYTES
from tests.support.waits import BOUND, until
from tests.system.conformance.test_pub_sub import nothing

_group = itertools.count(1)


@pytest.fixture
def dish(twin):
    return twin("DISH", bind="udp://127.0.0.1:*", recv_timeout=BOUND)


@pytest.fixture
def radio_and_dish(twin, dish):
    return twin("RADIO", connect=dish.endpoints[0]), dish


@pytest.fixture
def line():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(BOUND)
        yield sock


def peer_of(one):
    """The only peer of a socket, as its engine has it."""
    (session,) = getattr(one, "_socket", one)._engine.sessions
    return session.peer


def address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("udp://").rpartition(":")
    return host, int(port)


def multicast() -> str:
    """A group of this test's own on the loopback, where the kernel lets it be joined."""
    group = f"239.255.7.{next(_group)}"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            membership = socket.inet_aton(group) + socket.inet_aton("127.0.0.1")
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            sock.sendto(b"", (group, 9))
        except OSError as error:
            pytest.skip(f"the kernel has no multicast on the loopback: {error}")
    return group


def test_only_the_groups_that_were_joined_arrive(radio_and_dish):
    radio, dish = radio_and_dish
    dish.join("movies")
    dish.join(b"tv")
    for number, group in enumerate(["tv", "movie", "moviess", "", "movies", b"TV", "tv"]):
        radio.send(b"%d" % number, group=group)
    found = [dish.recv_message() for _ in range(3)]
    assert [(one.group, one.body) for one in found] == [("tv", b"0"), ("movies", b"4"), ("tv", b"6")]
    dish.leave("tv")
    radio.send(b"gone", group="tv")
    radio.send(b"last", group="movies")
    assert dish.recv() == b"last"
    assert nothing(dish)


@pytest.mark.parametrize("group", ["", "a", "g" * 127, "g" * 128, "g" * 255, "gr\u00fcn", b"\xff\x01"])
def test_a_group_is_any_name_of_up_to_255_bytes(radio_and_dish, group):
    radio, dish = radio_and_dish
    dish.join(group)
    radio.send(b"x", group=group)
    assert dish.recv_message().group == (group if isinstance(group, str) else group.decode("utf-8", "surrogateescape"))
    with pytest.raises(omq.UsageError, match="255"):
        radio.send(b"x", group="g" * 256)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 8192, MAX_MESSAGE_BYTES - 1])
def test_bodies_of_all_sizes_that_a_datagram_carries(radio_and_dish, size):
    radio, dish = radio_and_dish
    dish.join("g")
    body = bytes(range(256)) * (size // 256 + 1)
    radio.send(body[:size], group="g")
    assert dish.recv() == body[:size]


def test_a_message_that_fits_into_no_datagram_is_refused(radio_and_dish):
    radio, dish = radio_and_dish
    dish.join("")
    radio.send(bytes(MAX_MESSAGE_BYTES), group="")
    assert len(dish.recv()) == MAX_MESSAGE_BYTES == MAX_DATAGRAM_BYTES - 1
    with pytest.raises(omq.MessageTooLarge, match=r"message of 65506 bytes and its group of 1 .* room for 65506 bytes"):
        radio.send(bytes(MAX_MESSAGE_BYTES), group="g")
    radio.send(b"next", group="")
    assert dish.recv() == b"next"


def test_what_is_too_large_for_a_datagram_goes_to_no_peer(twin, dish, endpoint):
    # Also not over tcp: the message is refused as a whole.
    radio = twin("RADIO", bind=endpoint)
    near = twin("DISH", connect=radio.endpoints[0], join="g", recv_timeout=BOUND)
    radio.wait_subscribed(timeout=BOUND)
    radio.connect(dish.endpoints[0])
    dish.join("g")
    with pytest.raises(omq.MessageTooLarge):
        radio.send(bytes(70_000), group="g")
    radio.send(b"fits", group="g")
    assert (near.recv(), dish.recv()) == (b"fits", b"fits")
    radio.disconnect(dish.endpoints[0])
    radio.send(bytes(70_000), group="g")
    assert len(near.recv()) == 70_000


def test_the_layout_is_that_of_libzmq(twin, dish, line):
    # udp_engine.cpp: a byte of the group's length, the group, the body.
    radio = twin("RADIO", connect=f"udp://127.0.0.1:{line.getsockname()[1]}")
    radio.send(b"body", group="group")
    assert line.recv(100) == b"\5groupbody"
    radio.send(b"", group=b"")
    assert line.recv(100) == b"\0"
    dish.join("group")
    dish.join("")
    for datagram in (b"\5groupbody", b"\0", b"\0alone"):
        line.sendto(datagram, address(dish.endpoints[0]))
    assert [(one.group, one.body) for one in (dish.recv_message() for _ in range(3))] == [
        ("group", b"body"),
        ("", b""),
        ("", b"alone"),
    ]


def test_malformed_datagrams_are_dropped_and_counted(twin, line):
    dish = twin("DISH", join=["g", ""], max_message_size=8, recv_timeout=BOUND)
    monitor = twin.wait(getattr(dish, "_socket", dish).monitor)
    dish.bind("udp://127.0.0.1:*")
    bad = [
        b"",
        b"\1",
        b"\2g",
        b"\xff" + b"g" * 254,
        b"\1g12345678",
        b"\0" + bytes(9),
        b"\0" * 65_507,
        b"\1g" + b"x" * 5000,
    ]
    for datagram in bad * 20:
        line.sendto(datagram, address(dish.endpoints[0]))
    while not dish.poll(0.05):  # the kernel may have no room for it at first
        line.sendto(b"\1g1234567", address(dish.endpoints[0]))
    while not nothing(dish):
        assert dish.recv() == b"1234567"
    (peer,) = dish.peers
    assert len(bad) < peer.dropped <= len(bad) * 20 <= peer.dropped + lost(dish)
    reported = 0
    while reported < peer.dropped:
        event = twin.event(monitor)
        if event.kind == "dropped":
            reported += event.count
            assert (event.reason, event.endpoint) == ("malformed, or larger than max_message_size", dish.endpoints[0])
            assert event.peer.dropped >= reported
    assert reported == peer.dropped


def test_what_was_dropped_is_reported_at_the_end(twin, dish, line):
    """The monitor looks twice a second, and once more where the endpoint ends."""
    monitor = twin.wait(getattr(dish, "_socket", dish).monitor)
    dish.join("g")
    line.sendto(b"\2g", address(dish.endpoints[0]))
    line.sendto(b"\1gx", address(dish.endpoints[0]))
    assert dish.recv() == b"x"
    dish.unbind(dish.endpoints[0])
    events = []
    while not events or events[-1].kind != "disconnected":
        events.append(twin.event(monitor))
    assert [event.count for event in events if event.kind == "dropped"] == [1]


@pytest.mark.parametrize("kind", ["PULL", "SUB", "DISH"])
def test_nothing_is_dropped_where_nothing_came(twin, kind):
    one = twin(kind, bind="tcp://127.0.0.1:*")
    monitor = twin.wait(getattr(one, "_socket", one).monitor)
    with pytest.raises(omq.Timeout):
        twin.event(monitor, 0.1)


def lost(dish) -> int:
    """Datagrams that the kernel had no room for."""
    port = f":{address(dish.endpoints[0])[1]:04X}"
    with open("/proc/net/udp", encoding="ascii") as table:
        return sum(int(row.split()[-1]) for row in table if row.split()[1].endswith(port))


def test_a_burst_arrives_in_order(radio_and_dish):
    radio, dish = radio_and_dish
    dish.join("g")
    for turn in range(20):
        for number in range(100):
            radio.send(b"%d %d" % (turn, number), group="g")
        assert [dish.recv() for _ in range(100)] == [b"%d %d" % (turn, number) for number in range(100)]


def test_the_tail_of_a_burst_leaves_without_another_call(radio_and_dish):
    radio, dish = radio_and_dish
    dish.join("g")
    for number in range(70):
        radio.send(b"%d" % number, group="g")
    peer = peer_of(radio)
    until(lambda: peer.unsent == 0, bound=5)
    assert [dish.recv() for _ in range(70)][-1] == b"69"


def test_several_radios_and_several_dishes(twin):
    dishes = [twin("DISH", bind="udp://127.0.0.1:*", join="g", recv_timeout=BOUND) for _ in range(3)]
    radios = [twin("RADIO", connect=[dish.endpoints[0] for dish in dishes]) for _ in range(2)]
    for number, radio in enumerate(radios):
        radio.wait_connected(3, timeout=BOUND)
        radio.send(b"%d" % number, group="g")
    for dish in dishes:
        assert {dish.recv(), dish.recv()} == {b"0", b"1"}


def test_multicast_reaches_every_dish_of_the_group(twin):
    group, other = multicast(), multicast()
    first = twin("DISH", bind=f"udp://127.0.0.1;{group}:*", join="g", recv_timeout=BOUND)
    endpoint = first.endpoints[0]
    port = endpoint.rpartition(":")[2]
    assert endpoint == f"udp://127.0.0.1;{group}:{port}"
    second = twin("DISH", bind=endpoint, join="g", recv_timeout=BOUND)
    strange = twin("DISH", bind=f"udp://127.0.0.1;{other}:{port}", join="g", recv_timeout=BOUND)
    radio = twin("RADIO", connect=endpoint)
    radio.send(b"all", group="g")
    assert (first.recv(), second.recv()) == (b"all", b"all")
    assert nothing(strange)


@pytest.mark.parametrize(
    ("options", "found"),
    [({}, (1, 1)), ({"multicast_hops": 255}, (255, 1)), ({"multicast_loop": False}, (1, 0))],
    ids=["defaults", "hops", "loop"],
)
def test_options_of_multicast_are_the_kernels(twin, options, found):
    # Over the loopback itself datagrams come back whatever IP_MULTICAST_LOOP is: the kernel's own word counts.
    endpoint = f"udp://127.0.0.1;{multicast()}:5555"
    for radio in (twin("RADIO", **options), twin("RADIO")):
        radio.connect(endpoint, **options)
        with socket.socket(fileno=os.dup(peer_of(radio).fd)) as sock:
            outcomes = [
                sock.getsockopt(socket.IPPROTO_IP, one) for one in (socket.IP_MULTICAST_TTL, socket.IP_MULTICAST_LOOP)
            ]
        assert tuple(outcomes) == found


def test_the_kernels_options_are_set(twin):
    options = {"send_buffer": 20_000, "recv_buffer": 30_000, "tos": 0x20, "priority": 3, "bind_device": "lo"}
    dish = twin("DISH", recv_timeout=BOUND, join="g")
    radio = twin("RADIO")
    try:
        radio.connect(dish.bind("udp://127.0.0.1:*", **options), **options)
    except omq.BindError as error:
        pytest.skip(f"the system does not let devices be chosen: {error}")
    for one in (radio, dish):
        with socket.socket(fileno=os.dup(peer_of(one).fd)) as sock:
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 40_000
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 60_000
            assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0x20
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 3
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).startswith(b"lo")
    radio.send(b"x", group="g")
    assert dish.recv() == b"x"


def test_an_interface_has_a_name_too(twin):
    endpoint = f"udp://lo;{multicast()}:*"
    dish = twin("DISH", bind=endpoint, join="g", recv_timeout=BOUND)
    radio = twin("RADIO", connect=dish.endpoints[0], multicast_hops=2)
    radio.send(b"x", group="g")
    assert dish.recv() == b"x"
    with pytest.raises(omq.BindError, match="nosuch"):
        dish.bind("udp://nosuch;239.1.1.1:*")


def test_ipv6(twin):
    try:
        dish = twin("DISH", bind="udp://[::1]:*", join="g", recv_timeout=BOUND)
    except omq.BindError as error:
        pytest.skip(f"the machine has no IPv6: {error}")
    assert dish.endpoints[0].startswith("udp://[::1]:")
    radio = twin("RADIO", connect=dish.endpoints[0])
    radio.send(b"x", group="g")
    assert dish.recv() == b"x"


def test_a_name_is_looked_up(twin):
    dish = twin("DISH", bind="udp://localhost:*", join="g", recv_timeout=BOUND)
    radio = twin("RADIO", connect=f"udp://localhost:{dish.endpoints[0].rpartition(':')[2]}")
    radio.wait_connected(timeout=BOUND)
    radio.send(b"x", group="g")
    assert dish.recv() == b"x"


def test_a_name_without_an_address_is_tried_again(twin):
    radio = twin("RADIO", reconnect_interval=0.01)
    monitor = twin.wait(lambda: getattr(radio, "_socket", radio).monitor())
    radio.connect("udp://name.invalid:5555")
    kinds = [twin.event(monitor).kind for _ in range(4)]
    assert kinds == ["connect_delayed", "connect_failed", "connect_retried", "connect_delayed"]
    radio.disconnect("udp://name.invalid:5555")
    radio.send(b"for no peer", group="g")


def test_connected_at_once_and_never_subscribed(radio_and_dish):
    radio, dish = radio_and_dish
    radio.wait_connected(timeout=0)
    dish.wait_connected(timeout=0)
    dish.join("g")
    with pytest.raises(omq.Timeout):
        radio.wait_subscribed(timeout=0.05)


def test_what_monitors_get(twin):
    dish = twin("DISH", recv_timeout=BOUND)
    radio = twin("RADIO")
    at_dish, at_radio = (twin.wait(lambda one=one: getattr(one, "_socket", one).monitor()) for one in (dish, radio))
    endpoint = dish.bind("udp://127.0.0.1:*")
    radio.connect(endpoint)
    radio.disconnect(endpoint)
    dish.unbind(endpoint)
    kinds = [twin.event(at_radio).kind for _ in range(4)]
    assert kinds == ["connect_delayed", "connected", "handshake_succeeded", "disconnected"]
    kinds = [twin.event(at_dish).kind for _ in range(4)]
    assert sorted(kinds) == sorted(["listening", "handshake_succeeded", "disconnected", "closed"])


def test_an_address_is_free_again(twin, radio_and_dish):
    radio, dish = radio_and_dish
    endpoint = dish.endpoints[0]
    with pytest.raises(omq.BindError, match="in use"):
        twin("DISH", bind=endpoint)
    dish.unbind(endpoint)
    assert not dish.endpoints
    other = twin("DISH", bind=endpoint, join="g", recv_timeout=BOUND)
    radio.send(b"x", group="g")
    assert other.recv() == b"x"


def test_a_radio_sends_on_without_a_listener(twin, line):
    place = f"udp://127.0.0.1:{line.getsockname()[1]}"
    line.close()
    radio = twin("RADIO", connect=place)
    for _ in range(300):
        radio.send(b"lost", group="g")
    late = twin("DISH", bind=place, join="g", recv_timeout=BOUND)
    until(lambda: peer_of(radio).unsent == 0)
    radio.send(b"found", group="g")
    while late.recv() != b"found":
        pass


def test_what_was_accepted_leaves_before_the_end(twin, dish):
    dish.join("g")
    radio = twin("RADIO", connect=dish.endpoints[0])
    for number in range(50):
        radio.send(b"%d" % number, group="g")
    radio.close()
    assert [dish.recv() for _ in range(50)] == [b"%d" % number for number in range(50)]


def test_above_the_mark_the_kernel_drops(twin, line):
    dish = twin("DISH", bind="udp://127.0.0.1:*", join="g", recv_hwm=10, recv_timeout=BOUND)
    for number in range(5000):
        line.sendto(b"\1g%d" % number, address(dish.endpoints[0]))
    until(lambda: peer_of(dish).messages_in >= 10)
    for number in range(100):  # the owner is away, and nothing more is read
        line.sendto(b"\1glate%d" % number, address(dish.endpoints[0]))
    time.sleep(0.05)
    assert peer_of(dish).messages_in == 10
    assert [dish.recv() for _ in range(30)] == [b"%d" % number for number in range(30)]
    while not nothing(dish):
        dish.recv()
    line.sendto(b"\1glast", address(dish.endpoints[0]))
    assert dish.recv() == b"last"


def test_all_ways_to_receive(radio_and_dish):
    radio, dish = radio_and_dish
    dish.join("g")
    for number in range(6):
        radio.send(b"%d" % number, group="g")
    until(lambda: peer_of(radio).unsent == 0)
    buffer = bytearray(1)
    assert dish.recv_multipart() == [b"0"]
    assert (dish.recv_into(buffer), buffer) == (1, b"1")
    assert dish.recv() == b"2"
    assert dish.recv_many(2) == [b"3", b"4"]
    assert dish.poll(BOUND)
    assert dish.recv_message().body == b"5"
    radio.send(b"too large", group="g")
    with pytest.raises(omq.MessageTooLarge):
        dish.recv_into(buffer)
    assert dish.recv() == b"too large"


@pytest.mark.parametrize(
    ("kind", "call", "why"),
    [
        ("RADIO", "bind", "a RADIO socket cannot bind to datagrams; RADIO sockets connect, DISH sockets bind"),
        ("DISH", "connect", "a DISH socket cannot connect to datagrams"),
        ("PUB", "bind", "a PUB socket cannot bind to datagrams"),
        ("DEALER", "connect", "a DEALER socket cannot connect to datagrams"),
    ],
    ids=["radio", "dish", "pub", "dealer"],
)
def test_other_types_and_other_directions_are_refused(twin, kind, call, why):
    one = twin(kind)
    with pytest.raises(omq.EndpointError, match=f"endpoint 'udp://127.0.0.1:5555': {why}"):
        getattr(one, call)("udp://127.0.0.1:5555")


def test_options_without_a_meaning_are_refused(twin):
    radio, dish = twin("RADIO"), twin("DISH")
    with pytest.raises(
        omq.OptionError, match=r"security=PLAIN: udp://127.0.0.1:1 carries datagrams without encryption"
    ):
        twin("RADIO", security=omq.PlainClient("a", "b"), connect="udp://127.0.0.1:1")
    with pytest.raises(omq.OptionError, match=r"'heartbeat_interval' does not apply to udp://127.0.0.1:1"):
        radio.connect("udp://127.0.0.1:1", heartbeat_interval=1)
    with pytest.raises(omq.OptionError, match=r"'multicast_hops' does not apply to tcp://127.0.0.1:1"):
        radio.connect("tcp://127.0.0.1:1", multicast_hops=3)
    with pytest.raises(omq.OptionError, match="'multicast_hops' does not fit a DISH socket"):
        dish.bind("udp://127.0.0.1:*", multicast_hops=3)
    with pytest.raises(
        omq.OptionError, match=r"multicast_loop=False of the socket does not apply to tcp://127.0.0.1:1"
    ):
        twin("RADIO", multicast_loop=False, connect="tcp://127.0.0.1:1")


def test_a_waiting_call_is_woken(twin, radio_and_dish):
    radio, dish = radio_and_dish
    dish.join("g")
    waiting = twin.spawn(dish, "recv")
    assert not waiting.done(0.05)
    radio.send(b"x", group="g")
    assert waiting.result() == b"x"


def test_a_descriptor_shows_what_waits(radio_and_dish):
    radio, dish = radio_and_dish
    dish.join("g")
    poll = select.poll()
    poll.register(dish.fileno(), select.POLLIN)
    assert not poll.poll(0)
    radio.send(b"x", group="g")
    assert poll.poll(BOUND * 1000)
    assert dish.recv() == b"x"
    assert not poll.poll(0)
