"""The engines' events, for tests of engines."""

from __future__ import annotations

from typing import Any

import pytest

from omq.engine.report import Reporter


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Every event of every socket, as (kind, endpoint, reason)."""
    seen: list[tuple[str, str, str]] = []

    def record(_: Reporter, kind: str, endpoint: str, session: Any, reason: object, details: Any) -> None:
        seen.append((kind, endpoint, str(reason or "")))

    monkeypatch.setattr(Reporter, "emit", record)
    monkeypatch.setattr(Reporter, "is_read", True)
    return seen
