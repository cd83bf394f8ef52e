"""Parameter types and callbacks that several commands use."""

from __future__ import annotations

import ipaddress
import math
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from omq.cli.examples import ExampleCommand
from omq.errors import UsageError
from omq.serving.address import parse_http_address
from omq.serving.log import LOG_FORMATS

LEVELS: Final = ("debug", "info", "warning", "error")

_F = TypeVar("_F", bound=Callable[..., Any])


class NonEmptyPath(click.Path):
    """A path that must not be empty, as `Path("")` is the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


class FiniteFloat(click.FloatRange):
    """A finite number in a range. A plain `FloatRange` accepts NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return found


def log_format_option(function: _F) -> _F:
    """Adds `--log-format` to a command."""
    return click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        default="text",
        show_default=True,
        help="The format of the log: text, or one JSON object per line.",
    )(function)


def journal_options(member: str) -> Callable[[_F], _F]:
    """Returns a decorator that adds the options about the journal of a cluster to a command.

    Args:
        member: The program, as help texts call it.
    """

    def add(function: _F) -> _F:
        function = click.option("--cluster", metavar="NAME", help="The name of the cluster of --replicated.")(function)
        return click.option(
            "--replicated",
            metavar="nats://HOST:PORT,...",
            callback=lambda ctx, param, value: value and tuple(value.split(",")),
            help=f"NATS servers with the journal of the cluster that the {member} is a member of.",
        )(function)

    return add


def cluster_options(member: str, directory: str, purpose: str) -> Callable[[_F], _F]:
    """Returns a decorator that adds the options of a member of a cluster to a command.

    Args:
        member: The program, as help texts call it.
        directory: The directory that keeps its id.
        purpose: What needs servers that sync.
    """

    def add(function: _F) -> _F:
        function = click.option(
            "--servers-sync",
            is_flag=True,
            help=f"States that the NATS servers have `sync_interval: always`, which {purpose} need.",
        )(function)
        function = click.option(
            "--node", metavar="ID", help=f"The id of the {member} in the cluster. Default: one that {directory} keeps."
        )(function)
        return journal_options(member)(function)

    return add


def is_reachable(endpoint: str) -> bool:
    """Returns whether other machines can reach an endpoint."""
    scheme, _, address = endpoint.partition("://")
    host = address.partition("/")[0].rpartition(":")[0]
    return scheme not in ("ipc", "inproc") and not is_loopback(host.removeprefix("[").removesuffix("]"))


def is_loopback(host: str) -> bool:
    """Returns whether other machines cannot reach a host, given by its name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class CommandWithSubcommands(ExampleCommand):
    """A command of its own, with subcommands: one of their names as the first argument selects it.

    Attributes:
        subcommands: The subcommands by name.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.subcommands: dict[str, click.Command] = {}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        chosen = self.subcommands.get(args[0]) if args else None
        if chosen is None:
            return super().make_context(info_name, args, parent, **extra)
        return chosen.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str()) for name, one in self.subcommands.items()])


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Makes SIGTERM raise `KeyboardInterrupt` in the block, as SIGINT does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar on standard error, if that is a terminal. SIGTERM interrupts the block as SIGINT does.

    Yields:
        A function to call with the finished part and the whole.
    """
    with sigterm_interrupts():
        if not sys.stderr.isatty():
            yield lambda done, total: None
            return
        with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

            def show(done: int, total: int) -> None:
                bar.length = total
                bar.update(done - bar.pos)

            yield show


FILE: Final = NonEmptyPath(exists=True, dir_okay=False, path_type=Path)


def read_http(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Checks the value of `--http`."""
    try:
        if value is not None:
            parse_http_address(value)
    except UsageError as fault:
        raise click.BadParameter(str(fault), ctx, param) from None
    return value


def read_ready_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Checks the value of `--ready-file`, which may replace only a regular file."""
    if value is None:
        return None
    try:
        target = value.resolve()
        if not target.parent.is_dir():
            raise click.BadParameter(f"there is no directory {str(value.parent)!r}", ctx, param)
        if target.exists() and not target.is_file():
            raise click.BadParameter(f"{str(value)!r} is not a regular file, and would be replaced", ctx, param)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise click.BadParameter(f"{str(value)!r}: {reason}", ctx, param) from None
    return target
