"""Forwarding by a blocking proxy: every pair of types, messages of every shape, subscriptions, identities."""

from __future__ import annotations

import os
import random
import socket
import threading

import pytest

import omq
from tests.support import raw_zmtp
from tests.support.waits import BOUND, until
from tests.unit.proxy.conftest import TCP, in_both_twins

#: Frontend, backend, and the types of a client at either: one message goes through.
ONE_WAY = [
    (omq.PULL, omq.PUSH, omq.PUSH, omq.PULL),
    (omq.PULL, omq.DEALER, omq.PUSH, omq.DEALER),
    (omq.PULL, omq.PAIR, omq.PUSH, omq.PAIR),
    (omq.PULL, omq.PUB, omq.PUSH, omq.SUB),
    (omq.PULL, omq.XPUB, omq.PUSH, omq.SUB),
    (omq.SUB, omq.PUB, omq.PUB, omq.SUB),
    (omq.SUB, omq.PUSH, omq.PUB, omq.PULL),
    (omq.SUB, omq.XPUB, omq.PUB, omq.XSUB),
    (omq.XSUB, omq.XPUB, omq.PUB, omq.SUB),
    (omq.XSUB, omq.XPUB, omq.XPUB, omq.XSUB),
    (omq.XSUB, omq.XPUB, omq.PUB, omq.XSUB),
    (omq.DEALER, omq.PUSH, omq.DEALER, omq.PULL),
    (omq.PAIR, omq.PUSH, omq.PAIR, omq.PULL),
]
#: The same, of messages of one part.
ONE_PART = [
    (omq.GATHER, omq.SCATTER, omq.SCATTER, omq.GATHER),
    (omq.GATHER, omq.CHANNEL, omq.SCATTER, omq.CHANNEL),
    (omq.GATHER, omq.PUSH, omq.SCATTER, omq.PULL),
    (omq.PULL, omq.SCATTER, omq.PUSH, omq.GATHER),
    (omq.PULL, omq.CLIENT, omq.PUSH, omq.SERVER),
    (omq.SERVER, omq.PUSH, omq.CLIENT, omq.PULL),
    (omq.SERVER, omq.SCATTER, omq.CLIENT, omq.GATHER),
    (omq.CHANNEL, omq.CHANNEL, omq.CHANNEL, omq.CHANNEL),
    (omq.CLIENT, omq.SCATTER, omq.SERVER, omq.GATHER),
]
#: The same: a message goes there and back.
BOTH_WAYS = [
    (omq.ROUTER, omq.DEALER, omq.REQ, omq.REP),
    (omq.ROUTER, omq.DEALER, omq.DEALER, omq.REP),
    (omq.ROUTER, omq.DEALER, omq.DEALER, omq.DEALER),
    (omq.ROUTER, omq.DEALER, omq.REQ, omq.ROUTER),
    (omq.ROUTER, omq.PAIR, omq.DEALER, omq.PAIR),
    (omq.DEALER, omq.DEALER, omq.DEALER, omq.DEALER),
    (omq.DEALER, omq.PAIR, omq.DEALER, omq.PAIR),
    (omq.PAIR, omq.PAIR, omq.PAIR, omq.PAIR),
    (omq.REP, omq.REQ, omq.REQ, omq.REP),
    (omq.REP, omq.DEALER, omq.REQ, omq.ROUTER),
]


def _name(types):
    return "-".join(kind.__name__ for kind in types)


