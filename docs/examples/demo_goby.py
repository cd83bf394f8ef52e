"""Has a vehicle, a logger and a live view meet on a Goby bus, and plays the log once more: `make demo-goby`."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

try:
    import bson  # of pymongo: the vehicle's status is BSON

    from omq.goby import Portal, Received, Subscription
except ImportError as missing:
    raise SystemExit(f"Error: {missing}; the demo needs pip install 'omq-zmtp[goby,cli]'") from None

from child_processes import Child, OmqCommand, OmqServer
from demo_commands import SETTINGS, reporter, scratch_folder
from navigation_pb2 import Navigation
from omq.cli.parameters import FiniteFloat
from omq.errors import Timeout
from omq.goby.protobuf import TerminateRequest
from omq.goby.record import Recording, publication_of
from vehicle import Vehicle

GROUPS: Final = "nav|status"
STEP_TIMEOUT_S: Final = 10.0  # for the release of the hold, the last status and the next replayed publication
QUIET_S: Final = 0.2  # without a publication, until the live view has seen all
VIEW_INTERVAL_S: Final = 1.0  # between two lines of the live view
VEHICLE_DELAY_S: Final = 0.5  # so that the hold is seen

Report = Callable[[str], None]


@dataclass
class BusTrace:
    """The publications of a run.

    Attributes:
        published: The number of navigation solutions in the vehicle's last status.
        live: Those of the live view, each with its time of arrival in seconds.
        recorded: Those in the log, each with its time in nanoseconds.
        replayed: Those that were played once more, each with its time of arrival in seconds.
        speed: The speed of the replay, in terms of the recording's.
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
        """The number of publications that are not the same everywhere."""
        lists = [[tuple(one) for _, one in found] for found in (self.live, self.recorded, self.replayed)]
        longest = max(len(found) for found in lists)
        return sum(len({found[n] if n < len(found) else None for found in lists}) > 1 for n in range(longest))

    @property
    def jitter(self) -> float:
        """The median of the seconds between the time of a replayed publication and its arrival."""
        if not self.recorded or len(self.recorded) != len(self.replayed):
            return math.nan
        begun, again = self.recorded[0][0], self.replayed[0][0]
        pairs = zip(self.recorded, self.replayed, strict=True)
        errors = sorted(abs((at - begun) / 1e9 / self.speed - (when - again)) for (at, _), (when, _) in pairs)
        return errors[len(errors) // 2]


@contextmanager
def serve(folder: Path, base: str, *required: str) -> Iterator[OmqServer]:
    """Starts gobyd, and waits until it serves."""
    clients = [word for name in required for word in ("--required-client", name)]
    with OmqServer("gobyd", folder, "gobyd", "--socket-name", base, *clients) as server:
        server.endpoints()
        yield server


def watch(view: Subscription, trace: BusTrace, seconds: float, report: Report) -> None:
    """Receives all publications for a while, and reports some of the navigation."""
    reported, end = 0.0, time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        with suppress(Timeout):
            publication = view.recv(timeout=min(end - now, 0.1))
            trace.live.append((time.monotonic(), publication))
            if publication.group == "nav" and time.monotonic() > reported + VIEW_INTERVAL_S:
                reported = time.monotonic()
                fix = Navigation.FromString(publication.data)
                report(
                    f"nav: {fix.lat:.5f} N {-fix.lon:.5f} W, {fix.depth:4.1f} m deep, "
                    f"heading {fix.heading:03.0f}, {fix.speed:.2f} m/s"
                )


def dive(folder: Path, base: str, trace: BusTrace, seconds: float, report: Report) -> None:
    """Has the vehicle dive, and the logger record it."""
    log = ("goby", "log", folder / "log", "--socket-name", base, "--name", "logger", "--group", GROUPS)
    with (
        serve(folder, base, "vehicle", "logger", "view") as daemon,
        OmqCommand("logger", folder, *log) as logger,
        Portal("view", socket_name=base) as portal,
    ):
        view = portal.subscribe_regex(GROUPS)
        ended = threading.Event()
        portal.subscribe("status", dict, lambda status: ended.set() if "battery" not in status else None)
        portal.ready()
        time.sleep(VEHICLE_DELAY_S)
        report(f"gobyd holds all publications: it waits for {', '.join(portal.missing()) or 'no client'}")
        program = Path(__file__).with_name("vehicle.py")
        with Child("vehicle", program, base, log=folder / "vehicle.log") as vehicle:
            portal.wait_released(STEP_TIMEOUT_S)
            released = time.monotonic()
            report("all clients are ready: released")
            watch(view, trace, seconds, report)
            if not trace.live:
                raise vehicle.error("publishes nothing")
            trace.first = max(trace.live[0][0] - released, 0.0)
            portal.publish("goby::terminate::request", TerminateRequest(target_name="vehicle"))
            vehicle.end()
            if not ended.wait(STEP_TIMEOUT_S):
                raise vehicle.error("has not published its last status")
        with suppress(Timeout):
            while True:
                trace.live.append((time.monotonic(), view.recv(timeout=QUIET_S)))
        report(f"the vehicle was asked on the bus to end, and has: {len(trace.live)} publications were seen")
        logger.end(signal.SIGTERM)
        portal.close()
        daemon.end(signal.SIGTERM)


def play_again(folder: Path, base: str, trace: BusTrace, report: Report) -> None:
    """Plays the log, and records the publications of the live view."""
    with Recording(folder / "log") as recording:
        trace.recorded = [(at, publication_of(frame)) for at, frame in recording]
    play = ("goby", "play", folder / "log", "--socket-name", base, "--name", "player", "--speed", str(trace.speed))
    with serve(folder, base, "player", "view") as daemon, OmqCommand("player", folder, *play) as player:
        with Portal("view", socket_name=base) as portal:
            view = portal.subscribe_regex(GROUPS)
            portal.ready()
            portal.wait_released(STEP_TIMEOUT_S)
            report(f"the log is played, {trace.speed:g} times as fast")
            with suppress(Timeout):
                while len(trace.replayed) < len(trace.recorded):
                    publication = view.recv(timeout=STEP_TIMEOUT_S)
                    trace.replayed.append((time.monotonic(), publication))
            player.end()
        daemon.end(signal.SIGTERM)


def table(trace: BusTrace) -> Table:
    """Returns the result as a table."""
    title = f"navigation at {Vehicle.frequency:g} Hz, recorded and played {trace.speed:g} times as fast"
    out = Table(title=title)
    out.add_column("")
    out.add_column("", justify="right")
    trace.published = max(
        (bson.decode(one.data)["published"] for _, one in trace.live if one.group == "status"), default=0
    )
    navigation = {
        name: sum(one.group == "nav" for _, one in getattr(trace, name)) for name in ("live", "recorded", "replayed")
    }
    out.add_row("navigation published", f"{trace.published:,}")
    out.add_row("  seen live", f"{navigation['live']:,}")
    out.add_row("  in the log", f"{navigation['recorded']:,}")
    out.add_row("  played once more", f"{navigation['replayed']:,}")
    out.add_row("publications that differ", f"{trace.wrong:,}")
    out.add_row("from the release to the first, ms", f"{trace.first * 1e3:.1f}")
    out.add_row("played off its time, ms (median)", f"{trace.jitter * 1e3:.2f}")
    if len(set(navigation.values()) | {trace.published}) > 1 or trace.wrong:
        out.caption = "something was lost"
    return out


@click.command(context_settings=SETTINGS)
@click.option("--seconds", type=FiniteFloat(1, 15), default=6.0, show_default=True, help="How long the vehicle dives.")
@click.option(
    "--speed", type=FiniteFloat(1, 20), default=4.0, show_default=True, help="How much faster its log is played."
)
def demo_goby(seconds: float, speed: float) -> None:
    """A vehicle, a logger and a live view on a Goby bus, held until all are ready; the log is played and compared.

    A simulated vehicle publishes its navigation ten times a second. At the end it is asked on the bus to leave, and
    the recording is played faster, and compared with the live view.
    """
    console = Console(highlight=False)
    report = reporter(console)
    trace = BusTrace(speed)
    base = f"@omq-demo-goby-{os.getpid()}"  # abstract: no path is too long for it, and nothing is left
    with scratch_folder() as folder:
        dive(folder, base, trace, seconds, report)
        play_again(folder, base, trace, report)
    result = table(trace)
    console.print(result)
    if result.caption:
        raise click.ClickException("what was played is not what was published")
    console.print("what was published, seen, recorded and played is the same, byte for byte")


if __name__ == "__main__":
    demo_goby()
