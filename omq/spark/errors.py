"""Errors of omq in one line: Spark would put tracebacks of its own modules above it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar

from omq.errors import OmqError

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Has a process of Spark's report an exception without its traceback (`pyspark.util.handle_worker_exception`).
_PLAIN: Final = "SPARK_HIDE_TRACEBACK"


def hide_traceback(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Has an `OmqError` of a call reported without a traceback; the process, which is Spark's, ends with it."""

    @functools.wraps(call)
    def plain(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return call(*args, **kwargs)
        except OmqError:
            os.environ[_PLAIN] = "1"
            raise

    return plain


def hide_traceback_of_rows(call: Callable[_P, Iterator[_R]]) -> Callable[_P, Iterator[_R]]:
    """Does the same for a call that returns an iterator, and raises while it is used."""

    @functools.wraps(call)
    def plain(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_R]:
        try:
            yield from call(*args, **kwargs)
        except OmqError:
            os.environ[_PLAIN] = "1"
            raise

    return plain
