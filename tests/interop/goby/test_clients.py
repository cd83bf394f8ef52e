"""omq's gobyd and clients that are bytes and pyzmq."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from omq.goby import Daemon, Portal
from omq.goby.protobuf import HealthRequest, ProcessHealth, VehicleHealth
from tests.interop.goby.libzmq_bus import RawClient, fields, request
from tests.support.machine import needs_ipv6
from tests.support.waits import until

pytestmark = pytest.mark.timeout(60)

Serve = Callable[..., Daemon]


@pytest.fixture(params=["ipc", "tcp"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Serve]:
    """Makes a daemon on either transport."""
    with ExitStack() as stack:

        def made(**options: Any) -> Daemon:
            at: dict[str, Any] = {"socket_name": tmp_path / "g"}
            if request.param == "tcp":
                at = {"transport": "tcp", "port": 0, "host": "127.0.0.1"}
            return stack.enter_context(Daemon(**at, **options))

        yield made


def portal(daemon: Daemon, name: str) -> Portal:
    """A portal on a daemon's bus."""
    if daemon.bus.transport == "ipc":
        return Portal(name, socket_name=daemon.bus.path_prefix)
    return Portal(name, transport="tcp", port=int(daemon.endpoints["manager"].rpartition(":")[2]))


def receives(sub: Any, publish: Callable[[], object], prefix: bytes) -> bytes:
    """Publishes until what begins so has come: a raw client does not know when its subscription is in force."""
    sub.subscribe(prefix)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        publish()
        if sub.poll(20):
            frame = bytes(sub.recv())
            if frame.startswith(prefix):
                return frame
    raise AssertionError(f"nothing came for {prefix!r}")


def test_the_reply_is_that_of_gobys_own(serve: Serve) -> None:
    daemon = serve()
    with RawClient("pyprobe", daemon.endpoints["manager"], 4242) as client:
        assert client.reply.keys() == {1, 2, 3, 4, 5}, "the reply lacks the hold"
        assert (client.reply[1], client.reply[2], client.reply[3]) == ([1], [b"pyprobe"], [4242])
        for number, kind in ((4, 1), (5, 2)):
            about = fields(client.reply[number][0])
            place = {8} if daemon.bus.transport == "ipc" else {7}
            assert about.keys() == {1, 3, 4, 10, 11} | place
            assert (about[1], about[4], about[10], about[11]) == (
                [kind],
                [1],
                [1000],
                [1000],
            )
        if daemon.bus.transport == "ipc":
            assert client.reply[4][0].endswith(b".xsub\x50\xe8\x07\x58\xe8\x07")
            assert client.reply[5][0].endswith(b".xpub\x50\xe8\x07\x58\xe8\x07")
        # The other request is answered there, too.
        assert fields(client.ask(request(2, "pyprobe", 4242))) == {1: [2], 2: [b"pyprobe"], 3: [4242], 6: [0]}


def test_raw_clients_reach_each_other_and_portals(serve: Serve) -> None:
    daemon = serve()
    live = b"/chat/CSTR/CSTR/26115/e845c3cbd36f7a03/\0msg0\0"
    with RawClient("a", daemon.endpoints["manager"]) as a, RawClient("b", daemon.endpoints["manager"]) as b:
        assert receives(b.sub, lambda: a.pub.send(live), b"/chat/CSTR/CSTR/") == live
        with portal(daemon, "c") as c:
            subscription = c.subscribe("chat", str)
            every = c.subscribe_regex("chat", schemes=["CSTR"])
            c.ready()
            c.wait_released(10)
            a.pub.send(live)
            assert subscription.recv(timeout=10) == "msg0"
            publication = every.recv(timeout=10)
            assert publication == ("chat", "CSTR", "CSTR", b"msg0\0")
            assert (publication.pid, publication.thread) == (26115, "e845c3cbd36f7a03")
            c.publish("chat", "msg1")
            frame = receives(b.sub, lambda: None, b"/chat/CSTR/CSTR/%d/" % os.getpid())
            thread = f"{threading.get_ident():x}".encode()
            assert frame == b"/chat/CSTR/CSTR/%d/%s/\0msg1\0" % (os.getpid(), thread)


def test_with_none_required_the_first_answer_is_false(serve: Serve) -> None:
    daemon = serve()
    with RawClient("a", daemon.endpoints["manager"]) as a:
        assert not a.held(ready=False)


def test_required_clients_are_waited_for(serve: Serve) -> None:
    daemon = serve(required_clients=["a", "b"])
    manager = daemon.endpoints["manager"]
    with RawClient("a", manager, 11) as a, RawClient("b", manager, 12) as b, RawClient("c", manager, 13) as c:
        assert a.held(ready=True)
        assert c.held(ready=True)
        assert b.held(ready=False)
        assert daemon.missing == ["b"]
        b.report_ready(True)
        a.until_released()
        b.until_released()
        c.until_released()
        with RawClient("late", manager, 14) as late:
            assert not late.held(ready=False)
    assert daemon.missing == []


def test_a_waiting_client_learns_of_the_release_without_asking_again(serve: Serve) -> None:
    daemon = serve(required_clients=["a"])
    manager = daemon.endpoints["manager"]
    with RawClient("a", manager, 11) as a, RawClient("b", manager, 12) as b:
        assert b.held(ready=True)
        a.manager.send(request(2, "a", 11, True))
        assert fields(a.manager.recv())[6] == [0]
        about = fields(b.sub.recv().partition(b"\0")[2])
        while about[6] == [1]:  # an answer to a request before
            about = fields(b.sub.recv().partition(b"\0")[2])
        assert about == {1: [2], 2: [b"b"], 3: [12], 6: [0]}


