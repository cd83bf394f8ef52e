"""The command line: `python -m bench.broker`."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from bench.broker.install import PROGRAMS, why_missing
from bench.broker.measure import Run, runner
from bench.broker.page import PAGE, PAGE_BURST_S, PAGE_MINUTES, write_case
from bench.broker.plan import OMQ, PEERS, SCENARIOS, BrokerCase, BrokerLoad, Row, cases
from bench.broker.plot import plot
from bench.broker.progress import show
from bench.broker.report import BrokerResult, markdown, table
from bench.processes import ROOT, RunError

MISSED, UNMEASURED = 1, 3  # exit codes; 2 is argparse's
REPLAYED_MESSAGES, KEPT_MESSAGES = 1_000_000, 10_000_000  # messages
IN_MEMORY = ("tmpfs", "ramfs")


def _count(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([kKM]?)(?:iB|B)?", text.strip())
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; expected 1000, 100k or 10M")
    return int(found[1]) * {"": 1, "k": 1000, "K": 1024, "M": 1_000_000}[found[2]]


def _names(known: Sequence[str]) -> object:
    def names(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not known; known are: {', '.join(known)}")
        return found

    return names


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m bench.broker", description="Measures omq's broker next to others, in turns."
    )
    add = parser.add_argument
    add("--peers", type=_names(PEERS), default=list(PEERS), help=f"only these of: {','.join(PEERS)}")
    add("--scenarios", type=_names(SCENARIOS), default=list(SCENARIOS), help=f"only these of: {','.join(SCENARIOS)}")
    add("--rounds", type=_count, default=3, help="rounds of A B C (default 3)")
    add("--seconds", type=float, help="length of a measured burst (default 2, with --write 0.6)")
    add(
        "--messages",
        type=_count,
        help="messages that are replayed (1M), or stored while cursors resume (10M)",
    )
    add("--size", type=_count, default=1024, help="bytes of a message (default 1024)")
    add("--depth", type=_count, default=1000, help="messages that wait for their acknowledgements (default 1000)")
    add("--client", choices=("better", "bare", "official"), default="better", help="the driver of the peers")
    add("--directory", type=Path, help="the folder of the servers' data (default: the folder for temporary files)")
    add("--check", action="store_true", help="exit 1 if a target is missed, 3 if one could not be measured")
    add("--json", type=Path, metavar="FILE", help="write every round to a file")
    add("--markdown", type=Path, metavar="FILE", help="write the tables to a file")
    add("--minutes", type=float, help="about the time of everything: rounds are left out (with --write 12)")
    add("--write", action="store_true", help=f"put figures and plots into {PAGE.relative_to(ROOT)}")
    add("--svg", type=Path, metavar="FILE", help="write a plot to a file")
    found = parser.parse_args(argv)
    if found.minutes is None and found.write:
        found.minutes = PAGE_MINUTES
    if found.seconds is None:
        found.seconds = PAGE_BURST_S if found.write else 2.0
    return found


def _file_system(place: Path) -> str:
    """Returns the type of the file system of a folder."""
    found = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        mount, kind = line.split()[1:3]
        if place.is_relative_to(mount) and len(mount) >= len(found[0]):
            found = (mount, kind)
    return found[1]


def _why_not_here(row: Row) -> str | None:
    """Returns the reason why a row cannot run here; `None` if it can."""
    if row.service in PROGRAMS:
        return why_missing(row.service)
    if row.peer == OMQ:
        try:
            importlib.import_module("omq.broker")
        except ImportError as error:
            return f"{type(error).__name__}: {error}"
    return None


def _drivers(row: Row, wanted: str) -> list[str]:
    chosen = [name for name in row.drivers if wanted == "better" or name.endswith(wanted)]
    return chosen or [row.drivers[0]]


def _choose_driver(result: BrokerResult, row: Row, drivers: list[str], run: Run) -> None:
    """Finds the better driver of a row, among those that do not fail."""
    metric = result.case.metrics[0]
    values: dict[str, float] = {}
    why = ""
    for driver in drivers:
        show(f"{result.case.title}: choosing a client, {row.label} by {driver}")
        try:
            values[driver] = run(row, driver)[metric.key]
        except RunError as error:
            why = str(error)
            print(f"!! {why}", flush=True)
    if not values:
        result.left_out[row.label] = why
        return
    best = (min if metric.less_is_better else max)(values, key=values.__getitem__)
    result.drivers[row.label] = best
    result.beaten[row.label] = {driver: value for driver, value in values.items() if driver != best}


def _qualify(result: BrokerResult, rows: Sequence[Row], client: str, run: Run) -> None:
    """Finds the rows that can run, and the driver of each."""
    for row in rows:
        drivers = _drivers(row, client)
        result.drivers[row.label] = drivers[0]
        if why := _why_not_here(row):
            result.left_out[row.label] = why
        elif len(drivers) > 1:
            _choose_driver(result, row, drivers, run)


def measure(
    case: BrokerCase, load: BrokerLoad, place: Path, rounds: int, client: str, until: float = inf
) -> BrokerResult:
    """Interleaves the rows round by round; one that fails is left out from then on.

    Args:
        case: The case.
        load: Its load.
        place: The folder of the servers' data.
        rounds: The number of rounds.
        client: The driver of the peers.
        until: The end on the monotonic clock: a round that would end later is left out, except for the first.
    """
    result = BrokerResult(case)
    with runner(case, load, place) as case_runner:
        for rows in case_runner.turns:
            _qualify(result, rows, client, case_runner.qualify)
            for number in range(rounds):
                started = time.monotonic()
                for row in rows:
                    if row.label in result.left_out:
                        continue
                    show(f"{case.title}: round {number + 1}/{rounds}, {row.label}")
                    try:
                        sample = case_runner.run(row, result.drivers[row.label])
                    except RunError as error:
                        result.left_out[row.label] = str(error)
                    else:
                        result.samples.setdefault(row.label, []).append(sample)
                if 2 * time.monotonic() - started > until:
                    break
            case_runner.after_turn()
    show("")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cases of the command line and returns the exit code."""
    arguments = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that servers end with the bench
    load = BrokerLoad(
        arguments.size,
        arguments.depth,
        arguments.seconds,
        arguments.messages or REPLAYED_MESSAGES,
        arguments.messages or KEPT_MESSAGES,
    )
    place = (arguments.directory or Path(tempfile.gettempdir())).resolve()
    kind = _file_system(place)
    print(f"{load.size} bytes a message, {load.depth} in flight, data in {place} ({kind})", flush=True)
    if kind in IN_MEMORY:
        print(f"!! {place} is in memory: an fsync costs nothing there; --directory names another folder")
    command = _command(arguments)
    found: list[BrokerResult] = []
    wanted = [
        replace(case, rows=tuple(row for row in case.rows if row.peer in arguments.peers))
        for case in cases(load)
        if case.scenario in arguments.scenarios
    ]
    wanted = [case for case in wanted if case.rows]
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else inf
    for number, case in enumerate(wanted):
        now, weights = time.monotonic(), [each.weight for each in wanted[number:]]
        # The rest of the share of a case goes to the cases after it.
        until = now + (end - now) * weights[0] / sum(weights)
        result = measure(case, load, place, arguments.rounds, arguments.client, until)
        print(table(result), end="\n\n", flush=True)
        found.append(result)
        if arguments.write:
            write_case(result, command, kind)
        _write(arguments, load, command, found)
    verdicts = [result.verdict(row) for result in found for row in result.case.rows]
    missed, unmeasured = verdicts.count("MISSED"), verdicts.count("not measured")
    print(f"targets: {verdicts.count('ok')} met, {missed} missed, {unmeasured} not measured")
    if arguments.check and missed:
        return MISSED
    return UNMEASURED if arguments.check and unmeasured else 0


def _command(arguments: argparse.Namespace) -> str:
    """Returns the command that measures the same again."""
    words = ["--write"] if arguments.write else []
    usual = {
        "rounds": 3,
        "seconds": PAGE_BURST_S if arguments.write else 2.0,
        "size": 1024,
        "depth": 1000,
        "messages": None,
    }
    usual |= {"client": "better", "minutes": PAGE_MINUTES if arguments.write else None}
    usual |= {"peers": list(PEERS), "scenarios": list(SCENARIOS)}
    for option, value in usual.items():
        if (given := getattr(arguments, option)) != value:
            words.append(f"--{option} {','.join(given) if isinstance(given, list) else given}")
    return f'make bench-broker ARGS="{" ".join(words)}"' if words else "make bench-broker"


def _write(arguments: argparse.Namespace, load: BrokerLoad, command: str, found: Sequence[BrokerResult]) -> None:
    """Writes the results so far, so that a long run that is ended early leaves them."""
    if arguments.json:
        whole = {"load": vars(load), "cases": [result.as_json() for result in found]}
        arguments.json.write_text(json.dumps(whole, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(found, command))
    if arguments.svg:
        arguments.svg.write_text(plot(found))


if __name__ == "__main__":
    sys.exit(main())
