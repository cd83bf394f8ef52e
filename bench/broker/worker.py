"""One client in a process of its own: `python -m bench.broker.worker DRIVER JOB`."""

from __future__ import annotations

import gc
import json
import signal
import sys
import time
import traceback

from bench.broker.drivers import Client, ClientJob, client, trips
from bench.control import Control


def main(name: str, job: str) -> None:
    """Runs the orders of the bench, `do` with `count`, until the pipe is closed.

    Times in reports are of the monotonic clock; `busy` is processor time.
    """
    control = Control()
    options = json.loads(job)
    signal.alarm(options.pop("limit"))  # the last resort if the bench itself has died
    try:
        driver = client(name, ClientJob(**options))
        control.report(ready=True)
        while True:
            order = control.receive()
            gc.collect()
            control.report(**_run_order(driver, control, order["do"], order.get("count", 0)))
    except Exception:
        control.report(error=traceback.format_exc())
        raise SystemExit(1) from None


def _run_order(driver: Client, control: Control, order: str, count: int) -> dict[str, object]:
    if order == "trips":
        return {"trips": trips(driver, count)}
    if order in ("create", "arm"):
        getattr(driver, order)()
        return {"did": order}
    if order in ("leave", "one_by_one", "at_once"):
        return {"seconds": getattr(driver, order)(count)}
    run = getattr(driver, order)
    if order == "consume":
        control.report(begun=True)
    busy, started = time.process_time(), time.monotonic()
    run(count)
    return {"started": started, "ended": time.monotonic(), "busy": time.process_time() - busy}


if __name__ == "__main__":
    main(*sys.argv[1:])