def test_a_raw_subscriber_gets_what_a_portal_has_kept(serve: Serve) -> None:
    daemon = serve(required_clients=["raw"])
    with RawClient("raw", daemon.endpoints["manager"]) as raw, portal(daemon, "nav") as nav:
        for number in range(500):
            nav.publish("nav", f"{number}")
        assert raw.held(ready=False)
        raw.sub.subscribe(b"/nav/CSTR/CSTR/")
        raw.report_ready(True)  # at once behind the subscription, which goes another way
        began = time.monotonic()
        got = []
        while len(got) < 500:
            frame = raw.sub.recv()
            if frame.startswith(b"/nav/"):
                got.append(frame.partition(b"\0")[2])
        assert got == [b"%d\0" % number for number in range(500)]
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "frame", [b"", b"garbage", b"\xff" * 1000, request(2, "a", 5)[:-2], b"\x08\x63\x12\x01a\x18\x05", bytes(70_000)]
)
def test_unreadable_requests_harm_no_client(serve: Serve, frame: bytes) -> None:
    daemon = serve()
    with RawClient("a", daemon.endpoints["manager"]) as a:
        assert a.ask(frame) == b""
        for wrong in (frame, [frame, frame], [b""]):
            a.manager.send_multipart([wrong] if isinstance(wrong, bytes) else wrong)
            assert a.manager.recv() == b""
        receives(a.sub, lambda: a.pub.send(b"/x/CSTR/CSTR/1/a/\0"), b"/x/")
        for head in (b"", b"1/", b"1/a/\0"):
            a.pub.send(
                b"/goby::zeromq::_internal_manager_request/PROTOBUF/goby.zeromq.protobuf.ManagerRequest/" + head + frame
            )
        assert not a.held(ready=False)
        until(lambda: daemon.malformed >= 5)


def test_a_client_cannot_be_ready_for_another_one(serve: Serve) -> None:
    daemon = serve(required_clients=["a"])
    manager = daemon.endpoints["manager"]
    with RawClient("a", manager, 11) as a, RawClient("b", manager, 12) as b:
        b.name, b.pid = "a", 12
        assert b.held(ready=True)
        assert daemon.missing == ["a"]
        a.until_released()


def test_health_is_asked_and_reported(serve: Serve) -> None:
    daemon = serve(required_clients=["a", "dead"], health_interval=0.4)
    with RawClient("a", daemon.endpoints["manager"]) as a:
        health = ProcessHealth(name="a", pid=7)
        health.main.name, health.main.state = "main", 2
        a.sub.subscribe(b"/goby::health::")
        states: dict[str, int] = {}
        while states != {"a": 2, "dead": 3, "gobyd": 1}:  # the first report may have come before the first answer
            head, _, payload = a.sub.recv().partition(b"\0")
            if head.startswith(b"/goby::health::request/PROTOBUF/goby.middleware.protobuf.HealthRequest/"):
                assert HealthRequest.FromString(payload) == HealthRequest()
                a.pub.send(
                    b"/goby::health::response/PROTOBUF/goby.middleware.protobuf.ProcessHealth/7/a/\0"
                    + health.SerializeToString()
                )
            elif head.startswith(b"/goby::health::report/PROTOBUF/goby.middleware.protobuf.VehicleHealth/"):
                report = VehicleHealth.FromString(payload)
                states = {process.name: process.main.state for process in report.process}
        assert report.state == 3
        assert report.platform == "default_goby_platform"
        [dead] = [process for process in report.process if process.name == "dead"]
        assert dead.main.error == 1
        assert abs(report.time / 1e6 - time.time()) < 60


def test_a_terminate_request_on_the_bus_ends_an_application(serve: Serve) -> None:
    daemon = serve()
    end = b"/goby::terminate::request/PROTOBUF/goby.middleware.protobuf.TerminateRequest/1/a/\0"
    with RawClient("a", daemon.endpoints["manager"]) as a:
        receives(a.sub, lambda: a.pub.send(b"/x/CSTR/CSTR/1/a/\0"), b"/x/")
        a.sub.subscribe(b"/goby::terminate::response/")
        for wrong in (b"", b"garbage", b"\x0a\x05other", b"\x10\x01", b"\x0a\x01\xff"):
            a.pub.send(end + wrong)
        assert not daemon.wait_terminated(0.2)
        frame = receives(a.sub, lambda: a.pub.send(end + b"\x0a\x05gobyd"), b"/goby::terminate::response/")
        assert fields(frame.partition(b"\0")[2]) == {1: [b"gobyd"], 2: [os.getpid()]}
        assert daemon.wait_terminated(10)


def test_high_water_marks_are_those_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "g.cfg").write_text("interprocess { send_queue_size: 7 receive_queue_size: 9 }")
    with Daemon(socket_name=tmp_path / "g", config=tmp_path / "g.cfg") as daemon:
        with RawClient("a", daemon.endpoints["manager"]) as a:
            about = fields(a.reply[4][0])
            assert (about[10], about[11]) == ([7], [9])
        with portal(daemon, "b") as b:
            assert (b._pub.options.send_hwm, b._sub.options.recv_hwm) == (7, 9)


@needs_ipv6
def test_ipv6_is_on(tmp_path: Path) -> None:
    with Daemon(transport="tcp", port=0) as daemon:
        port = int(daemon.endpoints["manager"].rpartition(":")[2])
        at_six = Portal("six", transport="tcp", address="::1", port=port)
        with at_six as six, RawClient("four", f"tcp://127.0.0.1:{port}") as four:
            six.wait_released(10)
            frame = receives(four.sub, lambda: six.publish("x", "y"), b"/x/")
            assert frame.endswith(b"\0y\0")
