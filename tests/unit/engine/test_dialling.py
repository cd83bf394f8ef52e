"""`disconnect` before there is a connection: what was accepted goes to the endpoint that it was accepted for."""

import asyncio
import os
import time

import pytest
import zmq

import omq as blocking
import omq.asyncio as omq
from omq.engine.lifecycle import ConnectionState, DialerState
from tests.support.raw_peer import GREETING, ready
from tests.unit.conftest import on_both_loops, until
from tests.unit.engine.raw_listeners import FAST, listening, port_of

KINDS = [
    (omq.PUSH, omq.PULL),
    (omq.DEALER, omq.DEALER),
    (omq.PAIR, omq.PAIR),
    (omq.SCATTER, omq.GATHER),
    (omq.CLIENT, omq.SERVER),
    (omq.CHANNEL, omq.CHANNEL),
]


def leaving(socket):
    """The dialers that have left and have something to deliver."""
    return list(socket._engine.endpoints.leaving)


async def visit(socket, where, *messages):
    """Connects, sends and disconnects, without a turn for the loop."""
    socket.connect(where)
    for message in messages:
        await socket.send(message)
    socket.disconnect(where)


async def nothing_comes(socket):
    with pytest.raises(omq.ReceiveTimeout):
        await socket.recv(timeout=0.1)


@pytest.fixture
def absent(make, endpoint):
    """A function that gives an endpoint without a listener, and a socket that is to `bind` it."""

    def reserve(kind, **options):
        socket = make(kind, **options)
        where = socket.bind(endpoint)
        socket.unbind(where)
        return socket, where

    return reserve


@on_both_loops
@pytest.mark.parametrize(("kind", "other"), KINDS)
@pytest.mark.parametrize("stays", [True, False])
async def test_each_server_gets_its_own(make, kind, other, stays):
    servers = [make(other, bind="tcp://127.0.0.1:*") for _ in range(5)]
    client = make(kind)
    for number, server in enumerate(servers[:-1]):
        await visit(client, server.endpoints[0], b"for %d" % number, b"and more for %d" % number)
    client.connect(servers[-1].endpoints[0])
    await client.send(b"for 4")
    await client.send(b"and more for 4")
    if not stays:
        client.disconnect(servers[-1].endpoints[0])
    for number, server in enumerate(servers):
        assert [await server.recv(timeout=5) for _ in range(2)] == [b"for %d" % number, b"and more for %d" % number]
    await until(lambda: not leaving(client))
    assert len(client.peers) == stays


@pytest.mark.parametrize(("kind", "other"), KINDS)
async def test_a_server_that_comes_later_gets_it(make, absent, kind, other):
    server, where = absent(other)
    client = make(kind, **FAST)
    await visit(client, where, b"one", b"two")
    (dialer,) = leaving(client)
    await asyncio.sleep(0.05)
    assert dialer.leaving
    assert dialer.messages == [b"one", b"two"]
    server.bind(where)
    assert [await server.recv(timeout=5) for _ in range(2)] == [b"one", b"two"]
    await until(lambda: dialer.state is DialerState.CLOSED)
    assert leaving(client) == []
    await until(lambda: not server.peers)


async def test_messages_of_several_parts_and_large_ones(make):
    server = make(omq.DEALER, bind="tcp://127.0.0.1:*")
    client = make(omq.DEALER)
    client.connect(server.endpoints[0])
    sent = [[b"a", b"", b"c"], [b"alone"], [bytes(1 << 20)], [b"x"] * 40, *([b"%d" % n] for n in range(500))]
    for message in sent:
        await client.send_multipart(message)
    client.disconnect(server.endpoints[0])
    assert [await server.recv_multipart(timeout=5) for _ in sent] == sent


async def test_what_is_sent_later_goes_to_others(make, absent):
    server, where = absent(omq.PULL)
    push = make(omq.PUSH, **FAST)
    await visit(push, where, b"for the absent")
    await push.send(b"for anybody")
    other = make(omq.PULL, bind="tcp://127.0.0.1:*")
    push.connect(other.endpoints[0])
    assert await other.recv(timeout=5) == b"for anybody"
    server.bind(where)
    assert await server.recv(timeout=5) == b"for the absent"
    await push.send(b"still for the other")
    assert await other.recv(timeout=5) == b"still for the other"
    await nothing_comes(server)


