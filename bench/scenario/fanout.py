"""PUB to several SUB processes: deliveries a second, all subscribers together; and several PUSH to one PULL.

The publishers run the same loop, as fast as `send` returns, and drop for a full subscriber, as PUB does. The messages
of the subscribers count; the rate of `send` is next to them.

The limit of the blocking twin is measured, too: as many processes let messages arrive (each has a PUB of its own, and
the I/O thread reads while no thread calls), close the PUB, and then do nothing but `recv`, all at once.
"""

from __future__ import annotations

from functools import partial

from bench.measure import Load, fan_in, fan_in_limit, fan_out, fan_out_lossless
from bench.plan import MEGABYTES, PUBLISHED, RATE, Case, Scenario, ScenarioOptions, Target, size_text

ASYNCIO = ("omq-asyncio", "pyzmq-asyncio")
BLOCKING = ("omq", "pyzmq", "pyomq")
LIMIT = "omq-ready"
TARGETS = {
    "omq-asyncio": (Target(8.0, "pyzmq-asyncio"),),
    "omq": (Target(2.0, "pyzmq"), Target(1.0, "pyomq")),
}


def _cases(peers: tuple[str, ...], title: str, options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp",):
        for size in options.sizes or (128,):
            load = Load(transport, size, options.seconds)
            runs = {peer: partial(fan_out, peer, load, options.subscribers) for peer in peers}
            if peers is BLOCKING:
                runs[LIMIT] = partial(fan_in_limit, LIMIT, load, options.subscribers)
            name = f"{title} to {options.subscribers} SUB over {transport}, {size_text(size)}"
            cases.append(Case(name, peers[0], runs, (RATE, MEGABYTES, PUBLISHED), TARGETS[peers[0]]))
    return cases


def _lossless(options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp",):
        for size in options.sizes or (16, 1024):
            load = Load(transport, size, options.seconds)
            runs = {peer: partial(fan_out_lossless, peer, load, options.subscribers) for peer in ("omq", "pyzmq")}
            pattern = f"blocking PUB without high-water marks to {options.subscribers} SUB"
            name = f"{pattern} over {transport}, {size_text(size)}"
            cases.append(Case(name, "omq", runs, (RATE, MEGABYTES), (Target(2.0, "pyzmq"),)))
    return cases


def _into_one(options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp",):
        for size in options.sizes or (128,):
            load = Load(transport, size, options.seconds)
            runs = {peer: partial(fan_in, peer, load, options.subscribers) for peer in ("omq", "pyzmq")}
            name = f"{options.subscribers} blocking PUSH to one PULL over {transport}, {size_text(size)}"
            cases.append(Case(name, "omq", runs, (RATE, MEGABYTES), (Target(3.0, "pyzmq"),)))
    return cases


SCENARIOS = (
    Scenario(
        "blocking-fanout-whole",
        "PUB without high-water marks to 8 SUB processes over tcp, 16 B and 1 KiB: until each has every message",
        ("omq", "pyzmq"),
        _lossless,
    ),
    Scenario(
        "blocking-fanin",
        "8 PUSH processes to one PULL over tcp, 128 B",
        ("omq", "pyzmq"),
        _into_one,
    ),
    Scenario(
        "asyncio-fanout",
        "PUB to 8 SUB processes over tcp, 128 B: deliveries a second in total",
        ASYNCIO,
        partial(_cases, ASYNCIO, "asyncio PUB"),
    ),
    Scenario(
        "blocking-fanout",
        "PUB to 8 SUB processes over tcp, 128 B: deliveries a second in total",
        (*BLOCKING, LIMIT),
        partial(_cases, BLOCKING, "blocking PUB"),
    ),
)
