"""JSON as bytes."""

from __future__ import annotations

import json
from typing import Any

jsonmod = json


def dumps(o: Any, **kwargs: Any) -> bytes:
    """Returns an object as JSON, in UTF-8; *kwargs* go to `json.dumps`."""
    return json.dumps(o, **kwargs).encode("utf8")


def loads(s: bytes | str, **kwargs: Any) -> Any:
    """Returns an object from JSON; *kwargs* go to `json.loads`."""
    return json.loads(s.decode("utf8") if isinstance(s, bytes) else s, **kwargs)


__all__ = ["dumps", "jsonmod", "loads"]
