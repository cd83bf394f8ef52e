"""The libraries that are compared: one module a peer, each with `play(role, link, job)`.

The loops stand in `awaited` (asyncio) and `blocking`; a peer module only opens sockets, so that all
peers run the very same loop.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """One library behind the measured loops.

    Attributes:
        label: Its name in the tables.
        module: The module of this package that plays its roles.
        needs: The module, and after a colon the name in it, that must be there; empty for nothing.
    """

    label: str
    module: str
    needs: str = ""


PEERS: dict[str, Peer] = {
    "omq-asyncio": Peer("omq.asyncio", "bench.peers.omq_asyncio", "omq.asyncio"),
    "omq": Peer("omq", "bench.peers.omq_blocking", "omq:PUSH"),
    "pyzmq-asyncio": Peer("pyzmq.asyncio", "bench.peers.pyzmq_asyncio", "zmq.asyncio"),
    "pyzmq": Peer("pyzmq", "bench.peers.pyzmq_blocking", "zmq"),
    "pyomq-asyncio": Peer("pyomq.asyncio", "bench.peers.pyomq_asyncio", "pyomq.asyncio"),
    "pyomq": Peer("pyomq", "bench.peers.pyomq_blocking", "pyomq"),
    "bare": Peer("bare sockets", "bench.peers.bare"),
}


def why_missing(name: str) -> str | None:
    """The reason why a peer cannot run here; `None` if it can."""
    module, _, attribute = PEERS[name].needs.partition(":")
    try:
        found = importlib.import_module(module) if module else None
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    if attribute and not hasattr(found, attribute):
        return f"{module} has no {attribute} (yet)"
    return None
