"""The table of states: the page that is drawn from it, and that the engine goes through every line and no other way."""

import asyncio
import importlib.util
import logging
from pathlib import Path

import pytest

import omq as blocking
import omq.asyncio as omq
from omq.engine import lifecycle
from omq.engine.lifecycle import TABLE, ConnectionState, DialerState, ListenerState, SocketState, StateMachine
from omq.engine.report import Reporter
from tests.support.raw_peer import RawPeer
from tests.unit.conftest import on_both_loops, until
from tests.unit.engine.raw_listeners import listening, port_of

DOCS = Path(__file__).parents[3] / "docs"
PARTS = [SocketState, ListenerState, DialerState, ConnectionState]


class Timeline:
    """Every move of every part, and every event, in their order."""

    def __init__(self):
        self.moves = []  # (source, target, events before it)
        self.events = []  # kinds

    def seen(self, source, target):
        return any((was, now) == (source, target) for was, now, _ in self.moves)


@pytest.fixture
def timeline(monkeypatch):
    line = Timeline()
    move, emit = StateMachine.move, Reporter.emit

    def record_move(part, target):
        line.moves.append((part.state, target, len(line.events)))
        move(part, target)

    def record_event(reporter, kind, *arguments):
        line.events.append(kind)
        emit(reporter, kind, *arguments)

    monkeypatch.setattr(StateMachine, "move", record_move)
    monkeypatch.setattr(Reporter, "emit", record_event)
    return line


# The table


def test_the_page_agrees_with_the_table():
    spec = importlib.util.spec_from_file_location("draw_lifecycle", DOCS / "draw_lifecycle.py")
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    page = drawing.PAGE.read_text(encoding="utf-8")
    assert page == drawing.page(), "python docs/draw_lifecycle.py draws it again"
    for row in TABLE:
        assert f"{row.source.name} --> {row.target.name}: " in page
    for states in PARTS:
        for state in states:
            assert f"| {state.name} | {state.value} |" in page


@pytest.mark.parametrize("states", PARTS)
def test_every_state_is_reached_and_leads_to_the_last(states):
    first, *_, last = states
    ways = {(row.source, row.target) for row in TABLE if type(row.source) is states}
    assert all(type(target) is states for _, target in ways)
    assert not any(source is last for source, _ in ways)
    for start, goal in [(first, one) for one in states] + [(one, last) for one in states]:
        reached = {start}
        for _ in states:
            reached |= {target for source, target in ways if source in reached}
        assert goal in reached


def test_no_way_stands_there_twice():
    assert len({(row.source, row.target) for row in TABLE}) == len(TABLE)


class Part(StateMachine):
    def __init__(self, state):
        self.state = state


def test_a_way_that_is_not_in_the_table_raises():
    part = Part(SocketState.CLOSED)
    with pytest.raises(AssertionError, match="Part cannot go from CLOSED to RUNNING"):
        part.move(SocketState.RUNNING)
    assert part.state is SocketState.CLOSED


def test_a_way_that_is_not_in_the_table_is_logged_where_users_are(monkeypatch, caplog):
    monkeypatch.setattr(lifecycle, "STRICT", False)
    part = Part(DialerState.CLOSED)
    with caplog.at_level(logging.ERROR, "omq"):
        part.move(DialerState.WAITING)
    assert part.state is DialerState.WAITING
    assert "Part cannot go from CLOSED to WAITING" in caplog.text


# The engine on its ways


async def _sockets_and_listeners(make, timeline, tmp_path):
    def outside():
        """Without a loop."""
        return [
            omq.PULL(),
            omq.PULL(bind="tcp://127.0.0.1:*"),
            omq.PULL(connect="tcp://127.0.0.1:9"),
            omq.PULL(bind="inproc://lifecycle-outside"),
        ]

    for made in await asyncio.to_thread(outside):
        made.stop()
    for how in ("accepting", "paused", "back"):
        pull = make(omq.PULL, bind=f"ipc://{tmp_path}/{how}")
        (listener,) = pull._engine.endpoints.listeners.values()
        if how != "accepting":
            pull._engine.emit(omq.EventKind.ACCEPT_FAILED)  # the listener does that before it pauses
            listener._pause()
        if how == "back":
            await until(lambda part=listener: part.state is ListenerState.ACCEPTING)
        pull.stop()


async def _connections(make, timeline):
    for end in ("stop", "close", "raw", "disconnect"):
        pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
        (where,) = pull.endpoints
        push = make(omq.PUSH, connect=where, reconnect_interval=0.01)
        await push.wait_connected(timeout=5)
        if end == "raw":
            (await RawPeer.dial(where)).close()
            await until(lambda: omq.EventKind.HANDSHAKE_FAILED in timeline.events)
        if end == "disconnect":
            push.disconnect(where)
            await until(lambda: timeline.seen(ConnectionState.LEAVING, ConnectionState.CLOSING))
        if end == "stop":
            pull.stop()
            # There is no listener any more: the dialer tries, and waits.
            await until(lambda: timeline.seen(DialerState.CONNECTING, DialerState.WAITING))
            dialer = push._engine.endpoints.dialers[where][0]
            await until(lambda part=dialer: part.state is DialerState.WAITING)
        push.stop()
        await pull.close()


