from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Request(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROVIDE_PUB_SUB_SOCKETS: _ClassVar[Request]
    PROVIDE_HOLD_STATE: _ClassVar[Request]
    PROVIDE_MISSING_CLIENTS: _ClassVar[Request]
PROVIDE_PUB_SUB_SOCKETS: Request
PROVIDE_HOLD_STATE: Request
PROVIDE_MISSING_CLIENTS: Request

class InterProcessPortalConfig(_message.Message):
    __slots__ = ("platform", "transport", "socket_name", "ipv4_address", "ip_address", "tcp_port", "send_queue_size", "receive_queue_size", "zeromq_number_io_threads", "manager_timeout_seconds", "client_name")
    class Transport(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        IPC: _ClassVar[InterProcessPortalConfig.Transport]
        TCP: _ClassVar[InterProcessPortalConfig.Transport]
    IPC: InterProcessPortalConfig.Transport
    TCP: InterProcessPortalConfig.Transport
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    SOCKET_NAME_FIELD_NUMBER: _ClassVar[int]
    IPV4_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TCP_PORT_FIELD_NUMBER: _ClassVar[int]
    SEND_QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    ZEROMQ_NUMBER_IO_THREADS_FIELD_NUMBER: _ClassVar[int]
    MANAGER_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    platform: str
    transport: InterProcessPortalConfig.Transport
    socket_name: str
    ipv4_address: str
    ip_address: str
    tcp_port: int
    send_queue_size: int
    receive_queue_size: int
    zeromq_number_io_threads: int
    manager_timeout_seconds: int
    client_name: str
    def __init__(self, platform: _Optional[str] = ..., transport: _Optional[_Union[InterProcessPortalConfig.Transport, str]] = ..., socket_name: _Optional[str] = ..., ipv4_address: _Optional[str] = ..., ip_address: _Optional[str] = ..., tcp_port: _Optional[int] = ..., send_queue_size: _Optional[int] = ..., receive_queue_size: _Optional[int] = ..., zeromq_number_io_threads: _Optional[int] = ..., manager_timeout_seconds: _Optional[int] = ..., client_name: _Optional[str] = ...) -> None: ...

class InterProcessManagerHold(_message.Message):
    __slots__ = ("required_client",)
    REQUIRED_CLIENT_FIELD_NUMBER: _ClassVar[int]
    required_client: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, required_client: _Optional[_Iterable[str]] = ...) -> None: ...

class Socket(_message.Message):
    __slots__ = ("socket_type", "socket_id", "transport", "connect_or_bind", "ethernet_address", "multicast_address", "ethernet_port", "socket_name", "send_queue_size", "receive_queue_size")
    class SocketType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PUBLISH: _ClassVar[Socket.SocketType]
        SUBSCRIBE: _ClassVar[Socket.SocketType]
        REPLY: _ClassVar[Socket.SocketType]
        REQUEST: _ClassVar[Socket.SocketType]
    PUBLISH: Socket.SocketType
    SUBSCRIBE: Socket.SocketType
    REPLY: Socket.SocketType
    REQUEST: Socket.SocketType
    class Transport(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        INPROC: _ClassVar[Socket.Transport]
        IPC: _ClassVar[Socket.Transport]
        TCP: _ClassVar[Socket.Transport]
        PGM: _ClassVar[Socket.Transport]
        EPGM: _ClassVar[Socket.Transport]
    INPROC: Socket.Transport
    IPC: Socket.Transport
    TCP: Socket.Transport
    PGM: Socket.Transport
    EPGM: Socket.Transport
    class ConnectOrBind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CONNECT: _ClassVar[Socket.ConnectOrBind]
        BIND: _ClassVar[Socket.ConnectOrBind]
    CONNECT: Socket.ConnectOrBind
    BIND: Socket.ConnectOrBind
    SOCKET_TYPE_FIELD_NUMBER: _ClassVar[int]
    SOCKET_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    CONNECT_OR_BIND_FIELD_NUMBER: _ClassVar[int]
    ETHERNET_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MULTICAST_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ETHERNET_PORT_FIELD_NUMBER: _ClassVar[int]
    SOCKET_NAME_FIELD_NUMBER: _ClassVar[int]
    SEND_QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    socket_type: Socket.SocketType
    socket_id: int
    transport: Socket.Transport
    connect_or_bind: Socket.ConnectOrBind
    ethernet_address: str
    multicast_address: str
    ethernet_port: int
    socket_name: str
    send_queue_size: int
    receive_queue_size: int
    def __init__(self, socket_type: _Optional[_Union[Socket.SocketType, str]] = ..., socket_id: _Optional[int] = ..., transport: _Optional[_Union[Socket.Transport, str]] = ..., connect_or_bind: _Optional[_Union[Socket.ConnectOrBind, str]] = ..., ethernet_address: _Optional[str] = ..., multicast_address: _Optional[str] = ..., ethernet_port: _Optional[int] = ..., socket_name: _Optional[str] = ..., send_queue_size: _Optional[int] = ..., receive_queue_size: _Optional[int] = ...) -> None: ...

class ManagerRequest(_message.Message):
    __slots__ = ("request", "client_name", "client_pid", "ready")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_PID_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    request: Request
    client_name: str
    client_pid: int
    ready: bool
    def __init__(self, request: _Optional[_Union[Request, str]] = ..., client_name: _Optional[str] = ..., client_pid: _Optional[int] = ..., ready: bool = ...) -> None: ...

class ManagerResponse(_message.Message):
    __slots__ = ("request", "client_name", "client_pid", "publish_socket", "subscribe_socket", "hold", "missing_client")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_PID_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_SOCKET_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_SOCKET_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    MISSING_CLIENT_FIELD_NUMBER: _ClassVar[int]
    request: Request
    client_name: str
    client_pid: int
    publish_socket: Socket
    subscribe_socket: Socket
    hold: bool
    missing_client: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request: _Optional[_Union[Request, str]] = ..., client_name: _Optional[str] = ..., client_pid: _Optional[int] = ..., publish_socket: _Optional[_Union[Socket, _Mapping]] = ..., subscribe_socket: _Optional[_Union[Socket, _Mapping]] = ..., hold: bool = ..., missing_client: _Optional[_Iterable[str]] = ...) -> None: ...