@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
@pytest.mark.parametrize("types", ONE_WAY, ids=_name)
def test_one_way(make, proxied, types, swapped):
    front, back, source, sink = types
    proxy = proxied(back, front) if swapped else proxied(front, back)
    into, out = (proxy.back, proxy.front) if swapped else (proxy.front, proxy.back)
    if front is omq.SUB:
        into.subscribe(b"")
    receiver = make(sink, connect=out.endpoints[0])
    if sink in (omq.SUB, omq.XSUB):
        receiver.subscribe(b"m")
    sender = make(source, connect=into.endpoints[0])
    if sink in (omq.SUB, omq.XSUB) and back is not omq.XPUB:
        out.wait_subscribed(timeout=BOUND)
    if source in (omq.PUB, omq.XPUB):
        sender.wait_subscribed(timeout=BOUND)
    if front is omq.SUB and back is omq.XPUB:
        until(lambda: out.peers and out._engine.pattern.subscriptions(None), "a subscription")
    if front is omq.PULL and back is omq.XPUB:
        until(lambda: out._engine.pattern.subscriptions(None), "a subscription")
    receiver.wait_connected(timeout=BOUND)
    for number in range(100):
        sender.send(b"m%d" % number)
        sender.send_multipart([b"m", b"", b"%d" % number, b"y" * 300])
    for number in range(100):
        assert receiver.recv(timeout=BOUND) == b"m%d" % number
        assert receiver.recv_multipart(timeout=BOUND) == [b"m", b"", b"%d" % number, b"y" * 300]


@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
@pytest.mark.parametrize("types", ONE_PART, ids=_name)
def test_messages_of_one_part_one_way(make, proxied, types, swapped):
    front, back, source, sink = types
    proxy = proxied(back, front) if swapped else proxied(front, back)
    into, out = (proxy.back, proxy.front) if swapped else (proxy.front, proxy.back)
    receiver = make(sink, connect=out.endpoints[0])
    sender = make(source, connect=into.endpoints[0])
    receiver.wait_connected(timeout=BOUND)
    route = {}
    if source is omq.SERVER:
        into.send(b"here I am", timeout=BOUND)
        route = {"routing_id": sender.recv_message(timeout=BOUND).routing_id}
    bodies = [b"m%d" % number * (1 + 1000 * (number % 2)) for number in range(200)]
    for body in bodies:
        sender.send(body, **route, timeout=BOUND)
    assert [receiver.recv(timeout=BOUND) for _ in bodies] == bodies


@pytest.mark.parametrize("back", [omq.SCATTER, omq.CHANNEL, omq.CLIENT], ids=lambda kind: kind.__name__)
def test_a_message_of_several_parts_costs_nothing_else(make, proxied, back):
    """The message cannot be forwarded to a type of one part, and is dropped whole; those before and after it pass."""
    proxy = proxied(omq.PULL, back)
    sink = {omq.SCATTER: omq.GATHER, omq.CHANNEL: omq.CHANNEL, omq.CLIENT: omq.SERVER}[back]
    receiver = make(sink, connect=proxy.back.endpoints[0])
    sender = make(omq.PUSH, connect=proxy.front.endpoints[0])
    receiver.wait_connected(timeout=BOUND)
    for number in range(100):
        sender.send(b"%d" % number)
        sender.send_multipart([b"a", b"b" * (number * 100)])
    assert [receiver.recv(timeout=BOUND) for _ in range(100)] == [b"%d" % number for number in range(100)]
    assert len(receiver.peers) == 1
    assert not receiver.poll(0.05)


@in_both_twins
@pytest.mark.parametrize("types", BOTH_WAYS, ids=_name)
def test_there_and_back(make, proxied, types):
    front, back, client, server = types
    proxy = proxied(front, back)
    asks, answers = make(client, connect=proxy.front_end), make(server, connect=proxy.back_end)
    for one in (asks, answers):
        one.wait_connected(timeout=BOUND)
    for number in range(30):
        request = [b"ask", b"%d" % number] if client is not omq.DEALER or server is not omq.REP else [b"", b"ask"]
        asks.send_multipart(request)
        asked = answers.recv_multipart(timeout=BOUND)
        assert asked[-1] == request[-1]
        answers.send_multipart([*asked[:-1], b"answer %d" % number])
        assert asks.recv_multipart(timeout=BOUND)[-1] == b"answer %d" % number


