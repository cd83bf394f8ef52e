"""The libraries that are compared: one module a peer, each with `play(role, link, job)`.

The loops stand in `awaited` (asyncio) and `blocking`; a peer module only opens sockets, so that all
peers run the very same loop.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

#: Names the folder of another build of omq, in the environment: the peer `omq-before` runs there.
BEFORE = "OMQ_BEFORE"
#: Names an interpreter that has pyomq, which takes no Python 3.11.
PYOMQ = "OMQ_PYOMQ"


@dataclass(frozen=True)
class Peer:
    """One library behind the measured loops.

    Attributes:
        label: Its name in the tables.
        module: The module of this package that plays its roles.
        needs: The module, and after a colon the name in it, that must be there; empty for nothing.
        options: What its sockets are made with, besides the defaults (omq's only).
        tree: The variable of the environment that names the folder it is imported from; empty for the usual one.
        python: The variable of the environment that may name its interpreter; empty for ours.
    """

    label: str
    module: str
    needs: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    tree: str = ""
    python: str = ""

    @property
    def interpreter(self) -> str:
        """The interpreter that its processes run in."""
        return os.environ.get(self.python, sys.executable)


def _spinning(label: str, busy_poll: float | str) -> Peer:
    return Peer(label, "bench.peers.omq_blocking", "omq:PUSH", {"busy_poll": busy_poll})


PEERS: dict[str, Peer] = {
    "omq-asyncio": Peer("omq.asyncio", "bench.peers.omq_asyncio", "omq.asyncio"),
    "omq": Peer("omq", "bench.peers.omq_blocking", "omq:PUSH"),
    "pyzmq-asyncio": Peer("pyzmq.asyncio", "bench.peers.pyzmq_asyncio", "zmq.asyncio"),
    "pyzmq": Peer("pyzmq", "bench.peers.pyzmq_blocking", "zmq"),
    "pyomq-asyncio": Peer("pyomq.asyncio", "bench.peers.pyomq_asyncio", "pyomq.asyncio"),
    "pyomq": Peer("pyomq", "bench.peers.pyomq_blocking", "pyomq"),
    "bare": Peer("bare sockets", "bench.peers.bare"),
    "floor-epoll": Peer("bare, epoll", "bench.peers.floor", options={"waits": "epoll"}),
    "floor-spin": Peer("bare, spinning", "bench.peers.floor", options={"waits": "spin"}),
    "floor-protocol": Peer("bare asyncio.Protocol", "bench.peers.floor", "uvloop", {"waits": "protocol"}),
    "omq-sleeps": _spinning("omq, busy_poll=0", 0),
    "omq-adaptive": _spinning('omq, busy_poll="adaptive"', "adaptive"),
    "omq-50us": _spinning("omq, busy_poll=50e-6", 50e-6),
    "omq-1ms": _spinning("omq, busy_poll=0.001", 0.001),
    "omq-curve": Peer("omq, CURVE", "bench.peers.curve", "omq:CurveServer", {"library": "omq"}),
    "omq-curve-same": Peer("omq, CURVE, pyzmq's libsodium", "bench.peers.curve", "zmq", {"library": "same"}),
    "pyzmq-curve": Peer("pyzmq, CURVE", "bench.peers.curve", "zmq", {"library": "pyzmq"}),
    "stream-omq": Peer("omq, STREAM", "bench.peers.stream", "omq:STREAM", {"library": "omq"}),
    "stream-omq-asyncio": Peer("omq.asyncio, STREAM", "bench.peers.stream", "omq:STREAM", {"library": "omq-asyncio"}),
    "stream-pyzmq": Peer("pyzmq, STREAM", "bench.peers.stream", "zmq", {"library": "pyzmq"}),
    "stream-bare": Peer("bare sockets", "bench.peers.stream", options={"library": "bare"}),
    "stream-gathered": Peer("bare sockets, 60 KB a send", "bench.peers.stream", options={"library": "gathered"}),
    "omq-websocket": Peer("omq, ws", "bench.peers.omq_blocking", "wsproto"),
    "omq-websocket-asyncio": Peer("omq.asyncio, ws", "bench.peers.omq_asyncio", "wsproto"),
    "websockets": Peer("websockets", "bench.peers.websockets", "websockets"),
    "libsodium": Peer("crypto_box_afternm alone", "bench.peers.curve", "nacl"),
    "spark-omq": Peer('format("omq")', "bench.peers.spark", "pyspark.sql"),
    "spark-stage": Peer("pull_batches in mapInArrow", "bench.peers.spark", "pyspark.sql"),
    "spark-pyzmq": Peer("pyzmq in mapInArrow", "bench.peers.spark", "zmq"),
    "spark-ceiling": Peer("no network", "bench.peers.spark", "pyspark.sql"),
    "spark-ceiling-all": Peer("no network, all columns", "bench.peers.spark", "pyspark.sql"),
    "spark-topic-all": Peer('format("omq"), a topic, all columns', "bench.peers.spark", "pyspark.sql"),
    "spark-topic": Peer('format("omq"), a topic', "bench.peers.spark", "pyspark.sql"),
    "spark-topic-weak": Peer("the same, a weak topic", "bench.peers.spark", "pyspark.sql"),
    "spark-topic-direct": Peer("the same, at least once", "bench.peers.spark", "pyspark.sql"),
    "spark-discard": Peer("a sink that throws away", "bench.peers.spark", "pyspark.sql"),
    "spark-stage-ceiling": Peer("no network, in mapInArrow", "bench.peers.spark", "pyspark.sql"),
    "omq-one-part": Peer("omq", "bench.peers.one_part", "omq:SCATTER", {"library": "omq"}),
    "omq-classic": Peer("omq, classic types", "bench.peers.one_part", "omq:PUSH", {"library": "omq"}),
    "pyomq-one-part": Peer("pyomq", "bench.peers.one_part", "pyomq", {"library": "pyomq"}, python=PYOMQ),
    "omq-datagrams": Peer("omq, udp", "bench.peers.datagrams", "omq:RADIO", {"library": "omq"}),
    "bare-datagrams": Peer("bare datagram sockets", "bench.peers.datagrams", "omq:RADIO", {"library": "bare"}),
    "omq-ready": Peer("recv of what is there", "bench.peers.omq_blocking", "omq:PUSH"),
}


def another_build(name: str) -> str | None:
    """The name of the peer that is the same in the tree which `OMQ_BEFORE` names; `None` if there is none."""
    before = f"{name}-before"
    return before if before in PEERS and BEFORE in os.environ else None


PEERS |= {
    f"{name}-before": replace(peer, label=f"{peer.label} before", needs="", tree=BEFORE)
    for name, peer in PEERS.items()
    if peer.label.startswith("omq")
}


def why_missing(name: str) -> str | None:
    """The reason why a peer cannot run here; `None` if it can."""
    tree = PEERS[name].tree
    if tree and not os.path.isfile(os.path.join(os.environ.get(tree, ""), "omq", "__init__.py")):
        return f"{tree} names no folder with an omq in it"
    module, _, attribute = PEERS[name].needs.partition(":")
    interpreter = PEERS[name].interpreter
    if interpreter != sys.executable:
        found_there = subprocess.run([interpreter, "-c", f"import {module}"], capture_output=True, check=False)
        return f"{interpreter} has no {module}" if found_there.returncode else None
    try:
        found = importlib.import_module(module) if module else None
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    if attribute and not hasattr(found, attribute):
        return f"{module} has no {attribute} (yet)"
    return None
