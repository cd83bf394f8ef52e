"""Child processes that end with their owner, whichever way it ends."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any, Final, Self

import click

PATIENCE: Final = 3.0  # seconds that a child has to end by itself


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
        # A second Ctrl-C may cut the waiting short; the children have been told by then.
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        await asyncio.gather(*(self._end(process) for process in self._processes))

    async def start(self, role: str, **job: Any) -> None:
        """Starts a process with a job of `omq.cli.roles`."""
        # The child imports what this process would import, from wherever the package is used.
        code = f"import sys; sys.path[:] = {sys.path!r}; from omq.cli.roles import main; main()"
        # In a session of its own, Ctrl-C is this process's affair alone.
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=PIPE, start_new_session=True)
        self._processes.append(process)
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has died already: the watcher tells
            process.stdin.write(json.dumps({"role": role, **job}).encode() + b"\n")
            await process.stdin.drain()
        self._watchers.add(asyncio.create_task(self._watch(role, process)))

    async def lost(self) -> None:
        """Waits until a process ends that should not, and raises."""
        await self._loss

    async def _watch(self, role: str, process: Process) -> None:
        code = await process.wait()
        if not self._loss.done():
            self._loss.set_exception(click.ClickException(f"the {role} process ended early, with code {code}"))

    async def _end(self, process: Process) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        except asyncio.CancelledError:
            if process.returncode is None:
                process.kill()
            raise
