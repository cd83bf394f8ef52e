"""omq's face of pyzmq next to pyzmq: the same program, with one import changed."""

from __future__ import annotations

from functools import partial

from bench.measure import Load, round_trips, throughput
from bench.plan import P50, P99, RATE, Case, Scenario, ScenarioOptions, Target, size_text

PEERS = ("face", "face-pyzmq")
PYOMQ = "face-pyomq"
FLOOR = "bare"

#: Bounds of the rate over pyzmq's, by size.
BOUNDS = {16: 6.0, 128: 6.0}
PARTS_BOUND = 4.0
ASYNCIO_BOUND = 15.0
PYOMQ_BOUND = 3.0
STREAM_BOUND = 2.0
TENSORS_BOUND = 1.3
TENSOR_BYTES = 1 << 20


def _cases(options: ScenarioOptions) -> list[Case]:
    cases = []
    for size in options.sizes or (16, 128):
        load = Load("tcp", size, options.seconds)
        text = size_text(size)
        pairs = {peer: partial(throughput, peer, load) for peer in (*PEERS, PYOMQ)}
        targets = (Target(BOUNDS.get(size, 1.0), "face-pyzmq"), Target(PYOMQ_BOUND, PYOMQ))
        cases.append(Case(f"zmq.Socket.send to recv over tcp, {text}", "face", pairs, (RATE,), targets))
        parts = {peer: partial(throughput, peer, load, ("push-parts", "pull-parts")) for peer in PEERS}
        target = (Target(PARTS_BOUND, "face-pyzmq"),)
        cases.append(Case(f"send_multipart to recv_multipart, 3 x {text}", "face", parts, (RATE,), target))
        for kind, title in (("frames", "3 x {} of copy=False"), ("more", "2 x {} part by part, with SNDMORE")):
            roles = (f"push-{kind}", f"pull-{kind}")
            pieces = {peer: partial(throughput, peer, load, roles) for peer in PEERS}
            cases.append(Case(title.format(text), "face", pieces, (RATE,), (Target(1.0, "face-pyzmq"),)))
        awaited = {peer: partial(throughput, peer, load, ("asyncio-push", "asyncio-pull")) for peer in PEERS}
        target = (Target(ASYNCIO_BOUND, "face-pyzmq"),)
        cases.append(Case(f"zmq.asyncio, send to recv, {text}", "face", awaited, (RATE,), target))
        streams = {peer: partial(throughput, peer, load, ("push", "pull-stream")) for peer in PEERS}
        target = (Target(STREAM_BOUND, "face-pyzmq"),)
        cases.append(Case(f"send to the callback of a ZMQStream, {text}", "face", streams, (RATE,), target))
        polled = {peer: partial(throughput, peer, load, ("push-polled", "pull-polled")) for peer in PEERS}
        cases.append(Case(f"Poller of 100 sockets, {text}", "face", polled, (RATE,), (Target(1.0, "face-pyzmq"),)))
        trips = {peer: partial(round_trips, peer, load) for peer in PEERS}
        faster = (Target(1.0, "face-pyzmq"), Target(1.0, "face-pyzmq", P99))
        cases.append(Case(f"REQ to REP over tcp, {text}", "face", trips, (P50, P99), faster))
        spread = {peer: partial(throughput, peer, load, ("push-in-turn", "pull-in-turn")) for peer in PEERS}
        target = (Target(1.0, "face-pyzmq"),)
        cases.append(Case(f"PUSH to 100 PULLs of pyzmq, {text}", "face", spread, (RATE,), target))
    return cases


def _tensor_cases(options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp", "ipc"):
        load = Load(transport, TENSOR_BYTES, options.seconds)
        for sender, receiver in (("push", "pull"), ("router", "dealer")):
            roles = (f"{sender}-tensors", f"{receiver}-tensors")
            peers = {peer: partial(throughput, peer, load, roles) for peer in PEERS}
            peers[FLOOR] = partial(throughput, FLOOR, load)
            title = f"{sender.upper()} to {receiver.upper()} over {transport}"
            target = (Target(TENSORS_BOUND, "face-pyzmq"),)
            cases.append(Case(f"tensors of 1 MiB, copy=False and track=True, {title}", "face", peers, (RATE,), target))
    return cases


SCENARIOS = (
    Scenario(
        "face",
        "omq.zmq next to pyzmq: send and recv, three parts, zmq.asyncio, ZMQStream, Poller of 100, round trips",
        (*PEERS, PYOMQ),
        _cases,
    ),
    Scenario(
        "tensors",
        "omq.zmq next to pyzmq: tensors of 1 MiB between two processes, without a copy in Python",
        (*PEERS, FLOOR),
        _tensor_cases,
    ),
)
