"""The manager's mind, without sockets or a clock of its own."""

from __future__ import annotations

import itertools
import logging

import pytest

from omq.goby.manager import CLIENT_IDLE_TIMEOUT_S, Hold, Manager
from omq.goby.protobuf import ManagerRequest, ManagerResponse, Socket
from omq.goby.wire import MANAGER_RESPONSE_PREFIX, hold_request

PUBLISH = Socket(socket_type=Socket.PUBLISH, transport=Socket.IPC, socket_name="/p")
SUBSCRIBE = Socket(socket_type=Socket.SUBSCRIBE, transport=Socket.IPC, socket_name="/s")


def manager(*required: str) -> Manager:
    """A manager that is ready itself."""
    made = Manager("gobyd", 1, required, PUBLISH, SUBSCRIBE)
    made.set_ready()
    return made


def asked(
    manager: Manager, kind: int, name: str, pid: int = 5, ready: bool = False, now: float = 0.0
) -> ManagerResponse:
    request = ManagerRequest(request=kind, client_name=name, client_pid=pid, ready=ready)  # type: ignore[arg-type]
    return ManagerResponse.FromString(manager.answer(request.SerializeToString(), now))


def sockets_of(frames: list[bytes]) -> set[tuple[str, int, bool]]:
    responses = [ManagerResponse.FromString(frame.partition(b"\0")[2]) for frame in frames]
    assert all(frame.startswith(MANAGER_RESPONSE_PREFIX) for frame in frames)
    return {(response.client_name, response.client_pid, response.hold) for response in responses}


def test_sockets_are_sent_and_the_hold_is_not() -> None:
    response = asked(manager(), 1, "a", 4242)
    assert (response.client_name, response.client_pid) == ("a", 4242)
    assert (response.publish_socket, response.subscribe_socket) == (PUBLISH, SUBSCRIBE)
    assert not response.HasField("hold")


def test_with_none_required_the_first_answer_is_false() -> None:
    assert asked(manager(), 2, "anybody").hold is False


def test_the_manager_itself_is_waited_for() -> None:
    held = Manager("gobyd", 1, [], PUBLISH, SUBSCRIBE)
    assert asked(held, 2, "anybody").hold is True
    assert held.hold.missing(0) == ["gobyd"]
    held.set_ready()
    assert asked(held, 2, "anybody", now=100.0).hold is False, "it need not report itself again"


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_all_that_are_required_are_waited_for(order: tuple[str, ...]) -> None:
    held = manager("a", "b", "c")
    for name in order[:-1]:
        assert asked(held, 2, name, ready=True).hold is True
    assert held.hold.missing(0) == [order[-1]]
    assert asked(held, 2, order[-1], ready=False).hold is True, "ready must be true"
    assert asked(held, 2, "stranger", ready=True).hold is True, "only required names are recorded"
    assert asked(held, 2, order[-1], ready=True).hold is False
    assert asked(held, 2, "late", now=1000.0).hold is False, "a late joiner goes at once"


def test_a_silent_client_is_no_longer_ready() -> None:
    held = manager("a", "b")
    asked(held, 2, "a", ready=True, now=0.0)
    assert held.hold.missing(CLIENT_IDLE_TIMEOUT_S) == ["b"]
    assert held.hold.missing(CLIENT_IDLE_TIMEOUT_S + 0.1) == ["a", "b"]
    assert asked(held, 2, "b", ready=True, now=2.0).hold is True
    assert asked(held, 2, "a", ready=False, now=2.5).hold is True
    assert asked(held, 2, "a", ready=True, now=2.6).hold is False


def test_once_released_it_stays_so() -> None:
    held = manager("a")
    assert asked(held, 2, "a", ready=True, now=0.0).hold is False
    assert asked(held, 2, "a", ready=False, now=99.0).hold is False
    asked(held, 1, "a", 6, now=100.0)
    assert held.hold.missing(101.0) == []


def test_a_client_that_comes_again_is_not_ready_yet() -> None:
    held = manager("a", "b")
    asked(held, 1, "a", 5)
    asked(held, 2, "a", 5, ready=True)
    assert held.hold.missing(0) == ["b"]
    asked(held, 1, "a", 6)
    assert held.hold.missing(0) == ["a", "b"]


