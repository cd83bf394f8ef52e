"""Connect, bind, unbind, disconnect, immediate, and many sockets at once: libzmq's tests of these names."""

from __future__ import annotations

import itertools
import os
import time

import pytest

import omq
from tests.support.machine import has_ipv6
from tests.support.ports import held
from tests.support.waits import BOUND, until
from tests.system.conformance.conftest import drain, fill


@pytest.fixture
def later(endpoint):
    """An endpoint without a listener."""
    return endpoint


# bind_after_connect_tcp


def test_bind_after_connect_three_messages_arrive_in_order(twin, later):
    dealer = twin("DEALER", connect=later, reconnect_interval=0.01)
    for body in (b"foobar", b"baz", b"buzz"):
        dealer.send(body)
    bound = twin("DEALER", bind=later)
    assert [bound.recv(timeout=BOUND) for _ in range(3)] == [b"foobar", b"baz", b"buzz"]
    bound.send(b"back")
    assert dealer.recv(timeout=BOUND) == b"back"


# inproc_connect


@pytest.mark.parametrize("first", ["bind", "connect"])
def test_inproc_connect_pair_both_ways(twin, inproc, first):
    one = twin("PAIR")
    other = twin("PAIR")
    for end in (one, other) if first == "bind" else (other, one):
        end.bind(inproc) if end is one else end.connect(inproc)
    one.send(b"there")
    assert other.recv(timeout=BOUND) == b"there"
    other.send(b"and back")
    assert one.recv(timeout=BOUND) == b"and back"


def test_inproc_connect_a_publisher_drops_until_it_is_bound(twin, inproc):
    pub = twin("PUB", connect=inproc)
    pub.send(b"not received")
    sub = twin("SUB", bind=inproc, subscribe=b"")
    pub.wait_subscribed(timeout=BOUND)
    pub.send(b"received")
    assert sub.recv(timeout=BOUND) == b"received"
    assert not sub.poll(0.02)


def test_inproc_connect_ten_before_the_bind(twin, inproc):
    pushes = [twin("PUSH", connect=inproc) for _ in range(10)]
    for number, push in enumerate(pushes):
        push.send(b"%d" % number)
    pull = twin("PULL", bind=inproc)
    assert sorted(int(pull.recv(timeout=BOUND)) for _ in range(10)) == list(range(10))


def test_inproc_connect_fifty_races_of_bind_and_connect(twin, inproc):
    """Whichever is first, they meet, in another thread each."""
    for number in range(50):
        name = f"{inproc}-{number}"
        pull, push = twin("PULL"), twin("PUSH")
        binding = twin.spawn(pull, "bind", name)
        connecting = twin.spawn(push, "connect", name)
        push.send(b"%d" % number)
        assert pull.recv(timeout=BOUND) == b"%d" % number
        binding.result(), connecting.result()
        pull.stop(), push.stop()


@pytest.mark.parametrize("kind", ["ROUTER", "PUSH", "SUB", "REQ"])
def test_inproc_connect_only_then_close(twin, inproc, kind):
    socket = twin(kind, connect=inproc)
    start = time.monotonic()
    socket.close(0)
    assert time.monotonic() - start < 5
    # A name that a client has waited for can be bound.
    assert twin("REP", bind=inproc).endpoints == [inproc]


def test_inproc_connect_unbind_then_rebind(twin, inproc):
    pull = twin("PULL", bind=inproc)
    with pytest.raises(omq.BindError):
        twin("PULL", bind=inproc)
    pull.unbind(inproc)
    other = twin("PULL", bind=inproc)
    push = twin("PUSH", connect=inproc)
    push.send(b"to the second")
    assert other.recv(timeout=BOUND) == b"to the second"
    assert not pull.poll(0.02)


def test_inproc_connect_passes_identities_on(twin, inproc):
    router = twin("ROUTER", bind=inproc)
    dealer = twin("DEALER", connect=inproc, identity=b"named")
    dealer.send_multipart([b"a", b"b"])
    assert router.recv_multipart(timeout=BOUND) == [b"named", b"a", b"b"]