async def test_where_others_are_it_stays_for_them(make, absent, free_place):
    """A bound endpoint, another one that is dialled, or the same one twice; one that has given up does not count."""
    for way in ("bound", "dialled", "twice"):
        first, where = absent(omq.PULL)
        taker = make(omq.PULL)
        push = make(omq.PUSH, **FAST)
        push.connect(where)
        if way == "bound":
            elsewhere = push.bind(free_place)
        else:
            elsewhere = taker.bind(free_place) if way == "dialled" else where
            push.connect(elsewhere)
            taker.unbind(elsewhere) if way == "dialled" else None
        await push.send(b"x")
        push.disconnect(where)
        assert leaving(push) == []
        taker.connect(elsewhere) if way == "bound" else taker.bind(elsewhere)
        assert await taker.recv(timeout=5) == b"x"
        push.stop()
        first.stop()
        taker.stop()


async def test_a_dialer_that_has_given_up_takes_no_messages(make, free_place):
    """The cancelled call does not keep others from taking what waits; what it left waits for the next."""
    dead = free_place
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    push = make(omq.PUSH, connect=dead, reconnect_interval=None)
    (given_up,) = push._engine.endpoints.dialers[dead]
    await until(lambda: given_up.state is DialerState.CLOSED)
    await visit(push, pull.endpoints[0], b"taken along")
    assert await pull.recv(timeout=5) == b"taken along"
    await until(lambda: not leaving(push))
    await push.send(b"left")
    push.disconnect(dead)
    assert leaving(push) == []
    push.connect(pull.endpoints[0])
    assert await pull.recv(timeout=5) == b"left"


@pytest.mark.parametrize("linger", [0, 0.2])
async def test_linger_bounds_it(make, absent, linger):
    server, where = absent(omq.PULL)
    push = make(omq.PUSH, linger=linger, **FAST)
    begun = time.monotonic()
    await visit(push, where, b"too late")
    await until(lambda: not leaving(push))
    assert linger - 0.005 < time.monotonic() - begun < 5  # a loop counts milliseconds
    server.bind(where)
    push.connect(where)
    await push.send(b"in time")
    assert await server.recv(timeout=5) == b"in time"
    await nothing_comes(server)


async def test_linger_bounds_the_connection_too(make):
    """A server that takes nothing: the time counts from `disconnect`, and not again from the connection."""
    with listening() as server:
        server.setblocking(False)
        push = make(omq.PUSH, linger=1)
        begun = time.monotonic()
        await visit(push, f"tcp://127.0.0.1:{port_of(server)}", bytes(32 << 20))
        (dialer,) = leaving(push)
        loop = asyncio.get_running_loop()
        connection, _ = await loop.sock_accept(server)
        with connection:
            await asyncio.sleep(0.5)
            await loop.sock_sendall(connection, GREETING + ready(b"PULL"))
            await until(lambda: dialer.session is not None and dialer.session.state is ConnectionState.LEAVING)
            session = dialer.session
            await until(lambda: dialer.state is DialerState.CLOSED)
            assert time.monotonic() - begun < 1.45
            assert session.state is ConnectionState.OVER


@on_both_loops
async def test_close_waits_for_it(make, absent):
    server, where = absent(omq.PULL)
    push = make(omq.PUSH, **FAST)
    await visit(push, where, b"x")
    closing = asyncio.create_task(push.close())
    done, _ = await asyncio.wait([closing], timeout=0.1)
    assert not done
    server.bind(where)
    await asyncio.wait_for(closing, 5)
    assert await server.recv(timeout=5) == b"x"


async def test_close_waits_no_longer_than_its_linger(make, absent):
    server, where = absent(omq.PULL)
    push = make(omq.PUSH, **FAST)
    await visit(push, where, b"x")
    begun = time.monotonic()
    await push.close(linger=0.1)
    assert 0.095 < time.monotonic() - begun < 5
    server.bind(where)
    await nothing_comes(server)


async def test_close_does_not_wait_for_what_was_dropped(make, absent):
    _, where = absent(omq.PULL)
    push = make(omq.PUSH, linger=0.1, **FAST)
    await visit(push, where, b"x")
    await asyncio.wait_for(push.close(linger=None), 5)


