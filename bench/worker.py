"""One process of a scenario: `python -m bench.worker PEER ROLE JOB`, started by `bench.processes`."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback

from bench.control import Control
from bench.peers import PEERS


def main(peer: str, role: str, job: str) -> None:
    """Runs one role of one peer until the bench kills the process or closes the pipe."""
    control = Control()
    options = json.loads(job)
    signal.alarm(options["limit"])  # the last resort if the bench itself has died
    if tree := PEERS[peer].tree:
        sys.path.insert(0, os.environ[tree])
    try:
        module = importlib.import_module(PEERS[peer].module)
        module.run_role(role, control, options)
    except Exception:
        control.report(error=traceback.format_exc())
        raise SystemExit(1) from None


if __name__ == "__main__":
    main(*sys.argv[1:])
