"""ipyparallel: a controller and two engines compute, on omq, and with engines or a client on libzmq."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omq.zmq.preload import FOLDER
from tests.support.drop_in_programs import MARKS, ROOT, Installed, library_in

pytestmark = MARKS
FACE_PATH = f"{FOLDER}:{ROOT}"
ERROR = "CompositeError: one or more exceptions raised in: fail\n[{}:apply]ValueError: number 3"


@pytest.mark.parametrize(
    ("face", "engines", "curve"),
    [
        pytest.param(True, True, False, id="all"),
        pytest.param(True, True, True, id="all-with-curve"),
        pytest.param(True, False, False, id="client-and-controller"),
        pytest.param(False, True, False, id="engines"),
    ],
)
def test_two_engines_compute_and_one_is_killed(
    installed: Callable[..., Installed], face: bool, engines: bool, curve: bool
) -> None:
    programs = installed("ipyparallel", "numpy")
    path = FACE_PATH if engines else ""
    variables = {"IPYTHONDIR": str(programs.work / "ipython"), "IPP_ENABLE_CURVE": str(int(curve))}
    found = programs.result("ipyparallel_program.py", path, face=face, **variables)
    maps = found.pop("maps")
    assert sum("ipyparallel.controller" in name for name in maps) >= 4  # the hub and its schedulers
    assert sum("ipyparallel.engine" in name for name in maps) == 4  # each engine has a process that watches it
    for name, text in maps.items():
        on_face = engines if "ipyparallel.engine" in name else face
        assert library_in(text) == {"omq" if on_face else "libzmq"}, name
    assert found.pop("abort").startswith("TaskAborted")
    assert found.pop("balanced error") in (ERROR.format(0), ERROR.format(1))
    assert found == {
        "encrypted": curve,
        "engines": 2,
        "map": [number * number for number in range(100)],
        "balanced map": [number * number for number in range(50)],
        "unordered map": [number * number for number in range(50)],
        "error": ERROR.format(1),
        "execute": ["number 1\n", "number 2\n"],
        "pull": [[1], [2]],
        "array": [499_999_500_000.0] * 2,
        "gathered array": True,
        "large": [20_000_000] * 2,
        "killed": "RemoteError",
        "engines after the kill": [1],
        "map after the kill": [number * number for number in range(10)],
        "stopped": [],
    }
