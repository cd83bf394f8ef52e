"""locust: a master and workers, on omq or on libzmq, load a server, and their statistics are what it has seen."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support import waits
from tests.support.drop_in_programs import MARKS, PROGRAMS, Installed, library_of

pytestmark = MARKS
LOCUST = ("-m", "locust")
FILE = ("-f", PROGRAMS / "locust_program.py")


class Pages(BaseHTTPRequestHandler):
    """Answers 200 or 404, and counts."""

    protocol_version = "HTTP/1.1"
    counts: Counter[str]
    lock = threading.Lock()

    def do_GET(self) -> None:
        with self.lock:
            self.counts[self.path] += 1
        self.send_response(200 if self.path == "/there" else 404)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[tuple[str, Counter[str]]]:
    """The address of a server, and how often each page was read."""
    counts: Counter[str] = Counter()
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Counted", (Pages,), {"counts": counts})) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", counts
        server.shutdown()
        thread.join()


class Load:
    """A master, and workers that connect to it: four users, who read `limit` pages each."""

    def __init__(self, programs: Installed, host: str, port: int, limit: int = 20) -> None:
        self._programs = programs
        self._host = host
        self._port = str(port)
        self._variables = {"LIMIT": str(limit)}

    def master(self, face: bool, workers: int, *options: str) -> subprocess.Popen[str]:
        """Starts a master."""
        place = ("--master-bind-host", "127.0.0.1", "--master-bind-port", self._port)
        run = ("--headless", "-u", "4", "-r", "4", "--stop-timeout", "10", "--host", self._host)
        report = ("--json-file", "statistics", "--expect-workers", str(workers))
        kind = options or ("--master",)
        return self._programs.start(
            "master", *LOCUST, *FILE, *place, *run, *report, *kind, face=face, **self._variables
        )

    def worker(self, name: str, face: bool, *file: object) -> subprocess.Popen[str]:
        """Starts a worker."""
        place = ("--worker", "--master-host", "127.0.0.1", "--master-port", self._port)
        return self._programs.start(name, *LOCUST, *map(str, file or FILE), *place, face=face, **self._variables)

    def end(self, master: subprocess.Popen[str]) -> None:
        """Ends the master when it has counted all pages: then it waits for half a second for reports of its workers."""
        programs = self._programs
        counted = re.compile(r"Aggregated +80 +40\(")
        waits.until(lambda: counted.search(programs.text("master")), lambda: programs.text("master"), 90)
        master.send_signal(signal.SIGTERM)
        assert master.wait(60) == 1, programs.text("master")  # pages are missing

    def statistics(self) -> dict[str, tuple[int, int]]:
        """Returns how many requests the master counted, and how many failed, by page."""
        rows = json.loads((self._programs.work / "statistics.json").read_text())
        return {row["name"]: (row["num_requests"], row["num_failures"]) for row in rows}


@pytest.mark.parametrize(
    ("master_face", "workers_face"),
    [
        pytest.param(True, True, id="all"),
        pytest.param(True, False, id="master"),
        pytest.param(False, True, id="workers"),
    ],
)
def test_a_master_and_two_workers(
    installed: Callable[..., Installed],
    free_port: int,
    pages: tuple[str, Counter[str]],
    master_face: bool,
    workers_face: bool,
) -> None:
    programs = installed("locust")
    load = Load(programs, pages[0], free_port)
    master = load.master(master_face, 2)
    workers = [load.worker("first", workers_face), load.worker("second", workers_face, "-f", "-")]
    waits.until(lambda: pages[1]["/there"] > 10, lambda: programs.text("master"), 60)
    assert library_of(master.pid) == {"omq" if master_face else "libzmq"}
    assert [library_of(one.pid) for one in workers] == [{"omq" if workers_face else "libzmq"}] * 2
    load.end(master)
    assert load.statistics() == {"/there": (40, 0), "/missing": (40, 40)}
    assert [one.wait(60) for one in workers] == [0, 0]
    assert pages[1] == {"/there": 40, "/missing": 40}
    assert "Warning" not in programs.text("master") + programs.text("first")


def test_users_of_a_worker_that_quits_move_to_the_other(
    installed: Callable[..., Installed], free_port: int, pages: tuple[str, Counter[str]]
) -> None:
    programs = installed("locust")
    load = Load(programs, pages[0], free_port, limit=1_000_000)
    master = load.master(True, 3)
    workers = [load.worker(f"worker{number}", True) for number in range(3)]
    waits.until(lambda: pages[1]["/there"] > 10, lambda: programs.text("master"), 60)
    workers[0].send_signal(signal.SIGTERM)
    programs.wait_for_text("master", "quit")
    workers[0].wait(60)
    workers[1].kill()
    programs.wait_for_text("master", "failed to send heartbeat, setting state to missing")
    seen = pages[1]["/there"]
    waits.until(lambda: pages[1]["/there"] > seen + 10)
    master.send_signal(signal.SIGTERM)
    assert master.wait(60) == 1
    assert workers[2].wait(60) == 0


def test_a_master_that_forks_its_workers(
    installed: Callable[..., Installed], free_port: int, pages: tuple[str, Counter[str]]
) -> None:
    programs = installed("locust")
    load = Load(programs, pages[0], free_port)
    master = load.master(True, 2, "--processes", "2", "--master-port", str(free_port))
    waits.until(lambda: pages[1]["/there"] > 10, lambda: programs.text("master"), 60)
    assert [library_of(pid) for pid in programs.processes()] == [{"omq"}] * 3
    load.end(master)
    assert pages[1] == {"/there": 40, "/missing": 40}