def test_identities_pass_and_many_clients_get_their_own_answers(make, proxied):
    proxy = proxied(omq.ROUTER, omq.DEALER)
    worker = make(omq.DEALER, connect=proxy.back_end)
    clients = [make(omq.DEALER, connect=proxy.front_end, identity=b"client %d" % n) for n in range(5)]
    for n, client in enumerate(clients):
        client.send(b"from %d" % n)
    for _ in clients:
        identity, body = worker.recv_multipart(timeout=BOUND)
        assert identity.replace(b"client", b"from") == body
        worker.send_multipart([identity, b"to " + identity])
    for n, client in enumerate(clients):
        assert client.recv(timeout=BOUND) == b"to client %d" % n


def test_bytes_of_plain_tcp_and_answers_pass(make, proxied):
    proxy = proxied(omq.STREAM, omq.DEALER)
    worker = make(omq.DEALER, connect=proxy.back_end)
    host, port = proxy.front_end.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=BOUND) as plain:
        identity, nothing = worker.recv_multipart(timeout=BOUND)
        assert nothing == b""
        plain.sendall(b"question" * 10_000)
        received = b""
        while len(received) < 80_000:
            received += worker.recv_multipart(timeout=BOUND)[1]
        assert received == b"question" * 10_000
        worker.send(b"no id")
        worker.send_multipart([b"no peer", b"lost"])
        worker.send_multipart([identity, b"answer" * 10_000])
        worker.send_multipart([identity, b""])
        answer = b""
        while more := plain.recv(65536):
            answer += more
        assert answer == b"answer" * 10_000


def test_a_stream_that_is_both_ends_is_an_echo(make, proxied):
    stream = make(omq.STREAM, bind=TCP, stream_notify=False)
    proxied(stream, stream)
    host, port = stream.endpoints[0].removeprefix("tcp://").split(":")
    source = random.Random(7)
    for end in range(4):
        with socket.create_connection((host, int(port)), timeout=BOUND) as plain:
            for size in (1, 9, 10, 255, 5000, 300_000):
                sent = source.randbytes(size)
                writer = threading.Thread(target=plain.sendall, args=(sent,))
                writer.start()
                got = b""
                while len(got) < size:
                    more = plain.recv(65536)
                    assert more
                    got += more
                writer.join(BOUND)
                assert got == sent
            if end % 2:  # what comes back for it has no receiver any more
                plain.sendall(bytes(100_000))
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    until(lambda: stream.peers == [])


@pytest.mark.parametrize("endpoint", [TCP, "udp://127.0.0.1:*"], ids=["tcp", "udp"])
def test_what_a_dish_receives_leaves_without_its_group(make, proxied, endpoint):
    dish = make(omq.DISH, bind=endpoint, join=["a", "b"])
    proxy = proxied(dish, omq.PUSH)
    receiver = make(omq.PULL, connect=proxy.back_end)
    radio = make(omq.RADIO, connect=dish.endpoints[0])
    if endpoint is TCP:
        radio.wait_subscribed(n=2, timeout=BOUND)
    for number, group in enumerate(["a", "b", "", "c", "a"] * 20):
        body = b"%d" % number * (1 + number % 3 * 5000)
        radio.send(body, group=group)
        if group in ("a", "b"):
            assert receiver.recv(timeout=BOUND) == body
    with pytest.raises(omq.ReceiveTimeout):
        receiver.recv_multipart(timeout=0.05)


def test_what_names_no_client_is_dropped_and_the_rest_goes_on(make, proxied):
    proxy = proxied(make(omq.ROUTER, bind=TCP, router_mandatory=True), omq.DEALER)
    worker = make(omq.DEALER, connect=proxy.back_end)
    client = make(omq.DEALER, connect=proxy.front_end, identity=b"client")
    client.wait_connected(timeout=BOUND)
    worker.send(b"one part")
    worker.send_multipart([b"no peer", b"lost"])
    worker.send_multipart([b"client", b"found"])
    assert client.recv(timeout=BOUND) == b"found"
    found = proxy.figures()
    assert (found.back_in, found.front_out) == (3, 1)


