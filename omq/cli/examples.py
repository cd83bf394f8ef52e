"""Commands whose help ends with an example: lines of a shell, which the tests run."""

from __future__ import annotations

from typing import Any

import click


class ExampleCommand(click.Command):
    """A command with an example.

    Args:
        *args: As for `click.Command`.
        example: The lines of the example.
        **options: As for `click.Command`.

    Attributes:
        example: The lines of the example.
    """

    def __init__(self, *args: Any, example: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.example = example

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Example"):
            for line in self.example.splitlines():
                formatter.write(f"{'':{formatter.current_indent}}$ {line}\n")


class ExampleGroup(ExampleCommand, click.Group):
    """A group of commands with an example."""
