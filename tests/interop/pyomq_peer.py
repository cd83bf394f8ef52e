"""Plays pyomq's side in a process and an interpreter of its own: KIND, bind or connect, the endpoint, a role.

It imports nothing of omq's: its interpreter has pyomq alone. Prints its endpoint first. Its role: to echo what it
receives, to print it in hexadecimal, a line each, or to send what standard input gives in this form. The group is "g".
"""

import sys

import pyomq


def show(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    kind, call, endpoint, role = sys.argv[1:]
    context = pyomq.Context()
    socket = context.socket(getattr(pyomq, kind))
    socket.setsockopt(pyomq.RCVTIMEO, 20_000)
    socket.setsockopt(pyomq.SNDTIMEO, 20_000)
    if call == "bind":
        socket.bind(endpoint)
        endpoint = socket.getsockopt(pyomq.LAST_ENDPOINT).decode()
    else:
        socket.connect(endpoint)
    if kind == "DISH":
        socket.join("g")
    show(endpoint)
    if role == "send":
        for line in sys.stdin:
            body = bytes.fromhex(line.strip())
            if kind == "RADIO":
                socket.send(b"not " + body, group="other")
                socket.send(body, group="g")
            else:
                socket.send(body)
        return
    while True:
        # pyomq's PEER is used as a ROUTER is: its user has the peer's name as a part, which is not on the wire.
        *name, frame = socket.recv_multipart(copy=False) if kind == "PEER" else [socket.recv(copy=False)]
        if role == "receive":
            show(frame.bytes.hex())
        elif name:
            socket.send_multipart([name[0].bytes, frame.bytes])
        elif kind == "SERVER":
            socket.send(frame.bytes, routing_id=frame.routing_id)
        else:
            socket.send(frame.bytes)


main()
