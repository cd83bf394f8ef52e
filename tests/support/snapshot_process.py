"""A process that takes a snapshot, which tests may stop or kill at any step.

    python -m tests.support.snapshot_process DIR TARGET PAUSE_S

It prints a line once it has pinned the state, and pauses after each small step of the copy. A pause below 0: it waits
for its end.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from omq.store.lmdb import snapshot
from tests.support.fork_server import ForkedProcess

STEP_BYTES = 64 << 10


def start(directory: Path, target: Path, pause: float = 0.0) -> ForkedProcess:
    """Starts the process."""
    program = "from tests.support.snapshot_process import main; main()"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return ForkedProcess("-c", program, directory, target, str(pause), **pipes)


def main() -> None:
    directory, target, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
    snapshot.STEP_BYTES = STEP_BYTES
    began = False

    def progress(copied: int, total: int) -> None:
        nonlocal began
        if not began:
            print("copying", flush=True)
            began = True
        if pause < 0:
            signal.pause()
        time.sleep(pause)

    snapshot.take_snapshot(directory, target, progress=progress)


if __name__ == "__main__":
    main()
