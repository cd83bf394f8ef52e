"""A missing optional package skips its tests and is named, but fails them in CI."""

from __future__ import annotations

import pytest

from tests.support.optional_packages import reason_of


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    error = ModuleNotFoundError("No module named 'lmdb'", name="lmdb")
    assert reason_of(error) == "lmdb is not installed: pip install -e '.[test-all]'"
    collected = Exception("collecting")
    collected.__cause__ = error
    assert reason_of(collected) == reason_of(error)


def test_it_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert reason_of(ModuleNotFoundError("No module named 'lmdb'", name="lmdb")) == ""


def test_other_errors_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert reason_of(ModuleNotFoundError("No module named 'omq.gone'", name="omq.gone")) == ""
    assert reason_of(ValueError("wrong")) == ""
