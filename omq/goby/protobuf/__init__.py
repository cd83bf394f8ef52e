"""The messages of Goby 3 for its manager, its health and its termination, with their names and numbers."""

from omq.goby.protobuf.gobyd_pb2 import GobyDaemonConfig
from omq.goby.protobuf.interprocess_pb2 import (
    PROVIDE_HOLD_STATE,
    PROVIDE_MISSING_CLIENTS,
    PROVIDE_PUB_SUB_SOCKETS,
    InterProcessManagerHold,
    InterProcessPortalConfig,
    ManagerRequest,
    ManagerResponse,
    Socket,
)
from omq.goby.protobuf.middleware_pb2 import (
    ERROR__PROCESS_DIED,
    ERROR__THREAD_NOT_RESPONDING,
    HEALTH__DEGRADED,
    HEALTH__FAILED,
    HEALTH__OK,
    HealthRequest,
    ProcessHealth,
    TerminateRequest,
    TerminateResponse,
    TerminateResult,
    ThreadHealth,
    VehicleHealth,
)

__all__ = [
    "ERROR__PROCESS_DIED",
    "ERROR__THREAD_NOT_RESPONDING",
    "HEALTH__DEGRADED",
    "HEALTH__FAILED",
    "HEALTH__OK",
    "PROVIDE_HOLD_STATE",
    "PROVIDE_MISSING_CLIENTS",
    "PROVIDE_PUB_SUB_SOCKETS",
    "GobyDaemonConfig",
    "HealthRequest",
    "InterProcessManagerHold",
    "InterProcessPortalConfig",
    "ManagerRequest",
    "ManagerResponse",
    "ProcessHealth",
    "Socket",
    "TerminateRequest",
    "TerminateResponse",
    "TerminateResult",
    "ThreadHealth",
    "VehicleHealth",
]
