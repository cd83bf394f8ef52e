"""One client in a process of its own: `python -m bench.broker.worker DRIVER JOB`, a `bench.processes.Talker`."""

from __future__ import annotations

import gc
import json
import signal
import sys
import time
import traceback

from bench.broker.drivers import Client, Job, client, trips
from bench.link import Link


def main(name: str, job: str) -> None:
    """Does what the bench orders until it closes the pipe: `do`, with `count`; times are of the monotonic clock,
    `busy` is the processor's time."""
    link = Link()
    options = json.loads(job)
    signal.alarm(options.pop("limit"))  # the last resort, should the bench itself have died
    try:
        driver = client(name, Job(**options))
        link.tell(ready=True)
        while True:
            order = link.take()
            gc.collect()
            link.tell(**_obey(driver, link, order["do"], order.get("count", 0)))
    except Exception:
        link.tell(error=traceback.format_exc())
        raise SystemExit(1) from None


def _obey(driver: Client, link: Link, order: str, count: int) -> dict[str, object]:
    if order == "trips":
        return {"trips": trips(driver, count)}
    if order in ("create", "arm"):
        getattr(driver, order)()
        return {"did": order}
    if order in ("away", "one_by_one", "at_once"):
        return {"seconds": getattr(driver, order)(count)}
    run = getattr(driver, order)
    if order == "consume":
        link.tell(begun=True)
    busy, started = time.process_time(), time.monotonic()
    run(count)
    return {"started": started, "ended": time.monotonic(), "busy": time.process_time() - busy}


if __name__ == "__main__":
    main(*sys.argv[1:])
