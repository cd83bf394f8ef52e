"""Monitors of blocking sockets: threads that wait for events. The events themselves are tested in the asyncio twin."""

import itertools
import os
import stat
import threading
import time

import pytest

import omq
from omq.engine.report import Reporter
from tests.unit.blocking.conftest import BOUND

Kind = omq.EventKind


def expect(monitor, *kinds):
    """The next events, which are to be of these kinds."""
    events = [monitor.recv(timeout=BOUND) for _ in kinds]
    assert [event.kind for event in events] == list(kinds)
    return events


def sleeps(thread):
    """Gives a thread the time to fall asleep."""
    thread.join(0.05)
    assert thread.is_alive()


def test_subscriptions_are_reported_whichever_thread_reads_them(make, crew):
    """The thread that receives handles them while it leads, the I/O thread otherwise."""
    xpub = make(omq.XPUB, bind="tcp://127.0.0.1:*")
    monitor = xpub.monitor()
    sub = make(omq.SUB, connect=xpub.endpoints[0])
    expect(monitor, Kind.ACCEPTED, Kind.HANDSHAKE_SUCCEEDED)
    crew(lambda: xpub.recv(timeout=BOUND))
    sub.subscribe(b"a")
    assert crew.join() == [b"\1a"]
    sub.subscribe(b"b")
    first, second = expect(monitor, Kind.SUBSCRIBED, Kind.SUBSCRIBED)
    assert (first.prefix, second.prefix) == (b"a", b"b")


@pytest.mark.parametrize("end", ["close", "stop", "term"])
def test_threads_that_read_end_with_the_socket(make, crew, end):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    monitor = pull.monitor()
    readers = [crew(lambda: [event.kind for event in monitor]) for _ in range(3)]
    sleeps(readers[0])
    if end == "term":
        make.context.term()
    else:
        getattr(pull, end)()
    assert sorted(itertools.chain(*crew.join())) == ["closed", "monitor_stopped"]
    with pytest.raises(omq.ClosedError):
        monitor.recv()
    with pytest.raises(omq.ClosedError):
        pull.monitor()


def test_closing_a_monitor_wakes_its_readers(make, crew):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    with pull.monitor() as monitor:
        reader = crew(lambda: list(monitor))
        sleeps(reader)
        monitor.close()
        assert crew.join() == [[]]
    assert not pull._engine.reporter._monitors


def test_nothing_is_lost_or_reported_twice_among_threads(make, crew):
    pull = make(omq.PULL)
    monitor = pull.monitor(limit=50)
    readers = [crew(lambda: list(monitor)) for _ in range(3)]
    lagging = pull.monitor(limit=50)
    for _ in range(100):
        pull.unbind(pull.bind("tcp://127.0.0.1:*"))
    pull.close()
    assert all(not reader.is_alive() or reader.join(BOUND) is None for reader in readers)
    events = list(itertools.chain(*crew.join()))
    missed = sum(event.count for event in events if event.kind is Kind.MISSED)
    assert sum(event.kind is not Kind.MISSED for event in events) + missed == 201
    kept = list(lagging)
    assert (kept[0].kind, kept[0].count, len(kept)) == (Kind.MISSED, 151, 51)


def test_the_monitor_of_a_dropped_socket_ends(make, crew):
    pull = omq.PULL(make.context, bind="tcp://127.0.0.1:*")
    monitor = pull.monitor()
    reader = crew(lambda: [event.kind for event in monitor])
    sleeps(reader)
    with pytest.warns(ResourceWarning):
        del pull
    assert crew.join() == [["closed", "monitor_stopped"]]


def test_a_reader_that_sleeps_uses_no_time(make):
    monitor = make(omq.PULL, bind="tcp://127.0.0.1:*").monitor()
    before = time.process_time()
    reader = threading.Thread(target=lambda: list(monitor))
    reader.start()
    sleeps(reader)
    reader.join(0.3)
    assert time.process_time() - before < 0.1
    monitor.close()
    reader.join(BOUND)
    assert not reader.is_alive()


def test_a_monitor_that_is_made_while_the_socket_closes_ends(monkeypatch):
    pull = omq.PULL(bind="tcp://127.0.0.1:*")
    add = Reporter.add

    def add_late(reporter, monitor):
        pull.stop()
        add(reporter, monitor)

    monkeypatch.setattr(Reporter, "add", add_late)
    monitor = pull.monitor()
    assert monitor.recv(timeout=BOUND).kind == "monitor_stopped"
    with pytest.raises(omq.ClosedError):
        monitor.recv(timeout=BOUND)


def test_events_of_listeners_and_connections_have_their_descriptors(make, endpoint):
    pull, push = make(omq.PULL), make(omq.PUSH)
    monitors = [socket.monitor() for socket in (pull, push)]
    pull.bind(endpoint)
    push.connect(pull.endpoints[0])
    listening, accepted, _ = expect(monitors[0], Kind.LISTENING, Kind.ACCEPTED, Kind.HANDSHAKE_SUCCEEDED)
    connected = expect(monitors[1], Kind.CONNECT_DELAYED, Kind.CONNECTED)[1]
    found = [listening.descriptor, accepted.descriptor, connected.descriptor]
    if endpoint.startswith("inproc"):
        assert found == [None] * 3
        return
    assert len(set(found)) == 3
    for descriptor in found:
        assert stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    push.stop()
    pull.unbind(pull.endpoints[0])
    gone, closed = (monitors[0].recv(timeout=BOUND) for _ in range(2))
    assert {gone.kind: gone.descriptor, closed.kind: closed.descriptor} == {
        Kind.DISCONNECTED: accepted.descriptor,
        Kind.CLOSED: listening.descriptor,
    }
