"""A peer that dies on a command: `python -m tests.fault.crashing_peer KIND ENDPOINT WAY [SECRET]`.

It reports on its standard output: `at ENDPOINT` once it is bound, `got BODY` for each message, and `gone` when its end
of the connection is over. A line on its standard input makes it die. WAY is `kill` (it is killed instead), `close`,
`reset` or `half`. The last two are bare sockets, which speak ZMTP without security.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading

from omq._core.wire.framing import FrameDecoder, encode_frame
from tests.support.raw_peer import GREETING, ready
from tests.support.socket_types import ONE_PART

OTHER = {
    "PUSH": "PULL",
    "DEALER": "DEALER",
    "REQ": "REP",
    "SCATTER": "GATHER",
    "CLIENT": "SERVER",
    "CHANNEL": "CHANNEL",
}


def report(*words: str) -> None:
    print(*words, flush=True)


def libzmq(kind: str, endpoint: str, secret: str) -> None:
    """Plays with libzmq: takes messages, answers a REQ, and closes in the end."""
    import zmq

    context = zmq.Context()
    peer = context.socket(getattr(zmq, OTHER[kind]))
    peer.linger = 0
    if secret:
        peer.curve_server = True
        peer.curve_secretkey = secret.encode()
    peer.bind(endpoint)
    report("at", endpoint)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
    while not over.is_set():
        if peer.poll(5):
            body = peer.recv_multipart()[-1]
            report("got", body.decode())
            if kind == "REQ":
                peer.send(body)
    peer.close()
    context.term()
    report("gone")


def ours(kind: str, endpoint: str, secret: str) -> None:
    """Plays with omq, where pyzmq lacks the type: takes messages, and closes in the end."""
    import omq

    more = {"security": omq.CurveServer(secret.encode())} if secret else {}
    with getattr(omq, OTHER[kind])(bind=endpoint, linger=0, **more) as peer:
        report("at", endpoint)
        over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
        while not over.is_set():
            if peer.poll(0.005):
                report("got", peer.recv().decode())
    report("gone")


def by_hand(kind: str, endpoint: str, way: str) -> None:
    """Plays with a bare socket: takes messages until the command to die, and what is still sent to it after that."""
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
    else:
        host, _, port = address.rpartition(":")
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
    listener.listen()
    report("at", endpoint)
    peer, _ = listener.accept()
    listener.close()
    peer.sendall(GREETING + ready(OTHER[kind].encode()))
    left = 64
    while left:
        left -= len(peer.recv(left))
    decoder = FrameDecoder()

    def read() -> None:
        while data := peer.recv(65536):
            decoder.feed(data)
            while (frame := decoder.next_frame()) is not None:
                flags, body = frame
                if flags & 4 or flags & 1:
                    continue
                report("got", body.decode())
                if kind == "REQ":
                    peer.sendall(encode_frame(b"", more=True) + encode_frame(body))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    sys.stdin.readline()
    if way == "reset":
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.shutdown(socket.SHUT_RD)  # ends the reader, which holds the descriptor
        reader.join()
        peer.close()
    else:
        peer.shutdown(socket.SHUT_WR)
    report("gone")
    reader.join()
    report("over")


def main(kind: str, endpoint: str, way: str, secret: str = "") -> None:
    if way in ("kill", "close"):
        (ours if kind in ONE_PART else libzmq)(kind, endpoint, secret)
    else:
        by_hand(kind, endpoint, way)


if __name__ == "__main__":
    main(*sys.argv[1:])
