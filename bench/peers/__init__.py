"""The libraries that are compared: one module a peer, each with `run_role(role, control, job)`.

The loops are in `asyncio_roles` and `blocking_roles`; a peer module only opens sockets, so that all
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
#: Names an interpreter that has pyomq, which needs Python 3.12.
PYOMQ = "OMQ_PYOMQ"


@dataclass(frozen=True)
class PeerLibrary:
    """One library behind the measured loops.

    Attributes:
        label: Its name in the tables.
        module: The module of this package that runs its roles.
        needs: The module, and after a colon the name in it, that must be there; empty for nothing.
        options: The options of its sockets besides the defaults (omq's only).
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
        """The interpreter of its processes."""
        return os.environ.get(self.python, sys.executable)


def _spinning(label: str, busy_poll: float | str) -> PeerLibrary:
    return PeerLibrary(label, "bench.peers.omq_blocking", "omq:PUSH", {"busy_poll": busy_poll})


PEERS: dict[str, PeerLibrary] = {
    "omq-asyncio": PeerLibrary("omq.asyncio", "bench.peers.omq_asyncio", "omq.asyncio"),
    "omq": PeerLibrary("omq", "bench.peers.omq_blocking", "omq:PUSH"),
    "pyzmq-asyncio": PeerLibrary("pyzmq.asyncio", "bench.peers.pyzmq_asyncio", "zmq.asyncio"),
    "pyzmq": PeerLibrary("pyzmq", "bench.peers.pyzmq_blocking", "zmq"),
    "pyomq-asyncio": PeerLibrary("pyomq.asyncio", "bench.peers.pyomq_asyncio", "pyomq.asyncio"),
    "pyomq": PeerLibrary("pyomq", "bench.peers.pyomq_blocking", "pyomq"),
    "face": PeerLibrary("omq.zmq", "bench.peers.face", "omq.zmq", {"library": "omq.zmq"}),
    "face-pyzmq": PeerLibrary("pyzmq", "bench.peers.face", "zmq", {"library": "zmq"}),
    "face-pyomq": PeerLibrary("pyomq", "bench.peers.pyomq_blocking", "pyomq"),
    "bare": PeerLibrary("bare sockets", "bench.peers.bare"),
    "floor-epoll": PeerLibrary("bare, epoll", "bench.peers.bare_round_trips", options={"waits": "epoll"}),
    "floor-spin": PeerLibrary("bare, spinning", "bench.peers.bare_round_trips", options={"waits": "spin"}),
    "floor-protocol": PeerLibrary(
        "bare asyncio.Protocol", "bench.peers.bare_round_trips", "uvloop", {"waits": "protocol"}
    ),
    "omq-sleeps": _spinning("omq, busy_poll=0", 0),
    "omq-adaptive": _spinning('omq, busy_poll="adaptive"', "adaptive"),
    "omq-50us": _spinning("omq, busy_poll=50e-6", 50e-6),
    "omq-1ms": _spinning("omq, busy_poll=0.001", 0.001),
    "omq-curve": PeerLibrary("omq, CURVE", "bench.peers.curve", "omq:CurveServer", {"library": "omq"}),
    "omq-curve-same": PeerLibrary("omq, CURVE, pyzmq's libsodium", "bench.peers.curve", "zmq", {"library": "same"}),
    "pyzmq-curve": PeerLibrary("pyzmq, CURVE", "bench.peers.curve", "zmq", {"library": "pyzmq"}),
    "stream-omq": PeerLibrary("omq, STREAM", "bench.peers.stream", "omq:STREAM", {"library": "omq"}),
    "stream-omq-asyncio": PeerLibrary(
        "omq.asyncio, STREAM", "bench.peers.stream", "omq:STREAM", {"library": "omq-asyncio"}
    ),
    "stream-pyzmq": PeerLibrary("pyzmq, STREAM", "bench.peers.stream", "zmq", {"library": "pyzmq"}),
    "stream-bare": PeerLibrary("bare sockets", "bench.peers.stream", options={"library": "bare"}),
    "stream-gathered": PeerLibrary("bare sockets, 60 KB a send", "bench.peers.stream", options={"library": "gathered"}),
    "omq-websocket": PeerLibrary("omq, ws", "bench.peers.omq_blocking", "wsproto"),
    "omq-websocket-asyncio": PeerLibrary("omq.asyncio, ws", "bench.peers.omq_asyncio", "wsproto"),
    "websockets": PeerLibrary("websockets", "bench.peers.websockets", "websockets"),
    "libsodium": PeerLibrary("crypto_box_afternm alone", "bench.peers.curve", "nacl"),
    "spark-omq": PeerLibrary('format("omq")', "bench.peers.spark", "pyspark.sql"),
    "spark-stage": PeerLibrary("pull_batches in mapInArrow", "bench.peers.spark", "pyspark.sql"),
    "spark-pyzmq": PeerLibrary("pyzmq in mapInArrow", "bench.peers.spark", "zmq"),
    "spark-ceiling": PeerLibrary("no network", "bench.peers.spark", "pyspark.sql"),
    "spark-ceiling-all": PeerLibrary("no network, all columns", "bench.peers.spark", "pyspark.sql"),
    "spark-topic-all": PeerLibrary('format("omq"), a topic, all columns', "bench.peers.spark", "pyspark.sql"),
    "spark-topic": PeerLibrary('format("omq"), a topic', "bench.peers.spark", "pyspark.sql"),
    "spark-topic-weak": PeerLibrary("the same, a weak topic", "bench.peers.spark", "pyspark.sql"),
    "spark-topic-direct": PeerLibrary("the same, at least once", "bench.peers.spark", "pyspark.sql"),
    "spark-discard": PeerLibrary("a sink that throws away", "bench.peers.spark", "pyspark.sql"),
    "spark-stage-ceiling": PeerLibrary("no network, in mapInArrow", "bench.peers.spark", "pyspark.sql"),
    "omq-one-part": PeerLibrary("omq", "bench.peers.one_part", "omq:SCATTER", {"library": "omq"}),
    "omq-classic": PeerLibrary("omq, classic types", "bench.peers.one_part", "omq:PUSH", {"library": "omq"}),
    "pyomq-one-part": PeerLibrary("pyomq", "bench.peers.one_part", "pyomq", {"library": "pyomq"}, python=PYOMQ),
    "omq-datagrams": PeerLibrary("omq, udp", "bench.peers.datagrams", "omq:RADIO", {"library": "omq"}),
    "bare-datagrams": PeerLibrary("bare datagram sockets", "bench.peers.datagrams", "omq:RADIO", {"library": "bare"}),
    "omq-ready": PeerLibrary("recv of arrived messages", "bench.peers.omq_blocking", "omq:PUSH"),
}


def another_build(name: str) -> str | None:
    """Returns the name of the same peer in the tree that `OMQ_BEFORE` names; `None` without such a tree."""
    before = f"{name}-before"
    return before if before in PEERS and BEFORE in os.environ else None


PEERS |= {
    f"{name}-before": replace(peer, label=f"{peer.label} before", needs="", tree=BEFORE)
    for name, peer in PEERS.items()
    if peer.label.startswith("omq")
}


def why_missing(name: str) -> str | None:
    """Returns the reason why a peer cannot run here; `None` if it can."""
    tree = PEERS[name].tree
    if tree and not os.path.isfile(os.path.join(os.environ.get(tree, ""), "omq", "__init__.py")):
        return f"{tree} is not a folder with omq in it"
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
