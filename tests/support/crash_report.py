"""Reports of an interpreter's crash: the test, the failures before it, and the stacks of C and of Python.

While tests run it stands in `.cache/crash`, and goes when they end; where they run in several processes each has its
own, and the process that started them looks whether one stands still. `python -m tests.support.crash_report` prints
them, the most telling last: that is what the end of a long log shows.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

GRACE = 30  # seconds that pytest-timeout has to end a test, before its process is aborted
STILL = 300  # seconds in which tests wait for each other, and none is under way
PLACE = Path(__file__).parents[2] / ".cache"
_FRAME = re.compile(r"(?P<object>[^(]+)\((?P<name>[^+)]*)\+(?P<offset>0x[0-9a-f]+)\)")


class CrashReport:
    """A plugin of pytest that keeps the file.

    Args:
        several: The tests run in other processes, which this one starts.
    """

    def __init__(self, several: bool) -> None:
        PLACE.mkdir(exist_ok=True)
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        if worker is None:
            for left in PLACE.glob("crash-*"):
                left.unlink(missing_ok=True)
            _compiled()
            if several:
                Guard().start()
        self._path = PLACE / (f"crash-{worker}" if worker else "crash")
        self._file = self._path.open("wb", buffering=0)
        self._failed: list[str] = []
        faulthandler.enable(self._file)
        self._watch = _install(self._file.fileno())
        self._note(f"of process {os.getpid()}")

    def _note(self, *lines: str) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write("".join(f"{line}\n" for line in lines).encode())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Ends a test that pytest-timeout cannot end: its thread needs Python's lock, and the terminal."""
        marker = item.get_closest_marker("timeout")
        bound = float(marker.args[0] if marker is not None and marker.args else item.config.getini("timeout") or 0)
        failed = [f"failed before: {name}" for name in self._failed[-5:]]
        self._note(*failed, f"in {item.nodeid}", f"of process {os.getpid()} for {bound} seconds at most")
        if bound:
            self._watch(int(bound) + GRACE)
        try:
            return (yield)
        finally:
            self._watch(0)
            self._note(*failed, f"after {item.nodeid}", f"of process {os.getpid()}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_unconfigure(self) -> None:
        # Its end, too, may crash; a run that comes through it leaves an empty file.
        self._file.seek(0)
        self._file.truncate()
        self._file.write(b"at the end\n")


class Guard(threading.Thread):
    """Looks at the processes that run tests, and kills one that stands still: its test has failed, the others go on."""

    def __init__(self) -> None:
        super().__init__(name="guard", daemon=True)
        self._busy = time.time()

    def run(self) -> None:
        while True:
            time.sleep(GRACE / 3)
            with contextlib.suppress(OSError):  # files and processes come and go
                self._look()

    def _look(self) -> None:
        workers = [path for path in PLACE.glob("crash-*") if _alive(path)]
        looks = [self._look_at(path) for path in workers]
        if any(looks) or not workers:
            self._busy = time.time()
        elif time.time() - self._busy > STILL:
            print("\nno test is under way, and none begins", file=sys.__stderr__, flush=True)
            os.abort()

    def _look_at(self, path: Path) -> bool:
        """Returns whether a process is in a test; kills it if the test is overdue and has not even been aborted."""
        text = path.read_text(errors="replace")
        found = re.search(r"^in (.*)\nof process (\d+) for ([\d.]+) seconds", text, re.MULTILINE)
        if found is None:
            return False
        name, pid, bound = found[1], int(found[2]), float(found[3])
        if bound and time.time() - path.stat().st_mtime > bound + 3 * GRACE:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            print(f"\n{name} stands still (state {state}, proc(5)): it is killed", file=sys.__stderr__, flush=True)
            os.kill(pid, signal.SIGKILL)
            path.unlink()
        return True


def _alive(path: Path) -> bool:
    found = re.search(r"^of process (\d+)", path.read_text(errors="replace"), re.MULTILINE)
    return found is not None and Path(f"/proc/{found[1]}").exists()


_LIBRARY = PLACE / "crash_report.so"
#: The part in C: the stack of the thread that died, and the end of stderr. It does not allocate, since the heap may be
#: corrupt.
_SOURCE = r"""
#define _GNU_SOURCE
#include <execinfo.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>
#include <unistd.h>

static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { COUNT = sizeof signals / sizeof *signals };
static struct sigaction previous[COUNT];
static int out;

static void write_report(const char *text, size_t size) {
    ssize_t ignored = write(out, text, size);
    (void)ignored;
}

static void on_signal(int number, siginfo_t *info, void *context) {
    static char text[1000];
    struct stat about;
    void *frames[60];
    (void)info, (void)context;
    write_report("stack\n", 6);
    backtrace_symbols_fd(frames, backtrace(frames, 60), out);
    write_report("stderr\n", 7);
    if (fstat(2, &about) == 0 && S_ISREG(about.st_mode)) {
        off_t from = about.st_size > (off_t)sizeof text ? about.st_size - (off_t)sizeof text : 0;
        ssize_t size = pread(2, text, sizeof text, from);
        if (size > 0)
            write_report(text, (size_t)size);
    }
    write_report("\nthreads\n", 9);
    for (int i = 0; i < COUNT; i++) /* faulthandler's handler writes the stacks of the Python threads */
        if (signals[i] == number)
            sigaction(number, &previous[i], NULL);
    raise(number);
}

/* A kernel timer that sends SIGABRT after some seconds, also while another thread has the GIL. 0 stops it. */
int watch(int seconds) {
    static timer_t timer;
    static int made;
    struct itimerspec once;
    if (!made) {
        struct sigevent event;
        memset(&event, 0, sizeof event);
        event.sigev_notify = SIGEV_SIGNAL;
        event.sigev_signo = SIGABRT;
        if (timer_create(CLOCK_MONOTONIC, &event, &timer) < 0)
            return -1;
        made = 1;
    }
    memset(&once, 0, sizeof once);
    once.it_value.tv_sec = seconds;
    return timer_settime(timer, 0, &once, NULL);
}

int install(int fd) {
    struct sigaction action;
    void *frame[1];
    out = fd;
    backtrace(frame, 1); /* the first call loads libgcc, which must not happen in the handler */
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    for (int i = 0; i < COUNT; i++)
        if (sigaction(signals[i], &action, &previous[i]) < 0)
            return -1;
    return 0;
}
"""


def _compiled() -> None:
    """Compiles the part in C if there is a compiler; the main process does so for its workers."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return
    made = PLACE / f"crash_report.{os.getpid()}.so"
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-O1", "-", "-o", str(made)]
    if subprocess.run(command, input=_SOURCE, text=True, check=False).returncode == 0:
        made.rename(_LIBRARY)  # atomic: another pytest of this tree may load it now


def _install(fd: int) -> Callable[[int], object]:
    """Installs the handler in C; returns the function that aborts the process after some seconds (0: never)."""
    if not _LIBRARY.exists():
        return lambda seconds: None
    library = ctypes.CDLL(str(_LIBRARY))
    library.install(fd)
    return library.watch  # type: ignore[no-any-return]


def _named(frame: str) -> str:
    """A frame of C with the function that the object's table of symbols has there."""
    found = _FRAME.match(frame)
    if found is None or found["name"] or not shutil.which("addr2line"):
        return frame
    asked = ["addr2line", "-fe", found["object"], found["offset"]]
    name = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.partition("\n")[0]
    return f"{Path(found['object']).name}: {name}"


def _parts(text: str) -> tuple[list[str], dict[str, list[str]]]:
    """The lines before the crash, and those of each of its parts."""
    head: list[str] = []
    parts: dict[str, list[str]] = {"stack": [], "stderr": [], "threads": []}
    current = head
    for line in text.splitlines():
        current = parts.get(line, current)
        if line and line not in parts:
            current.append(line)
    return head, parts


def main() -> None:
    """Prints them."""
    kept = [path for path in (PLACE / "crash", *sorted(PLACE.glob("crash-*"))) if path.exists()]
    reports = [text for text in (path.read_text(errors="replace") for path in kept) if _crashed(text)]
    if not reports:
        sys.exit("it has left no crash report")
    for text in reports:
        _print_report(text)


def _crashed(text: str) -> bool:
    """Returns whether a report has more than the name of the running test."""
    return "\nthreads\n" in text or "Current thread" in text


def _print_report(text: str) -> None:
    head, parts = _parts(text)
    threads = [
        line for line in parts["threads"] if not re.search(r"/_pytest/|/pluggy/|/xdist/|^Extension modules", line)
    ]
    print("\n".join(threads[:60]))
    if "Current thread" in text:
        start = next(number for number, line in enumerate(threads) if line.startswith("Current thread"))
        print("\n".join(threads[start : start + 6]))
    print("\n".join(_named(frame) for frame in parts["stack"][1:11]))
    print("\n".join([*parts["stderr"][-4:], *head]))


if __name__ == "__main__":
    main()
