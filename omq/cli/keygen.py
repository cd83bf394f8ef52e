"""`omq keygen`: writes a key pair for CURVE."""

from __future__ import annotations

from pathlib import Path

import click

import omq
from omq.cli.errors import echo, errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.parameters import NonEmptyPath
from omq.cli.sockets.options import note

EXAMPLE = """\
omq keygen server.key
omq pull -b tcp://127.0.0.1:5555 --curve-secret-key-file server.key_secret -n 1 &
omq push -c tcp://127.0.0.1:5555 --curve-server-key-file server.key -D hello"""


def read_metadata(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    """Parses the values of `--metadata`."""
    pairs = [word.partition("=") for word in words]
    for name, mark, value in pairs:
        if not mark:
            raise click.BadParameter(f"{name + value!r}: must be NAME=VALUE, such as email=joe@example.org", ctx, param)
    return {name: value for name, _, value in pairs}


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.argument("file", type=NonEmptyPath(path_type=Path))
@click.option(
    "--metadata",
    multiple=True,
    metavar="NAME=VALUE",
    callback=read_metadata,
    help="A property of the holder in both files; may be repeated.",
)
@click.option("--force", is_flag=True, help="Replace existing files: the old key pair is lost.")
def keygen(file: Path, metadata: dict[str, str], force: bool) -> None:
    """Write a new CURVE key pair: FILE for the public key, and FILE_secret for the secret one.

    Only the owner may read FILE_secret. The public key is printed: it is a line for a file of authorized keys. The
    options --curve-... of other commands take these files, and so do CZMQ and pyzmq.
    """
    paths = file, file.with_name(f"{file.name}_secret")
    for path in paths:
        if path.exists() and not force:
            raise click.ClickException(f"{path}: exists already; --force replaces the key pair, which is then lost")
    public, secret = omq.curve_keypair()
    with errors_of_command("the command", "cli"):
        for written in omq.save_certificate(file, secret, metadata):
            note(f"wrote {written}")
        echo(public.decode())