async def test_stop_drops_it(make, absent):
    server, where = absent(omq.PULL)
    push = make(omq.PUSH, **FAST)
    await visit(push, where, b"x")
    (dialer,) = leaving(push)
    push.stop()
    assert (dialer.state, dialer.messages, leaving(push)) == (DialerState.CLOSED, [], [])
    server.bind(where)
    await nothing_comes(server)


async def test_a_leaving_dialer_takes_no_room_of_the_socket(make, absent):
    _, where = absent(omq.PULL)
    push = make(omq.PUSH, send_hwm=2, **FAST)
    push.connect(where)
    for _ in range(2):
        await push.send(b"x")
    with pytest.raises(omq.SendTimeout):
        await push.send(b"x", timeout=0.01)
    waiting = asyncio.create_task(push.send(b"y", timeout=5))
    await asyncio.sleep(0)
    push.disconnect(where)
    await waiting
    await push.send(b"y", timeout=0.01)
    assert push._engine.has_unsent()


async def test_a_handshake_under_way_goes_on(make):
    with listening() as server:
        server.setblocking(False)
        push = make(omq.PUSH)
        where = f"tcp://127.0.0.1:{port_of(server)}"
        push.connect(where)
        await push.send(b"payload")
        (dialer,) = push._engine.endpoints.dialers[where]
        await until(lambda: dialer.state is DialerState.CONNECTED)
        push.disconnect(where)
        loop = asyncio.get_running_loop()
        connection, _ = await loop.sock_accept(server)
        with connection:
            await loop.sock_sendall(connection, GREETING + ready(b"PULL"))
            got = b""
            while chunk := await loop.sock_recv(connection, 4096):
                got += chunk
        assert got.endswith(b"\0\7payload")
        await until(lambda: not leaving(push))


@pytest.mark.parametrize("greeting", [b"", GREETING])
async def test_a_connection_that_fails_is_tried_again(make, greeting, free_port):
    with listening(address=("127.0.0.1", free_port)) as server:
        server.setblocking(False)
        push = make(omq.PUSH, **FAST)
        await visit(push, f"tcp://127.0.0.1:{free_port}", b"x")
        loop = asyncio.get_running_loop()
        for _ in range(3):
            connection, _ = await loop.sock_accept(server)
            with connection:
                await loop.sock_sendall(connection, greeting)
    pull = make(omq.PULL, bind=f"tcp://127.0.0.1:{free_port}")
    assert await pull.recv(timeout=5) == b"x"


async def test_a_dialer_without_reconnects_gives_up(make, free_place):
    push = make(omq.PUSH, reconnect_stop={"refused"}, **FAST)
    await visit(push, free_place, b"x")
    await until(lambda: not leaving(push))
    await asyncio.wait_for(push.close(), 5)


async def test_a_peer_that_has_just_gone_is_dialled_again(make, free_place):
    """The end of the connection has been read; the engine's notification is on its way."""
    pull, push = await make.linked(omq.PULL, omq.PUSH, free_place, **FAST)
    where = pull.endpoints[0]
    (session,) = push._engine.sessions
    notify_lost, session.on_lost = session.on_lost, lambda reason: None
    pull.stop()
    await until(lambda: session.peer.lost)
    await push.send(b"x")
    push.disconnect(where)
    again = make(omq.PULL, bind=where)
    notify_lost(None)
    assert await again.recv(timeout=5) == b"x"


async def test_a_pair_that_has_another_peer_by_then(make, absent):
    first, where = absent(omq.PAIR)
    second = make(omq.PAIR, bind="tcp://127.0.0.1:*")
    pair = make(omq.PAIR, **FAST)
    await visit(pair, where, b"for the first")
    pair.connect(second.endpoints[0])
    await pair.wait_connected(timeout=5)
    first.bind(where)
    assert await first.recv(timeout=5) == b"for the first"
    await until(lambda: not first.peers)
    await pair.send(b"for the second")
    assert await second.recv(timeout=5) == b"for the second"
    await second.send(b"answer")
    assert await pair.recv(timeout=5) == b"answer"


async def test_what_the_other_end_of_a_pipe_had_can_be_taken(make, inproc):
    client = make(omq.DEALER)
    await visit(client, inproc, b"x")
    server = make(omq.DEALER)
    await server.send(b"for the next peer")
    server.bind(inproc)
    assert await server.recv(timeout=5) == b"x"
    assert await client.recv(timeout=5) == b"for the next peer"


