"""The processes of the broker's demo: the broker, which is killed, and the subscriber, which replays.

A child ends when its standard input does: whatever happens to the parent, no child outlives it.
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any, Final, Self

import click

from omq.broker import Client

PATIENCE: Final = 30.0  # seconds that a broker has to serve, and to end
REPORT_INTERVAL: Final = 0.05  # seconds between two reports of the subscriber
LOG_SHOWN: Final = 2000  # characters of a log that a message shows


def spawn(call: str, **options: Any) -> "Popen[bytes]":
    """Starts a process that imports what this one would, and calls a function of this module."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from omq.cli import players; players.{call}"
    # In a session of its own, Ctrl-C is the parent's affair alone.
    return Popen([sys.executable, "-c", code], stdin=PIPE, start_new_session=True, **options)


def finish(process: "Popen[bytes]", patience: float) -> int:
    """Waits for a process, and kills it if it takes too long."""
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class BrokerProcess:
    """`omq broker` on a directory, which may be killed and started again.

    Args:
        folder: Where its directory, its ready file and its log are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: Popen[bytes] | None = None

    def start(self, endpoint: str = "tcp://127.0.0.1:*") -> str:
        """Starts it, and waits until it serves.

        Returns:
            The endpoint of its ZMTP door.

        Raises:
            ClickException: It ends instead, or does not serve in time.
        """
        ready, log = self._folder / "ready.json", self._folder / "broker.log"
        ready.unlink(missing_ok=True)
        arguments = [str(self._folder / "data"), "--bind", endpoint, "--ready-file", str(ready)]
        with open(log, "ab") as file:
            self._process = spawn(f"serve({arguments!r})", stderr=file, stdout=DEVNULL)
        end = time.monotonic() + PATIENCE
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                said = log.read_text(errors="replace")[-LOG_SHOWN:]
                raise click.ClickException(f"the broker does not serve:\n{said}")
            time.sleep(0.005)
        return str(json.loads(ready.read_bytes())["zmtp"])

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Ends it in an orderly way.

        Raises:
            ClickException: It does not end so.
        """
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            if code := finish(self._process, PATIENCE):
                raise click.ClickException(f"the broker has ended with status {code}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


class ReplayProcess:
    """A subscriber that reads a topic from the beginning to its end.

    Args:
        topic: The topic.
        end: The key of the last message.

    Attributes:
        received: Messages so far, also those that came twice.
        size: Their bytes.
        repeated: Messages whose id had come before.
        missing: Ids that were passed over.
        seconds: From the subscription to the last message.
        digest: SHA-256 of all bodies in their order, once it is done.
        done: Whether the last message has come.
    """

    def __init__(self, topic: str, end: bytes) -> None:
        self.received = self.size = self.repeated = self.missing = 0
        self.seconds = 0.0
        self.digest = ""
        self.done = False
        self._topic = topic
        self._end = end
        self._process: Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def start(self, endpoint: str) -> None:
        """Subscribes."""
        self._process = spawn(f"replay({endpoint!r}, {self._topic!r}, {self._end!r})", stdout=PIPE)
        self._reader = threading.Thread(target=self._read, name="replay", daemon=True)
        self._reader.start()

    def check(self) -> None:
        """Raises if it has failed.

        Raises:
            ClickException: It has.
        """
        if self._process is not None and self._process.poll() and not self.done:
            raise click.ClickException(f"the subscriber has ended with status {self._process.returncode}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            finish(self._process, 3.0)
        if self._reader is not None:
            self._reader.join()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as reports:
            for line in reports:
                report = json.loads(line)
                # `done` comes last: who sees it sees all the rest.
                for name in ("received", "size", "repeated", "missing", "seconds", "digest", "done"):
                    setattr(self, name, report[name])


def end_with_input() -> None:
    """Ends this process when its standard input does."""

    def wait() -> None:
        # Not through the buffer: its lock would be held when the interpreter ends.
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def serve(arguments: list[str]) -> None:
    """The broker's process."""
    from omq.cli.main import main

    end_with_input()
    main(["broker", *arguments])


def replay(endpoint: str, topic: str, end: bytes) -> None:
    """The subscriber's process: reads from the beginning, and reports in lines of JSON."""
    end_with_input()
    digest = hashlib.sha256()
    received = size = repeated = missing = last = 0
    began = shown = time.monotonic()

    def report(*, done: bool = False) -> None:
        figures: dict[str, Any] = {"received": received, "size": size, "repeated": repeated, "missing": missing}
        figures |= {"seconds": time.monotonic() - began, "digest": digest.hexdigest() if done else "", "done": done}
        print(json.dumps(figures), flush=True)

    with contextlib.suppress(BrokenPipeError), Client(endpoint) as client:
        with client.subscribe(topic, replay="beginning") as subscription:
            for message in subscription:
                if message.id <= last:
                    repeated += 1
                else:
                    missing += message.id - last - 1
                    last = message.id
                if message.key == end:
                    break
                received += 1
                size += len(message.body)
                digest.update(message.body)
                now = time.monotonic()
                if now > shown + REPORT_INTERVAL:
                    shown = now
                    report()
        report(done=True)
