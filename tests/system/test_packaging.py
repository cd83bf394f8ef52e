"""The published archives: a source archive that builds, and a wheel that works where nothing else is."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import textwrap
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "packages"  # the archives last built, in a folder that is named for what they were built of
INPUTS = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
TREES = ("omq", "docs/examples")
DATA = ("omq/py.typed", "omq/broker/http/page.htm")
GENERATED = ("*.so", "*.html", "__pycache__")
pytestmark = [pytest.mark.xdist_group("packaging"), pytest.mark.slow, pytest.mark.timeout(600)]

HELLO = textwrap.dedent(
    """
    import asyncio
    import sys

    import omq.asyncio as omq
    import uvloop

    assert sys.prefix in omq.__file__, omq.__file__


    async def main() -> None:
        async with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
            await push.send(b"hello, world")
            print((await pull.recv(timeout=10)).decode())


    uvloop.run(main())
    """
)


def run(*command: str | Path, cwd: Path, timeout: float = 500) -> str:
    """Runs a command away from the tree and gives what it printed; a failure shows all of it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMQ_"))}
    env["OMQ_QUICK"] = "1"  # what is built here is tried once
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def fingerprint() -> str:
    """Returns a hash of all that a build depends on: the copied files, and the interpreter."""
    seen = hashlib.sha256(sys.version.encode())
    made = (".so", ".html", ".pyc", ".c")
    trees = (path for tree in TREES for path in (ROOT / tree).rglob("*"))
    copied = (path for path in trees if path.is_file() and path.suffix not in made)
    for path in sorted([*(ROOT / name for name in INPUTS), *copied]):
        content = path.read_bytes()
        seen.update(b"%s %d\n" % (os.fsencode(path.relative_to(ROOT)), len(content)))
        seen.update(content)
    return seen.hexdigest()[:32]


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both archives, built in isolation from a copy: the tree's modules are left alone.

    They are kept for as long as nothing changes that they were built of.
    """
    kept = KEPT / fingerprint()
    if kept.exists():
        return kept
    room = tmp_path_factory.mktemp("packaging")
    tree = room / "tree"
    tree.mkdir()
    for name in INPUTS:
        shutil.copy2(ROOT / name, tree)
    for name in TREES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns(*GENERATED))
    run(sys.executable, "-m", "build", "--outdir", room / "dist", tree, cwd=room)
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    shutil.copytree(room / "dist", KEPT / "under way")
    (KEPT / "under way").rename(kept)  # at once: half a folder does not count
    return kept


@pytest.fixture(scope="session")
def sdist(dist: Path) -> set[PurePosixPath]:
    """The files in the source archive, without the leading folder."""
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        return {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in tar.getnames()}


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (archive,) = dist.glob("*.whl")
    return archive


@pytest.fixture(scope="session")
def wheel_files(wheel: Path) -> set[PurePosixPath]:
    with zipfile.ZipFile(wheel) as archive:
        return {PurePosixPath(name) for name in archive.namelist()}


def sources(*suffixes: str) -> set[PurePosixPath]:
    """The files of the package with one of the suffixes, as they lie in the tree."""
    return {
        PurePosixPath(path.relative_to(ROOT).as_posix())
        for path in (ROOT / "omq").rglob("*")
        if path.suffix in suffixes and "__pycache__" not in path.parts
    }


def test_the_source_archive_holds_every_source(sdist: set[PurePosixPath]) -> None:
    wanted = sources(".py", ".pyx", ".pxd") | {
        PurePosixPath(name) for name in (*DATA, "setup.py", "pyproject.toml", "README.md", "LICENSE")
    }
    assert wanted - sdist == set()


def test_the_source_archive_holds_the_examples(sdist: set[PurePosixPath]) -> None:
    kinds = (".md", ".proto", ".py", ".pyi")
    examples = {path for path in (ROOT / "docs" / "examples").iterdir() if path.suffix in kinds}
    assert len(examples) > 10
    assert {PurePosixPath(path.relative_to(ROOT).as_posix()) for path in examples} - sdist == set()


def test_the_source_archive_holds_nothing_generated(sdist: set[PurePosixPath]) -> None:
    assert {path for path in sdist if path.suffix in (".c", ".so", ".o", ".html", ".pyc")} == set()
    assert {path for path in sdist if path.suffix == ".pyi" and "_core" in path.parts} == set()


def test_the_wheel_holds_code_types_and_declarations(wheel_files: set[PurePosixPath]) -> None:
    top = PurePosixPath("omq/spark/top")
    wanted = {path.relative_to(top) if top in path.parents else path for path in sources(".py", ".pyi", ".pxd")}
    wanted |= {PurePosixPath(name) for name in DATA}
    assert wanted - wheel_files == set()


def test_the_wheel_holds_each_module_compiled(wheel_files: set[PurePosixPath]) -> None:
    compiled = {path.name.split(".")[0] for path in wheel_files if path.suffix == ".so"}
    assert compiled == {path.stem for path in sources(".pyx")}


def test_the_wheel_holds_nothing_else(wheel_files: set[PurePosixPath]) -> None:
    tops = {path.parts[0] for path in wheel_files}
    assert {top for top in tops if top not in ("omq", "pyspark_omq") and not top.endswith(".dist-info")} == set()
    assert {path for path in wheel_files if path.suffix in (".c", ".o", ".html", ".pyc")} == set()


def test_the_wheel_is_for_this_python_on_linux(wheel: Path) -> None:
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{version}-{version}-linux_" in wheel.name


def test_the_wheel_prints_hello_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "empty"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--disable-pip-version-check", wheel, cwd=tmp_path)
    (tmp_path / "hello.py").write_text(HELLO)
    assert run(python, tmp_path / "hello.py", cwd=tmp_path, timeout=60) == "hello, world\n"
    # The command explains itself where its own dependencies are not there.
    plain = subprocess.run(
        [home / "bin" / "omq"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert plain.returncode != 0
    assert "pip install 'omq-zmtp[cli]'" in plain.stderr
    assert "Traceback" not in plain.stderr
