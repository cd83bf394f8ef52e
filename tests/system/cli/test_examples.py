"""The example in the help of each command, run by a shell."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from omq.cli.examples import ExampleCommand, shown
from omq.cli.main import COMMANDS, main
from tests.support.ports import held
from tests.system.cli.command_process import BOUND, program

CONTEXT = click.Context(main, **main.context_settings)
ROOT = Path(__file__).parents[3]
PORTS = ("5555", "5556", "5557")


def command(name: str) -> click.Command:
    found = main.get_command(CONTEXT, name)
    assert found is not None
    return found


def script(example: str) -> str:
    """Returns the example as a script that fails if one of its commands does, also in the background."""
    lines = ["set -e", "jobs="]
    for line in example.splitlines():
        lines.append(line)
        if line.endswith("&"):
            lines.append('jobs="$jobs $!"')
    if "wait" not in example:
        lines.append("for job in $jobs; do wait $job; done")
    return "\n".join((*lines, ""))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_runs(name: str, tmp_path: Path) -> None:
    found = command(name)
    assert isinstance(found, ExampleCommand), f"omq {name} has no example"
    text = script(found.example)
    if "capture.pcap" in text:
        from tests.system.cli.capture import push_pull, wrpcap  # needs scapy

        wrpcap(str(tmp_path / "capture.pcap"), push_pull([b"hello"]))
    with ExitStack() as stack:
        for port in PORTS:
            if port in text:
                text = text.replace(port, str(stack.enter_context(held())))
        folder = program(tmp_path / "bin", gets_signals="kill" in text)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        shell = subprocess.Popen(
            ["sh", "-c", text],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = shell.communicate(timeout=BOUND)
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, 9)
                shell.communicate()
    assert shell.returncode == 0, err
    assert out or any(path.name != "bin" for path in tmp_path.iterdir()), err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_the_example(name: str) -> None:
    found = command(name)
    assert isinstance(found, ExampleCommand)
    text = found.get_help(click.Context(found, info_name=name, parent=CONTEXT))
    lines = [f"  {line}" for line in shown(found.example)]
    assert text.splitlines()[-len(lines) - 1 :] == ["Example:", *lines]
