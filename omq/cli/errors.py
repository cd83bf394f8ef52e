"""Errors of a command: what is raised becomes one line on standard error, in the words of the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

from omq.errors import OmqError, UsageError
from omq.serving.extras import missing_extra


def error_text(fault: Exception, options: Mapping[str, str] | None = None) -> str:
    """Returns the text of an error, with the option in place of the argument that it is about.

    Args:
        fault: The error.
        options: Options by argument; an argument that is not among them has an option of its own name.
    """
    argument = fault.argument if isinstance(fault, OmqError) else None
    if argument is None:
        return str(fault)
    option = (options or {}).get(argument, "--" + argument.replace("_", "-"))
    return option + str(fault).removeprefix(argument)


@contextmanager
def errors_of_command(subject: str, extra: str, options: Mapping[str, str] | None = None) -> Iterator[None]:
    """Ends the command with status 2 where an argument is not valid, and with 1 for all other errors.

    Args:
        subject: The part of omq that runs, for an error about a package that is missing.
        extra: The extra of `omq-zmtp` that has its packages.
        options: Options by argument, see `error_text`.
    """
    try:
        yield
    except UsageError as fault:
        raise click.UsageError(error_text(fault, options)) from None
    except ImportError as missing:
        raise click.ClickException(str(missing_extra(subject, missing, extra))) from None
    except BrokenPipeError:
        raise  # the reader of standard output has ended: click ends without a word
    except OSError as fault:
        where = f"{os.fsdecode(fault.filename)}: " if fault.filename else ""
        raise click.ClickException(where + (fault.strerror or error_text(fault, options))) from None
    except OmqError as fault:
        raise click.ClickException(error_text(fault, options)) from None