# immediate


def test_immediate_off_one_queue_waits_and_all_go_to_who_is_there(twin, later, tmp_path):
    """omq departs: there is one queue, and a dead endpoint takes no share of it (libzmq gives it half)."""
    live = twin("PULL", bind=f"ipc://{tmp_path}/live")
    push = twin("PUSH", connect=[later, live.endpoints[0]])
    for number in range(10):
        push.send(b"%d" % number)
    assert [int(live.recv(timeout=BOUND)) for _ in range(10)] == list(range(10))


def test_immediate_on_all_ten_go_to_the_live_one(twin, later, tmp_path):
    live = twin("PULL", bind=f"ipc://{tmp_path}/live")
    push = twin("PUSH", connect=[later, live.endpoints[0]], immediate=True)
    for number in range(10):
        push.send(b"%d" % number, timeout=BOUND)
    assert [int(live.recv(timeout=BOUND)) for _ in range(10)] == list(range(10))


def test_immediate_a_broken_connection_accepts_nothing_until_it_is_back(twin, later):
    back = twin("DEALER", bind=later)
    front = twin("DEALER", connect=later, immediate=True, reconnect_interval=0.01)
    back.send(b"hello")
    assert front.recv(timeout=BOUND) == b"hello"
    front.send(b"hello", timeout=0)
    assert back.recv(timeout=BOUND) == b"hello"
    back.stop()
    until(lambda: not front.peers)
    assert not front.poll(0, omq.POLL_OUT)
    with pytest.raises(omq.SendTimeout):
        front.send(b"lost", timeout=0)
    again = twin("DEALER", bind=later)
    front.send(b"here again", timeout=BOUND)
    assert again.recv(timeout=BOUND) == b"here again"


def test_messages_wait_while_one_connected_endpoint_is_not_immediate(twin, later):
    push = twin("PUSH", immediate=True)
    assert not push.poll(0, omq.POLL_OUT)
    push.connect("tcp://127.0.0.1:1", immediate=True)
    assert not push.poll(0, omq.POLL_OUT)
    push.connect(later, immediate=False)
    push.send(b"1", timeout=0)
    push.disconnect(later)
    with pytest.raises(omq.SendTimeout):
        push.send(b"lost", timeout=0)
    waiting = twin.spawn(push, "send", b"2", timeout=BOUND)
    assert not waiting.done(0.05)
    push.connect(later, immediate=False)
    waiting.result()
    pull = twin("PULL", bind=later)
    assert {pull.recv(timeout=BOUND) for _ in range(2)} == {b"1", b"2"}


def test_an_immediate_endpoint_of_another_socket_accepts_nothing_without_its_peer(twin, later):
    push = twin("PUSH")
    push.send(b"1", timeout=0)
    push.connect(later, immediate=True)
    with pytest.raises(omq.SendTimeout):
        push.send(b"lost", timeout=0)
    pull = twin("PULL", bind=later)
    push.send(b"2", timeout=BOUND)
    assert [pull.recv(timeout=BOUND) for _ in range(2)] == [b"1", b"2"]


def test_one_endpoint_without_immediate_next_to_one_with_it_is_enough(twin, later):
    push = twin("PUSH")
    push.connect("tcp://127.0.0.1:1", immediate=True)
    push.connect(later, immediate=False)
    push.send(b"1", timeout=0)
    assert twin("PULL", bind=later).recv(timeout=BOUND) == b"1"


def test_an_endpoint_that_is_given_up_accepts_nothing(twin):
    push = twin("PUSH", immediate=True, linger=0)
    push.connect("tcp://127.0.0.1:1", immediate=False, reconnect_stop="refused")
    until(lambda: not push.poll(0, omq.POLL_OUT))


# disconnect_inproc, term_endpoint


