"""Shell completion."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from omq.cli.completion import SHELLS
from omq.cli.main import COMMANDS
from tests.system.cli.command_process import finished, program, run, start


def completions(*words: str) -> dict[str, str]:
    """Returns the completions of the last word with their help, as fish asks for them."""
    asked = {"_OMQ_COMPLETE": "fish_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": words[-1]}
    lines = finished(start(env={**os.environ, **asked})).decode().splitlines()
    pairs = [line.partition(",")[2].partition("\t") for line in lines]
    return {name: text for name, _, text in pairs}


def test_commands_options_and_values_are_completed() -> None:
    assert completions("omq", "pu") == {name: COMMANDS[name] for name in ("push", "pull", "pub")}
    assert list(completions("omq", "push", "--lin")) == ["--linger"]
    assert list(completions("omq", "push", "--format", "q")) == ["quoted"]
    assert list(completions("omq", "topic", "pu")) == ["publish", "purge"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_printed(shell: str) -> None:
    assert f"_OMQ_COMPLETE={shell}_complete" in run("completion", shell).decode()


def test_bash_completes(tmp_path: Path) -> None:
    code = (
        'eval "$(omq completion bash)"; COMP_WORDS=(omq pus); COMP_CWORD=1; _omq_completion omq pus omq; '
        'echo "${COMPREPLY[@]}"'
    )
    folder = program(tmp_path / "bin", gets_signals=False)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "push\n"
