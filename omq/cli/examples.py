"""Commands whose help ends with an example: lines of a shell, which the tests run."""

from __future__ import annotations

from typing import Any, Final

import click

BREAK: Final = "\\"  # continues a line


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
            for line in shown(self.example):
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def shown(example: str) -> list[str]:
    """Returns the lines of an example as on a terminal, with a prompt."""
    lines = example.splitlines()
    return [
        f"{'>' if before.endswith(BREAK) else '$'} {line}" for before, line in zip(["", *lines], lines, strict=False)
    ]


class ExampleGroup(ExampleCommand, click.Group):
    """A group of commands with an example."""
