"""Jupyter: its client and its kernel, each on omq or on libzmq, do what a notebook needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.drop_in_programs import MARKS, Installed, library_in

pytestmark = MARKS

PLAIN: dict[str, Any] = {}
CURVE: dict[str, Any] = {"transport_encryption": "required"}
IPC: dict[str, Any] = {"transport": "ipc"}
NAMES = {True: "omq", False: "libzmq"}
MANY = "".join(f"{number}\n" for number in range(5000))


@pytest.mark.parametrize(
    ("client", "kernel", "options"),
    [
        pytest.param(True, True, PLAIN, id="client-and-kernel"),
        pytest.param(True, False, PLAIN, id="client"),
        pytest.param(False, True, PLAIN, id="kernel"),
        pytest.param(True, False, CURVE, id="client-with-curve"),
        pytest.param(False, True, CURVE, id="kernel-with-curve"),
        pytest.param(True, False, IPC, id="client-with-ipc"),
        pytest.param(False, True, IPC, id="kernel-with-ipc"),
        pytest.param(False, False, PLAIN, id="neither"),
    ],
)
def test_cells_run_and_kernels_are_interrupted_and_restarted(
    installed: Callable[..., Installed], client: bool, kernel: bool, options: dict[str, Any]
) -> None:
    programs = installed("ipykernel", "jupyter_client")
    folder = programs.work / "kernels" / "tested"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(
        json.dumps(
            {
                "argv": programs.command("-m", "ipykernel_launcher", "-f", "{connection_file}", face=kernel),
                "display_name": "tested",
                "env": {"PYTHONPATH": programs.variables(face=kernel)["PYTHONPATH"]},
                "language": "python",
                "metadata": {"supported_encryption": "curve"},
            }
        )
    )
    folders = {"JUPYTER_PATH": str(programs.work), "JUPYTER_RUNTIME_DIR": str(programs.work / "r")}
    found = programs.result("jupyter_program.py", "tested", json.dumps(options), face=client, **folders)
    assert {name: library_in(maps) for name, maps in found.pop("maps").items()} == {
        "client": {NAMES[client]},
        "kernel": {NAMES[kernel]},
    }
    assert found.pop("endpoint").startswith(options.get("transport", "tcp"))
    assert found.pop("encrypted") is (options == CURVE)
    assert found == {
        "execute": {"stdout": "out\n", "result": "3628800", "error": None, "status": "ok"},
        "error": {"stdout": "", "result": None, "error": "ZeroDivisionError", "status": "error"},
        "many": MANY,
        "large": 5_000_001,
        "input": "abab\n",
        "interrupt of a sleep": "KeyboardInterrupt",
        "interrupt of a loop": "KeyboardInterrupt",
        "after the interrupts": "42",
        "heartbeat": True,
        "restart": {"other process": True, "names": "NameError", "result after a kill": "2"},
        "shut down": True,
    }
