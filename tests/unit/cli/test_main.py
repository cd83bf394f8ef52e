"""The `omq` command as a whole."""

from click.testing import CliRunner

from omq import __version__
from omq.cli.main import main


def test_version_and_commands() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"omq {__version__}\n"
    assert set(main.commands) == {"broker", "durable", "goby", "gobyd", "group", "ingest", "pzq", "store", "topic"}
    text = CliRunner().invoke(main, ["-h"]).output
    assert all(f"\n  {name} " in text for name in main.commands)
