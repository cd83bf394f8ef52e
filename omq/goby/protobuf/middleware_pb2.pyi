from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HealthState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEALTH__OK: _ClassVar[HealthState]
    HEALTH__DEGRADED: _ClassVar[HealthState]
    HEALTH__FAILED: _ClassVar[HealthState]

class Error(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR__PROCESS_DIED: _ClassVar[Error]
    ERROR__THREAD_NOT_RESPONDING: _ClassVar[Error]
HEALTH__OK: HealthState
HEALTH__DEGRADED: HealthState
HEALTH__FAILED: HealthState
ERROR__PROCESS_DIED: Error
ERROR__THREAD_NOT_RESPONDING: Error

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ThreadHealth(_message.Message):
    __slots__ = ("name", "thread_id", "thread_id_apple", "uid", "state", "child", "error", "error_message")
    NAME_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_APPLE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHILD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    thread_id: int
    thread_id_apple: int
    uid: int
    state: HealthState
    child: _containers.RepeatedCompositeFieldContainer[ThreadHealth]
    error: Error
    error_message: str
    def __init__(self, name: _Optional[str] = ..., thread_id: _Optional[int] = ..., thread_id_apple: _Optional[int] = ..., uid: _Optional[int] = ..., state: _Optional[_Union[HealthState, str]] = ..., child: _Optional[_Iterable[_Union[ThreadHealth, _Mapping]]] = ..., error: _Optional[_Union[Error, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class ProcessHealth(_message.Message):
    __slots__ = ("name", "pid", "main")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MAIN_FIELD_NUMBER: _ClassVar[int]
    name: str
    pid: int
    main: ThreadHealth
    def __init__(self, name: _Optional[str] = ..., pid: _Optional[int] = ..., main: _Optional[_Union[ThreadHealth, _Mapping]] = ...) -> None: ...

class VehicleHealth(_message.Message):
    __slots__ = ("time", "platform", "state", "process")
    TIME_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    time: int
    platform: str
    state: HealthState
    process: _containers.RepeatedCompositeFieldContainer[ProcessHealth]
    def __init__(self, time: _Optional[int] = ..., platform: _Optional[str] = ..., state: _Optional[_Union[HealthState, str]] = ..., process: _Optional[_Iterable[_Union[ProcessHealth, _Mapping]]] = ...) -> None: ...

class TerminateRequest(_message.Message):
    __slots__ = ("target_name", "target_pid")
    TARGET_NAME_FIELD_NUMBER: _ClassVar[int]
    TARGET_PID_FIELD_NUMBER: _ClassVar[int]
    target_name: str
    target_pid: int
    def __init__(self, target_name: _Optional[str] = ..., target_pid: _Optional[int] = ...) -> None: ...

class TerminateResponse(_message.Message):
    __slots__ = ("target_name", "target_pid")
    TARGET_NAME_FIELD_NUMBER: _ClassVar[int]
    TARGET_PID_FIELD_NUMBER: _ClassVar[int]
    target_name: str
    target_pid: int
    def __init__(self, target_name: _Optional[str] = ..., target_pid: _Optional[int] = ...) -> None: ...

class TerminateResult(_message.Message):
    __slots__ = ("target_name", "target_pid", "result")
    class Result(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PROCESS_RESPONDED: _ClassVar[TerminateResult.Result]
        PROCESS_CLEANLY_QUIT: _ClassVar[TerminateResult.Result]
        TIMEOUT_RESPONSE: _ClassVar[TerminateResult.Result]
        TIMEOUT_RUNNING: _ClassVar[TerminateResult.Result]
    PROCESS_RESPONDED: TerminateResult.Result
    PROCESS_CLEANLY_QUIT: TerminateResult.Result
    TIMEOUT_RESPONSE: TerminateResult.Result
    TIMEOUT_RUNNING: TerminateResult.Result
    TARGET_NAME_FIELD_NUMBER: _ClassVar[int]
    TARGET_PID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    target_name: str
    target_pid: int
    result: TerminateResult.Result
    def __init__(self, target_name: _Optional[str] = ..., target_pid: _Optional[int] = ..., result: _Optional[_Union[TerminateResult.Result, str]] = ...) -> None: ...
