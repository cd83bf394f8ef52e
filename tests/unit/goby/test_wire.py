"""Frames of the manager and of its clients, and where their sockets are."""

from __future__ import annotations

import pytest

from omq.errors import UsageError
from omq.goby import Malformed
from omq.goby.protobuf import InterProcessPortalConfig, ManagerRequest, ManagerResponse, Socket
from omq.goby.router import socket_message
from omq.goby.wire import Bus, Sockets, bus_of, hold_request, read_sockets, sockets_request

#: What a live manager has answered over tcp to `pyprobe`, process 4242.
LIVE = bytes.fromhex(
    "08011207707970726f6265189221221008011803200138d3d10250e80758e8072a1008021803200138cfda0250e80758e807"
)


def test_a_live_reply_is_read_and_made_exactly() -> None:
    response = ManagerResponse.FromString(LIVE)
    assert (response.request, response.client_name, response.client_pid) == (1, "pyprobe", 4242)
    assert response.hold, "unset is true"
    assert not response.HasField("hold")
    config = InterProcessPortalConfig()
    made = ManagerResponse(request=1, client_name="pyprobe", client_pid=4242)
    made.publish_socket.CopyFrom(socket_message(Socket.PUBLISH, "tcp://[::]:43219", config))
    made.subscribe_socket.CopyFrom(socket_message(Socket.SUBSCRIBE, "tcp://[::]:44367", config))
    assert made.SerializeToString() == LIVE


def test_a_client_takes_the_managers_address() -> None:
    assert read_sockets(LIVE, Bus(transport="tcp")) == Sockets(
        "tcp://127.0.0.1:43219", "tcp://127.0.0.1:44367", 1000, 1000
    )
    assert read_sockets(LIVE, Bus(transport="tcp", address="::1")).publish == "tcp://[::1]:43219"
    assert read_sockets(LIVE, Bus(transport="tcp", address="[::1]")).subscribe == "tcp://[::1]:44367"


def test_requests_are_bytes_of_the_definition() -> None:
    assert sockets_request("pyprobe", 4242) == bytes.fromhex("08011207707970726f6265189221")
    head, _, payload = hold_request("pyprobe", 4242, 0xAB, True).partition(b"\0")
    assert head == b"/goby::zeromq::_internal_manager_request/PROTOBUF/goby.zeromq.protobuf.ManagerRequest/4242/ab/"
    assert payload == bytes.fromhex("08021207707970726f62651892212001")


@pytest.mark.parametrize(
    "reply",
    [
        *(b"", b"garbage", sockets_request("pyprobe", 4242)),
        ManagerResponse(request=2, client_name="a", client_pid=1, hold=False).SerializeToString(),
    ],
)
def test_what_is_no_reply_is_malformed(reply: bytes) -> None:
    with pytest.raises(Malformed):
        read_sockets(reply, Bus())


@pytest.mark.parametrize("transport", [Socket.INPROC, Socket.PGM, Socket.EPGM, None])
def test_only_ipc_and_tcp_are_taken(transport: int | None) -> None:
    response = ManagerResponse.FromString(LIVE)
    if transport is None:
        response.publish_socket.ClearField("transport")
    else:
        response.publish_socket.transport = transport  # type: ignore[assignment]
    with pytest.raises(Malformed, match="cannot be connected"):
        read_sockets(response.SerializeToString(), Bus(transport="tcp"))


def test_the_defaults_are_those_of_the_definition() -> None:
    bus = bus_of(InterProcessPortalConfig())
    assert bus == Bus("default_goby_platform", "ipc", None, "127.0.0.1", 11144)
    assert bus.manager_endpoint == "ipc:///tmp/goby_default_goby_platform.manager"
    assert Bus(platform="auv").path_prefix == "/tmp/goby_auv"
    assert Bus(socket_name="/x/y").manager_endpoint == "ipc:///x/y.manager"
    assert Bus(transport="tcp", address="::1", port=5).manager_endpoint == "tcp://[::1]:5"
    assert bus_of(InterProcessPortalConfig(ip_address="::1")).address == "::1"
    assert bus_of(InterProcessPortalConfig(ipv4_address="10.0.0.1")).address == "10.0.0.1"
    config = InterProcessPortalConfig()
    assert (config.send_queue_size, config.receive_queue_size, config.manager_timeout_seconds) == (1000, 1000, 5)
    assert Socket(socket_type=1).transport == Socket.EPGM
    assert ManagerRequest(request=1, client_name="a", client_pid=1).ready is False


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"transport": "pgm"}, "transport"),
        ({"platform": ""}, "platform"),
        ({"platform": "a/b"}, "platform"),
        ({"socket_name": ""}, "socket_name"),
        ({"socket_name": "/" + "x" * 200}, "socket_name"),
        ({"platform": "x" * 200}, "platform"),
        ({"port": 65536}, "port"),
        ({"port": -1}, "port"),
        ({"port": True}, "port"),
        ({"address": ""}, "address"),
    ],
)
def test_what_does_not_fit_is_named(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=f"^{named}="):
        Bus(**arguments)  # type: ignore[arg-type]
