"""The page with all examples has what the help of the commands has.

`python -m tests.unit.cli.test_examples_page` writes it.
"""

from __future__ import annotations

from pathlib import Path

import click

from omq.cli.examples import ExampleCommand, shown
from omq.cli.main import SECTIONS, main

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli-examples.md"
HEAD = """\
# Examples of all commands

The help of each command ends with its example; [the reference](cli.md) explains the options. `&` runs a command in the
background, and `$!` is its process id. The tests run all of them.
"""


def page() -> str:
    """Returns the content of the page."""
    context = click.Context(main, **main.context_settings)
    pieces = [HEAD]
    for section, commands in SECTIONS.items():
        pieces.append(f"## {section}\n")
        examples: dict[str, list[str]] = {}
        for name in commands:
            command = main.get_command(context, name)
            assert isinstance(command, ExampleCommand)
            examples.setdefault("\n".join(shown(command.example)), []).append(name)
        blocks = (f"# {', '.join(names)}\n{text}" for text, names in examples.items())
        pieces.append("```console\n{}\n```\n".format("\n\n".join(blocks)))
    return "\n".join(pieces)


def test_the_page_has_the_example_of_each_command() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