@in_both_twins
def test_messages_of_every_size(make, proxied):
    proxy = proxied(omq.PULL, omq.PUSH)
    sender, receiver = make(omq.PUSH, connect=proxy.front_end), make(omq.PULL, connect=proxy.back_end)
    sizes = [0, 1, 255, 256, 4096, 4097, 8192, 32768, 32769, 65536, 131072, 1 << 20]
    blocks = [os.urandom(size) for size in sizes]
    for _ in range(3):
        for block in blocks:
            sender.send(block)
            sender.send_multipart([block, b"", block])
    for _ in range(3):
        for block in blocks:
            assert receiver.recv(timeout=BOUND) == block
            assert receiver.recv_multipart(timeout=BOUND) == [block, b"", block]


@pytest.mark.parametrize("busy_poll", [0.0005, "adaptive"])
def test_a_proxy_may_spin(make, proxied, busy_poll):
    front, back = (make(kind, bind=TCP, busy_poll=busy_poll) for kind in (omq.ROUTER, omq.DEALER))
    proxy = proxied(front, back)
    client, worker = make(omq.REQ, connect=proxy.front_end), make(omq.REP, connect=proxy.back_end)
    for number in range(200):
        client.send(b"%d" % number)
        assert worker.recv(timeout=BOUND) == b"%d" % number
        worker.send(b"yes")
        assert client.recv(timeout=BOUND) == b"yes"


def test_a_welcome_message_leaves_though_nothing_is_forwarded(make, proxied):
    proxy = proxied(omq.XSUB, make(omq.XPUB, bind=TCP, xpub_welcome_message=b"welcome"))
    proxy.sleeps()
    subscriber = make(omq.XSUB, connect=proxy.back_end)
    assert subscriber.recv(timeout=BOUND) == b"welcome"


@in_both_twins
def test_peers_that_come_and_go_cost_no_other_a_message(make, proxied):
    proxy = proxied(omq.PULL, omq.PUSH)
    receiver = make(omq.PULL, connect=proxy.back_end)
    receiver.wait_connected(timeout=BOUND)
    for turn in range(30):
        sender = make(omq.PUSH, connect=proxy.front_end)
        for number in range(50):
            sender.send(b"%d" % (50 * turn + number))
        sender.close()
    got = [int(receiver.recv(timeout=BOUND)) for _ in range(1500)]
    assert sorted(got) == [*range(1500)]
    # Each sender's come in their order; those of the next one may overtake what is still on its way.
    assert sorted(got, key=lambda number: number // 50) == sorted(got)


@pytest.mark.parametrize("several", [False, True], ids=["one receiver", "two receivers"])
@pytest.mark.parametrize("seed", range(3))
def test_frames_that_are_cut_anywhere_with_commands_between_them(make, crew, proxied, seed, several):
    chance = random.Random(seed)
    sizes = [0, 1, 100, 255, 256, 4096, 4097, 9000, 40_000, 140_000]
    weights = [3, 3, 30, 3, 3, 2, 2, 2, 1, 1]
    messages = [
        [chance.randbytes(size) for size in chance.choices(sizes, weights, k=chance.choice([1, 1, 1, 2, 5, 40]))]
        for _ in range(120)
    ]
    stream = raw_zmtp.greeting() + raw_zmtp.ready("PUSH")
    for parts in messages:
        stream += b"".join(raw_zmtp.frame(part, raw_zmtp.MORE) for part in parts[:-1]) + raw_zmtp.frame(parts[-1])
        if chance.random() < 0.2:
            stream += raw_zmtp.command(b"PING", b"\0\0context")
    proxy = proxied(omq.PULL, omq.PUSH)
    receivers = [make(omq.PULL, connect=proxy.back_end) for _ in range(1 + several)]
    proxy.back.wait_connected(1 + several, timeout=BOUND)
    host, port = proxy.front_end.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), BOUND) as connection:

        def send():
            at = 0
            while at < len(stream):
                size = chance.choice([1, 7, 300, 5000, 70_000, 1_000_000])
                connection.sendall(stream[at : at + size])
                at += size

        crew(send)
        got = _gather(receivers, len(messages))
        assert sorted(got) == sorted(messages)
        assert several or got == messages
        assert proxy.figures().front_bytes_in == sum(len(part) for parts in messages for part in parts)


