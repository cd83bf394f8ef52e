"""Errors of omq in one line: Spark would put tracebacks of its own modules above it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from omq.errors import OmqError

#: Has a process of Spark's report an exception without its traceback (`pyspark.util.handle_worker_exception`).
_PLAIN: Final = "SPARK_HIDE_TRACEBACK"


@contextmanager
def hidden_traceback() -> Iterator[None]:
    """Has an `OmqError` from in here reported without a traceback; the process, which is Spark's, ends with it.

    As a decorator it is for functions. In a generator it stands around the body.
    """
    try:
        yield
    except OmqError:
        os.environ[_PLAIN] = "1"
        raise
