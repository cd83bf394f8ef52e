"""A coverage-guided fuzzer of what a stranger can say: greeting, commands, PLAIN, CURVE, and frames (`make fuzz`).

The first byte of an input says which parser gets the rest, so that one corpus serves all. A parser may refuse with the
errors that belong to a peer; anything else is a finding, and so is a report of the sanitizer, a hang, and memory above
the limit. Coverage guides it through the Python of `omq.zmtp`; of the compiled core it only sees what comes back.

    python tests/fuzz/fuzz_zmtp.py tests/fuzz/corpus -max_total_time=60 -rss_limit_mb=2048 -timeout=5
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["omq", "tests"]):
    from tests.fuzz.targets import one_input

if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
