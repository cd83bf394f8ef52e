"""The `omq` command as a whole."""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import click
import pytest
from click.testing import CliRunner

import omq.cli
from omq import __version__
from omq.cli.main import COMMANDS, main
from omq.cli.sockets.table import SOCKETS


def test_version_and_commands() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"omq {__version__}\n"
    text = CliRunner().invoke(main, ["-h"]).output
    assert [name for name in COMMANDS if f"\n  {name} " not in text] == [], text


@pytest.mark.parametrize(("given", "shown"), [("pign", "Did you mean 'ping'?"), ("xyzzy", "No such command 'xyzzy'.")])
def test_another_name_is_no_command(given: str, shown: str) -> None:
    result = CliRunner().invoke(main, [given])
    assert result.exit_code == 2
    assert shown in result.output


def test_a_missing_broker_can_be_set_in_the_environment() -> None:
    result = CliRunner(env={"OMQ_BROKER": None}).invoke(main, ["topic", "ls"])
    assert result.exit_code == 2
    assert "OMQ_BROKER" in result.output.rpartition("Error:")[2]


def test_each_module_of_a_command_is_listed() -> None:
    modules = {
        found.name: f"omq.cli.{found.name}" + ".command" * found.ispkg
        for found in iter_modules(omq.cli.__path__)
        if found.name != "main"
    }
    found = {
        name
        for name, module in modules.items()
        if isinstance(getattr(import_module(module), name, None), click.Command)
    }
    assert found == set(COMMANDS) - set(SOCKETS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_text_of_a_command_is_the_first_sentence_of_its_help(name: str) -> None:
    command = main.get_command(click.Context(main, **main.context_settings), name)
    assert command is not None
    assert f"{command.get_short_help_str(200)}.".replace("..", ".") == COMMANDS[name]


def test_a_command_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys; from omq.cli.main import main; main(['gobyd', '--help'], standalone_mode=False);"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "omq.cli.gobyd" in loaded
    assert not loaded & {"omq.cli.broker", "omq.cli.pzq", "omq.cli.topic", "omq.cli.sockets.command"}


@pytest.mark.parametrize("words", [("push", "--help"), ("--help",), ("ping", "--help")])
def test_the_command_of_a_socket_starts_without_the_systems(words: tuple[str, ...]) -> None:
    code = f"import sys; from omq.cli.main import main; main({words}, standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    late = ("omq.asyncio", "omq.broker", "omq.pzq", "omq.goby", "rich.console", "msgpack")
    assert not loaded & set(late)
