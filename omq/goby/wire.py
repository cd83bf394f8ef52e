"""The sockets of a bus, and the frames between its manager and its clients."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, TypeVar

from omq.errors import UsageError
from omq.goby.errors import Malformed
from omq.goby.identifier import MANAGER_REQUEST, MANAGER_RESPONSE, head_of, prefix_of, shown
from omq.goby.protobuf import (
    PROVIDE_HOLD_STATE,
    PROVIDE_MISSING_CLIENTS,
    PROVIDE_PUB_SUB_SOCKETS,
    InterProcessPortalConfig,
    ManagerRequest,
    ManagerResponse,
    Socket,
)
from omq.goby.scheme import parse_protobuf
from omq.types import MAX_PATH_BYTES

DEFAULT_PLATFORM: Final = "default_goby_platform"
DEFAULT_PORT: Final = 11144
DEFAULT_HWM: Final = 1000  # messages

#: The subscriptions of the manager, and of its clients while they are held.
MANAGER_REQUEST_PREFIX: Final = prefix_of(MANAGER_REQUEST, "PROTOBUF", "goby.zeromq.protobuf.ManagerRequest")
MANAGER_RESPONSE_PREFIX: Final = prefix_of(MANAGER_RESPONSE, "PROTOBUF", "goby.zeromq.protobuf.ManagerResponse")


@dataclass(frozen=True, slots=True)
class Bus:
    """The settings of one bus, as in `InterProcessPortalConfig`.

    Attributes:
        platform: The platform's name.
        transport: `ipc` or `tcp`.
        socket_name: ipc: the prefix of the sockets' paths; `None`: `/tmp/goby_` and the platform.
        address: tcp: the manager's address.
        port: tcp: the manager's port.

    Raises:
        UsageError: An argument is not valid; the text names it.
    """

    platform: str = DEFAULT_PLATFORM
    transport: str = "ipc"
    socket_name: str | None = None
    address: str = "127.0.0.1"
    port: int = DEFAULT_PORT

    def __post_init__(self) -> None:
        if self.transport not in ("ipc", "tcp"):
            raise UsageError(f"transport={self.transport!r}: must be 'ipc' or 'tcp'").about("transport")
        for name in ("platform", "address"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value or "\0" in value:
                raise UsageError(f"{name}={value!r}: must be a non-empty string").about(name)
        if "/" in self.platform:
            reason = "has a /, and is a part of the sockets' paths"
            raise UsageError(f"platform={self.platform!r}: {reason}").about("platform")
        if self.socket_name is not None and (not isinstance(self.socket_name, str) or not self.socket_name):
            raise UsageError(f"socket_name={self.socket_name!r}: must be a path").about("socket_name")
        if self.transport == "ipc" and (size := len(os.fsencode(self.path_prefix)) + len(".manager")) > MAX_PATH_BYTES:
            name, value = self.argument
            reason = f"the path {self.path_prefix}.manager has {size} bytes; at most {MAX_PATH_BYTES} are allowed"
            raise UsageError(f"{name}={value!r}: {reason}").about(name)
        if not isinstance(self.port, int) or isinstance(self.port, bool) or not 0 <= self.port < 65536:
            raise UsageError(f"port={self.port!r}: must be a whole number from 0 to 65535").about("port")

    @property
    def path_prefix(self) -> str:
        """The prefix of the sockets' paths."""
        return self.socket_name or f"/tmp/goby_{self.platform}"

    @property
    def manager_endpoint(self) -> str:
        """The endpoint of the manager, for clients."""
        if self.transport == "ipc":
            return f"ipc://{self.path_prefix}.manager"
        return f"tcp://{bracketed(self.address)}:{self.port}"

    @property
    def argument(self) -> tuple[str, str | int]:
        """The name and the value of the argument that led to the manager's endpoint, for an error."""
        if self.transport == "tcp":
            return "port", self.port
        if self.socket_name is not None:
            return "socket_name", self.socket_name
        return "platform", self.platform


