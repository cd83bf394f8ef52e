"""`accept_filter`, `accept_uids`, `accept_gids`, `accept_pids`: who is closed before the handshake."""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import select
import socket
import threading
from typing import Any

import pytest
import zmq

import omq
from tests.support.waits import BOUND
from tests.system.conformance.test_endpoint_options import hung_up, shake

ME = {"uid": os.getuid(), "gid": os.getgid(), "pid": os.getpid()}
_names = itertools.count()


def dial(endpoint: str) -> socket.socket:
    if endpoint.startswith("ipc://@"):
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(BOUND)
        line.connect("\0" + endpoint.removeprefix("ipc://@"))
        return line
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), BOUND)


@pytest.fixture
def name() -> str:
    return f"ipc://@omq-filter-{os.getpid()}-{next(_names)}"


@pytest.fixture(params=["endpoint", "socket"])
def bound(request, twin):
    """Makes a PULL with these options for its one endpoint, given there or for the whole socket; gives it too."""

    def make(endpoint: str, **options: Any) -> tuple[Any, str]:
        if request.param == "socket":
            one = twin("PULL", **options)
            return one, one.bind(endpoint)
        one = twin("PULL")
        return one, one.bind(endpoint, **options)

    return make


def kept_out(twin: Any, pull: Any, endpoint: str, *words: str) -> None:
    """A peer is closed before any byte of a handshake, and a monitor reports it."""
    monitor = pull.monitor()
    with dial(endpoint) as line:
        assert line.recv(1) == b""
    event = twin.event(monitor)
    assert event.kind == "accept_failed"
    assert event.endpoint == endpoint
    for word in words:
        assert word in event.reason
    assert pull.peers == []


def let_in(pull: Any, endpoint: str) -> bool:
    """Returns whether a peer goes through its handshake."""
    with dial(endpoint) as line:
        shake(line)
        pull.wait_connected(timeout=BOUND)
        return len(pull.peers) == 1


@pytest.mark.parametrize(
    "networks",
    ["127.0.0.0/8", ["10.0.0.0/8", "127.0.0.1"], "127.1.2.3/8", "0.0.0.0/0", "::ffff:127.0.0.0/104"],
    ids=str,
)
def test_a_peer_of_the_network_comes_in(bound, networks):
    assert let_in(*bound("tcp://127.0.0.1:*", accept_filter=networks))


@pytest.mark.parametrize(
    "networks", ["10.0.0.0/8", ["10.0.0.0/8", "127.0.0.2"], "::/0", "::ffff:10.0.0.0/104"], ids=str
)
def test_a_peer_of_another_network_is_closed(twin, bound, networks):
    kept_out(twin, *bound("tcp://127.0.0.1:*", accept_filter=networks), "tcp://127.0.0.1:", "accept_filter=")


def test_a_peer_over_ipv4_of_an_ipv6_endpoint_has_its_ipv4_address(twin):
    pull = twin("PULL", ipv6=True)
    for networks in ("127.0.0.0/8", "::ffff:127.0.0.0/104", "::1/128"):
        endpoint = pull.bind("tcp://*:*", accept_filter=networks)
        if not endpoint.startswith("tcp://["):
            pytest.skip("this machine has no IPv6")
        port = endpoint.rpartition(":")[2]
        for host, fits in (("127.0.0.1", networks != "::1/128"), ("[::1]", networks == "::1/128")):
            with dial(f"tcp://{host}:{port}") as line:
                if fits:
                    shake(line)
                else:
                    assert line.recv(1) == b""


def test_a_rejected_peer_costs_no_other_anything(twin):
    pull = twin("PULL", max_connections=1, max_handshakes=1)
    endpoint = pull.bind("tcp://127.0.0.1:*", accept_filter="127.0.0.2")
    for _ in range(20):
        with dial(endpoint) as line:
            assert line.recv(1) == b""
    good = twin("PUSH", connect=f"tcp://127.0.0.2:*;{endpoint.removeprefix('tcp://')}")
    good.send(b"x", timeout=BOUND)
    assert pull.recv(timeout=BOUND) == b"x"


@pytest.mark.parametrize("kind", ME)
def test_a_process_that_a_rule_of_ipc_lets_in(bound, name, kind):
    assert let_in(*bound(name, **{f"accept_{kind}s": ME[kind]}))
    assert let_in(*bound(name + "-several", **{f"accept_{kind}s": [ME[kind], ME[kind] + 1]}))


@pytest.mark.parametrize("kind", ME)
def test_a_process_that_no_rule_of_ipc_lets_in(twin, bound, name, kind):
    strange = max(set(os.getgroups()) | {ME[kind]}) + 1
    kept_out(twin, *bound(name, **{f"accept_{kind}s": strange}), f"accept_{kind}s=[{strange}]", f"{kind} {ME[kind]}")


