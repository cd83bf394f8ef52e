"""Errors of a command."""

import ast
import sys
from contextlib import suppress
from pathlib import Path

import click
import pytest

import omq.cli
from omq.cli.errors import echo, error_text, errors_of_command
from omq.errors import BindError, ConnectError, OmqError, UsageError

FOLDER = Path(omq.cli.__file__).parent


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("dead_letter", "--dead-letter-dsn: endpoint 'dead_letter' is not valid"),
        ("timeout_nodes", "--timeout-nodes: endpoint 'dead_letter' is not valid"),
    ],
)
def test_the_option_stands_in_place_of_the_argument_and_values_stay(argument: str, text: str) -> None:
    fault = UsageError(f"{argument}: endpoint 'dead_letter' is not valid").about(argument)
    assert error_text(fault, {"dead_letter": "--dead-letter-dsn"}) == text


def test_an_error_about_no_argument_stays() -> None:
    assert error_text(UsageError("nodes is a word")) == "nodes is a word"


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        (UsageError("port=0: is not valid").about("port"), 2, "--tcp-port=0: is not valid"),
        (ConnectError("port=1: has not answered").about("port"), 1, "--tcp-port=1: has not answered"),
        (BindError(98, "tcp://127.0.0.1:1: Address already in use"), 1, "tcp://127.0.0.1:1: Address already in use"),
        (OSError(2, "No such file or directory", "/nowhere"), 1, "/nowhere: No such file or directory"),
        (OmqError("the store has failed"), 1, "the store has failed"),
        (ImportError("No module", name="lmdb"), 1, "the broker needs lmdb: pip install 'omq-zmtp[broker]'"),
    ],
)
def test_an_error_becomes_a_line_and_a_status(fault: Exception, status: int, text: str) -> None:
    with (
        pytest.raises(click.ClickException) as raised,
        errors_of_command("the broker", "broker", {"port": "--tcp-port"}),
    ):
        raise fault
    assert (raised.value.exit_code, raised.value.message) == (status, text)


def test_standard_output_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with suppress(OSError), open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        with pytest.raises(click.ClickException) as raised:
            echo("a line")
    assert raised.value.message == "standard output: No space left on device"


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_only_echo_prints_on_standard_output(path: Path) -> None:
    """Elsewhere, an error of standard output is a traceback, or a line that seems to be about the broker's disk."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    printed = [
        call.lineno
        for call in calls
        if ast.unparse(call.func) in ("print", "click.echo", "click.secho", "sys.stdout.write")
        and "err" not in [keyword.arg for keyword in call.keywords]
    ]
    assert len(printed) == (path.stem == "errors")
