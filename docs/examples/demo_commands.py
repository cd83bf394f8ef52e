"""The frame of a demo: its options, its files, its lines with the time, and its exit codes."""

import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from child_processes import ChildError
from file_blocks import NOT_STANDARD, FileSet, read_file_set, standard_library
from omq.errors import OmqError

READ_TIMEOUT_S: Final = 8.0  # for finding and reading the files
SETTINGS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"]}  # of each command

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The directory whose files are sent; the standard library if left out.",
)


def choose_files(directory: Path | None, block_kib: int, limit_mb: int, console: Console) -> FileSet:
    """Finds and reads the files.

    Raises:
        ClickException: There is no file to send, or no directory to look into.
    """
    root = directory or standard_library()
    if not root.is_dir():
        raise click.BadParameter(f"{root} is not a directory", param_hint="--dir")
    prune = frozenset() if directory else NOT_STANDARD
    console.print(f"reading {root}", highlight=False, soft_wrap=True)
    file_set = read_file_set(
        root, block=block_kib * 1024, limit=limit_mb * 1_000_000, seconds=READ_TIMEOUT_S, prune=prune
    )
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in file_set.skipped.items())
    if not file_set.files:
        raise click.ClickException(f"{root} has no readable file" + (f" (skipped: {skipped})" if skipped else ""))
    console.print(f"{len(file_set.files):,} files, {file_set.size / 1e6:,.1f} MB", highlight=False)
    if skipped:
        console.print(f"skipped: {skipped}", highlight=False)
    if file_set.cut:
        console.print(file_set.cut, highlight=False)
    return file_set


def reporter(console: Console) -> Callable[[str], None]:
    """Returns a function that prints an event, with the seconds since now in front of it."""
    start = time.monotonic()

    def report(text: str) -> None:
        console.print(f"{time.monotonic() - start:5.1f} s  {text}", highlight=False, soft_wrap=True)

    return report


@contextmanager
def exit_codes() -> Iterator[None]:
    """Exits with 130 after Ctrl-C or SIGTERM, and with 1 and one line after an error of omq, a child or the system."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        click.echo("interrupted; every process has ended", err=True)
        sys.exit(130)
    except (ChildError, OmqError, OSError) as error:
        raise click.ClickException(str(error)) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Makes a directory that is removed at the end of the block; see also `exit_codes`."""
    with exit_codes(), tempfile.TemporaryDirectory(prefix="omq-demo-") as folder:
        yield Path(folder)
