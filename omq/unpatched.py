"""Modules of the standard library without the patches of gevent or eventlet.

After `gevent.monkey.patch_all()` a thread is a greenlet, a lock is a greenlet's, and `select.epoll` is gone. A blocking
call of omq releases the GIL and waits for another thread; if that is a greenlet of the waiting thread, neither ever
runs. So all code in omq that starts a thread, or waits for one, imports these modules from here:

    from omq.unpatched import threading

Each use checks whether the module is patched, because that may happen before or after omq is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import BuiltinFunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import _thread as _thread
    import queue as queue
    import select as select
    import selectors as selectors
    import socket as socket
    import subprocess as subprocess
    import threading as threading
    import time as time
    from _thread import get_ident as get_ident

#: The modules that are patched, or depend on one. A copy of one uses the copies of the others.
_FAMILY: Final = (
    "_thread",
    "time",
    "select",
    "threading",
    "selectors",
    "socket",
    "queue",
    "subprocess",
)

_copies: dict[str, ModuleType] = {}


class Unpatched:
    """A module of the standard library without patches; imported with its first use."""

    _module: ModuleType

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "_module":
            self._module = importlib.import_module(self._name)  # patches change it in place
            return self._module
        return getattr(_copy_of(self._module.__name__) if is_patched() else self._module, attribute)


def is_patched() -> bool:
    """Returns whether gevent or eventlet has replaced parts of the standard library."""
    loaded = sys.modules
    gevent = loaded.get("gevent.monkey")
    if gevent is not None and any(map(gevent.is_module_patched, ("_thread", "time", "select", "socket", "queue"))):
        return True
    eventlet = loaded.get("eventlet.patcher")
    return eventlet is not None and bool(eventlet.already_patched)


def refuse_subinterpreter() -> None:
    """Raises `ImportError` in a sub-interpreter: omq's core belongs to the main interpreter."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    try:
        interpreters: Any = importlib.import_module(name)
    except ImportError:  # a Python without them
        return
    if interpreters.get_current() != interpreters.get_main():
        raise ImportError(
            "omq does not work in a sub-interpreter: import it in the main one, or use a process (multiprocessing)"
        )


def sleep(seconds: float) -> None:
    """Suspends the whole thread, as `time.sleep` does without a patch."""
    time.sleep(seconds)


def _copy_of(name: str) -> ModuleType:
    if not _copies:
        _make_copies()
    return _copies[name]


def _make_copies() -> None:
    """Imports the modules again, in a thread that Python's own `threading` does not know.

    `threading` takes the thread that imports it for the main thread, and replaces the lock by which a running `Thread`
    reports its end (Python 3.11 and 3.12).
    """
    thread: Any = _made_again("_thread")
    begun = {"_thread": thread}
    ident, is_main = thread.get_ident(), thread.get_native_id() == os.getpid()
    failures: list[BaseException] = []
    done = thread.allocate_lock()
    done.acquire()

    def work() -> None:
        try:
            _import_again(begun)
        except BaseException as error:
            failures.append(error)
        finally:
            done.release()

    thread.start_new_thread(work, ())
    done.acquire()
    if failures:
        raise failures[0]
    _name_main_thread(begun["threading"], ident if is_main else 0)
    _copies.update(begun)


def _name_main_thread(copy: Any, ident: int) -> None:
    """Sets the main thread of the copy of `threading`; 0 if the main thread is not this one, and unknown."""
    if sys.version_info < (3, 13):  # later versions find it themselves
        main = copy.main_thread()
        copy._active.clear()
        main._ident = ident
        if ident:
            copy._active[ident] = main


def _import_again(copies: dict[str, ModuleType]) -> None:
    before = {name: sys.modules.pop(name, None) for name in _FAMILY}
    sys.modules.update(copies)
    try:
        for name in _FAMILY:
            copies[name] = importlib.import_module(name)
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
    for name, copy in copies.items():
        _share_errors(before.get(name), copy)


def _share_errors(known: ModuleType | None, copy: ModuleType) -> None:
    """Replaces exceptions in a copy by those that the program knows, such as `queue.Full`."""
    for name, value in vars(copy).items():
        known_value = getattr(known, name, None)
        if isinstance(value, type) and issubclass(value, BaseException) and isinstance(known_value, type):
            setattr(copy, name, known_value)


def _made_again(name: str) -> ModuleType:
    """Returns a second instance of a module that is built into the interpreter."""
    spec = importlib.machinery.BuiltinImporter.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert isinstance(vars(module)["start_new_thread"], BuiltinFunctionType)
    return module


if not TYPE_CHECKING:
    _thread = Unpatched("_thread")
    queue = Unpatched("queue")
    select = Unpatched("select")
    selectors = Unpatched("selectors")
    socket = Unpatched("socket")
    subprocess = Unpatched("subprocess")
    threading = Unpatched("threading")
    time = Unpatched("time")
    get_ident = _thread.get_ident  # looked up once, for hot paths: no later patch changes what it returns
