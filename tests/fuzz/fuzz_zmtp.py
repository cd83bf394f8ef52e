"""A coverage-guided fuzzer of what a stranger can send: greeting, commands, PLAIN, CURVE, and frames (`make fuzz`).

The first byte of an input selects the parser of the rest, so that one corpus serves all. A parser may refuse with the
errors that belong to a peer; anything else is a finding, and so is a report of the sanitizer, a hang, and memory above
the limit. Coverage guides it through the Python of `omq.zmtp`, and through the compiled core where that is built for it
(OMQ_FUZZ). How many inputs each parser got is added to the file that FUZZ_COUNT names.

    python tests/fuzz/fuzz_zmtp.py tests/fuzz/corpus -max_total_time=60 -rss_limit_mb=2048 -timeout=5
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import monotonic

import atheris

# Python that counts its branches takes five times as long: FUZZ_GUIDE=core leaves that to other runs.
CORE_ALONE = os.environ.get("FUZZ_GUIDE") == "core"
with nullcontext() if CORE_ALONE else atheris.instrument_imports(include=["omq"], exclude=["omq.engine", "omq.spark"]):
    from tests.fuzz.targets import NAMES, TARGETS, one_input

EVERY = 5.0  # seconds between two writings of the counts: libFuzzer ends the process without a word


def counted(path: Path) -> Callable[[bytes], None]:
    """Runs `one_input`, and counts."""
    before = json.loads(path.read_text()) if path.exists() else {}
    counts = [0] * len(TARGETS)
    due = monotonic() + EVERY

    def count(data: bytes) -> None:
        nonlocal due
        one_input(data)
        if data:
            counts[data[0] % len(TARGETS)] += 1
            if monotonic() > due:
                due = monotonic() + EVERY
                now = {name: before.get(name, 0) + added for name, added in zip(NAMES, counts, strict=True)}
                path.with_suffix(".new").write_text(json.dumps(now, indent=1))
                path.with_suffix(".new").replace(path)

    return count


if __name__ == "__main__":
    gc.freeze()  # what the imports have made stays: the collector does not look through it again and again
    where = os.environ.get("FUZZ_COUNT")
    atheris.Setup(sys.argv, counted(Path(where)) if where else one_input)
    atheris.Fuzz()
