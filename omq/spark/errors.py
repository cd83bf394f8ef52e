"""Reports errors of omq in one line, without the tracebacks of Spark's own modules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from omq.errors import OmqError

#: Makes Spark's worker report an exception without its traceback (`pyspark.util.handle_worker_exception`).
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"


@contextmanager
def hidden_traceback() -> Iterator[None]:
    """Hides the traceback of an `OmqError` that leaves this context; the error ends Spark's worker process.

    Decorates functions. A generator uses it as a context manager around its body.
    """
    try:
        yield
    except OmqError:
        os.environ[_HIDE_TRACEBACK] = "1"
        raise
