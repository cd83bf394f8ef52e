"""Addresses of HTTP listeners."""

from __future__ import annotations

import json
from typing import Final

from omq.errors import UsageError

__all__ = ["parse_http_address"]

MAX_SHOWN_CHARACTERS: Final = 80  # of an address, in an error


def parse_http_address(text: str) -> tuple[str, int]:
    """Parses `host:port`, `[host]:port`, `:port` or `port`, with or without `http://` before and a slash after it.

    Returns:
        The host, 127.0.0.1 if it is empty, and the port, 0 for `*`: the system chooses it.

    Raises:
        UsageError: The text is not such an address.
    """
    if not isinstance(text, str):
        raise _not_an_address(text)
    host, _, port = text.removeprefix("http://").removesuffix("/").rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _not_an_address(text)
    port = "0" if port == "*" else port
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535) or "/" in host:
        raise _not_an_address(text)
    return "0.0.0.0" if host == "*" else host or "127.0.0.1", int(port)


def _not_an_address(value: object) -> UsageError:
    shown = json.dumps(value, default=repr)[:MAX_SHOWN_CHARACTERS]
    return UsageError(f"{shown} is not an address; expected HOST:PORT, [HOST]:PORT or PORT, such as 127.0.0.1:8222")
