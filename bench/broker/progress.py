"""What the bench is at: a line that is written anew on a terminal, and one every few seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time

EVERY = 5.0  # seconds between two lines where there is no terminal


class Progress:
    """Tells standard error what goes on, for as long as it goes on."""

    def __init__(self) -> None:
        self._text, self._since = "", 0.0
        self._terminal = sys.stderr.isatty()
        self._started = False

    def say(self, text: str) -> None:
        """Says what goes on from now on; nothing: it is over."""
        self._text, self._since = text, time.monotonic()
        if self._terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        if not self._started:
            self._started = True
            threading.Thread(target=self._tell, name="progress", daemon=True).start()

    def _tell(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(1.0)
            now, text = time.monotonic(), self._text
            if not text or (not self._terminal and now - last < EVERY):
                continue
            last = now
            line = f"{text} ({now - self._since:.0f} s)"
            print(f"\r\033[K{line}" if self._terminal else line, end="" if self._terminal else "\n", file=sys.stderr)


#: Of this process.
PROGRESS = Progress()
say = PROGRESS.say
