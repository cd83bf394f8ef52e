"""Inputs made from the corpus by chance, for builds that cannot be guided: the sanitizer's (`make fuzz`).

gcc's AddressSanitizer and libFuzzer each want to be asked about coverage, and the one that is loaded first is: so what
the guided fuzzer has found is varied here, and run in the sanitizer's build.

    python tests/fuzz/mutate.py tests/fuzz/corpus 60
    python tests/fuzz/mutate.py tests/fuzz/corpus 60 1 "WebSocket traffic"    # with this seed, and for one parser alone
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from random import Random
from time import monotonic

from tests.fuzz.targets import NAMES, one_input

LIMIT = 1 << 30  # bytes of memory that a run may grow by
SLOW = 5.0  # seconds that one input may take


def mutated(random: Random, seeds: list[bytes]) -> bytes:
    """One input: a seed with a few changes, or two of them spliced."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.randrange(1, 6)):
        at = random.randrange(len(data) + 1)
        match random.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << random.randrange(8)
            case 1 if at < len(data):
                data[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del data[at : at + random.randrange(1, 9)]
            case 3:
                data[at:at] = random.randbytes(random.randrange(1, 9))
            case 4:
                data[at:at] = data[at : at + random.randrange(1, 65)] * random.randrange(1, 4)
            case 5:
                other = random.choice(seeds)
                data[at:] = other[random.randrange(len(other) + 1) :]
    return bytes(data)


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main(corpus: str, seconds: str, seed: str = "0", name: str = "") -> None:
    random = Random(int(seed))
    seeds = [path.read_bytes() for path in sorted(Path(corpus).iterdir())]
    only = bytes([NAMES.index(name)]) if name else b""
    seeds = [data for data in seeds if data.startswith(only)]
    for data in seeds:
        one_input(data)
    count, started, before = len(seeds), monotonic(), memory()
    while (took := monotonic() - started) < float(seconds):
        for _ in range(100):
            data = mutated(random, seeds)
            if only:
                data = only + data[1:]
            began = monotonic()
            try:
                one_input(data)
            except Exception:
                print(f"input {count} of seed {seed}: {data!r}")
                raise
            if monotonic() - began > SLOW or memory() - before > LIMIT:
                raise SystemExit(f"input {count} of seed {seed} takes too long, or too much: {data!r}")
            count += 1
    print(f"{count} inputs in {took:.0f} s, {len(seeds)} seeds, {(memory() - before) >> 20} MiB grown, no finding")


if __name__ == "__main__":
    main(*sys.argv[1:])
