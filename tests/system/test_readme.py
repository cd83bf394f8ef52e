"""The programs in the README, the tutorials and the how-tos run, and print what stands below them.

A fenced `python` block is a whole program. A `text` block that follows it is what it prints.
"""

import ast
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.optional_packages import require

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]

EVERY_PAGE = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]+\]\((?!https?:|#)([^)#]+)[^)]*\)")


@dataclass(frozen=True)
class Program:
    """A program in a page.

    Attributes:
        place: The page and the line of its first line.
        source: The program.
        prints: The documented output; `None` where there is not any.
    """

    place: str
    source: str
    prints: str | None


def programs(name: str, page: str) -> list[Program]:
    """The programs in a page of Markdown."""
    found = []
    fences = list(_FENCE.finditer(page))
    for index, fence in enumerate(fences):
        if fence[1] != "python":
            continue
        prints = None
        if index + 1 < len(fences):
            after = fences[index + 1]
            if after[1] == "text" and not page[fence.end() : after.start()].strip():
                prints = after[2]
        line = page.count("\n", 0, fence.start(2)) + 1
        found.append(Program(f"{name}:{line}", fence[2], prints))
    return found


PROGRAMS = {page.name: programs(page.name, page.read_text(encoding="utf-8")) for page in PAGES}
#: The README's run with `make test`, and the first one of each other page.
RUNS = [
    pytest.param(program, id=program.place, marks=pytest.mark.slow if number and name != "README.md" else ())
    for name, found in PROGRAMS.items()
    for number, program in enumerate(found)
]


@pytest.mark.parametrize("program", RUNS)
def test_a_program_runs_and_prints_what_the_page_shows(program: Program, tmp_path: Path) -> None:
    if "import gevent" in program.source:
        require("gevent")
    if "from opentelemetry" in program.source:
        require("opentelemetry.sdk")
    path = tmp_path / "program.py"
    path.write_text(program.source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, f"{program.place}:\n{done.stderr}"
    assert done.stderr == ""
    assert program.prints is not None, f"{program.place}: its output must stand in a text block"
    assert done.stdout == program.prints


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_has_programs(page: Path) -> None:
    # tests/system/spark runs the programs that need Spark, and test_tutorial.py those of the broker's tutorial.
    operating = {
        "back-up-the-broker.md",
        "broker.md",
        "broker-with-spark.md",
        "release.md",
        "replicate.md",
        "run-the-broker-in-production.md",
    }
    least = 0 if page.name in operating else 1 if page.name == "spark.md" else 3
    assert len(PROGRAMS[page.name]) >= least


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_each_fragment_is_python(page: Path) -> None:
    # A `py` block is a step or a part of a program; where it can run alone, a test of its page runs it.
    for fence in _FENCE.finditer(page.read_text(encoding="utf-8")):
        if fence[1] in ("py", "python"):
            assert compile(fence[2], str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_first_screen_installs_runs_and_chooses() -> None:
    first = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    for wanted in ("pip install omq-zmtp", "```python", "make demo", "make test", "You want to"):
        assert wanted in first


def test_the_table_of_the_readme_names_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"`omq-zmtp\[([\w,]+)\]`", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert {"broker", "cli", "goby", "spark", "ws"} <= {extra for one in named for extra in one.split(",")}
    assert {extra for one in named for extra in one.split(",")} <= set(project["optional-dependencies"])


def test_programs_are_found_with_their_output() -> None:
    page = "```python\nprint(1)\n```\n\n```text\n1\n```\ntext\n```python\npass\n```\nwords\n```text\nno\n```\n"
    assert programs("page", page) == [
        Program("page:2", "print(1)\n", "1\n"),
        Program("page:10", "pass\n", None),
    ]
