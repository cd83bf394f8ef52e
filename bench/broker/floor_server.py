"""The floor's server: receives and sends bytes over a bare socket, and does nothing else.

A request is a letter and two numbers (u64), a count and a step: `P` receives *count* bytes, and answers with one byte
for each *step* of them; `R` sends *count* bytes.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

REQUEST = struct.Struct("!cQQ")
CHUNK_BYTES = 1 << 20


def serve(ready: Path) -> None:
    """Serves clients for ever, a process each."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        partial = ready.with_suffix(".new")
        partial.write_text(f"127.0.0.1:{listener.getsockname()[1]}")
        partial.replace(ready)
        while True:
            client, _ = listener.accept()
            if os.fork() == 0:  # ends with the process group of the parent
                with client:
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    _serve_client(client)
                os._exit(0)
            client.close()


def _serve_client(client: socket.socket) -> None:
    room = bytearray(CHUNK_BYTES)
    view = memoryview(room)
    while len(request := client.recv(REQUEST.size, socket.MSG_WAITALL)) == REQUEST.size:
        kind, count, each = REQUEST.unpack(request)
        if kind == b"P":
            got = reported = 0
            while got < count:
                got += client.recv_into(view[: min(CHUNK_BYTES, count - got)])
                if (whole := got // each) > reported:
                    client.sendall(b"\0" * (whole - reported))
                    reported = whole
        else:
            while count:
                count -= client.send(view[: min(CHUNK_BYTES, count)])


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
