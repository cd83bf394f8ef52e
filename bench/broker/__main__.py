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
from bench.broker.plan import OMQ, PEERS, SCENARIOS, Case, Load, Row, cases
from bench.broker.plot import plot
from bench.broker.progress import say
from bench.broker.record import MINUTES, PAGE, SECONDS, record
from bench.broker.report import Findings, markdown, table
from bench.processes import ROOT, RunError

MISSED, UNMEASURED = 1, 3  # exit codes; 2 is argparse's
REPLAYED, KEPT = 1_000_000, 10_000_000  # messages
IN_MEMORY = ("tmpfs", "ramfs")


def _count(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([kKM]?)(?:iB|B)?", text.strip())
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no number; say 1000, 100k or 10M")
    return int(found[1]) * {"": 1, "k": 1000, "K": 1024, "M": 1_000_000}[found[2]]


def _names(known: Sequence[str]) -> object:
    def names(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {name!r}; known are: {', '.join(known)}")
        return found

    return names


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.broker", description="omq's broker beside others, in turns.")
    add = parser.add_argument
    add("--peers", type=_names(PEERS), default=list(PEERS), help=f"only these of: {','.join(PEERS)}")
    add("--scenarios", type=_names(SCENARIOS), default=list(SCENARIOS), help=f"only these of: {','.join(SCENARIOS)}")
    add("--rounds", type=_count, default=3, help="rounds of A B C (default 3)")
    add("--seconds", type=float, help="length of a measured burst (default 2, with --write 0.6)")
    add(
        "--messages",
        type=_count,
        help="how many are replayed (1M), or stored while names resume (10M)",
    )
    add("--size", type=_count, default=1024, help="bytes of a message (default 1024)")
    add("--depth", type=_count, default=1000, help="messages that wait for their acknowledgements (default 1000)")
    add("--client", choices=("better", "bare", "official"), default="better", help="how peers are driven")
    add("--directory", type=Path, help="where servers keep their data (default: the folder for temporary files)")
    add("--check", action="store_true", help="exit 1 if a target is missed, 3 if one could not be measured")
    add("--json", type=Path, metavar="FILE", help="write every round there")
    add("--markdown", type=Path, metavar="FILE", help="write the tables there")
    add("--minutes", type=float, help="about how long all of it may take: rounds are left out (with --write 12)")
    add("--write", action="store_true", help=f"put figures and plots into {PAGE.relative_to(ROOT)}")
    add("--svg", type=Path, metavar="FILE", help="write a plot there")
    found = parser.parse_args(argv)
    if found.minutes is None and found.write:
        found.minutes = MINUTES
    if found.seconds is None:
        found.seconds = SECONDS if found.write else 2.0
    return found


def _file_system(place: Path) -> str:
    """The type of the file system that a folder is on."""
    found = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        mount, kind = line.split()[1:3]
        if place.is_relative_to(mount) and len(mount) >= len(found[0]):
            found = (mount, kind)
    return found[1]


def _why_not(row: Row) -> str | None:
    """Why a row cannot run here."""
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


def _qualified(findings: Findings, row: Row, drivers: list[str], run: Run) -> None:
    """Finds the better driver of a row; one that fails is not."""
    metric = findings.case.metrics[0]
    values: dict[str, float] = {}
    why = ""
    for driver in drivers:
        say(f"{findings.case.title}: which client is better, {row.label} by {driver}")
        try:
            values[driver] = run(row, driver)[metric.key]
        except RunError as error:
            why = str(error)
            print(f"!! {why}", flush=True)
    if not values:
        findings.left_out[row.label] = why
        return
    best = (min if metric.less_is_better else max)(values, key=values.__getitem__)
    findings.drivers[row.label] = best
    findings.beaten[row.label] = {driver: value for driver, value in values.items() if driver != best}


def _qualify(findings: Findings, rows: Sequence[Row], client: str, run: Run) -> None:
    """Finds out who is here, and by which driver."""
    for row in rows:
        drivers = _drivers(row, client)
        findings.drivers[row.label] = drivers[0]
        if why := _why_not(row):
            findings.left_out[row.label] = why
        elif len(drivers) > 1:
            _qualified(findings, row, drivers, run)


def measure(case: Case, load: Load, place: Path, rounds: int, client: str, until: float = inf) -> Findings:
    """Interleaves the rows round by round; one that fails is left out from then on.

    Args:
        case: The case.
        load: Its load.
        place: Where servers keep their data.
        rounds: How many there are,
        client: How peers are driven.
        until: as long as another one would end before this, on the monotonic clock; the first one is never left out.
    """
    findings = Findings(case)
    with runner(case, load, place) as how:
        for rows in how.turns:
            _qualify(findings, rows, client, how.qualify)
            for number in range(rounds):
                started = time.monotonic()
                for row in rows:
                    if row.label in findings.left_out:
                        continue
                    say(f"{case.title}: round {number + 1}/{rounds}, {row.label}")
                    try:
                        sample = how.run(row, findings.drivers[row.label])
                    except RunError as error:
                        findings.left_out[row.label] = str(error)
                    else:
                        findings.samples.setdefault(row.label, []).append(sample)
                if 2 * time.monotonic() - started > until:
                    break
            how.over()
    say("")
    return findings


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for and gives the exit code."""
    arguments = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers end with the bench, then
    load = Load(
        arguments.size, arguments.depth, arguments.seconds, arguments.messages or REPLAYED, arguments.messages or KEPT
    )
    place = (arguments.directory or Path(tempfile.gettempdir())).resolve()
    kind = _file_system(place)
    print(f"{load.size} bytes a message, {load.depth} under way, data in {place} ({kind})", flush=True)
    if kind in IN_MEMORY:
        print(f"!! {place} is in memory: an fsync costs nothing there; --directory names another folder")
    command = _command(arguments)
    found: list[Findings] = []
    wanted = [
        replace(case, rows=tuple(row for row in case.rows if row.peer in arguments.peers))
        for case in cases(load)
        if case.scenario in arguments.scenarios
    ]
    wanted = [case for case in wanted if case.rows]
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else inf
    for number, case in enumerate(wanted):
        now, weights = time.monotonic(), [each.weight for each in wanted[number:]]
        # What one has left of its share goes to those behind it.
        until = now + (end - now) * weights[0] / sum(weights)
        findings = measure(case, load, place, arguments.rounds, arguments.client, until)
        print(table(findings), end="\n\n", flush=True)
        found.append(findings)
        if arguments.write:
            record(findings, command, kind)
        _write(arguments, load, command, found)
    verdicts = [findings.verdict(row) for findings in found for row in findings.case.rows]
    missed, unmeasured = verdicts.count("MISSED"), verdicts.count("not measured")
    print(f"targets: {verdicts.count('ok')} met, {missed} missed, {unmeasured} not measured")
    if arguments.check and missed:
        return MISSED
    return UNMEASURED if arguments.check and unmeasured else 0


def _command(arguments: argparse.Namespace) -> str:
    """The command that measures the same again."""
    words = ["--write"] if arguments.write else []
    usual = {"rounds": 3, "seconds": SECONDS if arguments.write else 2.0, "size": 1024, "depth": 1000, "messages": None}
    usual |= {"client": "better", "minutes": MINUTES if arguments.write else None}
    usual |= {"peers": list(PEERS), "scenarios": list(SCENARIOS)}
    for option, value in usual.items():
        if (given := getattr(arguments, option)) != value:
            words.append(f"--{option} {','.join(given) if isinstance(given, list) else given}")
    return f'make bench-broker ARGS="{" ".join(words)}"' if words else "make bench-broker"


def _write(arguments: argparse.Namespace, load: Load, command: str, found: Sequence[Findings]) -> None:
    """Writes what there is so far, so that a long run that is ended leaves what it found."""
    if arguments.json:
        whole = {"load": vars(load), "cases": [findings.as_json() for findings in found]}
        arguments.json.write_text(json.dumps(whole, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(found, command))
    if arguments.svg:
        arguments.svg.write_text(plot(found))


if __name__ == "__main__":
    sys.exit(main())
