"""The blocking peers with CURVE: omq and pyzmq, the same loops, the same keys."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.control import Control
from bench.peers import blocking_roles
from bench.peers.asyncio_roles import SocketFactory

#: Keys that protect nothing: both processes of a run need the same.
SERVER_PUBLIC, SERVER_SECRET = (
    b"gWvg7t?An7M@iLci/vbii(THd9O#rwqa/(NaEzqp",
    b"h8Ad.@0)Y!+++9YDkj{y?BQb55X7x2MisMc1<h%j",
)
SERVER_KINDS = ("PULL", "REP")


def libsodium_of_pyzmq() -> str | None:
    """Returns the path of the libsodium in pyzmq's wheel; `None` where pyzmq is built in another way."""
    found = find_spec("zmq")
    if found is None or found.origin is None:
        return None
    libraries = sorted((Path(found.origin).parents[1] / "pyzmq.libs").glob("libsodium*.so*"))
    return str(libraries[0]) if libraries else None


def _omq_sockets() -> SocketFactory:
    import omq
    from bench.peers.omq_blocking import OmqSockets

    class OmqCurveSockets(OmqSockets):
        def open(self, kind: str, hwm: int | None = None) -> Any:
            server = kind in SERVER_KINDS
            security = omq.CurveServer(SERVER_SECRET) if server else omq.CurveClient(SERVER_PUBLIC)
            return getattr(omq, kind)(security=security)

    return OmqCurveSockets(omq, {})


def _pyzmq_sockets() -> SocketFactory:
    import zmq

    from bench.peers.pyzmq_blocking import PyzmqSockets

    class PyzmqCurveSockets(PyzmqSockets):
        def open(self, kind: str, hwm: int | None = None) -> Any:
            socket = super().open(kind, hwm)
            if kind in SERVER_KINDS:
                socket.curve_server = True
                socket.curve_secretkey = SERVER_SECRET
            else:
                socket.curve_serverkey = SERVER_PUBLIC
                socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
            return socket

    return PyzmqCurveSockets(zmq.Context.instance())


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    library = job["options"]["library"]
    if library == "same":
        path = libsodium_of_pyzmq()
        assert path is not None
        os.environ["OMQ_LIBSODIUM"] = path
    blocking_roles.run(_pyzmq_sockets() if library == "pyzmq" else _omq_sockets(), role, control, job)
