"""A context: what the sockets of one application share. There is no other shared state in omq."""

from __future__ import annotations

import os
import threading

from omq._core.buffer import Pool
from omq.engine.inproc import Registry


class Context:
    """Holds the names bound over inproc and the memory that connections borrow.

    Two contexts never see each other. A socket made without a context uses `Context.default()`.
    """

    _default: Context | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.pool = Pool()
        self.inproc = Registry()

    @classmethod
    def default(cls) -> Context:
        """The context of those who do not care; made on first use, and made anew in a forked child."""
        with cls._lock:
            if cls._default is None or cls._default.pid != os.getpid():
                cls._default = cls()
            return cls._default
