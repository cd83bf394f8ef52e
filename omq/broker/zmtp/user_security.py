"""Admission of clients by their credentials and by the number of connections of their user."""

from __future__ import annotations

import inspect
from typing import Any

from omq.broker.core.user_limits import UserLimits
from omq.types import Security


class UserSecurity(Security):
    """Admits the clients that another object admits, unless their user has too many connections.

    It refuses a client before its handshake is finished, so that its connection is closed.

    Args:
        security: The other object.
        limits: The limits and the usage of all users.
    """

    def __init__(self, security: Security, limits: UserLimits) -> None:
        self.name = security.name  # type: ignore[misc]
        self.as_server = security.as_server  # type: ignore[misc]
        self._security = security
        self._limits = limits

    def begin(self, cookies: Any) -> Any:
        return self._security.begin(cookies)

    def judge(self, credentials: tuple[bytes, ...]) -> Any:
        answer = self._security.judge(credentials)
        return (
            self._judge_later(answer, credentials) if inspect.isawaitable(answer) else self._judge(answer, credentials)
        )

    async def _judge_later(self, answer: Any, credentials: tuple[bytes, ...]) -> Any:
        return self._judge(await answer, credentials)

    def _judge(self, answer: Any, credentials: tuple[bytes, ...]) -> Any:
        """Returns the answer of the other object; raises `HandshakeError` if the user has too many connections."""
        if answer is None or answer:
            self._limits.of(self._security.user_of(credentials)).admit()
        return answer

    def user_of(self, credentials: tuple[bytes, ...]) -> str | None:
        return self._security.user_of(credentials)

    def __repr__(self) -> str:
        return repr(self._security)
