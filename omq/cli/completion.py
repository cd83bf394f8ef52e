"""`omq completion`: prints the script that completes commands and options in a shell."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from omq.cli.errors import echo
from omq.cli.examples import ExampleCommand

EXAMPLE: Final = "omq completion zsh > omq.zsh"
SHELLS: Final = ("bash", "zsh", "fish")
VARIABLE: Final = "_OMQ_COMPLETE"


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands and options of omq in a SHELL.

    Add `eval "$(omq completion bash)"` to ~/.bashrc, `eval "$(omq completion zsh)"` to ~/.zshrc, or `omq completion
    fish | source` to ~/.config/fish/config.fish.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    echo(kind(ctx.find_root().command, {}, "omq", VARIABLE).source())
