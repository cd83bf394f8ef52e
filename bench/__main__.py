"""The command line of the benchmarks: `python -m bench [SCENARIO ...]`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.measure import machine_round_trip
from bench.pages import write_section
from bench.peers import PEERS, another_build, why_missing
from bench.plan import Case, Scenario, ScenarioOptions
from bench.processes import RunError
from bench.report import CaseResult, table
from bench.scenario import SCENARIOS

MISSED, UNMEASURED = 1, 3  # exit codes; 2 is argparse's


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*(K|KiB|M|MiB|B)?", text.strip(), re.IGNORECASE)
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; expected 128, 16KiB or 1MiB")
    return int(found[1]) << {"K": 10, "M": 20}.get((found[2] or "B")[0].upper(), 0)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench", description="Measures omq next to its peers, round by round.")
    add = parser.add_argument
    add("scenario", nargs="*", help="names from the list, or all; without a name: prints the list")
    add(
        "--size",
        type=_size,
        action="append",
        default=[],
        help="bytes of a message (128, 16KiB, 1MiB); repeatable",
    )
    add("--transport", choices=("tcp", "ipc"), action="append", default=[], help="repeatable")
    add("--rounds", type=int, default=5, help="rounds of A B C (default 5)")
    add("--seconds", type=float, default=1.0, help="length of a measured burst (default 1)")
    add("--subscribers", type=int, default=8, help="processes that a PUB serves, or that send to one PULL (default 8)")
    add("--connections", type=int, default=10_000, help="connections of one socket (default 10000)")
    add("--peers", help=f"only these, separated by commas, of: {', '.join(PEERS)}")
    add("--check", action="store_true", help="exit 1 if a target is missed, 3 if one could not be measured")
    add("--json", type=Path, metavar="FILE", help="write every round to a file, too")
    add("--write", action="store_true", help="write these figures into docs/reference/performance*.md")
    found = parser.parse_args(argv)
    if "all" in found.scenario:
        found.scenario = list(SCENARIOS)
    for name in found.scenario:
        if name not in SCENARIOS:
            parser.error(f"no scenario {name!r}; known are: {', '.join(SCENARIOS)}")
    found.peers = found.peers.split(",") if found.peers else None
    for name in found.peers or ():
        if name not in PEERS:
            parser.error(f"no peer {name!r}; known are: {', '.join(PEERS)}")
    if found.rounds < 1 or found.seconds <= 0 or found.subscribers < 1:
        parser.error("--rounds, --seconds and --subscribers are above 0")
    if found.connections < 100:
        parser.error("--connections is 100 or more")
    return found


def _list() -> None:
    width = max(map(len, SCENARIOS))
    for scenario in SCENARIOS.values():
        print(f"{scenario.name:{width}}  {scenario.about}")
        print(f"{'':{width}}  peers: {', '.join(scenario.peers)}")
        for peer in scenario.peers:
            if why := why_missing(peer):
                print(f"{'':{width}}  !! {peer} cannot run here: {why}")


def _run(case: Case, rounds: int) -> CaseResult:
    """Interleaves the peers round by round; a peer that fails is left out from then on."""
    result = CaseResult(case, {peer: [] for peer in case.runs}, trip=machine_round_trip())
    rounds = min(rounds, case.rounds or rounds)
    for number in range(rounds):
        for peer, run in case.runs.items():
            if peer in result.failures:
                continue
            if sys.stderr.isatty():
                print(f"\r\033[K{case.title}: round {number + 1}/{rounds}, {peer}", end="", file=sys.stderr)
            try:
                result.samples[peer].append(run())
            except RunError as error:
                result.failures[peer] = str(error)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return result


def _runnable_peers(scenario: Scenario, wanted: list[str] | None) -> set[str]:
    """Returns the peers that can and should run; prints those that cannot."""
    builds = [build for peer in scenario.peers for build in (peer, another_build(peer)) if build]
    chosen = [peer for peer in builds if wanted is None or peer in wanted]
    missing = {peer: why for peer in chosen if (why := why_missing(peer))}
    for peer, why in missing.items():
        print(f"!! {scenario.name}: {peer} cannot be imported here: {why}")
    if wanted is None and scenario.peers[0] in missing:
        print(f"!! {scenario.name}: SKIPPED, there is nothing to compare without {scenario.peers[0]}")
        return set()
    return {peer for peer in chosen if peer not in missing}


def _command(name: str, arguments: argparse.Namespace) -> str:
    """Returns the command that measures one of the scenarios again."""
    words = ["python -m bench", name]
    words += [f"--size {size}" for size in arguments.size]
    words += [f"--transport {transport}" for transport in arguments.transport]
    for option, usual in (("rounds", 5), ("seconds", 1.0), ("subscribers", 8), ("connections", 10_000)):
        if (value := getattr(arguments, option)) != usual:
            words.append(f"--{option} {value:g}")
    return " ".join(words)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the scenarios of the command line and returns the exit code."""
    arguments = _arguments(argv)
    if not arguments.scenario:
        _list()
        return 0
    options = ScenarioOptions(
        tuple(arguments.size),
        tuple(arguments.transport),
        arguments.seconds,
        arguments.subscribers,
        arguments.connections,
    )
    verdicts: list[str] = []
    written: list[dict[str, object]] = []
    found: list[CaseResult]
    failed = False
    for name in arguments.scenario:
        peers = _runnable_peers(SCENARIOS[name], arguments.peers)
        found = []
        for case in map(Case.with_another_build, SCENARIOS[name].cases(options)):
            runs = {peer: run for peer, run in case.runs.items() if peer in peers}
            result = CaseResult(case)
            if runs:
                result = _run(replace(case, runs=runs), arguments.rounds)
                print(table(result), end="\n\n", flush=True)
            verdicts += [result.verdict(target) for target in case.targets]
            failed = failed or bool(result.failures)
            written.append({"scenario": name, **result.as_json()})
            found.append(result)
        if arguments.write:
            write_section(SCENARIOS[name], found, _command(name, arguments))
    if arguments.json:
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")
    missed, unmeasured = verdicts.count("MISSED"), verdicts.count("not measured")
    print(f"targets: {verdicts.count('ok')} met, {missed} missed, {unmeasured} not measured")
    if failed or (arguments.check and missed):
        return MISSED
    return UNMEASURED if arguments.check and unmeasured else 0


if __name__ == "__main__":
    sys.exit(main())
