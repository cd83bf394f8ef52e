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

HEALTH_INTERVAL_S: Final = 10.0  # between two health requests
HEALTH_TIMEOUT_S: Final = 5.0  # for the answers to a health request
_MAX_ANSWERS: Final = 10_000

_PACKAGE: Final = "goby.middleware.protobuf"
HEALTH_REQUEST_PREFIX: Final = prefix_of(HEALTH_REQUEST, "PROTOBUF", f"{_PACKAGE}.HealthRequest")
HEALTH_RESPONSE_PREFIX: Final = prefix_of(HEALTH_RESPONSE, "PROTOBUF", f"{_PACKAGE}.ProcessHealth")
TERMINATE_REQUEST_PREFIX: Final = prefix_of(TERMINATE_REQUEST, "PROTOBUF", f"{_PACKAGE}.TerminateRequest")

STATES: Final = {"ok": HEALTH__OK, "degraded": HEALTH__DEGRADED, "failed": HEALTH__FAILED}


def process_health(name: str, state: str = "ok", message: str | None = None) -> ProcessHealth:
    """Returns the health of this process, as reported by its thread.

    Args:
        name: Its name on the bus.
        state: `ok`, `degraded` or `failed`.
        message: The reason, if it is not `ok`.

    Raises:
        UsageError: The state is not valid.
    """
    if state not in STATES:
        raise UsageError(f"state={state!r}: must be one of {', '.join(STATES)}")
    main = ThreadHealth(name=name, thread_id=threading.get_native_id(), state=STATES[state])
    if message:
        main.error_message = message
    return ProcessHealth(name=name, pid=os.getpid(), main=main)


def terminate_response(request: TerminateRequest, name: str) -> TerminateResponse | None:
    """Returns the answer to a terminate request; `None` if it names another process."""
    named = request.HasField("target_name") and request.target_name == name
    numbered = request.HasField("target_pid") and request.target_pid == os.getpid()
    return TerminateResponse(target_name=name, target_pid=os.getpid()) if named or numbered else None


class HealthPoll:
    """One health request and its answers.

    Args:
        platform: The vehicle's name.
        expected: The names of the processes that must answer.
    """

    def __init__(self, platform: str, expected: Iterable[str]) -> None:
        self._platform = platform
        self._expected = tuple(expected)
        self._answers: dict[tuple[str, int], ProcessHealth] = {}

    def record(self, health: ProcessHealth) -> None:
        """Records the health of a process."""
        if len(self._answers) < _MAX_ANSWERS:
            self._answers[health.name, health.pid] = health

    def report(self) -> VehicleHealth:
        """Returns the vehicle's health: the worst of its processes. An expected one without an answer has died."""
        answers = list(self._answers.values())
        names = {health.name for health in answers}
        for name in self._expected:
            if name not in names:
                main = ThreadHealth(name=name, state=HEALTH__FAILED, error=ERROR__PROCESS_DIED)
                answers.append(ProcessHealth(name=name, main=main))
        worst = max((health.main.state for health in answers), default=HEALTH__OK)
        return VehicleHealth(time=time.time_ns() // 1000, platform=self._platform, state=worst, process=answers)