def _gather(receivers, count):
    """A number of messages that several sockets receive together."""
    messages = []
    while len(messages) < count:
        messages.extend(receiver.recv_multipart(timeout=0) for receiver in omq.wait(receivers, BOUND))
    return messages


def test_64_mib(make, proxied):
    proxy = proxied(omq.ROUTER, omq.DEALER)
    client, worker = make(omq.DEALER, connect=proxy.front_end), make(omq.DEALER, connect=proxy.back_end)
    block = os.urandom(1 << 20) * 64
    client.send(block)
    identity, got = worker.recv_multipart(timeout=BOUND)
    assert got == block
    worker.send_multipart([identity, got])
    assert client.recv(timeout=BOUND) == block


def test_many_parts(make, proxied):
    proxy = proxied(omq.ROUTER, omq.DEALER)
    client, worker = make(omq.DEALER, connect=proxy.front_end), make(omq.DEALER, connect=proxy.back_end)
    parts = [b"%d" % number for number in range(5000)]
    client.send_multipart(parts)
    assert worker.recv_multipart(timeout=BOUND)[1:] == parts


def test_subscriptions_come_and_go(make, proxied):
    proxy = proxied(omq.XSUB, omq.XPUB)
    publisher = make(omq.XPUB, connect=proxy.front_end)
    one, other = make(omq.SUB, connect=proxy.back_end), make(omq.SUB, connect=proxy.back_end)
    one.subscribe(b"a")
    assert publisher.recv(timeout=BOUND) == b"\x01a"
    other.subscribe(b"b")
    assert publisher.recv(timeout=BOUND) == b"\x01b"
    other.subscribe(b"a")
    one.unsubscribe(b"a")
    other.unsubscribe(b"b")
    assert publisher.recv(timeout=BOUND) == b"\x00b"  # a subscriber still wants the a
    publisher.send(b"a 1")
    assert other.recv(timeout=BOUND) == b"a 1"
    other.close()
    assert publisher.recv(timeout=BOUND) == b"\x00a"


@pytest.mark.parametrize("make", ["blocking", pytest.param("asyncio", marks=pytest.mark.slow)], indirect=True)
def test_10000_subscriptions(make, proxied):
    proxy = proxied(omq.XSUB, omq.XPUB)
    subscriber = make(omq.SUB, connect=proxy.back_end, subscribe=[b"%05d" % number for number in range(10_000)])
    publisher = make(omq.PUB, connect=proxy.front_end)
    publisher.wait_subscribed(n=10_000, timeout=BOUND)
    for number in range(0, 10_000, 997):
        publisher.send(b"%05d" % number)
        assert subscriber.recv(timeout=BOUND) == b"%05d" % number
    for number in range(10_000):
        subscriber.unsubscribe(b"%05d" % number)
    until(lambda: publisher._engine.pattern.subscriptions(None) == 0, "the end of the subscriptions")


def test_inproc_at_one_side_and_at_both(make, proxied):
    back = make(omq.DEALER, bind="inproc://back")
    proxy = proxied(make(omq.ROUTER, bind=[TCP, "inproc://front"]), back)
    worker = make(omq.REP, connect="inproc://back")
    for endpoint in (proxy.front_end, "inproc://front"):
        client = make(omq.REQ, connect=endpoint)
        for size in (1, 5000, 100_000):
            client.send(b"x" * size)
            assert worker.recv(timeout=BOUND) == b"x" * size
            worker.send(b"y" * size)
            assert client.recv(timeout=BOUND) == b"y" * size


