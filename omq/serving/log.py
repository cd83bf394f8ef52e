"""The log of a server program.

A line about an event that an operator may search for passes `extra={"event": ..., ...}`: a stable name, and its values.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

LOG_FORMATS: Final = ("text", "json")

#: The attributes of every record; others come from `extra`.
_STANDARD: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: `time`, `level`, `logger`, `message`, and the fields of `extra`.

    `time` is UTC in RFC 3339 with milliseconds. A traceback is in `exception`. A value that JSON cannot represent
    becomes text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line; see `logging.Formatter`."""
        created = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, Any] = {
            "time": created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def log_to_stderr(level: str, log_format: str = "text") -> None:
    """Logs to standard error.

    Args:
        level: The lowest level that is logged, `debug` to `error`.
        log_format: `text`, or `json` for one object per line.
    """
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
