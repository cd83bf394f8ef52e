"""A program that computes on two engines of ipyparallel: it prints the results, as JSON."""

import json
import os
import signal
import sys
from pathlib import Path

import ipyparallel
import numpy
import psutil
from traitlets.config import Config

TIMEOUT_S = 60


def square(number):
    return number * number


def fail(number):
    if number == 3:
        raise ValueError(f"number {number}")
    return number


def total():
    return float(array.sum())  # noqa: F821 - the engine's


def whole():
    return array  # noqa: F821 - the engine's


def sleep(seconds):
    import os
    import time

    print("begun", flush=True)
    time.sleep(seconds)
    return os.getpid()


def maps_of_children() -> dict:
    """Returns the memory maps of the controller, its schedulers, the engines and their watchers."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        with open(f"/proc/{child.pid}/maps") as file:
            found[f"{child.pid} {' '.join(child.cmdline())}"] = file.read()
    return found


def error_of(call) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def main(engine_path: str) -> None:
    config = Config()
    config.EngineLauncher.environment = {"PYTHONPATH": engine_path}
    cluster = ipyparallel.Cluster(n=2, config=config, log_level=30)
    found = {}
    with cluster as client:
        client.wait_for_engines(2, timeout=TIMEOUT_S)
        both, balanced = client[:], client.load_balanced_view()
        with open("/proc/self/maps") as file:
            found["maps"] = {"client": file.read(), **maps_of_children()}
        connection = json.loads(Path(cluster.controller.connection_files["client"]).read_text())
        found["encrypted"] = bool(connection["curve_serverkey"])
        pids = both.apply_sync(os.getpid)
        found["engines"] = len(set(pids))
        found["map"] = both.map_sync(square, range(100))
        found["balanced map"] = balanced.map_sync(square, range(50))
        found["unordered map"] = sorted(balanced.imap(square, range(50), ordered=False))
        found["error"] = error_of(lambda: both.map_sync(fail, range(6)))
        found["balanced error"] = error_of(lambda: balanced.map_sync(fail, range(6)))
        both.scatter("number", [1, 2], block=True)
        found["execute"] = both.execute("print('number', number[0]); number[0] * 10", block=True).stdout
        found["pull"] = both.pull("number", block=True)
        array = numpy.arange(1_000_000.0)
        both.push({"array": array}, block=True, track=True)
        found["array"] = both.apply_sync(total)
        found["gathered array"] = bool((both.apply_sync(whole)[1] == array).all())
        found["large"] = [len(part) for part in both.apply_sync(lambda: b"x" * 20_000_000)]
        found["abort"] = error_of(abort(client))
        killed = client[0].apply_async(sleep, 600)
        while not killed.stdout:
            client.wait(killed, timeout=0.05)
        os.kill(pids[0], signal.SIGKILL)
        found["killed"] = error_of(lambda: killed.get(timeout=TIMEOUT_S)).partition(":")[0]
        found["engines after the kill"] = client.ids
        found["map after the kill"] = client.load_balanced_view().map_sync(square, range(10))
    found["stopped"] = [child.status() for child in psutil.Process().children() if child.is_running()]
    print(json.dumps(found))


def abort(client):
    """Returns a call that gets a result that was cancelled before its engine began it."""
    client[1].apply_async(sleep, 1)
    waiting = client[1].apply_async(sleep, 0)
    client.abort(waiting, targets=[1], block=True)
    return lambda: waiting.get(timeout=TIMEOUT_S)


if __name__ == "__main__":
    main(sys.argv[1])
