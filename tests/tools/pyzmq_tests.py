"""Runs pyzmq's own tests with pyzmq, and with omq's face, and compares.

The tests come from the source archive of the installed version, which the package index has. Nothing of them is kept
in the tree: they run in a copy in `build/`, each file in a process of its own, unchanged.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "pyzmq_tests"
FACE = Path(__file__).parent / "pyzmq_face"
#: The page with the tests that differ: a row for each, or for a file, with the reason.
PAGE = ROOT / "docs" / "howto" / "move-from-pyzmq.md"
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
#: What the tests need, in a folder of their own: the environment stays as it is.
NEEDS = ("pytest-asyncio", "pytest-rerunfailures", "tornado")
FILE_TIMEOUT_S = 300
TEST_TIMEOUT_S = 60
GOAL = 0.95


@dataclass
class Results:
    """The outcomes of one run.

    Attributes:
        passed: The tests that passed.
        failed: The reason, by test.
        skipped: The reason, by test.
    """

    passed: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def read(self, report: Path, file: str) -> None:
        """Adds the outcomes of one file."""
        if not report.exists():
            self.failed[file] = "the process ended, or did not end in time"
            return
        for case in ElementTree.parse(report).iter("testcase"):
            name = "::".join([file, *case.get("classname", "").split(".")[1:], case.get("name", "")])
            bad = case.find("failure") if case.find("failure") is not None else case.find("error")
            skipped = case.find("skipped")
            if bad is not None:
                self.passed.discard(name)
                self.failed[name] = (bad.get("message") or "").partition("\n")[0]
            elif skipped is not None:
                self.skipped[name] = skipped.get("message") or ""
            elif name not in self.failed:
                self.passed.add(name)


def fetch_tests(version: str) -> Path:
    """Downloads and unpacks the source archive; returns the folder of the tests, and of their configuration."""
    folder = BUILD / f"pyzmq-{version}"
    if folder.exists():
        return folder
    BUILD.mkdir(parents=True, exist_ok=True)
    request = urllib.request.Request(f"{INDEX}/pyzmq/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    archive = next(one for one in files if one["filename"] == f"pyzmq-{version}.tar.gz")
    with urllib.request.urlopen(archive["url"], timeout=300) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != archive["hashes"]["sha256"]:
        sys.exit(f"the archive of pyzmq {version} is damaged")
    target = BUILD / archive["filename"]
    target.write_bytes(content)
    with tarfile.open(target) as opened:
        opened.extractall(BUILD, filter="data")
    return folder


def install_needs() -> Path:
    """Installs what the tests need next to the environment; returns the folder."""
    folder = BUILD / "needs"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *NEEDS]
        subprocess.run(pip, check=True)
    return folder


def isolated(command: list[str]) -> list[str]:
    """Returns a command that runs in a network of its own, where that is possible: the tests use fixed ports."""
    inside = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    works = subprocess.run([*inside, "true"], capture_output=True).returncode == 0
    return [*inside, *command] if works else command


def run(name: str, source: Path, needs: Path, paths: list[Path], files: list[str], options: list[str]) -> Results:
    """Runs the test files with modules from *paths* in front; returns the outcomes."""
    results = Results()
    folder = BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(source / "tests", folder / "tests")
    shutil.copy(source / "pytest.ini", folder)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in [*paths, needs])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for file in files or sorted(path.name for path in (folder / "tests").glob("test_*.py")):
        report = folder / f"{file}.xml"
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT_S}"]
        pytest += ["-m", "not large", f"--junitxml={report}", f"tests/{file}", *options]
        try:
            done = subprocess.run(
                isolated(pytest), cwd=folder, env=environment, timeout=FILE_TIMEOUT_S, capture_output=True, text=True
            )
            (folder / f"{file}.log").write_text(done.stdout + done.stderr)
        except subprocess.TimeoutExpired as error:
            (folder / f"{file}.log").write_bytes(error.stdout or b"")
        results.read(report, file)
        print(f"{name} {file}: {len(results.passed)} passed, {len(results.failed)} failed", flush=True)
    return results


def listed_tests() -> list[str]:
    """Returns the tests, or files of tests, that the page lists as different."""
    return re.findall(r"^\| `(test_\w+\.py[^`]*)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def unlisted(theirs: Results, ours: Results, listed: list[str]) -> tuple[list[str], list[str]]:
    """Returns the tests that differ and are not listed, and the listed tests that do not differ."""
    different = sorted(theirs.passed - ours.passed)

    def fits(name: str, row: str) -> bool:
        return name == row or name.startswith((f"{row}::", f"{row}["))

    missing = [name for name in different if not any(fits(name, row) for row in listed)]
    ran = [row for row in listed if any(fits(name, row) for name in theirs.passed)]
    return missing, [row for row in ran if not any(fits(name, row) for name in different)]


def report(theirs: Results, ours: Results) -> float:
    """Prints the table; returns the share of the tests that pass with pyzmq and with omq, too."""
    both = theirs.passed & ours.passed
    print("\n| file | with pyzmq | with omq |\n| --- | --- | --- |")
    for file in sorted({name.partition("::")[0] for name in theirs.passed | ours.passed}):
        counts = [sum(name.startswith(f"{file}::") for name in passed) for passed in (theirs.passed, ours.passed)]
        print(f"| {file} | {counts[0]} | {counts[1]} |")
    print("\nOnly with pyzmq:")
    for name in sorted(theirs.passed - ours.passed):
        why = ours.failed.get(name) or ours.skipped.get(name) or ours.failed.get(name.partition("::")[0]) or "not run"
        print(f"  {name}: {why[:150]}")
    only = sorted(ours.passed - theirs.passed)
    print(f"\nOnly with omq: {len(only)}")
    share = len(both) / len(theirs.passed) if theirs.passed else 0.0
    print(f"\n{len(both)} of {len(theirs.passed)} tests that pass with pyzmq pass with omq: {share:.1%}")
    return share


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.pyzmq_tests", description=__doc__)
    parser.add_argument("files", nargs="*", help="test files; default: all")
    parser.add_argument("-k", help="only tests whose names match, as for pytest")
    parser.add_argument("--check", action="store_true", help=f"exit 1 below {GOAL:.0%}%, or if the page is not true")
    arguments = parser.parse_args()
    source, needs = fetch_tests(importlib.metadata.version("pyzmq")), install_needs()
    options = ["-k", arguments.k] if arguments.k else []
    theirs = run("pyzmq", source, needs, [], arguments.files, options)
    ours = run("omq", source, needs, [FACE, ROOT], arguments.files, options)
    share = report(theirs, ours)
    missing, needless = unlisted(theirs, ours, listed_tests())
    for title, names in (("Not listed in", missing), ("Listed, and the same, in", needless)):
        if names:
            print(f"\n{title} {PAGE.relative_to(ROOT)}:", *(f"  {name}" for name in names), sep="\n")
    if arguments.check and (share < GOAL or missing or needless):
        sys.exit(1)


if __name__ == "__main__":
    main()
