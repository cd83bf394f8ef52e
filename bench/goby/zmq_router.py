"""A router made of libzmq's proxy: `python -m bench.goby.zmq_router READY_FILE ipc|tcp` serves until it is ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import zmq


def serve(ready: Path, transport: str) -> None:
    """Serves, and writes its endpoints to the ready file."""
    context = zmq.Context()
    endpoints = {}
    sockets = {"publish": context.socket(zmq.XSUB), "subscribe": context.socket(zmq.XPUB)}
    for name, one in sockets.items():
        one.set_hwm(0)
        one.bind("tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{ready.parent}/router.{name}")
        endpoints[name] = one.last_endpoint.decode().rstrip("\0")
    new_file = ready.with_suffix(".new")
    new_file.write_text(json.dumps(endpoints))
    new_file.rename(ready)
    zmq.proxy(sockets["subscribe"], sockets["publish"])


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