def test_a_client_cannot_answer_for_another_process(caplog: pytest.LogCaptureFixture) -> None:
    held = manager("a")
    asked(held, 1, "a", 5)
    response = asked(held, 2, "a", 6, ready=True)
    assert response.hold is True
    assert (response.client_name, response.client_pid) == ("a", 6), "the answer is for who asked"
    assert held.refused == 1
    assert "process 6 has the name 'a' of another process" in caplog.text
    assert asked(held, 2, "a", 5, ready=True).hold is False


def test_a_client_cannot_answer_for_the_manager() -> None:
    held = Manager("gobyd", 1, [], PUBLISH, SUBSCRIBE)
    asked(held, 1, "gobyd", 77)
    assert asked(held, 2, "gobyd", 77, ready=True).hold is True


def test_waiting_clients_learn_of_the_release_at_once() -> None:
    held = manager("a", "b")
    for pid, name in enumerate(["a", "c", "c"], 10):
        answer = held.handle(hold_request(name, pid, 0, name == "a"), 0.0)
        assert answer is not None
        assert sockets_of([answer]) == {(name, pid, True)}
    assert held.tick(0.1) == []
    answer = held.handle(hold_request("b", 20, 0, True), 0.2)
    assert answer is not None
    assert sockets_of([answer]) == {("b", 20, False)}
    assert sockets_of(held.tick(0.2)) == {("a", 10, False), ("c", 11, False), ("c", 12, False)}
    assert held.tick(0.3) == []


@pytest.mark.parametrize(
    "request_", [b"", b"garbage", b"\x08\x02", b"\x08\x63\x12\x01a\x18\x05", bytes.fromhex("08021201ff1805")]
)
def test_a_request_that_cannot_be_read_is_counted(request_: bytes, caplog: pytest.LogCaptureFixture) -> None:
    held = manager("a")
    assert held.answer(request_, 10.0) == b""
    assert held.handle(b"/x/\0" + request_, 10.0) is None
    assert held.handle(b"no NUL", 10.0) is None
    assert held.malformed == 3
    assert len(caplog.records) == 1, "the log is not flooded"
    assert asked(held, 2, "a", ready=True, now=10.0).hold is False


def test_the_log_names_the_missing_clients(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    held = manager("a", "b")
    held.tick(0.0)
    held.tick(0.1)
    asked(held, 2, "a", ready=True, now=0.2)
    held.tick(0.2)
    asked(held, 2, "b", ready=True, now=0.3)
    held.tick(0.3)
    assert [record.message for record in caplog.records] == [
        "hold: waiting for a, b",
        "hold: waiting for b",
        "hold: released",
    ]


def test_the_manager_names_missing_clients_on_request() -> None:
    held = manager("a", "b")
    asked(held, 2, "b", ready=True)
    assert list(asked(held, 1000, "me").missing_client) == ["a"]
    asked(held, 2, "a", ready=True)
    assert list(asked(held, 1000, "me").missing_client) == []


def test_required_names_are_taken_once() -> None:
    assert Hold(["a", "b", "a"]).required == ("a", "b")
    assert Hold([]).released


def test_a_process_that_is_silent_no_longer_speaks_for_its_name() -> None:
    """A second process has used the name for a moment: the first one, which is still there, is served again."""
    hold = Hold(["nav", "log"])
    hold.register("nav", 1, 0.0)
    assert hold.record("nav", 1, True, 0.1)
    hold.register("nav", 2, 0.2)
    assert not hold.record("nav", 1, True, 0.3), "the other one may live"
    assert hold.missing(0.4) == ["nav", "log"]
    assert hold.record("nav", 2, False, 0.9)
    assert not hold.record("nav", 1, True, 1.8), "it lives"
    assert hold.record("nav", 1, True, 2.0)
    assert hold.missing(2.0) == ["log"]
    assert not hold.record("nav", 2, True, 2.1), "now it is the first one's"


def test_a_client_does_not_inherit_readiness_with_a_name() -> None:
    hold = Hold(["nav"])
    hold.register("nav", 1, 0.0)
    hold.register("nav", 2, 0.1)
    assert hold.record("nav", 2, True, 0.2)
    assert hold.record("nav", 1, False, 2.2)
    assert hold.missing(2.2) == ["nav"]
