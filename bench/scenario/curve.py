"""CURVE between two processes: throughput next to pyzmq and libsodium alone, and round trips in the clear."""

from __future__ import annotations

from functools import partial
from time import perf_counter

from bench.measure import Load, Sample, round_trips, throughput
from bench.peers.curve import libsodium_of_pyzmq
from bench.plan import MEGABYTES, P50, P99, RATE, Case, Scenario, ScenarioOptions, Target, size_text

SIZES = (128, 1024, 64 << 10)
#: Bounds of omq's rate over pyzmq's, by size.
BOUNDS = {128: 2.0, 1024: 2.0, 64 << 10: 1.2}
#: From this size on the cipher takes nearly all the time: its own rate on one core is the measure.
CIPHER_FROM_BYTES = 64 << 10
CIPHER_SHARE = 0.75

_CHUNK_BOXES = 64  # between two looks at the clock


def libsodium_alone(size: int, seconds: float) -> Sample:
    """Measures `crypto_box_afternm` on one core with messages of this size, in C, one after another."""
    from nacl._sodium import ffi, lib

    lib.sodium_init()
    key, nonce = ffi.new("unsigned char[32]"), ffi.new("unsigned char[24]")
    lib.randombytes(key, 32)
    padded = size + lib.crypto_box_zerobytes()
    clear, box = ffi.new("unsigned char[]", padded), ffi.new("unsigned char[]", padded)
    count, started = 0, perf_counter()
    while (took := perf_counter() - started) < seconds:
        for _ in range(_CHUNK_BOXES):
            lib.crypto_box_afternm(box, clear, padded, nonce, key)
        count += _CHUNK_BOXES
    return {"rate": count / took, "megabytes": count / took * size / 1e6}


def _throughput(options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp",):
        for size in options.sizes or SIZES:
            load = Load(transport, size, options.seconds)
            runs = {peer: partial(throughput, peer, load) for peer in ("omq-curve", "pyzmq-curve")}
            if libsodium_of_pyzmq() is not None:
                runs["omq-curve-same"] = partial(throughput, "omq-curve-same", load)
            targets = [Target(BOUNDS.get(size, 1.0), "pyzmq-curve")]
            if size >= CIPHER_FROM_BYTES:
                runs["libsodium"] = partial(libsodium_alone, size, options.seconds)
                targets.append(Target(CIPHER_SHARE, "libsodium"))
            name = f"PUSH to PULL with CURVE over {transport}, {size_text(size)}"
            cases.append(Case(name, "omq-curve", runs, (RATE, MEGABYTES), tuple(targets)))
    return cases


def _latency(options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp",):
        for size in options.sizes or (16,):
            load = Load(transport, size, options.seconds)
            runs = {peer: partial(round_trips, peer, load) for peer in ("omq-curve", "omq", "pyzmq-curve")}
            name = f"REQ to REP with CURVE over {transport}, {size_text(size)}"
            cases.append(Case(name, "omq-curve", runs, (P50, P99), (Target(1.3, "omq"), Target(1.0, "pyzmq-curve"))))
    return cases


SCENARIOS = (
    Scenario(
        "curve-throughput",
        "PUSH to PULL with CURVE over tcp, 128 B to 64 KiB, and libsodium alone",
        ("omq-curve", "pyzmq-curve", "omq-curve-same", "libsodium"),
        _throughput,
    ),
    Scenario(
        "curve-latency",
        "REQ to REP with CURVE over tcp, 16 B, next to omq in the clear",
        ("omq-curve", "omq", "pyzmq-curve"),
        _latency,
    ),
)
