import asyncio
from typing import Any

from omq._core.queues.wait_queue import Turn

class AsyncTurn(Turn):
    """Runs the tasks that a round of events has woken at the end of that round."""

class Waiter:
    """What a task waits for while its call stands in a wait queue: as much of a Future as a task needs."""

    def get_loop(self) -> asyncio.AbstractEventLoop: ...
    def add_done_callback(self, callback: Any, *, context: Any = None) -> None: ...
    def result(self) -> None: ...
    def cancel(self, msg: Any = None) -> bool: ...