async def _leaving(make, timeline):
    """A peer that takes nothing: there is more for it than the kernels hold, and not for ever."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", recv_hwm=1, recv_buffer=4096)
    push = make(omq.PUSH, connect=pull.endpoints[0], linger=0.05)
    await push.wait_connected(timeout=5)
    await push.send_many([b"first", bytes(1000), bytes(32 << 20)])
    push.disconnect(pull.endpoints[0])
    await until(lambda: timeline.seen(ConnectionState.LEAVING, ConnectionState.OVER))
    pull.stop()
    push.stop()


async def _dialers(make, timeline, inproc):
    waiting = make(omq.PUSH, connect=inproc)
    waiting.disconnect(inproc)
    with blocking.Context() as context, blocking.PULL(context, bind=inproc):
        # The answer comes from another thread: the one who asked ends before it does.
        push = make(omq.PUSH, context, connect=inproc)
        push.stop()
        await until(lambda: timeline.seen(ConnectionState.CONNECTING, ConnectionState.OVER))


async def _leaving_dialers(make, inproc):
    """Disconnects dialers in each state: the messages are for no other peer, and there is none."""
    for before in (DialerState.NEW, DialerState.CONNECTING, DialerState.CONNECTED, DialerState.WAITING):
        with listening() as server:
            where = inproc if before is DialerState.CONNECTING else f"tcp://127.0.0.1:{port_of(server)}"
            if before is DialerState.WAITING:
                server.close()
            push = make(omq.PUSH, connect=where)
            (dialer,) = push._engine.endpoints.dialers[where]
            await push.send(b"x")
            await until(lambda part=dialer, state=before: part.state is state)
            push.disconnect(where)
            assert dialer.leaving
            push.stop()


@on_both_loops
async def test_the_engine_goes_every_way_of_the_table_and_reports_it(make, timeline, inproc, tmp_path):
    await _sockets_and_listeners(make, timeline, tmp_path)
    await _connections(make, timeline)
    await _leaving(make, timeline)
    await _dialers(make, timeline, inproc)
    await _leaving_dialers(make, f"{inproc}-later")
    ways = {(source, target) for source, target, _ in timeline.moves}
    assert ways == {(row.source, row.target) for row in TABLE}
    for row in TABLE:
        if row.events:
            assert any(
                _check_events(row.events.split(", "), timeline.events[max(before - 1, 0) :])
                for source, target, before in timeline.moves
                if (source, target) == (row.source, row.target)
            ), f"{row} is not reported"


def _check_events(expected, events):
    """Returns whether the first of the kinds comes at once, and the others later."""
    for number, kind in enumerate(expected):
        near = events[:3] if number == 0 else events
        found = [place for place, event in enumerate(near) if event.value in kind.split(" | ")]
        if not found:
            return False
        events = events[found[0] + 1 :]
    return True


# The end


@on_both_loops
@pytest.mark.parametrize("way", ["stop", "close", "peer", "disconnect"])
async def test_every_end_of_a_connection_has_the_same_order_and_happens_once(make, endpoint, monkeypatch, way):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint, reconnect_interval=None)
    (session,) = push._engine.sessions
    order = []
    engine, pattern = push._engine, push._engine.pattern
    disconnected, emit = pattern.disconnected, Reporter.emit

    def leave_routing(leaving):
        order.append("routing")
        disconnected(leaving)

    def record(reporter, kind, *arguments):
        if reporter is engine.reporter and kind == "disconnected":
            order.append("event" if getattr(session.peer, "fd", -1) == -1 else "event before the descriptor is closed")
        emit(reporter, kind, *arguments)

    monkeypatch.setattr(pattern, "disconnected", leave_routing)
    monkeypatch.setattr(Reporter, "emit", record)
    session.ended.add_done_callback(lambda _: order.append("done"))
    if way == "stop":
        push.stop()
    elif way == "close":
        await push.close()
    elif way == "peer":
        pull.stop()
    else:
        push.disconnect(pull.endpoints[0])
    await until(lambda: "done" in order)
    session.end(None)
    session.end(OSError("again"))
    push.stop()
    assert order == ["routing", "event", "done"]
    assert session.state is ConnectionState.OVER


@on_both_loops
async def test_a_closing_socket_takes_peers_over_inproc_while_it_has_something_for_them(make, inproc):
    push = make(omq.PUSH, bind=inproc)
    await push.send(b"x")
    closing = asyncio.create_task(push.close())
    await asyncio.sleep(0)
    pull = make(omq.PULL, connect=inproc)
    assert await pull.recv(timeout=5) == b"x"
    await asyncio.wait_for(closing, 5)
