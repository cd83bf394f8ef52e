"""Where a door is: `tcp://host:port`."""

from __future__ import annotations

from omq.errors import EndpointError

__all__ = ["parse_endpoint"]


def parse_endpoint(endpoint: str) -> tuple[str | None, int]:
    """Host and port of `tcp://host:port`; a `*` is every host (`None`), or any port (0).

    Raises:
        EndpointError: It is none.
    """
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = 0 if port == "*" else int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else -1
    if scheme != "tcp" or not host or not 0 <= number < 65536:
        raise EndpointError(f"endpoint {endpoint!r}: S-expressions go by tcp://host:port")
    return (None if host == "*" else host), number
