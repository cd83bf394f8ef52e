"""RADIO and DISH (RFC 48): messages of one part, to everyone who has joined their group."""

from __future__ import annotations

import socket
import threading

import pytest

import omq
from tests.support import raw_zmtp
from tests.support.waits import BOUND, until
from tests.system.conformance.test_pub_sub import nothing

LONGEST = "g" * 255


def raw(endpoint: str) -> socket.socket:
    host, port = endpoint.removeprefix("tcp://").split(":")
    line = socket.create_connection((host, int(port)), timeout=BOUND)
    line.settimeout(BOUND)
    return line


def as_dish(endpoint: str) -> socket.socket:
    line = raw(endpoint)
    line.sendall(raw_zmtp.greeting() + raw_zmtp.ready("DISH"))
    return line


def ended(line: socket.socket) -> bool:
    """Reads on until the connection ends."""
    try:
        while line.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.fixture
def radio_and_dish(twin, endpoint):
    radio = twin("RADIO", bind=endpoint)
    dish = twin("DISH", connect=radio.endpoints[0], recv_timeout=BOUND)
    return radio, dish


def test_only_the_groups_that_were_joined_arrive(radio_and_dish):
    radio, dish = radio_and_dish
    dish.join("movies")
    dish.join(b"tv")
    radio.wait_subscribed(n=2, timeout=BOUND)
    for number, group in enumerate(["tv", "movie", "moviess", "", "movies", b"TV", "tv"]):
        radio.send(b"%d" % number, group=group)
    found = [dish.recv_message() for _ in range(3)]
    assert [(one.group, one.body, one.parts) for one in found] == [
        ("tv", b"0", [b"0"]),
        ("movies", b"4", [b"4"]),
        ("tv", b"6", [b"6"]),
    ]
    assert nothing(dish)


@pytest.mark.parametrize("group", ["", "a", "fourteen bytes", "more than fourteen", LONGEST, "gr\u00fcn", b"\xff\x01"])
def test_a_group_is_any_name_of_up_to_255_bytes(radio_and_dish, group):
    radio, dish = radio_and_dish
    dish.join(group)
    radio.wait_subscribed(group, timeout=BOUND)
    radio.send(b"x", group=group)
    found = dish.recv_message()
    assert found.group == (group if isinstance(group, str) else group.decode("utf-8", "surrogateescape"))
    dish.leave(found.group)
    until(lambda: not subscribed(radio))


def subscribed(radio, group=None) -> bool:
    try:
        radio.wait_subscribed(group, timeout=0)
    except omq.Timeout:
        return False
    return True


def test_groups_are_joined_from_the_start_and_again_after_a_reconnect(twin):
    radio = twin("RADIO", bind="tcp://127.0.0.1:*")
    endpoint = radio.endpoints[0]
    dish = twin("DISH", connect=endpoint, join=["a", b"b"], reconnect_interval=0.01, recv_timeout=BOUND)
    dish.join("c")
    dish.join("d")
    dish.leave("d")
    radio.wait_subscribed(n=3, timeout=BOUND)
    radio.stop()
    again = twin("RADIO", bind=endpoint)
    again.wait_subscribed(n=3, timeout=BOUND)
    for group in ("d", "a", "b", "c"):
        again.send(group.encode(), group=group)
    assert [dish.recv() for _ in range(3)] == [b"a", b"b", b"c"]


def test_leaving_drops_what_waits(radio_and_dish):
    radio, dish = radio_and_dish
    dish.join("a")
    dish.join("b")
    radio.wait_subscribed(n=2, timeout=BOUND)
    radio.send(b"1", group="a")
    radio.send(b"2", group="b")
    assert dish.poll(BOUND)
    dish.leave("a")
    assert dish.recv() == b"2"
    until(lambda: not subscribed(radio, "a"))
    radio.send(b"3", group="a")
    radio.send(b"4", group="b")
    assert dish.recv() == b"4"


def test_joining_twice_or_leaving_what_was_not_joined_is_an_error(twin):
    dish = twin("DISH", join="a")
    with pytest.raises(omq.UsageError, match="the group b'a' is joined already"):
        dish.join("a")
    with pytest.raises(omq.UsageError, match="the group b'b' is not joined"):
        dish.leave(b"b")
    dish.leave("a")
    dish.join(b"a")


