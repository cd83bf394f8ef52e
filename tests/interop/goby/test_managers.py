"""omq's portals on a bus whose manager and router are bytes and libzmq's proxy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq

import omq
import omq.asyncio.goby as twin
from omq.goby import Portal
from omq.goby.protobuf import ManagerRequest
from tests.interop.goby.libzmq_bus import Raw, RawClient, RawManager, fields
from tests.support.ports import held
from tests.support.waits import until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["ipc", "tcp"])
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Makes managers, one after the other, at one place; returns each with the options by which a portal finds it."""
    with ExitStack() as stack:
        port = stack.enter_context(held())
        base = str(tmp_path / "g") if request.param == "ipc" else None
        bus_options = {"socket_name": base} if base else {"transport": "tcp", "port": port}

        def made(*required: str) -> tuple[RawManager, dict[str, Any]]:
            return stack.enter_context(RawManager(base, required, port)), bus_options

        yield made


def test_a_portal_lives_with_gobys_own(bus: Any) -> None:
    manager, bus_options = bus("a", "b")
    with Portal("a", **bus_options) as a, Portal("b", **bus_options) as b:
        texts, every = b.subscribe("g", str), a.subscribe_regex()
        for number in range(300):
            a.publish("g", f"{number}")
        b.publish("h", {"x": 1})
        a.ready()
        with pytest.raises(omq.Timeout):
            b.wait_released(0.3)
        began = time.monotonic()
        b.ready()
        assert [texts.recv(timeout=10) for _ in range(300)] == [f"{number}" for number in range(300)]
        assert time.monotonic() - began < 5
        a.wait_released(10)
        got = [every.recv(timeout=10) for _ in range(301)]
        assert sorted(publication.group for publication in got) == ["g"] * 300 + ["h"]
        count = len(manager.requests)
        time.sleep(0.3)
        assert len(manager.requests) == count, "there is a request after the release"


def test_the_twin_lives_with_gobys_own(bus: Any) -> None:
    _, bus_options = bus("a", "b")

    async def main() -> None:
        async with twin.Portal("a", **bus_options) as a, twin.Portal("b", **bus_options) as b:
            texts = b.subscribe("g", str)
            for number in range(300):
                await a.publish("g", f"{number}")
            a.ready()
            await b.ready()
            assert [await texts.recv(timeout=10) for _ in range(300)] == [f"{number}" for number in range(300)]
            await a.wait_released(10)

    asyncio.run(main())


def test_a_portal_takes_only_its_own_answer(tmp_path: Path) -> None:
    with ExitStack() as stack:
        manager = stack.enter_context(RawManager(str(tmp_path / "g"), ("a", "never")))
        a = stack.enter_context(Portal("a", socket_name=tmp_path / "g"))
        b = stack.enter_context(RawClient("b", manager.endpoint))
        a.ready()
        until(lambda: manager.ready == {"a"})
        head = b"/goby::zeromq::_internal_manager_response/PROTOBUF/goby.zeromq.protobuf.ManagerResponse/1/0/\0"
        for name, pid in (("a", 1), ("b", a._pid)):
            response = ManagerRequest(request=2, client_name=name, client_pid=pid).SerializeToString() + b"\x30\0"
            for _ in range(5):
                b.pub.send(head + response)
        b.pub.send(head + b"garbage")
        with pytest.raises(omq.Timeout):
            a.wait_released(0.5)
        until(lambda: a.malformed == 1)


def test_a_manager_that_never_answers_is_named(bus: Any) -> None:
    manager, bus_options = bus()
    manager.answering = False
    option = "socket_name" if "socket_name" in bus_options else "port"
    with pytest.raises(omq.ConnectError, match=option) as caught:
        Portal("a", manager_timeout=0.3, **bus_options)
    assert manager.endpoint in str(caught.value)

    async def main() -> None:
        with pytest.raises(omq.ConnectError, match=option):
            async with twin.Portal("a", manager_timeout=0.3, **bus_options):
                pass

    asyncio.run(main())


def test_an_error_names_the_place_without_a_manager(tmp_path: Path, free_port: int) -> None:
    for bus_options, named in (
        ({"socket_name": tmp_path / "none"}, "none"),
        ({"transport": "tcp", "port": free_port}, str(free_port)),
        ({"transport": "tcp", "port": free_port, "address": "::1"}, str(free_port)),
    ):
        with pytest.raises(omq.ConnectError, match=named):
            Portal("a", manager_timeout=0.2, **bus_options)  # type: ignore[arg-type]


