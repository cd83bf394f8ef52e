"""The child processes of `demo.py`: one that sends blocks of files, two that hash them.

A child reads its job, one line of JSON, from standard input, and ends when standard input does: no child outlives its
parent. It reports over a PUB socket, the feed (`FEED_*`).
"""

import asyncio
import contextlib
import hashlib
import json
import struct
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

from file_blocks import File, read_blocks
from libraries import LIBRARIES, AsyncSocket, Library

WORKERS: Final = 2

#: The messages of the feed: a topic, then one part or two.
FEED_ENDPOINT: Final = b"endpoint"  # of the sender
FEED_START: Final = b"start"  # CLOCK of the sender's first send
FEED_UNREAD: Final = b"unread"  # NUMBERs of blocks that the sender could not read
FEED_DIGESTS: Final = b"digests"  # PROGRESS, then DIGEST after DIGEST

NUMBER: Final = struct.Struct("!I")  # of a block
CLOCK: Final = struct.Struct("!d")  # seconds of CLOCK_MONOTONIC, which all processes share
PROGRESS: Final = struct.Struct("!BdQ")  # worker, CLOCK of its newest digest, bytes since its last report
DIGEST: Final = struct.Struct("!I32s")  # number of a block, its SHA-256

REPORT_INTERVAL_S: Final = 0.02  # between two reports of a worker that has something to report


async def send(library: Library, *, feed: str, files: list[list[Any]], block: int) -> None:
    """Sends every block of every file to the workers."""
    news = await library.feed(feed)
    push, endpoint = library.push()
    try:
        await news.send_multipart([FEED_ENDPOINT, endpoint.encode()])
        await library.wait_pulls(push, WORKERS)
        await news.send_multipart([FEED_START, CLOCK.pack(time.monotonic())])
        unread = await send_blocks(push, [File(*file) for file in files], block)
        await news.send_multipart([FEED_UNREAD, b"".join(map(NUMBER.pack, unread))])
        await asyncio.Event().wait()
    finally:
        await library.close(push, news)


async def send_blocks(push: AsyncSocket, files: list[File], block: int) -> list[int]:
    """Sends numbered blocks, one message each; returns the numbers of those that could not be read."""
    number, unread = 0, []
    for file in files:
        for data in read_blocks(file, block):
            if data is None:
                unread.append(number)
            else:
                await push.send_multipart([NUMBER.pack(number), data])
            number += 1
    return unread


class Hasher:
    """Takes the digest of each block and reports it.

    Args:
        worker: The number of this worker.
        pull: The source of the blocks.
        news: The feed.
    """

    def __init__(self, worker: int, pull: AsyncSocket, news: AsyncSocket) -> None:
        self._worker = worker
        self._pull = pull
        self._news = news
        self._digests: list[bytes] = []  # packed DIGESTs since the last report
        self._size = 0  # bytes since the last report
        self._newest = 0.0  # CLOCK of the newest digest

    async def hash(self) -> None:
        """Hashes for ever."""
        while True:
            head, data = await self._pull.recv_multipart()
            (number,) = NUMBER.unpack(head)
            self._digests.append(DIGEST.pack(number, hashlib.sha256(data).digest()))
            self._size += len(data)
            self._newest = time.monotonic()

    async def report(self) -> None:
        """Reports for ever."""
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            if self._digests:
                progress = PROGRESS.pack(self._worker, self._newest, self._size)
                digests, self._digests, self._size = self._digests, [], 0
                await self._news.send_multipart([FEED_DIGESTS, progress, b"".join(digests)])


async def hash_blocks(library: Library, *, feed: str, endpoint: str, worker: int) -> None:
    """Hashes blocks and reports their digests."""
    news = await library.feed(feed)
    pull = library.pull(endpoint)
    hasher = Hasher(worker, pull, news)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(hasher.hash())
            group.create_task(hasher.report())
    finally:
        await library.close(pull, news)


ROLES: Final[dict[str, Callable[..., Coroutine[Any, Any, None]]]] = {"sender": send, "worker": hash_blocks}


async def run_job(job: dict[str, Any]) -> None:
    """Does the job until standard input ends."""
    role = ROLES[job.pop("role")]
    task = asyncio.ensure_future(role(LIBRARIES[job.pop("library")](), **job))
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main() -> None:
    """Reads the job and does it."""
    line = sys.stdin.buffer.readline()
    if line:
        uvloop.run(run_job(json.loads(line)))


if __name__ == "__main__":
    main()
