"""The order of events, as libzmq's tests of its monitors and of reconnecting have it; in both twins."""

from __future__ import annotations

import re
import socket

import pytest

import omq
from tests.support.waits import BOUND, until

Kind = omq.EventKind
on_the_wire = pytest.mark.parametrize("endpoint", ["tcp", "ipc"], indirect=True)


@pytest.fixture
def take(twin):
    """Waits for the next events of a monitor, which are to be of these kinds."""

    def take(monitor, *kinds):
        events = [twin.wait(lambda: monitor.recv(timeout=BOUND)) for _ in kinds]
        assert [event.kind for event in events] == list(kinds)
        assert [event.time for event in events] == sorted(event.time for event in events)
        return events

    return take


@pytest.fixture
def no_listener():
    """A tcp endpoint without a listener, kept for the test."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{held.getsockname()[1]}"


def test_monitor_the_whole_life_of_a_server(twin, endpoint, take):
    pull = twin("PULL")
    monitor = pull.monitor()
    where = pull.bind(endpoint)
    (listening,) = take(monitor, Kind.LISTENING)
    assert "listening" in repr(listening)
    with pytest.raises(AttributeError):
        listening.kind = Kind.CLOSED
    push = twin("PUSH", connect=where)
    accepted, agreed = take(monitor, Kind.ACCEPTED, Kind.HANDSHAKE_SUCCEEDED)
    assert agreed.mechanism == agreed.peer.mechanism == ("" if where.startswith("inproc") else "NULL")
    push.send(b"one")
    assert pull.recv(timeout=BOUND) == b"one"
    push.stop()
    (gone,) = take(monitor, Kind.DISCONNECTED)
    assert gone.peer.messages_in == 1
    pull.unbind(where)
    (closed,) = take(monitor, Kind.CLOSED)
    assert closed.reason == "unbind"
    pull.close()
    (stopped,) = take(monitor, Kind.MONITOR_STOPPED)
    assert {event.endpoint for event in (listening, accepted, agreed, gone, closed)} == {where}
    assert accepted.remote_address == agreed.remote_address == gone.remote_address
    assert stopped.endpoint == ""
    with pytest.raises(omq.ClosedError):
        twin.wait(lambda: monitor.recv(timeout=BOUND))


@pytest.mark.parametrize("end", ["disconnect", "stop", "close"])
def test_monitor_the_whole_life_of_a_client(twin, endpoint, take, end):
    pull = twin("PULL", bind=endpoint)
    where = pull.endpoints[0]
    push = twin("PUSH")
    monitor = push.monitor()
    push.connect(where)
    take(monitor, Kind.CONNECT_DELAYED, Kind.CONNECTED, Kind.HANDSHAKE_SUCCEEDED)
    pull.wait_connected(timeout=BOUND)
    if end == "disconnect":
        push.disconnect(where)
        (gone,) = take(monitor, Kind.DISCONNECTED)
        assert (gone.reason, gone.error) == ("closed by this side", None)
        push.stop()
        take(monitor, Kind.MONITOR_STOPPED)
    else:
        getattr(push, end)()
        # It does not report another attempt: it will not.
        take(monitor, Kind.DISCONNECTED, Kind.MONITOR_STOPPED)


def test_monitor_a_server_that_stops_listens_no_longer_before_its_connections_end(twin, endpoint, take):
    pull = twin("PULL", bind=endpoint)
    pushes = [twin("PUSH", connect=pull.endpoints[0]) for _ in range(3)]
    pull.wait_connected(3, timeout=BOUND)
    monitor = pull.monitor()
    pull.stop()
    take(monitor, Kind.CLOSED, *[Kind.DISCONNECTED] * len(pushes), Kind.MONITOR_STOPPED)


def test_monitor_a_bind_that_fails_is_reported_and_raised(twin, take):
    pull, other = twin("PULL", bind="tcp://127.0.0.1:*"), twin("PULL")
    monitor = other.monitor()
    with pytest.raises(omq.BindError) as raised:
        other.bind(pull.endpoints[0])
    (failed,) = take(monitor, Kind.BIND_FAILED)
    assert failed.error is raised.value
    assert failed.endpoint == pull.endpoints[0]
    assert "in use" in failed.reason


@pytest.mark.parametrize("limit", [0, -1, None, 1.5, True, "5"])
def test_monitor_a_limit_is_a_number_above_zero(twin, limit):
    with pytest.raises((TypeError, ValueError), match="limit="):
        twin("PULL").monitor(limit)


def test_monitor_a_full_one_gets_the_end_too(twin, take):
    pull = twin("PULL")
    monitor = pull.monitor(limit=1)
    pull.bind("tcp://127.0.0.1:*")
    pull.close()
    missed, _ = take(monitor, Kind.MISSED, Kind.MONITOR_STOPPED)
    assert missed.count == 2


@on_the_wire
def test_reconnect_options_order_of_a_server_that_goes_and_comes_back(twin, endpoint, take):
    pull = twin("PULL", bind=endpoint)
    where = pull.endpoints[0]
    push = twin("PUSH", reconnect_interval=0.02)
    monitor = push.monitor()
    push.connect(where)
    take(monitor, Kind.CONNECT_DELAYED, Kind.CONNECTED, Kind.HANDSHAKE_SUCCEEDED)
    pull.stop()
    gone, retried, _ = take(monitor, Kind.DISCONNECTED, Kind.CONNECT_RETRIED, Kind.CONNECT_DELAYED)
    assert gone.peer.endpoint == where
    assert gone.reason
    assert 0 < retried.delay <= 0.02
    (failed,) = take(monitor, Kind.CONNECT_FAILED)
    assert isinstance(failed.error, omq.ConnectError)
    assert str(failed.error) == failed.reason
    twin("PULL", bind=where)
    event = take(monitor, Kind.CONNECT_RETRIED)[0]
    while event.kind is not Kind.HANDSHAKE_SUCCEEDED:
        # Each attempt is whole: it begins, and it fails or it connects.
        take(monitor, Kind.CONNECT_DELAYED)
        event = twin.wait(lambda: monitor.recv(timeout=BOUND))
        if event.kind is Kind.CONNECT_FAILED:
            take(monitor, Kind.CONNECT_RETRIED)
        else:
            assert event.kind is Kind.CONNECTED
            (event,) = take(monitor, Kind.HANDSHAKE_SUCCEEDED)


def test_reconnect_options_order_of_a_client_without_a_server(twin, no_listener, take):
    push = twin("PUSH", reconnect_interval=0.01)
    monitor = push.monitor()
    push.connect(no_listener)
    turn = (Kind.CONNECT_DELAYED, Kind.CONNECT_FAILED, Kind.CONNECT_RETRIED)
    events = take(monitor, *turn * 3)
    assert {event.endpoint for event in events} == {no_listener}
    assert all(0 < event.delay <= 0.01 for event in events if event.kind is Kind.CONNECT_RETRIED)
    assert all(event.error.errno for event in events if event.kind is Kind.CONNECT_FAILED)


def test_reconnect_options_order_of_a_handshake_that_fails(twin, endpoint, take):
    pull = twin("PULL")
    server = pull.monitor()
    where = pull.bind(endpoint)
    sub = twin("SUB", reconnect_interval=0.01)
    client = sub.monitor()
    sub.connect(where)
    failed, gone = take(server, Kind.LISTENING, Kind.ACCEPTED, Kind.HANDSHAKE_FAILED, Kind.DISCONNECTED, Kind.ACCEPTED)[
        2:4
    ]
    # Either side may be the one that reports it to the other.
    assert failed.category in (omq.HandshakeFailure.PROTOCOL, omq.HandshakeFailure.REFUSED)
    assert re.search("incompatible|cannot talk to", failed.reason)
    assert gone.reason == failed.reason
    turn = (
        Kind.CONNECT_DELAYED,
        Kind.CONNECTED,
        Kind.HANDSHAKE_FAILED,
        Kind.DISCONNECTED,
        Kind.CONNECT_RETRIED,
    )
    for event in take(client, *turn * 2):
        assert event.peer is None


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_reconnect_stop_without_a_listener_is_the_last_event(twin, transport, no_listener, tmp_path, take):
    where = no_listener if transport == "tcp" else f"ipc://{tmp_path}/no_listener"
    push = twin("PUSH", reconnect_interval=0.01, reconnect_stop="refused")
    monitor = push.monitor()
    push.connect(where)
    take(monitor, Kind.CONNECT_DELAYED, Kind.CONNECT_FAILED)
    with pytest.raises(omq.ReceiveTimeout):
        twin.wait(lambda: monitor.recv(timeout=0.1))


def test_monitor_many_clients_each_in_its_own_order(twin, take):
    """However their connections interleave, each one's events are whole and in order."""
    pull = twin("PULL")
    monitor = pull.monitor(limit=10_000)
    where = pull.bind("tcp://127.0.0.1:*")
    pushes = [twin("PUSH", connect=where) for _ in range(30)]
    for push in pushes:
        push.wait_connected(timeout=BOUND)
        push.stop()
    until(lambda: not pull.peers)
    pull.close()
    lives: dict[str, list[str]] = {}
    event = take(monitor, Kind.LISTENING)[0]
    while (event := twin.wait(lambda: monitor.recv(timeout=BOUND))).kind is not Kind.MONITOR_STOPPED:
        lives.setdefault(event.remote_address, []).append(event.kind)
    assert lives.pop("") == [Kind.CLOSED]
    assert len(lives) == 30
    assert all(life == [Kind.ACCEPTED, Kind.HANDSHAKE_SUCCEEDED, Kind.DISCONNECTED] for life in lives.values())


