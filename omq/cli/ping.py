"""`omq ping`: measures round trips to a REP socket."""

from __future__ import annotations

import os
import time
from array import array
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import click

import omq
from omq.cli.errors import echo, errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.key_options import security_options
from omq.cli.parameters import FiniteFloat, sigterm_interrupts
from omq.cli.percentiles import milliseconds, percentile
from omq.cli.sockets.options import check_endpoints, new_socket, note
from omq.cli.sockets.output import is_terminal
from omq.cli.sockets.pace import Pacer
from omq.errors import ReceiveTimeout, Timeout
from omq.event import EventKind
from omq.types import SocketType

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

EXAMPLE: Final = """\
omq ping --serve tcp://127.0.0.1:5555 -n 3 &
omq ping tcp://127.0.0.1:5555 -n 3 -i 0.1"""
FAILURES: Final = (EventKind.CONNECT_FAILED, EventKind.HANDSHAKE_FAILED)
LINE_INTERVAL_S: Final = 0.1  # below it, a terminal gets a table instead of lines
REFRESH_S: Final = 0.1  # of the table
RECENT_ROUND_TRIPS: Final = 1000  # in the table


class RoundTrips:
    """The round trips of a run.

    Attributes:
        endpoint: The endpoint that is measured.
        sent: Requests whose time is over: with a reply, or lost.
        times: Round trips in seconds.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.sent = 0
        self.times = array("d")
        self._started = time.monotonic()

    def summary(self) -> list[str]:
        """Returns the last lines, as those of `ping(8)`."""
        took = (time.monotonic() - self._started) * 1e3
        lines = [
            f"--- {self.endpoint} ping statistics ---",
            f"{self.sent} sent, {len(self.times)} received, {self._loss():.4g}% loss, time {took:.0f} ms",
        ]
        if self.times:
            values = " / ".join(map(milliseconds, self._figures(sorted(self.times))))
            lines.append(f"round trip min / p50 / p99 / max = {values} ms")
        return lines

    def table(self) -> Table:
        """Returns the figures of the last round trips for a terminal."""
        from rich.table import Table

        table = Table(title=f"omq ping {self.endpoint}")
        for name in ("sent", "received", "loss", "min ms", "p50 ms", "p99 ms", "max ms"):
            table.add_column(name, justify="right")
        recent = sorted(self.times[-RECENT_ROUND_TRIPS:])
        figures = map(milliseconds, self._figures(recent)) if recent else "-" * 4
        table.add_row(str(self.sent), str(len(self.times)), f"{self._loss():.4g}%", *figures)
        return table

    def _loss(self) -> float:
        return 100 * max(0, self.sent - len(self.times)) / max(self.sent, 1)

    @staticmethod
    def _figures(ordered: list[float]) -> tuple[float, float, float, float]:
        return ordered[0], percentile(ordered, 50), percentile(ordered, 99), ordered[-1]


class Pinger:
    """Sends requests, and measures how long each reply takes.

    Args:
        socket: A REQ that abandons a request without a reply.
        size: Bytes of a request.
        timeout: Seconds that a reply may take.
    """

    def __init__(self, socket: omq.Socket, size: int, timeout: float) -> None:
        self._socket = socket
        self._monitor = socket.monitor()
        self._data = os.urandom(size)
        self._timeout = timeout

    def ping(self) -> float:
        """Returns the seconds of a round trip.

        Raises:
            Timeout: There was no reply in time, or no connection.
        """
        started = time.perf_counter()
        self._socket.send(self._data, timeout=self._timeout)
        self._socket.recv_multipart(timeout=self._timeout)
        return time.perf_counter() - started

    def reason(self, fault: Timeout) -> str:
        """Returns why a round trip has failed: the last failure of the connection, if there was one."""
        failed = ""
        with suppress(ReceiveTimeout):
            while True:
                event = self._monitor.recv(timeout=0)
                failed = event.detail if event.kind in FAILURES else failed
        if isinstance(fault, ReceiveTimeout):
            return f"no reply within {self._timeout:g} s"
        return f"not connected{failed and ': '}{failed}"


def serve(endpoint: str, count: int | None, options: dict[str, Any]) -> None:
    """Replies to each request with its content."""
    with new_socket(SocketType.REP, {**options, "bind": (endpoint,), "connect": ()}) as rep:
        bound = rep.bind(endpoint)
        if bound != endpoint:
            note(f"bound to {bound}")
        for _ in range(count) if count is not None else iter(int, 1):
            rep.send_multipart(rep.recv_multipart())


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.argument("endpoint")
@click.option("--serve", "as_server", is_flag=True, help="Bind ENDPOINT, and reply to the pings of other processes.")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Round trips after which to end.")
@click.option(
    "-i", "--interval", type=FiniteFloat(0), default=1.0, show_default=True, help="Seconds between two requests."
)
@click.option("-s", "--size", type=click.IntRange(0), default=64, show_default=True, help="Bytes of a request.")
@click.option(
    "-t",
    "--timeout",
    type=FiniteFloat(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds after which a reply is lost.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the last lines only.")
@security_options
def ping(
    endpoint: str,
    as_server: bool,
    count: int | None,
    interval: float,
    size: int,
    timeout: float,
    quiet: bool,
    **options: Any,
) -> None:
    """Measure round trips to a REP socket at ENDPOINT that replies to everything.

    Such a socket is `omq ping --serve`, or `omq rep --echo`. With an --interval below 0.1, a terminal shows a table of
    the last 1000 round trips.

    Ends with status 1 if there was no reply at all.
    """
    with errors_of_command("the command", "cli"), sigterm_interrupts():
        if as_server:
            with suppress(KeyboardInterrupt):
                serve(endpoint, count, options)
            return
        check_endpoints(SocketType.REQ, (), (endpoint,))
        found = RoundTrips(endpoint)
        with suppress(KeyboardInterrupt):
            run(found, count, interval, size, timeout, quiet, {**options, "bind": (), "connect": (endpoint,)})
    for line in found.summary():
        echo(line)
    if not found.times:
        raise click.exceptions.Exit(1)


def run(
    found: RoundTrips,
    count: int | None,
    interval: float,
    size: int,
    timeout: float,
    quiet: bool,
    options: dict[str, Any],
) -> None:
    """Measures round trips until there are enough, or a signal comes."""
    fixed = {"req_relaxed": True, "req_correlate": True, "immediate": True, "linger": 0}
    as_table = is_terminal() and interval < LINE_INTERVAL_S and not quiet
    with ExitStack() as stack:
        socket = stack.enter_context(new_socket(SocketType.REQ, options, **fixed))
        pinger = Pinger(socket, size, timeout)
        socket.connect(found.endpoint)
        live = stack.enter_context(live_table(found)) if as_table else None
        if not quiet and live is None:
            echo(f"PING {found.endpoint}: {size} bytes")
        with suppress(Timeout):
            socket.wait_connected(timeout=timeout)  # so that the first round trip does not include the handshake
        pacer = Pacer(interval)
        while count is None or found.sent < count:
            pacer.wait()
            try:
                took = pinger.ping()
            except Timeout as fault:
                text = pinger.reason(fault)
            else:
                found.times.append(took)
                text = f"time={milliseconds(took)} ms"
            found.sent += 1
            if not quiet and live is None:
                echo(f"seq={found.sent} {text}")


def live_table(found: RoundTrips) -> Live:
    """Returns the table on a terminal that shows the figures while they change."""
    from rich.live import Live

    return Live(get_renderable=found.table, refresh_per_second=1 / REFRESH_S)
