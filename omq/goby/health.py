"""Health and termination on a bus, without sockets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Final

from omq.errors import UsageError
from omq.goby.identifier import prefix_of
from omq.goby.protobuf import (
    ERROR__PROCESS_DIED,
    HEALTH__DEGRADED,
    HEALTH__FAILED,
    HEALTH__OK,
    ProcessHealth,
    TerminateRequest,
    TerminateResponse,
    ThreadHealth,
    VehicleHealth,
)
from omq.unpatched import threading

HEALTH_REQUEST: Final = "goby::health::request"
HEALTH_RESPONSE: Final = "goby::health::response"
HEALTH_REPORT: Final = "goby::health::report"
TERMINATE_REQUEST: Final = "goby::terminate::request"
TERMINATE_RESPONSE: Final = "goby::terminate::response"

INTERVAL: Final = 10.0  # seconds between two requests for health
TIMEOUT: Final = 5.0  # seconds that processes have to answer

_PACKAGE: Final = "goby.middleware.protobuf"
REQUESTED_HEALTH: Final = prefix_of(HEALTH_REQUEST, "PROTOBUF", f"{_PACKAGE}.HealthRequest")
ANSWERED_HEALTH: Final = prefix_of(HEALTH_RESPONSE, "PROTOBUF", f"{_PACKAGE}.ProcessHealth")
REQUESTED_END: Final = prefix_of(TERMINATE_REQUEST, "PROTOBUF", f"{_PACKAGE}.TerminateRequest")

STATES: Final = {"ok": HEALTH__OK, "degraded": HEALTH__DEGRADED, "failed": HEALTH__FAILED}


def process_health(name: str, state: str = "ok", message: str | None = None) -> ProcessHealth:
    """Returns the health of this process, as reported by its thread.

    Args:
        name: What it is called on the bus.
        state: `ok`, `degraded` or `failed`.
        message: Why, if it is not well.

    Raises:
        UsageError: There is no such state.
    """
    if state not in STATES:
        raise UsageError(f"state={state!r}: must be one of {', '.join(STATES)}")
    main = ThreadHealth(name=name, thread_id=threading.get_native_id(), state=STATES[state])
    if message:
        main.error_message = message
    return ProcessHealth(name=name, pid=os.getpid(), main=main)


def asked_to_end(request: TerminateRequest, name: str) -> TerminateResponse | None:
    """The answer to a request to end; `None` where another process is meant."""
    named = request.HasField("target_name") and request.target_name == name
    numbered = request.HasField("target_pid") and request.target_pid == os.getpid()
    return TerminateResponse(target_name=name, target_pid=os.getpid()) if named or numbered else None


class HealthPoll:
    """One request for health, and the answers to it.

    Args:
        platform: The vehicle's name.
        expected: The processes that are to answer.
    """

    def __init__(self, platform: str, expected: Iterable[str]) -> None:
        self._platform = platform
        self._expected = tuple(expected)
        self._answers: dict[tuple[str, int], ProcessHealth] = {}

    def answered(self, health: ProcessHealth) -> None:
        """Records the health of a process."""
        if len(self._answers) < 10_000:
            self._answers[health.name, health.pid] = health

    def report(self) -> VehicleHealth:
        """Returns the vehicle's health: that of its worst process. A process that has not answered has died."""
        found = list(self._answers.values())
        names = {health.name for health in found}
        for name in self._expected:
            if name not in names:
                main = ThreadHealth(name=name, state=HEALTH__FAILED, error=ERROR__PROCESS_DIED)
                found.append(ProcessHealth(name=name, main=main))
        worst = max((health.main.state for health in found), default=HEALTH__OK)
        return VehicleHealth(time=time.time_ns() // 1000, platform=self._platform, state=worst, process=found)
