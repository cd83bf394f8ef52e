"""`omq demo-goby`: a vehicle, a logger and a live view on a bus, held until all are there, and played once more."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.table import Table

from omq.cli.gobyd import missing_extra
from omq.cli.number import Finite
from omq.errors import OmqError, Timeout

if TYPE_CHECKING:
    from omq.goby import Portal, Received

FREQUENCY: Final = 10.0  # navigation solutions a second
GROUPS: Final = "nav|status"
PATIENCE: Final = 10.0  # seconds that a process has to serve, or to end
SHOW: Final = 1.0  # seconds between two lines of the live view
LATE: Final = 0.5  # seconds after which the vehicle comes
LOG_SHOWN: Final = 2000  # characters

Say = Callable[[str], None]


def end_with_input() -> None:
    """Ends this process when its standard input does: it does not outlive the demo."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def command(arguments: list[str]) -> None:
    """A child: a command of omq's."""
    from omq.cli.main import main

    end_with_input()
    main(arguments)


def vehicle(base: str) -> None:
    """A child: a vehicle that dives in circles, until it is asked on the bus to end."""
    from omq.goby import Application
    from omq.goby.protobuf.demo_pb2 import Navigation

    class Vehicle(Application):
        name = "vehicle"
        frequency = FREQUENCY
        count = 0

        def loop(self) -> None:
            angle = self.count / FREQUENCY / 5
            self.publish(
                "nav",
                Navigation(
                    time=time.time_ns() // 1000,
                    lat=41.52 + 0.0002 * math.sin(angle),
                    lon=-70.67 + 0.0003 * math.cos(angle),
                    depth=10 - 10 * math.cos(angle / 3),
                    heading=-math.degrees(angle) % 360,
                    speed=1.5 + 0.2 * math.sin(angle * 3),
                ),
            )
            self.count += 1
            if self.count % FREQUENCY == 0:
                self.publish("status", {"battery": 26.0 - self.count / 1000, "published": self.count})

        def finalize(self) -> None:
            self.publish("status", {"published": self.count})

    end_with_input()
    sys.exit(Vehicle(socket_name=base).run())


