"""The blocking peers with CURVE: omq and pyzmq, the same loops, the same keys."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.link import Link
from bench.peers import blocking

#: Keys that protect nothing: both processes of a run need the same.
SERVER_PUBLIC, SERVER_SECRET = (
    b"gWvg7t?An7M@iLci/vbii(THd9O#rwqa/(NaEzqp",
    b"h8Ad.@0)Y!+++9YDkj{y?BQb55X7x2MisMc1<h%j",
)


def libsodium_of_pyzmq() -> str | None:
    """The file that pyzmq's wheel brings; `None` where pyzmq is built in another way."""
    found = find_spec("zmq")
    if found is None or found.origin is None:
        return None
    brought = sorted((Path(found.origin).parents[1] / "pyzmq.libs").glob("libsodium*.so*"))
    return str(brought[0]) if brought else None


class _Omq:
    def open(self, kind: str) -> Any:
        import omq

        serves = kind in ("PULL", "REP")
        security = omq.CurveServer(SERVER_SECRET) if serves else omq.CurveClient(SERVER_PUBLIC)
        return getattr(omq, kind)(security=security)

    def bind(self, socket: Any, endpoint: str) -> str:
        return str(socket.bind(endpoint))

    def connect(self, socket: Any, endpoint: str) -> None:
        socket.connect(endpoint)


class _Pyzmq:
    def open(self, kind: str) -> Any:
        import zmq

        socket = zmq.Context.instance().socket(getattr(zmq, kind))
        if kind in ("PULL", "REP"):
            socket.curve_server = True
            socket.curve_secretkey = SERVER_SECRET
        else:
            socket.curve_serverkey = SERVER_PUBLIC
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        return socket

    def bind(self, socket: Any, endpoint: str) -> str:
        import zmq

        socket.bind(endpoint)
        return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))

    def connect(self, socket: Any, endpoint: str) -> None:
        socket.connect(endpoint)


def play(role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays a role."""
    library = job["options"]["library"]
    if library == "same":
        path = libsodium_of_pyzmq()
        assert path is not None
        os.environ["OMQ_LIBSODIUM"] = path
    blocking.run(_Pyzmq() if library == "pyzmq" else _Omq(), role, link, job)
