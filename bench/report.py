"""Medians, spreads, ratios and verdicts, as plain text tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.measure import Sample
from bench.peers import PEERS
from bench.plan import Case, Metric, Target


@dataclass
class Findings:
    """What the rounds of a case gave.

    Attributes:
        case: The case.
        samples: One sample a round, by peer.
        failures: Why a peer has none, or too few.
    """

    case: Case
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, peer: str, metric: Metric) -> float | None:
        """The median over the rounds; `None` for a peer that did not run through."""
        values = [sample[metric.key] for sample in self.samples.get(peer, ())]
        return median(values) if values and peer not in self.failures else None

    def ratio(self, peer: str) -> float | None:
        """omq's median over the peer's, in the first metric."""
        metric = self.case.metrics[0]
        mine, other = self.median(self.case.subject, metric), self.median(peer, metric)
        return mine / other if mine is not None and other else None

    def verdict(self, target: Target) -> str:
        """`ok`, `MISSED`, or `not measured`."""
        metric = self.case.metrics[0]
        value = self.ratio(target.peer) if target.peer else self.median(self.case.subject, metric)
        if value is None:
            return "not measured"
        met = value <= target.bound if metric.less_is_better else value >= target.bound
        return "ok" if met else "MISSED"

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return {
            "case": self.case.title,
            "peers": {
                peer: {
                    "rounds": samples,
                    "medians": {m.key: self.median(peer, m) for m in self.case.metrics},
                    "ratio": self.ratio(peer),
                }
                for peer, samples in self.samples.items()
            },
            "targets": [{"peer": t.peer, "bound": t.bound, "verdict": self.verdict(t)} for t in self.case.targets],
            "failures": self.failures,
        }


def table(findings: Findings) -> str:
    """The case as a table: a row for each peer, omq's ratio to it, and the target."""
    case, main = findings.case, findings.case.metrics[0]
    head = ["", main.title, "spread", *(m.title for m in case.metrics[1:]), "omq / it", "target", ""]
    rows = [head, *(_row(findings, peer) for peer in case.runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [f"== {case.title}"]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    for peer, why in findings.failures.items():
        lines.append(f"!! {PEERS[peer].label} FAILED: {why}")
    return "\n".join(lines)


def _row(findings: Findings, peer: str) -> list[str]:
    case, main = findings.case, findings.case.metrics[0]
    samples = findings.samples.get(peer, [])
    values = [sample[main.key] for sample in samples]
    ratio = findings.ratio(peer) if peer != case.subject else None
    aim = next((t for t in case.targets if (t.peer or case.subject) == peer), None)
    return [
        PEERS[peer].label,
        *(_figure(findings.median(peer, main), main),),
        f"{_figure(min(values), main)} - {_figure(max(values), main)}" if values else "-",
        *(_figure(findings.median(peer, metric), metric) for metric in case.metrics[1:]),
        f"{ratio:.2f}x" if ratio is not None else "",
        _aim(aim, main) if aim else "",
        findings.verdict(aim) if aim else "",
    ]


def _figure(value: float | None, metric: Metric) -> str:
    return "-" if value is None else f"{value:,.{metric.decimals}f}"


def _aim(target: Target, metric: Metric) -> str:
    sign = "<=" if metric.less_is_better else ">="
    return f"{sign} {target.bound:g}x" if target.peer else f"{sign} {_figure(target.bound, metric)}"