@pytest.mark.parametrize(
    ("group", "error", "why"),
    [
        ("g" * 256, omq.UsageError, "has 256 bytes, more than 255"),
        ("\u00fc" * 128, omq.UsageError, "has 256 bytes, more than 255"),
        (b"a\0b", omq.UsageError, "has a zero byte"),
        ("\ud800", omq.UsageError, "cannot be sent in UTF-8"),
        (7, TypeError, "group=7: must be str or bytes, not int"),
        (bytearray(b"a"), TypeError, "group=bytearray.*: must be str or bytes, not bytearray"),
        (None, TypeError, "group=None: must be str or bytes, not NoneType"),
    ],
    ids=["long", "long in UTF-8", "zero byte", "no text", "int", "bytearray", "None"],
)
def test_what_cannot_be_a_group_is_named(twin, group, error, why):
    radio, dish = twin("RADIO"), twin("DISH")
    for call in (dish.join, dish.leave):
        with pytest.raises(error, match=why):
            call(group)
    if group is not None:
        with pytest.raises(error, match=why):
            radio.send(b"x", group=group)
        with pytest.raises(error, match=why):
            radio.wait_subscribed(group, timeout=0)
        with pytest.raises(omq.OptionError, match="option join="):
            twin("DISH", join=[group])


def test_each_type_goes_one_way_and_has_its_own_calls(twin):
    radio, dish = twin("RADIO"), twin("DISH")
    with pytest.raises(omq.StateError, match="does not receive"):
        radio.recv(timeout=0)
    with pytest.raises(omq.StateError, match="does not send"):
        dish.send(b"x")
    with pytest.raises(omq.StateError, match="a RADIO socket does not take routing_id=: use it with SERVER, PEER"):
        radio.send(b"x", routing_id=1)
    with pytest.raises(omq.StateError, match="group= is missing"):
        radio.send(b"x")
    with pytest.raises(omq.MultipartError, match="a RADIO socket sends messages of one part, and this one has 2"):
        radio.send_multipart([b"a", b"b"], group="g")
    with pytest.raises(omq.StateError, match="it is for DISH"):
        radio.join("a")
    with pytest.raises(omq.StateError, match="it is for SUB, XSUB"):
        dish.subscribe(b"a")


def test_each_dish_gets_the_message_once_and_unchanged(twin, endpoint):
    radio = twin("RADIO", bind=endpoint)
    dishes = [twin("DISH", connect=radio.endpoints[0], join=["g", "h"], recv_timeout=BOUND) for _ in range(4)]
    radio.wait_subscribed("g", 4, timeout=BOUND)
    bodies = [b"", b"\0", b"\1g", bytes(1000), bytes(100_000), b"end"]
    for body in bodies:
        radio.send(body, group="g")
    for dish in dishes:
        assert [dish.recv() for _ in bodies] == bodies


def test_every_call_takes_the_body_alone(radio_and_dish):
    radio, dish = radio_and_dish
    dish.join("g")
    radio.wait_subscribed(timeout=BOUND)
    for number in range(6):
        radio.send(b"%d" % number, group="g")
    assert dish.recv() == b"0"
    assert dish.recv_multipart() == [b"1"]
    into = bytearray(3)
    assert dish.recv_into(into) == 1
    assert into == b"2\0\0"
    rest = []
    while len(rest) < 3:
        rest += dish.recv_many()
    assert rest == [b"3", b"4", b"5"]


def test_a_full_dish_misses_messages_and_delays_no_other(twin):
    radio = twin("RADIO", bind="tcp://127.0.0.1:*", send_hwm=10)
    slow = as_dish(radio.endpoints[0])
    quick = twin("DISH", connect=radio.endpoints[0], join="g", recv_timeout=BOUND)
    with slow:
        slow.sendall(raw_zmtp.command(b"JOIN", b"g"))
        radio.wait_subscribed("g", 2, timeout=BOUND)
        for number in range(300):
            radio.send(b"%03d" % number + bytes(100_000), group="g", timeout=0)
            assert quick.recv()[:3] == b"%03d" % number
        assert sum(one.dropped for one in radio.peers) > 0


