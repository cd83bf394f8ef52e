"""The pairs of types that can connect, how they meet, and what each side adds to a message on its way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import omq.asyncio as omq
from tests.interop.conftest import Fresh
from tests.interop.libzmq import Libzmq, attended, endpoint_of

FIRST, SECOND = b"first", b"second"  # the identities of the two sides

#: (who speaks first, who answers): what stands before the message on the one's side and on the other's.
ENVELOPES: dict[tuple[str, str], tuple[list[bytes], list[bytes]]] = {
    ("PUSH", "PULL"): ([], []),
    ("PUB", "SUB"): ([], []),
    ("PUB", "XSUB"): ([], []),
    ("XPUB", "SUB"): ([], []),
    ("XPUB", "XSUB"): ([], []),
    ("REQ", "REP"): ([], []),
    ("REQ", "ROUTER"): ([], [FIRST, b""]),
    ("DEALER", "REP"): ([b""], []),
    ("DEALER", "ROUTER"): ([], [FIRST]),
    ("DEALER", "DEALER"): ([], []),
    ("ROUTER", "ROUTER"): ([SECOND], [FIRST]),
    ("PAIR", "PAIR"): ([], []),
}

PUBLISHERS, SUBSCRIBERS = ("PUB", "XPUB"), ("SUB", "XSUB")
ONE_WAY = ("PUSH", *PUBLISHERS)
NAMED = ("REQ", "DEALER", "ROUTER")


def by_side() -> list[tuple[str, str]]:
    """Every pair as (omq's type, libzmq's type)."""
    return sorted({pair for first, second in ENVELOPES for pair in ((first, second), (second, first))})


@asynccontextmanager
async def joined(
    libzmq: Libzmq,
    endpoint: str,
    omq_kind: str,
    zmq_kind: str,
    *,
    binds: str,
    mine: dict[str, Any] | None = None,
    its: dict[str, Any] | None = None,
) -> AsyncIterator[tuple[Any, Any]]:
    """An omq socket and a libzmq socket that are, or are about to be, connected.

    Args:
        libzmq: Opens libzmq's socket.
        endpoint: Where they meet.
        omq_kind: The type of omq's socket.
        zmq_kind: The type of libzmq's socket.
        binds: `omq` or `zmq`: the side that binds; the other one connects.
        mine: Options of omq's socket.
        its: Options of libzmq's socket.
    """
    mine, its = {"linger": 0.0, **(mine or {})}, its or {}
    make = getattr(omq, omq_kind)
    if binds == "omq":
        async with make(bind=endpoint, **mine) as ours:
            yield ours, libzmq.open(zmq_kind, connect=ours.endpoints[0], **its)
    else:
        theirs = libzmq.open(zmq_kind, bind=endpoint, **its)
        async with make(connect=endpoint_of(theirs), **mine) as ours:
            yield ours, theirs


@asynccontextmanager
async def conversing(
    libzmq: Libzmq,
    fresh: Fresh,
    pair: tuple[str, str],
    *,
    binds: str,
    transport: str,
    mine: dict[str, Any] | None = None,
    its: dict[str, Any] | None = None,
) -> AsyncIterator[tuple[Any, Any, list[bytes], list[bytes]]]:
    """The two sides ready to talk, who speaks first first, with the envelopes of both; options as for `joined`."""
    omq_kind, zmq_kind = pair
    omq_first = pair in ENVELOPES
    mine, its = {**(mine or {})}, {**(its or {})}
    if omq_kind in NAMED:
        mine["identity"] = FIRST if omq_first else SECOND
    if zmq_kind in NAMED:
        its["identity"] = SECOND if omq_first else FIRST
    if omq_kind in SUBSCRIBERS:
        mine["subscribe"] = b""
    if zmq_kind == "SUB":
        its["subscribe"] = b""
    endpoint = fresh(transport)
    async with joined(libzmq, endpoint, omq_kind, zmq_kind, binds=binds, mine=mine, its=its) as (
        ours,
        theirs,
    ):
        if zmq_kind == "XSUB":
            await theirs.send(b"\x01")
        await _settled(omq_kind, ours, zmq_kind, theirs)
        if omq_first:
            yield ours, theirs, *ENVELOPES[pair]
        else:
            yield theirs, ours, *ENVELOPES[zmq_kind, omq_kind]


async def _settled(omq_kind: str, ours: Any, zmq_kind: str, theirs: Any) -> None:
    """Waits until the first message cannot get lost."""
    await ours.wait_connected(timeout=5)
    if omq_kind in PUBLISHERS:
        await attended(theirs, ours.wait_subscribed(b"", timeout=5))
    elif zmq_kind == "XPUB":
        assert await theirs.recv() == b"\x01"
    elif zmq_kind == "PUB":
        await probed(theirs, ours)


async def probed(pub: Any, sub: Any) -> None:
    """Publishes from libzmq's PUB, which does not report its subscribers, until omq's side has got one."""
    probe, last = b"probe", b"last probe"
    arrived = b""
    while not arrived:
        await pub.send(probe)
        try:
            arrived = await sub.recv(timeout=0.01)
        except omq.ReceiveTimeout:
            continue
    await pub.send(last)
    while arrived != last:
        arrived = await sub.recv(timeout=5)
