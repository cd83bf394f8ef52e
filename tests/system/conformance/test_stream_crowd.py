"""STREAM: a crowd of peers that come, speak and end as they like; the program answers them and closes some."""

from __future__ import annotations

import random
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import omq
from tests.support.parameters import each_value_once
from tests.support.waits import BOUND, until
from tests.system.conformance.test_stream import address

PEERS = 120
CLOSE = b"\xff"  # the last byte of a peer that wants the program to close
ENDS = ("close", "reset", "half", "asks")


class Stranger:
    """One peer: it sends what its number begins, reads the same again, and ends in its way."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.end = chance.choice(ENDS)
        self.head = struct.pack(">I", number)
        sizes = [chance.choice((1, 10, 300, 9000, 70_000)) for _ in range(chance.randrange(1, 5))]
        self.chunks = [self.head, *(bytes([number % 251]) * size for size in sizes)]
        if self.end == "asks":
            self.chunks.append(CLOSE)
        self.sent = b"".join(self.chunks)
        self.reads = self.end != "close" or chance.random() < 0.5  # one that resets has been accepted by then
        self.got = b""
        self.failure: BaseException | None = None

    def run(self, where: tuple[str, int]) -> None:
        try:
            with socket.create_connection(where, timeout=BOUND) as plain:
                reader = threading.Thread(target=self._read, args=(plain,), daemon=True)
                if self.reads:  # else its end would wait for the thread that reads
                    reader.start()
                for chunk in self.chunks:
                    plain.sendall(chunk)
                if self.reads and self.end != "half":
                    reader.join(BOUND)
                if self.end == "reset":
                    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                elif self.end == "half":
                    plain.shutdown(socket.SHUT_WR)
                    reader.join(BOUND)
        except BaseException as error:
            self.failure = error

    def _read(self, plain: socket.socket) -> None:
        with suppress(OSError):
            while more := plain.recv(65536):
                self.got += more
                if len(self.got) == len(self.sent) and self.end in ("close", "reset"):
                    return


class Program:
    """Sends everything back to its sender, and closes those that ask for it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.received: dict[bytes, list[bytes]] = {}
        self.closed: set[bytes] = set()

    def gone(self) -> int:
        return sum(len(chunks) > 1 and chunks[-1] == b"" for chunks in self.received.values())

    def missing(self, strangers: list[Stranger]) -> list[Any]:
        """Returns what has come where the crowd does not end."""
        known = {
            b"".join(chunks)[:4]: (peer, [len(one) for one in chunks][-5:]) for peer, chunks in self.received.items()
        }
        left = [
            (one.head, one.end, one.reads, known.get(one.head))
            for one in strangers
            if one.head not in known or (known[one.head][1][-1] != 0 and known[one.head][0] not in self.closed)
        ]
        return [len(self.received), self.gone(), len(self.closed), left, self.stream.peers]

    def run(self) -> None:
        while self.gone() + len(self.closed) < PEERS:
            peer, body = self.stream.recv_multipart(timeout=BOUND)
            self.received.setdefault(peer, []).append(body)
            with suppress(omq.UnroutableError):  # some are quicker
                if body and peer not in self.closed:
                    self.stream.send_multipart([peer, body], timeout=BOUND)
                    if body.endswith(CLOSE):
                        self.stream.send_multipart([peer, b""])
                        self.closed.add(peer)


@each_value_once("twin", twin=["blocking", "asyncio"], dense=[True, False], seed=range(3))
def test_each_peers_story_is_whole_and_in_order(twin, seed, dense):
    chance = random.Random(seed)
    marks = {"recv_hwm": 2, "send_hwm": 2} if dense else {}
    stream = twin("STREAM", bind="tcp://127.0.0.1:*", linger=0.0, **marks)
    strangers = [Stranger(number, chance) for number in range(PEERS)]
    program = Program(stream)
    serving = threading.Thread(target=program.run, daemon=True)
    serving.start()
    where = address(stream.endpoints[0])
    running = [threading.Thread(target=one.run, args=(where,), daemon=True) for one in strangers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(BOUND)
        assert not thread.is_alive()
    serving.join(BOUND)
    assert not serving.is_alive(), program.missing(strangers)
    assert [one.failure for one in strangers if one.failure is not None and one.end != "reset"] == []
    until(lambda: not stream.peers)

    stories = {b"".join(chunks)[:4]: (peer, chunks) for peer, chunks in program.received.items()}
    for one in strangers:
        # A reset destroys what was not read; so does the end of a peer that leaves what it got unread.
        resets = one.end == "reset" or (one.end == "close" and not one.reads)
        if resets and one.head not in stories:
            continue
        peer, chunks = stories[one.head]
        assert chunks[0] == b"", "first, that it has come"
        assert all(chunks[1:-1]), "nothing but bytes in between"
        if peer not in program.closed:
            assert chunks[-1] == b"", "last, that it has gone"
        body = b"".join(chunks)
        assert one.sent.startswith(body)
        if not resets:
            assert body == one.sent
        assert one.sent.startswith(one.got)
        if one.end == "asks":
            assert one.got == one.sent, "what was accepted has left before the end"
    assert len(program.received) == PEERS
