"""One round of `demo.py`: processes start, all files pass through them, processes end."""

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from child_processes import Child, ChildError
from file_blocks import FileSet
from hash_processes import (
    CLOCK,
    DIGEST,
    FEED_DIGESTS,
    FEED_ENDPOINT,
    FEED_START,
    FEED_UNREAD,
    NUMBER,
    PROGRESS,
    WORKERS,
)
from libraries import LIBRARIES, AsyncSocket, Library

PROGRAM: Final = Path(__file__).with_name("hash_processes.py")
POLL_INTERVAL_S: Final = 0.02
STALL_TIMEOUT_S: Final = 10.0  # without any message of the feed, until a round has failed


@dataclass
class Round:
    """One pass of all files through the workers.

    Attributes:
        digests: The digest of each block that arrived, by its number.
        repeated: The number of blocks that arrived more than once.
        unread: Numbers of the blocks that the sender could not read any more.
        size: Bytes that were hashed.
        shares: Blocks that each worker hashed.
        start: CLOCK of the first send.
        end: CLOCK of the newest digest.
    """

    digests: dict[int, bytes] = field(default_factory=dict)
    repeated: int = 0
    unread: set[int] = field(default_factory=set)
    size: int = 0
    shares: list[int] = field(default_factory=lambda: [0] * WORKERS)
    start: float = 0.0
    end: float = 0.0

    @property
    def seconds(self) -> float:
        """The time from the first send to the last digest."""
        return max(self.end - self.start, 1e-9)

    @property
    def blocks(self) -> int:
        """The number of blocks that are accounted for."""
        return len(self.digests) + len(self.unread)

    def note(self, topic: bytes, body: list[bytes]) -> None:
        """Adds up a message of the feed."""
        if topic == FEED_START:
            (self.start,) = CLOCK.unpack(body[0])
        elif topic == FEED_UNREAD:
            self.unread = {number for (number,) in NUMBER.iter_unpack(body[0])}
        elif topic == FEED_DIGESTS:
            worker, newest, size = PROGRESS.unpack(body[0])
            before = len(self.digests)
            self.digests.update(DIGEST.iter_unpack(body[1]))
            count = len(body[1]) // DIGEST.size
            self.repeated += count - (len(self.digests) - before)
            self.shares[worker] += count
            self.size += size
            self.end = max(self.end, newest)


class ProcessGroup:
    """The child processes of a round. Leaving the block ends them."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._stack = ExitStack()

    def start(self, role: str, **job: Any) -> None:
        """Starts a process with a job of `hash_processes.py`."""
        child = self._stack.enter_context(Child(f"{role} process", PROGRAM))
        self._children.append(child)
        child.write(json.dumps({"role": role, **job}).encode() + b"\n")

    async def watch(self) -> None:
        """Waits until a process ends.

        Raises:
            ChildError: One has ended.
        """
        while True:
            for child in self._children:
                if child.status is not None:
                    raise child.error(f"ended early, with code {child.status}")
            await asyncio.sleep(POLL_INTERVAL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


async def run_round(name: str, file_set: FileSet, show: Callable[[Round], None]) -> Round:
    """Runs one round with the library *name*; calls *show* after every message of the feed.

    Raises:
        ChildError: A process ended early, or nothing happens any more.
    """
    library: Library = LIBRARIES[name]()
    news, feed = library.listen()
    try:
        with ProcessGroup() as group:
            files = [[file.path, file.size] for file in file_set.files]
            group.start("sender", library=name, feed=feed, files=files, block=file_set.block)
            collecting = asyncio.create_task(collect(group, name, news, feed, len(file_set.digests), show))
            watching = asyncio.create_task(group.watch())
            try:
                await asyncio.wait({collecting, watching}, return_when=asyncio.FIRST_COMPLETED)
                if not collecting.done():
                    watching.result()
                return collecting.result()
            finally:
                collecting.cancel()
                watching.cancel()
    finally:
        await library.close(news)


async def collect(
    group: ProcessGroup, name: str, news: AsyncSocket, feed: str, blocks: int, show: Callable[[Round], None]
) -> Round:
    """Reads the feed until every block is accounted for."""
    result = Round()
    try:
        async with asyncio.timeout(STALL_TIMEOUT_S) as stall:
            while result.blocks < blocks:
                topic, *body = await news.recv_multipart()
                stall.reschedule(asyncio.get_running_loop().time() + STALL_TIMEOUT_S)
                if topic == FEED_ENDPOINT:
                    for worker in range(WORKERS):
                        job = {"library": name, "feed": feed, "endpoint": body[0].decode(), "worker": worker}
                        group.start("worker", **job)
                result.note(topic, body)
                show(result)
    except TimeoutError:
        got = f"{result.blocks:,} of {blocks:,} messages"
        raise ChildError(f"{name}: nothing has happened for {STALL_TIMEOUT_S:g} s, after {got}") from None
    return result
