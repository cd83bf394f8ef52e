"""Child processes of the tools, and the command-line arguments that all tools share."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CRASH_REPORT = "tests.support.crash_report"  # the module that prints what a dead interpreter left in .cache


def call(command: Sequence[str | Path], cwd: Path = ROOT, env: dict[str, str] | None = None) -> int:
    """Runs a command and returns its exit status, negative for a signal.

    Args:
        command: The program and its arguments.
        cwd: Its working directory.
        env: Variables that are added to the environment.
    """
    process = subprocess.Popen(command, cwd=cwd, env={**os.environ, **(env or {})})
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()  # Ctrl-C reaches the child, too: pytest still prints what has failed
        raise


def check(command: Sequence[str | Path], cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Runs a command as `call` does, and exits if it fails."""
    status = call(command, cwd, env)
    if status:
        sys.exit(exit_status(status))


def exit_status(status: int) -> int:
    """Returns the exit status for a tool whose child ended with a status: 128 and more for a signal, as shells do."""
    return status if status >= 0 else 128 - status


def make_test(tree: Path, args: Sequence[str], python: str = "", env: dict[str, str] | None = None) -> int:
    """Runs `make test` in a copy of the tree, with an environment of its own.

    Args:
        tree: The copy.
        args: Arguments for pytest.
        python: The interpreter; without it the first that fits is taken.
        env: Variables that are added to the environment.
    """
    variables = ["VENV=.venv", f"PYTHON={python}", f"ARGS={shlex.join(args)}"]
    return call([os.environ.get("MAKE", "make"), "--no-print-directory", "-C", tree, "test", *variables], ROOT, env)


def print_crash_report(status: int, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Prints the crash report of a pytest run in which an interpreter died, its own or one of its workers'.

    Args:
        status: The exit status of pytest.
        cwd: The tree that the tests ran in.
        env: Variables that are added to the environment.
    """
    reports = (cwd / ".cache").glob("crash-*")
    worker_died = any("\nthreads\n" in report.read_text(errors="replace") for report in reports)
    if status < 0:
        print(f"the interpreter died of {signal.Signals(-status).name}:", file=sys.stderr, flush=True)
    if status < 0 or worker_died:
        subprocess.run(
            [sys.executable, "-m", CRASH_REPORT],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdout=sys.stderr,
            check=False,
        )


def gcc_library(name: str) -> str:
    """Returns the path of one of gcc's runtime libraries, empty if gcc does not have it."""
    path = subprocess.run(["gcc", f"-print-file-name={name}"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return path.strip() if path.startswith("/") else ""


def sanitizer_library(name: str, sanitizer: str) -> str:
    """Returns the path of a sanitizer's runtime; exits with a message if gcc does not have it."""
    path = gcc_library(name)
    if not path:
        sys.exit(f"gcc has no {sanitizer} here ({name} is missing)")
    return path


def default_jobs() -> int:
    """Returns two processes for each core, 8 at most: tests wait for half of their time."""
    return min(2 * len(os.sched_getaffinity(0)), 8)


def split_arguments(arguments: Sequence[str] | None = None) -> tuple[list[str], list[str]]:
    """Splits a command line at its first `--` into a tool's own arguments and those that it passes on."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def with_tests(args: Sequence[str], *tests: str) -> list[str]:
    """Returns arguments of pytest with the tests to run, unless they name tests themselves."""
    named = any(word.startswith("tests") and (ROOT / word.partition("::")[0]).exists() for word in args)
    return [*args] if named else [*tests, *args]


def parser_for(
    description: str | None, passed: str = "arguments of pytest, which may name other tests"
) -> argparse.ArgumentParser:
    """Returns a parser for the first part of what `split_arguments` returns.

    Args:
        description: A module's docstring.
        passed: Describes the second part.
    """
    return argparse.ArgumentParser(
        description=description,
        epilog=f"What follows after `--` are {passed}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