def test_one_rule_of_several_is_enough(bound, name):
    assert let_in(*bound(name, accept_uids=ME["uid"] + 1, accept_pids=ME["pid"]))


needs_root = pytest.mark.skipif(
    os.getuid() != 0 or platform.machine() != "x86_64", reason="becomes another user with system calls by number"
)


def dial_as(endpoint: str, uid: int, gid: int, *groups: int) -> socket.socket:
    """Connects as another user: these calls change one thread alone (credentials(7), libc's would change all)."""
    made: list[socket.socket] = []

    def work() -> None:
        call = ctypes.CDLL(None, use_errno=True).syscall
        setgroups, setresuid, setresgid = 116, 117, 119
        assert call(setgroups, len(groups), (ctypes.c_uint * len(groups))(*groups)) == 0
        assert call(setresgid, gid, gid, gid) == 0
        assert call(setresuid, uid, uid, uid) == 0
        made.append(dial(endpoint))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(BOUND)
    return made[0]


@needs_root
@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        ({"accept_uids": 4321}, True),
        ({"accept_uids": 0}, False),
        ({"accept_gids": 4322}, True),
        ({"accept_gids": 4324}, True),
        ({"accept_gids": [0, 4325]}, False),
        ({"accept_gids": 4325, "accept_uids": 4321}, True),
    ],
    ids=str,
)
def test_another_user_and_its_further_groups(twin, name, rule, fits):
    pull = twin("PULL")
    pull.bind(name, **rule)
    with dial_as(name, 4321, 4322, 4323, 4324) as line:
        if fits:
            shake(line)
        else:
            assert hung_up(line)


def test_an_endpoint_that_the_rule_means_nothing_for_is_refused(twin, name):
    for options, endpoint in (
        ({"accept_filter": "10.0.0.0/8"}, name),
        ({"accept_filter": "10.0.0.0/8"}, "inproc://x"),
        ({"accept_uids": 0}, "tcp://127.0.0.1:*"),
        ({"accept_gids": [0]}, "inproc://x"),
        ({"accept_pids": 1}, "tcp://127.0.0.1:*"),
    ):
        (option,) = options
        pull = twin("PULL")
        with pytest.raises(omq.OptionError, match=f"option '{option}' does not apply to"):
            pull.bind(endpoint, **options)
        with pytest.raises(omq.OptionError, match=f"option '{option}' is for bind"):
            pull.connect("tcp://127.0.0.1:9", **options)
        strict = twin("PULL", **options)
        with pytest.raises(omq.OptionError, match=f"option {option}=.* of the socket does not apply to"):
            strict.bind(endpoint)
        assert strict.endpoints == []
        strict.connect("inproc://elsewhere")  # which accepts nothing


# libzmq


@pytest.mark.parametrize(
    ("option", "value", "options"),
    [
        (zmq.TCP_ACCEPT_FILTER, b"127.0.0.1", {"accept_filter": "127.0.0.1"}),
        (zmq.TCP_ACCEPT_FILTER, b"127.9.9.9/8", {"accept_filter": "127.9.9.9/8"}),
        (zmq.TCP_ACCEPT_FILTER, b"127.0.0.2", {"accept_filter": "127.0.0.2"}),
        (zmq.TCP_ACCEPT_FILTER, b"10.0.0.0/8", {"accept_filter": "10.0.0.0/8"}),
        (58, ME["pid"], {"accept_pids": ME["pid"]}),
        (58, ME["pid"] + 1, {"accept_pids": ME["pid"] + 1}),
        (59, ME["uid"], {"accept_uids": ME["uid"]}),
        (59, ME["uid"] + 4321, {"accept_uids": ME["uid"] + 4321}),
        (60, ME["gid"], {"accept_gids": ME["gid"]}),
        (60, ME["gid"] + 4321, {"accept_gids": ME["gid"] + 4321}),
    ],
    ids=[
        "host",
        "network",
        "other host",
        "other network",
        *(f"{own} {who}" for who in ("pid", "uid", "gid") for own in ("own", "other")),
    ],
)
def test_libzmq_lets_in_and_keeps_out_the_same(twin, name, option, value, options):
    context = zmq.Context()
    theirs = context.socket(zmq.PULL)
    theirs.setsockopt(option, value)
    of_tcp = option == zmq.TCP_ACCEPT_FILTER
    theirs.bind("tcp://127.0.0.1:*" if of_tcp else name)
    ours = twin("PULL")
    endpoint = ours.bind("tcp://127.0.0.1:*" if of_tcp else name + "-ours", **options)
    found = []
    for one in (endpoint, theirs.getsockopt_string(zmq.LAST_ENDPOINT) if of_tcp else name):
        with dial(one) as line:
            found.append(bool(select.select([line], [], [], 10)[0] and not line.recv(1)))
    theirs.close(linger=0)
    context.term()
    assert found[0] == found[1]