def test_inproc_passes_by_reference(make, proxied):
    proxy = proxied(make(omq.PULL, bind="inproc://in"), make(omq.PUSH, bind="inproc://out"))
    sender, receiver = make(omq.PUSH, connect="inproc://in"), make(omq.PULL, connect="inproc://out")
    message = os.urandom(100)
    sender.send(message)
    assert receiver.recv(timeout=BOUND) is message
    assert proxy.figures().back_out == 1


def test_curve_at_one_side(make, proxied):
    public, secret = omq.curve_keypair()
    own_public, own_secret = omq.curve_keypair()
    front = make(omq.PULL, bind=TCP, security=omq.CurveServer(secret))
    proxy = proxied(front, omq.PUSH)
    client = omq.CurveClient(public, public_key=own_public, secret_key=own_secret)
    sender, receiver = make(omq.PUSH, connect=proxy.front_end, security=client), make(omq.PULL, connect=proxy.back_end)
    blocks = [os.urandom(size) for size in (0, 10, 5000, 100_000)] * 50
    crew_of_one = threading.Thread(target=lambda: [sender.send(block) for block in blocks])
    crew_of_one.start()
    for block in blocks:
        assert receiver.recv(timeout=BOUND) == block
    crew_of_one.join(BOUND)


def test_one_socket_at_both_ends_sends_back_what_it_receives(make, proxied):
    echo = make(omq.ROUTER, bind=TCP)
    proxy = proxied(echo, echo)
    clients = [make(omq.DEALER, connect=proxy.front_end) for _ in range(3)]
    for number in range(100):
        for client in clients:
            client.send(b"%d" % number)
    for number in range(100):
        for client in clients:
            assert client.recv(timeout=BOUND) == b"%d" % number
    assert (proxy.figures().front_in, proxy.figures().back_out) == (300, 300)


#: A request of each shape, as a REQ sends it.
REQUESTS = [
    [b"hello"],
    [b""],
    [b"several", b"", b"parts"],
    [b"large", os.urandom(100_000)],
    [b"%d" % n for n in range(40)],
]


@in_both_twins
@pytest.mark.parametrize("spied_on", [False, True], ids=["", "capture"])
def test_a_rep_at_both_ends_replies_with_the_request(make, proxied, spied_on):
    """libzmq's test_proxy_single_socket. It sends only what it has taken before."""
    echo = make(omq.REP, bind=TCP)
    capture = make(omq.PUSH, bind=TCP) if spied_on else None
    proxy = proxied(echo, echo, capture=capture)
    clients = [make(omq.REQ, connect=proxy.front_end) for _ in range(3)]
    for request in REQUESTS:
        for client in clients:
            client.send_multipart(request)
        for client in clients:
            assert client.recv_multipart(timeout=BOUND) == request
    found = proxy.figures()
    assert (found.front_in, found.back_out) == (3 * len(REQUESTS), 3 * len(REQUESTS))
    assert found.front_bytes_in == found.back_bytes_out == 3 * sum(len(part) for parts in REQUESTS for part in parts)
    if capture is not None:
        watcher = make(omq.PULL, connect=capture.endpoints[0])
        seen = [watcher.recv_multipart(timeout=BOUND) for _ in range(3 * len(REQUESTS))]
        assert seen == [request for request in REQUESTS for _ in clients]