async def test_a_request_goes_and_its_reply_is_not_awaited(make, absent):
    first, where = absent(omq.REP)
    req = make(omq.REQ, **FAST)
    await visit(req, where, b"to the first")
    second = make(omq.REP, bind="tcp://127.0.0.1:*")
    req.connect(second.endpoints[0])
    await req.send(b"to the second", timeout=5)
    first.bind(where)
    assert await first.recv(timeout=5) == b"to the first"
    await first.send(b"not awaited")
    assert await second.recv(timeout=5) == b"to the second"
    await second.send(b"answer")
    assert await req.recv(timeout=5) == b"answer"


@pytest.mark.parametrize(("kind", "empty"), [(omq.DEALER, [b""]), (omq.REQ, [b""])])
async def test_a_router_is_probed_first(make, kind, empty):
    router = make(omq.ROUTER, bind="tcp://127.0.0.1:*")
    client = make(kind, identity=b"me", probe_router=True)
    await visit(client, router.endpoints[0], b"x")
    assert await router.recv_multipart(timeout=5) == [b"me", *empty]
    assert (await router.recv_multipart(timeout=5))[-1] == b"x"


async def test_a_full_pipe_is_no_reason_to_stay(make, inproc):
    """inproc: what waits for the last peer leaves with it, beyond its mark."""
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc, recv_hwm=1, send_hwm=100)
    for number in range(50):
        await push.send(b"%d" % number)
    push.disconnect(inproc)
    await push.send(b"for the next one")
    assert [await pull.recv(timeout=5) for _ in range(50)] == [b"%d" % number for number in range(50)]
    await nothing_comes(pull)


@pytest.mark.parametrize("step", ["is_last", "surrender"])
async def test_where_a_signal_handler_raises_in_it_nothing_is_lost(make, absent, monkeypatch, step):
    """The interrupted caller finds the message where it was, or on its way."""
    server, where = absent(omq.PULL)
    push = make(omq.PUSH, connect=where, **FAST)
    await push.send(b"x")
    owner = push._engine if step == "is_last" else push._engine.pattern

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            push.disconnect(where)
    server.bind(where)
    if step == "surrender":  # it waits for the next one
        push.connect(where)
    assert await server.recv(timeout=5) == b"x"
    await asyncio.wait_for(push.close(), 5)


async def test_nothing_grows(make, free_place):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    push = make(omq.PUSH, **FAST)
    dead = free_place
    await visit(push, pull.endpoints[0], b"first")
    await pull.recv(timeout=5)
    await until(lambda: not leaving(push) and not pull.peers)
    tasks, descriptors = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
    for number in range(100):
        await visit(push, pull.endpoints[0], b"%d" % number)
        push.set_options(linger=0.01)
        await visit(push, dead, b"dropped")
        push.set_options(linger=None)
    got = sorted([int(await pull.recv(timeout=5)) for _ in range(100)])
    assert got == list(range(100))
    await until(lambda: not leaving(push) and not pull.peers)
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    # Each socket may have got an event for what is read ahead of its owner.
    await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 2)
    engine = push._engine
    assert (len(engine._sessions), len(engine.endpoints.dialers), engine.endpoints._ended) == (0, 0, 0)


@pytest.mark.parametrize("library", ["omq", "zmq"])
def test_short_clients_deliver(library):
    """The clients connect, send, disconnect and close, in the blocking twin."""
    with zmq.Context() as context, context.socket(zmq.PULL) as theirs, blocking.PULL(recv_timeout=5) as ours:
        theirs.rcvtimeo = 5000
        if library == "omq":
            (where, take) = ours.bind("tcp://127.0.0.1:*"), ours.recv
        else:
            where, take = f"tcp://127.0.0.1:{theirs.bind_to_random_port('tcp://127.0.0.1')}", theirs.recv
        for number in range(50):
            with blocking.PUSH() as push:
                push.connect(where)
                push.send(b"%d" % number)
                push.disconnect(where)
        assert sorted(int(take()) for _ in range(50)) == list(range(50))


def test_term_with_linger_0_drops_it(free_place):
    context = blocking.Context()
    push = blocking.PUSH(context)
    where = free_place
    push.connect(where)
    push.send(b"x")
    push.disconnect(where)
    assert push.lingers
    begun = time.monotonic()
    context.term(linger=0)
    assert time.monotonic() - begun < 5
    assert push.closed
