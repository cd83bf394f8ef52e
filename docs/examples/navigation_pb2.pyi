from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Navigation(_message.Message):
    __slots__ = ("time", "lat", "lon", "depth", "heading", "speed")
    TIME_FIELD_NUMBER: _ClassVar[int]
    LAT_FIELD_NUMBER: _ClassVar[int]
    LON_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    HEADING_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    time: int
    lat: float
    lon: float
    depth: float
    heading: float
    speed: float
    def __init__(self, time: _Optional[int] = ..., lat: _Optional[float] = ..., lon: _Optional[float] = ..., depth: _Optional[float] = ..., heading: _Optional[float] = ..., speed: _Optional[float] = ...) -> None: ...