def test_a_radio_sends_a_group_and_a_body(twin):
    radio = twin("RADIO", bind="tcp://127.0.0.1:*")
    with as_dish(radio.endpoints[0]) as line:
        line.sendall(raw_zmtp.command(b"JOIN", b"news"))
        radio.wait_subscribed("news", timeout=BOUND)
        radio.send(b"body", group="news")
        expected = raw_zmtp.frame(b"news", raw_zmtp.MORE) + raw_zmtp.frame(b"body")
        data = b""
        while not data.endswith(expected):
            more = line.recv(4096)
            assert more, data
            data += more


def test_a_dish_asks_with_commands_whatever_the_version(twin):
    listener = socket.create_server(("127.0.0.1", 0))
    dish = twin("DISH", connect=f"tcp://127.0.0.1:{listener.getsockname()[1]}", join="early", recv_timeout=BOUND)
    line, _ = listener.accept()
    with listener, line:
        line.settimeout(BOUND)
        line.sendall(raw_zmtp.greeting((3, 0)) + raw_zmtp.ready("RADIO"))
        dish.wait_connected(timeout=BOUND)
        dish.join("late")
        dish.leave("early")
        data = b""
        while b"LEAVEearly" not in data:
            data += line.recv(4096)
        asked = [
            raw_zmtp.command(b"JOIN", b"early"),
            raw_zmtp.command(b"JOIN", b"late"),
            raw_zmtp.command(b"LEAVE", b"early"),
        ]
        assert data.endswith(b"".join(asked))
        # RFC 48 lets a RADIO send all groups: the others are dropped here.
        for group in (b"other", b"lat", b"late", b"early", b""):
            line.sendall(raw_zmtp.frame(group, raw_zmtp.MORE) + raw_zmtp.frame(b"in " + group))
        assert dish.recv() == b"in late"
        assert nothing(dish)


@pytest.mark.parametrize(
    "sent",
    [
        raw_zmtp.command(b"JOIN", b"g" * 256),
        raw_zmtp.command(b"JOIN", b"a\0"),
        raw_zmtp.command(b"LEAVE", b"g" * 256),
        raw_zmtp.frame(b"a", raw_zmtp.MORE) + raw_zmtp.frame(b"b", raw_zmtp.MORE) + raw_zmtp.frame(b"c"),
    ],
    ids=["long JOIN", "JOIN with a zero byte", "long LEAVE", "three parts"],
)
def test_a_bad_dish_loses_its_connection_and_no_other(twin, sent):
    radio = twin("RADIO", bind="tcp://127.0.0.1:*")
    good = twin("DISH", connect=radio.endpoints[0], join="g", recv_timeout=BOUND)
    with as_dish(radio.endpoints[0]) as line:
        line.sendall(sent)
        assert ended(line)
    radio.wait_subscribed("g", timeout=BOUND)
    radio.send(b"x", group="g")
    assert good.recv() == b"x"


def test_a_dish_may_not_join_more_than_it_is_allowed(twin):
    radio = twin("RADIO", bind="tcp://127.0.0.1:*", max_subscriptions=3)
    with as_dish(radio.endpoints[0]) as line:
        for number in range(4):
            line.sendall(raw_zmtp.command(b"JOIN", b"%d" % number))
        assert ended(line)
    until(lambda: not subscribed(radio))


def test_messages_and_needless_commands_of_a_dish_are_ignored(twin):
    radio = twin("RADIO", bind="tcp://127.0.0.1:*")
    with as_dish(radio.endpoints[0]) as line:
        line.sendall(raw_zmtp.frame(b"\1sub") + raw_zmtp.frame(b"group", raw_zmtp.MORE) + raw_zmtp.frame(b"body"))
        line.sendall(raw_zmtp.command(b"LEAVE", b"never") + raw_zmtp.command(b"SUBSCRIBE", b"x"))
        line.sendall(raw_zmtp.command(b"JOIN", b"g"))
        radio.wait_subscribed("g", timeout=BOUND)
        with pytest.raises(omq.Timeout):
            radio.wait_subscribed(n=2, timeout=0.02)


