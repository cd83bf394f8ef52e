"""The process that Spark asks for offsets, as the coordinator sees it: one run of the query."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from typing import Any, Final

import omq
from omq.spark.live.coordinator import name_of
from omq.spark.live.process import launch
from omq.spark.live.trusted import Channel, Place, is_ours
from omq.unpatched import sleep, socket, subprocess, threading

log = logging.getLogger("omq.spark")

STARTING: Final = 20.0  # seconds that a coordinator may take to begin
AGAIN: Final = 5.0  # seconds after which another is started
ATTEMPTS: Final = 3  # to start one
PATIENCE: Final = 5.0  # seconds that an answer may take


class Run:
    """One run of a stream.

    Args:
        stream: The stream's name.
        keep: Seconds that owners outlive it.
        wanted: What the connections are called that it wants; owners of others end.

    Attributes:
        place: Where the coordinator is.
        secret: The stream's secret.

    Raises:
        StateError: The coordinator cannot be started.
    """

    def __init__(self, stream: str, keep: float, wanted: list[str]) -> None:
        self._stream = stream
        self._first = {"keep": keep, "wanted": wanted}
        self._told: dict[str, Any] = {"partitions": [], "lost": [], "said": []}
        self._answers = 0
        self.secret = b""
        self.place: Place | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._channel = self._attach()
        threading.Thread(target=self._listen, name="omq-spark-run", daemon=True).start()

    def _attach(self) -> Channel:
        """A line to the coordinator, which is started if it is not there."""
        deadline = time.monotonic() + STARTING
        started = -AGAIN
        failures = 0
        while True:
            channel = self._reach()
            if channel is not None:
                return channel
            if time.monotonic() > deadline:
                raise omq.StateError(f"the stream's coordinator has not begun within {STARTING:g} s")
            if time.monotonic() > started + AGAIN:
                # Owners find one that stands in for another where that was.
                port = self.place.port if self.place else 0
                told = {"stream": self._stream, "secret": self.secret.hex(), "port": port}
                try:
                    launch("omq.spark.live.coordinator", json.dumps(told).encode())
                except (OSError, subprocess.SubprocessError) as error:
                    failures += 1  # it may have been killed
                    if failures == ATTEMPTS:
                        raise omq.StateError(f"the stream's coordinator cannot be started: {error}") from None
                else:
                    started = time.monotonic()
            sleep(0.02)

    def _reach(self) -> Channel | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(PATIENCE)
        try:
            sock.connect(f"\0{name_of(self._stream)}/run")
            if not is_ours(sock):
                raise omq.StateError("another user's process has the name that this stream's coordinator needs")
            channel = Channel(sock)
            found = channel.hear()
            self.place, self.secret = Place.heard(found["place"]), bytes.fromhex(found["secret"])
            # One that stands in for another learns from us which owners are to come.
            channel.send({**self._first, "known": self._told["partitions"]})
        except (OSError, EOFError):
            sock.close()
            return None
        except BaseException:
            sock.close()
            raise
        sock.settimeout(None)
        return channel

    def _listen(self) -> None:
        """Hears the answers; has another coordinator started where the one has died."""
        while not self._closed:
            try:
                answer = self._channel.hear()
            except (OSError, EOFError, ValueError, omq.OmqError):
                self._channel.close()
                if self._closed:
                    return
                try:
                    self._channel = self._attach()
                except omq.OmqError as error:
                    log.warning("%s", error)
                continue
            with self._changed:
                # What was lost is told once, though it be later than anybody waits for it.
                self._told["partitions"] = answer["partitions"]
                self._told["lost"] += answer["lost"]
                self._told["said"] += answer["said"]
                self._answers += 1
                self._changed.notify_all()

    def commit(self, number: int) -> None:
        """Lets the owners forget microbatches up to this one."""
        with contextlib.suppress(OSError):
            self._channel.send({"commit": number})

    def status(self) -> dict[str, Any]:
        """How the owners are, and what was lost with one since this was last asked; how they were if nobody answers."""
        with self._changed:
            before = self._answers
        with contextlib.suppress(OSError):
            self._channel.send({"status": True})
        with self._changed:
            self._changed.wait_for(lambda: self._answers > before, PATIENCE)
            found = dict(self._told)
            self._told = {**self._told, "lost": [], "said": []}
        for text in found.pop("said"):
            log.warning("%s", text)
        return found

    def close(self) -> None:
        """Ends the run, as the end of its process does."""
        self._closed = True
        self._channel.close()