@pytest.mark.parametrize("reply", [[b""], [b"garbage"], [b"\x08\x01\x12\x01a\x18\x05"], [b"a", b"b"]])
def test_what_answers_and_is_no_manager_is_named(tmp_path: Path, reply: list[bytes]) -> None:
    with Raw() as raw:
        rep = raw.open(zmq.REP, bind=f"ipc://{tmp_path}/g.manager")
        answering = threading.Thread(target=lambda: (rep.recv(), rep.send_multipart(reply)), daemon=True)
        answering.start()
        with pytest.raises(omq.ConnectError, match="is not a manager"):
            Portal("a", socket_name=tmp_path / "g", manager_timeout=5)
        answering.join(5)


def test_high_water_marks_are_the_managers(tmp_path: Path) -> None:
    with RawManager(str(tmp_path / "g")) as manager:
        manager._sockets = tuple(one.replace(b"\xe8\x07", b"\x91\x03") for one in manager._sockets)  # type: ignore[assignment]
        with Portal("a", socket_name=tmp_path / "g") as a:
            assert (a._pub.options.send_hwm, a._sub.options.recv_hwm) == (401, 401)


def test_a_subscription_stands_once_and_goes_with_the_last_handler(tmp_path: Path) -> None:
    with Raw() as raw:
        # A router of one's own shows what is subscribed.
        xpub = raw.open(zmq.XPUB, bind=f"ipc://{tmp_path}/g.xpub", xpub_verboser=1)
        xsub = raw.open(zmq.XSUB, bind=f"ipc://{tmp_path}/g.xsub")
        rep = raw.open(zmq.REP, bind=f"ipc://{tmp_path}/g.manager")
        seen: list[bytes] = []
        stop = threading.Event()

        def serve() -> None:
            from tests.interop.goby.libzmq_bus import REQUESTS, RESPONSES, response, socket

            sockets = socket(1, f"ipc://{tmp_path}/g.xsub"), socket(2, f"ipc://{tmp_path}/g.xpub")
            xsub.send(b"\x01" + REQUESTS)
            poller = zmq.Poller()
            for one in (xpub, xsub, rep):
                poller.register(one, zmq.POLLIN)
            while not stop.is_set():
                ready = dict(poller.poll(50))
                if rep in ready:
                    asked = fields(rep.recv())
                    rep.send(response(1, asked[2][0].decode(), asked[3][0], *sockets))
                if xpub in ready:
                    frame = xpub.recv()
                    seen.append(frame)
                    xsub.send(frame)
                if xsub in ready:
                    frame = xsub.recv()
                    xpub.send(frame)
                    if frame.startswith(REQUESTS):
                        asked = fields(frame.partition(b"\0")[2])
                        answer = response(2, asked[2][0].decode(), asked[3][0], hold=False)
                        xpub.send(RESPONSES + b"1/0/\0" + answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with Portal("a", socket_name=tmp_path / "g") as a:
                a.wait_released(10)
                first, second = a.subscribe("g", str), a.subscribe("g", str, print)
                one, two = a.subscribe_regex("x"), a.subscribe_regex("y")
                until(lambda: b"\x01/" in seen)
                first.close()
                one.close()
                a.subscribe("mark", str)
                until(lambda: b"\x01/mark/CSTR/CSTR/" in seen)
                assert seen.count(b"\x01/g/CSTR/CSTR/") == 1
                assert seen.count(b"\x01/") == 1
                assert b"\0/g/CSTR/CSTR/" not in seen
                assert b"\0/" not in seen
                second.close()
                two.close()
                until(lambda: b"\0/g/CSTR/CSTR/" in seen and b"\0/" in seen)
                a.unsubscribe("mark", str)
                until(lambda: b"\0/mark/CSTR/CSTR/" in seen)
                internal = b"/goby::zeromq::_internal_manager_response/PROTOBUF/goby.zeromq.protobuf.ManagerResponse/"
                until(lambda: b"\x01" + internal in seen and b"\0" + internal in seen)
        finally:
            stop.set()
            thread.join(10)


def test_a_manager_that_is_started_again_is_found(bus: Any) -> None:
    manager, bus_options = bus()
    with Portal("a", **bus_options) as a, Portal("b", **bus_options) as b:
        texts = b.subscribe("g", str)
        a.wait_released(10)
        b.wait_released(10)
        a.publish("g", "before")
        assert texts.recv(timeout=10) == "before"
        manager.close()
        until(lambda: not a.released and not b.released)
        for number in range(100):
            a.publish("g", f"{number}")
        bus()
        assert [texts.recv(timeout=10) for _ in range(100)] == [f"{number}" for number in range(100)]