@pytest.mark.parametrize(
    "sent",
    [
        raw_zmtp.frame(b"alone"),
        raw_zmtp.frame(b"g" * 256, raw_zmtp.MORE) + raw_zmtp.frame(b"body"),
        raw_zmtp.frame(b"g", raw_zmtp.MORE) + raw_zmtp.frame(b"b", raw_zmtp.MORE) + raw_zmtp.frame(b"c"),
    ],
    ids=["no group", "long group", "three parts"],
)
def test_a_bad_radio_loses_its_connection_and_no_other(twin, sent):
    dish = twin("DISH", bind="tcp://127.0.0.1:*", join="g", recv_timeout=BOUND)
    good = twin("RADIO", connect=dish.endpoints[0])
    good.wait_subscribed("g", timeout=BOUND)
    with raw(dish.endpoints[0]) as line:
        line.sendall(raw_zmtp.greeting() + raw_zmtp.ready("RADIO"))
        line.sendall(raw_zmtp.frame(b"g", raw_zmtp.MORE) + raw_zmtp.frame(b"before"))
        assert dish.recv() == b"before"
        line.sendall(sent)
        good.send(b"from the good one", group="g")
        assert dish.recv() == b"from the good one"
        until(lambda: not dish.poll(0) and len(dish.peers) == 1)  # a message is looked at when its turn comes
        assert ended(line)
    good.send(b"again", group="g")
    assert dish.recv() == b"again"


def test_a_peer_of_another_type_is_refused(twin, inproc):
    radio = twin("RADIO", bind=inproc)
    monitor = radio.monitor()
    twin("SUB", connect=inproc)
    events = []
    while not events or not events[-1].reason:
        events.append(twin.wait(lambda: monitor.recv(timeout=BOUND)))
    assert "SUB cannot talk to RADIO" in str(events[-1].reason)


def test_what_has_arrived_stays_readable_after_the_radio_has_gone(radio_and_dish):
    radio, dish = radio_and_dish
    dish.join("g")
    radio.wait_subscribed("g", timeout=BOUND)
    for number in range(5):
        radio.send(b"%d" % number, group="g")
    radio.close()
    until(lambda: not dish.peers)
    assert [dish.recv() for _ in range(5)] == [b"%d" % number for number in range(5)]


def test_a_dish_that_takes_nothing_holds_its_radio_back(twin):
    radio = twin("RADIO", bind="tcp://127.0.0.1:*", send_hwm=10)
    dish = twin("DISH", connect=radio.endpoints[0], join="g", recv_hwm=10, recv_timeout=BOUND)
    radio.wait_subscribed("g", timeout=BOUND)
    sent = 0
    while not sum(one.dropped for one in radio.peers):
        radio.send(b"%d" % sent + bytes(100_000), group="g", timeout=0)
        sent += 1
        assert sent < 10_000
    taken = [int(dish.recv().rstrip(b"\0")) for _ in range(10)]
    assert taken == list(range(10)), "the oldest ones are kept"


def test_a_busy_radio_does_not_keep_another_one_waiting(twin, endpoint):
    dish = twin("DISH", bind=endpoint, join=["busy", "quiet"], recv_timeout=BOUND)
    busy, quiet = (twin("RADIO", connect=dish.endpoints[0], send_hwm=0) for _ in range(2))
    for one in (busy, quiet):
        one.wait_subscribed(n=2, timeout=BOUND)
    for _ in range(900):
        busy.send(b"x", group="busy")
    quiet.send(b"y", group="quiet")
    until(lambda: sum(one.messages_in for one in dish.peers) >= 2)
    groups = []
    while "quiet" not in groups:
        groups.append(dish.recv_message().group)
    assert len(groups) <= 900


def test_threads_send_and_receive_with_the_groups_of_their_own():
    with (
        omq.RADIO(bind="inproc://groups-of-threads", send_hwm=0) as radio,
        omq.DISH(connect="inproc://groups-of-threads", join=["a", "b"], recv_hwm=0, recv_timeout=BOUND) as dish,
    ):
        radio.wait_subscribed(n=2, timeout=BOUND)
        taken = []

        def send(group):
            for _ in range(2000):
                radio.send(group.encode(), group=group)

        def receive():
            taken.extend(dish.recv_message() for _ in range(2000))

        threads = [threading.Thread(target=send, args=(group,)) for group in "ab"]
        threads += [threading.Thread(target=receive) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND)
    assert len(taken) == 4000
    assert all(one.group == one.body.decode() for one in taken)
