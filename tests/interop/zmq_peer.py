"""A process with one pyzmq socket, which does what the lines of its standard input ask, and prints what it has seen.

python -m tests.interop.zmq_peer MODULE KIND CALL ENDPOINT OPTIONS: MODULE is `zmq` or `omq.zmq`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from typing import Any

SIZES = (0, 1, 255, 256, 8192, 70_000, 3_000_000)


def message(number: int) -> list[bytes]:
    """Returns a message of one to four parts; among the first seven there is one of each size."""
    sizes = [SIZES[(number + part) % len(SIZES)] for part in range(1 + number % 4)]
    return [bytes([number % 256]) * size for size in sizes]


def digest(parts: list[bytes]) -> str:
    """Returns a short text for a message."""
    return ",".join(f"{len(part)}:{hashlib.sha256(part).hexdigest()[:8]}" for part in parts)


def authenticator(zmq: Any, context: Any, config: dict[str, Any]) -> Any:
    """Returns a running authenticator with the users or keys that *config* admits."""
    made = importlib.import_module(f"{zmq.__name__}.auth.thread").ThreadAuthenticator(context)
    made.start()
    made.allow("127.0.0.1")
    if "passwords" in config:
        made.configure_plain(domain="*", passwords=config["passwords"])
    else:
        made.configure_curve(domain="*", location=config["location"])
    return made


def main() -> None:
    """Runs the process."""
    zmq = importlib.import_module(sys.argv[1])
    kind, call, endpoint, options = *sys.argv[2:5], json.loads(sys.argv[5])
    context = zmq.Context()
    auth = authenticator(zmq, context, options.pop("auth")) if "auth" in options else None
    socket = context.socket(getattr(zmq, kind))
    socket.linger = 2000
    for name, value in options.items():
        setattr(socket, name, value.encode() if isinstance(value, str) else value)
    if kind == "SUB":
        socket.subscribe(b"")
    getattr(socket, call)(endpoint)
    print(socket.last_endpoint.decode(), flush=True)
    for line in sys.stdin:
        command, *names, count = line.split()
        head = [b"" if name == "-" else name.encode() for name in names]
        if command == "recv":
            print(json.dumps([digest(socket.recv_multipart()) for _ in range(int(count))]), flush=True)
        elif command == "send":
            for number in range(int(count)):
                socket.send_multipart(message(number), copy=number % 2 == 0)
        elif command == "echo":
            for _ in range(int(count)):
                socket.send_multipart(socket.recv_multipart())
        elif command == "ask":
            seen = []
            for number in range(int(count)):
                socket.send_multipart([*head, *message(number)])
                seen.append(digest(socket.recv_multipart()))
            print(json.dumps(seen), flush=True)
        elif command == "subscribe":
            socket.send(b"\1")
        elif command == "sync":  # take what comes until the publisher knows that something comes
            socket.recv()
            print("synced", flush=True)
            while socket.recv() != b"start":
                pass
    socket.close()
    if auth is not None:
        auth.stop()
    context.term()


if __name__ == "__main__":
    main()
