from omq.goby.protobuf import interprocess_pb2 as _interprocess_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GobyDaemonConfig(_message.Message):
    __slots__ = ("app", "router_threads", "interprocess", "hold")
    class App(_message.Message):
        __slots__ = ("name", "binary", "glog_config", "simulation", "geodesy", "health_cfg", "debug_cfg")
        class GLogConfig(_message.Message):
            __slots__ = ("tty_verbosity", "show_gui", "file_log", "show_dccl_log")
            class Verbosity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
                __slots__ = ()
                QUIET: _ClassVar[GobyDaemonConfig.App.GLogConfig.Verbosity]
                WARN: _ClassVar[GobyDaemonConfig.App.GLogConfig.Verbosity]
                VERBOSE: _ClassVar[GobyDaemonConfig.App.GLogConfig.Verbosity]
                DEBUG1: _ClassVar[GobyDaemonConfig.App.GLogConfig.Verbosity]
                DEBUG2: _ClassVar[GobyDaemonConfig.App.GLogConfig.Verbosity]
                DEBUG3: _ClassVar[GobyDaemonConfig.App.GLogConfig.Verbosity]
            QUIET: GobyDaemonConfig.App.GLogConfig.Verbosity
            WARN: GobyDaemonConfig.App.GLogConfig.Verbosity
            VERBOSE: GobyDaemonConfig.App.GLogConfig.Verbosity
            DEBUG1: GobyDaemonConfig.App.GLogConfig.Verbosity
            DEBUG2: GobyDaemonConfig.App.GLogConfig.Verbosity
            DEBUG3: GobyDaemonConfig.App.GLogConfig.Verbosity
            class FileLog(_message.Message):
                __slots__ = ("file_name", "file_dir", "verbosity", "log_rotate_sec", "omit")
                class Omit(_message.Message):
                    __slots__ = ("file_timestamp", "latest_symlink")
                    FILE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
                    LATEST_SYMLINK_FIELD_NUMBER: _ClassVar[int]
                    file_timestamp: bool
                    latest_symlink: bool
                    def __init__(self, file_timestamp: bool = ..., latest_symlink: bool = ...) -> None: ...
                FILE_NAME_FIELD_NUMBER: _ClassVar[int]
                FILE_DIR_FIELD_NUMBER: _ClassVar[int]
                VERBOSITY_FIELD_NUMBER: _ClassVar[int]
                LOG_ROTATE_SEC_FIELD_NUMBER: _ClassVar[int]
                OMIT_FIELD_NUMBER: _ClassVar[int]
                file_name: str
                file_dir: str
                verbosity: GobyDaemonConfig.App.GLogConfig.Verbosity
                log_rotate_sec: int
                omit: GobyDaemonConfig.App.GLogConfig.FileLog.Omit
                def __init__(self, file_name: _Optional[str] = ..., file_dir: _Optional[str] = ..., verbosity: _Optional[_Union[GobyDaemonConfig.App.GLogConfig.Verbosity, str]] = ..., log_rotate_sec: _Optional[int] = ..., omit: _Optional[_Union[GobyDaemonConfig.App.GLogConfig.FileLog.Omit, _Mapping]] = ...) -> None: ...
            TTY_VERBOSITY_FIELD_NUMBER: _ClassVar[int]
            SHOW_GUI_FIELD_NUMBER: _ClassVar[int]
            FILE_LOG_FIELD_NUMBER: _ClassVar[int]
            SHOW_DCCL_LOG_FIELD_NUMBER: _ClassVar[int]
            tty_verbosity: GobyDaemonConfig.App.GLogConfig.Verbosity
            show_gui: bool
            file_log: GobyDaemonConfig.App.GLogConfig.FileLog
            show_dccl_log: bool
            def __init__(self, tty_verbosity: _Optional[_Union[GobyDaemonConfig.App.GLogConfig.Verbosity, str]] = ..., show_gui: bool = ..., file_log: _Optional[_Union[GobyDaemonConfig.App.GLogConfig.FileLog, _Mapping]] = ..., show_dccl_log: bool = ...) -> None: ...
        class SimulatorSettings(_message.Message):
            __slots__ = ("time",)
            class Time(_message.Message):
                __slots__ = ("use_sim_time", "warp_factor", "reference_microtime")
                USE_SIM_TIME_FIELD_NUMBER: _ClassVar[int]
                WARP_FACTOR_FIELD_NUMBER: _ClassVar[int]
                REFERENCE_MICROTIME_FIELD_NUMBER: _ClassVar[int]
                use_sim_time: bool
                warp_factor: int
                reference_microtime: int
                def __init__(self, use_sim_time: bool = ..., warp_factor: _Optional[int] = ..., reference_microtime: _Optional[int] = ...) -> None: ...
            TIME_FIELD_NUMBER: _ClassVar[int]
            time: GobyDaemonConfig.App.SimulatorSettings.Time
            def __init__(self, time: _Optional[_Union[GobyDaemonConfig.App.SimulatorSettings.Time, _Mapping]] = ...) -> None: ...
        class Geodesy(_message.Message):
            __slots__ = ("lat_origin", "lon_origin")
            LAT_ORIGIN_FIELD_NUMBER: _ClassVar[int]
            LON_ORIGIN_FIELD_NUMBER: _ClassVar[int]
            lat_origin: float
            lon_origin: float
            def __init__(self, lat_origin: _Optional[float] = ..., lon_origin: _Optional[float] = ...) -> None: ...
        class Health(_message.Message):
            __slots__ = ("run_health_monitor_thread",)
            RUN_HEALTH_MONITOR_THREAD_FIELD_NUMBER: _ClassVar[int]
            run_health_monitor_thread: bool
            def __init__(self, run_health_monitor_thread: bool = ...) -> None: ...
        NAME_FIELD_NUMBER: _ClassVar[int]
        BINARY_FIELD_NUMBER: _ClassVar[int]
        GLOG_CONFIG_FIELD_NUMBER: _ClassVar[int]
        SIMULATION_FIELD_NUMBER: _ClassVar[int]
        GEODESY_FIELD_NUMBER: _ClassVar[int]
        HEALTH_CFG_FIELD_NUMBER: _ClassVar[int]
        DEBUG_CFG_FIELD_NUMBER: _ClassVar[int]
        name: str
        binary: str
        glog_config: GobyDaemonConfig.App.GLogConfig
        simulation: GobyDaemonConfig.App.SimulatorSettings
        geodesy: GobyDaemonConfig.App.Geodesy
        health_cfg: GobyDaemonConfig.App.Health
        debug_cfg: bool
        def __init__(self, name: _Optional[str] = ..., binary: _Optional[str] = ..., glog_config: _Optional[_Union[GobyDaemonConfig.App.GLogConfig, _Mapping]] = ..., simulation: _Optional[_Union[GobyDaemonConfig.App.SimulatorSettings, _Mapping]] = ..., geodesy: _Optional[_Union[GobyDaemonConfig.App.Geodesy, _Mapping]] = ..., health_cfg: _Optional[_Union[GobyDaemonConfig.App.Health, _Mapping]] = ..., debug_cfg: bool = ...) -> None: ...
    APP_FIELD_NUMBER: _ClassVar[int]
    ROUTER_THREADS_FIELD_NUMBER: _ClassVar[int]
    INTERPROCESS_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    app: GobyDaemonConfig.App
    router_threads: int
    interprocess: _interprocess_pb2.InterProcessPortalConfig
    hold: _interprocess_pb2.InterProcessManagerHold
    def __init__(self, app: _Optional[_Union[GobyDaemonConfig.App, _Mapping]] = ..., router_threads: _Optional[int] = ..., interprocess: _Optional[_Union[_interprocess_pb2.InterProcessPortalConfig, _Mapping]] = ..., hold: _Optional[_Union[_interprocess_pb2.InterProcessManagerHold, _Mapping]] = ...) -> None: ...
