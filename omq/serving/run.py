"""Runs a server command from its start to the signal that ends it."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop

from omq.serving.notify import ServiceNotifier
from omq.serving.ready import ReadyFile
from omq.serving.thread import RunningServer

__all__ = ["run_server"]

ENDING: Final = (signal.SIGTERM, signal.SIGINT)
#: The threshold of the young generation, in objects. Messages are freed by reference counts; with Python's 700, the
#: collector traverses most of them twice before that, which took a seventh of the CPU time.
GC_THRESHOLD_OBJECTS: Final = 20_000

#: Makes the coroutine of a reload.
Reload = Callable[[], Coroutine[Any, Any, None]]


def run_server(
    server: RunningServer,
    log: logging.Logger,
    *,
    ready_file: ReadyFile | Path | None = None,
    on_start: Callable[[], None] | None = None,
    on_hang_up: Reload | None = None,
) -> None:
    """Runs a server in the main thread until SIGTERM or SIGINT; a second signal ends the process at once.

    It reports its state to systemd, if that has started it with `Type=notify` (`omq.serving.notify`).

    Args:
            server: The server. If its task is cancelled, it ends as after a signal.
            log: The log for its endpoints and its end.
            ready_file: The file that lists the endpoints while the server runs; `None` for none.
            on_start: Called once it runs; `None` for no call.
            on_hang_up: Makes a coroutine at each SIGHUP, which runs in a task; `None`: SIGHUP ends the process.
    """
    ready = ready_file if isinstance(ready_file, ReadyFile) else ReadyFile(ready_file)
    uvloop.run(_serve(server, log, ready, on_start, on_hang_up))


async def _serve(
    server: RunningServer,
    log: logging.Logger,
    ready: ReadyFile,
    on_start: Callable[[], None] | None,
    on_hang_up: Reload | None,
) -> None:
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    assert task is not None
    notifier = ServiceNotifier(log)

    def end(number: signal.Signals) -> None:
        log.info("%s: ending", number.name, extra={"event": "stopping", "signal": number.name})
        for each in ENDING:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        task.cancel()

    for number in ENDING:
        loop.add_signal_handler(number, end, number)
    if on_hang_up is not None:
        loop.add_signal_handler(signal.SIGHUP, Reloads(on_hang_up, notifier))
    try:
        with ready.cleared():
            with collector_spared():
                await server.start()
            ready.write_if_possible(server.endpoints, log)
        if on_start is not None:
            on_start()
        for name, endpoint in server.endpoints.items():
            log.info("%s: %s", name, endpoint, extra={"event": "listening", "listener": name, "endpoint": endpoint})
        notifier.ready()
        notifier.ping_watchdog()
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass
    finally:
        ready.remove()
        notifier.stopping()
        await server.close()
    log.info("ended", extra={"event": "stopped"})


class Reloads:
    """Runs a reload in a task at each call, and reports to the service manager until all have finished.

    Args:
        reload: Makes the coroutine of a reload.
        notifier: Reports to the service manager.
    """

    def __init__(self, reload: Reload, notifier: ServiceNotifier) -> None:
        self._reload = reload
        self._notifier = notifier
        self._tasks: set[asyncio.Task[None]] = set()  # the loop has only weak references

    def __call__(self) -> None:
        self._notifier.reloading()
        task = asyncio.get_running_loop().create_task(self._reload())
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._notifier.ready()


@contextmanager
def collector_spared() -> Iterator[None]:
    """Freezes the objects that are made in the block, and then raises the threshold of the young generation."""
    gc.disable()  # with 100,000 topics, a third of the start was spent on traversing existing objects
    try:
        yield
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS, *gc.get_threshold()[1:])