def test_monitor_names_both_ends_of_a_connection(twin, take):
    """libzmq's second version of its events: the local and the remote address."""
    pull = twin("PULL")
    server = pull.monitor()
    where = pull.bind("tcp://127.0.0.1:*")
    push = twin("PUSH")
    client = push.monitor()
    push.connect(where)
    accepted, agreed = take(server, Kind.LISTENING, Kind.ACCEPTED, Kind.HANDSHAKE_SUCCEEDED)[1:]
    delayed, connected, _ = take(client, Kind.CONNECT_DELAYED, Kind.CONNECTED, Kind.HANDSHAKE_SUCCEEDED)
    assert (accepted.endpoint, connected.endpoint, connected.remote_address) == (where, where, where)
    assert accepted.remote_address == agreed.remote_address != where
    assert accepted.remote_address.startswith("tcp://127.0.0.1:")
    assert delayed.remote_address == ""


def test_monitor_stream_timeout_a_server_that_never_greets(twin, take):
    """Connected, and disconnected for want of a handshake; HANDSHAKE_IVL is 30 seconds by default."""
    assert omq.Options().handshake_timeout == 30
    with socket.create_server(("127.0.0.1", 0)) as silent:
        push = twin("PUSH", handshake_timeout=0.05, reconnect_interval=None)
        monitor = push.monitor()
        push.connect(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        failed, gone = take(monitor, Kind.CONNECT_DELAYED, Kind.CONNECTED, Kind.HANDSHAKE_FAILED, Kind.DISCONNECTED)[2:]
        assert failed.category is omq.HandshakeFailure.TIMEOUT
        assert isinstance(gone.error, omq.HandshakeTimeout)


def test_monitor_stream_timeout_a_client_that_never_greets(twin, take):
    pull = twin("PULL", handshake_timeout=0.05)
    monitor = pull.monitor()
    where = pull.bind("tcp://127.0.0.1:*")
    with socket.create_connection(("127.0.0.1", int(where.rpartition(":")[2]))):
        failed = take(monitor, Kind.LISTENING, Kind.ACCEPTED, Kind.HANDSHAKE_FAILED, Kind.DISCONNECTED)[2]
        assert failed.category is omq.HandshakeFailure.TIMEOUT
