"""A program that `python -m omq.zmq` runs has the face when it imports `zmq`, and so have its child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import omq.zmq
from omq.zmq.preload import FOLDER

ROOT = Path(__file__).parents[3]
HOME = "import zmq; print(zmq.__name__)"


def run(folder: Path, *arguments: str, path: str = str(ROOT)) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def child(program: str) -> str:
    """Returns a program that runs another one in a child process."""
    return f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {program!r}], check=True)\n"


def run_with_face(folder: Path, program: str, path: str = str(ROOT)) -> str:
    (folder / "program.py").write_text(program)
    return run(folder, "-m", "omq.zmq", "program.py", path=path)


def test_children_and_their_children_have_the_face(tmp_path: Path) -> None:
    assert run_with_face(tmp_path, child(HOME)) == "omq.zmq\n"
    assert run_with_face(tmp_path, child(child(HOME))) == "omq.zmq\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_have_the_face(tmp_path: Path, method: str) -> None:
    program = (
        "import multiprocessing\n"
        "def show():\n    import zmq\n    print(zmq.__name__, flush=True)\n"
        "if __name__ == '__main__':\n"
        f"    one = multiprocessing.get_context({method!r}).Process(target=show)\n"
        "    one.start()\n    one.join()\n"
    )
    assert run_with_face(tmp_path, program) == "omq.zmq\n"


def test_a_submodule_may_be_imported_first(tmp_path: Path) -> None:
    assert run_with_face(tmp_path, child("import zmq.utils.jsonapi as one; print(one.__name__)")) == (
        "omq.zmq.utils.jsonapi\n"
    )


def test_nothing_is_loaded_before_zmq_is_imported(tmp_path: Path) -> None:
    """So gevent can still patch all modules, for one."""
    seen = "import sys\nprint({'omq', 'asyncio', 'ssl', 'threading'} & sys.modules.keys())\n"
    assert run_with_face(tmp_path, seen + child(seen)) == "set()\nset()\n"


def test_a_program_that_gives_its_path_to_its_children(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys\n"
        "variables = {'PYTHONPATH': os.pathsep.join(sys.path)}\n"
        f"subprocess.run([sys.executable, '-c', {HOME!r}], check=True, env=variables)\n"
    )
    assert run_with_face(tmp_path, program) == "omq.zmq\n"
    (tmp_path / "outer.py").write_text(child(program))
    assert run(tmp_path, "-m", "omq.zmq", "outer.py") == "omq.zmq\n"


def test_the_path_of_a_child_has_the_folder_more(tmp_path: Path) -> None:
    expected = eval(run(tmp_path, "-c", child("import sys; print(sys.path)")))
    expected.insert(1, FOLDER)
    assert eval(run_with_face(tmp_path, child("import sys; print(sys.path)"))) == expected


def test_the_sitecustomize_of_a_program_is_imported(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('own')\nvalue = 1\n")
    path = os.pathsep.join([str(ROOT), str(tmp_path / "own")])
    shown = run_with_face(tmp_path, child("import sitecustomize\nprint(sitecustomize.value)\n" + HOME), path)
    assert shown.split() == ["own"] * 3 + ["1", "omq.zmq"]  # the command, the program and its child


def test_a_sitecustomize_that_fails_is_reported_by_python(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import missing\n")
    path = os.pathsep.join([FOLDER, str(ROOT), str(tmp_path / "own")])
    done = subprocess.run(
        [sys.executable, "-c", HOME], env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, "No module named 'missing'" in done.stderr) == ("omq.zmq\n", True)


def test_a_child_without_omq_has_pyzmq(tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    hide = (
        "import sys\nclass Without:\n    def __init__(self, finder):\n        self.finder = finder\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        return None if name == 'omq' else self.finder.find_spec(name, path, target)\n"
        "sys.meta_path[1:] = map(Without, sys.meta_path[1:])\n"
    )
    assert run_with_face(tmp_path, child(hide + HOME)) == "zmq\n"


def test_modules_that_gevent_has_patched_before(tmp_path: Path) -> None:
    """omq imports them again in a thread, which waits for locks of imports."""
    pytest.importorskip("gevent")
    program = (
        "from gevent import monkey\nmonkey.patch_all()\nimport zmq.green as zmq\ncontext = zmq.Context()\n"
        "pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)\n"
        "port = pull.bind_to_random_port('tcp://127.0.0.1')\npush.connect(f'tcp://127.0.0.1:{port}')\n"
        "push.send(b'hello')\nprint(zmq.__name__, pull.recv())\ncontext.destroy()\n"
    )
    assert run_with_face(tmp_path, program) == "omq.zmq.green b'hello'\n"


def test_omq_may_be_in_the_folder_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import zmq\nprint(zmq.__file__)\n")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "omq.zmq", str(tmp_path / "program.py")]
    home = Path(omq.zmq.__file__)  # not in the source tree if a wheel is tested
    shown = subprocess.check_output(command, cwd=home.parents[2], env=variables, text=True, timeout=60)
    assert shown == f"{home}\n"


def test_the_folder_stands_once_in_front_of_the_path(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("import os\nprint(os.environ['PYTHONPATH'])\n")
    inner = "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'omq.zmq', 'inner.py'], check=True)\n"
    assert run_with_face(tmp_path, inner) == f"{FOLDER}{os.pathsep}{ROOT}\n"
