"""One wire connection from its first byte to its end, with a peer made by hand on the other side."""

import asyncio
import select
import socket
import struct

import pytest

import omq.asyncio as omq
from tests.support.raw_peer import GREETING, RawPeer, command, frames, ready
from tests.unit.conftest import on_both_loops, until

WIRE = ["tcp", "ipc"]
on_the_wire = pytest.mark.parametrize("endpoint", WIRE, indirect=True)


# The handshake


@on_both_loops
@on_the_wire
async def test_a_silent_peer_is_given_up(make, endpoint, reports):
    pull = make(omq.PULL, bind=endpoint, handshake_timeout=0.05)
    raw = await RawPeer.dial(pull.endpoints[0])
    assert len(await raw.read_all(timeout=5)) == 64
    assert any("handshake_timeout" in event[2] for event in reports if event[0] == "handshake_failed")
    raw.close()


@on_both_loops
async def test_a_peer_that_drips_is_given_up(make):
    """The timeout is for the whole handshake, not for each byte of it."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", handshake_timeout=0.05)
    raw = await RawPeer.dial(pull.endpoints[0])
    try:
        for byte in GREETING:
            await raw.send(bytes([byte]))
            await asyncio.sleep(0.005)  # 64 of them last longer than the timeout
    except (ConnectionResetError, BrokenPipeError):
        pass
    else:
        await raw.read_all(timeout=5)
    raw.close()
    assert pull.peers == []


@on_both_loops
@on_the_wire
async def test_a_peer_may_shake_hands_byte_by_byte(make, endpoint):
    pull = make(omq.PULL, bind=endpoint)
    raw = await RawPeer.dial(pull.endpoints[0])
    for byte in GREETING + ready(b"PUSH") + frames(b"first"):
        await raw.send(bytes([byte]))
        await asyncio.sleep(0)
    assert await pull.recv(timeout=5) == b"first"
    raw.close()


@on_the_wire
@pytest.mark.parametrize("count", [1, 5, 300])
async def test_traffic_in_one_burst_with_the_handshake(make, endpoint, count):
    pull = make(omq.PULL, bind=endpoint)
    raw = await RawPeer.dial(pull.endpoints[0])
    burst = GREETING + ready(b"PUSH") + b"".join(frames(b"%d" % number, bytes(100)) for number in range(count))
    await raw.send(burst)
    for number in range(count):
        assert await pull.recv_multipart(timeout=5) == [b"%d" % number, bytes(100)]
    raw.close()


@on_the_wire
async def test_nothing_follows_our_ready_before_theirs(make, endpoint):
    """libzmq drops a peer that sends traffic behind its READY at once."""
    push = make(omq.PUSH, bind=endpoint)
    await push.send(b"x")
    raw = await RawPeer.dial(push.endpoints[0])
    await raw.greet()
    flags, body = await raw.next_frame()
    assert flags & 4
    assert body.startswith(b"\5READY")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.get_running_loop().sock_recv(raw.sock, 1), 0.05)
    await raw.ready(b"PULL")
    assert await raw.next_frame() == (0, b"x")
    raw.close()


@on_the_wire
async def test_the_wrong_type_is_turned_away_with_a_reason(make, endpoint, reports):
    pull = make(omq.PULL, bind=endpoint)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.greet()
    await raw.ready(b"SUB")
    seen = await raw.read_all(timeout=5)
    assert b"ERROR" in seen
    assert any("incompatible" in event[2] for event in reports if event[0] == "handshake_failed")
    assert pull.peers == []
    raw.close()


@pytest.mark.parametrize("endpoint", ["tcp", "ipc", "inproc"], indirect=True)
async def test_sockets_that_do_not_fit_never_connect(make, endpoint):
    pull = make(omq.PULL, bind=endpoint)
    wrong = make(omq.PULL, connect=pull.endpoints[0], reconnect_interval=0.01)
    for socket_ in (pull, wrong):
        with pytest.raises(omq.Timeout):
            await socket_.wait_connected(timeout=0.05)
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"


@pytest.mark.parametrize("minor", [0, 1])
async def test_revisions_three_of_zmtp_are_spoken(make, minor):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH", minor=minor)
    await raw.send(frames(b"x"))
    assert await pull.recv(timeout=5) == b"x"
    raw.close()


@on_both_loops
async def test_a_reset_in_every_state_is_survived(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    whole = GREETING + ready(b"PUSH") + frames(b"never")[:-1]
    for cut in [*range(0, len(whole), 7), len(whole)]:
        raw = await RawPeer.dial(pull.endpoints[0])
        await raw.send(whole[:cut]) if cut else None
        await asyncio.sleep(0)
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
    await until(lambda: len(pull._engine._sessions) == 1)


# Traffic


@on_the_wire
async def test_frames_cut_at_every_byte(make, endpoint):
    pull = make(omq.PULL, bind=endpoint)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH")
    data = frames(b"a") + frames(b"", b"b" * 300, b"") + command(b"PING", b"\0\0ctx") + frames(b"c" * 256)
    for cut in range(1, len(data)):
        await raw.send(data[:cut])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await raw.send(data[cut:])
        assert await pull.recv(timeout=5) == b"a"
        assert await pull.recv_multipart(timeout=5) == [b"", b"b" * 300, b""]
        assert await pull.recv(timeout=5) == b"c" * 256
    raw.close()


@on_the_wire
async def test_a_ping_is_answered_with_its_context(make, endpoint):
    pull = make(omq.PULL, bind=endpoint)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH")
    for context in (b"", b"c", b"sixteen bytes ok"):
        await raw.send(command(b"PING", b"\0\0" + context))
        assert await raw.next_frame() == (4, b"\4PONG" + context)
    await raw.send(command(b"WHATEVER", b"is ignored") + frames(b"x"))
    assert await pull.recv(timeout=5) == b"x"
    raw.close()


async def test_a_peer_that_pings_and_never_reads_is_not_kept_in_memory(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", send_buffer=4096)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH")
    pings = command(b"PING", b"\0\0sixteen bytes ok") * 4000
    for _ in range(60):
        await raw.send(pings)
    await raw.send(frames(b"end"))
    assert await pull.recv(timeout=5) == b"end"
    (session,) = pull._engine.sessions
    assert session.peer.unsent_bytes < 200_000
    raw.close()


@on_the_wire
async def test_messages_before_a_bad_command_stay_readable(make, endpoint):
    """One read brings two messages and then the end of the connection."""
    pull = make(omq.PULL, bind=endpoint)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH")
    await raw.send(frames(b"1") + frames(b"2") + command(b"ERROR", b"\3bad"))
    await raw.read_all(timeout=5)
    assert await pull.recv(timeout=5) == b"1"
    assert await pull.recv(timeout=5) == b"2"
    await until(lambda: not pull.peers)
    raw.close()


@on_the_wire
@pytest.mark.parametrize(
    "bad",
    [
        b"\x80\0",
        b"\5\0",
        b"\x02" + b"\xff" * 8 + b"data",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xda" + b"A" * 5000,
        command(b"")[:2] + b"\5",
    ],
    ids=["reserved", "command-with-more", "size-2**64", "libzmq-1488", "bad-command"],
)
async def test_bad_bytes_cost_their_sender_the_connection(make, endpoint, bad, reports):
    pull = make(omq.PULL, bind=endpoint)
    good = make(omq.PUSH, connect=pull.endpoints[0])
    await good.wait_connected(timeout=5)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH")
    await raw.send(frames(b"before") + bad)
    await raw.read_all(timeout=5)
    assert await pull.recv(timeout=5) == b"before"
    await good.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
    assert any(event[0] == "disconnected" and event[2] for event in reports)
    raw.close()


@on_the_wire
@pytest.mark.parametrize(
    ("options", "bad"),
    [
        ({"max_message_size": 100}, frames(bytes(101))),
        ({"max_message_size": 100}, frames(b"x", bytes(100_000))),
        ({"max_message_size": 100}, b"\2" + (1 << 40).to_bytes(8, "big")),
        ({"max_parts": 2}, frames(b"a", b"b", b"c")),
        ({"max_parts": 1}, frames(b"a", b"b")),
    ],
    ids=["size", "size-of-a-part", "size-announced", "parts-3", "parts-2"],
)
async def test_limits_cost_their_breaker_the_connection(make, endpoint, options, bad):
    pull = make(omq.PULL, bind=endpoint, **options)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH")
    await raw.send(frames(bytes(100)) + bad)
    await raw.read_all(timeout=5)
    assert await pull.recv(timeout=5) == bytes(100)
    await until(lambda: not pull.peers)
    assert await pull.poll(0.01) == 0
    raw.close()


async def test_a_large_announcement_allocates_little(make):
    import resource

    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    raws = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        raw = await RawPeer.dial(pull.endpoints[0])
        await raw.handshake(b"PUSH")
        await raw.send(b"\2" + (1 << 40).to_bytes(8, "big") + bytes(10))
        raws.append(raw)
    await until(lambda: all(peer.bytes_in > 10 for peer in pull.peers))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000
    for raw in raws:
        raw.close()


@on_the_wire
async def test_half_a_message_goes_with_its_sender(make, endpoint):
    pull = make(omq.PULL, bind=endpoint)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH")
    await raw.send(frames(b"whole") + frames(b"half", b"missing")[:-3])
    raw.close()
    assert await pull.recv(timeout=5) == b"whole"
    await until(lambda: not pull.peers)
    assert await pull.poll(0.01) == 0


# PUB and its older subscribers


@on_the_wire
@pytest.mark.parametrize("minor", [0, 1])
@pytest.mark.parametrize("kind", [omq.PUB, omq.XPUB])
async def test_subscriptions_come_as_messages_or_commands(make, endpoint, minor, kind):
    pub = make(kind, bind=endpoint)
    raw = await RawPeer.dial(pub.endpoints[0])
    await raw.handshake(b"SUB", minor=minor)
    await raw.send(frames(b"\1A") if minor == 0 else command(b"SUBSCRIBE", b"A"))
    await pub.wait_subscribed(b"A", timeout=5)
    if kind is omq.XPUB:
        assert await pub.recv(timeout=5) == b"\1A"
    await pub.send(b"A1")
    await pub.send(b"B1")
    await raw.send(frames(b"\0A") if minor == 0 else command(b"CANCEL", b"A"))
    if kind is omq.XPUB:
        assert await pub.recv(timeout=5) == b"\0A"
    assert await raw.next_frame() == (0, b"A1")
    raw.close()


@on_the_wire
@pytest.mark.parametrize("minor", [0, 1])
async def test_a_subscriber_speaks_as_its_publisher_does(make, endpoint, minor):
    sub = make(omq.SUB, bind=endpoint, subscribe=b"A")
    raw = await RawPeer.dial(sub.endpoints[0])
    await raw.handshake(b"PUB", minor=minor)
    sub.subscribe(b"B")
    sub.unsubscribe(b"A")
    expected = [(4, b"\x09SUBSCRIBEA"), (4, b"\x09SUBSCRIBEB"), (4, b"\6CANCELA")]
    if minor == 0:
        expected = [(0, b"\1A"), (0, b"\1B"), (0, b"\0A")]
    assert [await raw.next_frame() for _ in range(3)] == expected
    raw.close()


# The end


@on_both_loops
@on_the_wire
async def test_what_waits_is_kept_over_a_reconnect(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint, reconnect_interval=0.01)
    where = pull.endpoints[0]
    pull.stop()
    await until(lambda: not push.peers)
    for number in range(500):
        await push.send(b"%d" % number, timeout=0)
    again = make(omq.PULL, bind=where)
    assert [await again.recv(timeout=5) for _ in range(500)] == [b"%d" % number for number in range(500)]


@pytest.mark.parametrize("endpoint", ["tcp", "ipc", "inproc"], indirect=True)
async def test_disconnect_ends_the_connection_and_keeps_what_waits(make, endpoint, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    where = pull.endpoints[0]
    push.disconnect(where)
    await until(lambda: not pull.peers)
    assert push.peers == []
    await push.send(b"waits", timeout=0)
    with pytest.raises(omq.EndpointError, match="not connected"):
        push.disconnect(where)
    other = make(omq.PULL, bind=f"{inproc}-other")
    push.connect(other.endpoints[0])
    assert await other.recv(timeout=5) == b"waits"


async def test_disconnecting_one_of_two_to_the_same_place(make, endpoint):
    pull = make(omq.PULL, bind=endpoint)
    push = make(omq.PUSH, connect=[pull.endpoints[0]] * 2)
    await pull.wait_connected(2, timeout=5)
    push.disconnect(pull.endpoints[0])
    await until(lambda: len(pull.peers) == 1)
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"


async def test_a_sender_that_waits_for_a_peer_that_dies_goes_on_with_the_next(make, free_place):
    pull, push = await make.linked(omq.PULL, omq.PUSH, free_place, send_hwm=2, recv_hwm=1)
    where = pull.endpoints[0]
    sending = asyncio.create_task(push.send_many([bytes(1_000_000)] * 100))
    (session,) = push._engine.sessions
    await until(lambda: not session.peer.is_writable)
    assert not sending.done()
    pull.stop()
    again = make(omq.PULL, bind=where)

    async def reading():
        while True:
            await again.recv()

    reader = asyncio.create_task(reading())
    assert await asyncio.wait_for(sending, 10) == 100
    reader.cancel()
    await asyncio.wait([reader])


async def test_a_write_that_fails_while_data_is_unread_loses_none_of_it(make):
    """The peer sends, then resets its reading side: what it sent before is still delivered."""
    pair = make(omq.PAIR, bind="tcp://127.0.0.1:*")
    raw = await RawPeer.dial(pair.endpoints[0])
    await raw.handshake(b"PAIR")
    await raw.send(b"".join(frames(b"%d" % number) for number in range(100)))
    raw.sock.shutdown(socket.SHUT_WR)
    for _ in range(20):
        await pair.send(bytes(100))
    got = [await pair.recv(timeout=5) for _ in range(100)]
    assert got == [b"%d" % number for number in range(100)]
    raw.close()


@on_the_wire
async def test_a_hang_up_while_reading_is_paused_does_not_spin(make, endpoint):
    """The kernel reports a hang-up again and again; its descriptor is not watched until the messages are taken."""
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint, recv_hwm=10, send_hwm=0, reconnect_interval=None)
    (session,) = pull._engine.sessions
    await push.send_many([bytes(1000)] * 100)
    await push.close()
    hung_up = select.poll()
    hung_up.register(session.peer.fd, select.POLLRDHUP)
    await until(lambda: hung_up.poll(0))
    turns = 0
    loop = asyncio.get_running_loop()
    busy = loop.time() + 0.1
    import time

    used = time.process_time()
    while loop.time() < busy:
        turns += 1
        await asyncio.sleep(0.01)
    assert time.process_time() - used < 0.06
    for _ in range(100):
        assert len(await pull.recv(timeout=5)) == 1000
    await until(lambda: not pull.peers)


# One connection's failure is its own


@on_the_wire
@pytest.mark.parametrize("alone", [True, False])
async def test_a_handler_that_raises_costs_its_connection_only(make, endpoint, alone, monkeypatch, caplog):
    pub = make(omq.PUB, bind=endpoint)
    good = [] if alone else [make(omq.SUB, connect=pub.endpoints[0], subscribe=b"good") for _ in range(3)]
    if good:
        await pub.wait_subscribed(b"good", n=3, timeout=5)
    raw = await RawPeer.dial(pub.endpoints[0])
    await raw.handshake(b"SUB")
    heartbeat = pub._engine.heartbeat

    def failing(session, ttl):
        raise LookupError("a bug in the handler")

    monkeypatch.setattr(heartbeat, "pinged", failing)
    await raw.send(command(b"PING", b"\0\1"))
    await raw.read_all(timeout=5)
    assert "a connection failed" in caplog.text
    assert "a bug in the handler" in caplog.text
    await until(lambda: len(pub.peers) == len(good))
    for sub in good:
        sub.subscribe(b"after")
    if good:
        await pub.wait_subscribed(b"after", n=3, timeout=5)
    raw.close()


async def test_a_handler_that_raises_while_it_ends_closes_the_descriptor(make, monkeypatch, caplog):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH")
    await pull.wait_connected(timeout=5)
    pattern = pull._engine.pattern
    real = pattern.disconnected

    def failing(session):
        real(session)
        raise LookupError("a bug in the end")

    monkeypatch.setattr(pattern, "disconnected", failing)
    raw.close()
    await until(lambda: "a bug in the end" in caplog.text)
    monkeypatch.undo()
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