def test_a_rep_at_both_ends_keeps_the_envelope_and_outlives_who_asked(make, proxied):
    echo = make(omq.REP, bind=TCP)
    proxy = proxied(echo, echo)
    for turn in range(20):
        with make(omq.DEALER, connect=proxy.front_end, linger=0) as gone:
            gone.send_multipart([b"", b"no peer waits for it"])
        client = make(omq.DEALER, connect=proxy.front_end)
        client.send(b"without a delimiter")
        client.send_multipart([b"one", b"two", b"", b"%d" % turn])
        assert client.recv_multipart(timeout=BOUND) == [b"one", b"two", b"", b"%d" % turn]
        client.close()


@in_both_twins
@pytest.mark.parametrize("options", [{}, {"req_relaxed": True}, {"req_relaxed": True, "req_correlate": True}], ids=str)
def test_a_req_at_both_ends_asks_what_it_was_answered(make, proxied, options):
    req = make(omq.REQ, bind=TCP, **options)
    rep = make(omq.REP, connect=req.endpoints[0])
    req.wait_connected(timeout=BOUND)
    req.send(b"0")
    proxied(req, req)
    for number in range(100):
        assert rep.recv_multipart(timeout=BOUND)[-1] == b"%d" % number
        rep.send_multipart([b"more", b"%d" % (number + 1)])


def test_a_rep_at_both_ends_that_is_killed_owes_no_peer_a_reply(make, proxied):
    echo = make(omq.REP, bind=TCP)
    client = make(omq.REQ, connect=echo.endpoints[0])
    for turn in range(20):
        proxy = proxied(echo, echo)
        client.send(b"%d" % turn)
        assert client.recv(timeout=BOUND) == b"%d" % turn
        proxy.command_proxy(b"KILL")
        proxy.ends()
    client.send(b"by hand")
    assert echo.recv(timeout=BOUND) == b"by hand"


@pytest.mark.parametrize(
    ("kind", "spy"), [(omq.PUB, omq.SUB), (omq.PUSH, omq.PULL), (omq.DEALER, omq.DEALER), (omq.PAIR, omq.PAIR)], ids=str
)
def test_capture_gets_a_copy_of_both_directions(make, proxied, kind, spy):
    capture = make(kind, bind=TCP)
    watcher = make(spy, connect=capture.endpoints[0], **({"subscribe": b""} if spy is omq.SUB else {}))
    watcher.wait_connected(timeout=BOUND)
    if kind is omq.PUB:
        capture.wait_subscribed(timeout=BOUND)
    proxy = proxied(omq.PAIR, omq.PAIR, capture=capture)
    left, right = make(omq.PAIR, connect=proxy.front_end), make(omq.PAIR, connect=proxy.back_end)
    for number in range(50):
        left.send_multipart([b"to", b"%d" % number, b"x" * 5000])
        assert right.recv_multipart(timeout=BOUND) == [b"to", b"%d" % number, b"x" * 5000]
        assert watcher.recv_multipart(timeout=BOUND) == [b"to", b"%d" % number, b"x" * 5000]
        right.send(b"fro %d" % number)
        assert left.recv(timeout=BOUND) == b"fro %d" % number
        assert watcher.recv(timeout=BOUND) == b"fro %d" % number


@in_both_twins
def test_a_capture_without_room_holds_everything_up_and_loses_nothing(make, proxied):
    capture = make(omq.PUSH, bind=TCP, send_hwm=10)
    proxy = proxied(omq.PULL, omq.PUSH, capture=capture)
    sender, receiver = make(omq.PUSH, connect=proxy.front_end), make(omq.PULL, connect=proxy.back_end)
    for number in range(100):
        sender.send(b"%d" % number)
    assert [receiver.recv(timeout=BOUND) for _ in range(10)] == [b"%d" % number for number in range(10)]
    assert [proxy.figures().back_out for _ in range(20)] == [10] * 20, "nothing passes meanwhile"
    watcher = make(omq.PULL, connect=capture.endpoints[0])
    expected = [b"%d" % number for number in range(100)]
    assert [watcher.recv(timeout=BOUND) for _ in range(100)] == expected
    assert [receiver.recv(timeout=BOUND) for _ in range(90)] == expected[10:]
