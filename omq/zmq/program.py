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
    full = os.path.join(os.getcwd(), path)
    main = _new_main()
    if pkgutil.get_importer(full) is None:
        _run_file(full, main)
    else:  # a folder or a zip file
        # With `-P`, `python -m` has put nothing in front of the path, and `python PATH` puts this there all the same.
        sys.path[: 0 if sys.flags.safe_path else 1] = [full]
        _run_as_main("__main__", False)


def _run_file(path: str, main: ModuleType) -> None:
    compiled = path.endswith(".pyc")
    loader = (SourcelessFileLoader if compiled else SourceFileLoader)("__main__", path)
    try:
        content = loader.get_data(path)
    except OSError as error:
        print(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))  # instead of the current folder
    main.__file__, main.__loader__ = path, loader
    main.__dict__["__cached__"] = None
    code = loader.get_code("__main__") if compiled else compile(content, path, "exec", dont_inherit=True)
    assert code is not None
    exec(code, main.__dict__)


def _run_as_main(name: str, is_module: bool) -> None:
    runpy._run_module_as_main(name, is_module)  # type: ignore[attr-defined]


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
