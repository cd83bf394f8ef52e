"""Ended objects are freed at once: none of omq's waits for the collector of reference cycles.

Programs for low latency switch the collector off, or freeze what there is. A cycle that the end of a connection, a
socket or a call leaves behind would then stay for ever. So each case here runs while nothing is collected, and
afterwards the collector is asked what it would have had to do.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import functools
import gc
import socket
import struct
import threading
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import uvloop

import omq
import omq.asyncio
from omq.engine.report import Reporter
from tests.support import socket_types
from tests.support.ports import held
from tests.support.waits import until

PACKAGE = str(Path(omq.__file__).parent)
OURS = ("omq.engine", "omq._core.calls", "omq._core.link", "omq._core.queues")  # modules of what ends with sockets
BOUND = 10.0  # seconds that one wait may take
HASTE: dict[str, Any] = {"reconnect_interval": 0.01}
SHOWN = 40  # objects that a failure lists


# ---------------------------------------------------------------------- what the collector finds


def is_ours(found: Any) -> bool:
    """Returns whether an object is omq's: of a type of its own, or code of its own that runs, or could be called."""
    kind = type(found)  # `isinstance` would ask a weak proxy's object, which may be gone
    if kind is types.FrameType:
        return found.f_code.co_filename.startswith(PACKAGE)
    if kind is types.FunctionType:
        return (found.__module__ or "").split(".")[0] == "omq"
    if kind is types.MethodType:
        return is_ours(found.__self__) or is_ours(found.__func__)
    if kind is types.CoroutineType:
        return found.cr_frame is not None and found.cr_code.co_filename.startswith(PACKAGE)
    if kind is types.GeneratorType:
        return found.gi_code.co_filename.startswith(PACKAGE)
    return not issubclass(kind, type) and kind.__module__.split(".")[0] == "omq"


def named(one: Any) -> str:
    """An object, as a failure shows it."""
    kind = type(one)
    text = f"{kind.__module__}.{kind.__qualname__}"
    if kind in (types.FunctionType, types.MethodType, types.CoroutineType, types.GeneratorType):
        return f"{text} {one.__qualname__}"
    if kind is types.FrameType:
        return f"{text} {one.f_code.co_qualname}:{one.f_lineno}"
    if issubclass(kind, BaseException):
        return f"{text} {one!r:.70}"
    if kind in (tuple, list, dict, set):
        return f"{text} {[type(inner).__name__ for inner in one]!s:.70}"
    return text


def cycles(found: list[Any]) -> list[list[int]]:
    """The objects that refer to each other, in all directions: strongly connected components (Tarjan), by index."""
    index = {id(one): number for number, one in enumerate(found)}
    after = [[index[id(other)] for other in gc.get_referents(one) if id(other) in index] for one in found]
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    components: list[list[int]] = []
    for root in range(len(found)):
        if root in order:
            continue
        work = [(root, iter(after[root]))]
        order[root] = low[root] = len(order)
        path.append(root)
        on_path.add(root)
        while work:
            one, rest = work[-1]
            other = next(rest, None)
            if other is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[one])
                if low[one] == order[one]:
                    component = path[path.index(one) :]
                    del path[path.index(one) :]
                    on_path.difference_update(component)
                    if len(component) > 1 or one in after[one]:
                        components.append(component)
            elif other not in order:
                order[other] = low[other] = len(order)
                path.append(other)
                on_path.add(other)
                work.append((other, iter(after[other])))
            elif other in on_path:
                low[one] = min(low[one], order[other])
    return components


def described(found: list[Any]) -> str:
    """Returns a description of omq's objects that were found, and of the cycles that kept them."""
    lines = [f"{count} {name}" for name, count in Counter(named(one) for one in found if is_ours(one)).items()]
    for component in sorted(cycles(found), key=len)[:3]:
        lines.append("a cycle, each with what it refers to there:")
        inside = {id(found[number]) for number in component}
        for number in component[:SHOWN]:
            others = [named(other) for other in gc.get_referents(found[number]) if id(other) in inside]
            lines.append(f"    {named(found[number])} -> {'; '.join(others)}")
    return "\n".join(lines)


def concerns_us(found: object) -> bool:
    return is_ours(found) or any(map(is_ours, gc.get_referents(found)))


@contextlib.contextmanager
def nothing_to_collect() -> Iterator[None]:
    """Collects nothing meanwhile, and fails if the collector then finds anything of omq's."""
    threads = _thread._count()
    gc.collect()
    gc.freeze()  # the collector is asked about what comes now, and need not look at all that a test process has
    was_on, flags = gc.isenabled(), gc.get_debug()
    gc.disable()
    gc.garbage.clear()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        until(lambda: _thread._count() <= threads, "the end of its threads")  # one that starts another may still run
        gc.collect()
        found = [one for one in gc.garbage if concerns_us(one)]
        complaint = described(list(gc.garbage)) if found else ""
        del found
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()
        if was_on:
            gc.enable()
        gc.collect()
    assert not complaint, complaint
    assert not living()


def living() -> Counter[str]:
    """Returns the number of omq's objects that an ended socket must not leave, by type; not of frozen ones."""
    kinds = (type(one) for one in gc.get_objects())
    return Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith(OURS))


# ---------------------------------------------------------------------- peers other than omq's sockets

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)


def ready(socket_type: bytes) -> bytes:
    body = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(socket_type)) + socket_type
    return b"\x04" + bytes([len(body)]) + body


def address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def raw(endpoint: str, *sent: bytes) -> socket.socket:
    """A bare connection that has sent something."""
    one = socket.create_connection(address(endpoint), timeout=BOUND)
    one.sendall(b"".join(sent))
    return one


def hang_up(one: socket.socket) -> None:
    """Closes a connection as soon as the other side has."""
    with contextlib.suppress(OSError):
        while one.recv(65536):
            pass
    one.close()


def part(one: socket.socket) -> None:
    """Ends a connection in the orderly way."""
    one.shutdown(socket.SHUT_WR)
    hang_up(one)


