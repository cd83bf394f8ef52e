"""`omq.zmq.install` gives the face the name `zmq`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(program: str, folder: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_modules_are_those_of_the_face() -> None:
    assert (
        run(
            "import omq.zmq\nomq.zmq.install()\nomq.zmq.install()\n"
            "import sys\nbefore = sys.meta_path.copy()\n"
            "import zmq, zmq.utils.jsonapi\nfrom zmq.devices import monitoredqueue\nimport zmq.auth.thread as thread\n"
            "import omq.zmq.auth.thread, omq.zmq.devices.monitoredqueue\n"
            "assert zmq is omq.zmq and sys.modules['zmq.utils.jsonapi'] is omq.zmq.utils.jsonapi\n"
            "assert thread is omq.zmq.auth.thread and monitoredqueue is omq.zmq.devices.monitoredqueue\n"
            "assert zmq.__spec__.name == 'omq.zmq' and zmq.install is omq.zmq.install\n"
            "print(sum(type(one).__name__ == 'FaceFinder' for one in before))"
        )
        == "1\n"
    )


def test_modules_are_loaded_when_they_are_imported() -> None:
    run("import omq.zmq, sys\nomq.zmq.install()\nimport zmq\nassert 'omq.zmq.auth' not in sys.modules")


def test_a_module_that_the_face_lacks() -> None:
    run(
        "import omq.zmq\nomq.zmq.install()\n"
        "try:\n    import zmq.backend.cffi\n"
        "except ModuleNotFoundError as error:\n    assert error.name == 'zmq.backend.cffi'\n"
        "else:\n    raise AssertionError"
    )


@pytest.mark.parametrize("imports", ["import zmq", "from zmq import Context", "from zmq import PUSH", "import zmq.log"])
def test_pyzmq_is_imported_already(tmp_path: Path, imports: str) -> None:
    pytest.importorskip("zmq")
    (tmp_path / "importer.py").write_text(imports)
    program = "import importer, omq.zmq\ntry:\n    omq.zmq.install()\nexcept ImportError as error:\n    print(error)"
    assert "by importer;" in run(program, tmp_path)


def test_a_module_runs_as_a_program_under_its_second_name() -> None:
    program = (
        "import omq.zmq, runpy, sys\nomq.zmq.install()\nsys.argv[1:] = ['--json']\n"
        "runpy.run_module('zmq.curve_keygen', run_name='__main__')"
    )
    assert '"public"' in run(program)
