"""The child processes of `demo.py`, started and awaited with asyncio."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any, Final, Self

from child import EXIT_TIMEOUT_S, ChildError

PROGRAM: Final = Path(__file__).with_name("roles.py")


class ProcessGroup:
    """The processes of one run; leaving the block ends them all."""

    def __init__(self) -> None:
        self._processes: list[Process] = []
        self._watchers: set[asyncio.Task[None]] = set()
        self._loss: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def pids(self) -> list[int]:
        """The processes started so far."""
        return [process.pid for process in self._processes]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        self._loss.cancel()
        # A second Ctrl-C may cut the waiting short; the input of every child has ended by then.
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        await asyncio.gather(*(self._end(process) for process in self._processes))

    async def start(self, role: str, **job: Any) -> None:
        """Starts a process with a job of `roles.py`."""
        # In a session of its own: a Ctrl-C is for this process alone.
        process = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, stdin=PIPE, start_new_session=True)
        self._processes.append(process)
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has died already: the watcher reports that
            process.stdin.write(json.dumps({"role": role, **job}).encode() + b"\n")
            await process.stdin.drain()
        self._watchers.add(asyncio.create_task(self._watch(role, process)))

    async def lost(self) -> None:
        """Waits until a process ends, and raises `ChildError`."""
        await self._loss

    async def _watch(self, role: str, process: Process) -> None:
        code = await process.wait()
        if not self._loss.done():
            self._loss.set_exception(ChildError(f"the {role} process ended early, with code {code}"))

    async def _end(self, process: Process) -> None:
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        except asyncio.CancelledError:
            if process.returncode is None:
                process.kill()
            raise
