"""`omq goby`: records, replays and watches a Goby bus, and lists the clients that its hold waits for."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from omq.cli.errors import echo, errors_of_command
from omq.cli.examples import ExampleGroup
from omq.cli.gobyd import OPTIONS
from omq.cli.parameters import LEVELS, FiniteFloat, log_format_option
from omq.cli.tables import printable
from omq.errors import Timeout
from omq.serving.log import log_to_stderr

if TYPE_CHECKING:
    from omq.goby import Portal, Received

LOG: Final = logging.getLogger("omq.goby")
POLL_INTERVAL_S: Final = 0.2  # between two checks for the end
#: Groups of terminate and health requests; a replay of them would stop running programs.
CONTROL_GROUPS: Final = ("goby::terminate::", "goby::health::")
DRAIN_TIMEOUT_S: Final = 1.0  # at the end, for the recording of received publications
CLOSE_TIMEOUT_S: Final = 10.0  # at the end, for sending publications
REPLAY_BATCH: Final = 200  # publications that are replayed at full speed before a pause
REPLAY_PAUSE_S: Final = 0.002
MAX_SHOWN_CHARACTERS: Final = 160  # of a payload
MAX_EARLY_S: Final = 0.001  # by which a publication may be early

_F = TypeVar("_F", bound=Callable[..., Any])

EXAMPLE: Final = """\
omq gobyd --platform demo --transport tcp --bind-address 127.0.0.1 --tcp-port 5555 --health-interval 1 &
gobyd=$!
omq goby sniff --platform demo --transport tcp --tcp-port 5555 --count 1
kill $gobyd"""


def portal_options(name: str) -> Callable[[_F], _F]:
    """Adds the options of a client of the bus to a command.

    Args:
        name: The default name of the client.
    """
    options = [
        click.option("--name", default=name, show_default=True, help="The name of this client on the bus."),
        click.option("--platform", default="default_goby_platform", show_default=True, help="The platform's name."),
        click.option("--transport", type=click.Choice(["ipc", "tcp"]), default="ipc", show_default=True),
        click.option("--socket-name", help="ipc: the prefix of the paths.  [default: /tmp/goby_ and the platform]"),
        click.option("--address", default="127.0.0.1", show_default=True, help="tcp: the address of gobyd."),
        click.option(
            "--tcp-port",
            type=click.IntRange(1, 65535),
            default=11144,
            show_default=True,
            help="tcp: the port of gobyd.",
        ),
        click.option(
            "--manager-timeout",
            type=FiniteFloat(0, min_open=True),
            default=5.0,
            show_default=True,
            help="Seconds to wait for an answer of gobyd.",
        ),
        click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True),
        log_format_option,
    ]

    def add(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def filter_options(function: _F) -> _F:
    """Adds the options that select publications to a command."""
    for option in (
        click.option(
            "--scheme", multiple=True, help="The name or number of a marshalling scheme; may be repeated. Default: all."
        ),
        click.option(
            "--type",
            "type_",
            default=".*",
            show_default=True,
            help="A regular expression that the whole type must match.",
        ),
        click.option(
            "--group", default=".*", show_default=True, help="A regular expression that the whole group must match."
        ),
    ):
        function = option(function)
    return function


@contextmanager
def portal_of(options: dict[str, Any]) -> Iterator[Portal]:
    """Opens the portal of a command, and reports its errors as errors of the command."""
    with errors_of_command("omq.goby", "goby", OPTIONS):
        from omq.goby import Portal

        log_to_stderr(options.pop("log_level"), options.pop("log_format"))
        options["port"] = options.pop("tcp_port")
        with Portal(options.pop("name"), **options) as portal:
            yield portal


def until_signal() -> threading.Event:
    """Returns an event that SIGTERM or SIGINT sets. The second signal ends the program at once.

    It is called once the portal is open: while that waits for the manager, the first signal ends the program.
    """
    ended = threading.Event()

    def end(_: int, __: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return ended


@click.group(cls=ExampleGroup, example=EXAMPLE)
def goby() -> None:
    """Record, replay and watch a Goby bus (`omq gobyd`, or Goby's own)."""


@goby.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@filter_options
@click.option("--seconds", type=FiniteFloat(0, min_open=True), help="The duration. Default: until a signal.")
@portal_options("omq_goby_log")
def log(file: Path, group: str, type_: str, scheme: tuple[str, ...], seconds: float | None, **options: Any) -> None:
    """Record publications to FILE until SIGTERM or SIGINT. If FILE exists, it is appended to."""
    end = None if seconds is None else time.monotonic() + seconds
    with portal_of(options) as portal:
        ended = until_signal()
        from omq.goby.record import Recorder, frame_of

        with Recorder(file) as recorder:
            found = portal.subscribe_regex(group, type_, scheme or None)
            portal.ready()
            flushed = time.monotonic()
            while not ended.is_set() and (end is None or time.monotonic() < end):
                with suppress(Timeout):
                    recorder.append(frame_of(found.recv(timeout=POLL_INTERVAL_S)), time.time_ns())
                if time.monotonic() - flushed >= POLL_INTERVAL_S:  # bounds the loss of a killed recorder
                    recorder.flush()
                    flushed = time.monotonic()
            end = time.monotonic() + DRAIN_TIMEOUT_S
            with suppress(Timeout):
                while time.monotonic() < end:  # already received
                    recorder.append(frame_of(found.recv(timeout=0)), time.time_ns())
        text = "%s: %d publications recorded, %d dropped, %d too large"
        LOG.info(text, file, recorder.count, found.dropped, recorder.too_large)


@goby.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@filter_options
@click.option(
    "--speed",
    type=FiniteFloat(0),
    default=1.0,
    show_default=True,
    help="The speed relative to the recording; 0: as fast as possible.",
)
@portal_options("omq_goby_play")
def play(file: Path, group: str, type_: str, scheme: tuple[str, ...], speed: float, **options: Any) -> None:
    """Publish the content of FILE again, with the recorded timing.

    Terminate and health requests (`goby::terminate`, `goby::health`) are left out, unless --group contains `goby`.
    """
    with portal_of(options) as portal:
        ended = until_signal()
        from omq.goby.dispatch import Inbox, RegexHandler
        from omq.goby.record import Recording
        from omq.goby.scheme import Schemes

        wanted = RegexHandler(group, type_, {Schemes().wire_name(one) for one in scheme} or None, Inbox(0))
        with Recording(file) as recording:
            portal.ready()
            while not portal.released and not ended.is_set():
                try:
                    portal.wait_released(POLL_INTERVAL_S)
                except Timeout:
                    pass
            omitted_groups = () if "goby" in group else CONTROL_GROUPS
            left_out = 0

            def selected(identifier: Any) -> bool:
                nonlocal left_out
                if not wanted.matches(identifier):
                    return False
                if str(identifier.group).startswith(omitted_groups):
                    left_out += 1
                    return False
                return True

            count = replay(portal, recording, selected, speed, ended)
            wait_until_sent(portal, ended)
            if recording.damage is not None:
                LOG.warning("%s: %s: nothing after it is played", file, recording.damage)
            if left_out:
                LOG.info("%s: %d of goby::terminate and goby::health are left out: see --help", file, left_out)
        LOG.info("%s: %d publications played", file, count)


def replay(
    portal: Portal, recording: Any, selected: Callable[[Any], bool], speed: float, ended: threading.Event
) -> int:
    """Publishes the content of a recording.

    Args:
        portal: The portal to publish with.
        recording: The recording.
        selected: Returns whether to publish a record with this identifier.
        speed: The speed relative to the recording; 0 is as fast as possible.
        ended: Stops the replay when it is set.

    Returns:
        The number of publications.
    """
    from omq.goby.errors import Malformed
    from omq.goby.identifier import head_of, read_identifier, split_frame

    pid, thread = os.getpid(), threading.get_ident()
    count, began, first = 0, time.monotonic(), None
    for at, frame in recording:
        try:
            head, payload = split_frame(frame)
            identifier = read_identifier(head)
        except Malformed as fault:
            LOG.warning("%s: the record before byte %d is skipped: %s", recording.path, recording.valid_bytes, fault)
            continue
        if not selected(identifier):
            continue
        first = at if first is None else first
        if speed:
            wait = began + (at - first) / 1e9 / speed - time.monotonic()
            if wait > MAX_EARLY_S and ended.wait(min(wait, threading.TIMEOUT_MAX)):
                break
        elif count % REPLAY_BATCH == REPLAY_BATCH - 1:
            wait_until_sent(portal, ended)
            if ended.wait(REPLAY_PAUSE_S):
                break
        if ended.is_set():
            break
        # Unchecked, as a recording may contain what `publish` rejects; with the process and thread of this program.
        portal._send(head_of(identifier.group, identifier.scheme, identifier.type, pid, thread) + payload)
        count += 1
    return count


def wait_until_sent(portal: Portal, ended: threading.Event) -> None:
    """Waits until all publications are sent, which needs a running gobyd.

    Args:
        portal: The portal.
        ended: Stops the wait when it is set.

    Raises:
        SendTimeout: Publications were not sent in time.
    """
    begun = time.monotonic()
    while True:
        try:
            portal.flush(POLL_INTERVAL_S)
        except Timeout:
            waited = time.monotonic() - begun
            if ended.is_set() or waited >= CLOSE_TIMEOUT_S:
                raise portal._not_sent_error(round(waited, 1)) from None
        else:
            return


@goby.command()
@filter_options
@click.option("--count", type=click.IntRange(1), help="The number of publications after which to end.")
@click.option("--seconds", type=FiniteFloat(0, min_open=True), help="The duration. Default: until a signal.")
@click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="A module of protobuf classes, to decode their messages; may be repeated.",
)
@portal_options("omq_goby_sniff")
def sniff(
    group: str,
    type_: str,
    scheme: tuple[str, ...],
    count: int | None,
    seconds: float | None,
    modules: tuple[str, ...],
    **options: Any,
) -> None:
    """Print publications, one a line: time, process id, group, scheme, type, size and payload."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as fault:
            raise click.BadParameter(f"{module!r}: {fault}", param_hint="--import") from None
    end = None if seconds is None else time.monotonic() + seconds
    with portal_of(options) as portal:
        ended = until_signal()
        found = portal.subscribe_regex(group, type_, scheme or None)
        portal.ready()
        seen = 0
        while not ended.is_set() and (end is None or time.monotonic() < end) and (count is None or seen < count):
            try:
                publication = found.recv(timeout=POLL_INTERVAL_S)
            except Timeout:
                continue
            seen += 1
            echo(line_of(publication, time.time()))


@goby.command()
@portal_options("omq_goby_missing")
def missing(**options: Any) -> None:
    """Print the required clients that the hold of an `omq gobyd` waits for, one a line."""
    with portal_of(options) as portal:
        for name in portal.missing():
            echo(name)


def line_of(publication: Received, now: float) -> str:
    """Formats a publication as a line.

    Args:
        publication: The publication.
        now: The time of its arrival, in seconds since 1970.
    """
    group, scheme, type, data = publication
    clock = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03}"
    text = payload_text(scheme, type, data)
    text = text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "..."
    head = " ".join(map(printable, (group, scheme, type)))
    return f"{clock} {publication.pid:>7} {head} ({len(data)} bytes) {printable(text)}".rstrip()


def payload_text(scheme: str, type: str, data: bytes) -> str:
    """Formats a payload: decoded if its scheme and type are known, else in hex."""
    try:
        if scheme == "CSTR":
            return repr(data.removesuffix(b"\0").decode())
        if scheme == "JSON":
            import bson

            return json.dumps(bson.decode(data), default=str)
        if scheme == "PROTOBUF" and (kind := protobuf_class(type)) is not None:
            return " ".join(str(kind.FromString(data)).split())
    except Exception as fault:
        return f"does not parse: {fault}"
    return re.sub("(..)", r"\1 ", data[: MAX_SHOWN_CHARACTERS // 3].hex()).strip()


def protobuf_class(name: str) -> Any:
    """Returns a protobuf class by its full name; `None` if no imported module has it."""
    from google.protobuf import descriptor_pool, message_factory

    from omq.goby.protobuf.pool import POOL

    for pool in (descriptor_pool.Default(), POOL):
        try:
            descriptor = pool.FindMessageTypeByName(name)
        except KeyError:
            continue
        return message_factory.GetMessageClass(descriptor)
    return None
