"""Errors of every kind of endpoint. Spark reports them in one line, without the tracebacks of its own modules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from omq.errors import OmqError, StateError

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


def check_offset(offset: Any, kind: str, version: int, source: str) -> None:
    """Checks that an offset of a checkpoint belongs to a source.

    Args:
        offset: The JSON of the offset.
        kind: The source's kind in offsets.
        version: The version of offsets that the source supports.
        source: The name of the source, for error messages.

    Raises:
        StateError: The offset is of another kind or version.
    """
    if not isinstance(offset, dict) or offset.get("kind") != kind:
        raise StateError(
            f"the checkpoint belongs to another kind of source, not to {source}: {offset}; use another"
            " checkpointLocation"
        )
    if offset.get("version") != version:
        raise StateError(
            f"the checkpoint has offsets of version {offset.get('version')}, this package supports {version}; use"
            " another checkpointLocation"
        )