def reset(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


# ---------------------------------------------------------------------- blocking sockets

BLOCKING: list[Callable[[omq.Context], None]] = []


def blocking(case: Callable[[omq.Context], None]) -> Callable[[omq.Context], None]:
    BLOCKING.append(case)
    return case


def alone(one: Any) -> None:
    """Waits until a socket has no connection any more, in whatever state."""
    until(lambda: not one._engine._sessions, lambda: list(one._engine._sessions))


def served(server: omq.Socket, *sent: bytes, end: Callable[[socket.socket], None] = hang_up) -> None:
    """Has a few connections come, send something, and end; waits until their ends are known."""
    for _ in range(3):
        peer = raw(server.endpoints[0], *sent)
        peer.recv(1)  # it has been accepted
        end(peer)
        alone(server)


def pair(context: omq.Context, one: Any, other: Any, endpoint: str = "tcp://127.0.0.1:*", **options: Any) -> Any:
    bound = one(context, bind=endpoint, **options)
    dialling = other(context, connect=bound.endpoints[0], **options)
    dialling.wait_connected(timeout=BOUND)
    bound.wait_connected(timeout=BOUND)
    return bound, dialling


@blocking
def garbage_instead_of_a_greeting(context: omq.Context) -> None:
    with omq.PULL(context, bind="tcp://127.0.0.1:*") as server:
        served(server, b"GET / HTTP/1.1\r\n\r\n" * 10)


@blocking
def an_end_amid_the_greeting(context: omq.Context) -> None:
    with omq.PULL(context, bind="tcp://127.0.0.1:*") as server:
        served(server, GREETING[:20], end=part)
        served(server, GREETING[:20], end=reset)


@blocking
def a_handshake_that_takes_too_long(context: omq.Context) -> None:
    with omq.PULL(context, bind="tcp://127.0.0.1:*", handshake_timeout=0.02) as server:
        served(server, GREETING)


@blocking
def a_peer_of_another_type(context: omq.Context) -> None:
    with omq.PULL(context, bind="tcp://127.0.0.1:*") as server:
        served(server, GREETING, ready(b"SUB"))


@blocking
def a_peer_of_another_mechanism(context: omq.Context) -> None:
    _, secret = omq.curve_keypair()
    with omq.PULL(context, bind="tcp://127.0.0.1:*", security=omq.CurveServer(secret)) as server:
        served(server, GREETING)


@blocking
def a_peer_that_ends(context: omq.Context) -> None:
    with omq.ROUTER(context, bind="tcp://127.0.0.1:*") as server:
        for _ in range(3):
            peer = raw(server.endpoints[0], GREETING, ready(b"DEALER"), b"\0\5hello")
            who, what = server.recv_multipart(timeout=BOUND)
            server.send_multipart([who, what])
            part(peer)
            alone(server)


@blocking
def a_peer_that_ends_before_its_messages_are_read(context: omq.Context) -> None:
    with omq.ROUTER(context, bind="tcp://127.0.0.1:*", linger=0) as server:
        for read in (True, False):
            peer = raw(server.endpoints[0], GREETING, ready(b"DEALER"), b"\0\5hello" * 3)
            server.wait_connected(timeout=BOUND)
            part(peer)
            alone(server)
            while read and server.poll(0):
                server.recv_multipart()


@blocking
def a_peer_that_resets_the_connection(context: omq.Context) -> None:
    with omq.ROUTER(context, bind="tcp://127.0.0.1:*") as server:
        for _ in range(3):
            peer = raw(server.endpoints[0], GREETING, ready(b"DEALER"), b"\0\5hello")
            server.recv_multipart(timeout=BOUND)
            reset(peer)
            alone(server)


@blocking
def peers_that_know_no_protocol(context: omq.Context) -> None:
    with omq.STREAM(context, bind="tcp://127.0.0.1:*") as server:
        for end in (part, reset, socket.socket.close, None):
            peer = raw(server.endpoints[0], b"hello")
            who, _ = server.recv_multipart(timeout=BOUND)
            assert server.recv_multipart(timeout=BOUND) == [who, b"hello"]
            server.send_multipart([who, b"hello"])
            if end is None:
                server.send_multipart([who, b""])
                assert peer.recv(10) == b"hello"
                assert peer.recv(10) == b""
                peer.close()
            else:
                peer.recv(10)
                end(peer)
                assert server.recv_multipart(timeout=BOUND) == [who, b""]
            alone(server)


@blocking
def a_peer_that_is_dialled_and_closed(context: omq.Context) -> None:
    with omq.STREAM(context, bind="tcp://127.0.0.1:*") as server, omq.STREAM(context) as client:
        for _ in range(3):
            client.connect(server.endpoints[0])
            who, _ = client.recv_multipart(timeout=BOUND)
            client.send_multipart([who, b"hello"])
            client.send_multipart([who, b""])
            assert [server.recv_multipart(timeout=BOUND)[1] for _ in range(3)] == [b"", b"hello", b""]
            alone(client)
            alone(server)


@blocking
def a_peer_that_breaks_the_protocol(context: omq.Context) -> None:
    with omq.ROUTER(context, bind="tcp://127.0.0.1:*", max_message_size=10) as server:
        served(server, GREETING, ready(b"DEALER"), b"\0\5hello", b"\xff\xff")
        served(server, GREETING, ready(b"DEALER"), b"\0\xff", bytes(255))
        served(server, GREETING, ready(b"DEALER"), b"\4\x0a\5ERROR\3no!")
        served(server, GREETING, ready(b"DEALER"), b"\4\3\4PIN")


@blocking
def a_peer_without_a_sign_of_life(context: omq.Context) -> None:
    with omq.ROUTER(context, bind="tcp://127.0.0.1:*", heartbeat_interval=0.02, heartbeat_timeout=0.02) as server:
        served(server, GREETING, ready(b"DEALER"))
        served(server, GREETING, ready(b"DEALER"), b"\4\7\4PING\0\1")


@blocking
def no_listener(context: omq.Context) -> None:
    with held() as port, omq.PUSH(context, linger=0, **HASTE) as client:
        client.connect(f"tcp://127.0.0.1:{port}")
        fails(client)
        until(lambda: is_redialled(client))


def fails(client: Any) -> None:
    """Waits for three attempts to connect that fail. A monitor would take the frames from their exceptions."""
    with mock.patch.object(Reporter, "is_read", True):
        for _ in range(3):
            client._engine.reporter.last_failure = ""
            until(lambda: client._engine.reporter.last_failure)


def is_redialled(client: Any) -> bool:
    """Returns whether a dialer has left its attempts to the loop's scheduler, which no monitor reports."""
    return any(dialer._answer for dialers in client._engine.endpoints.dialers.values() for dialer in dialers)


def wait_for(monitor: omq.Monitor, kind: omq.EventKind) -> omq.Event:
    while (event := monitor.recv(timeout=BOUND)).kind is not kind:
        pass
    return event


@blocking
def a_name_without_an_address(context: omq.Context) -> None:
    with omq.PUSH(context, linger=0, **HASTE) as client:
        client.connect("tcp://nowhere.invalid:1")
        fails(client)


@blocking
def several_addresses(context: omq.Context) -> None:
    """Two addresses of a name have no listener; one of them has."""

    def look_up(host: str, port: int, **hints: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{number}", port)) for number in (2, 3, 1)]

    with mock.patch.object(socket, "getaddrinfo", look_up), omq.PULL(context, bind="tcp://127.0.0.1:*") as server:
        with omq.PUSH(context, connect=server.endpoints[0].replace("127.0.0.1", "several"), **HASTE) as client:
            client.send(b"hello")
            server.recv(timeout=BOUND)
        hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
        with held(*hosts) as port, omq.PUSH(context, linger=0, **HASTE) as client:
            client.connect(f"tcp://several:{port}")
            fails(client)


@blocking
def a_connect_that_takes_too_long(context: omq.Context) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        host, port = full.getsockname()
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((host, port))
        with omq.PUSH(context, linger=0, connect_timeout=0.03, **HASTE) as client:
            client.connect(f"tcp://127.0.0.1:{port}")
            fails(client)


@blocking
def a_server_that_comes_and_goes(context: omq.Context) -> None:
    with omq.DEALER(context, linger=0, **HASTE) as client, socket.create_server(("127.0.0.1", 0)) as server:
        client.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        for sent in ([GREETING, ready(b"ROUTER"), b"\0\5hello"], [b"garbage" * 20], [GREETING, ready(b"SUB")]):
            peer, _ = server.accept()
            peer.settimeout(BOUND)
            peer.sendall(b"".join(sent))
            if len(sent) == 3:
                client.recv(timeout=BOUND)
                peer.shutdown(socket.SHUT_WR)
            hang_up(peer)


def exchanged(context: omq.Context, endpoint: str, **options: Any) -> None:
    """REQ and REP, each of which closes first once."""
    for first in (0, 1):
        rep, req = both = pair(context, omq.REP, omq.REQ, endpoint, **options)
        req.send(b"question")
        rep.send(rep.recv(timeout=BOUND))
        req.recv(timeout=BOUND)
        both[first].close()
        alone(both[1 - first])
        both[1 - first].close()


@blocking
def questions_over_tcp(context: omq.Context) -> None:
    exchanged(context, "tcp://127.0.0.1:*")


@blocking
def questions_over_ipc(context: omq.Context) -> None:
    exchanged(context, "ipc://*")


@blocking
def questions_over_inproc(context: omq.Context) -> None:
    exchanged(context, "inproc://it")


@blocking
def questions_with_heartbeats(context: omq.Context) -> None:
    exchanged(context, "tcp://127.0.0.1:*", heartbeat_interval=0.05)


def admitted(context: omq.Context, server_side: Any, good: Any, bad: Any) -> None:
    with omq.PULL(context, bind="tcp://127.0.0.1:*", security=server_side) as server, server.monitor() as monitor:
        for _ in range(2):
            with omq.PUSH(context, connect=server.endpoints[0], security=good) as client:
                client.send(b"hello")
                server.recv(timeout=BOUND)
            alone(server)
            with omq.PUSH(context, connect=server.endpoints[0], security=bad, linger=0, **HASTE):
                wait_for(monitor, omq.EventKind.HANDSHAKE_FAILED)
            alone(server)


@blocking
def passwords(context: omq.Context) -> None:
    server = omq.PlainServer({"admin": "secret"})
    admitted(context, server, omq.PlainClient("admin", "secret"), omq.PlainClient("admin", "guessed"))


@blocking
def keys(context: omq.Context) -> None:
    public, secret = omq.curve_keypair()
    known, known_secret = omq.curve_keypair()

    async def authorize(key: bytes) -> bool:
        await asyncio.sleep(0)
        return key == known

    server = omq.CurveServer(secret, authorize)
    good = omq.CurveClient(public, public_key=known, secret_key=known_secret)
    admitted(context, server, good, omq.CurveClient(public))


@blocking
def a_function_that_decides_and_fails(context: omq.Context) -> None:
    def authenticate(username: bytes, password: bytes) -> bool:
        if password != b"secret":
            raise LookupError(username)
        return True

    server = omq.PlainServer(authenticate)
    admitted(context, server, omq.PlainClient("admin", "secret"), omq.PlainClient("admin", "guessed"))


@blocking
def a_handler_that_decides(context: omq.Context) -> None:
    def decide() -> None:
        with contextlib.suppress(omq.ClosedError):
            for _ in range(100):
                request = handler.recv_multipart()
                status = b"200" if request[-1] == b"secret" else b"400"
                handler.send_multipart([*request[:2], status, b"", b"admin", b""])

    with omq.REP(context, bind="inproc://zeromq.zap.01", linger=0) as handler:
        thread = threading.Thread(target=decide)
        thread.start()
        server = omq.PlainServer(None)
        admitted(context, server, omq.PlainClient("admin", "secret"), omq.PlainClient("admin", "guessed"))
    thread.join()


@blocking
def subscriptions(context: omq.Context) -> None:
    for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
        for first in (0, 1):
            pub, sub = both = pair(context, omq.XPUB, omq.SUB, endpoint)
            sub.subscribe(b"a")
            sub.subscribe(b"b")
            pub.wait_subscribed(b"b", timeout=BOUND)
            sub.subscribe(b"c")
            pub.wait_subscribed(b"c", timeout=BOUND)
            sub.unsubscribe(b"c")
            for _ in range(100):
                pub.send(b"a message")
            for _ in range(50):
                sub.recv(timeout=BOUND)
            both[first].close(linger=0)
            alone(both[1 - first])
            both[1 - first].close()


@blocking
def every_type(context: omq.Context) -> None:
    for one, other in (
        (omq.PAIR, omq.PAIR),
        (omq.PUB, omq.SUB),
        (omq.XPUB, omq.XSUB),
        (omq.REP, omq.REQ),
        (omq.ROUTER, omq.DEALER),
        (omq.PULL, omq.PUSH),
        (omq.GATHER, omq.SCATTER),
        (omq.SERVER, omq.CLIENT),
        (omq.CHANNEL, omq.CHANNEL),
        (omq.PEER, omq.PEER),
        (omq.RADIO, omq.DISH),
    ):
        for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
            bound, dialling = pair(context, one, other, endpoint)
            bound.close()
            dialling.close()


@blocking
def messages_of_one_part(context: omq.Context) -> None:
    """Each type sends with its route, in vain and not, and either socket ends first once, with messages unread."""
    for sender, receiver in socket_types.PAIRS:
        for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
            for first in (0, 1):
                make = functools.partial(made, context)
                one, other, route = both = socket_types.joined(make, sender, receiver, endpoint, BOUND, linger=0)
                for call, arguments in (("send", (b"body",)), ("send_multipart", ([b"body"],))):
                    getattr(one, call)(*arguments, **route)
                    taken = other.recv_message(timeout=BOUND)
                    assert taken.body == b"body"
                one.send(bytes(100_000), **route)
                if route and sender != "RADIO":
                    refused(lambda one=one: one.send(b"x", routing_id=1, timeout=0))
                refused(lambda one=one, route=route: one.send_multipart([b"a", b"b"], **route))
                both[first].close()
                alone(both[1 - first])
                both[1 - first].close()


def made(context: omq.Context, kind: str, **options: Any) -> Any:
    return getattr(omq, kind)(context, **options)


@blocking
def groups(context: omq.Context) -> None:
    for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
        for first in (0, 1):
            radio, dish = both = pair(context, omq.RADIO, omq.DISH, endpoint)
            for group in ("a", "b", "c"):
                dish.join(group)
                radio.wait_subscribed(group, timeout=BOUND)
            dish.leave("c")
            refused(lambda dish=dish: dish.leave("c"))
            refused(lambda dish=dish: dish.join("a"))
            for number in range(100):
                radio.send(b"%d" % number, group="a")
            for _ in range(50):
                dish.recv_message(timeout=BOUND)
            both[first].close(linger=0)
            alone(both[1 - first])
            both[1 - first].close()


@blocking
def peers_that_are_dialled_by_number(context: omq.Context) -> None:
    with omq.PEER(context, bind="tcp://127.0.0.1:*") as far, omq.PEER(context, linger=0, **HASTE) as near:
        for _ in range(3):
            near.send(b"hello", routing_id=near.connect_peer(far.endpoints[0], timeout=BOUND))
            far.recv(timeout=BOUND)
            near.disconnect(far.endpoints[0])
            alone(near)
            alone(far)
        with held() as port:
            refused(lambda: near.connect_peer(f"tcp://127.0.0.1:{port}", timeout=0.03))
        call = threading.Thread(target=lambda: refused(lambda: near.connect_peer("inproc://absent")))
        call.start()
        until(lambda: near._engine._watchers)
        near.stop()
        call.join()


@blocking
def messages_about_peers(context: omq.Context) -> None:
    """`hello_message`, `disconnect_message` and `hiccup_message`: of one that is taken, and of one that is not."""
    for read in (True, False):
        server = omq.SERVER(context, bind="tcp://127.0.0.1:*", hello_message=b"hello", disconnect_message=b"gone")
        client = omq.CLIENT(context, connect=server.endpoints[0], hello_message=b"hi", hiccup_message=b"lost", **HASTE)
        assert server.recv(timeout=BOUND) == b"hi"
        if read:
            assert client.recv(timeout=BOUND) == b"hello"
            client.disconnect(server.endpoints[0])
            assert server.recv(timeout=BOUND) == b"gone"
            client.connect(server.endpoints[0])
        client.wait_connected(timeout=BOUND)
        server.stop()
        alone(client)
        while read and client.recv(timeout=BOUND) != b"lost":
            pass
        client.close(linger=0)


@blocking
def peers_of_one_name(context: omq.Context) -> None:
    """The second one waits, unread, until the name is free, or takes the first one's place; or it ends before."""
    for handover in (False, True):
        with omq.ROUTER(context, bind="tcp://127.0.0.1:*", router_handover=handover, linger=0) as router:
            named: list[omq.DEALER] = []
            for _ in range(3):
                named.append(omq.DEALER(context, identity=b"it", linger=0, reconnect_interval=None))
                named[-1].connect(router.endpoints[0])
                named[-1].wait_connected(timeout=BOUND)
                named[-1].send(b"hello")
            router.recv_multipart(timeout=BOUND)
            named.pop().close()
            while named:
                named.pop(0).close()
            alone(router)


@blocking
def subscriptions_that_are_not_received(context: omq.Context) -> None:
    for manual in (False, True):
        pub = omq.XPUB(context, bind="tcp://127.0.0.1:*", xpub_manual=manual, recv_hwm=5)
        sub = omq.XSUB(context, connect=pub.endpoints[0])
        sub.wait_connected(timeout=BOUND)
        for number in range(10):
            sub.send(b"\1%d" % number)
        sub.send(b"a message")
        until(lambda pub=pub: pub.poll(0))
        pub.recv()
        if manual:
            pub.subscribe(b"another")
        sub.close()
        alone(pub)
        pub.close()


@blocking
def large_messages(context: omq.Context) -> None:
    pull, push = pair(context, omq.PULL, omq.PUSH, linger=0, send_hwm=2, recv_hwm=2)
    for _ in range(3):
        push.send(bytearray(3_000_000), timeout=BOUND)
        pull.recv_into(bytearray(3_000_000), timeout=BOUND)
    push.send(bytes(3_000_000), timeout=BOUND)
    pull.recv(timeout=BOUND)
    with contextlib.suppress(omq.SendTimeout):
        while True:
            push.send(bytes(3_000_000), timeout=0.02)
    push.close()
    pull.close()


@blocking
def messages_that_are_kept(context: omq.Context) -> None:
    kept = []
    pull, push = pair(context, omq.PULL, omq.PUSH, metadata={b"X-name": b"it"})
    for size in (5, 5000, 3_000_000):
        push.send(bytes(size), timeout=BOUND)
        kept.append(pull.recv_message(timeout=BOUND))
    infos = pull.peers
    push.close()
    alone(pull)
    pull.close()
    assert all(message.peer.properties == infos[0].properties for message in kept)


@blocking
def calls_in_vain(context: omq.Context) -> None:
    with omq.PAIR(context, bind="tcp://127.0.0.1:*", send_hwm=1, linger=0) as one:
        one.send(b"hello")
        for call in (
            lambda: one.recv(timeout=0.01),
            lambda: one.recv(timeout=0),
            lambda: one.recv_multipart(timeout=0.01),
            lambda: one.recv_many(timeout=0.01),
            lambda: one.recv_into(bytearray(10), timeout=0.01),
            lambda: one.recv_message(timeout=0.01),
            lambda: one.send(b"more", timeout=0.01),
            lambda: one.send_multipart([b"more", b"still"], timeout=0.01),
            lambda: one.send_many([b"more", b"still"], timeout=0.01),
            lambda: one.wait_connected(timeout=0.01),
            lambda: one.flush(timeout=0.01),
            lambda: one.subscribe(b"it"),
            lambda: one.bind("tcp://nowhere"),
            lambda: one.bind(one.endpoints[0]),
            lambda: one.unbind("tcp://127.0.0.1:9"),
            lambda: one.set_options(nothing=1),
            lambda: omq.PUSH(context, nothing=1),
            lambda: omq.PUSH(context, bind=one.endpoints[0]),
        ):
            refused(call)
        assert not one.poll(0.01)


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except omq.OmqError:
        return
    raise AssertionError


@blocking
def calls_that_wait_when_the_socket_closes(context: omq.Context) -> None:
    for end in (omq.PAIR.close, omq.PAIR.stop):
        one = omq.PAIR(context, bind="tcp://127.0.0.1:*", send_hwm=1, linger=0)
        one.send(b"hello")
        calls = (one.recv, lambda one=one: one.send(b"more"), one.wait_connected, one.flush)
        threads = [threading.Thread(target=lambda call=call: refused(call)) for call in calls]
        for thread in threads:
            thread.start()
        until(lambda one=one: one._engine._watchers)
        end(one)
        for thread in threads:
            thread.join()


@blocking
def sockets_that_are_waited_for(context: omq.Context) -> None:
    pull, push = pair(context, omq.PULL, omq.PUSH)
    other = omq.PULL(context, bind="tcp://127.0.0.1:*")
    assert not omq.wait([pull, other], timeout=0.01)
    push.send(b"hello")
    assert omq.wait([pull, other], timeout=BOUND) == [pull]
    assert omq.wait([pull, other, push], timeout=BOUND, events=omq.POLL_IN | omq.POLL_OUT) == [pull, push]
    for one in (pull, push, other):
        one.close()
        refused(lambda one=one: omq.wait([one], timeout=0))


@blocking
def monitors(context: omq.Context) -> None:
    server = omq.PULL(context, bind="tcp://127.0.0.1:*")
    read, broken_off, forgotten = server.monitor(), server.monitor(), server.monitor(limit=2)
    served(server, b"garbage" * 20)
    served(server, GREETING, ready(b"PUSH"), end=part)
    for event in broken_off:
        if event.kind is omq.EventKind.HANDSHAKE_FAILED:
            break
    try:
        read.recv(timeout=0)
        forgotten.close()
        forgotten.recv(timeout=0)
    except omq.ClosedError:
        pass
    del broken_off
    server.close()
    events = list(read)
    assert events[-1].kind is omq.EventKind.MONITOR_STOPPED
    assert any(event.error for event in events)


@blocking
def an_event_that_is_kept(context: omq.Context) -> None:
    """Its exception keeps nothing of the connection, or of the socket."""
    with omq.PULL(context, bind="tcp://127.0.0.1:*") as server, server.monitor() as monitor:
        served(server, b"garbage" * 20)
        failed = wait_for(monitor, omq.EventKind.HANDSHAKE_FAILED)
    with held() as port, omq.PUSH(context, linger=0, **HASTE) as client, client.monitor() as monitor:
        client.connect(f"tcp://127.0.0.1:{port}")
        refused = wait_for(monitor, omq.EventKind.CONNECT_FAILED)
    engines = weakref.ref(server._engine), weakref.ref(client._engine)
    del server, client, monitor
    until(lambda: [engine() for engine in engines] == [None, None])  # the client ends in the background
    assert isinstance(failed.error, omq.RemoteProtocolError)
    assert isinstance(refused.error, omq.ConnectError)


@blocking
def readable_descriptors(context: omq.Context) -> None:
    pull, push = pair(context, omq.PULL, omq.PUSH)
    pull.fileno()
    push.send(b"hello")
    assert pull.recv(timeout=BOUND) == b"hello"
    pull.close()
    push.close()


@blocking
def proxies(context: omq.Context) -> None:
    for closes in (False, True):
        front = omq.ROUTER(context, bind="tcp://127.0.0.1:*", linger=0)
        back = omq.DEALER(context, bind="tcp://127.0.0.1:*", linger=0)
        capture = omq.PUB(context, bind="inproc://capture")
        control = omq.PAIR(context, bind="inproc://control")
        steer = omq.PAIR(context, connect="inproc://control")
        steer.wait_connected(timeout=BOUND)

        def serve(front: Any = front, back: Any = back, capture: Any = capture, control: Any = control) -> None:
            try:
                omq.proxy(front, back, capture=capture, control=control)
            except omq.ClosedError:
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        with omq.REQ(context, connect=front.endpoints[0]) as req, omq.REP(context, connect=back.endpoints[0]) as rep:
            req.send(b"question")
            rep.send(rep.recv(timeout=BOUND))
            req.recv(timeout=BOUND)
        if closes:
            front.close()
        else:
            steer.send(b"TERMINATE")
        thread.join(BOUND)
        assert not thread.is_alive()
        for one in (front, back, capture, control, steer):
            one.close()
        del serve, thread


@blocking
def endings(context: omq.Context) -> None:
    for end in (omq.PUSH.stop, omq.PUSH.close, lambda one: one.close(linger=0.02), lambda one: one.close(linger=0)):
        for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
            pull, push = pair(context, omq.PULL, omq.PUSH, endpoint, recv_hwm=1, send_hwm=1)
            with contextlib.suppress(omq.SendTimeout):
                for _ in range(1 if end is omq.PUSH.close else 10):
                    push.send(bytes(100), timeout=0.01)
            end(push)
            pull.close()


@blocking
def never_used(context: omq.Context) -> None:
    omq.PUSH(context).close()
    omq.PUSH(context).stop()
    one = omq.PUSH(context)
    one.send(b"hello")
    one.set_options(send_timeout=1)
    del one
    changed = omq.SUB(context)
    changed.set_options(recv_hwm=5)
    changed.subscribe(b"it")
    changed.close()


@blocking
def dropped(context: omq.Context) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        pull, push = pair(context, omq.PULL, omq.PUSH, linger=0)
        push.send(b"hello")
        del pull, push
        omq.PUSH(context, connect="tcp://127.0.0.1:9", linger=0)
        until(lambda: not len(context._sockets))


@blocking
def disconnected(context: omq.Context) -> None:
    for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
        with omq.PULL(context, bind=endpoint) as pull, omq.PUSH(context, linger=1) as push:
            for _ in range(2):
                push.connect(pull.endpoints[0])
                push.wait_connected(timeout=BOUND)
                push.send(b"hello")
                pull.recv(timeout=BOUND)
                push.disconnect(pull.endpoints[0])
                alone(push)
            push.connect(pull.endpoints[0])
            push.send(b"hello")
            push.disconnect(pull.endpoints[0])
            pull.recv(timeout=BOUND)
            push.connect(pull.endpoints[0])
            push.wait_connected(timeout=BOUND)
            pull.unbind(pull.endpoints[0])


@blocking
def terminated(context: omq.Context) -> None:
    both = [*pair(context, omq.PULL, omq.PUSH), *pair(context, omq.PULL, omq.PUSH, "inproc://it")]
    waiting = threading.Thread(target=lambda: refused(both[0].recv))
    waiting.start()
    until(lambda: both[0].attended)
    context.term()
    waiting.join()


@pytest.mark.parametrize("case", BLOCKING, ids=lambda case: case.__name__)
def test_nothing_of_a_blocking_socket_waits_for_the_collector(case: Callable[[omq.Context], None]) -> None:
    with nothing_to_collect():
        with omq.Context() as context:
            case(context)
        del context


# ---------------------------------------------------------------------- asyncio sockets

Awaited = Callable[[omq.Context], Coroutine[Any, Any, None]]
AWAITED: list[Awaited] = []
aomq = omq.asyncio


def awaited(case: Awaited) -> Awaited:
    AWAITED.append(case)
    return case


async def reached(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def empty(one: Any) -> None:
    await reached(lambda: not one._engine._sessions)


async def misses(client: Any) -> None:
    """Makes connections as `fails` does."""
    with mock.patch.object(Reporter, "is_read", True):
        for _ in range(3):
            client._engine.reporter.last_failure = ""
            await reached(lambda: client._engine.reporter.last_failure)


async def event_of(monitor: Any, kind: omq.EventKind) -> omq.Event:
    while (event := await monitor.recv(timeout=BOUND)).kind is not kind:
        pass
    return event


async def called(server: Any, *sent: bytes, end: Callable[[socket.socket], None] = hang_up) -> None:
    """Makes calls as `served` does, with the peers in a thread."""
    for _ in range(3):

        def call() -> None:
            peer = raw(server.endpoints[0], *sent)
            peer.recv(1)
            end(peer)

        await asyncio.to_thread(call)
        await empty(server)


async def joined(
    context: omq.Context, one: Any, other: Any, endpoint: str = "tcp://127.0.0.1:*", **options: Any
) -> Any:
    bound = one(context, bind=endpoint, **options)
    dialling = other(context, connect=bound.endpoints[0], **options)
    await dialling.wait_connected(timeout=BOUND)
    await bound.wait_connected(timeout=BOUND)
    return bound, dialling


@awaited
async def handshakes_that_fail(context: omq.Context) -> None:
    _, secret = omq.curve_keypair()
    async with aomq.PULL(context, bind="tcp://127.0.0.1:*", handshake_timeout=0.05) as server:
        await called(server, b"garbage" * 20)
        await called(server, GREETING[:20], end=part)
        await called(server, GREETING[:20], end=reset)
        await called(server, GREETING)
        await called(server, GREETING, ready(b"SUB"))
    async with aomq.PULL(context, bind="tcp://127.0.0.1:*", security=omq.CurveServer(secret)) as server:
        await called(server, GREETING)


@awaited
async def peers_that_end(context: omq.Context) -> None:
    async with aomq.ROUTER(context, bind="tcp://127.0.0.1:*", linger=0, max_message_size=10) as server:
        for end in (part, reset):
            await called(server, GREETING, ready(b"DEALER"), b"\0\5hello", end=end)
            while await server.poll(0):
                await server.recv_multipart()
        await called(server, GREETING, ready(b"DEALER"), b"\0\5hello", b"\xff\xff")
        await called(server, GREETING, ready(b"DEALER"), b"\0\5hello", b"\0\xff", bytes(255))
        await called(server, GREETING, ready(b"DEALER"), b"\0\5hello", b"\4\x0a\5ERROR\3no!")
        await called(server, GREETING, ready(b"DEALER"), b"\4\3\4PIN")


@awaited
async def peers_that_know_no_protocol_and_are_closed(context: omq.Context) -> None:
    async with aomq.STREAM(context, bind="tcp://127.0.0.1:*") as server, aomq.STREAM(context) as client:
        for closes, other in ((server, client), (client, server), (server, client)):
            client.connect(server.endpoints[0])
            names = {one: (await one.recv_multipart(timeout=BOUND))[0] for one in (server, client)}
            await closes.send_multipart([names[closes], b"hello"])
            await closes.send_multipart([names[closes], b""])
            assert [(await other.recv_multipart(timeout=BOUND))[1] for _ in range(2)] == [b"hello", b""]
            if client.endpoints or other is client:
                client.disconnect(server.endpoints[0])
            await empty(client)
            await empty(server)
            for one in (client, server):
                while await one.poll(0):
                    await one.recv_multipart()


@awaited
async def peers_without_a_sign_of_life(context: omq.Context) -> None:
    options = {"heartbeat_interval": 0.02, "heartbeat_timeout": 0.02}
    async with aomq.ROUTER(context, bind="tcp://127.0.0.1:*", **options) as server:
        await called(server, GREETING, ready(b"DEALER"))
        await called(server, GREETING, ready(b"DEALER"), b"\4\7\4PING\0\1")


@awaited
async def dialling_in_vain(context: omq.Context) -> None:
    for endpoint in (
        "tcp://nowhere.invalid:1",
        "tcp://localhost:{port}",
        "tcp://127.0.0.1:{port}",
        "ipc:///nowhere/it",
    ):
        with held() as port:
            async with aomq.PUSH(context, linger=0, **HASTE) as client:
                client.connect(endpoint.format(port=port))
                await misses(client)
                if "127.0.0.1" in endpoint or "ipc" in endpoint:
                    await reached(lambda: is_redialled(client))


@awaited
async def a_connect_that_lasts(context: omq.Context) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        host, port = full.getsockname()
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((host, port))
        async with aomq.PUSH(context, linger=0, connect_timeout=0.03, **HASTE) as client:
            client.connect(f"tcp://127.0.0.1:{port}")
            await misses(client)


async def questions(context: omq.Context, endpoint: str, **options: Any) -> None:
    for first in (0, 1):
        rep, req = both = await joined(context, aomq.REP, aomq.REQ, endpoint, **options)
        await req.send(b"question")
        await rep.send(await rep.recv(timeout=BOUND))
        await req.recv(timeout=BOUND)
        await both[first].close()
        await empty(both[1 - first])
        await both[1 - first].close()


@awaited
async def questions_everywhere(context: omq.Context) -> None:
    for endpoint in ("tcp://127.0.0.1:*", "ipc://*", "inproc://it"):
        await questions(context, endpoint)
    await questions(context, "tcp://127.0.0.1:*", heartbeat_interval=0.05)


@awaited
async def every_type_awaited(context: omq.Context) -> None:
    for one, other in (
        (aomq.PAIR, aomq.PAIR),
        (aomq.PUB, aomq.SUB),
        (aomq.XPUB, aomq.XSUB),
        (aomq.REP, aomq.REQ),
        (aomq.ROUTER, aomq.DEALER),
        (aomq.PULL, aomq.PUSH),
        (aomq.GATHER, aomq.SCATTER),
        (aomq.SERVER, aomq.CLIENT),
        (aomq.CHANNEL, aomq.CHANNEL),
        (aomq.PEER, aomq.PEER),
        (aomq.RADIO, aomq.DISH),
    ):
        for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
            bound, dialling = await joined(context, one, other, endpoint)
            await bound.close()
            await dialling.close()


@awaited
async def messages_of_one_part_awaited(context: omq.Context) -> None:
    """Each type sends with its route to a blocking socket, and the other way round; with messages unread."""
    for sender, receiver in socket_types.PAIRS:
        if sender in ("PEER", "SERVER"):
            continue  # their routes are learned by calls that are awaited: see below
        bound = getattr(aomq, receiver)(context, bind="tcp://127.0.0.1:*", **socket_types.options_of(receiver, sender))
        one = getattr(aomq, sender)(context, connect=bound.endpoints[0], linger=0)
        route = {"group": socket_types.GROUP} if sender == "RADIO" else {}
        await (one.wait_subscribed(socket_types.GROUP, timeout=BOUND) if route else one.wait_connected(timeout=BOUND))
        for _ in range(3):
            await one.send(b"body", **route)
        assert (await bound.recv_message(timeout=BOUND)).body == b"body"
        await one.close()
        await empty(bound)
        await bound.close()


@awaited
async def peers_by_number_awaited(context: omq.Context) -> None:
    for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
        async with aomq.PEER(context, bind=endpoint) as far, aomq.PEER(context, **HASTE) as near:
            route = await near.connect_peer(far.endpoints[0], timeout=BOUND)
            await near.send(b"question", routing_id=route)
            asked = await far.recv_message(timeout=BOUND)
            await far.send_multipart([b"answer"], routing_id=asked.routing_id)
            assert await near.recv(timeout=BOUND) == b"answer"
            for call in (near.send(b"x", routing_id=1, timeout=0), near.connect_peer("inproc://absent", timeout=0.02)):
                try:
                    await call
                except omq.OmqError:
                    continue
                raise AssertionError
            given_up = asyncio.ensure_future(near.connect_peer("inproc://absent"))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.wait([given_up])
            del given_up, call


@awaited
async def both_twins(context: omq.Context) -> None:
    """An inproc connection between a blocking and an asyncio socket; each closes first once."""
    for first in (0, 1):
        pull = aomq.PULL(context, bind="inproc://it")
        push = omq.PUSH(context, connect="inproc://it")
        await pull.wait_connected(timeout=BOUND)
        push.send(b"hello")
        await pull.recv(timeout=BOUND)
        push.send(b"unread")
        if first:
            push.close()
            await empty(pull)
        await pull.close()
        if not first:
            await reached(lambda push=push: not push._engine._sessions)
            push.close(linger=0)


async def let_in(context: omq.Context, server_side: Any, good: Any, bad: Any) -> None:
    server = aomq.PULL(context, bind="tcp://127.0.0.1:*", security=server_side)
    async with server, server.monitor() as monitor:
        for _ in range(2):
            async with aomq.PUSH(context, connect=server.endpoints[0], security=good) as client:
                await client.send(b"hello")
                await server.recv(timeout=BOUND)
            await empty(server)
            async with aomq.PUSH(context, connect=server.endpoints[0], security=bad, linger=0, **HASTE):
                await event_of(monitor, omq.EventKind.HANDSHAKE_FAILED)
            await empty(server)


@awaited
async def security(context: omq.Context) -> None:
    async def authorize(key: bytes) -> bool:
        await asyncio.sleep(0)
        return key == known

    async def decide(handler: Any) -> None:
        while True:
            request = await handler.recv_multipart()
            status = b"200" if request[-1] == b"secret" else b"400"
            await handler.send_multipart([*request[:2], status, b"", b"admin", b""])

    good, bad = omq.PlainClient("admin", "secret"), omq.PlainClient("admin", "guessed")
    await let_in(context, omq.PlainServer({"admin": "secret"}), good, bad)
    public, secret = omq.curve_keypair()
    known, known_secret = omq.curve_keypair()
    key = omq.CurveClient(public, public_key=known, secret_key=known_secret)
    await let_in(context, omq.CurveServer(secret, authorize), key, omq.CurveClient(public))
    async with aomq.REP(context, bind="inproc://zeromq.zap.01", linger=0) as handler:
        task = asyncio.create_task(decide(handler))
        await let_in(context, omq.PlainServer(None), good, bad)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@awaited
async def admissions_that_end_early(context: omq.Context) -> None:
    """The function that decides still waits when the peer goes, and when the socket closes."""

    async def authenticate(username: bytes, password: bytes) -> bool:
        await asyncio.sleep(BOUND)
        return True

    server = aomq.PULL(context, bind="tcp://127.0.0.1:*", security=omq.PlainServer(authenticate))
    for _ in range(2):
        client = aomq.PUSH(context, connect=server.endpoints[0], security=omq.PlainClient("a", "b"), linger=0)
        await reached(lambda: any(session._admission for session in server._engine._sessions))
        await client.close()
    await server.close()


@awaited
async def subscriptions_awaited(context: omq.Context) -> None:
    for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
        for first in (0, 1):
            pub, sub = both = await joined(context, aomq.XPUB, aomq.SUB, endpoint, linger=0)
            for number in range(3000):
                sub.subscribe(b"%d" % number)
            await pub.wait_subscribed(b"2999", timeout=BOUND)
            monitor = pub.monitor()
            sub.unsubscribe(b"2999")
            await event_of(monitor, omq.EventKind.UNSUBSCRIBED)
            for _ in range(100):
                await pub.send(b"2 is a topic")
            await sub.recv(timeout=BOUND)
            await pub.recv(timeout=BOUND)
            await both[first].close()
            await empty(both[1 - first])
            await both[1 - first].close()


@awaited
async def calls_that_are_given_up(context: omq.Context) -> None:
    for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
        one, other = await joined(context, aomq.PAIR, aomq.PAIR, endpoint, send_hwm=1, recv_hwm=1, linger=0)
        for _ in range(3):
            for make in (one.recv, one.recv_multipart, one.recv_many, one.recv_message, one.poll):
                with contextlib.suppress(TimeoutError):
                    await make(timeout=0.01)
                task = asyncio.ensure_future(make())
                await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                del task
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.001):
                        await make()
        with contextlib.suppress(omq.SendTimeout):
            while True:
                await other.send(bytes(100_000), timeout=0.02)
        task = asyncio.ensure_future(other.send(b"more"))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(other.send_multipart([b"more", b"still"]), 0.001)
        with contextlib.suppress(TimeoutError):
            await one.wait_connected(2, timeout=0.01)
        with contextlib.suppress(TimeoutError):
            await other.flush(timeout=0.01)
        del task
        await one.close()
        await other.close()


@awaited
async def calls_that_wait_at_the_end(context: omq.Context) -> None:
    for end in (aomq.PAIR.close, aomq.PAIR.stop):
        one = aomq.PAIR(context, bind="tcp://127.0.0.1:*", send_hwm=1, linger=0)
        await one.send(b"hello")
        calls = [
            asyncio.ensure_future(call) for call in (one.recv(), one.send(b"more"), one.wait_connected(), one.flush())
        ]
        await reached(lambda one=one: one._engine._watchers)
        result = end(one)
        if result is not None:
            await result
        for call in calls:
            with contextlib.suppress(omq.ClosedError):
                await call
        del calls, call


@awaited
async def iterations_that_are_broken_off(context: omq.Context) -> None:
    pull, push = await joined(context, aomq.PULL, aomq.PUSH)
    await push.send_many([b"hello"] * 5)
    async for message in pull:
        assert message == b"hello"
        break
    monitor = pull.monitor()
    await push.close()
    async for event in monitor:
        if event.kind is omq.EventKind.DISCONNECTED:
            break
    forgotten = pull.monitor(limit=1)
    waiting = asyncio.ensure_future(forgotten.recv())
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    with contextlib.suppress(TimeoutError):
        await forgotten.recv(timeout=0.01)
    del waiting, forgotten
    await pull.close()
    with contextlib.suppress(omq.ClosedError):
        await pull.recv()


@awaited
async def proxies_awaited(context: omq.Context) -> None:
    for way in ("TERMINATE", "close", "cancel"):
        front = aomq.ROUTER(context, bind="tcp://127.0.0.1:*", linger=0)
        back = aomq.DEALER(context, bind="tcp://127.0.0.1:*", linger=0)
        capture = aomq.PUB(context, bind="inproc://capture")
        control = aomq.PAIR(context, bind="inproc://control")
        steer = aomq.PAIR(context, connect="inproc://control")
        task = asyncio.create_task(aomq.proxy(front, back, capture=capture, control=control))
        async with (
            aomq.REQ(context, connect=front.endpoints[0]) as req,
            aomq.REP(context, connect=back.endpoints[0]) as rep,
        ):
            await req.send(b"question")
            await rep.send(await rep.recv(timeout=BOUND))
            await req.recv(timeout=BOUND)
        if way == "TERMINATE":
            await steer.send(b"TERMINATE")
        elif way == "close":
            await front.close()
        else:
            task.cancel()
        with contextlib.suppress(omq.ClosedError, asyncio.CancelledError):
            await task
        del task
        for one in (front, back, capture, control, steer):
            await one.close()


@awaited
async def endings_awaited(context: omq.Context) -> None:
    for how in ("stop", "close", "close(linger=0.02)", "close(linger=0)"):
        for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
            pull, push = await joined(context, aomq.PULL, aomq.PUSH, endpoint, recv_hwm=1, send_hwm=1)
            with contextlib.suppress(omq.SendTimeout):
                for _ in range(1 if how == "close" else 10):
                    await push.send(bytes(100), timeout=0.01)
            match how:
                case "stop":
                    push.stop()
                case "close":
                    await push.close()
                case "close(linger=0.02)":
                    await push.close(linger=0.02)
                case _:
                    await push.close(linger=0)
            await pull.close()


class Owner:
    """A parent of sockets."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []

    def create_task(self, work: Coroutine[Any, Any, Any], *, name: str | None = None) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self.tasks.append(task)
        return task


@awaited
async def in_a_task_group(context: omq.Context) -> None:
    async with asyncio.TaskGroup() as group:
        pull = aomq.PULL(context, bind="tcp://127.0.0.1:*", parent=group)
        push = aomq.PUSH(context, connect=pull.endpoints[0], parent=group)
        await push.send(b"hello")
        await pull.recv(timeout=BOUND)
        await push.close()
        pull.stop()
    # A group that is cancelled keeps its own exceptions in a cycle (asyncio, Python 3.11 and 3.12): here tasks are.
    owner = Owner()
    kept = aomq.PULL(context, bind="tcp://127.0.0.1:*", parent=owner)
    owner.tasks.pop().cancel()
    await reached(lambda: kept._engine.closed)


@awaited
async def dropped_awaited(context: omq.Context) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        pull, push = await joined(context, aomq.PULL, aomq.PUSH, linger=0)
        await push.send(b"hello")
        del pull, push
        aomq.PUSH(context, connect="tcp://127.0.0.1:9", linger=0)
        await reached(lambda: not len(context._async_sockets))


@awaited
async def disconnected_awaited(context: omq.Context) -> None:
    for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
        async with aomq.PULL(context, bind=endpoint) as pull, aomq.PUSH(context, linger=1) as push:
            for _ in range(2):
                push.connect(pull.endpoints[0])
                await push.wait_connected(timeout=BOUND)
                await push.send(b"hello")
                await pull.recv(timeout=BOUND)
                push.disconnect(pull.endpoints[0])
                await empty(push)
            push.connect(pull.endpoints[0])
            await push.send(b"hello")
            push.disconnect(pull.endpoints[0])
            await pull.recv(timeout=BOUND)


@awaited
async def terminated_awaited(context: omq.Context) -> None:
    both = [
        *await joined(context, aomq.PULL, aomq.PUSH),
        *await joined(context, aomq.PULL, aomq.PUSH, "inproc://it"),
    ]
    waiting = asyncio.ensure_future(both[0].recv())
    await asyncio.sleep(0)
    context.term()
    with contextlib.suppress(omq.ClosedError):
        await waiting
    del waiting
    for one in both:
        await empty(one)


@awaited
async def descriptors_awaited(context: omq.Context) -> None:
    pull, push = await joined(context, aomq.PULL, aomq.PUSH)
    pull.fileno()
    await push.send(b"hello")
    await pull.recv(timeout=BOUND)
    await pull.close()
    await push.close()


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("case", AWAITED, ids=lambda case: case.__name__)
def test_nothing_of_an_asyncio_socket_waits_for_the_collector(case: Awaited, factory: Any) -> None:
    with nothing_to_collect():
        with omq.Context() as context, asyncio.Runner(loop_factory=factory) as runner:
            runner.run(case(context))
        del context, runner


async def left_open(context: omq.Context, kept: list[Any]) -> None:
    """Sockets in all states: connected, with unread messages, dialling, waiting to dial again, in a handshake."""

    async def authenticate(username: bytes, password: bytes) -> bool:
        await asyncio.sleep(BOUND)
        return True

    for endpoint in ("tcp://127.0.0.1:*", "inproc://it"):
        pull, push = await joined(context, aomq.PULL, aomq.PUSH, endpoint, linger=0)
        await push.send_many([b"hello"] * 3)
        await pull.recv()
        kept += pull, push, pull.monitor()
    pub, sub = await joined(context, aomq.PUB, aomq.SUB)
    sub.subscribe(b"")
    await pub.wait_subscribed()
    await pub.send(b"hello")
    kept += pub, sub
    with held() as port:
        kept.append(aomq.PUSH(context, connect=f"tcp://127.0.0.1:{port}", linger=0, reconnect_interval=100))
    kept.append(aomq.PUSH(context, connect="inproc://absent", linger=0))
    server = aomq.PULL(context, bind="tcp://127.0.0.1:*", security=omq.PlainServer(authenticate))
    kept += server, raw(server.endpoints[0])
    kept.append(aomq.PUSH(context, connect=server.endpoints[0], security=omq.PlainClient("a", "b"), linger=0))
    await reached(lambda: any(session._admission for session in server._engine._sessions))
    kept.append(aomq.REQ(context, connect="tcp://127.0.0.1:1", linger=0))  # has not begun to dial yet


@pytest.mark.parametrize("way", ["closed", "stopped", "dropped"])
@pytest.mark.parametrize("orderly", [True, False], ids=["cancelled", "abandoned"])
@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_nothing_waits_for_the_collector_where_the_loop_was_closed_first(factory: Any, orderly: bool, way: str) -> None:
    with nothing_to_collect(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        kept: list[Any] = []
        with omq.Context() as context:
            if orderly:
                with asyncio.Runner(loop_factory=factory) as runner:
                    runner.run(left_open(context, kept))
                del runner
            else:
                loop = factory()
                loop.run_until_complete(left_open(context, kept))
                loop.close()
                del loop
            while kept:
                one = kept.pop()
                if way == "closed" and isinstance(one, aomq.Socket):
                    asyncio.run(one.close())
                elif way == "stopped" and isinstance(one, aomq.Socket):
                    one.stop()
                elif isinstance(one, socket.socket):
                    one.close()
                del one
        del context