class Child:
    """A process of the demo.

    Args:
        name: What it is.
        call: What it calls of this module.
        folder: Where its log is.
    """

    def __init__(self, name: str, call: str, folder: Path) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        code = f"import sys; sys.path[:] = {sys.path!r}; from omq.cli import demo_goby; demo_goby.{call}"
        with self._log.open("ab") as log:
            # In a session of its own, Ctrl-C is the parent's affair alone.
            self.process: Popen[bytes] = Popen(
                [sys.executable, "-c", code], stdin=PIPE, stdout=log, stderr=log, start_new_session=True
            )

    def fail(self, what: str) -> click.ClickException:
        """What is raised where it does not do what it should."""
        return click.ClickException(f"the {self.name} {what}:\n{self._log.read_text(errors='replace')[-LOG_SHOWN:]}")

    def await_file(self, path: Path) -> dict[str, str]:
        """Waits for its ready file."""
        end = time.monotonic() + PATIENCE
        while not path.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                raise self.fail("does not serve")
            time.sleep(0.005)
        found: dict[str, str] = json.loads(path.read_bytes())
        return found

    def end(self, number: int | None = None) -> None:
        """Waits for its orderly end.

        Args:
            number: The signal that has it end; `None`: it ends by itself.
        """
        if number is not None:
            self.process.send_signal(number)
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise self.fail("does not end") from None
        if status:
            raise self.fail(f"has ended with status {status}")

    def stop(self) -> None:
        """Ends it, whatever it does."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@dataclass
class Story:
    """What has happened.

    Attributes:
        published: Publications that the vehicle says it has made.
        live: Those of the live view, and when they came: seconds.
        recorded: Those in the log, and when they came: nanoseconds.
        replayed: Those that were played once more, and when they came: seconds.
        speed: How much faster.
        first: Seconds from the last "ready" to the first navigation solution.
    """

    speed: float
    published: int = 0
    first: float = 0.0
    live: list[tuple[float, Received]] = field(default_factory=list)
    recorded: list[tuple[int, Received]] = field(default_factory=list)
    replayed: list[tuple[float, Received]] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        """Publications that are not the same everywhere."""
        lists = [[tuple(one) for _, one in found] for found in (self.live, self.recorded, self.replayed)]
        longest = max(len(found) for found in lists)
        return sum(len({found[n] if n < len(found) else None for found in lists}) > 1 for n in range(longest))

    @property
    def jitter(self) -> float:
        """Seconds that half of the replayed publications were nearer to their time than."""
        if not self.recorded or len(self.recorded) != len(self.replayed):
            return math.nan
        begun, again = self.recorded[0][0], self.replayed[0][0]
        pairs = zip(self.recorded, self.replayed, strict=True)
        errors = sorted(abs((at - begun) / 1e9 / self.speed - (when - again)) for (at, _), (when, _) in pairs)
        return errors[len(errors) // 2]


def gobyd(stack: ExitStack, folder: Path, base: str, *required: str) -> Child:
    """A gobyd that serves."""
    ready = folder / "gobyd.ready"
    arguments = ["gobyd", "--socket-name", base, "--ready-file", str(ready)]
    for name in required:
        arguments += ["--required-client", name]
    child = Child("gobyd", f"command({arguments!r})", folder)
    stack.callback(child.stop)
    child.await_file(ready)
    return child


def watch(view: Portal, found: Any, story: Story, seconds: float, say: Say) -> None:
    """The live view: takes all that comes for a while, and shows some of it."""
    from omq.goby.protobuf.demo_pb2 import Navigation

    shown, end = 0.0, time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        with suppress(Timeout):
            publication = found.recv(timeout=min(end - now, 0.1))
            story.live.append((time.monotonic(), publication))
            if publication.group == "nav" and time.monotonic() > shown + SHOW:
                shown = time.monotonic()
                fix = Navigation.FromString(publication.data)
                say(
                    f"nav: {fix.lat:.5f} N {-fix.lon:.5f} W, {fix.depth:4.1f} m deep, "
                    f"heading {fix.heading:03.0f}, {fix.speed:.2f} m/s"
                )


def dive(folder: Path, base: str, story: Story, seconds: float, say: Say) -> None:
    """The first part: the vehicle dives, the logger records."""
    from omq.goby import Portal
    from omq.goby.protobuf import TerminateRequest

    with ExitStack() as stack:
        daemon = gobyd(stack, folder, base, "vehicle", "logger", "view")
        arguments = ["goby", "log", str(folder / "log"), "--socket-name", base, "--name", "logger", "--group", GROUPS]
        logger = Child("logger", f"command({arguments!r})", folder)
        stack.callback(logger.stop)
        view = stack.enter_context(Portal("view", socket_name=base))
        found = view.subscribe_regex(GROUPS)
        ended = threading.Event()
        view.subscribe("status", dict, lambda status: ended.set() if "battery" not in status else None)
        view.ready()
        time.sleep(LATE)
        say(f"gobyd holds all publications: it waits for {', '.join(view.missing()) or 'nobody'}")
        diver = Child("vehicle", f"vehicle({base!r})", folder)
        stack.callback(diver.stop)
        view.wait_released(PATIENCE)
        released = time.monotonic()
        say("all are there: released")
        watch(view, found, story, seconds, say)
        if not story.live:
            raise diver.fail("publishes nothing")
        story.first = max(story.live[0][0] - released, 0.0)
        view.publish("goby::terminate::request", TerminateRequest(target_name="vehicle"))
        diver.end()
        if not ended.wait(PATIENCE):
            raise diver.fail("has not said goodbye")
        with suppress(Timeout):
            while True:
                story.live.append((time.monotonic(), found.recv(timeout=0.2)))
        say(f"the vehicle was asked on the bus to end, and has: {len(story.live)} publications were seen")
        logger.end(signal.SIGTERM)
        view.close()
        daemon.end(signal.SIGTERM)


def again(folder: Path, base: str, story: Story, say: Say) -> None:
    """The second part: the log is played, and compared."""
    from omq.goby import Portal
    from omq.goby.record import Recording, publication_of

    with Recording(folder / "log") as recording:
        story.recorded = [(at, publication_of(frame)) for at, frame in recording]
    with ExitStack() as stack:
        daemon = gobyd(stack, folder, base, "player", "view")
        arguments = ["goby", "play", str(folder / "log"), "--socket-name", base, "--name", "player"]
        player = Child("player", f"command({[*arguments, '--speed', str(story.speed)]!r})", folder)
        stack.callback(player.stop)
        with Portal("view", socket_name=base) as view:
            found = view.subscribe_regex(GROUPS)
            view.ready()
            view.wait_released(PATIENCE)
            say(f"the log is played, {story.speed:g} times as fast")
            with suppress(Timeout):
                while len(story.replayed) < len(story.recorded):
                    publication = found.recv(timeout=PATIENCE)
                    story.replayed.append((time.monotonic(), publication))
            player.end()
        daemon.end(signal.SIGTERM)


def table(story: Story) -> Table:
    """The result."""
    import bson

    out = Table(title=f"navigation at {FREQUENCY:g} Hz, recorded and played {story.speed:g} times as fast")
    out.add_column("")
    out.add_column("", justify="right")
    story.published = max(
        (bson.decode(one.data)["published"] for _, one in story.live if one.group == "status"), default=0
    )
    navigation = {
        name: sum(one.group == "nav" for _, one in getattr(story, name)) for name in ("live", "recorded", "replayed")
    }
    out.add_row("navigation published", f"{story.published:,}")
    out.add_row("  seen live", f"{navigation['live']:,}")
    out.add_row("  in the log", f"{navigation['recorded']:,}")
    out.add_row("  played once more", f"{navigation['replayed']:,}")
    out.add_row("publications that differ", f"{story.wrong:,}")
    out.add_row("from the release to the first, ms", f"{story.first * 1e3:.1f}")
    out.add_row("played off its time, ms (median)", f"{story.jitter * 1e3:.2f}")
    if len(set(navigation.values()) | {story.published}) > 1 or story.wrong:
        out.caption = "something was lost"
    return out


@click.command("demo-goby")
@click.option("--seconds", type=Finite(1, 15), default=6.0, show_default=True, help="How long the vehicle dives.")
@click.option("--speed", type=Finite(1, 20), default=4.0, show_default=True, help="How much faster its log is played.")
def demo_goby(seconds: float, speed: float) -> None:
    """A vehicle, a logger and a live view on a Goby bus, held until all are there; the log is played and compared.

    A simulated vehicle publishes its navigation ten times a second. At the end it is asked on the bus to leave, and
    what was recorded is played faster, to be compared with what was seen.
    """
    try:
        import bson  # noqa: F401 - the vehicle's status is JSON

        import omq.goby  # noqa: F401
    except ImportError as missing:
        raise missing_extra(missing) from None
    console = Console(highlight=False)
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began:5.1f} s  {text}", soft_wrap=True)

    story = Story(speed)
    base = f"@omq-demo-goby-{os.getpid()}"  # abstract: no path is too long for it, and nothing is left
    try:
        with tempfile.TemporaryDirectory(prefix="omq-demo-") as folder:
            dive(Path(folder), base, story, seconds, say)
            again(Path(folder), base, story, say)
    except KeyboardInterrupt:
        click.echo("interrupted; every process has ended", err=True)
        sys.exit(130)
    except (OmqError, OSError) as fault:
        raise click.ClickException(str(fault)) from None
    result = table(story)
    console.print(result)
    if result.caption:
        raise click.ClickException("what was played is not what was published")
    console.print("what was published, seen, recorded and played is the same, byte for byte")
