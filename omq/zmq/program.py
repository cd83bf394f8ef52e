"""Runs a program as `python` does."""

from __future__ import annotations

import os
import pkgutil
import runpy
import sys
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import ModuleType, TracebackType


def run_module(name: str, arguments: list[str]) -> None:
    """Runs a module: `python -m NAME ARGUMENTS`."""
    sys.argv[:] = ["-m", *arguments]
    _new_main()
    _run_as_main(name, True)


def run_path(path: str, arguments: list[str]) -> None:
    """Runs a file, a folder or a zip file: `python PATH ARGUMENTS`."""
    sys.argv[:] = [path, *arguments]
    main = _new_main()
    if pkgutil.get_importer(path) is not None:  # a folder or a zip file
        _set_first_path(path)
        _run_as_main("__main__", False)
    else:
        _run_file(path, main)


def _run_file(path: str, main: ModuleType) -> None:
    full = os.path.join(os.getcwd(), path)
    compiled = path.endswith(".pyc")
    loader = (SourcelessFileLoader if compiled else SourceFileLoader)("__main__", full)
    try:
        content = loader.get_data(path)
    except OSError as error:
        print(f"{sys.executable}: can't open file {full!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    _set_first_path(os.path.dirname(os.path.realpath(full)))
    main.__file__, main.__loader__ = full, loader
    main.__dict__["__cached__"] = None
    code = loader.get_code("__main__") if compiled else compile(content, full, "exec", dont_inherit=True)
    assert code is not None
    exec(code, main.__dict__)


def _run_as_main(name: str, is_module: bool) -> None:
    runpy._run_module_as_main(name, is_module)  # type: ignore[attr-defined]


def _set_first_path(folder: str) -> None:
    """Replaces the current folder, which `python -m` has put in front."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _new_main() -> ModuleType:
    """Returns an empty `__main__`, whose errors are shown without the lines that lead to it."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update({"__builtins__": sys.modules["builtins"], "__annotations__": {}})
    sys.excepthook = _show_error
    return main


def _show_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    step = shown = traceback
    while step is not None:
        if step.tb_frame.f_code.co_filename == __file__:
            shown = step.tb_next
        step = step.tb_next
    sys.__excepthook__(kind, error.with_traceback(shown), shown)
