"""The types whose messages have one part, next to the classic type of the same pattern, and to pyomq's."""

from __future__ import annotations

from functools import partial

from bench.measure import Load, round_trips, throughput
from bench.plan import MEGABYTES, P50, P99, RATE, Case, Scenario, ScenarioOptions, Target, size_text

OURS, CLASSIC, PYOMQ = PEERS = ("omq-one-part", "omq-classic", "pyomq-one-part")
#: Sender and receiver, and the classic ones.
STREAMS = (("SCATTER", "GATHER", "PUSH", "PULL"), ("CHANNEL", "CHANNEL", "PAIR", "PAIR"))


def _cases(options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp",):
        for size in options.sizes or (16, 1024):
            load = Load(transport, size, options.seconds)
            where = f"blocking, over {transport}, {size_text(size)}"
            for sender, receiver, old_sender, old_receiver in STREAMS:
                roles = (f"send {sender}", f"receive {receiver}")
                runs = {
                    OURS: partial(throughput, OURS, load, roles),
                    CLASSIC: partial(throughput, CLASSIC, load, (f"send {old_sender}", f"receive {old_receiver}")),
                    PYOMQ: partial(throughput, PYOMQ, load, roles),
                }
                title = f"{sender} to {receiver}, and {old_sender} to {old_receiver}, {where}"
                targets = (Target(0.9, CLASSIC), Target(2.0, PYOMQ))
                cases.append(Case(title, OURS, runs, (RATE, MEGABYTES), targets))
            roles = ("answer SERVER", "ask CLIENT")
            trips = {
                OURS: partial(round_trips, OURS, load, roles),
                CLASSIC: partial(round_trips, CLASSIC, load, ("answer REP", "ask REQ")),
                PYOMQ: partial(round_trips, PYOMQ, load, roles),
            }
            title = f"CLIENT to SERVER, and REQ to REP, {where}"
            cases.append(Case(title, OURS, trips, (P50, P99), (Target(1.1, CLASSIC), Target(0.95, PYOMQ))))
    return cases


SCENARIOS = (
    Scenario(
        "one-part",
        "SCATTER to GATHER, CHANNEL and CLIENT to SERVER, next to their classic types, over tcp, 16 B and 1 KiB",
        PEERS,
        _cases,
    ),
)
