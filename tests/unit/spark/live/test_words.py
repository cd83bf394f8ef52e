"""Warnings of a process whose standard error leads nowhere any more."""

import io
import logging

import pytest

pytest.importorskip("pyarrow", reason="!! omq.spark IS NOT TESTED: pip install 'omq-zmtp[spark]'")

from omq.spark.live import owner


class Broken(io.StringIO):
    """The pipe of a driver that has died."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(text)


@pytest.mark.parametrize("closed", [False, True])
def test_a_warning_to_a_closed_standard_error_is_kept_and_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    stderr = io.StringIO() if closed else Broken()
    if closed:
        stderr.close()
    monkeypatch.setattr("sys.stderr", stderr)
    moved: list[bool] = []
    monkeypatch.setattr(owner, "speak_nowhere", lambda: moved.append(True))
    words = owner._Words()
    for text in ("first", "second"):
        words.emit(logging.LogRecord("omq.spark", logging.WARNING, "", 0, text, (), None))
    assert words.take() == ["first", "second"]
    assert moved == [True]