def check_client_name(argument: str, name: object) -> None:
    """Raises `UsageError` for a name that no client can have.

    Args:
        argument: The argument or field that has the name, for the error.
        name: The name.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"{argument}={name!r}: must be a non-empty string").about(argument)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{argument}={name!r}: cannot be encoded in UTF-8: {error.reason}").about(argument) from None


def bus_of(config: InterProcessPortalConfig) -> Bus:
    """Returns the bus of a configuration.

    Raises:
        UsageError: A value is not valid; the text names it.
    """
    transport = "tcp" if config.transport == InterProcessPortalConfig.TCP else "ipc"
    address = config.ip_address if config.HasField("ip_address") else config.ipv4_address
    return Bus(config.platform, transport, config.socket_name or None, address, config.tcp_port)


def bracketed(address: str) -> str:
    """Formats a host for an endpoint: an IPv6 address in brackets."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


@dataclass(frozen=True, slots=True)
class Sockets:
    """The sockets that a client connects to, as the manager has sent them.

    Attributes:
        publish: The endpoint to publish to: the router's XSUB.
        subscribe: The endpoint to subscribe at: the router's XPUB.
        send_hwm: The high-water mark for publications.
        recv_hwm: The high-water mark for received messages.
    """

    publish: str
    subscribe: str
    send_hwm: int
    recv_hwm: int


def sockets_request(name: str, pid: int) -> bytes:
    """Returns a request for the router's sockets."""
    return ManagerRequest(request=PROVIDE_PUB_SUB_SOCKETS, client_name=name, client_pid=pid).SerializeToString()


def missing_request(name: str, pid: int) -> bytes:
    """Returns a request for the missing clients, which only omq's manager reports."""
    return ManagerRequest(request=PROVIDE_MISSING_CLIENTS, client_name=name, client_pid=pid).SerializeToString()


def hold_request(name: str, pid: int, thread: int, ready: bool) -> bytes:
    """Returns the publication that requests the hold's state, and reports whether the client is ready."""
    head = head_of(MANAGER_REQUEST, "PROTOBUF", "goby.zeromq.protobuf.ManagerRequest", pid, thread)
    request = ManagerRequest(request=PROVIDE_HOLD_STATE, client_name=name, client_pid=pid, ready=ready)
    return head + request.SerializeToString()


_ManagerMessage = TypeVar("_ManagerMessage", ManagerRequest, ManagerResponse)


def read_message(kind: type[_ManagerMessage], payload: bytes) -> _ManagerMessage:
    """Parses a message of a client or a manager.

    Raises:
        Malformed: The payload is not a message of this kind, or its client's name is not valid UTF-8.
    """
    message = parse_protobuf(kind, payload)
    try:
        valid = isinstance(message.client_name, str)  # an invalid name is bytes, or raises, depending on the runtime
    except UnicodeDecodeError:
        valid = False
    if not valid:
        raise Malformed("a client's name is not valid UTF-8")
    return message


def read_sockets(payload: bytes, bus: Bus) -> Sockets:
    """Parses the manager's reply with the router's sockets.

    Args:
        payload: The manager's reply.
        bus: The bus. Over tcp the reply has no address: the sockets have the manager's.

    Raises:
        Malformed: The reply does not have valid sockets.
    """
    response = read_message(ManagerResponse, payload)
    if response.request != PROVIDE_PUB_SUB_SOCKETS or not (
        response.HasField("publish_socket") and response.HasField("subscribe_socket")
    ):
        raise Malformed(f"the manager's reply has no sockets: {shown(payload)}")
    publish, subscribe = response.publish_socket, response.subscribe_socket
    return Sockets(
        _endpoint(publish, bus), _endpoint(subscribe, bus), publish.send_queue_size, subscribe.receive_queue_size
    )


def _endpoint(socket: Socket, bus: Bus) -> str:
    if socket.transport == Socket.IPC and socket.socket_name:
        return f"ipc://{socket.socket_name}"
    if socket.transport == Socket.TCP and 0 < socket.ethernet_port < 65536:
        return f"tcp://{bracketed(bus.address)}:{socket.ethernet_port}"
    raise Malformed(f"the manager names a socket that cannot be connected to: {str(socket)!r}")
