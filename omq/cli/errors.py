"""Reports errors of a command as one line on standard error that names the command's options."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

from omq.errors import OmqError, UsageError
from omq.serving.extras import missing_extra


def error_text(fault: Exception, options: Mapping[str, str] | None = None) -> str:
    """Returns the text of an error, with the option instead of the argument that the error names.

    Args:
        fault: The error.
        options: Options by argument. An argument that is missing here has an option of the same name.
    """
    argument = fault.argument if isinstance(fault, OmqError) else None
    if argument is None:
        return str(fault)
    option = (options or {}).get(argument, "--" + argument.replace("_", "-"))
    return option + str(fault).removeprefix(argument)


def echo(text: str) -> None:
    """Prints a line on standard output.

    Raises:
        ClickException: Standard output cannot be written, for instance on a full disk.
    """
    try:
        click.echo(text)
    except BrokenPipeError:
        raise  # standard output was closed: click exits silently
    except OSError as fault:
        raise click.ClickException(f"standard output: {fault.strerror or fault}") from None


@contextmanager
def errors_of_command(subject: str, extra: str, options: Mapping[str, str] | None = None) -> Iterator[None]:
    """Ends the command with status 2 if an argument is not valid, and with status 1 after any other error.

    Args:
        subject: The part of omq that runs, for an error about a missing package.
        extra: The extra of `omq-zmtp` that has its packages.
        options: Options by argument; see `error_text`.
    """
    try:
        yield
    except UsageError as fault:
        raise click.UsageError(error_text(fault, options)) from None
    except ImportError as missing:
        raise click.ClickException(str(missing_extra(subject, missing, extra))) from None
    except BrokenPipeError:
        raise  # standard output was closed: click exits silently
    except OSError as fault:
        where = f"{os.fsdecode(fault.filename)}: " if fault.filename else ""
        raise click.ClickException(where + (fault.strerror or error_text(fault, options))) from None
    except OmqError as fault:
        raise click.ClickException(error_text(fault, options)) from None
