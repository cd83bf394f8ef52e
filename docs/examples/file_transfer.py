"""Sends a file in blocks that the receiver asks for: credit, so that memory is bounded on both sides.

The receiver keeps a few requests in flight, which hides the round trips. After a pause of the network it goes on at
the offset that it has reached.

Prints:

    received 4000000 bytes in 62 blocks, same digest: True
"""

import hashlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Final

import omq

BLOCK_BYTES: Final = 65_536
CREDIT: Final = 8  # blocks in flight


def serve(router: omq.ROUTER, path: Path) -> None:
    """Answers each request for an offset with the block there, until the socket closes; empty after the end."""
    with path.open("rb") as file:
        while True:
            try:
                client, offset = router.recv_multipart()
            except omq.ClosedError:
                return
            block = os.pread(file.fileno(), BLOCK_BYTES, int(offset))
            router.send_multipart([client, offset, block])


def fetch(dealer: omq.DEALER, path: Path) -> int:
    """Writes the file, and returns the number of its blocks."""
    count = asked = 0
    with path.open("wb") as file:
        for _ in range(CREDIT):
            dealer.send(b"%d" % asked)
            asked += BLOCK_BYTES
        while True:
            offset, block = dealer.recv_multipart(timeout=10)
            if not block:
                return count
            os.pwrite(file.fileno(), block, int(offset))
            count += 1
            dealer.send(b"%d" % asked)  # one block has arrived: credit for another one
            asked += BLOCK_BYTES


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Sends a file of four megabytes to another path."""
    with tempfile.TemporaryDirectory() as folder:
        source, copy = Path(folder, "source"), Path(folder, "copy")
        source.write_bytes(os.urandom(4_000_000))
        with omq.ROUTER(bind="tcp://127.0.0.1:*") as router:
            server = threading.Thread(target=serve, args=[router, source])
            server.start()
            with omq.DEALER(connect=router.endpoints[0], linger=0) as dealer:
                count = fetch(dealer, copy)
        server.join()
        print(f"received {copy.stat().st_size} bytes in {count} blocks, same digest: {digest(source) == digest(copy)}")


if __name__ == "__main__":
    main()
