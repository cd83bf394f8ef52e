"""The process that Spark asks for offsets, as the coordinator sees it: one run of the query."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from typing import Any, Final

import omq
from omq.spark.live.coordinator import name_of
from omq.spark.live.process import launch
from omq.spark.live.trusted import Channel, Place, is_ours

log = logging.getLogger("omq.spark")

STARTING: Final = 20.0  # seconds that a coordinator may take to begin


class Run:
    """One run of a stream.

    Args:
        stream: The stream's name.
        keep: Seconds that owners outlive it.

    Attributes:
        place: Where the coordinator is.
        secret: The stream's secret.
    """

    def __init__(self, stream: str, keep: float) -> None:
        self._stream = stream
        self._keep = keep
        self.secret = b""
        self.place: Place | None = None
        self._channel = self._attach()

    def _attach(self) -> Channel:
        """A line to the coordinator, which is started if it is not there."""
        deadline = time.monotonic() + STARTING
        started = False
        while True:
            channel = self._reach()
            if channel is not None:
                found = channel.hear()
                self.place, self.secret = Place.heard(found["place"]), bytes.fromhex(found["secret"])
                channel.send({"keep": self._keep})
                return channel
            if not started:
                started = True
                # Owners find one that stands in for another where that was.
                port = self.place.port if self.place else 0
                told = {"stream": self._stream, "secret": self.secret.hex(), "port": port}
                try:
                    launch("omq.spark.live.coordinator", json.dumps(told).encode())
                except OSError as error:
                    raise omq.StateError(f"the stream's coordinator cannot be started: {error}") from None
            if time.monotonic() > deadline:
                raise omq.StateError(f"the stream's coordinator has not begun within {STARTING:g} s")
            time.sleep(0.02)

    def _reach(self) -> Channel | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(f"\0{name_of(self._stream)}/run")
        except OSError:
            sock.close()
            return None
        if not is_ours(sock):
            sock.close()
            raise omq.StateError("another user's process has the name that this stream's coordinator needs")
        return Channel(sock)

    def commit(self, number: int) -> None:
        """Lets the owners forget microbatches up to this one."""
        with contextlib.suppress(OSError):
            self._channel.send({"commit": number})

    def status(self) -> dict[str, Any]:
        """How the owners are, and what was lost with one since this was last asked."""
        for _ in range(2):
            try:
                found = self._channel.ask({"status": True})
                for text in found.pop("said"):
                    log.warning("%s", text)
                return found
            except (OSError, EOFError):
                self._channel.close()
                self._channel = self._attach()
        return {"partitions": [], "lost": []}
