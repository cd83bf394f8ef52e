"""The floor's server: takes and gives bytes over a bare socket, and does nothing else.

A request is a letter and two numbers (u64): `P` takes so many bytes, and answers with one byte each time that so many
of them are there; `R` gives so many bytes.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

REQUEST = struct.Struct("!cQQ")
CHUNK = 1 << 20


def serve(ready: Path) -> None:
    """Serves one client after the other, for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        partial = ready.with_suffix(".new")
        partial.write_text(f"127.0.0.1:{listener.getsockname()[1]}")
        partial.replace(ready)
        while True:
            client, _ = listener.accept()
            if os.fork() == 0:  # the parent is ended with its whole group
                with client:
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    _talk(client)
                os._exit(0)
            client.close()


def _talk(client: socket.socket) -> None:
    room = bytearray(CHUNK)
    view = memoryview(room)
    while len(request := client.recv(REQUEST.size, socket.MSG_WAITALL)) == REQUEST.size:
        kind, count, each = REQUEST.unpack(request)
        if kind == b"P":
            got = told = 0
            while got < count:
                got += client.recv_into(view[: min(CHUNK, count - got)])
                if (whole := got // each) > told:
                    client.sendall(b"\0" * (whole - told))
                    told = whole
        else:
            while count:
                count -= client.send(view[: min(CHUNK, count)])


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