def test_disconnect_inproc_takes_the_subscription_back(twin, endpoint):
    xpub = twin("XPUB", bind=endpoint)
    sub = twin("SUB", subscribe=b"foo")
    xpub.send_multipart([b"foo", b"before"])
    name = xpub.endpoints[0]
    sub.connect(name)
    assert xpub.recv(timeout=BOUND) == b"\1foo"
    xpub.send_multipart([b"foo", b"heard"])
    assert sub.recv_multipart(timeout=BOUND) == [b"foo", b"heard"]
    sub.disconnect(name)
    assert xpub.recv(timeout=BOUND) == b"\0foo"
    xpub.send_multipart([b"foo", b"after"])
    assert not sub.poll(0.02)


def test_term_endpoint_after_disconnect_send_has_no_peer(twin, endpoint):
    pull = twin("PULL", bind=endpoint)
    push = twin("PUSH", connect=pull.endpoints[0], send_hwm=3)
    push.send(b"ABC")
    assert pull.recv(timeout=BOUND) == b"ABC"
    push.disconnect(pull.endpoints[0])
    until(lambda: not push.peers and not pull.peers)
    # One queue: exactly the mark is accepted, for the next peer.
    assert fill(push, 10) == 3
    push.connect(pull.endpoints[0])
    assert [int(m) for m in drain(pull, 3)] == [0, 1, 2]


def test_term_endpoint_unbind_keeps_connections_and_takes_no_new_one(twin, endpoint):
    """omq departs: connections that came in go on (libzmq ends them)."""
    push = twin("PUSH", bind=endpoint)
    name = push.endpoints[0]
    pull = twin("PULL", connect=name)
    push.send(b"ABC")
    assert pull.recv(timeout=BOUND) == b"ABC"
    push.unbind(name)
    push.send(b"DEF")
    assert pull.recv(timeout=BOUND) == b"DEF"
    late = twin("PULL", connect=name)
    with pytest.raises(omq.Timeout):
        late.wait_connected(timeout=0.1)


@pytest.mark.parametrize("wildcard", ["tcp://127.0.0.1:*", "tcp://127.0.0.1:0", "ipc://*"])
def test_term_endpoint_unbind_by_what_bind_gave_and_not_by_the_wildcard(twin, wildcard):
    pull = twin("PULL")
    name = pull.bind(wildcard)
    assert name != wildcard
    with pytest.raises(omq.EndpointError, match="bound"):
        pull.unbind(wildcard)
    pull.unbind(name)
    assert pull.endpoints == []
    with pytest.raises(omq.EndpointError):
        pull.unbind(name)


