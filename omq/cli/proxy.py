"""`omq proxy`: forwards between two sockets."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

import omq
from omq.cli.errors import errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.key_options import security_options
from omq.cli.parameters import FiniteFloat
from omq.cli.sockets.options import ENDPOINT, new_socket, note
from omq.errors import OmqError
from omq.types import SocketType

_F = TypeVar("_F", bound=Callable[..., Any])

EXAMPLE: Final = """\
omq proxy xsub xpub --frontend-bind tcp://127.0.0.1:5555 --backend-bind tcp://127.0.0.1:5556 &
proxy=$!
omq pub -c tcp://127.0.0.1:5555 -D 'AAPL 189.95' &
omq sub -c tcp://127.0.0.1:5556 -n 1
kill $proxy"""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
#: The signal that the thread of the proxy sends when it ends.
ENDED: Final = signal.SIGUSR2
CONTROL: Final = "inproc://omq-proxy-control"
CONTROL_TIMEOUT_S: Final = 5.0
LINGER_S: Final = 1.0
TYPES: Final = [kind.value for kind in SocketType]
#: The socket types that receive copies.
CAPTURES: Final = ("PUB", "PUSH", "DEALER", "PAIR")


@dataclass(frozen=True)
class Statistics:
    """The counts of a proxy, in the order of its reply to STATISTICS; messages and bytes."""

    frontend_received: int
    frontend_received_bytes: int
    frontend_sent: int
    frontend_sent_bytes: int
    backend_received: int
    backend_received_bytes: int
    backend_sent: int
    backend_sent_bytes: int

    def line(self, before: Statistics | None, seconds: float) -> str:
        """Returns the counts as a line, with the rates since an earlier line."""
        into = f"{self.frontend_received} messages ({self.frontend_received_bytes} bytes) from the frontend"
        out = f"{self.backend_received} messages ({self.backend_received_bytes} bytes) from the backend"
        if before is None:
            return f"{into}, {out}"
        rates = (
            (self.frontend_received - before.frontend_received) / seconds,
            (self.backend_received - before.backend_received) / seconds,
        )
        return f"{into}, {out}; {rates[0]:.0f} and {rates[1]:.0f} messages a second"


class ProxyThread:
    """A proxy in a thread of its own, so that the main thread can wait for signals.

    Args:
        frontend: One socket.
        backend: The other one.
        capture: Gets copies; `None` for no copies.
    """

    def __init__(self, frontend: omq.Socket, backend: omq.Socket, capture: omq.Socket | None) -> None:
        self._sockets = frontend, backend, capture
        self._control = omq.PAIR(bind=CONTROL)
        self._steering = omq.PAIR(connect=CONTROL)
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="omq-proxy", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        frontend, backend, capture = self._sockets
        try:
            omq.proxy(frontend, backend, capture=capture, control=self._control)
        except Exception as fault:
            self._fault = fault
        os.kill(os.getpid(), ENDED)

    def statistics(self) -> Statistics:
        """Returns the counts so far."""
        self._steering.send(b"STATISTICS")
        parts = self._steering.recv_multipart(timeout=CONTROL_TIMEOUT_S)
        return Statistics(*(int.from_bytes(part, sys.byteorder) for part in parts))

    def end(self) -> None:
        """Forwards what was received, and ends.

        Raises:
            OmqError: The proxy has failed.
        """
        if self._thread.is_alive():
            self._steering.send(b"TERMINATE")
            self._thread.join(CONTROL_TIMEOUT_S)
        for socket in (self._control, self._steering):
            socket.stop()
        if self._fault is not None:
            raise self._fault


def read_endpoints(side: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of one side as those of `new_socket`."""
    common = {name: value for name, value in options.items() if "end_" not in name}
    return {**common, "bind": options[f"{side}_bind"], "connect": options[f"{side}_connect"]}


def endpoint_option(side: str, call: str) -> Callable[[_F], _F]:
    """Returns the option of the endpoints of one side."""
    text = f"An endpoint that the {side} {call}s{' to' if call == 'connect' else ''}; may be repeated."
    return click.option(f"--{side}-{call}", multiple=True, metavar=ENDPOINT, help=text)


def open_side(side: str, kind: str, options: dict[str, Any], stack: ExitStack) -> omq.Socket:
    """Opens one side."""
    chosen = read_endpoints(side, options)
    socket = stack.enter_context(new_socket(SocketType(kind), {**chosen, "linger": LINGER_S}))
    for endpoint in chosen["bind"]:
        note(f"{side} bound to {socket.bind(endpoint)}")
    for endpoint in chosen["connect"]:
        socket.connect(endpoint)
    return socket


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.argument("frontend", type=click.Choice(TYPES, case_sensitive=False), metavar="FRONTEND")
@click.argument("backend", type=click.Choice(TYPES, case_sensitive=False), metavar="BACKEND")
@endpoint_option("frontend", "bind")
@endpoint_option("frontend", "connect")
@endpoint_option("backend", "bind")
@endpoint_option("backend", "connect")
@click.option("--capture", metavar=ENDPOINT, help="An endpoint to bind, where a copy of each message is sent.")
@click.option(
    "--capture-type",
    type=click.Choice(CAPTURES, case_sensitive=False),
    default="PUB",
    show_default=True,
    help="The type of the socket that sends the copies. Unless it is a PUB, nothing is forwarded while it has no room.",
)
@click.option(
    "--statistics",
    "interval",
    type=FiniteFloat(0, min_open=True),
    metavar="SECONDS",
    help="Print counts on standard error each time; SIGUSR1 prints them at once.",
)
@security_options
def proxy(
    frontend: str, backend: str, capture: str | None, capture_type: str, interval: float | None, **options: Any
) -> None:
    """Forward messages between two sockets of the types FRONTEND and BACKEND, such as xsub and xpub, until a signal.

    Typical pairs are xsub and xpub, router and dealer, pull and push. SIGINT and SIGTERM end it after it has forwarded
    what it has received. The options of security apply to both sides.
    """
    # Before the sockets have threads, which inherit the mask: the main thread waits for these signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    with errors_of_command("the command", "cli"), ExitStack() as stack:
        front = open_side("frontend", frontend, options, stack)
        back = open_side("backend", backend, options, stack)
        copies = None
        if capture is not None:
            copies = stack.enter_context(getattr(omq, capture_type)(linger=LINGER_S))
            note(f"capture bound to {copies.bind(capture)}")
        thread = ProxyThread(front, back, copies)
        try:
            wait_for_end(thread, interval)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
            thread.end()


def wait_for_end(thread: ProxyThread, interval: float | None) -> None:
    """Prints statistics until a signal ends the proxy."""
    before: Statistics | None = None
    last = time.monotonic()
    while True:
        if interval is None:
            number: int | None = signal.sigwait(SIGNALS)
        else:
            found = signal.sigtimedwait(SIGNALS, max(0.0, last + interval - time.monotonic()))
            number = None if found is None else found.si_signo
        if number not in (None, signal.SIGUSR1):
            return
        now = time.monotonic()
        try:
            counts = thread.statistics()
        except OmqError:
            return  # the proxy has ended, and reports its error
        note(counts.line(before, now - last))
        before, last = counts, now
