"""The progress of the bench: a line that is rewritten on a terminal, and one every few seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time

LINE_INTERVAL_S = 5.0  # without a terminal


class ProgressLine:
    """Shows the current step on standard error until it ends."""

    def __init__(self) -> None:
        self._text, self._since = "", 0.0
        self._terminal = sys.stderr.isatty()
        self._started = False

    def show(self, text: str) -> None:
        """Shows a step from now on; an empty text ends it."""
        self._text, self._since = text, time.monotonic()
        if self._terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        if not self._started:
            self._started = True
            threading.Thread(target=self._repeat, name="progress", daemon=True).start()

    def _repeat(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(1.0)
            now, text = time.monotonic(), self._text
            if not text or (not self._terminal and now - last < LINE_INTERVAL_S):
                continue
            last = now
            line = f"{text} ({now - self._since:.0f} s)"
            print(f"\r\033[K{line}" if self._terminal else line, end="" if self._terminal else "\n", file=sys.stderr)


LINE = ProgressLine()
show = LINE.show