def test_last_endpoint_every_bind_is_listed(twin, tmp_path, inproc):
    pull = twin("PULL")
    given = [pull.bind(name) for name in ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", f"ipc://{tmp_path}/s", inproc)]
    assert pull.endpoints == given
    assert len(set(given)) == 4
    for number, name in enumerate(given):
        push = twin("PUSH", connect=name)
        push.send(b"%d" % number)
        assert pull.recv(timeout=BOUND) == b"%d" % number


def test_disconnect_of_what_was_never_connected_is_refused(twin, endpoint):
    push = twin("PUSH")
    with pytest.raises(omq.EndpointError, match="not connected"):
        push.disconnect("tcp://127.0.0.1:1")


# unbind_wildcard, connect_resolve, bind_src_address, rebind_ipc, abstract_ipc


@pytest.mark.parametrize("wildcard", ["tcp://*:*", "tcp://*:0", "tcp://*:port", "tcp://[::]:*"])
@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
def test_unbind_wildcard_of_every_address(twin, wildcard, ipv6, free_port):
    if (ipv6 or "[" in wildcard) and not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    pull = twin("PULL", ipv6=ipv6)
    name = pull.bind(wildcard.replace("port", str(free_port)))
    port = name.rpartition(":")[2]
    assert name in (f"tcp://0.0.0.0:{port}", f"tcp://[::]:{port}")
    assert name.startswith("tcp://[") == (ipv6 or "[" in wildcard)
    for host in ["127.0.0.1"] * ("[" not in wildcard or ipv6) + ["[::1]"] * name.startswith("tcp://["):
        push = twin("PUSH", connect=f"tcp://{host}:{port}")
        push.send(host.encode())
        assert pull.recv(timeout=BOUND) == host.encode()
    pull.unbind(name)
    assert pull.endpoints == []
    late = twin("PUSH", connect=f"tcp://127.0.0.1:{port}", reconnect_interval=None)
    with pytest.raises(omq.Timeout):
        late.wait_connected(timeout=0.05)


@pytest.mark.parametrize("kinds", [("PULL", "PUSH"), ("REP", "REQ"), ("PAIR", "PAIR")], ids="-".join)
def test_connect_resolve_a_host_name_is_dialled(twin, kinds):
    bound = twin(kinds[0], bind="tcp://127.0.0.1:*")
    port = bound.endpoints[0].rpartition(":")[2]
    dialled = twin(kinds[1], connect=f"tcp://localhost:{port}")
    dialled.send(b"by name")
    assert bound.recv(timeout=BOUND) == b"by name"


def test_connect_resolve_an_unknown_name_is_reported_and_resolved_again(twin):
    push = twin("PUSH", reconnect_interval=0.01)
    monitor = push.monitor()
    push.connect("tcp://no-host-has-this-name.invalid:1")
    for number, kind in enumerate(["connect_delayed", "connect_failed", "connect_retried"] * 2):
        event = twin.wait(lambda: monitor.recv(timeout=BOUND))
        assert event.kind == kind, number
        if event.kind == "connect_failed":
            assert isinstance(event.error, omq.ConnectError)
            # The system's reason differs where there is no server to ask.
            assert "tcp://no-host-has-this-name.invalid:1: " in event.reason


@pytest.mark.parametrize(
    "bad",
    ["tcp://localhost:invalid", "tcp://in val id:1234", "tcp://", "tcp://:1234", "ipc://@", "invalid://localhost:1234"],
)
def test_connect_resolve_what_is_no_endpoint_is_refused_at_once(twin, bad):
    push = twin("PUSH")
    for call in ("connect", "bind"):
        with pytest.raises(omq.EndpointError) as caught:
            getattr(push, call)(bad)
        assert bad in str(caught.value)
    assert push.endpoints == []
    # The socket is as good as before.
    pull = twin("PULL", bind="tcp://127.0.0.1:*")
    push.connect(pull.endpoints[0])
    push.send(b"unharmed")
    assert pull.recv(timeout=BOUND) == b"unharmed"


@pytest.mark.parametrize("port", ["*", "0"])
def test_connect_resolve_a_wildcard_is_no_place_to_go_to(twin, port):
    with pytest.raises(omq.EndpointError, match="only for binding"):
        twin("PUSH").connect(f"tcp://localhost:{port}")


@pytest.mark.parametrize("source", ["127.0.0.5:*", "127.0.0.5:0", "127.0.0.5:port", "localhost:*", "*:port"])
def test_bind_src_address_is_where_the_server_sees_the_client(twin, source):
    with held("127.0.0.1", "127.0.0.5") as port:
        source = source.replace("port", str(port))
        pull = twin("PULL", bind="tcp://127.0.0.1:*")
        monitor = pull.monitor()
        push = twin("PUSH", connect=f"tcp://{source};{pull.endpoints[0].removeprefix('tcp://')}")
        push.send(b"from there")
        assert pull.recv(timeout=BOUND) == b"from there"
        accepted = twin.wait(lambda: monitor.recv(timeout=BOUND))
        assert accepted.kind == "accepted"
        host, _, seen = accepted.remote_address.removeprefix("tcp://").rpartition(":")
        assert host == ("127.0.0.5" if source.startswith("127") else "127.0.0.1")
        assert source.endswith((":*", ":0")) or seen == str(port)


def test_bind_src_address_is_kept_when_the_server_comes_back(twin, free_place):
    pull = twin("PULL", bind=free_place)
    where = pull.endpoints[0]
    push = twin("PUSH", connect=f"tcp://127.0.0.5:*;{where.removeprefix('tcp://')}", reconnect_interval=0.01)
    push.wait_connected(timeout=BOUND)
    pull.stop()
    until(lambda: not push.peers)
    again = twin("PULL")
    monitor = again.monitor()
    again.bind(where)
    push.send(b"again")
    assert again.recv(timeout=BOUND) == b"again"
    kinds = [twin.wait(lambda: monitor.recv(timeout=BOUND)) for _ in range(2)]
    assert kinds[1].remote_address.startswith("tcp://127.0.0.5:")


def test_rebind_ipc_a_path_in_use_is_kept_and_a_free_one_can_be_had(twin, tmp_path):
    """omq departs: the second one is refused (libzmq lets it take the path over from the first)."""
    where = f"ipc://{tmp_path}/s"
    first = twin("PULL", bind=where)
    with pytest.raises(omq.BindError, match="in use"):
        twin("PULL", bind=where)
    push = twin("PUSH", connect=where, reconnect_interval=0.01)
    push.send(b"to the first")
    assert first.recv(timeout=BOUND) == b"to the first"
    first.close()
    second = twin("PULL", bind=where)
    push.send(b"to the second")
    assert second.recv(timeout=BOUND) == b"to the second"


_abstract = itertools.count()


@pytest.mark.parametrize("where", ["ipc://*", "ipc://@omq-test"])
def test_ipc_wildcard_and_abstract_ipc_both_ways(twin, where):
    if where != "ipc://*":
        where += f"-{os.getpid()}-{next(_abstract)}"
    one = twin("PAIR", bind=where)
    other = twin("PAIR", connect=one.endpoints[0])
    other.send(b"there")
    assert one.recv(timeout=BOUND) == b"there"
    one.send(b"and back")
    assert other.recv(timeout=BOUND) == b"and back"
    assert (one.endpoints[0] == where) == (where != "ipc://*")


# shutdown_stress, many_sockets, system


@pytest.mark.parametrize("round_", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2))])
def test_shutdown_stress_a_hundred_sockets_closed_in_the_middle_of_connecting(twin, endpoint, round_):
    server = twin("PUB", bind=endpoint)
    sockets = [twin("SUB", connect=server.endpoints[0], subscribe=b"") for _ in range(100)]
    start = time.monotonic()
    for sub in sockets[::2]:
        sub.stop()
    for sub in sockets[1::2]:
        sub.close()
    assert time.monotonic() - start < BOUND
    until(lambda: not server.peers)
    # And it serves on.
    last = twin("SUB", connect=server.endpoints[0], subscribe=b"")
    server.wait_subscribed(timeout=BOUND)
    server.send(b"still here")
    assert last.recv(timeout=BOUND) == b"still here"


@pytest.mark.slow
def test_many_sockets_a_thousand_live_side_by_side(twin, inproc):
    """There is no MAX_SOCKETS: the system's own limits hold."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4000:
        pytest.skip(f"the process may open {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4000), hard))
    try:
        pull = twin("PULL", bind=inproc)
        pushes = [twin("PUSH", connect=inproc) for _ in range(1000)]
        for number, push in enumerate(pushes):
            push.send(b"%d" % number)
        assert sorted(int(pull.recv(timeout=BOUND)) for _ in range(1000)) == list(range(1000))
        for push in pushes:
            push.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_sockets_at_the_limit_of_descriptors_fail_cleanly(twin, tmp_path):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pull = twin("PULL", bind=f"ipc://{tmp_path}/good")
    push = twin("PUSH", connect=pull.endpoints[0])
    push.wait_connected(timeout=BOUND)
    made = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        with pytest.raises(OSError, match="open files"):  # noqa: PT012
            for _ in range(100):
                made.append(twin("PULL", bind="tcp://127.0.0.1:*"))  # noqa: PERF401
        push.send(b"unharmed")
        assert pull.recv(timeout=BOUND) == b"unharmed"
    finally:
        for pull in made:
            pull.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    until(lambda: twin("PULL", bind="tcp://127.0.0.1:*").endpoints)


def events(twin, monitor, kind, seconds):
    """The events of one kind within a time."""
    found = []
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            event = twin.wait(lambda left=left: monitor.recv(timeout=left))
        except omq.ReceiveTimeout:
            break
        if event.kind == kind:
            found.append(event)
    return found


def test_reconnect_ivl_none_is_no_attempt_after_the_first_and_an_explicit_one_works(twin, endpoint):
    pull = twin("PULL", bind=endpoint)
    where = pull.endpoints[0]
    push = twin("PUSH", reconnect_interval=None)
    monitor = push.monitor()
    push.connect(where)
    push.wait_connected(timeout=BOUND)
    pull.stop()
    until(lambda: not push.peers)
    again = twin("PULL", bind=where)
    assert events(twin, monitor, "connect_retried", 0.1) == []
    assert not push.peers
    push.connect(where)
    push.send(b"asked for")
    assert again.recv(timeout=BOUND) == b"asked for"


def test_reconnect_ivl_grows_for_who_is_turned_away(twin, endpoint):
    bound = twin("PAIR", bind=endpoint)
    twin("PAIR", connect=bound.endpoints[0]).wait_connected(timeout=BOUND)
    third = twin("PAIR", connect=bound.endpoints[0], reconnect_interval=(0.01, 0.2))
    monitor = third.monitor()
    delays = [event.delay for event in events(twin, monitor, "connect_retried", 0.6)]
    assert 4 <= len(delays) <= 12, delays
    assert 0.15 <= max(delays) <= 0.2, delays
    monitor.close()


@pytest.mark.parametrize("transport", ["ipc", "inproc"])
@pytest.mark.parametrize("stop", ["handshake failed", "after disconnect"])
def test_reconnect_stop_ends_the_attempts(twin, tmp_path, inproc, transport, stop):
    where = f"ipc://{tmp_path}/s" if transport == "ipc" else inproc
    bound = twin("PAIR", bind=where)
    if stop == "handshake failed":
        twin("PAIR", connect=where).wait_connected(timeout=BOUND)
    dialled = twin("PAIR", reconnect_interval=0.01, reconnect_stop=stop)
    monitor = dialled.monitor()
    dialled.connect(where)
    if stop == "after disconnect":
        dialled.wait_connected(timeout=BOUND)
        bound.stop()
    assert events(twin, monitor, "connect_retried", 0.2) == []
    assert not dialled.peers
    monitor.close()


def test_a_socket_of_another_type_is_rejected_over_inproc_too(twin, inproc):
    twin("PULL", bind=inproc)
    dialled = twin("PAIR", reconnect_interval=0.01, reconnect_stop="rejected")
    monitor = dialled.monitor()
    dialled.connect(inproc)
    assert events(twin, monitor, "connect_retried", 0.2) == []
    monitor.close()


# The same place twice: `is_single_connect` of libzmq's socket_base.cpp


def _twice(twin, kind, peer, endpoint, **options):
    """A bound socket, and one that connected to it three times."""
    bound = twin(peer, bind=endpoint, **({"subscribe": b""} if peer == "SUB" else {}))
    (place,) = bound.endpoints
    twice = twin(kind, connect=[place, place], linger=0, **options)
    assert twice.connect(place) == place
    twice.wait_connected(timeout=BOUND)
    bound.wait_connected(timeout=BOUND)
    return bound, twice, place


ONCE = [("SUB", "PUB"), ("PUB", "SUB"), ("DEALER", "ROUTER"), ("REQ", "REP")]
SEVERAL = [("PUSH", "PULL"), ("PULL", "PUSH"), ("XSUB", "XPUB"), ("XPUB", "XSUB"), ("ROUTER", "DEALER"), ("REP", "REQ")]


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@pytest.mark.parametrize(("kind", "peer"), ONCE)
def test_the_same_place_twice_is_one_connection(twin, tmp_path, kind, peer, transport):
    endpoint = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/s"
    options = {"subscribe": b""} if kind == "SUB" else {}
    bound, once, place = _twice(twin, kind, peer, endpoint, **options)
    with pytest.raises(omq.Timeout):
        bound.wait_connected(2, timeout=0.1)
    assert len(bound.peers) == len(once.peers) == 1
    once.disconnect(place)  # which ends it, however often it was asked for
    until(lambda: not bound.peers)
    with pytest.raises(omq.EndpointError, match="is not connected"):
        once.disconnect(place)
    once.connect(place)
    bound.wait_connected(timeout=BOUND)


@pytest.mark.parametrize(("kind", "peer"), SEVERAL)
def test_the_same_place_twice_is_two_connections_of_other_types(twin, kind, peer):
    bound, twice, _ = _twice(twin, kind, peer, "tcp://127.0.0.1:*")
    bound.wait_connected(3, timeout=BOUND)
    assert len(twice.peers) == 3


def test_the_same_place_twice_is_two_connections_over_inproc(twin, inproc):
    pub, sub, _ = _twice(twin, "SUB", "PUB", inproc, subscribe=b"")
    pub.wait_subscribed(n=3, timeout=BOUND)
    pub.send(b"x")
    assert drain(sub, 3) == [b"x"] * 3


def test_the_same_place_twice_doubles_no_message(twin, tmp_path):
    pub, sub, _ = _twice(twin, "SUB", "PUB", f"ipc://{tmp_path}/one", subscribe=b"")
    pub.wait_subscribed(timeout=BOUND)
    pub.send(b"x")
    assert drain(sub, 1) == [b"x"]
    sub, pub, _ = _twice(twin, "PUB", "SUB", f"ipc://{tmp_path}/other")
    pub.wait_subscribed(timeout=BOUND)
    pub.send(b"x")
    assert drain(sub, 1) == [b"x"]


def test_the_same_place_twice_loses_no_message_of_a_dealer_with_a_name(twin):
    router, dealer, _ = _twice(twin, "DEALER", "ROUTER", "tcp://127.0.0.1:*", identity=b"me")
    for number in range(20):
        dealer.send(b"%d" % number)
    assert [router.recv_multipart(timeout=BOUND) for _ in range(20)] == [[b"me", b"%d" % one] for one in range(20)]


def test_the_same_place_twice_loses_no_reply_of_a_req_with_a_name(twin):
    rep, req, _ = _twice(twin, "REQ", "REP", "tcp://127.0.0.1:*", identity=b"me")
    for number in range(6):
        req.send(b"%d" % number, timeout=BOUND)
        rep.send(rep.recv(timeout=BOUND))
        assert req.recv(timeout=BOUND) == b"%d" % number


def test_the_same_place_is_dialled_again_once_its_dialer_has_given_up(twin, tmp_path):
    """An application does so that monitors its connection itself."""
    later = f"ipc://{tmp_path}/later"
    dealer = twin("DEALER", reconnect_interval=None, linger=0)
    events = dealer.monitor()
    dealer.connect(later)
    while twin.wait(lambda: events.recv(timeout=BOUND)).kind != "connect_failed":
        pass
    bound = twin("DEALER", bind=later)
    until(lambda: _connects(dealer, later))
    bound.send(b"x", timeout=BOUND)
    assert dealer.recv(timeout=BOUND) == b"x"
    dealer.disconnect(later)
    with pytest.raises(omq.EndpointError, match="is not connected"):
        dealer.disconnect(later)


def _connects(socket, place):
    """Asks until it is there: a dialer that has just failed is still on its way out."""
    socket.connect(place)
    try:
        socket.wait_connected(timeout=0.05)
    except omq.Timeout:
        return False
    return True
